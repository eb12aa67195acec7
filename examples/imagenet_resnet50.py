r"""Train ResNet-50 on ImageNet by the recipe of "Accurate, Large Minibatch SGD" (Goyal et al., 2017).

    wdsplit convert 'imagenet/train-*.parquet' data/train --world-size 8 --workers 8
    wdsplit convert 'imagenet/validation-*.parquet' data/val --world-size 8 --workers 8
    torchrun --standalone --nproc-per-node 8 examples/imagenet_resnet50.py data/train data/val \
        --checkpoint run.pt --resume

    torchrun --standalone --nproc-per-node 2 examples/imagenet_resnet50.py TRAIN VAL --small    # any images, on CPU

- The learning rate is 0.1 for a global batch of 256 and grows with it; it warms up for five epochs, from that of one
  rank, then falls as a cosine. It is a function of epoch and step, so there is no scheduler to save.
- `--accumulate N` makes one step of the gradients of N batches; ranks exchange them in the last one only.
- Images are decoded and augmented by threads (`--workers`), or processes (`--worker-kind process`). What augmentation
  draws depends on the seed, the epoch and the image's position: the same on any number of ranks, and after a resume.
- Loss and accuracy are summed over the ranks. Each validation image counts once, whatever the number of ranks.
- Rank 0 saves checkpoints, the others wait. With `--resume` a run goes on in the middle of an epoch.
- `--audit` fails the run if an image came twice in an epoch, or not at all.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from image_task import Pace, arguments, find_fields, group_of, join_group, say
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import wdsplit
from wdsplit.debug import audit, param_hash

MEAN = torch.tensor([0.485, 0.456, 0.406]).mul(255)
STD = torch.tensor([0.229, 0.224, 0.225]).mul(255)
REFERENCE_BATCH = 256
"""The global batch that --lr is for."""


@dataclass(frozen=True)
class Recipe:
    """What --small changes besides the defaults of arguments.

    Attributes:
        depths: Bottleneck blocks of the four stages: those of ResNet-50, or one each.
        width: Channels of the first stage.
        least_area: The smallest part of an image that a random crop takes.
        flips: Whether images are mirrored at random: digits must not be.
        low_resolution: Whether the stem keeps the resolution, for images of some tens of pixels.
    """

    depths: tuple[int, int, int, int] = (3, 4, 6, 3)
    width: int = 64
    least_area: float = 0.08
    flips: bool = True
    low_resolution: bool = False


SMALL = Recipe(depths=(1, 1, 1, 1), width=8, least_area=0.7, flips=False, low_resolution=True)
SMALL_ARGUMENTS = {"size": 16, "classes": 10, "batch_size": 16, "epochs": 3, "warmup_epochs": 1.0, "lr": 0.4}


def main() -> None:
    """Train, and validate after each epoch."""
    args = parse_arguments()
    recipe = SMALL if args.small else Recipe()
    device = join_group()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    loader = open_training(args, recipe)
    val_loader = open_validation(args)
    network = build_resnet(recipe, args.classes).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(parameter_groups(network, args.weight_decay), lr=0.0, momentum=0.9, nesterov=True)
    training = Training(
        DistributedDataParallel(network), optimizer, loader, args, device, Pace(args, stops_by_file=True)
    )
    global_batch = args.batch_size * dist.get_world_size() * args.accumulate
    say(f"global batch {global_batch}, highest learning rate {args.lr * global_batch / REFERENCE_BATCH:g}")

    if args.resume and args.checkpoint.exists():
        training.load(args.checkpoint)
        say(f"resumed in epoch {loader.epoch} at step {loader.step}, on {dist.get_world_size()} ranks")
    with contextlib.suppress(StoppedError), audit(loader) if args.audit else contextlib.nullcontext(loader) as batches:
        for epoch in range(loader.epoch, args.epochs):
            loader.set_epoch(epoch)
            loss, accuracy, images_per_s = training.train_epoch(batches, epoch)
            correct, count = training.evaluate(val_loader)
            say(
                f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}, {images_per_s:,.0f} images/s; "
                f"held-out accuracy {correct / count:.4f} ({correct:,} of {count:,})"
            )
            if args.audit:
                say(str(batches.epochs[-1]))
            if args.checkpoint:
                training.save(args.checkpoint)
    say(f"parameters {param_hash(network)}")
    dist.destroy_process_group()


class StoppedError(Exception):
    """The steps of --stop-after are done."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = arguments("Train ResNet-50 on ImageNet, or a small ResNet on anything.")
    parser.set_defaults(epochs=90, batch_size=256, workers=8, lr=0.1, size=224, classes=1000)
    parser.add_argument("--small", action="store_true", help="a small ResNet on small images: defaults for a CPU")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make a step")
    parser.add_argument("--warmup-epochs", type=float, default=5.0, help="epochs in which the learning rate rises")
    parser.add_argument("--weight-decay", type=float, default=5e-5, help="of convolutions and the last layer")
    parser.add_argument("--smoothing", type=float, default=0.1, help="of labels")
    parser.add_argument("--worker-kind", choices=("thread", "process"), default="thread", help="what workers are")
    parser.add_argument("--prefetch-factor", type=int, default=2, help="batches that each worker works ahead")
    parser.add_argument("--cache-dir", help="keep the shards of a remote dataset in this folder of the node's own disk")
    parser.add_argument(
        "--cache-size", help="what it may take, such as 500GB; by default a tenth of the disk stays free"
    )
    parser.add_argument("--audit", action="store_true", help="check that each image comes once an epoch")
    if parser.parse_known_args()[0].small:
        parser.set_defaults(**SMALL_ARGUMENTS)
    return parser.parse_args()


