"""Images of a dataset, opened by Pillow: their headers are read, and nothing is decoded.

Only a few formats are tried, so that untrusted bytes reach little code.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from wdsplit.errors import MissingDependencyError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["image_size", "open_image"]

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


def open_image(payload: bytes) -> Image:
    """Open an image; its first bytes are enough. Raises OSError, ValueError or SyntaxError for other payloads.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("report") from error
    try:
        return Image.open(io.BytesIO(payload), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def image_size(payload: bytes) -> tuple[int, int]:
    """Return the width and height of an image; raises as `open_image` does."""
    return open_image(payload).size
