import time

import pytest

from loader_kinds import every_kind
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

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


@pytest.mark.slow
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


def test_an_error_counts_as_waiting_and_not_as_a_batch(numbers):
    def fail(sample):
        raise KeyError("no")

    loader = Loader(Dataset(numbers).map(fail), 12)
    with pytest.raises(KeyError):
        list(loader)
    assert loader.statistics().batches == 0
    assert loader.statistics().wait_s > 0
