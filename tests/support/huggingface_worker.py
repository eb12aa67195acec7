"""One rank of a job with Accelerate or the Trainer on CPU: does tasks, and writes what it was given (see torchruns.py).

    torchrun ... huggingface_worker.py TASKS DATASET OUT

The model is made here; nothing is downloaded.
"""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ParallelismConfig
from transformers import TrainerCallback, TrainingArguments

from logs import logged
from made_datasets import deliveries, delivering
from torchruns import do_tasks
from wdsplit.errors import InputError, TopologyError
from wdsplit.integrations.accelerate import PreparedLoader
from wdsplit.integrations.transformers import WdsplitTrainer
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

GLOBAL_BATCH = 12
SAVE_AFTER = 4
"""Batches of epoch 1 before the checkpoint."""
SAVED = (7, 10)
"""The same in updates of the Trainer, of which an epoch has 5; and the end of epoch 1."""
STRATEGIES = ("group_by_length", "sequential")


def batch_size():
    return GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", 1))


# Accelerate


def accelerated(path, **options):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
    model = torch.nn.Linear(1, 1)
    loader = PreparedLoader(Loader(delivering(Dataset(path)), batch_size(), num_workers=2), accelerator)
    parts = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    assert parts[2] is loader
    accelerator.register_for_checkpointing(loader)
    return accelerator, *parts


def train(accelerator, model, optimizer, loader, epochs, folder=None):
    """Note for each batch its epoch and step, whether gradients are synchronised then, and the batch."""
    seen = []
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for step, batch in enumerate(loader, loader.step):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch[1][:, None] / 100.0).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                seen.append([epoch, step, accelerator.sync_gradients, deliveries(batch)])
            if folder and (epoch, step + 1) == (1, SAVE_AFTER):
                accelerator.save_state(folder)
    return seen


def accelerate(path, out):
    seen = train(*accelerated(path), 2, out / "accelerate")
    accelerator, *parts = accelerated(path)
    accelerator.load_state(out / "accelerate")
    resumed = train(accelerator, *parts, 2)
    raw = Loader(delivering(Dataset(path)), batch_size())
    assert accelerator.prepare(raw) is raw
    val = PreparedLoader(Loader(delivering(Dataset(path, shuffle=False)), 7), accelerator)
    rows, pads = [], []
    for _, row, pad in val:
        gathered, flags = accelerator.gather_for_metrics((row, pad))
        rows, pads = [*rows, *gathered.tolist()], [*pads, *flags.tolist()]
    refused = []
    for option in ("split_batches", "dispatch_batches"):
        try:
            accelerated(path, dataloader_config=DataLoaderConfiguration(**{option: True}))
        except InputError as error:
            refused.append(error.cause)
    real = sorted(row for row, pad in zip(rows, pads, strict=True) if not pad)
    result = {"seen": seen, "resumed": resumed, "val": real, "num_pads": sum(pads), "refused": refused}
    return {**result, "warned": warned(path), "meshes": meshes(path, accelerator)}


def warned(path):
    """Return after how many batches, of which 2 are accumulated, a state comes with a warning."""
    accelerator, model, _, loader = accelerated(path)
    steps = []
    for step, batch in enumerate(loader, 1):
        with accelerator.accumulate(model), logged("wdsplit.integrations.opaque_loader") as lines:
            accelerator.backward(model(batch[1][:, None] / 100.0).square().mean())
            loader.state_dict()
        steps += [step] * len(lines)
    return steps


def meshes(path, accelerator):
    """Return what is said of meshes of the accelerator. It refuses them on CPUs, so they are put there afterwards."""
    said = []
    for sizes in ({"tp_size": 2}, {"dp_shard_size": 2}):
        config = ParallelismConfig(**sizes)
        accelerator.state.parallelism_config, accelerator.state.device_mesh = config, config.build_device_mesh("cpu")
        for options in ({}, {"rank": 0, "world_size": 1}):
            try:
                PreparedLoader(Loader(delivering(Dataset(path, **options)), 6), accelerator)
                said.append("no error")
            except TopologyError as error:
                said.append(f"{error.expected}: {error.remedy}")
    accelerator.state.parallelism_config = accelerator.state.device_mesh = None
    return said


# The Trainer


