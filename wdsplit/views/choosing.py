"""Choosing samples: which of each shard meet a condition and are in lists of keys.

A task works through some shards, and is a function of its arguments alone, so any engine may run it, twice if need be.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.conditions.rows import rows_meeting
from wdsplit.engines.local import Engine, LocalEngine, in_order
from wdsplit.errors import InputError
from wdsplit.order.epoch import Int64
from wdsplit.order.packed import Bits, packed, selection_of
from wdsplit.order.selection import Selection
from wdsplit.shards.sample_tables import KEY
from wdsplit.views.columns import SampleColumns
from wdsplit.views.keys import KeyList, Spellings, read_keys

__all__ = ["Choice", "Chosen", "Tally", "choose", "read_choice", "refuse_missing"]

logger = logging.getLogger(__name__)

_SHOWN_KEYS = 5
_MAX_CLASSES = 10_000

_SHARDS_AT_ONCE = 64
"""Of a task."""
_REQUESTS_AT_ONCE = 16
"""Of a task, where each is waited for."""
_SHARD_BYTES, _SAMPLE_BYTES = 256 * 1024, 64
"""Work, as engines count it: a millisecond to open a shard's tables, and what is read of a sample."""


@dataclass(frozen=True, eq=False)
class Choice:
    """What is asked of a sample.

    Attributes:
        where: A condition on its columns; None for none.
        keys: The list that its key must be in; None for any key.
        exclude: The list that its key must not be in.
    """

    where: str | None = None
    keys: KeyList | None = None
    exclude: KeyList | None = None

    @property
    def name(self) -> str:
        """What to call the samples that it chooses."""
        lists = ((self.keys, "in"), (self.exclude, "not in"))
        names = [f"{word} {each.origin}" for each, word in lists if each is not None]
        return " and ".join(names if self.where is None else [self.where, *names])

    @property
    def spellings(self) -> dict[str, Spellings]:
        """The lists, by their names."""
        lists = {"keys": self.keys, "exclude": self.exclude}
        return {name: each.spellings for name, each in lists.items() if each is not None}


class Tally(NamedTuple):
    """How many samples have each value of a column: of those that were chosen, and of all."""

    chosen: Counter[int]
    every: Counter[int]

    def add(self, other: Tally) -> None:
        """Count the samples of another tally too."""
        self.chosen.update(other.chosen)
        self.every.update(other.every)


@dataclass(frozen=True)
class Chosen:
    """The samples that were chosen.

    Attributes:
        selection: Which they are.
        found: For each list of keys, which of its keys some sample has: bool of shape (keys,).
        classes: For each column of classes that was counted, of each of its values how many samples were chosen, and
            how many there are.
    """

    selection: Selection
    found: Mapping[str, npt.NDArray[np.bool_]]
    classes: Mapping[str, Tally] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Span:
    """The shards of a task: their numbers, and the bits of the samples to choose from; None for all."""

    shards: range
    base: Bits | None


