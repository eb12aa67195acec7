import csv
import io
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format_inputs import read_data, read_files
from wdsplit.errors import InputError
from wdsplit.tables.formats import text
from wdsplit.tables.formats.text import is_exact

PIECES = ['"', ",", "\n", "\r\n", "\t", "a", "é", " ", "b", "'", "\\", "\0"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@pytest.fixture
def read(tmp_path, block_bytes):
    """Return what reads CSV given as text or bytes."""
    return partial(read_data, tmp_path / "a.csv")


# Rows


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(TEXT, min_size=n, max_size=n), max_size=8)),
    st.sampled_from([1, 5, 30, 1000]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.sampled_from([("a.csv", ","), ("a.tsv", "\t")]),
)
def test_what_python_writes_is_read_as_python_reads_it(tmp_path_factory, rows, size, quoting, end, last_end, kind):
    name, delimiter = kind
    width = len(rows[0]) if rows else 2
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerows([[f"column {i}" for i in range(width)], *rows])
    written = sink.getvalue()
    written = written if last_end or not rows else written.removesuffix(end)
    assert_read_as_by_python(tmp_path_factory.mktemp("csv") / name, written, size, delimiter)


def assert_read_as_by_python(path, written, size, delimiter=","):
    """Read text in blocks of a size, and compare its rows with those of the standard library."""
    path.write_bytes(written.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", size)
        table = read_files([path])
    rows = [row for row in csv.reader(io.StringIO(written, newline=""), delimiter=delimiter) if row][1:]
    assert [["" if value is None else value for value in row.values()] for row in table.to_pylist()] == rows


@given(st.lists(st.sampled_from(["a", "b", '"', ",", "\n"]), max_size=14).map("".join), st.sampled_from([1, 3, 1000]))
def test_any_quotes_are_read_as_python_reads_them_or_are_refused(tmp_path_factory, data, size):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    try:
        assert_read_as_by_python(path, f"x,y\n{data}", size)
    except InputError as error:
        assert f"{path}, line" in str(error)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        *(
            (data, [{"a": 1, "b": 2}])
            for data in ("a,b\n1,2\n", "\ufeffa,b\r\n1,2\r\n", "\n\na,b\n\n1,2\n\n", 'a,"b"\n"1",2')
        ),
        ('"a ""b""","c\nd",é, e\n1,2,3,4\n', [{'a "b"': 1, "c\nd": 2, "é": 3, " e": 4}]),
        ("a,b", []),
        (
            'n,f,b,t,none\n1,1.5,true,x,\n,,,,\n"","","","",""\n',
            [
                {"n": 1, "f": 1.5, "b": True, "t": "x", "none": ""},
                *[{"n": None, "f": None, "b": None, "t": "", "none": ""}] * 2,
            ],
        ),
    ],
)
def test_marks_empty_lines_odd_names_and_fields_with_nothing_in_them_are_read(read, data, rows):
    assert read(data).to_pylist() == rows


# Types


TYPES = f"""
int64  : 1 -20 0 {2**63 - 1} {-(2**63)}
double : 1 2.5 ; 1.10 1e5 .5 5. -0.0 ; 0.1 nan -inf Infinity NaN ; 9007199254740994 1.5 ; 1000000000000000000 1.5
double : 0.30000000000000004 1.000000000000000056e-01 0.10000000000000001
bool   : true False TRUE
string : 007 1 ; +1 2 ; -0 2 ; {2**63} ; 0.12345678901234567890 1 ; 9007199254740993 1.5 ; 1e400 ; 1e-400
string : 1.2.3 ; 0x10 ; true 1 ; NA 1 ; 2024-02-29 2024-03-01
"""
"""Columns of each type, as words."""
COLUMNS = [
    (words.split(), pa.type_for_alias(kind.strip()))
    for kind, _, columns in (line.partition(": ") for line in TYPES.strip().splitlines())
    for words in columns.split(" ; ")
]


@pytest.mark.parametrize(("values", "kind"), [*COLUMNS, ([" 1", "2"], pa.string())])
@pytest.mark.parametrize("order", [1, -1])
def test_a_column_has_a_type_that_keeps_all_its_values(read, values, kind, order):
    values = values[::order]
    table = read("a,b\n" + "".join(f"{value},x\n" for value in values))
    assert table.schema.field("a").type == kind
    found = table.column("a").to_pylist()
    if kind == pa.string():
        assert found == values
    elif kind == pa.bool_():
        assert found == [value.lower() == "true" for value in values]
    else:
        assert np.array_equal(found, [int(v) if kind == pa.int64() else float(v) for v in values], equal_nan=True)


def test_types_are_common_to_all_files(tmp_path, block_bytes):
    paths = []
    for data in (
        "id,x,zip\n1,1,007\n",
        "zip,x\n12345,2.5\n",
        "id,x,zip\n",
        "id,x,zip\n9007199254740993,9007199254740993,1\n",
    ):
        paths.append(tmp_path / f"{len(paths)}.csv")
        paths[-1].write_text(data)
    table = read_files(paths[:3])
    assert table.schema.types == [pa.int64(), pa.float64(), pa.string()]
    assert table.to_pylist() == [{"id": 1, "x": 1.0, "zip": "007"}, {"id": None, "x": 2.5, "zip": "12345"}]
    assert not any(field.metadata for field in table.schema)
    assert read_files(paths[:3], ["id"]).to_pylist() == [{"id": 1}, {"id": None}]
    assert read_files(paths).column("x").to_pylist() == ["1", "2.5", "9007199254740993"]


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?(e[-+]?[0-9]{1,3})?", fullmatch=True))
def test_a_number_is_exact_if_its_double_is_printed_the_same(number):
    digits = number.split("e")[0].replace(".", "").lstrip("-0")
    mantissa = f"{float(number):.{max(0, len(digits) - 1)}e}".split("e")[0].replace(".", "").lstrip("-0")
    assert is_exact(number) == (mantissa == digits)
    assert is_exact("inf") and is_exact("nan")


# What is refused


@pytest.mark.parametrize(
    "data, cause, line",
    [
        ("a,b\n1,2\n3\n4,5\n", "another number of columns", 3),
        ('a,b\n"1\n\n",2\n\n3,4,5\n', "another number of columns", 6),
        ('a,b\n1,"2\n3,4\n', "not CSV", 2),
        ('a,b\n1,2\n"say "hi"",4\n', "not CSV", 3),
        (b"a,b\n1,2\n\xff,4\n", "not UTF-8", 3),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8", 1),
        ("a,b\n1,2\r3,4\n", "not CSV", 2),
        ("a,b\r1,2\r3,4\r", "not CSV", 1),
        ("a,a\n1,2\n", "a header does not name the columns", 1),
        (",a\n1,2\n", "a header does not name the columns", 1),
        ("a,b,\n1,2,3\n", "a header does not name the columns", 1),
        ("\n\n", "cannot be read as CSV", ""),
    ],
)
def test_what_cannot_be_told_for_certain_is_refused_with_its_line(read, tmp_path, data, cause, line):
    with pytest.raises(InputError, match=cause) as caught:
        read(data)
    assert caught.value.place.startswith(f"{tmp_path / 'a.csv'}, line {line}" if line else str(tmp_path / "a.csv"))


def test_a_row_that_is_too_large_is_refused(read, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text, "_MAX_ROW_BYTES", 1000)
    with pytest.raises(InputError, match="a row is too large"):
        read('a,b\n1,2\n3,"' + "x" * 5000 + '"\n')
