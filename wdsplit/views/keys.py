"""Lists of keys: read from files and arrays, and looked up among the keys of samples.

A list may contain the keys of samples escaped, as in the tar, or unescaped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from wdsplit.arrays import Int64
from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.fields.keys import hash_keys, is_key_type, number_keys, numbered_width, odd_keys
from wdsplit.storage.local import LocalStorage, local_path
from wdsplit.storage.opening import is_remote, open_object
from wdsplit.tar.names import escape_key
from wdsplit.urls import divided_url, shown_url
from wdsplit.views.columns import SampleColumns

__all__ = ["KeyList", "read_keys"]

_COLUMNS = ("__key__", "key")
_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_FORMATS = ".txt with a key a line, .jsonl with `__key__` or `key`, or .csv, .tsv or .parquet with such a column"


@dataclass(frozen=True, eq=False)
class KeyList:
    """A list of keys.

    Attributes:
        keys: The distinct keys, in the order of the list.
        num_duplicates: Number of duplicate entries.
        origin: Where the list comes from, for messages.
        spellings: The keys, escaped and unescaped, sorted by hash.
        hashes: uint64 of shape (spellings,): their hashes, in ascending order.
        numbers: int64 of shape (spellings,): the index of each in `keys`.
    """

    keys: pa.LargeStringArray
    num_duplicates: int
    origin: str
    spellings: pa.LargeStringArray
    hashes: npt.NDArray[np.uint64]
    numbers: Int64

    @classmethod
    def of(cls, entries: pa.Array, origin: str = "a list") -> KeyList:
        """Return the list of some texts."""
        keys = entries.cast(pa.large_string()).unique()
        odd = odd_keys(keys)
        odd = odd[pc.binary_length(keys).to_numpy()[odd] > 0]
        escaped = pa.array(map(escape_key, keys.take(pa.array(odd)).to_pylist()), pa.large_string())
        spellings, numbers = pa.concat_arrays([keys, escaped]), np.concatenate([np.arange(len(keys)), odd])
        hashes = hash_keys(spellings)
        order = np.argsort(hashes, kind="stable")
        spellings = spellings.take(pa.array(order))
        return cls(keys, len(entries) - len(keys), origin, spellings, hashes[order], numbers[order])

    def look_up(self, keys: pa.ChunkedArray) -> tuple[Int64, Int64]:
        """Return the rows of some strings that are in the list, and the indexes in the list of those that were found.

        Either may have duplicates. Hashes only find candidates, which are compared as text.
        """
        texts = keys.cast(pa.large_string()).combine_chunks()
        hashes = hash_keys(texts)
        places = np.searchsorted(self.hashes, hashes)
        rows, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        near = np.arange(len(hashes))
        while True:
            near = near[places[near] < len(self.hashes)]
            near = near[self.hashes[places[near]] == hashes[near]]
            if not len(near):
                return np.concatenate(rows), np.concatenate(numbers)
            same = pc.equal(texts.take(pa.array(near)), self.spellings.take(pa.array(places[near])))
            rows.append(near[same.to_numpy(zero_copy_only=False)])
            numbers.append(self.numbers[places[rows[-1]]])
            places[near] += 1


def read_keys(
    keys: Any, name: str, columns: SampleColumns, storage_options: Mapping[str, Any] | None = None
) -> KeyList:
    """Read a list of keys.

    Args:
        keys: A list, a numpy or Arrow array, a pandas or polars column or frame; or the path or URL of a file.
        name: Name of the argument, for errors.
        columns: The columns of the samples, to find the keys of bad samples that are listed by shard and number. If
            the samples' keys are row numbers, integer keys are row numbers too.
        storage_options: Options for a remote file.

    Raises:
        InputError: The list is invalid.
        WdsplitError: The file is missing or cannot be read.
    """
    origin, expected = "a list", "a list or an array of keys, or the path of a file of them"
    try:
        if isinstance(keys, (str, os.PathLike)):
            origin, expected = shown_url(os.fspath(keys)), _FORMATS
            column = _of_file(os.fspath(keys), name, columns, storage_options)
        else:
            column = _of_values(keys, name)
    except (pa.ArrowException, UnicodeDecodeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, (InputError, DatasetNotFoundError)):
            raise
        raise _invalid(name, origin, str(error)[:1000], expected) from error
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not is_key_type(column.type):
        expected = "keys: strings, or the integers that keys were made from"
        raise _invalid(name, origin, f"values of type {column.type}", expected)
    if column.null_count:
        raise _invalid(name, origin, f"null, {column.null_count:,} times", "a key for each entry")
    width = numbered_width(columns.manifest.provenance)
    if width and pa.types.is_integer(column.type):
        column = number_keys(column.to_numpy(zero_copy_only=False), width)
    return KeyList.of(column, origin)


def _of_values(keys: Any, name: str) -> Any:
    if isinstance(keys, (set, frozenset)):
        keys = sorted(keys, key=str)
    if isinstance(keys, (bytes, Mapping)) or not hasattr(keys, "__len__"):
        raise TypeError(type(keys).__name__)
    names = getattr(keys, "column_names", getattr(keys, "columns", None))
    if names is not None:
        keys = keys[_column(list(names), f"{name}={type(keys).__name__}")]
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        return keys
    return pa.array(keys) if len(keys) else pa.array([], pa.string())


def _of_file(url: str, name: str, columns: SampleColumns, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the keys of a file."""
    place = shown_url(url)
    suffix = os.path.splitext(place)[1].lower()
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{name} is not a supported file of keys",
            place=place,
            expected=_FORMATS,
            found=f"a file or folder {divided_url(place)[1]!r}",
            remedy=f"write them to a .txt file, one key per line; for a single key, pass a list: {name}=[{place!r}]",
        )
    try:
        remote = is_remote(url)
        data = open_object(url, storage_options).read_whole() if remote else LocalStorage(".").read(local_path(url))
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError("file of keys not found", place=place, remedy="check the path") from error
    if suffix == ".parquet":
        table = pq.ParquetFile(pa.BufferReader(data))
        return table.read([_column(table.schema_arrow.names, place)]).column(0)
    if suffix in (".csv", ".tsv"):
        parsing = pa.csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",")
        column = _column(pa.csv.open_csv(pa.BufferReader(data), parse_options=parsing).schema.names, place)
        options = pa.csv.ConvertOptions(column_types={column: pa.large_string()}, include_columns=[column])
        return pa.csv.read_csv(pa.BufferReader(data), parse_options=parsing, convert_options=options).column(0)
    lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    if suffix == ".txt":
        return pa.array(filter(None, lines), pa.large_string())
    find_keys = lru_cache(partial(_find_keys, columns))
    keys = [_key_of(line, f"{place}, line {number}", find_keys) for number, line in enumerate(lines, 1) if line]
    return pa.array(keys) if keys else pa.array([], pa.string())


