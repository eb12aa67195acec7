import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_datasets import converted, images_table

EXAMPLES = Path(__file__).parent.parent / "examples"
NUM_SAMPLES = 50


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(NUM_SAMPLES), key="name", shards=4, lanes=4)


def run(script, images, *options, **environ):
    command = [sys.executable, str(EXAMPLES / script), images, images, f"--classes={NUM_SAMPLES}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert "every image exactly once an epoch" in rest


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: pip install tensorflow-cpu"
)
def test_the_tensorflow_example_stops_and_resumes(images, tmp_path):
    options = ["--batch-size=16", "--epochs=2", f"--checkpoint={tmp_path / 'checkpoint'}"]
    begun = run("train_tf.py", images, *options, "--stop-after=3", TF_CPP_MIN_LOG_LEVEL="3")
    assert "stopped in epoch 0 after 3 steps" in begun
    rest = run("train_tf.py", images, *options, TF_CPP_MIN_LOG_LEVEL="3")
    assert "resumed in epoch 0 at step 3" in rest
    assert re.findall(r"epoch (\d): (\d) steps", rest) == [("0", "1"), ("1", "4")]
