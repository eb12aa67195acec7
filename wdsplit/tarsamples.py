"""The samples that the members of a tar make: webdataset's rule, applied to a whole tar at once.

Pure (no I/O). Consecutive members with one key are a sample. What a reader would merge, split or lose is refused; what
names no sample is left out and told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.sample import MAX_FIELDS, MEMBER_PATTERN, META_PATTERN, PAD_PREFIX, RESERVED_FIELDS
from wdsplit.tarscan import Scan

__all__ = ["TarSamples", "group_samples"]

_NAMES_TOLD = 5
"""More are no fields, but the rests of keys with dots, which readers would merge."""
_REMEDY = "write the tar again with the members of each sample together"

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TarSamples:
    """The samples of a tar, n of them, in their order.

    Attributes:
        keys: Their keys.
        offsets: int64 of shape (n + 1,): the tar offset at which each sample begins, then the end of the last. What
            stands before the first sample counts to it, and what stands between two to the one before.
        fields: All field names, in the order of their first appearance.
        num_pads: Samples at the end that wdsplit wrote as pads.
        num_left_out: Files that name no sample: without extension, hidden, or in a folder such as `__meta__`.
        left_out: The first few of their names.
    """

    keys: pa.LargeStringArray
    offsets: Int64
    fields: tuple[str, ...]
    num_pads: int
    num_left_out: int
    left_out: tuple[str, ...]


def group_samples(scan: Scan) -> TarSamples:
    """Group the files of a tar into samples.

    Raises:
        InputError: A name is not UTF-8, a field cannot be one or stands twice in a sample, a key comes back after
            another key, or pads are not last.
    """
    names = _text(scan.names)
    parts = pc.extract_regex(names, MEMBER_PATTERN)
    named = pc.and_not(parts.is_valid(), pc.match_substring_regex(names, META_PATTERN))
    rows = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    left_out = names.filter(pc.invert(named))
    parts = parts.filter(named)
    keys = parts.field("key")
    codes, fields = _field_codes(parts.field("field"), names, rows)
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    sample_keys = keys.filter(pa.array(is_first))
    _check_keys(sample_keys)
    _check_fields(np.cumsum(is_first) - 1, codes, len(fields), names, rows)
    begins = scan.tops[rows[is_first]]
    begins[:1] = 0
    return TarSamples(
        sample_keys,
        np.concatenate([begins, [scan.end if len(begins) else 0]]),
        fields,
        _num_pads(sample_keys),
        len(left_out),
        tuple(left_out[:_NAMES_TOLD].to_pylist()),
    )


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


def _field_codes(
    suffixes: pa.LargeStringArray, names: pa.LargeStringArray, rows: Int64
) -> tuple[Int64, tuple[str, ...]]:
    """Return the field of each member as a number, and the fields; webdataset takes them in lower case."""
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
    codes = np.array([number_of[name] for name in lower], np.int64)[encoded.indices.to_numpy()]
    for number, name in enumerate(fields):
        if name in RESERVED_FIELDS or (name.startswith("__") and name.endswith("__")):
            raise InputError(
                f"{name!r} cannot be a field name",
                place=f"member {names[int(rows[int((codes == number).argmax())])].as_py()!r}",
                expected="an extension such as jpg, cls or seg.png",
                remedy="rename the member: readers keep such names for themselves",
            )
    return codes, fields


def _check_keys(keys: pa.LargeStringArray) -> None:
    """Refuse a key that comes back after another one: readers would make two samples of it."""
    if pc.count_distinct(keys).as_py() == len(keys):
        return
    seen: set[str] = set()
    for key in keys.to_pylist():
        if key in seen:
            raise InputError(
                "a key comes back after another one",
                place=f"key {key!r}",
                expected="the members of a sample one after another",
                found="members of other samples between them",
                remedy=_REMEDY,
                key=key,
            )
        seen.add(key)


def _check_fields(samples: Int64, codes: Int64, num_fields: int, names: pa.LargeStringArray, rows: Int64) -> None:
    members = samples * num_fields + codes
    order = np.argsort(members, kind="stable")
    again = np.flatnonzero(np.diff(members[order]) == 0)
    if len(again):
        row = int(rows[order[int(again[0]) + 1]])
        raise InputError(
            "a sample has a field twice",
            place=f"member {names[row].as_py()!r}",
            expected="each field once in a sample, in whatever case it is written",
            remedy="leave one of the two out, or give the samples other keys: a key ends at the base name's first dot",
        )


def _num_pads(keys: pa.LargeStringArray) -> int:
    is_pad = pc.starts_with(keys, PAD_PREFIX).to_numpy(zero_copy_only=False)
    count = int(is_pad.sum())
    if is_pad[: len(keys) - count].any():
        raise InputError(
            "a pad does not stand at the end of its tar",
            place=f"key {keys[int(is_pad.argmax())].as_py()!r}",
            expected=f"keys that begin with {PAD_PREFIX} only where wdsplit has written pads: after all samples",
            remedy="rename the members",
        )
    return count
