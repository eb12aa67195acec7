"""The contents of fields: presence, nulls, sizes, and samples that stand out; and payloads that appear twice."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.reporting.labels import Labels
from wdsplit.reporting.scan import Scan

__all__ = ["Duplicates", "FieldFacts", "Measure", "duplicates", "field_facts"]

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
    found = []
    for name, column in scan.columns.items():
        is_label = labels is not None and name == labels.field
        present, bad = column.is_present, column.is_unreadable
        values = {"bytes": np.where(present & ~column.is_null, column.sizes, np.nan).astype(np.float64)}
        values |= {} if is_label else column.measures
        facts = FieldFacts(
            name,
            column.kind,
            present=int(present.sum()),
            absent=int((~present).sum()),
            nulls=int(column.is_null.sum()),
            unreadable=int(bad.sum()),
            bad_rows=tuple(np.flatnonzero(bad)[:_OUTLIERS].tolist()),
            total_bytes=int(np.where(present, column.sizes, 0).sum()),
            measures=tuple(
                _measure(key, array, is_label) for key, array in values.items() if not np.isnan(array).all()
            ),
        )
        found.append(facts)
    return found


def _measure(name: str, values: npt.NDArray[np.float64], is_label: bool) -> Measure:
    rows = np.flatnonzero(~np.isnan(values))
    found = values[rows]
    # The histogram shows all values, or most if a few are far from the others.
    least, low, first, third, high, most = np.percentile(found, (0, 5, 25, 75, 95, 100)).tolist()
    shown = least, most
    if high > low:
        beyond = _FENCE * (high - low)
        shown = max(least, low - beyond), min(most, high + beyond)
    if shown[0] == shown[1]:
        shown = shown[0] - 0.5, shown[1] + 0.5
    counts, edges = np.histogram(np.clip(found, *shown), bins=_BINS, range=shown)
    # The least and the most of what lies far beyond the quartiles stand out.
    fence, order = _FENCE * max(third - first, 1e-9 * max(1.0, abs(third))), np.argsort(found, kind="stable")
    low_rows = [place for place in order[:_OUTLIERS].tolist() if found[place] < first - fence]
    high_rows = [place for place in order[-_OUTLIERS:].tolist() if found[place] > third + fence]
    outliers = () if is_label else tuple((int(rows[place]), float(found[place])) for place in [*low_rows, *high_rows])
    limits = float(found.min()), float(np.median(found)), float(found.max())
    return Measure(name, *limits, edges.astype(np.float64), counts.astype(np.int64), outliers)


def duplicates(scan: Scan, labels: Labels | None) -> Duplicates | None:
    """Return the payloads that appear more than once, of the field with the most bytes that is no number and no JSON.

    None if there is no such field.
    """
    compared = {name: column for name, column in scan.columns.items() if column.kind not in ("number", "json")}
    if not compared:
        return None
    name = max(compared, key=lambda each: int(np.maximum(compared[each].sizes, 0).sum()))
    column = compared[name]
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(column.is_present & ~column.is_null).tolist():
        rows_of[int(column.digests[row])].append(row)
    repeated = {digest: rows for digest, rows in rows_of.items() if len(rows) > 1}
    largest = sorted(repeated, key=lambda digest: (-len(repeated[digest]), digest))[:_GROUPS]
    codes = [] if labels is None else [labels.codes[rows] for rows in repeated.values()]
    return Duplicates(
        name,
        extra=sum(len(rows) - 1 for rows in repeated.values()),
        groups=tuple(tuple(repeated[digest][:_KEYS_OF_GROUP]) for digest in largest),
        conflicts=sum(bool((each != each[0]).any()) for each in codes),
    )
