"""Reads and measures samples: all of them if the budget of bytes allows, else a seeded part.

Beyond the budget, it reads runs of neighbouring samples, in shards that a hash draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Float64, Int64
from wdsplit.engines.local import in_order
from wdsplit.loading.reading.block import Block, as_objects
from wdsplit.loading.reading.windows import read_window
from wdsplit.order.hashing import hash_stream, permutation
from wdsplit.reporting.payloads import MEASURES, kind_of, measures_of
from wdsplit.reporting.subject import Subject
from wdsplit.tar.places import hash_samples

__all__ = ["Column", "Run", "Scan", "planned_runs", "scan"]


_DOMAIN = 21
_RUN_SAMPLES, _RUN_BYTES = 4096, 16 * 1024**2
_MAX_DRAWN, _MAX_DRAWN_REMOTE = 256, 64
"""Limits of shards to open, if not all are read: each costs its places, and in a store two requests."""
_MAX_SCANNED = 500_000
"""Limit of samples to read: measuring tiny samples takes longer than reading them."""
_AT_ONCE = 16
_MAX_LABEL_BYTES = 64


@dataclass(frozen=True)
class Run:
    """Samples first, ..., stop - 1 of a shard of a part."""

    part: int
    shard: int
    first: int
    stop: int


@dataclass
class Column:
    """The measures of one field of n samples.

    Attributes:
        kind: Its kind: image, audio, text, number, json, array or bytes.
        sizes: int64 of shape (n,): bytes; -1 where a sample lacks the field.
        digests: uint64 of shape (n,): a hash of each payload.
        texts: object of shape (n,): short payloads of numbers and texts, which may be labels; else None.
        measures: For each measure float64 of shape (n,); nan where there is none.
        is_null: bool of shape (n,): an empty payload, or JSON's null.
    """

    kind: str
    sizes: Int64
    digests: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.object_]
    measures: dict[str, Float64]
    is_null: npt.NDArray[np.bool_]

    @property
    def is_present(self) -> npt.NDArray[np.bool_]:
        """Bool of shape (n,): which samples have the field."""
        return self.sizes >= 0

    @property
    def is_unreadable(self) -> npt.NDArray[np.bool_]:
        """Bool of shape (n,): which payloads are not of the field's kind."""
        if self.kind not in MEASURES:
            return np.zeros(len(self.sizes), np.bool_)
        return self.is_present & ~self.is_null & np.isnan(self.measures[MEASURES[self.kind][0]])


@dataclass(frozen=True)
class Scan:
    """The samples that were read of a dataset.

    Attributes:
        is_exact: Whether all samples were read.
        num_stored: Samples of the dataset.
        numbers: int64 of shape (n,): the numbers of those that were read, in ascending order.
        keys: object of shape (n,): their keys.
        columns: The measures of each field.
    """

    is_exact: bool
    num_stored: int
    numbers: Int64
    keys: npt.NDArray[np.object_]
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def basis(self) -> str:
        """Whether figures of this scan are exact, or how much was sampled."""
        if self.is_exact:
            return "exact"
        return f"sampled: {len(self):,} of {self.num_stored:,} samples"


def planned_runs(subject: Subject, max_bytes: int, seed: int) -> tuple[list[Run], bool]:
    """Return what to read, and whether that is all. Pure arithmetic on the manifests."""
    total = sum(manifest.num_bytes for manifest in subject.manifests)
    if total <= max_bytes and subject.num_stored <= _MAX_SCANNED:
        return [run for part in range(len(subject.parts)) for run in _all_runs(subject, part)], True
    runs: list[Run] = []
    for part, source in enumerate(subject.parts):
        share = source.manifest.num_bytes / max(1, total)
        runs += _drawn_runs(subject, part, int(max_bytes * share), max(1, int(_MAX_SCANNED * share)), seed)
    return sorted(runs, key=lambda run: (run.part, run.shard)), False


