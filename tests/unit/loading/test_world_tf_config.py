"""The rank that TF_CONFIG gives."""

import json

import pytest

from wdsplit.errors import TopologyError
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import World


def cluster_of(kinds):
    """Return the TF_CONFIG of each task of a cluster of so many chiefs, workers, ..."""
    cluster = {kind: [f"{kind}{index}:1" for index in range(count)] for kind, count in kinds.items()}
    return [
        json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        for kind, count in kinds.items()
        for index in range(count)
    ]


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
