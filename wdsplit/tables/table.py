"""The input as one table: its files, their row groups, and the selected rows.

Pure (no I/O). Every row has a number, counted over all files in order. Every selected row has a place, counted over the
selected rows. Without a selection, numbers and places are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.shards.sample_tables import FILE_NAME

__all__ = ["FILE_NAME", "FileRange", "InputFile", "Remote", "Selection", "Split", "Table", "Value", "joined"]

Value = str | int | None
"""The value of a column in all rows of a file; None is null."""


@dataclass(frozen=True, repr=False)
class Remote:
    """An object in a remote store. URL and options may contain secrets, so they are never shown.

    Attributes:
        url: Its full URL, including secrets.
        options: Options for the store.
    """

    url: str
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class InputFile:
    """A file of the input, as described by its footer or by one pass over it.

    Attributes:
        path: Its path; for a remote file, the URL without secrets.
        num_bytes: Size of the file.
        num_rows: Total number of rows.
        row_groups: Number of rows of each row group, or of other units that the format can read separately.
        data_bytes: Approximate size of its decoded columns.
        footer: Checksum of the footer, or of something else that changes with the content.
        modified_ns: Time of the last write, or a number that identifies the version of a remote file; not part of the
            plan's hash, because copies may differ in it.
        format: Name of the format.
        offsets: Byte offset of each row group, and the end of the last one; empty if the footer has them.
        selected: Number of selected rows of each row group; None if all are selected.
        column_bytes: Approximate decoded size of each column; empty if unknown.
        constants: Columns of the table that the file itself lacks, with their value in all rows: null, or the value
            from a folder name.
        remote: The remote object, if the file is remote.
        members: For a folder of media files, a row for each file. `num_bytes` is then the size of all these files,
            `data_bytes` the size of the rows.
    """

    path: str
    num_bytes: int
    num_rows: int
    row_groups: tuple[int, ...]
    data_bytes: int
    footer: str
    modified_ns: int = 0
    format: str = "parquet"
    offsets: tuple[int, ...] = ()
    selected: tuple[int, ...] | None = None
    column_bytes: tuple[tuple[str, int], ...] = ()
    constants: tuple[tuple[str, Value], ...] = ()
    remote: Remote | None = field(default=None, repr=False, compare=False)
    members: pa.Table | None = field(default=None, repr=False, compare=False)

    def narrowed(self, columns: Collection[str]) -> InputFile:
        """Return the file with the size of some of its columns only, if these sizes are known."""
        if not self.column_bytes:
            return self
        data_bytes = sum(size for name, size in self.column_bytes if name in columns)
        return replace(self, data_bytes=data_bytes, column_bytes=())

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of selected rows of each row group."""
        return self.row_groups if self.selected is None else self.selected

    @property
    def row_bytes(self) -> float:
        """Approximate decoded size of a row in bytes."""
        return self.data_bytes / max(1, self.num_rows)

    @property
    def named_bytes(self) -> float:
        """Average size of a row's media file in bytes; 0 if rows have none."""
        return 0 if self.members is None else self.num_bytes / max(1, self.num_rows)


@dataclass(frozen=True)
class Split:
    """A split of the rows, drawn by a hash of a column: those whose hash lies in [low, high).

    Attributes:
        column: The column to hash; None for the rows' numbers.
        low: The lowest hash.
        high: The hash after the highest; at most 2**64.
    """

    column: str | None
    low: int
    high: int


@dataclass(frozen=True)
class Selection:
    """The selected rows: those that meet a condition, up to a limit, in a split.

    Attributes:
        where: The condition, for `conditions.parse`; empty for all rows.
        limit: Maximum number of rows; None for all.
        split: The split; None for all rows.
    """

    where: str = ""
    limit: int | None = None
    split: Split | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the selection for manifests, plan files and hashes; bounds as text, because 2**64 has 65 bits."""
        split = self.split
        bounds = None if split is None else {"column": split.column, "low": str(split.low), "high": str(split.high)}
        return {"where": self.where, "limit": self.limit, "part": bounds}

    @classmethod
    def from_json(cls, selection: Mapping[str, Any]) -> Selection:
        """Return the selection that `to_json` has written."""
        part = selection["part"]
        split = None if part is None else Split(part["column"], int(part["low"]), int(part["high"]))
        return cls(selection["where"], selection["limit"], split)


@dataclass(frozen=True)
class FileRange:
    """Rows of a file to read.

    Attributes:
        file: The file.
        groups: Row groups to read, in order.
        numbers: The number of each group's first row.
        skip: Number of selected rows to skip at the beginning.
        count: Number of selected rows to read after that.
    """

    file: InputFile
    groups: tuple[int, ...]
    numbers: tuple[int, ...]
    skip: int
    count: int

    def row_numbers(self, first: int, stop: int) -> Int64:
        """Return the numbers in the table of the rows first, ..., stop - 1 of the groups: int64."""
        rows = np.arange(first, stop)
        begins, shifts = self._shifts
        numbers: Int64 = rows + shifts[np.searchsorted(begins, rows, side="right") - 1]
        return numbers

    @cached_property
    def _shifts(self) -> tuple[Int64, Int64]:
        """The first row of each group among the rows of all groups, and its offset to the row's number: int64."""
        counts = np.array([self.file.row_groups[group] for group in self.groups], np.int64)
        begins = np.cumsum(counts) - counts
        return begins, np.array(self.numbers, np.int64) - begins


