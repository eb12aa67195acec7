import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format_inputs import read_data, read_files
from wdsplit.errors import InputError
from wdsplit.tables.formats import text
from wdsplit.tables.read import open_inputs


@pytest.fixture
def read(tmp_path, block_bytes):
    """Return what reads JSON lines given as text or bytes."""
    return partial(read_data, tmp_path / "a.jsonl")


# Rows

STRINGS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["2024-02-29", "2024-02-29T10:00:00Z", "12345678901234567890", "} null", "null", "1e-400", "a\nb", "\u2028"]
)
SCALARS = {
    "string": STRINGS,
    "integer": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
}


def values_of(kind):
    return st.none() | kind


@st.composite
def rows(draw):
    """Draw rows whose columns are each of one kind, with keys that some rows lack."""
    scalars = st.sampled_from(sorted(SCALARS)).map(lambda name: values_of(SCALARS[name]))
    lists = scalars.map(lambda kind: values_of(st.lists(kind, max_size=3)))
    structs = st.dictionaries(st.sampled_from("xyz"), scalars | lists, max_size=3).map(
        lambda kinds: values_of(st.fixed_dictionaries({}, optional=kinds))
    )
    names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=3)
    kinds = draw(st.dictionaries(names, scalars | lists | structs, max_size=4))
    return draw(st.lists(st.fixed_dictionaries({}, optional=kinds), max_size=6))


def lacks(row, kind):
    """Return a row with nulls for all keys that its type has more."""
    if row is None or not (pa.types.is_struct(kind) or pa.types.is_list(kind)):
        return row
    if pa.types.is_list(kind):
        return [lacks(value, kind.value_type) for value in row]
    return {field.name: lacks(row.get(field.name), field.type) for field in kind}


@given(rows(), st.sampled_from([1, 20, 10_000]), st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n", " \n \n"]))
def test_what_python_writes_is_read_as_it_was(tmp_path_factory, rows, size, ascii_only, end):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_bytes("".join(json.dumps(row, ensure_ascii=ascii_only) + end for row in rows).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", size)
        opened = open_inputs([str(path)])
        assert opened.num_rows == len(rows)
        if opened.schema.names:
            table = read_files([path])
            assert table.to_pylist() == [lacks(row, pa.struct(list(opened.schema))) for row in rows]


@pytest.mark.parametrize(
    "data", ['{"a": 1}\n{"a": 2}', '\ufeff{"a": 1}\r\n\r\n{"a": 2}\r\n', '\n \n{"a": 1}\n\t\n{"a": 2}\n \n']
)
def test_marks_line_ends_and_blank_lines_make_no_difference(read, data):
    assert read(data).to_pylist() == [{"a": 1}, {"a": 2}]
    assert read("\n \n").num_rows == 0


# Types


@pytest.mark.parametrize(
    "number",
    ["12345678901234567890", "-9223372036854775809", "0.123456789012345678901", "1e-400", "1.25e-323", "1e400"],
)
def test_a_number_that_would_lose_digits_is_refused_with_its_line(read, tmp_path, number):
    with pytest.raises(InputError) as caught:
        read(f'{{"a": "{number}"}}\n{{"b": [{{"c": {number}}}]}}\n')
    assert f"{tmp_path / 'a.jsonl'}, line 2" in caught.value.place
    assert read(f'{{"a": "{number}"}}\n').to_pylist() == [{"a": number}]


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 2**53 + 2, "b": 2**53 + 1}, {"a": 1e20, "b": 1}],
        [{"a": 1, "b": [1, 2]}, {"a": 2.5, "b": [0.5]}],
        [{"a": float("inf")}, {"a": float("-inf")}],
        [{"a": [None, None], "b": [[None], []], "c": {"d": [None]}}, {"a": [], "b": None, "c": None}],
        [{"id": 2**62 + 1, "x": 1e20, "y": {"id": [-(2**62) - 1]}}, {"id": 1, "x": 0.5, "y": None}],
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_numbers_and_empty_lists_have_the_type_that_keeps_them(read, rows, order):
    table = read("".join(json.dumps(row) + "\n" for row in rows[::order]))
    assert table.to_pylist() == rows[::order]
    kinds = {name: {type(row[name]) for row in rows} for name in rows[0]}
    assert all(table.schema.field(name).type == pa.float64() for name, kind in kinds.items() if float in kind)
    assert str(read('{"a": NaN}\n').to_pylist()) == "[{'a': nan}]"


def test_types_are_common_to_all_files(tmp_path, block_bytes):
    lines = ['{"a": 1, "s": {"x": 1}}', '{"s": {"y": ["z"]}, "a": 2.5}', "", '{"b": null}', f'{{"a": {2**53 + 1}}}']
    paths = [str(tmp_path / f"{number}.jsonl") for number in range(len(lines))]
    for path, line in zip(paths, lines, strict=True):
        Path(path).write_text(line)
    table = read_files(paths[:4])
    assert table.to_pylist() == [
        {"a": 1.0, "s": {"x": 1, "y": None}, "b": None},
        {"a": 2.5, "s": {"x": None, "y": ["z"]}, "b": None},
        {"a": None, "s": None, "b": None},
    ]
    with pytest.raises(InputError, match="have two types") as caught:
        read_files(paths)
    assert paths[4] in caught.value.place


# What is refused


@pytest.mark.parametrize(
    "data, cause, line",
    [
        ('{"a": 1}\n{"a": "x"}\n', "a line cannot be read|have two types", 2),
        ('{"a": 1}\n\n{"a": {"b": 1}}\n', "a line cannot be read|have two types", 3),
        ('{"a": 1}\n{"a": \n', "not JSON lines", 2),
        ('{"a": 1}\n{"a": 1, "a": 2}\n', "a line cannot be read", 2),
        ('{"a": 1}\n{"a": "\\ud800"}\n', "a line cannot be read", 2),
        (b'{"a": 1}\n{"a": "\xff"}\n', "not UTF-8", 2),
        ('{"a": 1}\nnull\n', "not JSON lines", 2),
        ('{"a": 1} null\n', "not JSON lines", 1),
        ('{"a": 1}null{"a": 1}\n', "not JSON lines", 1),
        ('{"a": 1}\n[1]\n', "not JSON lines", 2),
        ('{"a": 1} {"a": 2}\n', "not JSON lines", 1),
        ('[{"a": 1}]\n', "not JSON lines", 1),
        ('{\n  "a": 1\n}\n', "not JSON lines", 1),
        ('{"a": 1}\n\0\n', "not JSON lines", 2),
        ('{"a": []}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "recursion", 2),
        ('{"a": [9007199254740993]}\n{"a": [0.5]}', "too many digits|have two types", None),
        ('{"a": [0.5]}\n{"a": [9007199254740993]}', "too many digits|have two types", None),
        ('{"a": 0.' + "3" * 20_000 + "}", r"too many digits(.|\n)*3\.\.\. \(20,002 characters\)", 1),
    ],
)
def test_what_is_no_line_of_an_object_is_refused_with_its_line(read, tmp_path, data, cause, line):
    with pytest.raises(InputError, match=cause) as caught:
        read(data)
    assert caught.value.place.startswith(f"{tmp_path / 'a.jsonl'}, line {line or ''}")
