"""The facts of a report, as plain values without HTML and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wdsplit.arrays import Int64
from wdsplit.checks.audit import AuditReport
from wdsplit.loading.reading.source import Source
from wdsplit.reporting.cluster import Cluster, Load
from wdsplit.reporting.fields import Duplicates, FieldFacts
from wdsplit.reporting.labels import Labels
from wdsplit.reporting.mixing import BatchMix, Meeting, RankView
from wdsplit.reporting.samples import Card

__all__ = ["Facts", "ShardFacts"]


@dataclass(frozen=True)
class ShardFacts:
    """The shards, in their order: each row of the arrays is a range of them.

    Attributes:
        shards_a_row: Shards of a range.
        samples: int64 of shape (rows,): samples of each range, without pads.
        pads: int64 of shape (rows,).
        num_bytes: int64 of shape (rows,).
        limits: Bytes of the smallest, the median and the largest shard.
    """

    shards_a_row: int
    samples: Int64
    pads: Int64
    num_bytes: Int64
    limits: tuple[int, int, int]


@dataclass(frozen=True)
class Facts:
    """All facts of a report.

    Attributes:
        name: The name of the dataset, with its view.
        parts: The datasets: one, or those of a mixture.
        num_samples: Samples of an epoch, or packs.
        contents: The same as text, of packs or groups with the number of samples in them.
        is_grouped: Whether an epoch has groups: batches of samples that are alike on purpose.
        units: How well packs or groups are filled, in lines; empty if there are none.
        num_scanned: Samples that were read.
        scan_basis: `exact`, or how many samples were read.
        labels: The classes; None if no field holds any.
        fields: The contents of each field.
        duplicates: Payloads that appear twice; None if there is nothing to compare.
        shards: The shards.
        cards: The contact sheet.
        odd_cards: Samples that stand out.
        keys: The keys of samples that are named, by their rows in what was read.
        numbers: Their numbers in the dataset.
        batch_size: Samples per batch on each rank.
        global_batch: Samples of a step over all ranks, for `meetings`.
        is_shuffled: Whether the conversion of each part shuffled its rows.
        mixed_names: The classes of `rank_view` and `batches`, or tenths of the files in their place.
        mixing_basis: Whether the figures of batches are exact, or how much was sampled.
        batches: How well batches are mixed, by the number of ranks.
        rank_view: What rank 0 gets; None if an epoch has no whole step.
        meetings: How often samples meet again, for lanes and windows; none for mixtures.
        topologies: What the ranks of each requested topology read, with the estimates for the cluster.
        judged: The topology of the summary.
        cluster: The cluster of the model.
        audit: What the audit found; None if it was left out.
        audit_note: Why it was left out, or the topology that it is for.
    """

    name: str
    parts: tuple[Source, ...]
    num_samples: int
    contents: str
    is_grouped: bool
    units: tuple[str, ...]
    num_scanned: int
    scan_basis: str
    labels: Labels | None
    fields: tuple[FieldFacts, ...]
    duplicates: Duplicates | None
    shards: ShardFacts
    cards: tuple[Card, ...]
    odd_cards: tuple[Card, ...]
    keys: Mapping[int, str]
    numbers: Mapping[int, int]
    batch_size: int
    global_batch: int
    is_shuffled: bool
    mixed_names: tuple[str, ...]
    mixing_basis: str
    batches: tuple[BatchMix, ...]
    rank_view: RankView | None
    meetings: tuple[Meeting, ...]
    topologies: tuple[Load, ...]
    judged: Load
    cluster: Cluster
    audit: AuditReport | None
    audit_note: str

    def total(self, name: str) -> int:
        """Return the sum of an attribute over the manifests of all parts, such as `num_bytes`."""
        return sum(int(getattr(part.manifest, name)) for part in self.parts)

    @property
    def num_shards(self) -> int:
        """Shards of all parts."""
        return sum(len(part.manifest.shards) for part in self.parts)
