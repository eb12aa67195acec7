"""The places of a shard: where each payload lies, and the hash of each sample. All that a reader needs besides the tar.

Pure (no I/O). A head of 64 bytes, then a row for each sample, pads included, all little-endian:

    head   "wdpl", u16 1, u16 flags, u32 fields, u32 0, u64 samples, u64 bytes of the tar, u64 end of the last sample,
           16 bytes: xxh3_128 of the tar, u64: xxh3_64 of all other bytes of the file
    row    u64 offset of the sample's first header, u64 xxh3_64 of its bytes, then u32 for each field: the size of its
           payload, 2^32 - 1 where the sample lacks it

The offsets of payloads follow from the sizes, because members have one header each, in the order of the fields. Where
that is not so (tars of other programs, names over 99 bytes, payloads of 4 GiB), the flag LISTED is set and rows are

    row    u64 offset, u64 hash, u64 members up to and with this sample, u64 bytes of keys up to and with this sample
    then   for each member u32 field, u32 0, u64 offset of the payload, u64 size; then the keys, and the names of the
           fields, which these numbers count, with newlines between them; as UTF-8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from wdsplit.arrays import Int64, UInt64
from wdsplit.errors import CorruptDataError
from wdsplit.tar.headers import BLOCK_BYTES, NAME_BYTES, padding_bytes
from wdsplit.tar.members import Body
from wdsplit.tar.names import split_member
from wdsplit.tar.samples import TarSamples

__all__ = [
    "HEAD_BYTES",
    "Places",
    "PlacesBuilder",
    "Rows",
    "hash_samples",
    "is_places",
    "max_places_bytes",
    "padded",
    "parse_places",
    "plain_places_bytes",
    "rows_of",
    "scanned_places",
]

HEAD_BYTES = 64
_HEAD = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("fields", "<u4"),
        ("unused", "<u4"),
        ("samples", "<u8"),
        ("num_bytes", "<u8"),
        ("end", "<u8"),
        ("checksum", "V16"),
        ("hash", "<u8"),
    ]
)
_LISTED = 1
_ABSENT = 2**32 - 1
_LISTED_ROW = np.dtype([("offset", "<u8"), ("hash", "<u8"), ("members", "<u8"), ("keys", "<u8")])
_MEMBER = np.dtype([("field", "<u4"), ("unused", "<u4"), ("offset", "<u8"), ("size", "<u8")])


def padded(sizes: Int64) -> Int64:
    """Return the bytes of payloads in whole blocks."""
    return sizes + padding_bytes(sizes)


def _row(num_fields: int) -> np.dtype[np.void]:
    return np.dtype([("offset", "<u8"), ("hash", "<u8"), ("sizes", "<u4", (num_fields,))])


@dataclass(frozen=True)
class Rows:
    """The places of n samples, in any order and of any shards.

    Attributes:
        begins: int64 of shape (n,): the offset of each sample's first header.
        ends: int64 of shape (n,): where the next sample begins.
        hashes: uint64 of shape (n,): xxh3_64 of the bytes between.
        starts: int64 of shape (n, fields): the offset of each payload.
        sizes: int64 of shape (n, fields): its bytes; -1 where the sample lacks the field.
        keys: object of shape (n,): the keys, if members are listed. None for samples whose keys are in their headers;
            and instead of the array, if that is all of them.
    """

    begins: Int64
    ends: Int64
    hashes: UInt64
    starts: Int64
    sizes: Int64
    keys: npt.NDArray[np.object_] | None

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the places of the samples of all parts, without keys."""
        names = "begins", "ends", "hashes", "starts", "sizes"
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
        begins, ends, hashes, starts, sizes = columns
        return cls(begins, ends, hashes, starts, sizes, None)

    def slice(self, first: int, stop: int) -> Rows:
        """Return the places of some of the samples."""
        some, keys = slice(first, stop), self.keys
        rows = self.begins[some], self.ends[some], self.hashes[some], self.starts[some], self.sizes[some]
        return Rows(*rows, None if keys is None else keys[some])

    def at(self, offset: int) -> Rows:
        """Return the places that the samples have when they lie one after another, from an offset on."""
        num_bytes = self.ends - self.begins
        ends = offset + np.cumsum(num_bytes)
        starts = self.starts + (ends - num_bytes - self.begins)[:, None]
        return Rows(ends - num_bytes, ends, self.hashes, starts, self.sizes, self.keys)


