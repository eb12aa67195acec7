"""Choosing samples: the samples of each shard that meet a condition and are in lists of keys.

A task processes some shards. Its result depends only on its arguments, so any engine may run it, even twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import Engine, LocalEngine, in_order
from wdsplit.errors import InputError
from wdsplit.order.selection import Bits, Selection
from wdsplit.order.state import is_stored_name
from wdsplit.order.units import MAX_TIMES, Repeats, Units
from wdsplit.shards.sample_tables import KEY
from wdsplit.tar.names import ambiguous_key, unescape_key
from wdsplit.views.columns import SampleColumns
from wdsplit.views.keys import KeyList, read_keys

__all__ = ["Choice", "Chosen", "Tally", "choose", "read_choice", "refuse_missing"]

logger = logging.getLogger(__name__)

_SHOWN_KEYS = 5
_MAX_CLASSES = 10_000

_Task = tuple[range, "Bits | None"]
"""The shards of a task, and the bits of the samples to choose from; None for all samples."""
_SHARDS_AT_ONCE = 64
"""Number of shards per task."""
_REQUESTS_AT_ONCE = 16
"""Number of concurrent requests per task, for remote stores."""
_SHARD_BYTES, _SAMPLE_BYTES = 256 * 1024, 64
"""Costs of a task, in bytes, for engines: opening a shard's tables (about a millisecond), and reading a sample."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The criteria for choosing samples.

    Attributes:
        where: A condition on the columns, if any.
        keys: The keys to keep; None for all.
        exclude: The keys to leave out, if any.
        repeat: A column that says how often each sample comes; 0 leaves it out.
        expand: A column that says how many parts each sample has, which come one after another.
    """

    where: str | None = None
    keys: KeyList | None = None
    exclude: KeyList | None = None
    repeat: str | None = None
    expand: str | None = None

    @property
    def name(self) -> str:
        """A description of the chosen samples."""
        words = {"keys": "in", "exclude": "not in"}
        names = [f"{words[name]} {each.origin}" for name, each in self.lists.items()]
        # A state names its view: a column alone must not look like the name of a stored view.
        where = f"({self.where})" if is_stored_name(self.where) else self.where
        names += [f"{kind} {column}" for kind, column in (("repeat", self.repeat), ("expand", self.expand)) if column]
        return " and ".join(names if where is None else [where, *names])

    @property
    def times(self) -> str | None:
        """The column that says how many units each sample has; None if each chosen sample is one."""
        return self.repeat or self.expand

    @property
    def lists(self) -> dict[str, KeyList]:
        """The lists of keys, by argument name."""
        lists = {"keys": self.keys, "exclude": self.exclude}
        return {name: each for name, each in lists.items() if each is not None}


class Tally(NamedTuple):
    """Number of samples with each value of a column: among the chosen samples, and among all."""

    chosen: Counter[int]
    every: Counter[int]

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.chosen.update(other.chosen)
        self.every.update(other.every)


@dataclass(frozen=True)
class Chosen:
    """The result of choosing samples.

    Attributes:
        selection: The units of the chosen samples.
        found: For each list of keys, whether a sample has the key: bool of shape (keys,).
        classes: For each counted column of classes, the number of chosen samples and of all samples by class.
    """

    selection: Units
    found: Mapping[str, npt.NDArray[np.bool_]]
    classes: Mapping[str, Tally] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Part:
    """The result of a task: the bits of its shards, the keys of lists that it found, and the counts of classes.

    Where the choice says how often samples come, `times` has this for those with set bits; else it is empty.
    """

    shards: range
    bits: Bits
    times: npt.NDArray[np.uint32]
    found: dict[str, Int64]
    classes: dict[str, Tally]


def read_choice(
    columns: SampleColumns,
    where: str | None,
    keys: Any,
    exclude: Any,
    storage_options: Mapping[str, Any] | None = None,
    repeat: str | None = None,
    expand: str | None = None,
) -> Choice:
    """Return the criteria, with lists of keys read from files; arguments and errors as for `resolve_view`."""
    for name, text in (("where", where), ("repeat", repeat), ("expand", expand)):
        if text is not None and not isinstance(text, str):
            raise InputError(f"invalid {name}", expected="a string", found=type(text).__name__)
    if repeat is not None and expand is not None:
        raise InputError("repeat and expand cannot be combined", remedy="leave out one of them")
    for column in filter(None, (repeat, expand)):
        columns.refuse_unknown([column])
        if not pa.types.is_integer(columns.schema.field(column).type):
            raise InputError(
                f"column {column!r} cannot say how often samples come",
                place=columns.storage.url,
                expected="a column of integers",
                found=str(columns.schema.field(column).type),
            )
    kept, left_out = (
        None if each is None else read_keys(each, name, storage_options, columns)
        for each, name in ((keys, "keys"), (exclude, "exclude"))
    )
    return Choice(where, kept, left_out, repeat, expand)


def refuse_missing(columns: SampleColumns, choice: Choice, chosen: Chosen, allow_missing: bool = False) -> None:
    """Refuse keys to keep that have no sample; warn about keys to leave out that have none.

    Raises:
        InputError: Keys to keep have no sample, and `allow_missing` is False.
    """
    for name, keys in choice.lists.items():
        missing = np.flatnonzero(~chosen.found[name])
        if not len(missing):
            continue
        some = ", ".join(repr(key) for key in keys.keys.take(pa.array(missing[:_SHOWN_KEYS])).to_pylist())
        text = f"{some}, ..." if len(missing) > _SHOWN_KEYS else some
        if name == "exclude" or allow_missing:
            text = f"{len(missing):,} of the {len(keys.keys):,} keys of {keys.origin} have no sample: {text}"
            logger.warning("%s: %s", columns.storage.url, text)
            continue
        raise InputError(
            "some of the keys to keep have no sample",
            place=keys.origin,
            expected=f"keys of samples{_example(columns)}",
            found=f"{len(missing):,} of {len(keys.keys):,} keys without a sample: {text}",
            remedy="remove them from the list, or store the view with --allow-missing (make_view: allow_missing=True)",
        )


def _example(columns: SampleColumns) -> str:
    """Return the key of the first sample, as an example in an error."""
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
    """Choose samples of a dataset. Uses a few bits of memory per sample.

    Args:
        columns: The columns of its samples.
        totals: int64 of shape (shards,): the number of first samples of each shard to choose from. Later shards are
            left out.
        choice: The criteria.
        base: The samples to choose from, of the same totals; None for all.
        engine: Engine that runs the tasks; None for this process.
        counted: Integer columns whose values to count, unless they have more than 10,000 different values.
        progress: Called at the start and after each task, with the number of finished shards, of all shards, and of
            samples checked.

    Raises:
        InputError: The condition is invalid, or fails for some row; or a listed key belongs to two samples.
        WdsplitError: A table is missing or damaged.
    """
    if choice.where is not None:
        columns.parse(choice.where)
    elif base is not None and not (choice.lists or counted or choice.times):
        return Chosen(base, {})
    ends = np.append(0, np.cumsum(-(-totals // 8)))
    bits = np.zeros(int(ends[-1]), np.uint8)
    whole = None if base is None else base.bits
    tasks: list[_Task] = []
    for first in range(0, len(totals), _SHARDS_AT_ONCE):
        shards = range(first, min(len(totals), first + _SHARDS_AT_ONCE))
        tasks.append((shards, None if whole is None else whole[ends[shards.start] : ends[shards.stop]]))
    times: dict[int, npt.NDArray[np.uint32]] = {}
    found = {name: np.zeros(len(each.keys), np.int64) for name, each in choice.lists.items()}
    classes = {name: Tally(Counter(), Counter()) for name in counted}
    done = samples = 0
    report = progress or (lambda *_: None)
    report(0, len(totals), 0)
    work = partial(_choose_some, columns, totals, choice, tuple(counted))
    num_bytes = len(totals) * _SHARD_BYTES + int(totals.sum()) * _SAMPLE_BYTES
    mapped = (engine or LocalEngine(1)).map(
        work,
        tasks,
        num_bytes=None if columns.storage.has_latency else num_bytes,
        describe=lambda task: columns.manifest.shards[task[0].start].path,
    )
    with closing(mapped) as parts:
        for part in parts:
            bits[ends[part.shards.start] : ends[part.shards.stop]] = part.bits
            times[part.shards.start] = part.times
            for name, numbers in part.found.items():
                np.add.at(found[name], numbers, 1)
            for name in list(classes):
                classes[name].add(part.classes[name])
                if len(classes[name].every) > _MAX_CLASSES:
                    del classes[name]
            done += len(part.shards)
            samples += int(totals[part.shards.start : part.shards.stop].sum())
            report(done, len(totals), samples)
    for name, keys in choice.lists.items():
        for number in np.flatnonzero(found[name] > 1).tolist():
            key = keys.keys[number].as_py()
            if unescape_key(key) != key:
                raise ambiguous_key(key, keys.origin)
    selection = Selection.of_bits(totals, bits)
    units: Units = selection
    if choice.times is not None:
        every = np.concatenate([np.zeros(0, np.uint32), *(times[first] for first in sorted(times))])
        units = Repeats(selection, every, "repeat" if choice.repeat else "expand")
    return Chosen(units, {name: counts > 0 for name, counts in found.items()}, classes)


def _choose_some(
    columns: SampleColumns,
    totals: Int64,
    choice: Choice,
    counted: Sequence[str],
    task: _Task,
) -> _Part:
    """Choose samples of the shards of a task. Runs in a worker process; may run twice."""
    condition = None if choice.where is None else columns.parse(choice.where)
    lists, needs_keys = choice.lists, choice.lists or choice.times
    given = [*(condition.columns if condition else ()), *([KEY] if needs_keys else ()), *counted]
    names = list(dict.fromkeys([*given, *filter(None, [choice.times])]))
    bits: list[Bits] = [np.zeros(0, np.uint8)]
    times: list[npt.NDArray[np.uint32]] = [np.zeros(0, np.uint32)]
    found: dict[str, list[Int64]] = {name: [np.zeros(0, np.int64)] for name in lists}
    classes = {name: Tally(Counter(), Counter()) for name in counted}
    for table, mask in _tables(columns, totals, names, task):
        if condition is not None:
            rows = condition.rows([table.column(name) for name in condition.columns], len(table))
            mask &= _mask_of(rows, len(table))
        for name, keys in lists.items():
            rows, numbers = keys.look_up(table.column(KEY))
            found[name].append(numbers)
            mask &= _mask_of(rows, len(table)) ^ (name == "exclude")
        if choice.times is not None:
            each = _times(table, choice.times, mask)
            mask &= each > 0
            times.append(each[mask])
        for name in counted:
            classes[name].add(_tally(table.column(name), mask))
        bits.append(np.packbits(mask, bitorder="little"))
    joined = {name: np.concatenate(numbers) for name, numbers in found.items()}
    return _Part(task[0], np.concatenate(bits), np.concatenate(times), joined, classes)


def _tables(
    columns: SampleColumns, totals: Int64, names: Sequence[str], task: _Task
) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    """Yield the columns of each shard of a task, and the samples to choose from."""
    threads = _REQUESTS_AT_ONCE if columns.storage.has_latency else 1
    begin, (shards, base) = 0, task
    read = in_order(partial(columns.read, names=names), shards, threads)
    for shard, table in zip(shards, read, strict=True):
        total = int(totals[shard])
        end = begin - (-total // 8)
        bits = np.full(end - begin, 255, np.uint8) if base is None else base[begin:end]
        yield table.slice(0, total), np.unpackbits(bits, count=total, bitorder="little").view(np.bool_)
        begin = end


def _mask_of(rows: Int64, num_rows: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(num_rows, np.bool_)
    mask[rows] = True
    return mask


def _times(table: pa.Table, name: str, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Return how many units each sample has, by a column of integers; only those of the mask are looked at."""
    values = table.column(name).cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
    wrong = np.flatnonzero(mask & ((values < 0) | (values > MAX_TIMES)))
    if len(wrong):
        row = table.slice(int(wrong[0]), 1).to_pylist()[0]
        raise InputError(
            f"column {name!r} cannot say how often a sample comes",
            place=f"sample {row[KEY]!r}",
            expected=f"an integer from 0 to {MAX_TIMES:,}",
            found="null" if row[name] is None else str(row[name]),
            remedy=f"leave such samples out: --where '{name} >= 0' (where=)",
            key=row[KEY],
        )
    times: npt.NDArray[np.uint32] = values.astype(np.uint32)
    return times


def _tally(column: Any, mask: npt.NDArray[np.bool_]) -> Tally:
    """Return the number of samples with each value of an integer column, without nulls."""
    is_valid = column.is_valid().to_numpy()
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    counts = [np.unique(numbers[each], return_counts=True) for each in (mask & is_valid, is_valid)]
    return Tally(*(Counter(dict(zip(*map(np.ndarray.tolist, each), strict=True))) for each in counts))
