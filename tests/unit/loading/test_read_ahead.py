import gc
import multiprocessing
import os
import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import wdsplit.loading.reading.read_ahead as module
from tables import DEADLINE_S, wait_until
from wdsplit.errors import StorageError
from wdsplit.loading.reading import segments
from wdsplit.loading.reading.read_ahead import Ahead, FetchRange, LazyShard
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


class Shard:
    """What is fetched of an open shard whose samples have 100 bytes each."""

    def __init__(self, file):
        self.file, self.parts = file, [self]

    def ranges(self, samples):
        begins = np.arange(NUM_SAMPLES)[samples] * SAMPLE_BYTES
        _, *cuts = segments.ranges_of(begins, begins + SAMPLE_BYTES, np.zeros(len(samples), np.int64))
        return list(zip(*cuts, strict=True))

    def check_dataset(self):
        """Do nothing: it is never overwritten."""


LISTED = SimpleNamespace(num_samples=NUM_SAMPLES, num_bytes=NUM_SAMPLES * SAMPLE_BYTES)


def lazy(file):
    return LazyShard(LISTED, lambda: Shard(file))


def wanted(shard, *windows):
    return [FetchRange(shard, np.arange(first, stop)) for first, stop in windows]


def expected(first, stop):
    return (np.arange(first * SAMPLE_BYTES, stop * SAMPLE_BYTES) % 251).astype(np.uint8).tobytes()


@pytest.mark.parametrize(
    ("request_bytes", "reads"),
    [(10**6, [(0, 400), (800, 1200), (2800, 400)]), (800, [(0, 400), (800, 800), (1600, 400), (2800, 400)])],
)
def test_what_lies_side_by_side_is_one_request_no_larger_than_it_may_be(monkeypatch, request_bytes, reads):
    monkeypatch.setattr(module, "_REQUEST_BYTES", request_bytes)
    file, windows = Remote(), [(12, 16), (0, 4), (8, 12), (16, 20), (28, 32)]
    ahead = Ahead(10_000, 10_000, 1)
    fetches = ahead.fetch(wanted(lazy(file), *windows))
    for fetch, window in zip(fetches, windows, strict=True):
        assert bytes(fetch.data(window[0])) == expected(*window)
    assert sorted(file.reads) == reads
    assert fetches[0] is fetches[2]


@pytest.mark.parametrize(("min_gap", "reads"), [(0, [(0, 200), (300, 300), (900, 300)]), (400, [(0, 600), (900, 300)])])
def test_chosen_samples_of_windows_side_by_side_are_fetched_without_large_gaps(monkeypatch, min_gap, reads):
    for place in (segments, module):
        monkeypatch.setattr(place, "MIN_GAP_BYTES", min_gap)
    file = Remote()
    shard = lazy(file)
    windows = [FetchRange(shard, np.array(chosen)) for chosen in ([0, 1, 3], [4, 5], [9, 10, 11])]
    ahead = Ahead(10_000, 10_000, 1)
    fetches = ahead.fetch(windows)
    parts = [(0, 2), (3, 4)] if min_gap == 0 else [(0, 4)]
    assert bytes(fetches[0].data(0)) == b"".join(expected(*part) for part in parts)
    assert bytes(fetches[1].data(4)) == expected(4, 6)
    assert bytes(fetches[2].data(9)) == expected(9, 12)
    assert sorted(file.reads) == reads
    assert sum(shard.num_bytes(window.samples) for window in windows) == sum(size for _, size in reads)


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
    assert [bytes(fetch.data(0)) for fetch in fetches] == [expected(0, 4)] * 3


def test_who_wants_what_nobody_has_begun_fetches_it_himself():
    files = [Remote(), Remote()]
    files[0].may_read.clear()
    ahead = Ahead(10_000, 10_000, 1)
    fetches = ahead.fetch([*wanted(lazy(files[0]), (0, 4)), *wanted(lazy(files[1]), (0, 4))])
    wait_until(lambda: files[0].reads, "the first is read")
    assert bytes(fetches[1].data(0)) == expected(0, 4)
    files[0].may_read.set()
    assert bytes(fetches[0].data(0)) == expected(0, 4)
    assert [len(file.reads) for file in files] == [1, 1]