@dataclass(frozen=True)
class Places:
    """The places of a shard, as they are stored.

    Attributes:
        num_samples: Its samples, pads included.
        num_fields: The fields of its dataset.
        num_bytes: Bytes of its tar.
        end: The offset at which its last sample ends.
        checksum: The xxh3_128 of its tar, 32 hexadecimal digits.
        data: The bytes of the file.
    """

    num_samples: int
    num_fields: int
    num_bytes: int
    end: int
    checksum: str
    data: bytes | memoryview
    _rows: npt.NDArray[np.void]
    _members: tuple[Int64, Int64, Int64] | None = None
    _keys: pa.LargeStringArray | None = None

    @property
    def is_listed(self) -> bool:
        """Whether each member is listed, because offsets do not follow from sizes."""
        return self._members is not None

    def begin_of(self, sample: int) -> int:
        """Return the offset of a sample's first header; of the sample after the last, where the last ends."""
        return self.end if sample == self.num_samples else int(self._rows["offset"][sample])

    def offsets(self) -> Int64:
        """Return where each sample begins, and where the last ends: int64 of shape (num_samples + 1,)."""
        return np.append(self._rows["offset"].astype(np.int64), self.end)

    def listed(self, chosen: Int64 | slice) -> Rows:
        """Return the places of some samples of a shard whose members are listed."""
        assert self._members is not None and self._keys is not None
        samples = np.arange(self.num_samples)[chosen]
        stops = self._rows["members"].astype(np.int64)
        firsts = np.concatenate([[0], stops[:-1]])[samples]
        counts = stops[samples] - firsts
        row = np.repeat(np.arange(len(samples)), counts)
        inside = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        field, offset, size = (column[firsts[row] + inside] for column in self._members)
        starts = np.zeros((len(samples), self.num_fields), np.int64)
        sizes = np.full((len(samples), self.num_fields), -1, np.int64)
        starts[row, field], sizes[row, field] = offset, size
        offsets = self.offsets()
        hashes = self._rows["hash"][samples].astype(np.uint64)
        keys = self._keys.take(pa.array(samples)).to_numpy(zero_copy_only=False)
        return Rows(offsets[samples], offsets[samples + 1], hashes, starts, sizes, keys)


def rows_of(parts: Sequence[tuple[Places, Int64 | slice]]) -> Rows:
    """Return the places of samples of any shards, one shard's after another's.

    Args:
        parts: Places of a shard, and its samples: int64 of shape (n,), or a slice with both ends and a step of 1.

    Raises:
        CorruptDataError: They lie outside the tar.
    """
    if any(places.is_listed for places, _ in parts):
        found = [places.listed(chosen) if places.is_listed else _plain([(places, chosen)]) for places, chosen in parts]
        keys = [np.full(len(each.begins), None) if each.keys is None else each.keys for each in found]
        rows = replace(Rows.joined(found), keys=np.concatenate(keys))
    else:
        rows = _plain(parts)
    num_bytes = max(places.num_bytes for places, _ in parts)
    is_inside = (rows.begins >= 0) & (rows.ends > rows.begins) & (rows.ends <= num_bytes)
    if not is_inside.all() or ((rows.begins | rows.ends) % BLOCK_BYTES).any():
        raise _damaged("samples outside the tar", f"offsets from 0 to {num_bytes}")
    return rows


