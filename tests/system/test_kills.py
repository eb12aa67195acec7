"""A real conversion that is killed at many moments, and one that runs out of disk."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tables import converted, mixed_table, session_processes, shard_files, start_script, wait_until, write_files
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER
from wdsplit.storage.local import is_temporary

NUM_KILLS = 10
SHARDS = 24

CONVERT = f"""
import sys
import wdsplit.conversion.shuffle.steps
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.options import PlanOptions

if __name__ == "__main__":
    source, output, resume, kind = sys.argv[1:]
    if kind == "merge":
        wdsplit.conversion.shuffle.steps._MAX_PARTS = 3
    plan = PlanOptions(shards={SHARDS}, shuffle=kind in ("shuffle", "merge"))
    options = ConvertOptions(plan, jobs=2, resume=resume == "resume", memory=2**20)
    print("ready", flush=True)
    convert(source, output, options)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return a folder of tables without JSON: its jobs are threads, so a run is at work as soon as it has started."""
    folder = tmp_path_factory.mktemp("input")
    write_files(folder, mixed_table(2400).drop_columns(["meta"]), [500, 1, 99], 50)
    return folder


@pytest.fixture(scope="module")
def json_inputs(tmp_path_factory):
    """Return a folder of tables with JSON: its jobs are processes."""
    folder = tmp_path_factory.mktemp("input")
    write_files(folder, mixed_table(2400), [500, 1, 99], 50)
    return folder


def start(source, output, kind):
    """Start a conversion, or go on with the one that is in the output; return it when its libraries are loaded."""
    resume = "resume" if (output / RUN_FOLDER / "plan.json").exists() else "new"
    script = start_script(CONVERT, source, output, resume, kind)
    assert script.stdout.readline() == "ready\n"
    return script


@pytest.mark.parametrize("kind", ["plain", "processes", "shuffle", "merge"])
def test_killed_at_any_moment_it_leaves_no_half_shard_and_ends_with_the_same_bytes(inputs, json_inputs, tmp_path, kind):
    inputs, shuffle = json_inputs if kind == "processes" else inputs, kind in ("shuffle", "merge")
    converted(str(inputs), tmp_path / "undisturbed", shards=SHARDS, shuffle=shuffle)
    whole = shard_files(tmp_path / "undisturbed")
    out, chance = tmp_path / "out", random.Random(kind)
    began = time.monotonic()
    start(inputs, out, kind).communicate()
    duration_s = time.monotonic() - began
    kills = finished = 0
    while kills < NUM_KILLS or not finished:
        if (out / HEADER_NAME).exists():
            assert shard_files(out) == whole
            shutil.rmtree(out)
            finished += 1
        script = start(inputs, out, kind)
        try:
            script.wait(chance.uniform(0, duration_s))
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            kills += 1
        script.communicate()
        wait_until(lambda script=script: not session_processes(script.pid), "no process is left")
        found = shard_files(out) if out.exists() else {}
        assert all(found[name] == whole[name] for name in found if not is_temporary(name))
    converted(str(inputs), out, shards=SHARDS, shuffle=shuffle, resume=out.exists() and any(out.iterdir()))
    assert shard_files(out) == whole


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a disk of 300 kB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk of its own takes the right to mount: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("shuffle", [(), ("--shuffle",)], ids=["plain", "shuffle"])
def test_a_full_disk_ends_the_run_with_a_clear_error_and_it_can_be_continued(inputs, tmp_path, small_disk, shuffle):
    out = small_disk / "out"
    arguments = ["convert", str(inputs), str(out), "--shards", str(SHARDS), "--jobs", "2", *shuffle]

    def run(*more):
        command = [sys.executable, "-W", "ignore", "-m", "wdsplit.cli", *arguments, *more]
        return subprocess.run(command, capture_output=True, text=True)

    ended = run()
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr and str(small_disk) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (out / HEADER_NAME).exists()
    assert not [name for name in os.listdir(out) if is_temporary(name)]
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    resumed = run("--resume") if (out / RUN_FOLDER / "plan.json").exists() else run()
    assert (resumed.returncode, resumed.stderr) == (0, "")
    converted(str(inputs), tmp_path / "undisturbed", shards=SHARDS, shuffle=bool(shuffle))
    assert shard_files(out) == shard_files(tmp_path / "undisturbed")
