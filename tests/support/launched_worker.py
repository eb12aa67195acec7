"""One rank of a job of some launcher: does a task and writes what it was given to OUT/<task>-<rank>.json.

LAUNCHER ... launched_worker.py TASK DATASET OUT
"""

import contextlib
import importlib
import json
import logging
import sys
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from made_datasets import all_deliveries, deliveries, delivering
from torchruns import leave_group
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

GLOBAL_BATCH = 12
LEARNING_RATE = 0.1


def plain(path, out):
    """Give a rank's batches, with nothing but what the launcher has set; and what was logged of the rank."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("wdsplit.loading.world")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    dataset = delivering(Dataset(path))
    loader = Loader(dataset, GLOBAL_BATCH // dataset.world().world_size)
    batches = [deliveries(batch) for batch in loader]
    return dataset.world().rank, {"batches": batches, "messages": messages}


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
    return before.rank, batches


def fsdp(path, out):
    """Train an epoch with FSDP2 on a mesh of one dimension, then on one that shards and replicates (HSDP)."""
    distributed.init_process_group("gloo")
    rank, result = distributed.get_rank(), {}
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
        for batch in Loader(delivering(Dataset(path, group=mesh)), GLOBAL_BATCH // mesh.size()):
            batches.append(deliveries(batch))
            optimizer.zero_grad()
            model(batch[1][:, None] / 100.0).square().mean().backward()
            optimizer.step()
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        trained = [parameter.full_tensor().item() for parameter in model.parameters()]
        result[name] = {"batches": batches, "trained": trained}
    return rank, result


def with_ray(path, out):
    """Start two workers of Ray Train; each writes what it was given."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    settings = {"path": str(path), "out": str(out)}
    run = RunConfig(storage_path=str(out / "ray"))
    TorchTrainer(ray_rank, train_loop_config=settings, scaling_config=scaling, run_config=run).fit()
    ray.shutdown()
    return "driver", None


def ray_rank(settings):
    assert distributed.is_initialized()
    loader = Loader(delivering(Dataset(settings["path"])), GLOBAL_BATCH // 2)
    rank = loader.dataset.world().rank
    first, rest = next(iter(loader)), None
    state = loader.state_dict()
    loader.load_state_dict(state)
    rest = all_deliveries(loader)
    Path(settings["out"], f"ray-{rank}.json").write_text(json.dumps([deliveries(first), rest]))


TASKS = {"deepspeed": with_deepspeed, "fsdp": fsdp, "plain": plain, "ray": with_ray}


def main(task, path, folder):
    out = Path(folder)
    rank, result = TASKS[task](path, out)
    (out / f"{task}-{rank}.json").write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main(*[each for each in sys.argv[1:] if not each.startswith("--local_rank")])
