import sys

import pyarrow as pa
import pyarrow.dataset
import pytest

from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names
from wdsplit.tables.python_source import PythonSource, python_source


def read(inputs):
    """Return what a source gives as one table, and the class names of its columns."""
    source = python_source(inputs)
    assert isinstance(source, PythonSource)
    table = pa.Table.from_batches(list(source.batches()))
    assert source.num_rows in (0, len(table))
    return table, class_names(table.schema)


NUMBERS = pa.table({"n": [1, 2, 3]})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [("a.parquet", ["a.parquet"]), (["a", "b"], ["a", "b"]), ((name for name in ("a", "b")), ["a", "b"]), ([], [])],
)
def test_paths_stay_paths(paths, expected, tmp_path):
    assert python_source(paths) == expected
    assert python_source(tmp_path) == [str(tmp_path)]
    (tmp_path / "x.csv").touch()
    assert python_source(tmp_path.glob("*")) == [str(tmp_path / "x.csv")]


class Capsule:
    """What a library gives that speaks Arrow's stream interface."""

    def __arrow_c_stream__(self, requested_schema=None):
        return NUMBERS.__arrow_c_stream__(requested_schema)


class Indexed:
    """A map-style dataset, which raises no IndexError."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return {"n": number + 1}


@pytest.mark.parametrize(
    "inputs",
    [
        NUMBERS,
        NUMBERS.to_batches()[0],
        NUMBERS.to_reader(),
        pyarrow.dataset.dataset(NUMBERS),
        NUMBERS.to_pylist(),
        (row for row in NUMBERS.to_pylist()),
        Capsule(),
        Indexed(),
    ],
    ids=lambda inputs: type(inputs).__name__,
)
def test_rows_come_from_arrow_from_iterables_and_by_number(inputs):
    assert read(inputs)[0].equals(NUMBERS)


def test_columns_of_categories_keep_all_their_names_in_all_chunks_unless_they_are_very_many(monkeypatch):
    chunks = [pa.array(names).dictionary_encode() for names in (["b", "a"], ["c", "a"])]
    given = pa.table({"x": pa.chunked_array(chunks), "y": pa.array([1, 2, 1, 2]).dictionary_encode()})
    table, names = read(given)
    assert names == {"x": ("b", "a", "c")}
    assert table.column("x").to_pylist() == ["b", "a", "c", "a"]
    monkeypatch.setattr("wdsplit.tables.python_source.MAX_CLASSES", 2)
    assert read(given)[1] == {}


@pytest.mark.parametrize("inputs", [5, None, {"a": [1]}, b"x", {"a.parquet"}])
def test_what_holds_no_rows_is_refused(inputs):
    with pytest.raises(InputError, match="cannot convert an object of this type") as caught:
        python_source(inputs)
    assert caught.value.found == type(inputs).__name__


def test_no_library_of_frames_is_imported():
    before = {"datasets", "pandas", "polars"} & set(sys.modules)
    python_source([{"x": 1}])
    assert {"datasets", "pandas", "polars"} & set(sys.modules) == before


# pandas


def test_a_large_pandas_frame_comes_in_pieces_of_one_type_and_its_objects_are_read_as_those_of_rows(monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr("wdsplit.tables.python_source._FRAME_ROWS", 2)
    table, _ = read(pandas.DataFrame({"x": [None, None, "a", "b", None]}))
    assert table.column("x").num_chunks == 3
    assert table.column("x").to_pylist() == [None, None, "a", "b", None]
    image = pytest.importorskip("PIL.Image").new("L", (2, 2))
    table, _ = read(pandas.DataFrame({"image": [image, None], "y": [1.5, None]}))
    assert table.column("image")[0].as_py().startswith(b"\x89PNG")
    assert table.column("y").to_pylist() == [1.5, None]
    named = pandas.DataFrame({"y": [1], "id": ["p"]}).set_index("id")  # an index with a name is a column
    assert read(named)[0].to_pydict() == {"id": ["p"], "y": [1]}


# Polars


def test_a_polars_frame_keeps_enums_and_categories():
    polars = pytest.importorskip("polars")
    kinds = {"c": polars.Categorical, "e": polars.Enum(["b", "a", "z"]), "s": polars.String}
    table, names = read(polars.DataFrame({name: ["b", "a", "b"] for name in kinds}, schema=kinds))
    assert names == {"c": ("b", "a"), "e": ("b", "a", "z")}
    assert table.column("e").to_pylist() == table.column("s").to_pylist() == ["b", "a", "b"]
