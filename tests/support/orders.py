"""Epoch orders for the tests, and the order told again: slow, in plain Python, straight from DESIGN section 6."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from wdsplit.order.epoch import EpochOrder, OrderOptions

GOLDEN_RATIO = 0x9E3779B97F4A7C15
SHARDS, WINDOWS, SAMPLES = 1, 2, 3
TAILS = ("pad", "drop", "uneven")

counts = st.lists(st.integers(0, 12), max_size=12) | st.lists(st.integers(199, 201), max_size=8)
tails = st.sampled_from(TAILS)


def options(tail="pad", lanes=4, window=4, shuffle=True, seed=0):
    return OrderOptions(seed, shuffle, lanes, window, tail)


def epoch_order(counts, epoch=0, **others):
    return EpochOrder(np.array(counts, np.int64), options(**others), epoch)


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


def real_positions(order):
    positions = np.arange(order.num_positions)
    return positions[order.is_real(positions)]


def located(order, positions):
    """Return (shard, sample, pad) of each position."""
    found = order.locate(np.asarray(positions, np.int64))
    return list(zip(found.shard.tolist(), found.sample.tolist(), found.pad.tolist(), strict=True))


def every_sample(order):
    return sorted((shard, sample) for shard, count in enumerate(order.counts.tolist()) for sample in range(count))


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


def slow_visits(options, epoch, shard, count):
    """Return the samples of a shard in the order of their visits."""
    windows = [list(range(first, min(first + options.window, count))) for first in range(0, count, options.window)]
    if options.shuffle:
        windows = [
            [
                windows[number][i]
                for i in slow_permutation(len(windows[number]), options.seed, epoch, SAMPLES, shard, number)
            ]
            for number in slow_permutation(len(windows), options.seed, epoch, WINDOWS, shard)
        ]
    return [sample for window in windows for sample in window]


def slow_lane_bounds(counts, options):
    """Return how short and how long a lane of whole shards can be, in any epoch."""
    if not options.shuffle:
        lengths = [sum(counts[lane :: options.lanes]) for lane in range(options.lanes)]
        return min(lengths), max(lengths)
    sizes = [len(range(lane, len(counts), options.lanes)) for lane in range(options.lanes)]
    return sum(sorted(counts)[: min(sizes)]), sum(sorted(counts, reverse=True)[: max(sizes)])


def slow_lanes(counts, options, epoch):
    """Return the lanes, each the (shard, sample) pairs that it holds, and whether they were cut again."""
    shards = list(range(len(counts)))
    if options.shuffle:
        shards = slow_permutation(len(counts), options.seed, epoch, SHARDS)
    lanes = [
        [
            (shard, sample)
            for shard in shards[lane :: options.lanes]
            for sample in slow_visits(options, epoch, shard, counts[shard])
        ]
        for lane in range(options.lanes)
    ]
    shortest, longest = slow_lane_bounds(counts, options)
    if options.tail == "uneven" or longest - shortest <= 0.01 * longest:
        return lanes, False
    flat = [sample for lane in lanes for sample in lane]
    each, rest = divmod(len(flat), options.lanes)
    cuts = [lane * each + min(lane, rest) for lane in range(options.lanes + 1)]
    return [flat[begin:end] for begin, end in pairwise(cuts)], True


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
