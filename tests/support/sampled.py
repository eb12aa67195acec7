"""Datasets of numbers with sample tables, for tests of views: written by hand, so that any shards are possible."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.shards.files import write_manifest, write_shard
from wdsplit.shards.manifest import Field, Manifest, Shards, shard_path
from wdsplit.shards.sample_tables import KEY, NUM_BYTES, dump_samples, samples_path, with_names
from wdsplit.storage.opening import open_storage
from wdsplit.tar.members import build_body
from wdsplit.tar.names import escape_key

CLASSES = ("cat", "dog", "eel")


def columns_of(num_samples):
    """Return columns of samples: what conditions in the tests compare."""
    rows = np.arange(num_samples)
    return pa.table(
        {
            "row": pa.array(rows),
            "score": pa.array([None if row % 7 == 6 else row / 10 for row in rows.tolist()], pa.float64()),
            "label": pa.array(rows % 3, pa.int64()),
            "is_odd": pa.array(rows % 2 == 1),
        }
    )


def keys_of(num_samples):
    """Return the keys of samples before they are escaped; every fifth needs that."""
    return [f"img.{row}" if row % 5 == 0 else f"{row:08d}" for row in range(num_samples)]


def sampled_dataset(url, counts, columns=columns_of):
    """Write a dataset of numbers, with sample tables, whose shards have the given sizes; the last has two pads."""
    storage, first, shards = open_storage(str(url)), 0, []
    table = columns(sum(counts))
    keys = [escape_key(key) for key in keys_of(sum(counts))]
    for number, count in enumerate(counts):
        some = pa.array(keys[first : first + count], pa.string())
        values = pa.array([str(row).encode() for row in range(first, first + count)], pa.large_binary())
        bodies = [build_body(some, {"cls": values})]
        num_pads = 2 if number == len(counts) - 1 else 0
        pads = pa.array([f"_pad_/{number:06d}-{pad:06d}" for pad in range(num_pads)], pa.string())
        if num_pads:
            bodies.append(build_body(pads, {"cls": pa.array([b"0"] * num_pads, pa.large_binary())}))
        shard = write_shard(storage, shard_path(number), bodies, ["cls"], num_pads)
        own = table.slice(first, count)
        rows = pa.table(
            {
                KEY: some,
                NUM_BYTES: pc.binary_length(values).cast(pa.int64()),
                **{name: own[name] for name in own.column_names},
            }
        )
        with storage.publish(samples_path(shard.path)) as file:
            file.write([dump_samples(rows, shard.checksum)])
        shards.append(shard)
        first += count
    schema = pa.schema([(KEY, pa.string()), (NUM_BYTES, pa.int64()), *table.schema])
    label = schema.get_field_index("label")
    if label >= 0:
        schema = schema.set(label, with_names(schema.field("label"), CLASSES))
    fields = (Field("cls", "cls", "integer", "int64"),)
    write_manifest(storage, Manifest(Shards.of(shards), fields, 4, 4, "none", {}, schema))
    return str(url)


def rows_of(selection):
    """Return the rows that a selection of a dataset takes, as a list."""
    firsts = np.cumsum(selection.totals) - selection.totals
    places = [firsts[shard] + selection.places(shard) for shard in range(len(selection))]
    return np.concatenate([np.zeros(0, np.int64), *places]).tolist()
