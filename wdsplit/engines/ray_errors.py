"""Our errors for failures on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence

from wdsplit.errors import ConvertError, DatasetNotFoundError, InputError, StorageError, WdsplitError
from wdsplit.urls import shown_url

__all__ = ["LostError", "failure", "lost", "on_node", "unfit", "unreachable", "unreadable"]

_MAX_SHOWN = 10
"""Failed tasks whose errors are shown one by one."""
_NODE_ERRORS = (ConvertError, DatasetNotFoundError, StorageError)
"""Errors that the file system of one node may have caused."""


class LostError(ConvertError):
    """A task was lost with its worker or node; a retry may succeed."""


def unreachable(address: str, error: Exception) -> ConvertError:
    """Return the error for a cluster that cannot be joined."""
    return ConvertError(
        "the Ray cluster cannot be reached",
        place=shown_url(address),
        expected="a running cluster of the same versions of Ray and Python",
        found=_first_line(error),
        remedy="start one with `ray start --head`, give --address ray://HOST:10001, or --address local to start "
        "one on this machine",
    )


def lost(error: Exception, what: str) -> ConvertError:
    """Return the error for a task that Ray could not finish."""
    kind = type(error).__name__
    memory = kind == "OutOfMemoryError"
    return LostError(
        "a task was lost: it ran out of memory" if memory else "a task was lost, with the worker or node that ran it",
        place=what,
        expected="workers that finish their tasks",
        found=f"{kind}: {_first_line(error)}",
        remedy=("lower --memory, or give the nodes more memory" if memory else "see the logs of Ray on its nodes")
        + ". Finished shards are kept: continue with --resume",
    )


def unreadable(error: Exception, what: str) -> ConvertError:
    """Return the error for a task whose result this process cannot unpickle."""
    return ConvertError(
        "the result of a task cannot be read",
        place=what,
        expected="the same versions of Python and of all libraries on all nodes",
        found=f"{type(error).__name__}: {_first_line(error)}",
        remedy="install the same environment everywhere, or name it in Ray's runtime_env",
    )


def unfit(answer: dict[str, str]) -> ConvertError:
    """Return the error for a node without this version of wdsplit.

    Args:
        answer: The node's answer: the versions `found` and `expected`, and its address `node`.
    """
    there = answer["found"] != "none"
    return ConvertError(
        "a node of the cluster has another version of wdsplit" if there else "a node of the cluster lacks wdsplit",
        place=f"node {answer['node']}",
        expected=f"wdsplit {answer['expected']}, as here",
        found=f"wdsplit {answer['found']}" if there else "no wdsplit",
        remedy="install the same version on all nodes, or name it in Ray's runtime_env: "
        "{'pip': ['wdsplit[ray]==" + answer["expected"] + "']}",
    )


def on_node(error: WdsplitError, node: str) -> WdsplitError:
    """Return the error of a task, with the name of its node if the node's files may be the cause."""
    if not isinstance(error, _NODE_ERRORS):
        return error
    place = f"{error.place} (on node {node})" if error.place else f"node {node}"
    remedy = error.remedy
    if "://" not in error.url:
        remedy += "; inputs and output must be where all nodes reach them: a shared file system, or s3://"
    return type(error)(error.cause, place, error.expected, error.found, remedy, error.url, error.key, error.offset)


def failure(failed: Sequence[tuple[str, Exception]]) -> Exception:
    """Return the error of a run with failed tasks: their own if all are the same, else a list of them.

    Args:
        failed: The name and the error of each failed task.
    """
    if len({str(error) for _, error in failed}) == 1:
        return failed[0][1]
    lines = [f"- {what}: {error}" for what, error in failed[:_MAX_SHOWN]]
    more = [f"- and {len(failed) - _MAX_SHOWN} more"] if len(failed) > _MAX_SHOWN else []
    kind = InputError if {type(error) for _, error in failed} == {InputError} else ConvertError
    return kind(
        f"{len(failed)} tasks failed",
        found="\n".join(["", *lines, *more]),
        remedy="fix the errors, and continue with --resume: finished tasks are kept",
    )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
