"""The tar codec: packs the members of whole batches of samples.

Pure (no I/O). A tar is a sequence of 512-byte blocks, so a buffer is an array of shape (blocks, 512). The headers of a
batch are rows of one matrix. Names, sizes and payloads determine every byte: mtime, uid and gid are 0, the mode is
0644, and there are no owner names. `scan` reads tars of other programs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from wdsplit import compute as pc
from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.tar.headers import (
    BLANK,
    BLOCK_BYTES,
    MAX_MEMBER_BYTES,
    NAME_BYTES,
    USTAR_NAME_BYTES,
    extended_headers,
    large_binary,
    pack_headers,
    padding_bytes,
)
from wdsplit.tar.names import MAX_COMPONENT_BYTES, MAX_NAME_BYTES

__all__ = ["RECORD_BYTES", "Body", "build_body", "trailer_bytes"]

RECORD_BYTES = 10_240

_LARGE_SAMPLE_BYTES = 16_384
"""From this mean size on, joining payloads costs more than writing each separately."""
_HUGE_SAMPLE_BYTES = 1024**2
"""A sample of this size is not copied, however small its neighbours are."""


def trailer_bytes(body_bytes: int) -> int:
    """Return the number of zero bytes that end an archive: at least two blocks, up to a full record of 10,240."""
    return 2 * BLOCK_BYTES + -(body_bytes + 2 * BLOCK_BYTES) % RECORD_BYTES


@dataclass(frozen=True)
class Body:
    """The members of a batch of samples, laid out but not joined.

    Attributes:
        pieces: For each field: headers, payload and padding, each a large_binary array with a row for each sample; a
            missing member is empty in all three.
        sample_bytes: int64 of shape (n,): the size of each sample in bytes, including headers and padding.
        keys: The keys.
        sizes: int64 of shape (n, fields): bytes of each payload; -1 where a sample lacks the field.
        header_bytes: int64 of shape (n, fields): bytes of each member's headers; 0 where a sample lacks the field.
    """

    pieces: list[pa.LargeBinaryArray]
    sample_bytes: Int64
    keys: pa.Array
    sizes: Int64
    header_bytes: Int64

    def parts(self) -> tuple[list[memoryview], npt.NDArray[np.uint64]]:
        """Return the bytes of all samples, in order: large payloads without a copy, small ones joined.

        Returns:
            The bytes, and uint64 of shape (n,): the xxh3_64 of each sample.
        """
        huge = np.flatnonzero(self.sample_bytes >= _HUGE_SAMPLE_BYTES)
        cuts = sorted({0, len(self.sample_bytes), *huge.tolist(), *(huge + 1).tolist()})
        parts: list[memoryview] = []
        hashes: list[int] = []
        for first, stop in itertools.pairwise(cuts):
            run = self.slice(first, stop)
            if run.sample_bytes.sum() < _LARGE_SAMPLE_BYTES * len(run.sample_bytes):
                joined = run.join()
                ends = np.cumsum(run.sample_bytes)
                pairs = zip((ends - run.sample_bytes).tolist(), ends.tolist(), strict=True)
                hashes += [xxhash.xxh3_64_intdigest(joined[begin:end]) for begin, end in pairs]
                parts.append(joined)
                continue
            for sample in zip(*map(_values, run.pieces), strict=True):
                digest = xxhash.xxh3_64()
                for part in sample:
                    digest.update(part)
                hashes.append(digest.intdigest())
                parts += filter(len, sample)
        return parts, np.array(hashes, np.uint64)

    def slice(self, first: int, stop: int) -> Body:
        """Return the members of some of the samples; nothing is copied."""
        rows = slice(first, stop)
        pieces = [piece[rows] for piece in self.pieces]
        return Body(pieces, self.sample_bytes[rows], self.keys[rows], self.sizes[rows], self.header_bytes[rows])

    def join(self) -> memoryview:
        """Return the bytes of all samples, in order, as one buffer."""
        joined = pc.binary_join_element_wise(*self.pieces, BLANK)
        if isinstance(joined, pa.ChunkedArray):
            joined = joined.combine_chunks()
        return memoryview(joined.buffers()[2] or b"")[: int(self.sample_bytes.sum())]


def _values(array: pa.LargeBinaryArray) -> list[memoryview]:
    """Return the values of an array without nulls; nothing is copied."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data or b"")
    return [view[start:stop] for start, stop in itertools.pairwise(ends)]


