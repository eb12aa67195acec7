"""What holds for every engine: checks that are given one. As a program: all of them, on the Ray cluster named."""

import json
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest

import wdsplit
from tables import files_of
from wdsplit.checks.verify import verify
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.conversion.plan.options import ConvertOptions, IndexOptions
from wdsplit.errors import ConvertError, CorruptDataError, InputError, StorageError, UnansweredError


def square(number):
    return number * number


def fail_at(bad, number):
    if number == bad:
        raise InputError("a value is null", place=f"row {number}", found="None", key="k", offset=7)
    return number


def fail_plainly(number):
    raise RuntimeError(f"task {number}")


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


class Asked(Sequence):
    """Tasks, which note how many were asked for."""

    def __init__(self, count):
        self.count, self.most = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        if place >= self.count:
            raise IndexError(place)
        self.most = max(self.most, place + 1)
        return place


def check_every_task_has_its_result_once(engine, folder):
    for count in (0, 1, 50):
        assert sorted(engine.map(square, range(count))) == [number * number for number in range(count)]


def check_the_error_of_a_task_arrives_as_it_is(engine, folder):
    with pytest.raises(InputError) as caught:
        list(engine.map(partial(fail_at, 3), range(20)))
    assert str(caught.value) == "a value is null\n  place: row 3\n  found: None"
    assert (caught.value.key, caught.value.offset) == ("k", 7)


def check_an_error_that_nobody_raised_on_purpose_arrives_too(engine, folder):
    with pytest.raises(RuntimeError, match="task 0"):
        list(engine.map(fail_plainly, [0, 0]))


def check_a_task_that_kills_its_worker_is_an_error_with_a_remedy(engine, folder):
    with pytest.raises(ConvertError, match="worker") as caught:
        list(engine.map(die, range(2)))
    assert "--resume" in caught.value.remedy


def check_tasks_are_asked_for_as_they_are_handed_out(engine, folder):
    tasks = Asked(100_000)
    results = engine.map(square, tasks)
    next(results)
    assert 1 <= tasks.most < 1000
    results.close()


def check_datasets_are_the_same_bytes_and_verified_and_indexed(engine, folder):
    """Of a table with several row groups a shard, in its order, and shuffled with little memory."""
    for name, options in {
        "plain": ConvertOptions(shards=8, world_size=4, shuffle=False),
        "shuffled": ConvertOptions(shards=8, shuffle=True, seed=3),
    }.items():
        chosen = replace(options, memory=1, emit=("dali", "wids"))
        expected, found = folder / f"{name}-one", folder / name
        wdsplit.convert(folder / "in.parquet", expected, chosen)
        wdsplit.convert(folder / "in.parquet", found, chosen, engine=engine)
        assert files_of(found) == files_of(expected)
        assert verify(str(found), engine=engine).problems == ()
    places = []
    for path, used in ((expected, None), (found, engine)):
        (path / "wdsplit.json").unlink()
        index_tars(path, IndexOptions(overwrite=True), engine=used)
        places.append({name: data for name, data in files_of(path).items() if name.endswith(".places")})
    assert len(places[0]) == 8 and places[0] == places[1]
    tar = found / "000005.tar"
    tar.write_bytes(tar.read_bytes()[:-1] + b"x")
    problems = verify(str(found), engine=engine).problems
    assert [type(problem) for problem in problems] == [CorruptDataError] * len(problems)
    assert str(tar) in problems[0].place


