"""Appends, erasing and gc that are killed at many moments, locally and in a bucket, and run again."""

import random
import shutil
import time

import numpy as np

import wdsplit
from made_datasets import numbers_table
from paths import SUPPORT
from stops import is_killed_in
from tables import files_of, write_files

NUM_KILLS = 6
RUN = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import wdsplit
import wdsplit.engines.local

wdsplit.engines.local._PROCESS_BYTES = 1

if __name__ == "__main__":
    kind, source, output = sys.argv[1:]
    print("ready", flush=True)
    if kind == "append":
        wdsplit.convert(source, output, append=True, samples_per_shard=50, jobs=2, memory=2**20)
    else:
        wdsplit.erase(output, keys=source, jobs=2)
        wdsplit.gc(output)
"""


def written(folder, kind):
    """Return the shards of a dataset, with their files; after `gc` all files, without those that have times."""
    names = (".tar", ".places", ".tar.parquet") if kind == "append" else ""
    files = {name: data for name, data in files_of(folder).items() if name.endswith(names)}
    return {name: data for name, data in files.items() if not name.endswith(("wdsplit.json", "2.json"))}


def beside(url):
    """Return the URL of the dataset whose run is not disturbed."""
    return url.removesuffix("train") + "undisturbed"


def killed_often(place, tmp_path, kind, source, check):
    """Run it again and again; after each time `check` is given the version. It ends as the undisturbed one did.

    Returns the versions that were there.
    """
    (url, folder), chance, numbers, kills = place, random.Random(kind + place[0][:2]), set(), 0
    shutil.copytree(folder, tmp_path / "before")
    began = time.monotonic()
    assert not is_killed_in(600, RUN, kind, source, beside(url))
    duration_s, whole = 1.2 * (time.monotonic() - began), written(beside(str(folder)), kind)
    for _ in range(4 * NUM_KILLS):
        kills += (was_killed := is_killed_in(chance.uniform(0, duration_s), RUN, kind, source, url))
        numbers.add(version := wdsplit.list_versions(url)[-1].number)
        check(version)
        if kills >= NUM_KILLS:
            break
        if not was_killed:  # begin again
            assert written(folder, kind) == whole
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "before", folder)
    assert kills >= NUM_KILLS // 2
    assert not is_killed_in(600, RUN, kind, source, url)
    assert written(folder, kind) == whole
    return numbers


def test_an_append_that_is_killed_leaves_the_last_version_whole_and_can_be_run_again(place, tmp_path):
    old, new = 400, 1600
    write_files(tmp_path / "old", numbers_table(old), [old], 50)
    write_files(tmp_path / "new", numbers_table(new).slice(old), [500, 1, 99], 50)
    for output in (place[0], beside(place[0])):
        wdsplit.convert(tmp_path / "old", output, shards=4)
    before = {name: data for name, data in files_of(place[1]).items() if name != "wdsplit.json"}

    def check(version):
        assert before.items() <= files_of(place[1]).items()
        assert len(wdsplit.Samples(place[0], version=1)) == old
        rows = sorted(int(each["cls"]) for each in wdsplit.Samples(place[0], version=version))
        assert rows == list(range(old if version == 1 else new))

    killed_often(place, tmp_path, "append", tmp_path / "new", check)


def test_erasing_that_is_killed_leaves_the_last_version_whole_and_can_be_run_again(place, tmp_path):
    url, num_rows, erased = place[0], 160, range(5, 160, 10)
    (tmp_path / "keys.txt").write_text("\n".join(f"{row:08d}" for row in erased))
    vectors = [{"key": f"{row:08d}", "score": row, "vector": np.full(4, row, np.float32)} for row in range(num_rows)]
    for output in (url, beside(url)):
        wdsplit.convert(numbers_table(num_rows), output, shards=16, lanes=4, shuffle=False)
        wdsplit.annotate(output, vectors, key="key", name="more")
        wdsplit.make_view(output, "half", where="score >= 80")

    def check(version):
        rows = [row for row in range(num_rows) if version == 1 or row not in erased]
        samples = wdsplit.Samples(url, join=["more"], version=version)
        assert [int(each["cls"]) for each in samples] == rows
        assert wdsplit.verify(url, version=version).problems == ()
        for asked, least in (({"view": "half"}, 80), ({"where": "score > 9"}, 10)):
            assert len(wdsplit.Samples(url, version=version, **asked)) == sum(row >= least for row in rows)

    assert killed_often(place, tmp_path, "erase", tmp_path / "keys.txt", check) == {1, 2}
