"""Writes rows from Python to an Arrow file, which then is a normal input of the conversion.

The file's name contains the checksum of its content, and its modification time is always 0. So rows that are written
again for a resumed run give the same plan if and only if they are the same.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import xxhash

from wdsplit.errors import InputError, WdsplitError, first_line
from wdsplit.fields.promote import joined_schema
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import temporary_name
from wdsplit.storage.local_file import translate_errors
from wdsplit.tables.python_source import PythonSource

__all__ = ["SPOOL", "spooled"]

SPOOL = "source"
"""The prefix of the files that are written here, in the folder of a run."""

_MIN_ROWS, _MIN_BYTES = 1024, 1024**2
"""Minimum rows or bytes of a batch in the file; smaller batches are joined."""


@contextmanager
def spooled(
    source: PythonSource,
    output: Storage,
    is_local: bool,
    check: Callable[[pa.Schema], object],
    report: Callable[[int], None],
) -> Iterator[str]:
    """Write the rows of a source into a file, which exists until the block ends; yield its path.

    Errors of the block name the source instead of the file.

    Args:
        source: The rows.
        output: The output of the conversion: the file is in the folder of its run, or in TMPDIR if it is remote.
        is_local: Whether the file is read only on this machine.
        check: Called with the columns of the first rows; it may refuse them.
        report: Called with the number of rows so far.

    Raises:
        InputError: There are no rows, or they do not fit into one table, or other machines cannot access them.
        StorageError: The file cannot be written, or another process converts Python's rows into this output.
    """
    if output.is_remote and not is_local:
        raise InputError(
            "other machines cannot access rows from Python",
            place=output.url,
            expected="an output on a shared file system, or an engine of this machine",
            remedy="leave out engine=, or write the rows to a table that all machines can access",
        )
    with ExitStack() as stack:
        if output.is_remote:
            folder = stack.enter_context(TemporaryDirectory(prefix="wdsplit-rows-"))
        else:
            folder = os.path.join(output.url, RUN_FOLDER)
            is_new = not os.path.isdir(output.url)
            stack.enter_context(output.lock(f"{RUN_FOLDER}/{SPOOL}.lock"))
            stack.callback(_remove, output, is_new)
        path = _written(source, folder, check, report)
        try:
            yield path
        except WdsplitError as error:
            error.place, error.found = (text.replace(path, source.what) for text in (error.place, error.found))
            raise


def _remove(output: Storage, is_new: bool) -> None:
    """Remove the written files, and the folders that were made for them if they are empty."""
    output.remove(*(f"{RUN_FOLDER}/{name}" for name in output.list(RUN_FOLDER) if name.lstrip(".").startswith(SPOOL)))
    with suppress(OSError):
        os.rmdir(os.path.join(output.url, RUN_FOLDER))
        if is_new:
            os.rmdir(output.url)


def _written(
    source: PythonSource, folder: str, check: Callable[[pa.Schema], object], report: Callable[[int], None]
) -> str:
    """Write all rows into one file of one schema. Where the types of columns widen, another part begins."""
    parts: list[_Part] = []
    num_rows = 0
    try:
        for batch in source.batches():
            if not parts:
                check(batch.schema)
            schema = _widened(parts[-1].schema, batch.schema, num_rows) if parts else batch.schema
            if not parts or schema != parts[-1].schema:
                if parts:
                    parts[-1].close()
                parts.append(_Part(folder, schema))
            parts[-1].write(_fitted(batch, schema, num_rows))
            num_rows += len(batch)
            report(num_rows)
        if not num_rows:
            raise InputError(
                "the source has no rows",
                place=source.what,
                expected="at least one row",
                remedy="check the source; a generator yields its rows only once, so make a new one for each call",
            )
        parts[-1].close()
        whole = parts[0] if len(parts) == 1 else _joined(parts, folder)
        return whole.finish()
    finally:
        for part in parts:
            part.discard()


def _joined(parts: Sequence[_Part], folder: str) -> _Part:
    """Return all parts as one, with the schema of the last, which fits the values of all."""
    whole = _Part(folder, parts[-1].schema)
    try:
        first = 0
        for part in parts:
            with pa.memory_map(part.path) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    whole.write(_fitted(batch, whole.schema, first))
                    first += len(batch)
            part.discard()
        whole.close()
    except BaseException:
        whole.discard()
        raise
    return whole


def _widened(schema: pa.Schema, other: pa.Schema, first: int) -> pa.Schema:
    """Return a schema that fits the values of two; the metadata come from the second, if it has any."""
    metadata = other.metadata or schema.metadata
    if (schema.names, schema.types) == (other.names, other.types):
        return schema if metadata == schema.metadata else schema.with_metadata(metadata)
    try:
        wide = joined_schema([schema, other])
    except pa.ArrowException as error:
        raise InputError(
            "a column changes type",
            place=f"rows {first:,} and after",
            expected="the type of earlier rows, or one that includes it, such as float after int",
            found=first_line(error),
            remedy="convert the values to one type, or leave the column out",
        ) from error
    return wide.with_metadata(metadata)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, first: int) -> pa.RecordBatch:
    """Return a batch with the columns and types of a schema; a column that it lacks is null."""
    arrays = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        array = pa.nulls(len(batch), field.type) if place < 0 else batch.column(place)
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowException as error:
            raise InputError(
                f"a value of column {field.name!r} has another type than in other rows",
                place=f"rows {first:,} to {first + len(batch) - 1:,}, column {field.name!r}",
                expected=str(field.type),
                found=first_line(error),
                remedy="convert the values to one type, or leave the column out",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Part:
    """An Arrow stream in a file of `folder`."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self.schema = schema
        self.path = os.path.join(folder, temporary_name(f"{SPOOL}.arrow"))
        self._clear()
        with translate_errors(Path(self.path), writing=True):
            self._file = _HashedFile(self.path)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; small batches are joined."""
        self._pending.append(batch)
        self._pending_rows += len(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= _MIN_ROWS or self._pending_bytes >= _MIN_BYTES:
            self._flush()

    def _clear(self) -> None:
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, self.schema)
        self._clear()
        with translate_errors(Path(self.path), writing=True):
            for batch in table.combine_chunks().to_batches():
                self._writer.write_batch(batch)

    def close(self) -> None:
        """Write what is left, and the end."""
        self._flush()
        with translate_errors(Path(self.path), writing=True):
            self._writer.close()
            self._file.close()

    def finish(self) -> str:
        """Give the file its final name, and return its path."""
        path = os.path.join(os.path.dirname(self.path), f"{SPOOL}-{self._file.digest.hexdigest()}.arrow")
        with translate_errors(Path(path), writing=True):
            os.utime(self.path, (0, 0))
            os.replace(self.path, path)
        return path

    def discard(self) -> None:
        """Remove the file, unless it has its final name."""
        self._file.close()
        Path(self.path).unlink(missing_ok=True)


class _HashedFile(io.FileIO):
    """A new file that Arrow writes to, and the checksum of what it wrote."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "xb")
        self.digest = xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        left = memoryview(data)
        while left:
            left = left[super().write(left) :]
        return len(data)
