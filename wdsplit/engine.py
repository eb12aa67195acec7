"""Engines: ways to map a function over tasks. Here: this process, or several local ones.

Results come as they are ready. The first error ends the run; nothing is left behind. Worker processes are spawned, end
with their parent however that ends, and leave Ctrl-C to it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from wdsplit.errors import ConvertError

__all__ = ["run_tasks"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_QUEUED_PER_JOB = 2


def run_tasks(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Map a picklable function over tasks and yield the results as they are ready.

    Args:
        function: Called once a task, in another process if there are several jobs. Each process gets it once, so
            what all tasks need is best bound to it (`functools.partial`).
        tasks: Picklable.
        jobs: Processes; with 1 all is done in this one.

    Raises:
        ConvertError: A worker process died.
        Exception: Whatever the function raised first.
    """
    if jobs <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield function(task)
        return
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(function,),
    )
    finished = False
    try:
        yield from _bounded(pool, tasks, _QUEUED_PER_JOB * jobs)
        finished = True
    except BrokenProcessPool as error:
        raise ConvertError(
            "a worker process died",
            expected="worker processes that start and live until their work is done",
            found=str(error),
            remedy="it may have run out of memory: use fewer --jobs. In a script, put the call under "
            "`if __name__ == '__main__':`. What is done is kept: continue with --resume",
        ) from error
    finally:
        _stop(pool, finished)


def _bounded(pool: ProcessPoolExecutor, tasks: Sequence[Any], limit: int) -> Iterator[Any]:
    """Keep at most `limit` tasks handed out, so that the driver's memory does not grow with their number."""
    running: set[Future[Any]] = set()
    todo = iter(tasks)
    while True:
        for task in todo:
            with _interrupts_held():
                running.add(pool.submit(_call, task))
            if len(running) >= limit:
                break
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started: they inherit the mask, and none is left half-made."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if received:
            raise KeyboardInterrupt


def _stop(pool: ProcessPoolExecutor, finished: bool) -> None:
    """End the pool: politely if all is done, else at once."""
    if not finished:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


_function: Callable[[Any], Any]
"""What this worker process calls for each task."""


def _call(task: Any) -> Any:
    return _function(task)


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
