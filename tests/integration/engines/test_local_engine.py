import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import engine_checks
from forked_workers import SpawningPool, living_workers
from tables import DEADLINE_S, FULL_PROCESS_BYTES, session_processes, start_process, start_script, wait_until
from wdsplit.engines import local
from wdsplit.engines.local import LocalEngine, ahead, raise_if_cancelled
from wdsplit.errors import ConvertError, InputError

MB, GB = 10**6, 10**9


CHECKS = (
    engine_checks.check_every_task_has_its_result_once,
    engine_checks.check_the_error_of_a_task_arrives_as_it_is,
    engine_checks.check_an_error_that_nobody_raised_on_purpose_arrives_too,
    engine_checks.check_tasks_are_asked_for_as_they_are_handed_out,
)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_holds_for_every_engine_and_no_process_is_left(check, jobs, tmp_path):
    check(LocalEngine(jobs), tmp_path)
    assert living_workers() == []


def test_a_worker_that_is_killed_is_an_error_with_a_remedy_and_leaves_no_process(monkeypatch):
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", SpawningPool)  # as users have it
    with pytest.raises(ConvertError, match="a worker process died") as caught:
        list(LocalEngine(2).map(signal.raise_signal, [signal.SIGKILL] * 100))
    for text in ("memory", "--resume", "__main__"):
        assert text in caught.value.remedy
    assert living_workers() == []


def square(number):
    return number * number, os.getpid()


@pytest.mark.parametrize(
    ("jobs", "num_tasks", "options", "in_processes"),
    [
        (1, 20, {}, False),
        (3, 1, {}, False),
        (2, 20, {}, True),
        (2, 20, {"threads": True}, False),
        (3, 20, {"threads": True}, True),
        (64, 20, {"threads": True, "num_bytes": 17 * MB}, False),
    ],
)
def test_tasks_run_in_processes_unless_few_threads_will_do(monkeypatch, jobs, num_tasks, options, in_processes):
    monkeypatch.setattr(local, "_PROCESS_BYTES", FULL_PROCESS_BYTES if "num_bytes" in options else 1)
    monkeypatch.setattr(local, "_MAX_THREADS", 2)
    results = list(LocalEngine(jobs).map(square, range(num_tasks), **options))
    assert sorted(result for result, _ in results) == [number * number for number in range(num_tasks)]
    assert {pid == os.getpid() for _, pid in results} == {not in_processes}


DRIVER = """
import os, sys, time
from pathlib import Path
from wdsplit.engines import local

def announce(task):
    "Leave a note, wait for the other worker's, then return or work on."
    folder, returns = task
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.005)
    if not returns:
        time.sleep(600)

if __name__ == "__main__":
    local._PROCESS_BYTES = 1
    for _ in local.LocalEngine(2).map(announce, [(sys.argv[1], True), (sys.argv[1], False)]):
        print("one is idle", flush=True)
"""


@pytest.fixture
def driver(tmp_path):
    """Start a driver with a worker at work and an idle one, and see that all of its processes are gone at the end."""
    program, notes = tmp_path / "driver.py", tmp_path / "notes"
    program.write_text(DRIVER)
    notes.mkdir()
    script = start_process([sys.executable, program, notes])
    assert script.stdout.readline() == "one is idle\n", script.communicate()
    assert {int(path.name) for path in notes.iterdir()} < set(session_processes(script.pid))
    yield script
    wait_until(lambda: not session_processes(script.pid), "no process of the driver is left")


def test_workers_end_when_their_driver_is_killed(driver):
    driver.kill()
    driver.communicate()


def test_ctrl_c_ends_the_driver_and_its_workers_and_is_reported_once(driver):
    os.killpg(driver.pid, signal.SIGINT)
    _, errors = driver.communicate()
    assert driver.returncode != 0
    assert errors.count("KeyboardInterrupt") == 1


def test_an_error_in_one_thread_ends_the_tasks_of_the_others():
    begun, ended = threading.Event(), threading.Event()

    def work(number):
        if number == 0:
            begun.wait()
            raise InputError("the first error")
        begun.set()
        try:
            while True:
                raise_if_cancelled()
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(InputError, match="the first error"):
        list(LocalEngine(2).map(work, range(4), threads=True))
    assert ended.is_set()


