import json

import pyarrow as pa
import pytest

from tables import write_table
from wdsplit.errors import InputError
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
