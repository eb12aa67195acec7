"""The sub-batches that workers make: in their places up to the last before an error."""

from pathlib import Path

import pytest

import wdsplit
from made_datasets import sized_dataset
from wdsplit.errors import CorruptDataError
from wdsplit.shards.manifest import shard_path

BATCH = 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a dataset of samples so small that several steps travel together."""
    return sized_dataset(tmp_path_factory.mktemp("whole"), [300] * 6, lanes=6, window=16)


def batches_of(path, **options):
    """Give the positions and classes of each batch."""
    dataset = wdsplit.Dataset(path).decode().to_tuple("__position__", "cls")
    for positions, classes in wdsplit.Loader(dataset, BATCH, **options):
        yield positions.tolist(), classes.tolist()


@pytest.mark.parametrize("workers", ["process", "thread"])
@pytest.mark.parametrize("shard", range(6))
def test_all_batches_before_an_error_are_right(whole, tmp_path, workers, shard):
    damaged = Path(sized_dataset(tmp_path, [300] * 6, lanes=6, window=16))
    with open(damaged / shard_path(shard), "r+b") as file:
        file.seek(131 * 1024)  # a header: a sample is one block of header and one of payload
        file.write(b"\xff" * 512)
    expected, found = list(batches_of(whole)), []
    with pytest.raises(CorruptDataError):
        for batch in batches_of(damaged, num_workers=2, workers=workers):
            found.append(batch)
    assert found == expected[: len(found)]
    assert len(found) > 2
