"""Measure what S3 clients get out of a server on this machine: plain GETs of ranges, by one thread and by four.

The server is rclone's, the objects 12 of 100 MB in ranges of 8 MiB. In each round every client reads all of them once,
in a process of its own; printed are medians over the rounds as Markdown: MB/s, and the seconds of processor time that
the client's process needed for a GB. The clock starts when the client is made and has read a first range. What the
server needs of the same processors slows all clients down alike. obstore wants the status 206, which rclone's S3 does
not give: it reads from `rclone serve http`, unsigned. *http.client* is no candidate but what is possible in Python:
requests signed by botocore, bodies read into one buffer. A client that is not installed is left out.

Example: python tools/bench_s3.py --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from bench_load import ProcessError, print_row

TESTS = Path(__file__).resolve().parent.parent / "tests"
OBJECTS = 12
OBJECT_BYTES = 100_000_000
RANGE_BYTES = 8 * 2**20
THREADS = (1, 4)
BASE = "s3fs"

Fetch = Callable[[str, int, int], int]
"""Gets an object's bytes from a first to before a last one; returns how many came."""


# Clients: each takes the bucket; the environment has the rest


def with_s3fs(bucket: str) -> Fetch:
    import s3fs

    files = s3fs.S3FileSystem()
    return lambda key, start, end: len(files.cat_file(f"{bucket}/{key}", start=start, end=end))


def with_botocore(bucket: str) -> Fetch:
    import botocore.session
    from botocore.config import Config

    client = botocore.session.Session().create_client("s3", config=Config(max_pool_connections=max(THREADS)))

    def fetch(key: str, start: int, end: int) -> int:
        answer = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
        return len(answer["Body"].read())

    return fetch


def with_obstore(bucket: str) -> Fetch:
    import obstore
    from obstore.store import S3Store

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    store = S3Store(bucket, endpoint=endpoint, skip_signature=True, client_options={"allow_http": True})
    return lambda key, start, end: len(obstore.get_range(store, key, start=start, end=end))


def with_pyarrow(bucket: str) -> Fetch:
    from pyarrow.fs import S3FileSystem

    scheme, _, address = os.environ["AWS_ENDPOINT_URL"].partition("://")
    files = S3FileSystem(endpoint_override=address, scheme=scheme, region=os.environ["AWS_REGION"])
    opened = {key: files.open_input_file(f"{bucket}/{key}") for key in object_keys()}
    return lambda key, start, end: len(opened[key].read_at(end - start, start))


def with_http_client(bucket: str) -> Fetch:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    keys = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    signing = S3SigV4Auth(keys, "s3", os.environ["AWS_REGION"])
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    own = threading.local()

    def fetch(key: str, start: int, end: int) -> int:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(endpoint.partition("://")[2])
            own.buffer = bytearray(RANGE_BYTES)
        path = f"/{bucket}/{key}"
        request = AWSRequest("GET", endpoint + path, {"Range": f"bytes={start}-{end - 1}"})
        signing.add_auth(request)
        own.connection.request("GET", path, headers=dict(request.headers))
        answer, filled = own.connection.getresponse(), 0
        with memoryview(own.buffer) as view:
            while count := answer.readinto(view[filled:]):
                filled += count
        answer.close()
        return filled

    return fetch


@dataclass(frozen=True)
class Client:
    """A client: its name, the module that it needs, how it is made, and the server's protocol."""

    name: str
    module: str
    make: Callable[[str], Fetch]
    protocol: str = "s3"

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


CLIENTS = (
    Client("s3fs", "s3fs", with_s3fs),
    Client("botocore", "botocore", with_botocore),
    Client("obstore", "obstore", with_obstore, protocol="http"),
    Client("pyarrow.fs", "pyarrow", with_pyarrow),
    Client("http.client", "botocore", with_http_client),
)


# In a process of its own


