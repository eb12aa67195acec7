"""Compare the report's model of a cluster with what a loader does: `python -m tools.report_model` (as root).

One rank reads 2,000 samples of 100 kB from an S3 server on this machine, through a link of a given rate; a step and
the decoding of a sample take given times, by sleeping. Printed is a table: seconds of an epoch and the share of
waiting, by the model and measured, medians of some rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import wdsplit
from tools.bench import link

TESTS = Path(__file__).resolve().parents[1] / "tests" / "support"
SAMPLES, SAMPLE_BYTES, BATCH_SIZE = 2000, 100_000, 64
UNLIMITED = 10_000
"""Mbit/s of a link that is not limited, about."""


@dataclass(frozen=True)
class Case:
    """What is compared: Mbit/s of the link (0 for no limit), milliseconds of a step and of a sample, workers."""

    megabits: int
    step_ms: float
    sample_ms: float
    workers: int


CASES = (
    Case(0, 100, 0, 2),
    Case(1000, 100, 0, 2),
    Case(400, 100, 0, 2),
    Case(400, 100, 0, 0),
    Case(0, 50, 4, 2),
    Case(0, 50, 4, 0),
)


class Sleep:
    """A stage that takes as long as decoding would."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, sample: Any) -> Any:
        time.sleep(self._seconds)
        return sample


def modelled(url: str, case: Case) -> tuple[float, float]:
    """Return seconds of an epoch and the share of waiting, by the model."""
    cluster = wdsplit.Cluster((case.megabits or UNLIMITED) / 1000, 1.0, case.step_ms, case.sample_ms)
    topologies = (wdsplit.Topology(1, case.workers),)
    options = wdsplit.ReportOptions(batch_size=BATCH_SIZE, topologies=topologies, cluster=cluster, max_read="5MB")
    found = wdsplit.report(url, options=options).facts.judged.estimate
    return found.epoch_s, found.waiting


def measured(url: str, case: Case) -> tuple[float, float]:
    """Return the same of a loader; the time to the first batch does not count as waiting, as in the model."""
    dataset = wdsplit.Dataset(url, rank=0, world_size=1).map(Sleep(case.sample_ms / 1000))
    loader = wdsplit.Loader(dataset, BATCH_SIZE, num_workers=case.workers)
    with link.limited(case.megabits):
        found = wdsplit.bench(loader, step_s=case.step_ms / 1000)
    after_first_s = found.seconds - (found.first_batch_s or 0.0)
    return found.seconds, max(0.0, 1 - found.batches * case.step_ms / 1000 / after_first_s)


def rows(url: str, rounds: int) -> Iterator[str]:
    """Give the lines of the table."""
    yield "| link | step | sample | workers | epoch: model | measured | waiting: model | measured |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in CASES:
        model_s, model_waiting = modelled(url, case)
        taken = [measured(url, case) for _ in range(rounds)]
        epoch_s, waiting = (statistics.median(column) for column in zip(*taken, strict=True))
        rate = f"{case.megabits:,} Mbit/s" if case.megabits else "not limited"
        yield (
            f"| {rate} | {case.step_ms:.0f} ms | {case.sample_ms:.0f} ms | {case.workers} | {model_s:.1f} s | "
            f"{epoch_s:.1f} s | {model_waiting:.0%} | {waiting:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if reason := link.why_not():
        raise SystemExit(f"the rate of a link cannot be limited here: {reason}")
    link.enter()
    sys.path.insert(0, str(TESTS))
    with tempfile.TemporaryDirectory() as folder:
        buckets = Path(folder) / "buckets"
        (buckets / "bench").mkdir(parents=True)
        values = np.random.default_rng(0).bytes(SAMPLES * SAMPLE_BYTES)
        payloads = [values[begin : begin + SAMPLE_BYTES] for begin in range(0, len(values), SAMPLE_BYTES)]
        pq.write_table(pa.table({"bin": payloads}), f"{folder}/table.parquet")
        wdsplit.convert([f"{folder}/table.parquet"], str(buckets / "bench" / "train"))
        with import_module("s3server").S3Server(buckets) as server:
            os.environ.update(server.environ)
            for line in rows("s3://bench/train", arguments.rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main()
