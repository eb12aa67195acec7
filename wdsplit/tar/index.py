"""The index of a shard: where each sample begins, as native little-endian uint64.

Pure (no I/O). n + 1 entries: the offset of each sample's first header, then that of the first end-of-archive block.
Megatron-Energon reads the same file (its `.tar.idx`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wdsplit.errors import CorruptDataError
from wdsplit.tar.headers import BLOCK_BYTES

__all__ = ["INDEX_ENTRY_BYTES", "dump_index", "parse_index"]

INDEX_ENTRY_BYTES = 8


def dump_index(offsets: npt.NDArray[np.int64]) -> bytes:
    """Return the bytes of an index: int64 offsets of shape (n + 1,) as little-endian uint64."""
    return offsets.astype("<u8").tobytes()


def parse_index(data: bytes, num_samples: int, num_bytes: int) -> npt.NDArray[np.int64]:
    """Parse an index and check it against the manifest's row of its shard.

    Args:
        data: The bytes of the index.
        num_samples: Samples in the shard, pads included.
        num_bytes: Size of the shard in bytes.

    Returns:
        int64 of shape (num_samples + 1,), strictly increasing.

    Raises:
        CorruptDataError: The index has another length, or invalid offsets.
    """
    remedy = "the index does not belong to this shard: copy or convert both again"
    if len(data) != INDEX_ENTRY_BYTES * (num_samples + 1):
        raise CorruptDataError(
            "invalid length of an index",
            expected=f"{INDEX_ENTRY_BYTES * (num_samples + 1)} bytes ({num_samples} samples + 1 entries of 8)",
            found=f"{len(data)} bytes",
            remedy=remedy,
        )
    offsets = np.frombuffer(data, "<u8")
    rising = bool((offsets[1:] > offsets[:-1]).all())
    if offsets[0] != 0 or not rising or offsets[-1] > num_bytes or (offsets % BLOCK_BYTES).any():
        raise CorruptDataError(
            "invalid offsets in an index",
            expected=f"increasing multiples of 512, from 0 to at most {num_bytes}",
            found=f"{offsets[0]} ... {offsets[-1]}",
            remedy=remedy,
        )
    return offsets.astype(np.int64)
