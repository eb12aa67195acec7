"""Groups the members of a tar into samples: webdataset's rule, applied to a whole tar at once.

Pure (no I/O). Consecutive members with the same key are a sample. Samples that a reader would merge, split or lose are
refused. Members that belong to no sample are left out and listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit import compute as pc
from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.tar.names import MAX_FIELDS, MEMBER_PATTERN, META_PATTERN, PAD_PREFIX, RESERVED_FIELDS
from wdsplit.tar.scan import Scan

__all__ = ["KEY_COLUMN", "SampleMembers", "TarSamples", "check_fields", "group_samples", "sample_members"]

KEY_COLUMN = "__key__"
"""The name of the column of keys, where fields are columns; also webdataset's name for the key."""

_MAX_LEFT_OUT_NAMES = 5
_REMEDY = "write the tar again with the members of each sample together"


@dataclass(frozen=True)
class SampleMembers:
    """The m files of a tar, or of a part of it, that belong to samples, in their order.

    Attributes:
        names: The names of all files, including others.
        rows: int64 of shape (m,): the places of the m files among all files.
        keys: The key of each of the m files.
        fields: All field names, in the order of their first appearance.
        field_index: int64 of shape (m,): the number of each file's field in `fields`.
        is_first: bool of shape (m,): whether a sample begins with the file.
    """

    names: pa.LargeStringArray
    rows: Int64
    keys: pa.LargeStringArray
    fields: tuple[str, ...]
    field_index: Int64
    is_first: npt.NDArray[np.bool_]

    @property
    def sample_keys(self) -> pa.LargeStringArray:
        """The key of each sample."""
        return self.keys.filter(pa.array(self.is_first))

    @property
    def sample_index(self) -> Int64:
        """The number of each file's sample: int64 of shape (m,)."""
        return np.cumsum(self.is_first) - 1

    @property
    def left_out(self) -> pa.LargeStringArray:
        """The names of the files that belong to no sample."""
        return self.names.take(pa.array(np.delete(np.arange(len(self.names)), self.rows)))


@dataclass(frozen=True)
class TarSamples:
    """The n samples of a tar, in their order.

    Attributes:
        keys: Their keys.
        offsets: int64 of shape (n + 1,): the tar offset at which each sample begins, then the end of the last.
            Bytes before the first sample belong to it, and bytes between two samples to the first of them.
        field_counts: How many samples have each field, in the order of their first appearance.
        num_pads: Samples at the end that wdsplit wrote as pads.
        num_left_out: Files that belong to no sample: without extension, hidden, or in a folder such as `__meta__`.
        left_out: The first few of their names.
        members: Their members.
    """

    keys: pa.LargeStringArray
    offsets: Int64
    field_counts: dict[str, int]
    num_pads: int
    num_left_out: int
    left_out: tuple[str, ...]
    members: SampleMembers


def group_samples(scan: Scan) -> TarSamples:
    """Group the files of a tar into samples.

    Raises:
        InputError: A name is not UTF-8, a field is invalid or a duplicate, the members of a sample are not together, or
            pads are not last.
    """
    members = sample_members(scan)
    keys, left_out = members.sample_keys, members.left_out
    _check_keys(keys)
    check_fields(members)
    begins = scan.tops[members.rows[members.is_first]]
    begins[:1] = 0
    return TarSamples(
        keys,
        np.concatenate([begins, [scan.end if len(begins) else 0]]),
        dict(zip(members.fields, np.bincount(members.field_index).tolist(), strict=True)),
        _num_pads(keys),
        len(left_out),
        tuple(left_out[:_MAX_LEFT_OUT_NAMES].to_pylist()),
        members,
    )


