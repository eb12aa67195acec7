"""Small parquet tables for the tests, and what a finished dataset must hold for them."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.planning import plan_splits
from wdsplit.engines import local
from wdsplit.fields import infer
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.tables.table import InputFile, Table
from wdsplit.tar.names import PAD_PREFIX

DEADLINE_S = 300
"""For what takes moments where nothing else runs: it costs nothing but where something is wrong."""

FULL_PROCESS_BYTES = local._PROCESS_BYTES
"""Work for which a process is started; in the tests a byte is enough, so that small tables are given to processes."""

local._PROCESS_BYTES = 1

PROGRESS = re.compile(r"(?!warning|error|note)([12]/2 )?[a-z][a-z ]*: [\d,]+[ /\d,]*( \w+)?(, |$)")

PROGRAM_WITH_PROCESSES = """
import wdsplit.engines.local
from wdsplit.cli.__main__ import main
wdsplit.engines.local._PROCESS_BYTES = 1
main()
"""
"""The program, which starts worker processes for small tables too."""


def write_table(path, columns, rows_per_group=None) -> str:
    """Write a table (or a dict of columns) as one parquet file and return its path."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows_per_group)
    return str(path)


def write_files(folder, table, rows_per_file, rows_per_group=None) -> list[str]:
    """Cut a table into files of the given numbers of rows, repeated until the table ends; 0 makes an empty file."""
    paths, first = [], 0
    while first < len(table):
        for count in rows_per_file:
            path = Path(folder) / f"part-{len(paths):05d}.parquet"
            paths.append(write_table(path, table.slice(first, count), rows_per_group))
            first += count
    return paths


def mixed_table(num_rows, first=0) -> pa.Table:
    """Return a table with a column of each encoding but media; every row is different."""
    numbers = range(first, first + num_rows)
    return pa.table(
        {
            "image": pa.array([b"\xff\xd8\xff" + bytes([i % 251]) * (i * 37 % 1100) for i in numbers], pa.binary()),
            "caption": [f"caption {i} é" for i in numbers],
            "label": pa.array(numbers, pa.int64()),
            "vector": pa.array([np.arange(i % 5, dtype=np.float32) + i for i in numbers], pa.list_(pa.float32())),
            "meta": [{"x": i / 7, "tags": [str(i)] * (i % 3)} for i in numbers],
        }
    )


def with_class_names(table, column, names):
    """Say of a column of numbers which classes they stand for, as Hugging Face does."""
    return table.replace_schema_metadata(infer.with_class_names(table.schema, {column: names}).metadata)


def input_file(num_rows, num_groups=1, path="part.parquet", data_bytes=1000, footer="00") -> InputFile:
    each, rest = divmod(num_rows, num_groups)
    groups = tuple(each + (number < rest) for number in range(num_groups))
    return InputFile(path, data_bytes + 100, num_rows, groups, data_bytes, footer)


def table_of(*files) -> Table:
    return Table(tuple(files), pa.schema([]))


def options(**changes) -> ConvertOptions:
    """Return options of a conversion; rows keep their order unless asked otherwise."""
    return ConvertOptions(**{"shuffle": False, **changes})


def planned(inputs, options, storage_options=None):
    """Return the plan of a conversion into one dataset."""
    return plan_splits(inputs, options, storage_options)[""]


def converted(inputs, output, **changes):
    """Convert and return the manifest."""
    return convert([inputs] if isinstance(inputs, str) else inputs, str(output), options(**changes))


def tar_samples(path) -> list[tuple[str, dict[str, bytes]]]:
    """Read a tar with the standard library: its samples in order, each a key and its fields."""
    samples: list[tuple[str, dict[str, bytes]]] = []
    with tarfile.open(path) as tar:
        for member in tar:
            folder, _, base = member.name.rpartition("/")
            stem, _, field = base.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            if not samples or samples[-1][0] != key:
                samples.append((key, {}))
            assert field not in samples[-1][1], f"{member.name} stands twice"
            samples[-1][1][field] = tar.extractfile(member).read()
    return samples


