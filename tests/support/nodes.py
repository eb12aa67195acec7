"""Jobs on several nodes for the tests: a torchrun agent a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from s3server import HOST, free_port
from torchruns import JOB_MARK, end_processes, processes_of, woven

DEADLINE_S = 400


@dataclass(frozen=True)
class Job:
    """What the ranks do.

    Attributes:
        url: The dataset.
        global_batch: Samples of a step, of all ranks together.
        stop_epoch: The epoch before which they end.
        num_workers: Worker processes of each rank.
        options: More of the dataset's arguments.
        cached: Whether each node keeps shards in a folder of its own.
        state: The state from which they go on.
        victim: The rank that is killed; none for -1.
        killed_after: Steps that are committed before.
        log_level: What is logged.
    """

    url: str
    global_batch: int = 12
    stop_epoch: int = 1
    num_workers: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    cached: bool = False
    state: Mapping[str, object] | None = None
    victim: int = -1
    killed_after: int = 0
    log_level: str = "WARNING"


@dataclass(frozen=True)
class Done:
    """What a job left.

    Attributes:
        folder: Where.
        returncodes: The exit status of each node's agent.
        outputs: What each node's agent and ranks have said.
    """

    folder: Path
    returncodes: list[int]
    outputs: list[str]

    @property
    def output(self) -> str:
        return "\n".join(self.outputs)

    @property
    def ranks(self) -> list[dict]:
        """What each rank has said of itself."""
        return [json.loads(path.read_text()) for path in self._files(".json")]

    @property
    def state(self) -> dict:
        """The last checkpoint."""
        return json.loads((self.folder / "checkpoint.json").read_text())

    def cache(self, node: int) -> Path:
        """Return the folder in which a node may keep shards."""
        return self.folder / f"node{node}" / "cache"

    def batches(self, num_steps: int | None = None) -> list:
        """Return the global batches of the first steps; all ranks must have as many."""
        parts = [list(map(json.loads, path.read_text().splitlines())) for path in self._files(".jsonl")]
        return woven([part[:num_steps] for part in parts])

    def _files(self, ending: str) -> list[Path]:
        return sorted(self.folder.glob(f"[0-9]*{ending}"), key=lambda path: int(path.stem))


class Running:
    """A job that runs; its processes are ended when the block is left, and before if it takes too long."""

    def __init__(self, folder: Path, job: Job, nodes: Sequence[int]) -> None:
        """Start an agent a node, with so many ranks."""
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(asdict(job)))
        self.folder = folder
        port = free_port()
        self._began = time.monotonic()
        self._agents = [self._start(number, ranks, len(nodes), port) for number, ranks in enumerate(nodes)]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        end_processes(processes_of(self.folder))
        for agent in self._agents:
            agent.wait()

    def _start(self, number: int, num_ranks: int, num_nodes: int, port: int) -> subprocess.Popen[bytes]:
        own = self.folder / f"node{number}"
        own.mkdir()
        environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        environ |= {"OMP_NUM_THREADS": "1", JOB_MARK: str(self.folder), "NODE_CACHE": str(own / "cache")}
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={num_nodes}", f"--node-rank={number}"]
        command += [f"--nproc-per-node={num_ranks}", f"--master-addr={HOST}", f"--master-port={port}"]
        command += [str(Path(__file__).parent / "node_worker.py"), str(self.folder)]
        with open(own / "output.txt", "wb") as output:
            return subprocess.Popen(command, env=environ, cwd=own, stdout=output, stderr=output)

    def steps(self, rank: int = 0) -> int:
        """Return how many batches a rank has noted so far."""
        path = self.folder / f"{rank}.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait(self) -> Done:
        """Wait for the agents; raises subprocess.TimeoutExpired."""
        deadline = self._began + DEADLINE_S
        codes = [agent.wait(max(0.0, deadline - time.monotonic())) for agent in self._agents]
        outputs = [(self.folder / f"node{i}" / "output.txt").read_text() for i in range(len(self._agents))]
        return Done(self.folder, codes, outputs)


def run(folder: Path, job: Job, nodes: Sequence[int]) -> Done:
    """Run a job to its end."""
    with Running(folder, job, nodes) as running:
        return running.wait()
