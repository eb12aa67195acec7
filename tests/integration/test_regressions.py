"""Faults that once were: each test is the shortest way to the fault."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tables import DEADLINE_S, converted, labels, options, planned, real_samples, shard_files, wait_until, write_table
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions
from wdsplit.conversion.run import Run
from wdsplit.engines.local import LocalEngine
from wdsplit.errors import CorruptDataError, InputError, OutputExistsError, WdsplitError
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.opening import open_storage
from wdsplit.tables import read
from wdsplit.tables.formats import parquet
from wdsplit.tables.read import open_inputs, read_rows


class Stop(Exception):  # noqa: N818 (it is no error)
    """Stops a conversion."""


def stop_after(num_shards):
    def stop(progress):
        if progress.name == "write" and progress.done >= num_shards:
            raise Stop

    return stop


def numbered(path, first, count=400):
    return write_table(
        path, {"label": range(first, first + count), "group": [n % 7 for n in range(count)]}, rows_per_group=50
    )


@pytest.mark.parametrize("changes", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {"group_by": "group"}])
def test_what_an_interrupted_run_has_spilled_is_not_taken_for_another(tmp_path, changes):
    old, new = numbered(tmp_path / "old.parquet", 0), numbered(tmp_path / "new.parquet", 1000)
    with pytest.raises(Stop):
        convert(old, tmp_path / "out", options(shards=4, shuffle=True), stop_after(1))
    assert (tmp_path / "out" / RUN_FOLDER / "spill").exists()
    converted(new, tmp_path / "out", shards=4, overwrite=True, **changes)
    converted(new, tmp_path / "fresh", shards=4, **changes)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "fresh")
    assert sorted(labels(tmp_path / "out", "label.cls")) == list(range(1000, 1400))


def test_rows_that_are_spilled_are_kept_when_a_run_is_stopped_and_are_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.scatter._LEAST_BYTES", 4096)
    path, scattered = numbered(tmp_path / "in.parquet", 0), []

    def stop(progress):
        scattered.append(progress.done)
        if len(scattered) == 3:
            raise Stop

    chosen = PlanOptions(shards=4, shuffle=True)
    with pytest.raises(Stop):
        convert(path, tmp_path / "out", ConvertOptions(chosen, memory=1), stop)
    assert 0 == scattered[0] < scattered[-1] < 400
    seen = []
    convert(
        path,
        tmp_path / "out",
        ConvertOptions(chosen, memory=1, resume=True),
        lambda progress: seen.append(progress.done) if progress.name == "scatter" else None,
    )
    assert seen[0] == scattered[-1], "it begins with what is there"
    assert max(seen) == 400
    converted(path, tmp_path / "fresh", shards=4, shuffle=True)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "fresh")


@pytest.mark.parametrize("damaged", ["tasks.json", "*[0-9].json", "*.arrow"])
def test_spill_files_that_a_power_failure_has_emptied_are_made_again_or_named(tmp_path, damaged):
    path, chosen = numbered(tmp_path / "in.parquet", 0), PlanOptions(shards=4, shuffle=True)
    with pytest.raises(Stop):
        convert(path, tmp_path / "out", ConvertOptions(chosen), stop_after(0))
    found = list((tmp_path / "out" / RUN_FOLDER / "spill").glob(damaged))
    assert found
    for path_of_spill in found:
        path_of_spill.write_bytes(bytes(100))
    resumed = ConvertOptions(chosen, resume=True)
    if damaged.endswith("arrow"):
        with pytest.raises(CorruptDataError, match="a spill file is damaged") as caught:
            convert(path, tmp_path / "out", resumed)
        assert "--overwrite" in caught.value.remedy
        return
    convert(path, tmp_path / "out", resumed)
    assert sorted(labels(tmp_path / "out", "label.cls")) == list(range(400))


@pytest.mark.parametrize("changes", [{"where": "n < 30"}, {"where": "text == 'a3'"}, {"splits": {"a": 0.5, "b": 0.5}}])
def test_tables_with_views_are_selected_from(tmp_path, changes):
    if not hasattr(pa, "string_view"):
        pytest.skip("this pyarrow has no views")
    numbers = list(range(60))
    table = pa.table({"n": numbers, "text": pa.array([f"a{n}" for n in numbers], pa.string_view())})
    path = str(tmp_path / "in.arrow")
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    if "splits" in changes:
        from wdsplit.conversion.convert import convert_splits

        manifests = convert_splits(path, tmp_path / "out", ConvertOptions(PlanOptions(shards=1), **changes))
        assert sum(manifest.num_samples for manifest in manifests.values()) == 60
        return
    convert(path, tmp_path / "out", ConvertOptions(PlanOptions(shards=1), **changes))
    found = [int(fields["cls"]) for _, fields in real_samples(tmp_path / "out")]
    assert found == (list(range(30)) if "n" in changes["where"] else [3])


def test_a_run_whose_rows_are_all_dropped_is_no_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.scatter._LEAST_BYTES", 1)
    path = write_table(tmp_path / "in.parquet", {"label": range(7)}, rows_per_group=1)
    convert(path, tmp_path / "out", ConvertOptions(PlanOptions(shards=3, shuffle=True, pad="drop"), memory=1))
    assert len(labels(tmp_path / "out")) == 6


@pytest.mark.parametrize("most", [256, 2])
def test_a_group_that_is_larger_than_may_be_held_comes_in_parts_and_in_order(tmp_path, monkeypatch, most):
    monkeypatch.setattr("wdsplit.conversion.shuffle.scatter._LEAST_BYTES", 20_000)
    monkeypatch.setattr("wdsplit.conversion.shuffle.steps._MAX_PARTS", most)
    groups = [0 if n % 3 else n for n in range(3000)]
    path = write_table(tmp_path / "in.parquet", {"label": range(3000), "group": groups}, rows_per_group=100)
    plan = PlanOptions(shards=2, group_by="group")
    convert(path, tmp_path / "small", ConvertOptions(plan, mapping={"cls": "label"}, memory=1))
    convert(path, tmp_path / "large", ConvertOptions(plan, mapping={"cls": "label"}))
    assert shard_files(tmp_path / "small") == shard_files(tmp_path / "large")
    found = labels(tmp_path / "small")
    assert sorted(found) == list(range(3000))
    assert [n for n in found if n % 3] == [n for n in range(3000) if n % 3]


def test_columns_beside_a_mapping_are_kept_for_tars_too(tmp_path):
    table = {"image": [b"\xff\xd8\xff", b"\xff\xd8\xfe"], "label": [1, 2], "text": ["a", "b"]}
    converted(write_table(tmp_path / "in.parquet", table), tmp_path / "first", shards=1)
    tar = str(tmp_path / "first" / "000000.tar")
    plan = planned(tar, ConvertOptions(mapping={"img": "jpg"}, columns=("cls",)))
    assert [field.name for field in plan.fields] == ["img", "cls"]
    with pytest.raises(InputError, match="columns cannot be used"):
        planned(tar, ConvertOptions(mapping={"img": "jpg"}, columns=("nosuch",)))


def test_a_folder_with_a_dataset_of_ours_gives_its_shards_and_not_its_manifest(tmp_path):
    converted(write_table(tmp_path / "in.parquet", {"label": range(20)}), tmp_path / "first", shards=3)
    converted(str(tmp_path / "first"), tmp_path / "again", shards=5)
    assert labels(tmp_path / "again") == list(range(20))


def test_a_compressed_table_in_a_folder_is_not_left_out_silently(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n\n1\n")
    (tmp_path / "in" / "b.csv.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError, match="compressed") as caught:
        converted(str(tmp_path / "in"), tmp_path / "out")
    assert caught.value.place.endswith("b.csv.gz")


def test_the_size_of_columns_that_are_not_written_does_not_count(tmp_path):
    table = {"image": [os.urandom(10_000) for _ in range(300)], "label": range(300)}
    path = write_table(tmp_path / "in.parquet", table)
    few = planned(path, ConvertOptions(PlanOptions(shard_size=500_000), columns=("label",)))
    many = planned(path, ConvertOptions(PlanOptions(shard_size=500_000)))
    assert (few.num_shards, many.num_shards) == (1, 7)


def test_no_more_shards_are_derived_than_there_are_rows(tmp_path):
    path = write_table(tmp_path / "in.parquet", {"label": range(100)})
    assert planned(path, ConvertOptions(PlanOptions(shard_size=1))).num_shards == 112


def test_many_small_batches_are_joined_in_linear_time_and_order(tmp_path, monkeypatch):
    path = write_table(tmp_path / "in.parquet", {"label": range(500)}, rows_per_group=1)
    monkeypatch.setattr(parquet, "MAX_BATCH_ROWS", 1)
    looked_at = []
    real = read.Rows.nbytes
    monkeypatch.setattr(read.Rows, "nbytes", property(lambda rows: looked_at.append(1) or real.fget(rows)))
    parts = list(read_rows(open_inputs([path]), 0, 500, ["label"]))
    assert np.concatenate([rows.numbers for rows in parts]).tolist() == list(range(500))
    assert len(looked_at) == 500


def test_a_second_ctrl_c_does_not_leave_threads_that_write(tmp_path):
    """The main thread waits for its threads however often it is interrupted."""
    ended, begun, pressed = [], [], threading.Event()

    def work(number):
        begun.append(number)
        pressed.wait()
        ended.append(number)

    def press():
        wait_until(lambda: len(begun) == 2, "both threads are at work")
        for _ in range(2):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.15)
        pressed.set()

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(2).map(work, range(8), threads=True))
    assert sorted(ended) == sorted(begun)
    presser.join()


def test_files_of_a_late_part_that_come_and_go_are_not_those_of_others(tmp_path):
    converted(numbered(tmp_path / "in.parquet", 0), tmp_path / "out", shards=2)
    storage = open_storage(str(tmp_path / "out"))

    def publish():
        for _ in range(2000):
            with storage.publish("000000.tar") as file:
                file.write([b"late"])

    late = threading.Thread(target=publish)
    late.start()
    while late.is_alive():
        Run(storage).refuse_output(overwrite=True, resume=False)
    (tmp_path / "out" / "other").touch()
    with pytest.raises(OutputExistsError, match="wdsplit did not write"):
        Run(storage).refuse_output(overwrite=True, resume=False)


LEAVE = """
import gc, threading, time
from wdsplit.engines.local import in_order

def leave():
    results = in_order(lambda number: time.sleep(0.01), range(100), 4)
    next(results)
    cycle = [results]
    cycle.append(cycle)

leave()
with getattr(threading, "_shutdown_locks_lock", threading.Lock()):
    gc.collect()
print("ended")
"""


def test_results_that_are_left_are_no_trap_for_the_collector():
    """It runs wherever memory is asked for: also in a thread that begins, and holds this lock of all threads."""
    ended = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (0, "ended\n")


def test_a_shuffle_that_fails_before_anything_is_spilled_leaves_nothing_to_continue(tmp_path):
    path = numbered(tmp_path / "in.parquet", 0)
    data = bytearray(Path(path).read_bytes())
    data[20:200] = bytes(180)
    Path(path).write_bytes(data)
    with pytest.raises(WdsplitError):
        converted(path, tmp_path / "out", shards=4, shuffle=True)
    assert not (tmp_path / "out" / RUN_FOLDER).exists()
