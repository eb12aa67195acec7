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

Example: python tools/bench_scaling.py --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from bench_load import MAKERS, ProcessError, print_row, row
from load_peers import BATCH_SIZE, JPEG_BATCH_SIZE, PIXELS, SOURCE, make_shards

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
DEADLINE_S = 600
"""A rank that the others wait for longer is lost."""
LINEAR, CONSTANT = 0.9, 1.1
"""What is aimed at: at least this part of the ideal, and at most so many times the memory."""
HEADER = ("RSS MiB", "PSS MiB", "own MiB", "of it, beyond imports")


@dataclass(frozen=True)
class Held:
    """Memory of a rank and its workers, in KiB.

    Attributes:
        rss: Resident pages.
        pss: Resident pages, those that several processes map in proportion.
        own: Pages that are not of files.
    """

    rss: int
    pss: int
    own: int

    def most(self, other: Held) -> Held:
        """Return the larger of each."""
        return Held(max(self.rss, other.rss), max(self.pss, other.pss), max(self.own, other.own))


@dataclass(frozen=True)
class Found:
    """What a rank has measured.

    Attributes:
        samples: Samples it was given in the epochs that were timed.
        seconds: How long they took.
        held: The most memory it held.
        imports: The memory of its own that it had before it opened the dataset, in KiB.
    """

    samples: int
    seconds: float
    held: Held
    imports: int


# A rank, in a process of its own

_barriers: list[Barrier] = []


def keep_barrier(barrier: Barrier) -> None:
    """Keep what the ranks of a run meet at."""
    _barriers.append(barrier)


