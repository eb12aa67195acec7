"""Measure what a dataset of a billion samples takes of one of 64 ranks: time, memory and requests.

It has 100,000 shards of 10,000 small samples. 16 of them are converted, the others are links to these, so that all
take little of the disk; their keys repeat, which nothing here looks at. Two views have half of the samples: in packs,
and in groups with a budget. Each row is a process of its own, that imports torch and reads 20 batches of 256, from the
folder and from an S3 server on this machine; and audits, which draw positions. Time counts from before the imports;
processor seconds are those until the first batch, or of the audit. The server lists the folder once before, which takes
it seconds. Printed are medians.

Example: python -m tools.bench.billion --output /dev/shm --rounds 5
"""

from __future__ import annotations

import dataclasses
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bench import core
from tools.bench.core import Aim, Result

SHARDS, SAMPLES, CONVERTED = 100_000, 10_000, 16
RANKS, LANES, BATCH_SIZE, BATCHES = 64, 192, 256, 20
CAPACITY, FEW_TOKENS, A_UNIT = 4096, 516, 16
"""Half of the samples have few tokens; about 16 of them fit together."""
PACKS, GROUPS = "packs", "groups"
NAME = "billion"
FOLDER, S3, LITTLE, TORCH = "folder", "S3", "S3, 16 MiB ahead", "import torch"
AUDIT, AUDIT_PACKS = "audit", "audit, packs"
OPTIONS: dict[str, dict[str, Any]] = {
    FOLDER: {},
    S3: {},
    LITTLE: {"read_ahead_bytes": 2**24},
    "folder, packs": {"view": PACKS},
    "S3, packs": {"view": PACKS},
    "S3, groups": {"view": GROUPS},
}
AUDITS: dict[str, dict[str, Any]] = {AUDIT: {}, AUDIT_PACKS: {"view": PACKS, "batch_size": BATCH_SIZE // A_UNIT}}
MOST_S, MOST_MB = 3, 400
COLUMNS = ("imported", "opened", "first", "all")
TESTS = core.ROOT / "tests" / "support"


def make(folder: Path, shards: int, samples: int, converted: int = CONVERTED) -> None:
    """Make the dataset: samples of a class and a number of tokens, in LANES lanes."""
    import wdsplit
    from wdsplit.shards.files import read_manifest, write_manifest
    from wdsplit.shards.manifest import Shards, shard_path
    from wdsplit.storage.opening import open_storage

    numbers = np.arange(converted * samples)
    tokens = 16 + np.random.default_rng(0).integers(0, 1000, len(numbers))
    table = folder.with_name(f"{folder.name}.parquet")
    pq.write_table(pa.table({"cls": numbers % 1000, "tokens": tokens}), table)
    wdsplit.convert(table, folder, shards=converted, mapping={"cls": "cls"}, keep=("tokens",))
    table.unlink()
    storage = open_storage(str(folder))
    manifest = read_manifest(storage)
    for shard in range(converted, shards):
        for suffix in ("", ".places", ".parquet"):
            os.link(folder / f"{shard_path(shard % converted)}{suffix}", folder / f"{shard_path(shard)}{suffix}")
    listed = manifest.shards.table.take(pa.array(np.arange(shards) % converted))
    paths = pa.array([shard_path(shard) for shard in range(shards)])
    listed = listed.set_column(0, listed.schema.field("path"), paths)
    write_manifest(storage, dataclasses.replace(manifest, shards=Shards(listed), lanes=LANES))


def make_views(folder: Path) -> None:
    """Store packs of the samples with few tokens, and groups of them with a budget; see `make`."""
    from wdsplit.order.bundles import Grouping, Groups, Packing, Packs
    from wdsplit.order.packing import block_of, group_block_of, packed, padded_lengths
    from wdsplit.order.selection import Selection
    from wdsplit.shards.files import read_manifest
    from wdsplit.shards.manifest import shard_path
    from wdsplit.shards.views import write_view
    from wdsplit.storage.opening import open_storage

    storage = open_storage(str(folder))
    manifest = read_manifest(storage)
    totals, form = manifest.shards.num_real, Grouping(0, CAPACITY)
    block, group_block = block_of(CAPACITY), group_block_of(manifest.sample_bytes, A_UNIT)
    bits, packs, groups = [], [], []
    for shard in range(CONVERTED):
        tokens = pq.read_table(folder / f"{shard_path(shard)}.parquet", columns=["tokens"])["tokens"].to_numpy()
        chosen = tokens < FEW_TOKENS
        bits.append(np.packbits(chosen, bitorder="little"))
        packs.append(packed(tokens[chosen], CAPACITY, block))
        groups.append(padded_lengths(tokens[chosen], form, group_block))
    order = np.arange(len(totals)) % CONVERTED

    def repeated(parts: list[Any]) -> Any:
        smallest = np.min_scalar_type(max(int(part.max()) for part in parts))
        parts = [part.astype(smallest) for part in parts]
        return np.concatenate([parts[number] for number in order])

    counts = np.array([len(part) for part in packs])[order]
    chosen = Selection(totals, counts, repeated(bits))
    num_packs = np.array([int(part.max()) + 1 for part in packs])[order]
    units = Packs(chosen, repeated(packs), block, Packing(CAPACITY, False), num_packs)
    write_view(storage, manifest, PACKS, units, {})
    few = Selection(totals[:CONVERTED], counts[:CONVERTED], np.concatenate(bits))
    num_groups = Groups(few, np.concatenate(groups), group_block, form).counts[order]
    write_view(storage, manifest, GROUPS, Groups(chosen, repeated(groups), group_block, form, num_groups), {})


# Tasks, in processes of their own


def read(url: str, options: dict[str, Any]) -> Result:
    """Open the dataset and read batches; return seconds since the start, and the most memory."""
    clock = core.Clock()
    core.import_all("torch", "wdsplit.loading.loader")
    import wdsplit

    imported = clock.seconds()
    dataset = wdsplit.Dataset(url, rank=0, world_size=RANKS, **options)
    opened = clock.seconds()
    batch_size = {PACKS: BATCH_SIZE // A_UNIT, GROUPS: 1}.get(options.get("view", ""), BATCH_SIZE)
    collate_fn = list if "view" in options else None
    batches = iter(wdsplit.Loader(dataset, batch_size, output="numpy", collate_fn=collate_fn))
    next(batches)
    first = clock.read()
    for _ in range(BATCHES - 1):
        next(batches)
    seconds = (imported, opened, first["seconds"], clock.seconds())
    return dict(zip(COLUMNS, seconds, strict=True)) | {"busy": first["busy"], "mb": memory_mb()}


def audit(url: str, options: dict[str, Any]) -> Result:
    """Audit the dataset; fail if a promise is broken."""
    clock = core.Clock()
    import wdsplit

    report = wdsplit.audit(url, world_size=RANKS, **{"batch_size": BATCH_SIZE, **options})
    if not report.held:
        raise core.ProcessError(str(report))
    read = clock.read()
    return {"all": read["seconds"], "busy": read["busy"], "mb": memory_mb()}


def import_torch() -> Result:
    """Import torch alone, which a training does in any case."""
    clock = core.Clock()
    core.import_all("torch")
    read = clock.read()
    return {"imported": read["seconds"], "busy": read["busy"], "mb": memory_mb()}


def memory_mb() -> float:
    return core.peak_mib() * 2**20 / 1e6


# Rounds


def measure(name: str, folder: Path, server: Any, proxy: Any) -> Result:
    """Do a task in a process of its own; of those that read S3, count the requests, too."""
    if name == TORCH:
        return core.in_own_process(import_torch)
    if name in AUDITS:
        return core.in_own_process(audit, str(folder / NAME), AUDITS[name])
    if name.startswith(FOLDER):
        return core.in_own_process(read, str(folder / NAME), OPTIONS[name])
    before = len(proxy.exchanges)
    environ = {**server.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
    result = core.in_own_process(read, f"s3://{folder.name}/{NAME}", OPTIONS[name], environ=environ)
    return {**result, "requests": len(proxy.exchanges) - before}


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--shards", type=int, default=SHARDS, help=f"Default: {SHARDS:,}.")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"Samples of a shard. Default: {SAMPLES:,}.")
    arguments = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    s3server, faults = import_module("s3server"), import_module("faults")
    core.print_machine()
    print(f"load {os.getloadavg()[0]:.1f}")
    with core.work_folder(arguments.output) as work:
        folder = work / "buckets" / "bucket"
        folder.mkdir(parents=True)
        make(folder / NAME, arguments.shards, arguments.samples)
        make_views(folder / NAME)
        with (
            s3server.S3Server(folder.parent, *s3server.FAST) as server,
            faults.FaultProxy(server.port, as_s3=True) as proxy,
        ):
            measure(S3, folder, server, proxy)
            names = (TORCH, *OPTIONS, *AUDITS)
            results = core.run_rounds(names, arguments.rounds, lambda name: measure(name, folder, server, proxy))
    medians = {
        name: {column: core.median_of(runs, lambda run, of=column: run[of]) for column in runs[0]}  # type: ignore[misc]
        for name, runs in results.items()
    }
    rows = []
    for name, found in medians.items():
        seconds = [f"{found[column]:.2f}" if column in found else "" for column in COLUMNS]
        requests = f"{found['requests']:.0f}" if "requests" in found else ""
        rows.append((name, *seconds, f"{found['busy']:.2f}", f"{found['mb']:,.0f}", requests))
    title = f"{arguments.shards:,} shards of {arguments.samples:,} samples, medians of {arguments.rounds}"
    header = ("", "imported, s", "opened, s", "first batch, s", "end, s", "processor s", "MB at most", "requests")
    core.print_table(title, header, rows)
    print(f"load {os.getloadavg()[0]:.1f}")
    aims = []
    for name in OPTIONS:
        aims.append(Aim(f"first batch: {name}", "s", f"at most {MOST_S}", f"{medians[name]['first']:.2f}"))
        aims.append(Aim(f"first batch: {name}", "MB", f"at most {MOST_MB}", f"{medians[name]['mb']:,.0f}"))
    core.print_aims(aims)


if __name__ == "__main__":
    main()
