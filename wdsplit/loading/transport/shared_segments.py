"""Sub-batches on their way from a worker process, in memory that both processes share.

A worker lays a parcel of sub-batches out in one of a few segments of its memory; the pipe carries only where they are.
The segment is used again once the other side reports that it has copied them.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.reading.block import Pending, flat
from wdsplit.loading.reading.process_limits import keep_freed_memory
from wdsplit.loading.transport.collate import Column, arrow_of, as_array, is_plain, num_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["Bound", "Placed", "Ring", "Segments", "travelling"]

_ALIGNMENT = 64
_GROWTH = 1.25
_PICKLED_BYTES = 512 * 1024
"""Up to this size a parcel is pickled whole: laying out columns would cost more than the copy that it saves."""
_SMALL_BYTES = 4096
"""Values of this mean size are joined before they are copied: a copy of each would cost more."""
_PATIENCE_S = 1.0
"""How often a worker that waits for room looks whether the loader's process still lives."""


@dataclass(frozen=True)
class _Array:
    kind: str
    dtype: np.dtype[Any] | torch.dtype
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Strings:
    is_text: bool
    offset: int
    num_bytes: int
    cuts: _Array


@dataclass(frozen=True)
class _Pickled:
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Placed:
    """A parcel in a segment.

    Attributes:
        worker: The worker of the segment.
        begin: Where the segment begins in the worker's memory.
        num_bytes: Its size.
        layout: Where in it the whole parcel is, or for each of its sub-batches where the columns are.
    """

    worker: int
    begin: int
    num_bytes: int
    layout: Any


class _Segment(NamedTuple):
    begin: int
    num_bytes: int


class Ring:
    """The segments of a worker, and which of them hold parcels that were not copied yet."""

    def __init__(self, worker: int, memory: SharedMemory, num_slots: int) -> None:
        self._worker = worker
        self._memory = memory
        self._slots = [_Segment(0, 0)] * num_slots
        self.restart()

    def restart(self) -> None:
        """Begin another iteration: parcels of the one before may never have been taken."""
        self._in_flight: deque[tuple[int, int]] = deque()
        self._free = list(reversed(range(len(self._slots))))

    def has_room(self, num_bytes: int, max_bytes: int) -> bool:
        """Tell whether a parcel fits, if parcels in transit may have at most `max_bytes`; a single one always does."""
        in_flight = sum(size for _, size in self._in_flight)
        return not self._in_flight or (bool(self._free) and in_flight + num_bytes <= max_bytes)

    def release(self) -> None:
        """Record that the oldest parcel was copied. Its segment is the next to be used, so that few are used."""
        slot, _ = self._in_flight.popleft()
        self._free.append(slot)

    def place(self, parcel: list[Any] | bytes, num_bytes: int) -> Placed:
        """Copy a parcel of about `num_bytes`, or one that was pickled, into a free segment."""
        pieces = _Pieces()
        layout: Any = pieces.add_bytes(parcel) if isinstance(parcel, bytes) else list(map(pieces.add_sub_batch, parcel))
        slot = self._free.pop()
        self._in_flight.append((slot, num_bytes))
        segment = self._slots[slot]
        if segment.num_bytes < pieces.num_bytes or not segment.num_bytes:
            if segment.num_bytes:
                self._memory.free(*segment)
            size = int(_GROWTH * pieces.num_bytes) + _ALIGNMENT
            segment = self._slots[slot] = _Segment(self._memory.allocate(size), size)
        pieces.copy_to(self._memory.view(*segment))
        return Placed(self._worker, *segment, layout)


