"""Erasing and gc that are killed at many moments, locally and in a bucket, and run again."""

import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import wdsplit
from made_datasets import numbers_table
from paths import SUPPORT
from tables import files_of, session_processes, start_script, wait_until

NUM_KILLS = 10
NUM_ROWS, ERASED = 400, range(5, 400, 10)

ERASE = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import wdsplit
import wdsplit.engines.local

wdsplit.engines.local._PROCESS_BYTES = 1

if __name__ == "__main__":
    dataset, keys = sys.argv[1:]
    print("ready", flush=True)
    wdsplit.erase(dataset, keys=keys, jobs=2)
    wdsplit.gc(dataset)
"""


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path):
    """Return the URL of a store, and the folder where its files are."""
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        return bucket.url, bucket.folder
    return str(tmp_path), tmp_path


def make(url):
    wdsplit.convert(numbers_table(NUM_ROWS), url, shards=40, lanes=4, shuffle=False)
    rows = [{"key": f"{row:08d}", "score": row, "vector": np.full(4, row, np.float32)} for row in range(NUM_ROWS)]
    wdsplit.annotate(url, rows, key="key", name="more")
    wdsplit.make_view(url, "half", where="score >= 200")


def written(folder):
    """Return the files of a dataset, without those that have times."""
    return {name: data for name, data in files_of(folder).items() if not name.endswith(("wdsplit.json", "2.json"))}


def test_erasing_that_is_killed_leaves_the_last_version_whole_and_can_be_run_again(place, tmp_path):
    (store, files), chance = place, random.Random(str(place[0])[:2])
    url, folder, undisturbed = f"{store}/train", files / "train", f"{store}/undisturbed"
    (tmp_path / "keys.txt").write_text("\n".join(f"{row:08d}" for row in ERASED))
    make(url)
    shutil.copytree(folder, tmp_path / "before")
    make(undisturbed)
    script = start_script(ERASE, undisturbed, tmp_path / "keys.txt")
    assert script.stdout.readline() == "ready\n"
    began = time.monotonic()
    assert script.wait() == 0
    duration_s, whole = 1.2 * (time.monotonic() - began), written(files / "undisturbed")
    left, kills, numbers = sorted({*range(NUM_ROWS)} - {*ERASED}), 0, set()
    for _ in range(4 * NUM_KILLS):
        script = start_script(ERASE, url, tmp_path / "keys.txt")
        assert script.stdout.readline() == "ready\n"
        try:
            script.wait(chance.uniform(0, duration_s))
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            kills += 1
        said = script.communicate()[1]
        wait_until(lambda script=script: not session_processes(script.pid), "no process is left")
        assert script.returncode in (0, -signal.SIGKILL), said
        version = wdsplit.list_versions(url)[-1].number
        numbers.add(version)
        rows = list(range(NUM_ROWS)) if version == 1 else left
        samples = wdsplit.Samples(url, join=["more"], version=version)
        assert [int(each["cls"]) for each in samples] == rows
        assert [
            len(wdsplit.Samples(url, version=version, **asked)) for asked in ({"view": "half"}, {"where": "score > 9"})
        ] == [
            sum(row >= 200 for row in rows),
            sum(row > 9 for row in rows),
        ]
        assert wdsplit.verify(url, version=version).problems == ()
        if kills >= NUM_KILLS:
            break
        if script.returncode == 0:  # begin again
            assert written(folder) == whole
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "before", folder)
    assert kills >= NUM_KILLS // 2 and numbers == {1, 2}
    wdsplit.erase(url, keys=tmp_path / "keys.txt")
    wdsplit.gc(url)
    assert written(folder) == whole
