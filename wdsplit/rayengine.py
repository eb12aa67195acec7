"""An engine that is a Ray cluster.

Ray runs the tasks, and runs them again where a worker or a node is lost. A task's payload goes from the input to the
output where it runs: through the driver go only the task, a few numbers, and its result. What all tasks need is put
into Ray's object store once, and taken out once by each worker process. Failures travel as values, so what the user
sees is the error that the local engine would have raised.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

from wdsplit.errors import (
    ConvertError,
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    StorageError,
    UnansweredError,
    WdsplitError,
    noted,
)
from wdsplit.urls import shown_url

__all__ = ["RayEngine"]

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")

_QUEUED_PER_CPU = 2
_LEAST_QUEUED = 64
"""Tasks that are handed out at a time, at least: more than a small cluster runs, so that one that can grow does."""
_MOST_FAILED = 10
"""So many tasks may fail before the run ends; and so many in a row may go without an answer of a store."""
_CPUS_OF_A_NODE = 64
"""What a node is taken for as long as there is none."""
_PATIENCE_S = 60.0
"""After how long without any result it is told what there is and what is asked for."""
_LOOK_S = 10.0
"""How often the cluster is asked for its size."""
_OF_A_NODE = (ConvertError, DatasetNotFoundError, StorageError)
"""Errors that may be those of one node's file system."""
_KNOCK_S = 10.0
"""How long a cluster may take to answer at all."""
_LEAVE_S = 30.0
"""How long tasks that nobody waits for any more may take to end."""


@dataclass
class _Outcome:
    """What a worker says of a task.

    Attributes:
        result: What the function returned.
        error: What it raised.
        trace: Where, if nobody raised it on purpose.
        warnings: What was logged meanwhile: the logger's name, the level and the text.
        node: The address of the node.
    """

    result: Any = None
    error: Exception | None = None
    trace: str = ""
    warnings: tuple[tuple[str, int, str], ...] = ()
    node: str = ""


