"""Measure how fast `JaxLoader` puts batches on the devices of a mesh, side by side with plain `jax.device_put`.

Each number of devices is measured on a mesh of one axis (data) and on one of two (data, model), with the same batches:

- *arrays in memory*: numpy batches made beforehand, put on the devices by `jax.device_put`: what the split alone costs;
- *Loader, device_put*: those of `wdsplit.Loader`, put there one by one, as one would write it by hand;
- *JaxLoader, prefetch 0* and *2*: `JaxLoader`, with that many batches put ahead.

Devices are those that XLA makes of one CPU, in a process for each number of them and each round. A process reads each
loader's first epoch to warm up, checks that it held every sample once, and times the second one; each batch is waited
for with `jax.block_until_ready`. Printed are medians over the rounds, in which the order takes turns. Nothing is
computed with a batch, so prefetching has only the copies to hide, and because such devices share the processors more
of them are no faster: what counts is how the columns compare. On a CPU, `jax.device_put` may use an array where it is.

Example: python -m tools.bench.jax --output /dev/shm --devices 1,8 --rounds 5
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bench import core
from tools.bench.core import ProcessError, Result

DEVICES = (1, 2, 4, 8)
ROWS, FEATURES = 16_384, 1024
LANES = 16
"""Batches of a multiple of as many samples fill an epoch without pads."""
PREFETCH = (0, 2)
MODEL = 2
"""Devices along the model axis of a mesh of two axes, if there are as many."""
IN_MEMORY, BY_HAND = "arrays in memory", "Loader, device_put"
OURS = {f"JaxLoader, prefetch {count}": count for count in PREFETCH}
COLUMNS = (IN_MEMORY, BY_HAND, *OURS)


def make_dataset(folder: Path, num_rows: int, num_features: int) -> Path:
    """Write a dataset of rows of float32 features and a label; return its path."""
    import wdsplit

    chance = np.random.default_rng(0)
    features = pa.array(chance.random(num_rows * num_features, np.float32))
    table = pa.table({"npy": pa.FixedSizeListArray.from_arrays(features, num_features), "cls": range(num_rows)})
    pq.write_table(table, folder / "rows.parquet")
    wdsplit.convert(folder / "rows.parquet", folder / "dataset", shards=LANES, lanes=LANES)
    return folder / "dataset"


# In a process of its own


def measure(path: str, num_devices: int, global_batch: int, workers: int, turn: int) -> Result:
    """Return what each column gave on each mesh; every other turn goes the other way round."""
    import jax
    import jax.sharding

    devices = np.array(jax.devices())
    if len(devices) != num_devices:
        raise ProcessError(f"JAX has {len(devices)} devices, not {num_devices}")
    along_model = min(MODEL, num_devices)
    meshes = {
        f"({num_devices})": jax.sharding.Mesh(devices, ("data",)),
        f"({num_devices // along_model}, {along_model})": jax.sharding.Mesh(
            devices.reshape(-1, along_model), ("data", "model")
        ),
    }
    core.begin()
    rates: Result = {}
    for name, mesh in core.in_turn(meshes.items(), turn):
        readers = open_readers(path, mesh, global_batch, workers)
        rates[name] = {column: rate(read) for column, read in core.in_turn(readers.items(), turn)}
    return rates


def open_readers(path: str, mesh: Any, global_batch: int, workers: int) -> dict[str, Callable[[], Iterator[Any]]]:
    """Return what reads an epoch on a mesh, by column: batches of (features, labels) that are on their way."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import wdsplit
    from wdsplit.integrations.jax import JaxLoader

    def dataset() -> wdsplit.Dataset:
        return wdsplit.Dataset(path, seed=0, rank=0, world_size=1).decode().to_tuple("npy", "cls")

    def put_each(batches: Iterable[Any]) -> Iterator[Any]:
        return (jax.device_put(batch, sharding) for batch in batches)

    def read(loader: JaxLoader) -> Iterator[Any]:
        return (batch.data for batch in loader)

    sharding = NamedSharding(mesh, PartitionSpec("data"))
    loader = wdsplit.Loader(dataset(), global_batch, num_workers=workers, workers="thread", output="numpy")
    in_memory = list(loader)
    readers: dict[str, Callable[[], Iterator[Any]]] = {
        IN_MEMORY: lambda: put_each(in_memory),
        BY_HAND: lambda: put_each(loader),
    }
    per_place = global_batch // mesh.shape["data"]
    for column, count in OURS.items():
        ours = JaxLoader(dataset(), per_place, mesh=mesh, prefetch=count, num_workers=workers)
        readers[column] = partial(read, ours)
    return readers


