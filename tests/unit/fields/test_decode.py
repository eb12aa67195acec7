import decimal
import hashlib
import io
import json
import math
from base64 import b64decode, b64encode

import numpy as np
import pyarrow as pa
import pytest

from columns import COLUMNS, looked_through, same, with_null
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.fields.arrow_types import decoded_type, field_of, read_type, serialize_type
from wdsplit.fields.decode import decode_field
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.infer import infer_fields
from wdsplit.fields.json_values import stored
from wdsplit.shards.manifest import Field

every_column = pytest.mark.parametrize("name", COLUMNS)


def where(row):
    return f"row {row}"


def inferred(column, mapping=None):
    return infer_fields(pa.schema([("c", column.type)]), mapping or {}, None, {})[0]


def encode(column, null="error", mapping=None):
    """Return the field of a column and its payloads, encoded in the company of one that has no nulls."""
    field = inferred(column, mapping)
    company = Field("company", "company", "text", "string")
    columns = {"c": column, "company": pa.array([""] * len(column), pa.string())}
    return field, encode_batch(columns, [field, company], null, where)[field.name].to_pylist()


@every_column
def test_every_type_comes_back_and_its_nulls_are_an_error_or_left_out_or_empty(name):
    column = with_null(COLUMNS[name])
    with pytest.raises(InputError, match="is null") as caught:
        encode(column)
    assert caught.value.place == "row 1, column 'c'"
    field, payloads = encode(column, "omit")
    assert [payload is None for payload in payloads] == column.is_null().to_pylist()
    assert same(decode_field(payloads, field), looked_through(column, field))
    empty = encode(column, "empty")[1]
    assert empty == [payload or b"" for payload in payloads]
    decoded = decode_field(empty, field)
    if field.encoding in ("text", "bytes", "media") and not pa.types.is_fixed_size_binary(decoded.type):
        assert len(decoded[1].as_py()) == 0
    else:
        assert same(decoded, looked_through(column, field))
    for first, stop in ((0, 1), (1, 2), (1, len(column)), (2, len(column))):
        assert encode(column.slice(first, stop - first), "omit")[1] == payloads[first:stop]


@every_column
def test_what_a_mapping_asks_for_comes_back_or_is_refused_by_name(name):
    column = COLUMNS[name]
    for extension in ("txt", "json", "npy", "x"):
        try:
            field, payloads = encode(column, mapping={extension: "c"})
        except InputError as error:
            assert "'c'" in str(error)
        else:
            is_text = extension == "json" and field.encoding in ("bytes", "text")
            assert is_text or same(decode_field(payloads, field), looked_through(column, field)), extension


@pytest.mark.parametrize(
    ("encoding", "kind", "payload"),
    [
        ("integer", pa.int64(), b"one"),
        ("integer", pa.int8(), b"300"),
        ("json", pa.float64(), b"{"),
        ("json", pa.date32(), b'"2024-02-30"'),
        ("json", pa.list_(pa.string()), b'"a"'),
        ("json", pa.decimal128(5, 2), b'"x"'),
        ("npy", pa.list_(pa.float32()), b"\x93NUMPY"),
        ("text", pa.string(), b"\xff"),
        ("json", pa.struct([("a", pa.int8())]), b"{}"),
    ],
)
def test_a_payload_that_the_encoding_cannot_have_written_is_an_error_by_its_place(encoding, kind, payload):
    with pytest.raises(CorruptDataError, match="cannot be decoded"):
        decode_field([payload], field_of("f", "c", encoding, kind))