def _column(names: list[str], place: str) -> str:
    """Return the key column of a table."""
    for name in _COLUMNS:
        if name in names:
            return name
    raise InputError(
        "cannot tell which column of a table has the keys",
        place=place,
        expected="a column `__key__` or `key`",
        found=", ".join(map(str, names))[:1000],
        remedy="rename the column, or use a .txt file with one key per line",
    )


def _key_of(line: str, place: str, find_keys: Callable[[str], Any]) -> Any:
    """Return the key in a line of JSON, or of the sample that it names by shard and number; else how it names it."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = None
    match row:
        case {"__key__": key} | {"key": key} if key is not None:
            return key
        case {"key": None, "shard": str(shard), "sample": int(sample)}:
            keys = find_keys(shard)
            return str(keys[sample]) if 0 <= sample < len(keys) else f"sample {sample} of {shard}"
    expected = 'a JSON object with "__key__" or "key"'
    raise InputError("a line has no key", place=place, expected=expected, found=line[:200])


def _find_keys(columns: SampleColumns, url: str) -> Any:
    """Return the keys of a shard, found by its path or the end of its URL; none if there is no such shard."""
    parts = url.split("/")
    for first in range(len(parts)):
        shard = pc.index(columns.manifest.shards.table.column("path"), "/".join(parts[first:])).as_py()
        if shard >= 0:
            return columns.read(shard, ["__key__"]).column(0)
    return ()


def _invalid(name: str, place: str, found: str, expected: str) -> InputError:
    return InputError(f"invalid {name}", place=place, expected=expected, found=found)
