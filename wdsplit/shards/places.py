"""The places of a shard, in a file beside it: `tar.places` defines the format."""

from __future__ import annotations

from collections.abc import Sequence

from wdsplit.errors import CorruptDataError
from wdsplit.shards.manifest import Shard
from wdsplit.storage.interface import ReadableStorage
from wdsplit.tar.places import Places, max_places_bytes, parse_places

__all__ = ["places_path", "read_places"]


def places_path(path: str) -> str:
    """Return the path of a shard's places."""
    return f"{path}.places"


def read_places(storage: ReadableStorage, shard: Shard, names: Sequence[str]) -> Places:
    """Read the places of a shard, given the manifest's fields, and compare them with its row there.

    Raises:
        DatasetNotFoundError: There are none.
        CorruptDataError: They are damaged, or belong to another tar.
    """
    path = places_path(shard.path)
    data = storage.read(path, max_places_bytes(shard.num_samples, len(names), shard.num_bytes))
    try:
        return parse_places(data, shard.num_bytes, shard.checksum.partition(":")[2], shard.num_samples, names)
    except CorruptDataError as error:
        error.url = f"{storage.url}/{path}"
        raise error.in_dataset(storage.url, path) from error
