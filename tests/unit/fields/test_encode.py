import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from columns import IMAGE
from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.decode import decode_field
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.infer import class_names, infer_fields, needs_sniff, sniff
from wdsplit.tar.names import check_field

JPG = b"\xff\xd8\xff\xe0"

MAGIC = {
    "jpg": JPG,
    "png": b"\x89PNG\r\n\x1a\n",
    "webp": b"RIFF\x10\0\0\nWEBPVP8 ",
    "gif": b"GIF89a",
    "tiff": b"II*\0",
    "flac": b"fLaC",
    "wav": b"RIFF\x10\0\0\nWAVEfmt ",
    "ogg": b"OggS",
    "mp3": b"ID3\x04",
    "mp4": b"\0\0\0\x18ftypmp42",
    "npy": b"\x93NUMPY\x01\0",
    "pdf": b"%PDF-1.7",
}
MORE_MAGIC = [("gif", b"GIF87a"), ("tiff", b"MM\0*"), ("mp3", b"\xff\xfb\x90"), ("mp3", b"\xff\xf3\x90")]

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]

INTERVAL = pa.month_day_nano_interval()
REFUSED = [
    pa.null(),
    INTERVAL,
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.struct([]),
    pa.struct([("x", INTERVAL)]),
    pa.list_(INTERVAL),
    pa.map_(pa.string(), INTERVAL),
    pa.map_(INTERVAL, pa.string()),
    pa.dictionary(pa.int8(), pa.list_(pa.struct([("deep", INTERVAL)]))),
]


def where(row):
    return f"part-3.parquet, row {row}"


def infer(columns, mapping=None, key=None, first_bytes=None, label=None):
    return infer_fields(pa.schema(list(columns.items())), mapping or {}, key, first_bytes or {}, label=label)


def names_of(columns, **more):
    return [field.name for field in infer(columns, **more)]


def encode(column, name=None, null="error"):
    """Encode one column under the field that it takes by itself, or under `name`."""
    mapping = {name: "c"} if name else {}
    (field,) = infer({"c": column.type}, mapping)
    return encode_batch({"c": column}, [field], null, where)[field.name].to_pylist()


def load(payload):
    return np.load(io.BytesIO(payload), allow_pickle=False)


# What a column becomes


@pytest.mark.parametrize(("name", "payload"), [*MAGIC.items(), *MORE_MAGIC])
def test_binary_columns_are_named_by_their_first_bytes(name, payload):
    assert sniff(payload) == name
    for kind in (pa.binary(), pa.large_binary(), pa.binary(16), pa.dictionary(pa.int8(), pa.binary())):
        assert needs_sniff(kind)
        assert names_of({"c": kind}, first_bytes={"c": payload + bytes(60)}) == [name]


def test_binary_columns_with_other_first_bytes_are_bin():
    for payload in (None, b"", b"RIFF\x10\0\0\nAVI ", b"\xff\xd8"):
        assert names_of({"c": pa.binary()}, first_bytes={"c": payload}) == ["bin"]


def test_a_hugging_face_image_is_known_by_its_type():
    for kind in (IMAGE, pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary())])):
        assert infer({"image": kind}, first_bytes={"image": JPG}) == (field_of("jpg", "image", "media", kind),)


FIELDS = {
    "txt": [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "c.json": [
        *(pa.bool_(), *INTEGERS, pa.float64(), pa.decimal128(10, 2)),
        *(pa.timestamp("us", "UTC"), pa.duration("s"), pa.bool8(), pa.dictionary(pa.int8(), pa.date32())),
    ],
    "npy": [
        *(pa.list_(pa.float16(), 4), pa.list_view(pa.int8()), pa.list_(pa.bool_())),
        *(pa.list_(pa.list_(pa.float32(), 2)), pa.fixed_shape_tensor(pa.uint8(), [2, 3])),
    ],
    "json": [
        *(pa.list_(pa.list_(pa.float32())), pa.list_(pa.string()), pa.list_(pa.null()), pa.json_()),
        *(pa.struct([("x", pa.binary())]), pa.struct([("bytes", pa.string()), ("path", pa.string())])),
    ],
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in FIELDS.items() for kind in kinds])
def test_the_type_of_a_column_decides_its_field(name, kind):
    assert infer({"c": kind})[0].name == name
    assert infer({"c": kind})[0].type == str(kind)


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_without_an_encoding_is_refused_by_name(kind):
    with pytest.raises(InputError) as caught:
        infer({"good": pa.int64(), "bad": kind})
    assert f"column 'bad' has the type {kind}, which no encoding supports" in caught.value.found
    assert "good" not in caught.value.found
    assert "--map" in caught.value.remedy


