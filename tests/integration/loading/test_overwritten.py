"""A dataset that is overwritten while it is read: each sample is of the dataset that was opened, or an error says so.

All payloads have one length, so that the shards of both datasets have the same sizes and indexes.
"""

from pathlib import Path

import pyarrow as pa
import pytest

import wdsplit
from made_datasets import converted
from tables import reading_ahead, wait_for_threads
from wdsplit.errors import DatasetNotFoundError
from wdsplit.shards.manifest import HEADER_NAME
from wdsplit.storage.opening import open_storage

NUM_ROWS, SHARDS, BATCH_SIZE = 12_000, 64, 100


@pytest.fixture(scope="session")
def versions(tmp_path_factory):
    """Return a dataset, and another one of the same rows in another order."""
    table = pa.table({"bin": pa.array([row.to_bytes(4, "big") for row in range(NUM_ROWS)])})
    plan = {"shards": SHARDS, "lanes": 4, "window": 16, "shuffle": True}
    return [converted(tmp_path_factory.mktemp("version"), table, seed=seed, **plan) for seed in (0, 1)]


@pytest.fixture(scope="session")
def expected(versions):
    """Return the batches of the first version."""
    return list(loader_of(versions[0]))


class Place:
    """Where a dataset is, as its readers name it, and how it is overwritten, in the order of a conversion."""

    def __init__(self, url, versions, folder=None):
        self.url = url
        self._versions = versions
        self._storage = open_storage(str(folder or url))
        self.write(0)

    def write(self, version):
        self._storage.remove("wdsplit.json")
        self._storage.remove(*self._storage.list())
        for path in sorted(Path(self._versions[version]).iterdir(), key=lambda path: (path.suffix == ".json", path)):
            with self._storage.publish(path.name) as file:
                file.write([path.read_bytes()])


@pytest.fixture(params=["disk", "s3", "memory"])
def place(request, versions, tmp_path):
    """Return a place; in the end, threads that still read ahead from it have ended."""
    before = reading_ahead()
    if request.param == "disk":
        yield Place(str(tmp_path / "train"), versions)
        return
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        yield Place(f"{bucket.url}/train", versions, bucket.folder / "train")
    else:
        request.getfixturevalue("memory")
        yield Place("memory://train", versions)
    wait_for_threads(before)


on_s3 = pytest.mark.parametrize("place", ["s3"], indirect=True)


def loader_of(url, num_workers=0, workers="process", **options):
    dataset = wdsplit.Dataset(url, read_ahead_bytes=2**16, **options).to_tuple("__key__", "bin")
    return wdsplit.Loader(dataset, BATCH_SIZE, num_workers=num_workers, workers=workers)


def read_to_the_end(batches, url):
    """Return the batches up to the end, or up to the error that the dataset was overwritten."""
    read = []
    try:
        for batch in batches:
            read.append(batch)
    except DatasetNotFoundError as error:
        assert "overwritten" in error.cause and error.place == url, error
    return read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "workers", "on_bad_sample"),
    [
        ("disk", "process", "substitute"),
        ("s3", "none", "substitute"),
        ("s3", "process", "raise"),
        ("memory", "thread", "raise"),
    ],
    indirect=["place"],
)
def test_an_epoch_has_no_sample_of_a_dataset_that_replaces_it(place, expected, workers, on_bad_sample):
    kinds = {} if workers == "none" else {"num_workers": 2, "workers": workers}
    batches = iter(loader_of(place.url, on_bad_sample=on_bad_sample, **kinds))
    read = [next(batches) for _ in range(5)]
    place.write(1)
    read += read_to_the_end(batches, place.url)
    assert read == expected[: len(read)]
    assert len(read) < len(expected), "the dataset was read before it was overwritten, so nothing was tested"


@pytest.mark.slow
def test_open_shards_give_no_sample_of_a_dataset_that_replaces_theirs(place, versions):
    expected, samples = wdsplit.Samples(versions[0]), wdsplit.Samples(place.url)
    stride = 4 * NUM_ROWS // SHARDS
    assert all(samples[first]["bin"] == expected[first]["bin"] for first in range(0, NUM_ROWS // 2, stride))
    place.write(1)
    num_refused = 0
    for number in range(1, NUM_ROWS, stride):
        read = read_to_the_end((samples[one] for one in [number]), place.url)
        assert [one["bin"] for one in read] == [expected[number]["bin"]] * len(read)
        num_refused += not read
    assert num_refused >= SHARDS // 4 // 2


@on_s3
def test_a_shard_that_is_replaced_between_its_index_and_its_first_bytes_is_refused(place, fault_proxy):
    replacing = []

    def replace_before_the_first_shard(request):
        if request.path.endswith(".tar") and not replacing:
            replacing.append(request)
            place.write(1)

    fault_proxy.plan = replace_before_the_first_shard
    samples = wdsplit.Samples(place.url)
    assert read_to_the_end((samples[number] for number in [0]), place.url) == []
    assert replacing


def test_the_same_shards_may_be_written_again_and_their_header_changed(versions, expected, tmp_path):
    place = Place(str(tmp_path / "train"), versions)
    batches = iter(loader_of(place.url))
    read = [next(batches)]
    place.write(0)
    read += [next(batches) for _ in range(50)]
    header = tmp_path / "train" / HEADER_NAME
    header.write_bytes(header.read_bytes().replace(b'"window": ', b'"window": 1'))
    assert read + list(batches) == expected


@on_s3
def test_a_cached_shard_is_of_the_dataset_that_was_opened(place, expected, tmp_path):
    batches = iter(loader_of(place.url, cache_dir=tmp_path / "cache", cache_size="1GB", on_bad_sample="substitute"))
    read = [next(batches)]
    place.write(1)
    read += read_to_the_end(batches, place.url)
    assert read == expected[: len(read)] and len(read) < len(expected)
