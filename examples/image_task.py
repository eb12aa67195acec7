"""The task of the examples that show a training library: images from a dataset, and a small network.

What an example shows is in the example; here is what all of them need: arguments, when to save and to stop, a device, a
dataset, a network, and how many images it gets right.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import wdsplit

IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "webp"})
STEPS_BETWEEN_LOOKS = 10
"""How often a run looks whether it shall stop: ranks agree on it, which costs a message."""


class Parser(argparse.ArgumentParser):
    """A parser that refuses arguments which make no sense together."""

    def parse_args(self, *args: Any, **options: Any) -> Any:
        """Parse the command line."""
        parsed = super().parse_args(*args, **options)
        if (parsed.resume or parsed.stop_after) and not parsed.checkpoint:
            self.error("--resume and --stop-after need --checkpoint")
        return parsed


def arguments(description: str, batch: str = "images of a step, for each rank") -> Parser:
    """Return a parser of the arguments that all examples have; `batch` says what a batch is."""
    parser = Parser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    parser.add_argument("train", metavar="TRAIN", help="the training dataset, as `wdsplit convert` wrote it")
    parser.add_argument("test", metavar="TEST", help="the held-out dataset")
    parser.add_argument("--epochs", type=int, default=3, help="epochs in all, those before a resume included")
    parser.add_argument("--batch-size", type=int, default=32, help=batch)
    parser.add_argument("--workers", type=int, default=2, help="threads that read and decode, for each rank")
    parser.add_argument("--lr", type=float, default=0.003, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0, help="what the order and the first weights depend on")
    parser.add_argument("--size", type=int, default=32, help="images are resized to SIZE x SIZE")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--checkpoint", type=Path, help="save here: a place that all ranks see")
    parser.add_argument("--checkpoint-steps", type=int, default=1000, help="save every so many steps, and each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint, if there is one")
    parser.add_argument(
        "--stop-after", type=int, metavar="STEPS", help="save and stop after so many steps of this run, to try resuming"
    )
    return parser


class Pace:
    """When a run saves and when it stops, by the steps that it counts: a step is a batch.

    `--checkpoint-steps` counts those of an epoch, `--stop-after` those of this run. No checkpoint contains the
    gradients of an unfinished accumulation, so a run saves and stops at the end of one.

    Args:
        args: The arguments.
        stops_by_file: Save and stop soon after there is a file CHECKPOINT.stop, as batch scripts make it before their
            time is up. All ranks follow rank 0, in the group that `join_group` has made.

    Attributes:
        checkpoint: Where to save, if at all.
        saves: Whether to save now.
        stops: Whether to stop now.
    """

    def __init__(self, args: argparse.Namespace, *, stops_by_file: bool = False) -> None:
        self.checkpoint: Path | None = args.checkpoint
        self.saves = self.stops = False
        self._every, self._stop_after = args.checkpoint_steps, args.stop_after
        self._taken, self._is_due = 0, False
        self._stop_file, self._is_asked_to_stop = None, False
        if stops_by_file and self.checkpoint is not None:
            self._stop_file = self.checkpoint.with_name(self.checkpoint.name + ".stop")

    def count(self, step: int, is_update: bool = True) -> None:
        """Count a step.

        Args:
            step: Its number in the epoch, from 1.
            is_update: Whether the optimizer has taken its gradients, and all before.
        """
        self._taken += 1
        self._is_due |= step % self._every == 0
        if self._stop_file is not None and self._taken % STEPS_BETWEEN_LOOKS == 0:
            self._is_asked_to_stop |= rank_0_sees(self._stop_file)
        is_enough = bool(self._stop_after) and self._taken >= self._stop_after
        self.stops = is_update and (is_enough or self._is_asked_to_stop)
        self.saves = is_update and self.checkpoint is not None and (self._is_due or self.stops)
        self._is_due &= not is_update


def rank_0_sees(path: Path) -> bool:
    """Tell on all ranks whether rank 0 sees a file: others may see it sooner or later."""
    seen = torch.tensor([dist.get_rank() == 0 and path.exists()])
    dist.broadcast(seen, 0)
    return bool(seen)


def group_of(step: int, begin: int, num_steps: int, accumulate: int) -> range:
    """Return the steps, counted from 0, whose gradients make one step of the optimizer with those of a step.

    They are grouped from where the epoch began, or was resumed: the first group is whole, the last one what is left.
    """
    first = step - (step - begin) % accumulate
    return range(first, min(first + accumulate, num_steps))


def local_rank() -> int:
    """Return which process of this machine this one is: of several launchers the innermost knows it."""
    mpi = ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    names = ("LOCAL_RANK", *mpi, "SLURM_LOCALID")
    return int(next((os.environ[name] for name in names if name in os.environ), "0"))


def choose_device() -> torch.device:
    """Return the GPU of this process, else the CPU. A process that sees one GPU only takes that one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join_group() -> torch.device:
    """Join the group of all ranks, and return this rank's device.

    Ranks come from torchrun, or from `srun`; started with plain `python`, a process is the only rank.
    """
    device, world = choose_device(), wdsplit.detect_rank()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    alone = world.world_size == 1 and "MASTER_ADDR" not in os.environ
    meeting_point = "tcp://127.0.0.1:0" if alone else "env://"
    dist.init_process_group(backend, init_method=meeting_point, rank=world.rank, world_size=world.world_size)
    return device


