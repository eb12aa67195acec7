import gc
import threading
import time

import pytest

from wdsplit.threads import Threads

SOON_S = 10
"""How long a test waits for what should come at once."""


def until(condition):
    """Wait for a condition; return whether it came true."""
    deadline = time.monotonic() + SOON_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def settled(count):
    """Return what a list's length comes to rest at."""
    while True:
        before = len(count)
        time.sleep(0.1)
        if len(count) == before:
            return before


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("wdsplit-")]


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
    assert until(lambda: not alive())


@pytest.mark.parametrize("parts_ahead", [1, 3])
def test_a_worker_makes_so_many_parts_ahead_and_holds_one(parts_ahead):
    log = []
    threads = Threads([made(log, [b"x"] * 20)], parts_ahead, 10**6)
    assert settled(log) == parts_ahead + 1
    for taken in range(1, 4):
        next(threads)
        assert settled(log) == taken + parts_ahead + 1
    threads.close()


@pytest.mark.parametrize(("bytes_ahead", "parts"), [(100, 1), (0, 1), (199, 1), (200, 2), (250, 2)])
def test_a_worker_holds_so_many_bytes_ahead_and_one_part(bytes_ahead, parts):
    log = []
    threads = Threads([made(log, [b"x" * 100] * 20)], 9, bytes_ahead)
    assert settled(log) == parts + 1
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
def test_workers_that_wait_for_room_end_with_their_parts(end):
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


def test_a_worker_that_is_busy_is_not_waited_for_for_long():
    go = threading.Event()

    def busy():
        go.wait(SOON_S)
        yield 1

    threads = Threads([busy() for _ in range(4)], 1, 1)
    begun = time.monotonic()
    threads.close()
    assert time.monotonic() - begun < 4
    go.set()
    assert until(lambda: not alive())


def test_the_collector_may_run_in_a_worker():
    """The last reference to the threads is in one of them, which must not wait for itself, or for another."""
    held, go = {}, threading.Event()

    def collecting():
        yield 1
        go.wait(SOON_S)
        held.clear()
        gc.collect()
        yield 2

    def waiting():
        while True:
            yield 1

    held["threads"] = Threads([collecting(), waiting()], 5, 10**6)
    next(held["threads"])
    go.set()
    assert until(lambda: not alive())
