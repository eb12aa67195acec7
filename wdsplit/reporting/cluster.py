"""A simple model of a cluster that trains on a dataset. Pure (no I/O).

`ASSUMPTIONS` lists its assumptions, which the report shows beside the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from wdsplit.errors import InputError
from wdsplit.texts import counted

__all__ = ["ASSUMPTIONS", "DEFAULT_TOPOLOGIES", "Cluster", "Estimate", "Load", "Topology"]

ASSUMPTIONS = (
    "All ranks of a node share its link evenly; nothing else uses it.",
    "Storage answers any number of requests, each after the latency. A rank has at most 64 requests in progress.",
    "With workers, reading, decoding and training overlap perfectly: a step takes as long as the slowest of the three.",
    "Without workers, the rank decodes between two steps, while only reading overlaps with training.",
    "A worker needs 0.1 ms per sample and 10 ms per megapixel of its images, unless --sample-ms says otherwise.",
    "Each worker has a processor of its own. Retries do not happen.",
    "Each step waits for the node with the slowest link. No epoch but those in the column of caches has a cache.",
)
"""The assumptions of the model, one sentence each."""

_VALID: tuple[tuple[str, Callable[[float], bool], tuple[str, ...]], ...] = (
    ("a number above 0", lambda value: value > 0, ("link_gbits", "step_ms")),
    ("at least 0", lambda value: value >= 0, ("latency_ms", "sample_ms", "price_per_1000_requests", "price_per_gb")),
    ("at least 1", lambda value: value >= 1, ("ranks_per_node", "connections", "slow_link")),
)
"""What the numbers of a cluster must be."""

_MAX_READERS = 2**16


@dataclass(frozen=True, order=True)
class Topology:
    """Numbers of ranks and workers.

    Attributes:
        world_size: Ranks (W).
        num_workers: Workers of each rank (N); 0 reads in the rank's own process.
    """

    world_size: int
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1 or self.num_workers < 0 or self.readers > _MAX_READERS:
            raise InputError(
                "invalid topology",
                expected=f"at least 1 rank, at least 0 workers, at most {_MAX_READERS:,} readers together",
                found=str(self),
            )

    def __str__(self) -> str:
        return f"{counted(self.world_size, 'rank')} x {counted(self.num_workers, 'worker')}"

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Parse `8x4`: 8 ranks, 4 workers each.

            print(wdsplit.Topology.parse("8x4"))  # 8 ranks x 4 workers

        Raises:
            InputError: It is not a topology.
        """
        parts = text.lower().split("x")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
            raise InputError("invalid topology", expected="ranks x workers, such as 8x4", found=text)
        return cls(*map(int, parts))

    @property
    def readers(self) -> int:
        """Processes that read."""
        return self.world_size * max(1, self.num_workers)


DEFAULT_TOPOLOGIES = tuple(Topology(ranks, workers) for ranks in (1, 2, 8, 64) for workers in (0, 4))


@dataclass(frozen=True)
class Cluster:
    """The parameters of the cluster model.

    Attributes:
        link_gbits: Bandwidth between a node and the storage (or a disk), in Gbit/s.
        latency_ms: Milliseconds until the first byte of a request.
        step_ms: Milliseconds per training step, without waiting for data.
        sample_ms: Milliseconds that a worker needs to decode and augment a sample. Default: 0.1, and 10 per megapixel
            of its images.
        ranks_per_node: Maximum number of ranks that share a node's link.
        connections: Number of concurrent requests per rank.
        slow_link: How many times slower than the others the slowest node's link is.
        price_per_1000_requests: Price of 1,000 requests, in US dollars.
        price_per_gb: Price per GB of downloads, in US dollars.
    """

    link_gbits: float = 10.0
    latency_ms: float = 30.0
    step_ms: float = 200.0
    sample_ms: float | None = None
    ranks_per_node: int = 8
    connections: int = 64
    slow_link: float = 1.0
    price_per_1000_requests: float = 0.0004
    price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        values = {**vars(self), "sample_ms": self.sample_ms or 0.0}
        problems = [
            f"{name} = {values[name]}: expected {expected}"
            for expected, is_valid, names in _VALID
            for name in names
            if not is_valid(values[name])
        ]
        if problems:
            raise InputError("invalid cluster", found="; ".join(problems))


