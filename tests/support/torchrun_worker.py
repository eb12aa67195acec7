"""One rank of a torchrun job: does a task and writes what it was given to OUT/<rank>.json.

    torchrun ... torchrun_worker.py TASK DATASET OUT

The ranks find each other as users' programs do; nothing here tells the loader a rank.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch.distributed as distributed
import torch.utils.data
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from made_datasets import all_deliveries, deliveries, delivering, real_rows
from wdsplit.errors import TopologyError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import World

GLOBAL_BATCH = 12


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


TASKS = {"groups": groups, "mesh": mesh}


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