def run_rank(rank: int, world_size: int, path: str, kind: str, workers: int) -> Found:
    """Read an epoch to warm up, EPOCHS times the ranks against the clock, and one more for its memory."""
    for name in IMPORTED:
        importlib.import_module(name)
    imports = held_by_rank().own
    loader = open_loader(path, kind, rank, world_size, workers)
    for _ in loader:
        pass
    _barriers[-1].wait(DEADLINE_S)
    started, samples = time.perf_counter(), 0
    for _ in range(EPOCHS[kind] * world_size):
        samples += sum(len(batch[1]) for batch in loader)
    seconds = time.perf_counter() - started
    _barriers[-1].wait(DEADLINE_S)
    held, every = held_by_rank(), max(1, len(loader) // LOOKS)
    for step, _ in enumerate(loader):
        if step % every == 0:
            held = held.most(held_by_rank())
    _barriers[-1].wait(DEADLINE_S)
    return Found(samples, seconds, held, imports)


def open_loader(path: str, kind: str, rank: int, world_size: int, workers: int) -> Any:
    """Return the loader of a rank, with batches of the first field and of labels."""
    import wdsplit

    dataset = wdsplit.Dataset(path, seed=0, rank=rank, world_size=world_size)
    fields = [field.name for field in dataset.manifest.fields]
    first = next(name for name in fields if name != "cls")
    if kind == "jpeg":
        dataset = dataset.decode(wdsplit.resized(PIXELS))
    batch_size = JPEG_BATCH_SIZE if kind == "jpeg" else BATCH_SIZE
    return wdsplit.Loader(dataset.to_tuple(first, "cls"), batch_size, num_workers=workers, persistent_workers=True)


def held_by_rank() -> Held:
    """Return what this process and its workers hold now."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
    texts = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes]
    return Held(*(sum(kib_of(name, text) for text in texts) for name in ("Rss", "Pss", "Anonymous")))


def kib_of(name: str, text: str) -> int:
    """Return a line of /proc/PID/smaps_rollup."""
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.M)
    return int(found[1]) if found else 0


# Runs


def run_together(world_size: int, path: Path, kind: str, workers: int, num_rows: int) -> list[Found]:
    """Run all ranks at the same time; return what each has measured.

    Raises:
        ProcessError: They were not given as many samples as they should.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(world_size)
    with ProcessPoolExecutor(world_size, context, initializer=keep_barrier, initargs=(barrier,)) as pool:
        tasks = [pool.submit(run_rank, rank, world_size, str(path), kind, workers) for rank in range(world_size)]
        found = [task.result() for task in tasks]
    total = sum(each.samples for each in found)
    epochs = EPOCHS[kind] * world_size
    if not num_rows * epochs <= total < (num_rows + world_size * BATCH_SIZE) * epochs:
        raise ProcessError(f"{world_size} ranks were given {total:,} samples in {epochs} epochs of {num_rows:,}")
    return found


def rate(found: Sequence[Found]) -> float:
    """Return samples a second: of all ranks, in the time of the slowest."""
    return sum(each.samples for each in found) / max(each.seconds for each in found)


def memory_cells(runs: Sequence[Sequence[Found]]) -> list[str]:
    """Return the cells that tell of memory: the most of any rank in any round."""
    every = [each for found in runs for each in found]
    most = every[0].held
    for each in every:
        most = most.most(each.held)
    beyond = own_beyond_imports(runs)
    return [f"{kib / 1024:,.0f}" for kib in (most.rss, most.pss, most.own, beyond)]


def own_beyond_imports(runs: Sequence[Sequence[Found]]) -> int:
    """Return the most memory of its own, in KiB, that any rank had beyond what its imports took."""
    return max(each.held.own - each.imports for found in runs for each in found)


def num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


# Parts


def run_scaling(kinds: Sequence[str], arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Print a table for each kind of data; return the lines of the table of aims."""
    aims = []
    for kind in kinds:
        num_rows = arguments.rows or ROWS[kind]
        home = folder / f"scaling-{kind}"
        dataset = make(home, kind, num_rows, world_size=max(arguments.ranks), workers=max(1, arguments.workers))
        runs: dict[int, list[list[Found]]] = {ranks: [] for ranks in arguments.ranks}
        for turn in range(arguments.rounds):
            for ranks in arguments.ranks if turn % 2 == 0 else arguments.ranks[::-1]:
                runs[ranks].append(run_together(ranks, dataset, kind, arguments.workers, num_rows))
        shutil.rmtree(home)
        what = f"{num_rows:,} rows, {arguments.workers} workers a rank, medians of {arguments.rounds}"
        aims += report_scaling(kind, runs, what)
    return aims


def report_scaling(kind: str, runs: dict[int, list[list[Found]]], what: str) -> list[str]:
    """Print the table of a kind of data; return the lines of the table of aims."""
    rates = {ranks: statistics.median(map(rate, found)) for ranks, found in runs.items()}
    least = min(rates)
    cores = num_processors()
    print(f"\n{TITLES[kind]} ({what}; ideal: at most {cores} times one rank, for {cores} processors)\n")
    print_row("ranks", "samples/s", f"x {least}", "ideal", "of ideal", *HEADER)
    print_row(*["---:"] * (5 + len(HEADER)))
    lines = []
    for ranks, value in rates.items():
        times = value / rates[least]
        ideal = min(ranks, cores) / min(least, cores)
        cells = (f"{value:,.0f}", f"{times:.2f}", f"{ideal:g}", f"{times / ideal:.0%}", *memory_cells(runs[ranks]))
        print_row(str(ranks), *cells)
        if ranks != least:
            lines.append(row(f"{TITLES[kind]}: {ranks} ranks", "of ideal", f"{LINEAR:.0%}", f"{times / ideal:.0%}"))
    return lines


def run_memory(kinds: Sequence[str], arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Print what a rank holds by the size of the dataset; return the lines of the table of aims."""
    lines = []
    for kind in (kind for kind in kinds if kind in MEMORY_ROWS):
        largest = arguments.rows or MEMORY_ROWS[kind]
        print(f"\nMemory of each of {MEMORY_RANKS} ranks: {TITLES[kind]}, {arguments.workers} workers a rank\n")
        print_row("samples", *HEADER)
        print_row(*["---:"] * (1 + len(HEADER)))
        beyond = []
        for num_rows in (largest // MEMORY_FACTOR, largest):
            home = folder / f"memory-{kind}-{num_rows}"
            per_shard = max(1, largest // MEMORY_FACTOR // MEMORY_SHARDS)
            dataset = make(home, kind, num_rows, samples_per_shard=per_shard, lanes=MEMORY_SHARDS)
            runs = [run_together(MEMORY_RANKS, dataset, kind, arguments.workers, num_rows)]
            shutil.rmtree(home)
            print_row(f"{num_rows:,}", *memory_cells(runs))
            beyond.append(own_beyond_imports(runs))
        what = f"own memory beyond imports, {MEMORY_FACTOR} times the samples"
        lines.append(row(f"{TITLES[kind]}: {what}", "x", f"at most {CONSTANT:g}", f"{beyond[1] / beyond[0]:.2f}"))
    return lines


def make(home: Path, kind: str, num_rows: int, **plan: Any) -> Path:
    """Make a dataset; return its path."""
    home.mkdir()
    MAKERS[kind](home / SOURCE, num_rows)
    make_shards(home, **plan)
    (home / SOURCE).unlink()
    return home / "wdsplit"


RUNNERS: dict[str, Callable[[Sequence[str], argparse.Namespace, Path], list[str]]] = {
    "scaling": run_scaling,
    "memory": run_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder to write to; a RAM disk leaves the disk out of it")
    parser.add_argument("--part", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--data", default=",".join(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--ranks", default=RANKS, type=numbers, help="numbers of ranks, such as 1,2,4")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="rows of each kind of data instead of their own numbers")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {num_processors()} processors, Python {platform.python_version()}")
    aims: list[str] = []
    for part in arguments.part.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.output) as name:
            aims += RUNNERS[part](arguments.data.split(","), arguments, Path(name))
    print("\nAims\n")
    print_row("", "", "aim", "measured")
    print_row("---", "---", "---:", "---:")
    print("\n".join(aims))


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,2,4."""
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