def _all_runs(subject: Subject, part: int) -> Iterator[Run]:
    source = subject.parts[part]
    step = max(1, min(_RUN_SAMPLES, _RUN_BYTES // max(1, source.sample_bytes)))
    for shard, count in enumerate(source.manifest.shards.num_real.tolist()):
        if not subject.numberings[part].counts[shard]:
            continue
        for first in range(0, count, step):
            yield Run(part, shard, first, min(count, first + step))


def _drawn_runs(subject: Subject, part: int, max_bytes: int, max_samples: int, seed: int) -> Iterator[Run]:
    source = subject.parts[part]
    shards, sample_bytes = source.manifest.shards, max(1, source.sample_bytes)
    affordable = max(1, min(max_samples, max_bytes // sample_bytes))
    most = _MAX_DRAWN_REMOTE if subject.storages[part].has_latency else _MAX_DRAWN
    counts, selection = subject.numberings[part].counts, subject.selections[part]
    filled = np.flatnonzero(counts)
    num_drawn = min(len(filled), most, affordable)
    each = max(1, min(affordable // max(1, num_drawn), _RUN_BYTES // sample_bytes))
    for shard in filled[permutation(len(filled), seed, _DOMAIN)[:num_drawn]].tolist():
        count = int(shards.num_real[shard])
        size = min(each, count)
        first = hash_stream(seed, shard, _DOMAIN) % (count - size + 1)
        if selection is not None:  # from a selected sample on, so that there is one
            places = selection.places(shard)
            first = int(places[hash_stream(seed, shard, _DOMAIN) % len(places)])
        yield Run(part, shard, first, min(count, first + size))


def scan(subject: Subject, max_bytes: int, seed: int) -> Scan:
    """Read and measure samples.

    Args:
        subject: The dataset or mixture.
        max_bytes: Approximate limit for the bytes of shards to read.
        seed: Seed of the choice, if not all samples are read.
    """
    runs, is_exact = planned_runs(subject, max_bytes, seed)

    def read(run: Run) -> tuple[Block, Int64]:
        selection = subject.selections[run.part]
        rows = np.arange(run.stop - run.first)
        if selection is not None:
            rows = np.flatnonzero(selection.chosen.mask(run.shard, run.first, run.stop))
        shard = subject.parts[run.part].open_shard(subject.storages[run.part], run.shard)
        return read_window(shard, np.arange(run.first, run.stop)), rows

    known = {each.name: each for manifest in subject.manifests for each in manifest.fields}
    parts: dict[str, list[tuple[Int64, Column]]] = {}
    numbers, keys, done = [], [], 0
    found = in_order(read, runs, _AT_ONCE if subject.is_remote else 1)
    for run, (window, rows) in zip(runs, found, strict=True):
        for name, column in window.fields.items():
            values = column[rows].tolist()  # bytes, `Pending` or None
            present = np.array([row for row, each in enumerate(values) if each is not None], np.int64)
            payloads = [bytes(values[row]) for row in present.tolist()]
            parts.setdefault(name, []).append((done + present, _measured(kind_of(name, known.get(name)), payloads)))
        done += len(rows)
        keys.append(window.keys[rows])
        places = run.first + rows
        numbers.append(subject.numbers_of(np.full_like(places, run.part), np.full_like(places, run.shard), places))
    names = [name for name in known if name in parts] + sorted(set(parts) - set(known))
    return Scan(
        is_exact,
        subject.num_stored,
        np.concatenate([np.zeros(0, np.int64), *numbers]),
        np.concatenate([np.zeros(0, object), *keys]),
        {name: _joined(parts[name], done) for name in names},
    )


def _measured(kind: str, payloads: list[bytes]) -> Column:
    """Return the measures of payloads."""
    longest = _MAX_LABEL_BYTES if kind in ("number", "text") else -1
    return Column(
        kind,
        sizes=np.fromiter(map(len, payloads), np.int64),
        digests=hash_samples(payloads),
        texts=as_objects([each.decode("utf-8", "replace") if len(each) <= longest else None for each in payloads]),
        measures=measures_of(kind, payloads),
        is_null=np.array([not each or (kind == "json" and each == b"null") for each in payloads], bool),
    )


def _joined(parts: list[tuple[Int64, Column]], count: int) -> Column:
    """Return the measures of `count` samples, given those of some rows in each part."""
    rows, columns = np.concatenate([rows for rows, _ in parts]), [column for _, column in parts]

    def spread(values: Iterable[npt.NDArray[Any]], missing: Any) -> Any:
        found = np.concatenate(list(values))
        full = np.full(count, missing, found.dtype)
        full[rows] = found
        return full

    return Column(
        columns[0].kind,
        sizes=spread((each.sizes for each in columns), -1),
        digests=spread((each.digests for each in columns), 0),
        texts=spread((each.texts for each in columns), None),
        measures={name: spread((each.measures[name] for each in columns), np.nan) for name in columns[0].measures},
        is_null=spread((each.is_null for each in columns), False),
    )
