"""What a loader does, in the logs of training libraries; here in one process, without a launcher."""

import csv
from pathlib import Path

import lightning.pytorch as lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader
from transformers import TrainingArguments

import wdsplit
from wdsplit.errors import InputError
from wdsplit.integrations.accelerate import PreparedLoader
from wdsplit.integrations.lightning import MonitorCallback, WdsplitDataModule
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
        *(
            "samples_per_s",
            "bytes_per_s",
            "fetched_bytes_per_s",
            "wait_share",
            "retries",
            "bad_samples",
            "epoch",
            "position",
        ),
    )
}


def place_after(steps):
    """Return epoch and position after so many steps."""
    epoch, step = divmod(steps, STEPS)
    return {"wdsplit/epoch": epoch, "wdsplit/position": 12 * step}


def numbers_of(dataset):
    return wdsplit.Dataset(dataset).decode().to_tuple("cls")


# Lightning


class Model(lightning.LightningModule):
    """Logs the number of the batch as a metric of its own."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, number):
        first = batch if isinstance(batch, (list, tuple)) else next(iter(batch.values()))
        self.log("number", float(number))
        return self.layer(first[0][:, None] / 100.0).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


def fitted(folder, loaders, callback=None, **options):
    """Train two epochs; return what was logged, the metrics of the model and those of the loader each in rows."""
    logger = CSVLogger(folder)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=logger,
        callbacks=[callback or MonitorCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Model(), loaders)
    logger.save()
    path = Path(logger.log_dir) / "metrics.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
    return [{name: value for name, value in row.items() if value} for row in rows]


def test_lightning_logs_them_beside_the_metrics_of_the_model(numbers, tmp_path):
    rows = fitted(tmp_path, WdsplitDataModule(numbers_of(numbers), batch_size=12), log_every_n_steps=4)
    assert [int(row["step"]) for row in rows if "number" in row] == [3, 7, 11, 15]
    ours = [row for row in rows if "number" not in row]
    assert [int(row["step"]) for row in ours] == [3, 7, 11, 15]
    for row in ours:
        assert row.keys() == {"step", *NAMES}
        assert float(row["wdsplit/samples_per_s"]) > 0
        assert {name: float(row[name]) for name in place_after(0)} == place_after(int(row["step"]) + 1)


def test_lightning_logs_once_a_step_of_several_batches(numbers, tmp_path):
    loader = wdsplit.Loader(numbers_of(numbers), 12)
    rows = fitted(tmp_path, loader, log_every_n_steps=1, accumulate_grad_batches=3)
    ours = [(int(row["step"]), float(row["wdsplit/position"])) for row in rows if "number" not in row]
    assert ours == [(step, 12 * (3 * (step + 1) % STEPS)) for step in range(6)]


def test_lightning_logs_each_of_several_loaders(numbers, whole_lanes, tmp_path):
    loaders = {"a": wdsplit.Loader(numbers_of(numbers), 12), "b": wdsplit.Loader(numbers_of(whole_lanes), 12)}
    rows = fitted(tmp_path, CombinedLoader(loaders), log_every_n_steps=5)
    names = {name.replace("wdsplit/", f"wdsplit/{number}/") for name in NAMES for number in (0, 1)}
    assert [row.keys() for row in rows if "number" not in row] == [{"step", *names}] * 3


@pytest.mark.parametrize("options", [{"log_every_n_steps": 0}, {"log_every_n_steps": 100}])
def test_lightning_logs_nothing_that_the_trainer_would_not(numbers, tmp_path, options):
    assert fitted(tmp_path, wdsplit.Loader(numbers_of(numbers), 12), **options) == []


def test_lightning_without_a_loader_of_wdsplit_is_an_error_that_names_it(numbers, tmp_path):
    with pytest.raises(InputError, match=r"expected: a wdsplit\.Loader.*\n  found: DataLoader"):
        fitted(tmp_path, torch.utils.data.DataLoader(numbers_of(numbers), 12))


def test_a_callback_logs_a_second_training_from_its_first_step(numbers, tmp_path):
    callback = MonitorCallback()
    for number in range(2):
        loader = wdsplit.Loader(numbers_of(numbers), 12)
        rows = fitted(tmp_path / str(number), loader, callback, log_every_n_steps=18)
        assert [int(row["step"]) for row in rows if "wdsplit/epoch" in row] == [17]


# Accelerate


class Kept(GeneralTracker):
    """Keeps what is logged."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.values = []

    @property
    def tracker(self):
        return self.values

    @on_main_process
    def store_init_configuration(self, values):
        pass

    @on_main_process
    def log(self, values, step=None, **options):
        self.values.append((step, values))


def test_accelerate_logs_them_to_its_trackers(numbers):
    accelerator = Accelerator(cpu=True, log_with=Kept())
    accelerator.init_trackers("run")
    loader = PreparedLoader(wdsplit.Loader(numbers_of(numbers), 12), accelerator)
    monitor = wdsplit.Monitor(loader)
    for step, _ in enumerate(loader):
        if step % 4 == 3:
            accelerator.log(monitor.scalars(), step=step)
    logged = accelerator.get_tracker("kept", unwrap=True)
    assert [step for step, _ in logged] == [3, 7]
    for step, values in logged:
        assert values.keys() == NAMES
        assert {name: values[name] for name in place_after(0)} == place_after(step + 1)


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
