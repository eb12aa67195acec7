"""One rank of a job that iterates a dataset in the ways users do, and notes in OUT what each gave.

    torchrun ... loops_worker.py LOOPS DATASET OUT
    python loops_worker.py LOOPS DATASET OUT        (loops of Ray Train, which starts its ranks itself)

LOOPS are names of functions here or of VARIANTS, joined by commas; each takes the dataset's path, the number of
workers, and a list that it extends by the deliveries as they come. A loop that is refused notes its error, and what had
come by then.
"""

import json
import os
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.utils.data import ChainDataset, DataLoader, DistributedSampler

from made_datasets import deliveries, delivering
from torchruns import leave_group
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.process_workers import worker_context

BATCH = 8
WORKERS = (0, 2)


def dataset(path):
    return delivering(Dataset(path))


def workers_of(workers, **more):
    """Return torch's options for workers, with the Loader's context: of many forks beside gloo's threads one hangs."""
    return {"num_workers": workers, **({"multiprocessing_context": worker_context(), **more} if workers else {})}


def plain(path, workers, kind=DataLoader, **options):
    return kind(dataset(path), batch_size=BATCH, **workers_of(workers), **options)


def own(path, workers):
    return Loader(dataset(path), BATCH, num_workers=workers)


def take(batches, taken):
    for batch in batches:
        taken.extend(deliveries(batch))


def take_singles(samples, taken):
    taken.extend((int(position), int(row), bool(pad)) for position, row, pad in samples)


# torch and webdataset


def wdsplit_loader(path, workers, taken):
    take(own(path, workers), taken)


def torch_batched(path, workers, taken):
    take(plain(path, workers), taken)


def torch_unbatched(path, workers, taken):
    take_singles(DataLoader(dataset(path), batch_size=None, **workers_of(workers)), taken)


def torch_persistent(path, workers, taken):
    loader = DataLoader(dataset(path), batch_size=BATCH, **workers_of(workers, persistent_workers=True))
    take(loader, [])
    loader.dataset.set_epoch(1)
    take(loader, taken)


def torch_length(path, workers, taken):
    """Ask the loader how many batches it has, as schedules of the learning rate do."""
    loader = plain(path, workers)
    len(loader)
    take(loader, taken)


def torch_distributed_sampler(path, workers, taken):
    data = dataset(path)
    take(DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), num_workers=workers), taken)


def torch_chain(path, workers, taken):
    take(DataLoader(ChainDataset([dataset(path)]), batch_size=BATCH, **workers_of(workers)), taken)


def torchdata_stateful(path, workers, taken):
    from torchdata.stateful_dataloader import StatefulDataLoader

    take(plain(path, workers, StatefulDataLoader), taken)


def webdataset_loader(path, workers, taken):
    import webdataset

    batches = webdataset.WebLoader(dataset(path).batched(BATCH), batch_size=None, **workers_of(workers))
    take(batches.unbatched().shuffle(20).batched(BATCH), taken)


def webdataset_split(path, workers, taken):
    import webdataset

    pipeline = webdataset.DataPipeline(dataset(path), webdataset.split_by_node, webdataset.split_by_worker)
    take_singles(webdataset.WebLoader(pipeline, batch_size=None, **workers_of(workers)), taken)


# Lightning


def lightning_fit(data, taken, **options):
    from lightning_worker import Model, trainer_of

    model = Model()
    try:
        trainer_of(1, **options).fit(model, data)
    finally:
        taken.extend(each for _, _, batch in model.seen for each in batch)


def lightning_dataloader(path, workers, taken, **options):
    lightning_fit(plain(path, workers), taken, **options)


def lightning_datamodule(path, workers, taken):
    import lightning.pytorch as lightning

    class Data(lightning.LightningDataModule):
        def train_dataloader(self):
            return plain(path, workers)

    lightning_fit(Data(), taken)


def lightning_loader(path, workers, taken):
    lightning_fit(own(path, workers), taken)


def lightning_wdsplit_datamodule(path, workers, taken):
    from wdsplit.integrations.lightning import WdsplitDataModule

    lightning_fit(WdsplitDataModule(dataset(path), batch_size=BATCH, num_workers=workers), taken)


# Accelerate


def accelerator(**options):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def accelerate_dataloader(path, workers, taken, **options):
    take(accelerator(**options).prepare(plain(path, workers)), taken)


def accelerate_web_loader(path, workers, taken):
    import webdataset

    take(accelerator().prepare(plain(path, workers, webdataset.WebLoader)), taken)


def accelerate_loader(path, workers, taken):
    take(accelerator().prepare(own(path, workers)), taken)


def accelerate_prepared_loader(path, workers, taken):
    from wdsplit.integrations.accelerate import PreparedLoader

    take(PreparedLoader(own(path, workers), accelerator()), taken)


def accelerate_dataset(path, workers, taken):
    """Prepare the dataset itself, which Accelerate leaves as it is."""
    take(DataLoader(accelerator().prepare(dataset(path)), batch_size=BATCH, **workers_of(workers)), taken)


# Transformers


