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
from wdsplit.errors import DatasetNotFoundError, InputError, WdsplitError
from wdsplit.fields.keys import hash_keys, is_key_type, number_keys, numbered_width
from wdsplit.storage.opening import open_readable_storage
from wdsplit.tar.names import KEY_PATTERN, ODD_KEY_PATTERN, escape_key
from wdsplit.urls import shown_url
from wdsplit.views.columns import SampleColumns

__all__ = ["KeyList", "Spellings", "read_keys"]

_COLUMNS = ("__key__", "key")
_FORMATS = ".txt with a key a line, .jsonl with `key` in each line, or .csv, .tsv or .parquet with a column `key`"


_SUFFIXES = ("txt", "jsonl", "ndjson", "csv", "tsv", "parquet")
_UNSUPPORTED = (
    "arrow",
    "bz2",
    "feather",
    "gz",
    "json",
    "npy",
    "npz",
    "orc",
    "pkl",
    "tar",
    "tgz",
    "xlsx",
    "xz",
    "zip",
    "zst",
)


@dataclass(frozen=True, eq=False)
class Spellings:
    """A lookup table of the keys of a list, escaped and unescaped.

    Attributes:
        keys: The spellings of the keys, sorted by hash.
        hashes: uint64 of shape (spellings,): their hashes, in ascending order.
        numbers: int64 of shape (spellings,): the index of each in the list.
        num_keys: Number of keys in the list.
        num_alike: Maximum number of spellings with the same hash.
    """

    keys: pa.LargeStringArray
    hashes: npt.NDArray[np.uint64]
    numbers: Int64
    num_keys: int
    num_alike: int

    @classmethod
    def of(cls, keys: pa.LargeStringArray) -> Spellings:
        """Return the spellings of distinct keys."""
        plain = pc.match_substring_regex(keys, f"^(?:{KEY_PATTERN})$")
        plain = pc.and_not(plain, pc.match_substring_regex(keys, ODD_KEY_PATTERN))
        odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False) & (pc.binary_length(keys).to_numpy() > 0))
        escaped = pa.array(map(escape_key, keys.take(pa.array(odd)).to_pylist()), pa.large_string())
        every = pa.concat_arrays([keys, escaped])
        numbers = np.concatenate([np.arange(len(keys)), odd])
        hashes = hash_keys(every)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        runs = np.diff(np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1], [True]])))
        alike = int(runs.max()) if len(hashes) else 0
        return cls(every.take(pa.array(order)), hashes, numbers[order], len(keys), alike)

    def look_up(self, keys: Any) -> tuple[Int64, Int64]:
        """Return the rows of `keys` that are in the list, and the indexes in the list of the keys that were found.

        Args:
            keys: Arrow strings.
        """
        keys = keys.cast(pa.large_string())
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        hashes = hash_keys(keys)
        places = np.searchsorted(self.hashes, hashes)
        rows, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for _ in range(self.num_alike):
            near = np.flatnonzero(places < len(self.hashes))
            near = near[self.hashes[places[near]] == hashes[near]]
            same = pc.equal(keys.take(pa.array(near)), self.keys.take(pa.array(places[near])))
            found = near[same.to_numpy(zero_copy_only=False)]
            rows.append(found)
            numbers.append(self.numbers[places[found]])
            places += 1
        return np.concatenate(rows), np.concatenate(numbers)


@dataclass(frozen=True, eq=False)
class KeyList:
    """A list of keys.

    Attributes:
        keys: The distinct keys, in the order of the list.
        num_duplicates: Number of duplicate entries.
        origin: Where the list comes from, for messages.
        spellings: The keys for lookups.
    """

    keys: pa.LargeStringArray
    num_duplicates: int
    origin: str
    spellings: Spellings

    @property
    def num_keys(self) -> int:
        """Number of distinct keys."""
        return len(self.keys)


def read_keys(
    keys: Any, name: str, storage_options: Mapping[str, Any] | None = None, columns: SampleColumns | None = None
) -> KeyList:
    """Read a list of keys.

    Args:
        keys: A list, a numpy or Arrow array, a pandas or polars column or frame; or the path or URL of a file.
        name: Name of the argument, for errors.
        storage_options: Options for a remote file.
        columns: The columns of the samples, to find the keys of bad samples that are listed by shard and number. If
            the samples' keys are row numbers, integer keys are row numbers too.

    Raises:
        InputError: The list is invalid.
        WdsplitError: The file is missing or cannot be read.
    """
    if isinstance(keys, (str, os.PathLike)):
        origin = shown_url(os.fspath(keys))
        try:
            column = _of_file(os.fspath(keys), storage_options, columns)
        except DatasetNotFoundError as error:
            raise _not_found(keys, name, origin) from error
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _invalid(name, str(error)[:1000], _FORMATS).at(origin) from error
    else:
        origin, column = "a list", _of_values(keys, name)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not is_key_type(column.type):
        raise _invalid(name, f"values of type {column.type}", "keys: strings, or the integers that keys were made from")
    if column.null_count:
        raise _invalid(name, counted_nulls(column.null_count), "a key for each entry").at(origin)
    width = numbered_width(columns.manifest.provenance) if columns is not None else 0
    is_number = width and pa.types.is_integer(column.type)
    texts = number_keys(column.to_numpy(zero_copy_only=False), width) if is_number else column.cast(pa.large_string())
    different = texts.unique()
    return KeyList(different, len(texts) - len(different), origin, Spellings.of(different))