def _plain(parts: Sequence[tuple[Places, Int64 | slice]]) -> Rows:
    """Return the places of samples whose members have one header each: offsets follow from sizes."""
    found = [places._rows[samples] for places, samples in parts]
    stored = found[0] if len(found) == 1 else np.concatenate(found)
    begins, sizes = stored["offset"].astype(np.int64), stored["sizes"].astype(np.int64)
    is_there = sizes != _ABSENT
    if is_there.all():
        spans = BLOCK_BYTES + padded(sizes)
    else:
        sizes[~is_there] = -1
        spans = np.where(is_there, BLOCK_BYTES + padded(sizes), 0)
    stops = begins[:, None] + np.cumsum(spans, axis=1)
    return Rows(begins, stops[:, -1], stored["hash"].astype(np.uint64), stops - spans + BLOCK_BYTES, sizes, None)


class PlacesBuilder:
    """Collects the places of a shard while its tar is written.

    Args:
        fields: All fields of the dataset, in the order of a sample's members.

    Attributes:
        end: The offset at which the last sample so far ends.
        num_samples: Samples so far.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.end = self.num_samples = 0
        self._fields = fields
        self._is_plain = True
        none, no_fields = np.zeros(0, np.int64), np.zeros((0, len(fields)), np.int64)
        self._rows = [Rows(none, none, none.astype(np.uint64), no_fields, no_fields, None)]
        self._keys: list[pa.Array] = []

    def append(self, body: Body, hashes: UInt64) -> None:
        """Add the next samples, with the hash of each."""
        one_header = (body.header_bytes == BLOCK_BYTES) & (body.sizes < _ABSENT)
        self._is_plain &= bool(((body.sizes < 0) | one_header).all())
        ends = self.end + np.cumsum(body.sample_bytes)
        spans = np.where(body.sizes < 0, 0, body.header_bytes + padded(body.sizes))
        begins = ends - body.sample_bytes
        starts = begins[:, None] + np.cumsum(spans, axis=1) - spans + body.header_bytes
        self._keys.append(body.keys)
        self._add(Rows(begins, ends, hashes, starts, body.sizes, None))

    def copy(self, rows: Rows, data: bytes) -> None:
        """Add neighbouring samples that are copied from another tar, by their places in it and their bytes."""
        if rows.keys is None:  # needed if other samples of the shard have to be listed
            firsts = (rows.begins - rows.begins[0]).tolist()
            names = (data[first : first + NAME_BYTES].partition(b"\0")[0] for first in firsts)
            keys = pa.array([key for key, _ in filter(None, map(split_member, names))], pa.large_binary())
        else:
            self._is_plain, keys = False, pa.array(rows.keys.tolist(), pa.large_string())
        self._keys.append(keys)
        self._add(rows.at(self.end))

    def _add(self, rows: Rows) -> None:
        self._rows.append(rows)
        self.end += int((rows.ends - rows.begins).sum())
        self.num_samples += len(rows.begins)

    def dump(self, num_bytes: int, digest: bytes) -> bytes:
        """Return the bytes of the file, for a tar of `num_bytes` bytes with this xxh3_128."""
        rows = Rows.joined(self._rows)
        if self._is_plain:
            return _dump(num_bytes, self.end, digest, rows)
        row, field = np.nonzero(rows.sizes >= 0)
        keys = [key for each in self._keys for key in each.cast(pa.large_string()).to_pylist()]
        members = row, field, rows.starts[row, field], rows.sizes[row, field]
        return _dump_listed(num_bytes, self.end, digest, rows.begins, rows.hashes, self._fields, members, keys)


def scanned_places(data: memoryview, found: TarSamples, digest: bytes) -> bytes:
    """Return the bytes of the file for a tar of another program, with its samples and its xxh3_128."""
    scan, offsets = found.scan, found.offsets
    hashes = hash_samples(data[begin:end] for begin, end in pairwise(offsets.tolist()))
    members = found.sample_index, found.field_index, scan.starts[found.rows], scan.sizes[found.rows]
    keys = found.keys.to_pylist()
    return _dump_listed(len(data), int(offsets[-1]), digest, offsets[:-1], hashes, found.fields, members, keys)


def hash_samples(samples: Iterable[memoryview | bytes]) -> UInt64:
    """Return the xxh3_64 of the bytes of n samples: uint64 of shape (n,)."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, samples), np.uint64)


