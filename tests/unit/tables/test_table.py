import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.tables.table import InputFile, Table

files = st.lists(st.lists(st.lists(st.booleans(), max_size=4), max_size=4), max_size=5)
"""Files, each a list of row groups, each a list that says of every row whether it is kept; some of all are empty."""


def table_of(files, is_selected=True):
    """Return the table of files; all of their rows are kept if it is not of selected ones."""
    return Table(
        tuple(
            InputFile(
                f"{number}.parquet",
                100,
                sum(map(len, groups)),
                tuple(map(len, groups)),
                sum(map(len, groups)) * 10,
                "00",
                selected=tuple(map(sum, groups)) if is_selected else None,
            )
            for number, groups in enumerate(files)
        ),
        pa.schema([]),
    )


def kept_rows(files):
    """Return file and number of each row that is kept, in order."""
    rows, number = [], 0
    for file, groups in enumerate(files):
        for keeps in (keep for group in groups for keep in group):
            rows += [(file, number)] if keeps else []
            number += 1
    return rows


def read(files, part):
    """Read what a range tells, as a reader of files does: all rows of the row groups, of which some are kept."""
    file = int(part.file.path.removesuffix(".parquet"))
    keeps = [keep for group in part.groups for keep in files[file][group]]
    numbers = part.row_numbers(0, len(keeps)).tolist() if keeps else []
    kept = [(file, number) for number, keep in zip(numbers, keeps, strict=True) if keep]
    return kept[part.skip : part.skip + part.count]


@given(files, st.data())
def test_the_ranges_of_any_places_lead_to_the_rows_that_are_kept_and_read_no_other_row_group(files, data):
    table, kept = table_of(files), kept_rows(files)
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(kept))] * 2)))
    ranges = list(table.ranges(first, stop))
    assert [row for part in ranges for row in read(files, part)] == kept[first:stop]
    assert sum(part.count for part in ranges) == stop - first
    group_of = [(file, group) for file, groups in enumerate(files) for group in range(len(groups))
                for _ in files[file][group]]  # fmt: skip
    wanted = sorted({group_of[number] for _, number in kept[first:stop]})
    assert [(int(part.file.path[:-8]), group) for part in ranges for group in part.groups] == wanted


@given(files)
def test_rows_are_counted_and_named_by_their_files_with_and_without_those_that_are_left_out(files):
    names = [f"{file}.parquet, row {row}" for file, groups in enumerate(files) for row in range(sum(map(len, groups)))]
    for table, num_rows in ((table_of(files), len(kept_rows(files))), (table_of(files, False), len(names))):
        assert (table.num_rows, table.total_rows, table.data_bytes) == (num_rows, len(names), num_rows * 10)
        assert [table.where(number) for number in range(table.total_rows)] == names


def test_the_numbers_of_large_tables_do_not_overflow():
    files = tuple(InputFile(f"{n}.parquet", 1, 2**40, (2**39, 2**39), 2**50, "00") for n in range(3))
    table = Table(files, pa.schema([]))
    assert table.total_rows == 3 * 2**40
    (part,) = table.ranges(3 * 2**40 - 1, 3 * 2**40)
    assert (part.groups, part.skip, part.count) == ((1,), 2**39 - 1, 1)
    assert part.row_numbers(2**39 - 1, 2**39).tolist() == [3 * 2**40 - 1]
    assert table.where(2**41 + 5) == "2.parquet, row 5"
    assert np.asarray(part.numbers).dtype == np.int64
