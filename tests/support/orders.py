"""Epoch orders for the tests, and the order told again: slow, in plain Python, straight from DESIGN section 6."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise

import numpy as np
from hypothesis import strategies as st

from wdsplit.order.bundles import Grouping, Groups, Packing, Packs, items_of
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.selection import Selection
from wdsplit.order.skips import NO_SKIPS
from wdsplit.order.units import KINDS, Repeats

GOLDEN_RATIO = 0x9E3779B97F4A7C15
SHARDS, WINDOWS, SAMPLES = 1, 2, 3
TAILS = ("pad", "drop", "uneven")
GROUPINGS = {
    "groups": (7, Grouping(3, 0, ("a", "b", "c"))),
    "groups of shards": (0, Grouping(2, 0, (0, 5, 9))),
    "groups of a budget": (7, Grouping(0, 4)),
    "groups of a size and a budget": (0, Grouping(3, 4)),
}
"""Blocks and forms of groups of three classes."""

VIEWS = ["nothing", "one", "one a shard", "every third", "all but a few", "random", "uneven", "everything"]

counts = st.lists(st.integers(0, 12), max_size=12) | st.lists(st.integers(199, 201), max_size=8)
tails = st.sampled_from(TAILS)
ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=6)
"""Begin and length of ranges of positions."""


def options(tail="pad", lanes=4, window=4, shuffle=True, seed=0):
    return OrderOptions(seed, shuffle, lanes, window, tail)


def epoch_order(counts, epoch=0, **others):
    return EpochOrder(np.array(counts, np.int64), options(**others), epoch)


def masks_of(kind, counts, seed):
    """Return which samples of each shard a view takes."""
    random = np.random.default_rng(seed)
    masks = [np.zeros(count, np.bool_) for count in counts]
    if kind == "one" and sum(counts):
        shard = int(np.flatnonzero(counts)[0])
        masks[shard][random.integers(counts[shard])] = True
    for mask in masks:
        if kind == "one a shard" and len(mask):
            mask[random.integers(len(mask))] = True
        elif kind == "every third":
            mask[::3] = True
        elif kind in ("random", "all but a few"):
            mask[:] = random.random(len(mask)) < (0.5 if kind == "random" else 0.999)
        elif kind == "uneven":
            mask[:] = random.random(len(mask)) < random.random()
        elif kind == "everything":
            mask[:] = True
    return masks


@st.composite
def orders(draw, tails=tails):
    return epoch_order(
        draw(counts),
        draw(st.integers(0, 50)),
        tail=draw(tails),
        lanes=draw(st.integers(1, 8)),
        window=draw(st.integers(1, 6)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


def units_of(masks, kind, seed, is_packed=False):
    """Return the units of a view that takes samples by masks, each up to four times unless it is a selection.

    Where it is packed, blocks of five items are packed at random; where it is grouped, items of three classes are.
    """
    random = np.random.default_rng(seed)
    items = selection = Selection.of_masks(masks)
    if kind != "select":
        items = Repeats(selection, random.integers(1, 5, selection.num_samples).astype(np.uint8), kind)
    if not is_packed:
        return items
    if is_packed in GROUPINGS:
        block, form = GROUPINGS[is_packed]
        return Groups(items, random.integers(0, 3, items.num_samples).astype(np.uint8), block, form)
    bins = [np.zeros(0, np.uint16)]
    for count in items.counts.tolist():
        begin = 0
        for first in range(0, count, 5):
            _, own = np.unique(random.integers(0, 3, min(5, count - first)), return_inverse=True)
            bins.append((begin + own).astype(np.uint16))
            begin += int(own.max()) + 1
    return Packs(items, np.concatenate(bins), 5, Packing(100, False))


def samples_of(units, shard):
    """Return the samples of a shard in a view, rising, each as often as it comes."""
    items, samples = items_of(units), units.chosen.places(shard)
    if isinstance(items, Repeats):
        first = int(units.chosen.counts[:shard].sum())
        samples = np.repeat(samples, items.times[first : first + len(samples)])
    return samples.tolist()


def slow_windows(units, shard, size, words=None):
    """Return the windows of a shard in a view: lists of units, each a sample, or the tuple of those of a unit."""
    kind = getattr(items_of(units), "kind", "select")
    if not isinstance(units, (Packs, Groups)):
        return windows_of(samples_of(units, shard), kind, size)
    items = [*chain.from_iterable(windows_of(samples_of(units, shard), kind, 10**9))]
    first = int(units.base.counts[:shard].sum())
    if isinstance(units, Groups):
        codes = units.codes[first : first + len(items)].tolist()
        return slow_groups(items, codes, units.block, units.form, words and (*words, shard))
    bins, windows = units.codes[first : first + len(items)].tolist(), []
    for begin in range(0, len(items), units.block):
        packs = {}
        for number, sample in zip(bins[begin:], items[begin : begin + units.block], strict=False):
            packs.setdefault(number, []).append(sample)
        windows.append([tuple(packs[number]) for number in sorted(packs)])
    return windows


def slow_groups(items, classes, block, form, words):
    """Return the groups of a shard, a window a block, or a window a group; a short group repeats its members."""
    windows = []
    for begin in range(0, len(items), block or max(1, len(items))):
        numbers = range(begin, min(len(items), begin + (block or len(items))))
        groups = []
        for each in range(3):
            size = min(form.size or 99, form.budget // max(1, each)) if form.budget else form.size
            own = [number for number in numbers if classes[number] == each]
            if words is not None:
                state = slow_hash_stream(6, *words, begin)
                own.sort(key=lambda number: mixed(state + (number - begin + 1) * GOLDEN_RATIO))
            cut = [own[first : first + size] for first in range(0, len(own), size)]
            filled = [some if form.budget else (some * size)[:size] for some in cut]
            groups += [tuple(items[number] for number in some) for some in filled]
        windows += [groups] if block else [[group] for group in groups]
    return windows


@st.composite
def views(draw, tails=tails, kinds=VIEWS, items=KINDS, packed=(False, True, *GROUPINGS)):
    """Draw the order of a view, and its units."""
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=10) | st.lists(st.integers(199, 201), max_size=4))
    masks = masks_of(draw(st.sampled_from(kinds)), counts, draw(st.integers(0, 99)))
    chosen = options(
        draw(tails), draw(st.integers(1, 6)), draw(st.integers(1, 9)), draw(st.booleans()), draw(st.integers(0, 99))
    )
    units = units_of(masks, draw(st.sampled_from(items)), draw(st.integers(0, 9)), draw(st.sampled_from(packed)))
    return EpochOrder(units.totals, chosen, draw(st.integers(0, 5)), draw(st.booleans()), units), units


def real_positions(order):
    positions = np.arange(order.num_positions)
    return positions[order.is_real(positions)]


def located(order, positions):
    """Return (shard, sample, pad) of each position."""
    found = order.locate(np.asarray(positions, np.int64))
    return list(zip(found.shard.tolist(), found.sample.tolist(), found.pad.tolist(), strict=True))


def led(order, positions):
    """Return (source, source epoch, position there) of each position of a mixture."""
    found = [None] * len(positions)
    for quota in order.quotas(np.asarray(positions, np.int64)):
        assert len(quota.rows) == len(quota.positions) > 0
        assert quota.rows.tolist() == sorted(set(quota.rows.tolist()))
        for row, place in zip(quota.rows.tolist(), quota.positions.tolist(), strict=True):
            assert found[row] is None
            found[row] = (quota.source, quota.source_epoch, place)
    assert None not in found
    return found


def skips_of(drawn):
    """Return the skips of some ranges, and the set of positions."""
    skips, left_out = NO_SKIPS, set()
    for begin, length in drawn:
        skips = skips.added(begin, begin + length)
        left_out |= set(range(begin, begin + length))
    return skips, left_out


# The reference


def mixed(value):
    """splitmix64's finaliser."""
    value %= 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def slow_hash_stream(*words):
    state = 0
    for word in words:
        state = mixed(state + GOLDEN_RATIO + mixed(word))
    return state