def _not_found(keys: str | os.PathLike[str], name: str, origin: str) -> WdsplitError:
    if isinstance(keys, os.PathLike) or _suffix(keys) in _SUFFIXES:
        return DatasetNotFoundError("file of keys not found", place=origin, remedy="check the path")
    return InputError(
        f"{name} is the path of a file of keys, which does not exist",
        place=origin,
        remedy=f"check the path; for a single key, pass a list: {name}=[{origin!r}]",
    )


def counted_nulls(count: int) -> str:
    """Return "a null" or the number of nulls as text."""
    return "a null" if count == 1 else f"{count:,} nulls"


def _of_values(keys: Any, name: str) -> Any:
    if isinstance(keys, (set, frozenset)):
        keys = sorted(keys, key=str)
    if isinstance(keys, (bytes, Mapping)) or not hasattr(keys, "__len__"):
        raise _invalid(name, type(keys).__name__, "a list or an array of keys, or the path of a file of them")
    names = getattr(keys, "column_names", getattr(keys, "columns", None))
    if names is not None:
        keys = keys[_column(list(names), f"{name}={type(keys).__name__}")]
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        return keys
    try:
        return pa.array(keys) if len(keys) else pa.array([], pa.string())
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise _invalid(name, str(error)[:1000], "a list or an array of keys") from error


def _of_file(url: str, storage_options: Mapping[str, Any] | None, columns: SampleColumns | None) -> Any:
    """Return the keys of a file."""
    suffix = _suffix(url)
    if os.path.isdir(url) or url.endswith("/") or suffix in _UNSUPPORTED:
        raise InputError(
            "unsupported file of keys",
            place=shown_url(url),
            expected=_FORMATS,
            found=f"a .{suffix} file" if suffix in _UNSUPPORTED else "a folder",
            remedy="write the keys to a .txt file, one key per line",
        )
    folder, separator, last = url.rpartition("/")
    data = open_readable_storage(folder if separator else ".", storage_options).read(last)
    if suffix == "parquet":
        table = pq.ParquetFile(pa.BufferReader(data))
        return table.read([_column(table.schema_arrow.names, shown_url(url))]).column(0)
    if suffix in ("csv", "tsv"):
        parsing = pa.csv.ParseOptions(delimiter="\t" if suffix == "tsv" else ",")
        column = _column(
            pa.csv.open_csv(pa.BufferReader(data), parse_options=parsing).schema.names, shown_url(url), True
        )
        options = pa.csv.ConvertOptions(column_types={column: pa.large_string()}, include_columns=[column])
        return pa.csv.read_csv(pa.BufferReader(data), parse_options=parsing, convert_options=options).column(0)
    lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    if suffix not in ("jsonl", "ndjson"):
        return pa.array(filter(None, lines), pa.large_string())
    find_key = lru_cache(partial(_find_key, columns))
    places = ((line, f"{shown_url(url)}, line {number}") for number, line in enumerate(lines, 1) if line)
    keys = [_key_of(line, place, find_key) for line, place in places]
    return pa.array(keys) if keys else pa.array([], pa.large_string())


def _suffix(url: str) -> str:
    return os.path.splitext(url)[1][1:].lower()


def _column(names: list[str], place: str, is_text: bool = False) -> str:
    """Return the key column of a table.

    Args:
        names: The columns.
        place: The place of the table, for errors.
        is_text: Whether the header is a line of text: the name of a single column may then be a key itself.
    """
    found = [name for name in _COLUMNS if name in names] or (names if len(names) == 1 and not is_text else [])
    if not found:
        alone = is_text and len(names) == 1
        raise InputError(
            "cannot tell which column of a table has the keys",
            place=place,
            expected="a column `__key__` or `key`" + ("" if is_text else ", or only one column"),
            found=f"the header {names[0][:1000]!r}" if alone else ", ".join(map(str, names))[:1000],
            remedy="name the column key, or use a .txt file with one key per line" if alone else "rename the column",
        )
    return found[0]


def _key_of(line: str, place: str, find_key: Callable[[str, int], str]) -> Any:
    """Return the key in a line of JSON, or the key of the sample that the line names by shard and number."""
    expected = 'an object with "key"'
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"invalid JSON: {error.msg}", place=place, expected=expected, found=line[:200]) from error
    match row:
        case {"__key__": key} | {"key": key} if key is not None:
            return key
        case {"key": None, "shard": str(shard), "sample": int(sample)}:
            return find_key(shard, sample)
    raise InputError("a line has no key", place=place, expected=expected, found=line[:200])


def _find_key(columns: SampleColumns | None, url: str, sample: int) -> str:
    """Return the key of a sample by its shard and its number there; if not found, a description of the sample."""
    parts = url.split("/")
    paths = None if columns is None else columns.manifest.shards.table.column("path")
    for first in range(len(parts) if paths is not None else 0):
        shard = pc.index(paths, "/".join(parts[first:])).as_py()
        if columns is not None and shard >= 0:
            keys = columns.read(shard, ["__key__"]).column(0)
            if 0 <= sample < len(keys):
                return str(keys[sample])
    return f"sample {sample} of {url}"


def _invalid(name: str, found: str, expected: str) -> WdsplitError:
    return InputError(f"invalid {name}", expected=expected, found=found)
