"""Arrow IPC: files (Feather V2) and streams, memory-mapped or remote.

A record batch can be read separately; large ones are cut into several row groups. One walk over the message headers
finds the batches of a stream, which has no footer, and counts rows. A batch of a stream is read as a stream of its own:
the schema, the dictionaries before it, and the batch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from wdsplit.tables.formats.common import BATCH_BYTES, check_names, sliced
from wdsplit.tables.formats.opening import (
    MAX_BUFFER_BYTES,
    Input,
    RemoteInput,
    changed,
    described,
    open_input,
    open_unchanged,
)
from wdsplit.tables.table import InputFile, Remote

__all__ = ["WHAT", "open_file", "read_batches"]

WHAT = "an Arrow IPC file or stream"

_GROUP_BYTES = 4 * BATCH_BYTES
_FILE_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"
_SAMPLE_BYTES = 1024
_WORD_BYTES = 4
_CONTINUATION = b"\xff" * _WORD_BYTES
"""Begins a message; the size of its header follows. Arrow before 0.15 wrote only the size."""
_SCHEMA, _RECORD_BATCH = 1, 3
_AHEAD_BYTES = 256 * 1024
"""Minimum bytes of a request for a remote file, while headers are read."""


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Find the batches and count their rows, by the headers alone."""
    with open_input(path, remote, _AHEAD_BYTES) as source:
        if not source.size:
            raise ValueError("the file is empty")
        if source.read_at(0, len(_FEATHER_V1_MAGIC)) == _FEATHER_V1_MAGIC:
            raise ValueError("the old format Feather V1: write it again with pyarrow.feather.write_feather")
        schema = _schema_of(source)
        check_names(schema)
        footer = ipc.open_file(source.as_arrow()) if _first_message(source) else None
        if footer is not None and footer.schema != schema:
            raise ValueError("the columns in the footer differ from those at the start")
        found, end, checksum = _walk(source, None if footer is None else footer.num_record_batches)
        # Decoded bytes per stored byte are measured on the first batch with rows.
        ratio, number = 1.0, next((number for number, (_, rows, _) in enumerate(found) if rows), None)
        if number is not None:
            begins = [*(begin for begin, _, _ in found), end]
            batch = next(_batches(source, schema, begins, [number], range(len(schema))))
            batch.validate()
            ratio = batch.nbytes / max(1, found[number][2])
        row_groups, offsets = [], []
        for begin, rows, size in found:
            parts = min(rows, max(1, round(size * ratio / _GROUP_BYTES))) or 1
            row_groups += [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]
            offsets += [begin] * parts
        data_bytes = int(sum(size for _, _, size in found) * ratio)
        return described(source, "arrow", row_groups, data_bytes, checksum, (*offsets, end)), schema


@dataclass(frozen=True)
class _Message:
    """What the header of a message says: where its data begin, where it ends, its kind and number of rows."""

    metadata: bytes
    data: int
    end: int
    kind: int
    rows: int


def _message_at(source: Input, at: int) -> _Message | None:
    """Read the header of a message; None at the end marker, or at the end of the file.

    pyarrow reads a message with its data, which are not needed here and may be remote. A header is a flatbuffer:
    https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
    """
    first = source.read_at(at, 2 * _WORD_BYTES)
    begin = at + (2 * _WORD_BYTES if first.startswith(_CONTINUATION) else _WORD_BYTES)
    num_bytes = int.from_bytes(first.removeprefix(_CONTINUATION)[:_WORD_BYTES], "little")
    if not num_bytes:
        return None
    metadata = source.read_at(begin, num_bytes)

    def number(place: int, size: int) -> int:
        return int.from_bytes(metadata[place : place + size], "little", signed=size > 2)

    def field(table: int, index: int) -> int:
        """Return the place of a field of a table; 0 if it has the default value."""
        fields = table - number(table, 4)
        offset = number(fields + 4 + 2 * index, 2) if 4 + 2 * index < number(fields, 2) else 0
        return table + offset if offset else 0

    table = number(0, 4)
    kind, header, size = (field(table, index) for index in (1, 2, 3))
    rows = field(header + number(header, 4), 0)
    found = _Message(
        metadata,
        begin + num_bytes,
        begin + num_bytes + (number(size, 8) if size else 0),
        number(kind, 1),
        number(rows, 8) if rows else 0,
    )
    if not begin + num_bytes <= found.end <= source.size or found.rows < 0:
        raise ValueError(f"the message at byte {at} is damaged, or has been cut off")
    return found


