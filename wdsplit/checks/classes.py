"""Measures how well the classes of a dataset are mixed in the batches of a rank, and suggests a remedy.

Combines the order with the labels of its samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from wdsplit.checks.mixing import Batches, ClassMixing, class_mixing, draw_batches
from wdsplit.checks.samples import MAX_LABEL_BYTES, read_texts
from wdsplit.errors import InputError, did_you_mean
from wdsplit.loading.reading.source import Source
from wdsplit.order.epoch import EpochOrder
from wdsplit.shards.manifest import Manifest

__all__ = ["MixedClasses", "measure_classes"]

_MAX_LABELS, _MAX_REMOTE_LABELS = 2**16, 2**11
"""Approximate number of labels to read; each label of a remote dataset may take three small requests."""
_MAX_REMOTE_BYTES = 64 * 1024**2
"""A remote dataset up to this size is read whole."""
_FEWEST_PER_CLASS = 2
_BAD, _ERRORS = 2, 3
"""Classes are badly mixed if chi-squared minus `_ERRORS` standard errors is more than `_BAD` times the ideal."""


class MixedClasses(NamedTuple):
    """How a field's classes are spread over the batches of a rank, and what helps if that harms training."""

    field: str
    mixing: ClassMixing
    remedy: str


def measure_classes(
    source: Source, order: EpochOrder, world_size: int, batch_size: int, field: str | None = None
) -> MixedClasses | None:
    """Read the labels of an epoch's batches, or of some of them, and compare their classes.

    Args:
        source: The dataset.
        order: The order of the epoch.
        world_size: Number of ranks.
        batch_size: Samples per batch on each rank.
        field: The field with the classes; None for `cls` or a field that ends in `.cls`, the worst mixed of them.

    Returns:
        None if the dataset has no such field, its values are not classes, or the topology has no two batches of two
        samples.

    Raises:
        InputError: The dataset does not have `field`, or its values are not classes.
        WdsplitError: A shard is missing or damaged.
    """
    manifest = source.manifest
    known = [each.name for each in manifest.fields]
    if field is not None and field not in known:
        raise InputError(
            f"the dataset has no field {field!r}",
            expected=f"one of {', '.join(known)}",
            remedy=did_you_mean([field], known) or "choose a field of classes with class_field (--class-field)",
        )
    names = [name for name in known if name.rpartition(".")[2] == "cls"] if field is None else [field]
    if not names or batch_size < 2 or not order.num_samples:
        return None
    is_small = manifest.num_bytes <= _MAX_REMOTE_BYTES
    max_labels = _MAX_REMOTE_LABELS if source.storage().is_remote and not is_small else _MAX_LABELS
    max_positions = int(max_labels / source.samples_a_position(order.epoch))
    batches = draw_batches(order, world_size, batch_size, max_positions)
    labels = read_texts(source, batches.samples.shard, batches.samples.sample, names, batches.is_all and is_small)
    found = [_mixed(*each, batches, manifest, field is not None) for each in zip(names, labels, strict=True)]
    classes = (each for each in found if each is not None)
    return max(classes, key=lambda each: each.mixing.chi_squared / each.mixing.ideal, default=None)


def _mixed(
    name: str, labels: list[str | None], batches: Batches, manifest: Manifest, is_requested: bool
) -> MixedClasses | None:
    encoded = pa.array(labels, pa.string()).dictionary_encode(null_encoding="encode")
    num_classes = len(encoded.dictionary)
    if num_classes * _FEWEST_PER_CLASS > len(labels) or encoded.dictionary.null_count == num_classes:
        if is_requested:
            raise InputError(
                f"field {name!r} has no classes",
                expected=f"values of at most {MAX_LABEL_BYTES} bytes that many samples share",
                found=f"{num_classes - encoded.dictionary.null_count:,} such values in {len(labels):,} samples",
                remedy="choose a field of classes with class_field (--class-field)",
            )
        return None
    mixing = class_mixing(batches, encoded.indices.to_numpy().astype(np.int64))
    if mixing is None:
        return None
    is_bad = mixing.chi_squared - _ERRORS * mixing.error > _BAD * mixing.ideal
    return MixedClasses(name, mixing, _remedy(manifest) if is_bad else "")


def _remedy(manifest: Manifest) -> str:
    """Return how to mix the classes of a dataset, which depends on how it was made."""
    options = manifest.conversion_options
    if manifest.provenance.get("adopted"):
        return "write the tars anew in a random order: wdsplit convert --shuffle"
    if options.get("shuffle"):
        return "convert again with more --lanes, or a smaller --window"
    return "convert again without --no-shuffle (tars: with --shuffle)"
