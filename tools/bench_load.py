"""Measure `wdsplit.Dataset` and `wdsplit.Loader` side by side with other loaders.

Five parts. *small* (rows of about 320 bytes of text and a label) and *image* (50 to 150 kB of incompressible bytes and
a label) are read sample by sample in one process, and in batches of 256 by 2 workers. *jpeg*: pictures of 500 x 375 and
about 100 kB are decoded and resized to 224 on 2 processors. wdsplit shuffles shards, windows and samples; the others
read in order. *scale*: the time to the first batch, at the start and in the middle of an epoch, by the number of
shards. *memory*: what a process holds after each of ten epochs.

In each round every reader is run once, in a process of its own, over the same rows; printed are medians over the rounds
as Markdown, with ratios of medians, and at the end what was aimed at. The clock starts when the libraries are imported.
A reader that is not installed is left out (pip install '.[bench,torch,images]').

Example: python tools/bench_load.py --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench_convert import make_image, make_small, own_peak_kib
from load_many import MEMORY_SHARDS, SCALE_SHARDS, first_batch, make_many, memory_by_epoch
from load_peers import JPEG, ONE_PROCESS, SOURCE, TWO_WORKERS, Reader, make_shards, restrict_to_cores

PARTS = ("small", "image", "jpeg", "scale", "memory")
ROWS = {"small": 400_000, "image": 12_000, "jpeg": 2_000}
CORES = 2
BEST = "the best peer"


@dataclass(frozen=True)
class Race:
    """Readers of the same rows.

    Attributes:
        title: What its table is called.
        part: What they read.
        workers: Workers; 0 for samples one by one.
        readers: Who takes part.
        aims: How many times as fast as a peer wdsplit shall be, by the peer's name.
    """

    title: str
    part: str
    workers: int
    readers: tuple[Reader, ...]
    aims: dict[str, float]


RACES = (
    Race("small samples, one process", "small", 0, ONE_PROCESS, {"webdataset": 20, "LitData": 1.2}),
    Race("small samples, batches of 256 from 2 workers", "small", 2, TWO_WORKERS, {BEST: 1.5}),
    Race("100-kB samples, one process", "image", 0, ONE_PROCESS, {"webdataset": 4, "LitData": 1.5}),
    Race("100-kB samples, batches of 256 from 2 workers", "image", 2, TWO_WORKERS, {BEST: 3}),
    Race("JPEG decoded and resized to 224, 2 workers", "jpeg", 2, JPEG, {"TurboLoader": 1}),
)


def make_jpeg(path: Path, num_rows: int) -> None:
    """Write pictures of 500 x 375 pixels and about 100 kB, sums of sines and noise, and a label."""
    from PIL import Image

    chance = np.random.default_rng(2)
    y, x = np.mgrid[0:375, 0:500].astype(np.float32)
    images = []
    for _ in range(num_rows):
        slopes, phases = chance.uniform(0.005, 0.1, (3, 2)), chance.uniform(0, 6, 3)
        planes = [np.sin(a * x + b * y + phase) for (a, b), phase in zip(slopes, phases, strict=True)]
        pixels = 128 + 80 * np.stack(planes, axis=-1) + chance.normal(0, 22, (375, 500, 1))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        images.append(file.getvalue())
    pq.write_table(pa.table({"image": images, "label": chance.integers(0, 1000, num_rows)}), path, row_group_size=500)


MAKERS: dict[str, Callable[[Path, int], None]] = {"small": make_small, "image": make_image, "jpeg": make_jpeg}


# In a process of its own


def run_race(number: str, name: str, folder: str) -> dict[str, Any]:
    """Read all rows once; return seconds, samples and the most memory that a process had."""
    race = RACES[int(number)]
    reader = next(reader for reader in race.readers if reader.name == name)
    if race.part == "jpeg":
        restrict_to_cores(CORES)
    for module in ("torch", "wdsplit.loading.loader", reader.module):
        importlib.import_module(module)
    started = time.perf_counter()
    stream = reader.read(Path(folder), race.workers)
    count = sum(map(num_samples, stream)) if race.workers else sum(1 for _ in stream)
    seconds = time.perf_counter() - started
    peak = max(own_peak_kib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return {"seconds": seconds, "samples": count, "megabytes": peak / 1024}


def num_samples(batch: Any) -> int:
    """Return the samples of a batch: a list of samples, which are dicts; a tensor of them; or columns."""
    if isinstance(batch, dict):
        return len(next(iter(batch.values())))
    has_columns = isinstance(batch, (list, tuple)) and not isinstance(batch[0], dict)
    return len(batch[0]) if has_columns else len(batch)


def run_prepare(number: str, name: str, folder: str) -> dict[str, Any]:
    """Make what a reader reads."""
    prepare = next(reader for reader in RACES[int(number)].readers if reader.name == name).prepare
    if prepare is not None:
        prepare(Path(folder))
    return {}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "race": run_race,
    "prepare": run_prepare,
    "first_batch": first_batch,
    "memory": memory_by_epoch,
}


class ProcessError(Exception):
    """A process of ours failed; says how."""


def in_own_process(task: str, *arguments: Any, home: Path) -> dict[str, Any]:
    """Run a task in a process of its own; return what it returned."""
    command = [sys.executable, __file__, "--task", task, *map(str, arguments)]
    env = {**os.environ, "HF_HOME": str(home / "huggingface"), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=env)
    if ended.returncode:
        raise ProcessError(f"{' '.join(map(str, [task, *arguments]))} failed:\n{ended.stderr}")
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


# Races


def run_part(part: str, num_rows: int, rounds: int, folder: Path, names: tuple[str, ...]) -> list[str]:
    """Run all races of a part with the readers whose names begin so; return the lines of the table of aims."""
    MAKERS[part](folder / SOURCE, num_rows)
    if part == "jpeg":  # TurboLoader reads one tar
        make_shards(folder, shards=1)
    else:
        make_shards(folder, workers=2)
    payload_bytes = mean_payload(folder / SOURCE)
    states: dict[str, bool] = {}
    aims = []
    for number, race in enumerate(RACES):
        if race.part != part:
            continue
        readers = [reader for reader in race.readers if reader.name.startswith(names)]
        for reader in readers:
            if reader.name not in states:
                states[reader.name] = is_ready(number, reader, folder)
        ready = [reader.name for reader in readers if states[reader.name]]
        results = run_rounds(number, ready, num_rows, rounds, folder)
        aims += report(race, results, payload_bytes, f"{num_rows:,} rows, medians of {rounds}")
    return aims


def is_ready(number: int, reader: Reader, folder: Path) -> bool:
    """Let a reader prepare what it reads; tell whether it can take part."""
    if not reader.is_installed:
        print(f"{reader.name} is not installed: left out", flush=True)
        return False
    try:
        in_own_process("prepare", number, reader.name, folder, home=folder)
    except ProcessError as error:
        leave_out(reader.name, error)
        return False
    return True


def leave_out(name: str, error: ProcessError) -> None:
    """Go on without a peer that failed; without wdsplit there is nothing to measure."""
    if name.startswith("wdsplit"):
        raise error
    print(f"{name} is left out: {error}", flush=True)


def mean_payload(path: Path) -> float:
    """Return the mean bytes of the first column of a table."""
    column = pq.read_table(path, columns=[pq.read_schema(path).names[0]]).column(0)
    return float(pc.mean(pc.binary_length(column)).as_py())


def run_rounds(
    number: int, names: list[str], num_rows: int, rounds: int, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return what each reader needed in each round; the order of the readers alternates."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in list(results) if turn % 2 == 0 else list(results)[::-1]:
            try:
                result = in_own_process("race", number, name, folder, home=folder)
                if result["samples"] < num_rows:
                    raise ProcessError(f"it gave {result['samples']} of {num_rows} samples")
                results[name].append(result)
            except ProcessError as error:
                leave_out(name, error)
                del results[name]
    return results


def report(race: Race, results: dict[str, list[dict[str, Any]]], payload_bytes: float, what: str) -> list[str]:
    """Print the table of a race; return the lines of the table of aims."""
    rates = {
        name: statistics.median(result["samples"] / result["seconds"] for result in runs)
        for name, runs in results.items()
    }
    peers = {name: rate for name, rate in rates.items() if not name.startswith("wdsplit")}
    of = {name: peers[name] for name in race.aims if name in peers}
    if BEST in race.aims and peers:
        of[BEST] = max(peers.values())
    print(f"\n{race.title} ({what})\n")
    print_row("", "samples/s", "MB/s", *(f"x {name}" for name in of), "MiB held")
    print_row("---", *["---:"] * (3 + len(of)))
    for name, rate in rates.items():
        ratios = (f"{rate / base:.2f}" for base in of.values())
        held = max(result["megabytes"] for result in results[name])
        print_row(name, f"{rate:,.0f}", f"{rate * payload_bytes / 1e6:,.0f}", *ratios, f"{held:,.0f}")
    ours = [name for name in rates if name.startswith("wdsplit")]
    return [
        row(f"{race.title}: {name}", f"x {base}", f"{race.aims[base]:g}", f"{rates[name] / of[base]:.2f}")
        for name in ours
        for base in of
    ]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def print_row(*cells: str) -> None:
    print(row(*cells), flush=True)


# Many shards


def run_scale(rounds: int, folder: Path, most_shards: int) -> list[str]:
    """Print the seconds to the first batch, at the start and in the middle; return the lines of the table of aims."""
    seconds: dict[tuple[int, int, str], float] = {}
    for num_shards in sorted({min(count, most_shards) for count in SCALE_SHARDS}):
        dataset = make_many(folder, num_shards)
        runs: dict[tuple[int, int, str], list[float]] = {}
        for turn in range(rounds):
            for workers in (0, CORES):
                for place in ("start", "middle") if turn % 2 == 0 else ("middle", "start"):
                    found = in_own_process("first_batch", dataset, workers, place, home=folder)
                    runs.setdefault((num_shards, workers, place), []).append(found["seconds"])
        seconds.update({run: statistics.median(values) for run, values in runs.items()})
        shutil.rmtree(dataset)
    print(f"\nFrom wdsplit.Dataset(...) to the first batch of 256 (medians of {rounds})\n")
    print_row("shards", "workers", "start of the epoch, s", "resume in its middle, s")
    print_row("---:", "---:", "---:", "---:")
    places = sorted({(shards, workers) for shards, workers, _ in seconds})
    for shards, workers in places:
        both = (f"{seconds[shards, workers, place]:.3f}" for place in ("start", "middle"))
        print_row(f"{shards:,}", str(workers), *both)
    shards, workers = places[-2]
    start, middle = seconds[shards, workers, "start"], seconds[shards, workers, "middle"]
    return [
        row(f"first batch of {shards:,} shards", "seconds", "at most 1", f"{start:.2f}"),
        row("resume in the middle of an epoch", "x a start", "at most 1", f"{middle / start:.2f}"),
    ]


def run_memory(folder: Path, most_shards: int) -> list[str]:
    """Print what a process holds after each of ten epochs; return no aims: they are two curves, flat and alike."""
    print("\nResident memory in MiB after epochs 1 to 10 (one run each)\n")
    print_row("shards", "process", *(str(epoch) for epoch in range(1, 11)))
    print_row(*["---:"] * 12)
    for num_shards in sorted({min(count, most_shards) for count in MEMORY_SHARDS}):
        dataset = make_many(folder, num_shards)
        for workers, what in ((0, "one process, beyond its imports"), (CORES, "the larger of 2 workers, in all")):
            found = in_own_process("memory", dataset, workers, home=folder)
            print_row(f"{num_shards:,}", what, *(f"{value:.1f}" for value in found["megabytes"]))
        shutil.rmtree(dataset)
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder to write to; a RAM disk leaves the disk out of it")
    parser.add_argument("--part", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="rows of small, image and jpeg instead of their own numbers")
    parser.add_argument("--readers", default="", help="only readers whose names begin so, such as wdsplit,webdataset")
    parser.add_argument("--shards", type=int, default=max(SCALE_SHARDS), help="the most shards of scale and memory")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        task, *rest = arguments.task
        print(json.dumps(TASKS[task](*rest)))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, pyarrow {pa.__version__}")
    aims: list[str] = []
    for part in arguments.part.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.output) as name:
            folder = Path(name)
            if part == "scale":
                aims += run_scale(arguments.rounds, folder, arguments.shards)
            elif part == "memory":
                aims += run_memory(folder, arguments.shards)
            else:
                names = tuple(arguments.readers.split(","))
                aims += run_part(part, arguments.rows or ROWS[part], arguments.rounds, folder, names)
    print("\nAims\n")
    print_row("", "", "aim", "measured")
    print_row("---", "---", "---:", "---:")
    print("\n".join(aims))


if __name__ == "__main__":
    main()
