"""The contents of a dataset's fields: classes, image sizes, and the number of samples that have each field.

Small datasets are counted completely. Large ones are sampled, always at the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.checks.samples import read_fields, spread_numbers
from wdsplit.fields.image_sizes import image_sizes, is_image
from wdsplit.loading.reading.block import head
from wdsplit.order.numbers import SampleNumbers
from wdsplit.shards.manifest import Field, Manifest
from wdsplit.storage.interface import ReadableStorage
from wdsplit.texts import class_name

__all__ = ["Contents", "FieldContents", "ImageSizes", "read_contents"]

_MAX_ALL, _MAX_ALL_BYTES = 2**16, 2**29
"""A local dataset of up to this many samples and bytes is counted completely."""
_MAX_DRAWN, _MAX_REMOTE_DRAWN = 1024, 256
"""Samples to read of a larger dataset, and of a remote one, where each takes up to three small requests."""
_MAX_IMAGES = 64
_MAX_REMOTE_BYTES = 2**23
"""Shards of a remote dataset up to this size are read whole, if all its samples are read."""
_MAX_LABEL_BYTES = 64
_HEAD_BYTES = 2**16
"""Bytes to read of an image: its header has the size."""
_MAX_DISTINCT, _MAX_DISTINCT_DRAWN = 0.5, 0.9
"""Values are not classes if a larger share of them is distinct: of all samples, and of some, where a class may occur
only once."""


@dataclass(frozen=True)
class ImageSizes:
    """The sizes of some images, by their headers.

    Attributes:
        num_read: Number of images whose header was read.
        width: Minimum, median and maximum in pixels.
        height: Minimum, median and maximum in pixels.
    """

    num_read: int
    width: tuple[int, int, int]
    height: tuple[int, int, int]


@dataclass(frozen=True)
class FieldContents:
    """The contents of a field, in the samples that were read.

    Attributes:
        name: The field.
        num_present: Number of samples that have it.
        num_bytes: Minimum, median and maximum of its bytes; None if no sample has it.
        classes: Number of samples by class, in the order of numbers or names; empty if it has no classes.
        images: The sizes of its images; None if it has none.
    """

    name: str
    num_present: int
    num_bytes: tuple[int, int, int] | None
    classes: dict[str, int]
    images: ImageSizes | None


@dataclass(frozen=True)
class Contents:
    """The contents of a dataset's fields.

    Attributes:
        num_read: Number of samples that were read, without pads.
        is_exact: Whether these are all samples of the dataset or the view.
        fields: The contents of each field, in the order of the manifest.
    """

    num_read: int
    is_exact: bool
    fields: tuple[FieldContents, ...]


def read_contents(storage: ReadableStorage, manifest: Manifest, numbers: SampleNumbers) -> Contents:
    """Read the headers and small fields of all samples, or of some, and the headers of some images.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        numbers: Its samples, or those of a view.

    Raises:
        WdsplitError: A shard is missing or damaged.
    """
    is_small = len(numbers) <= _MAX_ALL and manifest.num_bytes <= _MAX_ALL_BYTES
    num_drawn = _MAX_REMOTE_DRAWN if storage.is_remote else len(numbers) if is_small else _MAX_DRAWN
    samples = np.sort(np.array(spread_numbers(len(numbers), num_drawn, 0), np.int64))
    is_exact = len(samples) == len(numbers)
    whole = len(samples) == manifest.num_samples and manifest.num_bytes <= _MAX_REMOTE_BYTES

    def read(some: Int64, fields: list[str], value: Callable[[Any, str], Any]) -> dict[str, list[Any]]:
        shard, sample, _ = numbers.places(some)
        return read_fields(storage, manifest, shard, sample, fields, whole, value)

    found = read(samples, [field.name for field in manifest.fields], _size_and_label)
    images = [name for name in found if is_image(name)]
    some = np.sort(samples[spread_numbers(len(samples), _MAX_IMAGES, 0)])
    heads = read(some, images, lambda payload, _: head(payload, _HEAD_BYTES)) if images else {}
    distinct = _MAX_DISTINCT if is_exact else _MAX_DISTINCT_DRAWN
    fields = (_contents(field, found[field.name], heads.get(field.name, []), distinct) for field in manifest.fields)
    return Contents(len(samples), is_exact, tuple(fields))


def _size_and_label(payload: Any, url: str) -> tuple[int, bytes | None]:
    """Return the size of a payload in bytes, and the payload if it may be a label; unread ones are too large."""
    return len(payload), payload if isinstance(payload, bytes) and len(payload) <= _MAX_LABEL_BYTES else None


def _contents(
    field: Field, found: list[tuple[int, bytes | None] | None], heads: list[bytes | None], max_distinct: float
) -> FieldContents:
    present = [each for each in found if each is not None]
    sizes = _three(size for size, _ in present) if present else None
    is_label = field.name.rpartition(".")[2] == "cls"
    classes = _classes([label for _, label in present], field.names, max_distinct) if is_label else {}
    sides = image_sizes(pa.array([head for head in heads if head is not None], pa.large_binary()))
    widths, heights = (side.drop_null().to_pylist() for side in sides)
    images = ImageSizes(len(widths), _three(widths), _three(heights)) if widths else None
    return FieldContents(field.name, len(present), sizes, classes, images)


def _classes(labels: list[bytes | None], names: tuple[str, ...], max_distinct: float) -> dict[str, int]:
    """Return the number of samples of each class, 0 for unused class names; empty if the labels are not classes."""
    counts = Counter(labels)
    if None in counts or (not names and len(counts) > max_distinct * len(labels)):
        return {}
    texts = {label.decode("utf-8", "backslashreplace"): count for label, count in counts.items() if label is not None}
    found = dict.fromkeys(names, 0)
    for text in sorted(texts, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)):
        name = class_name(text, names)
        found[name] = found.get(name, 0) + texts[text]
    return found


def _three(numbers: Iterable[int]) -> tuple[int, int, int]:
    """Return the smallest, the median (one of them) and the largest of some numbers."""
    ordered = sorted(numbers)
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]
