"""Datasets on a network file system: read, verified and written over a FUSE mount whose server goes and comes back."""

import gc
import json
import shutil
import signal
import subprocess
import sys

import pytest

import wdsplit
from made_datasets import sized_dataset
from mounts import Mount, why_not
from tables import DEADLINE_S, converted, mixed_table, noted_shards, shard_files, start_process, wait_until, write_files
from torchruns import delivered
from wdsplit.checks.verify import verify
from wdsplit.errors import DatasetNotFoundError
from wdsplit.shards.manifest import HEADER_NAME, shard_path

KINDS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}]
BATCH = 10
READ_AHEAD_BYTES = 65536
"""So little that the epoch does not lie in memory when the server goes."""
NUM_SAMPLES = 1800


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Return a dataset on the disk of more than what is read before the first batch comes."""
    return sized_dataset(tmp_path_factory.mktemp("local"), [300] * 6, lanes=6, window=16)


@pytest.fixture
def mounted(tmp_path):
    """Return a mount that can be read."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Mount(tmp_path / "mount") as mount:
        yield mount
        gc.collect()  # files that an error still refers to


@pytest.fixture
def remote(mounted, local):
    """Return the dataset on the mount."""
    shutil.copytree(local, mounted.source / "train")
    wait_until((mounted.folder / "train" / HEADER_NAME).exists, "the dataset is seen")
    return mounted.folder / "train"


def keys_of(path, **options):
    return [list(keys) for keys, _ in wdsplit.Loader(_tuples(path), BATCH, **options)]


def _tuples(path):
    return wdsplit.Dataset(path).to_tuple("__key__", "__position__")


# Reading


@pytest.mark.parametrize("options", KINDS, ids=["alone", "processes", "threads"])
def test_a_dataset_on_the_mount_is_the_one_on_the_disk(remote, local, options):
    assert keys_of(remote, **options) == keys_of(local)


READ = f"""
import json, sys
import wdsplit

if __name__ == "__main__":
    path, options, state = sys.argv[1], *map(json.loads, sys.argv[2:])
    dataset = wdsplit.Dataset(path, read_ahead_bytes={READ_AHEAD_BYTES}).to_tuple("__key__", "__position__")
    loader = wdsplit.Loader(dataset, {BATCH}, **options)
    if state:
        loader.load_state_dict(state)
    keys, told = [], ""
    try:
        for names, _ in loader:
            keys += names
            if len(keys) == {BATCH} and not state:
                print("begun", flush=True)
                input()
            last = loader.state_dict()
    except wdsplit.WdsplitError as error:
        told = f"{{type(error).__name__}}: {{error}}"
    print(json.dumps({{"keys": keys, "told": told, "state": last}}))
"""
"""Reads an epoch; waits after the first batch. What it ends with is told, unless the system ends it."""


