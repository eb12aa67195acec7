"""Arrow IPC: files (Feather V2) and streams, memory-mapped or remote.

A record batch can be read separately; large ones are cut into several row groups. One walk over the message headers
finds the batches of a stream, which has no footer, and counts rows. A batch of a stream is read as a stream of its own:
the schema, the dictionaries before it, and the batch.
"""

from __future__ import annotations

import itertools
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from wdsplit.tables.formats.common import (
    BATCH_BYTES,
    changed,
    check_names,
    check_unchanged,
    sliced,
    stat_of,
)
from wdsplit.tables.formats.opening import MAX_BUFFER_BYTES, RemoteInput
from wdsplit.tables.table import InputFile, Remote

__all__ = ["WHAT", "open_file", "read_batches"]

WHAT = "an Arrow IPC file or stream"

_GROUP_BYTES = 4 * BATCH_BYTES
_FILE_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"
_FIRST_MESSAGE = 8
"""Where the messages of a file begin: after its magic bytes."""
_SAMPLE_BYTES = 1024
_WORD_BYTES = 4
_AHEAD_BYTES = 256 * 1024
"""Minimum bytes of a request for a remote file, while headers are read."""
_NO_COLUMNS = pa.schema([])


@dataclass
class _Batches:
    """The record batches that a walk over the messages finds.

    Attributes:
        begins: Where the messages of each batch begin, the dictionaries before it included.
        rows: Rows of each batch.
        sizes: Bytes of each batch, as they are stored.
        end: Where the last batch ends.
        digest: Checksum of the messages' headers and of the beginnings of their data.
    """

    begins: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    end: int = 0
    digest: Any = field(default_factory=xxhash.xxh3_128)


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Find the batches and count their rows, by the headers alone."""
    num_bytes, modified_ns = stat_of(path, remote)
    if not num_bytes:
        raise ValueError("the file is empty")
    with _Messages(path, remote) as source:
        if source.file.read(len(_FEATHER_V1_MAGIC)) == _FEATHER_V1_MAGIC:
            raise ValueError("the old format Feather V1: write it again with pyarrow.feather.write_feather")
        schema = _schema_of(source.file)
        check_names(schema)
        footer = ipc.open_file(source.file) if _is_file(source.file) else None
        if footer is not None and footer.schema != schema:
            raise ValueError("the columns in the footer differ from those at the start")
        found = _walk(source.headers(), footer.num_record_batches if footer is not None else None, num_bytes)
        ratio = _decoded_ratio(source, schema, found)
    row_groups, offsets = [], []
    for begin, rows, size in zip(found.begins, found.rows, found.sizes, strict=True):
        parts = min(rows, max(1, round(size * ratio / _GROUP_BYTES))) or 1
        row_groups += [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]
        offsets += [begin] * parts
    file = InputFile(
        path,
        num_bytes,
        sum(found.rows),
        tuple(row_groups),
        int(sum(found.sizes) * ratio),
        found.digest.hexdigest(),
        modified_ns,
        "arrow",
        (*offsets, found.end),
        remote=remote,
    )
    return file, schema


class _RemoteHeaders(RemoteInput):
    """A remote file or stream, to read the headers of its messages: most of their data reads as zeros."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(remote, _AHEAD_BYTES)
        self._header_bytes = 0

    def read(self, num_bytes: int = -1) -> Any:
        """Return the next bytes; of a message's data only the first KiB is read, the rest is zeros."""
        if num_bytes in (_WORD_BYTES, 2 * _WORD_BYTES, self._header_bytes) or num_bytes <= _SAMPLE_BYTES:
            data = super().read(num_bytes)
            self._header_bytes = int.from_bytes(data, "little") if num_bytes == _WORD_BYTES else 0
            return data
        if self.tell() + num_bytes > self.size:
            return b""
        zeros = mmap.mmap(-1, num_bytes)  # takes no memory where nothing is written
        zeros[:_SAMPLE_BYTES] = super().read(_SAMPLE_BYTES)
        self.seek(num_bytes - _SAMPLE_BYTES, os.SEEK_CUR)
        return zeros


def _is_file(source: pa.NativeFile) -> bool:
    """Return whether the source is a file, not a stream."""
    source.seek(0)
    first = source.read(len(_FILE_MAGIC))
    source.seek(0)
    return bool(first == _FILE_MAGIC)


