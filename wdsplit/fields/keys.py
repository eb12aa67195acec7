"""Numbers, escapes and hashes keys, as whole Arrow arrays, and finds duplicate ones.

Pure (no I/O). Applies the rule of `tar.names` to a batch at once; only keys that need escaping are handled one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.arrays import Int64, UInt64
from wdsplit.errors import CorruptDataError, InputError, WdsplitError
from wdsplit.fields.rules import is_text
from wdsplit.order.hashing import hash_stream
from wdsplit.tar.headers import large_binary
from wdsplit.tar.names import KEY_PATTERN, MAX_COMPONENT_BYTES, MAX_NAME_BYTES, ODD_KEY_PATTERN, escape_key

__all__ = [
    "DuplicateKey",
    "Place",
    "escape_keys",
    "find_duplicate_keys",
    "hash_keys",
    "in_column",
    "is_key_type",
    "number_keys",
    "number_width",
    "numbered_rows",
    "numbered_width",
    "odd_keys",
]

Locate = Callable[[int], str]
"""Returns the place of a row of the batch for an error message, such as `part-3.parquet, row 17`."""
Place = str | Callable[[int], str]
"""The place of all keys of a batch, or a function from a key's number to its place."""

_MIN_NUMBER_WIDTH = 8
_KEY_DOMAIN = 4
_HASH_WORDS = 13
"""Minimum number of eight-byte words to which a key is padded before it is hashed."""


def in_column(where: Locate, name: str) -> Locate:
    """Return a function that adds a column to the place of a row."""
    return lambda row: f"{where(row)}, column {name!r}"


def number_width(num_rows: int) -> int:
    """Return the digits of the keys that number `num_rows` rows."""
    return max(_MIN_NUMBER_WIDTH, len(str(max(0, num_rows - 1))))


def numbered_rows(provenance: Mapping[str, Any]) -> int | None:
    """Return how many rows were numbered to make keys, by a provenance; None if the keys come from a column."""
    num_rows = provenance.get("num_rows")
    return num_rows if provenance.get("key", "") is None and isinstance(num_rows, int) else None


def numbered_width(provenance: Mapping[str, Any]) -> int:
    """Return the digits of the keys of a dataset whose rows were numbered; 0 if its keys come from a column."""
    num_rows = numbered_rows(provenance)
    return 0 if num_rows is None else number_width(num_rows)


def number_keys(numbers: Int64, width: int) -> pa.LargeStringArray:
    """Return row numbers as keys, padded with zeros so that they sort."""
    return pc.utf8_lpad(pa.array(numbers).cast(pa.large_string()), width, "0")


