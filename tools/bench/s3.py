"""Measure reading from an S3 server on this machine: plain GETs by clients, and a dataset streamed by libraries.

The server is rclone's; the objects are the shards of a dataset of 12,000 samples of 50 to 150 kB of incompressible
bytes and a label. Six parts:

- *get*: the shards in ranges of 8 MiB, by one thread and by four. obstore needs the status 206, which rclone's S3 does
  not give: it reads from `rclone serve http`, unsigned. *http.client* is what is possible in Python, not a candidate:
  requests signed by botocore, bodies read into one buffer.
- *stream*: the samples, one by one and in batches from 2 workers, by wdsplit, which shuffles, and by libraries that
  read in order, each from its own data of the same table, with nothing cached. Of wdsplit also the second epoch of the
  same program: a short first one pays for the start and for memory that is new to the process.
- *link*: GETs, and wdsplit's second epoch, through a link of a given rate, where the network is the limit and not the
  processor (only as root: the link is a network of its own).
- *ranks*: two ranks at once.
- *cache*: the second epoch of a dataset with a cache, and of one on the same local disk.
- *cost*: through a proxy that delays each answer: requests, bytes, the time to the first batch.

In each round everything is run once, in processes of its own, and the order alternates. Printed are medians over the
rounds as Markdown, and at the end what was aimed at. MB are those that were requested: of ranges, or of samples
without their labels. The clock starts when the libraries are imported. A run that does not get all samples and bytes
fails. The server shares the processors, which slows all down alike. What is not installed is left out (pip install
'.[bench,torch]').

Example: python -m tools.bench.s3 --output /dev/shm --rounds 5
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import core, data, link, peers
from tools.bench.core import Aim, Result
from tools.bench.data import SHARDS, SOURCE
from tools.bench.peers import BATCH_SIZE, BUCKETS, REMOTE, URL, reader_of, wdsplit_payloads
from tools.bench.s3_clients import CLIENTS, THREADS, ranges_of, shards_of

TESTS = core.ROOT / "tests" / "support"
PARTS = ("get", "stream", "link", "ranks", "cache", "cost")
SAMPLES, WORKERS, RANKS = 12_000, (0, 2), 2
DELAY_S = 1.0
LINKS = (1000, 2500, 5000)
"""Mbit/s, unless --links says otherwise."""
MOST_CPU_S_A_GB = (1.2, 1.5)
"""What wdsplit's streams shall need at most, without workers and with them."""
STREAMS = {
    "wdsplit": ("first epoch", "processes"),
    "wdsplit, threads": ("first epoch", "threads"),
    "wdsplit, fs=s3fs": ("first epoch through s3fs", "processes"),
    "wdsplit, second epoch": ("second epoch", "processes"),
    "wdsplit, threads, second epoch": ("second epoch", "threads"),
}
"""What the aims call wdsplit's streams, and the kind of their workers."""
LINK_CLIENTS = ("pyarrow.fs", "botocore")
AWS, MOSAICML = "webdataset by aws s3 cp", "MosaicML streaming"
IMPORTED = ("torch", "wdsplit.loading.loader", "botocore.session")
"""What is imported before the clock of any stream starts, even where a library would import it later."""


# Tasks, in processes of their own


def get(folder: str, name: str, threads: int) -> Result:
    """Read all shards once."""
    bucket = Path(folder) / SHARDS
    fetch = next(client for client in CLIENTS if client.name == name).make(bucket)
    ranges = ranges_of(bucket)
    fetch(*ranges[0])
    with ThreadPoolExecutor(threads) as pool:
        clock = core.begin()
        num_bytes = sum(pool.map(lambda one: fetch(*one), ranges))
        return {**clock.read(), "bytes": num_bytes}


def counted(payloads: Iterable[bytes]) -> Result:
    """Return how many payloads there are, and their bytes."""
    samples = num_bytes = 0
    for payload in payloads:
        samples += 1
        num_bytes += len(payload)
    return {"samples": samples, "bytes": num_bytes}


def stream(folder: str, name: str, workers: int) -> Result:
    """Read this rank's samples once."""
    reader = reader_of(REMOTE, name)
    clock = core.begin(*IMPORTED, reader.module)
    return {**counted(reader.read(Path(folder), workers)), **clock.read()}


