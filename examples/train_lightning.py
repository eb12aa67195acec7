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
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from image_task import arguments, build_network, loading, normalise, open_dataset, say
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torchmetrics import MeanMetric

from wdsplit.debug import param_hash
from wdsplit.integrations.lightning import WdsplitDataModule


class Classifier(LightningModule):
    """The network, its loss and its accuracy."""

    def __init__(self, num_classes: int, lr: float) -> None:
        super().__init__()
        self.network = build_network(num_classes)
        self.lr = lr
        self.loss, self.accuracy = MeanMetric(), MeanMetric()

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
        self.log("accuracy", self.accuracy)

    def on_train_epoch_end(self) -> None:
        """Tell how the epoch went."""
        loss = float(self.loss.compute())
        accuracy = float(self.trainer.callback_metrics["accuracy"])
        say(f"epoch {self.current_epoch}: loss {loss:.4f}, held-out accuracy {accuracy:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


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
    if args.stop_after:
        say(f"stopped in epoch {trainer.current_epoch} after {args.stop_after} steps")
    say(f"parameters {param_hash(model.network)}")


def make_trainer(args: argparse.Namespace) -> Trainer:
    """Return the trainer of all ranks."""
    on_gpu = torch.cuda.is_available()
    steps = min(args.checkpoint_steps, args.stop_after or args.checkpoint_steps)
    callbacks: list[Any] = []
    if args.checkpoint:
        options = {"every_n_train_steps": steps, "save_on_train_epoch_end": False, "enable_version_counter": False}
        callbacks = [ModelCheckpoint(args.checkpoint, filename="newest", **options)]
    return Trainer(
        max_epochs=args.epochs,
        max_steps=args.stop_after or -1,
        accelerator="gpu" if on_gpu else "cpu",
        strategy="ddp",
        devices=os.environ.get("LOCAL_WORLD_SIZE", args.devices),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", os.environ.get("SLURM_NNODES", 1))),
        precision="bf16-mixed" if on_gpu else "32-true",
        callbacks=callbacks,
        enable_checkpointing=bool(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def checkpoint_to_resume(args: argparse.Namespace) -> Path | None:
    """Return the checkpoint to go on from, if there is one and it is wanted."""
    newest = args.checkpoint / "newest.ckpt" if args.resume else None
    return newest if newest and newest.exists() else None


if __name__ == "__main__":
    main()
