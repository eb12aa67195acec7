import threading
import time

import pytest

from tables import DEADLINE_S, wait_until
from wdsplit.loading.transport.thread_workers import Threads


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("wdsplit-")]


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
    """All of them together for a tenth of a second."""
    monkeypatch.setattr("wdsplit.loading.transport.thread_workers._PATIENCE_S", 0.1)
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
    wait_until(lambda: not alive(), "all workers have ended")
