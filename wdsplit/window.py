"""Windows: consecutive samples of a shard, parsed into keys and the places of their payloads.

Pure (no I/O).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.block import Block, Objects, as_objects
from wdsplit.errors import CorruptDataError
from wdsplit.order import Int64
from wdsplit.sample import MAX_FIELDS, RESERVED_FIELDS, split_member
from wdsplit.tar import Members

__all__ = ["Window"]

Spans = tuple[Int64, Int64]
"""Where the payloads of a field begin and end in the shard; -1 where a sample lacks the field."""


class Window:
    """Consecutive samples of a shard.

    Args:
        url: What to call the shard.
        members: The members of the samples.
        read: Reads a number of bytes at an offset of the shard.
        wanted: The fields that are wanted; None for all.
        data: The bytes of the shard from `base` on, of which small payloads are copied now; large ones are read when
            they are asked for.
        base: Where `data` begins.
        most_copied: How large a payload may be to be copied; None for any size.

    Attributes:
        url: What to call the shard.
        fields: For each field, as `Block` has them, the payloads.

    Raises:
        CorruptDataError: The members are not those of the samples.
    """

    def __init__(
        self,
        url: str,
        members: Members,
        read: Callable[[int, int], bytes],
        data: Any,
        base: int = 0,
        most_copied: int | None = None,
        wanted: Collection[str] | None = None,
    ) -> None:
        self.url = url
        self._keys, spans = _uniform(members) or _ragged(members)
        if wanted is not None:
            spans = {name: span for name, span in spans.items() if name in wanted}
        self._sizes = sum((stops - starts for starts, stops in spans.values()), np.zeros(len(self._keys), np.int64))
        self.fields = {name: as_objects(_payloads(span, read, data, base, most_copied)) for name, span in spans.items()}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> list[str]:
        """The keys of the samples."""
        return list(self._keys)

    def field_names(self) -> Iterator[tuple[str, list[str]]]:
        """Give the field names of each sample with its key; once for all if all samples have the same fields."""
        present = {name: payloads != None for name, payloads in self.fields.items()}  # noqa: E711 (of each payload)
        rows = range(len(self) if any(not there.all() for there in present.values()) else min(1, len(self)))
        for row in rows:
            yield self._keys[row], [name for name, there in present.items() if there[row]]

    def keys_at(self, rows: Int64) -> Objects:
        """Return the keys of some samples: object of shape (m,)."""
        return self._keys[rows]

    def sizes_at(self, rows: Int64) -> Int64:
        """Return the bytes of some samples' payloads: int64 of shape (m,)."""
        return np.asarray(self._sizes[rows])

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
        urls, sizes = as_objects([self.url] * len(places)), self.sizes_at(places)
        return Block(self.keys_at(places), urls, numbers, flags, sizes, fields).samples()


def _payloads(
    span: Spans, read: Callable[[int, int], bytes], data: Any, base: int, most_copied: int | None
) -> list[Any]:
    """Return the payloads of a field: copied, yet to be read, or None."""
    starts, stops = span[0] - base, span[1] - base
    sizes = stops - starts
    cuts = zip(starts.tolist(), stops.tolist(), strict=True)
    if most_copied is None or int(sizes.max()) <= most_copied:
        if int(span[0].min()) >= 0:
            return [data[start:stop] for start, stop in cuts]
        return [data[start:stop] if there else None for (start, stop), there in zip(cuts, span[0] >= 0, strict=True)]
    return [
        None if start < 0 else data[start - base : start - base + size] if size <= most_copied else (read, start, size)
        for start, size in zip(span[0].tolist(), sizes.tolist(), strict=True)
    ]


# Samples that all have the same fields


def _uniform(members: Members) -> tuple[Objects, dict[str, Spans]] | None:
    """Return keys and fields, all samples at once; None if the samples' fields differ or names are unusual."""
    counts = members.counts
    if not len(counts) or not counts[0] or (counts != counts[0]).any():
        return None
    num_fields = int(counts[0])
    lengths = np.char.str_len(members.names)
    names = members.names.view(np.uint8).reshape(len(members.names), -1)[:, : int(lengths.max())]
    names = names.reshape(len(counts), num_fields, -1)
    first = [split_member(name) for name in members.names[:num_fields].tolist()]
    suffixes = [b"." + parts[1] for parts in first if parts is not None]
    fields = [_text(suffix[1:]).lower() for suffix in suffixes]
    if len(set(fields) - set(RESERVED_FIELDS)) < num_fields or first[0] is None:
        return None
    stem = lengths[::num_fields] - len(suffixes[0])
    lead = int(stem[0]) - len(first[0][0])
    if not _same_stems(names, lengths.reshape(-1, num_fields), suffixes):
        return None
    if (names[:, 0, :lead] != names[0, 0, :lead]).any() or (stem <= lead).any():
        return None
    keys = _keys(names[:, 0, lead:], stem - lead)
    if keys is None:
        return None
    starts = members.starts.reshape(-1, num_fields)
    stops = starts + members.sizes.reshape(-1, num_fields)
    return keys, {
        field: (np.ascontiguousarray(starts[:, number]), np.ascontiguousarray(stops[:, number]))
        for number, field in enumerate(fields)
    }


def _same_stems(names: npt.NDArray[np.uint8], lengths: Int64, suffixes: list[bytes]) -> bool:
    """Tell whether the members of each sample differ in nothing but what follows the key, and all samples alike.

    Args:
        names: uint8 of shape (n, members, width), filled up with NULs.
        lengths: int64 of shape (n, members): bytes of each name.
        suffixes: For each member what must follow the key.
    """
    stems = lengths - np.array([len(suffix) for suffix in suffixes])
    if (stems != stems[:, :1]).any() or (stems <= 0).any():
        return False
    stem = stems[:, 0]
    inside = np.arange(names.shape[2]) < stem[:, None]
    for number, suffix in enumerate(suffixes):
        tail = stem[:, None] + np.arange(len(suffix))
        ends = np.take_along_axis(names[:, number], tail, axis=1)
        if (ends != np.frombuffer(suffix, np.uint8)).any():
            return False
        if number and ((names[:, number] != names[:, 0]) & inside).any():
            return False
    return True


def _keys(names: npt.NDArray[np.uint8], lengths: Int64) -> Objects | None:
    """Return keys as text; None if a name might split elsewhere: keys have no dot but in the names of folders.

    Args:
        names: uint8 of shape (n, width): what begins with the keys.
        lengths: int64 of shape (n,): bytes of each key; less than the width.
    """
    place, ends = np.arange(names.shape[1]), lengths[:, None]
    joined = np.where(place == ends, np.uint8(0), names)[place <= ends].tobytes()[:-1]
    is_odd = b"." in joined or b"__/" in joined
    if is_odd and not all(split_member(key + b".x") == (key, b"x") for key in joined.split(b"\0")):
        return None
    keys = _text(joined).split("\0")
    return as_objects(keys) if len(keys) == len(names) else None


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
                if field in RESERVED_FIELDS or len(fields) == MAX_FIELDS:
                    raise _cannot_be(key, field)
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


def _cannot_be(key: str, field: str) -> CorruptDataError:
    return CorruptDataError(
        "a sample has a field that cannot be",
        expected=f"names other than {', '.join(RESERVED_FIELDS)}, and at most {MAX_FIELDS} fields in a window",
        found=f"{key}.{field}",
        remedy="the shard was not written by wdsplit, or was changed: convert again with --overwrite",
        key=key,
    )


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