# What is written, byte by byte


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.string(), ["", "é🙂\n\0"], ["", "é🙂\n\0"]),
        (pa.uint8(), [0, 255], ["0", "255"]),
        (pa.bool_(), [True, False], ["true", "false"]),
        (pa.decimal128(5, 2), ["12.30", "-0.01"], ['"12.30"', '"-0.01"']),
        (pa.date32(), [19782, -719162], ['"2024-02-29"', '"0001-01-01"']),
        (pa.time32("s"), [86399], ['"23:59:59"']),
        (pa.time64("ns"), [1], ['"00:00:00.000000001"']),
        (pa.timestamp("s"), [0], ['"1970-01-01T00:00:00"']),
        (pa.timestamp("ns"), [-1], ['"1969-12-31T23:59:59.999999999"']),
        (pa.timestamp("us", "Europe/Paris"), [1_709_164_800_000_001], ['"2024-02-29T00:00:00.000001Z"']),
        (pa.duration("ms"), [1500, -1], ["1500", "-1"]),
        (pa.float64(), [1.0, -0.0, 1e300, 5e-324, 0.1], ["1.0", "-0.0", "1e+300", "5e-324", "0.1"]),
        (pa.float64(), [math.inf, -math.inf, math.nan], ["Infinity", "-Infinity", "NaN"]),
        (pa.struct([("x", pa.float32())]), [{"x": math.nan}], ['{"x":NaN}']),
        (pa.float32(), [0.1], ["0.10000000149011612"]),
        (pa.map_(pa.string(), pa.int8()), [[("b", 1), ("a", None)]], ['[["b",1],["a",null]]']),
        (pa.list_(pa.binary()), [[b"\xff\0"]], ['["/wA="]']),
        (
            pa.struct([("t", pa.timestamp("ms", "UTC")), ("d", pa.duration("s")), ("b", pa.bool_())]),
            [{"t": 1, "d": 2, "b": True}],
            ['{"t":"1970-01-01T00:00:00.001Z","d":2,"b":true}'],
        ),
        (pa.struct([("é", pa.string()), ("b", pa.list_(pa.int8()))]), [{"é": "日", "b": [1]}], ['{"é":"日","b":[1]}']),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_values_are_written_so(kind, values, texts):
    if pa.types.is_decimal(kind):
        values = [decimal.Decimal(value) for value in values]
    column = pa.array(values, kind)
    field, payloads = encode(column)
    assert [payload.decode() for payload in payloads] == texts
    assert repr(decode_field(payloads, field).to_pylist()) == repr(column.to_pylist())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), -719_163),
        (pa.date32(), 2_932_897),
        (pa.date32(), 2**31 - 1),
        (pa.timestamp("s"), 2**63 - 1),
        (pa.timestamp("us"), -(2**63)),
        (pa.timestamp("ms", "UTC"), 253_402_300_800_000),
        (pa.timestamp("us", "Europe/Paris"), -62_135_596_800_000_001),
        (pa.time32("s"), 86_400),
        (pa.time64("ns"), -1),
        (pa.date64(), 1),
    ],
    ids=str,
)
def test_a_date_that_iso_8601_cannot_write_is_an_error_by_its_row(kind, value):
    numbers = pa.array([0, None, value], pa.int32() if kind.bit_width == 32 else pa.int64())
    column = pa.Array.from_buffers(kind, 3, numbers.buffers())
    for row, given in ((2, column), (3, pa.ListArray.from_arrays([0, 0, 2, 2, 3], column))):
        with pytest.raises(InputError, match="ISO 8601") as caught:
            encode(given, "omit")
        assert caught.value.place == f"row {row}, column 'c'"
        assert str(value) in caught.value.found


# Arrays


def load(payload):
    return np.load(io.BytesIO(payload), allow_pickle=False)


@pytest.mark.parametrize("permutation", [None, [1, 0, 2], [0, 2, 1]])
def test_a_tensor_is_the_array_that_pyarrow_made_it_of(permutation):
    stored_as = np.arange(48, dtype=np.int16).reshape(2, 2, 3, 4)
    arrays = stored_as.transpose(0, *(1 + axis for axis in permutation or range(3)))
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(arrays)
    assert permutation in (None, list(column.type.permutation))
    for payload, array in zip(encode(column)[1], arrays, strict=True):
        assert load(payload).shape == array.shape
        assert (load(payload) == array).all()


@pytest.mark.parametrize("permutation", [[2, 0, 1], [1, 2, 0]])
def test_a_tensor_whose_permutation_can_be_read_in_two_ways_is_refused(permutation):
    kind = pa.fixed_shape_tensor(pa.int16(), [2, 3, 4], permutation=permutation)
    with pytest.raises(InputError, match="invalid columns") as caught:
        inferred(pa.nulls(1, kind))
    assert "permutation" in caught.value.found


def hugging_face(**features):
    return {"huggingface": json.dumps({"info": {"features": features}})}


@pytest.mark.parametrize("how", ["metadata", "mapping"])
def test_an_array_of_hugging_face_is_npy_and_a_ragged_row_is_refused(how):
    metadata = hugging_face(m={"_type": "Array2D", "shape": [None, 2], "dtype": "float32"}) if how == "metadata" else {}
    schema = pa.schema([("m", pa.list_(pa.list_(pa.float32())))], metadata)
    fields = infer_fields(schema, {"npy": "m"} if how == "mapping" else {}, None, {})
    assert fields == (field_of("npy", "m", "npy", pa.list_(pa.list_(pa.float32()))),)
    column = pa.array([[[1, 2], [3, 4]], [[5, 6]]], schema.field("m").type)
    payloads = encode_batch({"m": column}, fields, "error", where)["npy"].to_pylist()
    assert [load(payload).tolist() for payload in payloads] == column.to_pylist()
    assert decode_field(payloads, fields[0]).equals(column)
    ragged = pa.array([[[1, 2]], [[1], [2, 3]]], schema.field("m").type)
    with pytest.raises(InputError, match="ragged") as caught:
        encode_batch({"m": ragged}, fields, "error", where)
    assert caught.value.place == "row 1, column 'm'"
    inner_null = pa.array([[[1, 2]], [None, [2, 3]]], schema.field("m").type)
    with pytest.raises(InputError, match="contains a null") as caught:
        encode_batch({"m": inner_null}, fields, "error", where)
    assert caught.value.place == "row 1, column 'm'"


