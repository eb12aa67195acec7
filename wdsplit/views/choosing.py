"""Choosing samples: the samples of each shard that meet a condition and are in lists of keys.

A task processes some shards. Its result depends only on its arguments, so any engine may run it, even twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conditions.parse import Where
from wdsplit.engines.local import Engine, LocalEngine, in_order
from wdsplit.errors import InputError
from wdsplit.integers import whole
from wdsplit.order.bundles import Form, Grouping, Groups, Packing, Packs, Units
from wdsplit.order.packing import MAX_CAPACITY, MAX_SIZE, block_of, group_block_of, packed, padded_lengths
from wdsplit.order.selection import Bits, Selection
from wdsplit.order.state import is_stored_name
from wdsplit.order.units import MAX_TIMES, Repeats, item_units
from wdsplit.shards.sample_tables import KEY
from wdsplit.shards.views import COMPARED_RANKS
from wdsplit.tar.names import ambiguous_key, unescape_key
from wdsplit.views.columns import SampleColumns
from wdsplit.views.keys import KeyList, read_keys

__all__ = ["LONG", "Choice", "Chosen", "choose", "read_choice", "refuse_missing"]

logger = logging.getLogger(__name__)

Long = Literal["error", "drop", "truncate"]
LONG: tuple[Long, ...] = ("error", "drop", "truncate")
"""What to do with samples that are longer than a pack, or than the budget of a group."""

_SHOWN_KEYS = 5
_MAX_UNITS = 2**24
_MAX_VALUES = 1000
"""Values of a column of groups: a shard has samples for whole groups of some."""
_TOO_LONG = {
    "pack": (
        "a sample is longer than a pack may be",
        "use a larger --capacity; or --long drop, or --long truncate (long=)",
    ),
    "group": ("a sample alone is longer than the budget", "use a larger --budget; or --long drop (long=)"),
}
_MAX_PADS, _MAX_ALLOWED_PADS = 0.05, 0.5
"""Largest share of pads in groups, unless it is allowed, and in any case."""

_Task = tuple[range, "Bits | None"]
"""The shards of a task, and the bits of the samples to choose from; None for all samples."""
_SHARDS_AT_ONCE = 64
"""Number of shards per task."""
_REQUESTS_AT_ONCE = 16
"""Number of concurrent requests per task, for remote stores."""
_SHARD_BYTES, _SAMPLE_BYTES = 256 * 1024, 64
"""Costs of a task, in bytes, for engines: opening a shard's tables (about a millisecond), and reading a sample."""


_LIMITS = (
    ("capacity", "pack", MAX_CAPACITY, "how long a pack may be"),
    ("size", "group", MAX_SIZE, "how many samples a group has"),
    ("budget", "group", MAX_CAPACITY, "how long the samples of a group may be together"),
)
"""The options with numbers: what each needs, its largest value, and what it says."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The criteria for choosing samples.

    Attributes:
        where: A condition on the columns, if any.
        keys: The keys to keep; None for all.
        exclude: The keys to leave out, if any.
        repeat: A column that says how often each sample comes; 0 leaves it out.
        expand: A column that says how many parts each sample has, which come one after another.
        pack: A column that says how long each sample is, to pack several of them together.
        capacity: How long the samples of a pack are together at most.
        long: What to do with longer samples: raise an error, drop or truncate them.
        group: A column whose values are those of groups or, with a budget, lengths.
        size: How many samples a group has; with a budget at most, 0 for any number.
        budget: How long the samples of a group are at most, each counted as long as the longest; 0 for no limit.
        allow_pads: Allow groups of which more than a twentieth are repeated samples.
    """

    where: str | None = None
    keys: KeyList | None = None
    exclude: KeyList | None = None
    repeat: str | None = None
    expand: str | None = None
    pack: str | None = None
    capacity: int = 0
    long: Long = "error"
    group: str | None = None
    size: int = 0
    budget: int = 0
    allow_pads: bool = False

    @property
    def form(self) -> Form | None:
        """What packs or groups are made; the values of groups are found later. None if each item is a unit."""
        if self.pack is not None:
            return Packing(self.capacity, self.long == "truncate")
        return None if self.group is None else Grouping(self.size, self.budget)

    @property
    def lengths(self) -> str | None:
        """The column of lengths, if any."""
        return self.group if self.budget else self.pack

    @property
    def name(self) -> str:
        """A description of the chosen samples."""
        words = {"keys": "in", "exclude": "not in"}
        names = [f"{words[name]} {each.origin}" for name, each in self.lists.items()]
        # A state names its view: a column alone must not look like the name of a stored view.
        where = f"({self.where})" if is_stored_name(self.where) else self.where
        names += [f"{kind} {column}" for kind, column in (("repeat", self.repeat), ("expand", self.expand)) if column]
        names += [f"{self.form.noun}s {self.form} by {self.pack or self.group}"] if self.form else []
        return " and ".join(names if where is None else [where, *names])

    @property
    def times(self) -> str | None:
        """The column that says how many items each sample has; None if each chosen sample is one."""
        return self.repeat or self.expand

    def items(self, chosen: Selection, times: npt.NDArray[np.unsignedinteger]) -> Selection | Repeats:
        """Return the items of the chosen samples, given how many each has; `times` is ignored if each is one."""
        return Repeats(chosen, times, "repeat" if self.repeat else "expand") if self.times else chosen

    @property
    def lists(self) -> dict[str, KeyList]:
        """The lists of keys, by argument name."""
        lists = {"keys": self.keys, "exclude": self.exclude}
        return {name: each for name, each in lists.items() if each is not None}


