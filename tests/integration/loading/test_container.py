"""Worker processes in a container: 64 MB of /dev/shm, 256 open files, no home, nowhere to write, and no rights."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from made_datasets import converted
from paths import SUPPORT
from tables import DEADLINE_S

PAYLOAD_BYTES, NUM_SAMPLES, BATCH = 100_000, 768, 192

PROGRAM = """
import json, os, resource, sys, time
import wdsplit

def read(path, workers, batch, ahead, method):
    loader = wdsplit.Loader(
        wdsplit.Dataset(path), batch, num_workers=workers, prefetch_factor=4, multiprocessing_context=method
    )
    batches = iter(loader)
    deadline = time.monotonic() + 200
    while loader.statistics().samples_made < ahead:
        if time.monotonic() > deadline:
            raise SystemExit("the workers do not get ahead")
        time.sleep(0.01)
    return [(key, len(payload)) for each in batches for key, payload in zip(each["__key__"], each["bin"])]

if __name__ == "__main__":
    statistics = os.statvfs("/dev/shm")
    print(json.dumps({
        "shm": statistics.f_blocks * statistics.f_frsize,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "home": os.environ.get("HOME"),
        "writable": [place for place in ("/", "/tmp", "/var/tmp", os.getcwd()) if os.access(place, os.W_OK)],
        "found": [read(*arguments) for arguments in json.loads(sys.argv[1])],
    }))
"""

SETUP = """set -e
mount --bind /dev/shm /mnt
mount -t tmpfs -o size=64m tmpfs /dev/shm
for folder in /mnt/pytest-of-*; do  # files of tests, where they are written into memory
    [ ! -d "$folder" ] || { mkdir /dev/shm/${folder#/mnt/} && mount --bind $folder /dev/shm/${folder#/mnt/}; }
done
for folder in /tmp /var/tmp; do
    mount --bind $folder $folder
    mount -o remount,bind,ro $folder
done
mount -o remount,bind,ro /
ulimit -n 256
cd /
exec "$@"
"""


def in_container(*arguments):
    """Run the program in namespaces of its own; return what it printed."""
    setup = ["sh", "-c", SETUP, "sh"]
    command = ["unshare", "--user", "--map-root-user", "--mount", *setup]
    nobody = ["unshare", "--user"]  # a user without an entry, whose files are still those of the one outside
    if not can_run([*command, *nobody, "true"]):
        command, nobody = ["unshare", "--mount", *setup], []
        if not can_run([*command, "true"]):
            pytest.skip("needs mount namespaces: root, or a kernel that lets users make them, and the program unshare")
    environ = {name: value for name, value in os.environ.items() if name not in ("HOME", "TMPDIR", "TEMP", "TMP")}
    environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT / "without_dill"), *filter(None, [environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*command, *nobody, sys.executable, "-c", PROGRAM, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def can_run(command):
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def payloads(tmp_path_factory):
    """Return a dataset of 768 samples of 100 kB."""
    table = pa.table({"bin": pa.array([bytes([row % 256]) * PAYLOAD_BYTES for row in range(NUM_SAMPLES)], pa.binary())})
    return converted(tmp_path_factory.mktemp("payloads"), table, shards=8, lanes=8, window=16)


@pytest.fixture(scope="module")
def many_lanes(tmp_path_factory):
    """Return a dataset of 580 samples in 290 lanes: more than files may be open."""
    table = pa.table({"bin": pa.array([bytes([row % 256]) * 20_000 for row in range(580)], pa.binary())})
    return converted(tmp_path_factory.mktemp("many"), table, shards=290, lanes=290, window=2)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "method"), [(4, None), (2, "spawn")])
def test_77_mb_of_batches_are_under_way_and_more_lanes_are_read_than_files_may_be_open(
    payloads, many_lanes, workers, method
):
    """In one process, one after the other: each sample arrives once."""
    ended = in_container(json.dumps([(payloads, workers, BATCH, NUM_SAMPLES, method), (many_lanes, 1, 32, 0, method)]))
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert (printed["shm"], printed["files"]) == (64 * 2**20, [256, 256])
    assert (printed["home"], printed["writable"]) == (None, [])
    large, many = printed["found"]
    assert len(large) == len(dict(large)) == NUM_SAMPLES
    assert {size for _, size in large} == {PAYLOAD_BYTES}
    assert len(dict(many)) == 580