def test_every_column_but_the_key_becomes_a_field_in_their_order_and_those_of_one_kind_are_named_by_column():
    columns = {"id": pa.string(), "image": IMAGE, "label": pa.int64(), "text": pa.string()}
    assert names_of(columns, key="id", first_bytes={"image": JPG}, label="label") == ["jpg", "cls", "txt"]
    assert names_of(columns, first_bytes={"image": JPG}) == ["id.txt", "jpg", "label.json", "text.txt"]
    columns = {"Left Eye": pa.binary(), "right": pa.binary(), "label": pa.int64()}
    assert names_of(columns, first_bytes={"Left Eye": JPG, "right": JPG}) == ["left_eye.jpg", "right.jpg", "label.json"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("a b", "a_b"), "would be written 2 times"),
        (("A", "a"), "would be written 2 times"),
        (("é", "ü"), "would be written 2 times"),
        (("a", "a", "b"), "duplicate column 'a' (2 times)"),
        (("id",), "no column but the key"),
    ],
)
def test_columns_whose_names_would_become_one_and_no_columns_are_refused(names, found):
    with pytest.raises(InputError) as caught:
        infer_fields(pa.schema([(name, pa.int64()) for name in names]), {}, "id" if "id" in names else None, {})
    assert found in caught.value.found


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6, unique=True))
def test_whatever_the_columns_are_called_every_one_is_written_or_the_table_is_refused(columns):
    try:
        fields = infer(dict.fromkeys(columns, pa.int64()))
    except InputError:
        return
    assert [field.column for field in fields] == columns
    assert len({check_field(field.name) for field in fields}) == len(columns)


# What a mapping may ask for


@pytest.mark.parametrize(
    ("name", "kind", "encoding"),
    [("json", pa.list_(pa.float32()), "json"), ("cls", pa.string(), "text"), ("npy", pa.binary(), "bytes")],
)
def test_a_mapping_may_ask_for_another_encoding_where_the_two_fit(name, kind, encoding):
    assert infer({"c": kind}, {name: "c"})[0].encoding == encoding


@pytest.mark.parametrize(("name", "kind"), [("a.cls", pa.float32()), ("cls", IMAGE), ("npy", pa.list_(pa.string()))])
def test_a_mapping_that_does_not_fit_the_column_is_refused(name, kind):
    with pytest.raises(InputError) as caught:
        infer({"c": kind}, {name: "c"})
    assert f"column 'c' of type {kind} cannot be written as a field {name!r}" in caught.value.found


def test_all_missing_columns_of_a_mapping_and_the_key_are_named_together_with_what_there_is():
    with pytest.raises(InputError) as caught:
        infer({"a": pa.int64(), "b": pa.int64()}, {"cls": "x", "txt": "y", "json": "a"}, key="z")
    assert all(f"column {name!r} is not in the table (it has: a, b)" in caught.value.found for name in "xyz")


def test_all_fields_that_do_not_fit_or_cannot_be_named_so_are_named_together():
    with pytest.raises(InputError) as caught:
        infer({"f": pa.float32(), "i": pa.int64()}, {"JPG": "i", "cls": "f", "npy": "i", "__key__": "i"})
    message = str(caught.value)
    assert all(name in message for name in ("JPG", "'cls'", "'npy'", "__key__"))


@pytest.mark.parametrize("length", [0, 9, 10, 12_345])
def test_an_npy_payload_is_the_bytes_that_numpy_writes(length):
    nested = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    lists = pa.list_(pa.list_(pa.list_(pa.float16(), 4), 3), 2)
    for values, kind in ((np.arange(length, dtype=np.float32), pa.list_(pa.float32())), (nested, lists)):
        sink = io.BytesIO()
        np.lib.format.write_array(sink, values, version=(1, 0))
        assert encode(pa.array([values.tolist()], kind)) == [sink.getvalue()]


# Nulls


def test_a_row_that_is_all_null_is_refused_even_where_nulls_are_left_out():
    columns = {"a": pa.array([1, None, None]), "b": pa.array(["x", "y", None])}
    fields = infer({name: column.type for name, column in columns.items()})
    with pytest.raises(InputError, match="every value of a row is null") as caught:
        encode_batch(columns, fields, "omit", where)
    assert caught.value.place == where(2)
    payloads = encode_batch(columns, fields, "empty", where)
    assert payloads["a.json"].to_pylist() == [b"1", b"", b""]