def test_a_text_inside_a_struct_that_is_not_utf_8_is_an_error_by_its_row():
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"], pa.binary()).buffers())
    with pytest.raises(InputError, match="not UTF-8") as caught:
        encode(pa.StructArray.from_arrays([texts], ["t"]))
    assert caught.value.place == "row 1, column 'c'"


def test_a_dictionary_whose_values_are_repeated_needs_no_32_bit_offsets():
    for kind in (pa.string(), pa.binary()):
        column = pa.array(["a", "b"]).cast(kind).dictionary_encode()
        assert str(stored(column).type) == f"large_{kind}"


# The types that a manifest records

PLAIN = [
    pa.timestamp("us", "America/Argentina/ComodRivadavia"),
    pa.list_(pa.field("odd, name>", pa.int8(), nullable=False)),
    pa.struct([(name, pa.int8()) for name in ("", " ", '"', "\\", "a: int8", "é", "not null", "x>")]),
    pa.map_(pa.string(), pa.list_(pa.map_(pa.int8(), pa.binary(16)))),
]


def test_the_bytes_of_a_serialised_type_never_change():
    """They are the same with pyarrow 15, 19 and 26; a conversion with another version must give the same manifest."""
    kinds = (pa.int64(), pa.timestamp("ns", "Europe/Paris"), pa.decimal128(38, 5), pa.binary(3), *PLAIN)
    assert hashlib.sha256("\n".join(map(serialize_type, kinds)).encode()).hexdigest()[:16] == "499a79f157169c73"


WRAPPED = [
    (pa.dictionary(pa.int8(), pa.string()), "text", pa.string()),
    (pa.struct([("u", pa.uuid()), ("j", pa.json_())]), "json", pa.struct([("u", pa.binary(16)), ("j", pa.string())])),
    (pa.map_(pa.json_(), pa.bool8()), "json", pa.map_(pa.string(), pa.int8())),
    (pa.string(), "category", pa.int64()),
    (pa.struct([("bytes", pa.large_binary()), ("path", pa.string())]), "media", pa.large_binary()),
    (pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0]), "npy", pa.list_(pa.list_(pa.int8(), 2), 3)),
    (pa.fixed_shape_tensor(pa.int8(), []), "npy", pa.int8()),
    (pa.list_(pa.fixed_shape_tensor(pa.int8(), [2, 3])), "json", pa.list_(pa.list_(pa.int8(), 6))),
]


@pytest.mark.parametrize(("kind", "encoding", "expected"), WRAPPED, ids=str)
def test_the_decoded_type_has_no_dictionaries_and_no_extension_types(kind, encoding, expected):
    assert decoded_type(kind, encoding).equals(expected)
    assert read_type(field_of("f", "c", encoding, kind)).equals(expected)


class RegisteredType(pa.ExtensionType):
    """What a library such as Hugging Face datasets registers when it is imported."""

    def __init__(self):
        super().__init__(pa.list_(pa.int8()), "test.registered")

    def __arrow_ext_serialize__(self):
        return b""


def test_neither_metadata_nor_registered_extension_types_change_what_is_recorded():
    def struct(kind, metadata):
        return pa.struct([pa.field("x", pa.list_(pa.field("item", kind, metadata=metadata)), metadata=metadata)])

    plain = field_of("f", "c", "json", struct(pa.list_(pa.int8()), None))
    assert field_of("f", "c", "json", struct(RegisteredType(), {"PARQUET:field_id": "7"})) == plain
    assert plain.type == "struct<x: list<item: list<item: int8>>>"
    assert field_of("f", "c", "json", pa.uuid()).type == "extension<arrow.uuid>"


def schema_text(*fields):
    return b64encode(pa.schema(fields).serialize()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int64",
        "é",
        schema_text(),
        schema_text(("a", pa.int8()), ("b", pa.int8())),
        b64encode(b64decode(serialize_type(pa.int8()))[:-40]).decode(),
        *map(serialize_type, (pa.null(), pa.struct([]), pa.uuid(), pa.dictionary(pa.int8(), pa.string()))),
    ],
)
def test_a_text_that_is_no_serialised_type_is_refused(text):
    with pytest.raises(CorruptDataError, match="field 'f' has an invalid Arrow schema"):
        read_type(Field("f", "c", "json", "int64", (), text))
