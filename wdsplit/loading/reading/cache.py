"""Whole shards on a node's own disk, downloaded once for all its processes, verified, evicted by least recent use.

An entry is named by the checksum of its bytes. So datasets share equal shards, and never read a wrong one.
`cache_folder` manages the files and their locks.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError
from wdsplit.loading.reading.cache_folder import CacheFolder, NoRoomError, PartialShard, is_downloading
from wdsplit.loading.reading.cached_file import NOTE_BYTES, CachedFile, try_lock
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.manifest import Shard, checksum_of
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.storage.local import LocalStorage, local_path
from wdsplit.tar.places import parse_places, plain_places_bytes

__all__ = ["Damage", "ShardCache"]

logger = logging.getLogger(__name__)

_CHECKSUM = re.compile(r"xxh3_128:([0-9a-f]{32})")
_READ_BYTES, _CHECKED_BYTES = 8 * 1024**2, 1024**2
"""Bytes of a request; bytes to read and hash at a time, few enough for the processor's cache."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.02, 0.2
_SAMPLES_AT_ONCE = 4096

_warned: dict[tuple[str, str], object] = {}
"""What this process has warned about: the cache's folder, and the kind of problem."""
_shrunk: set[tuple[str, int | None]] = set()
"""The caches that this process has opened, and their size limits."""


@dataclass(frozen=True)
class Damage:
    """A cached shard that was damaged and has been removed.

    Attributes:
        path: Its tar.
        cause: What was wrong.
    """

    path: str
    cause: str


