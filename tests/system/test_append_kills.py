"""Real appends that are killed at many moments, locally and in a bucket, and run again."""

import os
import random
import signal
import subprocess
import time

import wdsplit
from made_datasets import numbers_table
from paths import SUPPORT
from tables import files_of, session_processes, start_script, wait_until, write_files

NUM_KILLS = 8
OLD, NEW = 400, 1600
"""The rows of the first version, and of the second."""

APPEND = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import wdsplit
import wdsplit.engines.local

wdsplit.engines.local._PROCESS_BYTES = 1

if __name__ == "__main__":
    source, output = sys.argv[1:]
    print("ready", flush=True)
    wdsplit.convert(source, output, append=True, samples_per_shard=50, jobs=2, memory=2**20)
"""


def shards_of(files):
    return {name: data for name, data in files.items() if name.endswith((".tar", ".places", ".tar.parquet"))}


def test_an_append_that_is_killed_leaves_the_last_version_whole_and_can_be_run_again(place, tmp_path):
    url, folder = place
    write_files(tmp_path / "old", numbers_table(OLD), [OLD], 50)
    write_files(tmp_path / "new", numbers_table(NEW).slice(OLD), [500, 1, 99], 50)
    for output in (url, str(tmp_path / "undisturbed")):
        wdsplit.convert(tmp_path / "old", output, shards=4)
    before = files_of(folder)
    began = time.monotonic()
    wdsplit.convert(tmp_path / "new", str(tmp_path / "undisturbed"), append=True, samples_per_shard=50, memory=2**20)
    whole, chance = shards_of(files_of(tmp_path / "undisturbed")), random.Random(url[:2])
    duration_s = 2 * (time.monotonic() - began) + 0.5
    kills = 0
    for _ in range(4 * NUM_KILLS):
        script = start_script(APPEND, tmp_path / "new", url)
        assert script.stdout.readline() == "ready\n"
        try:
            script.wait(chance.uniform(0, duration_s))
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            kills += 1
        said = script.communicate()[1]
        wait_until(lambda script=script: not session_processes(script.pid), "no process is left")
        assert script.returncode in (0, -signal.SIGKILL), said
        files = files_of(folder)
        assert {name: files[name] for name in before if name != "wdsplit.json"} == {
            name: data for name, data in before.items() if name != "wdsplit.json"
        }
        found = shards_of(files)
        assert all(found[name] == whole[name] for name in found)
        assert len(wdsplit.Samples(url)) in (OLD, NEW) and len(wdsplit.Samples(url, version=1)) == OLD
        if kills >= NUM_KILLS:
            break
        if len(wdsplit.Samples(url)) == NEW:  # begin again
            for name in files.keys() - before.keys():
                (folder / name).unlink()
            (folder / "wdsplit.json").write_bytes(before["wdsplit.json"])
    assert kills >= NUM_KILLS // 2
    made = wdsplit.convert(tmp_path / "new", url, append=True, samples_per_shard=50, memory=2**20)
    assert (made.version, made.num_samples) == (2, NEW)
    assert shards_of(files_of(folder)) == whole
    assert sorted(int(each["cls"]) for each in wdsplit.Samples(url)) == list(range(NEW))
