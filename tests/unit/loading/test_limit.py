"""`Dataset(limit=N)`: the first N samples are to all else the whole dataset."""

import json
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_datasets import (
    all_deliveries,
    deliveries,
    delivering,
    expected_epoch,
    global_batches,
    loaders_of,
    numbers_dataset,
    real_rows,
    sized_dataset,
)
from orders import slow_epoch, slow_lanes
from wdsplit.errors import InputError, SampleNotFoundError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.order.epoch import OrderOptions
from wdsplit.shards.manifest import Manifest, Shard, Shards, first_samples

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

LIMITS = [1, 3, 14, 15, 16, 30, 47, 100]
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


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 2), (2, 1), (3, 0), (6, 0)])
@pytest.mark.parametrize("limit", [3, 47])
def test_the_same_samples_come_once_on_any_topology_in_the_same_batches(numbers, limit, world_size, num_workers):
    alone = limited_batches(numbers, 1, limit)
    batches = [delivery for batch in alone for delivery in batch]
    assert real_rows(batches) == list(range(limit))
    assert limited_batches(numbers, world_size, limit, num_workers=num_workers) == alone
    loader = loaders_of(numbers, world_size, limit=limit)[0]
    assert len(loader) == len(alone) == -(-limit // 12)


@pytest.mark.parametrize("tail", ["drop", "uneven"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_other_tails_hold_too(numbers, tail, world_size):
    parts = [all_deliveries(loader) for loader in loaders_of(numbers, world_size, limit=47, tail=tail)]
    delivered = [delivery for part in parts for delivery in part]
    rows = real_rows(delivered)
    assert len(rows) == len(delivered) == len(set(rows)) == (47 if tail == "uneven" else 36)
    assert set(rows) <= set(range(47))


def test_epochs_shuffle_within_the_limit_and_unshuffled_ones_do_not(numbers):
    first, second = (limited_batches(numbers, 1, 47, epoch=epoch) for epoch in (0, 1))
    assert first != second
    assert real_rows(chain.from_iterable(second)) == list(range(47))
    in_order = Dataset(numbers, limit=47, shuffle=False, lanes=1)
    assert [int(sample["cls"]) for sample in in_order] == [*range(47)]


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


@pytest.mark.parametrize("limit", [101, 102, 10**15, np.int64(101)])
def test_a_limit_that_leaves_nothing_out_is_no_limit(numbers, limit):
    whole, dataset = Dataset(numbers), Dataset(numbers, limit=limit)
    assert dataset.source.fingerprint == whole.source.fingerprint
    assert dataset.manifest.num_samples == 101
    state = Loader(whole, 12).state_dict()
    Loader(dataset, 12).load_state_dict(state)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "10", True])
def test_a_limit_that_cannot_be_is_refused(numbers, limit):
    with pytest.raises(InputError, match="invalid limit"):
        Dataset(numbers, limit=limit)


@pytest.mark.parametrize("other", [None, 46, 48, 30])
def test_a_state_belongs_to_its_limit(numbers, other):
    loader = loaders_of(numbers, 1, limit=47)[0]
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateError, match="fingerprint") as caught:
        loaders_of(numbers, 1, limit=other)[0].load_state_dict(state)
    assert "limit" in caught.value.remedy


def test_a_limited_epoch_is_resumed_in_its_middle_on_other_ranks(numbers):
    loader = loaders_of(numbers, 1, limit=47)[0]
    begun = [deliveries(batch) for batch in islice(loader, 2)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = loaders_of(numbers, 3, limit=47)
    for each in rest:
        each.load_state_dict(state)
    assert begun + global_batches(rest) == limited_batches(numbers, 1, 47)


def test_iterations_of_a_plain_dataset_know_the_limit_too(numbers):
    delivered = [(position, row, pad) for position, row, pad in delivering(Dataset(numbers, limit=30))]
    assert real_rows(delivered) == list(range(30))
    state = iter(Dataset(numbers, limit=30)).state_dict()
    with pytest.raises(StateError, match="fingerprint"):
        iter(Dataset(numbers, limit=31)).load_state_dict(state)


def test_shards_that_are_cut_at_their_end_are_read_no_further(tmp_path):
    """What lies beyond the limit may even be missing."""
    path = numbers_dataset(tmp_path, 60, shards=3, lanes=3, window=4)
    for name in ("000002.tar", "000002.tar.places"):
        (tmp_path / "out" / name).unlink()
    assert real_rows(chain.from_iterable(limited_batches(path, 2, 33))) == list(range(33))


def test_empty_shards_do_not_count(tmp_path):
    path = sized_dataset(tmp_path / "odd", [0, 5, 0, 0, 3, 0], lanes=2, window=2)
    for limit in (1, 5, 6, 8):
        rows = real_rows(chain.from_iterable(limited_batches(path, 2, limit)))
        assert rows == list(range(limit))


def test_without_a_limit_all_is_as_it_was(numbers):
    loader = loaders_of(numbers, 1)[0]
    expected = expected_epoch(numbers)
    assert all_deliveries(loader) == [next(expected) for _ in range(108)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=12), st.data())
def test_the_first_samples_of_a_manifest(sizes, data):
    rows = [Shard(f"{i}.tar", real + pads, pads, 10_240, f"sum {i}") for i, (real, pads) in enumerate(sizes)]
    manifest = Manifest(Shards.of(rows), (), 4, 4, "none", {})
    limit = data.draw(st.integers(1, manifest.num_samples + 2))
    limited = first_samples(manifest, limit)
    assert limited.num_samples == min(limit, manifest.num_samples)
    kept = limited.shards.num_real.tolist()
    assert kept[:-1] == [real for real, _ in sizes[: len(kept) - 1]]
    assert (limit < manifest.num_samples) <= kept[-1] <= sizes[len(kept) - 1][0]
    totals = limited.shards.column("num_samples").tolist()
    assert totals == [real + pads for real, pads in sizes[: len(kept)]]
    assert (limited.fingerprint == manifest.fingerprint) == (limit >= manifest.num_samples)
