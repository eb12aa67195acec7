import numpy as np
import pyarrow as pa
import pytest

from tables import converted, options, planned, write_files, write_table
from wdsplit.conversion import class_runs
from wdsplit.tables.read import read_rows
from written_formats import write_as

ROWS = np.arange(6000)
CLASSES = ROWS * 10 // 6000
SHUFFLED = np.random.default_rng(0).permutation(CLASSES)


@pytest.fixture
def warned(tmp_path, caplog):
    """Return a function that plans tables in their order, and returns the one warning of runs, or an empty text."""

    def warned(given, rows_per_group=500, **changes):
        caplog.clear()
        paths = given if isinstance(given, list) else [write_table(tmp_path / "a.parquet", given, rows_per_group)]
        planned([str(path) for path in paths], options(**changes))
        found = [record.getMessage() for record in caplog.records if "has runs of" in record.getMessage()]
        assert len(found) <= 1
        return "".join(found)

    return warned


KINDS = {
    "int64": CLASSES,
    "uint8": CLASSES.astype(np.uint8),
    "bool": CLASSES < 5,
    "string": [f"class {number}" for number in CLASSES],
    "large_string": pa.array([f"class {number}" for number in CLASSES], pa.large_string()),
    "dictionary": pa.array([f"class {number}" for number in CLASSES]).dictionary_encode(),
    "dictionary of integers": pa.array(CLASSES).dictionary_encode(),
    "nulls": pa.array([None if number == 3 else number for number in CLASSES]),
    "rare": CLASSES == 9,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_sorted_by_a_column_is_warned_of_and_one_in_a_random_order_is_not(warned, kind):
    text = warned({"label": KINDS[kind], "id": ROWS}, null="omit")
    assert text.startswith("column 'label' has runs of about ")
    assert "batches will hold few of its classes" in text
    assert text.endswith("leave out --no-shuffle")
    order = np.random.default_rng(0).permutation(6000)
    assert warned({"label": pa.array(KINDS[kind]).take(pa.array(order)), "id": ROWS}, null="omit") == ""


@pytest.mark.parametrize(
    "column",
    [
        np.zeros(6000, int),
        ROWS,
        ROWS % 10,
        ROWS // 3,
        np.random.default_rng(0).random(6000) < 0.02,
        CLASSES + 0.5,
        [f"{number}: a long text that names no class" * 3 for number in ROWS],
    ],
    ids=["constant", "ids", "in turn", "short runs", "skewed", "floats", "long texts"],
)
def test_what_is_no_class_or_comes_in_no_runs_is_not_warned_of(warned, column):
    assert warned({"label": column}) == ""


def test_only_the_label_of_rows_that_are_selected_and_not_shuffled_is_looked_at(warned):
    assert "runs of about 600 rows (1.1 if shuffled; 10 values seen)" in warned({"label": CLASSES})
    assert warned({"label": CLASSES}, shuffle=True) == ""
    assert warned({"x": CLASSES, "label": SHUFFLED}) == ""
    assert "column 'x'" in warned({"x": CLASSES, "y": SHUFFLED}, mapping={"cls": "x"})
    assert warned({"label": CLASSES}, where="label == 3") == ""
    assert "2 values seen" in warned({"label": CLASSES}, where="label == 3 or label == 5")


@pytest.mark.parametrize(("rows_per_group", "rows_per_file"), [(1, 1000), (7, 6000), (6000, 1000)])
def test_row_groups_and_files_of_any_size_show_it(tmp_path, warned, rows_per_group, rows_per_file):
    table = pa.table({"label": CLASSES[::6], "y": SHUFFLED[::6]})
    assert "column 'label'" in warned(write_files(tmp_path, table, [rows_per_file // 6], rows_per_group))


@pytest.mark.parametrize("name", ["é a.csv", "a.jsonl"])
def test_formats_without_row_groups_are_looked_at(tmp_path, warned, name):
    for column in (CLASSES, SHUFFLED):
        path = write_as(tmp_path, name, pa.table({"label": column, "id": ROWS}))
        assert (warned([path]) == "") == (column is SHUFFLED)


@pytest.mark.parametrize("rows_per_group", [1, 2, 5])
def test_few_rows_in_each_place_are_no_runs_by_themselves(monkeypatch, warned, rows_per_group):
    monkeypatch.setattr(class_runs, "_MAX_VALUES", 16 * rows_per_group)
    for column, is_warned in ((SHUFFLED, False), (ROWS, False), (CLASSES, rows_per_group > 1)):
        assert bool(warned({"label": column}, 50)) == is_warned


def test_a_bounded_number_of_values_is_read(monkeypatch, warned):
    seen = []

    def read_and_note(table, first, stop, columns):
        seen.append((first, stop))
        return read_rows(table, first, stop, columns)

    monkeypatch.setattr(class_runs, "_MAX_VALUES", 2000)
    monkeypatch.setattr(class_runs, "read_rows", read_and_note)
    assert warned({"label": CLASSES}, 50)
    assert len(seen) == 16
    assert sum(stop - first for first, stop in seen) <= 2000
    assert max(stop for _, stop in seen) > 5000


def test_tars_keep_their_order_and_are_warned_of_with_the_option_that_shuffles_them(tmp_path, warned):
    path = write_table(tmp_path / "a.parquet", {"cls": CLASSES, "txt": [f"{row}" for row in ROWS]})
    converted(path, tmp_path / "out", shards=4)
    text = warned(sorted((tmp_path / "out").glob("*.tar")))
    assert "column 'cls'" in text and text.endswith("use --shuffle")
