"""Keyword arguments of `Dataset`, `mix` and `Samples`: their types, defaults and checks, in one place."""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from wdsplit.errors import InputError, refuse_unknown
from wdsplit.integers import whole
from wdsplit.loading.bad_samples import BadSamples, bad_samples_problems
from wdsplit.loading.reading.source import Access
from wdsplit.order.epoch import order_problems
from wdsplit.order.limits import Tail
from wdsplit.sizes import parse_size

__all__ = [
    "CHOICES",
    "AllOptions",
    "DatasetOptions",
    "SamplesOptions",
    "UnitOptions",
    "access_of",
    "bad_samples_of",
    "checked_epoch",
    "checked_options",
    "choice_of",
    "with_flat_signature",
]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class ViewOptions(TypedDict, total=False):
    """Which samples are used: types and defaults; `help(wdsplit.Dataset)` says what each option does."""

    where: Annotated[Any, None]
    keys: Annotated[Any, None]
    exclude: Annotated[Any, None]


class SamplesOptions(ViewOptions, total=False):
    """The options of `Samples`."""

    view: Annotated[Any, None]
    seed: Annotated[int, 0]
    fields: Annotated[Sequence[str] | None, None]
    join: Annotated[Sequence[str], ()]
    storage_options: Annotated[Mapping[str, Any] | None, None]
    fs: Annotated[Any, None]
    connections: Annotated[int, Access.connections]
    cache_dir: Annotated[str | os.PathLike[str] | None, None]
    cache_size: Annotated[int | str | None, None]
    verify: Annotated[bool, False]


class DatasetOptions(SamplesOptions, total=False):
    """The options of `mix`; `rank`, `lanes` and others are of epochs, which `Samples` does not have."""

    shuffle: Annotated[bool, True]
    tail: Annotated[Tail, "pad"]
    lanes: Annotated[int | None, None]
    rank: Annotated[int | None, None]
    world_size: Annotated[int | None, None]
    process_group: Annotated[Any, None]
    read_ahead_bytes: Annotated[int | None, None]
    on_bad_sample: Annotated[Literal["raise", "substitute"], "raise"]
    max_bad_samples: Annotated[int | float, 0.01]
    bad_samples_file: Annotated[str | os.PathLike[str] | None, None]


class UnitOptions(ViewOptions, total=False):
    """Also how often samples come, and which come together."""

    repeat: Annotated[str | None, None]
    expand: Annotated[str | None, None]
    pack: Annotated[str | None, None]
    capacity: Annotated[int | None, None]
    group: Annotated[str | None, None]
    size: Annotated[int | None, None]
    budget: Annotated[int | None, None]
    long: Annotated[str | None, None]
    allow_pads: Annotated[bool, False]


class AllOptions(DatasetOptions, UnitOptions, total=False):
    """The options of `Dataset`."""


CHOICES = ("view", *get_type_hints(UnitOptions))
"""The options that choose samples, and how often they come."""


@functools.cache
def _hints(options: Any) -> dict[str, Any]:
    """Return the types of options, which have their defaults as metadata."""
    return get_type_hints(options, include_extras=True)


def with_flat_signature(options: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Let `help` and notebooks show the options of a function's `**options`: each by its name, type and default."""

    def flat(function: AnyFunction) -> AnyFunction:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=hint.__metadata__[0], annotation=hint.__origin__
            )
            for name, hint in _hints(options).items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return flat


def choice_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a dataset's options that choose samples; None for those that do not."""
    return {**{name: options.get(name) for name in CHOICES}, "allow_pads": options.get("allow_pads") or None}


def checked_options(options: SamplesOptions, window: int | None = None, kind: Any = DatasetOptions) -> AllOptions:
    """Return all options, with numpy integers as plain ones, and defaults for options that were not given.

    Args:
        options: The caller's options.
        window: The caller's window, which is checked with the rest; None for the dataset's own.
        kind: Which options there are.

    Raises:
        InputError: Values are invalid; the error names all of them.
        TypeError: There is no such option.
    """
    refuse_unknown(options, _hints(kind))
    defaults = {name: hint.__metadata__[0] for name, hint in _hints(AllOptions).items()}
    given: dict[str, Any] = {**defaults, **options}
    for name in ("seed", "lanes", "read_ahead_bytes", "connections"):
        given[name] = whole(given[name])
    given["shuffle"], given["verify"] = bool(given["shuffle"]), bool(given["verify"])
    lanes = 1 if given["lanes"] is None else given["lanes"]
    problems = order_problems(given["seed"], lanes, 1 if window is None else window, given["tail"])
    problems += [
        f"{name} = {given[name]!r}: expected an integer of at least 1"
        for name in ("read_ahead_bytes", "connections")
        if given[name] is not defaults[name] and (type(given[name]) is not int or given[name] < 1)
    ]
    for name in ("fields", "join"):
        if isinstance(given[name], str):
            problems.append(f"{name} = {given[name]!r}: expected a list of names, [{given[name]!r}]")
    if given["process_group"] is not None and (given["rank"] is not None or given["world_size"] is not None):
        problems.append("process_group cannot be combined with rank and world_size: leave out one of them")
    given["max_bad_samples"] = whole(given["max_bad_samples"])
    problems += bad_samples_problems(given["on_bad_sample"], given["max_bad_samples"], given["bad_samples_file"])
    if given["cache_size"] is not None:
        if given["cache_dir"] is None:
            problems.append(f"cache_size = {given['cache_size']!r}: expected cache_dir too")
        try:
            parse_size(given["cache_size"])
        except InputError as error:
            problems.append(f"cache_size = {given['cache_size']!r}: expected {error.expected}")
    if problems:
        raise InputError("invalid Dataset options", found="; ".join(problems))
    checked: AllOptions = given  # type: ignore[assignment]
    return checked


def checked_epoch(epoch: int) -> int:
    """Return an epoch as a plain integer; raise InputError if it is negative, too large or no integer."""
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= operator.index(epoch) < 2**62:
        raise InputError("invalid epoch", expected="an integer of at least 0", found=repr(epoch))
    return operator.index(epoch)


def access_of(options: DatasetOptions) -> Access:
    """Return how a dataset is reached, from checked options."""
    cache_dir, cache_size = options["cache_dir"], options["cache_size"]
    max_bytes = None if cache_size is None else parse_size(cache_size)
    cache = None
    if cache_dir is not None:
        from wdsplit.loading.reading.cache import ShardCache  # here, because only remote datasets have one

        cache = ShardCache(cache_dir, max_bytes)
    return Access(
        options["storage_options"],
        options["read_ahead_bytes"],
        options["connections"],
        cache,
        options["verify"],
        salvages=options["on_bad_sample"] == "substitute",
    )


def bad_samples_of(options: DatasetOptions) -> BadSamples | None:
    """Return how to replace bad samples, from checked options; None to raise their errors."""
    file = options["bad_samples_file"]
    if options["on_bad_sample"] == "raise":
        return None
    return BadSamples(options["max_bad_samples"], None if file is None else os.path.abspath(file))
