"""Epochs that are streamed from a bucket: what is fetched, when, and what a cache keeps of it."""

import gc
import threading
from collections import Counter
from pathlib import Path

import pytest

import wdsplit
from faults import ErrorAnswer, Hold
from loader_kinds import KINDS
from made_datasets import converted, payloads_table, without_urls
from tables import DEADLINE_S, reading_ahead, wait_for_threads, wait_until
from wdsplit.loading.reading import cache as cache_module
from wdsplit.loading.reading import read_ahead, source

NUM_ROWS, PAYLOAD_BYTES = 240, 3000
EPOCH_BYTES = NUM_ROWS * (512 + 3072)


@pytest.fixture(scope="session")
def payloads(tmp_path_factory):
    """Return a dataset of 240 samples of 3,000 bytes in 8 shards, 2 of each lane, 3 windows each."""
    table = payloads_table(NUM_ROWS, PAYLOAD_BYTES)
    return converted(tmp_path_factory.mktemp("streamed"), table, shards=8, lanes=4, window=10)


@pytest.fixture
def remote(bucket, payloads):
    """Return the URL of the dataset in a bucket."""
    return bucket.put(payloads)


@pytest.fixture
def cache_dir(tmp_path):
    return tmp_path / "cache"


# What is fetched


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_batch_takes_three_round_trips(remote, fault_proxy, num_workers):
    """Header and table, then places, then windows: each time all are asked for before one of them is answered."""
    trips = [{"json", "parquet"}, {"places"}, {"tar"}]
    answered = [threading.Event() for _ in trips]

    def trip_of(request):
        return next(number for number, kinds in enumerate(trips) if request.path.rpartition(".")[2] in kinds)

    fault_proxy.plan = lambda request: Hold(answered[trip_of(request)])
    times = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    batches = []

    def read():
        dataset = wdsplit.Dataset(remote, window=30, storage_options=times).to_tuple("__key__")
        loader = wdsplit.Loader(dataset, 16, num_workers=num_workers, workers="thread")
        batches.append(next(iter(loader)))

    thread = threading.Thread(target=read)
    thread.start()
    for number, expected in enumerate([2, 8, 8]):
        asked = f"{expected} requests of trip {number} at the same time"
        wait_until(lambda: num_asked(fault_proxy, trip_of)[number] == expected, asked)  # noqa: B023
        assert num_asked(fault_proxy, trip_of)[number + 1 :] == [0] * (2 - number)
        answered[number].set()
    thread.join(DEADLINE_S)
    assert [len(keys) for (keys,) in batches] == [16]
    assert num_asked(fault_proxy, trip_of) == [2, 8, 8]
    assert {exchange.request.method for exchange in fault_proxy.exchanges if trip_of(exchange.request)} == {"GET"}


def num_asked(proxy, trip_of):
    trips = [trip_of(exchange.request) for exchange in proxy.exchanges]
    return [trips.count(number) for number in range(3)]


def test_an_epoch_fetches_each_byte_once(remote, fault_proxy, payloads):
    dataset = wdsplit.Dataset(remote).to_tuple("__key__")
    loader = wdsplit.Loader(dataset, 16, num_workers=2)
    keys = [key for (batch,) in loader for key in batch]
    assert len(set(keys)) == NUM_ROWS
    num_requests, num_bytes = fault_proxy.fetched(".tar")
    samples = sum(len(Path(path).read_bytes().rstrip(b"\0")) for path in Path(payloads).glob("*.tar"))
    assert num_bytes <= 1.02 * samples
    assert num_requests <= 8 * 3
    assert fault_proxy.fetched(".places")[0] == 8


def test_windows_that_follow_each_other_are_one_request(remote, fault_proxy):
    list(wdsplit.Dataset(remote, shuffle=False))
    first_windows, rest, next_shards = 4, 4, 4
    assert fault_proxy.fetched(".tar")[0] == first_windows + rest + next_shards


def test_no_more_is_fetched_than_may_be_ahead(remote, fault_proxy):
    """With no bytes to read ahead, no window is fetched before it is needed."""
    samples = iter(wdsplit.Loader(wdsplit.Dataset(remote, read_ahead_bytes=1), 1))
    next(samples)
    assert fault_proxy.fetched(".tar")[0] <= 2
    for _ in samples:
        pass
    assert 8 * 2 < fault_proxy.fetched(".tar")[0] <= 8 * 3


