"""One rank of a job that streams an epoch: see test_soak.py.

    torchrun ... soak_worker.py JOB DATASET GLOBAL_BATCH NUM_WORKERS LOG_LEVEL OPTIONS

In each step all ranks note their batch in JOB/<rank>.jsonl before rank 0 writes JOB/checkpoint.json. What the objects
of the program tell of themselves is in JOB/<rank>.json.
"""

import json
import logging
import pickle
import sys
from pathlib import Path

import torch.distributed as distributed

from made_datasets import delivering
from torchruns import train_and_commit
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader


def told(dataset, loader):
    copy = pickle.loads(pickle.dumps(dataset))
    objects = (dataset, loader, copy, dataset.source, copy.source, dataset.source.storage(), vars(dataset.source))
    return [text for each in objects for text in (repr(each), str(each))]


def main(folder, url, global_batch, num_workers, log_level, options):
    logging.basicConfig(level=log_level, format="%(levelname)s %(name)s %(message)s")
    distributed.init_process_group("gloo")
    rank, folder = distributed.get_rank(), Path(folder)
    dataset = delivering(Dataset(url, **json.loads(options)))
    loader = Loader(dataset, int(global_batch) // distributed.get_world_size(), num_workers=int(num_workers))
    (folder / f"{rank}.json").write_text(json.dumps(told(dataset, loader)))
    train_and_commit(loader, 1, folder / f"{rank}.jsonl", folder / "checkpoint.json")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
