"""Which rank reads what on a topology, and what a cluster needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from wdsplit.loading.reading.read_ahead import num_requests
from wdsplit.loading.reading.source import Source
from wdsplit.order.bundles import Groups, window_items
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps, World, assigned_lanes, readers_per_lane
from wdsplit.order.trace import Trace
from wdsplit.reporting.cluster import Cluster, Load, Topology
from wdsplit.reporting.subject import Subject

__all__ = ["loads"]


def loads(
    subject: Subject, topologies: Sequence[Topology], batch_size: int, cluster: Cluster, sample_ms: float
) -> list[Load]:
    """Return what the ranks of topologies read in an epoch, with the estimates for a cluster."""
    order, source = subject.order(0), subject.source
    if isinstance(source, Source):
        parts = [_Part(source.order(0), source, 1.0)]
    else:
        mixture: Any = source
        counts = zip(mixture.counts, subject.parts, strict=True)
        shares = [count / max(1, part.num_samples) for count, part in counts]
        orders = [mixture.order_of(number, 0, 0) for number in range(len(subject.parts))]
        parts = list(map(_Part, orders, subject.parts, shares))
    window_bytes = sum(map(subject.window_bytes, range(len(parts))))
    found = []
    for topology in topologies:
        world_size, workers = topology.world_size, max(1, topology.num_workers)
        world, lanes = World(0, world_size, 0, workers), order.options.lanes
        num_lanes, steps = len(assigned_lanes(lanes, world)), len(Steps(order, world, batch_size))
        read = sum(part.share * np.array(part.read(topology, num_lanes)) for part in parts)
        windows, all_windows, num_bytes, opened, fetched = np.asarray(read, np.float64).tolist()
        first_lanes = min(num_lanes * workers, batch_size)
        shards = parts[0].trace(world_size).shards_per_rank() if len(parts) == 1 else []
        found.append(
            Load(
                topology,
                cluster,
                batch_size,
                sample_ms,
                steps,
                num_bytes,
                requests=fetched + opened,
                start_requests=2 * len(parts) * world_size,
                first_bytes=min(first_lanes * window_bytes, num_bytes / world_size),
                first_requests=2 * first_lanes,
                pads=max(0, steps * batch_size * world_size - order.num_samples),
                readers_per_lane=readers_per_lane(lanes, world_size, workers),
                read_amplification=windows / all_windows if all_windows else 0.0,
                shards_per_rank=(min(shards), max(shards)) if shards else None,
                held_bytes=num_lanes * workers * window_bytes,
            )
        )
    return found


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

    def read(self, topology: Topology, num_lanes: int) -> tuple[float, ...]:
        """Return what all readers read: windows, out of how many, bytes and shards; and the requests for windows."""
        trace, workers = self.trace(topology.readers), max(1, topology.num_workers)
        windows, opened = trace.windows_read, sum(trace.shards_per_rank())
        num_bytes = windows / max(1, self._num_windows) * self._num_bytes
        units, sample_bytes = self._order.selection, self._source.sample_bytes
        items = window_items(units, min(self._order.options.window, int(self._order.counts.max(initial=0))))
        window_bytes = items * sample_bytes
        ahead_bytes = self._source.access.ahead_bytes(workers, num_lanes * window_bytes) / num_lanes
        if isinstance(units, Groups) and not units.block:  # a group's samples lie anywhere in their shard
            requests = num_requests(windows * items, opened, sample_bytes, ahead_bytes)
        else:
            requests = num_requests(windows, opened, window_bytes, ahead_bytes)
        return windows, self._num_windows, num_bytes, opened, requests
