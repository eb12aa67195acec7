"""Common to text formats: files as blocks of whole rows, and lossless types for their values.

A block can be read separately. Only one block is in memory at a time. The types of blocks and files are joined to types
that fit all values of the input.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from wdsplit.engines.local import raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import map_children
from wdsplit.fields.promote import joined_type
from wdsplit.tables.formats.opening import AHEAD_BYTES, described, open_input
from wdsplit.tables.table import InputFile, Remote

__all__ = [
    "BLOCK_BYTES",
    "BOM",
    "LARGE",
    "Block",
    "common_schema",
    "inexact",
    "integer_type",
    "is_exact",
    "joined_types",
    "open_text",
]

BLOCK_BYTES = 16 * 1024**2
BOM = b"\xef\xbb\xbf"
_MAX_ROW_BYTES = 2**31 - 2**20
"""Arrow's parsers count in 32 bits."""


@dataclass(frozen=True)
class Block:
    """Rows of a file.

    Attributes:
        path: The file.
        data: Their bytes.
        begin: Where they begin in the file.
        line: The number of their first line, from 1.
    """

    path: str
    data: bytes
    begin: int = 0
    line: int = 1

    def after(self, place: int) -> Block:
        """Return what follows a byte of the block."""
        return Block(self.path, self.data[place:], self.begin + place, self.line + self.data.count(b"\n", 0, place))

    def error(self, place: int, cause: str, expected: str, found: str, remedy: str) -> InputError:
        """Return an error that names the file, and the line of a byte of the block."""
        line = self.line + self.data.count(b"\n", 0, place)
        return InputError(cause, f"{self.path}, line {line}", expected, found, remedy, url=self.path)


def open_text(
    path: str,
    format_name: str,
    remote: Remote | None,
    row_end: Callable[[Block, bool], int],
    count_rows: Callable[[Block], tuple[Block, int]],
) -> InputFile:
    """Read a file once, from start to end, and return its description: a row group for each block with rows.

    Args:
        path: The file.
        format_name: Its format.
        remote: How it is read, if it is remote.
        row_end: Returns the offset after the last whole row of a block; 0 if there is none. Its second argument says
            whether the file ends with the block; if so, its result is ignored.
        count_rows: Called with each block; returns it without a header, and the number of its rows.

    Raises:
        InputError: A row is too large, or not UTF-8.
    """
    digest = xxhash.xxh3_128()
    begins, rows = list[int](), list[int]()
    with open_input(path, remote, AHEAD_BYTES) as file:
        first = file.read(len(BOM))
        digest.update(first)
        rest = Block(path, b"", len(BOM)) if first == BOM else Block(path, first)
        is_last = False
        while not is_last:
            raise_if_cancelled()
            num_asked = max(BLOCK_BYTES, len(rest.data))
            new = file.read(num_asked)
            digest.update(new)
            is_last = len(new) < num_asked
            rest, whole = Block(path, b""), Block(path, rest.data + new, rest.begin, rest.line)
            del new  # a row may be large: no bytes are kept twice
            end = row_end(whole, is_last)
            end = len(whole.data) if is_last else end
            if not end and len(whole.data) > _MAX_ROW_BYTES:
                raise whole.error(
                    0,
                    "a row is too large",
                    expected="at most 2 GiB",
                    found=f"more than {len(whole.data)} bytes without a line ending",
                    remedy="check that the file has line endings, and that quotes are closed",
                )
            rest, block = whole.after(end), Block(path, whole.data[:end], whole.begin, whole.line)
            del whole
            _check_utf8(block)
            block, num_rows = count_rows(block) if end else (block, 0)
            if num_rows:
                begins.append(block.begin)
                rows.append(num_rows)
            del block
        return described(file, format_name, rows, file.size, digest.hexdigest(), (*begins, file.size))


def _check_utf8(block: Block) -> None:
    offsets = pa.py_buffer(np.array([0, len(block.data)], np.int64))
    try:  # nothing is copied, unlike by decoding, which says where the error is
        pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(block.data)]).validate(full=True)
    except pa.ArrowInvalid:
        try:
            block.data.decode()
        except UnicodeDecodeError as error:
            raise block.error(
                error.start,
                "an input is not UTF-8",
                expected="text in UTF-8",
                found=f"the bytes {block.data[error.start : error.start + 4]!r}",
                remedy="convert it first, as with `iconv -f latin1 -t utf-8`",
            ) from error


