import numpy as np
import pyarrow as pa

from wdsplit.tables.table import InputFile, Table


def test_ranges_read_only_the_row_groups_of_their_places():
    selected = (1, 0, 2, 2)
    table = Table((InputFile("a.parquet", 1, 12, (3,) * 4, 120, "00", selected=selected),) * 2, pa.schema([]))
    assert (table.num_rows, table.total_rows, table.data_bytes) == (10, 24, 100)
    found = [(part.groups, part.skip, part.count) for part in table.ranges(2, 8)]
    assert found == [((2, 3), 1, 3), ((0, 2), 0, 3)]
    assert [part.row_numbers(0, 6).tolist() for part in table.ranges(2, 8)][1] == [12, 13, 14, 18, 19, 20]


def test_the_numbers_of_large_tables_do_not_overflow():
    files = tuple(InputFile(f"{n}.parquet", 1, 2**40, (2**39, 2**39), 2**50, "00") for n in range(3))
    table = Table(files, pa.schema([]))
    assert table.total_rows == 3 * 2**40
    (part,) = table.ranges(3 * 2**40 - 1, 3 * 2**40)
    assert (part.groups, part.skip, part.count) == ((1,), 2**39 - 1, 1)
    assert part.row_numbers(2**39 - 1, 2**39).tolist() == [3 * 2**40 - 1]
    assert table.where(2**41 + 5) == "2.parquet, row 5"
    assert np.asarray(part.numbers).dtype == np.int64
