"""What a stored view costs when a dataset of a billion samples in a million shards is opened: a program of its own.

The dataset has a manifest and a view, made by arithmetic, and no shards. `make FOLDER` writes them; `open FOLDER
[VIEW]` prints seconds of the processor, and memory.
"""

import json
import re
import sys
import time
from pathlib import Path

NUM_SHARDS, SHARD_SAMPLES, SHARD_BYTES = 1_000_000, 1000, 101_376_000


def make(folder):
    """Write a manifest, and a view of every third sample of all shards but each tenth, of which it has all."""
    import numpy as np
    import pyarrow as pa

    from wdsplit.order.selection import Selection
    from wdsplit.shards.files import write_manifest
    from wdsplit.shards.manifest import Field, Manifest, Shards, shard_path
    from wdsplit.shards.views import write_view
    from wdsplit.storage.local import LocalStorage

    numbers = np.arange(NUM_SHARDS)
    columns = {
        "path": pa.array([shard_path(number) for number in numbers.tolist()]),
        "num_samples": np.full(NUM_SHARDS, SHARD_SAMPLES),
        "num_pads": np.zeros(NUM_SHARDS, np.int64),
        "num_bytes": np.full(NUM_SHARDS, SHARD_BYTES),
        "checksum": pa.array([f"xxh3_128:{number * 0x9E3779B97F4A7C15:032x}"[:41] for number in numbers.tolist()]),
    }
    fields = (Field("cls", "cls", "integer", "int64"),)
    manifest = Manifest(Shards.of_columns(columns), fields, 192, 14, "none", {})
    storage = LocalStorage(folder)
    write_manifest(storage, manifest)
    third = np.arange(SHARD_SAMPLES) % 3 == 0
    is_whole = numbers % 10 == 0
    totals = np.full(NUM_SHARDS, SHARD_SAMPLES)
    counts = np.where(is_whole, SHARD_SAMPLES, third.sum())
    bitmaps = np.tile(np.packbits(third, bitorder="little"), int((~is_whole).sum()))
    stored = write_view(storage, manifest, "third", Selection(totals, counts, bitmaps), {"where": "made up"})
    print(json.dumps({"selected": stored.num_selected, "bytes": next(Path(folder, "views").iterdir()).stat().st_size}))


def memory(name):
    """Return bytes of this process: VmRSS has it now, VmHWM had at most (getrusage would count the parent, too)."""
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def open_dataset(folder, view=None):
    """Open the dataset, and compute the order of an epoch."""
    from wdsplit import Dataset  # and torch

    started = time.process_time()
    dataset = Dataset(folder, view=view, rank=0, world_size=1)
    cpu_s, samples = time.process_time() - started, dataset.order(0).num_samples
    print(json.dumps({"cpu_s": cpu_s, "peak": memory("VmHWM"), "now": memory("VmRSS"), "samples": samples}))


if __name__ == "__main__":
    {"make": make, "open": open_dataset}[sys.argv[1]](*sys.argv[2:])
