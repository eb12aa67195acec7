"""Facts of one payload without decoding it: its kind, the size of an image, the characters of a text.

A payload that is not of its field's kind is unreadable, never an error.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from wdsplit.checks.image_headers import image_size
from wdsplit.shards.manifest import Field

__all__ = ["AUDIO", "MEASURES", "MIME_TYPES", "array_header", "kind_of", "measure"]

_IMAGES = frozenset(("bmp", "gif", "jpeg", "jpg", "png", "pgm", "ppm", "tif", "tiff", "webp"))
MIME_TYPES = {
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
}
AUDIO = frozenset(MIME_TYPES)
_TEXTS = frozenset(("caption", "html", "md", "srt", "text", "transcript", "txt", "xml"))
_NUMBERS = frozenset(("class", "cls", "cls2", "id", "index", "inx", "label"))
_BY_ENCODING = {"class": "text", "integer": "number", "json": "json", "npy": "array", "text": "text"}

MEASURES = {
    "image": ("width", "height", "aspect"),
    "text": ("characters",),
    "number": ("value",),
    "array": ("elements",),
}
"""The measures of payloads of each kind, besides their bytes."""


def kind_of(name: str, field: Field | None) -> str:
    """Return the kind of a field: image, audio, text, number, json, array or bytes.

    Args:
        name: The field's name, such as `jpg` or `seg.png`.
        field: The manifest's entry of it, if any.
    """
    last = name.rpartition(".")[2]
    known = _BY_ENCODING.get(field.encoding) if field is not None else None
    if known:
        return known
    kinds = {"image": _IMAGES, "audio": AUDIO, "text": _TEXTS, "number": _NUMBERS}
    found = next((kind for kind, names in kinds.items() if last in names), "bytes")
    return {"json": "json", "jsonl": "text", "npy": "array"}.get(last, found)


def measure(kind: str, payload: bytes) -> Mapping[str, float]:
    """Return the measures of a payload of some kind; none if it is unreadable."""
    try:
        if kind == "image":
            width, height = image_size(payload)
            return {"width": width, "height": height, "aspect": width / max(1, height)}
        if kind == "text":
            return {"characters": len(payload.decode())}
        if kind == "number":
            value = float(payload)
            return {"value": value} if math.isfinite(value) else {}
        return {"elements": math.prod(array_header(payload)[0])} if kind == "array" else {}
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, KeyError, TypeError, IndexError):
        return {}


def array_header(payload: bytes) -> tuple[tuple[int, ...], str]:
    """Return shape and type of an array in numpy's format; raises ValueError if it is not one."""
    file = io.BytesIO(payload)
    version = np.lib.format.read_magic(file)
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    shape, _, dtype = readers[version](file)
    return shape, str(dtype)
