"""Measure what it costs to let a dataset grow and shrink: append, join fields, read them, erase.

Samples of 25 kB: all of them converted, against a tenth appended to a dataset of all. Samples of 1 kB: converted with 4
kB of latents, and without them; the latents joined, against converted by themselves; then read both ways, in batches of
256 by one process, of which the second epoch counts. Shards of 20 MB, of which half lose a sample: what erasing reads
and writes, against the bytes of these shards. Each is done in a process of its own, in turn; printed are medians.
Before each, another process uses as much memory as will be written: pages that the machine must first free, or get from
its host, took up to 4 s a GB, more than appending takes.

Example: python -m tools.bench.grow --output /dev/shm
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bench import core
from tools.bench.core import Aim, Result

ROWS, TIMES = 100_000, 2
"""Large samples, and how many small ones there are for each: all files take 14 GB."""
LARGE_BYTES, SMALL_BYTES, LATENT_BYTES = 25_000, 1_000, 4_096
BATCH_SIZE = 256
CONVERT, APPEND = "wdsplit, all converted", "wdsplit, a tenth appended"
INSIDE, PLAIN = "wdsplit, converted with latents", "wdsplit, converted without"
JOIN, JOIN_SHUFFLED = "wdsplit, latents joined", "wdsplit, latents of another order joined"
ALONE = "wdsplit, latents converted by themselves"
READ_INSIDE, READ_JOINED = "wdsplit, latents in the shards", "wdsplit, latents joined to them"
OF_LARGE, OF_SMALL = (CONVERT, APPEND), (INSIDE, PLAIN, JOIN_SHUFFLED, JOIN, ALONE, READ_INSIDE, READ_JOINED)


def make_table(path: Path, first: int, stop: int, **num_bytes: int) -> None:
    """Write rows with a key, and payloads of incompressible bytes, by the name of their column."""
    chance = np.random.default_rng(first)
    schema = pa.schema([("id", pa.string()), *((name, pa.binary()) for name in num_bytes)])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for begin in range(first, stop, 5_000):
            ids = [f"{row:09d}" for row in range(begin, min(begin + 5_000, stop))]
            payloads = [[chance.bytes(size) for _ in ids] for size in num_bytes.values()]
            writer.write_table(pa.table([ids, *payloads], schema=schema))


def make_tables(folder: str, rows: int) -> Result:
    """Write the tables of large samples, of small ones, and of their latents in their order and in another."""
    place, small_rows = Path(folder), TIMES * rows
    make_table(place / "large.parquet", 0, rows, data=LARGE_BYTES)
    make_table(place / "more.parquet", rows, rows + rows // 10, data=LARGE_BYTES)
    make_table(place / "inside.parquet", 0, small_rows, data=SMALL_BYTES, latent=LATENT_BYTES)
    inside = pq.read_table(place / "inside.parquet")
    latents = inside.select(["id", "latent"])
    shuffled = latents.take(np.random.default_rng(0).permutation(small_rows))
    for name, table in (("plain", inside.select(["id", "data"])), ("latents", latents), ("shuffled", shuffled)):
        pq.write_table(table, place / f"{name}.parquet", row_group_size=5_000, compression="none")
    return {}


def write(task: str, folder: str) -> Result:
    """Convert, append or join, and return seconds."""
    place = Path(folder)
    clock = core.begin("wdsplit.conversion.convert", "wdsplit.annotating.annotate")
    import wdsplit

    options: dict[str, Any] = {"key": "id", "overwrite": True, "shuffle": False}
    if task == CONVERT:
        wdsplit.convert(place / "large.parquet", place / "large", **options)
    elif task == APPEND:
        wdsplit.convert(place / "more.parquet", place / "grown", append=True, shuffle=False)
    elif task in (JOIN, JOIN_SHUFFLED):
        rows = place / ("latents.parquet" if task == JOIN else "shuffled.parquet")
        wdsplit.annotate(place / "plain", rows, key="id", name="latents", overwrite=True)
    else:
        name = {INSIDE: "inside", PLAIN: "plain", ALONE: "latents"}[task]
        wdsplit.convert(place / f"{name}.parquet", place / name, **options)
    return clock.read()


def read(task: str, folder: str) -> Result:
    """Read the payload and the latents of all samples once, and return seconds."""
    core.begin("torch", "wdsplit.loading.loader")
    import wdsplit

    is_joined = task == READ_JOINED
    dataset = wdsplit.Dataset(f"{folder}/plain", join=["latents"]) if is_joined else wdsplit.Dataset(f"{folder}/inside")
    loader = wdsplit.Loader(dataset, BATCH_SIZE)
    for _ in loader:
        pass
    clock = core.Clock()
    for _ in loader:
        pass
    return clock.read()


def erase(folder: str) -> Result:
    """Erase a sample of every second shard; return seconds, and bytes read and written for each byte of the shards."""
    core.begin("wdsplit.erasing.erase")
    import wdsplit

    place = f"{folder}/grown"
    samples = wdsplit.Samples(place)
    shards = samples.manifest.shards
    ends = np.cumsum(shards.num_real)[::2]
    keys = [samples[int(end) - 1]["__key__"] for end in ends]
    num_bytes, before, clock = int(shards.column("num_bytes")[::2].sum()), _moved(), core.Clock()
    wdsplit.erase(place, keys=keys)
    moved = {name: count / num_bytes for name, count in zip(("read", "written"), _moved() - before, strict=True)}
    return {**clock.read(), **moved}


def _moved() -> Any:
    """Return how many bytes this process and its ended children have read and written, cached or not."""
    words = Path(f"/proc/{os.getpid()}/io").read_text().split()
    return np.array([int(words[words.index(f"{name}:") + 1]) for name in ("rchar", "wchar")])


def use_memory(num_bytes: int) -> Result:
    """Write to new memory, which is free again when the process ends."""
    np.ones(num_bytes, np.uint8)
    return {}


def measure(task: str, folder: Path, num_bytes: int) -> Result:
    """Do a task that writes so many bytes at most, in a process of its own."""
    if task == APPEND:
        shutil.rmtree(folder / "grown", ignore_errors=True)
        shutil.copytree(folder / "large", folder / "grown")
        os.sync()  # else appending waits for what was copied
    core.in_own_process(use_memory, num_bytes)
    return core.in_own_process(read if task in (READ_INSIDE, READ_JOINED) else write, task, folder)


def ratios(seconds: dict[str, float], erased: Result) -> Iterator[Aim]:
    """Give what was aimed at and what was measured."""
    yield Aim(APPEND, CONVERT, "time at most 0.15", f"{seconds[APPEND] / seconds[CONVERT]:.2f}")
    yield Aim(JOIN, ALONE, "rate at least 0.5", f"{seconds[ALONE] / seconds[JOIN]:.2f}")
    yield Aim(JOIN_SHUFFLED, ALONE, "rate at least 0.5", f"{seconds[ALONE] / seconds[JOIN_SHUFFLED]:.2f}")
    yield Aim(READ_JOINED, READ_INSIDE, "speed at least 0.85", f"{seconds[READ_INSIDE] / seconds[READ_JOINED]:.2f}")
    for name in ("read", "written"):
        yield Aim(f"erasing: bytes {name}", "bytes of the shards concerned", "about 1", f"{erased[name]:.2f}")


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"Large samples. Default: {ROWS:,}.")
    arguments = parser.parse_args()
    rows, small_rows, num_bytes = arguments.rows, TIMES * arguments.rows, arguments.rows * LARGE_BYTES
    core.print_machine()
    print(f"load {os.getloadavg()[0]:.1f}")
    with core.work_folder(arguments.output) as folder:
        core.in_own_process(make_tables, str(folder), rows)  # which gives its memory back
        results = core.run_rounds(OF_LARGE, arguments.rounds, lambda task: measure(task, folder, num_bytes))
        erased = core.in_own_process(erase, folder)
        # A full file system in memory would leave little for the others, in small pieces.
        for name in ("large.parquet", "more.parquet", "large", "grown"):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        results |= core.run_rounds(OF_SMALL, arguments.rounds, lambda task: measure(task, folder, num_bytes))
    seconds = {task: core.median_of(runs, itemgetter("seconds")) for task, runs in results.items()}
    busy = {task: core.median_of(runs, itemgetter("busy")) for task, runs in results.items()}
    cells = [(task, f"{seconds[task]:.2f}", f"{busy[task]:.2f}") for task in (*OF_LARGE, *OF_SMALL)]
    cells.append(
        ("wdsplit, a sample of every second shard erased", f"{erased['seconds']:.2f}", f"{erased['busy']:.2f}")
    )
    title = (
        f"{rows:,} samples of {LARGE_BYTES:,} bytes, {small_rows:,} of {SMALL_BYTES:,}, medians of {arguments.rounds}"
    )
    core.print_table(title, ("", "s", "processor s"), cells)
    print(f"load {os.getloadavg()[0]:.1f}")
    core.print_aims(ratios(seconds, erased))


if __name__ == "__main__":
    main()
