"""Counts the selected rows of each row group, before planning.

Reads only the columns that decide, and only row groups whose statistics do not exclude the condition. Later, row groups
without selected rows are not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.plan.grouping import Groups
from wdsplit.engines.local import in_order
from wdsplit.engines.watching import watched
from wdsplit.tables.read import file_batches, matching_groups
from wdsplit.tables.select import Picker, hash_groups, in_split
from wdsplit.tables.table import FileRange, InputFile, Selection, Split, Table

__all__ = ["select_rows"]

_THREADS = 8
_ROWS_AT_ONCE = 1_000_000
_GROUPS_AT_ONCE = 64


@dataclass(frozen=True)
class _Counts:
    """The counts of a file: kept and empty rows, rows of each split by row group, and the groups of each split."""

    kept: int
    num_empty: int
    selected: list[Int64]
    groups: list[Groups]


def select_rows(
    table: Table,
    where: str,
    limit: int | None,
    splits: Sequence[Split | None],
    group_by: str | None,
    some_of: tuple[str, ...] = (),
) -> list[tuple[Table, Groups | None]]:
    """Select rows of a table, and count them.

    Args:
        table: The whole table.
        where: The condition; empty for all rows.
        limit: Keep only the first `limit` matching rows.
        splits: The splits of the kept rows; None for no splits. All hash the same column.
        group_by: The column whose groups to count, or None.
        some_of: Columns of which at least one must have a value; empty if all may be null.

    Returns:
        For each split the table with its selection, and its groups with `group_by`.

    Raises:
        InputError: The condition is invalid, a file cannot be read, or the group of a row is null.
    """
    counter = _Counter(table, Selection(where, None, splits[0], some_of), splits, group_by)
    files: list[list[InputFile]] = [[] for _ in splits]
    groups: list[list[Groups]] = [[] for _ in splits]
    num_empty = 0
    counted = watched("counting rows", _counted(counter, len(table.files), limit), len(table.files))
    for file, found in zip(table.files, counted, strict=True):
        num_empty += found.num_empty
        for number, count in enumerate(found.selected):
            files[number].append(dataclasses.replace(file, selected=tuple(count.tolist())))
            groups[number].append(found.groups[number])
            if len(groups[number]) > _GROUPS_AT_ONCE:
                groups[number] = [Groups.merged(groups[number])]
    return [
        (
            dataclasses.replace(
                table,
                files=tuple(files[number]),
                selection=Selection(where, limit, split, some_of),
                num_empty=num_empty,
            ),
            Groups.merged(groups[number]) if group_by is not None else None,
        )
        for number, split in enumerate(splits)
    ]


def _counted(counter: _Counter, num_files: int, limit: int | None) -> Iterator[_Counts]:
    """Count the files: several at once, unless the count of a file depends on earlier ones."""
    if limit is None:
        yield from in_order(counter.count, range(num_files), _THREADS)
        return
    for number in range(num_files):
        found = counter.count(number, limit)
        limit -= found.kept
        yield found


class _Counter:
    """Counts the rows of one file after another, or of several at once."""

    def __init__(
        self, table: Table, selection: Selection, splits: Sequence[Split | None], group_by: str | None
    ) -> None:
        self._table = table
        self._splits = splits
        self._group_by = group_by
        self._picker = Picker(dataclasses.replace(table, selection=selection))
        no_empty = dataclasses.replace(selection, some_of=())
        self._picker_without_empty = Picker(dataclasses.replace(table, selection=no_empty))

    def count(self, number: int, limit: int | None = None) -> _Counts:
        """Count the rows of a file that meet the condition, up to the first `limit`."""
        file = self._table.files[number]
        kept = num_empty = 0
        picker = self._picker_of(file)
        deciding = self._deciding(picker)
        selected = [np.zeros(len(file.row_groups), np.int64) for _ in self._splits]
        groups: list[list[Groups]] = [[] for _ in self._splits]
        for columns, numbers, of_group in self._batches(number, limit, picker):
            rows, empty = _kept(picker, columns, len(numbers), None if limit is None else limit - kept)
            kept, num_empty = kept + len(rows), num_empty + empty
            taken = {name: columns[name].take(pa.array(rows)) for name in deciding}
            found = self._found(taken, numbers[rows])
            for count, group, (inside, new_groups) in zip(selected, groups, found, strict=True):
                count += np.bincount(of_group[rows][inside], minlength=len(count))
                if new_groups is not None:
                    group.append(new_groups)
                if len(group) > _GROUPS_AT_ONCE:
                    group[:] = [Groups.merged(group)]
            if limit is not None and kept >= limit:
                break
        return _Counts(kept, num_empty, selected, [Groups.merged(group) for group in groups])

    def _found(self, columns: dict[str, pa.Array], numbers: Int64) -> Iterator[tuple[slice | Int64, Groups | None]]:
        """Yield the rows of each split, and their groups."""
        hashes = self._picker.hashes(columns, numbers) if self._splits[0] is not None else None
        groups = None
        if self._group_by is not None:
            groups = hash_groups(columns[self._group_by], numbers, self._table, self._group_by)
        for split in self._splits:
            inside = slice(None) if split is None or hashes is None else np.flatnonzero(in_split(hashes, split))
            yield inside, Groups.of(groups[inside], numbers[inside]) if groups is not None else None

    def _picker_of(self, file: InputFile) -> Picker:
        """Return the picker for the rows of a file; it reads fewer columns if no row can be empty."""
        all_null = self._picker.all_null
        if all_null is None:
            return self._picker
        names = self._picker.some_of
        return self._picker if matching_groups(self._table, file, all_null, names) else self._picker_without_empty

    def _deciding(self, picker: Picker) -> list[str]:
        """Return the columns that determine the split and the group of a row."""
        return list(dict.fromkeys([*picker.deciding, *([self._group_by] if self._group_by else [])]))

    def _batches(
        self, number: int, limit: int | None, picker: Picker
    ) -> Iterator[tuple[dict[str, pa.Array], Int64, Int64]]:
        """Yield the rows of a file that may be selected: deciding columns, row numbers, row groups."""
        file, table = self._table.files[number], self._table
        if limit == 0:
            return
        columns = list(dict.fromkeys([*self._deciding(picker), *picker.columns]))
        pruning = picker.pruning
        groups = [group for group, rows in enumerate(file.row_groups) if rows]
        if pruning is not None:
            groups = matching_groups(table, file, pruning, picker.where_columns)
        if not groups:
            return
        read_range = FileRange(file, tuple(groups), table.first_numbers(number, groups), 0, 0)
        ends, order = np.cumsum([file.row_groups[group] for group in groups]), np.asarray(groups)
        read = 0
        for arrays, count in self._columns(file, groups, columns, int(ends[-1])):
            rows = np.arange(read, read + count)
            read += count
            of_group = order[np.searchsorted(ends, rows, side="right")]
            yield arrays, read_range.row_numbers(read - count, read), of_group

    def _columns(
        self, file: InputFile, groups: Sequence[int], columns: Sequence[str], num_rows: int
    ) -> Iterator[tuple[dict[str, pa.Array], int]]:
        """Yield columns of row groups and their number of rows, batch by batch; without columns, nothing is read."""
        if not columns:
            for first in range(0, num_rows, _ROWS_AT_ONCE):
                yield {}, min(num_rows - first, _ROWS_AT_ONCE)
            return
        for batch in file_batches(self._table, file, groups, columns):
            yield dict(zip(columns, batch.columns, strict=True)), len(batch)


def _kept(picker: Picker, columns: dict[str, pa.Array], num_rows: int, limit: int | None) -> tuple[Int64, int]:
    """Return the first `limit` kept rows of a batch (int64, ascending), and how many before the last are empty."""
    meeting = picker.meeting(columns, num_rows)
    filled = picker.filled(columns, meeting)
    rows = filled[:limit]
    seen = len(meeting) if len(rows) == len(filled) else int(np.searchsorted(meeting, rows[-1])) + 1
    return rows, seen - len(rows)
