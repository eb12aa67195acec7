"""Facts of payloads without decoding them: their kind, the sizes of images, the characters of texts.

A payload that is not of its field's kind is unreadable, never an error.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Float64
from wdsplit.fields.image_sizes import image_sizes, is_image
from wdsplit.shards.manifest import Field

__all__ = ["MEASURES", "MIME_TYPES", "array_header", "kind_of", "measures_of"]

MIME_TYPES = {
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
}
_TEXTS = frozenset(("caption", "html", "jsonl", "md", "srt", "text", "transcript", "txt", "xml"))
_NUMBERS = frozenset(("class", "cls", "cls2", "id", "index", "inx", "label"))
_BY_ENCODING = {"integer": "number", "json": "json", "npy": "array", "text": "text"}

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
    if known or is_image(name):
        return known or "image"
    kinds = {"audio": MIME_TYPES, "text": _TEXTS, "number": _NUMBERS, "json": ("json",), "array": ("npy",)}
    return next((kind for kind, names in kinds.items() if last in names), "bytes")


def measures_of(kind: str, payloads: list[bytes]) -> dict[str, Float64]:
    """Return the measures of n payloads of some kind: float64 of shape (n,), nan for those that are unreadable."""
    if kind == "image":
        sides = (
            side.cast(pa.float64()).fill_null(math.nan) for side in image_sizes(pa.array(payloads, pa.large_binary()))
        )
        width, height = (side.to_numpy(zero_copy_only=False) for side in sides)
        return {"width": width, "height": height, "aspect": width / np.maximum(1, height)}
    return {name: np.array([_measure(kind, payload) for payload in payloads], float) for name in MEASURES.get(kind, ())}


def _measure(kind: str, payload: bytes) -> float:
    """Return the characters of a text, the value of a number, or the elements of an array."""
    try:
        if kind == "text":
            return len(payload.decode())
        if kind == "array":
            return math.prod(array_header(payload)[0])
        return float(payload) if math.isfinite(float(payload)) else math.nan
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, KeyError, TypeError, IndexError):
        return math.nan


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
