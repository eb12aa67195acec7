"""Finds duplicate keys, for converting tables, indexing tars and verifying datasets.

Pure (no I/O). Compares 64-bit hashes of the keys, and reads the keys themselves only where hashes are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.errors import CorruptDataError, InputError, WdsplitError
from wdsplit.fields.keys import hash_keys

__all__ = ["DuplicateKey", "Hashes", "Place", "find_duplicate_keys"]

Hashes = npt.NDArray[np.uint64]
Place = str | Callable[[int], str]


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
    hashes: Sequence[Hashes], read_keys: Callable[[Hashes], Iterable[tuple[pa.LargeStringArray, Place]]]
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
