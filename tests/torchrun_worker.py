"""One rank of a torchrun job: does a task and writes what it was given to OUT/<rank>.json.

    torchrun ... torchrun_worker.py TASK DATASET OUT

The ranks find each other as users' programs do; nothing here tells the loader a rank.
"""

import itertools
import json
import os
import sys
import warnings
from pathlib import Path

import torch.distributed as distributed
import torch.utils.data
from made_datasets import all_deliveries, deliveries, delivering, real_rows
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from wdsplit.dataset import Dataset
from wdsplit.errors import TopologyError
from wdsplit.loader import Loader
from wdsplit.split import World
from wdsplit.world import detect_rank

GLOBAL_BATCH = 12
WORKERS = (0, 1, 3)
STOPPED_AT = 4


def gathered(value, group=None):
    parts = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(parts, value, group=group)
    return parts


def check_parts(parts, num_samples):
    """Assert that the ranks overlap nowhere and miss nothing, and have equally many batches."""
    delivered = [delivery for batches in parts for batch in batches for delivery in batch]
    positions = [position for position, _, _ in delivered]
    assert sorted(positions) == list(range(len(positions))), "the ranks overlap, or a position is missing"
    assert real_rows(delivered) == list(range(num_samples)), "a sample is missing, or stands twice"
    assert len(set(map(len, parts))) == 1, "the ranks have unequal numbers of batches"


def epochs(path, out):
    """Run an epoch with each number of workers, shuffled and not."""
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    result = {}
    for num_workers, shuffle in itertools.product(WORKERS, (False, True)):
        dataset = delivering(Dataset(path, shuffle=shuffle))
        assert dataset.world() == World(rank, world_size)
        loader = Loader(dataset, GLOBAL_BATCH // world_size, num_workers=num_workers)
        batches = [deliveries(batch) for batch in loader]
        assert len({len(loader), len(batches)}) == 1
        check_parts(gathered(batches), dataset.manifest.num_samples)
        result[f"{num_workers} {shuffle}"] = batches
    return result


def stop(path, out):
    """Run some steps of an epoch and save the state, as a training that is stopped does."""
    loader = Loader(delivering(Dataset(path)), GLOBAL_BATCH // distributed.get_world_size(), num_workers=2)
    loader.set_epoch(3)
    batches = [deliveries(batch) for batch in itertools.islice(loader, STOPPED_AT)]
    states = gathered(loader.state_dict())
    assert all(state == states[0] for state in states)
    if distributed.get_rank() == 0:
        (out / "state.json").write_text(json.dumps(states[0]))
    return batches


def resume(path, out):
    """Run the rest of the epoch."""
    loader = Loader(delivering(Dataset(path)), GLOBAL_BATCH // distributed.get_world_size(), num_workers=1)
    loader.load_state_dict(json.loads((out / "state.json").read_text()))
    loader.set_epoch(3)
    return [deliveries(batch) for batch in loader]


def groups(path, out):
    """Run an epoch in each of two groups; then with spawned workers, which have no process group of their own."""
    rank = distributed.get_rank()
    group = [distributed.new_group(members) for members in ([0, 1], [2, 3])][rank // 2]
    dataset = delivering(Dataset(path, group=group))
    assert dataset.world() == World(rank % 2, 2)
    result = {}
    for num_workers in (0, 2):
        dataset.set_epoch(0)
        batches = [deliveries(batch) for batch in Loader(dataset, GLOBAL_BATCH // 2, num_workers=num_workers)]
        check_parts(gathered(batches, group), dataset.manifest.num_samples)
        result[f"workers {num_workers}"] = batches
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    if rank == 3:
        result |= spawned(path, group)
    distributed.barrier()
    return result


def spawned(path, group):
    """Return what rank 3 of 4, which is rank 1 of 2 of its group, is given by workers that are not forked."""
    job, part = delivering(Dataset(path)), delivering(Dataset(path, group=group))
    plain = torch.utils.data.DataLoader(job, num_workers=1, multiprocessing_context="spawn")
    return {
        "spawned, DataLoader": all_deliveries(plain),
        "forkserver, Loader": all_deliveries(Loader(job, 3, num_workers=1, multiprocessing_context="forkserver")),
        "spawned, Loader, group": all_deliveries(Loader(part, 6, num_workers=1, multiprocessing_context="spawn")),
    }


def mesh(path, out):
    """Run an epoch on a mesh of 2 x 2: on its data-parallel dimension, on all of it, and with spawned workers."""
    rank = distributed.get_rank()
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    check_places(rank, whole)
    result = {}
    for name, group in (("dp", whole["dp"]), ("whole", whole)):
        dataset = delivering(Dataset(path, group=group))
        batch_size = GLOBAL_BATCH // dataset.world().world_size
        batches = [deliveries(batch) for batch in Loader(dataset, batch_size, num_workers=2)]
        check_parts(gathered(batches, whole["dp"].get_group() if name == "dp" else None), dataset.manifest.num_samples)
        result[name] = batches
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    if rank == 2:
        part = delivering(Dataset(path, group=whole["dp"]))
        result["spawned"] = all_deliveries(Loader(part, 6, num_workers=1, multiprocessing_context="spawn"))
    distributed.barrier()
    return result


def check_places(rank, whole):
    """Assert that a mesh counts by the places in it, row by row, whichever ranks stand there."""
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


TASKS = {"epochs": epochs, "stop": stop, "resume": resume, "groups": groups, "mesh": mesh}


def main(task, path, folder):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    out = Path(folder)
    by_environment = Dataset(path).world()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    assert by_environment == World(rank, distributed.get_world_size())
    (out / f"{rank}.json").write_text(json.dumps(TASKS[task](path, out)))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
