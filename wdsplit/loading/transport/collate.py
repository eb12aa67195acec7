"""Batches: samples into columns, and the workers' columns woven into one.

Numbers, arrays and tensors are stacked; other values become lists. Columns are numpy arrays, unless they were made from
tensors, so numpy batches need no torch. A batch does not depend on the number of its sub-batches.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from pickle import PickleBuffer
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.errors import PipelineError
from wdsplit.loading.reading.block import Columns, Pending
from wdsplit.order.bundles import Packing
from wdsplit.order.units import spread
from wdsplit.texts import counted

__all__ = [
    "Column",
    "LeftOut",
    "Output",
    "address_of",
    "as_array",
    "bytes_column",
    "collate",
    "collate_columns",
    "collate_group",
    "collate_packs",
    "in_bundles",
    "in_place",
    "is_plain",
    "num_bytes",
    "num_samples",
    "spaced",
    "weave",
    "weave_group",
    "weave_packs",
    "without_left_out",
]

Output = Literal["torch", "numpy"]
"""The type of numbers, arrays and tensors in a batch: torch's tensors, or numpy's arrays."""

Places = slice | Int64
"""The places of a sub-batch's samples in the batch."""

_MAX_INT = 2**63
_PLAIN_KINDS = {int: "number", float: "number", bool: "number", str: "other", bytes: "other", Pending: "other"}
"""Types whose kind needs no closer look, for columns of one type."""


@dataclass(frozen=True)
class Column:
    """The values of one field or element over some samples.

    Attributes:
        kind: What the values are: tensor, array, number or other.
        data: For tensors a tensor, for arrays or numbers an array, with one more dimension in front. Otherwise a list;
            before a column travels, it may be of `Pending` payloads. A list of bytes that has travelled is an Arrow
            array (large_binary) without nulls.
        is_plain: Whether all values are known to be bytes (or pending), or all to be text.
        batch: The memory of the batch if the data are its rows; of a column that travels, where it is. Else None.
    """

    kind: str
    data: Any
    is_plain: bool = False
    batch: Any = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the data as buffers of protocol 5: to pickle a tensor or an array itself is slow."""
        if self.batch is not None:
            return Column, (self.kind, None, False, self.batch)
        array = as_array(self.data)
        dtype: Any = self.data.dtype if array is None and self.kind != "other" else None
        if array is not None:
            array, dtype = np.ascontiguousarray(array).reshape(-1).view(np.uint8), array.dtype.str
        elif dtype is not None and self.data.is_cpu and not self.data.is_conj():  # a dtype that numpy does not have
            array = self.data.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
        if array is None:
            return Column, (self.kind, self.data, self.is_plain)
        return _column_of, (self.kind, dtype, tuple(self.data.shape), PickleBuffer(array.data))


def _column_of(kind: str, dtype: Any, shape: tuple[int, ...], data: Any) -> Column:
    memory = np.frombuffer(data, np.uint8)
    if not isinstance(dtype, str):
        return Column(kind, in_place(memory, shape, dtype))
    array = memory.view(dtype).reshape(shape)
    return Column(kind, _as_tensor(array) if kind == "tensor" else array)


def bytes_column(cuts: Any, data: Any) -> Column:
    """Return the column of an Arrow array of bytes with these int64 offsets and bytes, in their memory."""
    count, buffers = len(memoryview(cuts).cast("B")) // 8 - 1, [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    return Column("other", pa.Array.from_buffers(pa.large_binary(), count, buffers), is_plain=True)


def as_array(data: Any) -> npt.NDArray[Any] | None:
    """Return a CPU tensor, or an array, as an array of the same memory; None for types that numpy does not have."""
    if isinstance(data, np.ndarray):
        return data
    if not _is_tensor(data):
        return None
    try:
        array: npt.NDArray[Any] = data.detach().numpy()
        return array
    except (TypeError, RuntimeError):
        return None


def address_of(data: Any) -> int | None:
    """Return the address of an array's or a tensor's first value; None for other values."""
    if isinstance(data, np.ndarray):
        return int(data.__array_interface__["data"][0])
    return data.data_ptr() if _is_tensor(data) else None


def in_place(memory: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the first bytes of a memory as an array, or as a tensor if the dtype is torch's."""
    begun = memory[: dtype.itemsize * math.prod(shape)]
    array: Any = begun if isinstance(dtype, np.dtype) else _as_tensor(begun)
    return array.view(dtype).reshape(shape)


