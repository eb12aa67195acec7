"""The options of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wdsplit.conversion.plan.options import invalid_values, raise_if_any
from wdsplit.reporting.cluster import DEFAULT_TOPOLOGIES, Cluster, Topology

__all__ = ["ReportOptions"]

_MAX_TOPOLOGIES = 64


@dataclass(frozen=True)
class ReportOptions:
    """What a report shows.

    Attributes:
        seed: Seed of the order and of the samples that are drawn.
        shuffle: As for `Dataset`.
        samples: Number of samples on the contact sheet.
        class_field: Field with the classes. Default: one with class names, else cls.
        batch_size: Samples per batch on each rank.
        topologies: Combinations of ranks and workers to compare; by default also that of the conversion. The summary is
            for that of the conversion if listed, else for 8 ranks x 4 workers, else for the last.
        view: As for `Dataset`, but only one view: report only its samples.
        where: As for `Dataset`: report only the samples that meet this condition.
        version: As for `Dataset`; of one dataset.
        max_read: Read datasets up to this size completely, such as "1GB", and sample larger ones. Default: 256 MiB, or
            64 MiB of a remote dataset.
        cluster: Assumptions of the cluster model.
        join: As for `Dataset`: annotations whose fields are shown too.
    """

    seed: int = 0
    shuffle: bool = True
    samples: int = field(default=24, metadata={"low": 0, "high": 200})
    class_field: str | None = None
    batch_size: int = field(default=64, metadata={"low": 1, "high": 2**20})
    topologies: Sequence[Topology] = DEFAULT_TOPOLOGIES
    max_read: int | str | None = None
    cluster: Cluster = field(default_factory=Cluster)
    view: Any = None
    where: Any = None
    join: Sequence[str] = ()
    version: int | None = None

    def __post_init__(self) -> None:
        problems = invalid_values(self)
        if not 1 <= len(self.topologies) <= _MAX_TOPOLOGIES:
            problems.append(f"{len(self.topologies)} topologies: expected 1 to {_MAX_TOPOLOGIES}")
        raise_if_any(problems)
