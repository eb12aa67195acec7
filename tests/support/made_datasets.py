"""Small datasets for the tests, made as users make them, and what loaders deliver of them.

In the datasets of numbers the field `cls` is the number of the table's row.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from media_files import encoded
from orders import slow_epoch, slow_lanes
from wdsplit import ConvertOptions, convert
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.order.epoch import OrderOptions
from wdsplit.shards.files import read_manifest, write_manifest, write_shard
from wdsplit.shards.manifest import Field, Manifest, Shard, Shards, shard_path
from wdsplit.shards.sample_tables import dump_samples, samples_path
from wdsplit.storage.opening import open_storage
from wdsplit.tar.members import build_body

# Tables and datasets


def numbers_table(num_rows):
    return pa.table({"cls": range(num_rows), "txt": [f"row {row}" for row in range(num_rows)]})


def payloads_table(num_rows, num_bytes):
    """Return a table of payloads of so many bytes, each of which is the number of its row again and again."""
    return pa.table({"bin": pa.array([row.to_bytes(2, "big") * (num_bytes // 2) for row in range(num_rows)])})


def image_pixels(row):
    """Return an image of 6 x 8 pixels that no other row has."""
    return ((np.arange(6 * 8 * 3) * 7 + row) % 256).astype(np.uint8).reshape(6, 8, 3)


def images_table(num_rows):
    """Return a table of all kinds of fields, with keys that must be escaped in part."""
    rows = range(num_rows)
    return pa.table(
        {
            "name": [f"class-{row % 3}/img.{row}" if row % 2 else f"class-{row % 3}/img_{row}" for row in rows],
            "png": [encoded(image_pixels(row), "PNG") for row in rows],
            "cls": rows,
            "txt": [f"Bild Nr. {row}, größer" for row in rows],
            "npy": pa.array([np.arange(4, dtype=np.float32) + row for row in rows], pa.list_(pa.float32(), 4)),
            "json": [{"row": row, "tags": ["a"] * (row % 3)} for row in rows],
        }
    )


def converted(folder, table, key=None, mapping=None, **plan):
    """Convert a table through parquet; return the dataset's path. Rows keep their order unless asked otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "table.parquet", row_group_size=40)
    options = ConvertOptions(**{"shuffle": False, **plan}, mapping=mapping or {}, key=key)
    convert([str(folder / "table.parquet")], str(folder / "out"), options)
    return str(folder / "out")


def numbers_dataset(folder, num_rows, **plan):
    return converted(folder, numbers_table(num_rows), **plan)


def sized_dataset(folder, counts, lanes, window):
    """Write a dataset of numbers whose shards have the given sizes, which no conversion would choose."""
    storage, first, rows = open_storage(str(folder)), 0, []
    for shard, count in enumerate(counts):
        numbers = range(first, first + count)
        keys = pa.array([f"{number:08d}" for number in numbers], pa.string())
        body = build_body(keys, {"cls": pa.array([str(number).encode() for number in numbers], pa.large_binary())})
        rows.append(write_shard(storage, shard_path(shard), [body], ["cls"], num_pads=0))
        first += count
    fields = (Field("cls", "cls", "integer", "int64"),)
    write_manifest(storage, Manifest(Shards.of(rows), fields, lanes, window, "none", {}))
    return str(folder)


def keys_dataset(folder, keys, num_shards):
    """Write what annotations need of a dataset: its manifest and its sample tables, but no shards."""
    storage, bounds = open_storage(str(folder)), np.linspace(0, len(keys), num_shards + 1).astype(int)
    schema = pa.schema([pa.field("__key__", pa.string(), False), pa.field("num_bytes", pa.int64(), False)])
    shards = []
    for number, (first, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        shards.append(Shard(shard_path(number), stop - first, 0, 2048 * (stop - first) + 10_240, f"xxh3_128:{number}"))
        table = pa.table({"__key__": keys.slice(first, stop - first), "num_bytes": np.full(stop - first, 1024)}, schema)
        with storage.publish(samples_path(shards[-1].path)) as file:
            file.write([dump_samples(table, shards[-1].checksum)])
    write_manifest(storage, Manifest(Shards.of(shards), (), 192, 16, "none", {}, schema))
    return str(folder)


def without_urls(dataset):
    """Return the samples of a dataset without the place that they were read from."""
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in dataset]


# Deliveries: (position, row, pad)


def delivering(dataset):
    """Append stages that make each sample a delivery."""
    return dataset.decode().to_tuple("__position__", "cls", "__pad__")


def deliveries(batch):
    """Return the deliveries of a batch that was collated."""
    return list(zip(*(column.tolist() for column in batch), strict=True))


def all_deliveries(batches):
    return list(itertools.chain.from_iterable(map(deliveries, batches)))


def real_rows(delivered):
    """Return the rows that were delivered as themselves, sorted."""
    return sorted(row for _, row, pad in delivered if not pad)


def loaders_of(path, world_size, global_batch=12, num_workers=0, workers="process", epoch=0, **options):
    """Return the loader of each rank."""
    loaders = []
    for rank in range(world_size):
        dataset = Dataset(path, rank=rank, world_size=world_size, **options)
        dataset.set_epoch(epoch)
        size = global_batch // world_size
        loaders.append(Loader(delivering(dataset), size, num_workers=num_workers, workers=workers))
    return loaders


def interleaved(parts):
    """Return the deliveries of a global batch, of which each rank has made a part, in the order of their positions.

    Within a part they must stand in that order already.
    """
    for part in parts:
        positions = [position for position, _, _ in part]
        assert positions == sorted(positions)
    return sorted(itertools.chain.from_iterable(parts))


def global_batches(loaders, steps=None):
    """Run all ranks in step, to the end or for some steps; they must have equally many."""
    lockstep = itertools.islice(zip(*loaders, strict=True), steps)
    return [interleaved([deliveries(part) for part in parts]) for parts in lockstep]


def expected_epoch(path, epoch=0, seed=0, shuffle=True, tail="pad", lanes=None, window=None, version=None):
    """Give the deliveries of an epoch, on and on, as plain Python tells the order."""
    manifest = read_manifest(open_storage(path), version)
    options = OrderOptions(seed, shuffle, lanes or manifest.lanes, window or manifest.window, tail)
    counts = manifest.shards.num_real.tolist()
    first_rows = [sum(counts[:shard]) for shard in range(len(counts))]
    lanes_of_epoch, _ = slow_lanes(counts, options, epoch)
    for position, (shard, sample, pad) in enumerate(slow_epoch(lanes_of_epoch)):
        yield position, None if shard is None else first_rows[shard] + sample, pad


def expected_batches(path, num_batches, global_batch=12, epoch=0, **options):
    positions = expected_epoch(path, epoch, **options)
    return [list(itertools.islice(positions, global_batch)) for _ in range(num_batches)]