class Model(torch.nn.Module):
    """Notes what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, labels, position, return_loss=True):
        if self.training:
            self.seen.append(list(zip(position.tolist(), labels.tolist(), strict=True)))
        return {"loss": self.layer(labels[:, None] / 100.0).square().mean(), "logits": labels * 2}


class Save(TrainerCallback):
    """Saves in the middle of epoch 1, and at its end."""

    def on_step_end(self, args, state, control, **more):
        control.should_save = state.global_step in SAVED


def features(sample):
    return {"labels": sample["cls"], "position": sample["__position__"], "__pad__": sample["__pad__"]}


def dataset(path, **options):
    return Dataset(path, **options).decode().map(features)


def metrics(prediction):
    assert (prediction.predictions == 2 * prediction.label_ids).all()
    return {"rows": sorted(prediction.label_ids.tolist())}


def trainer_of(path, folder, log_loading=False, **options):
    defaults = {"per_device_train_batch_size": batch_size(), "per_device_eval_batch_size": 7, "num_train_epochs": 3}
    defaults |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    defaults |= {"dataloader_num_workers": 1, "logging_strategy": "no"}
    defaults |= {"ddp_backend": "gloo"} if "WORLD_SIZE" in os.environ else {}
    arguments = TrainingArguments(str(folder), **{**defaults, **options})
    return WdsplitTrainer(
        Model(),
        arguments,
        train_dataset=dataset(path),
        eval_dataset=dataset(path, shuffle=False),
        compute_metrics=metrics,
        log_loading=log_loading,
    )


def trainer(path, out):
    """Train for three epochs, save twice; go on from both checkpoints; evaluate and predict."""
    whole = trainer_of(path, out / "trainer", gradient_accumulation_steps=2)
    whole.add_callback(Save)
    whole.train()
    result = {"seen": whole.model.seen, "steps": whole.state.global_step}
    for name in SAVED:
        again = trainer_of(path, out / f"again-{name}", gradient_accumulation_steps=2)
        again.train(resume_from_checkpoint=str(out / "trainer" / f"checkpoint-{name}"))
        result[str(name)] = [again.model.seen, again.state.global_step]
    result["rows"] = whole.evaluate()["eval_rows"]
    predicted = whole.predict(dataset(path, shuffle=False))
    result["predicted"] = [sorted(predicted.label_ids.tolist()), len(predicted.predictions)]
    result["num_examples"] = whole.num_examples(whole.get_train_dataloader())
    result["refused"] = refused(path, out)
    return result


def refused(path, out):
    """Return the causes of what is refused: ranks that would come apart, and samples whose pads cannot be told."""
    causes = []
    for made in (dataset(path, tail="uneven"), dataset(path, tail="drop"), Dataset(path).decode().map(unflagged)):
        again = trainer_of(path, out / "refused")
        try:
            again.evaluate(made)
        except InputError as error:
            causes.append(error.cause)
    for name, value in (("dataloader_drop_last", True), *[("train_sampling_strategy", name) for name in STRATEGIES]):
        again = trainer_of(path, out / "refused", **{name: value})
        try:
            again.train()
        except InputError as error:
            causes.append(error.cause)
    return causes


def unflagged(sample):
    return {"labels": sample["cls"], "position": sample["__position__"]}


def trainer_without(path, out):
    """Train, evaluate and predict on a list: what is not of wdsplit's is the Trainer's as before."""
    again = trainer_of(path, out / "without", num_train_epochs=1, dataloader_num_workers=0)
    again.train_dataset = again.eval_dataset = [{"labels": row, "position": row} for row in range(8)]
    again.train()
    return sorted(again.evaluate()["eval_rows"]), sorted(again.predict(again.eval_dataset).label_ids.tolist())


def trainer_small(path, out):
    """Go on from a checkpoint with another number of processes at the same global batch."""
    again = trainer_of(path, out / "small", gradient_accumulation_steps=2)
    again.train(resume_from_checkpoint=str(out / "trainer" / "checkpoint-7"))
    return again.model.seen


def trainer_views(path, out):
    """Train two epochs on views of one size, then of two sizes."""
    result = {}
    for name, views in {"equal": ("cls < 40", "cls >= 61"), "other": ("cls < 40", "cls < 60")}.items():
        again = trainer_of(path, out / name, num_train_epochs=2)
        again.train_dataset = dataset(path, view={epoch: {"where": where} for epoch, where in enumerate(views)})
        try:
            again.train()
            result[name] = again.model.seen
        except InputError as error:
            result[name] = str(error)
    return result


TASKS = {task.__name__: task for task in (accelerate, trainer, trainer_small, trainer_views, trainer_without)}


if __name__ == "__main__":
    do_tasks(TASKS, *sys.argv[1:])
