"""CSV and TSV (RFC 4180): read in blocks of whole rows, with column types that fit all values of a file.

A column has integers, doubles or booleans only if every value can be reproduced exactly; otherwise, as with `007`, it
has strings. Dates and times stay strings. An empty field is null in a column of numbers or booleans, and an empty
string in a column of strings.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from wdsplit.tables.formats import text
from wdsplit.tables.formats.opening import open_input, read_blocks
from wdsplit.tables.formats.text import BOM, Block, inexact, integer_type, joined_types, open_text
from wdsplit.tables.table import InputFile, Remote

__all__ = ["WHAT", "common_schema", "open_file", "read_batches"]

WHAT = "CSV"

_NUMBER = r"^(?:-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|[-+]?inf(?:inity)?))$"
_WHOLE = "^[-0-9]+$"
_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_HEAD_ROWS = 64


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Read the file once: find its blocks, count their rows, and find the types that the values allow."""
    delimiter = _delimiter(path)
    kinds: dict[str, pa.DataType] = {}

    def count_rows(block: Block) -> tuple[Block, int]:
        if not kinds:
            names, end = _header(block, delimiter)
            kinds.update(dict.fromkeys(names, pa.null()))
            block = block.after(end)
        if not kinds or not block.data.strip(b"\r\n"):
            return block, 0
        open_names = [name for name, kind in kinds.items() if kind != pa.string()] or list(kinds)[:1]
        table = _texts(block, delimiter, list(kinds), open_names)
        kinds.update(joined_types(kinds, {name: _type_of(table.column(name)) for name in open_names}, pa.string()))
        return block, len(table)

    file = open_text(path, "csv", remote, lambda block, is_last: _row_end(block, delimiter, is_last), count_rows)
    if not kinds:
        raise ValueError("there is no header: no first row with the names of the columns")
    return file, pa.schema(kinds)


def _delimiter(path: str) -> str:
    return "\t" if path.lower().endswith(".tsv") else ","


# Rows


@functools.cache
def _patterns(delimiter: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Return what matches a row without its line end, up to 16 rows with theirs, and the beginning of a row.

    A quote opens a quoted part only where a field begins, as in Arrow's and Python's parsers.
    """
    end = re.escape(delimiter).encode() + rb"\r\n"
    plain = rb'[^"\r\n]*'
    opened = rb'(?<![^%s])"[^"]*(?:""[^"]*)*' % end
    quoted = rb'%s"(?=[%s]|\Z)' % (opened, end)
    inside = rb'(?<=[^%s])"' % end
    row = rb"%s(?:(?:%s|%s)%s)*" % (plain, quoted, inside, plain)
    patterns = row, rb"(?:%s\r?\n){1,16}" % row, rb"%s(?:%s\"?)?\r?" % (row, opened)
    return tuple(map(re.compile, patterns))  # type: ignore[return-value]


def _row_end(block: Block, delimiter: str, is_last: bool) -> int:
    """Return the offset after the last line end that ends a row.

    Raises:
        InputError: A quote is misplaced or not closed, or a carriage return has no newline after it.
    """
    data = block.data
    if b'"' not in data and data.count(b"\r") == data.count(b"\r\n"):
        return data.rfind(b"\n") + 1
    row, rows, beginning = _patterns(delimiter)
    end = 0
    while match := rows.match(data, end):
        end = match.end()
    if (row if is_last else beginning).fullmatch(data, end):
        return end
    raise block.error(
        end,
        "a row is not CSV",
        expected='rows that end with a newline, and quoted fields such as "say ""hi"""',
        found=repr(data[end : end + 60].decode("utf-8", "replace")),
        remedy="close quotes, and double those inside quoted fields; convert line endings, as with `tr '\\r' '\\n'`",
    )


def _rows(data: bytes, delimiter: str) -> Iterator[tuple[int, int]]:
    """Yield where each row begins and ends, without its line end; skip empty lines."""
    return (match.span() for match in _patterns(delimiter)[0].finditer(data) if match[0])


