import dataclasses
import itertools
import time

import pytest

from loader_kinds import every_kind
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.statistics import Statistics
from wdsplit.loading.transport.counters import Counters

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@every_kind
def test_batches_samples_bytes_and_windows_are_exact_over_epochs(whole_lanes, options):
    """In one lane, each worker reads the window of each of the 24 shards, once an epoch."""
    loader = Loader(Dataset(whole_lanes, lanes=1, window=4), 12, **options)
    num_bytes = 0
    for epoch in range(1, 4):
        for batch in loader:
            num_bytes += sum(map(len, batch["cls"])) + sum(map(len, batch["txt"]))
        made = loader.statistics()
        assert (made.batches, made.samples, made.num_bytes) == (8 * epoch, 96 * epoch, num_bytes)
        assert made.windows_read == 24 * options.get("num_workers", 1) * epoch


@every_kind
def test_bytes_are_those_of_the_fields_that_are_wanted(numbers, options):
    loader = Loader(Dataset(numbers, fields=["cls"]), 12, **options)
    delivered = sum(len(cls) for batch in loader for cls in batch["cls"])
    assert loader.statistics().num_bytes == delivered


def test_windows_are_held_between_batches(numbers):
    loader = Loader(Dataset(numbers, lanes=1, window=100), 10)
    list(loader)
    made = loader.statistics()
    assert made.windows_read <= 9
    assert made.windows_reused > 0


def test_nothing_was_counted_before_the_first_batch(numbers):
    made = Loader(Dataset(numbers), 12).statistics()
    assert made == Statistics(0, 0, 0, 0, 0, 0.0, 0.0)
    assert made.wait_share == 0
    assert str(made) == "no batches were delivered yet"


def test_bytes_that_were_delivered_are_in_proportion_to_the_samples_that_were_made():
    made = Statistics(3, 10, 3001, 0, 0, 1.0, 1.0, samples_made=30)
    assert made.delivered_bytes == 1000
    assert f"{1_000_000_000 / 1e6 / 2:,.1f} MB/s" in str(dataclasses.replace(made, num_bytes=3_000_000_000))
    assert Statistics(0, 0, 0, 0, 0, 0.0, 0.0).delivered_bytes == 0


def slow(sample):
    time.sleep(0.003)
    return sample


@every_kind
def test_a_slow_stage_makes_the_loader_the_bottleneck(numbers, options):
    loader = Loader(Dataset(numbers).map(slow), 12, **options)
    list(loader)
    made = loader.statistics()
    assert made.bottleneck == "loader"
    assert made.wait_s > 0.05
    assert "more workers" in str(made)


@every_kind
def test_a_slow_consumer_makes_the_model_the_bottleneck(numbers, options):
    """It takes five times as long for a batch as two epochs took that nobody kept waiting."""
    begun = time.perf_counter()
    for _ in range(2):
        list(Loader(Dataset(numbers), 12, **options))
    pause_s = max(0.02, (time.perf_counter() - begun) * (5 if not options else 0.5))
    loader, slept_s, begun = Loader(Dataset(numbers), 12, **options), 0.0, time.perf_counter()
    for _ in range(2):
        for _ in loader:
            before = time.perf_counter()
            time.sleep(pause_s)
            slept_s += time.perf_counter() - before
    taken_s = time.perf_counter() - begun
    made = loader.statistics()
    assert slept_s <= made.compute_s <= taken_s - made.wait_s
    assert made.wait_share < 0.5
    if not options:
        assert made.bottleneck == "model"
        assert "keeps up" in str(made)


def test_the_time_between_two_iterations_is_nobodys(numbers):
    loader, taken_s = Loader(Dataset(numbers), 12), 0.0
    for epoch, steps in enumerate((None, 2, None)):
        loader.set_epoch(epoch)
        begun = time.perf_counter()
        list(itertools.islice(loader, steps))
        taken_s += time.perf_counter() - begun
        time.sleep(0.1)
    made = loader.statistics()
    assert 0 < made.compute_s <= taken_s - made.wait_s


def test_an_error_counts_as_waiting_and_not_as_a_batch(numbers):
    def fail(sample):
        raise KeyError("no")

    loader = Loader(Dataset(numbers).map(fail), 12)
    with pytest.raises(KeyError):
        list(loader)
    assert loader.statistics().batches == 0
    assert loader.statistics().wait_s > 0


def test_workers_count_in_rows_of_their_own():
    counters = Counters(2)
    counters.made(0, 3, 10)
    counters.made(1, 4, 20)
    counters.made(0, 1, 1)
    counters.read(1, 5, 6)
    counters.read(1, 1, 1)
    counters.traffic(0).add(100, 2)
    counters.traffic(1).add(50, 1)
    assert [counters.bad(worker, iteration) for worker, iteration in ((0, 1), (1, 1), (0, 2), (1, 2))] == [1, 2, 1, 2]
    assert counters.total() == (8, 31, 6, 7, 150, 3, 4)