class RayEngine:
    """A Ray cluster, as what `wdsplit.convert` and its kin carry their tasks out with.

    A task that fails for a reason which may pass (a store that does not answer, a worker or a node that is lost) is run
    again, elsewhere if Ray so chooses; any other is not. The other tasks go on: at the end all that failed are named.

    Args:
        address: The cluster: "auto" for the one that `ray start` or RAY_ADDRESS names, "ray://host:10001" for one that
            this machine is no part of, "local" for one that is started here and ends with the process. If this
            process has called `ray.init`, that cluster is used, whatever the address.
        jobs: Tasks that are handed out at a time; None for twice the cluster's processors. Ray runs as many of them as
            there are processors and memory for.
        retries: How often a task is run again.
        runtime_env: Ray's runtime environment of the workers, as for `ray.init`: what brings wdsplit to nodes that lack
            it.

    Raises:
        MissingDependencyError: Ray is not installed.
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
        for name, value, least in (("jobs", jobs, 1), ("retries", retries, 0)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise InputError(f"{name} = {value!r} cannot be", expected=f"a whole number from {least} on")
        self._ray = _connected(address, runtime_env)
        self._asked = jobs
        self._retries = retries
        self._looked = 0.0
        self._nodes: list[dict[str, float]] = []

    @property
    def jobs(self) -> int:
        """Tasks that the cluster runs at a time: one a processor, as far as nodes are there now."""
        self._look()
        return max(1, int(sum(node.get("CPU", 0) for node in self._nodes)))

    @property
    def jobs_of_a_node(self) -> int:
        """Tasks that the largest node runs at a time."""
        self._look()
        return max((int(node["CPU"]) for node in self._nodes if node.get("CPU", 0) >= 1), default=_CPUS_OF_A_NODE)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        threads: bool = False,
        memory_bytes: int = 0,
        describe: Callable[[Task], str] = str,
    ) -> Iterator[Result]:
        """Map a function over tasks, as `wdsplit.engine.Engine` says; `threads` changes nothing."""
        if tasks:
            run = _Run(self, function, self._memory(memory_bytes), describe)
            yield from run.results(tasks)

    @property
    def queued(self) -> int:
        """Tasks that are handed out at a time."""
        return self._asked or max(_LEAST_QUEUED, _QUEUED_PER_CPU * self.jobs)

    def _look(self) -> None:
        """Look what nodes there are, if that was long ago."""
        now = time.monotonic()
        if not self._nodes or now - self._looked > _LOOK_S:
            self._nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._looked = now

    def _memory(self, memory_bytes: int) -> int:
        """Return the memory to ask for a task: no more than a node has, else Ray would wait for one that has it."""
        self._look()
        there = (node.get("memory", 0.0) for node in self._nodes if node.get("CPU", 0) >= 1)
        return int(min(memory_bytes, max(there, default=memory_bytes)))

    def tell_what_is_missing(self, memory_bytes: int) -> None:
        """Warn that nothing has ended for a while: the cluster may have nothing that can run a task."""
        self._look()
        cpus = sum(node.get("CPU", 0) for node in self._nodes)
        logger.warning(
            "no task has ended for %.0f s; each asks for a processor and %d MB of memory, and the cluster has %d nodes "
            "with %d processors in all",
            _PATIENCE_S,
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
        self._remote = _remote(self._ray).options(
            num_cpus=1,
            memory=memory_bytes or None,
            max_retries=0,  # counted here, as Ray runs what ran out of memory again without end
            scheduling_strategy="SPREAD",
        )
        self._memory_bytes = memory_bytes
        self._running: dict[Any, tuple[Any, int]] = {}
        """Each task under way, and how often it was tried before."""
        self._again: deque[tuple[Any, int]] = deque()
        self._failed: list[tuple[str, Exception]] = []
        self._warned: set[str] = set()
        self._unanswered = 0
        """Tasks whose store did not answer, in a row."""

    def results(self, tasks: Sequence[Any]) -> Iterator[Any]:
        todo = iter(tasks)
        try:
            while self._hand_out(todo):
                for ref in self._ready():
                    task, tries = self._running.pop(ref)
                    outcome = self._outcome(ref, task)
                    if outcome.error is None:
                        self._unanswered = 0
                        yield outcome.result
                    else:
                        self._take(outcome.error, task, tries)
        except KeyboardInterrupt:
            for ref in self._running:
                self._ray.cancel(ref)
            raise
        finally:
            self._leave()
        if self._failed:
            raise _failure(self._failed)

    def _ready(self) -> list[Any]:
        """Wait for tasks that have ended."""
        refs = list(self._running)
        ready: list[Any] = []
        waited_s = 0.0
        while not ready:
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=_LOOK_S)
            waited_s += _LOOK_S
            if not ready and waited_s == _PATIENCE_S:
                self._engine.tell_what_is_missing(self._memory_bytes)
        return list(self._ray.wait(refs, num_returns=len(refs), timeout=0)[0])

    def _take(self, error: Exception, task: Any, tries: int) -> None:
        """Take a failure in: try the task again if it may pass, unless no store answers any more."""
        self._unanswered += isinstance(error, UnansweredError)
        passes = isinstance(error, (UnansweredError, _LostError)) and self._unanswered < _MOST_FAILED
        if passes and tries < self._engine._retries:
            logger.warning("%s: tried again: %s", self._describe(task), getattr(error, "cause", error))
            self._again.append((task, tries + 1))
        else:
            self._failed.append((self._describe(task), error))

    @property
    def _is_over(self) -> bool:
        return len(self._failed) >= _MOST_FAILED or (self._unanswered >= _MOST_FAILED and bool(self._failed))

    def _hand_out(self, todo: Iterator[Any]) -> bool:
        """Hand out tasks, as many as there may be under way; tell whether there are any."""
        while len(self._running) < self._engine.queued and not self._is_over:
            task, tries = self._again.popleft() if self._again else (next(todo, None), 0)
            if task is None:
                break
            ref = self._remote.remote([self._function], task, self._version)
            self._running[ref] = task, tries
        return bool(self._running) and not self._is_over

    def _outcome(self, ref: Any, task: Any) -> _Outcome:
        """Return what became of a task; what Ray itself says of it becomes an error of ours."""
        try:
            answer: Any = self._ray.get(ref)
            outcome: _Outcome = pickle.loads(answer) if isinstance(answer, bytes) else _Outcome(error=_unfit(answer))
        except self._ray.exceptions.RayTaskError as error:
            return _Outcome(error=_unreadable(error.cause, self._describe(task)))
        except self._ray.exceptions.RayError as error:
            return _Outcome(error=_lost(error, self._describe(task)))
        except Exception as error:
            return _Outcome(error=_unreadable(error, self._describe(task)))
        for name, level, text in outcome.warnings:
            if text not in self._warned:
                self._warned.add(text)
                logging.getLogger(name).log(level, "%s", text)
        if isinstance(outcome.error, _OF_A_NODE):
            outcome.error = _on_node(outcome.error, outcome.node)
        elif outcome.error is not None and not isinstance(outcome.error, WdsplitError):
            outcome.error = noted(outcome.error, outcome.trace)
        return outcome

    def _leave(self) -> None:
        """Wait a while for what is under way.

        It is not cancelled: Ray (2.60) may abort the driver where a task ends while it is cancelled. What goes on does
        no harm: a task whose run has ended publishes nothing.
        """
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_LEAVE_S)
        self._running.clear()


def _remote(ray: Any) -> Any:
    """Return what Ray calls on a node.

    It is pickled by value, as functions within functions are: a node can run it, and say so, that lacks wdsplit.
    """
    found: list[str] = []

    def work(function: list[Any], task: Any, expected: str) -> Any:
        if not found:
            from importlib import metadata

            try:
                found.append(metadata.version("wdsplit"))
            except metadata.PackageNotFoundError:
                found.append("none")
        if found[0] != expected:
            from ray import util

            return {"found": found[0], "expected": expected, "node": util.get_node_ip_address()}  # type: ignore[no-untyped-call]
        from wdsplit.rayengine import call

        return call(function[0], task)

    work.__name__ = work.__qualname__ = "wdsplit"
    return ray.remote(work)


_functions: dict[str, Callable[[Any], Any]] = {}
"""What this worker process has taken out of the object store: the last function."""


def call(function: Any, task: Any) -> bytes:
    """Carry out a task, in a worker of Ray.

    Args:
        function: The reference to what is called.
        task: What it is called with.

    Returns:
        The outcome, pickled: arrays that Ray unpickles stay in its object store for as long as somebody holds them.
    """
    import ray
    from ray.util import get_node_ip_address

    get_address: Any = get_node_ip_address
    name = function.hex()
    if name not in _functions:
        _functions.clear()
        _functions[name], folder = ray.get(function)
        with suppress(OSError):  # paths that are relative are so to the driver's folder
            os.chdir(folder)
    heard = _Heard()
    package = logging.getLogger("wdsplit")
    package.addHandler(heard)
    outcome = _Outcome(node=get_address())
    try:
        outcome.result = _functions[name](task)
    except Exception as error:
        outcome.error, outcome.trace = _portable(error), traceback.format_exc()
    finally:
        package.removeHandler(heard)
    outcome.warnings = tuple(heard.records)
    return pickle.dumps(outcome, 5)


class _Heard(logging.Handler):
    """Keeps what is logged, to be told where somebody reads it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, record.levelno, record.getMessage()))


