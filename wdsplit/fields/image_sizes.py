"""The widths and heights of a whole column of images, from their headers.

Pure (no I/O). JPEG, PNG and WebP are read together as arrays: one step goes to the next segment of all JPEGs. GIF, BMP,
TIFF, PPM, PGM and PBM are read by Pillow where it is installed. Other sizes are null.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.shards.manifest import Field

__all__ = ["first_image_field", "image_sizes", "is_image"]

_EXTENSIONS = frozenset(("bmp", "gif", "jfif", "jpe", "jpeg", "jpg", "pbm", "pgm", "png", "ppm", "tif", "tiff", "webp"))
"""The last parts of the names of fields that hold images."""

_WIDTH = 32
"""Bytes to read at a time: enough for the headers of PNG and WebP."""
_MAX_SEGMENTS = 512
"""Maximum number of segments, and runs of other bytes, before the frame of a JPEG."""
_MAX_JUNK = 16
"""Maximum number of times to skip 31 bytes without a marker there."""
_MAX_SIDE = 2**31 - 1
_BY_PILLOW = {b"GIF8": "Gif", b"BM": "Bmp", b"II*\0": "Tiff", b"MM\0*": "Tiff"} | {
    b"P%d" % number: "Ppm" for number in range(1, 7)
}
"""The first bytes of the other formats, and the name of Pillow's reader."""

Bytes = npt.NDArray[np.uint8]
_Sides = tuple[Int64, Int64]


def is_image(name: str) -> bool:
    """Tell by its name whether a field holds images."""
    return name.rpartition(".")[2] in _EXTENSIONS


def first_image_field(fields: Sequence[Field]) -> str | None:
    """Return the name of the first field that holds images, or None if there is none."""
    names = (field.name for field in fields if field.encoding in ("bytes", "media"))
    return next((name for name in names if is_image(name)), None)


def image_sizes(payloads: pa.LargeBinaryArray) -> tuple[pa.Int32Array, pa.Int32Array]:
    """Return the width and height of each image in pixels, as they are stored: EXIF's orientation is not applied.

    Args:
        payloads: The bytes of the images, or at least their beginnings.

    Returns:
        Widths and heights; null where a payload is null, cut short, damaged or of another format.
    """
    if not len(payloads):
        return pa.nulls(0, pa.int32()), pa.nulls(0, pa.int32())
    _, offsets, buffer = payloads.buffers()
    bounds: Int64 = np.frombuffer(offsets, np.int64, len(payloads) + 1, 8 * payloads.offset)
    data: Bytes = np.frombuffer(buffer, np.uint8) if buffer else np.zeros(0, np.uint8)
    starts, ends = bounds[:-1], bounds[1:]
    heads = _at(data, starts)
    widths, heights = np.zeros(len(heads), np.int64), np.zeros(len(heads), np.int64)
    beginnings = _number(heads, 0, "<u4")
    for magic, find in {b"\xff\xd8\xff": _jpeg, b"\x89PNG": _png, b"RIFF": _webp}.items():
        rows = np.flatnonzero(beginnings & (2 ** (8 * len(magic)) - 1) == int.from_bytes(magic, "little"))
        if len(rows):
            widths[rows], heights[rows] = find(data, starts[rows], ends[rows], heads[rows])
        beginnings[rows] = 0
    # All that is left: usually nothing.
    for row in np.flatnonzero(beginnings).tolist():
        widths[row], heights[row] = _pillow_size(data[starts[row] : ends[row]].tobytes())
    unknown = (np.minimum(widths, heights) <= 0) | (np.maximum(widths, heights) > _MAX_SIDE)
    unknown |= payloads.is_null().to_numpy(zero_copy_only=False)
    width, height = (pa.array(np.where(unknown, 0, side), pa.int32(), mask=unknown) for side in (widths, heights))
    return width, height


def _at(data: Bytes, places: Int64) -> Bytes:
    """Return the 32 bytes from each place on: uint8 of shape (places, 32), 0 past the end of the data."""

    def rows_of(part: Bytes) -> npt.NDArray[np.void]:
        # One item a byte, without a copy.
        rows: npt.NDArray[np.void] = np.ndarray((len(part) - _WIDTH + 1,), f"V{_WIDTH}", part, 0, (1,))
        return rows

    begin = max(len(data) - _WIDTH, 0)
    found = rows_of(np.concatenate([data[begin:], np.zeros(_WIDTH, np.uint8)]))[
        np.clip(places, begin, len(data)) - begin
    ]
    early = np.flatnonzero(places < begin)
    if len(early):
        found[early] = rows_of(data)[places[early]]
    return found.view(np.uint8).reshape(-1, _WIDTH)


