import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

import wdsplit
from commands import done, refused
from stops import by_shares, run_shares
from tables import (
    DEADLINE_S,
    converted,
    files_below,
    files_of,
    mixed_table,
    noted_shards,
    planned,
    start_process,
    wait_until,
    write_files,
    write_table,
)
from tables import options as chosen
from wdsplit.conversion.convert import convert, convert_splits
from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.plan.saved_plan import parse_plan
from wdsplit.conversion.run import Run
from wdsplit.conversion.shares import Progress, commit_shares, convert_share, needed_passes, plan_shares
from wdsplit.conversion.shuffle.scatter import scatter
from wdsplit.conversion.shuffle.steps import read_cuts
from wdsplit.engines.local import LocalEngine
from wdsplit.errors import (
    ConvertError,
    CorruptDataError,
    DatasetNotFoundError,
    InputError,
    OutputExistsError,
    StorageError,
)
from wdsplit.jobs.record import Record
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER
from wdsplit.storage.local import LocalStorage, is_temporary
from wdsplit.storage.opening import open_storage


def saved_plan(path, storage_options=None):
    folder, _, name = str(path).rpartition("/")
    return parse_plan(open_storage(folder, storage_options).read(name), wdsplit.__version__).plan


def program(*arguments, folder=None):
    """Start the command line in a process of its own; it is ended with the test."""
    return start_process([sys.executable, "-m", "wdsplit.cli", *arguments], cwd=folder)


def ended(process, code=0):
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    return out if code == 0 else err


