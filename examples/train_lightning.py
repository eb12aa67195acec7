"""Train with Lightning: epochs, splitting and resuming in the middle of an epoch go by themselves.

    torchrun --standalone --nproc-per-node 2 examples/train_lightning.py TRAIN TEST
    python examples/train_lightning.py TRAIN TEST --devices 2              # Lightning starts the processes itself
    ... --checkpoint FOLDER --resume

Lightning saves the loader's state with its own, and puts no DistributedSampler before it. Pads have the weight 0, so
the accuracy is exact.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from image_task import arguments, build_network, loading, normalise, open_dataset, say
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric

from wdsplit.debug import param_hash
from wdsplit.integrations.lightning import WdsplitDataModule


class Classifier(LightningModule):
    """The network, its loss and its accuracy."""

    def __init__(self, num_classes: int, lr: float) -> None:
        super().__init__()
        self.network = build_network(num_classes)
        self.lr = lr
        self.loss, self.accuracy, self.count = MeanMetric(), MeanMetric(), SumMetric()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels, _pads = batch
        loss = F.cross_entropy(self.network(normalise(images)), labels)
        self.loss.update(loss.detach())
        self.log("loss", self.loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> None:
        """Count what is right: a pad weighs nothing."""
        images, labels, pads = batch
        self.accuracy.update(self.network(normalise(images)).argmax(1) == labels, weight=~pads)
        self.count.update((~pads).sum())
        self.log_dict({"accuracy": self.accuracy, "count": self.count})

    def on_train_epoch_end(self) -> None:
        """Tell how the epoch went."""
        loss = float(self.loss.compute())
        accuracy, count = (float(self.trainer.callback_metrics[name]) for name in ("accuracy", "count"))
        told = f"held-out accuracy {accuracy:.4f} ({accuracy * count:.0f} of {count:.0f})"
        say(f"epoch {self.current_epoch}: loss {loss:.4f}, {told}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class StopAfter(Callback):
    """Saves and stops after some steps of this run; Lightning's `max_steps` would count those before a resume, too."""

    def __init__(self, steps: int, path: Path) -> None:
        self.left = steps
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, model: LightningModule, outputs: Any, batch: Any, step: int) -> None:
        """Count a step."""
        self.left -= 1
        if self.left == 0:
            trainer.save_checkpoint(self.path)
            say(f"stopped in epoch {trainer.current_epoch} after {step + 1} steps")
            raise SystemExit


def main() -> None:
    """Train, and validate after each epoch."""
    parser = arguments("Train a small network with Lightning.")
    parser.add_argument("--devices", default="auto", help="processes of this machine, if torchrun does not start them")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train = open_dataset(args.train, args, shuffle=True)
    test = open_dataset(args.test, args, shuffle=False)
    model = Classifier(args.classes, args.lr)
    data = WdsplitDataModule(train, test, batch_size=args.batch_size, **loading(args))
    trainer = make_trainer(args)
    trainer.fit(model, data, ckpt_path=checkpoint_to_resume(args))
    say(f"parameters {param_hash(model.network)}")


def make_trainer(args: argparse.Namespace) -> Trainer:
    """Return the trainer of all ranks."""
    on_gpu = torch.cuda.is_available()
    callbacks: list[Any] = []
    if args.checkpoint:
        newest = partial(ModelCheckpoint, args.checkpoint, filename="newest", enable_version_counter=False)
        callbacks = [
            newest(every_n_train_steps=args.checkpoint_steps, save_on_train_epoch_end=False),
            newest(every_n_epochs=1, save_on_train_epoch_end=True),
        ]
    if args.stop_after:
        callbacks.append(StopAfter(args.stop_after, args.checkpoint / "newest.ckpt"))
    return Trainer(
        max_epochs=args.epochs,
        accelerator="gpu" if on_gpu else "cpu",
        strategy="ddp",
        devices=os.environ.get("LOCAL_WORLD_SIZE", args.devices),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", os.environ.get("SLURM_NNODES", 1))),
        precision="bf16-mixed" if on_gpu else "32-true",
        callbacks=callbacks,
        enable_checkpointing=bool(args.checkpoint),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def checkpoint_to_resume(args: argparse.Namespace) -> Path | None:
    """Return the checkpoint to resume from: None without --resume, or if there is none yet."""
    newest = args.checkpoint / "newest.ckpt" if args.resume else None
    return newest if newest and newest.exists() else None


if __name__ == "__main__":
    main()
