"""One rank of a job on one or more nodes: trains on a dataset from a checkpoint on, and notes what it was given.

    torchrun ... node_worker.py JOB

JOB/job.json is what `Job` in nodes.py says. In each step all ranks note their batch in JOB/<rank>.jsonl before rank 0
writes JOB/checkpoint.json. The rank `victim` is killed in the middle of an epoch, after `killed_after` steps.
"""

import json
import logging
import os
import pickle
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as distributed

from made_datasets import deliveries, delivering
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader


def told(dataset, loader):
    """Return what the objects of a program tell of themselves."""
    copy = pickle.loads(pickle.dumps(dataset))
    objects = (dataset, loader, copy, dataset.source, copy.source, dataset.source.storage(), vars(dataset.source))
    return [text for each in objects for text in (repr(each), str(each))]


def train(folder, loader, job):
    rank = distributed.get_rank()
    steps = 0
    with open(folder / f"{rank}.jsonl", "w") as log:
        while loader.epoch < job["stop_epoch"]:
            for batch in loader:
                if (rank, steps) == (job["victim"], job["killed_after"]):
                    os.kill(os.getpid(), signal.SIGKILL)
                print(json.dumps(deliveries(batch)), file=log, flush=True)
                distributed.all_reduce(torch.ones(1))
                if rank == 0:
                    (folder / "new.json").write_text(json.dumps(loader.state_dict()))
                    (folder / "new.json").replace(folder / "checkpoint.json")
                steps += 1


def main(folder):
    folder = Path(folder)
    job = json.loads((folder / "job.json").read_text())
    logging.basicConfig(level=job["log_level"], format="%(levelname)s %(name)s %(message)s")
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    cache = {"cache_dir": os.environ["NODE_CACHE"]} if job["cached"] else {}
    dataset = delivering(Dataset(job["url"], **job["options"], **cache))
    loader = Loader(dataset, job["global_batch"] // world_size, num_workers=job["num_workers"])
    if job["state"]:
        loader.load_state_dict(job["state"])
    (folder / f"{rank}.json").write_text(json.dumps({"len": len(loader), "told": told(dataset, loader)}))
    train(folder, loader, job)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
