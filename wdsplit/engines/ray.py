"""An engine that is a Ray cluster.

The driver sends tasks and receives small results; payloads go from input to output where a task runs. What all tasks
need is put into Ray's object store once. Tasks return failures as values, so the user sees the same errors as locally.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

from wdsplit.engines.ray_worker import Outcome, remote_work
from wdsplit.errors import (
    ConvertError,
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    StorageError,
    UnansweredError,
    WdsplitError,
    first_line,
    noted,
)
from wdsplit.integers import at_least
from wdsplit.urls import shown_url

__all__ = ["RayEngine"]

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")

_ANSWER_S = 10.0
"""Seconds in which a cluster must accept a connection."""
_QUEUED_PER_CPU = 2
_MIN_QUEUED = 64
"""Minimum number of tasks to submit at a time: more than a small cluster runs, so that an autoscaling one grows."""
_MAX_FAILED = 10
"""The run ends when this many tasks have failed, or this many in a row got no answer from storage."""
_CPUS_OF_A_NODE = 64
"""Assumed number of processors per node while the cluster has no nodes."""
_STALLED_AFTER_S = 60.0
"""After this time without a result, a warning says what the cluster has and what a task needs."""
_REFRESH_S = 10.0
"""Seconds between requests for the cluster's size."""
_MAX_LEAVE_S = 30.0
"""How long to wait for running tasks when a run ends early."""
_MAX_SHOWN = 10
"""Failed tasks whose errors are shown one by one."""
_NODE_ERRORS = (ConvertError, DatasetNotFoundError, StorageError)
"""Errors that the file system of one node may have caused."""


class _LostError(ConvertError):
    """A task was lost with its worker or node; a retry may succeed."""