def epochs(folder: str, place: str, workers: int, kind: peers.Kind = "process") -> Result:
    """Read two epochs; the second counts.

    Of the dataset in the bucket, without a cache or with one, or of a copy on the local disk. The copy is made now, as
    the cache is: what was written at another time may lie in faster memory.
    """
    import wdsplit

    own = Path(tempfile.mkdtemp())
    if place == "local":
        shutil.copytree(Path(folder) / SHARDS, own / "copy")
    clock = core.begin(*IMPORTED)
    path = own / "copy" if place == "local" else URL
    cache_dir, cache_size = (own, "1TB") if place == "cache" else (None, None)
    dataset = wdsplit.Dataset(path, seed=0, cache_dir=cache_dir, cache_size=cache_size)
    first = counted(wdsplit_payloads(dataset, workers, kind))
    begun = clock.read()
    dataset.set_epoch(1)
    second = counted(wdsplit_payloads(dataset, workers, kind))
    ended = clock.read()
    if first["samples"] != second["samples"]:
        raise core.ProcessError(f"the epochs differ: {first}, {second}")
    return {**second, "first": begun["seconds"], **{name: ended[name] - begun[name] for name in ended}}


def cost(folder: str, workers: int) -> Result:
    """Read all samples once; return when the first batch came, after the dataset and after its iterator was made."""
    import wdsplit

    clock = core.begin(*IMPORTED)
    dataset = wdsplit.Dataset(URL, seed=0)
    made = clock.seconds()
    payloads = wdsplit_payloads(dataset, workers)
    first = counted(islice(payloads, BATCH_SIZE))
    came = clock.seconds()
    rest = counted(payloads)
    both = {name: first[name] + rest[name] for name in first}
    return {**both, "dataset": came, "iterator": came - made, "seconds": clock.seconds()}


def prepare(folder: str, name: str) -> Result:
    """Write the data of a reader."""
    reader_of(REMOTE, name).write(folder)
    return {}


TASKS: dict[str, Callable[..., Result]] = {
    "get": get,
    "stream": stream,
    "second": epochs,
    "link get": get,
    "link": epochs,
    "ranks": stream,
    "cache": epochs,
    "cost": cost,
}


# What is run


@dataclass(frozen=True)
class Run:
    """Something that is measured once a round.

    Attributes:
        task: The key of its task.
        name: Its name in tables.
        count: Its threads, workers or ranks; 0 threads are a stream through a link.
        arguments: The task's arguments after the folder.
        ranks: How many processes do it together.
        server: Which server it asks: s3, http, or the proxy that answers late, or at once.
        link: Mbit/s that the link carries; 0 for no limit.
    """

    task: str
    name: str
    count: int
    arguments: tuple[Any, ...]
    ranks: int = 1
    server: str = "s3"
    link: int = 0


Results = dict[Run, list[Result]]


def runs_of(
    parts: Sequence[str], names: tuple[str, ...], make: partial[Result], links: Sequence[int] = LINKS
) -> list[Run]:
    """Return what is run in each round: of GETs and streams, those whose names begin so."""
    runs = []
    if "get" in parts:
        clients = [
            each for each in CLIENTS if each.name.startswith(names) and core.is_installed(each.name, each.module)
        ]
        runs += [
            Run("get", client.name, threads, (client.name, threads), server=client.protocol)
            for client in clients
            for threads in THREADS
        ]
    if "stream" in parts:
        ready = peers.ready((reader for reader in REMOTE if reader.name.startswith(names)), make)
        runs += [
            Run("stream", name, workers, (name, workers))
            for workers in WORKERS
            for name in ready
            if workers or name != "wdsplit, threads"
        ]
        if "wdsplit".startswith(names):
            runs += [Run("second", "wdsplit, second epoch", workers, ("bucket", workers)) for workers in WORKERS]
            _, workers = WORKERS
            runs.append(Run("second", "wdsplit, threads, second epoch", workers, ("bucket", workers, "thread")))
    if "link" in parts:
        runs += [run for rate in links for run in runs_by_link(rate)]
    if "ranks" in parts:
        runs += [Run("ranks", SHARDS, ranks, (SHARDS, 0), ranks=ranks) for ranks in (1, RANKS)]
    if "cache" in parts:
        runs += [Run("cache", place, workers, (place, workers)) for place in ("cache", "local") for workers in WORKERS]
    if "cost" in parts:
        runs += [Run("cost", at, workers, (workers,), server=at) for at in ("at once", "late") for workers in WORKERS]
    return runs


