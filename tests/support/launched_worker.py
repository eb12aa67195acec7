"""One rank of a job of some launcher: does a task, and writes what it was given (see torchruns.py).

    LAUNCHER ... launched_worker.py TASK DATASET OUT

The ranks find each other as users' programs do; nothing here tells the loader a rank.
"""

import contextlib
import importlib
import itertools
import json
import logging
import os
import sys
import warnings

import torch
import torch.distributed as distributed
import torch.utils.data
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import wdsplit
from logs import logged
from made_datasets import all_deliveries, deliveries, delivering
from torchruns import do_tasks
from wdsplit.errors import InputError, TopologyError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import World

GLOBAL_BATCH = 12
LEARNING_RATE = 0.1


def plain(path, out):
    """Give a rank's batches, with nothing but what the launcher has set; and what was logged of the rank."""
    with logged("wdsplit.loading.world", logging.INFO) as messages:
        dataset = delivering(Dataset(path))
        loader = Loader(dataset, GLOBAL_BATCH // dataset.world().world_size)
        batches = [deliveries(batch) for batch in loader]
    return {"batches": batches, "messages": messages}


def groups(path, out):
    """Run an epoch in each of two groups; then with spawned workers, which have no process group of their own."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    by_environment = Dataset(path).world()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    assert by_environment == World(rank, distributed.get_world_size())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp"))
    check_places(rank)
    group = [distributed.new_group(members) for members in ([0, 1], [2, 3])][rank // 2]
    dataset = delivering(Dataset(path, process_group=group))
    assert dataset.world() == World(rank % 2, 2)
    result = {}
    for num_workers in (0, 2):
        dataset.set_epoch(0)
        loader = Loader(dataset, GLOBAL_BATCH // 2, num_workers=num_workers)
        result[f"workers {num_workers}"] = [deliveries(batch) for batch in loader]
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    if rank == 3:
        result |= spawned(path, group, mesh["dp"])
    return result


def spawned(path, group, mesh):
    """Return what rank 3 of 4, which is rank 1 of 2 of its group, is given by workers that are not forked."""
    job, part, place = (delivering(Dataset(path, process_group=each)) for each in (None, group, mesh))
    plain = torch.utils.data.DataLoader(job, num_workers=1, multiprocessing_context="spawn")
    return {
        "spawned, DataLoader": all_deliveries(plain),
        "forkserver, Loader": all_deliveries(Loader(job, 3, num_workers=1, multiprocessing_context="forkserver")),
        "spawned, Loader, group": all_deliveries(Loader(part, 6, num_workers=1, multiprocessing_context="spawn")),
        "spawned, Loader, mesh": all_deliveries(Loader(place, 6, num_workers=1, multiprocessing_context="spawn")),
    }


def check_places(rank):
    """Assert that a mesh counts by the places in it, row by row, whichever ranks stand there."""
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert detect_rank(group=whole["dp"]) == World(rank // 2, 2)
    assert detect_rank(group=whole["tp"]) == World(rank % 2, 2)
    assert detect_rank(group=whole) == detect_rank(group=whole["dp", "tp"]) == World(rank, 4)
    hybrid = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    assert detect_rank(group=hybrid["dp_replicate", "dp_shard"]) == World(rank // 2, 2)
    assert detect_rank(group=DeviceMesh("cpu", [[0, 2], [1, 3]])) == World([0, 2, 1, 3][rank], 4)
    half = DeviceMesh("cpu", [1, 0])
    if rank < 2:
        assert detect_rank(group=half) == World(1 - rank, 2)
        return
    try:
        detect_rank(group=half)
    except TopologyError as error:
        assert error.cause == "this process is not in the group that was given"
    else:
        raise AssertionError("a process outside the mesh was given a rank")


def with_deepspeed(path, out):
    """Train an epoch with a DeepSpeed engine."""
    import deepspeed

    backend = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # it would compile an operator for collectives on CPUs
    before = Dataset(path).world()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    config = {"train_micro_batch_size_per_gpu": GLOBAL_BATCH // before.world_size}
    with contextlib.redirect_stdout(sys.stderr):
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    loader = Loader(delivering(Dataset(path)), engine.train_micro_batch_size_per_gpu())
    batches = []
    for batch in loader:
        batches.append(deliveries(batch))
        engine.backward(engine(batch[1][:, None] / 100.0).square().mean())
        engine.step()
    assert loader.dataset.world() == before
    return batches


def fsdp(path, out):
    """Train an epoch with FSDP2 on a mesh of one dimension, then on one that shards and replicates (HSDP)."""
    distributed.init_process_group("gloo")
    result = {}
    names = ("dp_replicate", "dp_shard")
    for name, mesh in (
        ("fsdp", init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))),
        ("hsdp", init_device_mesh("cpu", (2, 2), mesh_dim_names=names)),
        ("hsdp and tp", init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=(*names, "tp"))[names]),
    ):
        model = torch.nn.Linear(1, 1)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        batches = []
        for batch in Loader(delivering(Dataset(path, process_group=mesh)), GLOBAL_BATCH // mesh.size()):
            batches.append(deliveries(batch))
            optimizer.zero_grad()
            model(batch[1][:, None] / 100.0).square().mean().backward()
            optimizer.step()
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        trained = [parameter.full_tensor().item() for parameter in model.parameters()]
        result[name] = {"batches": batches, "trained": trained}
    return result


VIEWS = {0: "easy", 1: "hard", 2: None}


def curriculum(path, out):
    """Train an epoch of a view and two steps of the next one, as DDP steps do; save the state."""
    distributed.init_process_group("gloo")
    world_size = distributed.get_world_size()
    loader = Loader(delivering(Dataset(path, view=VIEWS)), GLOBAL_BATCH // world_size, num_workers=1)
    batches = [deliveries(batch) for batch in reduced(loader)]
    batches += [deliveries(batch) for batch in itertools.islice(reduced(loader), 2)]
    if not distributed.get_rank():
        (out / "state.json").write_text(json.dumps(loader.state_dict()))
    return batches


def curriculum_resumed(path, out):
    """Go on from the state, on whatever ranks, to the end of epoch 2."""
    distributed.init_process_group("gloo")
    per_rank = GLOBAL_BATCH // distributed.get_world_size()
    loader = Loader(delivering(Dataset(path, view=VIEWS)), per_rank, num_workers=2, persistent_workers=True)
    loader.load_state_dict(json.loads((out / "state.json").read_text()))
    return [deliveries(batch) for _ in range(2) for batch in reduced(loader)]


def appended_meanwhile(path, out):
    """Open a dataset on rank 0, append to it, open it on rank 1; return how many samples each rank gets, or the error.

    First of the latest version, then of one that is named, then of the latest, that all open now.
    """
    distributed.init_process_group("gloo")
    rank, results = distributed.get_rank(), []
    opened = [] if rank else [Dataset(path)]
    distributed.barrier()
    if rank:
        wdsplit.convert(out / "more.parquet", path, append=True)
        opened = [Dataset(path)]
    distributed.barrier()
    for dataset in (*opened, Dataset(path, version=1), Dataset(path)):
        for turn in range(2):
            if turn == rank:
                try:
                    results.append(sum(1 for _ in dataset))
                except InputError as error:
                    results.append(str(error))
            distributed.barrier()
    return results


def reduced(batches):
    """Give batches, with an all_reduce for each: a rank that had another number of them would hang, or fail."""
    for batch in batches:
        steps = torch.ones(1)
        distributed.all_reduce(steps)
        assert steps.item() == distributed.get_world_size()
        yield batch


TASKS = {
    "appended_meanwhile": appended_meanwhile,
    "curriculum": curriculum,
    "curriculum_resumed": curriculum_resumed,
    "deepspeed": with_deepspeed,
    "fsdp": fsdp,
    "groups": groups,
    "plain": plain,
}


if __name__ == "__main__":
    do_tasks(TASKS, *[each for each in sys.argv[1:] if not each.startswith("--local_rank")])
