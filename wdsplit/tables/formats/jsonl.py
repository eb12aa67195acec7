"""JSON lines: one object per line, read in blocks of whole lines whose types are joined.

Missing keys are null. Strings stay strings, including dates. Numbers that lose digits in the type of their column are
errors, and so are values of two kinds under one key.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from wdsplit.errors import InputError, first_line
from wdsplit.tables.formats.opening import read_blocks
from wdsplit.tables.formats.text import Block, common_schema, inexact, integer_type, is_exact, joined_types, open_text
from wdsplit.tables.table import InputFile, Remote

__all__ = ["WHAT", "common_schema", "open_file", "read_batches"]

WHAT = "JSON lines"

_UNREADABLE = (pa.ArrowException, ValueError, RecursionError)
_MAX_DEPTH = 5000
_SHOWN = 60
"""Characters of a number in a message."""
_OPENING, _CLOSING = b"{}"
_DIGITS = bytes.maketrans(b".123456789", b"0" * 10)
_SUSPECT = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][-+]?[0-9]+)?|[0-9][0-9.]*[eE]-[0-9]{3,}")
"""A number that a double may not hold exactly."""
_NUMBER = r"^[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$"


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Read the file once: find its blocks, count their rows, and find the types."""
    kinds: dict[str, pa.DataType] = {}

    def count_rows(block: Block) -> tuple[Block, int]:
        try:
            joined, num_rows = _joined_types(kinds, block.data)
        except _UNREADABLE as error:
            raise _first_error(kinds, block, error) from error
        kinds.update(joined)
        return block, num_rows

    file = open_text(path, "jsonl", remote, lambda block, _: block.data.rfind(b"\n") + 1, count_rows)
    return file, pa.schema(kinds)


def _first_error(found: Mapping[str, pa.DataType], block: Block, error: Exception) -> InputError:
    """Return the error for the first line of a block that cannot be read, or conflicts with the types before it."""
    data = block.data
    line_ends = [*(np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1).tolist(), len(data)]
    errors: dict[int, Exception] = {}

    def fails(line: int) -> bool:
        try:
            _joined_types(found, data[: line_ends[line]])
        except _UNREADABLE as line_error:
            errors[line] = line_error
        return line in errors

    line = bisect_left(range(len(line_ends) - 1), True, key=fails)
    error = errors.get(line, error)
    if not isinstance(error, InputError):
        text = first_line(error).removeprefix("JSON parse error: ")
        error = InputError(
            "a line cannot be read",
            expected="an object, with values of the same kinds as in earlier lines",
            found=re.sub(" in row [0-9]+$", "", text),
            remedy="correct the line, or write values that vary in kind as strings",
        )
    place = line_ends[line - 1] if line else 0
    return block.error(place, error.cause, error.expected, error.found, error.remedy)


def _joined_types(found: Mapping[str, pa.DataType], data: bytes) -> tuple[Mapping[str, pa.DataType], int]:
    """Return the types of lines, joined with those found before, and the number of lines that are not blank.

    Raises:
        InputError: A line is not an object, a number would lose digits, or values are of two kinds; it has no place.
        pa.ArrowException, ValueError, RecursionError: The lines cannot be read.
    """
    num_lines = 0
    for line in map(bytes.strip, io.BytesIO(data)):
        if not line:
            continue
        num_lines += 1
        # Arrow's parser crashes on a null outside an object, and on values nested too deeply.
        if line[0] != _OPENING or line[-1] != _CLOSING:
            raise _no_object(repr(line[:30].decode("utf-8", "replace")))
        if len(line) > _MAX_DEPTH and line.count(b"[") + line.count(b"{") > _MAX_DEPTH:
            json.loads(line)
    if not num_lines:
        return found, 0
    line = b""  # it may be large
    table = _parse(data, None)
    if len(table) != num_lines:
        raise _no_object(f"{len(table)} values in {num_lines} lines")
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    _check_numbers(data, columns)
    return joined_types(found, {name: _type_of(column) for name, column in columns.items()}), len(table)


def _no_object(found: str) -> InputError:
    return InputError(
        "an input is not JSON lines",
        expected='one object per line, as in {"text": "a cat", "label": 3}',
        found=found,
        remedy="write one object per line, as `jq -c '.[]'` does for an array",
    )


def _parse(data: bytes, schema: pa.Schema | None) -> pa.Table:
    """Parse lines: with the types found in them, or only some columns with the types given."""
    behavior = "infer" if schema is None else "ignore"
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior),
    )


# Types


def _type_of(column: pa.Array) -> pa.DataType:
    """Return the type of a column as Arrow's parser infers it, but with strings instead of timestamps."""
    kind = column.type
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, _type_of(column.field(i))) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_type_of(column.values))
    if pa.types.is_integer(kind):
        return integer_type(column)
    return pa.string() if pa.types.is_timestamp(kind) else kind


# Numbers


def _check_numbers(data: bytes, columns: Mapping[str, pa.Array]) -> None:
    """Refuse a number that its column of doubles cannot hold with all digits.

    Raises:
        InputError: A number would lose digits.
    """
    doubles = [leaf for column in columns.values() for leaf in _doubles(column)]
    if not doubles or not (b"0" * 16 in data.translate(_DIGITS) or re.search(rb"[eE]-[0-9]{3}", data)):
        return
    numbers = pa.array(_SUSPECT.findall(data), pa.binary()).cast(pa.string())  # some may be parts of strings
    numbers = numbers.filter(pc.match_substring_regex(numbers, _NUMBER))
    if not any(pc.any(pc.greater_equal(pc.abs(leaf), 2**53)).as_py() for leaf in doubles):
        numbers = numbers.filter(pc.match_substring_regex(numbers, "[.eE]"))  # smaller integers are exact
    suspects = {number.encode() for number in inexact(numbers).to_pylist()}
    schema = pa.struct([(name, column.type) for name, column in columns.items()])
    for line in data.split(b"\n") if suspects else []:
        if suspects.isdisjoint(_SUSPECT.findall(line)):
            continue
        found = _inexact_value(json.loads(line, parse_int=_Number, parse_float=_Number), schema)
        if found is not None:
            raise InputError(
                "a number has too many digits",
                expected="64-bit integers, and other numbers with no more digits than a double",
                found=found if len(found) <= _SHOWN else f"{found[:_SHOWN]}... ({len(found):,} characters)",
                remedy="write it as a string",
            )


def _doubles(column: pa.Array) -> list[pa.Array]:
    """Return the arrays of doubles in a column."""
    if pa.types.is_struct(column.type):
        return [leaf for i in range(column.type.num_fields) for leaf in _doubles(column.field(i))]
    if pa.types.is_list(column.type):
        return _doubles(column.values)
    return [column] if pa.types.is_floating(column.type) else []


class _Number(str):
    """A number as it is written."""


def _inexact_value(value: Any, kind: pa.DataType) -> str | None:
    """Return the first number in a value that would change as a double of the value's type; None if there is none."""
    if isinstance(value, _Number):
        return value if pa.types.is_floating(kind) and not is_exact(value) else None
    parts: list[tuple[Any, pa.DataType]] = []
    if isinstance(value, dict):
        parts = [(part, kind.field(name).type) for name, part in value.items()]
    elif isinstance(value, list):
        parts = [(part, kind.value_type) for part in value]
    return next((found for part in parts if (found := _inexact_value(*part)) is not None), None)


# Reading


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some blocks, with the types of the whole input."""
    kinds = pa.schema([schema.field(name) for name in columns])
    return read_blocks(file, groups, lambda data, _: _parse(data, kinds))
