"""The widths and heights of a whole column of images, from their headers.

Pure (no I/O). Works on whole arrays, not image by image: it reads all headers together, and steps through the segments
of all JPEGs in parallel. Formats: PNG, JPEG, GIF, WebP, BMP, TIFF, PPM, PGM and PBM; other sizes are null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.shards.manifest import Field

__all__ = ["IMAGE_EXTENSIONS", "first_image_field", "image_sizes"]

IMAGE_EXTENSIONS = frozenset(
    ("bmp", "gif", "jfif", "jpe", "jpeg", "jpg", "pbm", "pgm", "png", "ppm", "tif", "tiff", "webp")
)
"""The last parts of the names of fields that hold images."""

_WIDTH = 32
"""Bytes to read at a time: enough for the header of every format but JPEG and TIFF."""
_MAX_SEGMENTS = 512
"""Maximum number of segments, and runs of other bytes, before the frame of a JPEG."""
_MAX_JUNK = 16
"""Maximum number of times to skip 31 bytes without a marker there."""
_MAX_ENTRIES = 64
"""Maximum number of entries to read in a TIFF's directory; they are sorted, and the sizes are among the first."""
_MAX_SIDE = 2**31 - 1

Bytes = npt.NDArray[np.uint8]
_Sides = tuple[Int64, Int64]


def first_image_field(fields: Sequence[Field]) -> str | None:
    """Return the name of the first field that holds images, or None if there is none."""
    names = (field.name for field in fields if field.encoding in ("bytes", "media"))
    return next((name for name in names if name.rpartition(".")[2] in IMAGE_EXTENSIONS), None)


def image_sizes(payloads: pa.LargeBinaryArray) -> tuple[pa.Int32Array, pa.Int32Array]:
    """Return the width and height of each image in pixels, as they are stored: EXIF's orientation is not applied.

    Args:
        payloads: The bytes of the images, or at least their beginnings.

    Returns:
        Widths and heights; null where a payload is null, cut short, damaged or of another format.
    """
    if not len(payloads):
        return pa.nulls(0, pa.int32()), pa.nulls(0, pa.int32())
    images = _Images(payloads)
    widths, heights = _found(images, images.at(images.starts))
    if not payloads.null_count and not _are_unknown(widths, heights).any():
        return pa.array(widths.astype(np.int32)), pa.array(heights.astype(np.int32))
    unknown = _are_unknown(widths, heights) | payloads.is_null().to_numpy(zero_copy_only=False)
    width, height = (pa.array(np.where(unknown, 0, side), pa.int32(), mask=unknown) for side in (widths, heights))
    return width, height


def _are_unknown(widths: Int64, heights: Int64) -> npt.NDArray[np.bool_]:
    unknown: npt.NDArray[np.bool_] = (np.minimum(widths, heights) <= 0) | (np.maximum(widths, heights) > _MAX_SIDE)
    return unknown


def _found(images: _Images, heads: Bytes) -> _Sides:
    """Return the widths and heights of images, given their first bytes; 0 where unknown."""
    beginnings = heads.view("<u4")[:, 0]
    widths, heights = np.zeros(len(heads), np.int64), np.zeros(len(heads), np.int64)
    for magic, find in _FORMATS:
        matches = beginnings & (2 ** (8 * len(magic)) - 1) == int.from_bytes(magic, "little")
        if matches.all():  # usually all images have one format
            return find(images, heads)
        rows = np.flatnonzero(matches)
        if len(rows):
            widths[rows], heights[rows] = find(images.take(rows), heads[rows])
    return widths, heights


class _Images:
    """Payloads, as ranges of one buffer of bytes."""

    def __init__(self, payloads: pa.LargeBinaryArray) -> None:
        _, offsets, data = payloads.buffers()
        ends = np.frombuffer(offsets, np.int64, len(payloads) + 1, 8 * payloads.offset) if offsets else np.zeros(1, int)
        self._data: Bytes = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
        self.starts: Int64 = ends[:-1]
        self.ends: Int64 = ends[1:]

    def take(self, rows: Int64) -> _Images:
        """Return some of the images."""
        some = object.__new__(_Images)
        some._data, some.starts, some.ends = self._data, self.starts[rows], self.ends[rows]
        return some

    def at(self, places: Int64) -> Bytes:
        """Return the 32 bytes from each place on: uint8 of shape (places, 32), 0 past the end of the buffer."""
        last = len(self._data) - _WIDTH
        if last < 0 or places.max() > last:
            begin = max(last, 0)
            end = _rows_of(np.concatenate([self._data[begin:], np.zeros(_WIDTH, np.uint8)]))
            late = places >= begin
            found = end[np.where(late, np.minimum(places - begin, len(end) - 1), 0)]
            early = np.flatnonzero(~late)
            if len(early):
                found[early] = _rows_of(self._data)[places[early]]
        else:
            found = _rows_of(self._data)[places]
        return found.view(np.uint8).reshape(-1, _WIDTH)

    def have(self, num_bytes: int) -> npt.NDArray[np.bool_]:
        """Return which images have at least `num_bytes` bytes."""
        return self.ends - self.starts >= num_bytes


