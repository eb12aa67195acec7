"""Train on images, with an exactly-once audit of what the ranks received: the program of `make demo`.

    torchrun --standalone --nproc-per-node 2 examples/train_images.py TRAIN TEST --epochs 2
    python examples/train_images.py TRAIN TEST --epochs 2          # one process does as well
    ... --checkpoint run.pt --resume     # go on where a run stopped, on ranks that divide --batch-size

What it adds to `train_ddp.py`: `wdsplit.debug.audit` around the loader, which fails the run if a sample came twice
in an epoch or not at all; a global batch size, so that the training is the same on any number of ranks; a learning rate
that is a function of the steps done; a cache of remote shards (`--cache-dir`).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from image_task import Pace, arguments, build_network, find_fields, join_group, normalise, say
from torch.nn.parallel import DistributedDataParallel
from train_ddp import evaluate, load, save

import wdsplit
from wdsplit.debug import audit

PEAK = 0.25
"""The part of the training after which the learning rate is at its highest."""


def main() -> None:
    """Train with an audit, and evaluate after each epoch."""
    args = parse_arguments()
    device = join_group()
    torch.manual_seed(args.seed)
    loader = open_loader(args.train, args, "__key__", "__position__", "__pad__")
    test_loader = open_loader(args.test, args, "__pad__", shuffle=False)
    model = DistributedDataParallel(build_network(args.classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    pace = Pace(args)
    say(
        f"{loader.dataset.manifest.num_samples:,} images, {len(loader):,} steps an epoch; {dist.get_world_size()} ranks"
    )

    if args.resume and args.checkpoint.exists():
        load(args.checkpoint, model, optimizer, loader)
        say(f"resumed in epoch {loader.epoch} at step {loader.step}")
    with audit(loader) as audited:
        for epoch in range(loader.epoch, args.epochs):
            loader.set_epoch(epoch)
            loss, images_per_s = train_epoch(model, optimizer, audited, pace, args)
            if pace.stops:
                break
            correct, count = evaluate(model, test_loader, device)
            say(
                f"epoch {epoch}: loss {loss:.4f}, held-out accuracy {correct / count:.4f} ({correct:,} of {count:,}), "
                f"{images_per_s:,.0f} images/s"
            )
            if args.checkpoint:
                save(args.checkpoint, model, optimizer, loader)
    say("\nExactly-once audit of what the ranks received")
    for epoch_audit in audited.epochs:
        say(f"  {epoch_audit}")
    dist.destroy_process_group()


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: Any, pace: Pace, args: argparse.Namespace
) -> tuple[float, float]:
    """Train for one epoch, or for what is left of it; return the mean loss and images/s of all ranks."""
    model.train()
    epoch, begin, started = loader.epoch, loader.step, time.perf_counter()
    device = next(model.parameters()).device
    total = torch.zeros(2, device=device)
    for step, (images, labels, *_) in enumerate(loader, begin):
        loss = F.cross_entropy(model(normalise(images.to(device, non_blocking=True))), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        set_learning_rate(optimizer, args.lr, (epoch + (step + 0.5) / len(loader)) / args.epochs)
        optimizer.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])

        pace.count(step + 1)
        if pace.saves:
            save(args.checkpoint, model, optimizer, loader)
        if pace.stops:
            say(f"stopped in epoch {epoch} after {step + 1} steps")
            break
    dist.all_reduce(total)
    seconds, num_steps = time.perf_counter() - started, float(total[1]) / dist.get_world_size()
    return float(total[0] / total[1]), num_steps * args.batch_size / seconds


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the batch size is that of all ranks together."""
    what = "Train a small network on images, and audit what the ranks received."
    parser = arguments(what, "images of a step, of all ranks together")
    parser.set_defaults(epochs=2, batch_size=64, lr=0.005, size=8)
    parser.add_argument("--cache-dir", help="keep the shards of a remote dataset in this folder of the node's own disk")
    return parser.parse_args()


def open_loader(path: str, args: argparse.Namespace, *identity: str, shuffle: bool = True) -> wdsplit.Loader:
    """Return this rank's batches: images, labels, and the fields that identify samples."""
    batch_size, rest = divmod(args.batch_size, dist.get_world_size())
    if rest:
        raise SystemExit(f"--batch-size {args.batch_size} is not a multiple of {dist.get_world_size()} ranks")
    dataset = wdsplit.Dataset(path, seed=args.seed, shuffle=shuffle, cache_dir=args.cache_dir)
    image, label = find_fields(dataset)
    dataset = dataset.decode(wdsplit.resized(args.size, library="pillow")).to_tuple(image, label, *identity)
    return wdsplit.Loader(dataset, batch_size, num_workers=args.workers, pin_memory=True, persistent_workers=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, highest: float, done: float) -> None:
    """Set the learning rate of one cycle, up to the highest and down to zero, by the part of the training done."""
    for group in optimizer.param_groups:
        group["lr"] = highest * min(done / PEAK, (1 - done) / (1 - PEAK))


if __name__ == "__main__":
    main()
