"""The input of every task of an annotation, and how rows and keys are cut into tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from wdsplit.annotating.options import Duplicates
from wdsplit.arrays import Int64
from wdsplit.jobs.run import Job
from wdsplit.shards.annotations import RUN_SUFFIX
from wdsplit.shards.manifest import Shards
from wdsplit.tables.table import Table

__all__ = ["KEY", "NUMBER", "RAW", "ROW", "SHARD", "AnnotateCuts", "AnnotateJob", "column_name"]

KEY, RAW, NUMBER, SHARD, ROW = "key", "raw", "number", "shard", "row"
"""Columns of spill files: the key as in the tar, the unescaped key if that differs, the row number in the table, the
shard, the sample in the shard. The joined columns are c0, c1, ..."""


@dataclass(frozen=True)
class AnnotateCuts:
    """How a run is cut into tasks.

    Attributes:
        rows: Boundaries between the tasks that scatter rows: row numbers, from 0 to the number of rows.
        keys: Boundaries between the tasks that scatter keys: shard numbers, from 0 to the number of shards.
        groups: Boundaries between the tasks that write tables: shard numbers, from 0 to the number of shards.
        num_partitions: Number of partitions; one task joins each.
    """

    rows: tuple[int, ...]
    keys: tuple[int, ...]
    groups: tuple[int, ...]
    num_partitions: int


@dataclass(frozen=True, kw_only=True)
class AnnotateJob(Job):
    """The input of every task of an annotation; each worker process receives it once.

    Attributes:
        table: The table.
        key: Its key column.
        number_width: Number of digits of the dataset's keys if they are row numbers, else 0. Integer keys are then
            written with this many digits.
        schema: The joined columns, with the names and types that the dataset gets.
        columns: The table's column for each of them.
        shards: The dataset's shards.
        duplicates: Which of several rows with the same key to use.
        cuts: How the run is cut into tasks.
        folder: Folder for the tables of the shards.
        spill_folder: Folder for temporary files.
        buffer_bytes: Bytes of rows that a task may buffer.
    """

    table: Table
    key: str
    number_width: int
    schema: pa.Schema
    columns: tuple[str, ...]
    shards: Shards
    duplicates: Duplicates
    cuts: AnnotateCuts
    folder: str
    spill_folder: str
    buffer_bytes: int

    @property
    def run(self) -> str:
        """The hash that names the run."""
        return self.folder.rpartition("-")[2]

    @property
    def run_folder(self) -> str:
        """The folder of the run's record in the dataset."""
        return self.folder.rpartition("-")[0] + RUN_SUFFIX

    @cached_property
    def num_real(self) -> Int64:
        """Number of samples of each shard, without pads."""
        return self.shards.num_real

    @property
    def joined_fields(self) -> list[pa.Field]:
        """The joined columns in spill files, with large strings, because all strings together may exceed 2 GiB."""
        kinds = [pa.large_string() if kind == pa.string() else kind for kind in self.schema.types]
        return [pa.field(column_name(number), kind) for number, kind in enumerate(kinds)]

    @property
    def rows_schema(self) -> pa.Schema:
        """The columns of scattered rows."""
        own = [pa.field(NUMBER, pa.int64()), pa.field(KEY, pa.large_string()), pa.field(RAW, pa.large_string())]
        return pa.schema([*own, *self.joined_fields])

    @property
    def keys_schema(self) -> pa.Schema:
        """The columns of scattered keys."""
        return pa.schema([(SHARD, pa.int64()), (ROW, pa.int64()), (KEY, pa.large_string())])

    @property
    def found_schema(self) -> pa.Schema:
        """The columns of joined rows."""
        return pa.schema([pa.field(SHARD, pa.int64()), pa.field(ROW, pa.int64()), *self.joined_fields])

    def group_of(self, shards: Int64) -> Int64:
        """Return the group of each shard: int64 of shape (n,)."""
        return np.searchsorted(np.asarray(self.cuts.groups), shards, side="right") - 1


def column_name(number: int) -> str:
    """Return the name of a joined column in spill files."""
    return f"c{number}"