def runs_by_link(rate: int) -> list[Run]:
    """Return the GETs and the streams through a link."""
    threads, (_, workers) = max(THREADS), WORKERS
    clients = [each for each in CLIENTS if each.name in LINK_CLIENTS and core.is_installed(each.name, each.module)]
    return [
        *(Run("link get", client.name, threads, (client.name, threads), link=rate) for client in clients),
        Run("link", "one by one", 0, ("bucket", 0), link=rate),
        Run("link", f"batches from {workers} workers", 0, ("bucket", workers), link=rate),
        Run("link", f"{RANKS} ranks", 0, ("bucket", 0), ranks=RANKS, link=rate),
    ]


@dataclass(frozen=True)
class Data:
    """The buckets.

    Attributes:
        folder: The folder of the buckets; the table lies in it.
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
        folder.mkdir()
        data.make_image(folder / SOURCE, num_samples)
        data.make_shards(folder, emit=())
        ends = [int(np.fromfile(path, "<u8", 4)[3]) for path in (folder / SHARDS).glob("*.tar.places")]
        payload_bytes = int(np.sum(data.payload_sizes(folder / SOURCE)))
        shard_bytes = sum(num_bytes for _, num_bytes in shards_of(folder / SHARDS))
        return cls(folder, num_samples, payload_bytes, shard_bytes, sum(ends))

    def check(self, run: Run, result: Result) -> None:
        """Fail unless a result is of all samples."""
        if TASKS[run.task] is get:
            expected = {"bytes": self.shard_bytes}
        else:
            expected = {"bytes": self.payload_bytes, "samples": self.num_samples}
        found = {name: result[name] for name in expected}
        if found != expected:
            raise core.ProcessError(f"{run.name} got {found}, not {expected}")


# Rounds


def run_all(runs: Sequence[Run], rounds: int, made: Data, delay_s: float) -> Results:
    """Return what each run found in each round."""
    sys.path.insert(0, str(TESTS))
    s3server, faults = import_module("s3server"), import_module("faults")
    with (
        s3server.S3Server(made.folder, *s3server.FAST) as server,
        s3server.S3Server(made.folder, protocol="http") as plain,
        faults.FaultProxy(server.port, as_s3=True) as at_once,
        faults.FaultProxy(server.port, lambda request: faults.Delay(delay_s), as_s3=True) as late,
    ):
        endpoints = {"s3": server, "http": plain, "at once": at_once, "late": late}

        def measure(run: Run) -> Result:
            endpoint = endpoints[run.server]
            environ = {**server.environ, "AWS_ENDPOINT_URL": endpoint.endpoint, "TMPDIR": str(made.folder.parent)}
            before = len(endpoint.exchanges) if run.task == "cost" else 0
            with link.limited(run.link):
                found = core.run_together(TASKS[run.task], (made.folder, *run.arguments), run.ranks, environ)
            result = together(found)
            made.check(run, result)
            if run.task == "cost":
                result["requests"] = [exchange.bytes_sent for exchange in endpoint.exchanges[before:]]
            return result

        peer_tasks = ("get", "link get", "stream")
        return core.run_rounds(
            runs, rounds, measure, required=lambda run: run.task not in peer_tasks or core.is_wdsplit(run.name)
        )


def together(results: Sequence[Result]) -> Result:
    """Return what ranks have found together: the sums of what they read, and the time that the last one took."""
    if len(results) == 1:
        return results[0]
    sums = {name: sum(each[name] for each in results) for name in results[0]}
    return {**sums, "seconds": max(each["seconds"] for each in results)}


# Tables


def medians(results: Results, *tasks: str, rate: int = 0) -> dict[tuple[str, int], dict[str, float]]:
    """Return the medians of runs, by name and count: MB/s, processor seconds a GB, and all other numbers."""
    found = {}
    for run, rounds in results.items():
        if run.task not in tasks or run.link != rate or not rounds:
            continue
        values = {}
        for name in set(rounds[0]) - {"requests"}:
            values[name] = core.median_of(rounds, itemgetter(name))
        values["rate"] = core.median_of(rounds, lambda each: each["bytes"] / each["seconds"]) / 1e6
        if "busy" in values:
            values["busy"] = core.median_of(rounds, lambda each: each["busy"] / each["bytes"]) * 1e9
        found[run.name, run.count] = values
    return found


def report_get(results: Results, what: str) -> tuple[str, float]:
    """Print the table of plain GETs; return whose were the fastest, and their MB/s: wdsplit's own do not count."""
    found = medians(results, "get")
    rows = []
    for name, threads in sorted(found, key=lambda run: run[1]):
        values, base = found[name, threads], found.get(("s3fs", threads))
        ratio = f"{values['rate'] / base['rate']:.2f}" if base else ""
        rows.append((name, str(threads), f"{values['rate']:,.0f}", ratio, f"{values['busy']:.2f}"))
    title = f"Plain GETs of the shards in ranges of 8 MiB ({what})"
    core.print_table(title, ("", "threads", "MB/s", "x s3fs", "CPU s/GB"), rows)
    others = {f"{name}, {threads} threads": each["rate"] for (name, threads), each in found.items() if name != SHARDS}
    best = max(others, key=lambda name: others[name], default="")
    return best, others.get(best, 0)