def sample_members(scan: Scan) -> SampleMembers:
    """Find the files of a tar, or of a part of it, that belong to samples, and split their names.

    Raises:
        InputError: A name is not UTF-8, or a field is invalid.
    """
    names = _text(scan.names)
    parts = pc.extract_regex(names, MEMBER_PATTERN)
    named = pc.and_not(parts.is_valid(), pc.match_substring_regex(names, META_PATTERN))
    rows = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    parts = parts.filter(named)
    keys = parts.field("key")
    field_index, fields = _fields(parts.field("field"), names, rows)
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    return SampleMembers(names, rows, keys, fields, field_index, is_first)


def _text(names: list[bytes]) -> pa.LargeStringArray:
    try:
        return pa.array(names, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid as error:
        for name in names:
            try:
                name.decode()
            except UnicodeDecodeError:
                raise InputError(
                    "the name of a member is not UTF-8",
                    place=f"member {name.decode('utf-8', 'backslashreplace')!r}",
                    expected="names in UTF-8, so that each has one text in every reader",
                    remedy="rename the member",
                ) from error
        raise


def _fields(suffixes: pa.LargeStringArray, names: pa.LargeStringArray, rows: Int64) -> tuple[Int64, tuple[str, ...]]:
    """Return the number of each member's field, and the fields, in lower case as in webdataset."""
    encoded = suffixes.dictionary_encode()
    lower = [suffix.lower() for suffix in encoded.dictionary.to_pylist()]
    fields = tuple(dict.fromkeys(lower))
    if len(fields) > MAX_FIELDS:
        raise InputError(
            "the members have too many extensions",
            expected=f"at most {MAX_FIELDS} fields",
            found=f"{len(fields)}, such as {', '.join(fields[-3:])}",
            remedy="a key ends at the first dot of the base name: rename members such as img.0001.jpg to img_0001.jpg",
        )
    number_of = {name: number for number, name in enumerate(fields)}
    indices = np.array([number_of[name] for name in lower], np.int64)[encoded.indices.to_numpy()]
    for number, name in enumerate(fields):
        if name in RESERVED_FIELDS or (name.startswith("__") and name.endswith("__")):
            raise InputError(
                f"invalid field name {name!r}",
                place=f"member {names[int(rows[int((indices == number).argmax())])].as_py()!r}",
                expected="an extension such as jpg, cls or seg.png",
                remedy="rename the member: readers reserve such names",
            )
    return indices, fields


def _check_keys(keys: pa.LargeStringArray) -> None:
    """Refuse a key whose members are not together: readers would make two samples of it."""
    if pc.count_distinct(keys).as_py() == len(keys):
        return
    seen: set[str] = set()
    for key in keys.to_pylist():
        if key in seen:
            raise InputError(
                "the members of a sample are not together",
                place=f"key {key!r}",
                expected="the members of a sample one after another",
                found="members of other samples between them",
                remedy=_REMEDY,
                key=key,
            )
        seen.add(key)


def check_fields(members: SampleMembers) -> None:
    """Refuse a duplicate field in a sample.

    Raises:
        InputError: A sample has a field twice.
    """
    places = members.sample_index * len(members.fields) + members.field_index
    order = np.argsort(places, kind="stable")
    again = np.flatnonzero(np.diff(places[order]) == 0)
    if len(again):
        row = int(members.rows[order[int(again[0]) + 1]])
        raise InputError(
            "duplicate field in a sample",
            place=f"member {members.names[row].as_py()!r}",
            expected="each field once in a sample, ignoring case",
            remedy="leave one of the two out, or give the samples other keys: a key ends at the base name's first dot",
        )


def _num_pads(keys: pa.LargeStringArray) -> int:
    is_pad = pc.starts_with(keys, PAD_PREFIX).to_numpy(zero_copy_only=False)
    count = int(is_pad.sum())
    if is_pad[: len(keys) - count].any():
        raise InputError(
            "a pad is not at the end of its tar",
            place=f"key {keys[int(is_pad.argmax())].as_py()!r}",
            expected=f"keys that begin with {PAD_PREFIX} only where wdsplit has written pads: after all samples",
            remedy="rename the members",
        )
    return count
