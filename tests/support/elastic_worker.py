"""One rank of a job whose ranks come and go: does a task, and writes what the model was trained on.

    ... elastic_worker.py TASK DATASET OUT

`restarted` runs under torchrun agents, each a node, which start all ranks anew. The ranks of `surviving` are processes
that stay, and meet in a new process group. The model of both is how often it was trained on each row.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as distributed

from made_datasets import deliveries, delivering
from torchruns import train_and_commit
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

GLOBAL_BATCH = 12
NUM_EPOCHS = 2
LOST_AT, JOINED_AT = 5, 10
"""The steps of epoch 0 during which a node, or rank, is lost, and before which another one is added."""
NODE = "WDSPLIT_TEST_NODE"
LOST_NODE = 2
WAIT_S = 300


def restarted(path, out):
    """Train from the last checkpoint on. A file for each start and rank has the batches that it was given."""
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    loader = Loader(delivering(Dataset(path)), GLOBAL_BATCH // world_size, num_workers=1)
    checkpoint = out / "checkpoint.json"
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text()))
    log = out / f"{loader.epoch}-{loader.step:03}-{rank}.jsonl"

    def train(batch):
        trained = (loader.epoch, loader.step - 1)
        if trained == (0, LOST_AT) and int(os.environ[NODE]) == LOST_NODE:
            os.kill(os.getppid(), signal.SIGKILL)  # the node's agent
            os.kill(os.getpid(), signal.SIGKILL)
        if trained == (0, JOINED_AT) and world_size == 2:
            time.sleep(WAIT_S)  # until a node is added, because of which the agents end their ranks

    train_and_commit(loader, NUM_EPOCHS, log, checkpoint, train=train)
    distributed.barrier()
    distributed.destroy_process_group()


def surviving(path, out):
    """Train as process 0, 1 or 2 of three, of which 1 is lost; or as process 3, which joins the other two later."""
    process, loader = int(os.environ[NODE]), None
    num_rows = Dataset(path).manifest.num_samples
    trained = {"rows": torch.zeros(num_rows, dtype=torch.int64), "steps": [], "loader": None}
    for group, members in enumerate(([0, 1, 2], [0, 2], [0, 2, 3])):
        if process not in members:
            continue
        rank, world_size = members.index(process), len(members)
        place = {"init_method": f"file://{out}/group-{group}", "rank": rank, "world_size": world_size}
        distributed.init_process_group("gloo", **place, timeout=timedelta(seconds=WAIT_S))
        if loader is None:
            loader = Loader(delivering(Dataset(path)), GLOBAL_BATCH // world_size, num_workers=1)
        shared = [trained]  # of rank 0: a model and the state of its loader belong together
        distributed.broadcast_object_list(shared)
        trained = shared[0]
        loader = loader.reshape(rank, world_size, trained["loader"])
        try:
            train_together(loader, trained, is_lost=process == 1, stops=world_size == 2)
        except RuntimeError as error:
            print(f"process {process} in group {group}: {error}", file=sys.stderr)
            if group:
                raise
        distributed.destroy_process_group()
    if process == 0:
        (out / "trained.json").write_text(json.dumps({**trained, "rows": trained["rows"].tolist()}))


def train_together(loader, trained, is_lost, stops):
    """Train in steps that all ranks do or none does: a step counts when the update of all ranks has arrived."""
    while loader.epoch < NUM_EPOCHS:
        for step, batch in loader.enumerate():
            epoch = loader.epoch
            if is_lost and step == LOST_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            if stops and (epoch, step) == (0, JOINED_AT):
                return
            rows = torch.zeros_like(trained["rows"])
            for _, row, pad in deliveries(batch):
                rows[row] += not pad
            distributed.all_reduce(rows)
            trained["rows"] += rows
            trained["steps"].append([epoch, step, distributed.get_world_size()])
            trained["loader"] = loader.state_dict()


TASKS = {"restarted": restarted, "surviving": surviving}


if __name__ == "__main__":
    name, dataset, folder = sys.argv[1:]
    TASKS[name](dataset, Path(folder))
