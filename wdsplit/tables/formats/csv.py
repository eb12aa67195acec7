"""CSV and TSV (RFC 4180): cut into blocks of whole rows, whose columns get a type that all values of a file allow.

A column is of integers, doubles or booleans only if each of its values can be written again from that; otherwise, as
with `007`, it is text. Dates and times stay the text that they are. A field with nothing in it is a null in a column
of numbers or booleans, and an empty string in one of text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from wdsplit.errors import InputError
from wdsplit.tables.formats.common import changed, matching_groups, sliced
from wdsplit.tables.formats.numbers import are_exact
from wdsplit.tables.formats.opening import open_input
from wdsplit.tables.formats.quotes import row_end
from wdsplit.tables.formats.text import Block, TextReader, read_blocks
from wdsplit.tables.table import InputFile, Remote

__all__ = ["TYPED", "WHAT", "common_schema", "matching_groups", "open_file", "read_batches"]

TYPED = False
WHAT = "CSV"

_INTEGER = r"^(?:-?[1-9][0-9]{0,18}|0)$"
_NUMBER = r"^-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
_WHOLE = "^[-0-9]+$"
_NO_NUMBER = r"^(?i:nan|[-+]?inf(?:inity)?)$"
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_HEAD_ROWS = 64
_KINDS = b"kinds"
"""Names, in the metadata of a field, the types that all values allow."""

_TYPES = {"int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Read the file once: find its blocks, count their rows, and find the types that the values allow."""
    delimiter = _delimiter(path)
    reader = TextReader(path, lambda block, is_last: row_end(block, delimiter, is_last), remote)
    names: list[str] = []
    kinds: dict[str, list[str] | None] = {}
    for block in reader.blocks():
        if not names:
            names, size = _header(block, delimiter)
            kinds = dict.fromkeys(names)
            block = Block(path, block.data[size:], block.begin + size, block.line + block.data.count(b"\n", 0, size))
        if not names:
            continue
        open_names = [name for name in names if kinds[name] != []] or names[:1]
        try:
            columns = _parse(block.data, delimiter, names, open_names)
        except pa.ArrowInvalid as error:
            raise _wrong_row(block, delimiter, len(names), error) from error
        for name in open_names:
            kinds[name] = _kinds(columns[name], kinds[name])
        reader.add_group(block.begin, len(columns[open_names[0]]))
    if not names:
        raise InputError(
            "an input has no header",
            place=path,
            expected="a first row with the names of the columns",
            found="no row at all",
            remedy="write the header, or leave the file out",
            url=path,
        )
    return reader.input_file("csv"), pa.schema([_field(name, kinds[name]) for name in names])


def _delimiter(path: str) -> str:
    return "\t" if path.lower().endswith(".tsv") else ","


# The header


def _header(block: Block, delimiter: str) -> tuple[list[str], int]:
    """Return the names in the first row that is not empty, and where the row ends; no names if there is no row."""
    lines = io.BytesIO(block.data)
    names: list[str] = []
    try:
        for row in csv.reader((line.decode() for line in lines), delimiter=delimiter, strict=True):
            if row:
                names = row
                break
    except csv.Error as error:
        raise _bad_header(block, str(error)) from error
    empty = [str(number) for number, name in enumerate(names, 1) if not name]
    if empty:
        raise _bad_header(
            block, f"no name in column {', '.join(empty[:5])}", "pandas leaves out an index with index=False"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _bad_header(block, f"{', '.join(map(repr, twice[:5]))} more than once")
    return names, lines.tell()


def _bad_header(block: Block, found: str, remedy: str = "") -> InputError:
    return block.error(
        "a header does not name the columns",
        0,
        expected="a name for each column, each once",
        found=found,
        remedy="; ".join(filter(None, ["correct the first row", remedy])),
    )


def _wrong_row(block: Block, delimiter: str, num_columns: int, error: Exception) -> InputError:
    """Return the error for the first row that has another number of columns."""
    reader = csv.reader(io.StringIO(block.data.decode(), newline=""), delimiter=delimiter)
    cause, remedy = "a row cannot be read", "correct the row"
    try:
        line = block.line
        for row in reader:
            if row and len(row) != num_columns:
                place = f"{block.path}, line {line}"
                return InputError(
                    "a row has another number of columns",
                    place,
                    expected=f"{num_columns} columns, as the header has them",
                    found=f"{len(row)}",
                    remedy="correct the row; quote what holds a delimiter or a line end",
                    url=block.path,
                )
            line = block.line + reader.line_num
    except csv.Error:
        pass
    return block.error(cause, None, expected=f"{num_columns} columns", found=str(error).splitlines()[0], remedy=remedy)


# Values and their types


def _parse(data: bytes, delimiter: str, names: list[str], wanted: Sequence[str]) -> dict[str, pa.Array]:
    """Return some columns of a block as strings, as they stand in it; empty lines are no rows."""
    if not data.strip(b"\r\n"):
        return {name: pa.array([], pa.string()) for name in wanted}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(data),
        pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=list(wanted),
            strings_can_be_null=False,
        ),
    )
    return {name: pa.concat_arrays(table.column(name).chunks) for name in wanted}


