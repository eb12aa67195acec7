"""The interface of engines, which map a function over tasks, and the engine of this machine.

That runs tasks in this thread, in several threads or in processes. Processes are spawned, ignore Ctrl-C, and end when
their parent ends or is killed. Threads end where their task calls `raise_if_cancelled`. `ray` is for clusters.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, TypeVar

from wdsplit.errors import ConvertError
from wdsplit.without_pandas import do_without_pandas

__all__ = ["Engine", "LocalEngine", "ahead", "end_with_parent", "in_order", "raise_if_cancelled"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")

_QUEUED_PER_JOB = 2
_AHEAD_PER_THREAD = 2
_MAX_THREADS = 4
"""Only one thread runs Python at a time, so more would mostly wait. More jobs run as processes."""
_PROCESS_BYTES = 256 * 1024**2
"""Bytes of work that are worth starting a process: about one second, in which a process converts, indexes or verifies
150 to 800 MB."""

_TASK_BYTES = 256 * 1024
"""The fixed cost of a task in bytes of work: a millisecond, to open, publish and record files."""

_LOOK_S = 1.0
"""How often a worker process looks whether its parent lives."""

_thread = threading.local()


class _CancelledError(BaseException):
    """Raised in a task whose result is no longer needed."""


class Engine(Protocol):
    """Runs tasks, on this machine or on others."""

    @property
    def jobs(self) -> int:
        """Number of tasks that run at a time."""

    @property
    def jobs_of_a_node(self) -> int:
        """Number of tasks that run at a time on one machine, and share its memory."""

    @property
    def is_local(self) -> bool:
        """Whether all tasks run on this machine."""

    def map(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        threads: bool = False,
        memory_bytes: int = 0,
        num_bytes: int | None = None,
        describe: Callable[[Task], str] = str,
    ) -> Generator[Result, None, None]:
        """Map a picklable function over tasks, and yield the results in the order of completion.

        If you do not take all results, close the generator (`contextlib.closing`), which ends the tasks. Do not leave
        that to the garbage collector: it may run in any thread.

        Args:
            function: Called once per task, and again if its worker was lost, so it must be repeatable. Each process
                receives it once: bind what all tasks need to it (`functools.partial`).
            tasks: Small picklable values; each is taken from the sequence when it is submitted.
            threads: Whether up to four local jobs may run as threads of this process. The function must then call
                `raise_if_cancelled` often, and run little Python.
            memory_bytes: Approximate memory that a task needs; 0 if unknown.
            num_bytes: Approximate bytes that all tasks read or write; for few bytes, no processes are started. None
                if unknown, or if tasks wait for a store.
            describe: Returns the name of a task, for errors and warnings.

        Raises:
            ConvertError: A worker was lost, or several tasks failed.
            Exception: The error of the function, if one task failed.
        """


@dataclass(frozen=True)
class LocalEngine:
    """Runs tasks on this machine: one job in this thread, several in threads or processes.

    The first error ends the run and all running tasks.

    Attributes:
        jobs: Number of tasks that run at a time, at least 1.
    """

    jobs: int = 1
    is_local = True

    @property
    def jobs_of_a_node(self) -> int:
        """All jobs."""
        return self.jobs

    def stays_in_process(self, threads: bool) -> bool:
        """Return whether this process runs all tasks, whatever their number; `threads` as for `map`."""
        return self.jobs <= (_MAX_THREADS if threads else 1)

    def map(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        threads: bool = False,
        memory_bytes: int = 0,
        num_bytes: int | None = None,
        describe: Callable[[Task], str] = str,
    ) -> Generator[Result, None, None]:
        """Map a function over tasks, as `Engine` says."""
        processes = jobs = min(self.jobs, len(tasks))
        if num_bytes is not None:
            processes = min(jobs, (num_bytes + len(tasks) * _TASK_BYTES) // _PROCESS_BYTES)
        if jobs > 1 and threads and processes <= _MAX_THREADS:
            pool = _Threads(min(jobs, _MAX_THREADS))
            try:
                yield from _bounded(pool, function, tasks, _QUEUED_PER_JOB * min(jobs, _MAX_THREADS))
            finally:
                pool.end()
        elif processes > 1:
            yield from _in_processes(function, tasks, processes)
        else:
            yield from map(function, tasks)


def _in_processes(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    import multiprocessing  # here, because small tasks need no processes
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(function,),
    )
    finished = False
    try:
        yield from _bounded(pool, _call, tasks, _QUEUED_PER_JOB * jobs)
        finished = True
    except BrokenProcessPool as error:
        raise ConvertError(
            "a worker process died",
            expected="worker processes that start and finish their tasks",
            found=str(error),
            remedy="it may have run out of memory: use fewer --jobs. In a script, put the call under "
            "`if __name__ == '__main__':`. Finished shards are kept: continue with --resume",
        ) from error
    finally:
        if not finished:  # else it would wait for the tasks that run
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def raise_if_cancelled() -> None:
    """Raise an exception that ends the calling task, if it runs in a thread and was cancelled."""
    cancelled: threading.Event | None = getattr(_thread, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise _CancelledError


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], threads: int) -> Iterator[Result]:
    """Map a function over tasks in threads of this process, a few ahead, and yield the results in the tasks' order.

    A generator that is closed early does not wait for the threads: the garbage collector may close it in a thread that
    has a lock of `threading`.

    Args:
        function: The function; if it may take long, it calls `raise_if_cancelled` often.
        tasks: Its arguments.
        threads: Maximum number of threads.
    """
    pool = _Threads(threads)
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(function, task))
            if len(pending) > _AHEAD_PER_THREAD * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except GeneratorExit:
        pool.cancel()
        raise
    except BaseException:
        pool.end()
        raise
    pool.end()


class _Threads(ThreadPoolExecutor):
    """A thread pool that can also cancel tasks that are running."""

    def __init__(self, threads: int) -> None:
        self._cancelled = threading.Event()
        self._unfinished: set[Future[Any]] = set()
        super().__init__(threads, initializer=setattr, initargs=(_thread, "cancelled", self._cancelled))

    def submit(self, *arguments: Any, **keywords: Any) -> Future[Any]:
        future = super().submit(*arguments, **keywords)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def cancel(self) -> None:
        """Cancel all tasks: running ones end at `raise_if_cancelled`, the others do not start."""
        self._cancelled.set()
        self.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """Cancel all tasks and wait until none is running, even if Ctrl-C is pressed meanwhile.

        Waits for the tasks, not the threads: in some versions of Python, a thread whose join is interrupted counts as
        ended while it is still running.
        """
        interrupted = False
        while True:
            try:
                self.cancel()
                wait(list(self._unfinished))
                break
            except KeyboardInterrupt:
                interrupted = True
        self.shutdown(wait=True)
        if interrupted:
            raise KeyboardInterrupt


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator, none of which may be None; a thread makes the next one meanwhile.

    Does not wait for the thread when it is closed early, for the reason in `in_order`.
    """
    thread = ThreadPoolExecutor(1)
    try:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def _bounded(pool: Executor, function: Callable[[Any], Any], tasks: Sequence[Any], limit: int) -> Iterator[Any]:
    """Submit at most `limit` tasks at a time, so that memory does not grow with their number; yield the results."""
    running: set[Future[Any]] = set()
    todo = iter(tasks)
    while True:
        for task in todo:
            with _interrupts_delayed():
                running.add(pool.submit(function, task))
            if len(running) >= limit:
                break
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


@contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM while processes start, so that none stays half started; they inherit the signal mask."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):  # neither ignored nor left to the system
            handlers[number] = signal.signal(number, lambda *arguments: received.append(arguments))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        try:
            for changed, handler in handlers.items():
                signal.signal(changed, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if received:
            handlers[received[0][0]](*received[0])


_function: Callable[[Any], Any]
"""The function that this worker process calls with each task."""


def _call(task: Any) -> Any:
    return _function(task)


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    do_without_pandas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Let this worker process end soon after its parent, even while it waits for a store."""
    _watch_parent(os.getpid(), os.getppid())


@functools.cache  # by the process too: a forked one has the cache of its parent, but not its threads
def _watch_parent(process: int, number: int) -> None:
    import multiprocessing.connection  # not in the thread: a process forked meanwhile would wait for its lock forever

    parent = multiprocessing.parent_process()
    if parent is not None:
        waiting = multiprocessing.connection.wait, parent, number
        threading.Thread(target=_wait_for_parent, args=waiting, daemon=True).start()


def _wait_for_parent(wait_for: Callable[..., Any], parent: Any, number: int) -> None:
    # Processes that were forked later keep the parent's sentinel open, so that its end may go unnoticed. If the parent
    # ended before `number` was asked for, that is another process.
    while not wait_for([parent.sentinel], _LOOK_S) and os.getppid() == number:
        try:
            os.kill(parent.pid, 0)
        except ProcessLookupError:
            break
        except PermissionError:
            pass
    os._exit(1)
