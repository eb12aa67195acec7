"""Train with a webdataset pipeline written by hand, whose shards wdsplit puts in a new order each epoch.

    torchrun --standalone --nproc-per-node 2 examples/webdataset_pipeline.py demo/train --count
    torchrun --standalone --nproc-per-node 2 examples/webdataset_pipeline.py 's3://bucket/data/*.tar'
    torchrun --standalone --nproc-per-node 2 examples/webdataset_pipeline.py 'tars/{000..127}.tar' --epoch 3

SHARDS is a dataset's folder, a glob or braces, local or remote: nothing else changes. The order of the shards depends
on the seed and the epoch alone, so webdataset's own splitters deal each shard to one worker of one rank. All stages
after them are webdataset's. What such a pipeline cannot promise, and `wdsplit.Loader` does, is in
docs/existing-tars.md: here `model.join()` lets ranks have different numbers of batches.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import webdataset as wds
from image_task import build_network, join_group, normalise, say
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import wdsplit

SHUFFLED_SAMPLES = 200


def main() -> None:
    """Train for some epochs."""
    args = parse_arguments()
    device = join_group()
    torch.manual_seed(args.seed)
    shards = wdsplit.EpochShardList(args.shards, seed=args.seed)
    loader = open_loader(shards, args)
    model = DistributedDataParallel(build_network(args.classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epoch, args.epochs):
        shards.set_epoch(epoch, args.first_shard if epoch == args.epoch else 0)
        loss, keys = train_epoch(model, optimizer, loader, device)
        say(f"epoch {epoch}: loss {loss:.4f}{counted(keys) if args.count else ''}")
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a small network by a webdataset pipeline.")
    parser.add_argument("shards", metavar="SHARDS", help="tars of images (png, jpg, ...) and labels (cls)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs in all, those before a resume included")
    parser.add_argument("--epoch", type=int, default=0, help="the epoch to begin with")
    parser.add_argument("--first-shard", type=int, default=0, help="shards of that epoch to leave out")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a batch, for each rank")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, for each rank")
    parser.add_argument("--lr", type=float, default=0.003, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0, help="what the order and the first weights depend on")
    parser.add_argument("--size", type=int, default=32, help="images are resized to SIZE x SIZE")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--count", action="store_true", help="count the samples and the distinct keys of all ranks")
    return parser.parse_args()


def open_loader(shards: wdsplit.EpochShardList, args: argparse.Namespace) -> Any:
    """Return this rank's batches: keys, images (uint8, batch x 3 x size x size) and labels."""

    def to_tensors(sample: dict[str, Any]) -> tuple[str, Tensor, int]:
        image = sample["image"].resize((args.size, args.size))
        return sample["__key__"], torch.from_numpy(np.array(image)).permute(2, 0, 1), sample["label"]

    pipeline = wds.DataPipeline(
        shards,
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(select_files=is_no_pad),
        wds.shuffle(SHUFFLED_SAMPLES),
        wds.decode("pilrgb"),
        wds.rename(image="png;jpg;jpeg;webp", label="cls"),
        wds.map(to_tensors),
        wds.batched(args.batch_size),
    )
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    return torch.utils.data.DataLoader(pipeline, batch_size=None, **workers)


def is_no_pad(name: str) -> bool:
    """Leave out the pads at the end of the shards of `wdsplit convert`: samples that are repeated."""
    return not name.startswith("_pad_/")


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: Any, device: torch.device
) -> tuple[float, list[str]]:
    """Train for one epoch; return the mean loss of all ranks, and the keys of this rank's samples."""
    total, keys = torch.zeros(2, device=device), []
    with model.join():  # a rank that has fewer batches does not keep the others waiting
        for batch_keys, images, labels in loader:
            loss = F.cross_entropy(model(normalise(images.to(device))), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
            keys += batch_keys
    dist.all_reduce(total)
    return float(total[0] / total[1]), keys


def counted(keys: list[str]) -> str:
    """Say how many samples all ranks have had, and how many distinct ones; every rank calls this."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, keys)
    together = [key for of_rank in of_ranks for key in of_rank]
    return f", {len(together)} samples, {len(set(together))} distinct"


if __name__ == "__main__":
    main()