# The data


def open_training(args: argparse.Namespace, recipe: Recipe) -> wdsplit.Loader:
    """Return batches of images (uint8, batch x 3 x size x size), labels and what tells the samples for the audit."""
    dataset = wdsplit.Dataset(args.train, seed=args.seed, cache_dir=args.cache_dir, cache_size=args.cache_size)
    image, label = find_fields(dataset)
    crop = wdsplit.resized(args.size, crop="random", flip=recipe.flips, scale=(recipe.least_area, 1.0))
    dataset = dataset.decode(crop)
    return wdsplit.Loader(dataset.to_tuple(image, label, "__key__", "__position__", "__pad__"), **loading(args))


def open_validation(args: argparse.Namespace) -> wdsplit.Loader:
    """Return batches of images, labels and pads: the middle of each image, in the order of the dataset."""
    dataset = wdsplit.Dataset(args.test, shuffle=False, cache_dir=args.cache_dir, cache_size=args.cache_size)
    image, label = find_fields(dataset)
    shorter_side = round(args.size * 256 / 224)
    dataset = dataset.decode(wdsplit.resized(shorter_side, crop="center"))
    dataset = dataset.map_dict(**{image: partial(middle, size=args.size)})
    return wdsplit.Loader(dataset.to_tuple(image, label, "__pad__"), **loading(args))


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of both loaders."""
    return {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "workers": args.worker_kind,
        "prefetch_factor": args.prefetch_factor,
        "persistent_workers": True,
        "pin_memory": True,
    }


def middle(image: Tensor, *, size: int) -> Tensor:
    """Return the middle of an image of shape (3, height, width)."""
    top, left = (image.shape[1] - size) // 2, (image.shape[2] - size) // 2
    return image[:, top : top + size, left : left + size]


def normalise(images: Tensor) -> Tensor:
    """Turn pixels, uint8 of shape (batch, 3, height, width), into float32 of about -2 to 2."""
    mean, std = (values.to(images.device).view(3, 1, 1) for values in (MEAN, STD))
    return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


# The network


class Bottleneck(nn.Module):
    """Three convolutions and the way around them; the stride is that of the 3 x 3 one (ResNet "v1.5")."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wider = 4 * width
        self.convolutions = nn.Sequential(
            *convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, wider, 1),
        )
        is_same = channels == wider and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*convolution(channels, wider, 1, stride))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output, of a quarter of the pixels where the stride is 2."""
        return F.relu(self.convolutions(inputs) + self.shortcut(inputs))


def convolution(channels: int, wider: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and the batch normalisation after it."""
    layer = nn.Conv2d(channels, wider, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(wider)]


