import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stops import stopped_at
from tables import (
    converted,
    labels,
    little_memory,
    mixed_table,
    options,
    planned,
    shard_files,
    tar_samples,
    write_files,
    write_table,
)
from wdsplit.conversion.convert import convert
from wdsplit.conversion.driver import Driver
from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.shuffle.gather import ShuffledRows
from wdsplit.conversion.shuffle.needs import task_bytes
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, Cuts, cut_into_regions, write_cuts
from wdsplit.engines.local import LocalEngine
from wdsplit.errors import CorruptDataError, WdsplitError
from wdsplit.order.permutation import RowPermutation
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.opening import open_storage

NUM_ROWS = 200


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return uneven files of small row groups, an empty file among them."""
    return write_files(tmp_path_factory.mktemp("input"), mixed_table(NUM_ROWS), [75, 0, 10, 7, 45], 15)


@pytest.mark.parametrize(("pad", "is_little"), [("repeat", False), ("repeat", True), ("drop", True), ("none", True)])
def test_samples_pads_and_rows_left_out_are_those_of_the_shuffled_table(tmp_path, monkeypatch, inputs, pad, is_little):
    if is_little:
        little_memory(monkeypatch)
    manifest = converted(inputs, tmp_path / "out", shards=7, shuffle=True, pad=pad, seed=5)
    assert not (tmp_path / "out" / RUN_FOLDER).exists()
    order = np.argsort(RowPermutation(NUM_ROWS, 5).positions(np.arange(NUM_ROWS))).tolist()
    assert labels(tmp_path / "out") == (order[: NUM_ROWS - NUM_ROWS % 7] if pad == "drop" else order)
    shards = [tar_samples(tmp_path / "out" / manifest.shards[shard].path) for shard in range(7)]
    sizes = list(map(len, shards))
    assert max(sizes) - min(sizes) == (pad == "none")
    for shard, samples in enumerate(shards):
        assert not manifest.shards[shard].num_pads or samples[-1][1] == samples[0][1]


def spilled(output, plan, held, merged=True):
    """Scatter a table, and merge it where that is a step and `merged`; return the job, how it was cut, and its rows."""
    storage, job = open_storage(output), ConvertJob(output=output, plan=plan, buffer_bytes=held)
    cuts, driver = write_cuts(storage, plan, held), Driver(job, LocalEngine(), lambda _: None)
    runs = driver.spill(cuts, "scatter")
    assert sum(run.num_rows for run in runs) == plan.num_rows
    if cuts.merges and merged:
        driver.spill(cuts, "merge")
        storage.remove(*(run.path for run in runs))
    return job, cuts, ShuffledRows(storage, plan, cuts, held)


@pytest.mark.parametrize(("most", "pad"), [(256, "drop"), (3, "repeat"), (1, "drop")])
def test_any_range_of_places_is_gathered_in_order_without_keeping_files_open(inputs, tmp_path, monkeypatch, most, pad):
    little_memory(monkeypatch)
    monkeypatch.setattr("wdsplit.conversion.shuffle.steps._MAX_GATHERED", most)
    plan = planned(inputs, ConvertOptions(shards=7, shuffle=True, pad=pad))
    assert task_bytes(2**30, 1) > task_bytes(2**30, 2) > task_bytes(2**30, 3) >= task_bytes(2**20, 64) > 0
    _, cuts, rows = spilled(str(tmp_path / "out"), plan, task_bytes(2**30, 1) // 2**18)
    assert cuts.num_tasks > 3
    assert (cuts.num_chunks > 1 and cuts.num_regions > 1) == cuts.merges == (most < 256)
    order = np.argsort(RowPermutation(NUM_ROWS, 0).positions(np.arange(NUM_ROWS)))
    last, before = plan.num_samples, set(os.listdir("/proc/self/fd"))
    for first, stop in [(0, last), (0, 1), (last - 1, last), (17, 111), (100, 100)]:
        numbers, found = [], []
        for part in rows.read(first, stop):
            held = [os.path.realpath(f"/proc/self/fd/{number}") for number in set(os.listdir("/proc/self/fd")) - before]
            assert len(part) and not [path for path in held if path.endswith(".arrow")]
            numbers += part.numbers.tolist()
            found += part.columns["label"].to_pylist()
        assert numbers == found == order[first:stop].tolist()


@pytest.mark.parametrize("num_tasks", [1, 256, 257, 1_000_000])
def test_no_task_of_any_pass_opens_more_than_about_the_root_of_all_runs(num_tasks):
    regions = cut_into_regions(10**10, num_tasks)
    cuts = Cuts("prefix", range(num_tasks + 1), *regions, bucket_rows=2500)
    assert cuts.merges == (num_tasks > 256)
    most = np.sqrt(num_tasks) + 1 if cuts.merges else 256
    chunks = [cuts.scattered(chunk) for chunk in range(cuts.num_chunks)]
    assert max(map(len, chunks)) <= most, "runs that a task opens that merges"
    assert [task for chunk in chunks for task in chunk] == list(range(num_tasks))
    merged = [cuts.merged(region) for region in range(cuts.num_regions if cuts.merges else 0)]
    assert all(len(merges) <= most for merges in merged), "runs that a task opens that writes"
    assert sorted(merge for merges in merged for merge in merges) == list(range(cuts.num_merges))
    assert cuts.num_regions * cuts.region_rows >= 10**10 > (cuts.num_regions - 1) * cuts.region_rows


@pytest.mark.parametrize("when", ["merge", "write"])
def test_a_run_that_is_stopped_after_rows_are_scattered_scatters_none_again(inputs, tmp_path, monkeypatch, when):
    converted(inputs, tmp_path / "whole", shards=8, shuffle=True)
    little_memory(monkeypatch)
    chosen, seen = ConvertOptions(shards=8, shuffle=True), []
    with stopped_at(when, seen=seen) as stop:
        convert(inputs, tmp_path / "out", chosen, stop, memory=1)
    first = [path.name for path in (tmp_path / "out" / SPILL_FOLDER).glob("*.arrow") if "region" not in path.name]
    assert bool(first) == (when == "merge"), "what is merged goes before shards are written"
    last = seen[-1]
    seen.clear()
    convert(inputs, tmp_path / "out", chosen, seen.append, memory=1, resume=True)
    scattered, merged = ([one for one in seen if one.name == name] for name in ("scatter", "merge"))
    assert [(one.done, one.skipped) for one in scattered] == [(NUM_ROWS, NUM_ROWS)], "it begins with what is there"
    assert merged[0].done == merged[0].skipped == (last.done if when == "merge" else merged[0].total)
    assert [one.done for one in merged] == list(range(merged[0].done, merged[0].total + 1))
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "whole")


@pytest.mark.parametrize(
    "lost", ["00000001-*.arrow", "scatter-00000001-*.json", "region-*.arrow", "merge-00000003-*.json", "", "region"]
)
def test_rows_that_were_spilled_and_are_lost_or_damaged_are_missed(inputs, tmp_path, monkeypatch, lost):
    little_memory(monkeypatch)
    merged = lost.startswith(("region", "merge"))
    plan = planned(inputs, ConvertOptions(shards=7, shuffle=True))
    job, cuts, rows = spilled(str(tmp_path / "out"), plan, 4096, merged)
    spill = tmp_path / "out" / SPILL_FOLDER
    if "*" in lost:
        names = list(spill.glob(f"*-{lost}"))
        assert names
        for name in names:
            name.unlink()
    else:
        runs = [path for path in spill.glob("*.arrow") if ("region" in path.name) == merged]
        path = max(runs, key=lambda path: path.stat().st_size)
        data = bytearray(path.read_bytes())
        first = data.index(b"\xff\xff\xff\xff", 1)  # where the second message begins
        data[first : first + 400] = bytes(400)
        path.write_bytes(data)
    with pytest.raises(WdsplitError) as caught:  # by what follows upon merging, or upon scattering
        list(rows.read(0, plan.num_rows)) if merged else Driver(job, LocalEngine(), lambda _: None).spill(cuts, "merge")
    assert SPILL_FOLDER in caught.value.place
    if "*" not in lost:
        assert isinstance(caught.value, CorruptDataError) and caught.value.place == str(path)
        assert caught.value.cause == "a spill file is damaged" and "--overwrite" in caught.value.remedy


def numbered(path, first, count=400):
    return write_table(
        path, {"label": range(first, first + count), "group": [n % 7 for n in range(count)]}, rows_per_group=50
    )


def test_what_an_interrupted_run_has_spilled_is_not_taken_for_another(tmp_path):
    old, new = numbered(tmp_path / "old.parquet", 0), numbered(tmp_path / "new.parquet", 1000)
    with stopped_at() as stop:
        convert(old, tmp_path / "out", options(shards=4, shuffle=True, memory=1), stop)
    assert (tmp_path / "out" / RUN_FOLDER / "spill").exists()
    converted(new, tmp_path / "out", shards=4, shuffle=True, overwrite=True)
    converted(new, tmp_path / "fresh", shards=4, shuffle=True)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "fresh")
    assert sorted(labels(tmp_path / "out")) == list(range(1000, 1400))


@pytest.mark.parametrize("damaged", ["*-cuts-*", "*-scatter-*"])
def test_notes_that_a_power_failure_has_emptied_are_made_again(tmp_path, damaged):
    path, chosen = numbered(tmp_path / "in.parquet", 0), ConvertOptions(shards=4, shuffle=True)
    with stopped_at(done=0) as stop:
        convert(path, tmp_path / "out", chosen, stop, memory=1)
    found = list((tmp_path / "out" / RUN_FOLDER / "spill").glob(damaged))
    assert found
    for path_of_spill in found:
        path_of_spill.write_bytes(bytes(100))
    convert(path, tmp_path / "out", replace(chosen, memory=1, resume=True))
    assert sorted(labels(tmp_path / "out")) == list(range(400))


def test_rows_of_several_batches_and_tasks_go_to_their_places_and_none_may_be_missing(tmp_path, monkeypatch):
    path = write_table(tmp_path / "in.parquet", {"label": range(9000)}, rows_per_group=8500)
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)
    expected = np.argsort(RowPermutation(9000, 0).positions(np.arange(9000))).tolist()
    for memory in (1, 2**31):
        converted(path, tmp_path / str(memory), shards=2, shuffle=True, memory=memory)
        assert labels(tmp_path / str(memory)) == expected
    chosen = options(shards=2, shuffle=True, memory=1)
    with stopped_at(done=0) as stop:
        convert(path, tmp_path / "out", chosen, stop)
    note = min((tmp_path / "out" / RUN_FOLDER / "spill").glob("*-scatter-*.json"))
    note.write_bytes(b"[[]]")
    with pytest.raises(CorruptDataError, match="missing or extra rows"):
        convert(path, tmp_path / "out", replace(chosen, resume=True))


def test_a_run_whose_rows_are_all_dropped_is_no_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 1)
    path = write_table(tmp_path / "few.parquet", {"label": range(7)}, rows_per_group=1)
    convert(path, tmp_path / "few", ConvertOptions(shards=3, shuffle=True, pad="drop", memory=1))
    assert len(labels(tmp_path / "few")) == 6


def test_a_shuffle_that_fails_before_anything_is_spilled_leaves_nothing_to_continue(tmp_path):
    path = numbered(tmp_path / "in.parquet", 0)
    data = bytearray(Path(path).read_bytes())
    data[20:200] = bytes(180)
    Path(path).write_bytes(data)
    with pytest.raises(WdsplitError):
        converted(path, tmp_path / "out", shards=4, shuffle=True)
    assert not (tmp_path / "out" / RUN_FOLDER).exists()
