"""What a loader counts while it trains, in its workers too."""

import time

import pytest

import wdsplit
from faults import EveryOther, internal_error
from loader_kinds import KINDS, every_kind
from tables import wait_until


@pytest.fixture
def remote(bucket, whole_lanes):
    """Return the URL of a dataset in a bucket."""
    return bucket.put(whole_lanes)


def sent(proxy, num_before):
    """Return how many bytes the server has sent after its first exchanges, those of errors left out."""
    return sum(exchange.bytes_sent for exchange in proxy.exchanges[num_before:] if (exchange.status or 500) < 300)


# Counters


@every_kind
def test_batches_samples_bytes_and_windows_are_exact_over_epochs(whole_lanes, options):
    """In one lane, each worker reads the window of each of the 24 shards, once an epoch."""
    loader = wdsplit.Loader(wdsplit.Dataset(whole_lanes, lanes=1, window=4), 12, **options)
    num_bytes = 0
    for epoch in range(1, 4):
        for batch in loader:
            num_bytes += sum(map(len, batch["cls"])) + sum(map(len, batch["txt"]))
        made = loader.statistics()
        assert (made.batches, made.samples, made.num_bytes) == (8 * epoch, 96 * epoch, num_bytes)
        assert made.windows_read == 24 * options.get("num_workers", 1) * epoch


def test_waiting_for_a_slow_stage_and_computing_between_batches_are_told_apart(numbers):
    loader = wdsplit.Loader(wdsplit.Dataset(numbers).map(lambda sample: time.sleep(0.003) or sample), 12)
    list(loader)
    waited = loader.statistics()
    assert waited.bottleneck == "loader" and "more workers" in str(waited)
    assert waited.wait_s > 0.05
    slept_s, begun = 0.0, time.perf_counter()
    for _ in loader:
        before = time.perf_counter()
        time.sleep(0.03)
        slept_s += time.perf_counter() - before
    taken_s, made = time.perf_counter() - begun, loader.statistics()
    assert slept_s <= made.compute_s - waited.compute_s <= taken_s - (made.wait_s - waited.wait_s)


# Remote storage


def test_bytes_and_retries_of_all_workers_are_counted(remote, fault_proxy):
    dataset = wdsplit.Dataset(remote, storage_options={"first_delay_s": 0.01})
    loader = wdsplit.Loader(dataset, 12, **KINDS["persistent processes"])
    num_opening = len(fault_proxy.exchanges)
    list(loader)
    assert loader.statistics().retries == 0
    wait_until(lambda: loader.statistics().fetched_bytes == sent(fault_proxy, num_opening) > 0, "all bytes are counted")
    plan = fault_proxy.plan = EveryOther([internal_error()], 1)
    list(loader)  # while it begins to fetch the next epoch
    wait_until(lambda: loader.statistics().retries == plan.num_given > 0, "all retries are counted")
    wait_until(lambda: loader.statistics().fetched_bytes == sent(fault_proxy, num_opening), "all bytes are counted")
