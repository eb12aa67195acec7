"""Windows: consecutive samples of a shard, parsed into keys and the places of their payloads.

Pure (no I/O).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.block import Block, Objects, as_objects
from wdsplit.errors import CorruptDataError
from wdsplit.order import Int64
from wdsplit.sample import split_member
from wdsplit.tar import Members

__all__ = ["Window"]

Spans = tuple[Int64, Int64]
"""Where the payloads of a field begin and end in the shard; -1 where a sample lacks the field."""


class Window:
    """Consecutive samples of a shard; payloads are taken when they are asked for.

    Args:
        url: What to call the shard.
        members: The members of the samples.
        read: Reads a number of bytes at an offset of the shard.
        base: Where the first sample begins.
        data: The bytes from there on, if payloads shall be copied from them; else they are read one by one.

    Attributes:
        url: What to call the shard.

    Raises:
        CorruptDataError: The members are not those of the samples.
    """

    def __init__(
        self, url: str, members: Members, read: Callable[[int, int], bytes], base: int = 0, data: bytes | None = None
    ) -> None:
        self.url = url
        self._data = data
        self._base = base
        self._read = read
        self._keys, self._spans = _uniform(members) or _ragged(members)
        self._payloads: dict[str, Objects] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> list[str]:
        """The keys of the samples."""
        return list(self._keys)

    @property
    def fields(self) -> list[str]:
        """The names of all fields that a sample has."""
        return list(self._spans)

    def field_names(self) -> Iterator[tuple[str, list[str]]]:
        """Give the field names of each sample with its key; once for all if all samples have the same fields."""
        present = {name: starts >= 0 for name, (starts, _) in self._spans.items()}
        rows = range(len(self) if any(not there.all() for there in present.values()) else min(1, len(self)))
        for row in rows:
            yield self._keys[row], [name for name, there in present.items() if there[row]]

    def keys_at(self, rows: Int64) -> Objects:
        """Return the keys of some samples: object of shape (m,)."""
        return self._keys[rows]

    def payloads_at(self, field: str, rows: Int64) -> Objects:
        """Return the payloads of a field, as `Block` has them: object of shape (m,)."""
        if field not in self._payloads:
            self._payloads[field] = as_objects(self._taken(field))
        return self._payloads[field][rows]

    def sizes_at(self, rows: Int64, fields: Iterable[str]) -> Int64:
        """Return the bytes of some samples' payloads: int64 of shape (m,)."""
        sizes = np.zeros(len(rows), np.int64)
        for name in fields:
            starts, stops = self._spans[name]
            sizes += stops[rows] - starts[rows]
        return sizes

    def _taken(self, field: str) -> list[Any]:
        starts, stops = self._spans[field]
        present = bool((starts >= 0).all())
        if self._data is None:
            spans = zip(starts.tolist(), (stops - starts).tolist(), strict=True)
            return [(self._read, start, size) if start >= 0 else None for start, size in spans]
        data = self._data
        cuts = zip((starts - self._base).tolist(), (stops - self._base).tolist(), strict=True)
        if present:
            return [data[start:stop] for start, stop in cuts]
        return [data[start:stop] if there else None for (start, stop), there in zip(cuts, starts >= 0, strict=True)]

    def take(self, rows: Sequence[int], positions: Sequence[int], pads: Sequence[bool]) -> Iterator[dict[str, Any]]:
        """Give samples as dicts of `__key__`, `__url__`, `__position__`, `__pad__` and fields (bytes).

        Args:
            rows: Places in the window.
            positions: Their positions in the epoch.
            pads: Whether they are repetitions.
        """
        places = np.asarray(rows, np.int64)
        fields = {name: self.payloads_at(name, places) for name in self._spans}
        numbers, flags = np.asarray(positions, np.int64), np.asarray(pads, np.bool_)
        urls, sizes = as_objects([self.url] * len(places)), self.sizes_at(places, self._spans)
        return Block(self.keys_at(places), urls, numbers, flags, sizes, fields).samples()


# Samples that all have the same fields