def slow_permutation(n, *words):
    state = slow_hash_stream(*words)
    return sorted(range(n), key=lambda item: mixed(state + (item + 1) * GOLDEN_RATIO))


def windows_of(samples, kind, size):
    """Return the windows of a shard: lists of its samples, each as often as it comes.

    Windows are of whole samples where a view expands; else of rounds, each with the samples that are left.
    """
    times = Counter(samples)
    num_rounds = min(1, len(times)) if kind == "expand" else max(times.values(), default=0)
    rounds = [[each for each in sorted(times) if times[each] > number] for number in range(num_rounds)]
    cut = [each[first : first + size] for each in rounds for first in range(0, len(each), size)]
    return [[*chain.from_iterable([each] * times[each] for each in some)] for some in cut] if kind == "expand" else cut


def slow_visits(options, epoch, shard, windows):
    """Return the units of a shard in the order of their visits; `windows` may be how many samples it has."""
    if isinstance(windows, int):
        windows = windows_of(range(windows), "select", options.window)
    if options.shuffle:
        windows = [
            [
                windows[number][i]
                for i in slow_permutation(len(windows[number]), options.seed, epoch, SAMPLES, shard, number)
            ]
            for number in slow_permutation(len(windows), options.seed, epoch, WINDOWS, shard)
        ]
    return [unit for window in windows for unit in window]


