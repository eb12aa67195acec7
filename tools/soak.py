"""Train for a long time and look for what grows: memory, descriptors, threads, processes, shared memory, files.

A program opens datasets, iterates and leaves them, round after round: on a local disk and on an S3 server of this
machine, with and without a cache, a stored view, a condition and substitutes for bad samples; without workers, with
threads and with processes. Each epoch is left in the middle and resumed by another number of workers; worker processes
are killed. One loader with persistent workers lives as long as the program. Each round also starts another program,
which is killed and resumed. Every epoch must give each sample once.

After each round all is measured: memory is the sum of what the program and each of its persistent workers have,
without the pages of files. They share what the program had when it started the workers, until one of them writes to it.
That goes on for hours, so the sum in which shared pages count once is printed, but not judged. The soak fails if
anything but memory is more at the end than in the first half; or if memory rises in the second half, without the first
ten rounds, by more than 3 % along the line fitted to it. glibc has one arena (MALLOC_ARENA_MAX=1):
of several, each grows to the most that a thread ever held at once, which hides a leak for hours. Objects of Python rise
until the loader with persistent workers has timed its last 10,000 batches. Connections to the store are kept for later
requests: as many as were ever needed at once. Needs rclone (pip install '.[tests]').

Example: python -m tools.soak --minutes 60 --output /dev/shm
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.bench import core
from tools.bench.scaling import kib_of

SAMPLES, SAMPLE_BYTES, SHARDS, BATCH = 3_000, 4_000, 48, 64
BAD_EVERY = 97
BUCKET = "soak"
DEADLINE_S = 300
WARM_UP = 10
"""Rounds of which memory is not judged."""
GROWTH = 0.03
"""The part of its memory by which a program may have grown over the second half."""
CONNECTIONS = 144
"""A loader sends 64 requests at a time, and so may one that was just left; some more open shards."""
COUNTED = ("descriptors", "threads", "processes", "shared memory", "temporary files")
WORKERS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2, "workers": "thread"},
    {"num_workers": 2, "workers": "process"},
)


class Leg(NamedTuple):
    """A way to open the dataset, and which samples it must give.

    Attributes:
        options: Options of the Dataset.
        first: The least number of a sample.
        has_bad: Whether a stage fails for some samples, which are replaced.
    """

    options: Mapping[str, Any]
    first: int = 0
    has_bad: bool = False

    def numbers(self) -> list[int]:
        """Return the numbers of all samples of an epoch."""
        return [n for n in range(self.first, SAMPLES) if not (self.has_bad and n % BAD_EVERY == 0)]


LEGS = (
    Leg({}),
    Leg({"view": "late"}, first=SAMPLES // 4),
    Leg({"where": f"cls >= {SAMPLES // 3}"}, first=SAMPLES // 3),
    Leg({"on_bad_sample": "substitute", "max_bad_samples": 1.0}, has_bad=True),
)


def refuse_bad(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["cls"] % BAD_EVERY == 0:
        raise ValueError("a bad sample")
    return sample


def open_loader(path: str, leg: Leg, **options: Any) -> Any:
    """Return a loader of batches of number, payload and pad flag."""
    import wdsplit

    dataset = wdsplit.Dataset(path, **leg.options, rank=0, world_size=1).decode()
    if leg.has_bad:
        dataset = dataset.map(refuse_bad)
    return wdsplit.Loader(dataset.to_tuple("cls", "bin", "__pad__"), BATCH, **options)


def numbers_of(batch: Any) -> list[int]:
    """Return the numbers of a batch's samples that are no pads."""
    numbers, _, pads = batch
    return [int(number) for number, pad in zip(numbers.tolist(), pads.tolist(), strict=True) if not pad]


def check(given: Iterable[int], leg: Leg, what: str) -> None:
    """Raise an error unless an epoch gave each sample once."""
    given, expected = Counter(given), Counter(leg.numbers())
    if given != expected:
        lacking, surplus = (sorted((a - b).elements()) for a, b in ((expected, given), (given, expected)))
        found = f"{len(lacking)} lack {lacking[:9]}, {len(surplus)} too many {surplus[:9]}"
        raise AssertionError(f"{what}: the epoch of {leg} did not give each of its samples once: {found}")


# A round


def left_and_resumed(path: str, leg: Leg, chance: random.Random, epoch: int) -> None:
    """Leave an epoch in the middle, sometimes by the death of a worker, and resume it with other workers."""
    first, second = chance.sample(WORKERS, 2)
    loader = open_loader(path, leg, **first)
    loader.set_epoch(epoch)
    stop, kills = chance.randrange(1, len(loader)), chance.random() < 0.5
    given, state = until_left(loader, stop, chance if kills else None)
    del loader
    other = open_loader(path, leg, **second)
    other.load_state_dict(json.loads(json.dumps(state)))
    for batch in other if state["epoch"] == epoch else ():
        given += numbers_of(batch)
    check(given, leg, f"{path}, {first}, then {second}")


