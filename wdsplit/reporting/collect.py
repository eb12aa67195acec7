"""The facts of a report, as plain values without HTML and pictures; and their collection: reading, then counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wdsplit.checks.mixing import ClassMixing, Mixing, class_mixing, draw_batches, mixing
from wdsplit.checks.samples import spread_numbers
from wdsplit.loading.reading.source import Source, name_with_view
from wdsplit.order.bundles import Grouping
from wdsplit.order.epoch import EpochOrder
from wdsplit.reporting.cluster import DEFAULT_TOPOLOGIES, Cluster, Load, Topology
from wdsplit.reporting.fields import Duplicates, FieldFacts, duplicates, field_facts
from wdsplit.reporting.labels import Labels, codes_by_number, labels_of
from wdsplit.reporting.options import ReportOptions
from wdsplit.reporting.samples import Card, cards
from wdsplit.reporting.scan import Scan, scan
from wdsplit.reporting.subject import Subject
from wdsplit.reporting.topologies import loads
from wdsplit.shards.views import described_units
from wdsplit.sizes import parse_size
from wdsplit.texts import human_bytes, human_number, safe_text

__all__ = ["Facts", "collected"]

_MAX_READ, _MAX_READ_REMOTE = 256 * 1024**2, 64 * 1024**2
_MAX_LABELS, _ALL_LABELS = 2**10, 2**19
"""How many samples' classes to look up for a figure: if labels are read from shards, and if all are in memory."""
_RANKS = 1, 2, 4, 8
_JUDGED = Topology(8, 4)
_UNNAMED = 1, 1
"""Ranks and workers of a conversion whose options name none."""
_MAX_ODD_CARDS = 24
_DECODE_MS, _DECODE_MS_A_MEGAPIXEL = 0.1, 10.0


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
        num_in_view: Samples of all parts, in a view those that it selects; each once, pads left out.
        num_scanned: Samples that were read.
        scan_basis: `exact`, or how many samples were read.
        labels: The classes; None if no field holds any.
        fields: The contents of each field.
        duplicates: Payloads that appear twice; None if there is nothing to compare.
        cards: The contact sheet.
        odd_cards: Samples that stand out.
        keys: The keys of samples that are named, by their rows in what was read.
        numbers: Their numbers in the dataset.
        batch_size: Samples per batch on each rank.
        global_batch: Samples of a step over all ranks, for `meeting`.
        batches: How well classes are mixed in batches, by the number of ranks; empty without classes.
        meeting: How often samples of a step meet again in the next epoch; None for mixtures, or without a shuffle.
        topologies: What the ranks of each requested topology read, with the estimates for the cluster.
        judged: The topology of the summary.
    """

    name: str
    parts: tuple[Source, ...]
    num_samples: int
    contents: str
    is_grouped: bool
    units: tuple[str, ...]
    num_in_view: int
    num_scanned: int
    scan_basis: str
    labels: Labels | None
    fields: tuple[FieldFacts, ...]
    duplicates: Duplicates | None
    cards: tuple[Card, ...]
    odd_cards: tuple[Card, ...]
    keys: Mapping[int, str]
    numbers: Mapping[int, int]
    batch_size: int
    global_batch: int
    batches: tuple[ClassMixing, ...]
    meeting: Mixing | None
    topologies: tuple[Load, ...]
    judged: Load

    def total(self, name: str) -> int:
        """Return the sum of an attribute over the manifests of all parts, such as `num_bytes`."""
        return sum(int(getattr(part.manifest, name)) for part in self.parts)

    @property
    def num_shards(self) -> int:
        """Shards of all parts."""
        return sum(len(part.manifest.shards) for part in self.parts)

    @property
    def is_shuffled(self) -> bool:
        """Whether the conversion of each part shuffled its rows."""
        return all(part.manifest.conversion_options.get("shuffle") for part in self.parts)

    @property
    def mixing_basis(self) -> str:
        """Whether the figures of batches are exact, or how much was sampled."""
        if all(mix.is_all for mix in self.batches):
            return "exact: epoch 0"
        return f"sampled: {min(mix.num_batches for mix in self.batches):,} batches of epoch 0 or more"


def collected(subject: Subject, options: ReportOptions) -> Facts:
    """Return the facts of a dataset."""
    is_grouped = isinstance(subject.source.form_at(0), Grouping)
    if is_grouped:  # each group is a batch
        options = replace(options, batch_size=1)
    default = _MAX_READ_REMOTE if subject.is_remote else _MAX_READ
    scanned = scan(subject, parse_size(options.max_read or default), options.seed)
    labels = labels_of(scanned, subject.manifests, options.class_field)
    fields = field_facts(scanned, labels)
    repeated = duplicates(scanned, labels)

    why = _why(fields, scanned)
    odd = {int(scanned.numbers[row]): text for row, text in why.items()}
    named = [*why, *(row for group in (repeated.groups if repeated else ()) for row in group)]
    label_field = labels.field if labels is not None else ""
    shown = spread_numbers(subject.num_stored, options.samples, options.seed)

    order = subject.source.order(0)
    num_samples = order.num_samples
    ranks = [] if is_grouped else [each for each in _RANKS if each * options.batch_size <= num_samples]
    global_batch = options.batch_size * max(ranks, default=1)
    mixes = [] if labels is None or is_grouped else _mixes(subject, scanned, labels, options.batch_size)

    topologies, judged = _topologies(subject, options)
    read = loads(subject, topologies, options.batch_size, options.cluster, _sample_ms(options.cluster, fields))
    views = [part.views.at(0) for part in subject.parts]
    return Facts(
        name=name_with_view(subject.source),
        parts=tuple(subject.parts),
        num_samples=num_samples,
        contents=subject.source.units_text(0),
        is_grouped=is_grouped,
        units=tuple(line for view in views if view for line in described_units(view.selection, view.figures)),
        num_in_view=subject.num_stored,
        num_scanned=len(scanned),
        scan_basis=scanned.basis,
        labels=labels,
        fields=tuple(fields),
        duplicates=repeated,
        cards=tuple(cards(subject, shown, label_field)),
        odd_cards=tuple(cards(subject, list(odd), label_field, odd)),
        keys={row: str(scanned.keys[row]) for row in named},
        numbers={row: int(scanned.numbers[row]) for row in named},
        batch_size=options.batch_size,
        global_batch=global_batch,
        batches=tuple(mixes),
        meeting=mixing(order, global_batch) if isinstance(order, EpochOrder) and order.options.shuffle else None,
        topologies=tuple(read),
        judged=read[topologies.index(judged)],
    )


def _mixes(subject: Subject, scanned: Scan, labels: Labels, batch_size: int) -> list[ClassMixing]:
    """Compare the classes of the batches of all ranks with those of the dataset, for some numbers of ranks."""
    order, codes_of = subject.source.order(0), codes_by_number(subject, scanned, labels)
    found: list[ClassMixing | None] = []
    max_labels = _ALL_LABELS if scanned.is_exact else _MAX_LABELS
    for world_size in _RANKS:
        if order.num_samples < batch_size * world_size:  # an epoch has no whole step
            continue
        drawn = draw_batches(order, world_size, batch_size, max_labels)
        places = drawn.samples
        codes = codes_of(subject.numbers_of(places.source, places.shard, places.sample))
        found.append(class_mixing(drawn, codes))
    return [each for each in found if each is not None]


def _topologies(subject: Subject, options: ReportOptions) -> tuple[Sequence[Topology], Topology]:
    """Return the topologies to compare, and that of the summary: if listed, the one that the conversion was for."""
    topologies, wanted = options.topologies, [_JUDGED]
    made = subject.parts[0].manifest.conversion_options
    named: tuple[Any, ...] = made.get("world_size"), made.get("workers")
    if all(type(each) is int for each in named) and named != _UNNAMED:
        wanted.insert(0, Topology(*named))
        if topologies is DEFAULT_TOPOLOGIES:
            by_size = {(each.world_size, each.num_workers): each for each in (*topologies, wanted[0])}
            topologies = tuple(by_size[size] for size in sorted(by_size))
    return topologies, next((each for each in wanted if each in topologies), topologies[-1])


def _sample_ms(cluster: Cluster, fields: Sequence[FieldFacts]) -> float:
    """Return the milliseconds that a worker takes for a sample: the option, or a value from the size of its images."""
    if cluster.sample_ms is not None:
        return cluster.sample_ms
    pixels = 0.0
    for each in fields:
        width, height = each.measure("width"), each.measure("height")
        if width is not None and height is not None:
            pixels += width.median * height.median
    return _DECODE_MS + pixels / 1e6 * _DECODE_MS_A_MEGAPIXEL


def _why(fields: Sequence[FieldFacts], scanned: Scan) -> dict[int, str]:
    """Return the rows of samples that stand out, with what is odd about each."""
    reasons: dict[int, list[str]] = {}
    for each in fields:
        name = safe_text(each.name, 30)
        for row in each.bad_rows:
            reasons.setdefault(row, []).append(f"{name} is unreadable")
        for measure in each.measures:
            for row, value in measure.outliers:
                shown = human_bytes(value) if measure.name == "bytes" else f"{human_number(value)} {measure.name}"
                reasons.setdefault(row, []).append(f"{name}: {shown}")
    return {row: "; ".join(texts) for row, texts in list(reasons.items())[:_MAX_ODD_CARDS]}
