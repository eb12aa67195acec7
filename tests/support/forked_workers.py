"""Processes that are forked from one which has imported what they need: spawned ones take a second for it each.

Tests of engines, and those that start programs, have spawned workers, as users have.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
from multiprocessing import context
from pathlib import Path

from tables import session_processes

SpawningPool = concurrent.futures.ProcessPoolExecutor


class ForkedProcess(context.ForkServerProcess):
    """A process with the environment of the one that starts it, instead of the server's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._environ = dict(os.environ)

    def run(self):
        os.environ.clear()
        os.environ.update(self._environ)
        super().run()


class ForkedContext(context.ForkServerContext):
    Process = ForkedProcess


class ForkingPool(SpawningPool):
    """A pool of such processes, whatever context is asked for."""

    def __init__(self, *args, mp_context, **kwargs):
        super().__init__(*args, mp_context=ForkedContext(), **kwargs)


def fork_workers():
    """Let engines of this process have such workers; on macOS its libraries do not survive a fork."""
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload(["wdsplit.conversion.convert", "wdsplit.annotating.mapping"])
        concurrent.futures.ProcessPoolExecutor = ForkingPool


def code_of_fork(function):
    """Call a function in a fork of this process; return the code that the fork ends with: 1 if it raises."""
    fork = multiprocessing.get_context("fork").Process(target=function)
    fork.start()
    fork.join()
    return fork.exitcode


def living_workers():
    """Return the living workers of this process: its children that were spawned, and those of its server of forks."""
    parents, commands = {}, {}
    for pid in session_processes(os.getsid(0)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    own = {pid for pid, parent in parents.items() if parent == os.getpid()}
    servers = {pid for pid in own if b"forkserver" in commands[pid]}
    return [pid for pid in parents if parents[pid] in servers or (pid in own and b"spawn_main" in commands[pid])]
