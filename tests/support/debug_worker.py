"""One rank of a torchrun job: runs checks of wdsplit.debug that fail, and some that hold, and writes what they said.

torchrun ... debug_worker.py DATASET OUT
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from wdsplit import debug
from wdsplit.errors import InputError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

BATCH_SIZE = 6


def model_of(seed):
    debug.set_seed(seed, rank=0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def outcome_of(check, *arguments, **options):
    """Return what a check returned, or what its error said."""
    try:
        return {"returned": check(*arguments, **options)}
    except (debug.CheckError, InputError) as error:
        return {"error": type(error).__name__, "text": str(error)}


def audited(loader, epochs=1, between=lambda audited, epoch, step: None, timeout_s=200):
    """Run epochs within an audit; return what it found, as texts."""
    with debug.audit(loader, timeout_s=timeout_s) as batches:
        for epoch in range(epochs):
            for step, _ in enumerate(batches):
                if between(batches, epoch, step) == "stop":
                    break
    return [str(epoch) for epoch in batches.epochs]


# Parameters and gradients


def parameters(rank):
    model = model_of(0)
    result = {"same": outcome_of(debug.check_same_parameters, model), "hash": debug.param_hash(model)}
    with torch.no_grad():
        model[2].weight[0, 0] += rank
    result["different"] = outcome_of(debug.check_same_parameters, model)
    result["shapes"] = outcome_of(debug.check_same_parameters, torch.nn.Linear(3, 2 + rank))
    result["names"] = outcome_of(debug.check_same_parameters, {"a": torch.ones(1), f"b{rank}": torch.ones(1)})
    buffered = torch.nn.BatchNorm1d(3)
    buffered.running_mean += rank
    result["all buffers"] = outcome_of(debug.check_same_parameters, buffered.state_dict())
    result["running statistics"] = outcome_of(debug.check_same_parameters, buffered)
    masked = torch.nn.LayerNorm(3)
    masked.register_buffer("mask", torch.tensor([rank]))
    result["own buffer"] = outcome_of(debug.check_same_parameters, masked)
    return result


def sharded(rank):
    """FSDP2, of which nothing is compared; and FSDP1, which is refused."""
    whole, mesh = model_of(0), init_device_mesh("cpu", (2,))
    fully_shard(whole, mesh=mesh)
    tensors = {
        "rows": distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)]),
        "copies": distribute_tensor(torch.arange(8.0), mesh, [Replicate()]),
    }
    result = {
        "own parts": outcome_of(debug.check_same_parameters, whole),
        "hash": debug.param_hash(whole),
        "tensors": outcome_of(debug.check_same_parameters, tensors),
    }
    tensors["copies"].to_local().add_(rank)
    result["a replica that differs"] = outcome_of(debug.check_same_parameters, tensors)
    result["old"] = outcome_of(debug.check_same_parameters, FullyShardedDataParallel(model_of(0), device_id="cpu"))
    return result


def gradients(rank):
    torch.manual_seed(7 + rank)
    inputs = torch.randn(5, 3)
    plain = model_of(0)
    plain(inputs).square().sum().backward()
    result = {"not reduced": outcome_of(debug.check_same_gradients, plain)}
    reduced = DistributedDataParallel(model_of(0))
    reduced(inputs).square().sum().backward()
    result["reduced"] = outcome_of(debug.check_same_gradients, reduced)
    if rank:
        reduced.module[2].bias.grad = None
    result["none"] = outcome_of(debug.check_same_gradients, reduced)
    return result


# What was delivered


def loader_of(path, num_workers=0, **options):
    return Loader(Dataset(path, **options), BATCH_SIZE, num_workers=num_workers)


def audits_that_hold(path, rank):
    result = {}
    for tail in ("pad", "drop", "uneven"):
        result[tail] = audited(loader_of(path, tail=tail), epochs=2)
    result["workers"] = audited(loader_of(path, num_workers=2))
    named = Dataset(path).decode().to_tuple("cls", *debug.AUDITED)
    result["tuples"] = audited(Loader(named, BATCH_SIZE))
    stopped = loader_of(path)
    result["left early"] = audited(stopped, between=lambda batches, epoch, step: "stop" if step == 2 else None)
    resumed = loader_of(path)
    resumed.load_state_dict(stopped.state_dict())
    result["resumed"] = audited(resumed, epochs=2)
    stopped = loader_of(path, tail="uneven")
    audited(stopped, between=lambda batches, epoch, step: "stop" if step == 2 else None)
    resumed = loader_of(path, tail="uneven")
    resumed.load_state_dict(stopped.state_dict())
    result["resumed, uneven"] = audited(resumed)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    stopped = loader_of(path, tail="uneven")
    result["left early, uneven"] = audited(
        stopped, between=lambda batches, epoch, step: "stop" if step == 1 + 2 * rank else None
    )
    result["replicas"] = audited(loader_of(path, process_group=mesh["dp"]))
    result["whole mesh"] = audited(loader_of(path, process_group=mesh))
    return result


def losing(path, rank, **options):
    """Return a loader that loses step 3 of rank 1."""

    class Losing(Loader):
        def __iter__(self):
            return (batch for step, batch in enumerate(super().__iter__()) if (rank, step) != (1, 3))

    return Losing(Dataset(path, **options), BATCH_SIZE)


def asked_for(loader, num_batches):
    """Ask for so many batches, and not for the end."""
    with debug.audit(loader, timeout_s=200) as batches:
        asked = iter(batches)
        for _ in range(num_batches):
            next(asked)


def audits_that_fail(path, rank):
    result = {
        "ignored rank": outcome_of(audited, loader_of(path, rank=0, world_size=1)),
        "other seeds": outcome_of(audited, loader_of(path, seed=rank)),
        "other views": outcome_of(audited, loader_of(path, where=f"cls < {60 - rank}")),
        "lost": outcome_of(audited, losing(path, rank)),
        "lost, uneven": outcome_of(audited, losing(path, rank, tail="uneven")),
    }
    result["one leaves early"] = outcome_of(
        audited, loader_of(path), between=lambda batches, epoch, step: "stop" if (rank, step) == (1, 6) else None
    )
    result["lost, left before the end"] = outcome_of(asked_for, losing(path, rank), 8)
    loader = loader_of(path)
    loader.set_epoch(rank)
    result["other epochs"] = outcome_of(audited, loader)
    loader = loader_of(path)
    if rank:
        skipping = loader_of(path)
        next(iter(skipping))
        loader.load_state_dict(skipping.state_dict())
    result["other positions"] = outcome_of(audited, loader)
    result["dropped fields"] = outcome_of(audited, Loader(Dataset(path).to_tuple("cls"), BATCH_SIZE))
    return result


def late(rank):
    """Rank 1 does not come to a barrier, but to the next; nor to a check."""
    result = {"met": outcome_of(debug.barrier, 200, name="first")}
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    tensors = {"a": torch.ones(1)}
    if not rank:
        result["alone"] = outcome_of(debug.barrier, 0.5, name="second")
        result["alone in a mesh"] = outcome_of(debug.barrier, 0.5, mesh, name="third")
        result["alone in a check"] = outcome_of(debug.check_same_parameters, tensors, timeout_s=0.5)
    distributed.barrier()
    if rank:
        result["too late"] = outcome_of(debug.barrier, 200, name="second")
        result["too late in a mesh"] = outcome_of(debug.barrier, 200, mesh, name="third")
        result["too late in a check"] = outcome_of(debug.check_same_parameters, tensors)
    return result


def losses(rank, out):
    with debug.LossLog(out / "losses") as log:
        for step in range(60):
            log.log(step, torch.tensor(3.0 - step / 50), lr=0.1)
    return str(log.path.name)


def main(path, folder):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    warnings.filterwarnings("ignore", ".*FSDP", FutureWarning)
    out = Path(folder)
    before = debug.set_seed(5)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    result = {
        "seed": [before, debug.set_seed(5), torch.initial_seed()],
        "late": late(rank),
        "parameters": parameters(rank),
        "sharded": sharded(rank),
        "gradients": gradients(rank),
        "audits that hold": audits_that_hold(path, rank),
        "audits that fail": audits_that_fail(path, rank),
        "an audit of one rank": {} if rank else outcome_of(audited, loader_of(path), timeout_s=0.5),
        "losses": losses(rank, out),
    }
    (out / f"{rank}.json").write_text(json.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
