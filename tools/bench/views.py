"""Compare reading views of a dataset with reading all of it: how many samples a second.

The views are half of the samples, drawn and every second one; a tenth; and one of a hundred, in batches of 256; and
all of them in groups of one label, each of which is a batch, beside batches of as many samples. They are read by one
process, in turn, each in a process of its own, of which the second epoch counts; samples have about 1 kB, 10 kB and
100 kB, shards about 25 MB. Printed are medians and what share of the speed of the whole dataset they are; and the bytes
that were read for each byte of a sample.

Example: python -m tools.bench.views --output /dev/shm
"""

from __future__ import annotations

import gc
import os
from operator import itemgetter
from pathlib import Path

import numpy as np

from tools.bench import core, data
from tools.bench.core import Aim, Result

ROWS = {1_000: 300_000, 10_000: 60_000, 100_000: 8_000}
"""Samples by the bytes of each."""
SHARD_BYTES = 25_000_000
WHOLE = "wdsplit, all samples"
IN_32S = "wdsplit, all samples in batches of 32"
GROUPS = "groups of 32"
VIEWS = {
    WHOLE: (1, 1),
    IN_32S: (1, 1),
    "half, drawn": (0, 2),
    "every second": (2, 1),
    "a tenth, drawn": (0, 10),
    "1 %, drawn": (0, 100),
    GROUPS: (1, 1),
}
"""Every n-th sample; or, if n is 0, one of so many is drawn."""
AIMED = {"half, drawn": WHOLE, "every second": WHOLE, GROUPS: IN_32S}
"""What is aimed at: a share of the speed of another."""
AIM = 0.8
COLUMNS = ("speed", "by_busy", "times")
BATCH_SIZE = 256


def make_table(path: Path, num_rows: int, num_bytes: int) -> None:
    """Write rows of about so many incompressible bytes, and one of three labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = np.random.default_rng(0)
    schema = pa.schema([("data", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for first in range(0, num_rows, 2_000):
            sizes = chance.integers(num_bytes * 3 // 4, num_bytes * 5 // 4, min(2_000, num_rows - first))
            rows = [chance.bytes(int(size)) for size in sizes]
            writer.write_table(pa.table([rows, chance.integers(0, 3, len(rows))], schema=schema))


def read_once(folder: str, name: str, num_workers: int) -> Result:
    """Read a view once; return seconds, samples, and bytes read for each byte of the samples."""
    core.begin("torch", "wdsplit.loading.loader", "wdsplit.views.view")
    from wdsplit.loading.dataset import Dataset
    from wdsplit.loading.loader import Loader
    from wdsplit.order.selection import Selection
    from wdsplit.order.views import View

    dataset = Dataset(folder)
    chance, (every, one_of) = np.random.default_rng(0), VIEWS[name]
    batch_size = BATCH_SIZE
    if name == GROUPS:
        dataset, batch_size = Dataset(folder, group="label", size=32, allow_pads=True), 1
    elif name == IN_32S:
        batch_size = 32
    elif name != WHOLE:
        counts = dataset.manifest.shards.num_real.tolist()
        masks = [np.arange(n) % every == 0 if every else chance.random(n) < 1 / one_of for n in counts]
        dataset = Dataset(folder, view=View(name, Selection.of_masks(masks)))
    loader = Loader(dataset, batch_size, num_workers=num_workers)
    for _ in loader:
        pass
    gc.collect()  # of all that was imported, which takes as long as thousands of samples
    before = _bytes_read()
    clock = core.Clock()
    num_samples = num_bytes = 0
    for batch in loader:
        num_samples += len(batch["__key__"])
        num_bytes += sum(map(len, batch["bin"]))
    read = clock.read()
    times = (_bytes_read() - before) / num_bytes
    return {"speed": num_samples / read["seconds"], "by_busy": num_samples / read["busy"], "times": times}


def _bytes_read() -> int:
    """Return how many bytes this process has read, from the system's cache or a disk."""
    lines = Path(f"/proc/{os.getpid()}/io").read_text().split()
    return int(lines[lines.index("rchar:") + 1])


def compare(num_bytes: int, folder: Path, rounds: int, num_workers: int) -> list[Aim]:
    """Measure all views of samples of one size, and print the medians; return what was aimed at."""
    make_table(folder / data.SOURCE, ROWS[num_bytes], num_bytes)
    data.make_shards(folder, emit=(), shards=max(1, ROWS[num_bytes] * num_bytes // SHARD_BYTES))
    (folder / data.SOURCE).unlink()
    dataset = str(folder / data.SHARDS)

    def measure(name: str) -> Result:
        return core.in_own_process(read_once, dataset, name, num_workers)

    results = core.run_rounds(VIEWS, rounds, measure, lambda name: True)
    medians = {name: [core.median_of(runs, itemgetter(of)) for of in COLUMNS] for name, runs in results.items()}
    whole = medians[WHOLE]
    rows = [
        (name, f"{speed:,.0f}", f"{speed / whole[0]:.2f}", f"{by_busy / whole[1]:.2f}", f"{times:.2f}")
        for name, (speed, by_busy, times) in medians.items()
    ]
    shares = {name: medians[name][0] / medians[base][0] for name, base in AIMED.items()}
    title = f"{ROWS[num_bytes]:,} samples of {num_bytes:,} bytes, {num_workers} workers, medians of {rounds}"
    header = ("", "samples/s", "x all samples", "x by processor s", "bytes read for a byte")
    core.print_table(title, header, rows)
    return [
        Aim(f"{name}: of {num_bytes:,} bytes", AIMED[name], f"{AIM}", f"{share:.2f}") for name, share in shares.items()
    ]


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--bytes", type=core.numbers, default=tuple(ROWS), help="Sizes of samples.")
    arguments = parser.parse_args()
    core.print_machine()
    print(f"load {os.getloadavg()[0]:.1f}")
    aims = []
    for num_bytes in arguments.bytes:
        with core.work_folder(arguments.output) as folder:
            aims += compare(num_bytes, folder, arguments.rounds, arguments.workers)
    print(f"load {os.getloadavg()[0]:.1f}")
    core.print_aims(aims)


if __name__ == "__main__":
    main()
