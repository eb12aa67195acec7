"""One rank of a Lightning job on CPU: does tasks, and writes what it was given (see torchruns.py).

torchrun ... lightning_worker.py TASKS DATASET OUT
"""

import logging
import os
import sys

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from logs import logged
from made_datasets import deliveries, delivering
from torchruns import do_tasks
from wdsplit.errors import InputError
from wdsplit.integrations.lightning import EpochCallback, WdsplitDataModule
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

GLOBAL_BATCH = 12
SAVE_AFTER = 4
"""Batches of epoch 1 before the checkpoint."""


class Model(LightningModule):
    """Notes what it is given, and in which epoch and step Lightning believes to be."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.mean = MeanMetric()
        self.seen = []

    def training_step(self, batch, step):
        self.seen.append([self.current_epoch, step, deliveries(batch)])
        return self.layer(batch[1][:, None] / 100.0).square().mean()

    def validation_step(self, batch, step):
        _, rows, pads = batch
        self.mean.update(rows, weight=~pads)
        self.log("row", self.mean, batch_size=len(rows))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Sharded(Model):
    """The same, sharded by FSDP2."""

    def configure_model(self):
        if not isinstance(self.layer, FSDPModule):
            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self, mesh=self.device_mesh["data_parallel"])


class Save(Callback):
    """Saves checkpoints: in the middle of epoch 1, and at the end of its last batch and of the epoch itself."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx + 1 in (SAVE_AFTER, trainer.num_training_batches):
            trainer.save_checkpoint(self.folder / f"{batch_idx + 1}.ckpt")

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.folder / "epoch.ckpt")


def trainer_of(epochs, callbacks=(), **options):
    defaults = {"max_epochs": epochs, "accelerator": "cpu", "devices": os.environ.get("WORLD_SIZE", 1)}
    defaults |= dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(callbacks=list(callbacks), **{**defaults, **options})


def data(path, global_batch=GLOBAL_BATCH, val=False, **options):
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    others = [delivering(Dataset(path, shuffle=False)) if val else None for _ in ("val", "test")]
    sizes = {"batch_size": global_batch // world_size, "eval_batch_size": 7}
    return WdsplitDataModule(delivering(Dataset(path)), *others, **sizes, **options)


def fit(path, out):
    """Train for three epochs with workers, validate, and save checkpoints on the way; then test."""
    model, trainer = Model(), trainer_of(3, [Save(out)])
    module = data(path, val=True, num_workers=2, persistent_workers=True)
    trainer.fit(model, module)
    rows = [float(trainer.callback_metrics["row"])]
    (tested,) = trainer.test(model, module, verbose=False)
    return {"seen": model.seen, "rows": [*rows, tested["row"]]}


def resume(path, out):
    """Go on from each checkpoint."""
    result = {}
    for name in (SAVE_AFTER, 9, "epoch"):
        model = Model()
        trainer_of(3).fit(model, data(path), ckpt_path=out / f"{name}.ckpt")
        result[str(name)] = model.seen
    return result


def resume_small(path, out):
    """Go on with half the global batch: one process of the same batch size per rank."""
    result = {}
    for name in (SAVE_AFTER, 9):
        model = Model()
        trainer_of(3).fit(model, data(path, GLOBAL_BATCH // 2), ckpt_path=out / f"{name}.ckpt")
        result[str(name)] = model.seen
    return result


def callback(path, out):
    """Train with a loader of one's own, on two batches an epoch; then go on in epoch 2."""
    loader = Loader(delivering(Dataset(path)), GLOBAL_BATCH // 2)
    model, trainer = Model(), trainer_of(2, [EpochCallback()], limit_train_batches=2)
    trainer.fit(model, loader)
    trainer.save_checkpoint(out / "callback.ckpt")
    more = Model()
    loader = Loader(delivering(Dataset(path)), GLOBAL_BATCH // 2)
    trainer_of(3, [EpochCallback()], limit_train_batches=2).fit(more, loader, ckpt_path=out / "callback.ckpt")
    return model.seen + more.seen


def callback_of_dataset(path, out):
    """Train with a DataLoader of torch, on two batches an epoch; then go on in epoch 2."""
    model, trainer = Model(), trainer_of(2, [EpochCallback()], limit_train_batches=2)
    trainer.fit(model, DataLoader(delivering(Dataset(path)), GLOBAL_BATCH // 2))
    trainer.save_checkpoint(out / "callback.ckpt")
    more, loader = Model(), DataLoader(delivering(Dataset(path)), GLOBAL_BATCH // 2)
    trainer_of(3, [EpochCallback()], limit_train_batches=2).fit(more, loader, ckpt_path=out / "callback.ckpt")
    return model.seen + more.seen


class SaveEach(Callback):
    """Notes after which batches a checkpoint comes with a warning."""

    def __init__(self, path):
        self.path, self.warned = path, []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with logged("wdsplit.integrations.opaque_loader") as messages:
            trainer.save_checkpoint(self.path)
        self.warned += [batch_idx + 1] * len(messages)


def accumulate(path, out):
    """Train for an epoch of 9 batches, of which 4 are accumulated, and save after each."""
    save = SaveEach(out / "each.ckpt")
    trainer_of(1, [save], accumulate_grad_batches=4).fit(Model(), data(path))
    return save.warned


def overfit(path, out):
    """Train twice on the same two batches."""
    model = Model()
    trainer_of(2, overfit_batches=2).fit(model, data(path))
    return model.seen


def sharded(path, out):
    """Train with FSDP2 for two epochs."""
    model = Sharded()
    trainer_of(2, strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)).fit(model, data(path))
    assert isinstance(model.layer, FSDPModule)
    return model.seen


def tensor_parallel(path, out):
    """Try to train on a dataset that is split by processes which are one rank to the strategy."""
    model = Sharded()
    trainer = trainer_of(1, strategy=ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2))
    try:
        trainer.fit(model, data(path))
    except ValueError as error:
        return str(error)
    return "no error"


def curriculum(path, out):
    """Train on views of different sizes: refused, unless Lightning counts batches anew; then go on from checkpoints."""
    views = {0: {"where": "cls >= 40 and cls < 90"}, 1: None, 2: {"where": "cls < 30"}}
    result = {}

    def train(name, reload, loader=None, **options):
        model, others = Model(), [] if loader is None else [EpochCallback()]
        source = WdsplitDataModule(delivering(Dataset(path, view=views)), batch_size=GLOBAL_BATCH)
        try:
            trainer = trainer_of(4, [Save(out), *others], reload_dataloaders_every_n_epochs=reload)
            trainer.fit(model, loader or source, **options)
            result[name] = model.seen
        except InputError as error:
            result[name] = [str(error), model.seen]

    for name, reload in (("refused", 0), ("whole", 1)):
        train(name, reload)
        train(f"{name}, own loader", reload, Loader(delivering(Dataset(path, view=views)), GLOBAL_BATCH))
    for name in (f"{SAVE_AFTER}", "epoch"):
        train(name, 1, ckpt_path=str(out / f"{name}.ckpt"))
    return result


TASKS = {
    task.__name__: task
    for task in (
        *(accumulate, callback, callback_of_dataset, curriculum, fit, overfit, resume, resume_small, sharded),
        tensor_parallel,
    )
}


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    do_tasks(TASKS, *sys.argv[1:])