def _as_tensor(array: npt.NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_plain(sub_batch: Any) -> bool:
    """Tell whether a sub-batch is columns of nothing but numbers, arrays, bytes and text."""
    columns: Iterable[Any] = (sub_batch,)
    if isinstance(sub_batch, dict):
        columns = sub_batch.values()
    elif isinstance(sub_batch, tuple):
        columns = sub_batch
    return all(isinstance(column, Column) and (column.is_plain or column.kind != "other") for column in columns)


def collate(samples: Sequence[Any]) -> Any:
    """Turn samples into columns, for `weave`.

    Args:
        samples: At least one; all dicts of the same keys, all tuples (or lists) of the same length, or all bare values.

    Returns:
        A dict or a tuple of columns, or one column.

    Raises:
        PipelineError: The samples differ in kind, keys or length, or a column's values cannot be stacked.
    """
    first = _checked_alike(samples)
    if isinstance(first, dict):
        return {name: _column([sample[name] for sample in samples], repr(name)) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(_column(list(values), f"element {i}") for i, values in enumerate(zip(*samples, strict=True)))
    return _column(list(samples), "the value")


PACK_SIZES, LENGTHS = "__pack_sizes__", "__lengths__"
"""Columns of packs: how many samples each pack has, which a batch leaves out, and how long each sample is."""


_MAX_ELEMENTS = 2**31 - 1


class LeftOut:
    """Stands for a bad sample that is left out of its pack or group."""


def without_left_out(samples: Sequence[Any], units: Int64) -> tuple[list[Any], Int64]:
    """Return the samples that are not left out, and how many of them each pack has; `units` are those of a block."""
    kept = [not isinstance(sample, LeftOut) for sample in samples]
    return list(compress(samples, kept)), np.bincount(units[kept])


def in_bundles(samples: Sequence[Any], sizes: Int64) -> list[list[Any]]:
    """Return the samples of each pack, by the number of samples that it has."""
    stops = np.cumsum(sizes).tolist()
    return [list(samples[stop - size : stop]) for stop, size in zip(stops, sizes.tolist(), strict=True)]


def collate_packs(samples: Sequence[Any], sizes: Int64, packing: Packing) -> dict[str, Column]:
    """Turn the samples of packs into columns, for `weave_packs`.

    Arrays and tensors are joined along their first axis; other values are columns as `collate` makes them.

    Args:
        samples: The samples of all packs, one after another: dicts of the same keys.
        sizes: int64 of shape (packs,): the samples of each pack.
        packing: How long a pack may be.

    Raises:
        PipelineError: The samples differ, their arrays cannot be joined, or a pack is too long.
    """
    first = _checked_alike(samples)
    if not isinstance(first, dict):
        raise _no_packs(_layout(first))
    columns, lengths, name_of_lengths = {}, None, ""
    for name in first:
        values = [sample[name] for sample in samples]
        kinds = {""} if type(values[0]) in _PLAIN_KINDS else {_kind(value) for value in values}
        if not (kinds <= {"tensor", "array"} and all(value.ndim for value in values)):
            column = _column(values, repr(name))
            if _is_joined(column):  # scalars of numpy or torch: one a sample, like any number
                array = as_array(column.data)
                column = Column("number", np.array(column.data.tolist()) if array is None else array)
            columns[name] = column
            continue
        if len(kinds) > 1:
            raise _unlike(repr(name), "all tensors, or all arrays", ", ".join(sorted(kinds)))
        if len({(value.dtype, value.shape[1:]) for value in values}) > 1:
            _check_same([(str(value.dtype), tuple(value.shape[1:])) for value in values], repr(name))
        if packing.truncates:
            values = [value[: packing.capacity] for value in values]
        own = np.array([len(value) for value in values], np.int64)
        if lengths is not None and not np.array_equal(own, lengths):
            raise _unlike(repr(name), f"arrays as long as {name_of_lengths}", "arrays of other lengths")
        lengths, name_of_lengths = own, repr(name)
        kind = kinds.pop()
        columns[name] = Column(kind, sys.modules["torch"].cat(values) if kind == "tensor" else np.concatenate(values))
    if lengths is None:
        raise _no_packs(_layout(first))
    longest = np.add.reduceat(lengths, np.cumsum(sizes) - sizes)
    if longest.max() > packing.capacity:
        raise PipelineError(
            "a pack is longer than its capacity",
            place=f"the pack of sample {first.get('__key__', '')!r}",
            expected=f"arrays of {packing.capacity:,} elements together",
            found=f"{int(longest.max()):,}",
            remedy="give --pack a column with the lengths of what the stages return",
        )
    return {**columns, LENGTHS: Column("number", lengths), PACK_SIZES: Column("number", sizes)}


def collate_group(samples: Sequence[Any], budget: int) -> dict[str, Column]:
    """Turn the samples of a group of a budget into columns, for `weave_group`; raises as `collate_packs` does."""
    columns = collate_packs(samples, np.ones(len(samples), np.int64), Packing(_MAX_ELEMENTS, False))
    padded = len(samples) * int(columns[LENGTHS].data.max())
    if padded > budget:
        raise PipelineError(
            "a group is longer than its budget",
            place=f"the group of sample {samples[0].get('__key__', '')!r}",
            expected=f"{counted(len(samples), 'array')} that have {budget:,} elements together, padded to the longest",
            found=f"{padded:,}",
            remedy="give --group a column with the lengths of what the stages return",
        )
    return columns


def collate_columns(columns: Columns) -> Any:
    """Turn samples that are columns already into columns for `weave`; the result is that of `collate`."""
    if isinstance(columns, dict):
        return {name: _whole_column(values, repr(name)) for name, values in columns.items()}
    return tuple(_whole_column(values, f"element {i}") for i, values in enumerate(columns))


def _whole_column(values: Any, name: str) -> Column:
    if _is_tensor(values):
        return Column("tensor", values)
    if isinstance(values, pa.Array):
        return Column("other", values, is_plain=True)
    if not isinstance(values, np.ndarray):
        return _column(values, name)
    is_numbers = values.ndim == 1 and values.dtype in (np.int64, np.float64, np.bool_)
    return Column("number" if is_numbers else "array", _writable(values))


def num_bytes(sub_batch: Any, lists: bool = True) -> int:
    """Return the approximate memory of a sub-batch's values.

    Args:
        sub_batch: The result of `collate`, samples, or a list of these.
        lists: Whether to count columns of bytes or text too, which takes long for many small values.
    """
    if isinstance(sub_batch, Column):
        if isinstance(sub_batch.data, pa.Array):
            return int(sub_batch.data.nbytes)
        if sub_batch.is_plain:
            return sum(map(len, sub_batch.data)) if lists else 0
        return num_bytes(sub_batch.data)
    if isinstance(sub_batch, dict):
        return sum(num_bytes(value, lists) for value in sub_batch.values())
    if isinstance(sub_batch, (list, tuple)):
        if set(map(type, sub_batch)) <= {bytes, str}:
            return sum(map(len, sub_batch))
        return sum(num_bytes(value, lists) for value in sub_batch)
    if isinstance(sub_batch, (bytes, str)):
        return len(sub_batch)
    if isinstance(sub_batch, np.ndarray) or _is_tensor(sub_batch):
        return int(sub_batch.nbytes)
    size = getattr(sub_batch, "size", None)
    return 4 * size[0] * size[1] if isinstance(size, tuple) and len(size) == 2 else 8


def weave(
    sub_batches: Sequence[tuple[Places, Any]],
    size: int,
    pin: bool,
    borrowed: bool = False,
    output: Output = "torch",
) -> Any:
    """Put the columns of sub-batches together.

    Args:
        sub_batches: At least one: the places of its samples in the batch, and the result of `collate`.
        size: Samples of the batch.
        pin: Whether to put tensors into pinned memory.
        borrowed: Whether the memory of the sub-batches will be reused, so that all must be copied.
        output: Return stacked columns as tensors, or as arrays.

    Returns:
        A dict or a tuple of tensors (or arrays) and lists, or one of them.

    Raises:
        PipelineError: The sub-batches do not fit together, as for the samples of `collate`.
    """
    rows = [places if isinstance(places, slice) else spaced(places) for places, _ in sub_batches]
    values = [sub_batch for _, sub_batch in sub_batches]
    first = _checked_alike(values)

    def woven(columns: list[Column], name: str) -> Any:
        column = _weave_column(list(zip(rows, columns, strict=True)), size, pin, borrowed, name)
        return column if isinstance(column, list) else _delivered(column, output, name)

    if isinstance(first, dict):
        return {name: woven([value[name] for value in values], repr(name)) for name in first}
    if isinstance(first, tuple):
        return tuple(woven([value[i] for value in values], f"element {i}") for i in range(len(first)))
    return woven(values, "the value")


def _is_packed(sub_batch: Any) -> bool:
    """Tell whether a sub-batch is a result of `collate_packs`."""
    return isinstance(sub_batch, dict) and PACK_SIZES in sub_batch


def weave_packs(
    sub_batches: Sequence[tuple[Int64, dict[str, Column]]],
    pin: bool,
    borrowed: bool = False,
    output: Output = "torch",
    pad_to: int | None = None,
) -> dict[str, Any]:
    """Put the columns of packs together; arguments as for `weave`.

    Returns:
        Of n samples with t elements together: arrays and tensors joined, of length t; other values of length n;
        `__lengths__` (int64) of length n, `__cu_seqlens__` (int32) of length n + 1, `__position_ids__` and
        `__segment_ids__` (int64) of length t. With `pad_to`, each pack is a row of that length instead, filled with
        zeros (segments: with -1), and `__mask__` (bool) is True at the elements.
    """
    sizes = [sub_batch[PACK_SIZES].data for _, sub_batch in sub_batches]
    lengths = [sub_batch[LENGTHS].data for _, sub_batch in sub_batches]
    elements = [np.add.reduceat(each, np.cumsum(size) - size) for each, size in zip(lengths, sizes, strict=True)]
    joined: dict[str, Any] = {}
    of_items, of_elements = _offsets_of(sub_batches, sizes), _offsets_of(sub_batches, elements)
    for offsets, is_joined in ((of_items, False), (of_elements, True)):
        is_alone = len(sub_batches) == 1  # then its rows are in order: to place them would take as long as all the rest
        parts = [
            (
                slice(0, int(offsets[-1])) if is_alone else spread(offsets, packs)[1],
                {name: each for name, each in own.items() if _is_joined(each) == is_joined},
            )
            for packs, own in sub_batches
        ]
        for _, part in parts:
            part.pop(PACK_SIZES, None)
        joined |= weave(parts, int(offsets[-1]), pin, borrowed, output)
    own = np.asarray(joined.pop(LENGTHS))
    ends = np.cumsum(own)
    if len(ends) and ends[-1] > _MAX_ELEMENTS:
        raise PipelineError(
            "a batch is too long",
            expected=f"at most {_MAX_ELEMENTS:,} elements, which 32-bit offsets can count",
            found=f"{int(ends[-1]):,}",
            remedy="use a smaller batch_size, or a smaller budget",
        )
    position_ids = np.arange(own.sum())
    position_ids -= np.repeat(ends - own, own)
    made = {
        LENGTHS: own,
        "__cu_seqlens__": np.append(0, ends).astype(np.int32),
        "__position_ids__": position_ids,
        "__segment_ids__": np.repeat(np.arange(len(own)), own),
    }
    ordered = {name: joined[name] for name in sub_batches[0][1] if name in joined}
    ordered |= {name: _delivered(values, output, name) for name, values in made.items()}
    if pad_to is None:
        return _pinned(ordered) if pin else ordered
    row, element = spread(of_elements, np.arange(len(of_elements) - 1))
    at, shape = (row, element - of_elements[row]), (len(of_elements) - 1, pad_to)
    names = [name for name, column in sub_batches[0][1].items() if _is_joined(column)]
    for name in (*names, "__position_ids__", "__segment_ids__"):
        ordered[name] = _in_rows(ordered[name], at, shape, -1 if name == "__segment_ids__" else 0)
    mask = np.zeros(shape, np.bool_)
    mask[at] = True
    ordered["__mask__"] = _delivered(mask, output, "__mask__")
    return _pinned(ordered) if pin else ordered


def _pinned(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with all tensors in pinned memory."""
    return {name: value.pin_memory() if _is_tensor(value) else value for name, value in batch.items()}


def num_samples(sub_batch: Any) -> int:
    """Return how many samples a sub-batch of packs or groups has: a result of a collation, or a list of these."""
    if _is_packed(sub_batch):
        return len(sub_batch[LENGTHS].data)
    if isinstance(sub_batch, list):
        return sum(map(len, sub_batch))
    columns = [sub_batch] if isinstance(sub_batch, Column) else sub_batch
    columns = columns.values() if isinstance(columns, dict) else columns
    return max((len(column.data) for column in columns), default=0)


def weave_group(sub_batch: Any, pin: bool, borrowed: bool = False, output: Output = "torch") -> Any:
    """Return a group as a batch; arguments as for `weave`. Samples of a budget are rows as long as the longest."""
    if _is_packed(sub_batch):
        lengths = sub_batch[LENGTHS].data
        parts = [(np.arange(len(lengths)), sub_batch)]
        return weave_packs(parts, pin, borrowed, output, int(lengths.max()))
    size = num_samples(sub_batch)
    return weave([(np.arange(size), sub_batch)], size, pin, borrowed, output)


def _in_rows(values: Any, at: tuple[Int64, Int64], shape: tuple[int, int], fill: int) -> Any:
    """Return values at their rows and places in an array (or a tensor) of a shape that is filled with a number."""
    whole = (*shape, *values.shape[1:])
    if _is_tensor(values):
        out = values.new_full(whole, fill)
        out[tuple(map(_as_tensor, at))] = values
        return out
    out = np.full(whole, fill, values.dtype)
    out[at] = values
    return out


def _no_packs(found: str) -> PipelineError:
    return PipelineError(
        "the samples of a pack or group have no arrays to join",
        expected="dicts with an array or a tensor, of at least one dimension",
        found=found,
        remedy="decode the field of the array, leave out to_tuple, or pass a collate_fn to the Loader",
    )


def _is_joined(column: Column) -> bool:
    return column.kind in ("tensor", "array")


def _offsets_of(sub_batches: Sequence[tuple[Int64, Any]], sizes: Sequence[Int64]) -> Int64:
    """Return where the rows of each pack begin in a batch, and their number; `sizes` are the rows of each pack."""
    whole = np.empty(sum(map(len, sizes)), np.int64)
    for (packs, _), each in zip(sub_batches, sizes, strict=True):
        whole[packs] = each
    return np.append(0, np.cumsum(whole))


def _checked_alike(samples: Sequence[Any]) -> Any:
    """Return the first of some samples that fit into one batch by their keys or length; raise PipelineError if not."""
    first = samples[0]
    for sample in samples:
        if isinstance(first, dict):
            is_alike = isinstance(sample, dict) and sample.keys() == first.keys()
        elif isinstance(first, (tuple, list)):
            is_alike = isinstance(sample, (tuple, list)) and len(sample) == len(first)
        else:
            is_alike = not isinstance(sample, (dict, tuple, list))
        if not is_alike:
            raise PipelineError(
                "the samples of a batch differ in their fields",
                expected=_layout(first),
                found=_layout(sample),
                remedy="make them alike with to_tuple or map, or pass a collate_fn to the Loader",
            )
    return first


def _layout(sample: Any) -> str:
    """Describe what samples of one batch must have in common."""
    if isinstance(sample, dict):
        return f"dicts of {', '.join(sorted(map(repr, sample)))}"
    if isinstance(sample, (tuple, list)):
        return f"tuples of {len(sample)}"
    return "bare values"


def _column(values: list[Any], name: str) -> Column:
    plain = "tensor" if _is_tensor(values[0]) else _PLAIN_KINDS.get(type(values[0]), "")
    is_pure = bool(plain) and len(set(map(type, values))) == 1
    kinds = {plain} if is_pure else {_kind(value) for value in values}
    kind = _only_kind(kinds, name)
    if kind == "other":
        return Column(kind, values, is_pure)
    if kind == "number":
        return Column(kind, _numbers(values, name))
    _check_same([(str(value.dtype), tuple(value.shape)) for value in values], name)
    if kind == "tensor":
        return Column(kind, _stacked_tensors(values))
    return Column(kind, _writable(np.stack(values)))


def _stacked_tensors(values: list[Any]) -> Any:
    """Stack tensors; those that are plain CPU memory by numpy, in one thread and a fraction of the time torch takes."""
    torch = sys.modules["torch"]
    arrays = [
        array
        for value in values
        if type(value) is torch.Tensor
        and not value.requires_grad
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
        and (array := as_array(value)) is not None
    ]
    return torch.from_numpy(np.stack(arrays)) if len(arrays) == len(values) else torch.stack(values)


def _kind(value: Any) -> str:
    if _is_tensor(value):
        return "tensor"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return "array"
    if isinstance(value, (int, float)):
        return "number"
    return "other"


def _numbers(values: list[Any], name: str) -> npt.NDArray[Any]:
    """Return Python numbers as bool if all are, else int64 if all are whole, else float64."""
    types = set(map(type, values))
    if types == {bool}:
        return np.array(values, np.bool_)
    if any(issubclass(kind, float) for kind in types):
        return np.array(values, np.float64)
    for value in (min(values), max(values)):
        if not -_MAX_INT <= value < _MAX_INT:
            raise _unlike(name, "integers of at most 64 bits", str(value))
    return np.array(values, np.int64)


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of this machine's byte order that may be written to."""
    return array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)


def _check_same(values: Sequence[tuple[str, tuple[int, ...]]], name: str) -> None:
    for dtype, shape in values:
        if (dtype, shape) != values[0]:
            expected = f"{values[0][0]} of shape {values[0][1]} in the whole batch"
            raise _unlike(name, expected, f"{dtype} of shape {shape}")


def _only_kind(kinds: set[str], name: str) -> str:
    if len(kinds) > 1:
        raise _unlike(name, "all tensors, all arrays, all numbers, or none of them", ", ".join(sorted(kinds)))
    return kinds.pop()


def _unlike(name: str, expected: str, found: str) -> PipelineError:
    return PipelineError(
        f"{name} cannot be stacked",
        expected=expected,
        found=found,
        remedy="make the values alike with map_dict or map, images with decode(wdsplit.resized(...)); or pass a "
        "collate_fn to the Loader",
    )


def _weave_column(parts: Sequence[tuple[Places, Column]], size: int, pin: bool, borrowed: bool, name: str) -> Any:
    """Return a column of the batch: where it is already, if it may stay there, else a copy."""
    columns = [column for _, column in parts]
    first, kind = columns[0], _only_kind({column.kind for column in columns}, name)
    if kind == "other":
        return _whole_list(parts, size)
    if not pin and first.batch is not None and all(column.batch is first.batch for column in columns):
        return in_place(first.batch, (size, *first.data.shape[1:]), first.data.dtype)
    if not pin and not borrowed and len(columns) == 1:
        return first.data
    if kind != "number":
        _check_same([(str(column.data.dtype), tuple(column.data.shape[1:])) for column in columns], name)
    return _copied(parts, size, pin, name)


def _whole_list(parts: Sequence[tuple[Places, Column]], size: int) -> list[Any]:
    values: list[Any] = [None] * size
    for places, column in parts:
        data = column.data.to_pylist() if isinstance(column.data, pa.Array) else column.data
        if isinstance(places, slice):
            values[places] = data
            continue
        for place, value in zip(places.tolist(), data, strict=True):
            values[place] = value
    return values


def _copied(parts: Sequence[tuple[Places, Column]], size: int, pin: bool, name: str) -> Any:
    """Return arrays or tensors copied into one, which is new."""
    first = parts[0][1].data
    shape = (size, *first.shape[1:])
    arrays = [array for _, column in parts if (array := as_array(column.data)) is not None]
    if len(arrays) < len(parts):  # of a dtype that numpy does not have
        tensor = sys.modules["torch"].empty(shape, dtype=first.dtype, pin_memory=pin)
        for places, column in parts:
            tensor[places] = column.data
        return tensor
    dtype = np.result_type(*(array.dtype for array in arrays))
    pinned = _delivered(np.empty(0, dtype), "torch", name).new_empty(shape, pin_memory=True) if pin else None
    whole = np.empty(shape, dtype) if pinned is None else pinned.numpy()
    for (places, _), array in zip(parts, arrays, strict=True):
        whole[places] = array
    return whole if pinned is None else pinned


def _delivered(column: Any, output: Output, name: str) -> Any:
    """Return a tensor or an array as the requested type, in the same memory."""
    if _is_tensor(column) == (output == "torch"):
        return column
    if output == "numpy":
        array = as_array(column)
        if array is None:
            raise _unlike(name, "tensors of the CPU, of a dtype that numpy has", f"{column.dtype} on {column.device}")
        return array
    try:
        return _as_tensor(column)
    except TypeError as error:
        raise _unlike(name, "arrays of a dtype that torch has", str(column.dtype)) from error


def spaced(places: Int64) -> Places:
    """Return places as a slice if they are evenly spaced: those of one worker are, unless ranks advance unevenly."""
    if not len(places):  # packs of nothing but empty arrays
        return slice(0, 0)
    first, last, count = int(places[0]), int(places[-1]), len(places)
    step = (last - first) // (count - 1) if count > 1 else 1
    even = slice(first, last + 1, step)
    is_even = step > 0 and np.array_equal(places, np.arange(first, last + 1, step))
    return even if is_even else places
