import random
import threading

import numpy as np
import pytest
import torch

from draws import drawing, replaced, whole_sample
from wdsplit.errors import PipelineError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.stages.randomness import MAPS, Draws, RandomMap, at_epoch


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("numpy", 3259746832131059767),
        ("torch", 2170505926851967555),
        ("python", 2297473937123578485),
        ("global", 643875663448584100),
    ],
)
def test_draws_of_today_are_those_of_tomorrow(kind, expected):
    stage = at_epoch(RandomMap(replaced, "x", kind, draws=Draws(MAPS, 2**63 - 1, 3)), 9)
    assert [sample["x"] for sample in stage([{"__key__": "k", "__position__": 10**12, "x": 0}])] == [expected]


def test_global_generators_are_put_back_as_they_were_even_after_an_error(numbers):
    def fail(sample):
        random.random(), np.random.rand(), torch.rand(())
        raise KeyError("no")

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    list(Loader(drawing(numbers, "global"), 12))
    with pytest.raises(KeyError):
        list(Loader(Dataset(numbers).map_random(fail, generator="global"), 12))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_global_generators_are_refused_in_threads(numbers):
    with pytest.raises(PipelineError, match="global generators") as caught:
        list(Loader(drawing(numbers, "global"), 12, num_workers=2, workers="thread"))
    assert "process" in caught.value.remedy
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wdsplit-")]


def test_a_field_that_is_missing_is_named_with_its_sample(numbers):
    dataset = Dataset(numbers).map_random(replaced, "jpg")
    with pytest.raises(PipelineError, match="jpg") as caught:
        list(Loader(dataset, 12))
    assert caught.value.key
    assert ".tar" in caught.value.place


def test_samples_without_a_position_are_refused_with_a_remedy(numbers):
    dataset = Dataset(numbers).to_tuple("__key__", "cls").map_random(whole_sample)
    with pytest.raises(PipelineError, match="no position") as caught:
        list(Loader(dataset, 12))
    assert "to_tuple" in caught.value.remedy
    assert ".tar" in caught.value.place
