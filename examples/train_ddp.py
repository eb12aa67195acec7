"""Train with DistributedDataParallel: the shortest loop that leaves nothing out.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py TRAIN TEST
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py TRAIN TEST --checkpoint run.pt --resume
    python examples/train_ddp.py TRAIN TEST                        # one process does as well

Every rank has len(loader) steps, so no collective waits for a rank that has run dry. `evaluate` counts each image
once, whatever the number of ranks. `save` takes the loader's state along, and a run that is resumed in the middle of an
epoch ends with the parameters of one that was never interrupted: compare the hashes that are printed.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from image_task import Pace, arguments, build_network, count_right, join_group, normalise, open_loader, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wdsplit
from wdsplit.debug import param_hash


def main() -> None:
    """Train, and evaluate after each epoch."""
    args = arguments("Train a small network with DistributedDataParallel.").parse_args()
    device = join_group()
    torch.manual_seed(args.seed)
    loader = open_loader(args.train, args, shuffle=True)
    test_loader = open_loader(args.test, args, shuffle=False)
    model = DistributedDataParallel(build_network(args.classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    pace = Pace(args, stops_by_file=True)

    if args.resume and args.checkpoint.exists():
        load(args.checkpoint, model, optimizer, loader)
        say(f"resumed in epoch {loader.epoch} at step {loader.step}, on {dist.get_world_size()} ranks")
    for epoch in range(loader.epoch, args.epochs):
        loader.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader, pace, device)
        correct, count = evaluate(model, test_loader, device)
        say(f"epoch {epoch}: loss {loss:.4f}, held-out accuracy {correct / count:.4f} ({correct} of {count})")
        if args.checkpoint:
            save(args.checkpoint, model, optimizer, loader)
    say(f"parameters {param_hash(model.module)}")
    dist.destroy_process_group()


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: wdsplit.Loader,
    pace: Pace,
    device: torch.device,
) -> float:
    """Train for one epoch, or for what is left of it; return the mean loss of all ranks."""
    model.train()
    epoch, total = loader.epoch, torch.zeros(2, device=device)
    for step, (images, labels, _) in loader.enumerate():
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(normalise(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])

        pace.count(step + 1)
        if pace.saves:
            save(pace.checkpoint, model, optimizer, loader)
        if pace.stops:
            say(f"stopped in epoch {epoch} after {step + 1} steps")
            dist.destroy_process_group()
            raise SystemExit
    dist.all_reduce(total)
    return float(total[0] / total[1])


def evaluate(model: nn.Module, loader: wdsplit.Loader, device: torch.device) -> tuple[int, int]:
    """Return how many images of all ranks the model gets right, and of how many: pads do not count."""
    sums = count_right(model, loader, device)
    dist.all_reduce(sums)
    correct, count = sums.tolist()
    return correct, count


def save(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: wdsplit.Loader) -> None:
    """Save a checkpoint, whole or not at all. Rank 0 writes, for all ranks; the others wait until it is there."""
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        temporary = path.with_name(path.name + ".tmp")
        torch.save(state, temporary)
        temporary.replace(path)
    dist.barrier()


def load(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: wdsplit.Loader) -> None:
    """Go to where a checkpoint was saved, on any number of ranks."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])


if __name__ == "__main__":
    main()
