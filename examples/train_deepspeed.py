"""Train with DeepSpeed: ZeRO, accumulated gradients, and its own checkpoints, which take the loader's state along.

    deepspeed --num_gpus 2 examples/train_deepspeed.py TRAIN TEST --zero 2
    torchrun --standalone --nproc-per-node 2 examples/train_deepspeed.py TRAIN TEST
    ... --checkpoint FOLDER --resume

Ranks are found by themselves: DeepSpeed's launcher sets what torchrun sets. `deepspeed.initialize` gets no
training_data: its own loader would put a DistributedSampler before the dataset. The script marks where an accumulation
ends, because the last one of an epoch may have fewer batches.
"""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from image_task import Pace, arguments, build_network, choose_device, group_of, normalise, open_loader, say

import wdsplit
from wdsplit.debug import param_hash


def main() -> None:
    """Train, and evaluate after each epoch."""
    args = parse_arguments()
    device = choose_device()
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    network = build_network(args.classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=args.lr)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=configuration(args, device))
    loader = open_loader(args.train, args, shuffle=True)
    test_loader = open_loader(args.test, args, shuffle=False)
    pace = Pace(args)

    if args.resume:
        path, client_state = engine.load_checkpoint(str(args.checkpoint))
        if path is not None:
            loader.load_state_dict(client_state["loader"])
            say(f"resumed in epoch {loader.epoch} at step {loader.step}, on {dist.get_world_size()} ranks")
    for epoch in range(loader.epoch, args.epochs):
        loader.set_epoch(epoch)
        engine.train()
        total = torch.zeros(2, device=device)
        begin, num_steps = loader.step, len(loader)
        for step, (images, labels, _) in enumerate(loader, begin):
            group = group_of(step, begin, num_steps, args.accumulate)
            is_update = step == group[-1]
            engine.set_gradient_accumulation_boundary(is_update)
            loss = F.cross_entropy(scores(engine, images, device), labels.to(device, non_blocking=True))
            engine.backward(loss / len(group), scale_wrt_gas=False)
            engine.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
            pace.count(step + 1, is_update)
            if pace.saves:
                save(engine, loader, args)
            if pace.stops:
                say(f"stopped in epoch {epoch} after {step + 1} steps")
                dist.destroy_process_group()
                return
        dist.all_reduce(total)
        correct, count = evaluate(engine, test_loader, device)
        mean = float(total[0] / total[1])
        say(f"epoch {epoch}: loss {mean:.4f}, held-out accuracy {correct / count:.4f} ({correct} of {count})")
        if args.checkpoint:
            save(engine, loader, args)
    if args.zero < 3:
        say(f"parameters {param_hash(engine.module)}")
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Read the command line; DeepSpeed's launcher adds --local_rank to it."""
    parser = arguments("Train a small network with DeepSpeed.")
    parser.add_argument("--zero", type=int, default=1, choices=range(4), help="the stage of ZeRO")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make a step")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def configuration(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return DeepSpeed's configuration. Its global batch is micro batch x accumulation x ranks."""
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulate,
        "zero_optimization": {"stage": args.zero},
        "bf16": {"enabled": device.type == "cuda"},
    }


def scores(engine: Any, images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the network's output in float32; under bf16 DeepSpeed wants its input in bf16, too."""
    inputs = normalise(images.to(device, non_blocking=True))
    return engine(inputs.bfloat16() if device.type == "cuda" else inputs).float()


@torch.no_grad()
def evaluate(engine: Any, loader: wdsplit.Loader, device: torch.device) -> tuple[int, int]:
    """Return how many images the model gets right, and of how many: pads do not count."""
    engine.eval()
    sums = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels, pads in loader:
        real = ~pads.to(device, non_blocking=True)
        right = scores(engine, images, device).argmax(1) == labels.to(device, non_blocking=True)
        sums += torch.stack([(right & real).sum(), real.sum()])
    dist.all_reduce(sums)
    correct, count = sums.tolist()
    return correct, count


def save(engine: Any, loader: wdsplit.Loader, args: argparse.Namespace) -> None:
    """Save a checkpoint: all ranks call this, each writes its part of the optimizer."""
    engine.save_checkpoint(str(args.checkpoint), client_state={"loader": loader.state_dict()})


if __name__ == "__main__":
    main()
