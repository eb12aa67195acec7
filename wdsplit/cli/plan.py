"""`wdsplit plan`: the dry run of `convert`, and the start of a conversion in shares."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.conversion import conversion_options, label_lines, plan_options, run_options
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import given
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import Result, names_text, span, table
from wdsplit.texts import counted, human_bytes

if TYPE_CHECKING:
    from wdsplit.conversion.plan.plan import Plan

__all__ = ["plan_command"]


@command(
    "plan",
    ["'raw/train-*.parquet' --world-size 8 --workers 4", "raw/ --into /shared/train -o /shared/train.plan"],
    argument("inputs", nargs=-1, required=True, metavar="INPUT..."),
    plan_options,
    option("Output", "--into OUTPUT", "With -o: output folder, accessible to all shares.", name="output"),
    option(
        "Output",
        "-o, --save PLAN",
        "Start a conversion in shares into OUTPUT, and save its plan to this file.",
        name="plan_path",
    ),
    run_options,
    summary="Preview what convert would do; start a conversion in shares.",
)
def plan_command(inputs: tuple[str, ...], output: str | None, plan_path: str | None, **arguments: Any) -> Result:
    """Preview what convert would do with the same options. Without -o, nothing is written.

    INPUT is a file, a folder of tables or images, a glob or a brace expression, local or a URL (s3://, gs://, hf://,
    https://).

    With -o PLAN --into OUTPUT, start a conversion in shares. Any number of processes on any machines then write the
    shares (`wdsplit convert --plan PLAN --share I/N`), and `wdsplit commit PLAN` finishes the dataset. With --split,
    each split has its own plan, PLAN.NAME.
    """
    from wdsplit.conversion.planning import plan_splits
    from wdsplit.conversion.prepare import share_needs
    from wdsplit.conversion.shares import needed_passes, plan_shares
    from wdsplit.conversion.shuffle.needs import needs_of
    from wdsplit.engines.limits import usable_processors
    from wdsplit.tables.media import class_counts

    if (output is None) != (plan_path is None):
        raise click.UsageError("--into and -o belong together: give -o PLAN --into OUTPUT")
    others = given(("emit", "overwrite")) if plan_path is None else []
    if others:
        raise click.UsageError(f"{', '.join(others)}: allowed only with -o")
    options, files = conversion_options(arguments), dict[str, str]()
    with progress_bar("planning"):
        if output is None or plan_path is None:
            plans = plan_splits(inputs, options)
            needs = [needs_of(plan, options.memory, usable_processors(), True, True) for plan in plans.values()]
        else:
            saved = plan_shares(inputs, output, plan_path, options)
            files = dict(zip(options.splits or [""], saved, strict=True))
            plans = dict(zip(files, saved.values(), strict=True))
            needs = [share_needs(plan, options.memory) for plan in plans.values()]
    spaces = [need.temporary_bytes for need in needs]
    values, texts = {}, []
    for (name, plan), space in zip(plans.items(), spaces, strict=True):
        classes = class_counts(plan.table)
        values[name] = {**plan.summary(), "classes": classes, "temporary_bytes": space}
        texts.append((f"{name}: " if name else "") + _plan_text(plan, classes, _space_text(plan, space, output)))
    for name, file in files.items():
        passes = needed_passes(file)
        values[name] |= {"saved": file, "passes": passes}
        texts.append(_next_steps(shlex.quote(file), passes if plans[name].scatters else ()))
    return Result("\n\n".join(texts), values.get("", values))


def _next_steps(plan_path: str, passes: Sequence[str]) -> str:
    """Return the commands that continue a conversion, if it has several passes each of them."""
    share = f"  wdsplit convert --plan {plan_path} --share I/N"
    note = ", finishing each pass before the next" if passes else ""
    shares = [f"{share} --pass {name}" for name in passes] or [share]
    first = f"saved to {plan_path}; now run N shares, I = 0, ..., N - 1{note}:"
    return "\n".join([first, *shares, f"  wdsplit commit {plan_path}"])


def _plan_text(plan: Plan, classes: Mapping[str, int], space: str) -> str:
    from wdsplit.conversion.planning import shown_notes

    what, where = ("file", "input folder") if plan.table.names_files else ("row", "file")
    of_all = f" of {plan.table.total_rows:,}" if plan.num_rows < plan.table.total_rows else ""
    order = "rows in the order of the input (--shuffle shuffles them)"
    if plan.options.shuffle:
        order = f"rows shuffled, seed {plan.options.seed} (--no-shuffle keeps the order of the input)"
    divisors = [f"{number:,}" for number in range(1, plan.lanes + 1) if plan.lanes % number == 0]
    lines = [
        f"{counted(plan.num_rows, what)}{of_all} in {counted(len(plan.table.files), where)} -> "
        f"{counted(plan.num_shards, 'shard')} of {counted(plan.max_samples, 'sample')}",
        order,
        space,
        f"pads {plan.num_pads:,}, rows left out {plan.num_dropped:,}, "
        f"keys from {'column ' + repr(plan.key) if plan.key else 'row numbers'}",
        f"the loader reads {counted(plan.lanes, 'lane')} (sequences of shards) in parallel, in windows of "
        f"{'' if plan.options.window else 'about '}{counted(plan.window, 'sample')}",
        f"ranks x workers that read each byte once: {', '.join(divisors)}",
        f"plan {plan.hash}",
        *label_lines(plan.label, plan.fields),
    ]
    if classes:  # of folders that name them
        some = names_text([f"{name} {count:,}" for name, count in classes.items()])
        lines.append(f"{counted(len(classes), 'class', 'classes')} of {span(classes.values())} files: {some}")
    fields = [(field.name, field.column, field.type, field.encoding) for field in plan.fields]
    lines += ["", table(("field", "column", "type", "encoding"), fields)]
    notes = shown_notes(plan)
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _space_text(plan: Plan, temporary_bytes: int, output: str | None) -> str:
    """Return a line about the temporary space that the conversion needs."""
    from wdsplit.conversion.shuffle.steps import SPILL_FOLDER

    if temporary_bytes:
        folder = os.path.join(output or "OUTPUT", SPILL_FOLDER)
        return f"temporary space: about {human_bytes(temporary_bytes)} in {folder} until the shards are written"
    return "temporary space: none" + (", the rows fit in memory (--memory)" if plan.scatters else "")
