import threading

from tables import DEADLINE_S, wait_until
from wdsplit.loading.transport.thread_workers import Threads


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("wdsplit-")]


def test_workers_that_are_busy_are_not_waited_for_for_long(monkeypatch):
    monkeypatch.setattr("wdsplit.loading.transport.thread_workers._PATIENCE_S", 0.1)
    go = threading.Event()

    def busy():
        assert go.wait(DEADLINE_S)
        yield 1

    threads = Threads([busy() for _ in range(20)], 1, 1)
    threads.close()
    assert len(alive()) == 20
    go.set()
    wait_until(lambda: not alive(), "all workers have ended")
