"""The keys that were erased from a dataset, as salted hashes: an append must not bring them back unnoticed.

Each version that erased samples has a file of the salt, then the hashes in ascending order. The provenance of the
manifest lists these files. Hashes tell whether a known key was erased, but no key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from wdsplit.errors import CorruptDataError
from wdsplit.order.selection import Mask
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.versions import VERSIONS_FOLDER
from wdsplit.storage.interface import ReadableStorage

__all__ = ["ErasedKeys", "dump_erased", "hash_erased", "read_erased"]

_BYTES = 16
"""Bytes of a salt, and of a hash."""
_PATH = re.compile(rf"{VERSIONS_FOLDER}/\d+-[0-9a-f]{{16}}\.erased")


def _hash(key: str, salt: bytes) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=_BYTES, salt=salt).digest()


@dataclass(frozen=True)
class ErasedKeys:
    """The keys that were erased: for each version that erased some, the salt and the hashes."""

    parts: tuple[tuple[bytes, frozenset[bytes]], ...]

    def __bool__(self) -> bool:
        return bool(self.parts)

    def contains(self, keys: Iterable[str]) -> Mask:
        """Return which of some keys, as in tars, were erased: bool of shape (keys,)."""
        return np.array([any(_hash(key, salt) in found for salt, found in self.parts) for key in keys], np.bool_)


def hash_erased(keys: Iterable[str], fingerprint: str) -> list[str]:
    """Return the hashes of keys as text; the salt is the fingerprint of the version that has them."""
    return [_hash(key, bytes.fromhex(fingerprint)).hex() for key in keys]


def dump_erased(hashes: Iterable[str], fingerprint: str) -> bytes:
    """Return the bytes of the file of some hashes, from `hash_erased`."""
    return bytes.fromhex(fingerprint + "".join(sorted(hashes)))


def read_erased(storage: ReadableStorage, manifest: Manifest) -> ErasedKeys:
    """Read the keys that were erased up to a version.

    Raises:
        CorruptDataError: A file is damaged or missing.
    """
    parts = []
    for path in manifest.provenance.get("erased", ()):
        data = storage.read(path) if _PATH.fullmatch(path) else b""
        if len(data) < 2 * _BYTES or len(data) % _BYTES:
            raise CorruptDataError(
                "a file of hashes of erased keys is damaged",
                place=f"{storage.url}/{path}",
                expected=f"a salt and hashes of {_BYTES} bytes each",
                found=f"{len(data):,} bytes",
                remedy="copy the dataset again",
            )
        hashes = frozenset(data[begin : begin + _BYTES] for begin in range(_BYTES, len(data), _BYTES))
        parts.append((data[:_BYTES], hashes))
    return ErasedKeys(tuple(parts))
