"""What a loader does, in the logs of training libraries; here in one process, without a launcher."""

import csv
from pathlib import Path

import lightning.pytorch as lightning
import pytest
from lightning.pytorch.loggers import CSVLogger

import huggingface_worker
from lightning_worker import Model, data, trainer_of

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


class LogLoading(lightning.Callback):
    """The callback of docs/monitoring.md."""

    def on_train_start(self, trainer, module):
        self.loader = trainer.train_dataloader.loader
        self.before = self.loader.statistics()

    def on_train_batch_end(self, trainer, module, *args):
        if trainer.global_step % 4 == 0:
            before, self.before = self.before, self.loader.statistics()
            module.log_dict(self.before.scalars(before, "wdsplit/"))


def test_a_callback_of_lightning_logs_them(numbers, tmp_path):
    logger = CSVLogger(tmp_path)
    trainer_of(2, [LogLoading()], log_every_n_steps=4, logger=logger).fit(Model(), data(numbers))
    logger.save()
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["step"]) for row in rows] == [3, 7, 11, 15]
    for row in rows:
        assert {name for name, value in row.items() if value} >= NAMES
        assert {name: float(row[name]) for name in place_after(0)} == place_after(int(row["step"]) + 1)


@pytest.mark.parametrize("options", [{"log_loading": True}, {}])
def test_the_trainer_logs_them_with_the_loss_if_asked(numbers, tmp_path, options):
    logging = {"logging_strategy": "steps", "logging_steps": 6, "num_train_epochs": 2, "dataloader_num_workers": 0}
    trainer = huggingface_worker.trainer_of(numbers, tmp_path, **logging, **options)
    trainer.train()
    *steps, end = trainer.state.log_history
    assert [each["step"] for each in steps] == [6, 12, 18]
    for each in steps:
        assert each.keys() & NAMES == (NAMES if options else set())
        assert not options or {name: each[name] for name in place_after(0)} == place_after(each["step"])
    assert not end.keys() & NAMES
