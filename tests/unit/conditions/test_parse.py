"""Conditions: the language, exact comparisons, pruning by statistics, and errors with their place in the text."""

import datetime
import decimal
import math
import operator
import threading
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from columns import COLUMNS
from wdsplit.conditions.parse import parse_where
from wdsplit.errors import InputError

OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
D = decimal.Decimal
NAN = math.nan
NOON = datetime.datetime(2024, 2, 1, 12)


def kept(text, schema_arguments=(), /, **columns):
    """Return the numbers of the rows that a condition keeps; views cannot be filtered, but computed with."""
    table = pa.table(columns)
    where = parse_where(text, table.schema, *schema_arguments)
    found = ds.dataset(table).to_table(columns={"is": where.expression})["is"].to_pylist()
    return [row for row, is_kept in enumerate(found) if is_kept]


def error_of(text, schema):
    with pytest.raises(InputError) as caught:
        parse_where(text, schema)
    return caught.value


def fragment_of(path, table, rows_per_group):
    pq.write_table(table, path, row_group_size=rows_per_group)
    return next(ds.dataset(path).get_fragments())


def rows_after_pruning(fragment, where):
    """Return the rows that are kept of those in row groups that the statistics do not rule out."""
    left = fragment.subset(where.pruning) if where.pruning is not None else fragment
    rows = left.to_table() if left.row_groups else fragment.to_table().slice(0, 0)
    return rows.filter(where.expression)


# The language

TEXT = pa.array(["abc", None, "", "Añb"])
TABLE = {
    "x": pa.array([1, None, 3, -4], pa.int64()),
    "text": TEXT,
    "flag": pa.array([True, False, None, True]),
    "raw": TEXT.cast(pa.binary()),
    "items": pa.array([[1], None, [], [1, 2]]),
    "meta": pa.array([{"w": 1, "in": {"a b": 2}}, None, {"w": None, "in": None}, {"w": 4, "in": {"a b": None}}]),
    "my col": pa.array(["a", "ä", "b", None]),
    "a.b": pa.array([1, 2, 3, 4]),
    "nothing": pa.nulls(4),
    "map": pa.array([[("a", 1)], None, [], []], pa.map_(pa.string(), pa.int8())),
    "f": pa.array([NAN, None, 1.5, -0.0]),
}

CONDITIONS = r"""
0       : 0 <= x < 3 ; x == 1_0 / 10 ; 1 / (x - 1) > 5 ; text == 'abc' ; text > 'B'
0       : not (text in ['', 'Añb']) ; raw == b'abc' ; startswith(text, 'a') ; text == r'abc'
0       : not meta.w == 4 ; column("meta", "in", "a b") == 2 ; column("meta").w == 1 ; f != f
0 3     : x < 2 ; x != 3 ; not x == 3 ; x < 2 and flag ; x < 0 or flag ; flag ; flag in [True]
0 3     : len(text) == 3 ; startswith(lower(text), 'a')
3       : x not in [3, 1] ; x == -4 ; -x > 3 ; len(raw) == 4 ; lower(text) == 'añb' ; endswith(text, 'b')
3       : contains(text, 'ñ') or contains(text, '.') ; meta.w == 4 ; f in [0, 7]
2       : x == 3 ; not x != 3 ; x in {3} ; x == 0x3 ; x * 10 + 1 == 31 ; x / 2 == 1.5 ; not contains(text, 'b')
1       : x is None ; not flag ; flag == False ; meta is None ; column("my col") == "ä" ; map is None
1       : f is None
0 2     : x >= 1 ; x in [3, 1, 7] ; text == "abc" or text == "" ; raw in [b'abc', b''] ; len(items) < 2
0 2     : not f < 1.5
2 3     : not 0 <= x < 3 ; text in ['', 'Añb'] ; text != '\u0061bc' ; column("a.b") > 2
0 2 3   : x is not None ; x < x + 1 ; x + 1 is not None
1 2     : flag is None or x is None ; meta.w is None
0 1 2 3 : nothing is None
"""
"""The rows that each condition keeps."""


