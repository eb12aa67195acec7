"""One rank of a torchrun job that trains on a dataset with bad samples: see test_bad_samples_ddp.py.

torchrun ... bad_samples_worker.py TASKS DATASET FOLDER
"""

import os
import sys

import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

import wdsplit
from bad_samples import Refusing
from torchruns import do_tasks

GLOBAL_BATCH = 12
BAD_ROWS = {0: set(), 1: {40}, 5: {3, 4, 40, 77, 100}}
"""By percent of 101 rows: those that a stage refuses."""


def opened(path, bad, **options):
    dataset = wdsplit.Dataset(path, on_bad_sample="substitute", **options)
    return dataset.decode().map(Refusing(bad)).to_tuple("__position__", "cls", "__pad__")


def trained(loader):
    """Train for an epoch; return what this rank was given, after each step of which all ranks add up their rows."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    given, sums = [], []
    for positions, rows, pads in loader:
        model(rows[:, None].float()).sum().backward()
        total = rows.sum()
        distributed.all_reduce(total)
        sums.append(int(total))
        given.append(list(zip(positions.tolist(), rows.tolist(), pads.tolist(), strict=True)))
    return {"given": given, "sums": sums}


def train(path, folder):
    """Train with each share of bad samples, with and without workers; resume the last one in the middle."""
    distributed.init_process_group("gloo")
    file, found = folder / "bad.jsonl", {}
    batch_size = GLOBAL_BATCH // distributed.get_world_size()
    for percent, bad in BAD_ROWS.items():
        dataset = opened(path, bad, max_bad_samples=20, bad_samples_file=file)
        for num_workers in (0, 2):
            loader = wdsplit.Loader(dataset, batch_size, num_workers=num_workers)
            found[f"{percent} %, {num_workers} workers"] = trained(loader)
    resumed = wdsplit.Loader(dataset, batch_size, num_workers=1)
    resumed.load_state_dict({**resumed.state_dict(), "position": 4 * GLOBAL_BATCH})
    found["resumed"] = trained(resumed)
    return found


def exceed(path, folder):
    """Train with more bad samples than rank 1 accepts."""
    distributed.init_process_group("gloo")
    limit = 0 if int(os.environ["RANK"]) == 1 else 1000
    return trained(wdsplit.Loader(opened(path, set(range(101)) - {0, 50}, max_bad_samples=limit), 2))


if __name__ == "__main__":
    do_tasks({"train": train, "exceed": exceed}, *sys.argv[1:])