def test_an_iteration_that_is_left_leaves_no_threads(remote):
    before = set(threading.enumerate())
    samples = iter(wdsplit.Dataset(remote))
    next(samples)
    threads = set(threading.enumerate()) - before
    del samples
    gc.collect()
    assert threads
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_a_resumed_epoch_fetches_only_what_is_left(remote, fault_proxy):
    loader = wdsplit.Loader(wdsplit.Dataset(remote).to_tuple("__key__"), 16)
    batches = iter(loader)
    begun = [next(batches) for _ in range(10)]
    state = loader.state_dict()
    rest = list(batches)
    before = fault_proxy.fetched(".tar")[1]
    resumed = wdsplit.Loader(wdsplit.Dataset(remote).to_tuple("__key__"), 16)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert len(begun) + len(rest) == 15
    assert 0 < fault_proxy.fetched(".tar")[1] - before < 0.4 * before


def test_mixtures_are_streamed_too(remote, payloads, bucket):
    shares = {remote: 0.5, bucket.put(payloads, "other"): 0.5}
    local = {payloads: 0.5, f"{bucket.folder}/other": 0.5}
    for epoch in range(2):
        mixed, expected = wdsplit.mix(shares), wdsplit.mix(local)
        mixed.set_epoch(epoch)
        expected.set_epoch(epoch)
        found = [sample["__key__"] for sample in mixed]
        assert found == [sample["__key__"] for sample in expected]


MISSING = ErrorAnswer("404 Not Found", "NoSuchKey", "The specified key does not exist.")
KEPT = {name: {**KINDS[name], "persistent_workers": True} for name in KINDS if name != "processes"}


@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT.keys())
def test_the_next_epoch_is_fetched_before_the_last_batch_of_this_one_is_taken(remote, fault_proxy, payloads, options):
    """Both are read as they are from a disk, and each byte is fetched once an epoch."""
    dataset = wdsplit.Dataset(remote).to_tuple("__key__", "bin")
    loader, local = wdsplit.Loader(dataset, 16, **options), wdsplit.Loader(wdsplit.Dataset(payloads), 16)
    for epoch in range(3):
        batches, expected = iter(loader), list(local)
        found = [next(batches) for _ in range(len(loader) - 1)]
        wait_until(lambda: fault_proxy.fetched(".tar")[1] > (epoch + 1) * EPOCH_BYTES, "the next epoch has come")  # noqa: B023
        found += batches
        assert found == [(batch["__key__"], batch["bin"]) for batch in expected]
        assert fault_proxy.fetched(".tar")[1] <= (epoch + 2) * EPOCH_BYTES


def test_what_was_fetched_of_another_epoch_than_the_next_is_dropped_once(remote, fault_proxy, payloads):
    """Then no more is fetched in vain, until an epoch follows the one before it again."""
    dataset = wdsplit.Dataset(remote).to_tuple("__key__")
    loader = wdsplit.Loader(dataset, 16, **KINDS["persistent processes"])
    expected = list(wdsplit.Loader(wdsplit.Dataset(payloads).to_tuple("__key__"), 16))
    for _ in range(4):
        loader.set_epoch(0)
        assert list(loader) == expected
    wait_until(lambda: fault_proxy.fetched(".tar")[1] >= 5 * EPOCH_BYTES, "one epoch more was fetched")
    assert fault_proxy.fetched(".tar")[1] == 5 * EPOCH_BYTES


def test_what_could_not_be_fetched_of_the_next_epoch_is_fetched_again(remote, fault_proxy, monkeypatch):
    monkeypatch.setattr(source, "_MIN_CONNECTIONS", 1)  # so that this epoch's requests come first
    dataset = wdsplit.Dataset(remote, connections=1).to_tuple("__key__")
    loader = wdsplit.Loader(dataset, 16, persistent_workers=True)
    asked = Counter()

    def plan(request):
        asked[request.path] += 1
        return MISSING if request.path.endswith(".places") and asked[request.path] > 1 else None

    fault_proxy.plan = plan
    assert len(list(loader)) == len(loader)
    wait_until(lambda: all(epoch.reader.has_failed for _, epoch in loader._begun.values()), "the next epoch has failed")
    fault_proxy.plan = lambda request: None
    assert len({key for (keys,) in loader for key in keys}) == NUM_ROWS