class RayEngine:
    """A Ray cluster that runs the tasks of `wdsplit.convert`, `index_tars` and other functions with `engine=`.

        engine = wdsplit.RayEngine("ray://head:10001")
        wdsplit.convert("s3://bucket/raw/*.parquet", "s3://bucket/train", engine=engine)

    A task is retried after a temporary failure: a store that does not answer, or a lost worker or node. Other failures
    are not retried. The other tasks go on, and the error at the end names all that failed.

    Args:
        address: The cluster: "auto" for the one of `ray start` or RAY_ADDRESS; "ray://host:10001" for one that does not
            include this machine; "local" to start one here, which ends with the process. If this process has called
            `ray.init`, that cluster is used, whatever the address.
        jobs: Tasks to submit at a time; None for twice the cluster's processors. Ray runs as many of them as processors
            and memory allow.
        retries: How often to retry a task.
        runtime_env: Ray's runtime environment of the workers, as for `ray.init`, which can install wdsplit on nodes
            that lack it.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: `jobs` or `retries` is invalid.
        ConvertError: The cluster cannot be reached.
    """

    is_local = False

    def __init__(
        self,
        address: str = "auto",
        *,
        jobs: int | None = None,
        retries: int = 3,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        for name, value, minimum in (("jobs", jobs, 1), ("retries", retries, 0)):
            if value is not None:
                at_least(minimum, name, value)
        self._cluster, self._joined = (address, runtime_env), False
        self._max_queued = jobs
        self._retries = retries
        self._refreshed = 0.0
        self._nodes: list[dict[str, float]] = []
        self._join()

    def close(self) -> None:
        """Leave the cluster if this engine has joined it; end it if the engine has started it.

            engine.close()

        The next conversion joins or starts it again.
        """
        if self._joined:
            _disconnect(self._ray)
            self._joined, self._nodes = False, []

    def _join(self) -> None:
        """Join the cluster, unless this process has joined one and has not left it."""
        self._ray, joined = _connect(*self._cluster)
        self._joined = self._joined or joined

    @property
    def jobs(self) -> int:
        """Number of tasks that the current nodes of the cluster run at a time: one per processor."""
        self._refresh_nodes()
        return max(1, int(sum(node.get("CPU", 0) for node in self._nodes)))

    @property
    def jobs_of_a_node(self) -> int:
        """Number of tasks that the largest node runs at a time."""
        self._refresh_nodes()
        return max((int(node["CPU"]) for node in self._nodes if node.get("CPU", 0) >= 1), default=_CPUS_OF_A_NODE)

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
        """Map a function over tasks, as `wdsplit.engines.local.Engine` says; `threads` and `num_bytes` are ignored."""
        if tasks:
            self._join()
            self._refresh_nodes()
            sizes = (node.get("memory", 0.0) for node in self._nodes if node.get("CPU", 0) >= 1)
            # At most what a node has, else Ray would wait for a larger node.
            run = _Run(self, function, int(min(memory_bytes, max(sizes, default=memory_bytes))), describe)
            yield from run.results(tasks)

    def _refresh_nodes(self) -> None:
        """Request the cluster's nodes, unless that was done recently."""
        now = time.monotonic()
        if not self._nodes or now - self._refreshed > _REFRESH_S:
            self._join()
            self._nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._refreshed = now

    def warn_if_stalled(self, memory_bytes: int) -> None:
        """Warn that no task has ended for a while: perhaps no node can run one."""
        self._refresh_nodes()
        cpus = sum(node.get("CPU", 0) for node in self._nodes)
        logger.warning(
            "no task has ended for %.0f s; each asks for a processor and %d MB of memory, and the cluster has %d nodes "
            "with %d processors in all",
            _STALLED_AFTER_S,
            memory_bytes // 10**6,
            len(self._nodes),
            cpus,
        )


class _Run:
    """One function, mapped over tasks on a cluster."""

    def __init__(
        self, engine: RayEngine, function: Callable[[Any], Any], memory_bytes: int, describe: Callable[[Any], str]
    ) -> None:
        self._engine, self._ray, self._describe = engine, engine._ray, describe
        self._function = self._ray.put((function, os.getcwd()))
        self._version = version("wdsplit")
        self._remote = remote_work(self._ray).options(
            num_cpus=1,
            memory=memory_bytes or None,
            max_retries=0,  # retries are counted here: Ray would retry tasks that ran out of memory forever
            scheduling_strategy="SPREAD",
        )
        self._memory_bytes = memory_bytes
        self._running: dict[Any, tuple[Any, int]] = {}
        """The running tasks by their references, and how often each was tried before."""
        self._to_retry: deque[tuple[Any, int]] = deque()
        self._failed: list[tuple[str, Exception]] = []
        self._warned: set[str] = set()
        self._unanswered = 0
        """Number of consecutive tasks whose store did not answer."""

    def results(self, tasks: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of tasks as they come; raise an error at the end if some have failed."""
        todo = iter(tasks)
        try:
            while self._submit(todo):
                for ref in self._ready():
                    task, tries = self._running.pop(ref)
                    outcome = self._outcome(ref, task)
                    if outcome.error is None:
                        self._unanswered = 0
                        yield outcome.result
                    else:
                        self._retry_or_fail(outcome.error, task, tries)
        except (KeyboardInterrupt, GeneratorExit):  # the caller takes no more results
            self._engine.close()
            raise
        finally:
            # Running tasks are not cancelled: Ray (2.60) often aborts the driver if a task ends while it is being
            # cancelled. Those that continue do no harm: they publish nothing after the end of their run.
            if self._running and self._ray.is_initialized():  # else the engine has left the cluster
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_MAX_LEAVE_S)
            self._running.clear()
        if len({str(error) for _, error in self._failed}) == 1:
            raise self._failed[0][1]
        if self._failed:
            lines = [f"- {what}: {error}" for what, error in self._failed[:_MAX_SHOWN]]
            more = [f"- and {len(self._failed) - _MAX_SHOWN} more"] if len(self._failed) > _MAX_SHOWN else []
            kind = InputError if {type(error) for _, error in self._failed} == {InputError} else ConvertError
            raise kind(
                f"{len(self._failed)} tasks failed",
                found="\n".join(["", *lines, *more]),
                remedy="fix the errors, and continue with --resume: finished tasks are kept",
            )

    def _ready(self) -> list[Any]:
        """Wait until tasks have ended, and return their references."""
        refs = list(self._running)
        ready: list[Any] = []
        waited_s = 0.0
        while not ready:
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=_REFRESH_S)
            waited_s += _REFRESH_S
            if not ready and waited_s == _STALLED_AFTER_S:
                self._engine.warn_if_stalled(self._memory_bytes)
        return list(self._ray.wait(refs, num_returns=len(refs), timeout=0)[0])

    def _retry_or_fail(self, error: Exception, task: Any, tries: int) -> None:
        """Retry a task after a temporary failure, unless storage is down for all tasks; else record the failure."""
        self._unanswered += isinstance(error, UnansweredError)
        is_temporary = isinstance(error, (UnansweredError, _LostError)) and self._unanswered < _MAX_FAILED
        if is_temporary and tries < self._engine._retries:
            logger.warning("%s: retrying: %s", self._describe(task), getattr(error, "cause", error))
            self._to_retry.append((task, tries + 1))
        else:
            self._failed.append((self._describe(task), error))

    def _submit(self, todo: Iterator[Any]) -> bool:
        """Submit tasks up to the limit; return whether any are running."""
        if len(self._failed) >= _MAX_FAILED or (self._unanswered >= _MAX_FAILED and self._failed):
            return False
        most = self._engine._max_queued or max(_MIN_QUEUED, _QUEUED_PER_CPU * self._engine.jobs)
        while len(self._running) < most:
            task, tries = self._to_retry.popleft() if self._to_retry else (next(todo, None), 0)
            if task is None:
                break
            ref = self._remote.remote([self._function], task, self._version)
            self._running[ref] = task, tries
        return bool(self._running)

    def _outcome(self, ref: Any, task: Any) -> Outcome:
        """Return the outcome of a task; Ray's own errors become ours."""
        try:
            answer: Any = self._ray.get(ref)
            outcome: Outcome = pickle.loads(answer) if isinstance(answer, bytes) else Outcome(error=_unfit(answer))
        except self._ray.exceptions.RayTaskError as error:
            return Outcome(error=_unreadable(error.cause, self._describe(task)))
        except self._ray.exceptions.RayError as error:
            return Outcome(error=_lost(error, self._describe(task)))
        except Exception as error:
            return Outcome(error=_unreadable(error, self._describe(task)))
        for name, level, text in outcome.warnings:
            if text not in self._warned:
                self._warned.add(text)
                logging.getLogger(name).log(level, "%s", text)
        failed = outcome.error
        if isinstance(failed, _NODE_ERRORS):  # it names its node, whose files may be the cause
            failed.place = f"{failed.place} (on node {outcome.node})" if failed.place else f"node {outcome.node}"
            if "://" not in failed.url:
                failed.remedy += (
                    "; inputs and output must be where all nodes reach them: a shared file system, or s3://"
                )
        elif failed is not None and not isinstance(failed, WdsplitError):
            outcome.error = noted(failed, outcome.trace)
        return outcome


def _connect(address: str, runtime_env: dict[str, Any] | None) -> tuple[Any, bool]:
    """Join a cluster, unless this process has joined one; return the module `ray`, and whether this call joined it."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError.for_extra("ray") from error
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"runtime_env": runtime_env} if runtime_env else {}
    if address == "local":
        options["include_dashboard"] = False
    try:
        named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
        host, separator, port = named.removeprefix("ray://").partition("/")[0].rpartition(":")
        if separator and port.isdigit():  # where nothing listens, Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **options
            )
        finally:  # `ray.init` replaces the program's handler by an exit with code 15
            if handler not in (signal.SIG_DFL, None) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
    except Exception as error:
        raise ConvertError(
            "the Ray cluster cannot be reached",
            place=shown_url(address),
            expected="a running cluster of the same versions of Ray and Python",
            found=first_line(error),
            remedy="start one with `ray start --head`, give --address ray://HOST:10001, or --address local to start "
            "one on this machine",
        ) from error
    # Ray has no option to keep off standard output what it prints about lost workers and nodes. If it cannot recover,
    # the driver warns about the task.
    worker: Any = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, **options: logger.info("%s", "\n".join(data["lines"]))
    return ray, True


def _disconnect(ray: Any) -> None:
    """Leave the cluster: Ray ends the tasks of this process, and a cluster that it has started.

    Ignores Ctrl-C and SIGTERM meanwhile: Ray would abort the process before it has ended them.
    """
    if threading.current_thread() is not threading.main_thread():
        ray.shutdown()
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.shutdown()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _lost(error: Exception, what: str) -> ConvertError:
    """Return the error for a task that Ray could not finish."""
    kind = type(error).__name__
    memory = kind == "OutOfMemoryError"
    return _LostError(
        "a task was lost: it ran out of memory" if memory else "a task was lost, with the worker or node that ran it",
        place=what,
        expected="workers that finish their tasks",
        found=f"{kind}: {first_line(error)}",
        remedy=("lower --memory, or give the nodes more memory" if memory else "see the logs of Ray on its nodes")
        + ". Finished shards are kept: continue with --resume",
    )


def _unreadable(error: Exception, what: str) -> ConvertError:
    """Return the error for a task whose result this process cannot unpickle."""
    return ConvertError(
        "the result of a task cannot be read",
        place=what,
        expected="the same versions of Python and of all libraries on all nodes",
        found=f"{type(error).__name__}: {first_line(error)}",
        remedy="install the same environment everywhere, or name it in Ray's runtime_env",
    )


def _unfit(answer: dict[str, str]) -> ConvertError:
    """Return the error for a node without this version of wdsplit, given its answer."""
    there = answer["found"] != "none"
    return ConvertError(
        "a node of the cluster has another version of wdsplit" if there else "a node of the cluster lacks wdsplit",
        place=f"node {answer['node']}",
        expected=f"wdsplit {answer['expected']}, as here",
        found=f"wdsplit {answer['found']}" if there else "no wdsplit",
        remedy="install the same version on all nodes, or name it in Ray's runtime_env: "
        "{'pip': ['wdsplit[ray]==" + answer["expected"] + "']}",
    )
