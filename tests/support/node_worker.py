"""One rank of a job on one or more nodes: trains on a dataset from a checkpoint on, and notes what it was given.

    torchrun ... node_worker.py JOB

JOB/job.json is what `Job` in nodes.py says. In each step all ranks note their batch in JOB/<rank>.jsonl before rank 0
writes JOB/checkpoint.json. The rank `victim` is killed in the middle of an epoch, after `killed_after` steps.
"""

import json
import logging
import os
import pickle
import sys
from pathlib import Path

import torch.distributed as distributed

from made_datasets import delivering
from torchruns import train_and_commit
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader


def told(dataset, loader):
    """Return what the objects of a program tell of themselves."""
    copy = pickle.loads(pickle.dumps(dataset))
    objects = (dataset, loader, copy, dataset.source, copy.source, dataset.source.storage(), vars(dataset.source))
    return [text for each in objects for text in (repr(each), str(each))]


def main(folder):
    folder = Path(folder)
    job = json.loads((folder / "job.json").read_text())
    logging.basicConfig(level=job["log_level"], format="%(levelname)s %(name)s %(message)s")
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    cache = {"cache_dir": os.environ["NODE_CACHE"], "cache_size": "100MB"} if job["cached"] else {}
    dataset = delivering(Dataset(job["url"], **job["options"], **cache))
    loader = Loader(dataset, job["global_batch"] // world_size, num_workers=job["num_workers"])
    if job["state"]:
        loader.load_state_dict(job["state"])
    (folder / f"{rank}.json").write_text(json.dumps({"len": len(loader), "told": told(dataset, loader)}))
    log, checkpoint = folder / f"{rank}.jsonl", folder / "checkpoint.json"
    train_and_commit(loader, job["stop_epoch"], log, checkpoint, job["victim"], job["killed_after"])
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