def test_no_more_memory_is_taken_than_may_be_but_for_what_is_waited_for():
    files = [Remote() for _ in range(4)]
    ahead = Ahead(900, 10_000, 4)
    fetches = ahead.fetch([each for file in files for each in wanted(lazy(file), (0, 4))])
    wait_until(lambda: sum(len(file.reads) for file in files) == 2, "two are read")
    time.sleep(0.05)
    assert sum(len(file.reads) for file in files) == 2
    held = [fetch.data(0) for fetch in reversed(fetches)]
    assert [bytes(data) for data in held] == [expected(0, 4)] * 4


def test_memory_is_used_again_when_nobody_refers_to_it_and_not_before():
    file = Remote()
    shard = lazy(file)
    ahead = Ahead(2**23, 10_000, 1)

    def fetched(first, stop):
        return ahead.fetch(wanted(shard, (first, stop))).pop().data(first)

    def address(data):
        return np.frombuffer(data, np.uint8).ctypes.data

    first, second = fetched(0, 4), fetched(4, 8)
    assert bytes(first) == expected(0, 4)
    was = address(first)
    assert address(second) != was
    del first
    wait_until(lambda: address(fetched(8, 12)) == was, "memory is used again")
    assert bytes(second) == expected(4, 8)


def test_an_error_of_reading_or_opening_is_raised_to_whoever_wants_what_could_not_be_fetched():
    file, calls = Broken(), []

    def opener():
        calls.append(None)
        raise StorageError("no such shard", place="x")

    cases = [(lazy(file), 4, "the store refuses"), (LazyShard(LISTED, opener), 8, "no such shard")]
    for shard, second, told in cases:
        ahead = Ahead(10_000, 10_000, 2)
        for fetch, first in zip(ahead.fetch(wanted(shard, (0, 4), (second, second + 4))), (0, second), strict=True):
            with pytest.raises(StorageError, match=told):
                fetch.data(first)
    assert len(file.reads) == len(calls) == 1


def threads_since(before):
    return [thread for thread in threading.enumerate() if thread not in before]


def test_threads_end_with_what_they_fetch_for():
    before = threading.enumerate()
    file = Remote()
    ahead = Ahead(10_000, 10_000, 3)
    for fetch, window in zip(ahead.fetch(wanted(lazy(file), (0, 4), (8, 12))), [(0, 4), (8, 12)], strict=True):
        assert bytes(fetch.data(window[0])) == expected(*window)
    assert len(threads_since(before)) == 2
    del ahead, fetch
    gc.collect()
    wait_until(lambda: not threads_since(before), "the threads have ended")
    ahead = Ahead(400, 10_000, 2)
    fetches = ahead.fetch([each for _ in range(3) for each in wanted(lazy(Remote()), (0, 4))])
    held = fetches[0].data(0)
    del ahead  # while threads wait for room
    wait_until(lambda: not threads_since(before), "the threads have ended")
    assert bytes(held) == expected(0, 4)


def test_room_that_was_taken_in_vain_is_given_back():
    broken, file = Broken(), Remote()
    ahead = Ahead(400, 10_000, 1)
    refused = ahead.fetch(wanted(lazy(broken), (0, 4)))[0]
    fetched = ahead.fetch(wanted(lazy(file), (0, 4)))[0]
    wait_until(lambda: file.reads, "the second is read")  # without being waited for
    assert bytes(fetched.data(0)) == expected(0, 4)
    with pytest.raises(StorageError):
        refused.data(0)


def test_ranges_in_memory_never_overlap_and_all_of_it_is_one_gap_again_when_they_are_gone():
    """Some are urgent, so that more is in use than may be: those have memory of their own."""
    draw = random.Random(0)
    memory, kept = module._Memory(10_000), []
    for number in range(2_000):
        size = draw.randrange(1, 1_500)

        def fill(buffer, value=number % 251):
            np.frombuffer(buffer, np.uint8)[:] = value

        kept.append((number % 251, memory.filled(size, lambda: True, fill)))
        draw.shuffle(kept)
        del kept[draw.randrange(4, 14) :]
        assert all((np.frombuffer(data, np.uint8) == value).all() for value, data in kept)
        assert memory._in_use >= sum(len(data) for _, data in kept)
    kept.clear()
    del fill
    memory.filled(1, lambda: False, lambda buffer: None)
    memory._reclaim()
    assert (memory._in_use, memory._gaps) == (0, [(0, 10_000)])