class _Spans(Sequence[_Span]):
    """The tasks; each is made when it is handed out.

    Args:
        totals: int64 of shape (shards,): the samples of each shard.
        base: The samples to choose from; None for all.
    """

    def __init__(self, totals: Int64, base: Selection | None) -> None:
        self._num_shards = len(totals)
        self._ends = np.cumsum(-(-totals // 8))
        self._bits = None if base is None else packed(base)

    def __len__(self) -> int:
        return -(-self._num_shards // _SHARDS_AT_ONCE)

    @overload
    def __getitem__(self, number: int) -> _Span: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[_Span]: ...

    def __getitem__(self, number: int | slice) -> _Span | Sequence[_Span]:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        first = range(len(self))[number] * _SHARDS_AT_ONCE
        shards = range(first, min(self._num_shards, first + _SHARDS_AT_ONCE))
        return _Span(shards, None if self._bits is None else self._bits[self.bytes_of(shards)])

    def bytes_of(self, shards: range) -> slice:
        """Return where the bits of some shards are among those of all."""
        return slice(int(self._ends[shards.start - 1]) if shards.start else 0, int(self._ends[shards.stop - 1]))


@dataclass(frozen=True, eq=False)
class _Part:
    """What was chosen of the shards of a task: their bits, keys of lists that they have, samples of each class."""

    shards: range
    bits: Bits
    found: dict[str, Int64]
    classes: dict[str, Tally]


def read_choice(
    columns: SampleColumns,
    where: str | None,
    keys: Any,
    exclude: Any,
    storage_options: Mapping[str, Any] | None = None,
) -> Choice:
    """Return what is asked, its lists of keys read; arguments and errors as of `resolve_view`."""
    if where is not None and not isinstance(where, str):
        raise InputError("invalid where", expected="a string", found=type(where).__name__)
    lists = [
        None if each is None else read_keys(each, name, storage_options, columns)
        for each, name in ((keys, "keys"), (exclude, "exclude"))
    ]
    return Choice(where, *lists)


def refuse_missing(columns: SampleColumns, choice: Choice, chosen: Chosen, allow_missing: bool = False) -> None:
    """Refuse a list of keys to keep that names samples which do not exist; warn of other lists that do.

    Raises:
        InputError: The list has such keys, and `allow_missing` is False.
    """
    for name, keys in (("keys", choice.keys), ("exclude", choice.exclude)):
        missing = np.flatnonzero(~chosen.found[name]) if keys is not None else np.zeros(0, np.int64)
        if keys is None or not len(missing):
            continue
        some = ", ".join(repr(key) for key in keys.keys.take(pa.array(missing[:_SHOWN_KEYS])).to_pylist())
        text = f"{some}, ..." if len(missing) > _SHOWN_KEYS else some
        if name == "exclude" or allow_missing:
            text = f"{len(missing):,} of the {keys.num_keys:,} keys of {keys.origin} have no sample: {text}"
            logger.warning("%s: %s", columns.storage.url, text)
            continue
        raise InputError(
            "some of the keys to keep have no sample",
            place=keys.origin,
            expected=f"keys of samples{_example(columns)}",
            found=f"{len(missing):,} of {keys.num_keys:,} keys without a sample: {text}",
            remedy="remove them from the list, or store the view with --allow-missing (make_view: allow_missing=True)",
        )


def _example(columns: SampleColumns) -> str:
    """Return the key of the first sample, for an error."""
    shard = int(np.argmax(columns.manifest.shards.num_real > 0))
    keys = columns.read(shard, [KEY]).column(KEY)
    return f", such as {keys[0].as_py()!r}" if len(keys) else ""


def choose(
    columns: SampleColumns,
    totals: Int64,
    choice: Choice,
    base: Selection | None = None,
    engine: Engine | None = None,
    counted: Sequence[str] = (),
    progress: Callable[[int, int, int], None] | None = None,
) -> Chosen:
    """Choose samples of a dataset. Memory grows with its samples, a few bits for each.

    Args:
        columns: The columns of its samples.
        totals: int64 of shape (shards,): of the first shards, how many of their first samples there are to choose from.
        choice: What is asked of a sample.
        base: The samples to choose from, of the same totals; None for all.
        engine: What carries the tasks out; None for this process.
        counted: Columns of integers whose values are counted; not those of more than 10,000 values, which are no
            classes.
        progress: Called at the beginning and after each task, with the shards that are done, all shards, and the
            samples that were looked at.

    Raises:
        InputError: The condition is invalid, or cannot be computed for some row.
        WdsplitError: A table is missing or damaged.
    """
    if choice.where is not None:
        columns.parse(choice.where)
    elif base is not None and not (choice.spellings or counted):
        return Chosen(base, {})
    spans = _Spans(totals, base)
    bits = np.zeros(int((-(-totals // 8)).sum()), np.uint8)
    found = {name: np.zeros(each.num_keys, np.bool_) for name, each in choice.spellings.items()}
    classes = {name: Tally(Counter(), Counter()) for name in counted}
    done = samples = 0
    report = progress or (lambda *_: None)
    report(0, len(totals), 0)
    work = partial(_choose_some, columns, totals, choice.where, choice.spellings, tuple(counted))
    num_bytes = len(totals) * _SHARD_BYTES + int(totals.sum()) * _SAMPLE_BYTES
    mapped = (engine or LocalEngine(1)).map(
        work,
        spans,
        num_bytes=None if columns.storage.has_latency else num_bytes,
        describe=partial(_describe, columns),
    )
    with closing(mapped) as parts:
        for part in parts:
            bits[spans.bytes_of(part.shards)] = part.bits
            for name, numbers in part.found.items():
                found[name][numbers] = True
            for name in list(classes):
                classes[name].add(part.classes[name])
                if len(classes[name].every) > _MAX_CLASSES:
                    del classes[name]
            done += len(part.shards)
            samples += int(totals[part.shards.start : part.shards.stop].sum())
            report(done, len(totals), samples)
    return Chosen(selection_of(totals, bits), found, classes)


def _describe(columns: SampleColumns, span: _Span) -> str:
    return columns.manifest.shards[span.shards.start].path


def _choose_some(
    columns: SampleColumns,
    totals: Int64,
    where: str | None,
    lists: Mapping[str, Spellings],
    counted: Sequence[str],
    span: _Span,
) -> _Part:
    """Choose samples of some shards. Runs in a worker process; may run twice."""
    condition = None if where is None else columns.parse(where)
    names = list(dict.fromkeys([*(condition.columns if condition else ()), *([KEY] if lists else ()), *counted]))
    bits: list[Bits] = [np.zeros(0, np.uint8)]
    found: dict[str, list[Int64]] = {name: [np.zeros(0, np.int64)] for name in lists}
    classes = {name: Tally(Counter(), Counter()) for name in counted}
    for table, mask in _tables(columns, totals, names, span):
        if condition is not None and where is not None:
            rows = rows_meeting(condition, [table.column(name) for name in condition.columns], len(table), where)
            mask &= _mask_of(rows, len(table))
        for name, spellings in lists.items():
            rows, numbers = spellings.look_up(table.column(KEY))
            found[name].append(numbers)
            mask &= _mask_of(rows, len(table)) ^ (name == "exclude")
        for name in counted:
            classes[name].add(_tally(table.column(name), mask))
        bits.append(np.packbits(mask, bitorder="little"))
    joined = {name: np.unique(np.concatenate(numbers)) for name, numbers in found.items()}
    return _Part(span.shards, np.concatenate(bits), joined, classes)


def _tables(
    columns: SampleColumns, totals: Int64, names: Sequence[str], span: _Span
) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    """Give some columns of each shard of a task, and which of its samples there are to choose from."""
    threads = _REQUESTS_AT_ONCE if columns.storage.has_latency else 1
    begin = 0
    read = in_order(partial(columns.read, names=names), span.shards, threads)
    for shard, table in zip(span.shards, read, strict=True):
        total = int(totals[shard])
        end = begin - (-total // 8)
        bits = np.full(end - begin, 255, np.uint8) if span.base is None else span.base[begin:end]
        yield table.slice(0, total), np.unpackbits(bits, count=total, bitorder="little").view(np.bool_)
        begin = end


def _mask_of(rows: Int64, num_rows: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(num_rows, np.bool_)
    mask[rows] = True
    return mask


def _tally(column: Any, mask: npt.NDArray[np.bool_]) -> Tally:
    """Return how many samples have each value of a column of integers; nulls are not counted."""
    is_valid = column.is_valid().to_numpy()
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    counts = [np.unique(numbers[each], return_counts=True) for each in (mask & is_valid, is_valid)]
    return Tally(*(Counter(dict(zip(*map(np.ndarray.tolist, each), strict=True))) for each in counts))