def trainer_of(kind, path, workers, taken, **options):
    from transformers import TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, labels, position, pad, return_loss=True, **flags):
            taken.extend(zip(position.tolist(), labels.tolist(), pad.tolist(), strict=True))
            return {"loss": self.layer(labels[:, None] / 100.0).square().mean(), "logits": labels * 2}

    def features(sample):
        pad = sample["__pad__"]
        return {"labels": sample["cls"], "position": sample["__position__"], "pad": pad, "__pad__": pad}

    settings = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "num_train_epochs": 1}
    settings |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "ddp_backend": "gloo"}
    settings |= {"dataloader_num_workers": workers, "logging_strategy": "no", "remove_unused_columns": False, **options}
    data = Dataset(path).decode().map(features)
    arguments = TrainingArguments(tempfile.mkdtemp(), **settings)
    return kind(model=Model(), args=arguments, train_dataset=data, eval_dataset=data)


def stock_trainer():
    from transformers import Trainer

    return Trainer


def own_trainer():
    from wdsplit.integrations.transformers import WdsplitTrainer

    return WdsplitTrainer


def mixed_trainer():
    """Return a Trainer whose signature says nothing of datasets."""
    from wdsplit.integrations.transformers import TrainerMixin

    class Tuned(stock_trainer()):
        def __init__(self, **options):
            super().__init__(**options)

    class Mixed(TrainerMixin, Tuned):
        pass

    return Mixed


def trainer_train(path, workers, taken, make=stock_trainer, call="train", **options):
    trainer = trainer_of(make(), path, workers, taken, **options)
    getattr(trainer, call)(*[trainer.eval_dataset][: call == "predict"])


# DeepSpeed


def deepspeed_training_data(path, workers, taken):
    take(deepspeed_initialized(training_data=dataset(path))[2], taken)


def deepspeed_loader(path, workers, taken):
    engine, *_ = deepspeed_initialized()
    take(Loader(dataset(path), engine.train_micro_batch_size_per_gpu(), num_workers=workers), taken)


def deepspeed_initialized(**options):
    import importlib

    import deepspeed

    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # it would compile an operator
    model = torch.nn.Linear(1, 1)
    return deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        config={"train_micro_batch_size_per_gpu": BATCH},
        **options,
    )


# Ray Train


def ray_dataloader(path, workers, taken):
    take(plain(path, workers), taken)


def ray_prepared_dataloader(path, workers, taken):
    from ray.train.torch import prepare_data_loader

    take(prepare_data_loader(plain(path, workers)), taken)


def ray_loader(path, workers, taken):
    """Take a batch, then from another loader all that its state leaves."""
    begun, rest = own(path, workers), own(path, workers)
    taken.extend(deliveries(next(iter(begun))))
    rest.load_state_dict(begun.state_dict())
    take(rest, taken)


def ray_prepared_loader(path, workers, taken):
    from ray.train.torch import prepare_data_loader

    take(prepare_data_loader(own(path, workers)), taken)


BY_STEPS = {"max_steps": 6}

VARIANTS = {
    "lightning_dataloader_without_sampler": partial(lightning_dataloader, use_distributed_sampler=False),
    "accelerate_dispatched": partial(accelerate_dataloader, dispatch_batches=True),
    "accelerate_split_not_dispatched": partial(accelerate_dataloader, split_batches=True, dispatch_batches=False),
    "trainer_evaluate": partial(trainer_train, call="evaluate", **BY_STEPS),
    "trainer_predict": partial(trainer_train, call="predict", **BY_STEPS),
    "wdsplit_trainer_train": partial(trainer_train, make=own_trainer),
    "wdsplit_trainer_evaluate": partial(trainer_train, make=own_trainer, call="evaluate"),
    "wdsplit_trainer_predict": partial(trainer_train, make=own_trainer, call="predict"),
    "trainer_mixin_train": partial(trainer_train, make=mixed_trainer),
}
"""Loops of the functions above with other options."""


def note(loop, path, out):
    for workers in WORKERS:
        taken = []
        result = {"deliveries": taken}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (VARIANTS.get(loop) or globals()[loop])(path, workers, taken)
        except Exception as error:
            result["refused"] = f"{type(error).__name__}: {error}"
        name = f"{loop}-{workers}-{distributed.get_rank()}.json"
        Path(out, name).write_text(json.dumps(result))


def ray_rank(settings):
    from loops_worker import note  # Ray sends this function without what it finds by name

    for loop in settings["loops"].split(","):
        note(loop, settings["path"], settings["out"])


def with_ray(loops, path, out):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    settings, run = {"loops": loops, "path": path, "out": out}, RunConfig(storage_path=str(Path(out, "ray")))
    TorchTrainer(ray_rank, train_loop_config=settings, scaling_config=scaling, run_config=run).fit()
    ray.shutdown()


def main(loops, path, out):
    if "RANK" not in os.environ:
        with_ray(loops, path, out)
        return
    distributed.init_process_group("gloo")
    for loop in loops.split(","):
        note(loop, path, out)
    leave_group()


if __name__ == "__main__":
    main(*[each for each in sys.argv[1:] if not each.startswith("--local_rank")])
