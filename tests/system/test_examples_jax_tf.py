import importlib.util
import json
import os
import re
import sys

import pytest

from made_datasets import converted, images_table
from paths import EXAMPLES
from s3server import free_port
from tables import DEADLINE_S, outputs_of, start_process

NUM_SAMPLES = 50


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(NUM_SAMPLES), key="name", shards=4, lanes=4)


def started(script, images, *options, **environ):
    command = [sys.executable, EXAMPLES / script, images, images, f"--classes={NUM_SAMPLES}", *options]
    return start_process(command, env={**os.environ, **environ})


def told(*processes):
    """Return what the first of some processes has printed; all must end well."""
    return outputs_of(processes)[0]


def run(*arguments, **environ):
    return told(started(*arguments, **environ))


def devices(count):
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "JAX_PLATFORMS": "cpu"}


def test_the_jax_example_stops_and_resumes_on_fewer_devices(images, tmp_path):
    options = ["--batch-size=4", "--epochs=2", f"--checkpoint={tmp_path / 'checkpoint.npz'}"]
    begun = run("train_jax.py", images, *options, "--model-parallel=2", "--stop-after=2", **devices(8))
    assert "mesh {'data': 4, 'model': 2}, global batch 16, 4 steps an epoch" in begun
    assert "stopped in epoch 0 after 2 steps" in begun
    rest = run("train_jax.py", images, *options, **devices(2))
    assert "resumed in epoch 0 at step 4, on 2 devices" in rest
    assert len(re.findall(rf"held-out accuracy [\d.]+ \(\d+ of {NUM_SAMPLES}\)", rest)) == 2
    assert re.findall(r"epoch (\d): every image exactly once", rest) == ["1"], "of epoch 0 it has seen the rest"
    assert "exactly once" not in run("train_jax.py", images, *options, **devices(2)), "there is nothing left to do"


def test_the_jax_example_checks_what_two_processes_have_received(images):
    """They find each other by SLURM's variables."""
    address = {"JAX_COORDINATOR_PORT": str(free_port()), "SLURM_STEP_NODELIST": "127.0.0.1"}
    job = {**devices(2), **address, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    options = ("--batch-size=4", "--epochs=1", "--model-parallel=2", "--distributed")
    tasks = [{"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(2)]
    output = told(*[started("train_jax.py", images, *options, **job, **task) for task in tasks])
    assert "mesh {'data': 2, 'model': 2}, global batch 8, 7 steps an epoch" in output
    assert "epoch 0: every image exactly once" in output


def test_to_stop_early_needs_a_place_to_save(images):
    process = started("train_jax.py", images, "--stop-after=2", **devices(1))
    assert "--stop-after needs --checkpoint" in process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 2


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: pip install tensorflow-cpu"
)
def test_the_tensorflow_example_stops_and_resumes(images, tmp_path):
    options = ["--batch-size=16", "--epochs=2", f"--checkpoint={tmp_path / 'checkpoint'}"]
    begun = run("train_tf.py", images, *options, "--stop-after=3", TF_CPP_MIN_LOG_LEVEL="3")
    assert "stopped in epoch 0 after 3 steps" in begun
    folder = tmp_path / "checkpoint"
    (folder / "epoch-1-position-0.weights.h5").write_bytes(b"half of it, as a run leaves it that is killed")
    rest = run("train_tf.py", images, *options, TF_CPP_MIN_LOG_LEVEL="3")
    assert "resumed in epoch 0 at step 3" in rest
    assert re.findall(r"epoch (\d): (\d) steps", rest) == [("0", "1"), ("1", "4")]
    assert [path.name for path in folder.glob("*.h5")] == ["epoch-2-position-0.weights.h5"]
    assert json.loads((folder / "newest.json").read_text())["weights"] == "epoch-2-position-0.weights.h5"
