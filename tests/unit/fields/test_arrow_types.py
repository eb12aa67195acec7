import hashlib
from base64 import b64decode, b64encode

import pyarrow as pa
import pytest

from wdsplit.errors import CorruptDataError
from wdsplit.fields.arrow_types import decoded_type, field_of, read_type, serialize_type
from wdsplit.shards.manifest import Field

PLAIN = [
    pa.timestamp("us", "America/Argentina/ComodRivadavia"),
    pa.list_(pa.field("odd, name>", pa.int8(), nullable=False)),
    pa.struct([(name, pa.int8()) for name in ("", " ", '"', "\\", "a: int8", "é", "not null", "x>")]),
    pa.map_(pa.string(), pa.list_(pa.map_(pa.int8(), pa.binary(16)))),
]


def test_a_serialised_type_can_be_read_back():
    for kind in PLAIN:
        assert read_type(Field("f", "c", "json", "", (), serialize_type(kind))).equals(kind)


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
