import contextlib
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import wdsplit.loading.reading.read_ahead as module
from tables import DEADLINE_S, wait_until
from wdsplit.errors import StorageError
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.read_ahead import Ahead, FetchRange, LazyShard
from wdsplit.loading.reading.reader import read_blocks
from wdsplit.loading.reading.source import Access

NUM_SAMPLES, SAMPLE_BYTES = 40, 100


class Remote:
    """A file whose bytes are their offsets, and what was read of it.

    Attributes:
        reads: Offset and length of each read.
        may_read: Reads wait for it.
    """

    is_remote = True
    size = NUM_SAMPLES * SAMPLE_BYTES

    def __init__(self):
        self.reads = []
        self.may_read = threading.Event()
        self.may_read.set()

    def read_into(self, buffer, offset):
        self.reads.append((offset, len(buffer)))
        assert self.may_read.wait(DEADLINE_S)
        buffer[:] = (np.arange(offset, offset + len(buffer)) % 251).astype(np.uint8).data


class Broken(Remote):
    def read_into(self, buffer, offset):
        self.reads.append((offset, len(buffer)))
        raise StorageError("the store refuses", place="x")


def lazy(file):
    return LazyShard(lambda: OpenShard("url", file, np.arange(NUM_SAMPLES + 1) * SAMPLE_BYTES))


def wanted(shard, *windows):
    return [FetchRange(shard, first, stop, (stop - first) * SAMPLE_BYTES) for first, stop in windows]


def expected(first, stop):
    return (np.arange(first * SAMPLE_BYTES, stop * SAMPLE_BYTES) % 251).astype(np.uint8).tobytes()


def test_what_lies_side_by_side_is_one_request():
    file = Remote()
    shard = lazy(file)
    windows = [(12, 16), (0, 4), (8, 12), (20, 24)]
    fetches = Ahead(10_000, 10_000, 1).fetch(wanted(shard, *windows))
    for fetch, window in zip(fetches, windows, strict=True):
        assert bytes(fetch.data(*window)) == expected(*window)
    assert sorted(file.reads) == [(0, 400), (800, 800), (2000, 400)]
    assert fetches[0] is fetches[2]


def test_requests_are_no_larger_than_they_may_be(monkeypatch):
    monkeypatch.setattr(module, "_REQUEST_BYTES", 800)
    file = Remote()
    fetches = Ahead(10_000, 10_000, 1).fetch(wanted(lazy(file), (0, 4), (4, 8), (8, 12)))
    assert bytes(fetches[2].data(8, 12)) == expected(8, 12)
    assert sorted(file.reads) == [(0, 800), (800, 400)]


def test_shards_are_fetched_at_once_and_in_order():
    files = [Remote() for _ in range(3)]
    for file in files:
        file.may_read.clear()
    ahead = Ahead(10_000, 10_000, 2)
    fetches = ahead.fetch([each for file in files for each in wanted(lazy(file), (0, 4))])
    wait_until(lambda: files[0].reads and files[1].reads, "two are read")
    assert not files[2].reads
    for file in files:
        file.may_read.set()
    assert [bytes(fetch.data(0, 4)) for fetch in fetches] == [expected(0, 4)] * 3


def test_who_wants_what_nobody_has_begun_fetches_it_himself():
    files = [Remote(), Remote()]
    files[0].may_read.clear()
    fetches = Ahead(10_000, 10_000, 1).fetch([*wanted(lazy(files[0]), (0, 4)), *wanted(lazy(files[1]), (0, 4))])
    wait_until(lambda: files[0].reads, "the first is read")
    assert bytes(fetches[1].data(0, 4)) == expected(0, 4)
    files[0].may_read.set()
    assert bytes(fetches[0].data(0, 4)) == expected(0, 4)
    assert [len(file.reads) for file in files] == [1, 1]