def until_left(loader: Any, stop: int, kills: random.Random | None) -> tuple[list[int], dict[str, Any]]:
    """Take some batches; return their samples and the state after them.

    With `kills`, a worker process is killed then, if there is one, and batches are taken until that is an error. torch
    raises it in whatever line the program is just then. So samples and state are noted together.
    """
    given: list[int] = []
    state = loader.state_dict()
    before = set(children_of(os.getpid()))
    with contextlib.suppress(RuntimeError):
        for step, batch in enumerate(loader, 1):
            given, state = [*given, *numbers_of(batch)], loader.state_dict()
            workers = sorted(set(children_of(os.getpid())) - before) if step == stop else ()
            if workers and kills is not None:
                os.kill(kills.choice(workers), signal.SIGKILL)
            elif step == stop:
                break
    return given, state


def train(folder: str, url: str, minutes: float, rounds: int) -> None:
    """Run round after round, and print what this program has after each."""
    chance, ends = random.Random(0), time.monotonic() + 60 * minutes
    lasting = open_loader(f"{folder}/data", LEGS[0], num_workers=2, persistent_workers=True)
    cached = {"cache_dir": f"{folder}/cache", "cache_size": SAMPLES * SAMPLE_BYTES}
    for number in itertools.count():
        for leg, place in zip(LEGS, chance.sample([url, url, f"{folder}/data", f"{folder}/data"], 4), strict=True):
            left_and_resumed(place, leg, chance, number)
        left_and_resumed(url, LEGS[0]._replace(options=cached), chance, number)
        check(itertools.chain.from_iterable(map(numbers_of, lasting)), LEGS[0], "persistent workers")
        killed_and_resumed(folder, number, chance.random() / 10)
        gc.collect()
        print(json.dumps(survey(f"{folder}/tmp")), flush=True)
        if time.monotonic() > ends or number + 1 == rounds:
            return


def survey(temporary: str) -> dict[str, float]:
    """Return what this program and its children have now, without the memory that glibc keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    children = [*children_of(os.getpid())]
    maps = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (os.getpid(), *children)]
    own = {f"torch_{pid}_" for pid in (os.getpid(), *children)}
    opened = opened_files()
    return {
        "seconds": time.monotonic(),
        "MiB": sum(kib_of(kind, text) for kind in ("Anonymous", "Pss_Shmem") for text in maps) / 1024,
        "MiB, shared pages once": sum(kib_of(kind, text) for kind in ("Pss_Anon", "Pss_Shmem") for text in maps) / 1024,
        "blocks of Python": sys.getallocatedblocks(),
        "connections": opened.count("socket"),
        "descriptors": len(opened) - opened.count("socket"),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(children),
        "shared memory": sum(name.startswith(tuple(own)) for name in os.listdir("/dev/shm")),
        "temporary files": sum(len(files) for _, _, files in os.walk(temporary)),
    }


def opened_files() -> list[str]:
    """Return what this program's descriptors are: socket, pipe, a path, ..."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
    return found


def children_of(process: int) -> Iterator[int]:
    """Give the processes that a process and its children have started and that live."""
    children: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, or one of its threads
        for task in Path(f"/proc/{process}/task").iterdir():
            children += (task / "children").read_text().split()
    for child in map(int, children):
        yield child
        yield from children_of(child)


# A program that is killed


def be_killed(path: str, checkpoint: str, epoch: int) -> None:
    """Give the rest of an epoch; write a checkpoint after each batch: the state and the samples up to there."""
    file = Path(checkpoint)
    done: dict[str, Any] = {"state": None, "given": []}
    if file.exists():
        done = json.loads(file.read_text())
    loader = open_loader(path, LEGS[0], num_workers=2)
    loader.set_epoch(epoch)
    if done["state"] is not None:
        loader.load_state_dict(done["state"])
    if loader.state_dict()["epoch"] != epoch:  # it was killed after the last batch
        return
    for batch in loader:
        done = {"state": loader.state_dict(), "given": done["given"] + numbers_of(batch)}
        file.with_suffix(".new").write_text(json.dumps(done))
        file.with_suffix(".new").replace(file)


