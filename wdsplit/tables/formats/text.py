"""What the formats of text share: files cut into blocks of whole rows.

A block can be read by itself. Nothing but the block at hand is in memory, however large the file is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from wdsplit.engines.local import raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.tables.formats.common import open_unchanged, stat_of
from wdsplit.tables.formats.opening import AHEAD_BYTES, open_input
from wdsplit.tables.table import InputFile, Remote

__all__ = ["BLOCK_BYTES", "Block", "TextReader", "read_blocks"]

BLOCK_BYTES = 16 * 1024**2
_BOM = b"\xef\xbb\xbf"
_MAX_ROW_BYTES = 2**31 - 2**20
"""Arrow's parsers count in 32 bits."""


@dataclass(frozen=True)
class Block:
    """Whole rows of a file.

    Attributes:
        path: The file.
        data: Their bytes.
        begin: Where they begin in the file.
        line: The number of their first line, from 1; 0 if it is not known.
    """

    path: str
    data: bytes
    begin: int = 0
    line: int = 0

    def error(self, cause: str, place: int | None, expected: str, found: str, remedy: str) -> InputError:
        """Return an error that names file and line.

        Args:
            cause: What is wrong.
            place: The byte of the block at which it is; None if that is not known.
            expected: What should be there.
            found: What is there.
            remedy: What to do.
        """
        last = self.line + self.data.count(b"\n", 0, max(0, len(self.data) - 1))
        line = f"lines {self.line} to {last}" if place is None else f"line {self.line_at(place)}"
        return InputError(cause, f"{self.path}, {line}", expected, found, remedy, url=self.path)

    def line_at(self, place: int) -> int:
        """Return the number of the line in which a byte of the block stands."""
        return self.line + self.data.count(b"\n", 0, place)

    def check_utf8(self) -> None:
        """Refuse what is not UTF-8.

        Raises:
            InputError: It is not.
        """
        try:
            pa.array([self.data], pa.large_binary()).cast(pa.large_string())
            return
        except pa.ArrowInvalid:
            pass
        try:
            self.data.decode()
        except UnicodeDecodeError as error:
            raise self.error(
                "an input is not UTF-8",
                error.start,
                expected="text in UTF-8",
                found=f"the bytes {self.data[error.start : error.start + 4]!r}",
                remedy="convert it first, as with `iconv -f latin1 -t utf-8`",
            ) from error


class TextReader:
    """A file that is read once, from its beginning to its end.

    Args:
        path: The file.
        row_end: Returns the place after the last row that is whole in a block; 0 if there is none. It is told whether
            the file ends with the block, and what it returns then does not matter.
        remote: How it is read, if it is remote.
    """

    def __init__(self, path: str, row_end: Callable[[Block, bool], int], remote: Remote | None = None) -> None:
        self._path = path
        self._row_end = row_end
        self._remote = remote
        self._num_bytes, self._modified_ns = stat_of(path, remote)
        self._digest = xxhash.xxh3_128()
        self._begins: list[int] = []
        self._rows: list[int] = []
        self._end = 0

    def blocks(self) -> Iterator[Block]:
        """Give the file in blocks of about 16 MiB, or of one row if that is larger; without a byte order mark.

        Raises:
            InputError: A row is too large, or not UTF-8.
        """
        with open_input(self._path, self._remote, AHEAD_BYTES) as file:
            begin, line, is_last = len(_BOM) if file.read(len(_BOM)) == _BOM else 0, 1, False
            file.seek(begin)
            self._digest.update(_BOM[:begin])
            rest = b""
            while not is_last:
                raise_if_cancelled()
                wanted = max(BLOCK_BYTES, len(rest))
                new = file.read(wanted)
                self._digest.update(new)
                is_last = len(new) < wanted
                whole = Block(self._path, rest + new, begin, line)
                cut = self._row_end(whole, is_last)
                cut = len(whole.data) if is_last else cut
                if not cut and len(whole.data) > _MAX_ROW_BYTES:
                    raise whole.error(
                        "a row is too large",
                        0,
                        expected="at most 2 GiB",
                        found=f"more than {len(whole.data)} bytes without an end",
                        remedy="check that the file has line ends, and that quotes are closed",
                    )
                rest = whole.data[cut:]
                if cut:
                    block = Block(self._path, whole.data[:cut], begin, line)
                    block.check_utf8()
                    yield block
                    line += block.data.count(b"\n")
                    begin += cut
            self._end = begin

    def __len__(self) -> int:
        return len(self._rows)

    def add_group(self, begin: int, num_rows: int) -> None:
        """Note a row group; one without rows is no group."""
        if num_rows:
            self._begins.append(begin)
            self._rows.append(num_rows)

    def input_file(self, name: str) -> InputFile:
        """Return what was found, once all blocks were given.

        Args:
            name: The name of the format.
        """
        return InputFile(
            self._path,
            self._num_bytes,
            sum(self._rows),
            tuple(self._rows),
            self._num_bytes,
            self._digest.hexdigest(),
            self._modified_ns,
            name,
            (*self._begins, self._end),
            remote=self._remote,
        )


def read_blocks(file: InputFile, groups: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Give the bytes of some row groups, each with its number.

    Raises:
        InputError: The file has changed since it was opened first.
    """
    with open_unchanged(file) as source:
        for group in groups:
            source.seek(file.offsets[group])
            yield group, source.read(file.offsets[group + 1] - file.offsets[group])
