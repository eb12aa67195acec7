import importlib.util
import json
import os
import sys

import pytest

from checks import names_in, outcomes
from made_datasets import expected_batches, real_rows
from paths import SUPPORT
from s3server import free_port
from tables import outputs_of, start_process

pytestmark = [
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: pip install tensorflow-cpu"
    ),
]

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def on_two_cpus(numbers):
    return outcomes("tensorflow_checks.py", numbers, **QUIET)


@pytest.mark.parametrize("check", names_in("tensorflow_checks.py"))
def test_on_two_cpus(on_two_cpus, check):
    assert on_two_cpus[check] == ""


def test_two_workers_have_every_sample_once_and_nothing_is_sharded_twice(numbers):
    command = [sys.executable, SUPPORT / "tensorflow_worker.py", numbers]
    ports = set()
    while len(ports) < 2:
        ports.add(free_port())
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(2)]
    environs = [{**os.environ, **QUIET, "TF_CONFIG": config} for config in configs]
    outputs = outputs_of([start_process(command, env=environ) for environ in environs])
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [(each["world"]["rank"], each["world"]["world_size"]) for each in found] == [(0, 2), (1, 2)]
    expected = expected_batches(numbers, 7, global_batch=16)
    for number, batch in enumerate(expected):
        parts = [list(zip(*each["seen"][number], strict=True)) for each in found]
        assert sorted(parts[0] + parts[1]) == batch
    for each in found:
        assert each["totals"] == [sum(real_rows(batch)) for batch in expected]
