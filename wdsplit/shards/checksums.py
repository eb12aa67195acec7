"""The checksums of a shard's samples, in a file beside it: little-endian uint64.

Pure (no I/O). n + 1 entries: xxh3_64 of each sample's bytes, headers and padding included, then a seal: the hash of all
entries and the shard's own checksum. The seal detects a changed file, and one that belongs to another shard.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash

from wdsplit.arrays import UInt64
from wdsplit.errors import CorruptDataError
from wdsplit.shards.manifest import Shard

__all__ = ["checksums_bytes", "checksums_path", "dump_checksums", "parse_checksums", "sample_checksums"]

_ENTRY_BYTES = 8


def checksums_path(path: str) -> str:
    """Return the path of the checksums of a shard's samples."""
    return f"{path}.sums"


def checksums_bytes(shard: Shard) -> int:
    """Return the size of the checksums of a shard's samples in bytes."""
    return _ENTRY_BYTES * (shard.num_samples + 1)


def sample_checksums(samples: Iterable[memoryview | bytes]) -> UInt64:
    """Return the checksums of n samples, given the bytes of each: uint64 of shape (n,)."""
    return np.array([xxhash.xxh3_64_intdigest(sample) for sample in samples], np.uint64)


def dump_checksums(checksums: UInt64, shard: Shard) -> bytes:
    """Return the bytes of the file."""
    entries = checksums.astype("<u8").tobytes()
    return entries + _seal(entries, shard)


def parse_checksums(data: bytes, shard: Shard) -> UInt64:
    """Parse the file: uint64 of shape (num_samples,).

    Raises:
        CorruptDataError: It is damaged, or belongs to another shard.
    """
    entries = data[:-_ENTRY_BYTES]
    if len(data) != checksums_bytes(shard) or data[-_ENTRY_BYTES:] != _seal(entries, shard):
        raise CorruptDataError(
            "the checksums of samples do not belong to their shard",
            expected=f"{shard.num_samples} checksums of the shard {shard.checksum}",
            found=f"{len(data)} bytes that were changed, or made for another shard",
            remedy="make them again with `wdsplit verify DATASET --emit checksums`",
        )
    return np.frombuffer(entries, "<u8").astype(np.uint64)


def _seal(entries: bytes, shard: Shard) -> bytes:
    return xxhash.xxh3_64_intdigest(entries + shard.checksum.encode()).to_bytes(_ENTRY_BYTES, "little")
