"""Exercise 3: where does the time go, into the input or into the model, on 1 rank and on N?

    torchrun --standalone --nproc-per-node 2 examples/exercises/exercise3_pipeline.py

A step of the model takes --compute-ms, as that of a GPU would. Three inputs are measured, first on all ranks together,
then on one alone: a fast one; one that takes --slow-ms for each sample, as a decoder might; and the slow one with
more workers. Who waits for whom is what loader.statistics() and wdsplit.debug.diagnose tell.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from common import (
    NUM_CLASSES,
    NUM_FEATURES,
    dataset_path,
    finish,
    gathered,
    join_ranks,
    parser_of,
    say,
    wait_for_all,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wdsplit
import wdsplit.debug


@dataclass(frozen=True)
class Found:
    """What one rank has measured.

    Attributes:
        samples: Samples it was given.
        seconds: How long its steps have taken.
        wait_share: The part of the time in which it waited for batches, from 0 to 1.
        bottleneck: `loader` or `model`.
        told: The whole diagnosis.
    """

    samples: int
    seconds: float
    wait_share: float
    bottleneck: str
    told: str


def main() -> None:
    """Measure the inputs on all ranks, then on one."""
    args = parse_arguments()
    rank, world_size = join_ranks()
    inputs = (
        ("fast", 0.0, 1),
        ("slow", args.slow_ms, 1),
        (f"slow, {args.workers} workers", args.slow_ms, args.workers),
    )
    rates: dict[tuple[str, int], float] = {}
    advice = ""
    with dataset_path(args.data) as path:
        say(f"{args.steps} steps of {args.batch_size} samples a rank, {args.compute_ms:g} ms of compute each", "")
        say("input             ranks  samples/s  waiting for batches")
        for ranks in sorted({world_size, 1}, reverse=True):
            for name, slow_ms, workers in inputs:
                wait_for_all()
                own = None
                if rank < ranks:
                    dataset = wdsplit.Dataset(path, seed=args.seed, rank=rank, world_size=ranks)
                    own = measure(dataset, slow_ms, workers, args)
                found = [each for each in gathered(own) if each is not None]
                rates[name, ranks] = report(name, found)
                advice = found[0].told if name == "slow" else advice
    say("", *conclusions(rates, world_size), "", "diagnosis of the slow input on rank 0 of 1:", advice)
    finish("")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a step and rank (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each measurement (default: %(default)s)")
    parser.add_argument("--compute-ms", type=float, default=20, help="what a step takes (default: %(default)s)")
    parser.add_argument("--slow-ms", type=float, default=2, help="what a slow sample takes (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="workers that help the slow input (%(default)s)")
    return parser.parse_args()


def measure(dataset: wdsplit.Dataset, slow_ms: float, workers: int, args: argparse.Namespace) -> Found:
    """Train for some steps; return who has waited for whom."""
    stages = dataset.decode()
    if slow_ms:
        stages = stages.map(partial(take_time, seconds=slow_ms / 1000))
    loader = wdsplit.Loader(stages.to_tuple("npy", "cls"), args.batch_size, num_workers=workers, workers="thread")
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(NUM_FEATURES, NUM_CLASSES)
    if dataset.world().world_size > 1:
        model = DistributedDataParallel(model)
    begin = time.perf_counter()
    for features, labels in islice(loader, args.steps):
        loss = F.cross_entropy(model(features), labels)
        loss.backward()
        time.sleep(args.compute_ms / 1000)
    seconds = time.perf_counter() - begin
    statistics = loader.statistics()
    bottleneck = statistics.bottleneck if statistics.batches else ""
    return Found(statistics.samples, seconds, statistics.wait_share, bottleneck, wdsplit.debug.diagnose(loader))


def take_time(sample: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return a sample as it is, but late."""
    time.sleep(seconds)
    return sample


def report(name: str, found: list[Found]) -> float:
    """Print what the ranks of a measurement have found; return their samples a second."""
    rate = sum(each.samples for each in found) / max(each.seconds for each in found)
    waiting = max(found, key=lambda each: each.wait_share)
    bound = {"loader": "loader-bound", "model": "compute-bound", "": "nothing delivered"}[waiting.bottleneck]
    say(f"{name:16}  {len(found):5}  {rate:9,.0f}  {waiting.wait_share:4.0%} of the time: {bound}")
    return rate


def conclusions(rates: dict[tuple[str, int], float], world_size: int) -> list[str]:
    """Say what more ranks and more workers have brought."""
    fast, slow, helped = (name for name, ranks in rates if ranks == 1)
    lines = [f"on 1 rank, more workers make the slow input {rates[helped, 1] / rates[slow, 1]:.1f} times as fast"]
    lines += [
        f"{world_size} ranks give {rates[name, world_size] / rates[name, 1]:.2f} times the samples/s of 1 ({name})"
        for name in (fast, slow)
        if world_size > 1
    ]
    return lines


if __name__ == "__main__":
    main()