def report_stream(results: Results, what: str, best: tuple[str, float]) -> list[Aim]:
    """Print the table of streams; return what was aimed at."""
    found = medians(results, "stream", "second")
    bases, wished = ("of the best GET", f"x {AWS}", f"x {MOSAICML}"), ("0.7", "5", "2.5")
    rows, aims = [], []
    for (name, workers), values in found.items():
        rates = (best[1], *(found.get((peer, workers), {}).get("rate", 0) for peer in (AWS, MOSAICML)))
        ratios = [f"{values['rate'] / rate:.2f}" if rate else "" for rate in rates]
        rows.append((name, str(workers), f"{values['rate']:,.0f}", *ratios, f"{values['busy']:.2f}"))
        if name in STREAMS:
            epoch, kind = STREAMS[name]
            done = f"{epoch}: {core.workers_of(workers, kind)}"
            for base, aim, ratio in zip(bases, wished, ratios, strict=True):
                aims += [Aim(done, base, aim, ratio)] if ratio else []
            aims.append(Aim(done, "CPU s/GB", f"at most {MOST_CPU_S_A_GB[bool(workers)]}", f"{values['busy']:.2f}"))
    title = f"Streaming 100-kB samples ({what}; the best GET: {best[0] or 'not measured'})"
    core.print_table(title, ("", "workers", "MB/s", *bases, "CPU s/GB"), rows)
    return aims


def report_link(results: Results, what: str) -> list[Aim]:
    """Print what comes through links; return what was aimed at."""
    rows, aims = [], []
    for rate in sorted({run.link for run in results if run.link}):
        found = medians(results, "link", "link get", rate=rate)
        best = max((values["rate"] for (_, threads), values in found.items() if threads), default=0.0)
        for (name, threads), values in found.items():
            ratio = f"{values['rate'] / best:.2f}" if best else ""
            title = f"{name}, {threads} threads" if threads else f"wdsplit, {name}"
            rows.append((f"{rate:,} Mbit/s", title, f"{values['rate']:,.0f}", ratio))
            if not threads:
                aims.append(Aim(f"link of {rate:,} Mbit/s: {name}", "of the best GET", "0.9", ratio))
    core.print_table(f"Through a link ({what})", ("link", "", "MB/s", "of the best GET"), rows, names=2)
    return aims


def report_ranks(results: Results, what: str) -> list[Aim]:
    """Print what several ranks read; return what was aimed at."""
    found = medians(results, "ranks")
    ratios = {ranks: f"{values['rate'] / found[SHARDS, 1]['rate']:.2f}" for (_, ranks), values in found.items()}
    rows = [(str(ranks), f"{found[SHARDS, ranks]['rate']:,.0f}", ratio) for ranks, ratio in ratios.items()]
    title = f"Ranks at once, without workers ({what})"
    core.print_table(title, ("ranks", "MB/s of all together", "x one rank"), rows)
    return [Aim(f"{RANKS} ranks together", "x one rank", "1", ratios[RANKS])]