def _dump(num_bytes: int, end: int, digest: bytes, rows: Rows) -> bytes:
    count, num_fields = rows.sizes.shape
    stored = np.zeros(count, _row(num_fields))
    stored["offset"], stored["hash"] = rows.begins, rows.hashes
    stored["sizes"] = np.where(rows.sizes < 0, _ABSENT, rows.sizes)
    return _with_head(stored.tobytes(), 0, num_fields, count, num_bytes, end, digest)


def _dump_listed(
    num_bytes: int,
    end: int,
    digest: bytes,
    begins: Int64,
    hashes: UInt64,
    fields: Sequence[str],
    members: tuple[Int64, Int64, Int64, Int64],
    keys: Sequence[str],
) -> bytes:
    row, field, starts, sizes = members
    texts = [key.encode() for key in keys]
    rows, listed = np.zeros(len(begins), _LISTED_ROW), np.zeros(len(row), _MEMBER)
    rows["offset"], rows["hash"] = begins, hashes
    rows["members"] = np.cumsum(np.bincount(row, minlength=len(begins)))
    rows["keys"] = np.cumsum([len(text) for text in texts])
    listed["field"], listed["offset"], listed["size"] = field, starts, sizes
    body = b"".join([rows.tobytes(), listed.tobytes(), *texts, "\n".join(fields).encode()])
    return _with_head(body, _LISTED, len(fields), len(begins), num_bytes, end, digest)


def _with_head(
    body: bytes, flags: int, num_fields: int, num_samples: int, num_bytes: int, end: int, digest: bytes
) -> bytes:
    head = np.zeros(1, _HEAD)
    head[0] = b"wdpl", 1, flags, num_fields, 0, num_samples, num_bytes, end, digest, 0
    data: bytes = head.tobytes()
    return data[:-8] + xxhash.xxh3_64_intdigest(data[:-8] + body).to_bytes(8, "little") + body


def plain_places_bytes(num_samples: int, num_fields: int) -> int:
    """Return the size of a shard's places, unless members are listed."""
    return HEAD_BYTES + num_samples * _row(num_fields).itemsize


def max_places_bytes(num_samples: int, num_fields: int, num_bytes: int) -> int:
    """Return a bound for the size of a shard's places, to read no more of a file that claims more."""
    return HEAD_BYTES + num_samples * (_LISTED_ROW.itemsize + num_fields * _MEMBER.itemsize) + num_bytes + 2**20


def parse_places(
    data: bytes | memoryview, num_bytes: int, checksum: str, num_samples: int, fields: Sequence[str]
) -> Places:
    """Parse the places of a shard and compare them with the manifest.

    Args:
        data: The bytes of the file.
        num_bytes: Bytes of its tar.
        checksum: The xxh3_128 of its tar, 32 hexadecimal digits.
        num_samples: Samples of the shard, pads included.
        fields: The fields of the dataset, in the order of the manifest.

    Raises:
        CorruptDataError: The file is damaged, or belongs to another tar.
    """
    digest = xxhash.xxh3_64(data[: HEAD_BYTES - 8])
    digest.update(data[HEAD_BYTES:])
    is_sound = digest.intdigest().to_bytes(8, "little") == bytes(data[HEAD_BYTES - 8 : HEAD_BYTES])
    if not (is_places(data) and is_sound):
        raise _damaged(f"{len(data)} bytes without a valid head", "a head of 64 bytes")
    head = np.frombuffer(data, _HEAD, 1)[0]
    found_bytes, found_checksum = int(head["num_bytes"]), head["checksum"].tobytes().hex()
    if (found_bytes, found_checksum) != (num_bytes, checksum):
        raise CorruptDataError(
            "the places of a shard belong to another tar",
            expected=f"a tar of {num_bytes:,} bytes, checksum {checksum}, as in the manifest",
            found=f"a tar of {found_bytes:,} bytes, checksum {found_checksum}",
            remedy="the dataset was overwritten, or files of two datasets were mixed: open it again; if that does not "
            "help, copy or convert it again",
        )
    is_listed, num_fields, end = bool(head["flags"] & _LISTED), int(head["fields"]), int(head["end"])
    if int(head["samples"]) != num_samples or not (is_listed or num_fields == len(fields)) or end > num_bytes:
        found = f"{head['samples']} samples of {num_fields} fields, up to byte {end}"
        raise _damaged(found, f"{num_samples} samples of {len(fields)} fields, up to byte {num_bytes}")
    members = keys = None
    if is_listed:
        rows, members, keys = _parse_listed(data, num_samples, num_fields, num_bytes, fields)
    elif len(data) == plain_places_bytes(num_samples, num_fields):
        rows = np.frombuffer(data, _row(num_fields), num_samples, HEAD_BYTES)
    else:
        raise _damaged(f"{len(data)} bytes", f"{plain_places_bytes(num_samples, num_fields)} bytes")
    begins = rows["offset"]
    if num_samples and (begins[0] != 0 or (begins[1:] <= begins[:-1]).any() or begins[-1] >= end):
        raise _damaged("other offsets", f"offsets of samples that rise from 0 and stay below {end}")
    return Places(num_samples, len(fields), num_bytes, end, checksum, data, rows, members, keys)


