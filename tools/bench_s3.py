"""Measure reading from an S3 server on this machine: plain GETs by clients, and a dataset streamed by libraries.

The server is rclone's; the objects are the shards of a dataset of 12,000 samples of 50 to 150 kB of incompressible
bytes and a label. Six parts:

*get*: the shards in ranges of 8 MiB, by one thread and by four. obstore wants the status 206, which rclone's S3 does
not give: it reads from `rclone serve http`, unsigned. *http.client* is no candidate but what is possible in Python:
requests signed by botocore, bodies read into one buffer. *stream*: the samples, one by one and in batches from 2
workers, by wdsplit, which shuffles, and by libraries that read in order, each from what it has made of the same table,
with nothing cached. *link*: GETs, and the second epoch of wdsplit's, through a link that carries only so much: what is
read where the network, not the processor, is what there is little of (by root alone, in a network of its own). *ranks*:
two ranks at once. *cache*: the second epoch of a dataset with a cache, and of one on the same local disk. *cost*:
through a proxy that answers each request late: requests, bytes, the time to the first batch.

In each round everything is run once, in processes of its own, and the order alternates. Printed are medians over the
rounds as Markdown, and at the end what was aimed at. MB are those that were asked for: of ranges, or of samples
without their labels. The clock starts when the libraries are imported. A run that does not get all samples and bytes is
refused. What the server needs of the same processors slows all down alike. What is not installed is left out (pip
install '.[bench,torch]').

Example: python tools/bench_s3.py --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench_convert import make_image
from bench_load import ProcessError, leave_out, print_row, row
from load_peers import BATCH_SIZE, SOURCE
from s3_clients import CLIENTS, THREADS, shards_of
from s3_link import enter, limited, why_not
from s3_peers import BUCKETS, READERS, WDSPLIT, make_shards
from s3_tasks import Result, run_together

TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"
PARTS = ("get", "stream", "link", "ranks", "cache", "cost")
SAMPLES, WORKERS, RANKS = 12_000, (0, 2), 2
DELAY_S = 0.2
LINKS = (1000, 2500, 5000)
"""Mbit/s."""
LINK_CLIENTS = ("pyarrow.fs", "botocore")
AWS, MOSAICML = "webdataset by aws s3 cp", "MosaicML streaming"
INDEX_ENTRY = np.dtype("<u8")


@dataclass(frozen=True)
class Run:
    """Something that is measured once a round.

    Attributes:
        part: The part that it belongs to.
        name: What tables call it.
        count: Its threads, workers or ranks.
        task: The task and its arguments.
        ranks: How many processes do it together.
        server: Which server it asks: s3, http, or the proxy whose answers come late, or at once.
        link: Mbit/s that the link carries; 0 for as many as it can.
    """

    part: str
    name: str
    count: int
    task: tuple[str, ...]
    ranks: int = 1
    server: str = "s3"
    link: int = 0


Results = dict[Run, list[Result]]


@dataclass(frozen=True)
class Data:
    """What is in the folder.

    Attributes:
        folder: Where it is.
        num_samples: How many samples there are.
        payload_bytes: The bytes of their first fields.
        shard_bytes: The bytes of all shards.
        region_bytes: Those of the samples in the shards, with all headers.
    """

    folder: Path
    num_samples: int
    payload_bytes: int
    shard_bytes: int
    region_bytes: int

    @classmethod
    def made(cls, folder: Path, num_samples: int) -> Data:
        """Make a table and wdsplit's shards of it."""
        make_image(folder / SOURCE, num_samples)
        make_shards(folder)
        bucket = folder / BUCKETS / WDSPLIT
        ends = [np.fromfile(path, INDEX_ENTRY)[[0, -1]].astype(int) for path in bucket.glob("*.tar.idx")]
        payload_bytes = pc.sum(pc.binary_length(pq.read_table(folder / SOURCE, columns=["image"]).column(0))).as_py()
        shard_bytes = sum(num_bytes for _, num_bytes in shards_of(bucket))
        return cls(folder, num_samples, payload_bytes, shard_bytes, sum(int(end - begin) for begin, end in ends))

    def check(self, run: Run, result: Result) -> None:
        """Refuse a result that is not of all samples."""
        expected = {"bytes": self.shard_bytes if run.task[0] == "get" else self.payload_bytes}
        if run.task[0] != "get":
            expected["samples"] = self.num_samples
        found = {name: result[name] for name in expected}
        if found != expected:
            raise ProcessError(f"{run.name} got {found}, not {expected}")