@dataclass(frozen=True)
class Chosen:
    """The result of choosing samples.

    Attributes:
        selection: The units of the chosen samples.
        found: For each list of keys, whether a sample has the key: bool of shape (keys,).
        figures: How well packs or groups are filled: see `described_units`.
    """

    selection: Units
    found: Mapping[str, npt.NDArray[np.bool_]]
    figures: Mapping[str, Any] = field(default_factory=dict)


class _Part(NamedTuple):
    """What was chosen in a shard, or in several one after another.

    Attributes:
        bits: The bits of the samples.
        found: For each list, the keys that samples have: int64, as numbers in the list, once for each sample.
        times: How often each chosen sample comes; empty unless the choice says so.
        codes: The pack or class of each item; of groups of a budget, its length. Empty if each item is a unit.
        values: What the codes of classes stand for.
        costs: The sum of the squared lengths of each pack.
        length: How long all items of packs or groups are together.
        num_long: Number of samples that are too long.
    """

    bits: Bits
    found: Mapping[str, Int64]
    times: npt.NDArray[np.unsignedinteger] = np.zeros(0, np.uint8)
    codes: npt.NDArray[np.unsignedinteger] = np.zeros(0, np.uint8)
    values: tuple[Any, ...] = ()
    costs: npt.NDArray[np.float64] = np.zeros(0)
    length: int = 0
    num_long: int = 0

    @classmethod
    def joined(cls, parts: Sequence[_Part]) -> _Part:
        """Return the parts of consecutive shards as one, with the values of all in ascending order."""
        values = tuple(sorted({value for part in parts for value in part.values}))
        number_of = {value: number for number, value in enumerate(values)}
        numbers = [np.array([number_of[value] for value in part.values], np.uint32) for part in parts]
        return cls(
            np.concatenate([np.zeros(0, np.uint8), *(part.bits for part in parts)]),
            {name: np.concatenate([part.found[name] for part in parts]) for name in (parts[0].found if parts else ())},
            _concatenated(part.times for part in parts),
            _concatenated(
                new[part.codes] if part.values else part.codes for new, part in zip(numbers, parts, strict=True)
            ),
            values,
            np.concatenate([np.zeros(0), *(part.costs for part in parts)]),
            sum(part.length for part in parts),
            sum(part.num_long for part in parts),
        )


def _concatenated(parts: Iterable[npt.NDArray[np.unsignedinteger]]) -> npt.NDArray[np.unsignedinteger]:
    """Return all numbers of some parts, as small as the largest of them allows."""
    numbers = np.concatenate([np.zeros(0, np.uint8), *parts])
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))), copy=False)