def is_places(data: bytes | memoryview) -> bool:
    """Tell whether a file begins as places do."""
    return bytes(data[:6]) == b"wdpl\x01\0"


def _parse_listed(
    data: bytes | memoryview, num_samples: int, num_fields: int, num_bytes: int, fields: Sequence[str]
) -> tuple[npt.NDArray[np.void], tuple[Int64, Int64, Int64], pa.LargeStringArray]:
    """Return the rows; field, offset and size of each member; and the keys."""
    begin = HEAD_BYTES + _LISTED_ROW.itemsize * num_samples
    if not num_samples or len(data) < begin:
        raise _damaged(f"{len(data)} bytes for {num_samples} samples", f"at least {begin}")
    rows = np.frombuffer(data, _LISTED_ROW, num_samples, HEAD_BYTES)
    rising = all(bool((np.diff(rows[name].astype(np.int64), prepend=0) > 0).all()) for name in ("members", "keys"))
    num_members, key_bytes = (int(rows[name][-1]) for name in ("members", "keys"))
    keys_begin = begin + _MEMBER.itemsize * num_members
    if not rising or len(data) < keys_begin + key_bytes:
        raise _damaged(f"{len(data)} bytes", "rising counts of members and of bytes of keys, and as many of them")
    members = np.frombuffer(data, _MEMBER, num_members, begin)
    names = bytes(data[keys_begin + key_bytes :]).decode("utf-8", "backslashreplace").split("\n")
    number_of = {name: number for number, name in enumerate(fields)}
    is_known = len(names) == num_fields and number_of.keys() >= set(names) and members["field"].max() < num_fields
    if not is_known or (members["offset"] > num_bytes).any() or (members["size"] > num_bytes).any():
        raise _damaged("members outside the tar, or of other fields", f"the fields {', '.join(number_of)}")
    field = np.array([number_of[name] for name in names], np.int64)[members["field"]]
    ends = np.concatenate([np.zeros(1, np.int64), rows["keys"].astype(np.int64)])
    text = pa.py_buffer(data[keys_begin : keys_begin + key_bytes])
    keys = pa.LargeStringArray.from_buffers(num_samples, pa.py_buffer(ends), text)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _damaged("keys that are not UTF-8", "keys as text") from error
    starts, sizes = members["offset"].astype(np.int64), members["size"].astype(np.int64)
    return rows, (field, starts, sizes), keys


def _damaged(found: str, expected: str) -> CorruptDataError:
    remedy = "copy the shard again, or convert again with --overwrite"
    return CorruptDataError("the places of a shard are damaged", expected=expected, found=found, remedy=remedy)
