"""Decodes all images of a shard as `decode` and `resized` do: which of them fail, and what is unusual in the others."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdsplit.errors import CorruptDataError, MissingDependencyError, WdsplitError
from wdsplit.fields.image_sizes import is_image
from wdsplit.loading.bad_samples import BadSample
from wdsplit.loading.reading.block import as_list
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.windows import DAMAGE, WindowPlace, read_windows
from wdsplit.loading.stages.decoders import located
from wdsplit.loading.stages.image_files import (
    IMAGE_FORMATS,
    JPEG_MAGIC,
    imported,
    loaded,
    open_image,
    orientation_of,
)
from wdsplit.loading.stages.images import jpeg_header, jpeg_pixels
from wdsplit.order.selection import Selection
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sample_tables import read_names
from wdsplit.storage.interface import ReadableStorage

__all__ = ["Images", "decode_images", "require_decoders"]

_SAMPLES_AT_ONCE = 64
_MIN_SIDE, _MAX_PIXELS, _MAX_RATIO = 32, 50_000_000, 10
_BITS, _BITS_PER_SAMPLE = 8, 258

CMYK, DEEP, TURNED, SEVERAL = "CMYK", "16 bits a channel", "EXIF rotation", "animations, or several pages"
TINY, HUGE, LONG = "a side below 32 pixels", "more than 50 million pixels", "a side over 10 times the other"
UNUSUAL = (CMYK, DEEP, TURNED, SEVERAL, TINY, HUGE, LONG)


@dataclass(frozen=True)
class Images:
    """What `verify(decode=True)` found in the images of a dataset.

    Attributes:
        num_images: Number of images, of all fields; all were decoded, except those of damaged samples.
        formats: Number of good images of each format, by field, such as `{"jpg": {"JPEG": 98, "PNG": 2}}`.
        unusual: Number of images of each unusual kind, such as `{"EXIF rotation": 194}`.
        bad: The samples that `decode` or `resized` fails on, in the order of the shards; damaged ones too.
    """

    num_images: int = 0
    formats: dict[str, dict[str, int]] = field(default_factory=dict)
    unusual: dict[str, int] = field(default_factory=dict)
    bad: tuple[BadSample, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Images]) -> Images:
        """Return the images of several shards together."""
        parts = list(parts)
        formats: dict[str, Counter[str]] = {}
        for part in parts:
            for name, counts in part.formats.items():
                formats.setdefault(name, Counter()).update(counts)
        unusual = sum((Counter(part.unusual) for part in parts), Counter[str]())
        return cls(
            sum(part.num_images for part in parts),
            {name: dict(counts.most_common()) for name, counts in formats.items()},
            {what: unusual[what] for what in UNUSUAL if unusual[what]},
            tuple(bad for part in parts for bad in part.bad),
        )


def require_decoders() -> None:
    """Raise MissingDependencyError unless the libraries that decode images are installed."""
    for module in ("PIL.Image", "simplejpeg"):
        imported(module)


def decode_images(
    storage: ReadableStorage, manifest: Manifest, selection: Selection | None, number: int
) -> tuple[Images, list[WdsplitError]]:
    """Decode all images of a shard, or those of a selection; if it cannot be opened, all its samples are bad.

    Returns:
        What was found, and the errors of the images that cannot be decoded.
    """
    listed = manifest.shards[number]
    url, num_real = f"{storage.url}/{listed.path}", listed.num_samples - listed.num_pads
    mask = np.ones(num_real, np.bool_) if selection is None else selection.mask(number, 0, num_real)
    fields = [field.name for field in manifest.fields if is_image(field.name)]
    formats: dict[str, Counter[str]] = {name: Counter() for name in fields}
    unusual: Counter[str] = Counter()
    bad: list[BadSample] = []
    errors: list[WdsplitError] = []
    names: Sequence[tuple[str | None, str]] = [(None, "")] * num_real
    with suppress(CorruptDataError):
        names = names if manifest.samples is None else read_names(storage, listed, manifest.samples)

    def note(row: int, key: str | None, error: Exception) -> None:
        known, file = names[row]
        bad.append(BadSample(key or known, url, row, None, error, file))

    try:
        shard = open_shard(storage, listed, manifest.field_names).narrowed(fields)
    except CorruptDataError as error:
        for row in np.flatnonzero(mask).tolist():
            note(row, None, error)
        return Images(bad=tuple(bad)), []
    except WdsplitError:  # it is a problem already
        return Images(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd files
        for first in range(0, len(mask), _SAMPLES_AT_ONCE):
            samples = np.arange(first, min(len(mask), first + _SAMPLES_AT_ONCE))
            window = next(read_windows([WindowPlace(shard, samples)], salvages=True)).block
            damage = window.fields.pop(DAMAGE, None)
            for row in np.flatnonzero(mask[samples]).tolist():
                if damage is not None and damage[row] is not None:
                    note(first + row, None, damage[row])
                    continue
                key, before = window.keys[row], len(errors)
                for name in window.fields:
                    payload = as_list(window.fields[name][row : row + 1])[0]
                    try:
                        kind, found = ("", []) if payload is None else _decoded(bytes(payload))
                    except MissingDependencyError:
                        raise
                    except Exception as error:  # decoders raise errors of many kinds
                        errors.append(located(error, name, {"__key__": key, "__url__": url}))
                        continue
                    formats[name].update([kind] if kind else [])
                    unusual.update(found)
                if len(errors) > before:
                    note(first + row, key, errors[before])
                    for problem in errors[before:] if bad[-1].file_name else ():
                        problem.place += f", file {bad[-1].file_name!r}"
    num_images = sum(map(Counter.total, formats.values())) + len(errors)
    return Images(num_images, {name: dict(counts) for name, counts in formats.items()}, unusual, tuple(bad)), errors


def _decoded(data: bytes) -> tuple[str, list[str]]:
    """Decode an image; return its format, and what is unusual about it. Raises what `decode` or `resized` raises."""
    image = open_image(data, IMAGE_FORMATS)
    loaded(image, "RGB")
    if data.startswith(JPEG_MAGIC) and jpeg_header(data) is not None:
        jpeg_pixels(data, 1, 1)
    kind = {None: "PNG", "MPO": "JPEG"}.get(image.format, image.format)
    short, long = sorted(image.size)
    tests = {
        CMYK: image.mode == "CMYK",
        DEEP: _is_deep(image, data),
        TURNED: orientation_of(image) != 1,
        SEVERAL: image.format != "MPO" and _has_several(image),
        TINY: short < _MIN_SIDE,
        HUGE: short * long > _MAX_PIXELS,
        LONG: long > _MAX_RATIO * short,
    }
    return kind, [what for what, is_so in tests.items() if is_so]


def _is_deep(image: Any, data: bytes) -> bool:
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))) > _BITS
    return data[24] > _BITS if image.format in (None, "PNG") else str(image.mode)[0] == "I"


def _has_several(image: Any) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # what follows the first image is damaged, and is never decoded
        return True
