"""The keyword arguments that `Dataset` and `mix` have in common: their types, defaults and checks, in one place."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from wdsplit.errors import InputError, refuse_unknown
from wdsplit.loading.bad_samples import BadSamples, bad_samples_problems
from wdsplit.loading.reading.source import Access
from wdsplit.order.epoch import order_problems
from wdsplit.order.limits import Tail
from wdsplit.order.split import whole
from wdsplit.sizes import parse_size

__all__ = ["DatasetOptions", "access_of", "bad_samples_of", "checked_options", "with_flat_signature"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class DatasetOptions(TypedDict, total=False):
    """Types and defaults; `help(wdsplit.Dataset)` says what each option does."""

    seed: Annotated[int, 0]
    shuffle: Annotated[bool, True]
    tail: Annotated[Tail, "pad"]
    lanes: Annotated[int | None, None]
    rank: Annotated[int | None, None]
    world_size: Annotated[int | None, None]
    process_group: Annotated[Any, None]
    fields: Annotated[Sequence[str] | None, None]
    join: Annotated[Sequence[str], ()]
    storage_options: Annotated[Mapping[str, Any] | None, None]
    fs: Annotated[Any, None]
    read_ahead_bytes: Annotated[int | None, None]
    connections: Annotated[int, Access.connections]
    cache_dir: Annotated[str | os.PathLike[str] | None, None]
    cache_size: Annotated[int | str | None, None]
    verify: Annotated[bool, False]
    on_bad_sample: Annotated[Literal["raise", "substitute"], "raise"]
    max_bad_samples: Annotated[int | float, 0.01]
    bad_samples_file: Annotated[str | os.PathLike[str] | None, None]
    view: Annotated[Any, None]
    where: Annotated[Any, None]
    keys: Annotated[Any, None]
    exclude: Annotated[Any, None]


_HINTS = get_type_hints(DatasetOptions, include_extras=True)
_DEFAULTS = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}


def with_flat_signature(function: AnyFunction) -> AnyFunction:
    """Let `help` and notebooks show the options of a function's `**options`: each by its name, type and default."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=hint.__origin__)
        for name, hint in _HINTS.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    return function


def checked_options(options: DatasetOptions, window: int | None = None) -> DatasetOptions:
    """Return all options, with numpy integers as plain ones, and defaults for options that were not given.

    Args:
        options: The caller's options.
        window: The caller's window, which is checked with the rest; None for the dataset's own.

    Raises:
        InputError: Values are invalid; the error names all of them.
        TypeError: There is no such option.
    """
    refuse_unknown(options, _DEFAULTS)
    given: dict[str, Any] = {**_DEFAULTS, **options}
    for name in ("seed", "lanes", "read_ahead_bytes", "connections"):
        given[name] = whole(given[name])
    given["shuffle"], given["verify"] = bool(given["shuffle"]), bool(given["verify"])
    lanes = 1 if given["lanes"] is None else given["lanes"]
    problems = order_problems(given["seed"], lanes, 1 if window is None else window, given["tail"])
    problems += [
        f"{name} = {given[name]!r}: expected an integer of at least 1"
        for name in ("read_ahead_bytes", "connections")
        if given[name] is not _DEFAULTS[name] and (type(given[name]) is not int or given[name] < 1)
    ]
    for name in ("fields", "join"):
        if isinstance(given[name], str):
            problems.append(f"{name} = {given[name]!r}: expected a list of names")
    if given["process_group"] is not None and (given["rank"] is not None or given["world_size"] is not None):
        problems.append("process_group cannot be combined with rank and world_size: leave out one of them")
    given["max_bad_samples"] = whole(given["max_bad_samples"])
    problems += bad_samples_problems(given["on_bad_sample"], given["max_bad_samples"], given["bad_samples_file"])
    if given["cache_size"] is not None:
        problems += _cache_problems(given["cache_dir"], given["cache_size"])
    if problems:
        raise InputError("invalid Dataset options", found="; ".join(problems))
    checked: DatasetOptions = given  # type: ignore[assignment]
    return checked


def _cache_problems(cache_dir: Any, cache_size: Any) -> list[str]:
    problems = [] if cache_dir is not None else [f"cache_size = {cache_size!r}: expected cache_dir too"]
    try:
        parse_size(cache_size)
    except InputError as error:
        problems.append(f"cache_size = {cache_size!r}: expected {error.expected}")
    return problems


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
