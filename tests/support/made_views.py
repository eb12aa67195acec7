"""Views of datasets of numbers, in whose shards the rows follow one another, and the epochs that they should give."""

from __future__ import annotations

import itertools

import numpy as np

from orders import slow_epoch, slow_lanes
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.selection import Selection
from wdsplit.order.views import View
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import write_view
from wdsplit.storage.opening import open_storage


def view_of(path, rows, name="chosen"):
    """Return the view of some rows."""
    counts = read_manifest(open_storage(path)).shards.num_real
    return View(name, selection_of(counts, rows))


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
    chosen = [[row - first for row in range(first, stop) if row in rows] for first, stop in itertools.pairwise(firsts)]
    found, _ = slow_lanes(counts, options, epoch, chosen)
    for position, (shard, sample, pad) in enumerate(slow_epoch(found)):
        yield position, None if shard is None else firsts[shard] + sample, pad
