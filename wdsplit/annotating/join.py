"""Joining a partition: finds the row of each sample, and missing, extra and duplicate keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.annotating.job import KEY, NUMBER, RAW, ROW, SHARD, AnnotateJob
from wdsplit.annotating.options import Duplicates
from wdsplit.annotating.scatter import read_partition, run_writer
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.sorted_runs import SortedRun, parse_runs
from wdsplit.storage.interface import Storage
from wdsplit.tar.names import ambiguous_key

__all__ = ["NUM_EXAMPLES", "Counted", "Joined", "Matches", "join", "match", "parse_joined"]

NUM_EXAMPLES = 3


class Counted(NamedTuple):
    """Keys of one kind, such as those without a row.

    Attributes:
        total: Their number.
        examples: The first of them: the place of each, as numbers, and the key.
    """

    total: int
    examples: list[list[Any]]

    def plus(self, other: Counted) -> Counted:
        """Return the sum of both, with the first examples of both."""
        examples = sorted([*self.examples, *other.examples])[:NUM_EXAMPLES]
        return Counted(self.total + other.total, examples)


class Joined(NamedTuple):
    """The result of joining a partition.

    Attributes:
        runs: The values of its samples, by groups of shards.
        missing: Samples without a row: shard, sample, key.
        extra: Rows without a sample: row, key.
        duplicates: Rows that lost to another row with the same key: row, the other row, key.
    """

    runs: list[SortedRun]
    missing: Counted
    extra: Counted
    duplicates: Counted

    def plus(self, other: Joined) -> Joined:
        """Return the results of both, together."""
        counted = (mine.plus(its) for mine, its in zip(self[1:], other[1:], strict=True))
        return Joined([*self.runs, *other.runs], *counted)


@dataclass(frozen=True)
class Matches:
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


def parse_joined(note: Any) -> Joined:
    """Return the noted result of joining a partition."""
    runs, *kinds = note
    return Joined(parse_runs(runs), *(Counted(int(total), list(examples)) for total, examples in kinds))


def join(
    job: AnnotateJob, rows: list[SortedRun], keys: list[SortedRun], storage: Storage, partitions: range
) -> Iterator[Joined]:
    """Join the rows and the keys of partitions. Runs in a worker; may run twice."""
    for partition in partitions:
        table = read_partition(storage, rows, partition, job.rows_schema)
        samples = read_partition(storage, keys, partition, job.keys_schema)
        found = match(table.column(KEY), table.column(RAW), samples.column(KEY), job.duplicates)
        taken = table.select([field.name for field in job.joined_fields])
        taken = taken.take(pa.array(found.rows, mask=found.rows < 0))
        columns = [samples.column(SHARD), samples.column(ROW), *taken.columns]
        groups = job.group_of(samples.column(SHARD).to_numpy())
        joined = pa.Table.from_arrays(columns, schema=job.found_schema)
        runs = run_writer(storage, job, f"found-{partition:06d}")
        runs.append(joined, groups, joined.nbytes + groups.nbytes)
        missing = np.flatnonzero(found.rows < 0)
        numbers = table.column(NUMBER).to_numpy()
        of_samples = [samples.column(SHARD).to_numpy(), samples.column(ROW).to_numpy()]
        of_rows = table.column(KEY), table.column(RAW)
        used = _spread(numbers[found.used], found.duplicates, len(table))
        yield Joined(
            runs.end(),
            _counted(missing, of_samples, [samples.column(KEY)]),
            _counted(found.extra, [numbers], of_rows),
            _counted(found.duplicates, [numbers, used], of_rows),
        )


def _spread(values: Int64, places: Int64, size: int) -> Int64:
    """Return an array of the given size with values at the given places."""
    spread = np.zeros(size, np.int64)
    spread[places] = values
    return spread


def _counted(rows: Int64, places: Sequence[Int64], keys: Sequence[pa.ChunkedArray]) -> Counted:
    """Count rows; the examples have their places, and the last of their keys that is not null."""
    examples = []
    for row in rows[:NUM_EXAMPLES].tolist():
        texts = [column[row].as_py() for column in keys]
        examples.append([*(int(place[row]) for place in places), [text for text in texts if text is not None][-1]])
    return Counted(len(rows), examples)


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
    codes, num_codes = _codes([keys, samples, *([raw.fill_null("")] if has_raw else [])])
    of_rows, of_samples, of_raw = np.split(codes, [num_rows, num_rows + num_samples])
    has_sample = np.zeros(num_codes, np.bool_)
    has_sample[of_samples] = True
    if has_raw:
        # Another row with the key before it was escaped shows that the table has such keys.
        twofold = np.flatnonzero(has_sample[of_raw] & has_sample[of_rows] & ~np.isin(of_raw, of_rows))
        if len(twofold):
            raise ambiguous_key(raw[int(twofold[0])].as_py(), "the table of the annotation")
        of_rows = np.where(has_sample[of_raw] & ~has_sample[of_rows], of_raw, of_rows)
    numbers = np.arange(num_rows)
    row_of = np.full(num_codes, -1)
    order = numbers if duplicates == "last" else numbers[::-1]
    row_of[of_rows[order]] = order  # the last one wins
    used, is_extra = row_of[of_rows], ~has_sample[of_rows]
    repeated = np.flatnonzero((used != numbers) & ~is_extra)
    return Matches(row_of[of_samples], np.flatnonzero(is_extra), repeated, used[repeated])


def _codes(columns: Sequence[pa.ChunkedArray]) -> tuple[npt.NDArray[np.int32], int]:
    """Return a number for each distinct string, and how many there are."""
    encoded = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_string())
    chunks = encoded.dictionary_encode().chunks
    codes = [np.zeros(0, np.int32), *(np.asarray(chunk.indices) for chunk in chunks)]
    return np.concatenate(codes), len(chunks[-1].dictionary) if chunks else 0
