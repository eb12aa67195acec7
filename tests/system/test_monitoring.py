"""What a loader does, in the logs of training libraries; here in one process, without a launcher."""

import csv
from pathlib import Path

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from transformers import TrainingArguments

import wdsplit
from wdsplit.integrations.lightning import WdsplitDataModule
from wdsplit.integrations.transformers import WdsplitTrainer

pytestmark = [
    pytest.mark.xdist_group("monitoring"),
    pytest.mark.filterwarnings("ignore"),
]

STEPS = 9
"""Steps of an epoch of 101 samples in batches of 12."""
NAMES = {
    f"wdsplit/{name}"
    for name in (
        *("samples_per_s", "bytes_per_s", "fetched_bytes_per_s", "wait_share"),
        *("retries", "bad_samples", "epoch", "position"),
    )
}


def place_after(steps):
    """Return epoch and position after so many steps."""
    epoch, step = divmod(steps, STEPS)
    return {"wdsplit/epoch": epoch, "wdsplit/position": 12 * step}


def numbers_of(dataset):
    return wdsplit.Dataset(dataset).decode().to_tuple("cls")


# Lightning


class LogLoading(lightning.Callback):
    """The callback of docs/monitoring.md."""

    def on_train_start(self, trainer, module):
        self.loader = trainer.train_dataloader.loader
        self.before = self.loader.statistics()

    def on_train_batch_end(self, trainer, module, *args):
        if trainer.global_step % 4 == 0:
            before, self.before = self.before, self.loader.statistics()
            module.log_dict(self.before.scalars(before, "wdsplit/"))


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, number):
        return self.layer(batch[0][:, None] / 100.0).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


def test_a_callback_of_lightning_logs_them(numbers, tmp_path):
    logger = CSVLogger(tmp_path)
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, log_every_n_steps=4, logger=logger, callbacks=[LogLoading()], **quiet
    )
    trainer.fit(Model(), WdsplitDataModule(numbers_of(numbers), batch_size=12))
    logger.save()
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["step"]) for row in rows] == [3, 7, 11, 15]
    for row in rows:
        assert {name for name, value in row.items() if value} >= NAMES
        assert {name: float(row[name]) for name in place_after(0)} == place_after(int(row["step"]) + 1)


# The Trainer


class Squares(torch.nn.Module):
    """A model as the Trainer takes it."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, row):
        return {"loss": self.layer(row[:, None] / 100.0).square().mean()}


def row_of(sample):
    return {"row": float(sample["cls"])}


@pytest.mark.parametrize("options", [{"log_loading": True}, {}])
def test_the_trainer_logs_them_with_the_loss_if_asked(numbers, tmp_path, options):
    args = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=12,
        logging_steps=6,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = WdsplitTrainer(
        model=Squares(), args=args, train_dataset=wdsplit.Dataset(numbers).decode().map(row_of), **options
    )
    trainer.train()
    *steps, end = trainer.state.log_history
    assert [each["step"] for each in steps] == [6, 12, 18]
    for each in steps:
        assert each.keys() & NAMES == (NAMES if options else set())
        assert not options or {name: each[name] for name in place_after(0)} == place_after(each["step"])
    assert not end.keys() & NAMES
