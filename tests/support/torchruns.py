"""Real torchrun jobs for the tests, with gloo: what their ranks run, and what they were given, put together.

A worker script has a dict of tasks, functions of a dataset's path and a folder, and calls `do_tasks`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from made_datasets import deliveries, interleaved

TIMEOUT_S = 900
JOB_MARK = "WDSPLIT_TEST_JOB"
PATIENCE_S = 200
"""A worker of torch's looks every 5 s whether its parent lives; there may be much else to do."""


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


def run_alone(*command):
    """Run a script in one process, without a launcher."""
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


def run_tasks(num_ranks, script, tasks, path, out):
    """Run tasks of a worker script, joined by commas, to their end: on several ranks, or on one without a launcher."""
    if num_ranks > 1:
        ended = torchrun(num_ranks, script, tasks, path, out, out=out)
        assert ended.returncode == 0, ended.output
    else:
        alone = run_alone(Path(__file__).parent / script, tasks, path, out)
        assert alone.returncode == 0, alone.stderr


def do_tasks(tasks, names, path, folder):
    """Do tasks, one after another; write the result and the warnings of each to FOLDER/<task>-<rank>.json."""
    out, rank = Path(folder), os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    for name in names.split(","):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = tasks[name](path, out)
        texts = [str(each.message) for each in caught]
        (out / f"{name}-{rank}.json").write_text(json.dumps({"result": result, "warnings": texts}))
    leave_group()


def results_of(out, task, num_ranks=2):
    """Return the result of each rank in a task, and the warnings of all."""
    found = [json.loads((out / f"{task}-{rank}.json").read_text()) for rank in range(num_ranks)]
    return [each["result"] for each in found], [text for each in found for text in each["warnings"]]


def processes_with(variable, value):
    """Return the processes that live with a variable in their environment: {process: its command}."""
    wanted, found = f"{variable}={value}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def processes_of(out):
    """Return the processes of a job that live, whatever session they are in."""
    return processes_with(JOB_MARK, out)


def processes_that_stay(out):
    """Return the processes of a job that has ended that do not end within PATIENCE_S; and end them."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := processes_of(out)) and time.monotonic() < deadline:
        time.sleep(0.1)
    end_processes(left)
    return left


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


def train_and_commit(loader, stop_epoch, log, checkpoint, victim=-1, killed_after=0, train=lambda batch: None):
    """Train until an epoch; all ranks note their batch of a step in a file of their own before rank 0 saves the state.

    A step is committed when the state is saved: all ranks wait for it, so that a rank killed later takes none back.
    The rank `victim` is killed in the middle of a step, after it has committed `killed_after` of them.
    """
    import torch.distributed as distributed

    rank, steps, new = distributed.get_rank(), 0, checkpoint.with_suffix(".new")
    with open(log, "w") as file:
        while loader.epoch < stop_epoch:
            for batch in loader:
                train(batch)
                if (rank, steps) == (victim, killed_after):
                    os.kill(os.getpid(), signal.SIGKILL)
                print(json.dumps(deliveries(batch)), file=file, flush=True)
                distributed.barrier()
                if rank == 0:
                    new.write_text(json.dumps(loader.state_dict()))
                    new.replace(checkpoint)
                distributed.barrier()
                steps += 1
