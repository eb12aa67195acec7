"""A real conversion that is killed at many moments, and one that runs out of disk."""

import os
import random
import shutil
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from paths import SUPPORT
from stops import is_killed_in
from tables import converted, files_of, mixed_table, options, shard_files, without_progress, write_files
from wdsplit import convert, convert_splits
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER
from wdsplit.storage.local import is_temporary

NUM_KILLS = 6
SHARDS = 24

SPLITS = {"train": 0.6, "val": 0.4}
KINDS = {
    "plain": {"shards": SHARDS},
    "processes": {"shards": SHARDS},
    "memory": {"shards": SHARDS, "shuffle": True},
    "shuffle": {"shards": SHARDS, "shuffle": True},
    "merge": {"shards": SHARDS, "shuffle": True},
    "groups": {"shards": 9, "shuffle": True, "split_by": "label", "where": "label != 77", "splits": SPLITS},
}

CONVERT = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import wdsplit
import wdsplit.conversion.shuffle.needs
import wdsplit.conversion.shuffle.steps
import wdsplit.engines.local
from tables import options

wdsplit.engines.local._PROCESS_BYTES = 1

if __name__ == "__main__":
    source, output, resume, kind = sys.argv[1:]
    if kind in ("merge", "groups"):
        wdsplit.conversion.shuffle.steps._MAX_GATHERED = 3
    if kind == "groups":
        wdsplit.conversion.shuffle.needs._LEAST_BYTES = 20_000
    memory = 2**31 if kind == "memory" else 2**20
    chosen = options(jobs=2, resume=resume == "resume", memory=memory, **{KINDS!r}[kind])
    print("ready", flush=True)
    (wdsplit.convert_splits if chosen.splits else wdsplit.convert)(source, output, chosen)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return folders of tables: without JSON, whose jobs are threads; with JSON; with columns for splits."""
    folder, table = tmp_path_factory.mktemp("input"), mixed_table(2400)
    groups = pa.array([number * number % 301 for number in range(1500)])
    write_files(folder / "plain", table.drop_columns(["meta"]), [500, 1, 99], 50)
    write_files(folder / "processes", table, [500, 1, 99], 50)
    write_files(folder / "groups", table.slice(0, 1500).set_column(2, "label", groups), [400, 1], 50)
    return folder


def is_killed(seconds, source, output, kind):
    """Run a conversion, or go on with the one that is in the output; return whether it was killed."""
    return is_killed_in(seconds, CONVERT, source, output, "resume" if is_started(output) else "new", kind)


def is_started(output):
    """Tell whether there is a run to continue, or a split that is finished already."""
    return any(output.rglob(f"{RUN_FOLDER}/plan.json")) or any(output.glob(f"*/{HEADER_NAME}"))


def is_finished(output, kind):
    folders = [output / name for name in KINDS[kind].get("splits", [""])]
    return all((folder / HEADER_NAME).exists() for folder in folders)


def whole_files(folder):
    """Return the bytes of the tars, indexes and sample tables of a dataset, or of splits, under their final names."""
    files = files_of(folder) if folder.exists() else {}
    return {name: data for name, data in files.items() if name.endswith((".tar", ".places", ".tar.parquet"))}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_moment_it_leaves_no_half_shard_and_ends_with_the_same_bytes(inputs, tmp_path, kind):
    source = inputs / (kind if kind in ("processes", "groups") else "plain")
    make = convert_splits if "splits" in KINDS[kind] else convert
    make(source, tmp_path / "undisturbed", options(**KINDS[kind]))
    whole = whole_files(tmp_path / "undisturbed")
    out, chance = tmp_path / "out", random.Random(kind)
    began = time.monotonic()
    assert not is_killed(600, source, out, kind)
    duration_s = time.monotonic() - began
    kills = finished = 0
    while kills < NUM_KILLS or not finished:
        if is_finished(out, kind):
            left = {name for name in files_of(out) if RUN_FOLDER not in name}  # it goes last, and may be half gone
            assert left == files_of(tmp_path / "undisturbed").keys()
            assert whole_files(out) == whole
            shutil.rmtree(out)
            finished += 1
        kills += is_killed(chance.uniform(0, duration_s), source, out, kind)
        found = whole_files(out)
        assert all(found[name] == whole[name] for name in found)
    make(source, out, options(**KINDS[kind], resume=is_started(out) or is_finished(out, kind)))
    assert whole_files(out) == whole


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


@pytest.mark.parametrize("order", [("--no-shuffle",), ()], ids=["plain", "shuffle"])
def test_a_full_disk_ends_the_run_with_a_clear_error_and_it_can_be_continued(inputs, tmp_path, small_disk, order):
    out = small_disk / "out"
    arguments = ["convert", str(inputs / "plain"), str(out), "--shards", str(SHARDS), "--jobs", "2", *order]

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
    assert (resumed.returncode, without_progress(resumed.stderr)) == (0, "")
    converted(str(inputs / "plain"), tmp_path / "undisturbed", shards=SHARDS, shuffle=not order)
    assert shard_files(out) == shard_files(tmp_path / "undisturbed")
