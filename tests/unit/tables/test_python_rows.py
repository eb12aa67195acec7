import datetime
import io
import json
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image

from wdsplit.errors import InputError
from wdsplit.fields.infer import infer_fields
from wdsplit.tables.formats import common
from wdsplit.tables.python_rows import row_batches


def column_of(*values):
    """Return the column `x` of a batch of rows that has some values."""
    (batch,) = row_batches({"x": value} for value in values)
    return batch.column("x")


def field_of(*values):
    (batch,) = row_batches({"x": value} for value in values)
    first = next(value for value in batch.column("x").to_pylist() if value is not None)
    (field,) = infer_fields(batch.schema, {}, None, {"x": first if isinstance(first, bytes) else None})
    return field.name


def encoded(kind, **options):
    file = io.BytesIO()
    Image.radial_gradient("L").resize((16, 16)).convert("RGB").save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, -2, None), "int64"),
        ((1, 2.5), "double"),
        ((np.float32(1.5), np.float32(2)), "float"),
        (((1.5, 2.5),), "list<item: double>"),
        ((Decimal("12.30"),), "decimal128(4, 2)"),
        ((None,), "null"),
        ((bytearray(b"ab"), memoryview(b"ab")), "binary"),
    ],
)
def test_plain_values_get_the_type_that_arrow_finds(values, expected):
    column = column_of(*values)
    assert str(column.type) == expected
    assert column.to_pylist() == [list(value) if isinstance(value, tuple) else value for value in values]
    assert field_of(*values) == "bin" if expected == "binary" else True


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6, dtype=">f8")[::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([True, False]),
        np.zeros((0, 3), np.complex64),
    ],
)
def test_arrays_become_npy_of_any_shape(array):
    data = column_of(array, np.zeros(1))[0].as_py()
    loaded = np.load(io.BytesIO(data))
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == array.dtype.newbyteorder("<")
    assert field_of(array) == "npy"


@pytest.mark.parametrize(("kind", "name"), [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", "gif")])
def test_an_image_that_is_only_opened_keeps_the_bytes_of_its_file(kind, name, tmp_path):
    data = encoded(kind)
    (tmp_path / "file").write_bytes(data)
    with Image.open(tmp_path / "file") as image:
        assert column_of(Image.open(io.BytesIO(data)), image).to_pylist() == [data, data]
        assert image.load() is not None
    assert field_of(Image.open(io.BytesIO(data))) == name


def test_an_image_that_was_changed_is_png_without_loss_and_a_jpeg_that_was_decoded_keeps_its_tables():
    image = Image.open(io.BytesIO(encoded("JPEG", quality=60)))
    turned, tables = image.rotate(90), image.quantization
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(column_of(turned)[0].as_py()))), np.asarray(turned))
    assert field_of(turned) == "png"
    image.paste((255, 0, 0), (0, 0, 16, 16))
    again = Image.open(io.BytesIO(column_of(image)[0].as_py()))
    assert (again.format, again.quantization) == ("JPEG", tables)
    assert np.asarray(again)[8, 8].tolist() == pytest.approx([255, 0, 0], abs=12)


def test_an_undecoded_image_of_hugging_face_is_its_bytes():
    data = encoded("PNG")
    assert column_of({"bytes": data, "path": None}).to_pylist() == [data]
    with pytest.raises(InputError, match=r"the path 'a\.png'"):
        column_of({"bytes": None, "path": "a.png"})


def test_nested_dicts_become_json_texts_that_lack_what_each_lacks():
    values = [{"a": 1, "b": [1, {"c": None}]}, {"z": "é", "n": np.int64(3), "f": np.array([1.5])}, {}]
    column = column_of(*values)
    assert column.to_pylist() == ['{"a":1,"b":[1,{"c":null}]}', '{"z":"é","n":3,"f":[1.5]}', "{}"]
    assert (field_of(*values), field_of([{"a": 1}])) == ("json", "json")
    assert json.loads(column_of({"t": datetime.date(2024, 2, 29), "b": b"ab"})[0].as_py()) == {
        "t": "2024-02-29",
        "b": "YWI=",
    }


def test_batches_have_at_most_1024_rows_and_about_16_mib_and_keep_the_kinds_of_columns(monkeypatch):
    rows = ({"x": {"a": 1} if number < 1024 else None, "y": number} for number in range(2500))
    batches = list(row_batches(rows))
    assert [len(batch) for batch in batches] == [1024, 1024, 452]
    assert batches[0].schema.metadata == batches[2].schema.metadata
    assert batches[2].column("x").null_count == 452
    (batch,) = row_batches([{"a": 1}, {"b": "x"}, {"a": 3, "c": None}])
    assert batch.to_pydict() == {"a": [1, None, 3], "b": [None, "x", None], "c": [None, None, None]}
    assert common.BATCH_BYTES == 16 * 1024**2
    monkeypatch.setattr("wdsplit.tables.python_rows.BATCH_BYTES", 1000)
    assert [len(batch) for batch in row_batches({"x": bytes(400)} for _ in range(7))] == [3, 3, 1]


@pytest.mark.parametrize(
    ("values", "place", "words"),
    [
        ((1, "x"), "row 1, column 'x'", "str"),
        ((1, 2, 3, "x", "y"), "row 3, column 'x'", "str"),
        ((b"a", "x"), "row 1, column 'x'", "plain values (str)"),
        (({"a": 1}, "x"), "row 1, column 'x'", "plain values (str)"),
        ((1, {2}), "row 1, column 'x'", "set"),
        ((object(),), "row 0, column 'x'", "object"),
        ((2**70,), "row 0, column 'x'", "int"),
        ((np.array(["a"]),), "row 0, column 'x'", "dtype"),
        (({"a": object()},), "row 0, column 'x'", "dict"),
        ((Image.new("CMYK", (2, 2)),), "row 0, column 'x'", "CMYK"),
        ((*range(1500), []), "row 1500, column 'x'", ""),
    ],
)
def test_a_value_that_cannot_be_written_is_named_by_row_and_column(values, place, words):
    with pytest.raises(InputError) as caught:
        list(row_batches({"x": value} for value in values))
    assert caught.value.place == place
    assert words in caught.value.found


@pytest.mark.parametrize("row", [(1, 2), 3, {1: 2}])
def test_rows_that_are_no_dicts_are_refused_with_the_line_that_makes_them_so(row):
    with pytest.raises(InputError, match="not a dict") as caught:
        list(row_batches([{"x": 1}, row]))
    assert caught.value.place == "row 1"
    if isinstance(row, tuple):
        assert "{'field0': field0, 'field1': field1} for field0, field1 in rows" in caught.value.remedy
