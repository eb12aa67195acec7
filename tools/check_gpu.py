"""Check wdsplit's loaders on the GPUs of this machine, and measure how long a ResNet-50 waits for its input.

All GPUs train together, a rank each, under DDP with nccl and in bf16: each sample must come once, batches must be those
of the CPU, a resume must go on where it was, and parameters must stay equal. Where Lightning is installed, its FSDP
strategy trains too. Then each kind of workers feeds a ResNet-50 with JPEGs of 500 x 375, resized to 224; the share that
waits is what a step takes longer than one whose batch is on the GPU already. Prints Markdown tables.

Without a GPU it checks what a CPU can, on two ranks with gloo, says what it has skipped, and measures nothing.

Example: python -m tools.check_gpu --output /dev/shm --workers 12
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import wdsplit
from tools.bench import core, data
from wdsplit.debug import check_same_parameters

HAS_GPU = torch.cuda.is_available()
PIXELS = 224 if HAS_GPU else 64
WARM_UP = 5 if HAS_GPU else 1
SKIPPED = "nccl; pinned memory and copies on a stream of their own; Lightning's FSDP; the share of a step that waits"
Result = dict[str, Any]


# A ResNet-50 (He et al., 2015), whose blocks reduce in their 3 x 3 convolutions


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, 4 * width, 1),
        )
        is_same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*convolution(inputs, 4 * width, 1, stride))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> Iterator[nn.Module]:
    yield nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    yield nn.BatchNorm2d(outputs)


def resnet50() -> nn.Sequential:
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for number in range(blocks):
            width = 64 * 2**stage
            layers.append(Block(inputs, width, 2 if stage and not number else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


# A rank


def open_loader(path: str, batch: int, **options: Any) -> wdsplit.Loader:
    dataset = wdsplit.Dataset(path, seed=0).decode(wdsplit.resized(PIXELS))
    return wdsplit.Loader(dataset.to_tuple("jpg", "cls", "__position__", "__pad__"), batch, **options)


class Training:
    """A model on this rank's device, trained in bf16."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        model = resnet50().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device, self.model = device, DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self, images: Tensor, labels: Tensor, *_: Any) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = cross_entropy(self.model(images.float().div(255)), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def run_rank(path: str, batch: int, workers: int, steps: int, out: str) -> None:
    """Check, and measure where there is a GPU; rank 0 writes the rows of both tables."""
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if HAS_GPU else torch.device("cpu")
    if HAS_GPU:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if HAS_GPU else "gloo")
    training, rows = Training(device), []
    kinds: dict[str, Result] = {
        f"{workers} threads": {"num_workers": workers, "workers": "thread"},
        f"{workers} processes": {"num_workers": workers, "persistent_workers": True},
    }
    checks = [(name, check_loader(training, path, batch, options)) for name, options in kinds.items()]
    checks.append(("DDP, bf16", check_training(training, path, batch)))
    if HAS_GPU:
        alone = seconds_a_step(training, itertools.repeat(next(iter(endless(path, batch, device, {})))), steps)
        for name, options in kinds.items():
            for ahead in (False, True):
                given = endless(path, batch, device, options, ahead)
                fed = seconds_a_step(training, given, steps)
                cells = (f"{batch / fed:,.0f}", f"{fed * 1000:.1f}", f"{alone * 1000:.1f}", f"{1 - alone / fed:.1%}")
                rows.append((f"{name}, {'to_device' if ahead else '.to(device, non_blocking=True)'}", *cells))
    if rank == 0:
        Path(out).write_text(json.dumps({"checks": checks, "rows": rows}))
    distributed.destroy_process_group()


def check_loader(training: Training, path: str, batch: int, options: Result) -> str:
    """Check that an epoch has each sample once, in the batches of the CPU, and resumes in its middle."""
    loader, device = wdsplit.to_device(open_loader(path, batch, **options), training.device), training.device
    counts = torch.zeros(loader.dataset.source.num_samples, dtype=torch.int64, device=device)
    whole = []
    for mine, plain in zip(loader, open_loader(path, batch, pin_memory=True), strict=True):
        pairs = list(zip(mine, plain, strict=True))
        assert all(tensor.device == device and other.is_pinned() == HAS_GPU for tensor, other in pairs)
        assert all(torch.equal(tensor.cpu(), other) for tensor, other in pairs)
        counts[mine[2][~mine[3]]] += 1
        whole.append(mine[2].tolist())
    distributed.all_reduce(counts)
    assert bool((counts == 1).all())
    loader.set_epoch(0)
    half = len(whole) // 2
    for _ in itertools.islice(loader, half):
        pass
    resumed = wdsplit.to_device(open_loader(path, batch, **options), device)
    resumed.load_state_dict(loader.state_dict())
    assert [positions.tolist() for _, _, positions, _ in resumed] == whole[half:]
    return f"{len(counts):,} samples once, {len(whole)} batches as on the CPU, resumed after {half}"


