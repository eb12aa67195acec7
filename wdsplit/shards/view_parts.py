"""The arrays of a large stored view, of which only the parts of those shards are read that are needed.

A part is what the arrays have of one shard. Its hash is compared when it is read; some parts stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.storage.locks import ProcessLock, end_before_forks

__all__ = ["ViewParts", "hash_of_part"]

_KEPT_BYTES = 32 * 1024**2
"""Parts in memory at most: a shard of 10,000 samples in packs has one of about 20 kB."""
_REQUESTS = 32


class ViewParts:
    """Reads parts of a view.

    Args:
        storage: The dataset's folder.
        path: The path of the view's file in it.
        file: This file.
        begin: Where the arrays begin in the file.
        types: The type of each array.
        sizes: int64 of shape (arrays, shards): the bytes of each part.
        check: Called with the number of a shard and its part of each array, when they are read; refuses a wrong one.
    """

    def __init__(
        self,
        storage: ReadableStorage,
        path: str,
        file: ReadableFile,
        begin: int,
        types: Sequence[npt.DTypeLike],
        sizes: Int64,
        check: Callable[[int, list[npt.NDArray[Any]]], None],
    ) -> None:
        self._storage, self._path, self._check = storage, path, check
        self._types, self._sizes = [np.dtype(each) for each in types], sizes
        self._ends = begin + np.cumsum(sizes).reshape(sizes.shape)
        self._open(file)

    def _open(self, file: ReadableFile) -> None:
        self._file = file
        self._kept: dict[int, list[npt.NDArray[Any]]] = {}
        self._num_kept = 0
        self._lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open and in memory: another process opens the file itself."""
        own = ("_file", "_kept", "_num_kept", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file again."""
        self.__dict__.update(state)
        self._open(self._storage.open(self._path))

    @property
    def arrays(self) -> list[Any]:
        """The arrays, of which slices can be taken."""
        return [_Array(self, number, each) for number, each in enumerate(self._types)]

    def ends(self, number: int) -> Int64:
        """Return where the part of each shard ends in an array."""
        ends: Int64 = np.cumsum(self._sizes[number]) // self._types[number].itemsize
        return ends

    def load(self, shards: Collection[int]) -> None:
        """Read the parts of some shards at the same time, if each is a request, and as far as memory is for them."""
        missing = [shard for shard in shards if shard not in self._kept] if self._file.is_remote else []
        fit = np.cumsum(self._sizes[:, missing].sum(axis=0)) <= _KEPT_BYTES
        missing = missing[: int(fit.sum())]
        numbers = range(len(self._types))
        if len(missing) * len(numbers) > 1:  # one is read where it is used
            with ThreadPoolExecutor(min(_REQUESTS, len(missing) * len(numbers)), initializer=end_before_forks) as pool:
                # by a context of its own each, so that the bytes count for the same reader
                reads = {
                    shard: [pool.submit(copy_context().run, self._read, shard, number) for number in numbers]
                    for shard in missing
                }
            for shard, part in reads.items():
                self._keep(shard, [read.result() for read in part])

    def part(self, shard: int) -> list[npt.NDArray[Any]]:
        """Return what each array has of a shard."""
        with self._lock:
            found = self._kept.pop(shard, None)
            if found is not None:
                self._kept[shard] = found  # the last one to go
                return found
        return self._keep(shard, [self._read(shard, number) for number in range(len(self._types))])

    def _read(self, shard: int, number: int) -> npt.NDArray[Any]:
        end, size = int(self._ends[number, shard]), int(self._sizes[number, shard])
        return np.frombuffer(self._file.read(end - size, size) if size else b"", self._types[number])

    def _keep(self, shard: int, part: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        self._check(shard, part)
        with self._lock:
            self._num_kept += sum(each.nbytes for each in part) if shard not in self._kept else 0
            self._kept[shard] = part
            while self._num_kept > _KEPT_BYTES:
                oldest = next(iter(self._kept))
                self._num_kept -= sum(each.nbytes for each in self._kept.pop(oldest))
        return part


class _Array:
    """One array of a view: the parts of shards, one after another."""

    def __init__(self, parts: ViewParts, number: int, dtype: np.dtype[Any]) -> None:
        self._parts, self._number, self._dtype = parts, number, dtype
        self._ends = parts.ends(number)

    def __getitem__(self, some: slice) -> npt.NDArray[Any]:
        """Return a slice of it, mostly of one shard."""
        begin, stop, _ = some.indices(int(self._ends[-1]))
        if begin >= stop:
            return np.zeros(0, self._dtype)
        first, last = np.searchsorted(self._ends, [begin, stop - 1], side="right").tolist()
        before = int(self._ends[first - 1]) if first else 0
        read = [self._parts.part(shard)[self._number] for shard in range(first, last + 1)]
        return (read[0] if first == last else np.concatenate(read))[begin - before : stop - before]


def hash_of_part(arrays: Iterable[npt.NDArray[Any]]) -> int:
    """Return the hash of what the arrays of a view have of a shard."""
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(array.data)
    return digest.intdigest()
