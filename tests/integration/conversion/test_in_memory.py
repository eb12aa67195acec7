"""Tables that fit in memory are shuffled without a spill, to the bytes that others come to by one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stops import stopped_at
from tables import converted, mixed_table, options, real_samples, shard_files, write_files, write_table
from wdsplit.conversion.convert import convert, convert_splits
from wdsplit.conversion.shuffle import in_memory
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER

NUM_ROWS = 400


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return uneven files of small row groups, an empty file among them."""
    return write_files(tmp_path_factory.mktemp("input"), mixed_table(NUM_ROWS), [150, 0, 20, 7, 90], 30)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Have batches and tasks of a few rows, so that a small table has many."""
    monkeypatch.setattr(in_memory, "BATCH_BYTES", 5000)


def spills(seen, output):
    """Return what notes, at each progress, whether rows are spilled."""
    return lambda progress: seen.append((progress.name, (Path(output) / SPILL_FOLDER).exists()))


def test_each_split_is_loaded_by_itself_and_its_memory_is_freed(inputs, tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    seen, splits = [], {"train": 0.7, "val": 0.3}
    chosen = options(shards=3, shuffle=True, splits=splits)
    convert_splits(inputs, tmp_path, chosen, lambda progress: seen.append((progress.split, progress.name)))
    assert list(dict.fromkeys(seen)) == [(split, name) for split in splits for name in ("scatter", "write")]
    assert sum(len(real_samples(tmp_path / split)) for split in splits) == NUM_ROWS
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("counts", [[500], [0, 1, 1, 1, 1]], ids=["in all", "in one task"])
def test_rows_that_are_larger_than_their_files_said_are_spilled_after_all(tmp_path, monkeypatch, counts):
    """A dictionary holds a long text once: parquet counts it so, but each row has all of it."""
    texts = np.repeat([f"{number}" * 2000 for number in range(5)], 100 if len(counts) == 1 else [1, 2, 2, 2, 493])
    path = write_table(tmp_path / "in.parquet", {"txt": texts, "row": range(len(texts))}, rows_per_group=50)
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs.loadable_bytes", lambda memory, jobs: 300_000)
    seen, chosen = [], {"shards": 3, "shuffle": True, "memory": 1}
    convert(path, tmp_path / "out", options(**chosen), spills(seen, tmp_path / "out"))
    assert seen[-1] == ("write", True)
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs.loadable_bytes", lambda memory, jobs: 2**30)
    converted(path, tmp_path / "memory", **chosen)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "memory")


LITTLE_FILES = """
import resource, sys
import wdsplit
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
wdsplit.convert(sys.argv[2:], sys.argv[1], shards=7)
"""


@pytest.mark.slow
def test_where_files_may_not_be_large_rows_are_spilled(inputs, tmp_path):
    """Memory that processes share counts as a file."""
    command = [sys.executable, "-c", LITTLE_FILES, tmp_path / "out", *inputs]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    converted(inputs, tmp_path / "whole", shards=7, shuffle=True)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "whole")


def test_what_an_interrupted_run_has_spilled_is_used_though_it_would_fit_now(inputs, tmp_path):
    chosen = {"shards": 7, "shuffle": True}
    with stopped_at() as stop:
        convert(inputs, tmp_path / "out", options(**chosen, memory=1), stop)
    seen = []
    convert(inputs, tmp_path / "out", options(**chosen, resume=True), seen.append)
    assert seen[0].skipped == NUM_ROWS
    converted(inputs, tmp_path / "whole", **chosen)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("jobs", "score", "is_shared"), [(1, 0.5, False), (2, "x", False), (2, 0.5, True), (5, "x", True)]
)
def test_memory_is_shared_only_if_processes_may_write_shards(tmp_path, monkeypatch, jobs, score, is_shared):
    """As they do where there is JSON to encode, or are more jobs than threads are worth."""
    loaded, load_table = [], in_memory.load_table
    monkeypatch.setattr(
        "wdsplit.conversion.driver.load_table", lambda *all: loaded.append(load_table(*all)) or loaded[0]
    )
    path = write_table(tmp_path / "table.parquet", {"txt": map(str, range(40)), "score": [score] * 40})
    converted(path, tmp_path / "out", shards=4, shuffle=True, jobs=jobs)
    assert [each.shared is not None for each in loaded] == [is_shared]
