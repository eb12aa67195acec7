"""Whole shards on a node's own disk, downloaded once for all its processes, verified, evicted by least recent use.

An entry is named by the checksum of its bytes, so datasets cannot take each other's shards, and share those that are
the same. `cache_folder` has the files and their locks.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError
from wdsplit.loading.reading.cache_folder import (
    CachedFile,
    CacheFolder,
    NoRoomError,
    PartialShard,
    is_downloading,
)
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.shards.manifest import Shard, checksum_of, index_path
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.local import LocalStorage, local_path
from wdsplit.tar.index import INDEX_ENTRY_BYTES, dump_index, parse_index

__all__ = ["ShardCache"]

logger = logging.getLogger(__name__)

_CHECKSUM = re.compile(r"xxh3_128:([0-9a-f]{32})")
_READ_BYTES = 8 * 1024**2
_FIRST_DELAY_S, _MAX_DELAY_S = 0.02, 0.2

_warned: dict[tuple[str, str], object] = {}
"""What this process has warned of: the cache's folder, and the kind of trouble."""


class ShardCache:
    """A cache of shards in a folder, shared by all processes of the node.

    Nothing is touched before a shard is opened; values of this class travel to other processes.

    Args:
        folder: Its folder; it is made if it is not there.
        max_bytes: What its shards may take together; None for as much as leaves a tenth of the disk free. If jobs that
            share a folder differ in this, each keeps to its own when it downloads.

    Attributes:
        folder: The folder, with what is in it.

    Raises:
        InputError: The folder is a remote one.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None) -> None:
        self.folder = CacheFolder(Path(local_path(os.fspath(folder))), max_bytes)

    def open(
        self, storage: ReadableStorage, shard: Shard, is_needed: Callable[[], bool] = lambda: True
    ) -> OpenShard | None:
        """Open a shard of a dataset; it is downloaded if it is not here.

        Threads and processes may do so at the same time: one downloads, the others wait for it.

        Args:
            storage: Where the dataset is.
            shard: The shard, as its manifest has it.
            is_needed: Asked now and then; when it says no, downloading and waiting end.

        Returns:
            The shard; None if it is not needed, or if there is no room for it: a warning says so once.

        Raises:
            DatasetNotFoundError: The shard, or its index, is not in the dataset.
            CorruptDataError: It is not what the manifest says, and was not when it was downloaded again.
            StorageError: The system or the store refused.
            InputError: The folder holds other files, or is inside the dataset.
        """
        checksum = _CHECKSUM.fullmatch(shard.checksum)
        if checksum is None:
            self._warn("checksum", f"shards without a known checksum are streamed, such as {shard.path}")
            return None
        num_bytes, max_bytes = shard.num_bytes + _index_bytes(shard), self.folder.max_bytes
        if max_bytes is not None and num_bytes > max_bytes:
            sizes = f"{max_bytes:,} bytes are less than a shard takes ({num_bytes:,} bytes)"
            self._warn("size", f"{sizes}: such shards are streamed; give a larger cache_size")
            return None
        try:
            with self.folder.translated():
                path = self.folder.path / checksum[1][:2] / f"{checksum[1]}-{shard.num_bytes}.tar"
                return self._open(path, storage, shard, is_needed)
        except NoRoomError as error:
            self._warn(error.cause, f"{error.cause}: shards are streamed until there is room for them")
            return None

    def discard(self, shard: OpenShard) -> None:
        """Remove a shard of this cache that turned out to be damaged: it is downloaded when it is opened again."""
        if isinstance(shard.file, CachedFile):
            self.folder.discard(shard.file)

    def _open(
        self, path: Path, storage: ReadableStorage, shard: Shard, is_needed: Callable[[], bool]
    ) -> OpenShard | None:
        """Open a shard that is here, or wait while another downloads it, or download it."""
        delay_s = _FIRST_DELAY_S
        while is_needed():
            opened = self._cached(path, f"{storage.url}/{shard.path}", shard)
            if opened is not None:
                return opened
            if not is_downloading(path):
                self._check_apart(storage)
                part = self.folder.reserve(path, shard.num_bytes, _index_bytes(shard))
                if part is not None:
                    with part:
                        return self._downloaded(part, storage, shard, is_needed)
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)
        return None

    def _cached(self, path: Path, url: str, shard: Shard) -> OpenShard | None:
        """Open a shard that is here; None if it is not, or if it was damaged and therefore removed."""
        try:
            file = CachedFile(path)
        except DatasetNotFoundError:
            return None
        if not file.is_current:
            return None
        try:
            if file.size != shard.num_bytes:
                raise CorruptDataError(f"it has {file.size} bytes")
            index = LocalStorage(str(path.parent)).read(index_path(path.name), _index_bytes(shard))
            offsets = parse_index(index, shard.num_samples, shard.num_bytes)
        except (CorruptDataError, DatasetNotFoundError) as error:
            logger.warning("%s: a cached shard is damaged, and is downloaded again: %s", path, error.cause)
            self.folder.discard(file)
            return None
        file.touch()
        return OpenShard(url, file, offsets)

    def _downloaded(
        self, part: PartialShard, storage: ReadableStorage, shard: Shard, is_needed: Callable[[], bool]
    ) -> OpenShard | None:
        """Download a shard for which there is room, verify and open it; None if it is not needed any more."""
        origin = open_shard(storage, shard)
        checksum = _copy(origin, part, shard, is_needed)
        if checksum not in (shard.checksum, None):
            logger.warning("%s: damaged on its way, and is downloaded again", origin.url)
            origin = open_shard(storage, shard)
            checksum = _copy(origin, part, shard, is_needed)
        if checksum is None:
            return None
        if checksum != shard.checksum:
            raise CorruptDataError(
                "a shard was changed",
                place=origin.url,
                expected=shard.checksum,
                found=f"{checksum}, also when it was downloaded again",
                remedy="copy it again, or convert again with --overwrite",
                url=origin.url,
            )
        part.finish(dump_index(origin.offsets))
        return OpenShard(origin.url, self.folder.publish(part), origin.offsets)

    def _check_apart(self, storage: ReadableStorage) -> None:
        """Refuse a folder inside the dataset: its tars would be taken for the dataset's."""
        if isinstance(storage, LocalStorage):
            dataset, folder = os.path.realpath(storage.root), os.path.realpath(self.folder.path)
            if os.path.commonpath([dataset, folder]) == dataset:
                raise InputError(
                    "the cache folder is inside the dataset",
                    place=str(self.folder.path),
                    expected=f"a folder outside {storage.url}",
                    remedy="give another folder as cache_dir",
                )

    def _warn(self, kind: str, text: str) -> None:
        """Warn once in this process of one kind of trouble with this cache."""
        mine = object()
        if _warned.setdefault((str(self.folder.path), kind), mine) is mine:
            logger.warning("cache %s: %s", self.folder.path, text)


def _copy(origin: OpenShard, part: PartialShard, shard: Shard, is_needed: Callable[[], bool]) -> str | None:
    """Copy all bytes of a shard; return their checksum, or None if they are not needed any more."""
    buffer = memoryview(bytearray(min(_READ_BYTES, shard.num_bytes)))
    digest = xxhash.xxh3_128()
    for offset in range(0, shard.num_bytes, _READ_BYTES):
        if not is_needed():
            return None
        piece = buffer[: shard.num_bytes - offset]
        origin.file.read_into(piece, offset)
        digest.update(piece)
        part.write(piece, offset)
    return checksum_of(digest)


def _index_bytes(shard: Shard) -> int:
    return INDEX_ENTRY_BYTES * (shard.num_samples + 1)
