"""Print what the default lanes and windows come to: memory, mixing, and what 1 to 96 readers read. Arithmetic only.

The first table has the defaults by the number and size of samples, and how much likelier than by chance two samples
of one global batch share a batch again in the next epoch (1 is ideal). The second has the windows that all readers
together read for each window of the dataset, where `--world-size` was not given: with 16 lanes and windows of 8 MB, and
by default. The third has the requests for a TB, and what they cost.

Example: python -m tools.bench.lanes
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from tools.bench import core
from wdsplit.checks.mixing import mixing
from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import Plan, make_plan
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.trace import Trace
from wdsplit.shards.manifest import Field
from wdsplit.tables.table import InputFile, Table

DATA = (
    (1_000, 100_000),
    (10_000, 100_000),
    (100_000, 100_000),
    (320_000, 100_000),
    (1_280_000, 100_000),
    (10_000_000, 100_000),
    (1_000_000_000, 100_000),
    (1_000_000, 2_000),
    (100_000_000, 2_000),
    (1_000_000, 1_000_000),
    (100_000, 10_000_000),
)
"""Samples, and bytes of each in the shards."""
BATCHES = (64, 256, 2048)
READERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
BEFORE = {"lanes": 16, "window": 80}
GET_PRICE = 0.0004 / 1000
"""Dollars, in the standard class of S3."""


def plan_of(num_samples: int, sample_bytes: int, **options: Any) -> Plan:
    """Return the plan of a table of so many samples."""
    import pyarrow as pa

    file = InputFile("table.parquet", 0, num_samples, (num_samples,), num_samples * (sample_bytes - 768), "")
    fields = (Field("jpg", "image", "binary", "binary"),)
    return make_plan(Table((file,), pa.schema([("image", pa.binary())])), fields, None, PlanOptions(**options))


def order_of(plan: Plan) -> EpochOrder:
    each, rest = divmod(plan.num_samples, plan.num_shards)
    counts = each + (np.arange(plan.num_shards) < rest).astype(np.int64)
    return EpochOrder(counts, OrderOptions(0, True, plan.lanes, plan.window, "pad"), 0)


def report_defaults() -> None:
    rows = []
    for num_samples, sample_bytes in DATA:
        plan = plan_of(num_samples, sample_bytes)
        figures = [mixing(order_of(plan), batch) for batch in BATCHES]
        held = plan.lanes * min(plan.window, plan.max_samples) * sample_bytes if plan.window > 1 else 0
        shape = (
            f"{plan.lanes}",
            f"{plan.window:,}",
            f"{plan.num_shards:,}",
            f"{100 * plan.num_pads / num_samples:.2f}",
        )
        mixed = [f"{each.figure:.2f} ({each.met_again:.2g})" if each else "" for each in figures]
        rows.append((f"{num_samples:,}", f"{sample_bytes:,}", *shape, f"{held / 1e6:,.0f}", *mixed))
    header = (
        "samples",
        "bytes",
        "lanes",
        "window",
        "shards",
        "pads, %",
        "held, MB",
        *(f"batch {b:,}" for b in BATCHES),
    )
    core.print_table("Defaults, and the figure of meeting again (samples met again)", header, rows, names=0)


def report_readers() -> None:
    plans = plan_of(320_000, 100_000, **BEFORE), plan_of(320_000, 100_000)
    rows = []
    for readers in READERS:
        cells = []
        for plan in plans:
            read = Trace(order_of(plan), readers, 1).read_amplification
            held = -(-plan.lanes // readers) if read < 1.01 else plan.lanes * read / readers
            cells += [f"{read:.2f}", f"{held * plan.window * 0.1:,.1f}"]
        rows.append((str(readers), *cells))
    header = ("readers", "before: windows", "MB held by each", "now: windows", "MB held by each")
    core.print_table("Windows read for each window of 320,000 samples of 100 kB", header, rows, names=0)


def report_requests() -> None:
    rows = []
    for name, plan in (("before", plan_of(320_000, 100_000, **BEFORE)), ("now", plan_of(320_000, 100_000))):
        requests = 1e12 / (plan.window * 100_000)
        rows.append((name, f"{plan.window * 0.1:.1f}", f"{requests:,.0f}", f"{requests * GET_PRICE:.2f}"))
    header = ("", "MB of a request", "requests for a TB", "$ for a TB")
    core.print_table("Requests of windows of 100-kB samples", header, rows)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    report_defaults()
    report_readers()
    report_requests()


if __name__ == "__main__":
    main()
