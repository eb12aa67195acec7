"""Sub-batches on their way from a worker process, in memory that both processes share.

A worker lays a parcel of sub-batches out in one of a few segments of its memory; the pipe carries only where they are.
The segment is used again once the other side reports that it has copied them.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import numpy as np

from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.reading.block import Pending
from wdsplit.loading.transport.collate import Column, bytes_column, is_plain, num_bytes

__all__ = ["Bound", "Placed", "Ring", "travelling", "unpacked"]

_ALIGNMENT = 64
_GROWTH = 1.25
_PICKLED_BYTES = 512 * 1024
"""Up to this size a parcel is pickled whole: laying out columns would cost more than the copy that it saves."""
_SMALL_BYTES = 4096
"""Values of this mean size are joined before they are copied: a copy of each would cost more."""


@dataclass(frozen=True)
class Placed:
    """A parcel in a segment.

    Attributes:
        begin: Where the segment begins in the worker's memory.
        num_bytes: Its size.
        spans: Where in it what was pickled begins and ends, then each of its buffers.
    """

    begin: int
    num_bytes: int
    spans: list[tuple[int, int]]


class _Segment(NamedTuple):
    begin: int
    num_bytes: int


class Ring:
    """The segments of a worker, and which of them hold parcels that were not copied yet."""

    def __init__(self, memory: SharedMemory, num_slots: int) -> None:
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
        pieces = [[parcel]] if isinstance(parcel, bytes) else _pickled(parcel, apart=True)
        spans, total = [], 0
        for piece in pieces:
            spans.append((total, total + sum(map(len, piece))))
            total = -(-spans[-1][1] // _ALIGNMENT) * _ALIGNMENT
        slot = self._free.pop()
        self._in_flight.append((slot, num_bytes))
        segment = self._slots[slot]
        if segment.num_bytes < total or not segment.num_bytes:
            if segment.num_bytes:
                self._memory.free(*segment)
            size = int(_GROWTH * total) + _ALIGNMENT
            segment = self._slots[slot] = _Segment(self._memory.allocate(size), size)
        view = self._memory.view(*segment)
        for (place, _), piece in zip(spans, pieces, strict=True):
            for value in piece:
                target, place = view[place : place + len(value)], place + len(value)
                if type(value) is Pending:
                    value.read_into(target)
                else:
                    target[:] = value
        return Placed(*segment, spans)


class Bound:
    """Where worker processes place parcels, and how many bytes of them may be there that were not delivered yet.

    Attributes:
        num_slots: The most parcels of a worker.
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
        """Say that a worker's oldest parcel was delivered; called by the loader's side."""
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
        """Wait until there is room for a parcel; return False if none is needed any more."""
        while is_needed():
            is_full = not ring.has_room(num_bytes, self._max_bytes)
            if not self._delivered[worker].acquire(block=is_full):
                return True
            if is_needed():
                ring.release()
        return False


def travelling(parcel: list[Any], may_be_large: bool) -> tuple[list[Any] | bytes, int]:
    """Return a parcel as it should be placed (pickled if it is small), and about how many bytes it has.

    Args:
        parcel: The parcel.
        may_be_large: Whether its columns of bytes and text may be too large to be pickled.
    """
    size = num_bytes(parcel, lists=may_be_large)
    if size > _PICKLED_BYTES:
        return parcel, size if may_be_large else num_bytes(parcel)
    ((data,),) = _pickled(parcel)
    return data, len(data)


class _Pickler(pickle.Pickler):
    """Pickles a parcel: as a whole, or apart from the buffers of its columns.

    Attributes:
        pieces: The buffers, in the order in which they are unpickled: each one, or payloads that make up one.
    """

    def __init__(self, file: io.BytesIO, apart: bool) -> None:
        super().__init__(file, 5, buffer_callback=self._is_within if apart else None)
        self.pieces: list[Sequence[Any]] = []
        self._apart = apart
        self._of_columns: dict[int, Sequence[Any]] = {}

    def reducer_override(self, value: Any) -> Any:
        """Reduce a column, and note its buffers: those of other values stay with what was pickled."""
        if not self._apart or type(value) is not Column:
            return NotImplemented
        is_list = value.is_plain and type(value.data) is list
        if not is_list or type(value.data[0]) not in (bytes, Pending):
            made, values = value.__reduce_ex__(5)
            self._of_columns |= {id(each): [each.raw()] for each in values if type(each) is pickle.PickleBuffer}
            return made, values
        lengths = np.fromiter(map(len, value.data), np.int64, len(value.data))
        cuts = pickle.PickleBuffer(np.append(0, np.cumsum(lengths)).data)
        payloads = pickle.PickleBuffer(b"")  # stands for them
        is_small = lengths.sum() < _SMALL_BYTES * len(lengths)
        self._of_columns[id(cuts)] = [cuts.raw()]
        self._of_columns[id(payloads)] = [b"".join(map(bytes, value.data))] if is_small else value.data
        return bytes_column, (cuts, payloads)

    def _is_within(self, buffer: pickle.PickleBuffer) -> bool:
        piece = self._of_columns.pop(id(buffer), None)
        if piece is not None:
            self.pieces.append(piece)
        return piece is None


def _pickled(parcel: list[Any], apart: bool = False) -> list[Sequence[Any]]:
    """Return a parcel pickled, and the pieces that are `apart` from that.

    It is pickled without a memo, which takes most of the time, where no object can refer to itself.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, apart)
    pickler.fast = all(sub_batch is None or is_plain(sub_batch) for sub_batch in parcel)
    try:
        pickler.dump(parcel)
    except WdsplitError:  # of a pending payload
        raise
    except Exception as error:
        raise PipelineError(
            "a value of a sample cannot be sent from a worker process",
            expected="values that can be pickled",
            found=f"{type(error).__name__}: {error}",
            remedy="drop the field with to_tuple, or use workers='thread'",
        ) from error
    return [[file.getvalue()], *pickler.pieces]


def unpacked(memory: SharedMemory, placed: Placed) -> list[Any]:
    """Return a parcel; its columns lie in the segment, so they must be copied before it is used again."""
    segment = memory.view(placed.begin, placed.num_bytes)
    pickled, *buffers = (segment[begin:end] for begin, end in placed.spans)
    parcel: list[Any] = pickle.loads(pickled, buffers=buffers)
    return parcel