def killed_and_resumed(folder: str, epoch: int, wait_s: float) -> None:
    """Start a program, kill it a moment after its first batches, and start it again."""
    checkpoint = Path(folder, "checkpoint.json")
    checkpoint.unlink(missing_ok=True)
    words = ["be_killed", f"{folder}/data", str(checkpoint), str(epoch)]
    command = [sys.executable, "-m", "tools.soak", *words]
    with subprocess.Popen(command, start_new_session=True) as program:
        wait_for(lambda: checkpoint.exists() or program.poll() is not None, "the first checkpoint")
        time.sleep(wait_s)
        workers = [*children_of(program.pid)]
        program.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of a killed program's workers")
    subprocess.run(command, check=True)
    check(json.loads(checkpoint.read_text())["given"], LEGS[0], "a program that was killed")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; raise an error when it takes minutes."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE_S} s for {what}")
        time.sleep(0.02)


# The whole


def make(folder: Path) -> None:
    """Write the dataset, and a view."""
    import pyarrow as pa

    import wdsplit

    chance = np.random.default_rng(0)
    table = pa.table({"cls": range(SAMPLES), "bin": [chance.bytes(SAMPLE_BYTES) for _ in range(SAMPLES)]})
    options = wdsplit.ConvertOptions(shards=SHARDS, lanes=12)
    wdsplit.convert(table, str(folder / "data"), options)
    wdsplit.make_view(str(folder / "data"), "late", where=f"cls >= {SAMPLES // 4}")


def judge(found: list[dict[str, float]]) -> list[str]:
    """Print a table of what was measured; return what grew."""
    half, slope, grown, rows = len(found) // 2, 0.0, [], []
    late = found[max(half, WARM_UP) :]
    if len(late) > 1:
        seconds, memory = (np.array([each[name] for each in late]) for name in ("seconds", "MiB"))
        slope = float(np.polyfit(seconds - seconds[0], memory, 1)[0])
    if len(late) > 1 and slope * (seconds[-1] - seconds[0]) > GROWTH * float(np.median(memory)):
        grown.append(f"memory by {slope * 3600:.1f} MiB an hour")
    most = max(each["connections"] for each in found)
    grown += [f"connections to the store, {most} of at most {CONNECTIONS}"] * (most > CONNECTIONS)
    for name in ("MiB", "MiB, shared pages once", "blocks of Python", "connections", *COUNTED):
        values = [each[name] for each in found]
        rows.append((name, *(f"{value:.0f}" for value in (values[0], values[half], values[-1], max(values)))))
        if name in COUNTED and values[-1] > max(values[: half + 1]):
            grown.append(f"{name} from {max(values[: half + 1])} to {values[-1]}")
    minutes = (found[-1]["seconds"] - found[0]["seconds"]) / 60
    title = f"{len(found)} rounds in {minutes:.0f} minutes; memory at last: {slope * 3600:+.1f} MiB an hour"
    core.print_table(title, ("", "first round", "middle", "last", "most"), rows)
    return grown


def soak(folder: Path, minutes: float, rounds: int) -> int:
    """Run the program on data in a folder; return what the tool exits with."""
    sys.path.insert(0, str(core.ROOT / "tests" / "support"))
    make(folder)
    for name in ("tmp", "cache", "buckets", f"buckets/{BUCKET}"):
        (folder / name).mkdir()
    os.symlink(folder / "data", folder / "buckets" / BUCKET / "data")
    s3server = import_module("s3server")
    with s3server.S3Server(folder / "buckets", "--copy-links") as server:
        environ = {**os.environ, **server.environ, "TMPDIR": str(folder / "tmp"), "MALLOC_ARENA_MAX": "1"}
        words = ["train", str(folder), f"s3://{BUCKET}/data", str(minutes), str(rounds)]
        command = s3server.bound_to_tests([sys.executable, "-m", "tools.soak", *words])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=core.ROOT, env=environ) as program:
            assert program.stdout is not None
            found = []
            for line in program.stdout:
                found.append(json.loads(line))
                print(f"{len(found)}: {line}", end="", file=sys.stderr, flush=True)
    grown = judge(found) if found else []
    left = sorted(os.listdir(folder / "tmp"))
    problems = [f"grew: {', '.join(grown)}"] * bool(grown) + [f"left behind: {', '.join(left)}"] * bool(left)
    problems += [f"the program ended with {program.returncode}"] * bool(program.returncode)
    print("\n" + ("; ".join(problems) or "Nothing grew, nothing is left, each epoch gave each sample once."))
    return int(bool(problems))


def main() -> int:
    logging.getLogger("wdsplit").setLevel(logging.ERROR)  # many bad samples are replaced
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
        return 0
    if sys.argv[1:2] == ["be_killed"]:
        be_killed(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="Begin no round after so many minutes. Default: 60.")
    parser.add_argument("--rounds", type=int, default=0, help="End after so many rounds. Default: no limit.")
    parser.add_argument("--output", type=Path, help="Folder for data. Default: the system's folder of temporary files.")
    options = parser.parse_args()
    with core.work_folder(options.output) as folder:
        return soak(folder, options.minutes, options.rounds)


if __name__ == "__main__":
    sys.exit(main())
