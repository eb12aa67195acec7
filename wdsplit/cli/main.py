"""The command line: `wdsplit COMMAND`.

A command reads arguments, calls the library and shows what it returns. A `WdsplitError` ends it with a message and an
exit code, never with a traceback.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Sequence

import click

from wdsplit.cli.annotate import annotate_command, map_command
from wdsplit.cli.batch import batch_command
from wdsplit.cli.bench import bench_command
from wdsplit.cli.check import audit_command, verify_command
from wdsplit.cli.convert import commit_command, convert_command, index_command
from wdsplit.cli.inspect import assign_command, inspect_command
from wdsplit.cli.plan import plan_command
from wdsplit.cli.report import croissant_command, report_command
from wdsplit.cli.signals import sigterm_as_ctrl_c
from wdsplit.cli.terminal import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    UNUSABLE,
    HelpContext,
    LogHandler,
    bad,
    colour,
    error_text,
    stderr,
)
from wdsplit.cli.versions import erase_command, gc_command, log_command
from wdsplit.cli.view import view_command
from wdsplit.errors import DatasetNotFoundError, InputError, OutputExistsError, TopologyError, WdsplitError

__all__ = ["cli", "main"]

_UNUSABLE = (DatasetNotFoundError, InputError, OutputExistsError, TopologyError)


class _Commands(click.Group):
    """Commands in the order in which people use them, not sorted by name."""

    context_class = HelpContext

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)


_EPILOG = """\b
Examples:
  wdsplit convert raw/ data/train --world-size 8 --workers 4
  wdsplit verify data/train
  wdsplit COMMAND --help

\b
Exit codes:
  0    done
  1    failed, or a check found problems
  2    invalid command line, input or output
  130  interrupted by Ctrl-C
  143  ended by SIGTERM
"""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(package_name="wdsplit", prog_name="wdsplit")
@click.option("-v", "--verbose", is_flag=True, help="Log decisions and progress.")
def cli(verbose: bool) -> None:
    """Convert tables into balanced WebDataset shards, and check what training will read from them."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[LogHandler()])
    logging.getLogger("wdsplit").setLevel(logging.INFO if verbose else logging.WARNING)


for _command in (
    plan_command,
    convert_command,
    commit_command,
    index_command,
    annotate_command,
    map_command,
    view_command,
    inspect_command,
    log_command,
    erase_command,
    gc_command,
    verify_command,
    assign_command,
    audit_command,
    batch_command,
    report_command,
    croissant_command,
    bench_command,
):
    cli.add_command(_command)


def main(arguments: list[str] | None = None, before: Callable[[], None] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: Arguments of the command line; None for those of this process.
        before: Called before a command runs, after its options are parsed.
    """
    with sigterm_as_ctrl_c() as terminated:
        code = _run(arguments, terminated, before)
    if terminated and code != 0:
        code = TERMINATED
    sys.exit(code)


def _run(arguments: list[str] | None, terminated: Sequence[int], before: Callable[[], None] | None) -> int:
    """Run the command line, print its error if it fails, and return the exit code.

    Args:
        arguments: Arguments of the command line.
        terminated: The SIGTERMs received so far.
        before: Called before a command runs.
    """
    try:
        return int(cli.main(arguments, prog_name="wdsplit", standalone_mode=False, color=colour(), obj=before) or 0)
    except click.ClickException as error:
        _show(error)
        return UNUSABLE
    except WdsplitError as error:
        stderr(error_text("error", str(error)))
        return UNUSABLE if isinstance(error, _UNUSABLE) else FAILED
    except (KeyboardInterrupt, click.Abort, RuntimeError) as error:
        # Interrupted at the wrong moment, `threading.Condition.wait` releases a lock that it does not have.
        if isinstance(error, RuntimeError) and not isinstance(error.__context__, KeyboardInterrupt):
            raise
        stderr("ended by SIGTERM" if terminated else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _show(error: click.ClickException) -> None:
    """Show click's message about an invalid command line."""
    shown = io.StringIO()
    error.show(shown)
    usage, word, message = click.unstyle(shown.getvalue()).rpartition("Error: ")
    if word:
        stderr(f"{usage}{bad('error:')} {message}".strip())
    else:  # the help of `wdsplit` alone
        error.show()
