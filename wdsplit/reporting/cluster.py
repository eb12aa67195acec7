"""A simple model of a cluster that trains on a dataset. Pure (no I/O).

`ASSUMPTIONS` lists its assumptions, which the report shows beside the results.
"""

from __future__ import annotations

from dataclasses import dataclass

from wdsplit.errors import InputError
from wdsplit.texts import counted

__all__ = ["ASSUMPTIONS", "DEFAULT_TOPOLOGIES", "Cluster", "Estimate", "Load", "Topology", "estimate"]

ASSUMPTIONS = (
    "All ranks of a node share its link evenly; nothing else uses it.",
    "Storage answers any number of requests, each after the latency. A rank has at most 64 requests in progress.",
    "With workers, reading, decoding and training overlap perfectly: a step takes as long as the slowest of the three.",
    "Without workers, the rank decodes between two steps, while only reading overlaps with training.",
    "A worker needs 0.1 ms per sample and 10 ms per megapixel of its images, unless --sample-ms says otherwise.",
    "Each worker has a processor of its own. Retries, evictions and slow nodes do not happen.",
)
"""The assumptions of the model, one sentence each."""

_LOWS = {
    **dict.fromkeys(("link_gbits", "step_ms"), 0.0),
    **dict.fromkeys(("latency_ms", "price_per_1000_requests", "price_per_gb"), -1.0),
}
"""What each number must be above; -1 stands for zero and more."""


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
        sample_ms: Milliseconds that a worker needs to decode and augment a sample; None for 0.1 ms, and 10 ms per
            megapixel of its images.
        ranks_per_node: Maximum number of ranks per node.
        connections: Number of concurrent requests per rank.
        price_per_1000_requests: Price of 1,000 requests, in US dollars.
        price_per_gb: Price per GB of downloads, in US dollars.
    """

    link_gbits: float = 10.0
    latency_ms: float = 30.0
    step_ms: float = 200.0
    sample_ms: float | None = None
    ranks_per_node: int = 8
    connections: int = 64
    price_per_1000_requests: float = 0.0004
    price_per_gb: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {getattr(self, name)}: expected {'a number above 0' if low == 0 else 'at least 0'}"
            for name, low in _LOWS.items()
            if not (getattr(self, name) > low if low == 0 else getattr(self, name) >= 0)
        ]
        problems += [
            f"{name} = {getattr(self, name)}: expected at least 1"
            for name in ("ranks_per_node", "connections")
            if getattr(self, name) < 1
        ]
        if self.sample_ms is not None and not self.sample_ms >= 0:
            problems.append(f"sample_ms = {self.sample_ms}: expected at least 0")
        if problems:
            raise InputError("invalid cluster", found="; ".join(problems))


@dataclass(frozen=True)
class Load:
    """The load of an epoch on storage and workers.

    Attributes:
        world_size: Ranks (W).
        num_workers: Workers of each rank; 0 reads in the rank's own process.
        steps: Steps of an epoch.
        batch_size: Samples per batch on each rank.
        bytes_read: Bytes that all ranks read in an epoch.
        requests: Requests of all ranks in an epoch.
        first_bytes: Bytes that a rank reads before its first batch.
        first_requests: Requests for these bytes.
        sample_ms: Milliseconds of a worker for each sample.
    """

    world_size: int
    num_workers: int
    steps: int
    batch_size: int
    bytes_read: float
    requests: float
    first_bytes: float
    first_requests: float
    sample_ms: float


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


def estimate(load: Load, cluster: Cluster) -> Estimate:
    """Return the estimate of an epoch on a cluster."""
    rank_bytes_per_s = cluster.link_gbits * 1e9 / 8 / min(load.world_size, cluster.ranks_per_node)
    steps, latency_s = max(1, load.steps), cluster.latency_ms / 1000
    link_s = load.bytes_read / load.world_size / steps / rank_bytes_per_s
    requests_s = load.requests / load.world_size / steps * latency_s / cluster.connections
    workers_s = load.batch_size * load.sample_ms / 1000 / max(1, load.num_workers)
    step_s = cluster.step_ms / 1000
    bounds = {"training": step_s, "link": link_s, "requests": requests_s, "decoding": workers_s}
    between_steps_s, beside_s = (0.0, workers_s) if load.num_workers else (workers_s, 0.0)
    overlapped_s = max(step_s, requests_s, beside_s)
    first_link_s = load.first_bytes / rank_bytes_per_s
    first_s = (
        first_link_s + 2 * latency_s + max(0.0, load.first_requests / cluster.connections - 2) * latency_s + workers_s
    )
    # The link does not carry again what it carried before the first batch.
    rest_s = max(load.steps * link_s - first_link_s, load.steps * overlapped_s) + load.steps * between_steps_s
    cost = load.requests / 1000 * cluster.price_per_1000_requests + load.bytes_read / 1e9 * cluster.price_per_gb
    return Estimate(
        epoch_s=first_s + rest_s,
        waiting=1 - load.steps * step_s / rest_s if load.steps else 0.0,
        first_batch_s=first_s,
        bound=max(bounds, key=lambda name: bounds[name]),
        cost=cost,
        link_s=link_s,
        requests_s=requests_s,
        workers_s=workers_s,
    )
