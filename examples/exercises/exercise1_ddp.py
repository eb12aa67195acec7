"""Exercise 1: from one process to DDP, with the same loss curve at one global batch size.

    python examples/exercises/exercise1_ddp.py --curve curve.json
    torchrun --standalone --nproc-per-node 2 examples/exercises/exercise1_ddp.py --curve curve.json

The first run writes its losses to the file; a later one, on any number of ranks, compares its own with them and fails
if they do not coincide. Lines that are there for DDP alone are marked with (DDP): there are five, and none of them is
about data. Dataset and Loader find out which rank they serve.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import (
    NUM_CLASSES,
    NUM_FEATURES,
    TOLERANCE,
    add_break_split,
    dataset_path,
    difference,
    fault_between,
    finish,
    gathered,
    join_ranks,
    open_dataset,
    parser_of,
    say,
    share_of,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wdsplit
import wdsplit.debug


def main() -> None:
    """Train, and compare the losses with those of an earlier run."""
    args = parse_arguments()
    _, world_size = join_ranks()  # (DDP)
    with dataset_path(args.data) as path:
        losses, model = train(open_dataset(path, args), world_size, args)
    say(
        f"{world_size} rank(s), global batch {args.global_batch} = {world_size} x {args.global_batch // world_size}: "
        f"{len(losses)} steps, loss {losses[0]:.6f} -> {losses[-1]:.6f}"
    )
    same = len(set(gathered(wdsplit.debug.param_hash(model)))) == 1
    say(f"the parameters of all ranks are {'the same, bit by bit' if same else 'NOT the same'}")
    fault = gathered(compare(losses, world_size, args.curve) if args.curve else "")[0]
    finish(fault if same else "the ranks have different parameters")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add_training(parser)
    parser.add_argument("--curve", type=Path, help="file of the losses: written if it is not there, else compared with")
    return parser.parse_args()


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add what a training takes."""
    parser.add_argument("--global-batch", type=int, default=64, help="samples of a step, over all ranks (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="how many (default: %(default)s)")
    add_break_split(parser)


def train(dataset: wdsplit.Dataset, world_size: int, args: argparse.Namespace) -> tuple[list[float], nn.Module]:
    """Train a small network; return the loss of each global batch, and the network.

    Args:
        dataset: What this rank trains on.
        world_size: The ranks that train together; 1 is a training without DDP.
        args: `global_batch` and `epochs`.
    """
    torch.manual_seed(0)
    hidden = nn.Linear(NUM_FEATURES, 32, dtype=torch.float64)
    network = nn.Sequential(hidden, nn.Tanh(), nn.Linear(32, NUM_CLASSES, dtype=torch.float64))
    model = DistributedDataParallel(network) if world_size > 1 else network  # (DDP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch_size = share_of(args.global_batch, world_size)  # (DDP)
    loader = wdsplit.Loader(dataset.decode().to_tuple("npy", "cls", "__pad__"), batch_size)
    losses = []
    for epoch in range(args.epochs):
        loader.set_epoch(epoch)
        for features, labels, pads in loader:
            each = F.cross_entropy(model(features.double()), labels, reduction="none")
            real = (~pads).double()
            own_sum = (each * real).sum()
            sums = torch.stack([own_sum.detach(), real.sum()])
            if world_size > 1:
                dist.all_reduce(sums)  # (DDP) of the global batch: the sum of the losses, and how many samples are real
            loss = own_sum / sums[1] * world_size  # (DDP) takes the mean of the ranks' gradients
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(sums[0] / sums[1]))
    return losses, network


def compare(losses: list[float], world_size: int, path: Path) -> str:
    """Write the losses to a file, or compare them with those that are in it; return what is wrong."""
    if dist.is_initialized() and dist.get_rank():
        return ""
    if not path.exists():
        path.write_text(json.dumps({"world_size": world_size, "losses": losses}))
        say(f"losses written to {path}: run this again on another number of ranks")
        return ""
    earlier = json.loads(path.read_text())
    names = f"{world_size} rank(s)", f"{earlier['world_size']} rank(s) of {path}"
    fault = fault_between(losses, earlier["losses"], names)
    if not fault:
        apart = difference(losses, earlier["losses"])
        say(f"the same curve as that of {names[1]}: at most {apart:.1e} apart, tolerance {TOLERANCE:.0e}")
    return fault


if __name__ == "__main__":
    main()
