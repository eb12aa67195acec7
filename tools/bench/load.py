"""Measure `wdsplit.Dataset` and `wdsplit.Loader` side by side with other loaders.

Seven parts. *small* (rows of about 320 bytes of text and a label) and *image* (50 to 150 kB of incompressible bytes and
a label) are read sample by sample in one process, and in batches of 256 by 2 workers. *jpeg*: pictures of 500 x 375 and
about 100 kB are decoded and resized to 224 on 2 processors; *webp*: the same pictures as WebP; *png*: pictures of
32 x 32 are decoded. wdsplit shuffles shards, windows and samples; the others read in order, and LitData once more
shuffled. *scale*: the time to the first batch, at the start and in the middle of an epoch, by the number of shards.
*memory*: what a process holds after each of ten epochs.

In each round every reader is run once, in a process of its own, over the same rows; printed are medians over the rounds
as Markdown, with ratios of medians, and at the end what was aimed at. The clock starts when the libraries are imported.
A reader that is not installed is left out (pip install '.[bench,torch,images]').

Example: python -m tools.bench.load --output /dev/shm --rounds 5
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import core, data, peers
from tools.bench.core import Aim, Result
from tools.bench.data import SOURCE
from tools.bench.peers import BATCH_SIZE, Reader

PARTS = ("small", "image", "jpeg", "webp", "png", "scale", "memory")
ROWS = {"small": 400_000, "image": 12_000, "jpeg": 8_000, "webp": 4_000, "png": 100_000}
CORES = 2
BEST = "the best peer"
SHUFFLED = "LitData, shuffled"
MANY_SHARDS = (1_000, 100_000)
SAMPLES, LANES, WINDOW, EPOCHS = 8, 16, 64, 10
"""Of datasets of many shards; samples are those of a shard."""
MAX_LINKS = 10_000
"""Names of one file; file systems limit their number."""


@dataclass(frozen=True)
class Race:
    """Readers of the same rows.

    Attributes:
        title: The name of its table.
        part: What they read.
        workers: Workers; 0 for samples one by one.
        readers: Who takes part.
        aims: How many times as fast as a peer wdsplit shall be, by the peer's name; of one reader by "READER x PEER".
    """

    title: str
    part: str
    workers: int
    readers: tuple[Reader, ...]
    aims: dict[str, float]


JPEG_AIMS = {"TurboLoader": 1.5, "wdsplit, processes x TurboLoader": 1.2}
RACES = (
    Race("small samples, one process", "small", 0, peers.ONE_PROCESS, {"webdataset": 20, SHUFFLED: 1}),
    Race("small samples, batches of 256 from 2 workers", "small", 2, peers.TWO_WORKERS, {SHUFFLED: 1.3, BEST: 1.5}),
    Race("100-kB samples, one process", "image", 0, peers.ONE_PROCESS, {"webdataset": 4, "LitData": 1.5}),
    Race("100-kB samples, batches of 256 from 2 workers", "image", 2, peers.TWO_WORKERS, {BEST: 3}),
    Race("JPEG decoded and resized to 224, 2 workers", "jpeg", 2, peers.JPEG, JPEG_AIMS),
    Race("WebP decoded and resized to 224, 2 workers", "webp", 2, peers.WEBP, {BEST: 1}),
    Race("32 x 32 PNGs decoded, batches of 256 from 2 workers", "png", 2, peers.PNG, {"webdataset and Pillow": 3}),
)


# In a process of its own


def read_once(number: int, name: str, folder: str) -> Result:
    """Read all rows once; return seconds, samples and the most memory that a process had."""
    race = RACES[number]
    reader = peers.reader_of(race.readers, name)
    if race.part in ("jpeg", "webp", "png"):  # before libraries count the processors
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    clock = core.begin("torch", "wdsplit.loading.loader", reader.module)
    stream = reader.read(Path(folder), race.workers)
    count = sum(map(num_samples, stream)) if race.workers else sum(1 for _ in stream)
    return {**clock.read(), "samples": count, "megabytes": core.peak_mib()}


def num_samples(batch: Any) -> int:
    """Return the samples of a batch: a list of samples, which are dicts; a tensor of them; or columns."""
    if isinstance(batch, dict):
        return len(next(iter(batch.values())))
    has_columns = isinstance(batch, (list, tuple)) and not isinstance(batch[0], dict)
    return len(batch[0]) if has_columns else len(batch)


def prepare(part: str, name: str, folder: str) -> Result:
    """Write the data of a reader."""
    readers = [reader for race in RACES if race.part == part for reader in race.readers]
    peers.reader_of(readers, name).write(folder)
    return {}


def first_batch(dataset: str, workers: int, place: str) -> Result:
    """Return the seconds from making a dataset to the first batch, at the start of an epoch or in its middle."""
    state = json.loads((Path(dataset) / "middle.json").read_text())
    clock = core.begin("wdsplit.loading.loader")
    loader = open_many(dataset, num_workers=workers)
    if place == "middle":
        loader.load_state_dict(state)
    batch = next(iter(loader))
    result = clock.read()
    found = int(batch["__position__"][0])
    if found != (state["position"] if place == "middle" else 0):
        raise SystemExit(f"the first sample is that of position {found}")
    return result


def memory_by_epoch(dataset: str, workers: int) -> Result:
    """Return the MiB that this process holds beyond its imports, or all that the larger of its workers holds."""
    core.begin("wdsplit.loading.loader")
    base = 0 if workers else core.resident_kib()
    loader = open_many(dataset, num_workers=workers, persistent_workers=bool(workers))
    megabytes = []
    for _ in range(EPOCHS):
        for _ in loader:
            pass
        processes = [child.pid or 0 for child in multiprocessing.active_children()] or [os.getpid()]
        megabytes.append((max(map(core.resident_kib, processes)) - base) / 1024)
    return {"megabytes": megabytes}


def open_many(dataset: str | Path, **options: Any) -> Any:
    import wdsplit

    return wdsplit.Loader(wdsplit.Dataset(dataset), BATCH_SIZE, **options)


# Races


def run_part(part: str, num_rows: int, rounds: int, folder: Path, names: tuple[str, ...]) -> list[Aim]:
    """Run all races of a part with the readers whose names begin so; return what was aimed at."""
    data.MAKERS[part](folder / SOURCE, num_rows)
    if part == "jpeg":  # TurboLoader reads one tar
        data.make_shards(folder, shards=1)
    else:
        data.make_shards(folder, workers=2)
    payload_bytes = float(np.mean(data.payload_sizes(folder / SOURCE)))
    environ = {"HF_HOME": str(folder / "huggingface"), "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    races = [number for number, race in enumerate(RACES) if race.part == part]
    readers = {reader.name: reader for number in races for reader in RACES[number].readers}
    able = peers.ready(
        (reader for name, reader in readers.items() if name.startswith(names)),
        lambda name: core.in_own_process(prepare, part, name, folder, environ=environ),
    )
    aims = []
    for number in races:
        race = RACES[number]

        def measure(name: str, number: int = number) -> Result:
            result = core.in_own_process(read_once, number, name, folder, environ=environ)
            if result["samples"] < num_rows:
                raise core.ProcessError(f"it gave {result['samples']} of {num_rows} samples")
            return result

        contenders = [reader.name for reader in race.readers if reader.name in able]
        results = core.run_rounds(contenders, rounds, measure)
        aims += report(race, results, payload_bytes, f"{num_rows:,} rows, medians of {rounds}")
    return aims


def report(race: Race, results: dict[str, list[Result]], payload_bytes: float, what: str) -> list[Aim]:
    """Print the table of a race; return what was aimed at."""
    rates = {
        name: core.median_of(runs, lambda each: each["samples"] / each["seconds"]) for name, runs in results.items()
    }
    others = {name: rate for name, rate in rates.items() if not name.startswith("wdsplit")}
    bases = {name: others[name] for name in race.aims if name in others}
    if BEST in race.aims and others:
        bases[BEST] = max(others.values())
    rows, aims = [], []
    for name, rate in rates.items():
        ratios = {base: f"{rate / value:.2f}" for base, value in bases.items()}
        memory = max(result["megabytes"] for result in results[name])
        busy = core.median_of(results[name], lambda result: result["busy"] / result["samples"]) * 1e6
        speed = (f"{rate:,.0f}", f"{rate * payload_bytes / 1e6:,.0f}", *ratios.values())
        rows.append((name, *speed, f"{busy:,.0f}", f"{memory:,.0f}"))
        if name.startswith("wdsplit"):
            for base, ratio in ratios.items():
                aim = race.aims.get(f"{name} x {base}", race.aims[base])
                done = ": ".join(filter(None, (race.title, name.removeprefix("wdsplit").removeprefix(", "))))
                aims.append(Aim(done, f"x {base}", f"{aim:g}", ratio))
    header = ("", "samples/s", "MB/s", *(f"x {name}" for name in bases), "CPU us/sample", "MiB of memory")
    core.print_table(f"{race.title} ({what})", header, rows)
    return aims


# Many shards


def make_many(folder: Path, num_shards: int) -> Path:
    """Make a dataset of shards of 8 small samples, and the state of a loader in the middle of its epoch.

    All shards are links to a few files, so that 100,000 are made in seconds. Keys repeat, which readers allow.
    """
    import pyarrow as pa

    from wdsplit.shards.files import write_manifest, write_shard
    from wdsplit.shards.manifest import Field, Manifest, Shard, Shards, shard_path
    from wdsplit.shards.places import places_path
    from wdsplit.storage.opening import open_storage
    from wdsplit.tar.members import build_body

    dataset = folder / f"many-{num_shards}"
    dataset.mkdir()
    storage = open_storage(str(dataset))
    keys = pa.array([f"{number:08d}" for number in range(SAMPLES)])
    body = build_body(keys, {"txt": pa.array([b"x" * 320] * SAMPLES, pa.large_binary())})
    rows = []
    for shard in range(num_shards):
        first, path = shard_path(shard - shard % MAX_LINKS), shard_path(shard)
        if first == path:
            rows.append(write_shard(storage, path, [body], ["txt"], num_pads=0))
            continue
        for source, name in ((first, path), (places_path(first), places_path(path))):
            os.link(dataset / source, dataset / name)
        rows.append(Shard(path, SAMPLES, 0, rows[0].num_bytes, rows[0].checksum))
    fields = (Field("txt", "text", "text", "string"),)
    write_manifest(storage, Manifest(Shards.of(rows), fields, LANES, WINDOW, "none", {}))
    loader = open_many(dataset)
    for _ in islice(loader, len(loader) // 2):
        pass
    (dataset / "middle.json").write_text(json.dumps(loader.state_dict()))
    return dataset


def measure_first_batch(dataset: Path, run: tuple[int, str]) -> Result:
    return core.in_own_process(first_batch, dataset, *run)


def run_scale(rounds: int, folder: Path, max_shards: int) -> list[Aim]:
    """Print the seconds to the first batch, at the start and in the middle; return what was aimed at."""
    rows, start, middle = [], 0.0, 0.0
    largest = min(max(MANY_SHARDS), max_shards)
    for num_shards in sorted({min(count, max_shards) for count in MANY_SHARDS}):
        dataset = make_many(folder, num_shards)
        contenders = [(workers, place) for workers in (0, CORES) for place in ("start", "middle")]
        measure = partial(measure_first_batch, dataset)
        runs = core.run_rounds(contenders, rounds, measure, required=lambda _: True)
        shutil.rmtree(dataset)
        for workers in (0, CORES):
            both = [core.median_of(runs[workers, place], lambda each: each["seconds"]) for place in ("start", "middle")]
            rows.append((f"{num_shards:,}", str(workers), *(f"{seconds:.3f}" for seconds in both)))
            if num_shards == largest and not workers:
                start, middle = both
    header = ("shards", "workers", "start of the epoch, s", "resume in its middle, s")
    title = f"From wdsplit.Dataset(...) to the first batch of {BATCH_SIZE} (medians of {rounds})"
    core.print_table(title, header, rows, names=0)
    return [
        Aim(f"first batch of {largest:,} shards", "seconds", "at most 1", f"{start:.2f}"),
        Aim("resume in the middle of an epoch", "x a start", "at most 1", f"{middle / start:.2f}"),
    ]


def run_memory(folder: Path, max_shards: int) -> list[Aim]:
    """Print what a process holds after each of ten epochs; the two curves should be flat and alike."""
    rows = []
    for num_shards in sorted({min(count, max_shards) for count in MANY_SHARDS}):
        dataset = make_many(folder, num_shards)
        for workers, what in ((0, "one process, beyond its imports"), (CORES, "the larger of 2 workers, in all")):
            found = core.in_own_process(memory_by_epoch, dataset, workers)
            rows.append((f"{num_shards:,}", what, *(f"{value:.1f}" for value in found["megabytes"])))
        shutil.rmtree(dataset)
    header = ("shards", "process", *map(str, range(1, EPOCHS + 1)))
    core.print_table(f"Resident memory in MiB after epochs 1 to {EPOCHS} (one run each)", header, rows, names=0)
    return []


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--part", default=",".join(PARTS), help=f"Some of {','.join(PARTS)}. Default: all.")
    parser.add_argument(
        "--rows", type=int, help="Rows of small, image, jpeg, webp and png. Default: 400000, 12000, 8000, 4000, 100000."
    )
    parser.add_argument("--readers", default="", help="Only readers whose names begin so, such as wdsplit,webdataset.")
    parser.add_argument("--shards", type=int, default=max(MANY_SHARDS), help="Maximum for scale and memory.")
    arguments = parser.parse_args()
    core.print_machine()
    names = tuple(arguments.readers.split(","))
    aims: list[Aim] = []
    for part in arguments.part.split(","):
        with core.work_folder(arguments.output) as folder:
            if part == "scale":
                aims += run_scale(arguments.rounds, folder, arguments.shards)
            elif part == "memory":
                aims += run_memory(folder, arguments.shards)
            else:
                aims += run_part(part, arguments.rows or ROWS[part], arguments.rounds, folder, names)
    core.print_aims(aims)


if __name__ == "__main__":
    main()
