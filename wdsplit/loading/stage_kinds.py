"""What is known of webdataset's stages by their names: which give one item for each sample."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

__all__ = ["dropping", "why_not_one_to_one"]

_FILTERS = "webdataset.filters"

_NOT_ONE_TO_ONE = {
    "shuffle": "it buffers samples",
    "detshuffle": "it buffers samples",
    "unbatched": "it returns several samples for each input",
    "unlisted": "it returns several samples for each input",
    "slice": "it counts from where the iteration began",
    "Cached": "it remembers earlier samples",
    "LMDBCached": "it remembers earlier samples",
    "batched": "it returns one item for several samples",
}
_DROPPING = {"rsample", "select"}


def _name_in_webdataset(stage: Any) -> str:
    """Return the name of a stage if it is one of webdataset's; else an empty text."""
    filters = sys.modules.get(_FILTERS)  # before webdataset is imported, no stage is one of its functions
    function = stage.f if filters is not None and isinstance(stage, filters.FilterFunction) else stage
    if function is islice:
        return "slice"
    if getattr(function, "__module__", "") != _FILTERS:
        return ""
    return str(getattr(function, "__name__", type(function).__name__)).lstrip("_")


def _may_drop(stage: Any) -> bool:
    """Tell whether a stage of webdataset may drop samples, also by a handler that continues after errors."""
    filters: Any = sys.modules.get(_FILTERS)
    is_filter = filters is not None and isinstance(stage, filters.FilterFunction)
    handler = stage.kw.get("handler") if is_filter else None
    return (handler is not None and handler is not filters.reraise_exception) or _name_in_webdataset(stage) in _DROPPING


def dropping(stages: Iterable[Any]) -> list[str]:
    """Return the names of the stages that may drop samples."""
    return [_name_in_webdataset(stage) for stage in stages if _may_drop(stage)]


def why_not_one_to_one(stage: Any, strict: bool = False) -> str:
    """Return the name of a stage that cannot return one sample for each input, and why; empty if it may.

    Args:
        stage: A stage of a pipeline.
        strict: Include stages that may drop samples.
    """
    name = _name_in_webdataset(stage)
    if name in _NOT_ONE_TO_ONE:
        return f"{name}: {_NOT_ONE_TO_ONE[name]}"
    return f"{name}: it may drop samples" if strict and _may_drop(stage) else ""