def read_choice(
    columns: SampleColumns, asked: Mapping[str, Any], storage_options: Mapping[str, Any] | None = None
) -> Choice:
    """Return the criteria, with lists of keys read from files; arguments by name, and errors, as for `resolve_view`."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name in ("where", "repeat", "expand", "pack", "group"):
        if not isinstance(given.get(name, ""), str):
            raise InputError(
                f"invalid {name}",
                expected="a string",
                found=type(given[name]).__name__,
                remedy="give a process group or a DeviceMesh as process_group=" if name == "group" else "",
            )
    if given.get("allow_pads", True) is not True or ("allow_pads" in given and "group" not in given):
        found = "no group" if "group" not in given else repr(given["allow_pads"])
        raise InputError("invalid allow_pads", expected="True or False, with group", found=found)
    for one, other in (("repeat", "expand"), ("pack", "group")):
        if one in given and other in given:
            raise InputError(f"{one} and {other} cannot be combined", remedy="leave out one of them")
    for what in ("repeat", "expand", "pack", "group"):
        if what in given:
            columns.refuse_unknown([given[what]])
            kind = columns.schema.field(given[what]).type
            is_any = what == "group" and "budget" not in given
            is_class = given[what] in columns.class_names
            is_number = pa.types.is_integer(kind) and not is_class
            if not (is_number or (is_any and (is_class or kind in (pa.string(), pa.bool_())))):
                raise InputError(
                    f"column {given[what]!r} cannot be used to {what}",
                    place=columns.storage.url,
                    expected="a column of integers" + ", texts or booleans" * is_any,
                    found="classes" if is_class else str(kind),
                )
    for name, of, most, text in _LIMITS:
        given[name] = whole(given.get(name))
        if given[name] is None:
            del given[name]
        elif of not in given:
            raise InputError(f"{name} needs {of}", remedy=f"give {of}, the name of a column")
        elif type(given[name]) is not int or not 1 <= given[name] <= most:
            expected = f"with {of}, an integer from 1 to {most:,}: {text}"
            raise InputError(f"invalid {name}", expected=expected, found=repr(given[name]))
    if "pack" in given and "capacity" not in given:
        raise InputError(
            "pack needs capacity",
            expected=f"an integer from 1 to {MAX_CAPACITY:,}: how long a pack may be",
            found="none",
            remedy="give capacity, such as the context length of the model",
        )
    if "group" in given and not {"size", "budget"} & given.keys():
        raise InputError(
            "group needs size or budget",
            expected="size, for groups of one value each; or budget, if the column has lengths",
            found="neither",
            remedy="give size, the samples of a group, or budget, how long a group may be, padded",
        )
    long = given.get("long", "error")
    if long not in LONG or (long == "truncate" and "budget" in given):
        known = [each for each in LONG if each != "truncate" or "budget" not in given]
        raise InputError("invalid long", expected=f"one of {', '.join(known)}", found=repr(long))
    if "long" in given and not {"pack", "budget"} & given.keys():
        raise InputError("long needs pack or budget", remedy="leave it out")
    for name in filter(given.__contains__, ("keys", "exclude")):
        given[name] = read_keys(given[name], name, columns, storage_options)
    return Choice(**given)


def refuse_missing(
    columns: SampleColumns, choice: Choice, chosen: Chosen, allow_missing: bool = False, limit: int | None = None
) -> None:
    """Refuse keys to keep that have no sample; warn about keys to leave out that have none.

    With a limit only the first samples were searched, so both cause only a warning.

    Raises:
        InputError: Keys to keep have no sample, and `allow_missing` is False.
    """
    among = "" if limit is None else f" among the first {limit:,}"
    for name, keys in choice.lists.items():
        missing = np.flatnonzero(~chosen.found[name])
        if not len(missing):
            continue
        some = ", ".join(repr(key) for key in keys.keys.take(pa.array(missing[:_SHOWN_KEYS])).to_pylist())
        text = f"{some}, ..." if len(missing) > _SHOWN_KEYS else some
        if name == "exclude" or allow_missing or among:
            text = f"{len(missing):,} of the {len(keys.keys):,} keys of {keys.origin} have no sample{among}: {text}"
            logger.warning("%s: %s", columns.storage.url, text)
            continue
        shard = int(np.argmax(columns.manifest.shards.num_real > 0))
        first = columns.read(shard, [KEY]).column(KEY).slice(0, 1).to_pylist()
        raise InputError(
            "some of the keys have no sample",
            place=keys.origin,
            expected="keys of samples" + "".join(f", such as {key!r}" for key in first),
            found=f"{len(missing):,} of {len(keys.keys):,} keys without a sample: {text}",
            remedy="remove them from the list, or go on without them: --allow-missing (allow_missing=True)",
        )


def choose(
    columns: SampleColumns,
    totals: Int64,
    choice: Choice,
    base: Selection | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Chosen:
    """Choose samples of a dataset. Uses a few bits of memory per sample; 4 bytes or 8 if they are repeated or packed.

    Args:
        columns: The columns of its samples.
        totals: int64 of shape (shards,): the number of first samples of each shard to choose from. Later shards are
            left out.
        choice: The criteria.
        base: The samples to choose from, of the same totals; None for all.
        engine: Engine that runs the tasks; None for this process.
        progress: Called at the start and after each task, with the number of finished shards, of all shards, and of
            samples checked.

    Raises:
        InputError: The condition is invalid, or fails for some row; or a listed key belongs to two samples, of which
            one has it as its key, and the other as its escaped key.
        WdsplitError: A table is missing or damaged.
    """
    if choice.where is not None:
        columns.parse(choice.where)
    elif base is not None and not (choice.lists or choice.times or choice.form):
        return Chosen(base, {})
    parts: dict[int, _Part] = {}
    counts = {name: np.zeros(len(each.keys), np.int64) for name, each in choice.lists.items()}
    done = samples = 0
    report = progress or (lambda *_: None)
    report(0, len(totals), 0)
    num_bytes = len(totals) * _SHARD_BYTES + int(totals.sum()) * _SAMPLE_BYTES
    mapped = (engine or LocalEngine(1)).map(
        partial(_choose_some, columns, totals, choice),
        _tasks(totals, base),
        num_bytes=None if columns.storage.has_latency else num_bytes,
        describe=lambda task: columns.manifest.shards[task[0].start].path,
    )
    with closing(mapped) as results:
        for shards, part in results:
            for name, numbers in part.found.items():
                np.add.at(counts[name], numbers, 1)
            parts[shards.start] = part._replace(found={})
            done += len(shards)
            samples += int(totals[shards.start : shards.stop].sum())
            report(done, len(totals), samples)
    _refuse_ambiguous(choice.lists, counts)
    part = _Part.joined([parts[first] for first in sorted(parts)])
    items = choice.items(Selection.of_bits(totals, part.bits), part.times)
    units = _units_of(columns, choice, items, part)
    found = {name: each > 0 for name, each in counts.items()}
    return Chosen(units, found, _figures(choice, units, part))


def _tasks(totals: Int64, base: Selection | None) -> list[_Task]:
    """Return the tasks: some shards each, in their order."""
    ends = np.append(0, np.cumsum(-(-totals // 8)))
    bits, tasks = None if base is None else base.bits, list[_Task]()
    for first in range(0, len(totals), _SHARDS_AT_ONCE):
        shards = range(first, min(len(totals), first + _SHARDS_AT_ONCE))
        tasks.append((shards, None if bits is None else bits[ends[shards.start] : ends[shards.stop]]))
    return tasks


def _refuse_ambiguous(lists: Mapping[str, KeyList], counts: Mapping[str, Int64]) -> None:
    """Refuse a key of a list that two samples have, one of them as its escaped key."""
    for name, keys in lists.items():
        for number in np.flatnonzero(counts[name] > 1).tolist():
            key = keys.keys[number].as_py()
            if unescape_key(key) != key:  # else the dataset has a key twice, and the list means both samples
                raise ambiguous_key(key, keys.origin)


def _figures(choice: Choice, units: Units, part: _Part) -> dict[str, Any]:
    """Return how well packs or groups are filled, as `described_units` takes it."""
    figures: dict[str, Any] = {}
    if isinstance(units, Groups):
        figures["pads"] = units.num_pads
    if choice.long != "error":
        figures["num_long"] = part.num_long
    if choice.lengths is not None:
        most, costs = choice.capacity * units.num_samples, part.costs
        if isinstance(units, Groups):
            most, costs = int(units.codes.sum()), units.costs
        figures["fill"] = round(part.length / max(1, most), 4)
        below = (np.arange(len(costs) + 1) / max(1, len(costs))) ** COMPARED_RANKS
        largest = float(np.diff(below) @ np.sort(costs))  # the mean of the largest, of costs that each rank draws
        figures["imbalance"] = round(largest / max(1.0, float(costs.mean())), 3) if len(costs) else 1.0
    return figures


def _units_of(columns: SampleColumns, choice: Choice, items: Selection | Repeats, part: _Part) -> Units:
    """Return the units that some items make, given what was chosen in all shards."""
    form = choice.form
    if form is None:
        return items
    if isinstance(form, Packing):
        return Packs(items, part.codes, block_of(form.capacity), form)
    groups = _groups_by_length if choice.budget else _groups_by_value
    units = groups(columns, choice, items, part)
    _refuse_pads(columns, choice, units)
    return units


def _groups_by_length(columns: SampleColumns, choice: Choice, items: Selection | Repeats, part: _Part) -> Groups:
    """Return groups of a budget, of items with the lengths that the part has as codes."""
    lengths, form = part.codes, Grouping(choice.size, choice.budget)
    usual = choice.budget // max(1, int(lengths.mean())) if len(lengths) else 1
    size = min(usual, choice.size or usual)
    block = group_block_of(columns.manifest.sample_bytes, size, choice.expand is not None)
    of_shards = np.split(lengths, np.cumsum(items.counts)[:-1])
    padded = _concatenated(padded_lengths(each.astype(np.int64), form, block) for each in of_shards)
    return Groups(items, padded, block, form)


def _groups_by_value(columns: SampleColumns, choice: Choice, items: Selection | Repeats, part: _Part) -> Groups:
    """Return groups of items with one value each."""
    _refuse_many_values(columns, choice, part.values)
    form, is_expanded = Grouping(choice.size, 0, part.values), choice.expand is not None
    block = group_block_of(columns.manifest.sample_bytes, choice.size, is_expanded)
    groups = Groups(items, part.codes, block, form)
    if _share_of_pads(groups) > _MAX_PADS and not is_expanded:  # too many values for a block: a shard may do
        groups = min(groups, Groups(items, part.codes, 0, form), key=_share_of_pads)
    return groups


def _share_of_pads(groups: Groups) -> float:
    return groups.num_pads / max(1, groups.base.num_samples + groups.num_pads)


def _refuse_many_values(columns: SampleColumns, choice: Choice, values: Sequence[Any]) -> None:
    if len(values) > _MAX_VALUES:
        raise InputError(
            f"column {choice.group!r} has too many values for groups",
            place=columns.storage.url,
            expected=f"at most {_MAX_VALUES:,}, of which a shard has enough samples for whole groups",
            found="more",
            remedy="group by a column of a few buckets; or, if it has lengths, give a --budget (budget=)",
        )


def _refuse_pads(columns: SampleColumns, choice: Choice, units: Groups) -> None:
    """Refuse groups of which too much is filled with repeated samples."""
    most = _MAX_ALLOWED_PADS if choice.allow_pads else _MAX_PADS
    if _share_of_pads(units) > most:
        where = f"a block of {units.block:,} samples" if units.block else "a shard"
        num_all = units.base.num_samples + units.num_pads
        raise InputError(
            "too many samples would be repeated to fill groups",
            place=columns.storage.url,
            expected=f"at most {100 * most:g} % of the samples of an epoch",
            found=f"{100 * units.num_pads / num_all:.1f} %: {units.num_pads:,} of {num_all:,}, because the last group "
            f"of each of the {len(units.form.values):,} values of {choice.group!r} in {where} is rarely full",
            remedy="use a smaller --size, fewer values, or larger shards; of lengths a --budget (budget=), which "
            f"repeats none{'' if choice.allow_pads else '; or allow it: --allow-pads (allow_pads=True)'}",
        )


# The tasks: they run in workers, and may run twice


def _choose_some(columns: SampleColumns, totals: Int64, choice: Choice, task: _Task) -> tuple[range, _Part]:
    """Choose samples of the shards of a task."""
    condition = None if choice.where is None else columns.parse(choice.where)
    names = [*(condition.columns if condition else ()), *filter(None, [choice.times, choice.pack or choice.group])]
    if choice.lists or choice.times or choice.form:
        names.append(KEY)  # for lists, and for errors
    tables = _tables(columns, totals, list(dict.fromkeys(names)), task)
    part = _Part.joined([_choose_in_shard(columns, choice, condition, table, mask) for table, mask in tables])
    _refuse_many_values(columns, choice, part.values)
    return task[0], part


def _choose_in_shard(
    columns: SampleColumns, choice: Choice, condition: Where | None, table: pa.Table, mask: npt.NDArray[np.bool_]
) -> _Part:
    """Choose samples of a shard, given its columns and the samples to choose from."""
    found: dict[str, Int64] = {}
    if condition is not None:
        rows = condition.rows([table.column(name) for name in condition.columns], len(table))
        mask &= _mask_of(rows, len(table))
    for name, keys in choice.lists.items():
        rows, found[name] = keys.look_up(table.column(KEY))
        mask &= _mask_of(rows, len(table)) ^ (name == "exclude")
    times: Int64 | None = None
    lengths: Int64 | None = None
    num_long = 0
    if choice.times is not None:
        times = _times_of(columns, choice.times, table, mask)
        mask &= times > 0
    if choice.lengths is not None:
        lengths, is_long = _lengths_of(choice, table, mask)
        num_long = int(is_long.sum())
        if choice.long == "drop":
            mask &= ~is_long
    part = _Part(np.packbits(mask, bitorder="little"), found, num_long=num_long)
    if times is not None:
        part = part._replace(times=times[mask].astype(np.uint32))
    form = choice.form
    if form is None:
        return part
    items = choice.items(Selection.of_masks([mask]), part.times)
    samples = item_units(items, items.totals, 0).items(np.arange(items.num_samples)).samples
    if lengths is None:
        codes, values = _values_of(table, str(choice.group), mask)
        return part._replace(codes=codes[samples], values=values)
    own = lengths[samples]
    part = part._replace(length=int(own.sum()))
    if isinstance(form, Grouping):
        return part._replace(codes=own.astype(np.uint32))  # grouped when all lengths are known
    packs = packed(own, form.capacity, block_of(form.capacity))
    return part._replace(codes=packs, costs=np.bincount(packs, own.astype(np.float64) ** 2).astype(np.float64))


def _times_of(columns: SampleColumns, name: str, table: pa.Table, mask: npt.NDArray[np.bool_]) -> Int64:
    """Return how often each sample comes, by a column; only those of the mask are looked at."""
    times = _integers(table, name, mask, "how often a sample comes", MAX_TIMES)
    num_items = int(times[mask].sum())
    if num_items > _MAX_UNITS:  # they would not fit into memory
        raise InputError(
            f"by column {name!r} the samples of a shard come too often",
            place=columns.storage.url,
            expected=f"at most {_MAX_UNITS:,} times together",
            found=f"{num_items:,}",
            remedy="choose a column that says how often a sample comes, or how many parts it has",
        )
    return times


def _lengths_of(choice: Choice, table: pa.Table, mask: npt.NDArray[np.bool_]) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return the length of each sample, at most the largest allowed one, and which samples of the mask are longer."""
    name, most = str(choice.lengths), choice.capacity or choice.budget
    lengths = _integers(table, name, mask, "how long a sample is", MAX_CAPACITY)
    is_long = mask & (lengths > most)
    if choice.long == "error":
        cause, remedy = _TOO_LONG["group" if choice.budget else "pack"]
        _refuse_some(table, is_long, name, cause, f"{name} of at most {most:,}", remedy)
    return np.minimum(lengths, most), is_long


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