# What is run


def runs_of(parts: Sequence[str], names: tuple[str, ...], data: Data) -> list[Run]:
    """Return what is run in each round: of GETs and streams, those whose names begin so."""
    folder = str(data.folder)
    runs = []
    if "get" in parts:
        clients = [client for client in CLIENTS if client.name.startswith(names) and is_there(client)]
        runs += [
            Run("get", client.name, threads, ("get", folder, client.name, str(threads)), server=client.protocol)
            for client in clients
            for threads in THREADS
        ]
    if "stream" in parts:
        readers = [reader for reader in READERS if reader.name.startswith(names) and is_there(reader)]
        ready = [reader.name for reader in readers if is_prepared(reader.name, data)]
        runs += [
            Run("stream", name, workers, ("stream", folder, name, str(workers)))
            for workers in WORKERS
            for name in ready
            if workers or name != "wdsplit, threads"
        ]
    if "link" in parts:
        runs += runs_by_link(folder)
    if "ranks" in parts:
        task = ("stream", folder, "wdsplit", "0")
        runs += [Run("ranks", "wdsplit", ranks, task, ranks=ranks) for ranks in (1, RANKS)]
    if "cache" in parts:
        runs += [
            Run("cache", place, workers, ("epochs", folder, place, str(workers)))
            for place in ("cache", "local")
            for workers in WORKERS
        ]
    if "cost" in parts:
        runs += [
            Run("cost", server, workers, ("cost", folder, str(workers)), server=server)
            for server in ("at once", "late")
            for workers in WORKERS
        ]
    return runs


def runs_by_link(folder: str) -> list[Run]:
    """Return the GETs and the streams through links."""
    clients = [client for client in CLIENTS if client.name in LINK_CLIENTS and is_there(client)]
    runs = []
    for link in LINKS:
        gets = [("get", folder, client.name, str(max(THREADS))) for client in clients]
        runs += [Run("link", task[2], max(THREADS), task, link=link) for task in gets]
        kinds = [
            ("one by one", 0, 1),
            (f"batches from {WORKERS[1]} workers", WORKERS[1], 1),
            (f"{RANKS} ranks", 0, RANKS),
        ]
        for name, workers, ranks in kinds:
            runs.append(Run("link", name, 0, ("epochs", folder, "bucket", str(workers)), ranks=ranks, link=link))
    return runs


def is_there(what: Any) -> bool:
    """Tell whether a client or reader is installed."""
    if not what.is_installed:
        print(f"{what.name} is not installed: left out", flush=True)
    return bool(what.is_installed)


def is_prepared(name: str, data: Data) -> bool:
    """Let a reader make what it reads; tell whether it could."""
    try:
        run_together([("prepare", str(data.folder), name)], {}, data.folder)
    except ProcessError as error:
        leave_out(name, error)
        return False
    return True


# Rounds


def run_rounds(runs: Sequence[Run], rounds: int, data: Data, delay_s: float) -> Results:
    """Return what each run found in each round; the order of the runs alternates."""
    sys.path.insert(0, str(TESTS))
    s3server, faults = import_module("s3server"), import_module("faults")
    buckets = data.folder / BUCKETS
    results: Results = {run: [] for run in runs}
    with (
        s3server.S3Server(buckets, *s3server.FAST) as server,
        s3server.S3Server(buckets, protocol="http") as plain,
        faults.FaultProxy(server.port, as_s3=True) as at_once,
        faults.FaultProxy(server.port, lambda request: faults.Delay(delay_s), as_s3=True) as late,
    ):
        endpoints = {"s3": server, "http": plain, "at once": at_once, "late": late}
        for turn in range(rounds):
            for run in list(results) if turn % 2 == 0 else list(results)[::-1]:
                endpoint = endpoints[run.server]
                environ = {**server.environ, "AWS_ENDPOINT_URL": endpoint.endpoint}
                before = len(endpoint.exchanges) if run.part == "cost" else 0
                try:
                    with limited(run.link):
                        result = together(run_together([run.task] * run.ranks, environ, data.folder))
                    data.check(run, result)
                except ProcessError as error:
                    leave_out(run.name if run.part in ("get", "stream") else WDSPLIT, error)
                    del results[run]
                    continue
                if run.part == "cost":
                    result["requests"] = [exchange.bytes_sent for exchange in endpoint.exchanges[before:]]
                results[run].append(result)
    return results