def build_body(keys: pa.Array, fields: dict[str, pa.LargeBinaryArray]) -> Body:
    """Lay out the members of n samples, in the order of `fields`.

    Members have plain ustar headers. A name over 99 bytes, or a payload of 8 GiB or more, also needs an extended header
    before it.

    Args:
        keys: n keys (string or binary), already escaped.
        fields: For each field name the payload of n samples; null where a sample lacks the field.

    Raises:
        InputError: A member's name is too long.
    """
    keys = keys.cast(pa.large_binary())
    shape = len(keys), len(fields)
    sample_bytes, sizes, header_bytes = np.zeros(len(keys), np.int64), np.full(shape, -1), np.zeros(shape, np.int64)
    pieces: list[pa.LargeBinaryArray] = []
    for column, (field, payload) in enumerate(fields.items()):
        if pieces and 0 < len(payload) == payload.null_count:
            continue  # no sample has it
        present = payload.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.asarray(pc.fill_null(pc.binary_length(payload), 0), np.int64)
        padding = padding_bytes(lengths)
        headers = _headers(keys, field, lengths, present)
        pieces += [headers, _without_nulls(payload), large_binary(padding, np.zeros(int(padding.sum()), np.uint8))]
        sizes[present, column] = lengths[present]
        header_bytes[:, column] = pc.binary_length(headers)
        sample_bytes += header_bytes[:, column] + lengths + padding
    return Body(pieces, sample_bytes, keys, sizes, header_bytes)


def _headers(keys: pa.Array, field: str, sizes: Int64, present: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
    """Return the headers of n members `key.field`; empty where there is no member."""
    lengths = np.asarray(pc.binary_length(keys), np.int64) + len(f".{field}".encode())
    if not present.all():
        headers = _headers(keys.filter(pa.array(present)), field, sizes[present], present[present])
        spread = np.zeros(len(keys), np.int64)
        spread[present] = np.asarray(pc.binary_length(headers), np.int64)
        return large_binary(spread, np.frombuffer(headers.buffers()[2] or b"", np.uint8))
    plain = np.full(len(keys), BLOCK_BYTES)
    long = lengths > USTAR_NAME_BYTES
    if not long.any() and (sizes <= MAX_MEMBER_BYTES).all():
        return large_binary(plain, pack_headers(_name_matrix(keys, lengths, field), sizes).reshape(-1))
    names = pc.binary_join_element_wise(keys, pa.scalar(f".{field}".encode(), pa.large_binary()), BLANK)
    _check_names(names, keys)
    matrix = np.zeros((len(keys), NAME_BYTES), np.uint8)
    matrix[~long] = _name_matrix(keys.filter(pa.array(~long)), lengths[~long], field)
    matrix[long] = _cut(names.filter(pa.array(long)))
    headers = pack_headers(matrix, np.where(sizes > MAX_MEMBER_BYTES, 0, sizes))
    return pc.binary_join_element_wise(extended_headers(names, sizes), large_binary(plain, headers.reshape(-1)), BLANK)


def _name_matrix(keys: pa.Array, lengths: Int64, field: str) -> npt.NDArray[np.uint8]:
    """Return the member names `key.field` as uint8 of shape (n, 100), padded with NULs."""
    fill = NAME_BYTES - lengths
    zeros = large_binary(fill, np.zeros(int(fill.sum()), np.uint8))
    tail = pa.scalar(f".{field}".encode(), pa.large_binary())
    joined = pc.binary_join_element_wise(keys, tail, zeros, BLANK)
    flat = np.frombuffer(joined.buffers()[2] or b"", np.uint8)[: len(keys) * NAME_BYTES]
    return flat.reshape(-1, NAME_BYTES)


def _cut(names: pa.LargeBinaryArray) -> npt.NDArray[np.uint8]:
    """Return the first 100 bytes of long names, for old readers: uint8 of shape (n, 100)."""
    _, offsets, data = names.buffers()
    begins = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names)]
    return np.asarray(np.frombuffer(data or b"", np.uint8)[begins[:, None] + np.arange(NAME_BYTES)])


def _check_names(names: pa.LargeBinaryArray, keys: pa.Array) -> None:
    too_long = pc.greater(pc.binary_length(names), MAX_NAME_BYTES)
    too_long = pc.or_(too_long, pc.match_substring_regex(names, f"[^/]{{{MAX_COMPONENT_BYTES + 1}}}"))
    if pc.any(too_long, min_count=0).as_py():
        row = pc.index(too_long, True).as_py()
        name = names[row].as_py().decode()
        raise InputError(
            "a member's name is too long",
            expected=f"at most {MAX_NAME_BYTES} bytes for key, dot and field, {MAX_COMPONENT_BYTES} between slashes",
            found=f"{len(name)} bytes: {name}",
            remedy="choose a shorter key column, or leave out --key to number the rows",
            key=keys[row].as_py().decode(),
        )


def _without_nulls(payload: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the payloads with empty ones for nulls; copy them only if there are bytes under a null."""
    if not payload.null_count:
        return payload
    _, offsets, data = payload.buffers()
    plain = pa.LargeBinaryArray.from_buffers(payload.type, len(payload), [None, offsets, data], offset=payload.offset)
    hidden = pc.and_(payload.is_null(), pc.greater(pc.binary_length(plain), 0))
    return pc.fill_null(payload, b"") if pc.any(hidden).as_py() else plain
