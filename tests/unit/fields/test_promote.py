import hashlib
import itertools
import math
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from columns import COLUMNS, PER_SECOND, SCALARS, ZONES, _values_of
from wdsplit.fields.json_values import decoded_parts, without_views
from wdsplit.fields.promote import common_type, joined_type
from wdsplit.fields.rules import is_list, is_text

INTEGERS = [getattr(pa, f"{sign}int{bits}")() for bits in (8, 16, 32, 64) for sign in ("", "u")]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.dictionary(pa.int32(), pa.large_binary())]
DECIMALS = [pa.decimal128(5, 0), pa.decimal128(12, 2), pa.decimal128(38, 5), pa.decimal256(60, 30)]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
FAMILIES = [
    [*INTEGERS, *FLOATS, pa.null()],
    [*INTEGERS, *DECIMALS],
    TEXTS,
    BYTES,
    [pa.date32(), pa.date64()],
    TIMES,
    [pa.duration(unit) for unit in PER_SECOND],
    *([pa.timestamp(unit, zone) for unit in PER_SECOND] for zone in ZONES),
]


def exact(scalar):
    """Return a value by which scalars of any two types compare exactly; a member of a struct that is null is none."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return exact(scalar.value)
    if pa.types.is_struct(kind):
        return {name: exact(part) for name, part in scalar.items() if exact(part) is not None}
    if is_list(kind) or pa.types.is_map(kind):
        return [exact(part) for part in scalar.values]
    if pa.types.is_date(kind):
        return scalar.value * (86_400_000 if pa.types.is_date32(kind) else 1)
    if pa.types.is_temporal(kind):
        return Fraction(scalar.value, PER_SECOND[kind.unit])
    value = scalar.as_py()
    is_number = not is_text(kind) and not isinstance(value, bytes | bool)
    return Fraction(value) if is_number and math.isfinite(value) else value


def read_as(array, kind):
    """Return a column as it is read where files have several types."""
    ((part,),) = decoded_parts([without_views(array)], 2**30)
    return part.cast(kind)


def is_valid(array):
    """Tell whether pyarrow has built an array that can be read, which it has not of nulls around a dictionary."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def leaves(kind):
    values = _values_of(kind, next((its for other, its in SCALARS if other == kind), [None]))
    if pa.types.is_dictionary(kind):
        values = _values_of(kind.value_type, [])
    return st.none() if pa.types.is_null(kind) else values | st.none()


pairs = st.sampled_from(FAMILIES).flatmap(
    lambda kinds: st.tuples(st.sampled_from(kinds), st.sampled_from(kinds)).map(
        lambda two: (*two, leaves(two[0]), leaves(two[1]))
    )
)


def _nest(inner):
    makes = st.sampled_from([pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])

    def lists(drawn):
        (one, other, values, others), make, make_other = drawn
        sizes = [{"min_size": 2, "max_size": 2} if "fixed" in str(kind(one)) else {} for kind in (make, make_other)]
        drawn_lists = (
            st.lists(its, **{"max_size": 3, **size}) for its, size in zip((values, others), sizes, strict=True)
        )
        return make(one), make_other(other), *(its | st.none() for its in drawn_lists)

    def structs(drawn):
        members, first, second = drawn
        sides = []
        for place, order in enumerate((first, second)):
            chosen = [(f"m{number}", members[number % len(members)]) for number in order]
            kind = pa.struct([(name, member[place]) for name, member in chosen])
            sides.append((kind, st.fixed_dictionaries({name: member[2 + place] for name, member in chosen})))
        return sides[0][0], sides[1][0], *(values | st.none() for _, values in sides)

    orders = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)
    return st.tuples(inner, makes, makes).map(lists) | st.tuples(
        st.lists(inner, min_size=1, max_size=3), orders, orders
    ).map(structs)


compatible = st.recursive(pairs, _nest, max_leaves=4)


@given(st.data())
def test_a_promoted_value_is_the_same_value_or_refused(data):
    one, other, values, others = data.draw(compatible)
    common = common_type(one, other)
    assert common is not None, f"{one} and {other}"
    for kind, its in ((one, values), (other, others)):
        array = pa.array(data.draw(st.lists(its, min_size=1, max_size=4)), kind)
        assume(is_valid(array))
        try:
            found = read_as(array, common)
        except pa.ArrowInvalid:
            continue
        found.validate(full=True)
        assert [exact(value) for value in found] == [exact(value) for value in array]


def test_common_types_never_change():
    """They are the same with pyarrow 15 and 26; a conversion with another version must give the same plan and bytes."""
    nests = (lambda kind: kind, pa.list_, lambda kind: pa.struct([("a", kind)]), lambda kind: pa.map_(pa.int8(), kind))
    kinds = [kind for family in FAMILIES for kind in family if "view" not in str(kind)]
    pairs = [map(nest, pair) for nest in nests for pair in itertools.product(kinds, repeat=2)]
    found = hashlib.sha256("".join(str(joined_type(*pair)) for pair in pairs).encode()).hexdigest()
    assert found[:16] == "f9ea0c9aee91c1db"


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (pa.int8(), pa.float16(), pa.float32()),
        (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int16(), pa.string()), pa.string()),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (
            pa.map_(pa.string(), pa.int8()),
            pa.map_(pa.large_string(), pa.int16()),
            pa.map_(pa.large_string(), pa.int16()),
        ),
        (
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            pa.struct([("c", pa.null()), ("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.null())]),
        ),
    ],
    ids=str,
)
def test_the_common_type(one, other, common):
    assert common_type(one, other) == common
    assert {str(common_type(other, one).field(i)) for i in range(common.num_fields)} == {
        str(common.field(i)) for i in range(common.num_fields)
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Paris")),
        (pa.decimal256(76, 0), pa.decimal256(76, 1)),
        (pa.list_(pa.int8()), pa.list_(pa.string())),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.struct([("a", pa.int16())])),
        (pa.json_(), pa.string()),
        (pa.uuid(), pa.binary(16)),
    ],
    ids=str,
)
def test_types_without_a_common_one(one, other):
    assert common_type(one, other) is None
    assert common_type(other, one) is None


def test_a_type_and_itself_and_null_have_that_type():
    for kind in (column.type for column in COLUMNS.values()):
        assert common_type(kind, kind) == kind
        assert common_type(kind, pa.null()) == kind == common_type(pa.null(), kind)
