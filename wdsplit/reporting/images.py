"""Thumbnails of images. Each is encoded anew, so no byte of a dataset's image reaches the page."""

from __future__ import annotations

import io
from dataclasses import dataclass

from wdsplit.checks.image_headers import open_image
from wdsplit.loading.stages.image_files import check_scans

__all__ = ["SIDE", "Thumbnail", "thumbnail"]

SIDE = 112
"""Pixels of a thumbnail's longer side, at most."""
_MAX_PIXELS = 64_000_000


@dataclass(frozen=True)
class Thumbnail:
    """A reduced image.

    Attributes:
        width: Pixels of the image itself.
        height: Pixels of the image itself.
        format: Its format, such as JPEG.
        mime_type: The format of the thumbnail.
        data: The thumbnail; empty if the image is too large to be decoded.
    """

    width: int
    height: int
    format: str
    mime_type: str
    data: bytes


def thumbnail(payload: bytes) -> Thumbnail:
    """Decode an image and make it small; raises OSError, ValueError or SyntaxError if it is not an image."""
    check_scans(payload)
    image = open_image(payload)
    width, height = image.size
    kind = image.format or ""
    if width * height > _MAX_PIXELS:
        return Thumbnail(width, height, kind, "", b"")
    has_alpha = image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info
    image.draft("RGB", (2 * SIDE, 2 * SIDE))
    small = image.convert("RGBA" if has_alpha else "RGB")
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    if has_alpha:
        small.save(file, "PNG", optimize=True)
    else:
        small.save(file, "JPEG", quality=82)
    return Thumbnail(width, height, kind, "image/png" if has_alpha else "image/jpeg", file.getvalue())
