import gc
import threading
import time

import pytest

from tables import DEADLINE_S, wait_until
from wdsplit.loading.transport.thread_workers import Threads


def settled(made, least):
    """Wait until a list is so long; return its length when there was time for more."""
    wait_until(lambda: len(made) >= least, f"{least} parts are made")
    time.sleep(0.05)
    return len(made)


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("wdsplit-")]


def ends():
    """Wait until no worker is left."""
    wait_until(lambda: not alive(), "all workers have ended")


def made(log, parts):
    """Give parts, and keep a log of those that were made."""
    for part in parts:
        log.append(part)
        yield part


def test_parts_come_in_turn():
    threads = Threads([iter("abc"), iter("xyz")], 2, 100)
    assert [next(threads) for _ in range(6)] == list("axbycz")
    with pytest.raises(StopIteration):
        next(threads)
    ends()


@pytest.mark.parametrize("parts_ahead", [1, 3])
def test_a_worker_makes_so_many_parts_ahead_and_holds_one(parts_ahead):
    log = []
    threads = Threads([made(log, [b"x"] * 20)], parts_ahead, 10**6)
    assert settled(log, parts_ahead + 1) == parts_ahead + 1
    for taken in range(1, 4):
        next(threads)
        assert settled(log, taken + parts_ahead + 1) == taken + parts_ahead + 1
    threads.close()


@pytest.mark.parametrize(("bytes_ahead", "parts"), [(100, 1), (0, 1), (199, 1), (200, 2), (250, 2)])
def test_a_worker_holds_so_many_bytes_ahead_and_one_part(bytes_ahead, parts):
    log = []
    threads = Threads([made(log, [b"x" * 100] * 20)], 9, bytes_ahead)
    assert settled(log, parts + 1) == parts + 1
    assert [next(threads) for _ in range(20)] == [b"x" * 100] * 20
    threads.close()


@pytest.mark.parametrize("kind", [KeyError, StopIteration, SystemExit, MemoryError])
def test_an_error_is_the_last_part(kind):
    def failing():
        yield 1
        raise kind("no")

    threads = Threads([failing()], 5, 10**6)
    assert next(threads) == 1
    (raised,) = next(threads)
    error = raised.error
    assert isinstance(error, RuntimeError if kind is StopIteration else kind)
    with pytest.raises(StopIteration):
        next(threads)


@pytest.mark.parametrize("end", ["close", "del"])
def test_workers_that_wait_for_room_end_with_their_parts(end, monkeypatch):
    monkeypatch.setattr("wdsplit.loading.transport.thread_workers._PATIENCE_S", DEADLINE_S)
    closed = []

    def endless():
        try:
            while True:
                yield b"x"
        finally:
            closed.append(threading.current_thread().name)

    threads = Threads([endless(), endless()], 1, 1)
    next(threads)
    if end == "close":
        threads.close()
        threads.close()
        with pytest.raises(StopIteration):
            next(threads)
    else:
        del threads
    assert alive() == []
    assert sorted(closed) == ["wdsplit-0", "wdsplit-1"]


def test_workers_that_are_busy_are_not_waited_for_for_long(monkeypatch):
    """All of them together for a second."""
    monkeypatch.setattr("wdsplit.loading.transport.thread_workers._PATIENCE_S", 1)
    go = threading.Event()

    def busy():
        assert go.wait(DEADLINE_S)
        yield 1

    threads = Threads([busy() for _ in range(100)], 1, 1)
    begun = time.monotonic()
    threads.close()
    assert time.monotonic() - begun < 50
    assert len(alive()) == 100
    go.set()
    ends()


def test_the_collector_may_run_in_a_worker():
    """The last reference to the threads is in one of them, which must not wait for itself, or for another."""
    held, go = {}, threading.Event()

    def collecting():
        yield 1
        go.wait(DEADLINE_S)
        held.clear()
        gc.collect()
        yield 2

    def waiting():
        while True:
            yield 1

    held["threads"] = Threads([collecting(), waiting()], 5, 10**6)
    next(held["threads"])
    go.set()
    ends()
