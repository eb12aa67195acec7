"""JSON lines: an object a line, cut into blocks of whole lines, whose types are brought together.

A key that some objects lack is a null there. Strings stay strings, dates too. A number that its column's type cannot
hold with all its digits is refused, and so are values of two kinds under one key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from wdsplit.errors import InputError
from wdsplit.tables.formats.common import changed, matching_groups, sliced
from wdsplit.tables.formats.jsontypes import TwoTypesError, described, has_large_doubles, joined_types, reading_type
from wdsplit.tables.formats.numbers import inexact_numbers, number_places
from wdsplit.tables.formats.text import Block, TextReader, read_blocks
from wdsplit.tables.table import InputFile, Remote

__all__ = ["TYPED", "WHAT", "common_schema", "matching_groups", "open_file", "read_batches"]

TYPED = False
WHAT = "JSON lines"

_BLANK = b" \t\r\n"
_ODD_NULL = re.compile(rb"null(?<![:,\[]null)(?<![:,\[] null)")
"""A null that is perhaps no value of an object: Arrow's parser does not survive one that stands by itself."""
_ROW = re.compile(r"(.*) in row ([0-9]+)$")


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Read the file once: find its blocks, count their rows, and find the types."""
    reader = TextReader(path, lambda block, is_last: block.data.rfind(b"\n") + 1, remote)
    common = pa.struct([])
    for block in reader.blocks():
        if not block.data.strip(_BLANK):
            continue
        _check_lines(block, is_first=not len(reader))
        found, num_rows = _types(block)
        try:
            common = joined_types("", common, found)
        except TwoTypesError as error:
            raise _two_types_here(block, common, error) from error
        reader.add_group(block.begin, num_rows)
    return reader.input_file("jsonl"), pa.schema([common.field(i) for i in range(common.num_fields)])


# Lines


def _check_lines(block: Block, is_first: bool) -> None:
    """Refuse what is not lines of objects, as far as Arrow's parser would not.

    Raises:
        InputError: The file is one array or one object over several lines, or a null stands by itself.
    """
    if is_first:
        begin = len(block.data) - len(block.data.lstrip(_BLANK))
        if block.data[begin : begin + 1] == b"[" or block.data[begin:].split(b"\n", 1)[0].strip(_BLANK) == b"{":
            raise _no_lines(block, begin, repr(block.data[begin : begin + 30].decode("utf-8", "replace")))
    for match in _ODD_NULL.finditer(block.data):
        begin = block.data.rfind(b"\n", 0, match.start()) + 1
        _check_line(block, begin)


def _no_lines(block: Block, place: int, found: str) -> InputError:
    return block.error(
        "an input is not of JSON lines",
        place,
        expected='an object a line, as in {"text": "a cat", "label": 3}',
        found=found,
        remedy="write a line for each object, as with `jq -c '.[]'` for an array of objects",
    )


def _check_line(block: Block, begin: int) -> Any:
    """Return what the line that begins at a byte of the block holds, which must be one object."""
    line = block.data[begin:].split(b"\n", 1)[0]
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_lines(block, begin, str(error) or "a value nested too deeply") from error
    if not isinstance(value, dict):
        raise _no_lines(block, begin, f"a line that holds {type(value).__name__}")
    return value


def _line_places(data: bytes) -> list[int]:
    """Return where the lines begin that are not blank."""
    places, place = [], 0
    for line in data.split(b"\n"):
        if line.strip(_BLANK):
            places.append(place)
        place += len(line) + 1
    return places


def _num_lines(data: bytes) -> int:
    """Count the lines that are not blank."""
    if data[0] in _BLANK or any(b"\n" + bytes([blank]) in data for blank in _BLANK):
        return len(_line_places(data))
    return data.count(b"\n") + (not data.endswith(b"\n"))


# Types


def _types(block: Block) -> tuple[pa.StructType, int]:
    """Return the types in a block, and the number of its rows.

    Raises:
        InputError: A line holds no object, or a value cannot be read.
    """
    try:
        table = _parse(block.data, None)
    except (pa.ArrowException, ValueError) as error:
        raise _bad_line(block, error) from error
    if len(table) != _num_lines(block.data):
        for place in _line_places(block.data):
            _check_line(block, place)
        raise _no_lines(block, 0, f"{len(table)} objects in {_num_lines(block.data)} lines")
    return _checked_fields(block, table), len(table)


def _parse(data: bytes, schema: pa.Schema | None) -> pa.Table:
    """Parse lines: with the types found in them, or only some columns with the types given."""
    behavior = "infer" if schema is None else "ignore"
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior),
    )


def _bad_line(block: Block, error: Exception) -> InputError:
    """Return the error for the line that Arrow's parser did not take."""
    text = str(error).splitlines()[0].removeprefix("JSON parse error: ")
    match = _ROW.match(text)
    places = _line_places(block.data)
    if match is None or int(match[2]) >= len(places):
        for place in places:
            try:
                _check_line(block, place)
            except InputError as found:
                return found
        return block.error("a line cannot be read", None, "an object a line", text, "correct the line")
    return block.error(
        "a line cannot be read",
        places[int(match[2])],
        expected="an object, with values of the kind that the lines before have",
        found=match[1],
        remedy="correct the line; what varies in kind can be written as a string",
    )