def run_get(name: str, threads: str, bucket: str) -> dict[str, Any]:
    """Read all objects once; return seconds, seconds of processor time and bytes."""
    fetch = next(client for client in CLIENTS if client.name == name).make(bucket)
    ranges = object_ranges()
    fetch(*ranges[0])
    with ThreadPoolExecutor(int(threads)) as pool:
        started, busy = time.perf_counter(), time.process_time()
        num_bytes = sum(pool.map(lambda one: fetch(*one), ranges))
        return {
            "seconds": time.perf_counter() - started,
            "busy": time.process_time() - busy,
            "bytes": num_bytes,
        }


def object_keys() -> list[str]:
    return [f"{number:06d}.bin" for number in range(OBJECTS)]


def object_ranges() -> list[tuple[str, int, int]]:
    """Return the requests: key, first byte, byte after the last."""
    starts = range(0, OBJECT_BYTES, RANGE_BYTES)
    return [(key, start, min(start + RANGE_BYTES, OBJECT_BYTES)) for key in object_keys() for start in starts]


def in_own_process(task: Sequence[str], environ: dict[str, str]) -> dict[str, Any]:
    """Run a task in a process of its own; return what it returned."""
    command = [sys.executable, __file__, "--task", *task]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    ended = subprocess.run(command, capture_output=True, text=True, env={**env, **environ})
    if ended.returncode:
        raise ProcessError(f"{' '.join(task)} failed:\n{ended.stderr}")
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


# Races


def run_rounds(rounds: int, folder: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return what each client needed in each round, by its name and threads; the order of the clients alternates."""
    sys.path.insert(0, str(TESTS))
    s3server = import_module("s3server")
    installed = [client for client in CLIENTS if client.is_installed]
    for client in CLIENTS:
        if client not in installed:
            print(f"{client.name} is not installed: left out", flush=True)
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with s3server.S3Server(folder, *s3server.FAST) as signed, s3server.S3Server(folder, protocol="http") as plain:
        environs = {"s3": signed.environ, "http": plain.environ}
        bucket = signed.make_bucket()
        chance = np.random.default_rng(4)
        for key in object_keys():
            (bucket.folder / key).write_bytes(chance.bytes(OBJECT_BYTES))
        for turn in range(rounds):
            for client in installed if turn % 2 == 0 else installed[::-1]:
                for threads in THREADS:
                    result = in_own_process(["get", client.name, str(threads), bucket.name], environs[client.protocol])
                    if result["bytes"] != OBJECTS * OBJECT_BYTES:
                        raise ProcessError(f"{client.name} got {result['bytes']:,} of {OBJECTS * OBJECT_BYTES:,} bytes")
                    results.setdefault((client.name, threads), []).append(result)
    return results


def report(results: dict[tuple[str, int], list[dict[str, Any]]], rounds: int) -> None:
    """Print the table."""
    speed, busy = (
        {run: statistics.median(result[of] / result["bytes"] for result in runs) for run, runs in results.items()}
        for of in ("seconds", "busy")
    )
    print(f"\nGET of {OBJECTS} objects of {OBJECT_BYTES / 1e6:.0f} MB in ranges of 8 MiB (medians of {rounds})\n")
    print_row("", "threads", "MB/s", f"x {BASE}", "CPU s/GB", f"x {BASE}")
    print_row("---", *["---:"] * 5)
    for name, threads in sorted(results, key=lambda run: run[1]):
        run, base = (name, threads), (BASE, threads)
        ratios = [f"{speed[base] / speed[run]:.2f}", f"{busy[run] / busy[base]:.2f}"] if base in speed else ["", ""]
        print_row(name, str(threads), f"{1 / speed[run] / 1e6:,.0f}", ratios[0], f"{busy[run] * 1e9:.2f}", ratios[1])


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"get": run_get}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder to write to; a RAM disk leaves the disk out of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        task, *rest = arguments.task
        print(json.dumps(TASKS[task](*rest)))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(dir=arguments.output) as name:
        folder = Path(name) / "buckets"
        folder.mkdir()
        report(run_rounds(arguments.rounds, folder), arguments.rounds)


if __name__ == "__main__":
    main()
