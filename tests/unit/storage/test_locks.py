"""Locks and threads in forked processes."""

import ctypes
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tables import DEADLINE_S
from wdsplit.storage import locks
from wdsplit.storage.locks import end_before_forks

END_US = 600_000


def end_slowly(is_awaited):
    """End for Python at once, and for the system later: as OpenSSL does, with a destructor of the thread's data."""
    libc = ctypes.CDLL(None)
    key = ctypes.c_uint()
    assert libc.pthread_key_create(ctypes.byref(key), libc.usleep) == 0
    assert libc.pthread_setspecific(key, ctypes.c_void_p(END_US)) == 0
    if is_awaited:
        end_before_forks()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_fork_waits_until_a_thread_that_ends_has_ended_entirely(is_awaited):
    thread = threading.Thread(target=end_slowly, args=[is_awaited])
    thread.start()
    thread.join()
    task = f"/proc/{os.getpid()}/task/{thread.native_id}"
    assert os.path.exists(task)
    child = os.fork()
    if child == 0:
        os._exit(os.path.exists(task))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (not is_awaited)


def make_lock_slowly():
    time.sleep(0.001)
    return threading.Lock()


def use_in_threads(lock):
    """Take a lock in several threads at once; return whether each could take it and give it back."""
    done, begin = [], threading.Barrier(4)

    def use():
        begin.wait()
        with lock:
            time.sleep(0.01)
        done.append(True)

    threads = [threading.Thread(target=use, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return len(done) == len(threads)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_was_locked_before_a_fork_serves_the_threads_of_the_forked_process(monkeypatch):
    lock = locks.ProcessLock()
    lock.acquire()
    monkeypatch.setattr(locks, "threading", SimpleNamespace(**{**vars(threading), "Lock": make_lock_slowly}))
    child = os.fork()
    if child == 0:
        os._exit(use_in_threads(lock))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