def cases(table):
    """Return the parts of each line of a text table: what stands before the colon, and each of what stands behind."""
    lines = [line.partition(": ") for line in table.strip().splitlines()]
    return [(name.strip(), text) for name, _, texts in lines for text in texts.split(" ; ")]


@pytest.mark.parametrize(("rows", "text"), cases(CONDITIONS))
def test_a_condition_keeps_the_rows_it_holds_for(rows, text):
    assert kept(text, **TABLE) == [int(row) for row in rows.split()]


def test_a_condition_may_go_over_several_lines():
    assert kept("  (x\n  < 2\r\n and flag)\n", **TABLE) == [0, 3]


def test_columns_are_named_once_in_the_order_of_the_text():
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.struct([("d", pa.int8())])), ("e", pa.int8())])
    assert parse_where("c.d < 3 and b < 3 and a in [1] and b > a and c is None", schema).columns == ("c", "b", "a")


# Exact comparisons


UTC_NOON = pa.array([NOON], pa.timestamp("us", "UTC"))
DAYS = [datetime.date(2024, 2, 1), datetime.date(1969, 12, 31), None]
TIMES = [datetime.time(12, 30), datetime.time(23, 59, 59), None]
BIG = pa.array([2**53, 2**53 + 1])
ONE_COLUMN = [
    ("x == '2024-02-01T12:00Z'", UTC_NOON, [0]),
    ("x == '2024-02-01T13:30+01:30'", UTC_NOON, [0]),
    ("x <= '2024-02-01 08:00:00.000-04:00'", UTC_NOON, [0]),
    *((f"x == {day!r}", pa.array(DAYS, kind), [0]) for day in ("2024-02-01",) for kind in (pa.date32(), pa.date64())),
    ("x in ['1969-12-31', '2024-01-01']", pa.array(DAYS, pa.date32()), [1]),
    ("x < '9999-12-31'", pa.array(DAYS, pa.date64()), [0, 1]),
    *(("x == '12:30'", pa.array(TIMES, kind), [0]) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))),
    ("x > '12:30:00.5'", pa.array(TIMES, pa.time32("s")), [1]),
    ("x == '2024-02-01T12:00:00.000000001'", pa.array([NOON], pa.timestamp("ns")), []),
    ("x > '2024-02-01T11:59:59.500Z'", pa.array([NOON], pa.timestamp("s", "Europe/Paris")), [0]),
    ("'0001-01-01' < x < '9999-12-31 23:59:59.999999999'", pa.array([NOON], pa.timestamp("ns")), [0]),
    (f"x in {['1969-12-31T00:00:01'] * 20}", pa.array(DAYS, pa.date64()), []),
    ("not x < '23:59:59'", pa.array(TIMES, pa.time64("us")), [1]),
    ("x == 9007199254740993", BIG, [1]),
    ("x == 0.1 + 0.2", pa.array([D("0.3")], pa.decimal128(5, 2)), [0]),
    ("x == 1 / 3 * 3", pa.array([1]), [0]),
    ("x == 0.10000000000000000001", pa.array([D("0.1")], pa.decimal128(30, 20)), []),
    ("x <= 99999999999999999999999999999999999999.5", pa.array([10**38 - 1], pa.decimal128(38, 0)), [0]),
    ("x > 1e-76 * 0.5", pa.array([D("1e-76"), D(0)], pa.decimal256(76, 76)), [0]),
    ("x > 9.995", pa.array([D("9.99"), D("10")], pa.decimal32(5, 2)), [1]),
    ("x == 0.1 and x != 0.3", pa.array(np.array([0.1, NAN, math.inf], "f2")), [0]),
    ("x != x", pa.array(np.array([0.1, NAN, math.inf], "f2")), [1]),
    ("x > 65504", pa.array(np.array([0.1, NAN, math.inf], "f2")), [2]),
    (f"x in {[0.1, *range(20)]}", pa.array([0.1, -0.0, NAN, None], pa.float32()), [0, 1]),
    ("x > 0e-99", pa.array([1.5, -1], pa.float32()), [0]),
    ("x * 100 == 12700", pa.array([127], pa.int8()), [0]),
    ("x + 1 == 256", pa.array([255], pa.uint8()), [0]),
    ("x < 1024 * 1024 * 1024 * 4", pa.array([2**31 - 1], pa.int32()), [0]),
    ("len(x) == 2", pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [0, 2]),
    ("len(x) == 2", pa.array([[1, 2], None, [3]], pa.list_view(pa.int8())), [0]),
    ("x is None", pa.array([[1, 2], None, [3]], pa.large_list_view(pa.int8())), [1]),
]


