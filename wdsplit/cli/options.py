"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from wdsplit.cli.help import Decorator, argument, option, with_options
from wdsplit.order.limits import TAILS

if TYPE_CHECKING:
    from wdsplit.engines.local import Engine

__all__ = [
    "NAMES",
    "Running",
    "batch_size_option",
    "class_field_option",
    "dataset_argument",
    "draw_option",
    "engine_options",
    "given",
    "json_option",
    "order_options",
    "parse_names",
    "refuse_empty",
    "seed_options",
    "shuffle_options",
    "view_options",
]


def parse_names(context: click.Context, parameter: click.Parameter, values: Collection[str]) -> tuple[str, ...]:
    """Parse the names of an option that may be repeated, each with one or more names."""
    refuse_empty(parameter.opts[-1], values)
    return tuple(name.strip() for value in values for name in value.split(","))


def refuse_empty(flag: str, values: Collection[str]) -> None:
    """Refuse an option with an empty value."""
    if not all(value.strip(" ,") for value in values):
        raise click.BadParameter("empty value: give one, or leave the option out", param_hint=repr(flag))


def given(names: Collection[str] | None = None, but: Collection[str] = ()) -> list[str]:
    """Return the flags of parameters that the command line sets: of these names, or of all but some."""
    context = click.get_current_context()
    return [
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for parameter in context.command.params
        if (parameter.name in names if names is not None else parameter.name not in but)
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]


NAMES: dict[str, Any] = {"multiple": True, "callback": parse_names, "metavar": "NAME[,NAME...]"}
"""Settings of an option for a list of names: repeated, or separated by commas."""

dataset_argument = argument("dataset")
json_option = option("Output", "--json", "as_json", is_flag=True, help="Print the result as JSON.")
draw_option = option("Output", "--draw", is_flag=True, help="Draw which rank and worker reads which shard.")


def batch_size_option(default: int) -> Decorator:
    """Return a decorator that adds `--batch-size` to a command."""
    settings: dict[str, Any] = {"type": click.IntRange(1), "default": default}
    return option("Training", "--batch-size", **settings, help="Samples per batch on each rank.")


def class_field_option(section: str, purpose: str) -> Decorator:
    """Return a decorator that adds `--class-field` to a command."""
    return option(section, "--class-field", metavar="NAME", help=f"Field with the classes{purpose}")


@dataclass(frozen=True)
class Running:
    """How tasks run: the values of `engine_options`.

    Attributes:
        jobs: Number of parallel tasks; None for the engine's default.
        engine: local or ray.
        address: Address of the Ray cluster.
        log: The file for the progress.
    """

    jobs: int | None
    engine: str
    address: str | None
    log: TextIO | None

    def open(self) -> Engine:
        """Return the engine; it is closed when the command ends."""
        if self.engine == "ray":
            from wdsplit.engines.ray import RayEngine

            cluster = RayEngine(self.address or "auto", jobs=self.jobs)
            click.get_current_context().call_on_close(cluster.close)
            return cluster
        from wdsplit.engines.limits import usable_processors
        from wdsplit.engines.local import LocalEngine

        if self.address is not None:
            raise click.UsageError("--address needs --engine ray")
        return LocalEngine(self.jobs or usable_processors())


_ENGINE = (
    option(
        "Running",
        "--jobs",
        type=click.IntRange(1),
        help="Number of parallel tasks.  [default: usable processors; on Ray twice the cluster's, at least 64]",
    ),
    option(
        "Running",
        "--engine",
        type=click.Choice(("local", "ray")),
        default="local",
        help="Run tasks on this machine, or on a Ray cluster whose nodes can all access input and output.",
    ),
    option(
        "Running",
        "--address",
        metavar="ADDRESS",
        help="Address of the Ray cluster: auto, ray://HOST:10001, or local to start one here.  [default: auto]",
    ),
    option(
        "Running",
        "--log",
        type=click.File("a", encoding="utf-8"),
        metavar="FILE",
        help="Append progress to this file, as JSON lines.",
    ),
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for running tasks and logging progress; the command gets them as `running`."""

    @wraps(command)
    def gathered(*, jobs: Any, engine: Any, address: Any, log: Any, **others: Any) -> Any:
        return command(running=Running(jobs, engine, address, log), **others)

    return with_options(_ENGINE)(gathered)


seed_options = with_options(
    (
        option("Training", "--seed", type=click.IntRange(0), default=0, help="Seed of the order."),
        option("Training", "--shuffle/--no-shuffle", default=True, help="Shuffle shards and samples."),
    )
)
"""Adds the options of shuffling: seed, shuffle."""

shuffle_options = with_options(
    (
        seed_options,
        option(
            "Training",
            "--tail",
            type=click.Choice(TAILS),
            default="pad",
            help="What to do with an incomplete last step: pad (repeat samples, flagged), drop, or uneven.",
        ),
    )
)
"""Adds the options of the order: seed, shuffle, tail."""

order_options = with_options(
    (
        option("Training", "--world-size", type=click.IntRange(1), default=1, help="Number of ranks."),
        option(
            "Training",
            "--workers",
            type=click.IntRange(0),
            default=0,
            help="Loader workers per rank.",
        ),
        shuffle_options,
    )
)
"""Adds the options of the order and of its split: world_size, workers, seed, shuffle, tail."""

view_options = with_options(
    (
        option("Samples", "--view", metavar="NAME", help="Use only the samples of this view (see `wdsplit view`)."),
        option(
            "Samples",
            "--where",
            metavar="CONDITION",
            help='Use only the samples that meet this condition, such as "score > 0.5".',
        ),
    )
)
"""Adds the options that select samples: view, where."""
