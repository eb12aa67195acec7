"""The runner of passes and its notes, with a pass that squares numbers."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.engines.local import LocalEngine
from wdsplit.errors import ConvertError, CorruptDataError
from wdsplit.jobs import notes
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.record import Record
from wdsplit.jobs.run import Job, Pass, run
from wdsplit.storage.local import LocalStorage

NUM_ITEMS = 20


@dataclass(frozen=True, kw_only=True)
class Squares(Job):
    fails_at: int = -1
    run = "plan"
    run_folder = "run"


def square(job, done, storage, items):
    for item in items:
        if item == job.fails_at:
            raise ConvertError("stopped")
        done.append(item)
        yield item * item


def carried_out(output, done=None, folder="notes", task_items=3, **changes):
    """Run the pass; return its results, and the amounts that were reported."""
    results, reported, job = {}, [], Squares(output=str(output), **changes)
    each = Pass(
        "squares",
        NUM_ITEMS,
        partial(square, job, [] if done is None else done),
        int,
        folder,
        amounts=np.arange(NUM_ITEMS),
        task_items=lambda num_left: task_items,
    )
    run(job, each, LocalEngine(), results.__setitem__, lambda *amounts: reported.append(amounts))
    return results, reported


SQUARES = {item: item * item for item in range(NUM_ITEMS)}


@pytest.mark.parametrize("stop", [0, 7, 19])
def test_what_has_a_note_is_not_done_again_however_it_is_cut_into_tasks(tmp_path, stop):
    first, second = [], []
    with pytest.raises(ConvertError, match="stopped"):
        carried_out(tmp_path, first, fails_at=stop)
    results, reported = carried_out(tmp_path, second, task_items=5)
    assert (first, second) == ([*range(stop)], [*range(stop, NUM_ITEMS)])
    assert results == SQUARES
    assert reported[0] == (sum(first), 190, sum(first)) and reported[-1] == (190, 190, sum(first))


def test_a_transient_pass_leaves_no_notes_and_a_run_that_another_has_taken_over_ends(tmp_path):
    assert carried_out(tmp_path, folder="")[0] == SQUARES
    with pytest.raises(ConvertError, match="another run has taken over"):
        carried_out(tmp_path, shared=True)
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_ended_leaves_the_folder_to_the_next_one(tmp_path):
    storage = LocalStorage(str(tmp_path))
    with ExitStack() as after:
        run, following = Record(storage, "run"), Record(storage, "run")
        with run.locked():
            run.begin({"plan": "a"})
            run.end()
            after.enter_context(following.locked())
        assert storage.list("run") == ["lock"]
    assert storage.list() == []


items = st.integers(0, NUM_ITEMS - 1)


@given(st.lists(st.tuples(items, items, items, st.booleans())), st.tuples(items, items, st.integers(1, 4)))
def test_any_notes_give_each_item_once_and_all_that_one_of_them_has(tmp_path_factory, written, asked):
    storage = LocalStorage(str(tmp_path_factory.mktemp("notes")))
    found, known = Notes(storage, "notes"), {}
    for first, last, length, is_torn in written:
        results = [item * item for item in range(first, last + 1)][:length]
        found.write("squares", range(first, last + 1), results)
        known[first, last] = set() if is_torn else set(range(first, first + len(results)))
        if is_torn:
            with storage.publish(f"notes/squares-{first:08d}-{last + 1:08d}.json") as file:
                file.write([b"[1, "])
    found.write("squares~", range(NUM_ITEMS), [5] * NUM_ITEMS)
    wanted = range(asked[0], max(asked[:2]) + 1, asked[2])
    read = list(found.read("squares", wanted, int))
    assert sorted(read) == [(item, item * item) for item in wanted if any(item in each for each in known.values())]


@pytest.mark.parametrize("content", [{"5": 25}, list(range(7)), ["x"] * 3, 5])
def test_a_note_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "notes").mkdir()
    path = tmp_path / "notes" / "squares-00000005-00000008.json"
    path.write_bytes(orjson.dumps(content))
    with pytest.raises(CorruptDataError, match="a progress note of the run is damaged") as caught:
        list(Notes(LocalStorage(str(tmp_path)), "notes").read("squares", range(NUM_ITEMS), int))
    assert caught.value.place == str(path)


def test_results_that_are_read_together_are_noted_together_by_the_first_reader(tmp_path, monkeypatch):
    carried_out(tmp_path)
    found, wanted = Notes(LocalStorage(str(tmp_path)), "notes"), range(1, NUM_ITEMS, 4)
    expected = [item * item for item in wanted]
    assert found.collect("some", "squares", wanted, int) == expected
    for path in tmp_path.glob("notes/squares-*"):
        path.unlink()
    assert found.collect("some", "squares", wanted, int) == expected
    with pytest.raises(CorruptDataError, match="the note of a task is missing"):
        found.collect("others", "squares", wanted, int)


def test_a_note_that_grows_is_written_anew_only_so_often(tmp_path, monkeypatch):
    monkeypatch.setattr(notes, "_MOST_RESULTS", 8)
    carried_out(tmp_path, task_items=NUM_ITEMS)
    sizes = [len(orjson.loads(path.read_bytes())) for path in sorted(tmp_path.glob("notes/*"))]
    assert sizes == [8, 8, 4]
