"""Random access by number, key and slice, in one process."""

import inspect
import os
import pickle
from functools import partial
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import Dataset as TorchDataset
from webdataset.handlers import warn_and_continue

import wdsplit
from made_datasets import converted, images_table, numbers_table
from made_views import view_of
from wdsplit.errors import InputError, PipelineError, SampleNotFoundError
from wdsplit.loading.reading.source import Access


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Return a dataset of images whose keys were escaped, and neither rise nor all look alike."""
    return converted(tmp_path_factory.mktemp("images"), images_table(30), key="name", shards=4, lanes=4)


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("shuffled"), numbers_table(101), shards=7, lanes=7, shuffle=True)


def odd(path):
    """Return the view of the samples with odd numbers."""
    return view_of(path, range(1, 101, 2), "odd")


def rows(samples):
    return [int(sample["cls"]) for sample in samples]


# Numbers, keys, slices


def test_a_sample_is_that_of_dataset_sample(numbers):
    samples, dataset = wdsplit.Samples(numbers), wdsplit.Dataset(numbers)
    assert len(samples) == 101
    for number in (0, 17, 100, -1, -101):
        assert samples[number] == dataset.sample(number)
    assert samples["00000017"] == samples[17] == dataset.sample("00000017")
    assert rows(samples.__getitems__([5, -1, "00000007", 5])) == [5, 100, 7, 5]
    assert samples.__getitems__([]) == []


@pytest.mark.parametrize(
    "part",
    [slice(10, 20), slice(None), slice(-5, None), slice(90, 500), slice(None, None, -7), slice(5, 5), slice(3, 90, 8)],
)
@pytest.mark.parametrize(
    ("limit", "is_viewed", "chosen"),
    [(None, False, range(101)), (None, True, range(1, 101, 2)), (10, False, range(10)), (10, True, range(1, 10, 2))],
)
def test_samples_are_a_list_also_of_a_slice_of_a_limit_and_of_a_view(numbers, limit, is_viewed, chosen, part):
    view = odd(numbers) if is_viewed else None
    samples, expected = wdsplit.Samples(numbers, limit=limit, view=view, fields=["cls"])[part], list(chosen)[part]
    assert len(samples) == len(expected)
    assert rows(samples) == expected
    assert rows(samples[1:-1:2]) == expected[1:-1:2]
    assert [int(samples[number]["cls"]) for number in range(-len(expected), len(expected))] == 2 * expected
    assert [sample["__position__"] for sample in samples] == expected
    for row in (7, 10, 50):
        assert (f"{row:08d}" in samples) == (row in expected)
        if row in expected:
            assert samples[f"{row:08d}"]["__position__"] == row
    for missing in (len(expected), f"{8 if is_viewed else 101:08d}"):
        with pytest.raises(SampleNotFoundError):
            samples[missing]
    assert ("odd" in repr(samples)) == is_viewed


def test_what_is_not_in_a_range_is_not_found(numbers, images):
    samples = wdsplit.Samples(numbers)
    for error in (IndexError, KeyError, SampleNotFoundError):
        with pytest.raises(error, match="no sample has this number"):
            samples[10:20][10]
        with pytest.raises(error, match="no sample has this key"):
            samples[10:20]["00000020"]
        with pytest.raises(error, match="there are no samples"):
            samples[5:5][0]
    assert list(samples[5:5]) == []
    for wrong in (1.0, [1], [1, 2], np.array([1, 2])):
        with pytest.raises(InputError, match="invalid key or number"):
            samples[wrong]
    assert "class-1/img.7" in wdsplit.Samples(images)
    assert "class-1/img.8" not in wdsplit.Samples(images)
    assert 7 not in wdsplit.Samples(images)


def test_a_slice_reads_nothing(numbers, monkeypatch):
    samples = wdsplit.Samples(numbers)
    monkeypatch.setattr(os, "open", None)
    assert len(samples[10:20].decode()) == 10


# Stages


def test_stages_are_those_of_a_dataset(images):
    samples = wdsplit.Samples(images).decode("rgb8").rename(label="cls").map_dict(label=lambda label: label + 100)
    image, label = samples.to_tuple("png", "label")[3]
    assert (image.shape, label) == ((6, 8, 3), 103)
    assert samples.map(lambda sample: sample["label"])[0:3].map(lambda label: -label)[-1] == -102
    assert [type(sample["png"]) for sample in wdsplit.Samples(images)[:2]] == [bytes, bytes]


def test_chance_depends_on_seed_epoch_and_number_alone(numbers):
    def drawn(samples):
        return samples.map_random(lambda sample, generator: (int(sample["cls"]), generator.random()))

    samples = drawn(wdsplit.Samples(numbers))
    first = dict(samples)
    assert dict(samples.__getitems__([70, 3, 9])) == {row: first[row] for row in (70, 3, 9)}
    assert dict(samples[3:10]) == {row: first[row] for row in range(3, 10)}
    assert dict(drawn(wdsplit.Samples(numbers, view=odd(numbers)))) == {row: first[row] for row in range(1, 101, 2)}
    samples.set_epoch(1)
    assert samples.epoch == samples[3:4].epoch == 1
    assert not set(dict(samples).values()) & set(first.values())
    assert not set(dict(drawn(wdsplit.Samples(numbers, seed=1))).values()) & set(first.values())
    ordered = wdsplit.Dataset(numbers, shuffle=False, lanes=1, rank=0, world_size=1)
    assert dict(drawn(ordered)) == first
    with pytest.raises(InputError, match="epoch"):
        samples.set_epoch(-1)


@pytest.mark.parametrize(
    ("stage", "remedy"),
    [
        (lambda samples: samples.shuffle(10), "shuffle=True"),
        (lambda samples: samples.batched(4), "batch_size"),
        (lambda samples: samples.select(bool), "where"),
        (lambda samples: samples.rsample(), "RandomSampler"),
        (lambda samples: samples.slice(3), "samples[10:20]"),
        (lambda samples: samples.unbatched(), "leave it out"),
        (lambda samples: samples.map(bool, handler=warn_and_continue), "leave it out"),
    ],
)
def test_stages_that_are_not_one_to_one_are_refused(numbers, stage, remedy):
    with pytest.raises(InputError, match="Samples has no such stage") as caught:
        stage(wdsplit.Samples(numbers))
    assert remedy in caught.value.remedy


def test_a_stage_of_ones_own_that_drops_samples_is_refused_when_it_does(numbers):
    samples = wdsplit.Samples(numbers).compose(lambda stream: (s for s in stream if s["cls"] != b"3"))
    assert samples[4]["cls"] == b"4"
    with pytest.raises(PipelineError, match="one sample for each"):
        samples[3]


def test_an_iteration_runs_the_stages_as_samples_are_taken(numbers):
    mapped = []
    samples = wdsplit.Samples(numbers).map(lambda sample: mapped.append(sample["__position__"]) or sample)
    list(islice(samples, 2))
    assert mapped == [0, 1]


# What it is


def test_it_is_a_map_style_dataset_with_a_repr(numbers):
    samples = wdsplit.Samples(numbers)
    assert isinstance(samples, TorchDataset)
    assert repr(samples[:7].decode()) == f"<Samples {numbers}: 7 samples, 1 stages>"
    assert "101" in samples._repr_html_()
    assert samples
    assert not {"shuffle", "batched", "pipeline"} & set(dir(samples))
    assert {"map", "decode", "set_epoch"} <= set(dir(samples))


def test_its_arguments_are_those_of_dataset(numbers):
    of_dataset = inspect.signature(wdsplit.Dataset).parameters
    for name, parameter in inspect.signature(wdsplit.Samples).parameters.items():
        assert parameter.default == of_dataset[name].default, name
    wrong = {"seed": -1, "connections": 0, "fields": ["nix"], "cache_size": "1GB", "view": {0: None}}
    for name, value in wrong.items():
        with pytest.raises(InputError, match="one view, not a view for each epoch" if name == "view" else None):
            wdsplit.Samples(numbers, **{name: value})


def test_a_pickle_is_small_and_reads_the_same(shuffled):
    samples = wdsplit.Samples(shuffled).decode().to_tuple("__key__", "cls")
    before = len(pickle.dumps(samples))
    everything = list(samples)
    assert samples[everything[60][0]] == everything[60]  # all keys were read
    samples.set_epoch(3)
    data = pickle.dumps(samples)
    assert len(data) <= before + 100 < 10_000
    copied = pickle.loads(data)
    assert (list(copied), copied.epoch) == (everything, 3)


def test_copies_share_what_is_open(numbers, monkeypatch):
    samples = wdsplit.Samples(numbers)
    list(samples)
    monkeypatch.setattr(Access, "open_shard", None)
    assert rows(samples[3:7].map(partial(dict)))[0] == 3
