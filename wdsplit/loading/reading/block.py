"""Samples as columns: operations on many samples work on arrays, not sample by sample.

Pure (no I/O). Payloads are bytes or, to save memory and copies, `Pending`: where to read them when they are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.storage.interface import ReadableFile

__all__ = [
    "Block",
    "Columns",
    "InMemory",
    "Objects",
    "Pending",
    "as_objects",
    "gathered",
    "head",
]

Objects = npt.NDArray[np.object_]

Columns = dict[str, Any] | tuple[Any, ...]
"""Samples as columns (lists or arrays): a dict if the samples are dicts, else a tuple."""

_BYTES_AT_ONCE = 1024 * 1024
"""Payload bytes to turn into samples at a time: few enough that their memory is reused."""
_SAMPLES_AT_ONCE = 256
"""Few enough that their dicts seldom trigger a garbage collection (by default, every 700 new objects)."""


class InMemory:
    """Bytes in memory that are read like a file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return a copy of the bytes at an offset."""
        return bytes(self._data[offset : offset + num_bytes])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        buffer[:] = self._data[offset : offset + len(buffer)]


class Pending:
    """A payload that is not read yet. `len` is its size, `bytes` reads it, and so does pickling.

    Args:
        source: What to read it from.
        offset: Its offset there.
        num_bytes: Its size.
    """

    __slots__ = ("_num_bytes", "_offset", "_source")

    def __init__(self, source: ReadableFile | InMemory, offset: int, num_bytes: int) -> None:
        self._source = source
        self._offset = offset
        self._num_bytes = num_bytes

    def __len__(self) -> int:
        return self._num_bytes

    def __bytes__(self) -> bytes:
        return self._source.read(self._offset, self._num_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)

    def head(self, num_bytes: int) -> bytes:
        """Return its first bytes, at most `num_bytes`."""
        return self._source.read(self._offset, min(num_bytes, self._num_bytes))

    def read_into(self, buffer: memoryview) -> None:
        """Fill a buffer of its size with its bytes."""
        self._source.read_into(buffer, self._offset)


def head(payload: bytes | Pending, num_bytes: int) -> bytes:
    """Return the first bytes of a payload, at most `num_bytes`; no others are read."""
    return payload.head(num_bytes) if isinstance(payload, Pending) else payload[:num_bytes]


def as_objects(values: Sequence[Any]) -> Objects:
    """Return any values as an array of objects of shape (n,)."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


