"""`wdsplit plan`: the dry run of `convert`, and the start of a conversion in shares."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.conversion import conversion_options, label_lines, plan_options, run_options
from wdsplit.cli.drawing import draw_readers, terminal_width
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import draw_option, given, json_option
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import echo, echo_json, human_bytes, listed, say_next, span, table, wrapped
from wdsplit.texts import counted
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.plan.plan import Plan

__all__ = ["plan_command"]

_FEW = 3


@command(
    "plan",
    ["'raw/train-*.parquet' --world-size 8 --workers 4", "raw/ --into /shared/train -o /shared/train.plan"],
    argument("inputs", nargs=-1, required=True, metavar="INPUT..."),
    plan_options,
    option("Output", "--into", "output", metavar="OUTPUT", help="With -o: output folder, accessible to all shares."),
    option(
        "Output",
        "-o",
        "--save",
        "plan_path",
        metavar="PLAN",
        help="Start a conversion in shares into OUTPUT, and save its plan to this file.",
    ),
    run_options,
    draw_option,
    json_option,
    summary="Preview what convert would do; start a conversion in shares.",
)
def plan_command(
    inputs: tuple[str, ...],
    output: str | None,
    plan_path: str | None,
    draw: bool,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Preview what convert would do with the same options. Without -o, nothing is written.

    INPUT is a file, a folder of tables or images, a glob or a brace expression, local or a URL (s3://, gs://, hf://,
    https://).

    With -o PLAN --into OUTPUT, start a conversion in shares. Any number of processes on any machines then write the
    shares (`wdsplit convert --plan PLAN --share I/N`), and `wdsplit commit PLAN` finishes the dataset. With --split,
    each split has its own plan, PLAN.NAME.
    """
    from wdsplit.conversion.needs import needs_of
    from wdsplit.conversion.planning import plan_splits
    from wdsplit.conversion.shares import needed_passes, plan_shares, share_needs
    from wdsplit.engines.limits import usable_processors
    from wdsplit.tables.media import class_counts

    if draw and as_json:
        raise click.UsageError("--draw and --json cannot be combined")
    if (output is None) != (plan_path is None):
        raise click.UsageError("--into and -o belong together: give -o PLAN --into OUTPUT")
    if output is None or plan_path is None:
        others = given(("emit", "overwrite"))
        if others:
            raise click.UsageError(f"{', '.join(others)}: allowed only with -o")
        memory, options = arguments["memory"], conversion_options(arguments)
        with progress_bar("planning"):
            plans, names = plan_splits(inputs, options), {}
        needs = {name: needs_of(plan, memory, usable_processors(), True, True) for name, plan in plans.items()}
    else:
        options = conversion_options(arguments)
        with progress_bar("planning"):
            saved = plan_shares(inputs, output, plan_path, options)
        plans = dict(zip(options.splits or [""], saved.values(), strict=True))
        names = dict(zip(plans, saved, strict=True))
        needs = {name: share_needs(plan, options) for name, plan in plans.items()}
    needed = {name: need.temporary_bytes for name, need in needs.items()}
    if as_json:
        saved_as = {name: {"saved": path, "passes": needed_passes(path)} for name, path in names.items()}
        summaries = {
            name: plan.summary()
            | {"classes": class_counts(plan.table), "temporary_bytes": needed[name]}
            | saved_as.get(name, {})
            for name, plan in plans.items()
        }
        echo_json(summaries.get("", summaries))
    else:
        texts = [_plan_text(plan, _space_text(plan, needed[name], output)) for name, plan in plans.items()]
        named = [(f"{name}: " if name else "") + text for name, text in zip(plans, texts, strict=True)]
        echo(wrapped("\n\n".join(named)))
        for name, plan in plans.items() if draw else ():
            echo(f"\n{f'{name}: ' if name else ''}{_readers_text(plan)}")
        for name, path in names.items():
            echo(f"\n{_next_steps(plans[name], path)}")
        if not names:
            few = [shlex.quote(shown_url(path)) for path in inputs] if len(inputs) <= _FEW else ["INPUT..."]
            say_next(f"wdsplit convert {' '.join(few)} OUTPUT with the same options")


