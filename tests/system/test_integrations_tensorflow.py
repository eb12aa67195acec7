import importlib.util
import json
import os
import subprocess
import sys

import pytest

from checks import names_in, outcomes
from made_datasets import expected_batches, real_rows
from paths import SUPPORT
from s3server import free_port
from tables import outputs_of, start_process
from wdsplit.errors import MissingDependencyError, TopologyError
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import World

pytestmark = pytest.mark.xdist_group("tensorflow")

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

with_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: pip install tensorflow-cpu"
)


@pytest.fixture(scope="module")
def on_two_cpus(numbers):
    return outcomes("tensorflow_checks.py", numbers, **QUIET)


@with_tensorflow
@pytest.mark.parametrize("check", names_in("tensorflow_checks.py"))
def test_on_two_cpus(on_two_cpus, check):
    assert on_two_cpus[check] == ""


def cluster_of(kinds):
    """Return the TF_CONFIG of each task of a cluster of so many chiefs, workers, ..., on free ports."""
    ports = set()
    while len(ports) < sum(kinds.values()):
        ports.add(free_port())
    cluster = {kind: [f"127.0.0.1:{ports.pop()}" for _ in range(count)] for kind, count in kinds.items()}
    return [
        json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        for kind, count in kinds.items()
        for index in range(count)
    ]


@with_tensorflow
def test_two_workers_have_every_sample_once_and_nothing_is_sharded_twice(numbers):
    command = [sys.executable, SUPPORT / "tensorflow_worker.py", numbers]
    environs = [{**os.environ, **QUIET, "TF_CONFIG": config} for config in cluster_of({"worker": 2})]
    outputs = outputs_of([start_process(command, env=environ) for environ in environs])
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [(each["world"]["rank"], each["world"]["world_size"]) for each in found] == [(0, 2), (1, 2)]
    expected = expected_batches(numbers, 7, global_batch=16)
    for number, batch in enumerate(expected):
        parts = [list(zip(*each["seen"][number], strict=True)) for each in found]
        assert sorted(parts[0] + parts[1]) == batch
    for each in found:
        assert each["totals"] == [sum(real_rows(batch)) for batch in expected]


@pytest.mark.parametrize(
    ("kinds", "worlds"),
    [
        ({"worker": 1}, [World()]),
        ({"worker": 3}, [World(0, 3), World(1, 3), World(2, 3)]),
        ({"chief": 1, "worker": 2, "ps": 1}, [World(0, 3), World(1, 3), World(2, 3), World()]),
        ({"master": 1, "worker": 1}, [World(0, 2), World(1, 2)]),
    ],
)
def test_the_rank_is_what_tf_config_says(kinds, worlds):
    assert [detect_rank(environ={"TF_CONFIG": config}) for config in cluster_of(kinds)] == worlds


def test_what_a_launcher_says_comes_before_tf_config():
    config = cluster_of({"worker": 3})[2]
    assert detect_rank(environ={"TF_CONFIG": config, "RANK": "1", "WORLD_SIZE": "2"}) == World(1, 2)


@pytest.mark.parametrize(
    "config", ["{", "[]", '{"cluster": {"worker": 3}}', '{"cluster": {}, "task": {"type": "worker", "index": "x"}}']
)
def test_a_tf_config_that_cannot_be_read_is_an_error(config):
    with pytest.raises(TopologyError, match="TF_CONFIG cannot be read"):
        detect_rank(environ={"TF_CONFIG": config})


def test_a_task_that_the_cluster_does_not_have_is_an_error():
    config = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'
    with pytest.raises(TopologyError) as caught:
        detect_rank(environ={"TF_CONFIG": config})
    assert "TF_CONFIG" in caught.value.place


def test_without_tensorflow_the_error_says_what_to_install(numbers):
    script = (
        "import sys; sys.modules.update(tensorflow=None, torch=None)\n"
        "import wdsplit\n"
        "from wdsplit.integrations.tensorflow import TensorFlowLoader\n"
        "TensorFlowLoader(wdsplit.Loader(wdsplit.Dataset(sys.argv[1]), 8))"
    )
    done = subprocess.run([sys.executable, "-c", script, numbers], capture_output=True, text=True)
    assert MissingDependencyError.__name__ in done.stderr
    assert "pip install 'wdsplit[tensorflow]'" in done.stderr