def report_cache(results: Results, what: str) -> list[Aim]:
    """Print epochs with a cache; return what was aimed at."""
    found = medians(results, "cache")
    rows, aims = [], []
    for (place, workers), values in found.items():
        ratio = f"{values['rate'] / found['local', workers]['rate']:.2f}"
        first = values["bytes"] / values["first"] / 1e6
        rows.append((place, str(workers), f"{first:,.0f}", f"{values['rate']:,.0f}", ratio))
        if place == "cache":
            aims.append(Aim(f"second epoch with a cache: {core.workers_of(workers)}", "x local", "0.9", ratio))
    title = f"Epochs with a cache, and of a local dataset ({what})"
    core.print_table(title, ("", "workers", "first epoch, MB/s", "second epoch, MB/s", "x local"), rows)
    return aims


def report_cost(results: Results, what: str, made: Data) -> list[Aim]:
    """Print what an epoch costs; return what was aimed at."""
    rows, aims = [], []
    for run in [run for run in results if run.server == "late"]:
        sizes = max((each["requests"] for each in results[run]), key=sum)
        ratios = [f"{sum(sizes) / num_bytes:.4f}" for num_bytes in (made.payload_bytes, made.region_bytes)]
        repeated = -made.num_samples % BATCH_SIZE if run.count else 0
        rows.append((str(run.count), str(repeated), f"{len(sizes):,}", f"{sum(sizes):,}", *ratios))
        way = core.workers_of(run.count)
        aims.append(Aim(f"bytes fetched: {way}", "x bytes of payloads", "at most 1.02", ratios[0]))
    header = ("workers", "repeated", "requests", "bytes fetched", "x bytes of payloads", "x bytes of samples in shards")
    title = f"What an epoch costs ({what}; the last batch of {BATCH_SIZE} is filled up by samples that are repeated)"
    core.print_table(title, header, rows)
    return aims


def report_first(results: Results, what: str, delay_s: float) -> list[Aim]:
    """Print the time to the first batch; return what was aimed at."""
    found = medians(results, "cost")
    rows, aims = [], []
    for workers in WORKERS:
        for key, since in (("dataset", "Dataset(...)"), ("iterator", "iter(...)")):
            at_once, late = (found[server, workers][key] for server in ("at once", "late"))
            waits = f"{late / delay_s:.1f}", f"{(late - at_once) / delay_s:.1f}"
            rows.append((str(workers), since, f"{at_once:.3f}", f"{late:.3f}", *waits))
            way = core.workers_of(workers)
            aims.append(Aim(f"first batch since {since}: {way}", "delays added", "at most 3", waits[1]))
    header = ("workers", "since", "answers at once, s", "late, s", "late, in delays", "added by the delay, in delays")
    title = f"The first {BATCH_SIZE} samples when each answer is {delay_s} s late ({what})"
    core.print_table(title, header, rows, names=2)
    return aims


def report(results: Results, rounds: int, made: Data, delay_s: float) -> None:
    """Print all tables."""
    what = f"{made.num_samples:,} samples, {made.payload_bytes / 1e6:,.0f} MB, medians of {rounds}"
    tasks = {run.task for run, found in results.items() if found}
    best = report_get(results, what) if "get" in tasks else ("", 0.0)
    aims = report_stream(results, what, best) if "stream" in tasks else []
    aims += report_link(results, what) if "link" in tasks else []
    aims += report_ranks(results, what) if "ranks" in tasks else []
    aims += report_cache(results, what) if "cache" in tasks else []
    aims += report_cost(results, what, made) + report_first(results, what, delay_s) if "cost" in tasks else []
    core.print_aims(aims)


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"Some of {','.join(PARTS)}. Default: all.")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"Samples of the dataset. Default: {SAMPLES}.")
    parser.add_argument(
        "--names", default="", help="Only clients and readers whose names begin so: wdsplit,webdataset."
    )
    parser.add_argument("--delay", type=float, default=DELAY_S, help="Seconds of delay of each answer, for cost.")
    parser.add_argument("--links", type=core.numbers, default=LINKS, help="Mbit/s of the links, such as 1000,2500.")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if "link" in parts and (reason := link.why_not()):
        parts.remove("link")
        print(f"no link is measured: {reason}")
    if "link" in parts:
        link.enter()
    core.print_machine()
    with core.work_folder(arguments.output) as folder:
        made = Data.made(folder / BUCKETS, arguments.samples)
        make = partial(core.in_own_process, prepare, made.folder)
        runs = runs_of(parts, tuple(arguments.names.split(",")), make, arguments.links)
        report(run_all(runs, arguments.rounds, made, arguments.delay), arguments.rounds, made, arguments.delay)


if __name__ == "__main__":
    main()
