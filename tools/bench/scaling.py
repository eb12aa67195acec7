"""Measure how `wdsplit.Loader` scales with the ranks of one machine, and what memory each of them holds.

Two parts. *scaling*: samples a second on 1, 2 and 4 ranks of local data, read as it is (*small*: rows of about 320
bytes; *image*: 50 to 150 kB of incompressible bytes) and decoded (*jpeg*: pictures of 500 x 375, resized to 224). Each
rank is a process and reads as many samples as one rank alone does; the ideal is as many times the rate of one rank as
there are ranks, but no more than there are processors. *memory*: what each of two ranks holds of a dataset and of
another one of ten times as many samples, in shards of the same size.

Ranks start at the same time, after an epoch that warms up. Rates are medians over the rounds, in which the numbers of
ranks take turns; memory is the most that was seen in an epoch of its own, after those that are timed. RSS counts pages
of mapped shards fully on each rank, PSS shares them out; `own` is memory that is not of files, which only its rank has.
All are of a rank with its workers; printed is the rank that has most. On a machine that is busy with something else, or
of few rows (`--rows`), rates say nothing.

Example: python -m tools.bench.scaling --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.bench import core, data
from tools.bench.core import Aim, ProcessError, Result
from tools.bench.data import SOURCE
from tools.bench.peers import BATCH_SIZE, PICTURE_BATCH_SIZE, PIXELS

PARTS = ("scaling", "memory")
ROWS = {"small": 400_000, "image": 6_000, "jpeg": 2_000}
EPOCHS = {"small": 3, "image": 15, "jpeg": 1}
"""How many epochs of its data one rank alone is timed for: some seconds."""
TITLES = {
    "small": "320-byte samples, not decoded",
    "image": "100-kB samples, not decoded",
    "jpeg": "JPEG decoded and resized to 224",
}
RANKS = (1, 2, 4)
MEMORY_ROWS = {"small": 400_000, "image": 15_000}
"""Of the larger dataset; the smaller one still has several batches for each rank."""
MEMORY_RANKS, MEMORY_FACTOR = 2, 10
MEMORY_SHARDS = 16
"""Shards of the smaller dataset of the memory part."""
IMPORTED = ("torch", "wdsplit.loading.loader", "simplejpeg")
LOOKS = 50
"""How often memory is looked at in an epoch."""
LINEAR, CONSTANT = 0.9, 1.1
"""What is aimed at: at least this part of the ideal, and at most so many times the memory."""
HEADER = ("RSS MiB", "PSS MiB", "own MiB", "of it, beyond imports")


MEMORY = {"rss": "Rss", "pss": "Pss", "own": "Anonymous"}
"""Memory of a rank and its workers, in KiB, by its name here and in /proc/PID/smaps_rollup."""


# A rank, in a process of its own


def read_rank(path: str, kind: str, workers: int) -> Result:
    """Read an epoch to warm up, EPOCHS times the ranks against the clock, and one more for its memory.

    Returns:
        The samples that were timed and their seconds; the peaks of each kind of MEMORY; `imports`, the memory of its
        own before the dataset was opened.
    """
    core.import_all(*IMPORTED)
    imports = memory_of_rank()["own"]
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    loader = open_loader(path, kind, rank, world_size, workers)
    for _ in loader:
        pass
    clock, samples = core.begin(), 0
    for _ in range(EPOCHS[kind] * world_size):
        samples += sum(len(batch[1]) for batch in loader)
    seconds = clock.seconds()
    core.begin()
    memory, every = memory_of_rank(), max(1, len(loader) // LOOKS)
    for step, _ in enumerate(loader):
        if step % every == 0:
            memory = peaks(memory, memory_of_rank())
    core.begin()
    return {"samples": samples, "seconds": seconds, **memory, "imports": imports}


def peaks(*results: Result) -> Result:
    """Return the largest of each kind of memory."""
    return {name: max(result[name] for result in results) for name in MEMORY}


def open_loader(path: str, kind: str, rank: int, world_size: int, workers: int) -> Any:
    """Return the loader of a rank, with batches of the first field and of labels."""
    import wdsplit

    dataset = wdsplit.Dataset(path, seed=0, rank=rank, world_size=world_size)
    fields = [field.name for field in dataset.manifest.fields]
    first = next(name for name in fields if name != "cls")
    if kind == "jpeg":
        dataset = dataset.decode(wdsplit.resized(PIXELS))
    batch_size = PICTURE_BATCH_SIZE if kind == "jpeg" else BATCH_SIZE
    return wdsplit.Loader(dataset.to_tuple(first, "cls"), batch_size, num_workers=workers, persistent_workers=True)


def memory_of_rank() -> Result:
    """Return what this process and its workers hold now."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
    texts = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes]
    return {name: sum(kib_of(line, text) for text in texts) for name, line in MEMORY.items()}


def kib_of(name: str, text: str) -> int:
    """Return a line of /proc/PID/smaps_rollup."""
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.M)
    return int(found[1]) if found else 0


# Runs


def read_together(ranks: int, path: Path, kind: str, workers: int, num_rows: int) -> list[Result]:
    """Run all ranks at the same time; return what each has measured.

    Raises:
        ProcessError: They were not given as many samples as they should.
    """
    found = core.run_together(read_rank, (path, kind, workers), ranks)
    total = sum(each["samples"] for each in found)
    epochs = EPOCHS[kind] * ranks
    if not num_rows * epochs <= total < (num_rows + ranks * BATCH_SIZE) * epochs:
        raise ProcessError(f"{ranks} ranks were given {total:,} samples in {epochs} epochs of {num_rows:,}")
    return found