class Bound:
    """Where worker processes place sub-batches, and how many bytes of them may be there that were not delivered yet.

    Attributes:
        num_slots: The most sub-batches of a worker.
        memories: The memory of each worker, in which it places them.
    """

    def __init__(self, context: BaseContext, num_workers: int, num_slots: int, max_bytes: int) -> None:
        self.num_slots = num_slots
        self._max_bytes = max_bytes
        self._delivered = [context.Semaphore(0) for _ in range(num_workers)]
        self.memories = [SharedMemory() for _ in range(num_workers)]

    def restart(self, worker: int) -> None:
        """Forget what was delivered of an earlier iteration."""
        while self._delivered[worker].acquire(block=False):
            pass

    def deliver(self, worker: int) -> None:
        """Say that a worker's oldest sub-batch was delivered; called by the loader's side."""
        self._delivered[worker].release()

    def wake(self) -> None:
        """Let all workers that wait look whether they are needed; called by the loader's side when they are not."""
        for delivered in self._delivered:
            delivered.release()

    def close(self) -> None:
        """Let go of the memory; called by the loader's side when its workers have nothing more to give."""
        for memory in self.memories:
            memory.close()

    def wait(self, worker: int, ring: Ring, num_bytes: int, is_needed: Callable[[], bool]) -> bool:
        """Wait until there is room for a sub-batch; return False if none is needed any more."""
        while is_needed():
            is_full = not ring.has_room(num_bytes, self._max_bytes)
            if self._delivered[worker].acquire(block=is_full, timeout=_PATIENCE_S):
                if is_needed():
                    ring.release()
            elif not is_full:
                return True
            elif (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
                return False
        return False


class _Pieces:
    """Data to place in a segment, one piece after another."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._pieces: list[tuple[int, Any]] = []

    def _add(self, pieces: Sequence[Any], num_bytes: int) -> int:
        offset = self.num_bytes
        place = offset
        for piece in pieces:
            self._pieces.append((place, piece))
            place += len(piece)
        self.num_bytes = offset + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return offset

    def add_sub_batch(self, sub_batch: Any) -> Any:
        """Lay out a sub-batch; return its layout."""
        if isinstance(sub_batch, dict) and all(isinstance(column, Column) for column in sub_batch.values()):
            return {name: self.add_column(column) for name, column in sub_batch.items()}
        if isinstance(sub_batch, tuple) and all(isinstance(column, Column) for column in sub_batch):
            return tuple(map(self.add_column, sub_batch))
        return self.add_column(sub_batch) if isinstance(sub_batch, Column) else self.add_bytes(_pickled(sub_batch))

    def add_column(self, column: Column) -> Any:
        """Lay out a column; return its layout."""
        if column.batch is not None:
            return self.add_bytes(_pickled(column))
        if column.kind != "other":
            data = _flat_bytes(column.data)
            return _Array(column.kind, column.data.dtype, tuple(column.data.shape), self._add([data], len(data)))
        if isinstance(column.data, pa.Array):
            cuts, data = flat(column.data)
            return self._add_strings(pa.types.is_large_string(column.data.type), cuts, [data])
        if not column.is_plain or type(column.data[0]) not in (bytes, Pending):
            return self.add_bytes(_pickled(column))
        lengths = np.fromiter(map(len, column.data), np.int64, len(column.data))
        cuts = np.concatenate([[0], np.cumsum(lengths)])
        is_small = cuts[-1] < _SMALL_BYTES * len(lengths)
        return self._add_strings(False, cuts, [b"".join(map(bytes, column.data))] if is_small else column.data)

    def _add_strings(self, is_text: bool, cuts: Int64, pieces: Sequence[Any]) -> _Strings:
        num_bytes = int(cuts[-1])
        return _Strings(is_text, self._add(pieces, num_bytes), num_bytes, self.add_column(Column("number", cuts)))

    def add_bytes(self, data: bytes) -> _Pickled:
        """Lay out what was pickled."""
        return _Pickled(self._add([data], len(data)), len(data))

    def copy_to(self, segment: memoryview) -> None:
        """Copy everything to its place."""
        for place, piece in self._pieces:
            if type(piece) is Pending:
                piece.read_into(segment[place : place + len(piece)])
            else:
                segment[place : place + len(piece)] = memoryview(piece)


def _flat_bytes(data: Any) -> Any:
    """Return the bytes of an array, or of a tensor of a dtype that numpy does not have, one after another."""
    array = as_array(data)
    if array is None:
        import torch

        return data.contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def travelling(parcel: list[Any], may_be_large: bool) -> tuple[list[Any] | bytes, int]:
    """Return a parcel as it should be placed (pickled if it is small), and about how many bytes it has.

    Args:
        parcel: The parcel.
        may_be_large: Whether its columns of bytes and text may be too large to be pickled.
    """
    size = num_bytes(parcel, lists=may_be_large)
    if size > _PICKLED_BYTES:
        return parcel, size if may_be_large else num_bytes(parcel)
    data = _pickled(parcel)
    return data, len(data)


def _pickled(value: Any) -> bytes:
    """Return a value pickled; without a memo, which takes most of the time, where no object can refer to itself."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.fast = isinstance(value, list) and all(sub_batch is None or is_plain(sub_batch) for sub_batch in value)
    try:
        pickler.dump(value)
    except WdsplitError:  # of a pending payload
        raise
    except Exception as error:
        raise PipelineError(
            "a value of a sample cannot be sent from a worker process",
            expected="values that can be pickled",
            found=f"{type(error).__name__}: {error}",
            remedy="drop the field with to_tuple, or use workers='thread'",
        ) from error
    return file.getvalue()


class Segments:
    """The segments of all workers, as the other side sees them."""

    def __init__(self, memories: Sequence[SharedMemory]) -> None:
        keep_freed_memory()
        self._memories = memories

    def parcel(self, placed: Placed) -> list[Any]:
        """Return a parcel; its tensors lie in the segment, so they must be copied before it is used again."""
        segment = self._memories[placed.worker].view(placed.begin, placed.num_bytes)
        if isinstance(placed.layout, list):
            return [_sub_batch(segment, layout) for layout in placed.layout]
        parcel: list[Any] = _taken(segment, placed.layout)
        return parcel


def _sub_batch(segment: memoryview, layout: Any) -> Any:
    if isinstance(layout, dict):
        return {name: _taken(segment, column) for name, column in layout.items()}
    if isinstance(layout, tuple):
        return tuple(_taken(segment, column) for column in layout)
    return _taken(segment, layout)


def _taken(segment: memoryview, entry: Any) -> Any:
    """Return the column, or any value, that an entry of a layout describes."""
    if isinstance(entry, _Array):
        return Column(entry.kind, _taken_array(segment, entry))
    if isinstance(entry, _Pickled):
        return pickle.loads(segment[entry.offset : entry.offset + entry.num_bytes])
    cuts = _taken_array(segment, entry.cuts)
    view = segment[entry.offset : entry.offset + entry.num_bytes]
    return Column("other", arrow_of(entry.is_text, cuts, view), is_plain=True)


def _taken_array(segment: memoryview, entry: _Array) -> Any:
    """Return an array, or a tensor of a dtype that numpy does not have."""
    if isinstance(entry.dtype, np.dtype):
        return np.ndarray(entry.shape, entry.dtype, segment, entry.offset)
    import torch

    num_bytes = entry.dtype.itemsize * int(np.prod(entry.shape, dtype=np.int64))
    data = torch.from_numpy(np.ndarray(num_bytes, np.uint8, segment, entry.offset))
    return data.view(entry.dtype).reshape(entry.shape)