def together(results: Sequence[Result]) -> Result:
    """Return what ranks have found together: the sums of what they read, and the time that the last one took."""
    if len(results) == 1:
        return results[0]
    sums = {name: sum(each[name] for each in results) for name in results[0]}
    return {**sums, "seconds": max(each["seconds"] for each in results)}


# Tables


def medians(results: Results, part: str) -> dict[tuple[str, int], dict[str, float]]:
    """Return the medians of a part's runs, by name and count: MB/s, processor seconds a GB, and all other numbers."""
    found = {}
    for run, rounds in results.items():
        if run.part != part:
            continue
        values = {name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "requests"}
        values["rate"] = statistics.median(each["bytes"] / each["seconds"] for each in rounds) / 1e6
        if "busy" in values:
            values["busy"] = statistics.median(each["busy"] / each["bytes"] for each in rounds) * 1e9
        found[run.name, run.count] = values
    return found


def report_get(results: Results, what: str) -> tuple[str, float]:
    """Print the table of plain GETs; return whose were the fastest, and their MB/s: wdsplit's own do not count."""
    found = medians(results, "get")
    bases = {threads: found.get(("s3fs", threads)) for threads in THREADS}
    print(f"\nPlain GETs of the shards in ranges of 8 MiB ({what})\n")
    print_row("", "threads", "MB/s", "x s3fs", "CPU s/GB")
    print_row("---", *["---:"] * 4)
    for name, threads in sorted(found, key=lambda run: run[1]):
        values, base = found[name, threads], bases[threads]
        ratio = f"{values['rate'] / base['rate']:.2f}" if base else ""
        print_row(name, str(threads), f"{values['rate']:,.0f}", ratio, f"{values['busy']:.2f}")
    peers = {f"{name}, {threads} threads": each["rate"] for (name, threads), each in found.items() if name != WDSPLIT}
    best = max(peers, key=lambda name: peers[name], default="")
    return best, peers.get(best, 0)


def report_stream(results: Results, what: str, best: tuple[str, float]) -> list[str]:
    """Print the table of streams; return the lines of the table of aims."""
    found = medians(results, "stream")
    bases = ("of the best GET", f"x {AWS}", f"x {MOSAICML}")
    aims = []
    print(f"\nStreaming 100-kB samples ({what}; the best GET: {best[0] or 'not measured'})\n")
    print_row("", "workers", "MB/s", *bases, "CPU s/GB")
    print_row("---", *["---:"] * 6)
    for (name, workers), values in found.items():
        rates = (best[1], *(found.get((peer, workers), {}).get("rate", 0) for peer in (AWS, MOSAICML)))
        ratios = [f"{values['rate'] / rate:.2f}" if rate else "" for rate in rates]
        print_row(name, str(workers), f"{values['rate']:,.0f}", *ratios, f"{values['busy']:.2f}")
        if name.startswith(WDSPLIT):
            lines = zip(bases, ("0.9", "5", "2.5"), ratios, strict=True)
            aims += [row(f"{name}, {workers} workers", *line) for line in lines if line[2]]
    return aims


def report_link(results: Results, what: str) -> list[str]:
    """Print what comes through links; return the lines of the table of aims."""
    aims = []
    print(f"\nThrough a link ({what})\n")
    print_row("link, Mbit/s", "", "MB/s", "of the best GET")
    print_row("---:", "---", "---:", "---:")
    for link in LINKS:
        found = medians({run: rounds for run, rounds in results.items() if run.link == link}, "link")
        best = max((values["rate"] for (_, threads), values in found.items() if threads), default=0.0)
        for (name, threads), values in found.items():
            ratio = f"{values['rate'] / best:.2f}" if best else ""
            print_row(
                f"{link:,}",
                f"{name}, {threads} threads" if threads else f"{WDSPLIT}, {name}",
                f"{values['rate']:,.0f}",
                ratio,
            )
            if not threads:
                aims.append(row(f"{WDSPLIT}, {name}, {link:,} Mbit/s", "of the best GET", "0.9", ratio))
    return aims


def report_ranks(results: Results, what: str) -> list[str]:
    found = medians(results, "ranks")
    base = found[WDSPLIT, 1]["rate"]
    print(f"\nRanks at once, without workers ({what})\n")
    print_row("ranks", "MB/s of all together", "x one rank")
    print_row(*["---:"] * 3)
    for (_, ranks), values in found.items():
        print_row(str(ranks), f"{values['rate']:,.0f}", f"{values['rate'] / base:.2f}")
    return [row(f"{RANKS} ranks together", "x one rank", "1", f"{found[WDSPLIT, RANKS]['rate'] / base:.2f}")]


