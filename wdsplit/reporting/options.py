"""What a report looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wdsplit.errors import InputError
from wdsplit.reporting.cluster import DEFAULT_TOPOLOGIES, Cluster, Topology

__all__ = ["ReportOptions"]

_MAX_TOPOLOGIES = 64


@dataclass(frozen=True)
class ReportOptions:
    """What a report looks at.

    Attributes:
        seed: Seed of the order, and of what is drawn.
        shuffle: As of `Dataset`.
        samples: Samples of the contact sheet.
        label: The field that holds the classes; None to find out.
        batch_size: Samples a batch and rank.
        topologies: Ranks and workers that are compared; the first screen speaks of 8 ranks x 4 workers if that is
            among them, else of the last.
        view: As of `Dataset`, one view: report what is in it.
        where: As of `Dataset`: report what is in the samples that meet a condition.
        max_read: Bytes of shards that are read, such as "1GB"; None for 256 MiB, or 64 MiB of a remote dataset. A
            larger dataset is sampled.
        cluster: What the model of a cluster takes for granted.
    """

    seed: int = 0
    shuffle: bool = True
    samples: int = 24
    label: str | None = None
    batch_size: int = 64
    topologies: Sequence[Topology] = DEFAULT_TOPOLOGIES
    max_read: int | str | None = None
    cluster: Cluster = field(default_factory=Cluster)
    view: Any = None
    where: Any = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {getattr(self, name)}: expected {low} to {high:,}"
            for name, low, high in (("samples", 0, 200), ("batch_size", 1, 2**20))
            if not low <= getattr(self, name) <= high
        ]
        if not 1 <= len(self.topologies) <= _MAX_TOPOLOGIES:
            problems.append(f"{len(self.topologies)} topologies: expected 1 to {_MAX_TOPOLOGIES}")
        if problems:
            raise InputError("invalid report options", found="; ".join(problems))
