"""The rows of a sample table, read from its tar. Combines open shards, image sizes and `sample_values`.

Writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from wdsplit.fields.image_sizes import first_image_field, image_sizes
from wdsplit.fields.sample_columns import own_columns
from wdsplit.indexing.sample_values import Recipe, as_types, joined_columns
from wdsplit.loading.reading.block import head
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.sample_tables import HEIGHT, KEY, NUM_BYTES, WIDTH
from wdsplit.shards.table import Shard
from wdsplit.storage.interface import ReadableStorage
from wdsplit.tar.places import rows_of

__all__ = ["read_rows", "typed_schema"]

_SAMPLES_AT_ONCE, _BYTES_AT_ONCE = 4096, 32 * 1024**2
_HEAD_BYTES = 2**16
"""Bytes to read of an image: its header has the size."""


def typed_schema(recipe: Recipe) -> pa.Schema:
    """Return the columns that all tables of a dataset have, from the types in the manifest."""
    columns = recipe.typed_columns()
    names = {column.name for column in columns}
    own = own_columns(first_image_field(recipe.fields) is not None)
    return pa.schema([*(column for column in own if column.name not in names), *columns])


def read_rows(storage: ReadableStorage, listed: Shard, recipe: Recipe, lost: Counter[str]) -> pa.Table:
    """Read a shard, some samples at a time, and return the rows of its table, without pads.

    Args:
        storage: The dataset.
        listed: The shard, from the manifest.
        recipe: How columns are made from fields.
        lost: Counts the values that are left out, by a description.

    Raises:
        WdsplitError: The shard is missing or damaged.
    """
    num_real = listed.num_samples - listed.num_pads
    shard = open_shard(storage, listed, tuple(field.name for field in recipe.fields))
    rows = [pa.table(part) for part in _parts(shard, num_real, recipe, lost)]
    columns = joined_columns([pa.schema(own_columns(False)), *(part.schema for part in rows)])
    return pa.concat_tables([as_types(part, columns) for part in rows]) if rows else typed_schema(recipe).empty_table()


def _parts(shard: OpenShard, num_real: int, recipe: Recipe, lost: Counter[str]) -> Iterator[dict[str, pa.Array]]:
    """Yield the columns of some samples at a time, without pads."""
    image = first_image_field(recipe.fields)
    names = [*recipe.field_names, *([image] if image is not None else [])]
    shard, offsets, first = shard.narrowed(names), shard.places.offsets(), 0
    while first < num_real:
        stop = int(np.searchsorted(offsets, offsets[first] + _BYTES_AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), first + _SAMPLES_AT_ONCE, num_real)
        window = read_window(shard, first, stop)
        none = np.full(stop - first, None, object)
        payloads = {
            name: [None if payload is None else bytes(payload) for payload in window.fields.get(name, none)]
            for name in recipe.field_names
        }
        found = recipe.columns(payloads, lost)
        sizes = rows_of([(shard.places, slice(first, stop))]).sizes
        num_bytes = np.where(sizes < 0, 0, sizes).sum(axis=1)
        own = {KEY: pa.array(window.keys, pa.string()), NUM_BYTES: pa.array(num_bytes, pa.int64())}
        if image is not None and not {WIDTH, HEIGHT} <= found.keys():
            pictures = window.fields.get(image, none)
            heads = pa.array(
                [None if each is None else head(each, _HEAD_BYTES) for each in pictures], pa.large_binary()
            )
            own[WIDTH], own[HEIGHT] = image_sizes(heads)
        yield {name: column for name, column in own.items() if name not in found} | found
        first = stop