def _kinds(values: pa.Array, kinds: list[str] | None) -> list[str] | None:
    """Return which of some types all values allow that are not empty; None for all types, if no value is there."""
    values = values.filter(pc.not_equal(values, ""))
    if not len(values):
        return kinds
    kinds = list(_TYPES) if kinds is None else kinds
    return [kind for kind in kinds if _allow(kind, values.slice(0, _HEAD_ROWS)) and _allow(kind, values)]


def _allow(kind: str, values: pa.Array) -> bool:
    """Tell whether values, none of them empty, can be of a type without losing anything."""
    if kind == "bool":
        return _all(pc.is_in(values, pa.array([*_TRUE, *_FALSE])))
    if kind == "int64":
        if not _all(pc.match_substring_regex(values, _INTEGER)):
            return False
        try:
            values.cast(pa.int64())
        except pa.ArrowInvalid:
            return False
        return True
    finite = pc.match_substring_regex(values, _NUMBER)
    if not _all(finite):
        if not _all(pc.or_(finite, pc.match_substring_regex(values, _NO_NUMBER))):
            return False
        values = values.filter(finite)
    whole = values.filter(pc.match_substring_regex(values, _WHOLE))
    return _allow("int64", whole) and bool(are_exact(values).all())


def _all(mask: pa.Array) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _field(name: str, kinds: Sequence[str] | None) -> pa.Field:
    """Return the field of a column, given the types that its values allow; None if there is no value."""
    if kinds is None:
        return pa.field(name, pa.null())
    kind = _TYPES[kinds[0]] if kinds else pa.string()
    return pa.field(name, kind, metadata={_KINDS: " ".join(kinds)})


def common_schema(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of all files, each of a type that all values allow; one of no values at all is text.

    Args:
        schemas: Path to columns, as `open_file` tells them.

    Raises:
        InputError: A file lacks a column that another has.
    """
    first, names = next((path, schema.names) for path, schema in schemas.items())
    for path, schema in schemas.items():
        if set(schema.names) != set(names):
            odd = sorted(set(schema.names) ^ set(names))
            raise InputError(
                "two inputs differ in their columns",
                place=path,
                expected="the same columns in all inputs",
                found="; ".join(f"column {name!r} is only in {first if name in names else path}" for name in odd),
                remedy="correct the header, or convert the files as two datasets",
                url=path,
            )
    found: dict[str, list[str] | None] = {}
    for schema in schemas.values():
        for field in schema:
            kinds = found.setdefault(field.name, None)
            if field.metadata:
                its_kinds = field.metadata[_KINDS].decode().split()
                found[field.name] = [kind for kind in its_kinds if kinds is None or kind in kinds]
    fields = [_field(name, kinds).remove_metadata() for name, kinds in found.items()]
    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in fields])


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Give the rows of some blocks, with the types of the whole input."""
    delimiter = _delimiter(file.path)
    with open_input(file.path, file.remote) as source:
        header = Block(file.path, source.read(file.offsets[0]).removeprefix(b"\xef\xbb\xbf"))
    names, _ = _header(header, delimiter)
    wanted = [name for name in columns if name in names] or names[:1]
    for group, data in read_blocks(file, groups):
        texts = _parse(data, delimiter, names, wanted)
        rows = len(texts[wanted[0]])
        if rows != file.row_groups[group]:
            raise changed(file, f"{rows} rows in the block at byte {file.offsets[group]}")
        arrays = [
            _typed(texts[name], schema.field(name).type) if name in texts else pa.nulls(rows, schema.field(name).type)
            for name in columns
        ]
        yield from sliced(pa.RecordBatch.from_arrays(arrays, names=list(columns)))


def _typed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return strings as a column of a type; empty ones become nulls, if it is not one of text."""
    if pa.types.is_string(kind):
        return texts
    filled = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if pa.types.is_boolean(kind):
        return pc.if_else(pc.is_valid(filled), pc.is_in(filled, pa.array(_TRUE)), pa.scalar(None, pa.bool_()))
    return pa.nulls(len(texts)) if pa.types.is_null(kind) else filled.cast(kind)
