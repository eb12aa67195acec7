"""Worker processes in a container with 64 MB of /dev/shm, 256 open files, and nowhere to write."""

import json

import pyarrow as pa
import pytest

from container import in_container
from made_datasets import converted

PAYLOAD_BYTES, NUM_SAMPLES, BATCH = 100_000, 768, 192

PROGRAM = """
import json, os, resource, sys, time
import wdsplit

def main():
    path, workers, batch, ahead, method = sys.argv[1:]
    loader = wdsplit.Loader(
        wdsplit.Dataset(path), int(batch), num_workers=int(workers), prefetch_factor=4,
        multiprocessing_context=method or None,
    )
    batches = iter(loader)
    deadline = time.monotonic() + 60
    while loader.statistics().samples_made < int(ahead):
        if time.monotonic() > deadline:
            raise SystemExit("the workers do not get ahead")
        time.sleep(0.01)
    found = [(key, len(payload)) for each in batches for key, payload in zip(each["__key__"], each["bin"])]
    statistics = os.statvfs("/dev/shm")
    print(json.dumps({
        "shm": statistics.f_blocks * statistics.f_frsize,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "home": os.environ.get("HOME"),
        "writable": [place for place in ("/", "/tmp", "/var/tmp", os.getcwd()) if os.access(place, os.W_OK)],
        "found": found,
    }))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def payloads(tmp_path_factory):
    """Return a dataset of 768 samples of 100 kB."""
    table = pa.table({"bin": pa.array([bytes([row % 256]) * PAYLOAD_BYTES for row in range(NUM_SAMPLES)], pa.binary())})
    return converted(tmp_path_factory.mktemp("payloads"), table, shards=8, lanes=8, window=16)


def run(*arguments):
    ended = in_container(PROGRAM, *arguments)
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert (printed["shm"], printed["files"]) == (64 * 2**20, [256, 256])
    assert (printed["home"], printed["writable"]) == (None, [])
    return printed["found"]


@pytest.mark.parametrize(("workers", "method"), [(4, ""), pytest.param(2, "spawn", marks=pytest.mark.slow)])
def test_77_mb_of_batches_are_under_way_and_each_sample_arrives_once(payloads, workers, method):
    found = run(payloads, workers, BATCH, NUM_SAMPLES, method)
    assert len(found) == len(dict(found)) == NUM_SAMPLES
    assert {size for _, size in found} == {PAYLOAD_BYTES}


@pytest.fixture(scope="module")
def many_lanes(tmp_path_factory):
    """Return a dataset of 580 samples in 290 lanes: more than files may be open."""
    table = pa.table({"bin": pa.array([bytes([row % 256]) * 20_000 for row in range(580)], pa.binary())})
    return converted(tmp_path_factory.mktemp("many"), table, shards=290, lanes=290, window=2)


def test_more_lanes_are_read_than_files_may_be_open(many_lanes):
    found = run(many_lanes, 1, 32, 0, "")
    assert len(dict(found)) == 580
