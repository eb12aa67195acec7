"""Counts the selected rows of each row group, before planning.

Reads only the columns that decide, and only row groups whose statistics do not exclude the condition. Later, row groups
without selected rows are not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.engines.watching import watched
from wdsplit.tables.read import file_batches, matching_groups
from wdsplit.tables.select import Picker, in_split
from wdsplit.tables.table import FileRange, InputFile, Selection, Split, Table

__all__ = ["select_rows"]

_THREADS = 8
_ROWS_AT_ONCE = 1_000_000


def select_rows(table: Table, where: str, limit: int | None, splits: Sequence[Split | None]) -> list[Table]:
    """Select rows of a table, and count them.

    Args:
        table: The whole table.
        where: The condition; empty for all rows.
        limit: Keep only the first `limit` matching rows.
        splits: The splits of the kept rows; None for no splits. All hash the same column.

    Returns:
        For each split the table with its selection.

    Raises:
        InputError: The condition is invalid, a file cannot be read, or the value that decides a row's split is null.
    """
    picker = Picker(dataclasses.replace(table, selection=Selection(where, None, splits[0])))
    count = partial(_count, table, picker, splits)
    files: list[list[InputFile]] = [[] for _ in splits]
    counted = in_order(count, range(len(table.files)), _THREADS) if limit is None else _limited(count, table, limit)
    for file, (_, selected) in zip(table.files, watched("counting rows", counted, len(table.files)), strict=True):
        for number, rows in enumerate(selected):
            files[number].append(dataclasses.replace(file, selected=tuple(rows.tolist())))
    selections = [Selection(where, limit, split) for split in splits]
    return [
        dataclasses.replace(table, files=tuple(files[number]), selection=selection)
        for number, selection in enumerate(selections)
    ]


def _limited(
    count: Callable[[int, int], tuple[int, list[Int64]]], table: Table, limit: int
) -> Iterator[tuple[int, list[Int64]]]:
    """Count one file after another: with a limit, the count of a file depends on earlier ones."""
    for number in range(len(table.files)):
        found = count(number, limit)
        limit -= found[0]
        yield found


def _count(
    table: Table, picker: Picker, splits: Sequence[Split | None], number: int, limit: int | None = None
) -> tuple[int, list[Int64]]:
    """Count the rows of a file that meet the condition, up to the first `limit`; and those of each split by group."""
    file = table.files[number]
    selected = [np.zeros(len(file.row_groups), np.int64) for _ in splits]
    if limit == 0:
        return 0, selected
    if picker.pruning is None:
        read_groups = [group for group, rows in enumerate(file.row_groups) if rows]
    else:
        read_groups = matching_groups(table, file, picker.pruning, picker.where_columns)
    part = FileRange(file, tuple(read_groups), table.first_numbers(number, read_groups), 0, 0)
    ends, order = np.cumsum([file.row_groups[group] for group in read_groups]), np.asarray(read_groups, np.int64)
    kept = read = 0
    for columns, count in _columns(table, file, read_groups, picker.columns):
        meeting = picker.meeting(columns, count)
        rows = meeting if limit is None else meeting[: limit - kept]
        kept += len(rows)
        numbers = part.row_numbers(read, read + count)[rows]
        of_group = order[np.searchsorted(ends, read + rows, side="right")]
        read += count
        taken = {name: columns[name].take(pa.array(rows)) for name in picker.columns}
        hashes = picker.hashes(taken, numbers) if splits[0] is not None else None
        for place, split in enumerate(splits):
            inside = slice(None) if split is None or hashes is None else np.flatnonzero(in_split(hashes, split))
            selected[place] += np.bincount(of_group[inside], minlength=len(file.row_groups))
        if limit is not None and kept >= limit:
            break
    return kept, selected


def _columns(
    table: Table, file: InputFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[tuple[dict[str, pa.Array], int]]:
    """Yield columns of row groups and their number of rows, batch by batch; without columns, nothing is read."""
    if columns and groups:
        for batch in file_batches(table, file, groups, columns):
            yield dict(zip(columns, batch.columns, strict=True)), len(batch)
        return
    num_rows = sum(file.row_groups[group] for group in groups)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        yield {}, min(num_rows - first, _ROWS_AT_ONCE)
