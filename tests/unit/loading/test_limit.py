"""`Dataset(limit=N)`: the first N samples are to all else the whole dataset."""

from itertools import chain

import pytest

from made_datasets import global_batches, loaders_of, numbers_dataset, real_rows
from orders import slow_epoch, slow_lanes
from wdsplit.errors import SampleNotFoundError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.order.epoch import OrderOptions

LIMITS = [1, 15, 16, 100]
"""Of 101 samples in shards of 15, 15, 15, 14, 14, 14, 14: within a shard, at its end, one beyond it."""


def limited_batches(path, world_size, limit, **options):
    return global_batches(loaders_of(path, world_size, limit=limit, **options))


def counts_of(limit):
    """Return how many samples of each shard of `numbers` a limit leaves."""
    counts = []
    for count in (15, 15, 15, 14, 14, 14, 14):
        counts.append(min(count, limit - sum(counts)))
    return [count for count in counts if count]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limited_epoch_is_that_of_a_dataset_of_these_samples(numbers, limit):
    for epoch in (0, 1):
        lanes, _ = slow_lanes(counts_of(limit), OrderOptions(0, True, 4, 4, "pad"), epoch)
        first_rows = [0, 15, 30, 45, 59, 73, 87]
        batches = limited_batches(numbers, 1, limit, epoch=epoch)
        expected = slow_epoch(lanes)
        for delivery in (each for batch in batches for each in batch):
            shard, sample, pad = next(expected)
            if shard is not None:
                assert delivery[1:] == (first_rows[shard] + sample, pad)
        assert [delivery[0] for batch in batches for delivery in batch] == list(range(12 * len(batches)))


def test_what_is_known_of_a_limited_dataset_is_of_its_samples_alone(numbers):
    dataset = Dataset(numbers, limit=16)
    assert dataset.manifest.num_samples == dataset.source.num_samples == 16
    assert dataset.sample(15)["__key__"] == dataset.sample(-1)["__key__"] == "00000015"
    with pytest.raises(SampleNotFoundError):
        dataset.sample(16)
    with pytest.raises(SampleNotFoundError):
        dataset.sample("00000016")
    distribution = dataset.shard_distribution()
    assert (distribution.num_samples, distribution.assigned_shards) == (16, sorted(distribution.assigned_shards))
    assert distribution.total_shards == 2


def test_a_state_belongs_to_its_limit(numbers):
    loader = loaders_of(numbers, 1, limit=47)[0]
    next(iter(loader))
    for other in (None, 46):
        with pytest.raises(StateError, match="fingerprint") as caught:
            loaders_of(numbers, 1, limit=other)[0].load_state_dict(loader.state_dict())
        assert "limit" in caught.value.remedy


def test_shards_that_are_cut_at_their_end_are_read_no_further(tmp_path):
    """What lies beyond the limit may even be missing."""
    path = numbers_dataset(tmp_path, 60, shards=3, lanes=3, window=4)
    for name in ("000002.tar", "000002.tar.places"):
        (tmp_path / "out" / name).unlink()
    assert real_rows(chain.from_iterable(limited_batches(path, 2, 33))) == list(range(33))
