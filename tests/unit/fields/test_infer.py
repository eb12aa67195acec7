import json

import pyarrow as pa
import pytest

from tables import write_table
from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.decode import decode_field
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.infer import class_names, infer_fields
from wdsplit.tables.read import open_inputs

NAMES = ("cat", "dög", "a b")


def where(row):
    return f"row {row}"


def schema_of(kind=None, names=NAMES, **more):
    features = {"label": {"_type": "ClassLabel", "names": list(names)}, **more}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([("label", kind or pa.int64()), ("text", pa.string())], metadata)


def table_of(labels, **more):
    return pa.table({"label": labels, "text": ["x"] * len(labels)}, schema_of(**more))


def encode(labels, null="error", kind=None):
    fields = infer_fields(schema_of(kind), {}, None, {}, with_class_names=True, label="label")
    columns = {"label": labels, "text": pa.array(["x"] * len(labels))}
    return encode_batch(columns, fields, null, where)["cls.txt"].to_pylist()


@pytest.mark.parametrize("kind", ["Sequence", "List", "LargeList"])
def test_lists_of_classes_keep_the_names_and_get_no_second_field(kind):
    labels = {"_type": kind, "feature": {"_type": "ClassLabel", "names": ["x", "y"]}}
    schema = schema_of(labels=labels).append(pa.field("labels", pa.list_(pa.int64())))
    fields = infer_fields(schema, {}, None, {}, with_class_names=True, label="label")
    assert [(field.name, field.names) for field in fields] == [
        ("cls", NAMES),
        ("cls.txt", NAMES),
        ("txt", ()),
        ("npy", ("x", "y")),
    ]


def test_a_column_of_classes_gets_a_second_field_with_their_names():
    fields = infer_fields(schema_of(), {}, None, {}, with_class_names=True, label="label")
    assert fields == (
        field_of("cls", "label", "integer", pa.int64(), NAMES),
        field_of("cls.txt", "label", "class", pa.int64(), NAMES),
        field_of("txt", "text", "text", pa.string()),
    )
    assert len(infer_fields(schema_of(), {}, None, {}, label="label")) == 2


@pytest.mark.parametrize(
    ("kind", "mapping", "found"),
    [
        (pa.int64(), {"txt": "text"}, "--class-names"),
        (pa.float32(), {}, "'label'"),
        (pa.int64(), {"cls": "label", "cls.txt": "text"}, "'cls.txt' would be written 2 times"),
    ],
)
def test_class_names_that_cannot_be_written_are_refused(kind, mapping, found):
    with pytest.raises(InputError, match="invalid columns") as caught:
        infer_fields(schema_of(kind), mapping, None, {}, with_class_names=True)
    assert found in caught.value.found


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}', b"\xff"])
def test_metadata_that_is_damaged_says_nothing(metadata):
    schema = pa.schema([("label", pa.int64())], {b"huggingface": metadata})
    assert class_names(schema) == {}
    assert [field.name for field in infer_fields(schema, {}, None, {})] == ["label.json"]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.dictionary(pa.int8(), pa.int64())], ids=str)
def test_labels_become_names(kind):
    labels = pa.array([0, 2, 1], pa.int64())
    labels = labels.dictionary_encode() if pa.types.is_dictionary(kind) else labels.cast(kind)
    assert encode(labels, kind=kind) == [NAMES[i].encode() for i in (0, 2, 1)]


@pytest.mark.parametrize("label", [None, -1, 3, -2, 2**62])
def test_no_label_has_no_name_and_one_without_a_class_is_an_error_by_its_row(label):
    labels = pa.array([0, label], pa.int64())
    if label in (None, -1):
        assert encode(labels, "omit") == [b"cat", None]
        assert encode(labels, "empty") == [b"cat", b""]
    with pytest.raises(InputError) as caught:
        encode(labels, "error" if label in (None, -1) else "omit")
    assert caught.value.place == "row 1, column 'label'"
    assert label in (None, -1) or ("invalid class number" in caught.value.cause and str(label) in caught.value.found)


def test_inputs_whose_classes_have_other_names_are_refused(tmp_path):
    paths = [
        write_table(tmp_path / "a.parquet", table_of([0])),
        write_table(tmp_path / "b.parquet", table_of([0], names=("dög", "cat", "a b"))),
    ]
    with pytest.raises(InputError) as caught:
        open_inputs(paths)
    assert "classes of column 'label'" in caught.value.found


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

    def encode(labels):
        return encode_batch({"label": pa.array(labels, CATEGORIES)}, fields, "error", where)["cls"].to_pylist()

    payloads = encode(["a b", "cat", "dög"])
    assert payloads == [b"2", b"0", b"1"]
    assert decode_field(payloads, field).to_pylist() == [2, 0, 1]
    with pytest.raises(InputError, match="invalid class name") as caught:
        encode(["cat", "cow"])
    assert (caught.value.place, caught.value.found) == ("row 1, column 'label'", "'cow'")
    with pytest.raises(InputError, match="a value is null"):
        encode(["cat", None])
