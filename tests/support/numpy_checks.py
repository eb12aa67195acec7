"""Checks of what works without torch, in a process where it cannot be imported; run by test_numpy_only.py."""

import io
import itertools
import sys

import numpy as np
import pytest
from PIL import Image

import wdsplit
from checks import documented_block
from made_datasets import all_deliveries, delivering, expected_batches, expected_epoch, global_batches, loaders_of
from wdsplit.checks.audit import AuditOptions, audit

NUM_SAMPLES = 101
THREADS = {"num_workers": 3, "workers": "thread"}


def check_nothing_has_loaded_torch(path):
    list(wdsplit.Loader(wdsplit.Dataset(path).decode(), 8, **THREADS))
    assert [name for name in sys.modules if name.split(".")[0] == "torch"] == ["torch"]
    assert sys.modules["torch"] is None


def check_batches_are_arrays_and_lists(path):
    for options in ({}, THREADS):
        batch = next(iter(wdsplit.Loader(wdsplit.Dataset(path).decode(), 8, **options)))
        assert {name: type(values) for name, values in batch.items()} == {
            "__key__": list,
            "__url__": list,
            "__position__": np.ndarray,
            "__pad__": np.ndarray,
            "cls": np.ndarray,
            "txt": list,
        }
        assert (batch["cls"].dtype, batch["__pad__"].dtype, batch["cls"].shape) == (np.int64, np.bool_, (8,))
        batch["cls"] += 1


def check_ranks_have_the_batches_that_they_have_with_torch(path):
    for world_size, num_workers in ((1, 0), (2, 0), (3, 0)):
        batches = global_batches(loaders_of(path, world_size, num_workers=num_workers, epoch=1))
        assert batches == expected_batches(path, len(batches), epoch=1)


def check_threads_have_the_batches_of_none(path):
    loader = wdsplit.Loader(delivering(wdsplit.Dataset(path)), 12, **THREADS)
    for epoch in range(2):
        assert all_deliveries(loader) == list(itertools.islice(expected_epoch(path, epoch), 12 * len(loader)))


def check_a_state_resumes_on_other_ranks(path):
    loaders = loaders_of(path, 2)
    begun = global_batches(loaders, steps=4)
    state = loaders[0].state_dict()
    rest = loaders_of(path, 3)
    for loader in rest:
        loader.load_state_dict(state)
    assert begun + global_batches(rest) == expected_batches(path, 9)


def check_chance_needs_no_torch(path):
    def drawn(generator):
        dataset = wdsplit.Dataset(path).decode().map_random(draw, field="cls", generator=generator)
        return [value for batch in wdsplit.Loader(dataset.to_tuple("cls"), 8) for value in batch[0].tolist()]

    def draw(value, generator=None):
        return float((generator or np.random).random())

    for generator in ("numpy", "python", "global"):
        assert drawn(generator) == drawn(generator)
        assert len(set(drawn(generator))) >= NUM_SAMPLES


def check_mixtures_need_no_torch(path):
    mixed = wdsplit.mix({path: 1.0})
    rows = [row for batch in wdsplit.Loader(mixed.decode().to_tuple("cls"), 8, **THREADS) for row in batch[0].tolist()]
    assert set(rows) == set(range(NUM_SAMPLES))


def check_random_access_needs_no_torch(path):
    samples = wdsplit.Samples(path).decode().to_tuple("cls")
    assert (samples[17], samples["00000017"], list(samples[3:5])) == ((17,), (17,), [(3,), (4,)])


def check_auditing_needs_no_torch(path):
    assert audit(path, AuditOptions(world_size=2, read=True)).held


def check_images_can_be_resized_without_torch(path):
    file = io.BytesIO()
    Image.fromarray(np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)).save(file, "PNG")

    def resized(**options):
        stage = wdsplit.Dataset(path).map(lambda sample: {"png": file.getvalue()}).decode(wdsplit.resized(8, **options))
        return next(iter(wdsplit.Loader(stage, 4)))["png"]

    assert resized(output="numpy", library="pillow").shape == (4, 8, 8, 3)
    with pytest.raises(wdsplit.MissingDependencyError, match="torch is not installed"):
        resized()


def check_what_needs_torch_says_so(path):
    dataset = wdsplit.Dataset(path)
    for options, wanted in (({"output": "torch"}, "tensors"), ({"num_workers": 2}, "worker processes")):
        with pytest.raises(wdsplit.MissingDependencyError) as caught:
            wdsplit.Loader(dataset, 8, **options)
        assert caught.value.place == wanted
        assert "pip install 'wdsplit[torch]'" in caught.value.remedy
    with pytest.raises(wdsplit.MissingDependencyError, match="torch"):
        wdsplit.EpochShardList  # noqa: B018


def check_the_block_of_the_documentation_runs(path):
    names = {"wdsplit": wdsplit, "dataset": wdsplit.Dataset(path).decode().to_tuple("cls", "txt")}
    exec(documented_block("loading.md", 'output="numpy"'), names)
    assert isinstance(names["images"], np.ndarray)
