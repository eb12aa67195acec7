"""Train with FSDP2: parameters, gradients and optimizer sharded over the ranks of a mesh, and so are the checkpoints.

    torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py TRAIN TEST
    torchrun ... examples/train_fsdp.py TRAIN TEST --shards 8              # HSDP: each 8 ranks hold one replica
    torchrun ... examples/train_fsdp.py TRAIN TEST --checkpoint FOLDER --resume

The dataset gets the mesh, so that it is split by the data-parallel ranks. With tensor parallelism the mesh has one more
dimension: pass its data-parallel part, `process_group=mesh["dp_replicate", "dp_shard"]`. Then ranks that hold parts of
one layer read the same samples.

A checkpoint is a folder to which each rank writes its shards (torch.distributed.checkpoint). It holds the loader's
state once, and is loaded on any number of ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from image_task import Pace, arguments, build_network, join_group, normalise, open_loader, say
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from train_ddp import evaluate

import wdsplit
from wdsplit.debug import param_hash


def main() -> None:
    """Train, and evaluate after each epoch."""
    parser = arguments("Train a small network with FSDP2.")
    parser.add_argument("--shards", type=int, help="ranks that share one replica of the model; all, by default")
    args = parser.parse_args()
    device = join_group()
    torch.manual_seed(args.seed)
    mesh = make_mesh(device, args.shards or dist.get_world_size())
    loader = open_loader(args.train, args, shuffle=True, group=mesh)
    test_loader = open_loader(args.test, args, shuffle=False, group=mesh)
    model = shard(build_network(args.classes).to(device), mesh)
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=args.lr), loader)
    pace = Pace(args)

    if args.resume and (newest := newest_checkpoint(args.checkpoint)):
        training.load(newest)
        say(f"resumed in epoch {loader.epoch} at step {loader.step}, on {dist.get_world_size()} ranks")
    for epoch in range(loader.epoch, args.epochs):
        loader.set_epoch(epoch)
        model.train()
        total = torch.zeros(2, device=device)
        for step, (images, labels, _) in loader.enumerate():
            loss = training.step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
            total += torch.stack([loss.float(), torch.ones_like(loss).float()])
            pace.count(step + 1)
            if pace.saves:
                training.save(args.checkpoint / f"epoch-{epoch:04d}-step-{step + 1:07d}")
            if pace.stops:
                say(f"stopped in epoch {epoch} after {step + 1} steps")
                dist.destroy_process_group()
                return
        dist.all_reduce(total)
        correct, count = evaluate(model, test_loader, device)
        mean = float(total[0] / total[1])
        say(f"epoch {epoch}: loss {mean:.4f}, held-out accuracy {correct / count:.4f} ({correct} of {count})")
        if args.checkpoint:
            training.save(args.checkpoint / f"epoch-{epoch + 1:04d}-step-{0:07d}")
    say(f"parameters {param_hash({name: part.full_tensor() for name, part in model.state_dict().items()})}")
    dist.destroy_process_group()


def make_mesh(device: torch.device, shards: int) -> DeviceMesh:
    """Return the mesh: one dimension that shards, and before it one that replicates if there are more ranks."""
    replicas, rest = divmod(dist.get_world_size(), shards)
    if rest:
        raise SystemExit(f"--shards {shards} does not divide the {dist.get_world_size()} ranks")
    if replicas == 1:
        return init_device_mesh(device.type, (shards,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(device.type, (replicas, shards), mesh_dim_names=("dp_replicate", "dp_shard"))


def shard(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    """Shard each block by itself, so that one at a time is gathered, then the rest."""
    on_gpu = mesh.device_type == "cuda"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Training:
    """What a checkpoint holds: the sharded model and optimizer, and how far the loader has got."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: wdsplit.Loader) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loader = loader

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Take one step of training; return the loss of this rank's batch."""
        loss = F.cross_entropy(self.model(normalise(images)).float(), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def save(self, folder: Path) -> None:
        """Write a checkpoint: each rank its shards; what makes it complete, rank 0 writes last."""
        dcp.save(self._state(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Go to where a checkpoint was saved; each rank reads its part of it."""
        state = self._state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.loader.load_state_dict(state["loader"])

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "loader": self.loader.state_dict()}


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete."""
    return max((path.parent for path in folder.glob("epoch-*/.metadata")), default=None)


if __name__ == "__main__":
    main()
