"""What `bench_s3` measures, each task in a process of its own: the tasks, and how such processes are run.

A process says that it has imported all, and waits until it is told to start: so several start at once, and no clock
counts imports.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from bench_load import ProcessError
from load_peers import BATCH_SIZE
from s3_clients import CLIENTS, ranges_of
from s3_peers import BUCKETS, READERS, URL, WDSPLIT, wdsplit_payloads

Result = dict[str, Any]
READY = "ready\n"
DEADLINE_S = 600
"""A task that takes longer hangs."""
IMPORTED = ("torch", "wdsplit.loading.loader", "botocore.session")
"""What is imported before the clock of any stream starts, even where a library would import it later."""


def begin(*modules: str) -> tuple[float, float]:
    """Import modules, say so, and wait until told to start; return the time and what `busy_s` returns."""
    for module in modules:
        importlib.import_module(module)
    print(READY, end="", flush=True)
    sys.stdin.readline()
    return time.perf_counter(), busy_s()


def busy_s() -> float:
    """Return the seconds of processor time of this process and of those of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def counted(payloads: Iterable[bytes]) -> Result:
    """Return how many payloads there are, and their bytes."""
    samples = num_bytes = 0
    for payload in payloads:
        samples += 1
        num_bytes += len(payload)
    return {"samples": samples, "bytes": num_bytes}


# Tasks


def get(folder: str, name: str, threads: str) -> Result:
    """Read all shards once."""
    bucket = Path(folder) / BUCKETS / WDSPLIT
    fetch = next(client for client in CLIENTS if client.name == name).make(bucket)
    ranges = ranges_of(bucket)
    fetch(*ranges[0])
    with ThreadPoolExecutor(int(threads)) as pool:
        started, busy = begin()
        num_bytes = sum(pool.map(lambda one: fetch(*one), ranges))
        return {"bytes": num_bytes, "seconds": time.perf_counter() - started, "busy": busy_s() - busy}


def stream(folder: str, name: str, workers: str) -> Result:
    """Read this rank's samples once."""
    reader = next(reader for reader in READERS if reader.name == name)
    started, busy = begin(*IMPORTED, reader.module)
    result = counted(reader.read(Path(folder), int(workers)))
    return {**result, "seconds": time.perf_counter() - started, "busy": busy_s() - busy}


def epochs(folder: str, place: str, workers: str) -> Result:
    """Read two epochs; the second counts.

    Of the dataset in the bucket, without a cache or with one, or of a copy on the local disk. The copy is made now, as
    the cache is: what was written at another time may lie in faster memory.
    """
    import wdsplit

    own = Path(tempfile.mkdtemp())
    if place == "local":
        shutil.copytree(Path(folder) / BUCKETS / WDSPLIT, own / "copy")
    started, _ = begin(*IMPORTED)
    path = own / "copy" if place == "local" else URL
    dataset = wdsplit.Dataset(path, seed=0, cache_dir=own if place == "cache" else None)
    results, times = [], [started]
    for epoch in range(2):
        dataset.set_epoch(epoch)
        results.append(counted(wdsplit_payloads(dataset, int(workers))))
        times.append(time.perf_counter())
    if results[0]["samples"] != results[1]["samples"]:
        raise ProcessError(f"the epochs differ: {results}")
    return {**results[1], "first": times[1] - times[0], "seconds": times[2] - times[1]}


def cost(folder: str, workers: str) -> Result:
    """Read all samples once; return when the first batch came, after the dataset and after its iterator was made."""
    import wdsplit

    started, _ = begin(*IMPORTED)
    dataset = wdsplit.Dataset(URL, seed=0)
    made = time.perf_counter()
    payloads = wdsplit_payloads(dataset, int(workers))
    first = counted(islice(payloads, BATCH_SIZE))
    came = time.perf_counter()
    rest = counted(payloads)
    both = {name: first[name] + rest[name] for name in first}
    return {**both, "dataset": came - started, "iterator": came - made, "seconds": time.perf_counter() - started}


def prepare(folder: str, name: str) -> Result:
    """Make what a reader reads."""
    begin()
    make = next(reader for reader in READERS if reader.name == name).prepare
    if make is not None:
        make(Path(folder))
    return {}


TASKS: dict[str, Callable[..., Result]] = {
    "get": get,
    "stream": stream,
    "epochs": epochs,
    "cost": cost,
    "prepare": prepare,
}


# Processes


def run_together(tasks: Sequence[Sequence[str]], environ: Mapping[str, str], folder: Path) -> list[Result]:
    """Run tasks at the same time, each in a process of its own; several are the ranks of one world.

    Args:
        tasks: Their names and arguments.
        environ: What clients of the server read in the environment.
        folder: Where libraries may keep what they want while the tasks run.

    Raises:
        ProcessError: One failed.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{own['PATH']}"
    with tempfile.TemporaryDirectory(dir=folder) as kept, contextlib.ExitStack() as stack:
        processes = []
        for rank, task in enumerate(tasks):
            world = {"RANK": str(rank), "WORLD_SIZE": str(len(tasks))} if len(tasks) > 1 else {}
            processes.append(stack.enter_context(Process(task, {**own, **environ, **world, "TMPDIR": kept})))
        for process in processes:
            process.wait_until_ready()
        for process in processes:
            process.start()
        return [process.result() for process in processes]


class Process:
    """A task in a process of its own, which is ended when this is left, or when it takes too long."""

    def __init__(self, task: Sequence[str], environ: Mapping[str, str]) -> None:
        self._task = task
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed when this is left)
        self._process = subprocess.Popen(
            [sys.executable, __file__, *task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environ,
            text=True,
            start_new_session=True,
        )
        self._deadline = threading.Timer(DEADLINE_S, self._end)
        self._deadline.start()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._deadline.cancel()
        self._end()
        self._process.wait()
        for file in (self._input, self._output, self._log):
            with contextlib.suppress(BrokenPipeError):  # of what it was not there to read
                file.close()

    def _end(self) -> None:
        """Kill it, and those that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait_until_ready(self) -> None:
        """Wait until it has said so, or has ended."""
        while self._output.readline() not in (READY, ""):
            pass

    def start(self) -> None:
        """Tell it to start; if it has ended, `result` says why."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write("\n")
            self._input.flush()

    def result(self) -> Result:
        """Return what the task returned; raise ProcessError if it failed."""
        lines = self._output.read().splitlines()
        if self._process.wait():
            self._log.seek(0)
            raise ProcessError(f"{' '.join(self._task)} failed:\n{self._log.read()}")
        result: Result = json.loads(lines[-1])
        return result


if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])))
