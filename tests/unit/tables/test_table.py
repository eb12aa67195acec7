import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.tables.table import InputFile, Table


def file_of(number, groups, kept=None):
    """Return a file of row groups of the given sizes, and how many of each are kept."""
    return InputFile(f"{number}.parquet", 100, sum(groups), tuple(groups), sum(groups) * 10, "00", selected=kept)


def table_of(files):
    """Return the table of files, each a list of row groups, each a list that says of every row whether it is kept."""
    return Table(
        tuple(file_of(number, list(map(len, groups)), tuple(map(sum, groups))) for number, groups in enumerate(files)),
        pa.schema([]),
    )


files = st.lists(st.lists(st.lists(st.booleans(), max_size=4), max_size=4), max_size=5)
"""Files, empty ones and empty row groups among them."""


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
def test_the_ranges_of_any_places_lead_to_the_rows_that_are_kept(files, data):
    table, kept = table_of(files), kept_rows(files)
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(kept))] * 2)))
    ranges = list(table.ranges(first, stop))
    assert [row for part in ranges for row in read(files, part)] == kept[first:stop]
    assert sum(part.count for part in ranges) == stop - first


@given(files, st.data())
def test_a_range_reads_each_row_group_that_holds_a_wanted_row_and_no_other(files, data):
    table, kept = table_of(files), kept_rows(files)
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(kept))] * 2)))
    group_of = [(file, group) for file, groups in enumerate(files) for group in range(len(groups))
                for _ in files[file][group]]  # fmt: skip
    wanted = sorted({group_of[number] for _, number in kept[first:stop]})
    found = [(int(part.file.path[:-8]), group) for part in table.ranges(first, stop) for group in part.groups]
    assert found == wanted


@given(files)
def test_a_row_is_named_by_its_file_and_its_row_in_it(files):
    table = table_of(files)
    names = [f"{file}.parquet, row {row}" for file, groups in enumerate(files) for row in range(sum(map(len, groups)))]
    assert [table.where(number) for number in range(table.total_rows)] == names


@given(files)
def test_rows_are_counted_with_and_without_those_that_are_left_out(files):
    table, rows = table_of(files), sum(len(group) for groups in files for group in groups)
    assert table.num_rows == len(kept_rows(files))
    assert table.total_rows == rows
    assert table.data_bytes == table.num_rows * 10
    whole = Table(tuple(file_of(number, list(map(len, groups))) for number, groups in enumerate(files)), pa.schema([]))
    assert (whole.num_rows, whole.total_rows, whole.data_bytes) == (rows, rows, rows * 10)


def test_the_numbers_of_large_tables_do_not_overflow():
    files = tuple(InputFile(f"{n}.parquet", 1, 2**40, (2**39, 2**39), 2**50, "00") for n in range(3))
    table = Table(files, pa.schema([]))
    assert table.total_rows == 3 * 2**40
    (part,) = table.ranges(3 * 2**40 - 1, 3 * 2**40)
    assert (part.groups, part.skip, part.count) == ((1,), 2**39 - 1, 1)
    assert part.row_numbers(2**39 - 1, 2**39).tolist() == [3 * 2**40 - 1]
    assert table.where(2**41 + 5) == "2.parquet, row 5"
    assert np.asarray(part.numbers).dtype == np.int64
