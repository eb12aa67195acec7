"""Which rank reads what on a topology, and what a cluster needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.loading.reading.read_ahead import num_requests
from wdsplit.loading.reading.source import Source
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps, World, assigned_lanes, readers_per_lane
from wdsplit.order.trace import Trace
from wdsplit.reporting.cluster import Cluster, Estimate, Load, Topology, estimate
from wdsplit.reporting.subject import Subject

__all__ = ["TopologyFacts", "topology_facts"]


@dataclass(frozen=True)
class TopologyFacts:
    """What the ranks of a topology read in an epoch.

    Attributes:
        topology: The topology.
        steps: Steps of each rank.
        pads: Repeated samples that fill up lanes and the last step.
        readers_per_lane: Readers that share a lane and read the same windows; 1 is the least.
        read_amplification: How often a window is read, on average.
        shards_per_rank: The fewest and the most shards that a rank reads from; None for a mixture.
        bytes_read: Bytes that all ranks read.
        requests: About how many requests all ranks send, if the dataset is in a store: two a rank for the manifest, one
            a shard for its index, and one for each run of neighbouring windows.
        held_bytes: Bytes of the windows that a rank keeps in memory.
        estimate: The estimate for a cluster.
    """

    topology: Topology
    steps: int
    pads: int
    readers_per_lane: int
    read_amplification: float
    shards_per_rank: tuple[int, int] | None
    bytes_read: float
    requests: float
    held_bytes: int
    estimate: Estimate


def topology_facts(
    subject: Subject, topologies: Sequence[Topology], batch_size: int, cluster: Cluster, sample_ms: float
) -> list[TopologyFacts]:
    """Return what the ranks of topologies read, and the estimates for a cluster."""
    order: Any = subject.order(0)
    source: Any = subject.source
    if subject.is_mixture:
        parts = [_Part(source.order_of(number, 0, 0), part) for number, part in enumerate(subject.parts)]
        shares = [count / max(1, part.num_samples) for count, part in zip(source.counts, subject.parts, strict=True)]
    else:
        parts, shares = [_Part(order, source)], [1.0]
    return [_facts(subject, parts, shares, each, batch_size, cluster, sample_ms) for each in topologies]


def _facts(
    subject: Subject,
    parts: Sequence[_Part],
    shares: Sequence[float],
    topology: Topology,
    batch_size: int,
    cluster: Cluster,
    sample_ms: float,
) -> TopologyFacts:
    order, world_size, workers = subject.order(0), topology.world_size, max(1, topology.num_workers)
    lanes = order.options.lanes
    steps = len(Steps(order, World(0, world_size, 0, workers), batch_size))
    reads = [part.read_by(topology.readers) for part in parts]
    windows, total, bytes_read, opened = (
        sum(share * float(getattr(read, name)) for share, read in zip(shares, reads, strict=True))
        for name in ("windows", "all_windows", "num_bytes", "shards_opened")
    )
    own_lanes = len(assigned_lanes(lanes, World(0, world_size, 0, workers)))
    window_bytes = sum(map(subject.window_bytes, range(len(parts))))
    fetched = (share * part.requests(topology) for share, part in zip(shares, parts, strict=True))
    requests = sum(fetched) + opened + 2 * len(parts) * world_size
    first_lanes = min(own_lanes * workers, batch_size)
    load = Load(
        world_size,
        topology.num_workers,
        steps,
        batch_size,
        bytes_read,
        requests,
        first_bytes=min(first_lanes * window_bytes, bytes_read / world_size),
        first_requests=2 * first_lanes,
        sample_ms=sample_ms,
    )
    return TopologyFacts(
        topology,
        steps,
        pads=max(0, steps * batch_size * world_size - order.num_samples),
        readers_per_lane=readers_per_lane(lanes, world_size, workers),
        read_amplification=windows / total if total else 0.0,
        shards_per_rank=parts[0].read_by(world_size).shards_each if len(parts) == 1 else None,
        bytes_read=bytes_read,
        requests=requests,
        held_bytes=own_lanes * workers * window_bytes,
        estimate=estimate(load, cluster),
    )


@dataclass(frozen=True)
class _Read:
    """What some readers read of an epoch of one part; in a mixture, of the part's own epoch."""

    windows: float
    all_windows: float
    num_bytes: float
    shards_opened: int
    shards_each: tuple[int, int]


class _Part:
    """An epoch of one dataset.

    Worker w of rank r takes the positions g with g mod (W N) = r + W w: as a rank of W N ranks would. So W ranks with N
    workers each read what W N ranks read, which is computed once.
    """

    def __init__(self, order: EpochOrder, source: Source) -> None:
        self._order = order
        self._num_bytes = source.manifest.num_bytes * order.num_samples / max(1, int(order.totals.sum()))
        self._all_windows = float(Trace(order, 1, 1).num_windows)
        self._source = source
        self._read: dict[int, _Read] = {}

    def requests(self, topology: Topology) -> float:
        """Return about how many requests fetch the windows."""
        workers, options = max(1, topology.num_workers), self._order.options
        num_lanes = len(assigned_lanes(options.lanes, World(0, topology.world_size, 0, workers)))
        window_bytes = min(options.window, int(self._order.totals.max(initial=0))) * self._source.sample_bytes
        ahead_bytes = self._source.access.ahead_bytes(workers, num_lanes * window_bytes)
        read = self.read_by(topology.readers)
        return num_requests(read.windows, read.shards_opened, window_bytes, ahead_bytes / num_lanes)

    def read_by(self, readers: int) -> _Read:
        """Return what this many readers read."""
        if readers not in self._read:
            found = Trace(self._order, readers, 1)
            shards, times = found.shards_per_rank(), found.read_amplification
            self._read[readers] = _Read(
                times * self._all_windows,
                self._all_windows,
                times * self._num_bytes,
                sum(shards),
                (min(shards), max(shards)),
            )
        return self._read[readers]
