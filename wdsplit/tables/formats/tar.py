"""WebDataset tars: a row for each sample, with its key and a column of bytes for each field.

The headers are read once, from a memory map (a remote tar is copied first); payloads are read with their rows. Pads
that wdsplit wrote are left out, and keys that it escaped are unescaped, so that writing them again keeps them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from wdsplit.arrays import Int64
from wdsplit.errors import InputError, WdsplitError
from wdsplit.tables.formats.common import BATCH_BYTES
from wdsplit.tables.formats.opening import described, open_input, read_blocks
from wdsplit.tables.table import InputFile, Remote
from wdsplit.tar.names import escape_key, unescape_key
from wdsplit.tar.samples import KEY_COLUMN, group_samples, sample_members
from wdsplit.tar.scan import scan_tar, scan_window

__all__ = ["WHAT", "open_file", "read_batches"]

logger = logging.getLogger(__name__)

WHAT = "a WebDataset tar"

_GROUP_SAMPLES = 1024


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Walk over the headers and cut the samples into row groups."""
    with open_input(path, remote) as source:
        if not source.size:
            raise ValueError("the file is empty")
        data = memoryview(source.mapped())
    try:
        scan = scan_tar(data)
        samples = group_samples(scan)
    except WdsplitError as error:
        raise _named(error, path) from error
    if len(samples.left_out):
        text = "%s: left out %d members that belong to no sample, such as %r"
        logger.warning(text, path, len(samples.left_out), samples.left_out[0].as_py())
    num_samples = len(samples.keys) - samples.num_pads
    cuts = _cuts(samples.offsets[: num_samples + 1])
    data_bytes = int(scan.sizes[scan.tops < samples.offsets[num_samples]].sum())
    headers = xxhash.xxh3_128()
    for top, start in zip(scan.tops.tolist(), scan.starts.tolist(), strict=True):
        headers.update(data[top:start])
    offsets = samples.offsets[cuts].tolist()
    file = described(source, "tar", np.diff(cuts).tolist(), data_bytes, headers.hexdigest(), offsets)
    return file, pa.schema(
        [(KEY_COLUMN, pa.large_string()), *((name, pa.large_binary()) for name in samples.field_counts)]
    )


def _named(error: WdsplitError, path: str) -> InputError:
    """Return an error about a tar as an `InputError` that names the file."""
    place = f"{path}, {error.place}" if error.place else path
    return InputError(error.cause, place, error.expected, error.found, error.remedy, path, error.key, error.offset)


def _cuts(offsets: Int64) -> Int64:
    """Return the samples at which row groups begin, then the number of samples.

    Args:
        offsets: int64 of shape (n + 1,): where each sample begins, then the end.
    """
    cuts = [0]
    while cuts[-1] < len(offsets) - 1:
        first = cuts[-1]
        full = int(np.searchsorted(offsets, offsets[first] + BATCH_BYTES, side="right")) - 1
        cuts.append(min(max(first + 1, full), first + _GROUP_SAMPLES, len(offsets) - 1))
    return np.array(cuts)


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the samples of some row groups."""

    def parse(data: bytes, begin: int) -> pa.Table:
        try:
            return pa.table(_columns(data, begin, columns), names=list(columns))
        except WdsplitError as error:
            raise _named(error, file.path) from error

    return read_blocks(file, groups, parse)


def _columns(data: bytes, base: int, columns: Sequence[str]) -> list[pa.Array]:
    """Return some columns of the samples in a part of a tar that begins at the byte `base`."""
    scan = scan_window(memoryview(data), base)
    members = sample_members(scan)
    keys, samples = members.keys, members.sample_index
    number_of = {name: number for number, name in enumerate(members.fields)}
    arrays: list[pa.Array] = []
    for column in columns:
        if column == KEY_COLUMN:
            arrays.append(_original_keys(keys))
            continue
        chosen = np.flatnonzero(members.field_index == number_of.get(column, -1))
        rows = members.rows[chosen]
        arrays.append(_payloads(data, len(keys), samples[chosen], scan.starts[rows] - base, scan.sizes[rows]))
    return arrays


def _payloads(data: bytes, num_samples: int, samples: Int64, starts: Int64, sizes: Int64) -> pa.LargeBinaryArray:
    """Return the payloads of one field, a row for each sample; null where a sample lacks it.

    Args:
        data: The part of the tar.
        num_samples: Number of samples.
        samples: int64 of shape (m,), ascending: the sample of each payload.
        starts: int64 of shape (m,): where each begins in `data`.
        sizes: int64 of shape (m,): the size of each in bytes.
    """
    view = memoryview(data)
    joined = b"".join(
        [view[start:stop] for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]
    )
    lengths, present = np.zeros(num_samples, np.int64), np.zeros(num_samples, np.bool_)
    lengths[samples], present[samples] = sizes, True
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), num_samples, buffers)


def _original_keys(keys: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return keys as they were before wdsplit escaped them, if it did."""
    rows = np.flatnonzero(pc.match_substring(keys, "_x").to_numpy(zero_copy_only=False))
    if not len(rows):
        return keys
    values = keys.to_pylist()
    for row in rows.tolist():
        original = unescape_key(values[row])
        with suppress(UnicodeEncodeError):
            original.encode()
            values[row] = original if escape_key(original) == values[row] else values[row]
    return pa.array(values, pa.large_string())
