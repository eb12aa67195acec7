"""Finds the row of each sample by their keys, and lists keys that do not match. Pure (no I/O)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wdsplit.annotating.options import AnnotateOptions, Duplicates
from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.fields.keys import numbered_width
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sample_tables import FILE_NAME
from wdsplit.tables.table import Table
from wdsplit.tar.names import ambiguous_key
from wdsplit.texts import counted

__all__ = ["Counted", "Matches", "examples_of", "match", "refuse_unmatched"]

_NUM_EXAMPLES = 3


class Matches(NamedTuple):
    """Which rows and samples have the same key.

    Attributes:
        rows: int64 of shape (samples,): the row of each sample; -1 if it has none.
        extra: int64: the rows without a sample.
        duplicates: int64: the rows with a sample that gets another row with the same key.
        used: int64 of the same shape: these other rows.
    """

    rows: Int64
    extra: Int64
    duplicates: Int64
    used: Int64


def match(keys: pa.ChunkedArray, raw: pa.ChunkedArray, samples: pa.ChunkedArray, duplicates: Duplicates) -> Matches:
    """Find the row of each sample.

    Args:
        keys: The escaped keys of the rows, as in tars.
        raw: The keys as in the table, null where that is the same. They may already be escaped, if the table was
            made from samples.
        samples: The keys of the samples.
        duplicates: Which of several rows with the same key to use.

    Raises:
        InputError: A row's key belongs to two samples.
    """
    num_rows, num_samples = len(keys), len(samples)
    has_raw = raw.null_count < num_rows
    columns = [keys, samples, *([raw.fill_null("")] if has_raw else [])]
    texts = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_string())
    encoded = texts.dictionary_encode().chunks  # all chunks have the same dictionary, or one that continues it
    codes = np.concatenate([np.zeros(0, np.int32), *(np.asarray(chunk.indices) for chunk in encoded)])
    of_rows, of_samples, of_raw = np.split(codes, [num_rows, num_rows + num_samples])
    has_sample = np.zeros(len(encoded[-1].dictionary) if encoded else 0, np.bool_)
    row_of = np.full(len(has_sample), -1)
    has_sample[of_samples] = True
    if has_raw:
        # Another row with the key before it was escaped shows that the table has such keys.
        twofold = np.flatnonzero(has_sample[of_raw] & has_sample[of_rows] & ~np.isin(of_raw, of_rows))
        if len(twofold):
            raise ambiguous_key(raw[int(twofold[0])].as_py(), "the table of the annotation")
        of_rows = np.where(has_sample[of_raw] & ~has_sample[of_rows], of_raw, of_rows)
    numbers = np.arange(num_rows)
    order = numbers if duplicates == "last" else numbers[::-1]
    row_of[of_rows[order]] = order  # the last one wins
    used, is_extra = row_of[of_rows], ~has_sample[of_rows]
    repeated = np.flatnonzero((used != numbers) & ~is_extra)
    return Matches(row_of[of_samples], np.flatnonzero(is_extra), repeated, used[repeated])


class Counted(NamedTuple):
    """Keys of one kind, such as those without a row.

    Attributes:
        total: Their number.
        examples: The first of them: the place of each as integers, then its key, and last its key as in the table if
            that differs, else None.
    """

    total: int
    examples: list[list[Any]]

    @classmethod
    def sum(cls, found: Iterable[Counted]) -> Counted:
        """Return the sum of all, with the first examples of all."""
        found = list(found)
        examples = sorted(example for each in found for example in each.examples)
        return cls(sum(each.total for each in found), examples[:_NUM_EXAMPLES])


def examples_of(table: pa.Table, rows: Int64) -> Counted:
    """Count rows; the examples are those of `table`, the places first and then the keys."""
    return Counted(len(rows), [list(each.values()) for each in table.take(pa.array(rows[:_NUM_EXAMPLES])).to_pylist()])


def refuse_unmatched(
    found: Sequence[Counted], options: AnnotateOptions, table: Table, manifest: Manifest, key: str
) -> None:
    """Refuse samples without a row, rows without a sample and duplicate keys, unless the options allow them.

    Args:
        found: The three kinds: the shard and sample of missing keys, the row number of extra ones, and the row numbers
            of both rows of duplicates.
        options: The options.
        table: The table.
        manifest: The dataset's manifest.
        key: The table's column of keys.

    Raises:
        InputError: There are some; the error has the count and examples of each kind.
    """
    missing, extra, duplicates = found
    refused: list[tuple[str, str]] = []
    if missing.total and not options.allow_missing:
        what = f"{counted(missing.total, 'sample')} without a row: "
        refused.append((what + _listed(missing, lambda places: manifest.shards[places[0]].path), "--allow-missing"))
    for kind, what, is_allowed, flag in (
        (extra, "without a sample", options.allow_extra, "--allow-extra"),
        (duplicates, "with the key of another row", options.allow_duplicates, "--allow-duplicates first"),
    ):
        if kind.total and not is_allowed:
            listed = _listed(kind, lambda numbers: " and ".join(map(table.where, sorted(numbers))))
            refused.append((f"{counted(kind.total, 'row')} {what}: {listed}", flag))
    if not refused:
        return
    num_samples = int(manifest.shards.num_real.sum())
    remedy = f"correct the table, or use {' '.join(flag for _, flag in refused)}"
    if options.overwrite and missing.total and not options.allow_missing:
        remedy = f"--overwrite replaces old rows too: give them with the new ones, as several tables; else {remedy}"
    if duplicates.total and not options.allow_duplicates:
        remedy = f"if a Dataset gave the rows, leave out samples with __pad__, which repeat others; else {remedy}"
    if missing.total == num_samples and extra.total:
        remedy = f"no key matches: check --key; the dataset's keys look like {missing.examples[0][2]!r}"
        numbered = numbered_width(manifest.provenance)
        if numbered and manifest.samples is not None and FILE_NAME in manifest.samples.names:
            remedy += "; to join by file names, convert with --key file_name"
    raise InputError(
        "the keys of the table do not match the dataset",
        place=f"column {key!r}",
        expected=f"one row for each of {counted(num_samples, 'sample')}",
        found="; ".join(text for text, _ in refused),
        remedy=remedy,
    )


def _listed(found: Counted, where: Callable[[list[int]], str]) -> str:
    """Return the first keys, with their places."""
    texts = []
    for example in found.examples:
        places = [each for each in example if isinstance(each, int)]
        key = [each for each in example if isinstance(each, str)][-1]
        texts.append(f"{key!r} ({where(places)})")
    return ", ".join(texts) + (", ..." if found.total > len(texts) else "")
