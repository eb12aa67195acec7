import dataclasses
import os
import signal

import numpy as np
import pyarrow as pa
import pytest
from tables import (
    converted,
    labels,
    mixed_table,
    real_samples,
    session_processes,
    shard_files,
    start_script,
    tar_samples,
    wait_until,
    write_files,
)

from wdsplit.manifest import RUN_FOLDER
from wdsplit.options import ConvertOptions, PlanOptions
from wdsplit.permute import RowPermutation
from wdsplit.planning import plan_conversion
from wdsplit.scatter import SpilledRows, scatter, scatter_tasks, task_bytes
from wdsplit.storage import is_temporary

NUM_ROWS = 400


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return uneven files of small row groups, an empty file among them."""
    return write_files(tmp_path_factory.mktemp("input"), mixed_table(NUM_ROWS), [150, 0, 20, 7, 90], 30)


@pytest.fixture(scope="module")
def shuffled(inputs, tmp_path_factory):
    """Return the folder of a shuffled conversion that one process made with memory enough for all."""
    folder = tmp_path_factory.mktemp("shuffled") / "out"
    converted(inputs, folder, shards=8, shuffle=True, seed=5)
    return folder


def little_memory(monkeypatch):
    """Let a task hold 4 kB, so that even a small table makes many runs and many gatherings."""
    monkeypatch.setattr("wdsplit.scatter._LEAST_BYTES", 4096)
    monkeypatch.setattr("wdsplit.scatter._BATCH_BYTES", 1024)


def test_samples_stand_where_the_permutation_puts_their_rows(inputs, shuffled):
    found = [int(fields["cls"]) for _, fields in real_samples(shuffled)]
    places = RowPermutation(NUM_ROWS, 5).positions(np.arange(NUM_ROWS))
    assert found == np.argsort(places).tolist()


def test_a_sample_keeps_the_key_and_the_fields_that_it_has_unshuffled(inputs, shuffled, tmp_path):
    converted(inputs, tmp_path / "out", shards=8)
    assert sorted(real_samples(shuffled)) == sorted(real_samples(tmp_path / "out"))


def test_bytes_depend_on_the_seed_and_on_nothing_else(inputs, shuffled, tmp_path, monkeypatch):
    converted(inputs, tmp_path / "jobs", shards=8, shuffle=True, seed=5, jobs=3)
    assert shard_files(tmp_path / "jobs") == shard_files(shuffled)
    little_memory(monkeypatch)
    converted(inputs, tmp_path / "memory", shards=8, shuffle=True, seed=5)
    assert shard_files(tmp_path / "memory") == shard_files(shuffled)
    converted(inputs, tmp_path / "seed", shards=8, shuffle=True, seed=6)
    assert shard_files(tmp_path / "seed") != shard_files(shuffled)
    assert sorted(labels(tmp_path / "seed")) == sorted(labels(shuffled))


def test_nothing_is_left_of_the_spilled_rows(shuffled):
    assert not (shuffled / RUN_FOLDER).exists()


@pytest.mark.parametrize("pad", ["repeat", "drop", "none"])
def test_pads_and_rows_left_out_are_those_of_the_shuffled_table(tmp_path, inputs, pad):
    manifest = converted(inputs, tmp_path / "out", shards=7, shuffle=True, pad=pad)
    sizes = [len(tar_samples(tmp_path / "out" / manifest.shards[shard].path)) for shard in range(7)]
    order = np.argsort(RowPermutation(NUM_ROWS, 0).positions(np.arange(NUM_ROWS))).tolist()
    expected = order[: NUM_ROWS - NUM_ROWS % 7] if pad == "drop" else order
    assert [int(fields["cls"]) for _, fields in real_samples(tmp_path / "out")] == expected
    assert max(sizes) - min(sizes) == (pad == "none")
    for shard in range(7) if pad == "repeat" else ():
        samples = tar_samples(tmp_path / "out" / manifest.shards[shard].path)
        if manifest.shards[shard].num_pads:
            assert samples[-1][1] == samples[0][1]


def test_a_row_that_cannot_be_encoded_is_named_by_its_place_in_the_input(tmp_path):
    table = pa.table({"label": [*range(50), None, *range(50)]})
    paths = write_files(tmp_path / "in", table, [40])
    with pytest.raises(ValueError, match="a value is null") as caught:
        converted(paths, tmp_path / "out", shards=4, shuffle=True)
    assert caught.value.place == f"{paths[1]}, row 10, column 'label'"


def test_shards_are_random_samples_of_a_table_that_is_sorted_by_class(tmp_path):
    """Chi-square of 16 shards x 10 classes: 135 degrees of freedom, standard deviation 16; five of them are allowed."""
    table = pa.table({"label": np.repeat(np.arange(10), 2000)})
    paths = write_files(tmp_path / "in", table, [7001, 2999, 10_000], 1000)
    manifest = converted(paths, tmp_path / "out", shards=16, shuffle=True, seed=1)
    counts = np.zeros((16, 10))
    for shard in range(16):
        for _, fields in tar_samples(tmp_path / "out" / manifest.shards[shard].path):
            counts[shard, int(fields["cls"])] += 1
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    assert abs(((counts - expected) ** 2 / expected).sum() - 135) < 5 * 16.5


def test_any_range_of_places_is_gathered_in_order(inputs, tmp_path, monkeypatch):
    little_memory(monkeypatch)
    plan = plan_conversion(inputs, ConvertOptions(PlanOptions(shards=8, shuffle=True)))
    output, held = str(tmp_path / "out"), task_bytes(2**30, 1) // 2**18
    job, tasks = scatter_tasks(output, plan, held)
    assert sum(scatter(job, task) for task in tasks) == NUM_ROWS
    assert len(tasks) > 3
    order = np.argsort(RowPermutation(NUM_ROWS, 0).positions(np.arange(NUM_ROWS)))
    spilled = SpilledRows(output, plan, held)
    for first, stop in [(0, NUM_ROWS), (0, 1), (399, 400), (17, 211), (100, 100)]:
        parts = list(spilled.read(first, stop))
        numbers = np.concatenate([np.zeros(0, np.int64), *(rows.numbers for rows in parts)])
        assert numbers.tolist() == order[first:stop].tolist()
        found = [value for rows in parts for value in rows.columns["label"].to_pylist()]
        assert found == numbers.tolist()


def test_scattering_goes_on_where_it_was_stopped(inputs, tmp_path, monkeypatch):
    little_memory(monkeypatch)
    plan = plan_conversion(inputs, ConvertOptions(PlanOptions(shards=8, shuffle=True)))
    job, tasks = scatter_tasks(str(tmp_path), plan, 4096)
    for task in tasks[:2]:
        scatter(job, task)
    assert scatter_tasks(str(tmp_path), plan, 10**9) == (dataclasses.replace(job, held_bytes=10**9), tasks[2:])


def test_memory_is_shared_by_the_jobs():
    assert task_bytes(2**30, 1) > task_bytes(2**30, 2) > task_bytes(2**30, 3) >= task_bytes(2**20, 64) > 0


CONVERT = """
import sys
from wdsplit.converter import convert
from wdsplit.options import ConvertOptions
from wdsplit.options import PlanOptions

