import json
import os
import sys

import pytest

from checks import names_in, outcomes
from made_datasets import delivering, expected_batches, real_rows
from paths import SUPPORT
from s3server import free_port
from tables import outputs_of, start_process
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

pytestmark = pytest.mark.xdist_group("jax")

NUM_SAMPLES = 101


@pytest.fixture(scope="module")
def on_8_devices(numbers):
    flags = "--xla_force_host_platform_device_count=8"
    return outcomes("jax_checks.py", numbers, ["torch"], XLA_FLAGS=flags, JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("check", names_in("jax_checks.py"))
def test_on_8_devices(on_8_devices, check):
    assert on_8_devices[check] == ""


@pytest.fixture(scope="module")
def two_processes(numbers):
    """Return what each of two processes of 4 devices was given."""
    command = [sys.executable, SUPPORT / "jax_process.py", numbers, f"127.0.0.1:{free_port()}"]
    flags = "--xla_force_host_platform_device_count=4"
    environ = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    outputs = outputs_of([start_process([*command, process], env=environ) for process in range(2)])
    return [json.loads(output.splitlines()[-1]) for output in outputs]


MESHES = ["data", "data, model within a process", "data, model across processes", "data, interleaved"]


def test_the_rank_is_that_of_the_process(two_processes):
    worlds = [found["world"] for found in two_processes]
    assert [(world["rank"], world["world_size"]) for world in worlds] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_have_the_batches_of_one(two_processes, numbers, mesh):
    first, second = (found["steps"][mesh] for found in two_processes)
    expected = expected_batches(numbers, 7, global_batch=16)
    for step in (first, second):
        assert [sorted(batch["rows"]) for batch in step] == [real_rows(batch) for batch in expected]
        assert [batch["sum"] for batch in step] == [sum(real_rows(batch)) for batch in expected]
    for ours, theirs in zip(first, second, strict=True):
        assert len(ours["own"]) == (16 if mesh == "data, model across processes" else 8)
        assert (ours["own"] == theirs["own"]) == (mesh == "data, model across processes")


def test_a_field_may_be_split_over_an_axis_across_processes(two_processes, numbers):
    real = [real_rows(batch) for batch in expected_batches(numbers, 7, global_batch=16)]
    expected = [[sum(batch), sum(batch) + 100 * len(batch)] for batch in real]
    assert [found["split"] for found in two_processes] == [expected, expected]


def test_processes_that_share_some_of_their_rows_are_refused(two_processes):
    for found in two_processes:
        assert found["steps"]["in part the same rows"].startswith("processes of the mesh share only some of their rows")


def test_the_state_of_two_processes_resumes_on_one(two_processes, numbers):
    first, second = (found["state"] for found in two_processes)
    assert first == second
    loader = Loader(delivering(Dataset(numbers)), 16)
    loader.load_state_dict(first)
    resumed = [list(zip(*(column.tolist() for column in batch), strict=True)) for batch in loader]
    assert resumed == expected_batches(numbers, 7, global_batch=16)[2:]