def build_resnet(recipe: Recipe, num_classes: int) -> nn.Module:
    """Return a ResNet of bottleneck blocks."""
    width, low_resolution = recipe.width, recipe.low_resolution
    stem = [*convolution(3, width, 3 if low_resolution else 7, 1 if low_resolution else 2), nn.ReLU(inplace=True)]
    layers = stem if low_resolution else [*stem, nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, depth in enumerate(recipe.depths):
        for block in range(depth):
            layers.append(Bottleneck(channels, width * 2**stage, 2 if stage and not block else 1))
            channels = 4 * width * 2**stage
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
    for block in network:
        if isinstance(block, Bottleneck):
            nn.init.zeros_(block.convolutions[-1].weight)
    return network


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters in two groups: biases and those of batch normalisation do not decay."""
    decaying = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


# The training


def learning_rate(done: float, args: argparse.Namespace, world_size: int) -> float:
    """Return the learning rate by the epochs done. Pure (no I/O).

    It rises in a line from that of one rank without accumulation to its highest, which is proportional to the global
    batch, then falls as a cosine to zero.
    """
    alone = args.lr * args.batch_size / REFERENCE_BATCH
    highest = alone * world_size * args.accumulate
    if done < args.warmup_epochs:
        return alone + (highest - alone) * done / args.warmup_epochs
    left = (args.epochs - done) / max(args.epochs - args.warmup_epochs, 1e-9)
    return highest * 0.5 * (1 - math.cos(math.pi * left))


@dataclass
class Training:
    """What a checkpoint holds, and what is done with it."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    loader: wdsplit.Loader
    args: argparse.Namespace
    device: torch.device
    pace: Pace

    def train_epoch(self, batches: Any, epoch: int) -> tuple[float, float, float]:
        """Train for an epoch, or for what is left of it; return loss, accuracy and images/s of all ranks."""
        self.model.train()
        args, begin, num_steps = self.args, self.loader.step, len(self.loader)
        sums, begun_at = torch.zeros(3, dtype=torch.float64, device=self.device), time.perf_counter()
        for step, (images, labels, *_) in enumerate(batches, begin):
            group = group_of(step, begin, num_steps, args.accumulate)
            is_update = step == group[-1]
            with contextlib.nullcontext() if is_update else self.model.no_sync():
                sums += self.backward(images, labels, 1 / len(group))
            if is_update:
                for parameters in self.optimizer.param_groups:
                    parameters["lr"] = learning_rate(epoch + group[0] / num_steps, args, dist.get_world_size())
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            self.pace.count(step + 1, is_update)
            if self.pace.saves:
                self.save(args.checkpoint)
            if self.pace.stops:
                say(f"stopped in epoch {epoch} after {step + 1} steps")
                raise StoppedError
        dist.all_reduce(sums)
        loss, correct, count = sums.tolist()
        return loss / count, correct / count, count / (time.perf_counter() - begun_at)

    def outputs_of(self, images: Tensor) -> Tensor:
        """Return the network's output, computed in bfloat16 on a GPU."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.model(normalise(images.to(self.device, non_blocking=True))).float()

    def backward(self, images: Tensor, labels: Tensor, weight: float) -> Tensor:
        """Add the gradients of a batch; return the sum of its losses, how many are right, and how many there are."""
        outputs, labels = self.outputs_of(images), labels.to(self.device, non_blocking=True)
        loss = F.cross_entropy(outputs, labels, label_smoothing=self.args.smoothing)
        (loss * weight).backward()
        count = torch.tensor(len(labels), dtype=torch.float64, device=self.device)
        return torch.stack([loss.detach() * count, (outputs.argmax(1) == labels).sum(), count])

    @torch.no_grad()
    def evaluate(self, loader: wdsplit.Loader) -> tuple[int, int]:
        """Return how many images the model gets right, and of how many: pads do not count.

        All ranks have as many batches, so they may call the model, which first takes the statistics of batch
        normalisation from rank 0: what is evaluated is what is saved.
        """
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.int64, device=self.device)
        for images, labels, pads in loader:
            labels, real = labels.to(self.device, non_blocking=True), ~pads.to(self.device, non_blocking=True)
            sums += torch.stack([((self.outputs_of(images).argmax(1) == labels) & real).sum(), real.sum()])
        dist.all_reduce(sums)
        correct, count = sums.tolist()
        return correct, count

    def save(self, path: Path) -> None:
        """Save a checkpoint, whole or not at all. Rank 0 writes, for all ranks; the others wait until it is there."""
        if dist.get_rank() == 0:
            parts = {"model": self.model.module, "optimizer": self.optimizer, "loader": self.loader}
            temporary = path.with_name(path.name + ".tmp")
            torch.save({name: part.state_dict() for name, part in parts.items()}, temporary)
            temporary.replace(path)
        dist.barrier()

    def load(self, path: Path) -> None:
        """Go to where a checkpoint was saved, on any number of ranks."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])


if __name__ == "__main__":
    main()