def check_rows_of_many_tasks_are_merged_before_they_are_written(engine, folder):
    options, seen = ConvertOptions(shards=8, shuffle=True, pad="drop"), []
    wdsplit.convert(folder / "in.parquet", folder / "once", options)
    with (
        patch("wdsplit.conversion.shuffle.steps._MAX_GATHERED", 3),
        patch("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096),
    ):
        wdsplit.convert(folder / "in.parquet", folder / "merged", options, seen.append, engine=engine, memory=1)
    merged = [progress for progress in seen if progress.name == "merge"]
    assert merged[-1].done == merged[-1].total > 1
    assert files_of(folder / "merged") == files_of(folder / "once")


def check_annotations_are_the_same_bytes(engine, folder):
    options = ConvertOptions(shards=8, key="label", columns=("bin",))
    wdsplit.convert(folder / "in.parquet", folder / "annotated", options)
    rows = pq.read_table(folder / "in.parquet").select(["label", "group", "bin"])
    rows = rows.rename_columns(["label", "group", "payload"])
    pq.write_table(rows.take(np.arange(len(rows))[::-1]), folder / "groups.parquet", row_group_size=100)
    given = folder / "annotated", folder / "groups.parquet", "label", "groups"
    wdsplit.annotate(*given)
    expected = files_of(folder / "annotated/fields")
    wdsplit.drop_annotation(folder / "annotated", "groups")
    with patch("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096):
        wdsplit.annotate(*given, wdsplit.AnnotateOptions(memory=1), engine=engine)
    assert files_of(folder / "annotated/fields") == expected
    assert len(expected) == 8 * 3 + 2
    assert verify(str(folder / "annotated"), engine=engine).problems == ()


def ray_check_a_function_is_mapped_to_the_same_bytes(engine, folder):
    data = folder / "mapped"
    wdsplit.convert(folder / "in.parquet", data, ConvertOptions(shards=8, key="label", columns=("bin",)))
    expected = wdsplit.map_samples(data, "mapped_functions:shown_bin", "made")
    files = files_of(data / "fields")
    wdsplit.drop_annotation(data, "made")
    assert wdsplit.map_samples(data, "mapped_functions:shown_bin", "made", engine=engine) == expected
    assert files_of(data / "fields") == files
    with pytest.raises(ConvertError, match="8 tasks failed") as caught:
        wdsplit.map_samples(data, "mapped_functions:values", "other", engine=engine)
    assert "the function raised an error" in caught.value.found and "KeyError: 'cls'" in caught.value.found


def ray_check_what_may_pass_is_tried_again_and_what_cannot_is_not(engine, folder):
    tries = folder / "tries"
    tries.mkdir()
    assert list(engine.map(partial(unanswered_at_first, tries, UnansweredError), [0])) == [0]
    assert len(list(tries.iterdir())) == 2
    with pytest.raises(StorageError, match="not now") as caught:
        list(engine.map(partial(unanswered_at_first, tries, StorageError), [1]))
    assert len(list(tries.iterdir())) == 3
    assert "on node" in caught.value.place


def ray_check_a_store_that_never_answers_ends_the_run(engine, folder):
    tries = folder / "more-tries"
    tries.mkdir()
    with pytest.raises(UnansweredError, match="not now"):
        list(engine.map(partial(never_answered, tries), range(1000)))
    assert 10 <= len(list(tries.iterdir())) < 300


def ray_check_tasks_run_where_processors_are(engine, folder):
    """And they alone count: the head of the cluster has none."""
    import ray

    nodes = {node["NodeID"]: node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]}
    assert sorted(nodes.values()) == [0, 1, 1]
    assert (engine.jobs, engine.jobs_of_a_node) == (2, 1)
    assert {nodes[node] for node in engine.map(node_of, range(20))} == {1}


def ray_check_who_has_left_the_cluster_joins_it_again(engine, folder):
    import ray

    results = engine.map(time.sleep, [0, 600, 600])
    assert next(results) is None
    results.close()
    assert not ray.is_initialized()
    assert engine.jobs == 2
    assert sorted(engine.map(square, range(3))) == [0, 1, 4]
    engine.close()
    assert not ray.is_initialized()
    assert list(engine.map(square, [3])) == [9]


def ray_check_no_signal_breaks_into_leaving_the_cluster(engine, folder):
    """Not even where it comes while Ray ends what it has begun."""
    import ray

    leave, handlers = ray.shutdown, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def leave_disturbed():
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        leave()

    assert list(engine.map(square, [3])) == [9]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", leave_disturbed)
        engine.close()
    assert not ray.is_initialized()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def ray_check_a_cluster_that_this_process_has_joined_itself_is_not_left(engine, folder):
    import ray

    assert list(engine.map(square, [3])) == [9]
    other = wdsplit.RayEngine()
    other.close()
    assert ray.is_initialized()


def ray_check_arrays_in_results_are_the_drivers_own(engine, folder):
    for array in engine.map(np.zeros, [200_000]):
        assert array.flags.owndata or array.base is None or not isinstance(array.base, memoryview)
        array[0] = 1


def node_of(number):
    import ray

    return ray.get_runtime_context().get_node_id()


def unanswered_at_first(tries, kind, number):
    (tries / uuid.uuid4().hex).touch()
    if len(list(tries.iterdir())) != 2:
        raise kind("not now", place="s3://bucket/train", url="s3://bucket/train")
    return number


def never_answered(tries, number):
    (tries / uuid.uuid4().hex).touch()
    raise UnansweredError("not now")


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}
RAY_CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("ray_check_")}


def main(address, folder):
    engine = wdsplit.RayEngine(address)
    found = {}
    for name, check in {**CHECKS, **RAY_CHECKS}.items():
        try:
            check(engine, Path(folder))
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