class ShardCache:
    """A cache of shards in a folder, shared by all processes of the node.

    No file is touched before a shard is opened, so that a cache can be sent to other processes.

    Args:
        folder: Its folder; created if missing.
        max_bytes: Size limit for all its shards; None to keep a tenth of the disk free. Jobs that share a folder may
            have different limits: each applies its own when it opens its first shard, and when it downloads.

    Attributes:
        folder: The folder and its entries.

    Raises:
        InputError: The folder is remote.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None) -> None:
        self.folder = CacheFolder(Path(local_path(os.fspath(folder))), max_bytes)

    def open(
        self,
        storage: ReadableStorage,
        shard: Shard,
        names: tuple[str, ...],
        is_needed: Callable[[], bool] = lambda: True,
    ) -> OpenShard | None:
        """Open a shard of a dataset; download it if it is not cached, or if the cached file was changed.

        Its checksum is compared once per boot of the node, and after its file was written to. Threads and processes may
        open it at the same time: one downloads or checks, the others wait for it.

        Args:
            storage: Where the dataset is.
            shard: The shard, as its manifest has it.
            names: The fields of the manifest.
            is_needed: Called repeatedly; when it returns False, downloading and waiting end.

        Returns:
            The shard; None if it is not needed, or if there is no room for it, which is logged once.

        Raises:
            DatasetNotFoundError: The shard, or its places, are not in the dataset.
            CorruptDataError: It does not match the manifest, even after a second download.
            StorageError: The file system or the store failed.
            InputError: The folder contains other files, or is inside the dataset.
        """
        self._shrink()
        checksum = _CHECKSUM.fullmatch(shard.checksum)
        if checksum is None:
            self._warn("checksum", f"shards without a known checksum are streamed, such as {shard.path}")
            return None
        max_bytes = self.folder.max_bytes
        num_bytes = shard.num_bytes + plain_places_bytes(shard.num_samples, len(names)) + NOTE_BYTES
        if max_bytes is not None and num_bytes > max_bytes:
            sizes = f"a shard takes {num_bytes:,} bytes, and the limit is {max_bytes:,} bytes"
            self._warn("size", f"{sizes}: such shards are streamed; give a larger cache_size")
            return None
        try:
            with self.folder.translated():
                path = self.folder.path / checksum[1][:2] / f"{checksum[1]}-{shard.num_bytes}.tar"
                return self._open(path, storage, shard, names, is_needed)
        except NoRoomError as error:
            self._warn(error.cause, f"{error.cause}: shards are streamed until there is room for them")
            return None

    def _shrink(self) -> None:
        """Evict entries beyond the size limit, once per process."""
        mine = str(self.folder.path), self.folder.max_bytes
        if mine not in _shrunk:
            _shrunk.add(mine)
            self.folder.shrink()

    def verify(self, progress: Callable[[int, int, int], object] = lambda *_: None) -> list[Damage]:
        """Check all bytes of all cached shards, and remove damaged ones, which are then downloaded again.

        Args:
            progress: Called at the beginning and after each shard with the number of checked shards, of all shards, and
                of checked bytes.

        Returns:
            The removed shards, sorted by path.

        Raises:
            InputError: The folder is not a wdsplit cache.
            StorageError: The file system failed.
        """
        damages, num_bytes, tars = [], 0, self.folder.tars()
        progress(0, len(tars), 0)
        for number, path in enumerate(tars, 1):
            with suppress(DatasetNotFoundError):  # it was evicted meanwhile
                file = CachedFile(path)
                try:
                    _check_all(file)
                except WdsplitError as error:
                    damages.append(Damage(str(path), error.cause))
                    self.folder.discard(file)
                num_bytes += file.size
            progress(number, len(tars), num_bytes)
        return damages

    def discard(self, shard: OpenShard) -> None:
        """Remove a shard of this cache that turned out to be damaged: it is downloaded when it is opened again."""
        if isinstance(shard.file, CachedFile):
            self.folder.discard(shard.file)

    def _open(
        self,
        path: Path,
        storage: ReadableStorage,
        shard: Shard,
        names: tuple[str, ...],
        is_needed: Callable[[], bool],
    ) -> OpenShard | None:
        """Open a cached shard, wait while another process or thread downloads it, or download it."""
        delay_s, places_bytes = _FIRST_DELAY_S, plain_places_bytes(shard.num_samples, len(names))
        while is_needed():
            opened = self._cached(path, f"{storage.url}/{shard.path}", shard, names, is_needed)
            if opened is not None:
                return opened
            if not is_downloading(path):
                self._check_apart(storage)
                part = self.folder.reserve(path, shard.num_bytes, places_bytes + NOTE_BYTES)
                if part is not None:
                    with part:
                        origin = open_shard(storage, shard, names)
                        if len(origin.places.data) <= places_bytes:
                            return self._downloaded(part, origin, storage, shard, is_needed)
                    places_bytes = len(origin.places.data)  # members are listed: reserve more
                    continue
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)
        return None

    def _cached(
        self, path: Path, url: str, shard: Shard, names: tuple[str, ...], is_needed: Callable[[], bool]
    ) -> OpenShard | None:
        """Open a cached shard; None if it is not cached, is no longer needed, or was damaged and removed."""
        try:
            file = CachedFile(path)
        except DatasetNotFoundError:
            return None
        if not file.is_current:
            return None
        try:
            if file.size != shard.num_bytes:
                raise CorruptDataError(f"it has {file.size} bytes")
            data = LocalStorage(str(path.parent)).read(file.places.name)[:-NOTE_BYTES]
            places = parse_places(data, shard.num_bytes, shard.checksum.partition(":")[2], shard.num_samples, names)
            opened = OpenShard(url, file, places, names)
            if not _is_checked(file, shard.checksum, is_needed):
                return None
        except (CorruptDataError, DatasetNotFoundError) as error:
            logger.warning("%s: a cached shard is damaged, and is downloaded again: %s", path, error.cause)
            self.folder.discard(file)
            return None
        file.touch()
        return opened

    def _downloaded(
        self,
        part: PartialShard,
        origin: OpenShard,
        storage: ReadableStorage,
        shard: Shard,
        is_needed: Callable[[], bool],
    ) -> OpenShard | None:
        """Download a shard for which there is room, verify and open it; None if it is no longer needed."""
        checksum = _checksum(origin.file, is_needed, part.write)
        if checksum not in (shard.checksum, None):
            logger.warning("%s: damaged during the download, and is downloaded again", origin.url)
            origin = open_shard(storage, shard, origin.names)
            checksum = _checksum(origin.file, is_needed, part.write)
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
        part.finish(origin.places.data)
        return replace(origin, file=self.folder.publish(part))

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
        """Warn once per process about one kind of problem with this cache."""
        mine = object()
        if _warned.setdefault((str(self.folder.path), kind), mine) is mine:
            logger.warning("cache %s: %s", self.folder.path, text)


def _is_checked(file: CachedFile, checksum: str, is_needed: Callable[[], bool]) -> bool:
    """Tell whether a cached shard has its checksum, which one process of this node computes.

    False if it is no longer needed, or was removed meanwhile.

    Raises:
        CorruptDataError: It has another checksum.
    """
    with suppress(FileNotFoundError):  # its places were removed
        while not file.is_checked:
            if not (is_needed() and file.is_current):
                return False
            with try_lock(file.places) as has_lock:
                if has_lock and not file.is_checked:
                    return _check(file, checksum, is_needed)
            time.sleep(_FIRST_DELAY_S)
        return True
    return False


def _check(file: CachedFile, checksum: str, is_needed: Callable[[], bool] = lambda: True) -> bool:
    """Compare the checksum of a cached shard, and record that it is right; False if the shard is no longer needed."""
    proof, found = file.proof(), _checksum(file, is_needed, num_bytes=_CHECKED_BYTES)
    if found is None:
        return False
    if found != checksum:
        raise CorruptDataError("its bytes have changed", expected=checksum, found=found)
    file.note_checked(proof)
    return True


def _check_all(file: CachedFile) -> None:
    """Check a cached shard: its bytes, and that its places lead to each of its samples.

    Raises:
        WdsplitError: It is damaged.
    """
    checksum = file.path.stem.partition("-")[0]
    _check(file, f"xxh3_128:{checksum}")
    data = LocalStorage(str(file.path.parent)).read(file.places.name)[:-NOTE_BYTES]
    places = parse_places(data, file.size, checksum)
    names = tuple(map(str, range(places.num_fields)))
    shard = OpenShard(str(file.path), file, places, names, verifies=True)
    for first in range(0, places.num_samples, _SAMPLES_AT_ONCE):
        read_window(shard, np.arange(first, min(places.num_samples, first + _SAMPLES_AT_ONCE)))


def _checksum(
    file: ReadableFile,
    is_needed: Callable[[], bool] = lambda: True,
    write: Callable[[memoryview, int], object] = lambda data, offset: None,
    num_bytes: int | None = None,
) -> str | None:
    """Read all bytes of a shard and return their checksum, or None if they are no longer needed.

    Args:
        file: The shard.
        is_needed: Called before each read.
        write: Called with the bytes of each read, and their offset.
        num_bytes: Bytes to read at a time; None for the size of a request.
    """
    num_bytes = num_bytes or _READ_BYTES
    buffer = memoryview(bytearray(min(num_bytes, file.size)))
    digest = xxhash.xxh3_128()
    for offset in range(0, file.size, num_bytes):
        if not is_needed():
            return None
        piece = buffer[: file.size - offset]
        file.read_into(piece, offset)
        digest.update(piece)
        write(piece, offset)
    return checksum_of(digest)
