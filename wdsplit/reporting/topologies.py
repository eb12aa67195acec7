"""Which rank reads what on a topology, and what a cluster needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np

from wdsplit.loading.reading.source import Source
from wdsplit.order.bundles import window_items
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps, World, assigned_lanes, readers_per_lane
from wdsplit.order.trace import Trace
from wdsplit.reporting.cluster import Cluster, Load, Topology
from wdsplit.reporting.subject import Subject

__all__ = ["loads"]

_MIN_RANKS, _MAX_RANKS, _MAX_COUNTED = 5, 12, 200_000
"""Ranks whose requests are counted, as many as have so many positions together. A rank's positions after those that are
counted are taken to be like their second half."""
_CACHED_NODES, _CACHED_EPOCHS = 4, 4
_APART = 0.618
"""The ranks are so far apart, in worlds: in the golden section, they are at different places of any pattern."""


def loads(
    subject: Subject, topologies: Sequence[Topology], batch_size: int, cluster: Cluster, sample_ms: float
) -> list[Load]:
    """Return what the ranks of topologies read in an epoch, with the estimates for a cluster."""
    source, parts, found = subject.source, _parts(subject), list[Load]()
    order, window_bytes = source.order(0), sum(map(_window_bytes, subject.parts))
    for topology in topologies:
        world_size, workers, lanes = topology.world_size, max(1, topology.num_workers), order.options.lanes
        world = World(0, world_size, 0, workers)
        num_lanes, steps = len(assigned_lanes(lanes, world)), len(Steps(order, world, batch_size))
        read = sum(part.share * np.array(part.read(topology)) for part in parts)
        windows, all_windows, num_bytes, opened, fetched = np.asarray(read, np.float64).tolist()
        first_lanes = min(num_lanes * workers, batch_size)
        shards = parts[0].trace(world_size).shards_per_rank() if len(parts) == 1 else []
        cached = _cached_bytes(source, topology, cluster.ranks_per_node) if isinstance(source, Source) else None
        load = Load(
            topology,
            cluster,
            batch_size * source.samples_a_position(0),
            sample_ms,
            steps,
            num_bytes,
            requests=fetched + opened,
            start_requests=2 * len(parts) * world_size,
            first_bytes=min(first_lanes * window_bytes, num_bytes / world_size),
            first_requests=2 * first_lanes,
            cached_bytes=cached,
            pads=max(0, steps * batch_size * world_size - order.num_samples),
            readers_per_lane=readers_per_lane(lanes, world_size, workers),
            read_amplification=windows / all_windows if all_windows else 0.0,
            shards_per_rank=(min(shards), max(shards)) if shards else None,
            held_bytes=num_lanes * workers * window_bytes,
        )
        found.append(load)
    return found


def _parts(subject: Subject) -> list[_Part]:
    """Return the epochs of the datasets of a subject, with the share of each that is read."""
    source = subject.source
    if isinstance(source, Source):
        return [_Part(source.order(0), source, 1.0)]
    mixture: Any = source
    return [
        _Part(mixture.order_of(number, 0, 0), part, count / max(1, part.num_samples))
        for number, (part, count) in enumerate(zip(subject.parts, mixture.counts_at(0), strict=True))
    ]


def _window_bytes(source: Source) -> int:
    """Return about how many bytes a window of a dataset has."""
    largest = int(source.manifest.shards.num_real.max(initial=0))
    return min(window_items(source.selection_at(0), source.options.window), largest) * source.sample_bytes


def _cached_bytes(source: Source, topology: Topology, ranks_per_node: int) -> tuple[float, ...]:
    """Return `Load.cached_bytes`, from those of up to four nodes."""
    world_size, num_workers = topology.world_size, max(1, topology.num_workers)
    num_nodes, sizes = -(-world_size // ranks_per_node), source.manifest.shards.column("num_bytes").astype(np.float64)
    nodes = sorted({int(number * num_nodes / _CACHED_NODES) for number in range(_CACHED_NODES)})
    kept, fetched = np.zeros((len(nodes), len(sizes)), bool), list[float]()
    for epoch in range(_CACHED_EPOCHS):
        trace, before = Trace(source.order(epoch), world_size, num_workers), kept.copy()
        for node, own in zip(nodes, kept, strict=True):
            for rank in range(node * ranks_per_node, min(world_size, (node + 1) * ranks_per_node)):
                for worker in range(num_workers):
                    own[trace.shards(rank, worker)] = True
        fetched.append(float(((kept & ~before) @ sizes).mean() * num_nodes))
    return tuple(fetched)


class _Part:
    """An epoch of one dataset; in a mixture, the part's own epoch, of which a share is read.

    W ranks with N workers each read what W N ranks read, which is computed once.
    """

    def __init__(self, order: EpochOrder, source: Source, share: float) -> None:
        self._order, self._source, self.share = order, source, share
        num_read = order.num_samples * source.samples_a_position(0)
        self._num_bytes = source.manifest.num_bytes * num_read / max(1, int(order.totals.sum()))
        self.trace = cache(partial(Trace, order))
        self._num_windows = self.trace(1).num_windows

    def read(self, topology: Topology) -> tuple[float, ...]:
        """Return what all readers read: windows, out of how many, bytes and shards; and the requests for windows."""
        trace, world_size = self.trace(topology.readers), topology.world_size
        windows, opened = trace.windows_read, sum(trace.shards_per_rank())
        num_each = self._order.num_positions // topology.readers + 1
        num_ranks = min(world_size, max(_MIN_RANKS, min(_MAX_RANKS, _MAX_COUNTED // num_each)))
        ranks = sorted({int(number * world_size * _APART) % world_size for number in range(num_ranks)})
        each = [self._counted(topology, rank, _MAX_COUNTED // num_ranks) for rank in ranks]
        requests, num_bytes, of = np.sum(each, axis=0)
        # Windows that several readers read are larger than others.
        read_bytes = self._num_bytes if windows == self._num_windows else windows * num_bytes / max(1.0, of)
        return windows, self._num_windows, read_bytes, opened, windows * requests / max(1.0, of)

    def _counted(self, topology: Topology, rank: int, most: int) -> Any:
        """Return the requests of a rank's first reader, their bytes and their windows; count `most` positions."""
        world = World(rank, topology.world_size, 0, max(1, topology.num_workers))
        lists = max(2, most // self._source.positions_at_once(world, self._order.epoch, True))
        seen = np.array([(0, 0, 0), *islice(self._source.counted(self._order, world), lists)], np.float64)
        if len(seen) <= lists:
            return seen[-1]
        last, before = seen[-1], seen[lists // 2]
        more = self.trace(topology.readers).windows_read / topology.readers - last[2]
        return last + (last - before) / max(1, last[2] - before[2]) * more