@dataclass(frozen=True)
class Block:
    """n samples.

    Attributes:
        keys: object of shape (n,): str.
        urls: object of shape (n,): the shard of each sample.
        positions: int64 of shape (n,): places in the epoch's order.
        pads: bool of shape (n,): True where the sample is a repetition.
        sizes: int64 of shape (n,): bytes of all payloads of each sample.
        fields: For each field object of shape (n,): bytes or Pending; None where a sample lacks the field.
        whole: Fields that all samples are known to have, with no payload pending.
        units: int64 of shape (n,), rising: which of the positions each sample is of; None where each has one sample.
    """

    keys: Objects
    urls: Objects
    positions: Int64
    pads: npt.NDArray[np.bool_]
    sizes: Int64
    fields: dict[str, Objects]
    whole: Collection[str] = ()
    units: Int64 | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        """Bytes of all payloads."""
        return int(self.sizes.sum())

    def cut(self, first: int, stop: int) -> Block:
        """Return the samples first, first + 1, ..., stop - 1; nothing is copied."""
        rows = slice(first, stop)
        fields = {name: values[rows] for name, values in self.fields.items()}
        keys, urls, positions, pads = self.keys[rows], self.urls[rows], self.positions[rows], self.pads[rows]
        units = None if self.units is None else self.units[rows]
        return Block(keys, urls, positions, pads, self.sizes[rows], fields, self.whole, units)

    def joined(self, other: Block) -> Block:
        """Return the samples with the fields that another block has of them; a damaged part damages a sample."""
        fields = {**self.fields, **other.fields}
        for name in self.fields.keys() & other.fields.keys():  # only damage
            mine = self.fields[name]
            fields[name] = np.where([each is None for each in mine], other.fields[name], mine)
        whole = {*self.whole, *other.whole}
        return replace(self, sizes=self.sizes + other.sizes, fields=fields, whole=whole)

    def with_field(self, name: str, values: Objects) -> Block:
        """Return the samples with one more field, before the others."""
        return replace(self, fields={name: values, **self.fields}, whole={name, *self.whole})

    def samples(self) -> Iterator[dict[str, Any]]:
        """Give the samples as dicts of `__key__`, `__url__`, `__position__`, `__pad__` and the fields' bytes."""
        return chain.from_iterable(self.lists())

    def lists(self) -> Iterator[list[dict[str, Any]]]:
        """Give the samples in lists of at most 256."""
        mean = self.num_bytes // max(1, len(self))
        size = max(1, min(_SAMPLES_AT_ONCE, _BYTES_AT_ONCE // max(1, mean)))
        for first in range(0, len(self), size):
            yield self.cut(first, first + size)._dicts()

    def _dicts(self) -> list[dict[str, Any]]:
        payloads = {name: self.payloads(name) for name in self.fields}
        given = [self.keys.tolist(), self.urls.tolist(), self.positions.tolist(), self.pads.tolist()]
        two = list(payloads)[:2]
        samples: list[dict[str, Any]]
        if len(two) == 2 and not any(payloads[name][1] for name in two):  # a dict made with six entries need not grow
            one, other = two
            rows = zip(*given, *(payloads.pop(name)[0] for name in two), strict=True)
            samples = [
                {"__key__": key, "__url__": url, "__position__": position, "__pad__": pad, one: first, other: second}
                for key, url, position, pad, first, second in rows
            ]
        else:
            samples = [
                {"__key__": key, "__url__": url, "__position__": position, "__pad__": pad}
                for key, url, position, pad in zip(*given, strict=True)
            ]
        for name, (values, is_lacking) in payloads.items():
            for sample, payload in zip(samples, values, strict=True):
                if not is_lacking or payload is not None:
                    sample[name] = payload
        return samples

    def columns(self, requested: Collection[str] | None = None, pending: bool = False) -> dict[str, Any] | None:
        """Return the samples as columns, named as in a sample; None if a sample lacks a field.

        Positions and pads are arrays, and the rest are lists.

        Args:
            requested: The fields that are read; None for all.
            pending: Whether a list may hold `Pending` payloads only, for a caller that reads them to their place.
        """
        columns: dict[str, Any] = {
            "__key__": self.keys.tolist(),
            "__url__": self.urls.tolist(),
            "__position__": self.positions,
            "__pad__": self.pads,
        }
        for name in self.fields:
            if requested is not None and name not in requested:
                continue
            columns[name], is_lacking = self.payloads(name, pending)
            if is_lacking:
                return None
        return columns

    def payloads(self, field: str, pending: bool = False) -> tuple[list[Any], bool]:
        """Return the payloads of a field as bytes, None where a sample lacks it; and whether any sample lacks it.

        With `pending`, leave them as they are if all are pending.
        """
        values: list[Any] = self.fields[field].tolist()
        if field in self.whole:
            return values, False
        kinds = set(map(type, values))
        if Pending in kinds and not (pending and len(kinds) == 1):
            values = [bytes(value) if type(value) is Pending else value for value in values]
        return values, type(None) in kinds


def gathered(parts: Sequence[tuple[Int64, Block, Int64]], positions: Int64, pads: npt.NDArray[np.bool_]) -> Block:
    """Return the samples at some positions, collected from several blocks.

    Args:
        parts: The rows that each block fills, int64 of shape (m,); the block; and where their samples are in it.
        positions: int64 of shape (n,).
        pads: bool of shape (n,).
    """
    keys, urls, sizes = (np.empty(len(positions), kind) for kind in (object, object, np.int64))
    names = dict.fromkeys(name for _, block, _ in parts for name in block.fields)
    for rows, block, places in parts:
        keys[rows], urls[rows], sizes[rows] = block.keys[places], block.urls[places], block.sizes[places]
    fields = {}
    for name in names:
        fields[name] = values = np.empty(len(positions), object)
        for rows, block, places in parts:
            if name in block.fields:
                values[rows] = block.fields[name][places]
    whole = {name for name in names if all(name in block.whole for _, block, _ in parts)}
    return Block(keys, urls, positions, pads, sizes, fields, whole)
