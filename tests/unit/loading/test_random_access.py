"""Random access by number, key and slice, in one process."""

import dataclasses
import inspect
import os
import pickle
from functools import partial
from itertools import islice
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset as TorchDataset
from webdataset.handlers import warn_and_continue

import wdsplit
from made_datasets import converted, images_table, numbers_table, sized_dataset
from made_views import view_of
from orders import options
from tables import all_samples, is_pad_key
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, PipelineError, SampleNotFoundError
from wdsplit.loading import numbered
from wdsplit.loading.numbered import NumberedSamples
from wdsplit.loading.reading.source import Access, Source
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage


@pytest.fixture(scope="module")
def kinds(tmp_path_factory, numbers):
    """Return datasets by their names.

    Those of images and of shuffled rows have keys that do not rise; those of images were escaped. The shards of the
    uneven one have very different sizes, or no samples, and no sample tables.
    """
    folder = tmp_path_factory.mktemp("kinds")
    large = numbers_table(60).append_column("bin", [[bytes([row]) * 20_000 for row in range(60)]])
    return {
        "small": numbers,
        "large": converted(folder / "large", large, shards=5, lanes=5, window=4),
        "uneven": sized_dataset(folder / "uneven", [0, 3, 0, 17, 1, 0, 40, 2, 0], lanes=2, window=4),
        "shuffled": converted(folder / "shuffled", numbers_table(101), shards=7, lanes=7, shuffle=True),
        "images": converted(folder / "images", images_table(30), key="name", shards=4, lanes=4),
    }


@pytest.fixture
def opened(monkeypatch):
    """Return the path of each shard that is opened, and how many files are open then."""
    shards, real = [], Source.open_shard

    def noting(source, storage, number, **how):
        shard = real(source, storage, number, **how)
        shards.append((source.shards[number].path, num_open_files()))
        return shard

    monkeypatch.setattr(Source, "open_shard", noting)
    return shards


def num_open_files():
    return len(os.listdir("/proc/self/fd"))


def odd(path):
    """Return the view of the samples with odd numbers."""
    return view_of(path, range(1, 101, 2), "odd")


def rows(samples):
    return [int(sample["cls"]) for sample in samples]


# Numbers, keys, slices


def test_a_sample_is_a_dict_of_its_fields_and_of_what_is_known_of_it(numbers):
    samples, dataset = wdsplit.Samples(numbers), wdsplit.Dataset(numbers)
    known = {"__key__": "00000017", "__url__": f"{numbers}/000001.tar", "__position__": 17, "__pad__": False}
    for index in (17, -84, np.int64(17), np.uint8(17), np.int32(-84), "00000017"):
        assert samples[index] == dataset.sample(index) == {**known, "cls": b"17", "txt": b"row 17"}
    assert rows(samples.__getitems__([5, -1, "00000007", 5])) == [5, 100, 7, 5]
    assert samples.__getitems__([]) == []


@pytest.mark.parametrize("name", ["small", "uneven", "shuffled", "images"])
def test_every_sample_is_found_by_its_number_from_both_ends_and_by_its_key(kinds, name):
    expected = [(key, fields) for key, fields in all_samples(kinds[name]) if not is_pad_key(key)]
    samples = wdsplit.Samples(kinds[name])
    assert len(samples) == len(expected)
    for number, (key, fields) in enumerate(expected):
        sample = samples[number]
        assert (sample["__key__"], sample["__position__"], sample["__pad__"]) == (key, number, False)
        assert {field: sample[field] for field in fields} == fields
        assert samples[number - len(samples)] == samples[key] == sample
    assert key in samples and f"{key}x" not in samples and number not in samples


@given(
    st.sampled_from(["small", "large", "uneven", "images"]),
    st.sampled_from([(64, 1024), (1, 1000), (3, 1000), (64, 5), (64, 1)]),
    st.data(),
)
def test_any_numbers_in_any_order_are_read_as_one_by_one_however_many_at_a_time(kinds, name, at_once, data):
    samples = wdsplit.Samples(kinds[name])
    some = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=40))
    with patch.multiple(numbered, _SHARDS_TOGETHER=at_once[0], _SAMPLES_TOGETHER=at_once[1]):
        found = samples.__getitems__(some)
    assert rows(found) == [sample["__position__"] for sample in found] == some
    assert found == [samples[number] for number in some]


