"""Windows: consecutive samples of a shard, parsed into keys and payloads.

Pure (no I/O).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading.block import Block, Objects, Payloads, as_objects
from wdsplit.tar.members import Members
from wdsplit.tar.names import MAX_FIELDS, RESERVED_FIELDS, split_member

__all__ = ["AnyWindow", "Window", "pieces", "with_gaps"]

_MAX_ARROW_BYTES = 512
"""Payloads up to this mean size are copied as Arrow arrays; above it, an object costs less than a second copy."""
_EVERY_OTHER = 0x55
"""Eight flags of which the first, the third, ... are set."""
_FEW_PIECES = 1024
"""So many pieces are copied in less than a millisecond without `to_numpy`, which imports pandas if it is installed."""


class AnyWindow(Protocol):
    """Consecutive samples of a shard, with those attributes of `Window` that a `Block` needs."""

    @property
    def url(self) -> Objects | str:
        """The name of the shard in messages."""

    @property
    def keys(self) -> Objects:
        """The keys."""

    @property
    def sizes(self) -> Int64:
        """Bytes of the payloads."""

    @property
    def fields(self) -> dict[str, Payloads]:
        """The payloads."""

    @property
    def whole(self) -> Collection[str]:
        """Fields that all samples have."""


class Window:
    """Consecutive samples of a shard.

    Args:
        url: The shard's name in messages.
        members: The members of the samples.
        payloads: Takes a bool array of shape (m,) that tells which members are needed. Returns the payloads of all
            members, as in `Block`: object of shape (m,), with any values for the others; and whether no needed one is
            pending.
        requested: The fields to read; None for all.
        copied: Takes rising numbers of members (int64), and returns their payloads as an Arrow array; None to make
            none.

    Attributes:
        url: The shard's name in messages; object of shape (n,) where samples of several shards were parsed together.
        keys: object of shape (n,): str.
        sizes: int64 of shape (n,): bytes of the payloads of each sample.
        fields: For each requested field the payloads, as in `Block`.
        is_uniform: Whether all samples were found to have the same fields, so that they were parsed at once.
        whole: As in `Block`.

    Raises:
        CorruptDataError: The members do not match the samples.
    """

    def __init__(
        self,
        url: str,
        members: Members,
        payloads: Callable[[npt.NDArray[np.bool_]], tuple[Objects, bool]],
        requested: Collection[str] | None = None,
        copied: Callable[[Int64], pa.LargeBinaryArray] | None = None,
    ) -> None:
        self.url: Objects | str = url
        uniform = _uniform(members)
        self.is_uniform = uniform is not None
        self.keys, self._members = uniform or _ragged(members)
        chosen = {name: rows for name, rows in self._members.items() if requested is None or name in requested}
        self._sizes = members.sizes
        self.sizes: Int64 = np.zeros(len(self.keys), np.int64)
        self.fields: dict[str, Payloads] = {}
        is_needed = np.zeros(len(members.names) + 1, np.bool_)  # the last is for -1: no member
        for name, rows in chosen.items():
            sizes = members.sizes[rows] if self.is_uniform else np.where(rows < 0, 0, members.sizes[rows])
            self.sizes += sizes
            if copied is not None and self.is_uniform and sizes.sum() <= _MAX_ARROW_BYTES * len(sizes):
                self.fields[name] = copied(rows)
            else:
                is_needed[rows] = True
        values, are_read = payloads(is_needed[:-1]) if len(self.fields) < len(chosen) else (np.empty(0, object), True)
        if not self.is_uniform:
            values = np.concatenate([values, np.array([None], object)])
        self.fields = {
            name: self.fields[name] if name in self.fields else values[rows] for name, rows in chosen.items()
        }
        self.whole: Collection[str] = tuple(chosen) if self.is_uniform and are_read else ()

    def __len__(self) -> int:
        return len(self.keys)

    def total_sizes(self) -> Int64:
        """Return the bytes of all payloads of each sample, also of those that are not requested."""
        total = np.zeros(len(self), np.int64)
        for rows in self._members.values():
            total += np.where(rows < 0, 0, self._sizes[rows])
        return total

    def field_names(self) -> Iterator[tuple[str, list[str]]]:
        """Give the key and all field names of each sample, not only requested ones; of one sample if all are alike."""
        rows = range(min(1, len(self)) if self.is_uniform else len(self))
        for row in rows:
            yield self.keys[row], [name for name, numbers in self._members.items() if numbers[row] >= 0]

    def take(self, rows: Sequence[int], positions: Sequence[int], pads: Sequence[bool]) -> Iterator[dict[str, Any]]:
        """Give samples as dicts of `__key__`, `__url__`, `__position__`, `__pad__` and fields (bytes).

        Args:
            rows: Places in the window.
            positions: Their positions in the epoch.
            pads: Whether they are repetitions.
        """
        places = np.asarray(rows, np.int64)
        fields = {name: payloads[places] for name, payloads in self.fields.items()}
        numbers, flags = np.asarray(positions, np.int64), np.asarray(pads, np.bool_)
        urls = as_objects([self.url] * len(places)) if isinstance(self.url, str) else self.url[places]
        return Block(self.keys[places], urls, numbers, flags, self.sizes[places], fields).samples()


def pieces(data: Any, starts: Int64, sizes: Int64, requested: npt.NDArray[np.bool_]) -> Objects:
    """Return copies of pieces of some bytes, all at once: object of shape (n,), bytes; None where not needed.

    Args:
        data: The bytes: a buffer.
        starts: int64 of shape (n,): where the pieces begin, in rising order.
        sizes: int64 of shape (n,): their bytes; no piece reaches into the next one, or beyond the end.
        requested: bool of shape (n,).
    """
    if not len(starts):
        return np.empty(0, object)
    rows = np.flatnonzero(requested)
    if len(rows) <= _FEW_PIECES:
        view, cuts = memoryview(data), _cuts(data, starts, sizes).reshape(-1, 2)[rows].tolist()
        values = np.full(len(starts), None, object)
        values[rows] = as_objects([bytes(view[start:stop]) for start, stop in cuts])
        return values
    flags = np.full(len(starts) // 4 + 1, _EVERY_OTHER, np.uint8) if len(rows) == len(starts) else _flags(requested)
    return np.asarray(with_gaps(data, starts, sizes, flags).to_numpy(zero_copy_only=False)[::2], object)


def with_gaps(
    data: Any, starts: Int64, sizes: Int64, flags: npt.NDArray[np.uint8] | None = None
) -> pa.LargeBinaryArray:
    """Return pieces of some bytes, at least one, and the gaps between them, without a copy.

    Args:
        data: As in `pieces`.
        starts: As in `pieces`.
        sizes: As in `pieces`.
        flags: Bits that are 0 for nulls among the 2 n - 1 values; None for no nulls.
    """
    cuts = _cuts(data, starts, sizes)
    buffers = [None if flags is None else pa.py_buffer(flags), pa.py_buffer(cuts), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(cuts) - 1, buffers)


def _cuts(data: Any, starts: Int64, sizes: Int64) -> Int64:
    """Return where pieces begin and end, in turn: int64 of shape (2 n,); they rise, and lie in the data."""
    cuts = np.stack([starts, starts + sizes], axis=1).reshape(-1)
    if cuts[0] < 0 or cuts[-1] > len(data) or (cuts[1:] < cuts[:-1]).any():
        raise ValueError(f"{len(starts)} pieces overlap, or lie outside of {len(data)} bytes")
    return cuts


def _flags(requested: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return bits for 2 n - 1 values: set for needed pieces, and never for gaps."""
    return np.packbits(np.stack([requested, np.zeros_like(requested)], axis=1).reshape(-1), bitorder="little")


