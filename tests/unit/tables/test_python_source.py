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
    [
        ("a.parquet", ["a.parquet"]),
        (["a", "b"], ["a", "b"]),
        ((name for name in ("a", "b")), ["a", "b"]),
        ([], []),
    ],
)
def test_paths_stay_paths(paths, expected, tmp_path):
    assert python_source(paths) == expected
    assert python_source(tmp_path) == [str(tmp_path)]
    (tmp_path / "x.csv").touch()
    assert python_source(tmp_path.glob("*")) == [str(tmp_path / "x.csv")]


@pytest.mark.parametrize(
    "inputs",
    [
        NUMBERS,
        NUMBERS.to_batches()[0],
        NUMBERS.to_reader(),
        pyarrow.dataset.dataset(NUMBERS),
        NUMBERS.to_pylist(),
        (row for row in NUMBERS.to_pylist()),
    ],
    ids=lambda inputs: type(inputs).__name__,
)
def test_rows_come_from_arrow_and_from_iterables(inputs):
    assert read(inputs)[0].equals(NUMBERS)


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


@pytest.mark.parametrize("inputs", [Capsule(), Indexed()], ids=["capsule", "indexed"])
def test_objects_that_give_arrow_streams_or_rows_by_number_are_read(inputs):
    assert read(inputs)[0].equals(NUMBERS)


def test_columns_of_categories_keep_all_their_names_in_all_chunks():
    chunks = [pa.array(names).dictionary_encode() for names in (["b", "a"], ["c", "a"])]
    table, names = read(pa.table({"x": pa.chunked_array(chunks), "y": pa.array([1, 2, 1, 2]).dictionary_encode()}))
    assert names == {"x": ("b", "a", "c")}
    assert table.column("x").to_pylist() == ["b", "a", "c", "a"]


def test_a_dictionary_of_very_many_texts_is_not_one_of_classes(monkeypatch):
    monkeypatch.setattr("wdsplit.tables.python_source.MAX_CLASSES", 2)
    assert read(pa.table({"x": pa.array(["a", "b", "c"]).dictionary_encode()}))[1] == {}


@pytest.mark.parametrize("inputs", [5, None, {"a": [1]}, b"x", {"a.parquet"}], ids=repr)
def test_what_holds_no_rows_is_refused(inputs):
    with pytest.raises(InputError, match="cannot convert an object of this type") as caught:
        python_source(inputs)
    assert caught.value.found == type(inputs).__name__


def test_no_library_of_frames_is_imported():
    before = {"datasets", "pandas", "polars"} & set(sys.modules)
    python_source([{"x": 1}])
    assert {"datasets", "pandas", "polars"} & set(sys.modules) == before


# pandas


def test_a_pandas_frame_keeps_categories_and_named_indexes_only():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"x": pandas.Categorical(["b", None], categories=["b", "a"]), "y": [1.5, None], "id": ["p", "q"]}
    )
    table, names = read(frame[frame.id != ""])
    assert (table.column_names, names) == (["x", "y", "id"], {"x": ("b", "a")})
    assert table.to_pydict() == {"x": ["b", None], "y": [1.5, None], "id": ["p", "q"]}
    assert read(frame.set_index("id"))[0].column_names == ["id", "x", "y"]


def test_a_large_pandas_frame_comes_in_pieces_of_one_type(monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr("wdsplit.tables.python_source._FRAME_ROWS", 2)
    frame = pandas.DataFrame({"x": [None, None, "a", "b", None]})
    table, _ = read(frame)
    assert table.column("x").num_chunks == 3
    assert table.column("x").to_pylist() == [None, None, "a", "b", None]


def test_objects_in_a_pandas_frame_are_read_as_those_of_rows():
    pandas = pytest.importorskip("pandas")
    image_module = pytest.importorskip("PIL.Image")
    frame = pandas.DataFrame({"image": [image_module.new("L", (2, 2)), None], "y": [1.5, None]})
    table, _ = read(frame)
    assert table.column("image")[0].as_py().startswith(b"\x89PNG")
    assert table.column("y").to_pylist() == [1.5, None]


# Polars


def polars_frame(polars):
    kinds = {"c": polars.Categorical, "e": polars.Enum(["b", "a", "z"]), "s": polars.String}
    return polars.DataFrame({name: ["b", "a", "b"] for name in kinds}, schema=kinds)


def test_a_polars_frame_keeps_enums_and_categories():
    table, names = read(polars_frame(pytest.importorskip("polars")))
    assert names == {"c": ("b", "a"), "e": ("b", "a", "z")}
    assert table.column("e").to_pylist() == ["b", "a", "b"]


def test_a_lazy_polars_frame_comes_in_pieces_and_keeps_enums():
    frame = polars_frame(pytest.importorskip("polars")).lazy()
    table, names = read(frame.filter(True))
    assert names == {"e": ("b", "a", "z")}
    assert table.column("s").to_pylist() == ["b", "a", "b"]


def test_a_lazy_frame_of_an_old_polars_is_refused_with_the_remedy():
    old = type("LazyFrame", (), {"__module__": "polars.lazyframe"})
    with pytest.raises(InputError) as caught:
        python_source(old())
    assert "frame.collect()" in caught.value.remedy