def _schema_of(source: pa.NativeFile) -> pa.Schema:
    """Return the columns, from the first message of a file or a stream."""
    source.seek(_FIRST_MESSAGE if _is_file(source) else 0)
    return ipc.open_stream(source).schema


def _walk(source: pa.NativeFile, num_batches: int | None, num_bytes: int) -> _Batches:
    """Walk over the messages of a file, whose footer says how many batches there are, or to the end of a stream."""
    found = _Batches()
    source.seek(0 if num_batches is None else _FIRST_MESSAGE)
    begin = None
    while num_batches is None or len(found.begins) < num_batches:
        at = source.tell()
        message = _next_message(source)
        if message is None:
            if num_batches is not None:
                raise ValueError("there are fewer record batches than the footer says")
            if source.tell() == at:
                raise ValueError("the stream has no end marker: it may have been cut off")
            if source.tell() != num_bytes:
                raise ValueError(f"{num_bytes - source.tell()} bytes follow the end of the stream")
            break
        body = message.body
        found.digest.update(at.to_bytes(8, "little"))
        found.digest.update(message.metadata)
        found.digest.update(body.slice(0, min(_SAMPLE_BYTES, body.size)) if body is not None else b"")
        if message.type == "schema":
            found.end = source.tell()
            continue
        begin = at if begin is None else begin
        if message.type == "record batch":
            found.begins.append(begin)
            found.rows.append(ipc.read_record_batch(message, _NO_COLUMNS).num_rows)
            found.sizes.append(body.size)
            found.end, begin = source.tell(), None
    return found


def _next_message(source: pa.NativeFile) -> Any:
    """Return the next message without touching its data; None at the end."""
    try:
        return ipc.read_message(source)
    except EOFError:
        return None


def _decoded_ratio(source: _Messages, schema: pa.Schema, found: _Batches) -> float:
    """Return decoded bytes per stored byte, measured on the first batch with rows; 1 if there is none."""
    number = next((number for number, rows in enumerate(found.rows) if rows), None)
    if number is None:
        return 1.0
    offsets = (*found.begins, found.end)
    batch = next(_batches(source, schema, offsets, [number], range(len(schema))))
    batch.validate()
    return float(batch.nbytes / max(1, found.sizes[number]))


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups, in batches that are views of the file unless it is compressed."""
    with _Messages(file.path, file.remote) as source:
        check_unchanged(file, source.remote)
        own = _schema_of(source.file)
        indices = sorted(own.get_all_field_indices(name)[0] for name in columns)
        begins = sorted(set(file.offsets))
        batch_of = {begin: number for number, begin in enumerate(begins)}
        by_batch = [
            (number, list(batch_groups))
            for number, batch_groups in itertools.groupby(groups, lambda group: batch_of[file.offsets[group]])
        ]
        numbers = [number for number, _ in by_batch]
        batches = _batches(source, own, begins, numbers, indices)
        for (_, batch_groups), batch in zip(by_batch, batches, strict=True):
            yield from _parts(file, batch.select(list(columns)), batch_groups)


def _parts(file: InputFile, batch: pa.RecordBatch, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups, all from one batch."""
    begin = file.offsets[groups[0]]
    siblings = range(bisect_left(file.offsets, begin), bisect_right(file.offsets, begin))
    if sum(file.row_groups[group] for group in siblings) != len(batch):
        raise changed(file, f"a batch of {len(batch)} rows at byte {begin}")
    batch.validate()
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column.dictionary.validate(full=True)
    for group in groups:
        first = sum(file.row_groups[siblings.start : group])
        for part in sliced(batch.slice(first, file.row_groups[group])):
            for column in part.columns:
                _validate(column)
            yield part


def _validate(column: pa.Array) -> None:
    """Validate a column fully, except the values of its dictionary, which the caller has validated."""
    if not pa.types.is_dictionary(column.type):
        column.validate(full=True)
        return
    values = column.indices.drop_null().to_numpy(zero_copy_only=False)
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(column.dictionary):
        raise ValueError("an index lies outside its dictionary")


