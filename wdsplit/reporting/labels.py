"""Classes: which field holds them, and how many samples each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.checks.samples import read_texts
from wdsplit.errors import InputError
from wdsplit.order.epoch import groups
from wdsplit.reporting.scan import Column, Scan
from wdsplit.reporting.subject import Subject
from wdsplit.shards.manifest import Manifest
from wdsplit.texts import class_name

__all__ = ["Labels", "codes_by_number", "labels_of"]


@dataclass(frozen=True)
class Labels:
    """The class of each sample that was read.

    Attributes:
        field: The field that holds the classes.
        names: The class names, most frequent first; those of the manifest that were not met come last.
        values: For each class its payload, as text.
        codes: int64 of shape (n,): for each sample that was read the place of its class in `names`; -1 for none.
        counts: int64 of shape (classes,): samples of each class, of those that were read.
        is_complete: Whether the manifest names all classes.
    """

    field: str
    names: tuple[str, ...]
    values: tuple[str, ...]
    codes: Int64
    counts: Int64
    is_complete: bool


def labels_of(scan: Scan, manifests: list[Manifest], field: str | None = None) -> Labels | None:
    """Return the classes of the samples that were read, or None if no field holds any.

    Args:
        scan: What was read.
        manifests: The manifests, for names of classes.
        field: The field that holds them; None for the first with names of classes, else the first `cls`.

    Raises:
        InputError: There is no such field, or it has no short values.
    """
    names = {name: texts for manifest in manifests for name, texts in manifest.class_names.items()}
    if field is None:
        plain = [name for name in scan.columns if name.rpartition(".")[2] == "cls"]
        field = next((name for name in (*names, *plain) if _holds_classes(name, scan, name in names)), None)
        if field is None:
            return None
    column = scan.columns.get(field)
    if column is None or (len(scan) and not any(text is not None for text in column.texts)):
        able = [name for name, each in scan.columns.items() if any(text is not None for text in each.texts)]
        raise InputError(
            "no classes in this field",
            expected=f"a field of short texts or numbers: {', '.join(able) or 'there is none'}",
            found=field,
        )
    return _labels(field, column, names.get(field, ()))


def _holds_classes(name: str, scan: Scan, is_named: bool) -> bool:
    """Tell whether all samples of a field have short values, which half of the samples or fewer share."""
    column = scan.columns.get(name)
    found = [] if column is None else [text for text in column.texts if text is not None]
    is_short = column is not None and len(found) == int(column.is_present.sum()) > 0
    return is_short and (is_named or 2 <= len(set(found)) <= len(scan) // 2)


def _labels(field: str, column: Column, names: tuple[str, ...]) -> Labels:
    counts = Counter(text for text in column.texts if text is not None)
    met = sorted(counts, key=lambda text: (-counts[text], text))
    unmet = [str(number) for number, name in enumerate(names) if not {str(number), name} & counts.keys()]
    values = (*met, *unmet)
    place = {text: number for number, text in enumerate(met)}
    return Labels(
        field,
        names=tuple(class_name(value, names).strip() or "(empty)" for value in values),
        values=values,
        codes=np.array([place.get(text, -1) for text in column.texts], np.int64),
        counts=np.array([counts[value] for value in values], np.int64),
        is_complete=bool(names),
    )


def codes_by_number(subject: Subject, scan: Scan, labels: Labels) -> Callable[[Int64], Int64]:
    """Return a function that tells the classes of samples: at once if all were read, else by reading labels.

    Classes that were not met among the samples that were read count as one more, after all others.
    """
    if scan.is_exact:
        known = np.full(subject.num_stored, -1, np.int64)
        known[scan.numbers] = labels.codes
        return lambda numbers: known[numbers]
    places = {value.strip(): place for place, value in enumerate(labels.values)}

    def read(numbers: Int64) -> Int64:
        codes = np.full(len(numbers), -1, np.int64)
        where = subject.places(numbers)
        for number, rows in groups(where.source):
            (texts,) = read_texts(subject.parts[number], where.shard[rows], where.sample[rows], [labels.field])
            codes[rows] = [-1 if text is None else places.get(text, len(places)) for text in texts]
        return codes

    return read
