import json

import pyarrow as pa
import pytest

from tables import all_samples, converted, write_table
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.decode import decode_field
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.infer import class_names, infer_fields
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage
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


def test_class_names_are_refused_where_there_are_none_or_labels_are_no_integers():
    with pytest.raises(InputError, match="invalid columns") as caught:
        infer_fields(schema_of(), {"txt": "text"}, None, {}, with_class_names=True)
    assert "--class-names" in caught.value.found
    with pytest.raises(InputError) as caught:
        infer_fields(schema_of(pa.float32()), {}, None, {}, with_class_names=True)
    assert "'label'" in caught.value.found


def test_a_field_that_has_the_name_of_the_class_names_already_is_refused():
    with pytest.raises(InputError) as caught:
        infer_fields(schema_of(), {"cls": "label", "cls.txt": "text"}, None, {}, with_class_names=True)
    assert "'cls.txt' would be written 2 times" in caught.value.found


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


@pytest.mark.parametrize("label", [3, -2, 2**62])
def test_a_label_without_a_class_is_an_error_by_its_row(label):
    with pytest.raises(InputError, match="invalid class number") as caught:
        encode(pa.array([0, label]), "omit")
    assert caught.value.place == "row 1, column 'label'"
    assert str(label) in caught.value.found


@pytest.mark.parametrize("missing", [None, -1])
def test_no_label_has_no_name_and_null_says_what_becomes_of_it(missing):
    labels = pa.array([0, missing], pa.int64())
    assert encode(labels, "omit") == [b"cat", None]
    assert encode(labels, "empty") == [b"cat", b""]
    with pytest.raises(InputError) as caught:
        encode(labels)
    assert caught.value.place == "row 1, column 'label'"


def test_class_names_go_from_a_table_into_a_dataset_and_its_manifest(tmp_path):
    inputs = write_table(tmp_path / "in.parquet", table_of([0, 2, 1, 0]))
    manifest = convert(inputs, str(tmp_path / "out"), ConvertOptions(shards=1, shuffle=False, class_names=True))
    field = manifest.fields[1]
    assert (field.name, field.names) == ("cls.txt", NAMES)
    payloads = [fields["cls.txt"] for _, fields in all_samples(tmp_path / "out")]
    assert decode_field(payloads, field).to_pylist() == ["cat", "a b", "dög", "cat"]
    plain = converted(inputs, tmp_path / "plain", shards=1)
    assert read_manifest(open_storage(str(tmp_path / "plain"))).class_names == {"cls": NAMES}
    assert plain.provenance["plan"] != manifest.provenance["plan"]


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


# Categories: texts that have numbers


CATEGORIES = pa.dictionary(pa.int8(), pa.string())


def encode_categories(labels, null="error"):
    """Return the payloads of a column of categories that is mapped to `cls`."""
    fields = infer_fields(schema_of(CATEGORIES), {"cls": "label"}, None, {})
    assert [(field.encoding, field.names) for field in fields] == [("category", NAMES)]
    payloads = encode_batch({"label": pa.array(labels, CATEGORIES)}, fields, null, where)["cls"].to_pylist()
    return payloads, fields[0]


def test_categories_are_texts_and_numbers_where_they_are_mapped_to_cls():
    field = infer_fields(schema_of(CATEGORIES), {}, None, {})[0]
    assert (field.name, field.encoding, field.names) == ("label.txt", "text", NAMES)
    payloads, field = encode_categories(["a b", "cat", "dög"])
    assert payloads == [b"2", b"0", b"1"]
    assert decode_field(payloads, field).to_pylist() == [2, 0, 1]


def test_a_text_that_is_no_category_is_an_error_by_its_row():
    with pytest.raises(InputError, match="invalid class name") as caught:
        encode_categories(["cat", "cow"])
    assert (caught.value.place, caught.value.found) == ("row 1, column 'label'", "'cow'")
    with pytest.raises(InputError, match="a value is null"):
        encode_categories(["cat", None])
