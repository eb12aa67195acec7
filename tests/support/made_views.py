"""Views of datasets of numbers, in whose shards the rows follow one another, and the epochs that they should give."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from orders import slow_epoch, slow_lanes
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.selection import Selection
from wdsplit.order.units import Repeats
from wdsplit.order.views import View
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import write_view
from wdsplit.storage.opening import open_storage


class Rows(list):
    """The rows of a view, rising, each as often as it comes; and how they are laid out, by the kind of units."""

    def __init__(self, rows, kind="select"):
        super().__init__(sorted(rows))
        self.kind = kind


def kind_of(rows):
    return rows.kind if isinstance(rows, Rows) else "select"


def view_of(path, rows, name="chosen"):
    """Return the view of some rows."""
    selection = selection_of(read_manifest(open_storage(path)).shards.num_real, rows)
    if kind_of(rows) == "select":
        return View(name, selection)
    times = Counter(rows)
    return View(name, Repeats(selection, np.array([times[row] for row in sorted(times)], np.uint16), rows.kind))


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
    found, _ = slow_lanes(counts, options, epoch, chosen, kind=kind_of(rows))
    for position, (shard, sample, pad) in enumerate(slow_epoch(found)):
        yield position, None if shard is None else firsts[shard] + sample, pad