def test_a_loader_that_is_dropped_fetches_nothing_more(remote):
    before = reading_ahead()
    loader = wdsplit.Loader(wdsplit.Dataset(remote), 16, persistent_workers=True)
    list(loader)
    assert reading_ahead() - before
    del loader
    wait_for_threads(before)


# With a cache


def test_later_epochs_come_from_the_cache(remote, fault_proxy, payloads, cache_dir):
    dataset = wdsplit.Dataset(remote, cache_dir=cache_dir, cache_size="1GB").to_tuple("__key__", "bin")
    expected = wdsplit.Dataset(payloads).to_tuple("__key__", "bin")
    loader, local = wdsplit.Loader(dataset, 16, num_workers=2), wdsplit.Loader(expected, 16)
    for epoch in range(2):
        loader.set_epoch(epoch)
        local.set_epoch(epoch)
        assert list(loader) == list(local)
    assert fault_proxy.fetched(".tar")[0] == 8
    assert fault_proxy.fetched(".places")[0] == 8
    own = wdsplit.Dataset(payloads, cache_dir=cache_dir / "own", cache_size="1GB").to_tuple("__key__", "bin")
    assert list(own) == list(expected) and len(list(cache_dir.glob("own/**/*.shard"))) == 8


@pytest.mark.slow
def test_a_download_ends_with_the_iteration_that_it_is_for(remote, fault_proxy, cache_dir, monkeypatch):
    monkeypatch.setattr(cache_module, "_READ_BYTES", 8192)
    monkeypatch.setattr(source, "_MIN_AT_ONCE", 40)
    later = {f"{number:06d}.tar" for number in range(4, 8)}

    def asked():
        return {exchange.request.path.rpartition("/")[2] for exchange in fault_proxy.exchanges} & later

    is_left = threading.Event()
    fault_proxy.plan = lambda request: Hold(is_left) if request.path.rpartition("/")[2] in later else None
    samples = iter(wdsplit.Dataset(remote, shuffle=False, cache_dir=cache_dir, cache_size="1GB"))
    before = threading.enumerate()
    next(samples)
    wait_until(lambda: asked() == later, "the next shards are being downloaded")
    del samples
    gc.collect()
    downloading = [thread for thread in threading.enumerate() if thread not in before]
    assert downloading
    is_left.set()
    for thread in downloading:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in downloading)
    assert len(list(cache_dir.rglob("*.shard"))) == 4
    assert list(cache_dir.rglob("*.part")) == []
    assert all(fault_proxy.fetched(f"/{name}")[0] <= 4 for name in later)


@pytest.mark.parametrize("cache_size", [1000, 250_000])
def test_what_has_no_room_in_the_cache_is_streamed(remote, payloads, cache_dir, cache_size, caplog):
    """The first cache is smaller than a shard, the second than those that are in use at a time."""
    dataset = wdsplit.Dataset(remote, cache_dir=cache_dir, cache_size=cache_size)
    assert without_urls(dataset) == without_urls(wdsplit.Dataset(payloads))
    told = [record.getMessage() for record in caplog.records if "are streamed" in record.getMessage()]
    assert len(told) == 1
    assert sum(path.stat().st_size for path in cache_dir.rglob("*.shard")) <= cache_size


def test_the_next_shards_are_downloaded_while_one_is(bucket, fault_proxy, tmp_path, cache_dir, monkeypatch):
    """A thread that finds a shard being downloaded goes on to the next one, though there is more of the first."""
    monkeypatch.setattr(read_ahead, "_REQUEST_BYTES", 10_000)
    table = payloads_table(NUM_ROWS, PAYLOAD_BYTES)
    url = bucket.put(converted(tmp_path / "made", table, shards=6, lanes=1, window=2), "long")
    asked, all_are_asked = [], threading.Event()

    def plan(request):
        if not request.path.endswith(".tar"):
            return None
        asked.append(request)
        if len(asked) == 6:
            all_are_asked.set()
        return Hold(all_are_asked)

    fault_proxy.plan = plan
    times = {"timeout_s": DEADLINE_S, "deadline_s": DEADLINE_S}
    options = {"cache_dir": cache_dir, "cache_size": "1GB", "connections": 8, "storage_options": times}
    assert sum(1 for _ in wdsplit.Dataset(url, **options)) == NUM_ROWS
    assert len(asked) == 6