def started(code, *arguments):
    """Run a script that may wait for a line."""
    return start_process([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE)


def reading(path, options, state=None):
    return started(READ, path, json.dumps(options), json.dumps(state))


def go_on(script):
    """Let a script go on; return what it tells at its end, which must not be a signal's."""
    output, errors = script.communicate("\n", timeout=DEADLINE_S)
    assert script.returncode == 0, errors or f"signal {-script.returncode}"
    return json.loads(output.splitlines()[-1])


def begun(script):
    assert script.stdout.readline() == "begun\n"
    return script


@pytest.mark.parametrize("options", KINDS, ids=["alone", "processes", "threads"])
def test_a_server_that_goes_is_told_with_the_file_and_what_is_left_comes_when_it_is_back(
    mounted, remote, local, options
):
    with begun(reading(remote, options)) as script:
        mounted.server.stop()
        first = go_on(script)
    assert first["told"].startswith(f"UnansweredError: the system refused: Input/output error\n  place: {remote}/")
    assert len(first["keys"]) < NUM_SAMPLES
    mounted.server.start()
    with reading(remote, options, first["state"]) as script:
        rest = go_on(script)
    assert rest["told"] == ""
    assert first["keys"] + rest["keys"] == delivered(keys_of(local))


def test_a_shard_that_vanishes_is_told_and_is_read_when_it_is_back(mounted, remote, local):
    shard = mounted.source / "train" / shard_path(3)
    shard.rename(shard.with_name("elsewhere"))
    wait_until(lambda: not (remote / shard.name).exists(), "the shard is gone")
    with pytest.raises(DatasetNotFoundError, match="no such file") as caught:
        keys_of(remote)
    assert caught.value.place == str(remote / shard.name)
    shard.with_name("elsewhere").rename(shard)
    wait_until((remote / shard.name).exists, "the shard is back")
    assert keys_of(remote) == keys_of(local)


VERIFY = """
import json, sys
import wdsplit.checks.verify

opened = wdsplit.checks.verify.open_shard

def open_and_wait(*arguments):
    found = opened(*arguments)
    print("begun", flush=True)
    input()
    wdsplit.checks.verify.open_shard = opened
    return found

wdsplit.checks.verify.open_shard = open_and_wait
report = wdsplit.checks.verify.verify(sys.argv[1])
print(json.dumps([str(problem) for problem in report.problems]))
"""


def test_verifying_tells_that_the_server_has_gone(mounted, remote):
    with begun(started(VERIFY, remote)) as script:
        mounted.server.stop()
        problems = go_on(script)
    assert len(problems) >= 6
    assert "Input/output error" in problems[0] and shard_path(0) in problems[0]


# Writing


@pytest.fixture
def writable(tmp_path):
    """Return a mount that can be written to."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Mount(tmp_path / "mount", "webdav") as mount:
        yield mount


CONVERT = """
import sys
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions

if __name__ == "__main__":
    source, output = sys.argv[1:]
    print("begun", flush=True)
    convert(source, output, ConvertOptions(shards=24, shuffle=False, jobs=1))
"""


@pytest.mark.parametrize("shuffle", [False, True], ids=["plain", "shuffle"])
def test_what_is_converted_onto_the_mount_is_what_is_converted_onto_a_disk(writable, tmp_path, shuffle):
    write_files(tmp_path / "input", mixed_table(600), [500, 1, 99], 50)
    converted(str(tmp_path / "input"), writable.folder / "out", shards=6, shuffle=shuffle)
    converted(str(tmp_path / "input"), tmp_path / "disk", shards=6, shuffle=shuffle)
    whole = shard_files(tmp_path / "disk")
    assert shard_files(writable.folder / "out") == whole
    assert verify(str(writable.folder / "out")).problems == ()
    wait_until(lambda: shard_files(writable.source / "out") == whole, "the server has all")


def test_a_conversion_onto_the_mount_that_is_killed_leaves_no_lock_and_is_resumed(writable, tmp_path):
    """Meanwhile another on the same machine is refused."""
    source, out = tmp_path / "input", writable.folder / "out"
    write_files(source, mixed_table(2400), [500, 1, 99], 50)
    script = begun(started(CONVERT, source, out))
    with script:
        wait_until(lambda: len(noted_shards(out)) >= 3, "three shards are done")
        script.send_signal(signal.SIGSTOP)
        program = [sys.executable, "-W", "ignore", "-m", "wdsplit.cli"]
        command = [*program, "convert", str(source), str(out), "--no-shuffle", "--shards=24"]
        other = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=DEADLINE_S)
        script.kill()
    assert other.returncode == 1 and "another process is writing" in other.stderr
    assert not (out / HEADER_NAME).exists()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert resumed.returncode == 0, resumed.stderr
    converted(str(source), tmp_path / "disk", shards=24)
    assert shard_files(out) == shard_files(tmp_path / "disk")
    assert verify(str(out)).problems == ()


def test_a_server_that_goes_for_a_moment_may_end_a_conversion_which_then_can_be_resumed(writable, tmp_path):
    source, out = tmp_path / "input", writable.folder / "out"
    write_files(source, mixed_table(2400), [500, 1, 99], 50)
    with begun(started(CONVERT, source, out)) as script:
        wait_until(lambda: len(noted_shards(out)) >= 3, "three shards are done")
        writable.server.stop()
        writable.server.start()
        _, errors = script.communicate(timeout=DEADLINE_S)
    if script.returncode:
        assert "Error: the system refused" in errors and str(out) in errors
        assert not (out / HEADER_NAME).exists()
        converted(str(source), out, shards=24, resume=True)
    converted(str(source), tmp_path / "disk", shards=24)
    assert shard_files(out) == shard_files(tmp_path / "disk")