def _integers(table: pa.Table, name: str, mask: npt.NDArray[np.bool_], what: str, most: int) -> Int64:
    """Return a column of integers from 0 to `most`; only those of the mask are looked at."""
    values: Int64 = table.column(name).cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
    remedy = f"leave such samples out: --where '{name} >= 0 and {name} <= {most}' (where=)"
    is_wrong = mask & ((values < 0) | (values > most))
    _refuse_some(table, is_wrong, name, f"column {name!r} cannot say {what}", f"an integer from 0 to {most:,}", remedy)
    return values


def _values_of(
    table: pa.Table, name: str, mask: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint32], tuple[Any, ...]]:
    """Return the values that samples of the mask have in a column, and the number of each sample's value; 0 for others.

    The numbers are uint32 of shape (samples,).
    """
    column = table.column(name).combine_chunks()
    remedy = f"leave such samples out: --where 'column(\"{name}\") is not None' (where=)"
    is_null = mask & column.is_null().to_numpy(zero_copy_only=False)
    cause = f"column {name!r} cannot say which group a sample is in"
    _refuse_some(table, is_null, name, cause, "a value", remedy)
    encoded = column.filter(pa.array(mask)).dictionary_encode()
    numbers = np.zeros(len(mask), np.uint32)
    numbers[mask] = encoded.indices.to_numpy()
    return numbers, tuple(encoded.dictionary.to_pylist())


def _refuse_some(
    table: pa.Table, is_wrong: npt.NDArray[np.bool_], name: str, cause: str, expected: str, remedy: str
) -> None:
    """Refuse the first of some samples, if there are any, for its value of a column."""
    if is_wrong.any():
        row = table.slice(int(np.argmax(is_wrong)), 1).to_pylist()[0]
        found = "null" if row[name] is None else str(row[name])
        raise InputError(cause, f"sample {row[KEY]!r}", expected, found, remedy, key=row[KEY])