def _header(block: Block, delimiter: str) -> tuple[list[str], int]:
    """Return the names in the first row, and where the row ends; no names if there is no row.

    Raises:
        InputError: A column has no name, or two have the same.
    """
    begin, end = next(_rows(block.data, delimiter), (0, 0))
    if not end:
        return [], 0
    options = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    source = pa.BufferReader(block.data[begin:end] + b"\n")
    names = pyarrow.csv.read_csv(source, pyarrow.csv.ReadOptions(block_size=end + 2), options).column_names
    empty = [str(number) for number, name in enumerate(names, 1) if not name]
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    found, remedy = "", "correct the first row"
    if empty:
        found = f"no name in column {', '.join(empty[:5])}"
        remedy += "; pandas leaves out an index with index=False"
    elif duplicates:
        found = f"{', '.join(map(repr, duplicates[:5]))} more than once"
    if found:
        expected = "a name for each column, each once"
        raise block.error(begin, "a header does not name the columns", expected, found, remedy)
    return names, end


# Values and their types


def _parse(
    data: bytes, delimiter: str, names: list[str], schema: pa.Schema, wrong: list[pyarrow.csv.InvalidRow]
) -> pa.Table:
    """Parse some columns of whole rows; the first row with another number of columns goes to `wrong`."""

    def refuse(row: pyarrow.csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    return pyarrow.csv.read_csv(
        pa.BufferReader(data),
        pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        pyarrow.csv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names,
            null_values=[""],
            strings_can_be_null=False,
            true_values=_TRUE,
            false_values=_FALSE,
        ),
    )


def _texts(block: Block, delimiter: str, names: list[str], columns: Sequence[str]) -> pa.Table:
    """Return some columns of a block as strings, as they are written."""
    wrong: list[pyarrow.csv.InvalidRow] = []
    try:
        return _parse(block.data, delimiter, names, pa.schema([(name, pa.string()) for name in columns]), wrong)
    except pa.ArrowInvalid as error:
        if not wrong:
            raise
        begins = [begin for begin, _ in _rows(block.data, delimiter)]
        raise block.error(
            begins[wrong[0].number - 1],
            "a row has another number of columns",
            expected=f"{len(names)} columns, as in the header",
            found=str(wrong[0].actual_columns),
            remedy="correct the row; quote fields that contain a delimiter or a line ending",
        ) from error


def _type_of(column: pa.ChunkedArray) -> pa.DataType:
    """Return the type of a column of strings: null if all are empty, else the first type that fits all."""
    values = pa.concat_arrays(column.chunks)
    values = values.filter(pc.not_equal(values, ""))
    if not len(values):
        return pa.null()
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        if _allows(kind, values.slice(0, _HEAD_ROWS)) and _allows(kind, values):
            return integer_type(values.cast(kind)) if kind == pa.int64() else kind
    return pa.string()


def _allows(kind: pa.DataType, values: pa.Array) -> bool:
    """Return whether non-empty values can be converted to a type without loss."""
    if kind == pa.bool_():
        return bool(pc.all(pc.is_in(values, pa.array(_TRUE + _FALSE))).as_py())
    if kind == pa.float64():
        if not pc.all(pc.match_substring_regex(values, _NUMBER)).as_py():
            return False
        whole = values.filter(pc.match_substring_regex(values, _WHOLE))
        return _allows(pa.int64(), whole) and not len(inexact(values))
    try:
        return bool(values.cast(kind).cast(pa.string()).equals(values))
    except pa.ArrowInvalid:
        return False


common_schema = functools.partial(text.common_schema, otherwise=pa.string())
"""The columns of all files; one without values, or whose types have no common one, is text."""


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some blocks, with the types of the whole input."""
    delimiter = _delimiter(file.path)
    with open_input(file.path, file.remote) as source:
        header = source.read_at(0, file.offsets[0]).removeprefix(BOM)
    names, _ = _header(Block(file.path, header), delimiter)
    kinds = pa.schema([schema.field(name) for name in columns])
    return read_blocks(file, groups, lambda data, _: _parse(data, delimiter, names, kinds, []))
