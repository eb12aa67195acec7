"""Datasets of very many shards: how soon the first batch comes, and what ten epochs hold.

All shards are links to a few files with the same samples, so that 100,000 of them are made in seconds. Keys repeat,
which readers do not mind.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

SCALE_SHARDS = (1_000, 100_000)
MEMORY_SHARDS = (1_000, 100_000)
SAMPLES, LANES, WINDOW = 8, 16, 64
BATCH_SIZE = 256
EPOCHS = 10
_LINKS = 10_000
"""Names of one file; file systems set bounds to their number."""


def make_many(folder: Path, num_shards: int) -> Path:
    """Make a dataset of shards of 8 small samples, and the state of a loader in the middle of its epoch."""
    import wdsplit
    from wdsplit.shards.files import write_manifest, write_shard
    from wdsplit.shards.manifest import Field, Manifest, Shard, Shards, index_path, shard_path
    from wdsplit.storage.opening import open_storage
    from wdsplit.tar.members import build_body

    dataset = folder / f"many-{num_shards}"
    dataset.mkdir()
    storage = open_storage(str(dataset))
    keys = pa.array([f"{number:08d}" for number in range(SAMPLES)])
    body = build_body(keys, {"txt": pa.array([b"x" * 320] * SAMPLES, pa.large_binary())})
    rows = []
    for shard in range(num_shards):
        first, path = shard_path(shard - shard % _LINKS), shard_path(shard)
        if first == path:
            rows.append(write_shard(storage, path, [body], num_pads=0))
            continue
        for source, name in ((first, path), (index_path(first), index_path(path))):
            os.link(dataset / source, dataset / name)
        # Checksums differ, as those of real shards do; loading does not look at them.
        rows.append(Shard(path, SAMPLES, 0, rows[0].num_bytes, xxhash.xxh3_128_hexdigest(path.encode())))
    fields = (Field("txt", "text", "text", "string"),)
    write_manifest(storage, Manifest(Shards.of(rows), fields, LANES, WINDOW, "none", {}))
    loader = wdsplit.Loader(wdsplit.Dataset(dataset), BATCH_SIZE)
    for _ in islice(loader, len(loader) // 2):
        pass
    (dataset / "middle.json").write_text(json.dumps(loader.state_dict()))
    return dataset


def first_batch(dataset: str, workers: str, place: str) -> dict[str, Any]:
    """Return the seconds from making a dataset to the first batch, at the start of an epoch or in its middle."""
    import wdsplit.loading.loader

    state = json.loads((Path(dataset) / "middle.json").read_text())
    started = time.perf_counter()
    loader = wdsplit.Loader(wdsplit.Dataset(dataset), BATCH_SIZE, num_workers=int(workers))
    if place == "middle":
        loader.load_state_dict(state)
    batch = next(iter(loader))
    seconds = time.perf_counter() - started
    found = int(batch["__position__"][0])
    if found != (state["position"] if place == "middle" else 0):
        raise SystemExit(f"the first sample is that of position {found}")
    return {"seconds": seconds}


def memory_by_epoch(dataset: str, workers: str) -> dict[str, Any]:
    """Return the MiB that this process holds beyond what imports take, or all that the larger of its workers holds."""
    import wdsplit.loading.loader

    base = 0 if int(workers) else resident_kib(os.getpid())
    loader = wdsplit.Loader(
        wdsplit.Dataset(dataset), BATCH_SIZE, num_workers=int(workers), persistent_workers=bool(int(workers))
    )
    megabytes = []
    for _ in range(EPOCHS):
        for _ in loader:
            pass
        processes = [child.pid for child in multiprocessing.active_children()] or [os.getpid()]
        megabytes.append((max(resident_kib(process or 0) for process in processes) - base) / 1024)
    return {"megabytes": megabytes}


def resident_kib(process: int) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s*(\d+)", status)[1])  # type: ignore[index]
