"""One rank of a job that iterates a dataset in the ways users do; it notes what each gave in OUT/<loop>-<rank>.json.

    torchrun ... loops_worker.py LOOPS WORKERS DATASET OUT

LOOPS are names of functions here, joined by commas. A loop that is refused notes its error.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.utils.data import DataLoader

from made_datasets import all_deliveries, delivering
from torchruns import leave_group
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

BATCH = 8


def dataset(path, **options):
    return delivering(Dataset(path, **options))


def workers_of(workers, **more):
    return {"num_workers": workers, **(more if workers else {})}


# Accelerate


def accelerated(make, path, workers, **options):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    return all_deliveries(accelerator.prepare(make(path, workers)))


def plain(path, workers):
    return DataLoader(dataset(path), batch_size=BATCH, **workers_of(workers))


def accelerate_dataloader(path, workers):
    return accelerated(plain, path, workers)


def accelerate_dispatched(path, workers):
    return accelerated(plain, path, workers, dispatch_batches=True)


def accelerate_not_dispatched(path, workers):
    return accelerated(plain, path, workers, dispatch_batches=False)


def accelerate_split_batches(path, workers):
    return accelerated(plain, path, workers, split_batches=True, dispatch_batches=True)


def accelerate_split_not_dispatched(path, workers):
    return accelerated(plain, path, workers, split_batches=True, dispatch_batches=False)


def accelerate_web_loader(path, workers):
    import webdataset

    def make(path, workers):
        return webdataset.WebLoader(dataset(path), batch_size=BATCH, **workers_of(workers))

    return accelerated(make, path, workers)


def accelerate_loader(path, workers):
    return accelerated(lambda path, workers: Loader(dataset(path), BATCH, num_workers=workers), path, workers)


def accelerate_dataset(path, workers):
    """Prepare the dataset itself, which Accelerate leaves as it is."""
    from accelerate import Accelerator

    prepared = Accelerator(cpu=True).prepare(dataset(path))
    return all_deliveries(DataLoader(prepared, batch_size=BATCH, **workers_of(workers)))


# Transformers


def trainer_of(path, workers, **options):
    import tempfile

    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def forward(self, labels, position, pad, return_loss=True):
            self.seen += list(zip(position.tolist(), labels.tolist(), pad.tolist(), strict=True))
            return {"loss": self.layer(labels[:, None] / 100.0).square().mean(), "logits": labels * 2}

    def features(sample):
        pad = sample["__pad__"]
        return {"labels": sample["cls"], "position": sample["__position__"], "pad": pad, "__pad__": pad}

    settings = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "num_train_epochs": 1}
    settings |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "ddp_backend": "gloo"}
    settings |= {"dataloader_num_workers": workers, "logging_strategy": "no", "remove_unused_columns": False, **options}
    data = Dataset(path).decode().map(features)
    arguments = TrainingArguments(tempfile.mkdtemp(), **settings)
    return Trainer(Model(), arguments, train_dataset=data, eval_dataset=data)


def trained(trainer):
    trainer.train()
    return trainer.model.seen


def evaluated(trainer):
    trainer.evaluate()
    return trainer.model.seen


def predicted(trainer):
    trainer.predict(trainer.eval_dataset)
    return trainer.model.seen


def trainer_train_by_steps(path, workers):
    return trained(trainer_of(path, workers, max_steps=6))


def trainer_evaluate(path, workers):
    return evaluated(trainer_of(path, workers))


def trainer_predict(path, workers):
    return predicted(trainer_of(path, workers))


def note(loop, workers, path, out):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = {"deliveries": globals()[loop](path, workers)}
    except Exception as error:
        result = {"refused": str(error)}
    (out / f"{loop}-{os.environ['RANK']}.json").write_text(json.dumps(result))


def main(loops, workers, path, folder):
    distributed.init_process_group("gloo")
    for loop in loops.split(","):
        note(loop, int(workers), path, Path(folder))
    leave_group()


if __name__ == "__main__":
    main(*[each for each in sys.argv[1:] if not each.startswith("--local_rank")])