def test_no_more_memory_is_taken_than_may_be_but_for_what_is_waited_for():
    files = [Remote() for _ in range(4)]
    ahead = Ahead(900, 10_000, 4)
    fetches = ahead.fetch([each for file in files for each in wanted(lazy(file), (0, 4))])
    wait_until(lambda: sum(len(file.reads) for file in files) == 2, "two are read")
    time.sleep(0.05)
    assert sum(len(file.reads) for file in files) == 2
    held = [fetch.data(0, 4) for fetch in reversed(fetches)]
    assert [bytes(data) for data in held] == [expected(0, 4)] * 4


def test_memory_is_used_again_when_nobody_refers_to_it_and_not_before(monkeypatch):
    monkeypatch.setattr(module, "_MIN_KEPT_BYTES", 0)
    file = Remote()
    shard = lazy(file)
    ahead = Ahead(2**23, 10_000, 1)

    def fetched(first, stop):
        return ahead.fetch(wanted(shard, (first, stop))).pop().data(first, stop)

    def address(data):
        return np.frombuffer(data, np.uint8).ctypes.data

    first, second = fetched(0, 4), fetched(4, 8)
    assert bytes(first) == expected(0, 4)
    was = address(first)
    assert address(second) != was
    del first
    wait_until(lambda: address(fetched(8, 12)) == was, "memory is used again")
    assert bytes(second) == expected(4, 8)


def test_an_error_is_raised_to_whoever_wants_what_could_not_be_fetched():
    file = Broken()
    shard = lazy(file)
    fetches = Ahead(10_000, 10_000, 1).fetch(wanted(shard, (0, 4), (4, 8)))
    for fetch, window in zip(fetches, ((0, 4), (4, 8)), strict=True):
        with pytest.raises(StorageError):
            fetch.data(*window)
    assert len(file.reads) == 1


def test_a_shard_is_opened_once_and_its_error_kept():
    calls = []

    def opener():
        calls.append(None)
        raise StorageError("no such shard", place="x")

    shard = LazyShard(opener)
    for fetch in Ahead(10_000, 10_000, 2).fetch(wanted(shard, (0, 4), (8, 12))):
        with pytest.raises(StorageError, match="no such shard"):
            fetch.data(0, 4)
    assert len(calls) == 1


def threads_since(before):
    return [thread for thread in threading.enumerate() if thread not in before]


def test_threads_end_with_what_they_fetch_for():
    before = threading.enumerate()
    file = Remote()
    ahead = Ahead(10_000, 10_000, 3)
    for fetch, window in zip(ahead.fetch(wanted(lazy(file), (0, 4), (8, 12))), [(0, 4), (8, 12)], strict=True):
        assert bytes(fetch.data(*window)) == expected(*window)
    assert len(threads_since(before)) == 2
    del ahead, fetch
    gc.collect()
    wait_until(lambda: not threads_since(before), "the threads have ended")


def test_threads_that_wait_for_room_end_too():
    before = threading.enumerate()
    ahead = Ahead(400, 10_000, 2)
    fetches = ahead.fetch([each for _ in range(3) for each in wanted(lazy(Remote()), (0, 4))])
    held = fetches[0].data(0, 4)
    del ahead
    wait_until(lambda: not threads_since(before), "the threads have ended")
    assert bytes(held) == expected(0, 4)


def test_room_that_was_taken_in_vain_is_given_back():
    broken, file = Broken(), Remote()
    ahead = Ahead(400, 10_000, 1)
    refused = ahead.fetch(wanted(lazy(broken), (0, 4)))[0]
    fetched = ahead.fetch(wanted(lazy(file), (0, 4)))[0]
    wait_until(lambda: file.reads, "the second is read")  # without being waited for
    assert bytes(fetched.data(0, 4)) == expected(0, 4)
    with pytest.raises(StorageError):
        refused.data(0, 4)