@dataclass(frozen=True)
class Table:
    """All files of the input, as one table.

    Attributes:
        files: The files, in order, with their numbers of selected rows.
        schema: Their columns.
        selection: The selected rows.
        notes: Notes for the user on promoted types and the origin of columns.
        snapshot: The version of the Delta or Iceberg table that the files are, as an input that names it.
    """

    files: tuple[InputFile, ...]
    schema: pa.Schema
    selection: Selection = Selection()
    notes: tuple[str, ...] = field(default=(), compare=False)
    snapshot: str = field(default="", compare=False)

    @cached_property
    def _numbers(self) -> Int64:
        """The number of each file's first row, then the number after the last row."""
        return np.cumsum([0, *(file.num_rows for file in self.files)])

    @cached_property
    def _places(self) -> Int64:
        """The place of each file's first selected row, then the place after the last."""
        return np.cumsum([0, *(sum(file.counts) for file in self.files)])

    @property
    def names_files(self) -> bool:
        """Whether rows name media files, whose content is to be written."""
        return self.files[0].members is not None

    @property
    def total_rows(self) -> int:
        """Number of rows of all files, selected or not."""
        return int(self._numbers[-1])

    @property
    def num_rows(self) -> int:
        """Number of selected rows."""
        return int(self._places[-1])

    @cached_property
    def data_bytes(self) -> int:
        """Approximate decoded size of the selected rows in bytes."""
        return int(sum(file.row_bytes * sum(file.counts) for file in self.files))

    @cached_property
    def payload_bytes(self) -> int:
        """Approximate size of the selected rows as written, in bytes: `data_bytes` and their media files."""
        return self.data_bytes + int(sum(file.named_bytes * sum(file.counts) for file in self.files))

    def where(self, number: int) -> str:
        """Return the file of a row, and its number there, for an error."""
        place = int(np.searchsorted(self._numbers, number, side="right")) - 1
        file, row = self.files[place], number - int(self._numbers[place])
        return f"{file.path}, row {row}" if file.members is None else f"{file.path}/{file.members[FILE_NAME][row]}"

    def first_numbers(self, file: int, groups: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of the first rows of some row groups of a file."""
        counts = np.asarray(self.files[file].row_groups, np.int64)
        firsts = np.cumsum(counts) - counts + self._numbers[file]
        return tuple(firsts[list(groups)].tolist())

    def ranges(self, first: int, stop: int) -> Iterator[FileRange]:
        """Yield the part of each file to read for the rows at the places first, ..., stop - 1."""
        if first >= stop:
            return
        low = int(np.searchsorted(self._places, first, side="right")) - 1
        for number in range(low, len(self.files)):
            begin, end = int(self._places[number]), int(self._places[number + 1])
            if begin >= stop:
                break
            if begin == end:
                continue
            file, skip = self.files[number], max(0, first - begin)
            count = min(stop, end) - begin - skip
            ends = np.cumsum(file.counts)
            begins = ends - file.counts  # of row groups, of which only those with some of these rows are read
            groups = np.flatnonzero((ends > skip) & (begins < skip + count) & (ends > begins)).tolist()
            numbers = self.first_numbers(number, groups)
            yield FileRange(file, tuple(groups), numbers, skip - int(begins[groups[0]]), count)


def joined(tables: Sequence[Table]) -> Table:
    """Return the rows of all splits of a table as one selection."""
    first = tables[0]
    if len(tables) == 1:
        return first
    counts = [np.sum([table.files[number].counts for table in tables], axis=0) for number in range(len(first.files))]
    files = tuple(
        replace(file, selected=tuple(np.asarray(count, np.int64).tolist()))
        for file, count in zip(first.files, counts, strict=True)
    )
    return replace(first, files=files, selection=replace(first.selection, split=None))