@pytest.mark.parametrize(("text", "column", "expected"), ONE_COLUMN, ids=[f"{t}-{c.type}" for t, c, _ in ONE_COLUMN])
def test_a_column_of_a_type_is_compared_by_its_values(text, column, expected):
    assert kept(text, x=column) == expected


LETTERS, UUIDS = ["b", None, "a", "c"], [b"b" * 16, None, b"a" * 16, b"c" * 16]
LARGE, BYTES = pa.array(LETTERS, pa.large_string()), [letter and letter.encode() for letter in LETTERS]
VARIANTS = {
    "dictionary": (pa.array(LETTERS).dictionary_encode(), "'b'"),
    "null in a dictionary": (pa.DictionaryArray.from_arrays([0, 1, 2, 3], LETTERS), "'b'"),
    "dictionary of numbers": (pa.array([2, None, 1, 3]).dictionary_encode(), "2"),
    "view": (LARGE.cast(pa.string_view()), "'b'"),
    "fixed": (pa.array(BYTES, pa.binary(1)), "b'b'"),
    "binary view": (LARGE.cast(pa.large_binary()).cast(pa.binary_view()), "b'b'"),
    "extension": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array(UUIDS, pa.binary(16))), repr(UUIDS[0])),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_type_that_stands_for_another_is_compared_as_that(name):
    column, value = VARIANTS[name]
    assert kept(f"x == {value}", x=column) == [0]
    assert kept(f"x < {value}", x=column) == [2]
    assert kept(f"not x <= {value}", x=column) == [3]
    assert kept(f"x in [{value}]", x=column) == [0]
    assert kept(f"x not in [{', '.join([value] * 20)}]", x=column) == [2, 3]
    assert kept("x is None", x=column) == [1]
    assert kept("x <= x", x=column) == [0, 2, 3]


PAIRS = [
    (pa.int8(), pa.int64(), [1, 2, -3]),
    (pa.uint64(), pa.int64(), [1, 2, 3]),
    (pa.int32(), pa.float32(), [1, 2, -3]),
    (pa.string(), pa.large_string(), ["a", "b", ""]),
    (pa.float16(), pa.float16(), [0.1, 2, -3]),
    (pa.date32(), pa.date64(), [DAYS[0], datetime.date(1969, 1, 1), datetime.date.max]),
    (pa.timestamp("s"), pa.timestamp("ns"), [NOON, NOON.replace(second=1), NOON.replace(year=2000)]),
    (pa.duration("s"), pa.duration("s"), [1, 2, 3]),
]


@pytest.mark.parametrize(("left", "right", "values"), PAIRS, ids=[f"{left}-{right}" for left, right, _ in PAIRS])
def test_columns_are_compared_with_each_other(left, right, values):
    a = pa.array([*values, values[0], None], left)
    b = pa.array([values[0]] * 4 + [values[0]], right)
    for sign, compare in OPERATORS.items():
        expected = [row for row, value in enumerate([*values, values[0]]) if compare(value, values[0])]
        assert kept(f"a {sign} b", a=a, b=b) == expected
        assert kept(f"not a {sign} b", a=a, b=b) == [row for row in range(4) if row not in expected]


