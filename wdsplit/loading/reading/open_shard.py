"""Shards that are open for reading, with their indexes; `read_windows` reads their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, UnansweredError, WdsplitError
from wdsplit.loading.reading.ranges import Range, expected_ranges, ranges_to_read
from wdsplit.shards.checksums import checksums_bytes, checksums_path, parse_checksums
from wdsplit.shards.manifest import HEADER_NAME, Shard, index_path, shards_checksum
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.storage.locks import ProcessLock
from wdsplit.storage.remote import RemoteFile
from wdsplit.tar.headers import BLOCK_BYTES
from wdsplit.tar.index import INDEX_ENTRY_BYTES, parse_index

__all__ = [
    "GuardedFile",
    "OpenShard",
    "OpenedHeader",
    "check_end",
    "check_tail",
    "check_zeros",
    "open_shard",
    "with_checksums",
]


@dataclass(frozen=True)
class OpenShard:
    """A shard that is open for reading.

    Attributes:
        url: Its name in messages.
        file: Its file.
        offsets: Its index: int64 of shape (num_samples + 1,), pads included.
        again: Opens another copy when this one is damaged; None if there is no other.
        checksums: uint64 of shape (num_samples,): the samples' checksums, which all that is read is compared with; None
            to compare nothing.
        indexes: The folder with its index, if it is a tar without a manifest; else empty.
    """

    url: str
    file: ReadableFile
    offsets: Int64
    again: Callable[[], OpenShard] | None = None
    checksums: npt.NDArray[np.uint64] | None = None
    indexes: str = ""

    def explained(self, error: WdsplitError) -> WdsplitError:
        """Return an error of this shard; if its index was made without its owner, with what to do about that index."""
        if self.indexes and isinstance(error, CorruptDataError):
            error.cause = f"a tar was changed after it was indexed, or is damaged: {error.cause}"
            error.remedy = f"remove its index {self.indexes}, which was kept because its size and time are the same, "
            error.remedy += "and open the tar again; if the error stays, copy the tar again"
        return error

    @cached_property
    def data(self) -> memoryview:
        """All its bytes, read and kept."""
        data = memoryview(np.empty(self.file.size, np.uint8).data)
        self.file.read_into(data, 0)
        return data

    def read(self, begin: int, end: int) -> memoryview | bytes:
        """Return the bytes begin, ..., end - 1; if all were read, from what was kept."""
        return self.data[begin:end] if "data" in vars(self) else self.file.read(begin, end - begin)

    def fetch_again(self) -> None:
        """Forget the bytes that were kept."""
        vars(self).pop("data", None)

    def end(self, stop: int) -> int:
        """Return the byte up to which samples that end before `stop` are read.

        The last samples of a remote shard are read with the block after them, which tells whether the index is right.
        """
        end = int(self.offsets[stop])
        is_last = stop == len(self.offsets) - 1
        return min(end + BLOCK_BYTES, self.file.size) if is_last and self.file.is_remote else end

    def ranges(self, first: int, stop: int, chosen: Int64 | None = None, end: int | None = None) -> list[Range]:
        """Return the bytes to read for the samples first, ..., stop - 1, or for those chosen of them.

        Args:
            first: The first sample.
            stop: The sample after the last.
            chosen: int64 of shape (n,), rising: those to read, the first and the last among them; None for all.
            end: Where the last range ends; None for the end of the last sample.
        """
        end = int(self.offsets[stop]) if end is None else end
        if chosen is None:
            return [(int(self.offsets[first]), end)]
        ranges = ranges_to_read(self.offsets[chosen], self.offsets[chosen + 1])
        ranges[-1] = ranges[-1][0], end
        return ranges

    def expect(self, first: int, stop: int, chosen: Int64 | None = None) -> None:
        """Let the system begin to read samples that are needed soon; arguments as in `ranges`."""
        if self.file.is_remote:
            return
        ranges = self.ranges(first, stop)
        if chosen is not None:
            ranges = expected_ranges(self.offsets[chosen], self.offsets[chosen + 1])
        for begin, end in ranges:
            self.file.expect(begin, end - begin)


class OpenedHeader:
    """The header of a dataset when it was opened, to notice that the dataset is overwritten while it is read.

    A conversion removes the header before it changes any shard, and writes the new one last. So bytes that were read
    before a check began are those of the dataset that was opened.

    Args:
        checksum: The checksum of the shard table in the header.
    """

    def __init__(self, checksum: str) -> None:
        self._checksum = checksum
        self._lock = ProcessLock()
        self._num_begun = self._last_passed = 0
        self._version = ""

    def __reduce__(self) -> tuple[type[OpenedHeader], tuple[str]]:
        return type(self), (self._checksum,)

    @property
    def moment(self) -> int:
        """The present, for `check`: the number of checks that have begun."""
        return self._num_begun

    def check(self, storage: ReadableStorage, since: int | None = None, is_waiting: bool = True) -> bool:
        """Compare the dataset's header with the one that was opened, unless another thread has done so.

        Args:
            storage: The dataset.
            since: The `moment` after which the check must begin; None for now.
            is_waiting: Whether to wait for the check of another thread; else nothing may be checked.

        Returns:
            Whether the dataset was still the same after that moment.

        Raises:
            DatasetNotFoundError: The dataset was overwritten or removed.
        """
        since = self._num_begun if since is None else since
        if self._last_passed <= since and self._lock.acquire(is_waiting):
            try:
                if self._last_passed <= since:
                    self._num_begun = number = self._num_begun + 1
                    self._compare(storage)
                    self._last_passed = number
            finally:
                self._lock.release()
        return self._last_passed > since

    def _compare(self, storage: ReadableStorage) -> None:
        try:
            file = storage.open(HEADER_NAME)
            if self._version and file.version == self._version:
                return
            whole = file.read_whole() if isinstance(file, RemoteFile) else file.read(0, file.size)
            found = shards_checksum(whole)
        except (DatasetNotFoundError, CorruptDataError, InputError) as error:
            raise self._overwritten(storage, f"{HEADER_NAME}: {error.cause}") from error
        if found != self._checksum:
            raise self._overwritten(storage, f"shards {found}")
        self._version = file.version

    def _overwritten(self, storage: ReadableStorage, found: str) -> DatasetNotFoundError:
        return DatasetNotFoundError(
            "the dataset was overwritten or removed while it was read",
            place=storage.url,
            expected=f"shards {self._checksum}, as when it was opened",
            found=found,
            remedy="open the dataset again; to keep one that is in use, convert to another folder",
            url=storage.url,
        )

    @contextmanager
    def explaining(self, storage: ReadableStorage) -> Iterator[None]:
        """Raise the error of `check` instead of another one, if that is its reason."""
        try:
            yield
        except UnansweredError:
            raise
        except WdsplitError:
            self.check(storage)
            raise

    def guarded(self, shard: OpenShard, storage: ReadableStorage) -> OpenShard:
        """Return a shard that was just opened, and gives no bytes of a dataset that was overwritten.

        An open file of a file system keeps its bytes, so one check is enough. Bytes of a store are checked after they
        were read: each time, unless the first answer fixed the object's version.
        """
        if isinstance(shard.file, RemoteFile):
            return replace(shard, file=GuardedFile(shard.file, self, storage))
        self.check(storage)
        return shard


class GuardedFile:
    """A file in a store, as from `OpenedHeader.guarded`: a `ReadableFile`."""

    is_remote = True

    def __init__(self, file: RemoteFile, header: OpenedHeader, storage: ReadableStorage) -> None:
        self._file, self._header, self._storage = file, header, storage
        self._is_checked = False

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self._file.size

    @property
    def version(self) -> str:
        """Its version."""
        return self._file.version

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        self.read_unchecked(buffer, offset)
        self.check(self.moment)

    def read_unchecked(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with bytes, which the caller checks before they are delivered."""
        with self._header.explaining(self._storage):
            self._file.read_into(buffer, offset)

    @property
    def moment(self) -> int:
        """The present, for `check`."""
        return self._header.moment

    def check(self, since: int, is_waiting: bool = True) -> None:
        """Check what was read until a moment; arguments and errors as for `OpenedHeader.check`."""
        if not self._is_checked and self._header.check(self._storage, since, is_waiting):
            self._is_checked = self._file.keeps_version

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing, as `RemoteFile` does."""


def open_shard(storage: ReadableStorage, shard: Shard, indexes: str = "") -> OpenShard:
    """Open a shard and its index.

    Args:
        storage: The dataset.
        shard: The shard from the manifest.
        indexes: As for `OpenShard`.

    Raises:
        DatasetNotFoundError: One of them is missing.
        CorruptDataError: Its size or index does not match the manifest, or the shard continues after its last sample.
    """
    file = storage.open(shard.path, shard.num_bytes)
    url = f"{storage.url}/{shard.path}"
    if file.size != shard.num_bytes:
        raise CorruptDataError(
            "a shard has another size than the manifest says",
            place=url,
            expected=f"{shard.num_bytes} bytes",
            found=f"{file.size} bytes",
            remedy="the file was truncated or changed: copy it again, or convert again with --overwrite",
            url=url,
        )
    max_index_bytes = INDEX_ENTRY_BYTES * (shard.num_samples + 1) + BLOCK_BYTES  # parse_index says what is right
    try:
        index = storage.read(index_path(shard.path), max_index_bytes)
        opened = OpenShard(url, file, parse_index(index, shard.num_samples, shard.num_bytes), indexes=indexes)
        try:
            if not file.is_remote:
                check_end(opened)
        except CorruptDataError as error:
            raise opened.explained(error) from error
        return opened
    except CorruptDataError as error:
        error.url = index_path(url)
        raise error.at(error.url) from error


def with_checksums(opened: OpenShard, storage: ReadableStorage, shard: Shard) -> OpenShard:
    """Return the shard with its samples' checksums, which all that is read is compared with.

    Raises:
        InputError: The dataset has no checksums of samples.
        CorruptDataError: They are damaged.
    """
    path = checksums_path(shard.path)
    place = f"{storage.url}/{path}"
    try:
        checksums = parse_checksums(storage.read(path, checksums_bytes(shard)), shard)
    except DatasetNotFoundError:
        raise InputError(
            "the dataset has no checksums of samples, which verify=True compares",
            place=place,
            remedy=f"make them with `wdsplit verify {storage.url} --emit checksums`, or leave out verify=True",
            url=place,
        ) from None
    except CorruptDataError as error:
        raise error.in_dataset(storage.url, path) from error
    return replace(opened, checksums=checksums)


def check_end(shard: OpenShard) -> None:
    """Refuse a shard that continues after the last sample of its index: fields would be lost silently.

    Raises:
        CorruptDataError: It does.
    """
    begin = int(shard.offsets[-1])
    check_zeros(shard.file.read(begin, min(BLOCK_BYTES, shard.file.size - begin)), begin)


def check_zeros(block: memoryview | bytes, offset: int) -> None:
    """Refuse the block after the last sample of an index unless it is all zeros."""
    if any(block):
        raise CorruptDataError(
            "a shard continues after the last sample of its index",
            expected=f"zero bytes from byte {offset} on",
            found="other bytes",
            remedy="the index does not belong to this shard, or was changed: copy or convert both again",
            offset=offset,
        )


def check_tail(shard: OpenShard) -> CorruptDataError | None:
    """Return what is wrong with the end of a shard, if anything: only zeros may follow the last sample.

    Their number depends on the writer: wdsplit and GNU tar fill up to 10,240 bytes, others end with two blocks, or
    none.
    """
    begin = int(shard.offsets[-1])
    tail = shard.file.size - begin
    clean = not np.frombuffer(shard.read(begin, shard.file.size), np.uint8).any()
    if clean and tail % BLOCK_BYTES == 0:
        return None
    return CorruptDataError(
        "the end of a shard is damaged",
        place=f"{shard.url}, byte {begin}",
        expected="zero bytes up to the end of the file, in blocks of 512",
        found=f"{tail} bytes" if clean else f"{tail} bytes, not all zero",
        remedy="the file was changed: copy it again, or convert again with --overwrite",
        url=shard.url,
        offset=begin,
    )