def _portable(error: Exception) -> Exception:
    """Return an error that survives its way to the driver."""
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else RuntimeError(repr(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _connected(address: str, runtime_env: dict[str, Any] | None) -> Any:
    """Return the module ray, connected to a cluster."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError.for_extra("ray") from error
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"runtime_env": runtime_env} if runtime_env else {}
    if address == "local":
        options["include_dashboard"] = False
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **options)
    except Exception as error:
        raise ConvertError(
            "the Ray cluster cannot be reached",
            place=shown_url(address),
            expected="a running cluster of the same versions of Ray and Python",
            found=_first_line(error),
            remedy="start one with `ray start --head`, give --address ray://HOST:10001, or --address local to start "
            "one on this machine",
        ) from error
    _keep_from_output(ray)
    return ray


def _knock(address: str) -> None:
    """Open a connection to the cluster and close it, if the address says where it is: Ray would try for minutes.

    Raises:
        OSError: Nobody answers.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, separator, port = named.removeprefix("ray://").partition("/")[0].rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


def _keep_from_output(ray: Any) -> None:
    """Send to our log what Ray prints of lost workers and nodes: standard output is for results, and no option says so.

    It is told again, with what became of the task, if Ray cannot mend it.
    """
    worker = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, **options: logger.info("%s", "\n".join(data["lines"]))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class _LostError(ConvertError):
    """A task was lost, with what ran it; run again it may end."""


def _lost(error: Exception, what: str) -> ConvertError:
    """Return the error for a task of which only Ray knows how it ended."""
    kind = type(error).__name__
    memory = kind == "OutOfMemoryError"
    return _LostError(
        "a task was lost: it ran out of memory" if memory else "a task was lost, with the worker or node that ran it",
        place=what,
        expected="workers that live until their work is done",
        found=f"{kind}: {_first_line(error)}",
        remedy=("give --memory less, or nodes more memory" if memory else "see the logs of Ray on its nodes")
        + ". What convert has done is kept: continue with --resume",
    )


def _unreadable(error: Exception, what: str) -> ConvertError:
    return ConvertError(
        "the result of a task cannot be read",
        place=what,
        expected="the same versions of Python and of all libraries on all nodes",
        found=f"{type(error).__name__}: {_first_line(error)}",
        remedy="install the same environment everywhere, or name it in Ray's runtime_env",
    )


def _unfit(outcome: dict[str, str]) -> ConvertError:
    there = outcome["found"] != "none"
    return ConvertError(
        "a node of the cluster has another version of wdsplit" if there else "a node of the cluster lacks wdsplit",
        place=f"node {outcome['node']}",
        expected=f"wdsplit {outcome['expected']}, as here",
        found=f"wdsplit {outcome['found']}" if there else "no wdsplit",
        remedy="install the same version on all nodes, or name it in Ray's runtime_env: "
        "{'pip': ['wdsplit[ray]==" + outcome["expected"] + "']}",
    )


def _on_node(error: WdsplitError, node: str) -> WdsplitError:
    """Return the error of a node's storage, for a reader who sees that of the driver."""
    place = f"{error.place} (on node {node})" if error.place else f"node {node}"
    remedy = error.remedy
    if "://" not in error.url:
        remedy += "; inputs and output must be where all nodes reach them: a shared file system, or s3://"
    return type(error)(error.cause, place, error.expected, error.found, remedy, error.url, error.key, error.offset)


def _failure(failed: Sequence[tuple[str, Exception]]) -> Exception:
    """Return the error of a run of which tasks have failed: as it is if there is one, or if all are the same."""
    if len({str(error) for _, error in failed}) == 1:
        return failed[0][1]
    lines = [f"- {what}: {error}" for what, error in failed[:_MOST_FAILED]]
    more = [f"- and {len(failed) - _MOST_FAILED} more"] if len(failed) > _MOST_FAILED else []
    kind = InputError if {type(error) for _, error in failed} == {InputError} else ConvertError
    return kind(
        f"{len(failed)} tasks failed",
        found="\n".join(["", *lines, *more]),
        remedy="mend what they name, and continue with --resume: what the other tasks have done is kept",
    )