def test_the_next_epoch_has_the_memory_of_the_last_one_once_nothing_of_that_is_held():
    def begun():
        memory = module._Memory(10_000)
        return memory, memory._mapping, memory.filled(10, lambda: True, lambda buffer: None)

    def is_mine():
        return begun()[1] is not mapping

    gc.collect()  # what other tests have left
    memory, mapping, held = begun()
    del memory
    assert begun()[1] is not mapping  # it has bytes that are still in use
    module._spare.clear()
    held.release()
    del held
    assert in_forked_process(is_mine) == 0
    assert begun()[1] is mapping
    assert module._Memory(20_000)._mapping is not mapping


def in_forked_process(action):
    """Return the exit code of a process that is forked here and does something; -9 if it hangs."""
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(0 if action() else 2))
    process.start()
    process.join(DEADLINE_S)
    process.kill()
    process.join()
    return process.exitcode


def test_a_forked_process_reads_by_itself_what_threads_of_its_parent_were_fetching():
    """Whatever locks they held: that of a shard which is being opened, that of the memory, that of the queue."""
    file, opening = Remote(), threading.Event()
    file.may_read.clear()

    def opener():
        if not is_child:
            opening.set()
            assert may_open.wait(DEADLINE_S)
        return Shard(file)

    is_child, may_open = False, threading.Event()
    ahead, shard = Ahead(400, 10_000, 2), LazyShard(LISTED, opener)
    fetches = ahead.fetch(wanted(shard, (0, 4), (8, 12)))
    assert opening.wait(DEADLINE_S)

    def read():
        nonlocal is_child
        is_child = True
        file.may_read.set()
        fetches[0].mark_urgent()
        again = ahead.fetch(wanted(shard, (4, 8)))[0]
        return fetches[0].data(0) is None and bytes(again.data(4)) == expected(4, 8)

    with ahead._memory._changed:
        code = in_forked_process(read)
    may_open.set()
    file.may_read.set()
    assert code == 0
    assert bytes(fetches[0].data(0)) == expected(0, 4)


@pytest.mark.parametrize(
    ("given", "window_bytes", "planned"), [(None, 10, 2**24), (None, 10**9, 10**9), (10**6, 10**9, 500_000)]
)
def test_by_default_as_much_is_fetched_ahead_as_the_windows_of_a_worker_hold(given, window_bytes, planned):
    """Windows of all lanes end at the same time: a link must not rest before that and be too slow then."""
    ahead = Access(read_ahead_bytes=given).ahead(2, window_bytes, 0)
    ahead.num_planned = planned - 1
    assert not ahead.is_full
    ahead.num_planned = planned
    assert ahead.is_full


def test_more_is_fetched_ahead_once_something_that_was_planned_comes_too_late():
    """Each worker of two begins with 16 MiB, and has 64 MiB at most; what the first batches need does not count."""
    file, ahead = Remote(), Access().ahead(2, 10, 0)
    shard = lazy(file)

    def planned():
        steps = [num for num in (2**24, 2**25, 2**26) if not is_full(num - 1) and is_full(num)]
        ahead.num_planned = 0
        return steps

    def is_full(num_planned):
        ahead.num_planned = num_planned
        return ahead.is_full

    def use(first, is_late):
        file.may_read.clear()
        (fetch,) = ahead.fetch(wanted(shard, (first, first + 4)))
        if not is_late:
            file.may_read.set()
            fetch.data(first)
        ahead.use(fetch, 0)
        file.may_read.set()
        assert bytes(fetch.data(first)) == expected(first, first + 4)
        return planned()

    assert use(0, is_late=True) == [2**24]
    assert use(8, is_late=False) == [2**24]
    assert use(16, is_late=True) == [2**25]
    assert use(20, is_late=True) == use(24, is_late=True) == [2**26]
