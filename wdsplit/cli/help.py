"""Commands and their options: the help of a command shows examples first, then its options in sections."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from wdsplit.cli.terminal import HelpContext, Result

__all__ = ["Decorator", "argument", "command", "option", "with_options"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_SECTIONS = (
    *("Input", "Matching", "Rows", "Samples", "Packs and groups", "Training", "One sample", "Shards", "Loading"),
    *("Sample tables", "Versions", "Cluster model", "Description", "Output", "Stored annotations", "Stored views"),
    *("Running", "Options"),
)
"""The sections of all commands, in the order in which a help shows those that have options."""

_KEEP_LINES = "\n\b"
"""Before a paragraph, it makes click keep the line breaks."""

_RANGE = re.compile(r"\bx(?=[<>])|(?<=<=)x\b")
"""The number in click's ranges, such as [x>=1]; N is what the help calls it."""

argument = click.argument


class _Option(click.Option):
    """An option in a section of the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        if isinstance(self.type, (click.IntRange, click.FloatRange)):
            self.metavar = self.metavar or "N"


def option(
    section: str, flags: str, text: str, *, name: str | None = None, low: int | None = None, **settings: Any
) -> Decorator:
    """Return a decorator that adds an option to a command, in a section of its help, with its default if it has one.

    Args:
        section: The section.
        flags: Its flags and its value, as the help shows them: `-o, --output FOLDER`.
        text: Its help.
        name: The name of the parameter; None for that of the flag.
        low: The least value of an integer, if the settings name no other type.
        settings: As of click.
    """
    names, _, metavar = flags.replace(", ", ",").partition(" ")
    settings.setdefault("show_default", settings.get("default") is not None)
    settings.setdefault("metavar", metavar or None)
    if low is not None:
        settings.setdefault("type", click.IntRange(low))
    return click.option(*names.split(","), *filter(None, [name]), cls=_Option, section=section, help=text, **settings)


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


def command(
    name: str, examples: Sequence[str], *options: Decorator, summary: str | None = None, has_json: bool = True
) -> Callable[[Callable[..., Result | None]], click.Command]:
    """Return a decorator that makes a command of a function, whose docstring is the help and whose result is printed.

    Args:
        name: The name of the command.
        examples: Examples of its arguments.
        options: Its arguments and options.
        summary: The line of the list of commands; None for the first of the help.
        has_json: Whether `--json` prints the value of the result.
    """
    lines = [f"  wdsplit {name} {each}" for each in examples]
    epilog = "\n".join(["Examples:" if len(lines) > 1 else "Example:", "", "\b", *lines])

    def decorate(function: Callable[..., Result | None]) -> click.Command:
        made = click.command(name, cls=_Command, epilog=epilog, short_help=summary)(with_options(*options)(function))
        if has_json:
            made.params.append(_Option(["--json"], section="Output", is_flag=True, help="Print the result as JSON."))
        if not any("-v" in each.opts for each in made.params):
            sections = [each.section for each in made.params if isinstance(each, _Option)]
            log = _Option(
                ["-v", "--verbose"],
                section=max(sections, key=_SECTIONS.index, default="Options"),
                is_flag=True,
                expose_value=False,
                help="Log decisions and progress.",
                callback=_log_more,
            )
            made.params.append(log)
        return made

    return decorate


def _log_more(_: click.Context, __: click.Parameter, is_verbose: bool) -> None:
    if is_verbose:
        logging.getLogger("wdsplit").setLevel(logging.INFO)


class _Command(click.Command):
    """A command whose help shows its examples (the epilog) before its options."""

    context_class = HelpContext

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, show the examples."""
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"Missing arguments. {(self.epilog or '').replace(_KEEP_LINES, '')}", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command, after the program's `before` hook, and print its result as text or JSON."""
        if ctx.obj is not None:
            ctx.obj()
        as_json = ctx.params.pop("json", False)
        ctx.meta["json"] = as_json
        result = super().invoke(ctx)
        if isinstance(result, Result):
            result.show(as_json)
            ctx.exit(result.code)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, examples, description and options."""
        self.format_usage(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is not None:
                rows = sections.setdefault(getattr(each, "section", "Options"), [])
                rows.append((record[0], _RANGE.sub("N", record[1])))
        for section in sorted(sections, key=_SECTIONS.index):
            with formatter.section(section):
                formatter.write_dl(sections[section])
