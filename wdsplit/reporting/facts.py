"""The facts of a report, as plain values without HTML and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.checks.audit import AuditReport
from wdsplit.reporting.cluster import Cluster
from wdsplit.reporting.fields import Duplicates, FieldFacts
from wdsplit.reporting.labels import Labels
from wdsplit.reporting.mixing import BatchMix, Meeting, Neighbours, RankView
from wdsplit.reporting.samples import Card
from wdsplit.reporting.topologies import TopologyFacts

__all__ = ["Facts", "MixingFacts", "PartFacts", "ReadingFacts", "ShardFacts", "ShownFacts"]


@dataclass(frozen=True)
class PartFacts:
    """One of the datasets of a report.

    Attributes:
        name: Its URL, without secrets.
        fingerprint: What identifies its content.
        num_samples: Samples, without pads; in a view, the selected ones.
        num_pads: Repeated samples that fill up shards.
        num_shards: Shards.
        num_bytes: Bytes of all shards.
        lanes: Lanes (C).
        window: Samples of a window (Q).
        provenance: Inputs, options and versions of the conversion.
        num_stored: Samples of all its shards, without pads.
    """

    name: str
    fingerprint: str
    num_samples: int
    num_pads: int
    num_shards: int
    num_bytes: int
    lanes: int
    window: int
    provenance: Mapping[str, Any]
    num_stored: int


@dataclass(frozen=True)
class ShardFacts:
    """The shards, in their order: each row of the arrays is a range of them.

    Attributes:
        shards_a_row: Shards of a range.
        samples: int64 of shape (rows,): samples of each range, without pads.
        pads: int64 of shape (rows,).
        num_bytes: int64 of shape (rows,).
        smallest: Bytes of the smallest shard.
        median: Bytes of the median shard.
        largest: Bytes of the largest shard.
    """

    shards_a_row: int
    samples: Int64
    pads: Int64
    num_bytes: Int64
    smallest: int
    median: int
    largest: int


@dataclass(frozen=True)
class MixingFacts:
    """How well an epoch is mixed.

    Attributes:
        is_shuffled: Whether the conversion of each part shuffled its rows.
        names: The classes of `rank_view` and `batches`, or tenths of the files in their place.
        basis: Whether the figures of batches are exact, or how much was sampled.
        batches: How well batches are mixed, by the number of ranks.
        rank_view: What rank 0 gets; None if an epoch has no whole step.
        neighbours: How far neighbours are apart; None for mixtures.
        meetings: How often samples meet again, for lanes and windows; none for mixtures.
        global_batch: Samples of a step over all ranks, for `meetings`.
    """

    is_shuffled: bool
    names: tuple[str, ...]
    basis: str
    batches: tuple[BatchMix, ...]
    rank_view: RankView | None
    neighbours: Neighbours | None
    meetings: tuple[Meeting, ...]
    global_batch: int


@dataclass(frozen=True)
class ReadingFacts:
    """Which rank reads what, and the estimates for a cluster.

    Attributes:
        topologies: Each requested topology.
        judged: The topology of the summary.
        cluster: The cluster of the model.
        sample_ms: Milliseconds of a worker for a sample, in the model.
    """

    topologies: tuple[TopologyFacts, ...]
    judged: TopologyFacts
    cluster: Cluster
    sample_ms: float


@dataclass(frozen=True)
class ShownFacts:
    """Samples that are shown.

    Attributes:
        cards: The contact sheet.
        odd_cards: Samples that stand out.
        keys: The keys of samples that are named, by their rows in what was read.
        numbers: Their numbers in the dataset.
    """

    cards: tuple[Card, ...]
    odd_cards: tuple[Card, ...]
    keys: Mapping[int, str]
    numbers: Mapping[int, int]


@dataclass(frozen=True)
class Facts:
    """All facts of a report.

    Attributes:
        name: The name of the dataset, with its view.
        parts: The datasets: one, or those of a mixture.
        num_samples: Samples of an epoch.
        num_bytes: Bytes of all shards.
        num_scanned: Samples that were read.
        scan_basis: `exact`, or how many samples were read.
        labels: The classes; None if no field holds any.
        shard_classes: float64 of shape (classes, ranges of shards): the share of each class; None without classes.
        fields: The contents of each field.
        duplicates: Payloads that appear twice; None if there is nothing to compare.
        shards: The shards.
        shown: Samples that are shown.
        batch_size: Samples per batch on each rank.
        mixing: How well an epoch is mixed.
        reading: Which rank reads what, and the estimates for a cluster.
        audit: What the audit found; None if it was left out.
        audit_note: Why it was left out, or the topology that it is for.
    """

    name: str
    parts: tuple[PartFacts, ...]
    num_samples: int
    num_bytes: int
    num_scanned: int
    scan_basis: str
    labels: Labels | None
    shard_classes: npt.NDArray[np.float64] | None
    fields: tuple[FieldFacts, ...]
    duplicates: Duplicates | None
    shards: ShardFacts
    shown: ShownFacts
    batch_size: int
    mixing: MixingFacts
    reading: ReadingFacts
    audit: AuditReport | None
    audit_note: str