# Samples that all have the same fields


def _uniform(members: Members) -> tuple[Objects, dict[str, Int64]] | None:
    """Return keys and, for each field, the numbers of its members; None if fields differ or names are unusual."""
    counts = members.counts
    if not len(counts) or not counts[0] or (counts != counts[0]).any():
        return None
    num_fields = int(counts[0])
    first = [split_member(name) for name in members.names[:num_fields].tolist()]
    suffixes = [b"." + parts[1] for parts in first if parts is not None]
    fields = [_text(suffix[1:]).lower() for suffix in suffixes]
    if len(set(fields) - set(RESERVED_FIELDS)) < num_fields or first[0] is None:
        return None
    names = members.names.view(np.uint8).reshape(len(counts), num_fields, -1)
    stems = members.lengths.reshape(-1, num_fields) - np.array([len(suffix) for suffix in suffixes])
    if (stems != stems[:, :1]).any() or (stems <= 0).any() or not _same_stems(names, stems[:, 0], suffixes):
        return None
    stem = stems[:, 0]
    lead = int(stem[0]) - len(first[0][0])
    if (names[:, 0, :lead] != names[0, 0, :lead]).any() or (stem <= lead).any():
        return None
    keys = _keys(names[:, 0, lead:], stem - lead)
    if keys is None:
        return None
    numbers = np.arange(len(members.names))
    return keys, {field: numbers[number::num_fields] for number, field in enumerate(fields)}


