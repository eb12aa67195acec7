"""Train with Horovod: ranks come from `hvd.init()`, gradients are averaged by its optimizer.

    horovodrun -np 2 python examples/train_horovod.py TRAIN TEST --accumulate 2
    horovodrun -np 16 -H server1:8,server2:8 python examples/train_horovod.py TRAIN TEST --checkpoint run.pt --resume

wdsplit asks Horovod for rank and world size once `hvd.init()` was called; there is nothing to tell it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from image_task import Pace, arguments, build_network, count_right, group_of, normalise, open_loader, say
from torch import nn

import wdsplit
from wdsplit.debug import param_hash


def main() -> None:
    """Train, and evaluate after each epoch."""
    parser = arguments("Train a small network with Horovod.")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make a step")
    args = parser.parse_args()
    hvd.init()
    device = choose_device()
    torch.manual_seed(args.seed)
    loader = open_loader(args.train, args, shuffle=True)
    test_loader = open_loader(args.test, args, shuffle=False)
    model = build_network(args.classes).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=args.lr),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=args.accumulate,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    pace = Pace(args)

    if args.resume and (state := read_checkpoint(args.checkpoint)):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        say(f"resumed in epoch {loader.epoch} at step {loader.step}, on {hvd.size()} ranks")
    for epoch in range(loader.epoch, args.epochs):
        loader.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader, args.accumulate, pace)
        right = count_right(model, test_loader, device)
        correct, count = hvd.allreduce(right, op=hvd.Sum, name="evaluation").tolist()
        say(f"epoch {epoch}: loss {loss:.4f}, held-out accuracy {correct / count:.4f} ({correct} of {count})")
        if args.checkpoint:
            save(args.checkpoint, model, optimizer, loader)
    say(f"parameters {param_hash(model)}")
    hvd.shutdown()


def choose_device() -> torch.device:
    """Return the GPU of this process, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank())
    return torch.device("cuda", hvd.local_rank())


def train_epoch(model: nn.Module, optimizer: Any, loader: wdsplit.Loader, accumulate: int, pace: Pace) -> float:
    """Train for one epoch, or for what is left of it; return the mean loss of all ranks.

    Horovod averages gradients in the last backward pass of an accumulation; at the end of an epoch, where fewer batches
    are left, `optimizer.step()` does it.
    """
    model.train()
    device = next(model.parameters()).device
    epoch, begin, num_steps, total = loader.epoch, loader.step, len(loader), torch.zeros(2, device=device)
    for step, (images, labels, _) in enumerate(loader, begin):
        group = group_of(step, begin, num_steps, accumulate)
        is_update = step == group[-1]
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(normalise(images)), labels)
        (loss / len(group)).backward()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])
        if is_update:
            optimizer.step()
            optimizer.zero_grad()
        pace.count(step + 1, is_update)
        if pace.saves:
            save(pace.checkpoint, model, optimizer, loader)
        if pace.stops:
            say(f"stopped in epoch {epoch} after {step + 1} steps")
            hvd.shutdown()
            raise SystemExit
    total = hvd.allreduce(total, op=hvd.Sum, name="loss")
    return float(total[0] / total[1])


def save(path: Path, model: nn.Module, optimizer: Any, loader: wdsplit.Loader) -> None:
    """Save a checkpoint, whole or not at all. Rank 0 writes, for all ranks."""
    if hvd.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        temporary = path.with_name(path.name + ".tmp")
        torch.save(state, temporary)
        temporary.replace(path)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return the checkpoint, which rank 0 reads for all ranks; None if there is none."""
    state = None
    if hvd.rank() == 0 and path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)
    return hvd.broadcast_object(state, root_rank=0, name="checkpoint")


if __name__ == "__main__":
    main()