def check_training(training: Training, path: str, batch: int) -> str:
    """Check that a few steps of training leave the ranks with equal parameters."""
    loader = wdsplit.to_device(open_loader(path, batch), training.device)
    losses = [float(training.step(*each)) for each in itertools.islice(loader, WARM_UP)]
    assert all(0 < loss < 100 for loss in losses), losses
    check_same_parameters(training.model.module)
    return f"{distributed.get_backend()}, {len(losses)} steps: parameters are equal on all ranks"


# Measuring


def endless(path: str, batch: int, device: torch.device, options: Result, ahead: bool = True) -> Iterator[Any]:
    """Give batches on the device, epoch after epoch, without a shorter last one."""
    loader = open_loader(path, batch, **options, pin_memory=True)
    if ahead:
        loader = wdsplit.to_device(loader, device)
    while True:
        for each in itertools.islice(loader, max(1, len(loader) - 1)):
            yield each if ahead else [tensor.to(device, non_blocking=True) for tensor in each]


def seconds_a_step(training: Training, batches: Iterator[Any], steps: int) -> float:
    """Return the seconds of a step of training, on all ranks at the same time."""
    for each in itertools.islice(batches, WARM_UP):
        training.step(*each)
    distributed.barrier()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for each in itertools.islice(batches, steps):
        training.step(*each)
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


# Lightning


def run_fsdp(path: str, batch: int) -> None:
    """Train for an epoch with Lightning's FSDP strategy, on the ranks of torchrun."""
    import lightning.pytorch as pl

    from wdsplit.integrations.lightning import WdsplitDataModule

    class Module(pl.LightningModule):
        def configure_model(self) -> None:
            self.model = resnet50()

        def training_step(self, batch: Any, _: int) -> Tensor:
            return cross_entropy(self.model(batch[0].float().div(255)), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    train = open_loader(path, batch).dataset
    quiet: Result = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    how: Result = {"accelerator": "gpu", "strategy": "fsdp", "precision": "bf16-mixed", "max_epochs": 1, **quiet}
    trainer = pl.Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), **how)
    module = WdsplitDataModule(train, batch_size=batch, num_workers=2, workers="thread")
    trainer.fit(Module(), module)
    assert trainer.global_step == len(module.loaders["train"])


# The whole


def launch(ranks: int, *words: object) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tools.check_gpu", *map(str, words)]
    subprocess.run(command, check=True, cwd=core.ROOT, env={"OMP_NUM_THREADS": "1", **os.environ})


def main() -> None:
    if sys.argv[1:2] == ["run_rank"]:
        path, *numbers, out = sys.argv[2:]
        batch, workers, steps = map(int, numbers)
        return run_rank(path, batch, workers, steps, out)
    if sys.argv[1:2] == ["run_fsdp"]:
        return run_fsdp(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="Folder for data. A RAM disk excludes the disk's speed.")
    parser.add_argument("--images", type=int, default=4096 if HAS_GPU else 40, help="Default: 4096; 40 without a GPU.")
    parser.add_argument("--batch-size", type=int, default=256 if HAS_GPU else 4, help="Of a rank. Default: 256; 4.")
    parser.add_argument("--workers", type=int, default=8 if HAS_GPU else 2, help="Of a rank. Default: 8; 2.")
    parser.add_argument("--steps", type=int, default=100, help="Steps that are timed, on GPUs. Default: 100.")
    given = parser.parse_args()
    ranks = torch.cuda.device_count() or 2
    with core.work_folder(given.output) as folder:
        data.MAKERS["jpeg"](folder / data.SOURCE, given.images)
        data.make_shards(folder, emit=(), world_size=ranks, workers=given.workers)
        shards, file = folder / data.SHARDS, folder / "found.json"
        launch(ranks, "run_rank", shards, given.batch_size, given.workers, given.steps, file)
        found = json.loads(file.read_text())
        checks = [*found["checks"]]
        if HAS_GPU and importlib.util.find_spec("lightning"):
            launch(ranks, "run_fsdp", shards, given.batch_size)
            checks.append(("Lightning's FSDP", "an epoch, bf16-mixed"))
    where = f"{ranks} x {torch.cuda.get_device_name()}" if HAS_GPU else f"the CPU, {ranks} ranks"
    core.print_table(f"Checks that hold on {where} (torch {torch.__version__})", ("", "seen"), checks, names=2)
    if not HAS_GPU:
        print(f"\nThere is no GPU, so these were skipped: {SKIPPED}.")
        return None
    header = ("ResNet-50, bf16", "images/s a GPU", "ms a step", "ms without input", "waits")
    core.print_table(f"{PIXELS} pixels, batch {given.batch_size} a rank, {given.steps} steps", header, found["rows"])
    return None


if __name__ == "__main__":
    main()