@pytest.mark.parametrize(
    ("limit", "is_viewed", "chosen"),
    [(None, False, range(101)), (None, True, range(1, 101, 2)), (10, True, range(1, 10, 2))],
)
def test_samples_are_a_list_also_of_a_slice_of_a_limit_and_of_a_view(numbers, limit, is_viewed, chosen):
    view = odd(numbers) if is_viewed else None
    everything = wdsplit.Samples(numbers, limit=limit, view=view, fields=["cls"])
    assert ("odd" in repr(everything)) == is_viewed
    for part in (slice(10, 20), slice(-5, None), slice(90, 500), slice(None, None, -7), slice(5, 5), slice(3, 90, 8)):
        samples, expected = everything[part], list(chosen)[part]
        assert len(samples) == len(expected)
        assert rows(samples) == [sample["__position__"] for sample in samples] == expected
        assert rows(samples[1:-1:2]) == expected[1:-1:2]
        assert [int(samples[number]["cls"]) for number in range(-len(expected), len(expected))] == 2 * expected
        for row in (7, 10, 50):
            assert (f"{row:08d}" in samples) == (row in expected)
        for missing in (len(expected), f"{8 if is_viewed else 101:08d}"):
            with pytest.raises(SampleNotFoundError):
                samples[missing]


# What is not there


@pytest.mark.parametrize("missing", [101, -102, 10**30, np.int64(2**62), "17", "00000101", "zebra", "a b"])
def test_what_is_not_there_is_not_found(numbers, missing):
    is_key = isinstance(missing, str)
    for error in (IndexError, KeyError, SampleNotFoundError):
        with pytest.raises(error, match="has this key" if is_key else "has this number") as caught:
            wdsplit.Samples(numbers)[missing]
    expected = "one of the keys of 101 samples" if is_key else "a number from -101 to 100"
    assert (caught.value.place, caught.value.expected) == (numbers, expected)
    assert caught.value.found == (repr(missing) if is_key else str(int(missing)))
    assert caught.value.key == (missing if is_key else "")


def test_a_pad_is_no_sample_and_a_dataset_or_range_without_samples_has_no_first_one(tmp_path, numbers):
    pad = next(key for key, _ in all_samples(numbers) if is_pad_key(key))
    empty = sized_dataset(tmp_path, [0, 0], lanes=1, window=1)
    for path, missing in ((numbers, pad), (empty, 0), (empty, -1), (empty, "00000000")):
        with pytest.raises(SampleNotFoundError):
            wdsplit.Dataset(path).sample(missing)
    part = wdsplit.Samples(numbers)[5:5]
    assert list(part) == []
    with pytest.raises(SampleNotFoundError, match="there are no samples"):
        part[0]


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, None, b"00000001", "", [1], np.array([1, 2])])
def test_what_is_neither_a_key_nor_a_number_is_refused(numbers, wrong):
    for read in (wdsplit.Samples(numbers).__getitem__, wdsplit.Dataset(numbers).sample):
        with pytest.raises(InputError) as caught:
            read(wrong)
        assert not isinstance(caught.value, SampleNotFoundError)


def test_a_shard_that_is_damaged_or_gone_is_an_error_and_not_a_key_that_is_not_there(tmp_path):
    path = sized_dataset(tmp_path, [5] * 4, lanes=4, window=4)  # without sample tables, which know all keys
    samples, data = wdsplit.Samples(path), (tmp_path / "000001.tar").read_bytes()
    os.truncate(f"{path}/000001.tar", 1000)
    assert samples[0]["cls"] == b"0"
    for lost in (7, "00000007", "no such key"):
        with pytest.raises(CorruptDataError, match="another size"):
            wdsplit.Samples(path)[lost]
    os.remove(f"{path}/000001.tar")
    for lost in (7, "00000007"):
        with pytest.raises(DatasetNotFoundError):
            samples[lost]
        (tmp_path / "000001.tar").write_bytes(data)
        assert samples[lost]["cls"] == b"7"  # it is opened anew
        os.remove(f"{path}/000001.tar")
        samples = wdsplit.Samples(path)