# Types


LARGE = pa.decimal128(20)
"""The type of columns with integers that no double holds, until all types are joined."""

_SAFE_DIGITS = 15
"""A double holds any number with at most this many digits."""


def inexact(numbers: pa.Array) -> pa.Array:
    """Return the numbers that no double holds with all their written digits.

    Args:
        numbers: Strings that Arrow reads as doubles.
    """
    numbers = numbers.unique()
    is_long = pc.greater(pc.binary_length(numbers), _SAFE_DIGITS)
    numbers = numbers.filter(pc.or_(is_long, pc.match_substring_regex(numbers, "[eE][-+]?[0-9]{3}")))
    as_printed = pc.equal(numbers.cast(pa.float64()).cast(numbers.type), numbers)
    numbers = numbers.filter(pc.invert(as_printed))
    return numbers.filter(pa.array([not is_exact(number) for number in numbers.to_pylist()], pa.bool_()))


def is_exact(number: str) -> bool:
    """Return whether a number survives conversion to a double and back to text of as many digits.

    So `1.10` is exact, and 0.1 printed with 17 or with 30 digits, but 9007199254740993 is not.
    """
    value, double = decimal.Decimal(number), float(number)
    if not value.is_finite():
        return True
    printed = decimal.Context(prec=len(value.as_tuple().digits)).create_decimal_from_float(double)
    return value in (printed, decimal.Decimal(repr(double)))


def integer_type(values: pa.Array) -> pa.DataType:
    """Return the type of some 64-bit integers until all types are joined: `LARGE` never becomes a double."""
    rounded = values.cast(pa.float64(), safe=False).cast(pa.int64(), safe=False)
    return pa.int64() if rounded.equals(values) else LARGE


def common_schema(schemas: Mapping[str, pa.Schema], otherwise: pa.DataType | None = None) -> pa.Schema:
    """Return the columns of all files, each with the type to read it as, which holds all its values.

    Args:
        schemas: Path to columns, as `open_file` returns them.
        otherwise: The type of columns whose types have no common one.

    Raises:
        InputError: No type holds all values of a column, and `otherwise` is None.
    """
    kinds: dict[str, pa.DataType] = {}
    for path, schema in schemas.items():
        try:
            kinds = joined_types(kinds, dict(zip(schema.names, schema.types, strict=True)), otherwise)
        except InputError as error:
            raise error.at(path) from error
    return pa.schema({name: _reading_type(kind, otherwise) for name, kind in kinds.items()})


def _reading_type(kind: pa.DataType, otherwise: pa.DataType | None) -> pa.DataType:
    """Return the type to read a column as, whose values have a type.

    Lists of nothing but nulls become lists of strings: as lists of nulls, Arrow's parser makes invalid arrays of them.
    """
    if kind == LARGE:
        return pa.int64()
    if pa.types.is_null(kind) and otherwise is not None:
        return otherwise
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return pa.list_(pa.string())
    return map_children(kind, lambda inner: _reading_type(inner, otherwise))


def joined_types(
    one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType], otherwise: pa.DataType | None = None
) -> dict[str, pa.DataType]:
    """Return the types of columns that hold the values of two parts of the input.

    Args:
        one: The types of columns.
        other: The types in another part.
        otherwise: The type of columns whose types have no common one.

    Raises:
        InputError: No type holds all values of a column, and `otherwise` is None; the error has no place.
    """
    found = dict(one)
    for name, kind in other.items():
        joined = joined_type(found.get(name, kind), kind)
        joined = otherwise if joined is None else joined
        if joined is None:
            before, now = (str(each).replace(str(LARGE), "int64 over 2**53") for each in (found[name], kind))
            raise InputError(
                f"the values of {name!r} have two types",
                expected=f"{before}, as before",
                found=now,
                remedy="write the values as strings or as numbers of one kind, or convert them as two datasets",
            )
        found[name] = joined
    return found