def _uniform(members: Members) -> tuple[Objects, dict[str, Spans]] | None:
    """Return keys and fields, all samples at once; None if the samples' fields differ or names are unusual."""
    counts = members.counts
    if not len(counts) or not counts[0] or (counts != counts[0]).any():
        return None
    num_fields = int(counts[0])
    width = members.names.dtype.itemsize
    names = members.names.view(np.uint8).reshape(len(counts), num_fields, width)
    first = [split_member(name) for name in members.names[:num_fields].tolist()]
    suffixes = [b"." + parts[1] for parts in first if parts is not None]
    fields = [_text(suffix[1:]).lower() for suffix in suffixes]
    if len(set(fields)) < num_fields or first[0] is None:
        return None
    raw = members.names[::num_fields].tolist()
    lead = len(raw[0]) - len(first[0][0]) - len(suffixes[0])
    if not _same_stems(names, suffixes):
        return None
    keys = _keys([name[lead : -len(suffixes[0])] for name in raw])
    if keys is None or (lead and any(not name.startswith(raw[0][:lead]) for name in raw)):
        return None
    starts = members.starts.reshape(-1, num_fields)
    stops = starts + members.sizes.reshape(-1, num_fields)
    return keys, {
        field: (np.ascontiguousarray(starts[:, number]), np.ascontiguousarray(stops[:, number]))
        for number, field in enumerate(fields)
    }


def _same_stems(names: npt.NDArray[np.uint8], suffixes: list[bytes]) -> bool:
    """Tell whether the members of each sample differ in nothing but what follows the key, and all samples alike.

    Args:
        names: uint8 of shape (n, members, width), filled up with NULs.
        suffixes: For each member what must follow the key.
    """
    width = names.shape[2]
    place = np.arange(width)
    lengths = width - np.argmax((names != 0)[:, :, ::-1], axis=2)
    stems = lengths - np.array([len(suffix) for suffix in suffixes])
    if (stems != stems[:, :1]).any() or (stems <= 0).any():
        return False
    stem = stems[:, 0]
    inside = place < stem[:, None]
    for number, suffix in enumerate(suffixes):
        tail = stem[:, None] + np.arange(len(suffix))
        ends = np.take_along_axis(names[:, number], tail, axis=1)
        if (ends != np.frombuffer(suffix, np.uint8)).any():
            return False
        if number and ((names[:, number] != names[:, 0]) & inside).any():
            return False
    return True


def _keys(raw: list[bytes]) -> Objects | None:
    """Return keys as text; None if a name might split elsewhere: keys have no dot but in the names of folders."""
    joined = b"\0".join(raw)
    if b"." in joined and not all(split_member(key + b".x") == (key, b"x") for key in raw):
        return None
    keys = _text(joined).split("\0")
    return as_objects(keys) if len(keys) == len(raw) and all(keys) else None


def _text(name: bytes) -> str:
    return bytes(name).decode("utf-8", "surrogateescape")


# Samples that differ


def _ragged(members: Members) -> tuple[Objects, dict[str, Spans]]:
    """Return keys and fields, sample by sample."""
    num_samples = len(members.counts)
    fields: dict[str, Spans] = {}
    keys: list[str] = []
    member = 0
    for row, count in enumerate(members.counts.tolist()):
        key: str | None = None
        for name, start, size in zip(
            members.names[member : member + count].tolist(),
            members.starts[member : member + count].tolist(),
            members.sizes[member : member + count].tolist(),
            strict=True,
        ):
            parts = split_member(name)
            if parts is None:
                continue
            stem, field = _text(parts[0]), _text(parts[1]).lower()
            if key is not None and stem != key:
                raise _mixed(key, stem)
            key = stem
            if field not in fields:
                fields[field] = np.full(num_samples, -1), np.full(num_samples, -1)
            starts, stops = fields[field]
            if starts[row] >= 0:
                raise _twice(key, field)
            starts[row], stops[row] = start, start + size
        if key is None:
            raise _none(row)
        keys.append(key)
        member += count
    return as_objects(keys), fields


def _twice(key: str, field: str) -> CorruptDataError:
    return CorruptDataError(
        "a sample has a field twice",
        expected=f"one member {key}.{field}",
        found="two of them",
        remedy="the shard was not written by wdsplit, or was changed: convert again with --overwrite",
        key=key,
    )


def _mixed(first: str, second: str) -> CorruptDataError:
    return CorruptDataError(
        "members of two samples stand where the index has one",
        expected=f"members of {first!r} only",
        found=f"a member of {second!r}",
        remedy="the index does not belong to this shard: copy or convert both again",
        key=first,
    )


def _none(row: int) -> CorruptDataError:
    return CorruptDataError(
        "no members stand where the index has a sample",
        place=f"sample {row} of a window",
        expected="members that have a key and a field",
        remedy="the index does not belong to this shard: copy or convert both again",
    )