def test_memory_that_is_kept_counts_as_much_as_what_is_in_use(monkeypatch):
    page = 4096
    monkeypatch.setattr(module, "_MIN_KEPT_BYTES", 0)
    monkeypatch.setattr(module, "_SMALL_PAGE_BYTES", page)
    memory, urgent = module._Memory(4 * page), threading.Event()

    def filled(num_pages):
        return memory.filled(num_pages * page, urgent, lambda buffer: None)

    def taken():
        return memory._in_use + sum(map(len, memory._free))

    held = [filled(1) for _ in range(4)]
    assert memory._in_use == 4 * page
    del held[:2]
    assert taken() == 4 * page
    held.append(filled(2))
    assert (memory._in_use, taken()) == (4 * page, 4 * page)
    held.clear()
    assert memory._in_use == 0 and taken() <= 4 * page


@pytest.mark.parametrize("num_bytes", [1_050_000, 1_300_000, 5_000_000, 9_000_000])
def test_what_is_fetched_takes_little_more_memory_than_it_has_bytes(num_bytes):
    memory = module._Memory(10 * num_bytes)
    held = memory.filled(num_bytes, threading.Event(), lambda buffer: None)
    assert len(held) == num_bytes <= memory._in_use <= 1.2 * num_bytes


def in_forked_process(action):
    """Return the exit code of a process that is forked here and does something; -9 if it hangs."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if action() else 2
        os._exit(code)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_reads_by_itself_what_threads_of_its_parent_were_fetching():
    """Whatever locks they held: that of a shard which is being opened, that of the memory, that of the queue."""
    file, opening = Remote(), threading.Event()
    file.may_read.clear()

    def opener():
        if not is_child:
            opening.set()
            assert may_open.wait(DEADLINE_S)
        return OpenShard("url", file, np.arange(NUM_SAMPLES + 1) * SAMPLE_BYTES)

    is_child, may_open = False, threading.Event()
    ahead, shard = Ahead(400, 10_000, 2), LazyShard(opener)
    fetches = ahead.fetch(wanted(shard, (0, 4), (8, 12)))
    assert opening.wait(DEADLINE_S)

    def read():
        nonlocal is_child
        is_child = True
        file.may_read.set()
        fetches[0].hurry()
        again = ahead.fetch(wanted(shard, (4, 8)))[0]
        return fetches[0].data(0, 4) is None and bytes(again.data(4, 8)) == expected(4, 8)

    with ahead._memory._changed:
        code = in_forked_process(read)
    may_open.set()
    file.may_read.set()
    assert code == 0
    assert bytes(fetches[0].data(0, 4)) == expected(0, 4)


class Plans:
    """Plans lists and carries the plans out; notes how many are planned and not carried out yet."""

    def __init__(self, ahead):
        self.ahead = ahead
        self.num_ahead = self.most_ahead = 0

    def plan(self, positions):
        self.num_ahead += 1
        self.most_ahead = max(self.most_ahead, self.num_ahead)
        return positions

    def fetch(self):
        pass

    def carry_out(self, plan):
        self.num_ahead -= 1
        return plan


def test_no_more_is_planned_than_may_be_though_nothing_is_to_be_fetched():
    reader = Plans(Ahead(10_000, 10_000, 1))
    assert list(read_blocks(reader, range(1000))) == list(range(1000))
    assert 100 < reader.most_ahead <= 256


@pytest.mark.parametrize(
    ("given", "window_bytes", "planned"), [(None, 10, 2**26), (None, 10**9, 10**9), (10**6, 10**9, 500_000)]
)
def test_by_default_as_much_is_fetched_ahead_as_the_windows_of_a_worker_hold(given, window_bytes, planned):
    """Windows of all lanes end at the same time: a link must not rest before that and be too slow then."""
    ahead = Access(read_ahead_bytes=given).ahead(2, window_bytes, 0)
    ahead.num_planned = planned - 1
    assert not ahead.is_full
    ahead.num_planned = planned
    assert ahead.is_full