# What it costs


def test_a_number_opens_one_shard_and_a_key_among_keys_that_rise_a_few_and_a_slice_none(tmp_path, opened):
    samples = wdsplit.Samples(sized_dataset(tmp_path, [3] * 200, lanes=2, window=2))
    assert len(samples[10:20].decode()) == 10
    assert opened == []
    assert samples[-1]["cls"] == b"599"
    assert [path for path, _ in opened] == ["000199.tar"]
    assert samples["00000400"]["cls"] == b"400"
    assert len(opened) <= 11


def test_a_key_that_does_not_stand_in_its_place_is_looked_for_shard_by_shard_up_to_it(kinds, opened):
    path = kinds["shuffled"]
    keys = [key for key, _ in all_samples(path) if not is_pad_key(key)]

    def found(number, **changes):
        opened.clear()
        manifest = dataclasses.replace(read_manifest(open_storage(path)), **changes)
        assert NumberedSamples.of_all(Source(path, manifest, options())).sample(keys[number])["__position__"] == number
        return {path for path, _ in opened}

    assert found(20, samples=None) >= {"000000.tar", "000001.tar"}
    assert found(100, samples=None) == {f"{shard:06d}.tar" for shard in range(7)}
    assert len(found(100)) == len(opened) <= 4  # of the bisection, and its own: sample tables spare the headers


def test_few_shards_stay_open(tmp_path, monkeypatch, opened):
    """Those used longest ago are closed, also while a single batch needs many more of them."""
    path = sized_dataset(tmp_path, [2] * 100, lanes=2, window=2)
    monkeypatch.setattr(numbered, "_OPEN_SHARDS", 8)
    monkeypatch.setattr(numbered, "_SHARDS_TOGETHER", 4)
    samples, before = wdsplit.Samples(path), num_open_files()
    assert len(samples.__getitems__(np.random.default_rng(0).permutation(200).tolist())) == 200
    assert max(num_files for _, num_files in opened) - before <= 8 + 2 * 4
    assert sorted(path for path, _ in opened) == [f"{shard:06d}.tar" for shard in range(100)]
    samples.__getitems__(list(range(199, 183, -1)))
    assert len(opened) == 100


# Stages


def test_stages_are_those_of_a_dataset(kinds):
    raw = wdsplit.Samples(kinds["images"])
    samples = raw.decode("rgb8").rename(label="cls").map_dict(label=lambda label: label + 100)
    image, label = samples.to_tuple("png", "label")[3]
    assert (image.shape, label) == ((6, 8, 3), 103)
    assert samples.map(lambda sample: sample["label"])[0:3].map(lambda label: -label)[-1] == -102
    assert [type(sample["png"]) for sample in raw[:2]] == [bytes, bytes]


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


def test_it_is_a_map_style_dataset_with_a_repr_and_the_arguments_of_dataset(numbers):
    samples = wdsplit.Samples(numbers)
    assert isinstance(samples, TorchDataset) and samples
    assert repr(samples[:7].decode()) == f"<Samples {numbers}: 7 samples, 1 stage>"
    assert "101" in samples._repr_html_()
    assert not {"shuffle", "batched", "pipeline"} & set(dir(samples))
    assert {"map", "decode", "set_epoch"} <= set(dir(samples))
    of_dataset = inspect.signature(wdsplit.Dataset).parameters
    for name, parameter in inspect.signature(wdsplit.Samples).parameters.items():
        assert parameter.default == of_dataset[name].default, name
    wrong = {"seed": -1, "connections": 0, "fields": ["nix"], "cache_size": "1GB", "view": {0: None}}
    for name, value in wrong.items():
        with pytest.raises(InputError, match="one view, not a view for each epoch" if name == "view" else None):
            wdsplit.Samples(numbers, **{name: value})


def test_a_pickle_is_small_and_reads_the_same(kinds):
    samples = wdsplit.Samples(kinds["shuffled"]).decode().to_tuple("__key__", "cls")
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