def assert_refused(kind, match, *actions):
    """Check that all of some actions are refused; return the last error."""
    for action in actions:
        with pytest.raises(kind, match=match) as found:
            action()
    return found.value


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Return a folder with a folder of uneven files of small row groups, an empty file among them."""
    folder = tmp_path_factory.mktemp("shares")
    table = mixed_table(400)
    names = pa.array([f"group {number * number % 37}" for number in range(400)])
    write_files(folder / "raw", table.append_column("name", names), [150, 0, 20, 7, 90], 30)
    return folder / "raw"


@pytest.fixture
def begun(raw, tmp_path):
    """Return a plan file, and the output that it begins."""
    plan_shares(raw, tmp_path / "out", tmp_path / "plan", chosen(shards=12))
    return tmp_path / "plan", tmp_path / "out"


@pytest.fixture(scope="module")
def whole(raw, tmp_path_factory):
    """Return what a conversion by one process gives."""
    output = tmp_path_factory.mktemp("whole") / "out"
    convert(raw, output, chosen(shards=12))
    return files_of(output)


# The same bytes


@pytest.mark.parametrize(("name", "shuffle"), [("a.csv", True), ("tars", False)])
def test_inputs_without_footers_give_the_bytes_of_one_process(raw, tmp_path, monkeypatch, name, shuffle):
    monkeypatch.setattr("wdsplit.tables.formats.text.BLOCK_BYTES", 100)
    source = tmp_path / name
    if name == "tars":
        converted(str(raw), source, shards=3)
    else:
        source.write_text("x,name\n" + "".join(f"{i},row {i}\n" for i in range(50)))
    plan = {"shards": 5, "shuffle": shuffle}
    convert(source, tmp_path / "one", chosen(**plan))
    by_shares(source, tmp_path / "out", plan, 2)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


def test_each_split_has_a_plan_of_its_own(raw, tmp_path):
    options = chosen(splits={"train": 0.8, "val": 0.2}, shards=4, key="caption")
    convert_splits(raw, tmp_path / "one", options)
    plans = plan_shares(raw, tmp_path / "out", tmp_path / "plan", options)
    assert list(plans) == [str(tmp_path / "plan.train"), str(tmp_path / "plan.val")]
    for plan in plans:
        run_shares(plan, 2)
        commit_shares(plan)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


def test_inputs_plan_and_output_may_be_in_a_bucket_whose_keys_no_plan_holds(raw, bucket, tmp_path, monkeypatch):
    source, plan = f"{bucket.put(raw, 'raw')}/*.parquet", f"{bucket.url}/plans/plan"
    options = chosen(shards=6, shuffle=True, emit=("energon",))
    convert(source, tmp_path / "one", options)
    credentials = {"key": os.environ["AWS_ACCESS_KEY_ID"], "secret": os.environ["AWS_SECRET_ACCESS_KEY"]}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    plan_shares(source, f"{bucket.url}/out", plan, options, credentials)
    run_shares(plan, 3, credentials)
    with pytest.raises(StorageError, match="credentials"):
        convert_share(plan, 0, 3, "write")
    assert commit_shares(plan, credentials).provenance["inputs"][0]["path"] == f"{bucket.url}/raw/part-00000.parquet"
    assert files_of(bucket.folder / "out") == files_of(tmp_path / "one")
    held = (bucket.folder / "plans" / "plan").read_bytes()
    assert not [value for value in credentials.values() if value.encode() in held]


# Many processes


@pytest.fixture
def long(tmp_path):
    """Return a plan that takes a process some seconds, its inputs, and its output."""
    write_files(tmp_path / "raw", mixed_table(3000), [1000], 100)
    plan_shares(tmp_path / "raw", tmp_path / "out", tmp_path / "plan", chosen(shards=300))
    return tmp_path / "plan", tmp_path / "raw", tmp_path / "out"


@pytest.mark.slow
def test_a_share_that_was_killed_is_run_again_and_what_it_has_written_is_kept(long, tmp_path):
    plan, source, output = long
    share = program("convert", "--plan", plan, "--share", "0/2", "--jobs", 1)
    wait_until(lambda: len(noted_shards(output)) >= 10, "10 shards are published")
    os.killpg(share.pid, signal.SIGKILL)
    share.communicate()
    kept = len(noted_shards(output))
    assert 10 <= kept < 150
    convert_share(plan, 1, 2)
    with pytest.raises(ConvertError) as found:
        commit_shares(plan)
    assert f"{150 - kept} missing" in found.value.found and found.value.found.endswith("unfinished shares: 0/2")
    progress = []
    done = convert_share(plan, 0, 2, progress=progress.append)
    assert (done.skipped, done.done, done.total) == (kept, 150, 150)
    assert (progress[0].done, progress[-1]) == (kept, done)
    commit_shares(plan)
    convert(source, tmp_path / "one", chosen(shards=300))
    assert files_of(output) == files_of(tmp_path / "one"), "and no temporary file is left"


def test_a_share_ends_when_another_run_takes_the_output_over(long, tmp_path, raw, whole):
    plan, _, output = long
    share = program("convert", "--plan", plan, "--share", "0/1", "--jobs", 1)
    wait_until(lambda: len(noted_shards(output)) >= 3, "3 shards are published")
    plan_shares(raw, output, tmp_path / "other", chosen(shards=12, overwrite=True))
    message = ended(share, code=1)
    assert "another run has taken over or finished the output" in message and str(output) in message
    (output / "000099.tar.places").write_bytes(b"of a task that had just looked at the plan")
    convert_share(tmp_path / "other", 0, 1)
    commit_shares(tmp_path / "other")
    assert files_of(output) == whole


def test_a_task_that_is_scattered_twice_with_other_memory_leaves_rows_that_belong_together(raw, tmp_path, monkeypatch):
    """As of a share that was thought to be dead: whichever ends last, what it noted is what it has written."""
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)
    options = chosen(shards=8, shuffle=True, memory=2**28 + 2**27 + 2**20)
    convert(raw, tmp_path / "one", options)
    plan_shares(raw, tmp_path / "out", tmp_path / "plan", options)
    convert_share(tmp_path / "plan", 0, 1, "scatter")
    spilled = tmp_path / "out" / RUN_FOLDER / "spill"
    first = {path.name: path.read_bytes() for path in spilled.iterdir()}
    notes = {name: data for name, data in first.items() if name.endswith(".json") and "-cuts-" not in name}
    assert notes
    for name in notes:
        (spilled / name).unlink()
    convert_share(tmp_path / "plan", 0, 1, "scatter", engine=LocalEngine(2))
    second = {path.name: path.read_bytes() for path in spilled.iterdir()}
    assert any(second[name] != data for name, data in notes.items()), "there is less memory for each job"
    assert all(second[name] == data for name, data in first.items() if name not in notes)
    assert len(second) > len(first)
    name = next(name for name, data in notes.items() if second[name] != data)
    (spilled / name).write_bytes(notes[name])
    convert_share(tmp_path / "plan", 0, 1, "write")
    commit_shares(tmp_path / "plan")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


@pytest.mark.parametrize("late", [{"memory": 1}, {"seed": 1}], ids=str)
def test_a_late_task_of_another_plan_or_other_cuts_takes_the_place_of_no_rows(raw, tmp_path, monkeypatch, late):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)
    plan_shares(raw, tmp_path / "late", tmp_path / "old", chosen(shards=4, shuffle=True, **late))
    convert_share(tmp_path / "old", 0, 1, "scatter")
    plan_shares(raw, tmp_path / "out", tmp_path / "plan", chosen(shards=4, shuffle=True))
    is_same_plan = saved_plan(tmp_path / "old").hash == saved_plan(tmp_path / "plan").hash
    assert is_same_plan == ("memory" in late)
    if not is_same_plan:
        convert_share(tmp_path / "plan", 0, 1, "scatter")
    for path in (tmp_path / "late" / RUN_FOLDER / "spill").iterdir():
        if "-cuts-" not in path.name:
            shutil.copy(path, tmp_path / "out" / RUN_FOLDER / "spill")
    run_shares(tmp_path / "plan", 1)
    commit_shares(tmp_path / "plan")
    convert(raw, tmp_path / "one", chosen(shards=4, shuffle=True))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


def test_a_task_that_comes_after_the_commit_leaves_nothing(raw, tmp_path, monkeypatch):
    plan, output = tmp_path / "plan", tmp_path / "out"
    plan_shares(raw, output, plan, chosen(shards=4, shuffle=True))
    saved = saved_plan(plan)
    cuts = read_cuts(open_storage(str(output)), saved)
    located = dataclasses.replace(saved, table=planned(raw, chosen()).table)
    late = ConvertJob(output=str(output), plan=located, buffer_bytes=2**30, shared=True)
    run_shares(plan, 1)
    committed = []

    def commit_once_begun(job, storage):
        if not committed:
            committed.append(commit_shares(plan))
        Record(storage, job.run_folder).refuse_taken_over(job.run, job.shared)

    monkeypatch.setattr(ConvertJob, "refuse_taken_over", commit_once_begun)
    with pytest.raises(ConvertError, match="another run has taken over or finished the output"):
        next(scatter(late, cuts, open_storage(str(output)), range(1)))
    assert committed and not (output / RUN_FOLDER).exists()


def test_temporary_names_tell_processes_of_several_machines_apart(tmp_path):
    """Machines number their processes alike, so the names must differ where the process and the file are the same."""
    code = """
