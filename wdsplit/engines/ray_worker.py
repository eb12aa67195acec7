"""Runs tasks in a worker of a Ray cluster, and returns results or errors.

Errors and log records are returned as values, so that the driver raises and logs them as the local engine would.
"""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["Outcome", "call", "remote_work"]


@dataclass
class Outcome:
    """The outcome of a task.

    Attributes:
        result: The result of the function.
        error: The exception that it raised.
        trace: The traceback of the exception.
        warnings: What was logged meanwhile: the logger's name, the level and the text.
        node: The address of the node.
    """

    result: Any = None
    error: Exception | None = None
    trace: str = ""
    warnings: tuple[tuple[str, int, str], ...] = ()
    node: str = ""


def remote_work(ray: Any) -> Any:
    """Return what Ray calls on a node: with a list of the function's reference, the task, and our version.

    Like all nested functions, it is pickled by value: a node without wdsplit can run it, and report the problem.
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

            return {"found": found[0], "expected": expected, "node": util.get_node_ip_address()}
        from wdsplit.engines.ray_worker import call

        return call(function[0], task)

    work.__name__ = work.__qualname__ = "wdsplit"
    return ray.remote(work)


_functions: dict[str, Callable[[Any], Any]] = {}
"""The last function that this worker process took from the object store, by its reference."""


def call(function: Any, task: Any) -> bytes:
    """Run a task.

    Args:
        function: The reference to the function and the driver's folder.
        task: The function's argument.

    Returns:
        The pickled outcome. If Ray unpickled arrays, they would stay in its object store as long as they are used.
    """
    import ray
    from ray import util

    name = function.hex()
    if name not in _functions:
        _functions.clear()
        _functions[name], folder = ray.get(function)
        with suppress(OSError):  # relative paths are relative to the driver's folder
            os.chdir(folder)
    collector = _LogCollector()
    package = logging.getLogger("wdsplit")
    package.addHandler(collector)
    outcome = Outcome(node=util.get_node_ip_address())
    try:
        outcome.result = _functions[name](task)
    except Exception as error:
        outcome.error, outcome.trace = _portable(error), traceback.format_exc()
    finally:
        package.removeHandler(collector)
    outcome.warnings = tuple(collector.records)
    return pickle.dumps(outcome, 5)


class _LogCollector(logging.Handler):
    """Collects log records for the driver to log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, record.levelno, record.getMessage()))


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, else a RuntimeError with its text."""
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else RuntimeError(repr(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
