"""Shards that are open for reading, with their places; `windows` reads their samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, UnansweredError, WdsplitError
from wdsplit.loading.reading.segments import Range, Segments, ranges_of
from wdsplit.shards.annotations import ANNOTATIONS, MISSING
from wdsplit.shards.manifest import HEADER_NAME, MAX_HEADER_BYTES, Manifest, Shard, parse_header
from wdsplit.shards.places import read_places
from wdsplit.shards.versions import version_path
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.tar.headers import BLOCK_BYTES
from wdsplit.tar.places import Places, rows_of

__all__ = ["OpenShard", "check_tail", "explaining", "open_shard", "refuse_overwritten"]


@dataclass(frozen=True)
class OpenShard:
    """A shard that is open for reading.

    Attributes:
        url: Its name in messages.
        file: Its file.
        places: Where its samples are.
        names: The fields of the dataset, in the order of the columns of `places`.
        requested: The fields to read; None for all.
        again: Opens another copy when this one is damaged; None if there is no other.
        verifies: Whether the hash of large samples is compared too, for which they are read whole.
        check_dataset: Raises an error if the dataset was overwritten since its manifest was read.
        companions: The folder with its places, if it is a tar without a manifest; else empty.
        joined: Side shards, open too: their samples are the same, in the same order, and are read as one with these.
        origin: The name of the dataset's shard, which a side shard may be read instead of; empty if this is one.
    """

    url: str
    file: ReadableFile
    places: Places
    names: tuple[str, ...]
    requested: Collection[str] | None = None
    again: Callable[[], OpenShard] | None = None
    verifies: bool = False
    check_dataset: Callable[[], object] = lambda: None
    companions: str = ""
    joined: tuple[OpenShard, ...] = ()
    origin: str = ""

    @property
    def parts(self) -> tuple[OpenShard, ...]:
        """This shard and those that are joined to it."""
        return self, *self.joined

    def explained(self, error: CorruptDataError) -> CorruptDataError:
        """Return an error of a sample, with what to do about a side shard, or about places of a tar without a manifest.

        Raises:
            DatasetNotFoundError: The dataset was overwritten, which is the reason.
        """
        self.check_dataset()
        if self.names[-1:] == (MISSING,):
            error.remedy = error.remedy.replace("convert again", "make the annotation again")
        if self.companions:
            error.cause = f"a tar was changed after it was indexed, or is damaged: {error.cause}"
            error.remedy = (
                f"remove its index {self.companions}, which was kept because its size and time are the same, "
            )
            error.remedy += "and open the tar again; if the error stays, copy the tar again"
        return error

    @cached_property
    def columns(self) -> list[int]:
        """The columns of the requested fields."""
        return [number for number, name in enumerate(self.names) if self.requested is None or name in self.requested]

    def narrowed(self, fields: Collection[str] | None) -> OpenShard:
        """Return the same shard, of which other fields are read, None for all; without joined ones."""
        return replace(self, requested=fields, joined=())

    @property
    def read_columns(self) -> list[int]:
        """The columns of the fields that are read: all, if hashes of whole samples are compared."""
        return list(range(len(self.names))) if self.verifies else self.columns

    def segments(self, samples: Int64) -> Segments:
        """Return what is read of some samples: int64 of shape (n,), rising."""
        return Segments.of(rows_of([(self.places, samples)]), self.read_columns)

    def ranges(self, samples: Int64) -> list[Range]:
        """Return the bytes to read for some samples, as for `segments`."""
        segments = self.segments(samples)
        _, begins, ends = ranges_of(segments.begins, segments.ends, np.zeros(len(samples), np.int64))
        return list(zip(begins, ends, strict=True))


def refuse_overwritten(storage: ReadableStorage, manifest: Manifest) -> None:
    """Refuse a dataset whose header, or an annotation whose folder, is not the one that was opened.

    Raises:
        DatasetNotFoundError: It was overwritten or removed.
    """
    try:
        found, latest = "", 0
        if manifest.shards_checksum:
            header = parse_header(storage.read(HEADER_NAME, MAX_HEADER_BYTES))
            found, latest = header["shards_checksum"], header["version"]
        if found != manifest.shards_checksum:  # a version that is not the latest any more
            with suppress(DatasetNotFoundError):
                own = storage.read(version_path(manifest.version), MAX_HEADER_BYTES)
                found = parse_header(own)["shards_checksum"]
    except (DatasetNotFoundError, CorruptDataError, InputError) as error:
        found = f"{HEADER_NAME}: {error.cause}"
    if found != manifest.shards_checksum:
        is_old = latest > manifest.version
        keep = "let `wdsplit gc --keep N` keep it" if is_old else "convert to another folder"
        raise DatasetNotFoundError(
            f"version {manifest.version} of the dataset was removed by `wdsplit gc` while it was read"
            if is_old
            else "the dataset was overwritten or removed while it was read",
            place=storage.url,
            expected=f"shards {manifest.shards_checksum}, as when it was opened",
            found=found,
            remedy=f"open the dataset again; to keep one that is in use, {keep}",
            url=storage.url,
        )
    match manifest.provenance:
        case {"annotation": str(name), "version": str(version), "folder": str(folder)}:  # of side shards
            try:
                found = ANNOTATIONS.read(storage, name, ANNOTATIONS.path(name, version)).folder
            except (DatasetNotFoundError, CorruptDataError, InputError) as error:
                found = error.cause
            if found != folder:
                raise DatasetNotFoundError(
                    f"annotation {name!r} was replaced or removed while it was read",
                    place=storage.url,
                    expected=f"the folder {folder}, as when it was opened",
                    found=found,
                    remedy="open the dataset again; to keep one that is in use, give the new one another name",
                    url=storage.url,
                )


@contextmanager
def explaining(check_dataset: Callable[[], object]) -> Iterator[None]:
    """Raise the error of `check_dataset` instead of another one, if that is its reason."""
    try:
        yield
    except UnansweredError:
        raise
    except WdsplitError:
        check_dataset()
        raise


def open_shard(
    storage: ReadableStorage, shard: Shard, names: tuple[str, ...], requested: Collection[str] | None = None
) -> OpenShard:
    """Open a shard and its places.

    The tar is opened first, because a conversion replaces places before their tar: then places that match the manifest
    belong to the tar that was opened. Where single fields are read, the size is asked of the store even if it is known:
    the answer fixes the version, as the hashes of whole samples do otherwise.

    Args:
        storage: The dataset.
        shard: The shard.
        names: The fields of the manifest.
        requested: The fields to read; None for all.

    Raises:
        DatasetNotFoundError: One of them is missing.
        CorruptDataError: They do not match the manifest.
    """
    is_fixed = requested is None or not storage.is_remote or {*names} <= {*requested, MISSING}
    file = storage.open(shard.path, shard.num_bytes if is_fixed else None)
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
    return OpenShard(url, file, read_places(storage, shard, names), names, requested)


def check_tail(shard: OpenShard, end: memoryview | None = None) -> CorruptDataError | None:
    """Return what is wrong with the end of a shard, if anything: only zeros may follow the last sample.

    Their number depends on the writer: wdsplit and GNU tar fill up to 10,240 bytes, others end with two blocks, or
    none.

    Args:
        shard: The shard.
        end: The last bytes of its file, if they are in memory; they need not be read again if they are the whole end.
    """
    begin = shard.places.end
    tail = shard.file.size - begin
    data = end if end is not None and len(end) == tail else shard.file.read(begin, tail)
    clean = not np.frombuffer(data, np.uint8).any()
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