import os, sys
from wdsplit.storage.local import LocalStorage
os.getpid = lambda: 7
with LocalStorage(sys.argv[1]).publish("000000.tar"):
    print(*[name for name in os.listdir(sys.argv[1]) if name[0] == "."])
"""
    names = {subprocess.check_output([sys.executable, "-c", code, tmp_path], text=True).strip() for _ in range(2)}
    assert len(names) == 2
    assert all(is_temporary(name) and name.startswith(".000000.tar.7-0") for name in names)
    assert is_temporary(".000000.tar.7-0.tmp"), "as earlier versions name them"


# Shares


def test_progress_counts_what_the_share_has_to_do(raw, tmp_path):
    plan_shares(raw, tmp_path / "out", tmp_path / "plan", chosen(shards=12, shuffle=True))
    scattered, written = [], []
    rows = [convert_share(tmp_path / "plan", share, 2, "scatter", scattered.append).done for share in range(2)]
    assert sum(rows) == 400 == sum(one.total for one in scattered if one.done == 0)
    done = convert_share(tmp_path / "plan", 1, 2, "write", written.append)
    assert done == written[-1] == Progress("write", 6, 6, 204, done.num_bytes)
    assert [one.done for one in written] == list(range(7))
    again = convert_share(tmp_path / "plan", 1, 2, "write")
    assert again == dataclasses.replace(done, skipped=6)


@pytest.mark.parametrize("most", [256, 3])
def test_a_plan_that_scatters_takes_its_passes_one_after_the_other(raw, tmp_path, monkeypatch, most):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)
    monkeypatch.setattr("wdsplit.conversion.shuffle.steps._MAX_GATHERED", most)
    plan, output = tmp_path / "plan", tmp_path / "out"
    plan_shares(raw, output, plan, chosen(shards=12, shuffle=True, memory=1))
    with pytest.raises(InputError, match="needs several passes") as found:
        convert_share(plan, 0, 2)
    passes = ("scatter", "write") if most == 256 else ("scatter", "merge", "write")
    options = ("--shuffle", "--overwrite", "--memory", 1, "--shards", 12, "--json")
    assert done("plan", raw, "--into", output, "-o", plan, *options).json["passes"] == list(passes)
    assert needed_passes(plan) == passes
    assert ", ".join(f"--pass {name}" for name in passes) in found.value.remedy
    for before, name in pairwise(passes):
        with pytest.raises(ConvertError, match=f"{before} pass is not complete") as found:
            convert_share(plan, 0, 2, name)
        assert "no share has finished" in found.value.found
        assert ("rows 0 to" if before == "scatter" else "merge 0 of") in found.value.found
        convert_share(plan, 0, 2, before)
        with pytest.raises(ConvertError, match=f"{before} pass is not complete") as found:
            convert_share(plan, 0, 2, name)
        assert found.value.found.endswith("unfinished shares: 1/2")
        convert_share(plan, 1, 2, before)
    next((output / RUN_FOLDER / "spill").glob("*-cuts-*")).unlink()
    with pytest.raises(ConvertError, match="cannot start its scatter pass"):
        convert_share(plan, 0, 2, "scatter")


def test_a_share_that_cannot_be_is_refused(begun, monkeypatch):
    plan, output = begun
    error = assert_refused(InputError, "invalid pass", partial(convert_share, plan, 0, 4, "wirte"))
    assert error.remedy == "did you mean 'write'?"
    for share, num_shares in ((16, 16), (-1, 4), (0, 0)):
        error = assert_refused(
            InputError, f"no share {share}/{num_shares}", partial(convert_share, plan, share, num_shares)
        )
        assert "counted from 0" in error.expected
    output.rename(output.with_name("elsewhere"))  # as on a machine with another folder
    actions = (lambda: convert_share(plan, 0, 1), lambda: commit_shares(plan))
    error = assert_refused(DatasetNotFoundError, "has no run of this plan", *actions)
    assert (error.place, error.found) == (str(output), "no such folder")
    assert "at the same path" in error.remedy
    assert not output.exists()
    monkeypatch.setattr("wdsplit.conversion.shares.version", lambda _: "99.0")
    error = assert_refused(InputError, "another version", *actions)
    assert "99.0" in error.expected and error.place == str(plan)
    data = plan.read_bytes()
    for keep in (0, 10, -1):
        plan.write_bytes(data[:keep])
        assert assert_refused(CorruptDataError, "damaged", *actions).place == str(plan)
    plan.unlink()
    assert assert_refused(DatasetNotFoundError, "plan file not found", *actions).place == str(plan)
    for path in ("s3://plan", "folder/"):
        assert_refused(InputError, "invalid path of a plan file", partial(commit_shares, path))


@pytest.mark.parametrize("changes", [{"shards": 6}, {"shards": 12, "emit": ("dali",)}], ids=str)
def test_a_plan_whose_output_was_taken_by_another_is_refused(begun, raw, tmp_path, changes):
    plan, output = begun
    plan_shares(raw, output, tmp_path / "other", chosen(overwrite=True, **changes))
    actions = (lambda: convert_share(plan, 0, 1), lambda: commit_shares(plan))
    error = assert_refused(OutputExistsError, r"made by another plan|made with other sidecars", *actions)
    assert error.place == str(output)
    assert files_below(output) == [f"{RUN_FOLDER}/lock", f"{RUN_FOLDER}/plan.json"]


def test_an_input_that_was_written_since_the_plan_is_refused(raw, tmp_path):
    source = Path(shutil.copytree(raw, tmp_path / "raw"))
    plan_shares(source, tmp_path / "out", tmp_path / "plan", chosen(shards=12))
    convert_share(tmp_path / "plan", 0, 2)
    os.utime(source / "part-00004.parquet")
    error = assert_refused(
        InputError, "has changed since it was planned", lambda: convert_share(tmp_path / "plan", 1, 2)
    )
    assert str(source / "part-00004.parquet") in error.place
    assert_refused(ConvertError, "shards are missing", lambda: commit_shares(tmp_path / "plan"))


# Committing


def test_committing_is_refused_until_all_shards_are_there_and_can_be_repeated(begun, whole, caplog):
    plan, output = begun
    for only in ("scatter", "merge"):
        assert convert_share(plan, 0, 2, only) == Progress(only, 0, 0), "a plan that keeps the order needs none"
    with pytest.raises(ConvertError, match="shards are missing") as found:
        commit_shares(plan)
    assert found.value.found == "12 missing: 000000.tar to 000011.tar; no share has finished"
    for share in (0, 3, 1):
        convert_share(plan, share, 4)
    with pytest.raises(ConvertError, match="shards are missing") as found:
        commit_shares(plan)
    assert found.value.found == "3 missing: 000006.tar to 000008.tar; unfinished shares: 2/4"
    assert not (output / HEADER_NAME).exists()
    convert_share(plan, 2, 4)
    manifest = commit_shares(plan)
    assert files_of(output) == whole
    assert not caplog.records
    assert commit_shares(plan) == manifest
    assert "already committed" in caplog.text
    assert files_of(output) == whole
    for action in (lambda: convert_share(plan, 0, 4), lambda: needed_passes(plan)):
        with pytest.raises(OutputExistsError, match="the plan is already committed"):
            action()
    assert files_of(output) == whole


def test_a_shard_that_was_lost_is_missed_and_written_again(begun, whole):
    plan, output = begun
    run_shares(plan, 3)
    (output / "000004.tar.places").write_bytes(b"")
    with pytest.raises(ConvertError) as found:
        commit_shares(plan)
    assert found.value.found == "1 missing: 000004.tar"
    assert convert_share(plan, 1, 3).skipped == 3
    commit_shares(plan)
    assert files_of(output) == whole


SHARE, SHARD = "*-share-0-of-3.json", "*-00000001-00000002.json"


def note_of(output, pattern):
    """Return the path of a note: that of a share, or that of the task of one shard."""
    (path,) = (output / RUN_FOLDER / "shards").glob(pattern)
    return path


@pytest.mark.parametrize("notes", [[SHARE], [SHARD], [SHARE, SHARD]])
def test_notes_of_shares_and_of_tasks_stand_in_for_each_other(begun, whole, notes):
    plan, output = begun
    run_shares(plan, 3)
    for note in notes:
        torn = note_of(output, note)
        torn.write_bytes(torn.read_bytes()[:-1])
    if len(notes) == 2:
        error = assert_refused(ConvertError, "shards are missing", lambda: commit_shares(plan))
        assert error.found == "1 missing: 000001.tar"
        convert_share(plan, 0, 3)
    commit_shares(plan)
    assert files_of(output) == whole


@pytest.mark.parametrize("change", [lambda row: row[:-1], lambda row: [*row[:2], 2**64 - 1, "00"]])
def test_a_note_that_somebody_has_changed_is_refused_and_named_and_can_be_removed(begun, whole, change):
    plan, output = begun
    run_shares(plan, 3)
    changed = note_of(output, SHARE)
    rows = orjson.loads(changed.read_bytes())
    changed.write_bytes(orjson.dumps([change(rows[0]), *rows[1:]]))
    with pytest.raises(CorruptDataError, match="a progress note of the run is damaged") as found:
        commit_shares(plan)
    assert (found.value.place, found.value.url) == (str(changed), str(changed))
    assert not (output / HEADER_NAME).exists()
    changed.unlink()
    commit_shares(plan)
    assert files_of(output) == whole


def test_shares_of_several_counts_fit_together_and_one_process_can_go_on_with_them(begun, raw, whole):
    plan, output = begun
    convert_share(plan, 0, 2)
    convert_share(plan, 2, 3)
    error = assert_refused(ConvertError, "shards are missing", lambda: commit_shares(plan))
    assert "2 missing: 000006.tar to 000007.tar" in error.found
    with LocalStorage(str(output)).lock(f"{RUN_FOLDER}/lock"):
        assert_refused(StorageError, "another process is writing", lambda: commit_shares(plan))
        convert_share(plan, 3, 12)
    convert(raw, output, chosen(shards=12, resume=True))
    assert files_of(output) == whole
    commit_shares(plan)


# Beginning


@pytest.mark.parametrize(
    ("output", "plan", "options", "kind", "match"),
    [
        ("taken", "plan", {}, OutputExistsError, "not empty"),
        ("new", "plan", {"key": "x"}, InputError, "duplicate key"),
        ("new", "plan", {"resume": True}, InputError, "cannot resume"),
        ("https://host/out", "plan", {}, InputError, "https:// can only be read"),
        ("taken/mine.txt/out", "plan", {}, InputError, "a parent of the output is a file"),
        ("new", "new/plan", {}, InputError, "inside the output"),
        ("new", "https://host/plan", {}, InputError, "can only be read"),
        ("new", "taken/mine.txt/plan", {}, StorageError, ""),
        ("new", "taken/mine.txt", {}, OutputExistsError, "another file|exists already"),
        ("new", "taken/mine.txt", {"overwrite": True}, OutputExistsError, "another file"),
    ],
)
def test_nothing_is_begun_where_convert_or_the_plan_file_is_refused(tmp_path, output, plan, options, kind, match):
    write_table(tmp_path / "in.parquet", {"x": [1, 1, 2], "y": [1, 2, 3]})
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("precious")
    before = files_of(tmp_path)
    given = [path if "://" in path else str(tmp_path / path) for path in (output, plan)]
    with pytest.raises(kind, match=match or None):
        plan_shares(tmp_path / "in.parquet", *given, chosen(shards=1, **options))
    assert files_of(tmp_path) == before
    assert kind is StorageError or not (tmp_path / "new").exists()


def test_a_plan_file_that_is_there_is_replaced_only_if_that_is_asked_for(begun, raw, tmp_path):
    plan, output = begun
    before = plan.read_bytes()
    with pytest.raises(OutputExistsError, match="plan file exists already"):
        plan_shares(raw, tmp_path / "new", plan, chosen(shards=6))
    assert plan.read_bytes() == before
    plan_shares(raw, output, plan, chosen(shards=6, overwrite=True))
    assert saved_plan(plan).num_shards == 6


def test_no_plan_is_left_of_a_run_that_cannot_begin(raw, tmp_path, monkeypatch):
    def full(*_):
        raise StorageError("the system refused: No space left on device")

    monkeypatch.setattr("wdsplit.conversion.shares.write_cuts", full)
    with pytest.raises(StorageError, match="No space left"):
        plan_shares(raw, tmp_path / "out", tmp_path / "plan", chosen(shards=6, shuffle=True))
    assert files_below(tmp_path) == []


def test_nothing_is_begun_if_the_plan_cannot_be_saved(begun, raw, tmp_path, whole):
    plan, output = begun
    (tmp_path / "file").touch()
    for _ in range(2):
        before = files_of(output)
        with pytest.raises(StorageError):
            plan_shares(raw, output, tmp_path / "file" / "plan", chosen(shards=6, overwrite=True))
        assert files_of(output) == before, "of a run without any shard, and of a dataset"
        if HEADER_NAME not in before:
            convert_share(plan, 0, 1)
            commit_shares(plan)
    assert files_of(output) == whole


# The command line


def test_the_commands_say_what_to_do_next_and_what_was_done(raw, tmp_path):
    plan, output = tmp_path / "my plan", tmp_path / "out"
    text = done("plan", raw, "--into", output, "-o", plan, "--shards", 4, "--shuffle").out
    steps = re.findall(r"^  wdsplit (.*)$", text, re.M)
    share = f"convert --plan '{plan}' --share"
    assert steps == [*(f"{share} I/N --pass {name}" for name in ("scatter", "write")), f"commit '{plan}'"]
    for name, said in (("scatter", "400 rows scattered"), ("write", "share 0/1: 4 shards, 400 samples")):
        assert said in done("convert", "--plan", plan, "--share", "0/1", "--pass", name).out
    assert f"{plan}: 4 shards, 400 samples" in done("commit", plan).out
    again = program("commit", plan)  # in a process, whose log nobody else has set up
    assert again.communicate()[1].count("already committed") == 1
    assert again.returncode == 0
    assert "already committed" in refused(2, "convert", "--plan", plan, "--share", "0/1", "--pass", "write")


def test_files_of_a_late_share_that_come_and_go_are_not_those_of_others(tmp_path):
    converted(write_table(tmp_path / "in.parquet", {"label": range(400)}), tmp_path / "out", shards=2)
    storage = open_storage(str(tmp_path / "out"))

    def publish():
        for _ in range(200):
            with storage.publish("000000.tar") as file:
                file.write([b"late"])

    late = threading.Thread(target=publish)
    late.start()
    while late.is_alive():
        Run(storage).refuse_output(overwrite=True, resume=False)
    (tmp_path / "out" / "other").touch()
    with pytest.raises(OutputExistsError, match="wdsplit did not write"):
        Run(storage).refuse_output(overwrite=True, resume=False)