@dataclass(frozen=True)
class Estimate:
    """The estimate of an epoch.

    Attributes:
        epoch_s: Seconds of an epoch.
        waiting: The share of the time after the first batch in which GPUs wait for data.
        first_batch_s: Seconds to the first batch.
        bound: What is slowest: training, link, requests or decoding.
        cost: The price of an epoch's requests and bytes, in US dollars.
        link_s: Seconds that the link takes for the bytes of a rank and step.
        requests_s: Seconds that the requests of a rank and step take.
        workers_s: Seconds that the workers of a rank take for a batch.
    """

    epoch_s: float
    waiting: float
    first_batch_s: float
    bound: str
    cost: float
    link_s: float
    requests_s: float
    workers_s: float


@dataclass(frozen=True)
class Load:
    """What the ranks of a topology read in an epoch, and the estimate for a cluster.

    Attributes:
        topology: The topology.
        cluster: The cluster of the estimate.
        num_decoded: Samples of a batch on each rank, of packs and groups on average.
        sample_ms: Milliseconds of a worker for each sample.
        steps: Steps of each rank.
        bytes_read: Bytes that all ranks read.
        requests: About how many requests all ranks send in an epoch, if the dataset is in a store: one a shard for its
            places, and one for each run of neighbouring windows.
        cached_bytes: Bytes that all nodes fetch in each of the epochs 0 to 3, if each keeps all shards it has read:
            a cache fetches whole shards. None for a mixture.
        start_requests: Requests that all ranks send once, before their first epoch: two a rank for the manifest.
        first_bytes: Bytes that a rank reads before its first batch.
        first_requests: Requests for these bytes.
        pads: Repeated samples that fill up lanes and the last step.
        readers_per_lane: Readers that share a lane and read the same windows; 1 is the least.
        read_amplification: How often a window is read, on average.
        shards_per_rank: The fewest and the most shards that a rank reads from; None for a mixture.
        held_bytes: Bytes of the windows that a rank keeps in memory.
    """

    topology: Topology
    cluster: Cluster
    num_decoded: float
    sample_ms: float
    steps: int
    bytes_read: float
    requests: float
    start_requests: int
    first_bytes: float
    first_requests: float
    cached_bytes: tuple[float, ...] | None = None
    pads: int = 0
    readers_per_lane: int = 1
    read_amplification: float = 1.0
    shards_per_rank: tuple[int, int] | None = None
    held_bytes: int = 0

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate of the epoch."""
        cluster, world_size, workers = self.cluster, self.topology.world_size, self.topology.num_workers
        rank_bytes_per_s = cluster.link_gbits * 1e9 / 8 / min(world_size, cluster.ranks_per_node) / cluster.slow_link
        steps, latency_s = max(1, self.steps), cluster.latency_ms / 1000
        link_s = self.bytes_read / world_size / steps / rank_bytes_per_s
        requests_s = self.requests / world_size / steps * latency_s / cluster.connections
        workers_s = self.num_decoded * self.sample_ms / 1000 / max(1, workers)
        step_s = cluster.step_ms / 1000
        bounds = {"training": step_s, "link": link_s, "requests": requests_s, "decoding": workers_s}
        between_steps_s, beside_s = (0.0, workers_s) if workers else (workers_s, 0.0)
        overlapped_s = max(step_s, requests_s, beside_s)
        first_link_s = self.first_bytes / rank_bytes_per_s
        first_requests_s = max(0.0, self.first_requests / cluster.connections - 2) * latency_s
        first_s = first_link_s + 2 * latency_s + first_requests_s + workers_s
        # The link does not carry again what it carried before the first batch.
        rest_s = max(self.steps * link_s - first_link_s, self.steps * overlapped_s) + self.steps * between_steps_s
        return Estimate(
            epoch_s=first_s + rest_s,
            waiting=1 - self.steps * step_s / rest_s if self.steps else 0.0,
            first_batch_s=first_s,
            bound=max(bounds, key=lambda name: bounds[name]),
            cost=self.requests / 1000 * cluster.price_per_1000_requests + self.bytes_read / 1e9 * cluster.price_per_gb,
            link_s=link_s,
            requests_s=requests_s,
            workers_s=workers_s,
        )
