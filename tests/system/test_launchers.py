"""The loader in processes that SLURM, Horovod, FSDP2 and DeepSpeed start.

DeepSpeed runs here. SLURM and Horovod (which is not for newer versions of torch) do not: processes are
started with the documented variables, or a module stands in for Horovod.
"""

import itertools
import multiprocessing.context
import os
import subprocess
import sys
import types

import pytest
import torch

from made_datasets import expected_batches
from paths import SUPPORT
from s3server import free_port
from tables import outputs_of, start_process
from torchruns import results_of, run_tasks, woven
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.world import LAUNCHERS

WORKER = SUPPORT / "launched_worker.py"
TIMEOUT_S = 900


def test_workers_that_a_rank_of_horovod_spawns_know_its_rank_and_one_that_is_none_settles_nothing(numbers, monkeypatch):
    """Horovod is joined by this process alone, and the environment does not tell."""
    dataset = Dataset(numbers).to_tuple("__position__")
    horovod = types.SimpleNamespace(is_initialized=lambda: True, rank=lambda: 1, size=lambda: 2)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [position for (position,) in loader] == list(range(1, 102, 2))
    horovod.is_initialized = lambda: False
    popen = object()
    multiprocessing.context.set_spawning_popen(popen)
    try:
        assert dataset.__getstate__()["_rank"] is None
    finally:
        multiprocessing.context.set_spawning_popen(None)


def clean_environ(**variables):
    """Return this process's environment without a launcher's, and with some variables."""
    known = tuple(itertools.chain.from_iterable(LAUNCHERS))
    environ = {name: value for name, value in os.environ.items() if name not in known and "SLURM" not in name}
    return {**environ, "OMP_NUM_THREADS": "1", **variables}


def test_tasks_of_srun_read_each_sample_once_without_a_process_group(numbers, tmp_path):
    command = [sys.executable, str(WORKER), "plain", numbers, str(tmp_path)]
    step = {"SLURM_JOB_ID": "71", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    ranks = [{**step, "SLURM_PROCID": rank} for rank in "01"]
    outputs_of([start_process(command, env=clean_environ(**rank)) for rank in ranks])
    results, _ = results_of(tmp_path, "plain")
    assert woven([result["batches"] for result in results]) == expected_batches(numbers, 9)
    said = [f"rank {rank} of 2, from SLURM_PROCID and SLURM_STEP_NUM_TASKS" for rank in range(2)]
    assert [result["messages"] for result in results] == [[text] for text in said]


def plain_sgd(batches):
    """Return the weight and the bias after one process has trained on whole global batches."""
    model = torch.nn.Linear(1, 1)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(torch.tensor([[row] for _, row, _ in batch]) / 100.0).square().mean().backward()
        optimizer.step()
    return [parameter.item() for parameter in model.parameters()]


def test_fsdp2_trains_on_meshes_as_one_process_does_on_the_global_batches(numbers, tmp_path):
    """Sharded over 4 processes; over 2, twice; and replicated over 2, each of them two tensor-parallel processes."""
    run_tasks(4, "launched_worker.py", "fsdp", numbers, tmp_path)
    (ranks, _), expected = results_of(tmp_path, "fsdp", 4), expected_batches(numbers, 9)
    assert woven([rank["fsdp"]["batches"] for rank in ranks]) == expected
    assert woven([rank["hsdp"]["batches"] for rank in ranks]) == expected
    assert woven([rank["hsdp and tp"]["batches"] for rank in ranks[::2]]) == expected
    assert ranks[0]["hsdp and tp"] == ranks[1]["hsdp and tp"]
    for rank, name in itertools.product(ranks, ranks[0]):
        assert rank[name]["trained"] == pytest.approx(plain_sgd(expected), rel=1e-4)


def test_a_deepspeed_engine_trains_on_each_sample_once(numbers, tmp_path):
    """Started by DeepSpeed's own launcher, with its engine, on two processes without a GPU."""
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus=2", f"--master_port={free_port()}"]
    command += [str(WORKER), "deepspeed", numbers, str(tmp_path)]
    environ = clean_environ(DS_ACCELERATOR="cpu")
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, f"{ended.stderr}\nDeepSpeed is installed by pip install 'wdsplit[tests-all]'"
    assert woven(results_of(tmp_path, "deepspeed")[0]) == expected_batches(numbers, 9)
