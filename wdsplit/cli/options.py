"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from wdsplit.order.limits import TAILS

if TYPE_CHECKING:
    from wdsplit.engines.local import Engine

__all__ = [
    "NAMES",
    "Decorator",
    "batch_size_option",
    "engine_options",
    "json_option",
    "open_engine",
    "order_options",
    "parse_names",
    "refuse_empty",
    "shuffle_options",
    "view_options",
    "with_options",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def parse_names(context: click.Context, parameter: click.Parameter, values: Collection[str]) -> tuple[str, ...]:
    """Parse the names of an option that may be repeated, each with one or more names."""
    refuse_empty(parameter.opts[-1], values)
    return tuple(name.strip() for value in values for name in value.split(","))


def refuse_empty(option: str, values: Collection[str]) -> None:
    """Refuse an option with an empty value."""
    if not all(value.strip(" ,") for value in values):
        raise click.BadParameter("empty value: give one, or leave the option out", param_hint=repr(option))


NAMES: dict[str, Any] = {"multiple": True, "callback": parse_names, "metavar": "NAME[,NAME...]"}
"""Settings of an option for a list of names: repeated, or separated by commas."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def batch_size_option(default: int) -> Decorator:
    """Return a decorator that adds `--batch-size` to a command."""
    return click.option(
        "--batch-size",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Samples per batch on each rank.",
    )


def with_options(options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


engine_options = with_options(
    (
        click.option(
            "--jobs",
            type=click.IntRange(1),
            help="Number of parallel tasks.  [default: usable processors; on Ray twice the cluster's, at least 64]",
        ),
        click.option(
            "--engine",
            type=click.Choice(("local", "ray")),
            default="local",
            show_default=True,
            help="Run tasks on this machine, or on a Ray cluster whose nodes can all access input and output.",
        ),
        click.option(
            "--address",
            metavar="ADDRESS",
            help="Address of the Ray cluster: auto, ray://HOST:10001, or local to start one here.  [default: auto]",
        ),
        click.option(
            "--log",
            type=click.File("a", encoding="utf-8"),
            metavar="FILE",
            help="Append progress to this file, as JSON lines.",
        ),
    )
)
"""Adds the options for running tasks and logging progress: jobs, engine, address, log."""


def open_engine(engine: str, address: str | None, jobs: int | None) -> Engine:
    """Return the engine that `engine_options` select; it is closed when the command ends."""
    if engine == "ray":
        from wdsplit.engines.ray import RayEngine

        cluster = RayEngine(address or "auto", jobs=jobs)
        click.get_current_context().call_on_close(cluster.close)
        return cluster
    from wdsplit.engines.limits import usable_processors
    from wdsplit.engines.local import LocalEngine

    if address is not None:
        raise click.UsageError("--address needs --engine ray")
    return LocalEngine(jobs or usable_processors())


shuffle_options = with_options(
    (
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order."),
        click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Shuffle shards and samples."),
        click.option(
            "--tail",
            type=click.Choice(TAILS),
            default="pad",
            show_default=True,
            help="What to do with an incomplete last step: pad (repeat samples, flagged), drop, or uneven.",
        ),
    )
)
"""Adds the options of the order: seed, shuffle, tail."""

order_options = with_options(
    (
        click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Number of ranks."),
        click.option(
            "--workers", type=click.IntRange(0), default=0, show_default=True, help="Loader workers per rank."
        ),
        shuffle_options,
    )
)
"""Adds the options of the order and of its split: world_size, workers, seed, shuffle, tail."""

view_options = with_options(
    (
        click.option("--view", metavar="NAME", help="Use only the samples of this view (see `wdsplit view`)."),
        click.option(
            "--where",
            metavar="CONDITION",
            help='Use only the samples that meet this condition, such as "score > 0.5".',
        ),
    )
)
"""Adds the options that select samples: view, where."""
