"""Engines: ways to map a function over tasks. Here: this process, threads of it, or several local processes.

`ray` has another, for a cluster. Worker processes are spawned, end with their parent however that ends, and leave
Ctrl-C to it. Threads end where their task calls `raise_if_cancelled`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from wdsplit.errors import ConvertError
from wdsplit.without_pandas import do_without_pandas

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

__all__ = ["Engine", "LocalEngine", "ahead", "in_order", "raise_if_cancelled"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")

_QUEUED_PER_JOB = 2
_AHEAD_PER_THREAD = 2
_MAX_THREADS = 4
"""Python runs in one thread at a time, so more threads would mostly wait. More jobs are processes."""
_PROCESS_BYTES = 256 * 1024**2
"""Work that is worth the start of a process: about a second of a processor's time, in which one process converts,
indexes or verifies 150 to 800 MB."""

_TASK_BYTES = 256 * 1024
"""Work that each task is besides its bytes: a millisecond, for files that are opened, published and noted."""

_thread = threading.local()


class _CancelledError(BaseException):
    """A task is cancelled, because the results of its `map` are no longer needed."""


class Engine(Protocol):
    """Where the tasks of a run are carried out."""

    @property
    def jobs(self) -> int:
        """Tasks at a time."""

    @property
    def jobs_of_a_node(self) -> int:
        """Tasks at a time that share the memory of one machine."""

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
        """Map a picklable function over tasks and yield the results as they are ready.

        Close a generator that is left before its end (`contextlib.closing`): that ends the tasks. The garbage collector
        must not do it, because it may run in any thread.

        Args:
            function: Called once a task, or again where what runs it is lost: the task must then do the same. Each
                process gets it once, so what all tasks need is best bound to it (`functools.partial`).
            tasks: Picklable, and small; asked for as they are handed out.
            threads: Whether up to four local jobs may be threads of this process: the function calls
                `raise_if_cancelled` often, and runs little Python.
            memory_bytes: What a task needs, about; 0 if nobody knows.
            num_bytes: What all tasks read or write, about: few bytes are done sooner than processes start. None if
                nobody knows, or if tasks wait for answers of a store.
            describe: Says what a task is, for the error if nothing but its end is known.

        Raises:
            ConvertError: What runs the tasks was lost, or several of them failed.
            Exception: What the function raised, if it was one task that failed.
        """


@dataclass(frozen=True)
class LocalEngine:
    """This machine: with one job this thread, else threads or processes.

    The first error ends the run; tasks under way are ended too.

    Attributes:
        jobs: Tasks at a time, at least 1.
    """

    jobs: int = 1
    is_local = True

    @property
    def jobs_of_a_node(self) -> int:
        """All of them."""
        return self.jobs

    def stays_in_process(self, threads: bool) -> bool:
        """Tell whether this process carries out all tasks, however many; `threads` as of `map`."""
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
        if jobs > 1 and threads and min(self.jobs, processes) <= _MAX_THREADS:
            yield from _in_threads(function, tasks, min(jobs, _MAX_THREADS))
        elif processes > 1:
            yield from _in_processes(function, tasks, processes)
        else:
            yield from map(function, tasks)


def _in_processes(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    import multiprocessing  # here, because small tasks need no processes
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)),
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
            expected="worker processes that start and live until their work is done",
            found=str(error),
            remedy="it may have run out of memory: use fewer --jobs. In a script, put the call under "
            "`if __name__ == '__main__':`. Finished shards are kept: continue with --resume",
        ) from error
    finally:
        _stop(pool, finished)


def raise_if_cancelled() -> None:
    """End the task that calls this, by an exception, if it works in a thread that was cancelled."""
    cancelled: threading.Event | None = getattr(_thread, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise _CancelledError


def _in_threads(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    pool = _Threads(min(jobs, len(tasks)))
    try:
        yield from _bounded(pool, function, tasks, _QUEUED_PER_JOB * jobs)
    finally:
        pool.end()


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], threads: int) -> Iterator[Result]:
    """Map a function over tasks in threads of this process, a few ahead, and yield the results in the tasks' order.

    A generator that is left before its end does not wait for the threads: the garbage collector may end it while its
    thread holds a lock of `threading`.

    Args:
        function: Calls `raise_if_cancelled` often, if it may take long.
        tasks: What it is called with.
        threads: How many, at most.
    """
    pool = _Threads(threads)
    coming: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            coming.append(pool.submit(function, task))
            if len(coming) > _AHEAD_PER_THREAD * threads:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    except GeneratorExit:
        pool.cancel()
        raise
    except BaseException:
        pool.end()
        raise
    pool.end()


class _Threads(ThreadPoolExecutor):
    """Threads whose tasks can be cancelled, and are waited for whatever happens."""

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
        """Cancel all tasks: those under way end at `raise_if_cancelled`, the others do not start."""
        self._cancelled.set()
        self.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """End all tasks, however often Ctrl-C is pressed: nobody expects them to write any more.

        The tasks are waited for, not the threads: a thread whose join is interrupted counts as ended in some versions
        of Python though it is at work.
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
    """Give what an iterator gives; a thread makes the next item meanwhile. None must not be among the items.

    The thread is not waited for: the collector may end this generator while its thread holds a lock of `threading`.
    """
    thread = ThreadPoolExecutor(1)
    try:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def _bounded(pool: Executor, function: Callable[[Any], Any], tasks: Sequence[Any], limit: int) -> Iterator[Any]:
    """Keep at most `limit` tasks handed out, so that the driver's memory does not grow with their number."""
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
    """Delay Ctrl-C and SIGTERM while processes are started, so that none is left half-made; these inherit the mask."""
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
    do_without_pandas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    import multiprocessing.connection

    parent: Any = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