def report_cache(results: Results, what: str) -> list[str]:
    found = medians(results, "cache")
    aims = []
    print(f"\nEpochs with a cache, and of a local dataset ({what})\n")
    print_row("", "workers", "first epoch, MB/s", "second epoch, MB/s", "x local")
    print_row("---", *["---:"] * 4)
    for (place, workers), values in found.items():
        ratio = f"{values['rate'] / found['local', workers]['rate']:.2f}"
        first = values["bytes"] / values["first"] / 1e6
        print_row(place, str(workers), f"{first:,.0f}", f"{values['rate']:,.0f}", ratio)
        if place == "cache":
            aims.append(row(f"second epoch with a cache, {workers} workers", "x local", "0.9", ratio))
    return aims


def report_cost(results: Results, what: str, data: Data) -> list[str]:
    """Print what an epoch costs; return the lines of the table of aims."""
    aims = []
    print(f"\nWhat an epoch costs ({what}; the last batch of {BATCH_SIZE} is filled up by samples that are repeated)\n")
    print_row("workers", "repeated", "requests", "bytes fetched", "x bytes of payloads", "x bytes of samples in shards")
    print_row(*["---:"] * 6)
    for run in [run for run in results if run.server == "late"]:
        sizes = max((each["requests"] for each in results[run]), key=sum)
        ratios = [f"{sum(sizes) / num_bytes:.4f}" for num_bytes in (data.payload_bytes, data.region_bytes)]
        repeated = -data.num_samples % BATCH_SIZE if run.count else 0
        print_row(str(run.count), str(repeated), f"{len(sizes):,}", f"{sum(sizes):,}", *ratios)
        aims.append(row(f"bytes fetched, {run.count} workers", "x bytes of payloads", "at most 1.02", ratios[0]))
    return aims


def report_first(results: Results, what: str, delay_s: float) -> list[str]:
    """Print the time to the first batch; return the lines of the table of aims."""
    found = medians(results, "cost")
    aims = []
    print(f"\nThe first {BATCH_SIZE} samples when each answer is {delay_s} s late ({what})\n")
    print_row("workers", "since", "answers at once, s", "late, s", "late, in delays", "what being late adds, in delays")
    print_row("---:", "---", *["---:"] * 4)
    for workers in WORKERS:
        for begin, since in (("dataset", "Dataset(...)"), ("iterator", "iter(...)")):
            at_once, late = (found[server, workers][begin] for server in ("at once", "late"))
            waits = f"{late / delay_s:.2f}", f"{(late - at_once) / delay_s:.2f}"
            print_row(str(workers), since, f"{at_once:.3f}", f"{late:.3f}", *waits)
            aims.append(row(f"first batch since {since}, {workers} workers", "delays added", "below 3", waits[1]))
    return aims


def report(results: Results, rounds: int, data: Data, delay_s: float) -> None:
    """Print all tables."""
    what = f"{data.num_samples:,} samples, {data.payload_bytes / 1e6:,.0f} MB, medians of {rounds}"
    parts = {run.part for run, found in results.items() if found}
    best = report_get(results, what) if "get" in parts else ("", 0.0)
    aims = report_stream(results, what, best) if "stream" in parts else []
    aims += report_link(results, what) if "link" in parts else []
    aims += report_ranks(results, what) if "ranks" in parts else []
    aims += report_cache(results, what) if "cache" in parts else []
    aims += report_cost(results, what, data) + report_first(results, what, delay_s) if "cost" in parts else []
    print("\nAims\n")
    print_row("", "", "aim", "measured")
    print_row("---", "---", "---:", "---:")
    print("\n".join(aims))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder to write to; a RAM disk leaves the disk out of it")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--names", default="", help="only clients and readers whose names begin so: wdsplit,webdataset")
    parser.add_argument("--delay", type=float, default=DELAY_S, help="seconds that each answer is late, of cost")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if "link" in parts and (reason := why_not()):
        parts.remove("link")
        print(f"no link is measured: {reason}")
    if "link" in parts:
        enter()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(dir=arguments.output) as name:
        data = Data.made(Path(name), arguments.samples)
        runs = runs_of(parts, tuple(arguments.names.split(",")), data)
        report(run_rounds(runs, arguments.rounds, data, arguments.delay), arguments.rounds, data, arguments.delay)


if __name__ == "__main__":
    main()
