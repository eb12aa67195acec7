"""In-memory data and row generators from Python, as a stream of Arrow record batches.

Recognises Hugging Face datasets, Polars and pandas frames by the modules of their classes, without importing them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from wdsplit.errors import InputError, noted
from wdsplit.fields.infer import MAX_CLASSES, with_class_names
from wdsplit.fields.rules import is_text
from wdsplit.tables.formats.common import sliced
from wdsplit.tables.python_rows import numbered, row_batches

__all__ = ["PythonSource", "python_source"]

_FRAME_ROWS = 8192
"""Rows of a frame to convert to Arrow at once."""
_DATASET_ROWS = 256
"""Rows of a Hugging Face dataset to read at once; few, because they may be images."""


@dataclass(frozen=True)
class PythonSource:
    """Rows that are not in files.

    Attributes:
        what: Their origin, for messages.
        num_rows: Number of rows; 0 if unknown.
        batches: Returns the rows; the types of columns may differ between batches.
    """

    what: str
    num_rows: int
    batches: Callable[[], Iterator[pa.RecordBatch]]


def python_source(inputs: Any) -> PythonSource | list[str]:
    """Return an argument of `wdsplit.convert` as a source of rows, or as the paths that it names.

    Raises:
        InputError: It is neither.
    """
    if isinstance(inputs, (str, os.PathLike)):
        return [os.fspath(inputs)]
    for is_known, source in _KNOWN:
        if is_known(inputs):
            return source(inputs)
    if isinstance(inputs, (Mapping, bytes, set, frozenset)):
        raise _unknown(inputs)
    size = len(inputs) if hasattr(inputs, "__len__") else 0
    is_indexed = size and not hasattr(inputs, "__iter__") and hasattr(inputs, "__getitem__")
    try:
        rows = numbered((inputs[number] for number in range(size)) if is_indexed else iter(inputs))
    except TypeError:
        raise _unknown(inputs) from None
    first = list(islice(rows, 1))
    if (isinstance(inputs, Sequence) and not first) or isinstance([*first, None][0], (str, os.PathLike)):
        return [os.fspath(path) for path in chain(first, rows)]
    return PythonSource(type(inputs).__name__, size, lambda: row_batches(chain(first, rows)))


def _is_from(library: str, *names: str) -> Callable[[Any], bool]:
    """Return a function that tests whether an object has a class of a library, by name, or a subclass of it."""
    return lambda value: any(
        kind.__name__ in names and kind.__module__.partition(".")[0] == library for kind in type(value).__mro__
    )


def _table(table: Any) -> PythonSource:
    """Read a table in memory; a dictionary column gets the same dictionary in all batches."""
    table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    table = table.unify_dictionaries()
    return PythonSource("Arrow table", len(table), lambda: _with_categories(table.to_batches()))


def _stream(stream: Any) -> PythonSource:
    """Read a stream of Arrow record batches, once."""
    try:
        reader = stream if isinstance(stream, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(stream)
    except pa.ArrowInvalid:  # the values of one column, such as a Series
        raise _unknown(stream) from None
    return PythonSource(type(stream).__name__, 0, lambda: _sliced(reader))


def _pandas(frame: Any) -> PythonSource:
    """Read a frame; an index becomes a column if it has a name."""
    names = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(names) if names else frame
    wrong = [name for name in frame.columns if not isinstance(name, str)]
    wrong = wrong or frame.columns[frame.columns.duplicated()].tolist()
    if wrong:
        raise InputError(
            "the column names of a DataFrame are not unique strings",
            found=", ".join(map(repr, wrong[:5])),
            remedy='name them: frame.columns = ["image", "label"]',
        )

    def batches() -> Iterator[pa.RecordBatch]:
        pieces = (frame.iloc[first : first + _FRAME_ROWS] for first in range(0, len(frame), _FRAME_ROWS))
        try:
            schema = pa.Schema.from_pandas(frame, preserve_index=False).remove_metadata()
        except (pa.ArrowException, TypeError):  # objects that Arrow does not know, such as images
            plain = (piece.astype(object).where(piece.notna(), None) for piece in pieces)
            return row_batches(numbered(row for piece in plain for row in piece.to_dict("records")))
        tables = (pa.Table.from_pandas(piece, schema, preserve_index=False, nthreads=1) for piece in pieces)
        return _with_categories(batch for table in tables for batch in table.replace_schema_metadata().to_batches())

    return PythonSource("pandas DataFrame", len(frame), batches)


def _huggingface(dataset: Any) -> PythonSource:
    """Read a dataset as it is stored; images and audio stored as paths are embedded."""
    kind = (dataset.format if hasattr(dataset, "format") else {}).get("type")
    if kind == "custom":
        raise InputError(
            "the dataset has a transform, which is not part of its rows",
            place="set_transform or with_transform",
            expected="a dataset without one",
            remedy="apply it with dataset.map(function), or remove it with dataset.with_format(None)",
        )

    def batches() -> Iterator[pa.RecordBatch]:
        from datasets.table import embed_table_storage

        for table in dataset.with_format("arrow").iter(_DATASET_ROWS):
            table = embed_table_storage(table) if b"huggingface" in (table.schema.metadata or {}) else table
            yield from table.to_batches()

    size = len(dataset) if hasattr(dataset, "__len__") else 0
    return PythonSource(f"Hugging Face {type(dataset).__name__}", size, lambda: _sliced(batches()))


def _splits(datasets: Any) -> PythonSource:
    raise InputError(
        "a DatasetDict contains several datasets",
        expected="one of them",
        found=", ".join(map(repr, datasets)),
        remedy='for name, split in datasets.items(): wdsplit.convert(split, f"data/{name}")',
    )


_KNOWN: tuple[tuple[Callable[[Any], bool], Callable[[Any], PythonSource]], ...] = (
    (_is_from("datasets", "Dataset", "IterableDataset"), _huggingface),
    (_is_from("datasets", "DatasetDict", "IterableDatasetDict"), _splits),
    (_is_from("pandas", "DataFrame"), _pandas),
    (_is_from("polars", "DataFrame"), lambda frame: _table(frame.to_arrow())),
    (lambda value: isinstance(value, (pa.Table, pa.RecordBatch)), _table),
    (
        _is_from("pyarrow", "Dataset"),
        lambda dataset: PythonSource("Arrow dataset", 0, lambda: _sliced(dataset.to_batches())),
    ),
    (lambda value: isinstance(value, pa.RecordBatchReader) or hasattr(value, "__arrow_c_stream__"), _stream),
)


def _sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches in pieces of about 16 MiB; an error from their source gets a note with the number of rows."""
    num_rows = 0
    try:
        for batch in batches:
            yield from sliced(batch)
            num_rows += len(batch)
    except Exception as error:
        noted(error, f"raised by the source of rows, after {num_rows:,} rows")
        raise


def _with_categories(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the categories of columns in their schema; all batches have the same categories."""
    schema = None
    for batch in batches:
        if schema is None:
            columns = zip(batch.schema.names, batch.columns, strict=True)
            categories = {
                name: column.dictionary.to_pylist()
                for name, column in columns
                if pa.types.is_dictionary(column.type)
                and is_text(column.type.value_type)
                and len(column.dictionary) <= MAX_CLASSES
            }
            schema = with_class_names(batch.schema, categories)
        yield from _sliced([pa.RecordBatch.from_arrays(batch.columns, schema=schema)])


def _unknown(inputs: Any) -> InputError:
    return InputError(
        "cannot convert an object of this type",
        expected="paths, an iterable of dicts, a Hugging Face dataset, a Polars or pandas DataFrame, an Arrow table or "
        "reader",
        found=type(inputs).__name__,
        remedy="wrap one row in a list; turn a dict of columns into a table: pyarrow.table(columns)"
        if isinstance(inputs, Mapping)
        else "write a generator that yields a dict for each row",
    )
