import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pytest

from tables import converted, planned, write_files, write_table
from tables import options as options_of
from wdsplit.conversion import class_runs
from wdsplit.tables.read import read_rows

WARNING = "has runs of"

ROWS = np.arange(6000)
CLASSES = ROWS * 10 // 6000
SHUFFLED = np.random.default_rng(0).permutation(CLASSES)


def warnings_of(caplog, paths, **changes):
    """Plan a conversion that keeps the order, and return the warnings of runs."""
    caplog.clear()
    planned([str(path) for path in paths], options_of(**({"shuffle": False} | changes)))
    return [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]


@pytest.fixture
def warned(tmp_path, caplog):
    """Return a function that plans a table of columns, and returns the one warning of runs, or an empty text."""

    def warned(columns, rows_per_group=500, **changes):
        found = warnings_of(caplog, [write_table(tmp_path / "a.parquet", columns, rows_per_group)], **changes)
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
def test_a_table_that_is_sorted_by_a_column_is_warned_of(warned, kind):
    text = warned({"x": KINDS[kind], "id": ROWS}, null="omit")
    assert text.startswith("column 'x' has runs of about ")
    assert "batches will hold few of its classes" in text
    assert text.endswith("leave out --no-shuffle")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_in_a_random_order_are_not(warned, kind):
    order = np.random.default_rng(0).permutation(6000)
    assert warned({"x": pa.array(KINDS[kind]).take(pa.array(order)), "id": ROWS}, null="omit") == ""


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
    assert warned({"x": column}) == ""


def test_what_is_shuffled_is_not_looked_at(warned):
    assert warned({"x": CLASSES}, shuffle=True) == ""
    assert warned({"x": CLASSES}, shuffle=False) != ""


def test_what_is_not_written_is_not_looked_at(warned):
    assert warned({"x": CLASSES, "y": SHUFFLED}, mapping={"cls": "y"}) == ""
    assert warned({"x": CLASSES, "y": SHUFFLED}, mapping={"cls": "x"}) != ""


def test_the_figures_are_those_of_the_rows(warned):
    text = warned({"x": CLASSES})
    assert "runs of about 600 rows (1.1 if shuffled; 10 values seen)" in text


@pytest.mark.parametrize("rows_per_group", [1, 7, 100, 6000])
@pytest.mark.parametrize("rows_per_file", [6000, 1000])
def test_row_groups_and_files_of_any_size_show_it(tmp_path, caplog, rows_per_group, rows_per_file):
    table = pa.table({"x": CLASSES[::6], "y": SHUFFLED[::6]})
    paths = write_files(tmp_path, table, [rows_per_file // 6], rows_per_group)
    (text,) = warnings_of(caplog, paths)
    assert "column 'x'" in text


@pytest.mark.parametrize("rows_per_group", [1, 2, 5])
def test_few_rows_in_each_place_are_no_runs_by_themselves(tmp_path, monkeypatch, caplog, rows_per_group):
    monkeypatch.setattr(class_runs, "_MAX_VALUES", 16 * rows_per_group)
    for columns, is_warned in (({"x": SHUFFLED}, False), ({"x": ROWS}, False), ({"x": CLASSES}, rows_per_group > 1)):
        found = warnings_of(caplog, [write_table(tmp_path / "a.parquet", columns, 50)])
        assert len(found) == is_warned


def test_of_several_columns_that_of_the_class_names_is_named(tmp_path, caplog):
    features = b'{"info": {"features": {"fine": {"_type": "ClassLabel", "names": ["a", "b"]}}}}'
    table = pa.table({"source": ROWS // 2000, "fine": CLASSES // 5})
    path = write_table(tmp_path / "a.parquet", table.replace_schema_metadata({b"huggingface": features}), 500)
    (text,) = warnings_of(caplog, [path])
    assert "column 'fine'" in text
    (text,) = warnings_of(caplog, [path], mapping={"cls": "source", "fine.cls": "fine"}, where="fine == 0")
    assert "column 'source'" in text


def test_only_selected_rows_are_looked_at(warned):
    assert warned({"x": CLASSES}, where="x == 3") == ""
    assert "2 values seen" in warned({"x": CLASSES}, where="x == 3 or x == 5")


def write_csv(path, table):
    pa.csv.write_csv(table, path)


def write_jsonl(path, table):
    path.write_text("".join(f'{{"x": {row["x"]}, "id": {row["id"]}}}\n' for row in table.to_pylist()))


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "arrow": lambda path, table: pa.feather.write_feather(table, path)}
WRITERS["orc"] = lambda path, table: pa.orc.write_table(table, path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_is_looked_at(tmp_path, caplog, suffix):
    for name, column in (("sorted", CLASSES), ("shuffled", SHUFFLED)):
        path = tmp_path / f"{name}.{suffix}"
        WRITERS[suffix](path, pa.table({"x": column, "id": ROWS}))
        assert len(warnings_of(caplog, [path])) == (name == "sorted")


def test_tars_keep_their_order_and_are_warned_of_with_the_option_that_shuffles_them(tmp_path, caplog):
    path = write_table(tmp_path / "a.parquet", {"cls": CLASSES, "txt": [f"{row}" for row in ROWS]})
    converted(path, tmp_path / "out", shuffle=False, shards=4)
    (text,) = warnings_of(caplog, sorted((tmp_path / "out").glob("*.tar")))
    assert "column 'cls'" in text
    assert text.endswith("use --shuffle")


def test_a_bounded_number_of_values_is_read(tmp_path, monkeypatch, caplog):
    seen = []

    def read_and_note(table, first, stop, columns):
        seen.append((first, stop))
        return read_rows(table, first, stop, columns)

    monkeypatch.setattr(class_runs, "_MAX_VALUES", 2000)
    monkeypatch.setattr(class_runs, "read_rows", read_and_note)
    path = write_table(tmp_path / "a.parquet", {"x": CLASSES, "y": ROWS}, 50)
    assert warnings_of(caplog, [path])
    assert len(seen) == 16
    assert sum(stop - first for first, stop in seen) * 2 <= 2000
    assert max(stop for _, stop in seen) > 5000