def _two_types_here(block: Block, common: pa.StructType, error: TwoTypesError) -> InputError:
    """Return the error for the first line of a block that does not go with what stands before the block."""
    name = error.path.split("/")[1].removesuffix("[]")
    try:
        _parse(block.data, pa.schema([common.field(name)]))
    except (pa.ArrowException, ValueError) as found:
        if _ROW.match(str(found)):
            return _bad_line(block, found)
    return block.error(
        f"the values of {error.path.lstrip('/')!r} are of two types",
        None,
        expected=f"{error.one}, as the lines before have it",
        found=error.other,
        remedy="write the values as strings, or as numbers of one kind",
    )


def common_schema(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of all files, each of a type that holds all values.

    Args:
        schemas: Path to columns, as `open_file` tells them.

    Raises:
        InputError: There is no such type.
    """
    common = pa.struct([])
    for path, schema in schemas.items():
        try:
            common = joined_types("", common, pa.struct(list(schema)))
        except TwoTypesError as error:
            raise InputError(
                f"the values of {error.path.lstrip('/')!r} are of two types",
                place=path,
                expected=f"{error.one}, as the files before have it",
                found=error.other,
                remedy="write the values as strings or as numbers of one kind, or convert the files as two datasets",
                url=path,
            ) from error
    return pa.schema([pa.field(field.name, reading_type(field.type)) for field in common])


# Numbers


def _checked_fields(block: Block, table: pa.Table) -> pa.StructType:
    """Return the columns of a block, with strings for what Arrow takes for timestamps.

    Raises:
        InputError: A number would lose digits.
    """
    columns = {name: _combined(table.column(name)) for name in table.column_names}
    integers, others = inexact_numbers(block.data)
    if others:
        _refuse_numbers(block, lambda line: _find_literal(line, others), others)
    if integers and any(has_large_doubles(column) for column in columns.values()):
        _refuse_numbers(block, lambda line: _find_integer(json.loads(line), pa.struct(list(table.schema))), integers)
    return pa.struct([described(name, column, bool(integers)) for name, column in columns.items()])


def _combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _refuse_numbers(block: Block, find: Callable[[bytes], str | None], numbers: set[bytes]) -> None:
    """Look through the lines that hold some of the numbers; refuse the first in which one loses digits."""
    data, end = block.data, -1
    for place in number_places(data, numbers):
        if place < end:
            continue
        begin = data.rfind(b"\n", 0, place) + 1
        end = data.find(b"\n", begin) % (len(data) + 1)
        found = find(data[begin:end])
        if found is not None:
            raise block.error(
                "a number has more digits than can be kept",
                begin,
                expected="integers of 64 bits, and other numbers with the digits that a double holds",
                found=found,
                remedy="write it as a string",
            )


def _find_literal(line: bytes, numbers: set[bytes]) -> str | None:
    """Return the first of some numbers that a line holds outside of strings."""
    found: list[str] = []

    def look(text: str) -> int:
        if text.lstrip("-").encode() in numbers:
            found.append(text)
        return 0

    json.loads(line, parse_float=look, parse_int=look)
    return found[0] if found else None


def _find_integer(value: Any, kind: pa.DataType) -> str | None:
    """Return the first integer in a value whose type makes it a double that is another number."""
    if isinstance(value, int) and pa.types.is_floating(kind):
        return None if int(float(value)) == value else str(value)
    parts: list[tuple[Any, pa.DataType]] = []
    if isinstance(value, dict):
        parts = [(part, kind.field(name).type) for name, part in value.items()]
    elif isinstance(value, list):
        parts = [(part, kind.value_type) for part in value]
    return next((found for part in parts if (found := _find_integer(*part)) is not None), None)


# Reading


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Give the rows of some blocks, with the types of the whole input."""
    wanted = pa.schema([schema.field(name) for name in columns])
    for group, data in read_blocks(file, groups):
        table = _parse(data, wanted)
        if len(table) != file.row_groups[group]:
            raise changed(file, f"{len(table)} rows in the block at byte {file.offsets[group]}")
        for batch in table.combine_chunks().to_batches():
            batch.validate()
            yield from sliced(batch)
