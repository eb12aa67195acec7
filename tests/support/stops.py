"""Runs that are stopped in the middle, and runs that are shared out."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest

from forked_workers import ForkedProcess
from tables import options, session_processes, start_script, wait_until
from wdsplit.conversion.shares import commit_shares, convert_share, needed_passes, plan_shares
from wdsplit.engines.local import LocalEngine


@contextlib.contextmanager
def stopped_at(name="write", done=1, split=None, seen=None):
    """Give a progress that stops a run, as Ctrl-C does, when so much of a pass is done; the run must be stopped."""

    def stop(progress):
        if seen is not None:
            seen.append(progress)
        if progress.name == name and progress.done >= done and (split is None or progress.split == split):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        yield stop


def die(*_):
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(name, done, progress):
    """Kill this process if so much of a pass is done, or with None all of it."""
    if progress.name == name and progress.done >= (progress.total if done is None else done):
        die()


def _call(call, attributes):
    for place, value in attributes.items():
        pytest.MonkeyPatch().setattr(place, value)
    call()


def killed(call, attributes=None):
    """Make a call that calls `die` in a process of its own, where places such as `os.replace` have other values."""
    process = ForkedProcess(target=_call, args=(call, attributes or {}))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def is_killed_in(seconds, code, *arguments):
    """Run a script that prints `ready`, and kill it and its workers if it lasts so long; return whether it did."""
    script = start_script(code, *arguments)
    assert script.stdout.readline() == "ready\n"
    try:
        script.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGKILL)
    said = script.communicate()[1]
    wait_until(lambda: not session_processes(script.pid), "no process is left")
    assert script.returncode in (0, -signal.SIGKILL), said
    return script.returncode != 0


def run_shares(plan, num_shares, storage_options=None, jobs=1) -> None:
    """Write all shares in this process, the last first: their order must not matter."""
    for only in needed_passes(plan, storage_options):
        for share in reversed(range(num_shares)):
            convert_share(plan, share, num_shares, only, storage_options=storage_options, engine=LocalEngine(jobs))


def by_shares(inputs, output, plan, num_shares=3):
    """Convert by shares, and return the manifest."""
    path = output.with_suffix(".plan")
    plan_shares(inputs, output, path, options(**plan))
    run_shares(path, num_shares)
    return commit_shares(path)
