"""Groups the members of a tar into samples: webdataset's rule, applied to a whole tar at once.

Pure (no I/O). Consecutive members with the same key are a sample. Samples that a reader would merge, split or lose are
refused. Members that belong to no sample are left out and listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from wdsplit import compute as pc
from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.tar.names import MAX_FIELDS, MEMBER_PATTERN, META_PATTERN, PAD_PREFIX, RESERVED_FIELDS
from wdsplit.tar.scan import Scan

__all__ = ["KEY_COLUMN", "TarSamples", "check_fields", "group_samples", "sample_members"]

KEY_COLUMN = "__key__"
"""The name of the column of keys, where fields are columns; also webdataset's name for the key."""

_REMEDY = "write the tar again with the members of each sample together"


@dataclass(frozen=True)
class TarSamples:
    """The n samples of a tar, or of a part of it, and their m members, in their order.

    Attributes:
        scan: All files, including those that belong to no sample.
        names: The names of all files.
        keys: The keys of the samples.
        fields: All field names, in the order of their first appearance.
        rows: int64 of shape (m,): the places of the members among all files.
        sample_index: int64 of shape (m,): the number of each member's sample.
        field_index: int64 of shape (m,): the number of each member's field in `fields`.
    """

    scan: Scan
    names: pa.LargeStringArray
    keys: pa.LargeStringArray
    fields: tuple[str, ...]
    rows: Int64
    sample_index: Int64
    field_index: Int64

    @property
    def offsets(self) -> Int64:
        """The offset at which each sample begins, then the end of the last: int64 of shape (n + 1,).

        Bytes before the first sample belong to it, and bytes between two samples to the first of them.
        """
        begins = self.scan.tops[self.rows[np.diff(self.sample_index, prepend=-1) > 0]]
        begins[:1] = 0
        return np.concatenate([begins, [self.scan.end if len(begins) else 0]])

    @property
    def field_counts(self) -> dict[str, int]:
        """How many samples have each field, in the order of their first appearance."""
        return dict(zip(self.fields, np.bincount(self.field_index).tolist(), strict=True))

    @property
    def num_pads(self) -> int:
        """Samples that wdsplit wrote as pads."""
        return int(np.count_nonzero(pc.starts_with(self.keys, PAD_PREFIX)))

    @property
    def left_out(self) -> pa.LargeStringArray:
        """The names of files that belong to no sample: without extension, hidden, or in a folder such as `__meta__`."""
        return self.names.take(pa.array(np.delete(np.arange(len(self.names)), self.rows)))


def group_samples(scan: Scan) -> TarSamples:
    """Group the files of a tar into samples.

    Raises:
        InputError: A name is not UTF-8, a field is invalid or a duplicate, the members of a sample are not together, or
            pads are not last.
    """
    samples = sample_members(scan)
    _check_keys(samples.keys)
    check_fields(samples)
    num_real = len(samples.keys) - samples.num_pads
    if pc.any(pc.starts_with(samples.keys[:num_real], PAD_PREFIX), min_count=0).as_py():
        raise InputError(
            "a pad is not at the end of its tar",
            place=f"key {next(key for key in samples.keys.to_pylist() if key.startswith(PAD_PREFIX))!r}",
            expected=f"keys that begin with {PAD_PREFIX} only where wdsplit has written pads: after all samples",
            remedy="rename the members",
        )
    return samples


def sample_members(scan: Scan) -> TarSamples:
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
    return TarSamples(scan, names, keys.filter(pa.array(is_first)), fields, rows, np.cumsum(is_first) - 1, field_index)


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


def check_fields(members: TarSamples) -> None:
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