def _first_message(source: Input) -> int:
    """Return where the messages begin: 0 in a stream, after the magic bytes in a file."""
    return 8 if source.read_at(0, len(_FILE_MAGIC)) == _FILE_MAGIC else 0


def _schema_of(source: Input) -> pa.Schema:
    """Return the columns, from the first message of a file or a stream."""
    source.seek(_first_message(source))
    return ipc.open_stream(pa.PythonFile(source, mode="r")).schema


def _walk(source: Input, num_batches: int | None) -> tuple[list[tuple[int, int, int]], int, str]:
    """Walk over the messages of a file, whose footer says how many batches there are, or to the end of a stream.

    Returns:
        Of each batch where it begins (with the dictionaries before it), its rows, and its stored bytes. Where the last
        one ends. The checksum of the messages' headers and of the beginnings of their data.
    """
    found: list[tuple[int, int, int]] = []
    digest = xxhash.xxh3_128()
    at = begin = end = _first_message(source)
    while num_batches is None or len(found) < num_batches:
        message = _message_at(source, at)
        if message is None:
            if num_batches is not None:
                raise ValueError("there are fewer record batches than the footer says")
            marker = source.read_at(at, 2 * _WORD_BYTES)
            if len(marker) < _WORD_BYTES:
                raise ValueError("the stream has no end marker: it may have been cut off")
            left = source.size - at - (2 * _WORD_BYTES if marker.startswith(_CONTINUATION) else _WORD_BYTES)
            if left:
                raise ValueError(f"{left} bytes follow the end of the stream")
            break
        digest.update(at.to_bytes(8, "little"))
        digest.update(message.metadata)
        digest.update(source.read_at(message.data, min(_SAMPLE_BYTES, message.end - message.data)))
        at = message.end
        if message.kind == _RECORD_BATCH:
            found.append((begin, message.rows, at - message.data))
        if message.kind in (_SCHEMA, _RECORD_BATCH):
            begin = end = at
    return found, end, digest.hexdigest()


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups, in batches that are views of the file unless it is compressed."""
    with open_unchanged(file, _AHEAD_BYTES) as source:
        own = _schema_of(source)
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
                if not pa.types.is_dictionary(column.type):
                    column.validate(full=True)
                    continue
                values = column.indices.drop_null().to_numpy(zero_copy_only=False)
                if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(column.dictionary):
                    raise ValueError("an index lies outside its dictionary")
            yield part


def _batches(
    source: Input,
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
    first = _first_message(source)
    ranges = [(begins[number], begins[number + 1]) for number in numbers]
    if "dictionary<" in str(schema):
        parts = _parts_with_dictionaries(source, first, {end for _, end in ranges}, begins[-1])
    else:
        parts = [(first, begins[0]), *ranges]
    reader = _RemoteParts(source, parts) if isinstance(source, RemoteInput) else _Parts(source.path, parts)
    options = ipc.IpcReadOptions(included_fields=list(columns), use_threads=False)
    yield from ipc.open_stream(pa.PythonFile(reader, mode="r"), options=options)


def _parts_with_dictionaries(source: Input, first: int, batch_ends: set[int], end: int) -> list[tuple[int, int]]:
    """Return where the schema, at `first`, the dictionaries and some batches up to `end` are, in reading order.

    In a stream, a batch uses the dictionaries before it, and later ones may replace them. In a file, dictionaries only
    grow, and may be anywhere.
    """
    parts, batches = list[tuple[int, int]](), list[tuple[int, int]]()
    at = first
    while at < end and (message := _message_at(source, at)) is not None:
        part, at = (at, message.end), message.end
        if message.kind != _RECORD_BATCH:
            parts.append(part)
        elif at in batch_ends:
            (batches if first else parts).append(part)
    return parts + batches


class _Parts:
    """Parts of a local file as one readable file, memory-mapped without a copy."""

    closed = False

    def __init__(self, path: str, parts: Sequence[tuple[int, int]]) -> None:
        self._whole: Any = pa.memory_map(path).read_buffer() if path else None
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
        super().__init__("", parts)
        self._source = source

    def _slice(self, begin: int, stop: int) -> Any:
        if not self._source.has_buffered(begin, stop):
            next_parts = [(begin, self._left[-1][1]), *self._left[-2::-1]]
            ends = list(itertools.accumulate(end - first for first, end in next_parts))
            self._source.buffer(next_parts[: max(1, bisect_right(ends, MAX_BUFFER_BYTES))])
        return self._source.read_at(begin, stop - begin)