def _same_stems(names: npt.NDArray[np.uint8], stem: Int64, suffixes: list[bytes]) -> bool:
    """Tell whether the names of each sample's members differ only in the suffix, and all samples have these suffixes.

    Args:
        names: uint8 of shape (n, members, width), filled up with NULs.
        stem: int64 of shape (n,): bytes before the suffix, in the names of all members of a sample.
        suffixes: The expected suffix of each member.
    """
    count, same_length = len(stem), bool((stem == stem[0]).all())
    for number, suffix in enumerate(suffixes):
        own = names[:, number]
        if same_length:
            ends = own[:, stem[0] : stem[0] + len(suffix)]
            is_apart = number > 0 and own[:, : stem[0]].tobytes() != names[:, 0, : stem[0]].tobytes()
        else:
            ends = np.take_along_axis(own, stem[:, None] + np.arange(len(suffix)), axis=1)
            is_apart = bool(((own != names[:, 0]) & (np.arange(names.shape[2]) < stem[:, None])).any())
        if is_apart or ends.tobytes() != suffix * count:
            return False
    return True


def _keys(names: npt.NDArray[np.uint8], lengths: Int64) -> Objects | None:
    """Return keys as text; None if a name might split elsewhere, because only folder names of keys may have a dot.

    Args:
        names: uint8 of shape (n, width): the names, which begin with the keys.
        lengths: int64 of shape (n,): bytes of each key; less than the width.
    """
    width = int(lengths.max())
    ended = np.zeros((len(names), width + 1), np.uint8)
    ended[:, :width] = names[:, :width]
    if (lengths != width).any():
        place, ends = np.arange(width + 1), lengths[:, None]
        ended = np.where(place == ends, np.uint8(0), ended)[place <= ends]
    joined = ended.tobytes()[:-1]
    is_odd = b"." in joined or b"__/" in joined
    if is_odd and not all(split_member(key + b".x") == (key, b"x") for key in joined.split(b"\0")):
        return None
    keys = _text(joined).split("\0")
    return as_objects(keys) if len(keys) == len(names) else None


def _text(name: bytes) -> str:
    return bytes(name).decode("utf-8", "surrogateescape")


# Samples that differ


def _ragged(members: Members) -> tuple[Objects, dict[str, Int64]]:
    """Return keys and, for each field, the numbers of its members, sample by sample; -1 where a sample lacks it."""
    num_samples = len(members.counts)
    fields: dict[str, Int64] = {}
    keys: list[str] = []
    names = members.names.tolist()
    member = 0
    for row, count in enumerate(members.counts.tolist()):
        key: str | None = None
        for number in range(member, member + count):
            parts = split_member(names[number])
            if parts is None:
                continue
            stem, field = _text(parts[0]), _text(parts[1]).lower()
            if key is not None and stem != key:
                raise _misplaced(
                    "an index entry covers members of two samples",
                    f"members of {key!r} only",
                    f"a member of {stem!r}",
                    key,
                )
            key = stem
            if field not in fields:
                if field in RESERVED_FIELDS or len(fields) == MAX_FIELDS:
                    allowed = (
                        f"names other than {', '.join(RESERVED_FIELDS)}, and at most {MAX_FIELDS} fields in a window"
                    )
                    raise _changed("a sample has an invalid field", allowed, f"{key}.{field}", key)
                fields[field] = np.full(num_samples, -1)
            if fields[field][row] >= 0:
                raise _changed("a sample has a duplicate field", f"one member {key}.{field}", "two of them", key)
            fields[field][row] = number
        if key is None:
            expected = "members that have a key and a field"
            raise _misplaced("an index entry covers no members", expected, f"none for sample {row} of a window")
        keys.append(key)
        member += count
    return as_objects(keys), fields


def _changed(cause: str, expected: str, found: str, key: str) -> CorruptDataError:
    remedy = "the shard was not written by wdsplit, or was changed: convert again with --overwrite"
    return CorruptDataError(cause, expected=expected, found=found, remedy=remedy, key=key)


def _misplaced(cause: str, expected: str, found: str, key: str = "") -> CorruptDataError:
    remedy = "the index does not belong to this shard: copy or convert both again"
    return CorruptDataError(cause, expected=expected, found=found, remedy=remedy, key=key)
