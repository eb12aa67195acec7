"""The contents of fields: presence, nulls, sizes, and samples that stand out; and payloads that appear twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.reporting.labels import Labels
from wdsplit.reporting.scan import Column, Scan

__all__ = ["Duplicates", "FieldFacts", "Measure", "duplicates", "field_facts", "main_field"]

_BINS = 24
_OUTLIERS = 3
_FENCE = 3.0
"""A value stands out if it is beyond a quartile by more than this many times the distance of the quartiles."""
_GROUPS, _KEYS_OF_GROUP = 8, 4


@dataclass(frozen=True)
class Measure:
    """A number that each payload of a field has.

    Attributes:
        name: bytes, width, height, aspect, characters, value or elements.
        minimum: The least.
        median: The median.
        maximum: The most.
        edges: float64 of shape (bins + 1,): the bins of the histogram; what lies beyond is in the first and last.
        counts: int64 of shape (bins,): payloads in each.
        outliers: The rows of samples that stand out, with their values: the least first.
    """

    name: str
    minimum: float
    median: float
    maximum: float
    edges: npt.NDArray[np.float64]
    counts: Int64
    outliers: tuple[tuple[int, float], ...]

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same."""
        return self.minimum == self.maximum


@dataclass(frozen=True)
class FieldFacts:
    """The contents of a field.

    Attributes:
        name: Its name.
        kind: image, audio, text, number, json, array or bytes.
        present: Samples that have it.
        absent: Samples that lack it.
        nulls: Samples with an empty payload, or JSON's null.
        unreadable: Samples with a payload that is not of the field's kind.
        bad_rows: The rows of some of these.
        total_bytes: Bytes of all payloads.
        measures: Its numbers, those that vary first.
    """

    name: str
    kind: str
    present: int
    absent: int
    nulls: int
    unreadable: int
    bad_rows: tuple[int, ...]
    total_bytes: int
    measures: tuple[Measure, ...]

    def measure(self, name: str) -> Measure | None:
        """Return a measure by its name, or None."""
        return next((each for each in self.measures if each.name == name), None)


@dataclass(frozen=True)
class Duplicates:
    """Payloads of one field that appear more than once.

    Attributes:
        field: The field.
        extra: Samples that repeat the payload of another.
        groups: For some payloads, the rows of the samples that have it; the largest groups first.
        conflicts: Payloads that samples of different classes have; 0 without classes.
    """

    field: str
    extra: int
    groups: tuple[tuple[int, ...], ...]
    conflicts: int


def field_facts(scan: Scan, labels: Labels | None) -> list[FieldFacts]:
    """Return the facts of each field."""
    return [_facts(name, column, labels is not None and name == labels.field) for name, column in scan.columns.items()]


def _facts(name: str, column: Column, is_label: bool) -> FieldFacts:
    present = column.is_present
    bad = column.is_unreadable
    values = {"bytes": np.where(present & ~column.is_null, column.sizes, np.nan).astype(np.float64)}
    if not is_label:
        values |= column.measures
    measures = tuple(measure for key, array in values.items() for measure in _measured(key, array, is_label))
    return FieldFacts(
        name,
        column.kind,
        int(present.sum()),
        int((~present).sum()),
        int(column.is_null.sum()),
        int(bad.sum()),
        tuple(np.flatnonzero(bad)[:_OUTLIERS].tolist()),
        int(np.where(present, column.sizes, 0).sum()),
        measures,
    )


def _measured(name: str, values: npt.NDArray[np.float64], is_label: bool) -> Iterator[Measure]:
    rows = np.flatnonzero(~np.isnan(values))
    if not len(rows):
        return
    found = values[rows]
    low, high = _shown_range(found)
    counts, edges = np.histogram(np.clip(found, low, high), bins=_BINS, range=(low, high))
    outliers = () if is_label else tuple(_outliers(rows, found))
    limits = float(found.min()), float(np.median(found)), float(found.max())
    yield Measure(name, *limits, edges.astype(np.float64), counts.astype(np.int64), outliers)


def _shown_range(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the range that a histogram shows: all, or most if a few values are far from the others."""
    least, low, high, most = np.percentile(values, (0, 5, 95, 100)).tolist()
    if high > low:
        beyond = _FENCE * (high - low)
        least, most = max(least, low - beyond), min(most, high + beyond)
    return (least, most) if most > least else (least - 0.5, least + 0.5)


def _outliers(rows: Int64, values: npt.NDArray[np.float64]) -> Iterator[tuple[int, float]]:
    """Yield the least and the most of what lies far beyond the quartiles."""
    first, third = np.percentile(values, (25, 75))
    fence = _FENCE * max(third - first, 1e-9 * max(1.0, abs(third)))
    order = np.argsort(values, kind="stable")
    low = [place for place in order[:_OUTLIERS].tolist() if values[place] < first - fence]
    high = [place for place in order[-_OUTLIERS:].tolist() if values[place] > third + fence]
    for place in [*low, *high]:
        yield int(rows[place]), float(values[place])


def main_field(scan: Scan) -> str | None:
    """Return the field with the most bytes that holds neither numbers nor JSON, or None."""
    sizes = {
        name: int(np.maximum(column.sizes, 0).sum())
        for name, column in scan.columns.items()
        if column.kind not in ("number", "json")
    }
    return max(sizes, key=lambda name: sizes[name], default=None)


def duplicates(scan: Scan, labels: Labels | None) -> Duplicates | None:
    """Return the payloads of the main field that appear more than once; None if there is no such field."""
    name = main_field(scan)
    if name is None:
        return None
    column = scan.columns[name]
    rows = np.flatnonzero(column.is_present & ~column.is_null)
    _, group, sizes = np.unique(column.digests[rows], return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    repeated = np.flatnonzero(sizes > 1)
    extra = int((sizes[repeated] - 1).sum())
    members = rows[np.argsort(group, kind="stable")]
    begins = np.cumsum(sizes) - sizes
    largest = repeated[np.argsort(-sizes[repeated], kind="stable")][:_GROUPS]
    groups = tuple(
        tuple(np.sort(members[begins[each] : begins[each] + sizes[each]])[:_KEYS_OF_GROUP].tolist()) for each in largest
    )
    conflicts = 0
    if labels is not None and len(repeated):
        codes = labels.codes[members]
        most, least = np.maximum.reduceat(codes, begins), np.minimum.reduceat(codes, begins)
        conflicts = int((most[repeated] != least[repeated]).sum())
    return Duplicates(name, extra, groups, conflicts)
