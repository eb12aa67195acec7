"""Counting the selected rows, row group by row group, before anything is planned.

Only the columns that decide are read, and only the row groups whose statistics do not rule the condition out. What is
counted says later which row groups need not be read at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.grouping import Groups
from wdsplit.engines.local import in_order
from wdsplit.order.epoch import Int64
from wdsplit.tables.read import file_batches, matching_groups
from wdsplit.tables.select import Picker, hash_groups, in_split
from wdsplit.tables.table import FileRange, InputFile, Selection, Split, Table

__all__ = ["select_rows"]

_THREADS = 8
_ROWS_AT_ONCE = 1_000_000
_GROUPS_AT_ONCE = 64


@dataclass(frozen=True)
class _Counts:
    """What was found in a file: rows kept, rows of each split in each row group, and the groups of each split."""

    kept: int
    selected: list[Int64]
    groups: list[Groups]


def select_rows(
    table: Table, where: str, limit: int | None, splits: Sequence[Split | None], group_by: str | None
) -> list[tuple[Table, Groups | None]]:
    """Select rows of a table, and count them.

    Args:
        table: The whole table.
        where: The condition; empty for all rows.
        limit: How many of the rows that meet it to keep: the first ones.
        splits: The splits of what is kept; None for all of it. All hash the same column.
        group_by: The column whose groups to count, or None.

    Returns:
        For each split the table with its selection, and its groups if they were asked for.

    Raises:
        InputError: The condition is invalid, a file cannot be read, or a row is in no group.
    """
    counter = _Counter(table, where, splits, group_by)
    files: list[list[InputFile]] = [[] for _ in splits]
    groups: list[list[Groups]] = [[] for _ in splits]
    for file, found in zip(table.files, _counted(counter, len(table.files), limit), strict=True):
        for number, count in enumerate(found.selected):
            files[number].append(dataclasses.replace(file, selected=tuple(count.tolist())))
            groups[number].append(found.groups[number])
            if len(groups[number]) > _GROUPS_AT_ONCE:
                groups[number] = [Groups.merged(groups[number])]
    return [
        (
            Table(tuple(files[number]), table.schema, Selection(where, limit, split)),
            Groups.merged(groups[number]) if group_by is not None else None,
        )
        for number, split in enumerate(splits)
    ]


def _counted(counter: _Counter, num_files: int, limit: int | None) -> Iterator[_Counts]:
    """Count file by file: several at once, unless it depends on one file what the next gives."""
    if limit is None:
        yield from in_order(counter.count, range(num_files), _THREADS)
        return
    for number in range(num_files):
        found = counter.count(number, limit)
        limit -= found.kept
        yield found


class _Counter:
    """Counts the rows of one file after another, or of several at once."""

    def __init__(self, table: Table, where: str, splits: Sequence[Split | None], group_by: str | None) -> None:
        self._table = table
        self._splits = splits
        self._group_by = group_by
        self._picker = Picker(dataclasses.replace(table, selection=Selection(where, None, splits[0])))

    def count(self, number: int, limit: int | None = None) -> _Counts:
        """Count the rows of a file, of those that meet the condition the first `limit`."""
        file = self._table.files[number]
        kept = 0
        selected = [np.zeros(len(file.row_groups), np.int64) for _ in self._splits]
        groups: list[list[Groups]] = [[] for _ in self._splits]
        for columns, numbers, of_group in self._batches(number, limit):
            rows = self._picker.meeting(columns, len(numbers))
            rows = rows if limit is None else rows[: limit - kept]
            kept += len(rows)
            taken = {name: array.take(pa.array(rows)) for name, array in columns.items()}
            found = self._found(taken, numbers[rows])
            for count, group, (inside, its_groups) in zip(selected, groups, found, strict=True):
                count += np.bincount(of_group[rows][inside], minlength=len(count))
                if its_groups is not None:
                    group.append(its_groups)
                if len(group) > _GROUPS_AT_ONCE:
                    group[:] = [Groups.merged(group)]
            if limit is not None and kept >= limit:
                break
        return _Counts(kept, selected, [Groups.merged(group) for group in groups])

    def _found(self, columns: dict[str, pa.Array], numbers: Int64) -> Iterator[tuple[slice | Int64, Groups | None]]:
        """Give for each split which of the rows are in it, and their groups."""
        hashes = self._picker.hashes(columns, numbers) if self._splits[0] is not None else None
        groups = None
        if self._group_by is not None:
            groups = hash_groups(columns[self._group_by], numbers, self._table, self._group_by)
        for split in self._splits:
            inside = slice(None) if split is None or hashes is None else np.flatnonzero(in_split(hashes, split))
            yield inside, Groups.of(groups[inside], numbers[inside]) if groups is not None else None

    def _batches(self, number: int, limit: int | None) -> Iterator[tuple[dict[str, pa.Array], Int64, Int64]]:
        """Give the rows of a file that may be selected: the columns that decide, the numbers, the row groups."""
        file, table = self._table.files[number], self._table
        if limit == 0:
            return
        columns = list(dict.fromkeys([*self._picker.columns, *([self._group_by] if self._group_by else [])]))
        pruning = self._picker.pruning
        groups = [group for group, rows in enumerate(file.row_groups) if rows]
        if pruning is not None:
            groups = matching_groups(file, pruning)
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
        """Give columns of row groups with the number of their rows, batch by batch; of no columns nothing is read."""
        if not columns:
            for first in range(0, num_rows, _ROWS_AT_ONCE):
                yield {}, min(num_rows - first, _ROWS_AT_ONCE)
            return
        for batch in file_batches(self._table, file, groups, columns):
            yield dict(zip(columns, batch.columns, strict=True)), len(batch)
