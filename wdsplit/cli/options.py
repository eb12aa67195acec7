"""Options that several commands share, or that are made from the library's option classes; and their values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from wdsplit.cli.help import Decorator, argument, option, with_options
from wdsplit.conversion.plan.options import attribute_texts
from wdsplit.errors import InputError
from wdsplit.order.limits import TAILS
from wdsplit.sizes import parse_size

if TYPE_CHECKING:
    from wdsplit.engines.local import Engine

__all__ = [
    "NAMES",
    "SIZE",
    "Running",
    "batch_size_option",
    "dataset_argument",
    "engine_options",
    "given",
    "join_option",
    "options_of",
    "order_options",
    "parse_mapping",
    "parse_names",
    "parsed_by",
    "refuse_empty",
    "refuse_given",
    "seed_options",
    "shuffle_options",
    "view_options",
]

_T = TypeVar("_T")


# Values


def parsed_by(parse: Callable[[str], _T]) -> Callable[[Any], _T]:
    """Return the type of an option whose text a function of the library parses."""

    def parsed(text: Any) -> _T:
        try:
            return parse(text) if isinstance(text, str) else text
        except InputError as error:
            raise click.BadParameter(f"{error.found or repr(text)}: expected {error.expected}") from error

    return parsed


def parse_names(context: click.Context, parameter: click.Parameter, values: Collection[str]) -> tuple[str, ...]:
    """Parse the names of an option that may be repeated, each with one or more names."""
    refuse_empty(parameter.opts[-1], values)
    return tuple(name.strip() for value in values for name in value.split(","))


def refuse_empty(flag: str, values: Collection[str]) -> None:
    """Refuse an option with an empty value."""
    if not all(value.strip(" ,") for value in values):
        raise click.BadParameter("empty value: give one, or leave the option out", param_hint=repr(flag))


NAMES: dict[str, Any] = {"multiple": True, "callback": parse_names, "metavar": "NAME[,NAME...]"}
"""Settings of an option for a list of names: repeated, or separated by commas."""

SIZE: dict[str, Any] = {"type": parsed_by(parse_size), "metavar": "SIZE"}
"""Settings of an option for a number of bytes, such as 256MB."""

_NEXT_ENTRY = re.compile(r",(?=[^,=]*=)")
"""A comma between two entries of NAME=VALUE; another one belongs to a value, such as the name of a column."""


def parse_mapping(flag: str, entries: Collection[str], form: str) -> dict[str, str]:
    """Parse the entries NAME=VALUE of an option, repeated or separated by commas; `form` shows them in an error."""
    mapping: dict[str, str] = {}
    for entry in (part for each in entries for part in _NEXT_ENTRY.split(each)):
        name, _, value = entry.lstrip().partition("=")
        if not (name and value) or name in mapping:
            problem = f"{name!r} is given twice" if name in mapping else f"expected {form}"
            raise click.BadParameter(f"{entry!r}: {problem}", param_hint=repr(flag))
        mapping[name] = value
    return mapping


def given(names: Collection[str] | None = None, but: Collection[str] = ()) -> list[str]:
    """Return the flags of parameters that the command line sets: of these names, or of all but some."""
    context = click.get_current_context()
    return [
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for parameter in context.command.params
        if (parameter.name in names if names is not None else parameter.name not in but)
        and context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    ]


def refuse_given(which: str, names: Collection[str] | None = None, but: Collection[str] = ()) -> None:
    """Refuse parameters that the command line sets beside `which`; others as for `given`."""
    others = given(names, but)
    if others:
        raise click.UsageError(f"{', '.join(others)}: not allowed with {which}")


# Options of the library's classes


def options_of(options: type, section: str, names: str, **changes: Mapping[str, Any]) -> Decorator:
    """Return the command-line options for fields of an options class, with their defaults, checks and help.

    Args:
        options: The class.
        section: The section of the help.
        names: The fields.
        changes: By field, settings of `click.option` that replace these; `flag` is the option's name on the command
            line.
    """
    fields, texts = {field.name: field for field in dataclasses.fields(options)}, attribute_texts(options)
    flags = {name: changes.get(name, {}).get("flag", f"--{name.replace('_', '-')}") for name in fields}
    made = []
    for name in names.split():
        one = fields[name]
        text = re.sub(r"`(\w+)`", lambda match: flags[match[1]].partition("/")[0], texts[name])
        text, separator, default = text.partition(" Default: ")
        settings: dict[str, Any] = {}
        shown = f"{text}  [default: {default.removesuffix('.')}]" if separator else text
        if "choices" in one.metadata:
            settings["type"] = click.Choice(one.metadata["choices"])
        elif "low" in one.metadata:
            settings["low"] = one.metadata["low"]
        elif one.default is False:
            settings["is_flag"] = True
        elif str(one.type).startswith("float"):
            settings |= {"type": float, "metavar": "N"}
        if isinstance(one.default, (int, float, str)) and not isinstance(one.default, bool) and one.default != "":
            settings["default"] = one.default
        settings |= {key: value for key, value in changes.get(name, {}).items() if key not in ("flag", "help")}
        shown = changes.get(name, {}).get("help", shown)
        made.append(option(section, flags[name], shown, name=name, **settings))
    return with_options(*made)


# Shared options

dataset_argument = argument("dataset")


def batch_size_option(default: int) -> Decorator:
    """Return a decorator that adds `--batch-size` to a command."""
    settings: dict[str, Any] = {"low": 1, "default": default}
    return option("Training", "--batch-size", "Samples per batch on each rank.", **settings)


def join_option(section: str) -> Decorator:
    """Return a decorator that adds `--join` to a command."""
    return option(section, "--join", "Read the fields of these annotations too.  [default: none]", **NAMES)


@dataclass(frozen=True)
class Running:
    """How tasks run: the values of `engine_options`; None for the engine's default."""

    jobs: int | None
    engine: str
    address: str | None

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


