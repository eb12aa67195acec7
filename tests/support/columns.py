"""Columns of every type that parquet can carry, with values at the ends of their ranges."""

from __future__ import annotations

import datetime
import decimal
import math

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from wdsplit.fields.arrow_types import read_type
from wdsplit.fields.json_values import stored
from wdsplit.fields.rules import is_tensor

I64 = (-(2**63), -1, 0, 2**63 - 1)
DAY_S = 86_400
FIRST_S, END_S = -62_135_596_800, 253_402_300_800
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ZONES = (None, "UTC", "Europe/Paris", "+05:30")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "fixed_size_list": lambda item: pa.list_(item, 2),
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}


def int_limits(kind):
    bits, signed = kind.bit_width, not str(kind).startswith("u")
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def timestamp_limits(unit):
    return max(FIRST_S * PER_SECOND[unit], -(2**63)), min(END_S * PER_SECOND[unit] - 1, 2**63 - 1)


def decimal_ends(kind):
    top = decimal.Decimal((0, (9,) * kind.precision, -kind.scale))
    return [top.copy_negate(), top, decimal.Decimal((0, (1,), -kind.scale)), decimal.Decimal((0, (0,), -kind.scale))]


def _scalars():
    """Give pairs of a type and values of it."""
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        kind = getattr(pa, name)()
        yield kind, [*int_limits(kind), 0, 1]
    yield pa.bool_(), [True, False]
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        info = np.finfo(kind.to_pandas_dtype())
        ends = [info.max, info.min, info.tiny, info.smallest_subnormal, np.asarray(0.1, info.dtype), 1, -0.0, 12345]
        yield kind, [*map(float, ends), math.inf, -math.inf]
    for kind in (
        pa.decimal32(9, 2),
        pa.decimal64(18, 18),
        pa.decimal128(38, 5),
        pa.decimal128(38, 38),
        pa.decimal128(5, 0),
        pa.decimal256(76, 30),
    ):
        yield kind, decimal_ends(kind)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield kind, ["", "é", '"quoted" \\ \n\0\x7f', "日本語🙂" * 20]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield kind, [b"", b"\0", bytes(range(256))]
    yield pa.binary(3), [b"abc", b"\0\0\0", b"\xff\xfe\xfd"]
    yield pa.date32(), [FIRST_S // DAY_S, END_S // DAY_S - 1, 0, -1, 19782]
    yield pa.date64(), [FIRST_S * 1000, (END_S - DAY_S) * 1000, 0, -DAY_S * 1000]
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        yield kind, [0, 1, DAY_S * PER_SECOND[kind.unit] - 1]
    for unit in PER_SECOND:
        for zone in ZONES:
            yield pa.timestamp(unit, zone), [*timestamp_limits(unit), 0, -1, 1_709_164_799]
        yield pa.duration(unit), list(I64)


SCALARS = list(_scalars())


def _nested():
    floats = [[1.5, -0.0], [0.1, math.inf]]
    for make in LISTS.values():
        yield make(pa.float32()), floats
        yield make(pa.bool_()), [[True, False], [False, False]]
        yield make(pa.string()), [["a", None], [None, "é"]]
        yield make(pa.list_(pa.int16(), 2)), [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
        yield make(pa.timestamp("ns", "UTC")), [[1, None], [-1, 2**62]]
    yield pa.list_(pa.int8()), [[], [1], [2, 3, 4]]
    yield pa.list_(pa.list_(pa.int8())), [[], [[]], [[1], [2, 3]], [None, [None, 4]]]
    yield pa.list_(pa.list_(pa.list_(pa.float64(), 2), 3), 1), [[[[1, 2], [3, 4], [5, 6]]]]
    yield pa.list_(pa.list_(pa.float64(), 2)), [[], [[1, 2]], [[1, 2], [3, 4], [5, 6]]]
    yield pa.list_(pa.string(), 0), [[], []]
    yield pa.list_(pa.int8(), 0), [[], []]
    yield pa.list_(pa.null()), [[], [None, None]]
    yield pa.list_(pa.binary()), [[b"\xff", None], []]
    yield pa.list_(IMAGE), [[{"bytes": b"\xff\0", "path": None}], []]
    yield pa.map_(pa.string(), pa.int64()), [[], [("b", 1), ("a", None)], [("a", 1), ("a", 2)]]
    yield pa.map_(pa.int64(), pa.map_(pa.date32(), pa.decimal128(5, 2))), [[(2**62, [(0, decimal.Decimal("1.50"))])]]
    yield pa.map_(pa.string(), pa.int8(), keys_sorted=True), [[("a", 1)]]
    every = [(f"f{i}", kind) for i, (kind, _) in enumerate(SCALARS)]
    yield (
        pa.struct(every),
        [{f"f{i}": values[at % len(values)] for i, (_, values) in enumerate(SCALARS)} for at in (0, 1)],
    )
    yield pa.struct(every), [dict.fromkeys((name for name, _ in every))]
    odd = pa.struct([("a: b, c>", pa.int8()), ('"', pa.string()), ("", pa.bool_()), ("é ü", pa.int8())])
    yield odd, [{"a: b, c>": 1, '"': "x", "": True, "é ü": None}]
    yield pa.struct([pa.field("x", pa.int8(), nullable=False)]), [{"x": 1}]
    yield (
        pa.struct([("deep", pa.list_(pa.struct([("er", pa.large_list(pa.time64("ns")))])))]),
        [{"deep": [{"er": [5]}]}],
    )


NESTED = list(_nested())


def _wrapped():
    """Give arrays that pyarrow does not build from Python values alone, and one of images."""
    for values in (["a", "b", "a"], [7, 9, 7], [b"\0", b"b", b""], [1.5, -0.0, 1.5], [datetime.date(2024, 2, 29)] * 3):
        yield pa.array(values).dictionary_encode()
    yield pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.uint8()), pa.array([[1, 2], []], pa.list_(pa.int8())))
    yield pa.array([["a"], ["b", None], []], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    flat = pa.array([range(6), range(6, 12), [0] * 6], pa.list_(pa.float32(), 6))
    for more in ({}, {"permutation": [1, 0]}, {"dim_names": ["a>", "b]"]}, {"permutation": [0, 1]}):
        yield pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 3], **more), flat)
    cube = pa.array([range(24)] * 3, pa.list_(pa.uint8(), 24))
    yield pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), [2, 3, 4], permutation=[2, 1, 0]), cube)
    one = pa.array([[1], [2], [3]], pa.list_(pa.int64(), 1))
    yield pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), []), one)
    yield pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, bytes(16), b"\xff" * 16], pa.binary(16)))
    yield pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "[ ]", "null"]))
    yield pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, -1], pa.int8()))
    yield pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "t", "v"), pa.array([1, 2, 3], pa.int32()))
    yield pa.StructArray.from_arrays(
        [pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16)))], ["u"]
    )
    yield pa.array([{"bytes": b"\xff\xd8\xff", "path": "a.jpg"}, {"bytes": b"", "path": None}], IMAGE)