if __name__ == "__main__":
    source, output, jobs, resume = sys.argv[1:]
    options = ConvertOptions(
        PlanOptions(shards=40, shuffle=True, seed=1), jobs=int(jobs), memory=2**20, resume=resume == "resume"
    )
    convert(source, output, options, lambda plan, progress: print(progress, flush=True))
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_shuffle_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path, jobs, monkeypatch):
    paths = write_files(tmp_path / "in", mixed_table(4000), [900, 1], 100)
    converted(paths, tmp_path / "undisturbed", shards=40, shuffle=True, seed=1)
    folder, out = tmp_path / "in", tmp_path / "out"
    for lines in (0, 1, 2, 5, 15, 30):
        started = (out / RUN_FOLDER / "plan.json").exists()
        script = start_script(CONVERT, folder, out, jobs, "resume" if started else "new")
        for _ in range(lines):
            script.stdout.readline()
        os.killpg(script.pid, signal.SIGKILL)
        script.communicate()
        wait_until(lambda script=script: not session_processes(script.pid), "no process is left")
        whole = shard_files(tmp_path / "undisturbed")
        found = shard_files(out) if out.exists() else {}
        assert all(found[name] == whole[name] for name in found if not is_temporary(name))
        if (out / "wdsplit.json").exists():
            break
    started = out.exists() and any(out.iterdir())
    converted(str(folder), out, shards=40, shuffle=True, seed=1, resume=started)
    assert shard_files(out) == shard_files(tmp_path / "undisturbed")