def rate(found: Sequence[Result]) -> float:
    """Return samples a second: of all ranks, in the time of the slowest."""
    total: float = sum(each["samples"] for each in found)
    seconds: float = max(each["seconds"] for each in found)
    return total / seconds


def memory_cells(runs: Sequence[Sequence[Result]]) -> list[str]:
    """Return the cells on memory: the most of any rank in any round."""
    most = peaks(*(each for found in runs for each in found))
    return [f"{kib / 1024:,.0f}" for kib in (*most.values(), own_beyond_imports(runs))]


def own_beyond_imports(runs: Sequence[Sequence[Result]]) -> int:
    """Return the most memory of its own, in KiB, that any rank had beyond what its imports took."""
    most: int = max(each["own"] - each["imports"] for found in runs for each in found)
    return most


# Parts


def run_scaling(kinds: Sequence[str], arguments: argparse.Namespace, folder: Path) -> list[Aim]:
    """Print a table for each kind of data; return what was aimed at."""
    aims = []
    for kind in kinds:
        num_rows = arguments.rows or ROWS[kind]
        home = folder / f"scaling-{kind}"
        dataset = make(home, kind, num_rows, world_size=max(arguments.ranks), workers=max(1, arguments.workers))

        def measure(ranks: int, path: Path = dataset, kind: str = kind, num_rows: int = num_rows) -> list[Result]:
            return read_together(ranks, path, kind, arguments.workers, num_rows)

        runs = core.run_rounds(arguments.ranks, arguments.rounds, measure, required=lambda _: True)
        shutil.rmtree(home)
        what = f"{num_rows:,} rows, {arguments.workers} workers a rank, medians of {arguments.rounds}"
        aims += report_scaling(kind, runs, what)
    return aims


def report_scaling(kind: str, runs: dict[int, list[list[Result]]], what: str) -> list[Aim]:
    """Print the table of a kind of data; return what was aimed at."""
    rates = {ranks: statistics.median(map(rate, found)) for ranks, found in runs.items()}
    least = min(rates)
    cores = len(os.sched_getaffinity(0))
    rows, aims = [], []
    for ranks, value in rates.items():
        times = value / rates[least]
        ideal = min(ranks, cores) / min(least, cores)
        cells = (f"{value:,.0f}", f"{times:.2f}", f"{ideal:g}", f"{times / ideal:.0%}", *memory_cells(runs[ranks]))
        rows.append((str(ranks), *cells))
        if ranks != least:
            aims.append(Aim(f"{TITLES[kind]}: {ranks} ranks", "of ideal", f"{LINEAR:.0%}", f"{times / ideal:.0%}"))
    title = f"{TITLES[kind]} ({what}; ideal: at most {cores} times one rank, for {cores} processors)"
    core.print_table(title, ("ranks", "samples/s", f"x {least}", "ideal", "of ideal", *HEADER), rows, names=0)
    return aims


def run_memory(kinds: Sequence[str], arguments: argparse.Namespace, folder: Path) -> list[Aim]:
    """Print what a rank holds by the size of the dataset; return what was aimed at."""
    aims = []
    for kind in (kind for kind in kinds if kind in MEMORY_ROWS):
        largest = arguments.rows or MEMORY_ROWS[kind]
        rows, beyond = [], []
        for num_rows in (largest // MEMORY_FACTOR, largest):
            home = folder / f"memory-{kind}-{num_rows}"
            per_shard = max(1, largest // MEMORY_FACTOR // MEMORY_SHARDS)
            dataset = make(home, kind, num_rows, samples_per_shard=per_shard, lanes=MEMORY_SHARDS)
            runs = [read_together(MEMORY_RANKS, dataset, kind, arguments.workers, num_rows)]
            shutil.rmtree(home)
            rows.append((f"{num_rows:,}", *memory_cells(runs)))
            beyond.append(own_beyond_imports(runs))
        title = f"Memory of each of {MEMORY_RANKS} ranks: {TITLES[kind]}, {arguments.workers} workers a rank"
        core.print_table(title, ("samples", *HEADER), rows, names=0)
        what = f"own memory beyond imports, {MEMORY_FACTOR} times the samples"
        aims.append(Aim(f"{TITLES[kind]}: {what}", "x", f"at most {CONSTANT:g}", f"{beyond[1] / beyond[0]:.2f}"))
    return aims


def make(home: Path, kind: str, num_rows: int, **plan: Any) -> Path:
    """Make a dataset; return its path."""
    home.mkdir()
    data.MAKERS[kind](home / SOURCE, num_rows)
    data.make_shards(home, **plan)
    (home / SOURCE).unlink()
    return home / data.SHARDS


RUNNERS: dict[str, Callable[[Sequence[str], argparse.Namespace, Path], list[Aim]]] = {
    "scaling": run_scaling,
    "memory": run_memory,
}


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--part", default=",".join(PARTS), help=f"Some of {','.join(PARTS)}. Default: all.")
    parser.add_argument("--data", default=",".join(ROWS), help=f"Some of {','.join(ROWS)}. Default: all.")
    parser.add_argument("--ranks", default=RANKS, type=core.numbers, help="Numbers of ranks. Default: 1,2,4.")
    parser.add_argument("--workers", type=int, default=0, help="Worker processes of each rank. Default: 0.")
    parser.add_argument("--rows", type=int, help="Rows of each kind of data instead of their own numbers.")
    arguments = parser.parse_args()
    core.print_machine()
    aims: list[Aim] = []
    for part in arguments.part.split(","):
        with core.work_folder(arguments.output) as folder:
            aims += RUNNERS[part](arguments.data.split(","), arguments, folder)
    core.print_aims(aims)


if __name__ == "__main__":
    main()