@pytest.mark.parametrize("kind", [pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)], ids=str)
def test_a_null_within_a_list_of_numbers_is_refused_by_its_row(kind):
    column = pa.array([[1, 2], None, [5, None]], kind)
    for part, row in ((column, 2), (column.slice(2), 0)):
        with pytest.raises(InputError, match="list of numbers contains a null") as caught:
            encode(part, null="omit")
        assert caught.value.place == f"{where(row)}, column 'c'"


def test_an_image_that_is_only_a_path_is_refused():
    column = pa.array([{"bytes": JPG, "path": None}, {"bytes": None, "path": "cat.jpg"}], IMAGE)
    with pytest.raises(InputError, match="a path but no bytes") as caught:
        encode(column, null="omit")
    assert caught.value.place == f"{where(1)}, column 'c'"
    assert "cat.jpg" in caught.value.found
    assert "embed" in caught.value.remedy


def test_the_bytes_of_a_null_image_are_not_brought_back_from_below_the_null():
    bytes_below = pa.array([JPG, JPG], pa.binary())
    column = pa.StructArray.from_arrays(
        [bytes_below, pa.array(["a", "b"])], ["bytes", "path"], mask=pa.array([False, True])
    )
    assert encode(column, null="empty") == [JPG, b""]


def test_values_below_the_nulls_of_a_fixed_size_list_are_not_written():
    column = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6]), 2, mask=pa.array([False, True, False]))
    payloads = encode(column, null="empty")
    assert [load(payload).tolist() if payload else None for payload in payloads] == [[1, 2], None, [5, 6]]


# Names of classes, and columns that are named

NAMES = ("cat", "dög", "a b")


def schema_of(kind=None, names=NAMES, **more):
    features = {"label": {"_type": "ClassLabel", "names": list(names)}, **more}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([("label", kind or pa.int64()), ("text", pa.string())], metadata)


def test_lists_of_classes_keep_the_names():
    labels = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["x", "y"]}}
    schema = schema_of(labels=labels).append(pa.field("labels", pa.list_(pa.int64())))
    fields = infer_fields(schema, {}, None, {}, label="label")
    assert [(field.name, field.names) for field in fields] == [("cls", NAMES), ("txt", ()), ("npy", ("x", "y"))]


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}', b"\xff"])
def test_metadata_that_is_damaged_says_nothing(metadata):
    schema = pa.schema([("label", pa.int64())], {b"huggingface": metadata})
    assert class_names(schema) == {}
    assert [field.name for field in infer_fields(schema, {}, None, {})] == ["label.json"]


@pytest.mark.parametrize(
    ("mapping", "columns", "expected"),
    [
        ({}, ("text", "label"), [("txt", "text"), ("label.cls", "label")]),
        ({}, ("label", "label"), [("label.cls", "label")]),
        ({"x.cls": "label"}, ("text",), [("x.cls", "label"), ("txt", "text")]),
        ({"id.txt": "label"}, ("label", "text"), [("id.txt", "label"), ("txt", "text")]),
    ],
)
def test_named_columns_are_written_once_in_their_order_after_those_that_are_mapped(mapping, columns, expected):
    fields = infer_fields(schema_of(), mapping, None, {}, columns=columns)
    assert [(field.name, field.column) for field in fields] == expected


@pytest.mark.parametrize(
    ("mapping", "key", "columns"), [({"cls": "lable"}, None, ()), ({}, "LABEL", ()), ({}, None, ("text", "lables"))]
)
def test_a_column_with_a_typo_is_suggested(mapping, key, columns):
    with pytest.raises(InputError, match="invalid columns") as caught:
        infer_fields(schema_of(), mapping, key, {}, columns=columns)
    assert caught.value.remedy == "did you mean 'label'?"


CATEGORIES = pa.dictionary(pa.int8(), pa.string())


def test_categories_are_texts_and_numbers_where_they_are_mapped_to_cls():
    field = infer_fields(schema_of(CATEGORIES), {}, None, {})[0]
    assert (field.name, field.encoding, field.names) == ("label.txt", "text", NAMES)
    (field,) = fields = infer_fields(schema_of(CATEGORIES), {"cls": "label"}, None, {})
    assert (field.encoding, field.names) == ("category", NAMES)

    def numbers(labels):
        return encode_batch({"label": pa.array(labels, CATEGORIES)}, fields, "error", where)["cls"].to_pylist()

    payloads = numbers(["a b", "cat", "dög"])
    assert payloads == [b"2", b"0", b"1"]
    assert decode_field(payloads, field).to_pylist() == [2, 0, 1]
    with pytest.raises(InputError, match="invalid class name") as caught:
        numbers(["cat", "cow"])
    assert (caught.value.place, caught.value.found) == (f"{where(1)}, column 'label'", "'cow'")
    with pytest.raises(InputError, match="a value is null"):
        numbers(["cat", None])
