"""Real torchrun jobs for the tests, with gloo; and what their ranks were given, put together."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from made_datasets import interleaved

TIMEOUT_S = 900
JOB_MARK = "WDSPLIT_TEST_JOB"


@dataclass(frozen=True)
class Ended:
    """How a job has ended: its exit status, and what its launcher and its ranks have said."""

    returncode: int
    output: str


def torchrun(world_size, script, *arguments, out):
    """Run a script on some ranks, to the end of the launcher; all processes have the folder `out` in their environment.

    They write to a file, not to a pipe: one that a rank leaves behind would hold it open.
    """
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", JOB_MARK: str(out)}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    folder = Path(__file__).parent
    command += [str(folder / script), *map(str, arguments)]
    with open(out / "output.txt", "wb") as output:
        ended = subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=TIMEOUT_S)
    return Ended(ended.returncode, (out / "output.txt").read_text())


def processes_of(out):
    """Return the processes of a job that live, whatever session they are in: {process: its command}."""
    wanted, found = f"{JOB_MARK}={out}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def end_processes(processes):
    """End processes that a failed test has left."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def woven(parts):
    """Return the global batches that the ranks' batches, as JSON has them, make; the ranks must have equally many."""
    return [interleaved([list(map(tuple, batch)) for batch in step]) for step in zip(*parts, strict=True)]


def delivered(batches):
    return list(itertools.chain.from_iterable(batches))


def leave_group():
    """Leave the process group, if a library has joined one: a rank whose threads run at its end may be aborted."""
    import torch.distributed as distributed

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
