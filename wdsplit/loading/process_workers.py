"""Workers that are processes: torch's, which hand over one item a worker in turn.

The only module of the loader that needs torch for more than tensors.
"""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.popen_fork import Popen
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from wdsplit.errors import PipelineError
from wdsplit.loading.reading.process_limits import keep_freed_memory
from wdsplit.loading.transport.batch_memory import Slots, mapped
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.loading.transport.shared_segments import Bound, Placed, unpacked
from wdsplit.loading.transport.thread_workers import Parcels
from wdsplit.loading.worker import SubBatches

__all__ = ["ProcessParcels", "Processes", "worker_context"]

logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0
"""So long the first attempt to fork a worker has until the worker runs."""


class Processes:
    """Worker processes, which start when they are first iterated; the numbers are those of `Loader`."""

    def __init__(
        self,
        sub_batches: SubBatches,
        num_workers: int,
        prefetch_factor: int,
        prefetch_bytes: int,
        persistent: bool,
        start_method: str | None,
    ) -> None:
        context = worker_context(start_method)
        self._bound = Bound(context, num_workers, prefetch_factor + 1, prefetch_bytes // num_workers)
        sub_batches.bound = self._bound
        self._slots: Slots | None = None
        if sub_batches.slot_bytes:
            ahead = max(1, min(prefetch_factor + 1, prefetch_bytes // sub_batches.slot_bytes))
            self._slots = sub_batches.slots = Slots(context, num_workers, sub_batches.slot_bytes, ahead)
        self._has_ended = False
        self._loader: DataLoader[Any] = DataLoader(
            _Stream(sub_batches),
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_unchanged,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent,
            multiprocessing_context=context,
            generator=torch.Generator(),
        )

    def are_alive(self) -> bool:
        """Tell whether persistent processes can serve another iteration."""
        processes = getattr(self._loader._iterator, "_workers", ())
        return not self._has_ended and all(process.is_alive() for process in processes)

    def parcels(self) -> ProcessParcels:
        """Begin an iteration.

        Raises:
            PipelineError: The dataset cannot be sent to processes.
        """
        begin = None if self._slots is None else self._slots.restart()
        try:
            parcels = ProcessParcels(iter(self._loader), self._bound, self._slots, self._end)
            if begin is not None:  # torch has let persistent workers end the iteration before
                begin()
            return parcels
        except BaseException as error:
            self._has_ended = True
            if not isinstance(error, (AttributeError, TypeError, pickle.PicklingError)):
                raise
            raise PipelineError(
                "the dataset cannot be sent to worker processes",
                expected="stages whose functions are defined at the top of a module",
                found=f"{type(error).__name__}: {error}",
                remedy="define them there instead of as a lambda or in another function; or use workers='thread', or "
                "multiprocessing_context='fork'",
            ) from error

    def _end(self) -> None:
        self._has_ended = True
        self._bound.close()
        if self._slots is not None:
            self._slots.close()


class ProcessParcels(Parcels):
    """The parcels of worker processes in an iteration; they lie in memory that is shared until they are delivered."""

    lends = True

    def __init__(self, parcels: Any, bound: Bound, slots: Slots | None, on_end: Callable[[], None]) -> None:
        self._parcels, self._bound, self._slots, self._on_end = parcels, bound, slots, on_end
        self._placed = [0] * len(bound.memories)
        keep_freed_memory()

    def take(self, worker: int) -> list[Any] | None:
        """Wait for the next parcel, which is that of the worker."""
        parcel: list[Any] | Placed | None = next(self._parcels, None)
        if isinstance(parcel, Placed):
            self._placed[worker] += 1
            parcel = unpacked(self._bound.memories[worker], parcel)
        if self._slots is None or parcel is None:
            return parcel
        return [mapped(self._slots.column, sub_batch) for sub_batch in parcel]

    def delivered(self, worker: int) -> None:
        """Let a worker use the memory of its parcels again."""
        for _ in range(self._placed[worker]):
            self._bound.deliver(worker)
        self._placed[worker] = 0

    def step_delivered(self) -> None:
        """Let workers fill the memory of one more step."""
        if self._slots is not None:
            self._slots.delivered()

    def close(self, at_once: bool = False) -> None:
        """End the processes."""
        for process in self._parcels._workers if at_once else ():
            process.terminate()
        self._parcels._shutdown_workers()
        self._on_end()


def worker_context(start_method: str | None = None) -> Any:
    """Return the context of multiprocessing in which torch's workers cannot hang: see `_Event` and `_ForkedProcess`."""
    context: Any = copy.copy(multiprocessing.get_context(start_method))
    context.Event = _Event
    if context.get_start_method() == "fork":
        context.Process = _ForkedProcess
    return context


class _ForkedProcess(ForkProcess):
    """A process that is forked again if it does not come to run, which it does only once its parent knows.

    A fork copies locks as they are. If a thread of torch begins or ends to use Python just then, Python 3.11.7 waits in
    the new process for a lock that nobody has (python/cpython#112275), and handlers of C libraries may do the same.
    """

    _ends: tuple[Connection, Connection]

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802
        patience_s = _PATIENCE_S
        while True:
            ours, theirs = process._ends = multiprocessing.Pipe()
            started = _Forked(process)
            with ours, theirs:
                if ours.poll(patience_s):
                    ours.send(None)
                    return started
            logger.warning("a worker has hung inside fork for %g s, and is forked again", patience_s)
            started.kill()
            started.wait()
            started.close()
            patience_s *= 2

    def run(self) -> None:
        ours, theirs = self._ends
        ours.close()
        with theirs:
            try:
                theirs.send(None)
                theirs.recv()
            except (EOFError, OSError):  # the parent has ended, or was interrupted
                return
        super().run()


class _Forked(Popen):
    """The system's side of a forked process.

    torch raises the error of a killed worker from a signal handler. If it does so here, just when the system has said
    how the process ended, the answer is lost, and multiprocessing would take the process for alive from then on.
    """

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            try:
                process, status = os.waitpid(self.pid, flag)
            except ChildProcessError:
                process, status = self.pid, int(signal.SIGKILL)
            if process == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class _Event:
    """The event by which torch ends its workers, without a lock.

    That of multiprocessing has one, even to look whether it is set. A worker that is killed just then leaves it locked,
    and the program and all other workers would wait for it forever.
    """

    def __init__(self) -> None:
        self._is_set = SharedIntegers(1)

    def is_set(self) -> bool:
        return bool(self._is_set.array[0])

    def set(self) -> None:
        self._is_set.array[0] = 1


class _Stream(IterableDataset[Any]):
    """What torch iterates in each of its workers."""

    def __init__(self, sub_batches: SubBatches) -> None:
        self._sub_batches = sub_batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sub_batches)


def _unchanged(sub_batch: Any) -> Any:
    return sub_batch
