"""Measure `wdsplit.Samples` in random batches of 256, beside `wdsplit.Loader`.

Rows of 50 to 150 kB of incompressible bytes and a label. `Samples` is read by torch's DataLoader, with a RandomSampler
or by ranges of 256 consecutive numbers; the Loader reads a shuffled epoch. Each reads all rows once, with 0 and with 2
worker processes, as bytes.

In each round every reader is run once, in a process of its own; printed are medians over the rounds as Markdown, with
their ratio to the Loader's, and at the end what was aimed at. The clock starts when the libraries are imported.

Example: python -m tools.bench.random_access --output /dev/shm --rounds 5
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench import core, data
from tools.bench.core import Aim, Result

BATCH_SIZE = 256
ROWS = 12_000
WORKERS = (0, 2)
READERS = ("wdsplit.Loader", "Samples, random", "Samples, in order")
HEADER = ("", "workers", "samples/s", "x Loader", "processor us a sample")
AIM = 0.5


def read_once(dataset: str, reader: str, workers: int) -> Result:
    """Read all rows once; return seconds and samples."""
    clock = core.begin("torch", "wdsplit.loading.loader", "wdsplit.loading.samples")
    count = sum(len(batch["__key__"]) for batch in batches_of(dataset, reader, workers))
    return {**clock.read(), "samples": count}


def batches_of(dataset: str, reader: str, workers: int) -> Any:
    import torch

    import wdsplit

    if reader == "wdsplit.Loader":
        return wdsplit.Loader(wdsplit.Dataset(dataset), BATCH_SIZE, num_workers=workers)
    samples = wdsplit.Samples(dataset)
    return torch.utils.data.DataLoader(samples, BATCH_SIZE, shuffle=reader.endswith("random"), num_workers=workers)


def measure(dataset: Path, contender: tuple[str, int]) -> Result:
    return core.in_own_process(read_once, dataset, *contender)


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"Default: {ROWS}.")
    arguments = parser.parse_args()
    core.print_machine()
    aims = []
    with core.work_folder(arguments.output) as folder:
        data.make_image(folder / data.SOURCE, arguments.rows)
        data.make_shards(folder, emit=())
        (folder / data.SOURCE).unlink()
        contenders = [(reader, workers) for workers in WORKERS for reader in READERS]
        load = os.getloadavg()[0]
        runs = core.run_rounds(contenders, arguments.rounds, partial(measure, folder / data.SHARDS))
    rows = []
    for workers in WORKERS:
        rates, busy = (
            {reader: core.median_of(runs[reader, workers], value) for reader in READERS}
            for value in (lambda each: each["samples"] / each["seconds"], lambda each: each["busy"] / each["samples"])
        )
        ratios = {reader: rate / rates[READERS[0]] for reader, rate in rates.items()}
        for reader in READERS:
            figures = (f"{rates[reader]:,.0f}", f"{ratios[reader]:.2f}", f"{1e6 * busy[reader]:.0f}")
            rows.append((reader, str(workers), *figures))
        aims.append(
            Aim(f"random batches: {core.workers_of(workers)}", "x Loader", f"{AIM:g}", f"{ratios[READERS[1]]:.2f}")
        )
    title = f"{arguments.rows:,} samples of 100 kB in batches of {BATCH_SIZE} (medians of {arguments.rounds})"
    core.print_table(f"{title}; load at the start {load:.1f}", HEADER, rows)
    core.print_aims(aims)


if __name__ == "__main__":
    main()
