"""What every task of an annotation is given, and how the rows and keys are cut into tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wdsplit.annotating.options import Duplicates
from wdsplit.order.epoch import Int64
from wdsplit.shards.manifest import Shards
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tables.table import Table

__all__ = ["KEY", "NUMBER", "RAW", "ROW", "SHARD", "AnnotateJob", "Cuts", "Span", "column_name"]

KEY, RAW, NUMBER, SHARD, ROW = "key", "raw", "number", "shard", "row"
"""Columns of spill files: a key as a tar has it, the same unescaped where that differs, the number of a table's row, a
shard and a sample in it. Those that are joined are numbered c0, c1, ..."""


class Span(NamedTuple):
    """A task: what it handles, first, ..., stop - 1, such as rows or shards; tasks are numbered from 0."""

    number: int
    first: int
    stop: int


@dataclass(frozen=True)
class Cuts:
    """How a run is cut into tasks.

    Attributes:
        rows: Where the rows of the table are cut, from 0 to their number.
        keys: Where the shards are cut whose keys are scattered, from 0 to their number.
        groups: Where the shards are cut whose tables are written, from 0 to their number.
        num_partitions: Partitions, each of which is joined by one task.
    """

    rows: tuple[int, ...]
    keys: tuple[int, ...]
    groups: tuple[int, ...]
    num_partitions: int


@dataclass(frozen=True)
class AnnotateJob:
    """What every task of an annotation needs; a worker process gets it once.

    Attributes:
        dataset: The dataset's folder.
        table: The table.
        key: Its column of keys.
        number_width: The digits of the dataset's keys if these are row numbers, as which integers are then written;
            else 0.
        schema: The columns that are joined, as the dataset has them.
        columns: The table's column for each of them.
        shards: The dataset's shards.
        duplicates: Which of several rows with one key is used.
        cuts: How the run is cut into tasks.
        folder: Where the tables of the shards go.
        spill_folder: Where files go that are removed at the end.
        buffer_bytes: Bytes of rows that a task may buffer.
        storage_options: How to reach a remote store.
    """

    dataset: str
    table: Table
    key: str
    number_width: int
    schema: pa.Schema
    columns: tuple[str, ...]
    shards: Shards
    duplicates: Duplicates
    cuts: Cuts
    folder: str
    spill_folder: str
    buffer_bytes: int
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def run(self) -> str:
        """The hash that names the run."""
        return self.folder.rpartition("-")[2]

    def open_storage(self) -> Storage:
        """Open the dataset."""
        return open_storage(self.dataset, self.storage_options)

    @cached_property
    def num_real(self) -> Int64:
        """Samples of each shard that are no pads."""
        return self.shards.num_real

    @property
    def joined_fields(self) -> list[pa.Field]:
        """The columns that are joined, as spill files have them: texts may have more than 2 GiB in all."""
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
        """The columns of what was joined."""
        return pa.schema([pa.field(SHARD, pa.int64()), pa.field(ROW, pa.int64()), *self.joined_fields])

    def group_of(self, shards: Int64) -> Int64:
        """Return the group of each shard: int64 of shape (n,)."""
        return np.searchsorted(np.asarray(self.cuts.groups), shards, side="right") - 1


def column_name(number: int) -> str:
    """Return the name of a joined column in spill files."""
    return f"c{number}"
