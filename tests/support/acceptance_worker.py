"""One rank of a torchrun job: runs epochs of all datasets, resumes at every step, and trains on from a checkpoint.

    torchrun ... acceptance_worker.py DATASETS JOB VICTIM

Each rank writes what its loaders gave it to JOB/<rank>.json, and rank 0 the states to DATASETS/states.json. Then the
ranks train from DATASETS/checkpoint.json on; in the middle the rank VICTIM is killed, unless it is -1. How the ranks'
parts go together is for test_acceptance.py to judge.
"""

import itertools
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

from made_datasets import deliveries, delivering
from torchruns import train_and_commit
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.mix import mix

GLOBAL_BATCH = 24
RESUMED_EPOCH = 2
TRAINED_EPOCHS = 3
KILLED_AFTER = 3
"""Steps that a job with a victim trains and commits."""

DATASETS = ("wild", "few", "tiny", "even", "mixture")
MIXED = {"wild": 40, "few": 70, "even": 9}
"""The sources of the mixture and their samples an epoch: of one less than it has, of one more than twice as many."""

READERS = [(0, "process"), *itertools.product((1, 2, 3), ("process", "thread"))]
"""Numbers of workers, and what they are."""

SOME_READERS = {False: [(0, "process"), (3, "thread")], True: [(1, "thread"), (2, "process")]}
"""Those of most datasets, by whether they are shuffled: a process costs a twentieth of a second."""


def readers_of(name, shuffle):
    return READERS if name == "wild" else SOME_READERS[shuffle]


def numbered(sample):
    """Give each sample of a mixture a number that no other source has."""
    return {**sample, "cls": sample["cls"] + 1000 * list(MIXED).index(Path(sample["__source__"]).name)}


def opened(folder, name, **options):
    """Return one of the datasets, or their mixture, as deliveries."""
    if name != "mixture":
        return delivering(Dataset(folder / name, **options))
    shares = {str(folder / source): count for source, count in MIXED.items()}
    mixed = mix(shares, num_samples=sum(shares.values()), **options)
    return mixed.decode().map(numbered).to_tuple("__position__", "cls", "__pad__")


def loader_of(dataset, readers, **options):
    num_workers, workers = readers
    batch_size = GLOBAL_BATCH // distributed.get_world_size()
    return Loader(dataset, batch_size, num_workers=num_workers, workers=workers, **options)


def whole_epochs(folder):
    """Run an epoch of each dataset, shuffled and not, with each kind of workers."""
    result = {}
    for name, shuffle in itertools.product(DATASETS, (False, True)):
        for readers in readers_of(name, shuffle):
            loader = loader_of(opened(folder, name, shuffle=shuffle), readers)
            known = len(loader)
            result[f"{name} {shuffle} {readers}"] = {"len": known, "batches": list(map(deliveries, loader))}
    return result


def states_at_every_step(dataset):
    """Return the state before each step of an epoch."""
    loader = loader_of(dataset, READERS[-1])
    loader.set_epoch(RESUMED_EPOCH)
    states = []
    batches = iter(loader)
    for _ in range(len(loader)):
        states.append(loader.state_dict())
        next(batches)
    return states


def resumed(dataset, state, number):
    """Return a loader that has loaded a state, with one kind of workers after the other."""
    loader = loader_of(dataset, READERS[number % len(READERS)])
    loader.load_state_dict(state)
    return loader


def resumed_twice(folder, name, states):
    """From each state on take a step, and then the rest from the state that this leads to, each with other workers."""
    result = []
    for number, state in enumerate(states, start=distributed.get_world_size()):
        loader = resumed(opened(folder, name), state, number)
        batches = [deliveries(next(iter(loader)))]
        if loader.state_dict()["epoch"] == RESUMED_EPOCH:
            loader = resumed(opened(folder, name), json.loads(json.dumps(loader.state_dict())), 3 * number + 2)
            batches += map(deliveries, loader)
        result.append(batches)
    return result


def promises(folder, job):
    """Run whole epochs; then resume from the states of the job before, which had other ranks, else from one's own."""
    states = {name: states_at_every_step(opened(folder, name)) for name in ("wild", "mixture")}
    before = folder / "states.json"
    old = json.loads(before.read_text()) if before.exists() else states
    distributed.barrier()
    if distributed.get_rank() == 0:
        before.write_text(json.dumps(states))
    return {
        "epochs": whole_epochs(folder),
        "states": states,
        "resumed": {name: resumed_twice(folder, name, old[name]) for name in states},
    }


def train(folder, job, victim):
    """Train from the last checkpoint on; all ranks note the batches of each step before rank 0 writes the next one.

    The ranks add their gradients up in each step, so none could go on if another had ended: by DDP in the job that is
    not killed, else by hand, because DDP takes each rank two seconds to start.
    """
    rank, model = distributed.get_rank(), torch.nn.Linear(1, 1)
    run = DistributedDataParallel(model) if victim < 0 else model
    loader = loader_of(opened(folder, "training"), (2, "process"), prefetch_bytes=1)
    checkpoint = folder / "checkpoint.json"
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text()))

    def step(batch):
        run(batch[1][:, None] / 100).square().mean().backward()
        if victim >= 0:
            distributed.all_reduce(model.weight.grad)

    train_and_commit(loader, TRAINED_EPOCHS, job / f"{rank}.trained", checkpoint, victim, KILLED_AFTER, step)
    return model.weight.grad.tolist()


def main(datasets, job, victim):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    folder, job = Path(datasets), Path(job)
    distributed.init_process_group("gloo")
    result = promises(folder, job)
    (job / f"{distributed.get_rank()}.json").write_text(json.dumps(result))
    gradient = train(folder, job, int(victim))
    (job / f"{distributed.get_rank()}.gradient").write_text(json.dumps(gradient))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
