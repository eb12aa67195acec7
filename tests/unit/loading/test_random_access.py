"""Random access by number, key and slice, in one process."""

import inspect
import os
import pickle
from functools import partial

import numpy as np
import pytest
from torch.utils.data import Dataset as TorchDataset
from webdataset.handlers import warn_and_continue

import wdsplit
from made_datasets import converted, images_table, numbers_table
from made_views import view_of
from wdsplit.errors import InputError, PipelineError, SampleNotFoundError
from wdsplit.loading.reading import numbered
from wdsplit.loading.reading.numbered import NumberedSamples
from wdsplit.loading.reading.source import Access
from wdsplit.loading.reading.windows import read_window


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
    assert rows(samples) == list(range(101))
    assert rows(samples.__getitems__([5, -1, "00000007", 5])) == [5, 100, 7, 5]
    assert samples.__getitems__([]) == []


def test_a_key_may_be_given_as_it_was_before_it_was_escaped(images):
    samples = wdsplit.Samples(images)
    assert samples["class-1/img.7"]["cls"] == b"7"
    assert "class-1/img.7" in samples
    assert "class-1/img.8" not in samples
    assert 7 not in samples


@pytest.mark.parametrize(
    "part",
    [slice(10, 20), slice(None), slice(-5, None), slice(90, 500), slice(None, None, -7), slice(5, 5), slice(3, 90, 8)],
)
def test_a_slice_is_a_range_of_samples(numbers, part):
    samples, expected = wdsplit.Samples(numbers)[part], list(range(101))[part]
    assert len(samples) == len(expected)
    assert rows(samples) == expected
    assert rows(samples[1:-1:2]) == expected[1:-1:2]
    assert [int(samples[number]["cls"]) for number in range(-len(expected), len(expected))] == 2 * expected
    assert [sample["__position__"] for sample in samples] == expected
    for row in (10, 50):
        assert (f"{row:08d}" in samples) == (row in expected)
        if row in expected:
            assert samples[f"{row:08d}"]["__position__"] == row


def test_a_slice_reads_nothing(numbers, monkeypatch):
    samples = wdsplit.Samples(numbers)
    monkeypatch.setattr(os, "open", None)
    assert len(samples[10:20].decode()) == 10


@pytest.mark.parametrize("index", [101, -102, "zz", np.int64(2**62)])
def test_what_is_not_there_is_an_index_error_and_a_key_error(numbers, index):
    samples = wdsplit.Samples(numbers)
    for error in (IndexError, KeyError, SampleNotFoundError):
        with pytest.raises(error):
            samples[index]
    with pytest.raises(SampleNotFoundError, match="no sample has this number"):
        samples[10:20][10]
    with pytest.raises(SampleNotFoundError, match="no sample has this key"):
        samples[10:20]["00000020"]


@pytest.mark.parametrize("index", [1.0, None, True, b"x", [1], [1, 2], np.array([1]), np.array([1, 2])])
def test_what_is_neither_number_nor_key_is_refused(numbers, index):
    with pytest.raises(InputError, match="invalid key or number"):
        wdsplit.Samples(numbers)[index]


def test_keys_that_do_not_rise_are_found_too(shuffled, monkeypatch):
    samples = wdsplit.Samples(shuffled)
    keys = [sample["__key__"] for sample in samples]
    assert keys != sorted(keys)
    assert [samples[key]["__position__"] for key in keys] == list(range(101))
    monkeypatch.setattr(NumberedSamples, "_read_keys", None)  # they are kept
    assert samples[keys[50]]["__position__"] == 50


def test_keys_come_from_the_sample_tables_if_there_are_any(shuffled, monkeypatch):
    samples, parsed = wdsplit.Samples(shuffled), []
    keys = [sample["__key__"] for sample in samples]

    def read_headers(shard, samples):
        parsed.append(len(samples))
        return read_window(shard, samples)

    monkeypatch.setattr(numbered, "read_window", read_headers)
    assert [samples[key]["__position__"] for key in keys] == list(range(101))
    assert set(parsed) == {1}  # the headers of the bisection, one by one


# Views, limits, fields


def test_a_view_is_counted_through(numbers):
    samples = wdsplit.Samples(numbers, view=odd(numbers))
    assert len(samples) == 50
    assert rows(samples) == list(range(1, 101, 2))
    assert samples[3]["__position__"] == 7
    assert samples["00000007"] == samples[3]
    assert rows(samples[10:13]) == [21, 23, 25]
    with pytest.raises(SampleNotFoundError, match="no sample has this key"):
        samples["00000008"]
    with pytest.raises(SampleNotFoundError):
        samples[50]
    assert "odd" in repr(samples)


def test_a_limit_and_fields(numbers):
    samples = wdsplit.Samples(numbers, limit=10, fields=["cls"])
    assert rows(samples) == list(range(10))
    assert "txt" not in samples[3]
    assert rows(wdsplit.Samples(numbers, limit=10, view=odd(numbers))) == [1, 3, 5, 7, 9]


def test_views_by_epoch_are_refused(numbers):
    with pytest.raises(InputError, match="one view, not a view for each epoch"):
        wdsplit.Samples(numbers, view={0: None})


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
    iterator = iter(samples)
    next(iterator)
    next(iterator)
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
    for name, value in (("seed", -1), ("connections", 0), ("fields", ["nix"]), ("cache_size", "1GB")):
        with pytest.raises(InputError):
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


def test_an_empty_range_has_no_samples(numbers):
    samples = wdsplit.Samples(numbers)[5:5]
    assert list(samples) == []
    with pytest.raises(SampleNotFoundError, match="there are no samples"):
        samples[0]