@pytest.mark.parametrize("text", ["x + 1 > 0", "x * 2 > 0", "-x > 0", "u + 1 > 0", "x > f", "u > x", "x / 1 > 0"])
def test_what_overflows_or_loses_digits_is_an_error_and_no_wrong_value(text):
    table = pa.table(
        {
            "x": pa.array([2**63 - 1, -(2**63)], pa.int64()),
            "u": pa.array([2**64 - 1] * 2, pa.uint64()),
            "f": pa.array([1.5, 2.5]),
        }
    )
    where = parse_where(text, table.schema)
    with pytest.raises(pa.ArrowInvalid, match=r"overflow|not in range|out of bounds"):
        table.filter(where.expression)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_any_type_are_asked_and_answered_or_refused(name):
    column = COLUMNS[name]
    table = pa.table({"x": column})
    texts = ["x < 3", "x == 1.5", "x == 'a'", "x != '2024-01-01'", "x in [b'a']", "x < x", "len(x) > 1", "x * 2 < 3"]
    for text in ["x is None", *texts, "x == True", "lower(x) == 'a'", "x.u == 3", "x", f"x not in {list(range(20))}"]:
        try:
            where = parse_where(text, table.schema)
        except InputError as error:
            assert error.place, text
            assert "pyarrow" not in error.cause or (text == "len(x) > 1" and "dictionary<values=list" in name)
            continue
        try:
            found = ds.dataset(table).to_table(columns={"is": where.expression})["is"]
        except pa.ArrowInvalid as error:
            assert "*" in text, text
            assert "overflow" in str(error) or "not in range" in str(error)
        else:
            assert found.type == pa.bool_()
            assert len(found) == len(table)
            assert found.null_count == column.null_count
            assert text != "x is None" or found.to_pylist() == [False] * len(table)


SORTED = pa.array([*range(10), 10, 11, *range(20, 32)], pa.int16())
PRUNED = """
0     : x == 3 and y == 'a' ; not x > 3 ; x == 1.5 ; x != 1.5 and x < 2 ; price < 2.505 ; text < '10' ; meta.w < 3
0     : f < 3 ; f != 1 and x < 2 ; f < 3 and not f == 1 and x > 1
0 1   : x < 7.5
0 1 2 : x < 10 ; 10 > x ; when < '1970-01-01T00:00:10' ; wide < 10
0 3   : x == 3 or x == 22 ; x in [3, 22]
1 2   : 5 <= x < 10
5     : zoned >= '1970-01-01T00:00:28Z' ; day > '1970-01-28' ; x is not None and x > 29
      : x > 1e9 ; x == 1e9 ; x is None
"""
"""The row groups that are left for each condition."""


@pytest.mark.parametrize(("groups", "text"), cases(PRUNED))
def test_statistics_of_row_groups_rule_conditions_out(tmp_path, groups, text):
    numbers = SORTED.cast(pa.int64())
    table = pa.table(
        {
            "x": SORTED,
            "y": ["a"] * 24,
            "f": SORTED.cast(pa.float32()),
            "wide": SORTED.cast(pa.uint64()),
            "when": pc.multiply(numbers, 1000).cast(pa.timestamp("ms")),
            "zoned": pc.multiply(numbers, 1000).cast(pa.timestamp("ms", "Europe/Paris")),
            "day": SORTED.cast(pa.int32()).cast(pa.date32()),
            "price": SORTED.cast(pa.decimal128(5, 0)).cast(pa.decimal128(9, 2)),
            "text": SORTED.cast(pa.string()),
            "meta": pa.StructArray.from_arrays([SORTED], ["w"]),
        }
    )
    where = parse_where(text, table.schema)
    fragment = fragment_of(tmp_path / "x.parquet", table, 4)
    expected = table.filter(where.expression)
    assert [group.id for group in fragment.subset(where.pruning).row_groups] == [int(group) for group in groups.split()]
    assert rows_after_pruning(fragment, where).equals(expected)


# Errors