def is_key_type(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold keys: strings and integers."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_text(kind) or bool(pa.types.is_integer(kind))


def escape_keys(column: pa.Array, where: Locate) -> pa.LargeStringArray:
    """Return the keys of a batch, escaped where they must be.

    Args:
        column: Strings or integers.
        where: Returns the place of a row, for an error.

    Raises:
        InputError: A key is null, empty or too long.
    """
    keys = column.cast(pa.large_string())
    if keys.null_count:
        raise InputError(
            "a key is null",
            place=where(pc.index(keys.is_null(), True).as_py()),
            expected="a key for each row",
            remedy="fill the key column, or leave out --key to number the rows",
        )
    odd = odd_keys(keys)
    if len(odd):
        values = keys.to_pylist()
        for row in odd.tolist():
            try:
                values[row] = escape_key(values[row])
            except InputError as error:
                raise error.at(where(row)) from error
        keys = pa.array(values, pa.large_string())
    # A dot and a field of one letter must fit too.
    inner, last = MAX_COMPONENT_BYTES + 1, MAX_COMPONENT_BYTES - 1
    too_long = pc.greater(pc.binary_length(keys), MAX_NAME_BYTES - 2)
    too_long = pc.or_(too_long, pc.match_substring_regex(keys, f"[^/]{{{inner}}}|[^/]{{{last}}}$"))
    if pc.any(too_long, min_count=0).as_py():
        row = pc.index(too_long, True).as_py()
        key = keys[row].as_py()
        raise InputError(
            "a key is too long",
            place=where(row),
            expected=f"at most {MAX_NAME_BYTES} bytes for key, dot and field, {MAX_COMPONENT_BYTES} between slashes, "
            "escapes included",
            found=f"{len(key)} bytes: {key}",
            remedy="choose a shorter key column, or leave out --key to number the rows",
            key=key,
        )
    return keys


def odd_keys(keys: pa.LargeStringArray) -> Int64:
    """Return the rows of the keys that must be escaped, and of empty ones."""
    plain = pc.match_substring_regex(keys, f"^(?:{KEY_PATTERN})$")
    plain = pc.and_not(plain, pc.match_substring_regex(keys, ODD_KEY_PATTERN))
    return np.flatnonzero(~plain.to_numpy(zero_copy_only=False))


def hash_keys(keys: pa.LargeStringArray) -> UInt64:
    """Return a 64-bit hash of each key, the same on every machine: uint64 of shape (n,)."""
    num_words = np.maximum(_HASH_WORDS, -(-np.asarray(pc.binary_length(keys), np.int64) // 8))
    state = np.full(len(keys), hash_stream(_KEY_DOMAIN), np.uint64)
    for words in np.unique(num_words).tolist():
        rows = np.flatnonzero(num_words == words)
        mixed = state[rows]
        for column in _words(keys if len(rows) == len(keys) else keys.take(pa.array(rows)), words).T:
            mixed ^= column
            mixed *= np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(32)
            mixed *= np.uint64(0xD6E8FEB86659FD93)
            mixed ^= mixed >> np.uint64(29)
        state[rows] = mixed
    return state


def _words(keys: pa.LargeStringArray, num_words: int) -> UInt64:
    """Return keys padded with NULs, as uint64 of shape (n, num_words)."""
    width = 8 * num_words
    fill = width - np.asarray(pc.binary_length(keys), np.int64)
    zeros = large_binary(fill, np.zeros(int(fill.sum()), np.uint8))
    joined = pc.binary_join_element_wise(keys.cast(pa.large_binary()), zeros, pa.scalar(b"", pa.large_binary()))
    flat = np.frombuffer(joined.buffers()[2] or b"", np.uint8)[: len(keys) * width]
    return flat.reshape(-1, width).view("<u8")


class DuplicateKey(NamedTuple):
    """A duplicate key: its first place, and the place where it appears again."""

    key: str
    first: str
    again: str

    def error(self, kind: type[InputError] | type[CorruptDataError], remedy: str, url: str = "") -> WdsplitError:
        """Return the error for this key."""
        return kind(
            "duplicate key",
            place=self.again,
            expected="each key once in the whole dataset",
            found=f"{self.key!r}, which is also in {self.first}",
            remedy=remedy,
            url=url,
            key=self.key,
        )


def find_duplicate_keys(
    hashes: Sequence[UInt64], read_keys: Callable[[UInt64], Iterable[tuple[pa.LargeStringArray, Place]]]
) -> Iterator[DuplicateKey]:
    """Yield the keys that appear more than once, in the order in which they are read.

    Args:
        hashes: The hashes of all keys, from `hash_keys`; uint64.
        read_keys: Yields batches of escaped keys, with their place: one for all, or a function of a key's number in
            the batch. It is called only if hashes repeat, gets these hashes, and may skip batches without them.
    """
    ordered = np.sort(np.concatenate([np.zeros(0, np.uint64), *hashes]))
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(suspects):
        return
    first: dict[str, str] = {}
    for keys, place in read_keys(suspects):
        for number in np.flatnonzero(np.isin(hash_keys(keys), suspects)).tolist():
            key, found_at = keys[number].as_py(), place if isinstance(place, str) else place(number)
            if key in first:
                yield DuplicateKey(key, first[key], found_at)
            else:
                first[key] = found_at