_Find = Callable[[_Images, Bytes], _Sides]


def _rows_of(data: Bytes) -> npt.NDArray[np.void]:
    """Return the 32 bytes that begin at each byte as one item, without a copy."""
    rows: npt.NDArray[np.void] = np.ndarray((len(data) - _WIDTH + 1,), f"V{_WIDTH}", data, 0, (1,))
    return rows


def _number(bytes_: Bytes, first: int, count: int, order: str) -> Int64:
    """Return the number in some columns of bytes, in byte order `little` or `big`: int64 of shape (rows,)."""
    if count in (2, 4) and first % count == 0:
        words = bytes_.view(f"{'>' if order == 'big' else '<'}u{count}")
        return words[:, first // count].astype(np.int64)
    columns = range(first, first + count) if order == "big" else reversed(range(first, first + count))
    number = np.zeros(len(bytes_), np.int64)
    for column in columns:
        number = (number << 8) | bytes_[:, column]
    return number


def _match(bytes_: Bytes, first: int, four: bytes) -> npt.NDArray[np.bool_]:
    """Return which rows have the bytes `four` from column `first` on, a multiple of four."""
    equal: npt.NDArray[np.bool_] = _number(bytes_, first, 4, "big") == int.from_bytes(four, "big")
    return equal


def _where(known: npt.NDArray[np.bool_], widths: Int64, heights: Int64) -> _Sides:
    return np.where(known, widths, 0), np.where(known, heights, 0)


def _png(images: _Images, heads: Bytes) -> _Sides:
    is_header = _match(heads, 4, b"\r\n\x1a\n") & _match(heads, 12, b"IHDR")
    return _where(images.have(24) & is_header, _number(heads, 16, 4, "big"), _number(heads, 20, 4, "big"))


def _gif(images: _Images, heads: Bytes) -> _Sides:
    is_gif = ((heads[:, 4] == ord("7")) | (heads[:, 4] == ord("9"))) & (heads[:, 5] == ord("a"))
    return _where(images.have(10) & is_gif, _number(heads, 6, 2, "little"), _number(heads, 8, 2, "little"))


def _bmp(images: _Images, heads: Bytes) -> _Sides:
    """The oldest header has 16 bits a side; in the others a negative height means that rows go from top to bottom."""
    size = _number(heads, 14, 4, "little")
    is_old = size == 12
    widths = np.where(is_old, _number(heads, 18, 2, "little"), _number(heads, 18, 4, "little"))
    heights = _number(heads, 22, 4, "little")
    heights = np.where(heights >= 2**31, 2**32 - heights, heights)
    heights = np.where(is_old, _number(heads, 20, 2, "little"), heights)
    return _where(images.have(26) & (is_old | ((size >= 40) & (size <= 124))), widths, heights)


def _webp(images: _Images, heads: Bytes) -> _Sides:
    """The first chunk is a lossy frame, a lossless one, or a header of extended features."""
    lossy = _match(heads, 12, b"VP8 ") & (_number(heads, 23, 3, "big") == 0x9D012A)
    lossless = _match(heads, 12, b"VP8L") & (heads[:, 20] == 0x2F)
    extended = _match(heads, 12, b"VP8X")
    bits = _number(heads, 21, 4, "little")
    widths = np.select(
        [lossy, lossless, extended],
        [_number(heads, 26, 2, "little") & 0x3FFF, (bits & 0x3FFF) + 1, _number(heads, 24, 3, "little") + 1],
    )
    heights = np.select(
        [lossy, lossless, extended],
        [_number(heads, 28, 2, "little") & 0x3FFF, ((bits >> 14) & 0x3FFF) + 1, _number(heads, 27, 3, "little") + 1],
    )
    return _where(_match(heads, 8, b"WEBP") & (images.have(30) | (lossless & images.have(25))), widths, heights)


def _steps() -> npt.NDArray[np.int8]:
    """Return the step to take at each pair of bytes of a JPEG: a number of bytes, or one of the constants below."""
    steps = np.full(2**16, _JUNK, np.int8)
    steps[0xFF00:0xFFFF] = _SEGMENT
    steps[0xFFC0:0xFFD0] = _FRAME
    steps[[0xFFC4, 0xFFC8, 0xFFCC]] = _SEGMENT
    steps[[0xFF00, 0xFF01, *range(0xFFD0, 0xFFD9)]] = 2  # markers that stand alone
    steps[[0xFFD9, 0xFFDA]] = _END
    return steps


_JUNK, _SEGMENT, _FRAME, _END = 1, 0, -1, -2
"""Go to the next marker; go past a segment, which states its length; stop at the frame, which has the size; stop,
because no size follows."""
_STEPS = _steps()


def _jpeg(images: _Images, heads: Bytes) -> _Sides:
    """Step through the segments of all images until each reaches its frame, or the end of its header."""
    widths, heights = np.zeros(len(heads), np.int64), np.zeros(len(heads), np.int64)
    rows, places, ends = np.arange(len(heads)), images.starts + 2, images.ends
    left = np.full(len(heads), _MAX_JUNK)
    for _ in range(_MAX_SEGMENTS):
        found = images.at(places)
        words = found.view(">u2")
        steps = _STEPS[words[:, 0]]
        goes_on = steps >= 0
        if not goes_on.all():
            frames = np.flatnonzero((steps == _FRAME) & (places + 9 <= ends))
            widths[rows[frames]] = _number(found[frames], 7, 2, "big")
            heights[rows[frames]] = _number(found[frames], 5, 2, "big")
        places = places + np.where(steps > 0, steps, 2 + np.maximum(words[:, 1], 2).astype(np.int64))
        junk = np.flatnonzero(steps == _JUNK)
        if len(junk):  # to the next marker, or past the bytes read
            may_begin = found[junk, 1:] == 0xFF
            has_begun = may_begin.any(axis=1)
            places[junk] += np.where(has_begun, may_begin.argmax(axis=1), _WIDTH - 2)
            left[rows[junk]] -= ~has_begun
            goes_on[junk] = left[rows[junk]] > 0
        goes_on &= places + 4 <= ends
        if not goes_on.all():
            rows, places, ends = rows[goes_on], places[goes_on], ends[goes_on]
            if not len(rows):
                break
    return widths, heights


def _ppm(images: _Images, heads: Bytes) -> _Sides:
    """Read two decimal numbers, each after white space; a header with a comment gives no size."""
    sides = np.zeros((2, len(heads)), np.int64)
    state = np.zeros(len(heads), np.int64)  # 0 before the first number, 1 in it, ..., 4 after the second, 9 for damage
    for place in range(2, _WIDTH):
        byte = np.where(images.have(place + 1), heads[:, place], 0)
        is_digit, is_space = (byte >= ord("0")) & (byte <= ord("9")), np.isin(byte, list(b" \t\n\v\f\r"))
        begins = is_digit & ((state == 0) | (state == 2))
        ends = is_space & ((state == 1) | (state == 3))
        is_bad = (state < 4) & ~is_space & (~is_digit | (place == 2))
        state = np.where(is_bad, 9, state + begins + ends)
        for side, number in zip(sides, (1, 3), strict=True):
            side[:] = np.where((state == number) & is_digit, 10 * side + byte - ord("0"), side)
    return _where(state == 4, sides[0], sides[1])


def _tiff(order: str) -> _Find:
    def find(images: _Images, heads: Bytes) -> _Sides:
        """Look through the first directory: width has the tag 256, height 257, as 16 or 32 bits."""
        sides = {tag: np.zeros(len(heads), np.int64) for tag in (256, 257)}
        places = images.starts + _number(heads, 4, 4, order)
        count = np.where(places + 2 <= images.ends, _number(images.at(places), 0, 2, order), 0)
        for number in range(min(_MAX_ENTRIES, int(count.max()))):
            entry = places + 2 + 12 * number
            found = images.at(entry)
            tag, kind = _number(found, 0, 2, order), _number(found, 2, 2, order)
            value = np.where(kind == 3, _number(found, 8, 2, order), _number(found, 8, 4, order))
            is_here = (number < count) & (entry + 12 <= images.ends) & np.isin(kind, (3, 4))
            for side_tag, side in sides.items():
                side[:] = np.where(is_here & (tag == side_tag), value, side)
        return sides[256], sides[257]

    return find


_FORMATS: tuple[tuple[bytes, _Find], ...] = (
    (b"\xff\xd8\xff", _jpeg),
    (b"\x89PNG", _png),
    (b"RIFF", _webp),
    (b"GIF8", _gif),
    (b"BM", _bmp),
    (b"II*\0", _tiff("little")),
    (b"MM\0*", _tiff("big")),
    *((b"P%d" % number, _ppm) for number in range(1, 7)),
)
"""The first bytes of each format, up to four, and the function that finds the sizes."""
