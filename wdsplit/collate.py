"""Batches: samples into columns, and the workers' columns woven into one.

Numbers, arrays and tensors are stacked; strings, bytes and all else come as lists. The result does not depend on how
many parts a batch was made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wdsplit.errors import PipelineError
from wdsplit.order import Int64

__all__ = ["collate", "weave"]


def collate(samples: Sequence[Any]) -> Any:
    """Turn samples into columns.

    Args:
        samples: At least one; all dicts of the same keys, all tuples (or lists) of the same length, or all bare values.

    Returns:
        A dict or a tuple of columns, or one column. A column is a tensor with one more dimension in front, or a list.

    Raises:
        PipelineError: The samples differ in keys or length, or a column's values cannot be stacked.
    """
    first = samples[0]
    if isinstance(first, dict):
        for sample in samples:
            if not isinstance(sample, dict) or sample.keys() != first.keys():
                raise _differ("fields", list(first), list(sample) if isinstance(sample, dict) else type(sample))
        return {name: _column([sample[name] for sample in samples], repr(name)) for name in first}
    if isinstance(first, (tuple, list)):
        for sample in samples:
            if not isinstance(sample, (tuple, list)) or len(sample) != len(first):
                raise _differ("lengths", len(first), len(sample) if isinstance(sample, (tuple, list)) else type(sample))
        return tuple(_column(list(values), f"element {i}") for i, values in enumerate(zip(*samples, strict=True)))
    return _column(list(samples), "value")


def _differ(what: str, expected: Any, found: Any) -> PipelineError:
    return PipelineError(
        f"the samples of a batch differ in their {what}",
        expected=str(expected),
        found=str(found),
        remedy="make them alike with to_tuple or map, or pass a collate_fn to the Loader",
    )


def _column(values: list[Any], name: str) -> Any:
    if all(isinstance(value, torch.Tensor) for value in values):
        _check_shapes([tuple(value.shape) for value in values], name)
        return torch.stack(values)
    if all(_is_numeric_array(value) for value in values):
        _check_shapes([value.shape for value in values], name)
        return torch.from_numpy(np.stack(values))
    if all(_is_number(value) for value in values):
        column = np.asarray(values)
        if column.dtype == object:
            raise _unlike(name, "numbers of at most 64 bits", f"such as {max(values)}")
        return torch.from_numpy(column)
    if any(_is_stacked(value) for value in values):
        kinds = sorted({type(value).__name__ for value in values})
        raise _unlike(name, "all numbers, all arrays or all tensors", ", ".join(kinds))
    return values


def _is_numeric_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.bool_))


def _is_stacked(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or _is_numeric_array(value) or _is_number(value)


def _unlike(name: str, expected: str, found: str) -> PipelineError:
    return PipelineError(
        f"{name} cannot be stacked",
        expected=expected,
        found=found,
        remedy="make the values alike with map_dict or map, or pass a collate_fn to the Loader",
    )


def _check_shapes(shapes: Sequence[tuple[int, ...]], name: str) -> None:
    for shape in shapes:
        if shape != shapes[0]:
            raise _unlike(name, f"shape {shapes[0]} in the whole batch", f"shape {shape}")


def weave(parts: Sequence[tuple[Int64, Any]], size: int, pin: bool) -> Any:
    """Put the columns of parts together.

    Args:
        parts: For each part the places of its samples in the batch (int64), and what `collate` made of them.
        size: Samples of the batch.
        pin: Whether tensors shall lie in pinned memory.

    Returns:
        What `collate` would have made of all samples at once.

    Raises:
        PipelineError: The parts do not go together, as `collate` would have said of their samples.
    """
    first = parts[0][1]
    if len(parts) == 1 and not pin:
        return first
    if isinstance(first, dict):
        for _, part in parts:
            if not isinstance(part, dict) or part.keys() != first.keys():
                raise _differ("fields", list(first), list(part) if isinstance(part, dict) else type(part))
        return {name: _weave_column([(at, part[name]) for at, part in parts], size, pin, repr(name)) for name in first}
    if isinstance(first, tuple):
        for _, part in parts:
            if not isinstance(part, tuple) or len(part) != len(first):
                raise _differ("lengths", len(first), len(part) if isinstance(part, tuple) else type(part))
        columns = range(len(first))
        return tuple(_weave_column([(at, part[i]) for at, part in parts], size, pin, f"element {i}") for i in columns)
    return _weave_column(parts, size, pin, "value")


def _weave_column(parts: Sequence[tuple[Int64, Any]], size: int, pin: bool, name: str) -> Any:
    kinds = {type(part) for _, part in parts}
    if kinds == {list}:
        values: list[Any] = [None] * size
        for places, part in parts:
            for place, value in zip(places.tolist(), part, strict=True):
                values[place] = value
        return values
    if kinds != {torch.Tensor}:
        raise _unlike(name, "all numbers, all arrays or all tensors", "some of them, and values of other kinds")
    _check_shapes([tuple(part.shape[1:]) for _, part in parts], name)
    dtype = parts[0][1].dtype
    for _, part in parts[1:]:
        dtype = torch.promote_types(dtype, part.dtype)
    out = torch.empty((size, *parts[0][1].shape[1:]), dtype=dtype, pin_memory=pin)
    for places, part in parts:
        out[torch.from_numpy(places)] = part.to(dtype)
    return out
