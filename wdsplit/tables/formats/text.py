"""Common to text formats: files as blocks of whole rows.

A block can be read separately. Only one block is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from wdsplit.engines.local import raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.tables.formats.common import changed, open_unchanged, sliced, stat_of
from wdsplit.tables.formats.opening import AHEAD_BYTES, open_input
from wdsplit.tables.table import InputFile, Remote

__all__ = ["BLOCK_BYTES", "BOM", "Block", "TextReader", "read_blocks"]

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

    def check_utf8(self) -> None:
        """Refuse text that is not UTF-8.

        Raises:
            InputError: The block is not UTF-8.
        """
        offsets = pa.py_buffer(np.array([0, len(self.data)], np.int64))
        try:
            pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(self.data)]).validate(full=True)
            return
        except pa.ArrowInvalid:  # it copies nothing, unlike decoding, which says where the error is
            pass
        try:
            self.data.decode()
        except UnicodeDecodeError as error:
            raise self.error(
                error.start,
                "an input is not UTF-8",
                expected="text in UTF-8",
                found=f"the bytes {self.data[error.start : error.start + 4]!r}",
                remedy="convert it first, as with `iconv -f latin1 -t utf-8`",
            ) from error


class TextReader:
    """Reads a file once, from start to end.

    Args:
        path: The file.
        row_end: Returns the offset after the last whole row of a block; 0 if there is none. Its second argument says
            whether the file ends with the block; if so, its result is ignored.
        remote: How it is read, if it is remote.
    """

    def __init__(self, path: str, row_end: Callable[[Block, bool], int], remote: Remote | None = None) -> None:
        self._path, self._row_end, self._remote = path, row_end, remote
        self._num_bytes, self._modified_ns = stat_of(path, remote)
        self._digest = xxhash.xxh3_128()
        self._begins: list[int] = []
        self._rows: list[int] = []

    def blocks(self) -> Iterator[Block]:
        """Yield the file in blocks of about 16 MiB, or of one row if that is larger; without a byte order mark.

        Raises:
            InputError: A row is too large, or not UTF-8.
        """
        with open_input(self._path, self._remote, AHEAD_BYTES) as file:
            first = file.read(len(BOM))
            self._digest.update(first)
            rest = Block(self._path, b"", len(BOM)) if first == BOM else Block(self._path, first)
            is_last = False
            while not is_last:
                raise_if_cancelled()
                num_bytes = max(BLOCK_BYTES, len(rest.data))
                new = file.read(num_bytes)
                self._digest.update(new)
                is_last = len(new) < num_bytes
                rest, whole = Block(self._path, b""), Block(self._path, rest.data + new, rest.begin, rest.line)
                del new  # a row may be large: no bytes are kept twice
                end = self._row_end(whole, is_last)
                end = len(whole.data) if is_last else end
                if not end and len(whole.data) > _MAX_ROW_BYTES:
                    raise _too_large(whole)
                rest = whole.after(end)
                block = Block(self._path, whole.data[:end], whole.begin, whole.line)
                del whole
                block.check_utf8()
                if end:
                    yield block
                del block

    def add_group(self, block: Block, num_rows: int) -> None:
        """Add a row group, unless it has no rows."""
        if num_rows:
            self._begins.append(block.begin)
            self._rows.append(num_rows)

    def input_file(self, name: str) -> InputFile:
        """Return the description of the file, after the last block; `name` is the format."""
        return InputFile(
            self._path,
            self._num_bytes,
            sum(self._rows),
            tuple(self._rows),
            self._num_bytes,
            self._digest.hexdigest(),
            self._modified_ns,
            name,
            (*self._begins, self._num_bytes),
            remote=self._remote,
        )


def _too_large(block: Block) -> InputError:
    return block.error(
        0,
        "a row is too large",
        expected="at most 2 GiB",
        found=f"more than {len(block.data)} bytes without a line ending",
        remedy="check that the file has line endings, and that quotes are closed",
    )


def read_blocks(file: InputFile, groups: Sequence[int], parse: Callable[[bytes], pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups; `parse` converts the bytes of one to a table.

    Raises:
        InputError: The file has changed since it was first opened.
    """
    with open_unchanged(file) as source:
        for group in groups:
            source.seek(file.offsets[group])
            table = parse(source.read(file.offsets[group + 1] - file.offsets[group]))
            if len(table) != file.row_groups[group]:
                raise changed(file, f"{len(table)} rows in the block at byte {file.offsets[group]}")
            for batch in table.combine_chunks().to_batches():
                batch.validate()
                yield from sliced(batch)
