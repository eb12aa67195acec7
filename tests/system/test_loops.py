"""Whatever loop a user writes: on two ranks each sample arrives once, or the loop is refused before its first batch.

The loops are functions of loops_worker.py. docs/loops.md shows them in the same words.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import pytest

from made_datasets import real_rows
from paths import ROOT, SUPPORT
from raycluster import QUIET
from torchruns import TIMEOUT_S, torchrun

pytestmark = pytest.mark.xdist_group("loops")

LOADER = "`wdsplit.Loader(dataset, batch_size)`"
PREPARED = "`wdsplit.integrations.accelerate.PreparedLoader(wdsplit.Loader(dataset, batch_size), accelerator)`"
TRAINER = "`wdsplit.integrations.transformers.WdsplitTrainer`"
FIT = "`trainer.fit(model, {})`"
SPLIT_BY_ACCELERATE = (
    "`accelerator.prepare(DataLoader(dataset, batch_size))`, any `dispatch_batches` and `split_batches`",
    PREPARED,
)
STOCK_TRAINER = "`Trainer(...)`: `train`, `evaluate`, `predict`", TRAINER
OWN_TRAINER = "`WdsplitTrainer(...)`: `train`, `evaluate`, `predict`", ""
IN_RAY = "`DataLoader(dataset, batch_size)`, as it is or with `prepare_data_loader`", ""

LOOPS = {
    "wdsplit_loader": (LOADER, ""),
    "torch_batched": ("`DataLoader(dataset, batch_size)`", ""),
    "torch_unbatched": ("`DataLoader(dataset, batch_size=None)`", ""),
    "torch_persistent": ("`DataLoader(dataset, batch_size, persistent_workers=True)`", ""),
    "torch_chain": ("`DataLoader(ChainDataset([dataset]), batch_size)`", ""),
    "torchdata_stateful": ("`StatefulDataLoader(dataset, batch_size)` (torchdata)", ""),
    "torch_length": ("`len(DataLoader(dataset, batch_size))`", LOADER),
    "torch_distributed_sampler": ("`DataLoader(dataset, sampler=DistributedSampler(dataset))`", LOADER),
    "webdataset_loader": ("`WebLoader(dataset.batched(n), batch_size=None).unbatched().shuffle(m).batched(n)`", ""),
    "webdataset_split": (
        "`DataPipeline(dataset, split_by_node, split_by_worker)`, if `dataset` is a `wdsplit.Dataset`",
        "remove `split_by_node` and `split_by_worker`",
    ),
    "lightning_dataloader": (FIT.format("DataLoader(dataset, batch_size)"), ""),
    "lightning_dataloader_without_sampler": (FIT.format("DataLoader(dataset, batch_size)"), ""),
    "lightning_datamodule": (f"{FIT.format('datamodule')} that returns a `DataLoader`", ""),
    "lightning_loader": (FIT.format("wdsplit.Loader(dataset, batch_size)"), ""),
    "lightning_wdsplit_datamodule": (FIT.format("WdsplitDataModule(dataset, batch_size=batch_size)"), ""),
    "accelerate_loader": ("`accelerator.prepare(wdsplit.Loader(dataset, batch_size))`", ""),
    "accelerate_prepared_loader": ("`PreparedLoader(wdsplit.Loader(dataset, batch_size), accelerator)`", ""),
    "accelerate_dataset": ("`DataLoader(accelerator.prepare(dataset), batch_size)`", ""),
    "accelerate_web_loader": ("`accelerator.prepare(WebLoader(dataset, batch_size))`", ""),
    "accelerate_dataloader": SPLIT_BY_ACCELERATE,
    "accelerate_dispatched": SPLIT_BY_ACCELERATE,
    "accelerate_split_not_dispatched": SPLIT_BY_ACCELERATE,
    "wdsplit_trainer_train": OWN_TRAINER,
    "wdsplit_trainer_evaluate": OWN_TRAINER,
    "wdsplit_trainer_predict": OWN_TRAINER,
    "trainer_mixin_train": ("`class MyTrainer(TrainerMixin, Trainer)`", ""),
    "trainer_train": STOCK_TRAINER,
    "trainer_evaluate": STOCK_TRAINER,
    "trainer_predict": STOCK_TRAINER,
    "ray_dataloader": IN_RAY,
    "ray_prepared_dataloader": IN_RAY,
    "ray_loader": ("`wdsplit.Loader(dataset, batch_size)` in a worker of `TorchTrainer`", ""),
    "ray_prepared_loader": (
        "`prepare_data_loader(wdsplit.Loader(dataset, batch_size))`",
        "iterate the `wdsplit.Loader` itself",
    ),
    "deepspeed_loader": (
        "`deepspeed.initialize(model=model)` and `wdsplit.Loader(dataset, engine.train_micro_batch_size_per_gpu())`",
        "",
    ),
    "deepspeed_training_data": ("`deepspeed.initialize(model=model, training_data=dataset)`", LOADER),
}
"""For each loop its row of the page: what the user writes, and what to write instead if it is refused."""


def run_in_ray(loops, path, out):
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # the paths of its sockets must be short
        python_path = os.pathsep.join([str(SUPPORT), os.environ["PYTHONPATH"]])
        environ = {**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path, "RAY_TMPDIR": folder}
        command = [sys.executable, str(SUPPORT / "loops_worker.py"), loops, path, str(out)]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, f"{ended.stderr}\nRay is installed by pip install 'wdsplit[tests-all]'"


@pytest.fixture(scope="module")
def notes(numbers, tmp_path_factory):
    """Return a function that gives what the ranks noted of a loop; there is one job for Ray's, one for all others."""
    jobs = {}

    def of(loop, workers):
        in_ray = loop.startswith("ray_")
        if in_ray not in jobs:
            out = jobs[in_ray] = tmp_path_factory.mktemp("ray" if in_ray else "torchrun")
            loops = ",".join(each for each in LOOPS if each.startswith("ray_") == in_ray)
            if in_ray:
                run_in_ray(loops, numbers, out)
            else:
                ended = torchrun(2, "loops_worker.py", loops, numbers, out, out=out)
                assert ended.returncode == 0, ended.output
        return [json.loads((jobs[in_ray] / f"{loop}-{workers}-{rank}.json").read_text()) for rank in range(2)]

    return of


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_gives_each_sample_once_or_is_refused_on_all_ranks(notes, loop, workers):
    ranks = notes(loop, workers)
    delivered = [[tuple(each) for each in rank["deliveries"]] for rank in ranks]
    errors = [rank.get("refused", "") for rank in ranks]
    instead = LOOPS[loop][1]
    if instead:
        assert delivered == [[], []]
        assert all(instead.replace("`", "") in error for error in errors), errors
    else:
        assert errors == ["", ""]
        assert real_rows(delivered[0] + delivered[1]) == list(range(101))
        assert len(delivered[0]) == len(delivered[1])


def test_the_page_on_loops_has_the_same_table():
    page = (ROOT / "docs" / "loops.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (works|refused) \|(.*?)\|(.*?)\|(.*)\|$", page, re.M)
    shown = [(loop, instead.strip()) for loop, *_, instead in rows]
    assert sorted(shown) == sorted(set(LOOPS.values()))
    assert [result == "refused" for _, result, *_ in rows] == [bool(instead) for _, instead in shown]
    orders = {"by itself", "`set_epoch`", "0 workers: by itself; else `set_epoch`"}
    for _, result, order, resume, _ in rows:
        is_listed = order.strip() in orders and resume.strip() in {"anywhere", "same ranks and workers", "no"}
        assert is_listed if result == "works" else not (order + resume).strip()
