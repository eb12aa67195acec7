"""`wdsplit plan`: the dry run of `convert`, and the beginning of a conversion in shares."""

from __future__ import annotations

import shlex
from typing import Any

import click

from wdsplit.cli.conversion import conversion_options, given, plan_options, run_options
from wdsplit.cli.options import json_option
from wdsplit.cli.terminal import echo_json, table
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.planning import plan_splits
from wdsplit.conversion.shares import needed_passes, plan_shares

__all__ = ["plan_command"]


@click.command(
    "plan",
    short_help="Say what convert would do; begin a conversion in shares.",
    epilog="""Examples:

\b
  wdsplit plan 'raw/train-*.parquet' --world-size 8 --workers 4
  wdsplit plan raw/ --into /shared/train -o /shared/train.plan --world-size 8 --workers 4""",
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@plan_options
@click.option("--into", "output", metavar="OUTPUT", help="With -o: the folder of the dataset, which all shares reach.")
@click.option(
    "-o",
    "--save",
    "plan_path",
    metavar="PLAN",
    help="Begin the conversion in OUTPUT, and save its plan here, for `wdsplit convert --plan PLAN --share I/N`.",
)
@run_options
@json_option
@click.pass_context
def plan_command(
    context: click.Context,
    /,
    inputs: tuple[str, ...],
    output: str | None,
    plan_path: str | None,
    memory: int,
    emit: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Say what convert would do with the same options; nothing is written, unless -o begins a conversion in shares.

    INPUT is a file, a folder of them, a glob or a brace expression; or such a URL (s3://, gs://, hf://, https://).
    With -o PLAN --into OUTPUT the conversion begins: any number of processes, on any machines, then write its shares
    (`wdsplit convert --plan PLAN --share I/N`), and `wdsplit commit PLAN` ends it. With --split there is a plan for
    each split, PLAN.NAME.
    """
    if (output is None) != (plan_path is None):
        raise click.UsageError("--into and -o go together: where the dataset is to be, and the file of its plan")
    if output is None or plan_path is None:
        others = given(context, ("memory", "emit", "overwrite"))
        if others:
            raise click.UsageError(f"{', '.join(others)}: only with -o, which begins a conversion")
        plans, names = plan_splits(inputs, conversion_options(arguments)), {}
    else:
        options = conversion_options(arguments, memory=memory, emit=emit, overwrite=overwrite)
        saved = plan_shares(inputs, output, plan_path, options)
        plans = dict(zip(options.splits or [""], saved.values(), strict=True))
        names = dict(zip(plans, saved, strict=True))
    if as_json:
        saved_as = {name: {"saved": path, "passes": needed_passes(path)} for name, path in names.items()}
        summaries = {name: plan.summary() | saved_as.get(name, {}) for name, plan in plans.items()}
        echo_json(summaries.get("", summaries))
    else:
        click.echo("\n\n".join((f"{name}: " if name else "") + _plan_text(plan) for name, plan in plans.items()))
        for name, path in names.items():
            click.echo(f"\n{_next_steps(plans[name], path)}")


def _next_steps(plan: Plan, path: str) -> str:
    """Say how the conversion goes on."""
    quoted = shlex.quote(path)
    share = f"  wdsplit convert --plan {quoted} --share I/N"
    passes = [f"{share} --pass {name}" for name in needed_passes(path)] if plan.scatters else [share]
    note = ", pass after pass" if plan.scatters else ""
    return "\n".join(
        [f"saved in {quoted}; go on with N shares, I = 0, ..., N - 1{note}:", *passes, f"  wdsplit commit {quoted}"]
    )


def _plan_text(plan: Plan) -> str:
    fields = table(
        ("field", "column", "type", "encoding"),
        [(field.name, field.column, field.type, field.encoding) for field in plan.fields],
    )
    lines = [
        f"{plan.num_rows:,} rows{_of_all(plan.num_rows, plan.table.total_rows)} in {len(plan.table.files):,} files "
        f"-> {plan.num_shards:,} shards of {plan.max_samples:,} samples",
        f"pads {plan.num_pads:,}, rows left out {plan.num_dropped:,}, "
        f"keys {'from column ' + repr(plan.key) if plan.key else 'number the rows'}",
        f"the loader reads {plan.lanes:,} lanes (sequences of shards) side by side, each in windows of "
        f"{'' if plan.options.window else 'about '}{plan.window:,} samples",
        f"ranks x workers that share no lane: {_numbers_text(plan.lanes)}",
        f"plan {plan.hash}",
        "",
        fields,
    ]
    return "\n".join(lines)


def _numbers_text(lanes: int) -> str:
    """Return the numbers of readers that divide the lanes."""
    return ", ".join(f"{number:,}" for number in range(1, lanes + 1) if lanes % number == 0)


def _of_all(num_rows: int, total: int) -> str:
    """Say how many rows there are, if some are left out."""
    return f" of {total:,}" if num_rows < total else ""
