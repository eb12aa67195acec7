"""The order of an epoch: a pure function from position to sample.

Pure (no I/O). Nothing here depends on ranks, workers or batches, nor on a library's random stream: permutations rank
items by a fixed 64-bit mixing hash, so golden values in the tests hold for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.order.bundles import Groups, Packs, Units, items_of, shard_units
from wdsplit.order.evened import Stretches, evened
from wdsplit.order.hashing import GOLDEN, MASK, hash_stream, mix_numbers, permutation
from wdsplit.order.limits import MAX_LANES, MAX_SEED, MAX_WINDOW, TAILS, Tail
from wdsplit.order.selection import Selection
from wdsplit.order.units import Items, Repeats, ShardUnits

__all__ = [
    "EpochOrder",
    "Located",
    "OrderOptions",
    "groups",
    "in_rows",
    "order_problems",
]


_UNEVEN_PERCENT = 1
_PLACES_AT_ONCE = 1 << 22
_SHARDS_KEPT = 2
_LOADED_AT_ONCE = 256
_SHARDS, _WINDOWS, _SAMPLES = 1, 2, 3
"""Domains of the hash: the same numbers never serve two purposes."""


@dataclass(frozen=True)
class OrderOptions:
    """The options that the order depends on, besides the manifest and the epoch.

    Attributes:
        seed: 0 <= seed < 2**63.
        shuffle: Permute shards, windows and samples; else all are in the manifest's order.
        lanes: Lanes (C), at least 1.
        window: Samples of a window (Q), at least 1.
        tail: How lanes and steps of unequal length end: pad, drop or uneven.
    """

    seed: int
    shuffle: bool
    lanes: int
    window: int
    tail: Tail

    def __post_init__(self) -> None:
        problems = order_problems(self.seed, self.lanes, self.window, self.tail)
        if problems:
            raise InputError("invalid options of the order", found="; ".join(problems))


def order_problems(seed: Any, lanes: Any, window: Any, tail: Any) -> list[str]:
    """Return what is wrong with the options of an order, one text per problem."""
    problems = []
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        problems.append(f"seed = {seed!r}: expected an integer from 0 to 2**63 - 1")
    for name, value, max_value in (("lanes", lanes, MAX_LANES), ("window", window, MAX_WINDOW)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= max_value:
            problems.append(f"{name} = {value!r}: expected an integer from 1 to {max_value}")
    if tail not in TAILS:
        problems.append(f"tail = {tail!r}: expected one of {', '.join(TAILS)}")
    return problems


@dataclass(frozen=True)
class Located:
    """The samples of some positions: arrays of one shape.

    Attributes:
        row: int64, rising: which of the positions each sample is of; one each, unless units are packs.
        source: int64, the dataset of each position, if it is one of a mixture; else 0.
        shard: int64, its shard.
        sample: int64, the sample's place in its shard's tar.
        pad: bool, True where the sample is a repetition.
        part: int64, which of the units of its sample it is, where samples have several; else 0.
    """

    row: Int64
    source: Int64
    shard: Int64
    sample: Int64
    pad: npt.NDArray[np.bool_]
    part: Int64


class EpochOrder:
    """The order of one epoch.

    An epoch is woven from C lanes. Lane c holds the shards pi[c::C], one after another, where pi is the epoch's
    permutation of the shards; position g is the sample at offset g div C of lane g mod C. A shard's samples are
    visited window by window; windows, and the samples in a window, are permuted. A lane that has ended repeats its
    samples backwards from the last one, flagged as pads: the last window is still in memory.

    In a view, "sample" stands for a unit of the view: the order knows only how many there are in each window.

    Built in O(shards log shards); a position costs a binary search. Immutable once built.

    Args:
        totals: int64 of shape (shards,): samples of each shard, tar pads left out.
        options: Seed, lanes, window, tail.
        epoch: The epoch, at least 0.
        equal_lanes: Cut the lanes at equal counts even if whole shards come out even: then position p holds a sample
            exactly if p is below the number of samples.
        selection: The units of the view; None for each sample once. They are ordered by their numbers in their shard,
            whatever samples they are.

    Attributes:
        counts: int64 of shape (shards,): samples of each shard; in a view, its units.
        selection: The units of the view; None if each sample is one.
        is_even: Whether the windows of a shard have `window` units each, but for the last one.
        is_bundled: Whether a unit may be several samples.
        part_name: The field that numbers the units of a sample, where samples have several; else empty.
        sequence: int64 of shape (shards,): the shards in lane-major order, lane 0's first.
        ends: int64 of shape (shards,): samples up to and with each shard of the sequence.
        lane_begin: int64 of shape (lanes,): where each lane begins in the lane-major sequence of samples, or in that of
            `stretches`.
        lane_length: int64 of shape (lanes,): samples of each lane, pads left out.
        is_recut: Whether the lanes were cut at equal counts, inside shards if necessary: because lanes of whole shards
            could differ by more than 1 %, or because of `equal_lanes`.
        stretches: The stretches that make up the lanes, if a view made lanes of whole shards uneven; None if each lane
            is a part of the lane-major sequence.
        num_samples: Samples of the epoch.
        num_positions: Positions of the epoch before the last step is filled. The same in every epoch: the number of
            samples if the lanes were cut, else C times the longest (`drop`: the shortest) that a lane can be.
    """

    def __init__(
        self,
        totals: Int64,
        options: OrderOptions,
        epoch: int,
        equal_lanes: bool = False,
        selection: Units | None = None,
    ) -> None:
        if epoch < 0:
            raise InputError("invalid epoch", expected="at least 0", found=str(epoch))
        num_shards, lanes = len(totals), options.lanes
        self.options = options
        self.epoch = epoch
        self.totals = totals
        self.counts = counts = totals if selection is None else selection.counts
        self.is_even = selection is None or isinstance(selection, Selection)
        self.is_bundled = isinstance(selection, (Packs, Groups))
        items = items_of(selection)
        self.part_name = items.part_name if isinstance(items, Repeats) else ""
        self.selection = None if self.is_even and np.array_equal(counts, totals) else selection
        order = permutation(num_shards, options.seed, epoch, _SHARDS) if options.shuffle else np.arange(num_shards)
        self.sequence = _lane_major(order, lanes)
        self.ends = np.cumsum(counts[self.sequence])
        self.num_samples = int(self.ends[-1]) if num_shards else 0
        self._kept: dict[int, ShardUnits] = {}
        self.lane_begin, self.lane_length = self._whole_shard_lanes(num_shards)
        shortest, longest = self._lane_bounds()
        differ = (longest - shortest) * 100 > longest * _UNEVEN_PERCENT
        self.is_recut = equal_lanes or (options.tail != "uneven" and differ)
        self.stretches: Stretches | None = None
        if self.is_recut:
            begin, length = self.lane_begin, self.lane_length
            self.lane_begin, self.lane_length = self._equal_lanes()
            if self.selection is not None and differ:
                self.stretches = evened(begin, length, self.lane_length)
            self.num_positions = self.num_samples
        else:
            self.num_positions = lanes * (shortest if options.tail == "drop" else longest)

    def _lane_bounds(self) -> tuple[int, int]:
        """Return the fewest and the most samples of a lane of whole shards: the same in every epoch, as steps are."""
        if not self.options.shuffle or self.options.tail == "uneven":
            return int(self.lane_length.min()), int(self.lane_length.max())
        ordered = np.sort(self.counts)
        fewest, rest = divmod(len(ordered), self.options.lanes)
        max_shards = fewest + (rest > 0)
        return int(ordered[:fewest].sum()), int(ordered[len(ordered) - max_shards :].sum())

    def _whole_shard_lanes(self, num_shards: int) -> tuple[Int64, Int64]:
        """Return begin and length of lanes of whole shards, in samples of the lane-major sequence."""
        lanes = self.options.lanes
        shards_in_lane = (num_shards - np.arange(lanes) + lanes - 1) // lanes
        bounds = np.concatenate([[0], self.ends])[np.concatenate([[0], np.cumsum(shards_in_lane)])]
        return bounds[:-1], np.diff(bounds)

    def _equal_lanes(self) -> tuple[Int64, Int64]:
        """Return begin and length of lanes of equal counts; the first lanes take the remainder, so pads come last."""
        lane = np.arange(self.options.lanes)
        each, rest = divmod(self.num_samples, self.options.lanes)
        return lane * each + np.minimum(lane, rest), each + (lane < rest).astype(np.int64)

    def visits(self, positions: Int64) -> tuple[Int64, Int64, npt.NDArray[np.bool_]]:
        """Return shard, number of the visit within the shard, and pad flag of each position.

        Args:
            positions: int64 of any length, each at least 0; past the end of a lane they lead to pads.
        """
        lanes = self.options.lanes
        lane, offset = positions % lanes, positions // lanes
        length = self.lane_length[lane]
        pad = offset >= length
        back = length - 1 - (offset - length) % np.maximum(length, 1)
        wrapped = np.where(pad & (length > 0), back, offset)
        place: Int64 = (self.lane_begin[lane] + wrapped) % max(self.num_samples, 1)
        if self.stretches is not None:
            place = self.stretches.sources_of(place)
        slot = np.searchsorted(self.ends, place, side="right")
        shard = self.sequence[slot]
        return shard, place - (self.ends[slot] - self.counts[shard]), pad

    def units(self, positions: Int64) -> tuple[Int64, Int64, npt.NDArray[np.bool_]]:
        """Return shard, number of the unit in the shard, and pad flag of each position; arguments as for `visits`."""
        shard, visit, pad = self.visits(positions)
        return shard, self.units_of(shard, visit), pad

    def positions(self, places: Int64) -> Int64:
        """Return the position of each place in the lane-major sequence of all samples."""
        inside = places if self.stretches is None else self.stretches.places_of(places)
        lane = np.searchsorted(self.lane_begin, inside, side="right") - 1
        positions: Int64 = lane + self.options.lanes * (inside - self.lane_begin[lane])
        return positions

    def locate(self, positions: Int64) -> Located:
        """Return the shard and the sample of each position."""
        shard, unit, pad = self.units(positions)
        row = np.arange(len(unit))
        sample, part, again = unit, np.zeros_like(unit), np.zeros_like(unit)
        if self.selection is not None:
            found = ((rows, self.shard_units(each).items(unit[rows])) for each, rows in self._loaded(shard))
            row, sample, part, again = in_rows(starmap(_columns, found), 4)
        return Located(row, np.zeros_like(row), shard[row], sample, pad[row] | (again > 0), part)

    def positions_of(self, shard: Int64, unit: Int64) -> Int64:
        """Return the position of each unit, by its number in its shard: the inverse of `units`, pads left out."""
        begins = np.empty_like(self.counts)
        begins[self.sequence] = self.ends - self.counts[self.sequence]
        visit = self._translated(shard, unit, to_units=False) if self.options.shuffle else unit
        return self.positions(begins[shard] + visit)

    def is_real(self, positions: Int64) -> npt.NDArray[np.bool_]:
        """Tell which positions hold a sample that is not a pad."""
        lanes = self.options.lanes
        real: npt.NDArray[np.bool_] = positions // lanes < self.lane_length[positions % lanes]
        return real

    def units_of(self, shard: Int64, visit: Int64) -> Int64:
        """Return the units of some visits, as numbers in their shards; windows not asked for cost nothing.

        Args:
            shard: int64 of shape (n,).
            visit: int64 of shape (n,): numbers of visits within each shard, below its `counts`.
        """
        return self._translated(shard, visit, to_units=True) if self.options.shuffle else visit

    def _translated(self, shard: Int64, numbers: Int64, to_units: bool) -> Int64:
        """Return the units of some visits, or the visits of some units, as numbers in their shards."""
        window, inside, size, found = (np.empty_like(numbers) for _ in range(4))
        for each, rows in groups(shard) if self.is_even else self._loaded(shard):
            # where windows begin: in the order of units, and in the order of visits
            windows, visit_ends = self.shard_windows(each)
            unit_ends = self.shard_units(each).ends
            sizes = np.diff(unit_ends, prepend=0)
            unit_begins, visit_begins = unit_ends - sizes, np.empty_like(unit_ends)
            visit_begins[windows] = visit_ends - sizes[windows]
            if to_units:
                own = windows[np.searchsorted(visit_ends, numbers[rows], side="right")]
                begins, found_begins = visit_begins, unit_begins
            else:
                own = np.searchsorted(unit_ends, numbers[rows], side="right")
                begins, found_begins = unit_begins, visit_begins
            window[rows], size[rows] = own, sizes[own]
            inside[rows], found[rows] = numbers[rows] - begins[own], found_begins[own]
        for rows, window_of_row, orders in self._orders_in_windows(shard, window, size):
            if not to_units:
                visited, orders = orders, np.empty_like(orders)
                np.put_along_axis(orders, visited, np.arange(orders.shape[1])[None], 1)
            found[rows] += orders[window_of_row, inside[rows]]
        return found

    def _orders_in_windows(self, shard: Int64, window: Int64, size: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
        """Give the orders of the windows that some units are in, by shard, number and size, each once.

        Returns:
            Rows of `shard` and `window`; for each the row of its window in what follows; and int64 of shape (windows,
            units): for each window its units, counted from its first, as they are visited.
        """
        num_windows = int(window.max(initial=0)) + 1
        pairs, firsts, pair = np.unique(shard * num_windows + window, return_index=True, return_inverse=True)
        (shards, windows), sizes = np.divmod(pairs, num_windows), size[firsts]
        by_pair = np.argsort(pair, kind="stable")
        pair, at_once = pair[by_pair], max(1, _PLACES_AT_ONCE // max(1, int(sizes.max(initial=0))))
        for begin in range(0, len(pairs), at_once):
            some = slice(begin, begin + at_once)
            first, stop = np.searchsorted(pair, (begin, begin + at_once))
            orders = self.places_in_windows(shards[some], windows[some], sizes[some])
            yield by_pair[first:stop], pair[first:stop] - begin, orders

    def places_in_windows(self, shards: Int64, windows: Int64, sizes: Int64) -> Int64:
        """Return the units of n windows in the order of their visits, counted from each window's first.

        Args:
            shards: int64 of shape (n,): the shard of each window.
            windows: int64 of shape (n,): its number in its shard.
            sizes: int64 of shape (n,): its number of units.

        Returns:
            int64 of shape (n, most): numbers below those of the window's units come first, any others after them.
        """
        places: Int64 = np.arange(sizes.max(initial=0))
        if not self.options.shuffle:
            return np.broadcast_to(places, (len(windows), len(places)))
        # Row by row the permutation of seed, epoch, shard and window: each item is ranked by a hash of its own.
        state = np.full(len(windows), hash_stream(self.options.seed, self.epoch, _SAMPLES), np.uint64)
        for words in (shards, windows):
            state = mix_numbers(state + np.uint64(GOLDEN) + mix_numbers(words.astype(np.uint64)))
        steps = (places + 1).astype(np.uint64) * np.uint64(GOLDEN)
        ranks = mix_numbers(state[:, None] + steps)
        is_out = places >= sizes[:, None]
        if not is_out.any():
            return np.argsort(ranks, axis=1)
        ranks[is_out] = MASK
        return np.argsort(ranks, axis=1, kind="stable")  # a unit of that rank still comes before them

    def shard_windows(self, shard: int) -> tuple[Int64, Int64]:
        """Return the windows of a shard in the order of their visits.

        Returns:
            int64 of shape (windows,): their numbers; and how many units of the shard are visited up to the end of each.
        """
        ends = self.shard_units(shard).ends
        if not self.options.shuffle:
            return np.arange(len(ends)), ends
        windows = permutation(len(ends), self.options.seed, self.epoch, _WINDOWS, shard)
        return windows, np.cumsum(np.diff(ends, prepend=0)[windows])

    def load(self, shards: Collection[int]) -> None:
        """Read at the same time what units of some shards are needed next, if a view keeps them in a store."""
        if self.selection is not None:
            self.selection.chosen.load(shards)

    def _loaded(self, shard: Int64) -> Iterator[tuple[int, Int64]]:
        """Give each distinct shard with its places, as `groups` does; what they need is read some at a time."""
        every = list(groups(shard))
        for first in range(0, len(every), _LOADED_AT_ONCE):
            some = every[first : first + _LOADED_AT_ONCE]
            self.load([each for each, _ in some])
            yield from some

    def shard_units(self, shard: int) -> ShardUnits:
        """Return the units of a shard, in windows; those asked for last are kept."""
        found = self._kept.get(shard)
        if found is None:
            words = (self.options.seed, self.epoch) if self.options.shuffle else None
            found = shard_units(self.selection, self.totals, shard, self.options.window, words)
            self._kept = dict([*self._kept.items(), (shard, found)][-_SHARDS_KEPT:])  # replaced whole, for threads
        return found


def in_rows(parts: Iterable[tuple[Int64, ...]], num_columns: int) -> list[Int64]:
    """Return columns that were made in parts, one after another, sorted by the first of them, which has the rows."""
    listed = list(parts)
    columns = [np.concatenate([np.zeros(0, np.int64), *(part[n] for part in listed)]) for n in range(num_columns)]
    by_row = np.argsort(columns[0], kind="stable")
    return [column[by_row] for column in columns]


def _columns(rows: Int64, items: Items) -> tuple[Int64, Int64, Int64, Int64]:
    """Return for each item of the units in some rows its row, sample, part as in `Items`, and pad flag."""
    none = np.zeros_like(items.samples)
    parts, pads = none if items.parts is None else items.parts, none if items.pads is None else items.pads * 1
    return rows if items.rows is None else rows[items.rows], items.samples, parts, pads


def _lane_major(order: Int64, lanes: int) -> Int64:
    """Return order[0::lanes], order[1::lanes], ... one after another."""
    rows = -(-len(order) // lanes)
    grid = np.full(rows * lanes, -1, np.int64)
    grid[: len(order)] = order
    flat: Int64 = grid.reshape(rows, lanes).T.reshape(-1)
    return flat[flat >= 0] if len(order) < len(grid) else flat


def groups(values: Int64) -> Iterator[tuple[int, Int64]]:
    """Give each distinct value with its places, rising."""
    if not len(values):
        return
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    for places in np.split(order, cuts):
        yield int(values[places[0]]), places