def slow_lane_bounds(counts, options):
    """Return how short and how long a lane of whole shards can be, in any epoch."""
    if not options.shuffle:
        lengths = [sum(counts[lane :: options.lanes]) for lane in range(options.lanes)]
        return min(lengths), max(lengths)
    sizes = [len(range(lane, len(counts), options.lanes)) for lane in range(options.lanes)]
    return sum(sorted(counts)[: min(sizes)]), sum(sorted(counts, reverse=True)[: max(sizes)])


def slow_lanes(counts, options, epoch, viewed=None, equal_lanes=False):
    """Return the lanes, each the (shard, unit) pairs that it holds, and whether they were cut again.

    Of a view, `viewed` are the windows of each shard: it is visited as a shard that has no other samples.
    """
    windows = viewed or [windows_of(range(count), "select", options.window) for count in counts]
    units = [[*chain.from_iterable(each)] for each in windows]
    is_view = units != [list(range(count)) for count in counts]
    counts = list(map(len, units))
    shards = list(range(len(counts)))
    if options.shuffle:
        shards = slow_permutation(len(counts), options.seed, epoch, SHARDS)
    lanes = [
        [
            (shard, unit)
            for shard in shards[lane :: options.lanes]
            for unit in slow_visits(options, epoch, shard, windows[shard])
        ]
        for lane in range(options.lanes)
    ]
    shortest, longest = slow_lane_bounds(counts, options)
    if options.tail == "uneven":
        shortest, longest = min(map(len, lanes)), max(map(len, lanes))
    is_even = longest - shortest <= 0.01 * longest
    if not equal_lanes and (options.tail == "uneven" or is_even):
        return lanes, False
    flat = [sample for lane in lanes for sample in lane]
    each, rest = divmod(len(flat), options.lanes)
    cuts = [lane * each + min(lane, rest) for lane in range(options.lanes + 1)]
    if is_view and not is_even:
        return slow_evened(lanes, [end - begin for begin, end in pairwise(cuts)]), True
    return [flat[begin:end] for begin, end in pairwise(cuts)], True


def slow_evened(lanes, lengths):
    """Give what is too much for a lane to those that lack samples, first to those with the same number modulo much."""
    given = [lane[length:] for lane, length in zip(lanes, lengths, strict=True)]
    lanes = [lane[:length] for lane, length in zip(lanes, lengths, strict=True)]
    divisor = len(lanes)
    while divisor > 1:
        divisor //= next(prime for prime in range(2, divisor + 1) if divisor % prime == 0)
        for remainder in range(divisor):
            for giver in range(remainder, len(lanes), divisor):
                for taker in range(remainder, len(lanes), divisor):
                    while given[giver] and len(lanes[taker]) < lengths[taker]:
                        lanes[taker].append(given[giver].pop(0))
    return lanes


def slow_epoch(lanes):
    """Yield (shard, sample, pad) of positions 0, 1, 2, ...; an empty lane yields nameless pads."""
    offset = 0
    while True:
        for lane in lanes:
            pad = offset >= len(lane)
            place = -1 - (offset - len(lane)) % len(lane) if pad and lane else offset
            shard, sample = lane[place] if lane else (None, None)
            yield shard, sample, pad
        offset += 1