def _number(heads: Bytes, first: int, kind: str) -> Int64:
    """Return the number of a numpy type that begins in a column of bytes: int64 of shape (rows,)."""
    number: Int64 = np.ndarray(len(heads), kind, heads, first, (_WIDTH,)).astype(np.int64)
    return number


def _match(heads: Bytes, first: int, four: bytes) -> npt.NDArray[np.bool_]:
    """Return which rows have four bytes from a column on."""
    equal: npt.NDArray[np.bool_] = _number(heads, first, ">u4") == int.from_bytes(four, "big")
    return equal


def _png(data: Bytes, starts: Int64, ends: Int64, heads: Bytes) -> _Sides:
    known = (ends - starts >= 24) & _match(heads, 4, b"\r\n\x1a\n") & _match(heads, 12, b"IHDR")
    return _number(heads, 16, ">u4") * known, _number(heads, 20, ">u4") * known


def _webp(data: Bytes, starts: Int64, ends: Int64, heads: Bytes) -> _Sides:
    """The first chunk is a lossy frame, a lossless one, or a header of extended features."""
    lossy = _match(heads, 12, b"VP8 ") & (_number(heads, 23, ">u4") >> 8 == 0x9D012A)
    lossless = _match(heads, 12, b"VP8L") & (heads[:, 20] == 0x2F)
    kinds = [lossy, lossless, _match(heads, 12, b"VP8X")]
    known = _match(heads, 8, b"WEBP") & (ends - starts >= np.where(lossless, 25, 30))
    bits, size = _number(heads, 21, "<u4"), _number(heads, 24, "<u8")
    widths = [_number(heads, 26, "<u2") & 0x3FFF, (bits & 0x3FFF) + 1, (size & 0xFFFFFF) + 1]
    heights = [_number(heads, 28, "<u2") & 0x3FFF, ((bits >> 14) & 0x3FFF) + 1, (size >> 24 & 0xFFFFFF) + 1]
    return np.select(kinds, widths) * known, np.select(kinds, heights) * known


_JUNK, _SEGMENT, _FRAME, _END = 1, 0, -1, -2
"""Go to the next marker; go past a segment, which states its length; stop at the frame, which has the size; stop,
because no size follows."""
_STEPS = np.full(2**16, _JUNK, np.int8)
"""The step to take at each pair of bytes of a JPEG: a number of bytes, or one of the constants above."""
_STEPS[0xFF00:0xFFFF] = _SEGMENT
_STEPS[0xFFC0:0xFFD0] = _FRAME
_STEPS[[0xFFC4, 0xFFC8, 0xFFCC]] = _SEGMENT
_STEPS[[0xFF00, 0xFF01, *range(0xFFD0, 0xFFD9)]] = 2  # markers that stand alone
_STEPS[[0xFFD9, 0xFFDA]] = _END


def _jpeg(data: Bytes, starts: Int64, ends: Int64, heads: Bytes) -> _Sides:
    """Step through the segments of all images until each reaches its frame, or the end of its header."""
    widths, heights = np.zeros(len(heads), np.int64), np.zeros(len(heads), np.int64)
    rows, places = np.arange(len(heads)), starts + 2
    left = np.full(len(heads), _MAX_JUNK)
    for _ in range(_MAX_SEGMENTS):
        found = _at(data, places)
        steps = _STEPS[_number(found, 0, ">u2")]
        goes_on = steps >= 0
        frames = np.flatnonzero((steps == _FRAME) & (places + 9 <= ends))
        widths[rows[frames]] = _number(found, 7, ">u2")[frames]
        heights[rows[frames]] = _number(found, 5, ">u2")[frames]
        places = places + np.where(steps > 0, steps, 2 + np.maximum(_number(found, 2, ">u2"), 2))
        junk = np.flatnonzero(steps == _JUNK)
        if len(junk):  # to the next marker, or past the bytes read
            may_begin = found[junk, 1:] == 0xFF
            has_begun = may_begin.any(axis=1)
            places[junk] += np.where(has_begun, may_begin.argmax(axis=1), _WIDTH - 2)
            left[rows[junk]] -= ~has_begun
            goes_on[junk] = left[rows[junk]] > 0
        goes_on &= places + 4 <= ends
        rows, places, ends = rows[goes_on], places[goes_on], ends[goes_on]
        if not len(rows):
            break
    return widths, heights


def _pillow_size(payload: bytes) -> tuple[int, int]:
    """Return the width and height of an image of another format; 0 if Pillow is absent or cannot read it."""
    name = next((name for magic, name in _BY_PILLOW.items() if payload.startswith(magic)), None)
    try:
        if name is None:
            return 0, 0
        # The reader itself, because Image.open warns of large images.
        reader = getattr(importlib.import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
        width, height = reader(io.BytesIO(payload)).size
    except Exception:  # Pillow's readers raise many kinds for damaged images
        return 0, 0
    return int(width), int(height)
