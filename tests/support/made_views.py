"""Views of datasets of numbers, in whose shards the rows follow one another, and the epochs that they should give."""

from __future__ import annotations

import itertools
from collections import Counter
from unittest.mock import patch

import numpy as np

from orders import GROUPINGS, slow_epoch, slow_groups, slow_lanes, windows_of
from wdsplit.order.bundles import Groups, Packing, Packs
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.selection import Selection
from wdsplit.order.units import Repeats
from wdsplit.order.views import View
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import read_view, write_view
from wdsplit.storage.opening import open_storage


class Rows(list):
    """The rows of a view, rising, each as often as it comes; and how they are laid out, by the kind of units.

    Where `form` is `packs`, neighbours are packed in twos and threes, in blocks of five; where it is one of GROUPINGS,
    every third item of a shard is of one class.
    """

    def __init__(self, rows, kind="select", form=None):
        super().__init__(sorted(rows))
        self.kind, self.form = kind, form


def kind_of(rows):
    return rows.kind if isinstance(rows, Rows) else "select"


def view_of(path, rows, name="chosen"):
    """Return the view of some rows."""
    selection = selection_of(read_manifest(open_storage(path)).shards.num_real, rows)
    items, times = selection, Counter(rows)
    if kind_of(rows) != "select":
        items = Repeats(selection, np.array([times[row] for row in sorted(times)], np.uint16), rows.kind)
    if form_of(rows) is None:
        return View(name, items)
    if rows.form in GROUPINGS:
        codes = np.concatenate([np.zeros(0, np.int64), *(np.arange(count) % 3 for count in items.counts)])
        return View(name, Groups(items, codes.astype(np.uint8), *GROUPINGS[rows.form]))
    bins = [np.zeros(0, np.int64), *(np.arange(count) // 5 * 2 + np.arange(count) % 5 // 3 for count in items.counts)]
    return View(name, Packs(items, np.concatenate(bins).astype(np.uint16), 5, Packing(100, False)))


def form_of(rows):
    return rows.form if isinstance(rows, Rows) else None


def formed(windows, form, words):
    """Return the windows of a view of packs or groups of which these are those without: units are tuples."""
    items = [*itertools.chain.from_iterable(windows)]
    if form in GROUPINGS:
        return slow_groups(items, [number % 3 for number in range(len(items))], *GROUPINGS[form], words)
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


def parted_view(path, rows, name):
    """Return the view of some rows, stored, and read by parts as one that is too large to be read whole."""
    store_view(path, name, rows)
    storage = open_storage(path)
    with patch("wdsplit.shards.views._WHOLE_BYTES", 0):
        return View(name, read_view(storage, read_manifest(storage), name)[1])


def expected_view(path, rows, epoch=0, seed=0, shuffle=True, tail="pad", lanes=None, window=None):
    """Give the deliveries of an epoch of a view, on and on: those of a dataset that holds no other rows."""
    manifest = read_manifest(open_storage(path))
    options = OrderOptions(seed, shuffle, lanes or manifest.lanes, window or manifest.window, tail)
    counts = manifest.shards.num_real.tolist()
    firsts = [0, *itertools.accumulate(counts)]
    chosen = [[row - first for row in rows if first <= row < stop] for first, stop in itertools.pairwise(firsts)]
    windows = [windows_of(each, kind_of(rows), options.window) for each in chosen]
    form = form_of(rows)
    if form is not None:
        words = (seed, epoch) if shuffle else None
        windows = [formed(each, form, words and (*words, shard)) for shard, each in enumerate(windows)]
    found, _ = slow_lanes(counts, options, epoch, windows)
    for position, (shard, unit, pad) in enumerate(slow_epoch(found)):
        if shard is None:
            yield position, None, pad
        elif form is not None:
            yield position, tuple(firsts[shard] + sample for sample in unit), pad
        else:
            yield position, firsts[shard] + unit, pad