def rate(read: Callable[[], Iterator[Any]]) -> float:
    """Return samples a second of the second epoch.

    Raises:
        ProcessError: The first one did not hold each sample once.
    """
    import jax

    labels = np.concatenate([np.asarray(jax.block_until_ready(batch)[1]) for batch in read()])
    check_once(labels)
    started = time.perf_counter()
    for batch in read():
        jax.block_until_ready(batch)
    return len(labels) / (time.perf_counter() - started)


def check_once(labels: npt.NDArray[Any]) -> None:
    """Fail unless the labels are the numbers from 0 on, in any order."""
    if not np.array_equal(np.sort(labels), np.arange(len(labels))):
        raise ProcessError(f"an epoch held {len(labels)} samples, of which {len(np.unique(labels))} are different")


# Rounds


def report(runs: dict[int, list[Result]], what: str) -> None:
    """Print medians, and how the last column compares with the loop by hand."""
    rows = []
    for count, rounds in runs.items():
        for mesh in sorted(rounds[0], key=len):
            medians = [statistics.median(rates[mesh][column] for rates in rounds) for column in COLUMNS]
            ratio = medians[-1] / medians[COLUMNS.index(BY_HAND)]
            rows.append((str(count), mesh, *(f"{median:,.0f}" for median in medians), f"{ratio:.2f}"))
    header = ("devices", "mesh", *COLUMNS, f"the last one: x {BY_HAND}")
    core.print_table(f"Samples a second ({what})", header, rows, names=2)


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--devices", default=DEVICES, type=core.numbers, help="Numbers of devices. Default: 1,2,4,8.")
    parser.add_argument("--batch-size", type=int, default=256, help="Samples of a global batch. Default: 256.")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"A multiple of --batch-size. Default: {ROWS}.")
    parser.add_argument("--features", type=int, default=FEATURES, help=f"float32 values of a row. Default: {FEATURES}.")
    parser.add_argument(
        "--workers", type=int, default=0, help="Threads that read and decode. Default: 0, only the main."
    )
    arguments = parser.parse_args()
    least = math.lcm(LANES, *arguments.devices)
    if arguments.batch_size % least or arguments.rows % arguments.batch_size or arguments.rows < 1:
        parser.error(f"--batch-size must be a multiple of {least}, and --rows one of --batch-size")
    core.print_machine()
    if not core.is_installed("JAX", "jax"):
        return
    turns = dict.fromkeys(arguments.devices, 0)
    with core.work_folder(arguments.output) as folder:
        path = make_dataset(folder, arguments.rows, arguments.features)

        def run(count: int) -> Result:
            flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
            environ = {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
            sizes = (count, arguments.batch_size, arguments.workers, turns[count])
            turns[count] += 1
            return core.in_own_process(measure, path, *sizes, environ=environ)

        runs = core.run_rounds(arguments.devices, arguments.rounds, run, required=lambda _: True)
    what = f"{arguments.rows:,} rows of {arguments.features:,} float32 values, global batches of {arguments.batch_size}"
    report(runs, f"{what}, {arguments.workers} workers, medians of {arguments.rounds}")


if __name__ == "__main__":
    main()