@pytest.mark.parametrize(
    ("jobs", "num_tasks", "num_bytes", "processes"),
    [
        (2, 17, 17 * MB, 0),
        (64, 8, 400 * MB, 0),
        (2, 8, GB, 2),
        (64, 8, GB, 3),
        (64, 5000, 5 * MB, 4),
        (2, 3, None, 2),
        (64, 1, 100 * GB, 0),
        (1, 100, 100 * GB, 0),
    ],
)
def test_no_more_processes_start_than_the_bytes_and_tasks_are_worth(monkeypatch, jobs, num_tasks, num_bytes, processes):
    """None (0) for 17 MB in 17 tars, which one job indexes in less time than two processes need to start."""
    monkeypatch.setattr(local, "_PROCESS_BYTES", FULL_PROCESS_BYTES)
    started = []
    monkeypatch.setattr(local, "_in_processes", lambda function, tasks, jobs: started.append(jobs) or [])
    results = list(LocalEngine(jobs).map(str, range(num_tasks), num_bytes=num_bytes))
    assert sum(started) == processes
    assert processes or results == [str(number) for number in range(num_tasks)]


def test_what_is_made_ahead_comes_in_order_with_its_error_and_is_given_up_when_nobody_wants_it():
    made = []

    def items():
        for number in range(100):
            made.append(number)
            yield number

    assert list(ahead(items())) == list(range(100))
    made.clear()
    taken = ahead(items())
    assert [next(taken), next(taken)] == [0, 1]
    taken.close()
    assert len(made) <= 4

    def failing():
        yield 1
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        list(ahead(failing()))


def test_a_second_ctrl_c_does_not_leave_threads_that_write(tmp_path):
    """The main thread waits for its threads however often it is interrupted."""
    ended, begun, pressed = [], [], threading.Event()

    def work(number):
        begun.append(number)
        pressed.wait()
        ended.append(number)

    def press():
        wait_until(lambda: len(begun) == 2, "both threads are at work")
        for _ in range(2):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.15)
        pressed.set()

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(2).map(work, range(8), threads=True))
    assert sorted(ended) == sorted(begun)
    presser.join()


def test_ctrl_c_that_is_ignored_is_ignored_while_a_process_starts(monkeypatch):
    """Shells ignore it for what they run in the background."""
    started, submit = [], ThreadPoolExecutor.submit

    def interrupted(pool, *task):
        signal.raise_signal(signal.SIGINT)
        started.append(task)
        return submit(pool, *task)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert sorted(LocalEngine(2).map(str, range(3), threads=True)) == ["0", "1", "2"]
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(started) == 3


LEAVE = """
import gc, threading, time
from wdsplit.engines.local import in_order

def leave():
    results = in_order(lambda number: time.sleep(0.01), range(100), 4)
    next(results)
    cycle = [results]
    cycle.append(cycle)

leave()
with getattr(threading, "_shutdown_locks_lock", threading.Lock()):
    gc.collect()
print("ended")
"""


def test_results_that_are_left_are_no_trap_for_the_collector():
    """It runs wherever memory is asked for: also in a thread that begins, and holds this lock of all threads."""
    ended = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (0, "ended\n")


LATE = """
import multiprocessing, os, signal, time
from wdsplit.engines import local

parent = os.getpid()

def watches_late():
    while os.getppid() == parent:
        time.sleep(0.01)
    local._LOOK_S = 0.05
    local.end_with_parent()
    time.sleep(1e6)

context = multiprocessing.get_context("fork")
late = context.Process(target=watches_late)
late.start()
later = context.Process(target=time.sleep, args=(1e6,))  # keeps open what the end of its parent would close
later.start()
print(late.pid, flush=True)
os.kill(parent, signal.SIGKILL)
"""


def test_a_worker_ends_also_if_its_parent_ended_before_it_watches_it():
    with start_script(LATE) as process:
        late = int(process.stdout.readline())
        process.wait()
        wait_until(lambda: late not in session_processes(process.pid), "the worker has ended")
        os.killpg(process.pid, signal.SIGKILL)


NESTED = """
import multiprocessing, os, signal, time
from wdsplit.engines import local

def watches():
    local.end_with_parent()
    time.sleep(1e6)

def forks():
    local.end_with_parent()
    inner = context.Process(target=watches)
    inner.start()
    print(inner.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

local._LOOK_S = 0.05
context = multiprocessing.get_context("fork")
context.Process(target=forks).start()
time.sleep(1e6)
"""


def test_a_worker_that_a_worker_has_forked_ends_with_it():
    with start_script(NESTED) as process:
        inner = int(process.stdout.readline())
        wait_until(lambda: inner not in session_processes(process.pid), "the inner worker has ended")
        os.killpg(process.pid, signal.SIGKILL)
