"""What all benchmarks share: alternating rounds, tasks in processes of their own, memory, Markdown tables."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]
READY = "ready\n"
DEADLINE_S = 600
"""A task that takes longer is taken to hang."""

Result = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


class ProcessError(Exception):
    """A task failed in its process; the message says how."""


# Arguments


def parser_of(document: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have: --output and --rounds."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="Folder for data. A RAM disk excludes the disk's speed.")
    parser.add_argument("--rounds", type=int, default=5, help="Measure everything this many times. Default: 5.")
    return parser


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,2,4."""
    return tuple(map(int, text.split(",")))


@contextlib.contextmanager
def work_folder(output: Path | None) -> Iterator[Path]:
    """Make a folder in the output, for as long as it is needed."""
    with tempfile.TemporaryDirectory(dir=output) as name:
        yield Path(name).resolve()


def print_machine() -> None:
    """Print what figures depend on."""
    import pyarrow

    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, pyarrow {pyarrow.__version__}")


def is_installed(name: str, module: str) -> bool:
    """Return whether a peer's module is there; print a line if it is not."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        print(f"{name} is not installed: left out", flush=True)
    return found


# Rounds


def in_turn(items: Iterable[T], turn: int) -> list[T]:
    """Return items in their order, or reversed every second turn, so that none always goes first."""
    return list(items)[:: 1 if turn % 2 == 0 else -1]


def is_wdsplit(contender: object) -> bool:
    """Return whether a contender is wdsplit, without which there is nothing to compare."""
    return str(contender).startswith("wdsplit")


def run_rounds(
    contenders: Iterable[T], rounds: int, measure: Callable[[T], R], required: Callable[[T], bool] = is_wdsplit
) -> dict[T, list[R]]:
    """Measure all contenders once a round, in alternating order.

    Raises:
        ProcessError: One that is required failed. Others are reported and left out.
    """
    results: dict[T, list[R]] = {contender: [] for contender in contenders}
    for turn in range(rounds):
        for contender in in_turn(results, turn):
            try:
                results[contender].append(measure(contender))
            except ProcessError as error:
                if required(contender):
                    raise
                print(f"{contender} is left out: {error}", flush=True)
                del results[contender]
    return results


def median_of(results: Iterable[Result], value: Callable[[Result], float]) -> float:
    """Return the median of a value over the rounds."""
    return statistics.median(map(value, results))


# Tables


def table_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return re.sub(" +", " ", f"| {' | '.join(cells)} |")


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> Iterator[str]:
    """Give the lines of a Markdown table. The first `names` columns are aligned to the left, others to the right."""
    return map(table_line, (header, ["---"] * names + ["---:"] * (len(header) - names), *rows))


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> None:
    """Print a Markdown table; its first columns are names."""
    print(f"\n{title}\n")
    for line in table_lines(header, rows, names):
        print(line, flush=True)


class Aim(NamedTuple):
    """A ratio that is aimed at, and what was measured.

    Attributes:
        what: What was done, and after a colon how: `first epoch: 2 threads`. A page has one row for all ways.
        base: The unit, or what it is compared with.
        aim: A number, with words such as `at most`.
        measured: A number.
    """

    what: str
    base: str
    aim: str
    measured: str


def print_aims(aims: Iterable[Aim]) -> None:
    """Print what was aimed at and what was measured."""
    print_table("Aims", ("", "", "aim", "measured"), aims, names=2)


def workers_of(count: int, kind: str = "processes") -> str:
    """Return the words for a number of workers."""
    return f"{count} {kind}" if count else "one process"


# Memory


def resident_kib(process: int | str = "self", line: str = "VmRSS") -> int:
    """Return the memory that a process has, or its peak (VmHWM: getrusage would count the parent's, too)."""
    found = re.search(rf"{line}:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) if found else 0


def peak_mib() -> float:
    """Return the most memory that this process or one of its ended children had."""
    return max(resident_kib(line="VmHWM"), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


# In a process of its own


class Clock:
    """Seconds since a task began, and processor seconds of this process and its ended children since then."""

    def __init__(self) -> None:
        self._started, self._busy = time.perf_counter(), self._busy_now()

    @staticmethod
    def _busy_now() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def read(self) -> Result:
        return {"seconds": self.seconds(), "busy": self._busy_now() - self._busy}


def import_all(*modules: str) -> None:
    """Import modules by their names."""
    for module in modules:
        importlib.import_module(module)


def begin(*modules: str) -> Clock:
    """Import modules, wait until all tasks that run together have come so far, and start the clock.

    pandas is imported too, if it is installed: pyarrow would do so when it first makes many Python objects.
    """
    import_all(*modules, *["pandas"] * (importlib.util.find_spec("pandas") is not None))
    meet()
    return Clock()


def meet() -> None:
    """Wait until all tasks that run together have come so far."""
    print(READY, end="", flush=True)
    sys.stdin.readline()


def in_own_process(task: Callable[..., Result], *arguments: Any, environ: Mapping[str, str] | None = None) -> Result:
    """Run a task in a process of its own; return its result.

    Raises:
        ProcessError: It failed.
    """
    return run_together(task, arguments, 1, environ)[0]


def run_together(
    task: Callable[..., Result], arguments: Sequence[Any], ranks: int, environ: Mapping[str, str] | None = None
) -> list[Result]:
    """Run a task in several processes at the same time, the ranks of one world; return their results.

    Args:
        task: A function of a module of this package.
        arguments: What JSON can hold.
        ranks: How many processes; if several, RANK and WORLD_SIZE say which one each is.
        environ: More of the environment. The user's AWS_* variables are removed.

    Raises:
        ProcessError: One failed.
    """
    worlds = [{"RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {} for rank in range(ranks)]
    with started(task, arguments, [((), {**(environ or {}), **world}) for world in worlds]) as processes:
        waiting = processes
        while waiting := [process for process in waiting if process.is_waiting()]:
            for process in waiting:
                process.go_on()
        return [process.result() for process in processes]


@contextlib.contextmanager
def started(
    task: Callable[..., Result], arguments: Sequence[Any], places: Sequence[tuple[Sequence[str], Mapping[str, str]]]
) -> Iterator[list[Process]]:
    """Start a task in several processes, which are killed when this is left.

    Args:
        task: A function of a module of this package.
        arguments: What JSON can hold.
        places: For each process, the command that runs it where it belongs, if any, and more of its environment.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # else modules that are imported late are compiled each time, on the clock
    own["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{own['PATH']}"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=places[0][1].get("TMPDIR")))
        yield [
            stack.enter_context(Process(task, arguments, prefix, {**own, **environ, "TMPDIR": folder}))
            for prefix, environ in places
        ]


class Process:
    """A task in a process of its own, which is killed when this is left, or when it takes too long.

    Attributes:
        last_line: What it printed last, besides that it waits.
    """

    def __init__(
        self, task: Callable[..., Result], arguments: Sequence[Any], prefix: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        module = task.__module__
        if module == "__main__":
            module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
        self._words = [module, task.__qualname__, json.dumps([*arguments], default=str)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed when this is left)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", __spec__.name, *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environ,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.last_line = ""
        self._deadline = threading.Timer(DEADLINE_S, self.kill)
        self._deadline.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._deadline.cancel()
        self.kill()
        self._process.wait()
        for file in (self._input, self._output, self._log):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def kill(self) -> None:
        """Kill it, and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def is_waiting(self) -> bool:
        """Read until it waits for the others, or has ended; return whether it waits."""
        while (line := self._output.readline()) not in (READY, ""):
            self.last_line = line
        return line == READY

    def go_on(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # if it has ended, `result` says why
            self._input.write("\n")
            self._input.flush()

    def result(self) -> Result:
        if self._process.wait():
            self._log.seek(0)
            raise ProcessError(f"{' '.join(self._words)} failed:\n{self._log.read()}")
        result: Result = json.loads(self.last_line)
        return result


def _main(module: str, task: str, arguments: str) -> None:
    print(json.dumps(getattr(importlib.import_module(module), task)(*json.loads(arguments))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