COLUMNS = {
    f"{number}-{column.type}": column
    for number, column in enumerate([*(pa.array(values, kind) for kind, values in SCALARS + NESTED), *_wrapped()])
}
"""A column of each type, without nulls at the top, by a name for it."""


def with_null(column):
    """Return a column with a null after its first row."""
    if pa.types.is_dictionary(column.type):
        return column.take(pa.array([0, None, *range(1, len(column))]))
    return pa.concat_arrays([column.slice(0, 1), pa.nulls(1, column.type), column.slice(1)])


def looked_through(array, field):
    """Return a column as it is decoded: dictionaries and extension types looked through, images by their bytes."""
    kind = read_type(field)
    if is_tensor(array.type) and field.encoding == "npy":
        shape, order = array.type.shape, array.type.permutation or range(len(array.type.shape))
        flat = array.storage.to_pylist()
        rows = [None if row is None else np.reshape(row, shape).transpose(order).tolist() for row in flat]
        return pa.array(rows, kind)
    array = stored(array)
    if field.encoding == "media":
        return array.field("bytes")
    return array if array.type == kind else pa.array(array.to_pylist(), kind)


def same(found, wanted):
    """Tell whether two arrays are equal; floats by their bits, as -0.0 equals 0.0."""
    found.validate(full=True)
    if pa.types.is_floating(wanted.type):
        return found.to_numpy(zero_copy_only=False).tobytes() == wanted.to_numpy(zero_copy_only=False).tobytes()
    return found.equals(wanted)


def _values_of(kind, values):
    if kind in (pa.float16(), pa.float32(), pa.float64()):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_integer(kind):
        return st.integers(*int_limits(kind))
    if pa.types.is_timestamp(kind):
        return st.integers(*timestamp_limits(kind.unit))
    if pa.types.is_duration(kind):
        return st.integers(-(2**63), 2**63 - 1)
    if str(kind) in ("string", "large_string", "string_view"):
        return st.text(max_size=5)
    if str(kind) in ("binary", "large_binary", "binary_view"):
        return st.binary(max_size=5)
    if pa.types.is_decimal(kind):
        digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return digits.map(lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale)))
    return st.sampled_from(values)


def _nest(inner):
    nullable = inner.map(lambda pair: (pair[0], pair[1] | st.none()))
    size = {"fixed_size_list": 2}
    lists = st.tuples(st.sampled_from(sorted(LISTS)), nullable).map(
        lambda drawn: (
            LISTS[drawn[0]](drawn[1][0]),
            st.lists(drawn[1][1], min_size=size.get(drawn[0], 0), max_size=size.get(drawn[0], 3)),
        )
    )
    structs = st.lists(nullable, min_size=1, max_size=3).map(
        lambda pairs: (
            pa.struct([(f"f {i}", kind) for i, (kind, _) in enumerate(pairs)]),
            st.fixed_dictionaries({f"f {i}": values for i, (_, values) in enumerate(pairs)}),
        )
    )
    maps = st.tuples(inner, nullable).map(
        lambda pair: (pa.map_(pair[0][0], pair[1][0]), st.lists(st.tuples(pair[0][1], pair[1][1]), max_size=3))
    )
    return lists | structs | maps


any_type = st.recursive(
    st.sampled_from(SCALARS).map(lambda pair: (pair[0], _values_of(*pair))),
    _nest,
    max_leaves=4,
)
"""Pairs of a type and a strategy for its values, nested at random."""