def sample_offsets(path) -> list[int]:
    """Find with the standard library where each sample begins, and where the last one ends."""
    offsets, last, end = [], None, 0
    with tarfile.open(path) as tar:
        for member in tar:
            key = member.name.rpartition("/")[0], member.name.rpartition("/")[2].partition(".")[0]
            if key != last:
                offsets.append(member.offset)
            last = key
            end = member.offset_data + -(-member.size // 512) * 512
    return [*offsets, end]


def shard_files(folder) -> dict[str, bytes]:
    """Return the bytes of all shards and indexes."""
    paths = sorted(Path(folder).glob("*.tar*"))
    return {path.name: path.read_bytes() for path in paths}


def all_samples(folder) -> list[tuple[str, dict[str, bytes]]]:
    """Return the samples of all shards, in order."""
    return [sample for path in sorted(Path(folder).glob("*.tar")) for sample in tar_samples(path)]


def is_pad_key(key):
    """Tell whether a key is that of a pad."""
    return key.startswith(PAD_PREFIX)


def real_samples(folder) -> list[tuple[str, dict[str, bytes]]]:
    """Return the samples of all shards that are no pads, in order."""
    return [(key, fields) for key, fields in all_samples(folder) if not is_pad_key(key)]


def labels(folder, field="cls") -> list[int]:
    """Return what the real samples' field holds as numbers, in order."""
    return [int(fields[field]) for _, fields in real_samples(folder)]


def files_below(folder) -> list[str]:
    """Return the relative paths of all files below a folder, sorted."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if not path.is_dir())


def files_of(folder) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, by their relative paths."""
    return {name: (Path(folder) / name).read_bytes() for name in files_below(folder)}


_started: list[subprocess.Popen] = []


def start_process(command, **options) -> subprocess.Popen:
    """Start a process in a session of its own, with its output in pipes; it is ended with the test, if not before."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    _started.append(subprocess.Popen([*map(str, command)], start_new_session=True, **options))
    return _started[-1]


def start_script(code, *arguments) -> subprocess.Popen:
    """Run a script in a session of its own, so that what it leaves behind can be found."""
    return start_process([sys.executable, "-c", code, *arguments])


def end_started() -> None:
    """End the processes that a test has started and left, as one does that fails, and close their pipes.

    One that is not waited for is a warning when it is collected, which fails whatever test runs then.
    """
    while _started:
        process = _started.pop()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with contextlib.suppress(OSError):
                pipe.close()


def outputs_of(processes) -> list[str]:
    """Wait for processes that have been started to end well; return what each has printed."""
    ended = [process.communicate(timeout=DEADLINE_S) for process in processes]
    for process, (_, said) in zip(processes, ended, strict=True):
        assert process.returncode == 0, said
    return [output for output, _ in ended]


def session_processes(session) -> list[int]:
    """Return the processes of a session that live, zombies left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, _, its_session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(name))
    return found


def wait_until(condition, what) -> None:
    """Poll until a condition holds; fail when it takes longer than a slow machine may need."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not, after {DEADLINE_S} s: {what}"
        time.sleep(0.005)


def without_progress(said) -> str:
    """Leave out the lines that a command prints where it takes long, as on a busy machine."""
    return "".join(line for line in said.splitlines(keepends=True) if not PROGRESS.match(line))


def reading_ahead() -> set[threading.Thread]:
    """Return the threads of this process that read ahead."""
    return {each for each in threading.enumerate() if "(run)" in each.name}


def wait_for_threads(before) -> None:
    """Wait until no thread reads ahead but those that did before.

    What they read for may be in a cycle that a fetch under way still refers to at the first collection.
    """
    wait_until(lambda: gc.collect() >= 0 and reading_ahead() <= before, "the end of reading ahead")


def noted_shards(output):
    """Return the numbers of the shards that the unfinished run of an output has noted."""
    found = set()
    for path in Path(output).glob(f"{RUN_FOLDER}/shards/[!.]*.json"):
        first = int(re.search(r"-(\d{8})-\d{8}", path.name)[1])
        found |= set(range(first, first + len(orjson.loads(path.read_bytes()))))
    return found


def little_memory(monkeypatch):
    """Let a task hold 4 kB, so that even a small table is spilled, and makes many runs, merges and gatherings."""
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs.loadable_bytes", lambda memory, jobs: 0)
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)
    monkeypatch.setattr("wdsplit.conversion.shuffle.gather.BATCH_BYTES", 1024)
    monkeypatch.setattr("wdsplit.conversion.shuffle.steps._MAX_GATHERED", 3)
