import pyarrow as pa
import pytest
from hypothesis import given

from columns import COLUMNS, any_type
from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import parse_type, type_text

TYPES = {
    str(number): kind
    for number, kind in enumerate(
        [
            *(column.type for column in COLUMNS.values() if not isinstance(column.type, pa.OpaqueType)),
            pa.null(),
            pa.timestamp("us", "America/Argentina/ComodRivadavia"),
            pa.dictionary(pa.int8(), pa.list_(pa.int8()), ordered=True),
            pa.list_(pa.field("odd, name>", pa.int8(), nullable=False)),
            pa.struct([]),
            pa.struct([(name, pa.int8()) for name in ("", " ", '"', "\\", "a: int8", "é", "not null", "x>")]),
            pa.map_(pa.string(), pa.list_(pa.map_(pa.int8(), pa.uuid()))),
        ]
    )
}


@pytest.mark.parametrize("name", TYPES)
def test_the_text_of_a_type_can_be_read_back(name):
    kind = TYPES[name]
    back = parse_type(type_text(kind))
    assert type_text(back) == type_text(kind)
    if "dim_names" not in str(kind):
        assert back.equals(kind)


@given(any_type)
def test_the_text_of_any_type_can_be_read_back(pair):
    assert parse_type(type_text(pair[0])).equals(pair[0])


def test_an_extension_type_that_pyarrow_does_not_know_stands_as_its_storage():
    assert type_text(pa.opaque(pa.list_(pa.int8()), "t", "v")) == "list<item: int8>"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int",
        "int64 ",
        "list<item: int8",
        "list<int8>",
        "struct<a int8>",
        "map<string>",
        "fixed_size_list<item: int8>",
        "decimal128(50, 2)",
        "timestamp[h]",
        "extension<arrow.unknown>",
        "list<item: int8>>",
        "import os",
        "os(1)",
        "fixed_size_binary[x]",
        "dictionary<values=int8, indices=string, ordered=0>",
        "array(1)",
        "list_view<",
    ],
)
def test_a_text_that_is_no_type_is_refused(text):
    with pytest.raises(InputError, match="names no Arrow type"):
        parse_type(text)