_engine_options = with_options(
    option(
        "Running",
        "--jobs",
        "Number of parallel tasks.  [default: usable processors; on Ray twice the cluster's, at least 64]",
        low=1,
    ),
    option(
        "Running",
        "--engine",
        "Run tasks on this machine, or on a Ray cluster whose nodes can all access input and output.",
        type=click.Choice(("local", "ray")),
        default="local",
    ),
    option(
        "Running",
        "--address ADDRESS",
        "Address of the Ray cluster: auto, ray://HOST:10001, or local to start one here.  [default: auto]",
    ),
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for running tasks; the command gets them as `running`."""

    @wraps(command)
    def gathered(*, jobs: Any, engine: Any, address: Any, **others: Any) -> Any:
        return command(running=Running(jobs, engine, address), **others)

    return _engine_options(gathered)


seed_options = with_options(
    option("Training", "--seed", "Seed of the order.", low=0, default=0),
    option("Training", "--shuffle/--no-shuffle", "Shuffle shards and samples.", default=True),
)
"""Adds the options of shuffling: seed, shuffle."""

_TAIL = "What to do with an incomplete last step: pad (repeat samples, flagged), drop, or uneven."
shuffle_options = with_options(
    seed_options, option("Training", "--tail", _TAIL, type=click.Choice(TAILS), default="pad")
)
"""Adds the options of the order: seed, shuffle, tail."""

order_options = with_options(
    option("Training", "--world-size", "Number of ranks.", low=1, default=1),
    option("Training", "--workers", "Loader workers per rank.", low=0, default=0),
    shuffle_options,
)
"""Adds the options of the order and of its split: world_size, workers, seed, shuffle, tail."""

_WHERE = 'Use only the samples that meet this condition, such as "score > 0.5".'
view_options = with_options(
    option("Samples", "--view NAME", "Use only the samples of this view (see `wdsplit view`)."),
    option("Samples", "--where CONDITION", _WHERE),
    option("Samples", "--version", "Use this version (see `wdsplit log`).  [default: the latest]", low=1),
)
"""Adds the options that select samples: view, where, version."""
