"""Images opened by the libraries that decode them, and refused by their headers if they are decompression bombs.

All of these libraries are optional, and imported when used.
"""

from __future__ import annotations

import functools
import importlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.errors import InputError, MissingDependencyError

__all__ = ["check_pixels", "imported", "open_image", "pixels_of"]

_PROGRAM_FORMATS = frozenset({"EPS", "WMF"})
"""Formats that Pillow leaves to another program, such as Ghostscript, which would run what a stranger wrote."""

_PNG_HEAD = struct.Struct(">8sI4sIIBBBBBII4s")
"""The signature and the header of a PNG, and the head of its next chunk."""
_PNG_CHECKED = slice(12, 29)
"""The bytes that the checksum of the header covers."""
_PNG_MODES = {0: "L", 2: "RGB", 6: "RGBA"}
_CHECKSUM_AND_END = 16


def open_image(data: bytes, formats: tuple[str, ...] | None = None) -> Any:
    """Return a Pillow image, of which only the header may have been read.

    Args:
        data: The bytes of the image.
        formats: The formats that it may have, PNG among them; None for all that Pillow knows.

    Raises:
        InputError: It has too many pixels, or a format that another program would decode.
    """
    image = _plain_png(data)
    if image is not None:
        return image
    pillow = imported("PIL.Image")
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _too_many_pixels(str(error)) from error
    check_pixels(*image.size)
    if image.format in _PROGRAM_FORMATS:
        raise InputError(
            f"images of the format {image.format} are not decoded",
            expected="a format that Pillow decodes without running another program",
            remedy="pass a function of your own to decode if you trust where the data comes from",
        )
    return image


def pixels_of(image: Any, mode: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of a Pillow image in a mode such as RGB; do not write to them."""
    image.load()
    return np.asarray(image if image.mode == mode else image.convert(mode))


def _plain_png(data: bytes) -> Any:
    """Return a decoded PNG that has only 8-bit pixels in one chunk; None for any other, and for a damaged one.

    For a small PNG, Pillow takes longer to look for other chunks than to decode it.
    """
    if len(data) < _PNG_HEAD.size:
        return None
    magic, _, kind, width, height, depth, colour, *_, is_interlaced, crc, size, next_kind = _PNG_HEAD.unpack_from(data)
    mode = _PNG_MODES.get(colour)
    chunks = magic, kind, next_kind, len(data) - _PNG_HEAD.size - _CHECKSUM_AND_END
    if chunks != (b"\x89PNG\r\n\x1a\n", b"IHDR", b"IDAT", size) or depth != 8 or is_interlaced or mode is None:
        return None
    if not (width and height) or zlib.crc32(data[_PNG_CHECKED]) != crc:
        return None
    check_pixels(width, height)
    pixels = memoryview(data)[_PNG_HEAD.size : _PNG_HEAD.size + size]
    try:
        return imported("PIL.Image").frombytes(mode, (width, height), pixels, "zip", mode)
    except (ValueError, OSError):
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
