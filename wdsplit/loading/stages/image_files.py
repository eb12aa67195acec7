"""Images opened by the libraries that decode them, and refused by their headers if they are decompression bombs.

All of these libraries are optional, and imported when used.
"""

from __future__ import annotations

import functools
import importlib
import io
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.errors import CorruptDataError, InputError, MissingDependencyError

__all__ = [
    "IMAGE_FORMATS",
    "JPEG_MAGIC",
    "check_pixels",
    "check_scans",
    "eight_bits",
    "imported",
    "loaded",
    "open_image",
    "orientation_of",
    "plain_pixels",
    "upright",
]

IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the common formats. Where they suffice, untrusted bytes reach little code."""
JPEG_MAGIC = b"\xff\xd8\xff"

_MAX_SCANS = 100
"""Encoders write about ten scans. Each takes as long as a small image of that size, however few bytes it has."""
_SCAN = b"\xff\xda"
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
"""Matches the next marker, but neither a byte 0xff of a scan's data nor a restart marker in it."""
_ALONE, _END_OF_IMAGE, _START_OF_SCAN = (0x01, 0xD8), 0xD9, 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
"""Frames that decoders know: the first two are sequential, so that their first scan may be the only one."""

_ORIENTATION = 0x0112
_TURNS: dict[int, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels[::-1].swapaxes(0, 1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels[:, ::-1].swapaxes(0, 1),
}
"""How to turn pixels of shape (height, width, ...) upright, by EXIF's orientation."""

_PROGRAM_FORMATS = frozenset({"EPS", "WMF"})
"""Formats that Pillow leaves to another program, such as Ghostscript, which would run what a stranger wrote."""

_PNG_MAGIC, _PNG_HEAD = b"\x89PNG\r\n\x1a\n", struct.Struct(">12x4sIIBB")
"""The kind of a PNG's first chunk, and the width, height, depth and colours in it."""
_PNG_MODES = {0: "L", 2: "RGB", 6: "RGBA"}
_WEBP_HEAD = struct.Struct("<8x8s10xHH")
"""The kinds of a WebP and its first chunk, and the width and height of a lossy frame in it, in 14 bits each."""


def open_image(data: bytes, formats: tuple[str, ...] | None = None) -> Any:
    """Return a Pillow image, of which only the header may have been read.

    Args:
        data: The bytes of the image.
        formats: The formats that it may have, PNG among them; None for all that Pillow knows.

    Raises:
        InputError: It has too many pixels or scans, or a format that is unknown or that another program would decode.
    """
    check_scans(data)
    pillow = imported("PIL.Image")
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _too_many_pixels(str(error)) from error
    except pillow.UnidentifiedImageError as error:
        raise CorruptDataError(
            "an image is damaged, or has an unknown format",
            expected="an image in " + (", ".join(formats) if formats else "a format that Pillow decodes"),
            found=f"{len(data):,} bytes that begin with {data[:12].hex(' ') or 'nothing'}",
            remedy="`wdsplit bench --bad-samples-file` lists all such samples, and a view leaves them out; decode an "
            "image in another format with a function of your own",
        ) from error
    check_pixels(*image.size)
    if image.format in _PROGRAM_FORMATS:
        raise InputError(
            f"images of the format {image.format} are not decoded",
            expected="a format that Pillow decodes without running another program",
            remedy="pass a function of your own to decode if you trust where the data comes from",
        )
    return image


def eight_bits(image: Any) -> Any:
    """Return a Pillow image with 8 bits a channel: of 16 bits the upper eight, as Pillow does in colour images.

    Raises:
        InputError: It has 32 bits a channel, whose range is unknown.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return imported("PIL.Image").fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode[0] in "IF":
        raise InputError(
            "an image has 32 bits a channel",
            expected="8 or 16 bits",
            found=f"mode {image.mode}",
            remedy="decode it with a function of your own, which knows how to scale its values to 8 bits",
        )
    return image


def loaded(image: Any, mode: str) -> Any:
    """Return a Pillow image, decoded, in a mode such as RGB; it may be the same one."""
    image.load()
    image = eight_bits(image)
    return image if image.mode == mode else image.convert(mode)


def orientation_of(image: Any) -> int:
    """Return EXIF's orientation of a Pillow image, 1 to 8; 1 if it has none, or an unreadable one.

    A JPEG may be open; other images are loaded. Pillow turns TIFF upright itself.
    """
    if image.format not in ("JPEG", "MPO"):
        image.load()
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises errors of many kinds; viewers too show an image whose EXIF data are damaged
        return 1
    return int(orientation) if orientation in _TURNS else 1


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Return pixels of shape (height, width, ...) turned upright, without a copy."""
    return _TURNS[orientation](pixels) if orientation in _TURNS else pixels


def check_scans(data: bytes) -> None:
    """Raise InputError if a JPEG has so many scans that decoding takes far longer than its size suggests."""
    place, single, count = 2, -1, 0
    while data.startswith(JPEG_MAGIC) and (found := _MARKER.search(data, place)):
        marker, place = found[1][0], found.end()
        if marker == _END_OF_IMAGE:
            break
        if marker in _FRAMES:  # the number of components that a first and only scan has, unless it is progressive
            single = data[place + 7] if marker in _FRAMES[:2] and place + 7 < len(data) else -1
        if marker == _START_OF_SCAN:
            count += 1
            is_only = data[place + 2 : place + 3] == bytes([single % 256])
            if count == 1 and (is_only or data.count(_SCAN, place) < _MAX_SCANS):
                return
        if marker not in _ALONE:
            place += max(2, int.from_bytes(data[place : place + 2], "big"))
    if count > _MAX_SCANS:
        raise InputError(
            "a JPEG has too many scans, so it was not decoded",
            expected=f"at most {_MAX_SCANS}",
            found=f"{count:,}",
            remedy="save the image again; `wdsplit bench --bad-samples-file` lists all such samples, and a view leaves "
            "them out",
        )


def plain_pixels(data: bytes, mode: str) -> npt.NDArray[np.uint8] | None:
    """Return the pixels of a PNG or WebP as imagecodecs decodes them; None if it is not installed, or Pillow has to.

    They are Pillow's, in half of the time: it takes longer to open a small image than to decode it. Left to Pillow are
    other modes, 16 bits, lossless or animated WebPs and damaged files.

    Raises:
        InputError: It has too many pixels.
    """
    if data.startswith(_PNG_MAGIC) and len(data) >= _PNG_HEAD.size:
        kind, width, height, depth, colour = _PNG_HEAD.unpack_from(data)
        is_plain = (kind, depth, _PNG_MODES.get(colour)) == (b"IHDR", 8, mode)
        decoder = "png_decode"
    elif data.startswith(b"RIFF") and len(data) >= _WEBP_HEAD.size:
        kind, *sides = _WEBP_HEAD.unpack_from(data)
        width, height = (side & 0x3FFF for side in sides)
        is_plain = (kind, mode) == (b"WEBPVP8 ", "RGB")
        decoder = "webp_decode"
    else:
        return None
    codecs = _codecs() if is_plain else None
    if codecs is None:
        return None
    check_pixels(width, height)
    try:
        pixels: npt.NDArray[np.uint8] = getattr(codecs, decoder)(data)
    except (RuntimeError, ValueError):
        return None
    expected = (height, width) if mode == "L" else (height, width, len(mode))
    return pixels if pixels.shape == expected else None


@functools.cache
def _codecs() -> Any:
    try:
        return importlib.import_module("imagecodecs")
    except ModuleNotFoundError:
        return None


def check_pixels(width: int, height: int) -> None:
    """Raise InputError if an image has more pixels than Pillow's limit."""
    max_pixels = imported("PIL.Image").MAX_IMAGE_PIXELS
    if max_pixels is not None and width * height > max_pixels:
        raise _too_many_pixels(f"{width} x {height} pixels")


def _too_many_pixels(found: str) -> InputError:
    return InputError(
        "an image has too many pixels, so it was not decoded",
        expected=f"at most {imported('PIL.Image').MAX_IMAGE_PIXELS}",
        found=found,
        remedy="raise PIL.Image.MAX_IMAGE_PIXELS if you trust where the data comes from",
    )


@functools.cache
def imported(module: str) -> Any:
    """Import an optional library."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        names = {"PIL.Image": "pillow", "simplejpeg": "simplejpeg"}
        if error.name == "torch":
            raise MissingDependencyError.for_extra("torch") from error
        if module not in names:
            raise
        raise MissingDependencyError(
            f"{names[module]} is not installed", remedy="install it: pip install 'wdsplit[images]'"
        ) from error