SCHEMA = pa.schema(
    [
        ("label", pa.int8()),
        ("Width", pa.int64()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("my col", pa.int32()),
        ("class", pa.int32()),
        ("meta", pa.struct([("width", pa.int16()), ("a b", pa.int16())])),
        ("tags", pa.list_(pa.string())),
        ("raw", pa.binary()),
        ("id", pa.binary(16)),
        ("dur", pa.duration("s")),
        ("when", pa.timestamp("ms")),
        ("price", pa.decimal128(5, 2)),
        ("nothing", pa.null()),
        ("twice", pa.int8()),
        ("twice", pa.int8()),
        ("map", pa.map_(pa.string(), pa.int8())),
        ("zoned", pa.timestamp("ms", "UTC")),
        ("day", pa.date32()),
        ("half", pa.float32()),
    ]
)

FAULTS = r"""
invalid condition -> `==`: name == 'a = b' and label ^=^ 3
invalid condition -> `and`: label == 3 ^&&^ flag ; label == 3 ^AND^ flag
invalid condition -> `or`: label == 3 ^||^ flag
invalid condition -> `not`: ^NOT^ flag ; ^!^flag
invalid condition -> `!=`: label ^<>^ 3
invalid condition -> startswith: name ^LIKE^ 'a%'
invalid condition -> `is None`: label ^IS NULL^
followed -> None: label is not ^NULL^ and flag
invalid condition -> low <= column: label ^BETWEEN^ 1 AND 3
invalid condition -> `in [: label ^IN^ (1, 2)
invalid condition -> column("..."): ^class^ == 3 ; ^`^my col` == 3 ; my ^col^ == 3
invalid condition: label < 3^)^ ; name == ^'^a ; contains(name, ^'\d'^)
comment -> remove it: label < 3 ^# small^
no column 'lable' -> did you mean label?: ^lable^ < 3
no column 'my_col' -> did you mean column("my col")?: ^my_col^ < 3
'meta' has no member 'widht' -> did you mean meta.width?: ^meta.widht^ < 3
'label' is not a struct: ^label.width^ < 3
duplicate column: ^twice^ < 3
no column 'null' -> write None: label == ^null^
compared with None -> `is None`: ^label == None^
followed by -> `==`: label is ^3^
needs a column: ^1^ is None ; ^3^ in [3]
not allowed -> `and`: ^flag & (label < 3)^
neither true nor false: ^label + 1^ ; ^label^ ; ^True^ ; flag and ^name^
string cannot be compared with a number: ^name < 3^
int8 cannot be compared with a string: ^label == 'a'^ ; ^label in [1, 'a']^
int8 cannot be compared with a column of type string: ^label < name^
binary cannot be compared with a string -> b"...": ^raw == 'a'^
number of bytes: ^id == b'a'^
cannot be compared with a number -> as strings: ^when > 3^
null cannot be compared: ^nothing == 3^
cannot be compared -> len(column): ^tags == 3^
cannot be compared -> column.member: ^meta == 3^
no column -> without quotes: ^1 < 2^ ; ^'label' < 3^
list of values: label in ^3^ ; label in ^[]^
list of values -> contains: 'a' in ^name^
list may contain only: label in [^Width^]
two adjacent -> comma: name in [^'a' 'b'^]
arithmetic: ^name + 1^ < 3 ; ^price * 2^ < 3 ; name == ^-'a'^ ; ^'a' * 999999999^ == name
divided by 0: label < ^3 / 0^
not allowed: ^label % 2^ == 0 ; ^label ** 999999999^ == 0 ; flag == (^label < 3^) ; label < ^3j^
not allowed: ^f'{label}'^ == name ; ^label < 3 if flag else flag^ ; ^[flag for flag in tags]^ ; ^tags[0]^ == 'a'
not allowed: len(^*tags^) < 3
unknown function: ^name.upper()^ == 'A' ; ^__import__('os')^
invalid arguments: ^len(name, 3)^ < 3 ; ^len(label)^ < 3 ; ^len('abc')^ < 3 ; ^lower(label)^ == 'a' ; ^len()^ < 3
invalid arguments: ^startswith(name, 3)^ ; ^startswith(name)^ ; ^contains(label, 'a')^ ; ^lower(name, a=name)^ == 'a'
column() needs: ^column(name)^ < 3
no column '日本': flag and ^column('日本')^ < 3 and flag
invalid string: name == ^'\ud800'^
out of range: ^half < 1e39^ ; ^half > 1e-60^ ; half < 1e300 * 1e300
too large: half < ^1e999^ ; half < ^1e-999999999999^
invalid string: when < '2024-02-30' ; when < '24-01-01' ; when < '' ; when < '12:00'
invalid string: ^zoned < '2024-02-01'^
"""
"""Cause, remedy and the text, with carets around what is wrong."""
MORE_FAULTS = [
    ("empty", "", "", ""),
    ("invalid condition", "label <", "label <^", ""),
    ("line", "name == '''a\nb'''", "", "\\n"),
    ("invalid condition", "label < 0\x00", "", ""),
]
FAULT_CASES = [
    (cause.partition(" -> ")[0], text.replace("^", ""), text if "^" in text else "", cause.partition(" -> ")[2])
    for cause, text in cases(FAULTS)
]


@pytest.mark.parametrize(("cause", "text", "place", "remedy"), [*FAULT_CASES, *MORE_FAULTS])
def test_an_error_says_where_it_is_and_what_to_write(cause, text, place, remedy):
    error = error_of(text, SCHEMA)
    assert cause in error.cause
    assert remedy in error.remedy
    if place:
        assert error.place == place


def test_an_error_says_what_would_have_been_right_and_shows_long_texts_in_part():
    assert "a time zone" in error_of("zoned < '2024-02-01'", SCHEMA).expected
    assert error_of("what < 3", SCHEMA).expected.startswith("one of label, Width, name")
    wide = pa.schema([(f"column {i}", pa.int8()) for i in range(10_000)])
    assert error_of("what < 3", wide).expected.endswith("column 49, and 9,950 more")
    numbers = list(range(100))
    error = error_of(f"label in {numbers} and lable < 3 and label in {numbers}", SCHEMA)
    before, after = f"{numbers} and "[-40:], f" < 3 and label in {numbers}"[:40]
    assert error.place == f"...{before}^lable^{after}..."


HUGE = {
    "parentheses": "(" * 30_000 + "flag" + ")" * 30_000,
    "not": "not " * 20_000 + "flag",
    "nested not": "not (" * 60 + "flag" + ")" * 60,
    "sum": "label < " + "+".join(["1"] * 20_000),
    "calls": "lower(" * 70 + "name" + ")" * 70 + " == 'a'",
    "power of ten": f"label < 1e{'9' * 5_000}",
    "conditions": " or ".join(["flag"] * 501),
    "grouped conditions": " and ".join([f"({' or '.join(['flag'] * 100)})"] * 6),
    "chain": "<".join(["label"] * 503),
    "long": "label in [" + "1, " * 40_000 + "]",
    "surrogates": "name == '\ud800'",
}


@pytest.mark.parametrize("name", HUGE)
def test_texts_that_are_too_large_or_too_deep_are_refused(name):
    assert len(str(error_of(HUGE[name], SCHEMA))) < 2000


def test_the_largest_conditions_can_be_computed_on_the_small_stack_of_a_thread(tmp_path):
    table = pa.table({"label": pa.array(range(100), pa.int8()), "name": [str(i) for i in range(100)]})
    fragment = fragment_of(tmp_path / "x.parquet", table, 50)
    texts = (
        " or ".join(f"label == {i / 2}" for i in range(499)),
        " or ".join(f"(label == {i} and name != 'x')" for i in range(165)),
        "0 == " + " == ".join(["label"] * 480),
        "label < " + "+".join(["1"] * 45),
        "not " * 44 + "label < 45",
        f"name in {[str(i) for i in range(5_000)]}",
    )

    def work():
        for text in texts:
            where = parse_where(text, table.schema)
            found = table.filter(where.expression)
            if len(found) and rows_after_pruning(fragment, where).equals(found):
                done.append(text)

    done = []
    before = threading.stack_size(512 * 1024)
    thread = threading.Thread(target=work)
    thread.start()
    threading.stack_size(before)
    thread.join()
    assert done == list(texts)


# Random conditions: text beside the Python that means the same, None for null

NUM_ROWS = 24
HALF = datetime.timedelta(seconds=0.5)
ROWS = [
    {
        "i": None if n % 7 == 5 else (127 if n == 23 else n * 10 - 128),
        "u": None if n % 5 == 4 else (2**64 - 1 if n == 23 else n // 3),
        "f": None if n % 9 == 8 else (NAN if n % 6 == 2 else n / 8 - 1),
        "d": None if n % 8 == 3 else D(n * 25 - 100).scaleb(-2),
        "s": None if n % 10 == 9 else "abc"[: n % 4] + "é" * (n % 2),
        "b": (True, False, None)[n // 8 % 3] if n % 4 else None,
        "t": None if n % 11 == 6 else NOON + n * HALF,
        "row": n,
    }
    for n in range(NUM_ROWS)
]
KINDS = {"i": pa.int8(), "u": pa.uint64(), "f": pa.float64(), "d": pa.decimal128(4, 2), "t": pa.timestamp("ms")}
KINDS |= {"s": pa.string(), "b": pa.bool_(), "row": pa.int64()}
RANDOM = pa.Table.from_pylist(ROWS, pa.schema(KINDS))


def number_in(name):
    """Read a number of a row exactly; NaN as it is."""
    return strict(lambda value: value if value != value else Fraction(value), lambda row: row[name])


def strict(function, *parts):
    """Return a function of a row that is None where one of its parts is."""

    def value(row):
        values = [part(row) for part in parts]
        return None if any(each is None for each in values) else function(*values)

    return value


def conjunction(left, right):
    def value(row):
        values = left(row), right(row)
        return False if False in values else None if None in values else True

    return value


def negation(part):
    return strict(operator.not_, part)


ENDS = [
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "-1e30",
    "99.985",
    "99.99",
    "99.995",
    "-128.5",
    "127.5",
]
numbers = st.integers(-560, 560).map(lambda n: str(n / 4)) | st.sampled_from(ENDS)
numbers = numbers.map(lambda text: (text, Fraction(text)))
texts = st.sampled_from(["", "a", "ab", "abcé", "é", "z"]).map(lambda text: (repr(text), text))
moments = st.integers(-3, 60).map(lambda n: NOON + n * HALF * 0.5003)
moments = moments.map(lambda moment: (f"'{moment.isoformat()}'", moment))
read = [(name, number_in(name)) for name in "iufd"]
read += [("(i * 3 - 7)", strict(lambda i: i * 3 - 7, number_in("i"))), ("len(s)", strict(len, lambda row: row["s"]))]
kinds = [
    (st.sampled_from(read), numbers),
    (st.sampled_from([(text, lambda row: row["s"]) for text in ("s", "lower(s)")]), texts),
    (st.just(("t", lambda row: row["t"])), moments),
]


def of_each_kind(make):
    return st.one_of(*(make(column, values) for column, values in kinds))


def compared(drawn):
    (text, value), (literal, number), sign, mirrored = drawn
    if mirrored:
        return f"{literal} {sign} {text}", strict(lambda it: OPERATORS[sign](number, it), value)
    return f"{text} {sign} {literal}", strict(lambda it: OPERATORS[sign](it, number), value)


def chained(drawn):
    (text, value), (low, least), (high, most) = drawn
    return f"{low} <= {text} < {high}", strict(lambda it: least <= it < most, value)


def among(drawn):
    (text, value), items, negated = drawn
    found = strict(lambda it: (it in [item for _, item in items]) != negated, value)
    return f"{text} {'not in' if negated else 'in'} [{', '.join(item for item, _ in items)}]", found


leaves = (
    of_each_kind(lambda column, value: st.tuples(column, value, st.sampled_from(sorted(OPERATORS)), st.booleans())).map(
        compared
    )
    | of_each_kind(lambda column, value: st.tuples(column, value, value)).map(chained)
    | of_each_kind(
        lambda column, value: st.tuples(column, st.lists(value, min_size=1, max_size=20), st.booleans())
    ).map(among)
    | st.sampled_from("iufdsbt").map(lambda name: (f"{name} is None", lambda row: row[name] is None))
    | st.just(("b", lambda row: row["b"]))
    | texts.map(lambda it: (f"startswith(s, {it[0]})", strict(lambda s: s.startswith(it[1]), lambda row: row["s"])))
)


def combined(inner):
    pairs = st.tuples(inner, inner)
    return (
        inner.map(lambda one: (f"not ({one[0]})", negation(one[1])))
        | pairs.map(lambda two: (f"({two[0][0]}) and ({two[1][0]})", conjunction(two[0][1], two[1][1])))
        | pairs.map(
            lambda two: (
                f"({two[0][0]}) or ({two[1][0]})",
                negation(conjunction(negation(two[0][1]), negation(two[1][1]))),
            )
        )
    )


@pytest.fixture(scope="module")
def random_fragment(tmp_path_factory):
    return fragment_of(tmp_path_factory.mktemp("where") / "x.parquet", RANDOM, 3)


@given(st.recursive(leaves, combined, max_leaves=6))
@example(("not (f < 1)", negation(strict(lambda it: it < 1, number_in("f")))))
def test_a_random_condition_keeps_the_rows_that_python_keeps(random_fragment, drawn):
    text, value = drawn
    expected = [row["row"] for row in ROWS if value(row) is True]
    where = parse_where(text, RANDOM.schema)
    assert RANDOM.filter(where.expression)["row"].to_pylist() == expected
    assert rows_after_pruning(random_fragment, where)["row"].to_pylist() == expected


WORDS = (
    *("label", "name", "flag", "meta", "and", "or", "not", "in", "is", "None", "3", "-1", "'a'"),
    *(".", "(", ")", "[", "]", ",", "<", "==", "=", '"', "*", "/", "#", "\\", ":"),
)


@given(st.text(max_size=30) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_any_text_is_a_condition_or_an_input_error(text):
    try:
        where = parse_where(text, SCHEMA)
    except InputError as error:
        assert error.cause
    else:
        assert set(where.columns) <= set(SCHEMA.names)


LABELS = pa.schema([("label", pa.int8()), ("other", pa.int8()), ("text", pa.string())])
NAMES = {"label": ("cat", "dog", "3")}
CLASSES = """
0     : label == 'cat'
0 1 3 : label in ('cat', 'dog', 3)
0 2 3 : 'dog' != label
0 4   : label == 'cat' or text == 'dog'
1     : label == 1
1 3   : label not in ['cat', '3']
2     : label == '3'
"""


@pytest.mark.parametrize(("rows", "text"), cases(CLASSES))
def test_classes_are_compared_by_name_or_number(rows, text):
    labels, other = pa.array([0, 1, 2, 3, None], pa.int8()), ["cat", "", "", "", "dog"]
    assert kept(text, (NAMES,), label=labels, text=other) == [int(row) for row in rows.split()]


CLASS_FAULTS = """
column 'label' has no class 'Dog' -> did you mean "dog"?: label == ^'Dog'^
column 'label' has no class 'doog' -> did you mean "dog"?: label in ['cat', ^'doog'^]
has no class: label == ^'x'^
cannot be compared with a string: ^label < 'dog'^ ; ^other == 'cat'^
cannot be compared with bytes: ^label == b'cat'^
no column 'cat' -> write 'cat' in quotes: label == ^cat^
"""


@pytest.mark.parametrize(("fault", "text"), cases(CLASS_FAULTS))
def test_a_class_that_a_column_has_not_is_refused(fault, text):
    cause, _, remedy = fault.partition(" -> ")
    with pytest.raises(InputError) as caught:
        parse_where(text.replace("^", ""), LABELS, NAMES)
    assert cause in caught.value.cause
    assert (caught.value.place, caught.value.remedy) == (text, remedy)


KEYS = """
0       : __key__ == 'img.0092' ; 'img.0092' == __key__ ; __key__ == 'img_x2E0092'
1       : __key__ == 'é' ; 'é' == __key__ != 'plain'
1 2 3 4 : __key__ != 'img.0092'
1 3     : column('__key__') in ('plain', 'é')
1 3 4   : __key__ not in ['img.0092', 'a_x2Eb']
2       : __key__ == 'a_x2Eb' ; __key__ == 'a_x5Fx2Eb'
4       : __key__ == 'raw.one'
        : __key__ == ''
"""


@pytest.mark.parametrize(("rows", "text"), cases(KEYS))
def test_keys_of_samples_are_compared_as_they_are_and_as_they_were(rows, text):
    keys = ["img_x2E0092", "_xC3_xA9", "a_x5Fx2Eb", "plain", "raw.one"]
    assert kept(text, (None, "__key__"), __key__=keys) == [int(row) for row in rows.split()]


def test_keys_of_a_table_are_compared_as_they_are():
    assert kept("__key__ == 'img.0092'", __key__=["img.0092", "img_x2E0092"]) == [0]
