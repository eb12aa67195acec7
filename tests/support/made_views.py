"""Views of datasets of numbers, in whose shards the rows follow one another, and the epochs that they should give."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from orders import slow_epoch, slow_lanes, windows_of
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.selection import Selection
from wdsplit.order.units import Packing, Packs, Repeats
from wdsplit.order.views import View
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import write_view
from wdsplit.storage.opening import open_storage


class Rows(list):
    """The rows of a view, rising, each as often as it comes; and how they are laid out, by the kind of units.

    Where a shard has several, they are packed: neighbours in twos and threes, in blocks of five.
    """

    def __init__(self, rows, kind="select", is_packed=False):
        super().__init__(sorted(rows))
        self.kind, self.is_packed = kind, is_packed


def kind_of(rows):
    return rows.kind if isinstance(rows, Rows) else "select"


def view_of(path, rows, name="chosen"):
    """Return the view of some rows."""
    selection = selection_of(read_manifest(open_storage(path)).shards.num_real, rows)
    items, times = selection, Counter(rows)
    if kind_of(rows) != "select":
        items = Repeats(selection, np.array([times[row] for row in sorted(times)], np.uint16), rows.kind)
    if not is_packed(rows):
        return View(name, items)
    bins = [np.zeros(0, np.int64), *(np.arange(count) // 5 * 2 + np.arange(count) % 5 // 3 for count in items.counts)]
    return View(name, Packs(items, np.concatenate(bins).astype(np.uint16), 5, Packing(100, False)))


def is_packed(rows):
    return isinstance(rows, Rows) and rows.is_packed


def packs_of(windows):
    """Return the windows of a packed view of which these are the windows without packs: packs are tuples."""
    items = [*itertools.chain.from_iterable(windows)]
    blocks = [items[first : first + 5] for first in range(0, len(items), 5)]
    return [[tuple(each) for each in (block[:3], block[3:]) if each] for block in blocks]


def selection_of(counts, rows):
    mask = np.isin(np.arange(int(np.sum(counts))), list(rows))
    return Selection.of_masks(np.split(mask, np.cumsum(counts)[:-1]))


def store_view(path, name, rows):
    """Store the view of some rows; return its name."""
    storage = open_storage(path)
    write_view(storage, read_manifest(storage), name, view_of(path, rows).selection, {})
    return name


def expected_view(path, rows, epoch=0, seed=0, shuffle=True, tail="pad", lanes=None, window=None):
    """Give the deliveries of an epoch of a view, on and on: those of a dataset that holds no other rows."""
    manifest = read_manifest(open_storage(path))
    options = OrderOptions(seed, shuffle, lanes or manifest.lanes, window or manifest.window, tail)
    counts = manifest.shards.num_real.tolist()
    firsts = [0, *itertools.accumulate(counts)]
    chosen = [[row - first for row in rows if first <= row < stop] for first, stop in itertools.pairwise(firsts)]
    windows = [windows_of(each, kind_of(rows), options.window) for each in chosen]
    found, _ = slow_lanes(counts, options, epoch, list(map(packs_of, windows)) if is_packed(rows) else windows)
    for position, (shard, unit, pad) in enumerate(slow_epoch(found)):
        if shard is None:
            yield position, None, pad
        elif is_packed(rows):
            yield position, tuple(firsts[shard] + sample for sample in unit), pad
        else:
            yield position, firsts[shard] + unit, pad
