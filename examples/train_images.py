"""Train a small network on any image classification dataset that `wdsplit convert` made.

    torchrun --standalone --nproc-per-node 2 examples/train_images.py TRAIN TEST --epochs 2
    python examples/train_images.py TRAIN TEST --epochs 2          # one process does as well

What to copy: `open_loader` (a dataset and its loader), `train_epoch` (every rank has len(loader) steps), `evaluate`
(each image counts once, because pads are flagged) and `save` and `load` (the loader's state belongs into the
checkpoint). With --checkpoint FILE a run that was stopped goes on where it was, on any number of processes.

The `Audit` at the end is a demonstration: it keeps the keys of all that the ranks receive, asks at the end of each
epoch whether that was every sample exactly once, and fails the run if not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import wdsplit

IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"})
PEAK = 0.25
"""The part of the training after which the learning rate is at its highest."""


def main() -> None:
    """Train, evaluate after each epoch, and audit what was received."""
    args = parse_arguments()
    device = join_group()
    torch.manual_seed(args.seed)

    keys, num_classes = survey(args.train, args.cache_dir)
    train_loader = open_loader(args.train, args, shuffle=True)
    test_loader = open_loader(args.test, args, shuffle=False)
    model = DistributedDataParallel(build_network(args.classes or num_classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    training = Training(model, optimizer, train_loader, Audit(keys))
    say(f"{len(keys):,} images, {len(train_loader):,} steps an epoch; ranks: {dist.get_world_size()}, on {device.type}")

    if args.checkpoint and args.checkpoint.exists():
        training.load(args.checkpoint, device)
        say(f"resumed from {args.checkpoint}: epoch {train_loader.epoch}, position {training.position:,}")
    for epoch in range(train_loader.epoch, args.epochs):
        train_loader.set_epoch(epoch)
        loss, images_per_s = train_epoch(training, epoch, args, device)
        training.audit.close_epoch(epoch)
        if args.checkpoint:
            training.save(args.checkpoint)
        correct, count = evaluate(model, test_loader, device)
        say(
            f"epoch {epoch}: loss {loss:.4f}, held-out accuracy {100 * correct / count:.2f} % "
            f"({correct:,} of {count:,}), {images_per_s:,.0f} images/s"
        )

    is_exact = training.audit.report()
    dist.destroy_process_group()
    if not is_exact:
        raise SystemExit("the audit failed: samples were repeated or missing, or the ranks' batches differ")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train a small network on an image classification dataset, and audit what the ranks received.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("train", metavar="TRAIN", help="the training dataset, as `wdsplit convert` wrote it")
    parser.add_argument("test", metavar="TEST", help="the held-out dataset")
    parser.add_argument("--epochs", type=int, default=2, help="epochs in all, those before a resume included")
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step, over all ranks together")
    parser.add_argument("--workers", type=int, default=2, help="worker processes that read, for each rank")
    parser.add_argument("--lr", type=float, default=0.005, help="the highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="AdamW's weight decay")
    parser.add_argument("--seed", type=int, default=0, help="what the order and the first weights depend on")
    parser.add_argument("--size", type=int, help="resize images to SIZE x SIZE; needed if they differ in size")
    parser.add_argument("--classes", type=int, help="number of classes, if not all are in the training dataset")
    parser.add_argument("--cache-dir", help="keep the shards of a remote dataset in this folder of the node's own disk")
    parser.add_argument("--augment", action="store_true", help="flip and shift the training images at random")
    parser.add_argument("--checkpoint", type=Path, help="save here, and resume from here if it exists")
    parser.add_argument("--checkpoint-steps", type=int, help="save every so many steps, besides each epoch's end")
    return parser.parse_args()


def join_group() -> torch.device:
    """Join the group of all ranks, and return this rank's device: a GPU if each rank of this machine has its own."""
    local_rank, local_ranks = (int(os.environ.get(name, n)) for name, n in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    device = torch.device("cuda", local_rank) if torch.cuda.device_count() >= local_ranks else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    return device


def say(line: str) -> None:
    """Print a line, on one rank only."""
    if dist.get_rank() == 0:
        print(line, flush=True)


# The data


def open_loader(path: str, args: argparse.Namespace, shuffle: bool) -> wdsplit.Loader:
    """Open a dataset and return the loader of this rank's batches: images, labels, keys, positions and pad flags."""
    batch_size, rest = divmod(args.batch_size, dist.get_world_size())
    if rest:
        raise SystemExit(f"--batch-size {args.batch_size} cannot be shared by {dist.get_world_size()} ranks equally")
    dataset = wdsplit.Dataset(path, seed=args.seed, shuffle=shuffle, cache_dir=args.cache_dir)
    image, label = find_fields(dataset)
    dataset = (
        dataset.decode("pil")
        .map_dict(**{image: partial(to_pixels, size=args.size)})
        .to_tuple(image, label, "__key__", "__position__", "__pad__")
    )
    return wdsplit.Loader(dataset, batch_size, num_workers=args.workers, pin_memory=True, persistent_workers=True)


def find_fields(dataset: wdsplit.Dataset) -> tuple[str, str]:
    """Return the names of a dataset's image field and of its label field."""
    names = [field.name for field in dataset.manifest.fields]
    images = [name for name in names if name.rpartition(".")[2] in IMAGE_EXTENSIONS]
    labels = [name for name in names if name.rpartition(".")[2] == "cls"]
    if len(images) != 1 or len(labels) != 1:
        raise SystemExit(
            f"{dataset.source.url}: expected one image field and one cls field, found {', '.join(names)}; "
            "choose them when converting, with --map jpg=COLUMN --map cls=COLUMN"
        )
    return images[0], labels[0]


def to_pixels(image: Image.Image, size: int | None) -> npt.NDArray[np.uint8]:
    """Return an image as uint8 of shape (height, width, 3)."""
    if size is not None:
        image = image.resize((size, size))
    return np.array(image.convert("RGB"))


def survey(path: str, cache_dir: str | None) -> tuple[frozenset[str], int]:
    """Return all keys of a dataset and the number of its classes, in one pass over it that decodes no image."""
    dataset = wdsplit.Dataset(path, shuffle=False, rank=0, world_size=1, cache_dir=cache_dir)
    _, label = find_fields(dataset)
    labels = {sample["__key__"]: int(bytes(sample[label])) for sample in dataset if not sample["__pad__"]}
    return frozenset(labels), 1 + max(labels.values())


# The training


def build_network(num_classes: int) -> nn.Module:
    """Return a small convolutional network for images of any size.

    It has no batch normalisation: a step then depends on the global batch alone, whatever part of it each rank holds.
    Of a table that is sorted by class, a rank's part may lack some classes (or take SyncBatchNorm, on GPUs).
    """

    def block(channels: int, wider: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, wider, 3, padding=1, bias=False), nn.GroupNorm(8, wider), nn.ReLU(inplace=True)]

    halve = nn.MaxPool2d(2, ceil_mode=True)
    layers = [*block(3, 32), halve, *block(32, 64), halve, *block(64, 128), *block(128, 128)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


@dataclass
class Training:
    """What a checkpoint holds."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    loader: wdsplit.Loader
    audit: Audit

    @property
    def position(self) -> int:
        """How far the loader has got in its epoch."""
        return int(self.loader.state_dict()["position"])

    def save(self, path: Path) -> None:
        """Save a checkpoint whole or not at all. All ranks call this; one writes."""
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "audit": self.audit.state_dict(),
        }
        if dist.get_rank() == 0:
            temporary = path.with_name(path.name + ".tmp")
            torch.save(state, temporary)
            temporary.replace(path)

    def load(self, path: Path, device: torch.device) -> None:
        """Go to where a checkpoint was saved."""
        state = torch.load(path, map_location=device, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.audit.load_state_dict(state["audit"])


def train_epoch(training: Training, epoch: int, args: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """Train for one epoch, or for what is left of it; return the mean loss and the images a second of all ranks."""
    model, loader = training.model, training.loader
    model.train()
    first, num_steps, num_trained = loader.step, len(loader), 0
    total_loss, begin = torch.zeros((), device=device), time.perf_counter()
    for step, (images, labels, keys, positions, pads) in enumerate(loader, first):
        inputs = normalise(images.to(device, non_blocking=True), args.augment)
        loss = F.cross_entropy(model(inputs), labels.to(device, non_blocking=True))
        training.optimizer.zero_grad()
        loss.backward()
        set_learning_rate(training.optimizer, args.lr, (epoch + (step + 0.5) / num_steps) / args.epochs)
        training.optimizer.step()

        total_loss += loss.detach()
        num_trained += 1
        training.audit.add(keys, positions.tolist(), pads.tolist())
        due = args.checkpoint_steps and (step + 1) % args.checkpoint_steps == 0 and step + 1 < num_steps
        if args.checkpoint and due:
            training.save(args.checkpoint)
    dist.all_reduce(total_loss)
    mean_loss = float(total_loss) / (num_trained * dist.get_world_size())
    return mean_loss, num_trained * args.batch_size / (time.perf_counter() - begin)


@torch.no_grad()
def evaluate(model: nn.Module, loader: wdsplit.Loader, device: torch.device) -> tuple[int, int]:
    """Return how many images the model gets right, and of how many: each counts once, however many ranks there are."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels, _, _, pads in loader:
        outputs = model(normalise(images.to(device, non_blocking=True)))
        real = ~pads.to(device)
        right = (outputs.argmax(1) == labels.to(device)) & real
        sums += torch.stack([right.sum(), real.sum()])
    dist.all_reduce(sums)
    correct, count = sums.tolist()
    if count != loader.dataset.manifest.num_samples:
        raise SystemExit(f"{count:,} images were evaluated, of {loader.dataset.manifest.num_samples:,}")
    return correct, count


def normalise(images: Tensor, augment: bool = False) -> Tensor:
    """Turn images into what the network takes.

    Args:
        images: uint8 of shape (batch, height, width, 3).
        augment: Flip and shift each image at random.

    Returns:
        float32 of shape (batch, 3, height, width), about -2 to 2.
    """
    if augment:
        flipped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
        images = shift(torch.where(flipped, images.flip(2), images))
    return images.permute(0, 3, 1, 2).float() / 63.75 - 2


def shift(images: Tensor) -> Tensor:
    """Shift each image at random, by up to an eighth of its size; what comes in repeats the edge."""
    count, height, width, _ = images.shape
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    down = torch.randint(-(height // 8), height // 8 + 1, (count, 1), device=images.device)
    right = torch.randint(-(width // 8), width // 8 + 1, (count, 1), device=images.device)
    rows, columns = (row - down).clamp(0, height - 1), (column - right).clamp(0, width - 1)
    return images[torch.arange(count, device=images.device).view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]


def set_learning_rate(optimizer: torch.optim.Optimizer, highest: float, done: float) -> None:
    """Set the learning rate of one cycle, up to the highest and down to zero, by the part of the training done."""
    for group in optimizer.param_groups:
        group["lr"] = highest * min(done / PEAK, (1 - done) / (1 - PEAK))


# The audit


@dataclass
class Received:
    """What a rank has received in an epoch, since the epoch began or the run resumed in it; pads have no key here."""

    keys: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    num_batches: int = 0


@dataclass(frozen=True)
class Earlier:
    """What all ranks had received in an epoch when a checkpoint was saved: how many samples, and which, as a sum."""

    num_samples: int = 0
    checksum: int = 0

    def plus(self, keys: Iterable[str]) -> Earlier:
        """Return what it is with more keys: the checksum is the sum of their 64-bit hashes, in any order."""
        hashes = [int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") for key in keys]
        return Earlier(self.num_samples + len(hashes), (self.checksum + sum(hashes)) % 2**64)


@dataclass(frozen=True)
class Row:
    """What the audit of one epoch found."""

    epoch: int
    num_samples: int
    seen: int
    repeated: int
    missing: int
    pads: int
    batches: list[int]
    resumed_after: int

    @property
    def is_exact(self) -> bool:
        """Whether every sample was received exactly once, and as many batches by each rank."""
        return self.seen == self.num_samples and not self.repeated and not self.missing and len(set(self.batches)) == 1


class Audit:
    """Keeps what the ranks receive, and asks at the end of each epoch whether that was every sample exactly once.

    All ranks call `close_epoch` and `state_dict` together; only rank 0 gets to know what the others have received.

    Args:
        all_keys: The keys of the dataset.
    """

    def __init__(self, all_keys: frozenset[str]) -> None:
        self._all_keys = all_keys
        self._received = Received()
        self._earlier = Earlier()
        self._rows: list[Row] = []

    def add(self, keys: Sequence[str], positions: Sequence[int], pads: Sequence[bool]) -> None:
        """Take note of a batch."""
        self._received.keys += [key for key, pad in zip(keys, pads, strict=True) if not pad]
        self._received.positions += positions
        self._received.num_batches += 1

    def close_epoch(self, epoch: int) -> None:
        """Audit an epoch that has come to its end, and begin the next one."""
        if everyone := self._gather():
            self._rows.append(audit_epoch(epoch, self._all_keys, everyone, self._earlier))
        self._received, self._earlier = Received(), Earlier()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: the audits so far, and of the open epoch a count and a checksum."""
        earlier = self._earlier.plus(key for received in self._gather() for key in received.keys)
        return {"earlier": asdict(earlier), "rows": [asdict(row) for row in self._rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._earlier = Earlier(**state["earlier"])
        self._rows = [Row(**row) for row in state["rows"]]

    def _gather(self) -> list[Received]:
        """Return what each rank has received, on rank 0; nothing on the others."""
        everyone = [Received()] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self._received, everyone)
        return everyone or []

    def report(self) -> bool:
        """Print what was found; return whether all epochs were exact."""
        if dist.get_rank() != 0:
            return True
        print("\nExactly-once audit of what the ranks really received")
        print("  epoch  samples in dataset     seen  repeated  missing  pads  batches of each rank")
        for row in self._rows:
            print(
                f"  {row.epoch:5}  {row.num_samples:18,}  {row.seen:7,}  {row.repeated:8,}  {row.missing:7,}  "
                f"{row.pads:4,}  {' '.join(map(str, row.batches))}"
                + (f"  (resumed after {row.resumed_after:,} samples, see below)" if row.resumed_after else "")
            )
        if any(row.resumed_after for row in self._rows):
            print(
                "  Of the samples before a resume, the checkpoint keeps the number and the sum of the hashes of their "
                "keys.\n  If they are, by both, the very ones that were not received after it, they count as seen, "
                "else as missing."
            )
        exact = all(row.is_exact for row in self._rows)
        print("  every sample exactly once" if exact else "  NOT every sample exactly once", flush=True)
        return exact


def audit_epoch(epoch: int, all_keys: frozenset[str], everyone: Sequence[Received], earlier: Earlier) -> Row:
    """Compare what all ranks have received in an epoch with the dataset. Pure (no I/O).

    Args:
        epoch: The epoch.
        all_keys: The keys of the dataset.
        everyone: What each rank has received.
        earlier: What had been received when the run resumed in this epoch.
    """
    times = Counter(key for received in everyone for key in received.keys)
    lacking = all_keys - times.keys()
    before = earlier.num_samples if Earlier().plus(lacking) == earlier else 0
    num_received = sum(len(received.positions) for received in everyone)
    return Row(
        epoch=epoch,
        num_samples=len(all_keys),
        seen=len(times) + before,
        repeated=sum(count > 1 for count in times.values()),
        missing=len(lacking) - before,
        pads=num_received - times.total(),
        batches=[received.num_batches for received in everyone],
        resumed_after=earlier.num_samples,
    )


if __name__ == "__main__":
    main()