def _readers_text(plan: Plan) -> str:
    """Return a drawing of which rank and worker reads which shard in the first epoch."""
    import numpy as np

    from wdsplit.checks.inspect import assigned
    from wdsplit.order.epoch import OrderOptions

    counts = np.diff([plan.rows(shard) for shard in range(plan.num_shards)])[:, 0]
    order = OrderOptions(0, True, plan.lanes, plan.window, "pad")
    found = assigned(counts, order, plan.options.world_size, plan.options.workers)
    return f"shards read by each rank and worker in epoch 0, seed 0:\n{draw_readers(found, terminal_width())}"


def _next_steps(plan: Plan, path: str) -> str:
    """Return the commands that continue the conversion."""
    from wdsplit.conversion.shares import needed_passes

    quoted = shlex.quote(path)
    share = f"  wdsplit convert --plan {quoted} --share I/N"
    passes = [f"{share} --pass {name}" for name in needed_passes(path)] if plan.scatters else [share]
    note = ", finishing each pass before the next" if plan.scatters else ""
    return "\n".join(
        [f"saved to {quoted}; now run N shares, I = 0, ..., N - 1{note}:", *passes, f"  wdsplit commit {quoted}"]
    )


def _plan_text(plan: Plan, space: str) -> str:
    from wdsplit.conversion.planning import shown_notes
    from wdsplit.tables.media import class_counts

    fields = table(
        ("field", "column", "type", "encoding"),
        [(field.name, field.column, field.type, field.encoding) for field in plan.fields],
    )
    lines = [
        f"{_input_text(plan)} -> {counted(plan.num_shards, 'shard')} of {counted(plan.max_samples, 'sample')}",
        _order_text(plan),
        space,
        f"pads {plan.num_pads:,}, rows left out {plan.num_dropped:,}, "
        f"keys from {'column ' + repr(plan.key) if plan.key else 'row numbers'}",
        f"the loader reads {plan.lanes:,} lanes (sequences of shards) in parallel, in windows of "
        f"{'' if plan.options.window else 'about '}{plan.window:,} samples",
        f"ranks x workers that read each byte once: {_numbers_text(plan.lanes)}",
        f"plan {plan.hash}",
        *label_lines(dataclasses.asdict(plan.label) if plan.label else None, plan.fields),
        *_classes_lines(class_counts(plan.table)),
        "",
        fields,
    ]
    notes = shown_notes(plan)
    if plan.table.num_empty:
        notes.append(f"skipped: {counted(plan.table.num_empty, 'row')} in which every value is null")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _input_text(plan: Plan) -> str:
    """Return how many rows or files are converted."""
    what, where = ("file", "input folder") if plan.table.names_files else ("row", "file")
    total = plan.table.total_rows
    of_all = f" of {total:,}" if plan.num_rows < total else ""
    return f"{counted(plan.num_rows, what)}{of_all} in {counted(len(plan.table.files), where)}"


def _classes_lines(counts: Mapping[str, int]) -> list[str]:
    """Return a line with the number of rows of each class, if folders name classes."""
    if not counts:
        return []
    some = listed([f"{name} {count:,}" for name, count in counts.items()])
    return [f"{counted(len(counts), 'class', 'classes')} of {span(counts.values())} files: {some}"]


def _order_text(plan: Plan) -> str:
    """Return a line about the order of the rows."""
    what = "rows" if plan.groups is None else f"groups of column {plan.options.group_by!r}"
    if plan.options.shuffle:
        return f"{what} shuffled, seed {plan.options.seed} (--no-shuffle keeps the order of the input)"
    return f"{what} in the order of the input (--shuffle shuffles them)"


def _space_text(plan: Plan, temporary_bytes: int, output: str | None) -> str:
    """Return a line about the temporary space that the conversion needs."""
    from wdsplit.conversion.shuffle.steps import SPILL_FOLDER

    if temporary_bytes:
        folder = os.path.join(output or "OUTPUT", SPILL_FOLDER)
        return f"temporary space: about {human_bytes(temporary_bytes)} in {folder} until the shards are written"
    return "temporary space: none" + (", the rows fit in memory (--memory)" if plan.scatters else "")


def _numbers_text(lanes: int) -> str:
    """Return the divisors of the number of lanes."""
    return ", ".join(f"{number:,}" for number in range(1, lanes + 1) if lanes % number == 0)