class _Messages:
    """A file or stream whose messages can be read in any order: memory-mapped, or fetched.

    Attributes:
        file: The source for Arrow's readers.
        remote: The source, if it is remote.
    """

    def __init__(self, path: str, remote: Remote | None) -> None:
        self._remote = remote
        self.remote = None if remote is None else RemoteInput(remote, _AHEAD_BYTES)
        self.file = pa.memory_map(path) if self.remote is None else self.remote.as_arrow()

    def __enter__(self) -> _Messages:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def headers(self) -> pa.NativeFile:
        """Return a source of the messages' headers; a remote one skips their data."""
        return self.file if self._remote is None else pa.PythonFile(_RemoteHeaders(self._remote), mode="r")

    def parts(self, parts: Sequence[tuple[int, int]], end: int) -> pa.NativeFile:
        """Return some parts (begin, end) of the bytes before `end` as one source."""
        if self.remote is not None:
            return pa.PythonFile(_RemoteParts(self.remote, parts), mode="r")
        self.file.seek(0)
        return pa.PythonFile(_Parts(self.file.read_buffer(end), parts), mode="r")


def _batches(
    source: _Messages,
    schema: pa.Schema,
    begins: Sequence[int],
    numbers: Sequence[int],
    columns: Sequence[int],
) -> Iterator[pa.RecordBatch]:
    """Yield the given batches with the given columns, both in the order of the file.

    Args:
        source: The file or stream.
        schema: Its columns.
        begins: Where the messages of each batch begin, then the end.
        numbers: The batches.
        columns: The columns, in ascending order.
    """
    first = _FIRST_MESSAGE if _is_file(source.file) else 0
    ranges = [(begins[number], begins[number + 1]) for number in numbers]
    if "dictionary<" in str(schema):
        parts = _parts_with_dictionaries(source.headers(), first, {end for _, end in ranges}, begins[-1])
    else:
        parts = [(first, begins[0]), *ranges]
    stream = source.parts(parts, begins[-1])
    yield from ipc.open_stream(stream, options=ipc.IpcReadOptions(included_fields=list(columns), use_threads=False))


def _parts_with_dictionaries(
    source: pa.NativeFile, first: int, batch_ends: set[int], end: int
) -> list[tuple[int, int]]:
    """Return where the schema, the dictionaries and some batches are, in reading order.

    In a stream, a batch uses the dictionaries before it, and later ones may replace them. In a file, dictionaries only
    grow, and may be anywhere.

    Args:
        source: The file or stream.
        first: Where the schema begins.
        batch_ends: Where the batches end.
        end: Where the last batch ends.
    """
    source.seek(first)
    parts, batches = list[tuple[int, int]](), list[tuple[int, int]]()
    at = first
    while at < end and (message := _next_message(source)) is not None:
        part = (at, source.tell())
        at = source.tell()
        if message.type != "record batch":
            parts.append(part)
        elif at in batch_ends:
            (batches if first else parts).append(part)
    return parts + batches


class _Parts:
    """Parts of a buffer as one readable file, without a copy."""

    closed = False

    def __init__(self, whole: pa.Buffer, parts: Sequence[tuple[int, int]]) -> None:
        self._whole = whole
        self._left = list(reversed(parts))

    def read(self, num_bytes: int) -> Any:
        """Return the next bytes, all from one part."""
        while self._left and self._left[-1][0] == self._left[-1][1]:
            self._left.pop()
        if not self._left:
            return b""
        begin, end = self._left.pop()
        stop = min(end, begin + num_bytes)
        self._left.append((stop, end))
        return self._slice(begin, stop)

    def _slice(self, begin: int, stop: int) -> Any:
        return self._whole.slice(begin, stop - begin)

    def close(self) -> None:
        """Do nothing: the owner closes the buffer."""


class _RemoteParts(_Parts):
    """Parts of a remote file. A request fetches several small parts or one whole part, since all are read anyway."""

    def __init__(self, source: RemoteInput, parts: Sequence[tuple[int, int]]) -> None:
        super().__init__(pa.py_buffer(b""), parts)
        self._source = source

    def _slice(self, begin: int, stop: int) -> Any:
        if not self._source.has_buffered(begin, stop):
            next_parts = [(begin, self._left[-1][1]), *self._left[-2::-1]]
            ends = list(itertools.accumulate(end - first for first, end in next_parts))
            self._source.buffer(next_parts[: max(1, bisect_right(ends, MAX_BUFFER_BYTES))])
        return self._source.read_at(begin, stop - begin)