def say(line: str) -> None:
    """Print a line, on one rank only."""
    if wdsplit.detect_rank().rank == 0:
        print(line, flush=True)


def open_loader(path: str, args: argparse.Namespace, *, shuffle: bool, group: Any = None) -> wdsplit.Loader:
    """Return this rank's batches: images (uint8, batch x 3 x size x size), labels, and which samples are pads."""
    dataset = open_dataset(path, args, shuffle=shuffle, group=group)
    return wdsplit.Loader(dataset, args.batch_size, **loading(args))


def open_dataset(path: str, args: argparse.Namespace, *, shuffle: bool, group: Any = None) -> wdsplit.Dataset:
    """Return samples of image, label and pad."""
    dataset = wdsplit.Dataset(path, seed=args.seed, shuffle=shuffle, process_group=group)
    image, label = find_fields(dataset)
    return dataset.decode(wdsplit.resized(args.size)).to_tuple(image, label, "__pad__")


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the loaders: decoding lets other threads run, so workers are threads."""
    return {"num_workers": args.workers, "workers": "thread", "pin_memory": True}


def find_fields(dataset: wdsplit.Dataset) -> tuple[str, str]:
    """Return the names of a dataset's image field and of its label field."""
    names = [field.name for field in dataset.manifest.fields]
    images = [name for name in names if name.rpartition(".")[2] in IMAGE_EXTENSIONS]
    labels = [name for name in names if name.rpartition(".")[2] == "cls"]
    if len(images) != 1 or len(labels) != 1:
        raise SystemExit(f"{dataset.source.url}: expected one image field and one cls field, found {', '.join(names)}")
    return images[0], labels[0]


def build_network(num_classes: int) -> nn.Sequential:
    """Return a small convolutional network of three blocks and a head, for images of any size of at least 8 x 8.

    It has no batch normalisation: a step then depends on the global batch alone, whatever part of it each rank holds.
    """

    def block(channels: int, wider: int) -> nn.Sequential:
        convolution = nn.Conv2d(channels, wider, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.GroupNorm(8, wider), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))
    return nn.Sequential(block(3, 32), block(32, 64), block(64, 128), head)


def normalise(images: Tensor) -> Tensor:
    """Turn pixels, uint8 of any shape, into float32 of about -2 to 2."""
    return images.float() / 63.75 - 2


@torch.no_grad()
def count_right(model: nn.Module, loader: Any, device: torch.device) -> Tensor:
    """Return how many images of this rank the model gets right, and of how many: int64 of shape (2,), without pads."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in loader:
        images, labels, pads = (values.to(device, non_blocking=True) for values in batch)
        right = model(normalise(images)).argmax(1) == labels
        sums += torch.stack([(right & ~pads).sum(), (~pads).sum()])
    return sums
