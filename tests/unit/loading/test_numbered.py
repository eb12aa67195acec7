import dataclasses
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_datasets import converted, images_table, numbers_table, sized_dataset
from orders import options
from tables import all_samples, is_pad_key
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, SampleNotFoundError
from wdsplit.loading import numbered
from wdsplit.loading.numbered import NumberedSamples
from wdsplit.loading.reading.source import Source
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage


class Noting(Source):
    """Calls `note` with the path of each shard that was opened."""

    def open_shard(self, storage, number, **how):
        opened = super().open_shard(storage, number, **how)
        self.note(self.shards[number].path)
        return opened


def opened(path, note=lambda path: None, fields=None, **changes):
    """Return the samples of a dataset; its manifest has changes."""
    manifest = dataclasses.replace(read_manifest(open_storage(path)), **changes)
    source = Noting(path, manifest, options(), fields)
    source.note = note
    return NumberedSamples.of_all(source)


def found(path, key_or_index, note=lambda path: None, **changes):
    return opened(path, note, **changes).sample(key_or_index)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory, numbers):
    """Return datasets by their names.

    Those of images and of shuffled rows have keys that do not rise; those of images were escaped. The shards of the
    uneven one have very different sizes, or no samples, and no sample tables.
    """
    folder = tmp_path_factory.mktemp("kinds")
    large = numbers_table(60).append_column("bin", [[bytes([row]) * 20_000 for row in range(60)]])
    (folder / "uneven").mkdir()
    return {
        "small": numbers,
        "large": converted(folder / "large", large, shards=5, lanes=5, window=4),
        "uneven": sized_dataset(folder / "uneven", [0, 3, 0, 17, 1, 0, 40, 2, 0], lanes=2, window=4),
        "shuffled": converted(folder / "shuffled", numbers_table(101), shards=7, lanes=7, shuffle=True),
        "images": converted(folder / "images", images_table(30), key="name", shards=4, lanes=4),
    }


def real_samples_in_order(path):
    """Return (key, fields) of all samples, as tarfile reads them, pads left out."""
    return [(key, fields) for key, fields in all_samples(path) if not is_pad_key(key)]


# By number and by key


def test_a_sample_is_a_dict_of_its_fields_and_of_what_is_known_of_it(numbers):
    assert found(numbers, 17) == {
        "__key__": "00000017",
        "__url__": f"{numbers}/000001.tar",
        "__position__": 17,
        "__pad__": False,
        "cls": b"17",
        "txt": b"row 17",
    }
    for index in (np.int64(17), np.uint8(17), np.int32(-84)):
        assert found(numbers, index)["__position__"] == 17


@pytest.mark.parametrize("name", ["small", "uneven", "shuffled", "images"])
def test_every_sample_is_found_by_its_number_from_both_ends_and_by_its_key(kinds, name):
    samples, find = real_samples_in_order(kinds[name]), opened(kinds[name]).sample
    for number, (key, fields) in enumerate(samples):
        sample = find(number)
        assert (sample["__key__"], sample["__position__"], sample["__pad__"]) == (key, number, False)
        assert {field: sample[field] for field in fields} == fields
        assert find(number - len(samples)) == sample
        assert find(key) == sample


@given(st.sampled_from(["small", "large", "uneven"]), st.data())
def test_any_numbers_in_any_order_are_read_as_one_by_one(kinds, name, data):
    samples = opened(kinds[name])
    numbers = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=40))
    found = samples.read(np.array(numbers, np.int64))
    assert [sample["cls"] for sample in found] == [str(number).encode() for number in numbers]
    assert [sample["__position__"] for sample in found] == numbers
    assert found == [samples.read(np.array([number]))[0] for number in numbers]


@pytest.mark.parametrize("name", ["small", "large", "uneven"])
@pytest.mark.parametrize(("shards", "count"), [(1, 1000), (3, 1000), (64, 5), (64, 1)])
def test_what_is_read_at_a_time_changes_nothing(kinds, name, shards, count, monkeypatch):
    everything = opened(kinds[name]).read(np.arange(50))
    monkeypatch.setattr(numbered, "_SHARDS_TOGETHER", shards)
    monkeypatch.setattr(numbered, "_SAMPLES_TOGETHER", count)
    assert opened(kinds[name]).read(np.arange(50)[::-1]) == everything[::-1]


def test_samples_that_differ_in_their_fields_are_read_together(kinds):
    samples = opened(kinds["images"])
    everything = samples.read(np.arange(30))
    assert samples.read(np.array([29, 3, 3, 11])) == [everything[number] for number in (29, 3, 3, 11)]
    some = opened(kinds["images"], fields=["cls"]).read(np.array([7]))
    assert set(some[0]) == {"__key__", "__url__", "__position__", "__pad__", "cls"}


# What it costs


def test_a_number_opens_one_shard_and_a_key_among_keys_that_rise_a_few(tmp_path):
    paths = []
    path = sized_dataset(tmp_path, [3] * 200, lanes=2, window=2)
    assert found(path, -1, paths.append)["cls"] == b"599"
    assert paths == ["000199.tar"]
    assert found(path, "00000400", paths.append)["cls"] == b"400"
    assert len(paths) <= 11


def test_a_key_that_does_not_stand_in_its_place_is_looked_for_shard_by_shard_up_to_it(kinds):
    path, paths = kinds["shuffled"], []
    samples = real_samples_in_order(path)
    assert found(path, samples[20][0], paths.append, samples=None)["__position__"] == 20
    tried = len(paths)
    assert {*paths[:tried]} >= {"000000.tar", "000001.tar"}
    assert found(path, samples[100][0], paths.append, samples=None)["__position__"] == 100
    assert {*paths[tried:]} == {f"{shard:06d}.tar" for shard in range(7)}
    paths.clear()
    assert found(path, samples[100][0], paths.append)["__position__"] == 100  # sample tables spare the headers
    assert len(set(paths)) == len(paths) <= 4  # of the bisection, and its own


def test_few_shards_stay_open(tmp_path, monkeypatch):
    """Those used longest ago are closed, also while a single batch needs many more of them."""
    path = sized_dataset(tmp_path, [2] * 100, lanes=2, window=2)
    monkeypatch.setattr(numbered, "_OPEN_SHARDS", 8)
    monkeypatch.setattr(numbered, "_SHARDS_TOGETHER", 4)
    most, paths = 0, []

    def counted(path):
        nonlocal most
        paths.append(path)
        most = max(most, len(os.listdir("/proc/self/fd")))

    samples = opened(path, counted)
    before = len(os.listdir("/proc/self/fd"))
    assert len(samples.read(np.random.default_rng(0).permutation(200))) == 200
    assert most - before <= 8 + 2 * 4
    assert sorted(paths) == sorted({*paths})
    samples.read(np.arange(199, 183, -1))
    assert len(paths) == 100


# What is not there


@pytest.mark.parametrize("missing", [101, -102, 10**30, np.int64(2**62), "17", "00000101", "zebra", "0", "a b"])
def test_what_is_not_there_is_not_found(numbers, missing):
    is_key = isinstance(missing, str)
    with pytest.raises(SampleNotFoundError, match="has this key" if is_key else "has this number") as caught:
        found(numbers, missing)
    expected = "one of the keys of 101 samples" if is_key else "a number from -101 to 100"
    assert (caught.value.place, caught.value.expected) == (numbers, expected)
    assert caught.value.found == (repr(missing) if is_key else str(int(missing)))
    assert caught.value.key == (missing if is_key else "")


def test_a_pad_is_no_sample_and_a_dataset_without_samples_has_no_first_one(tmp_path, numbers):
    pad = next(key for key, _ in all_samples(numbers) if is_pad_key(key))
    empty = sized_dataset(tmp_path, [0, 0], lanes=1, window=1)
    for path, missing in ((numbers, pad), (empty, 0), (empty, -1), (empty, "00000000")):
        with pytest.raises(SampleNotFoundError):
            found(path, missing)


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, None, b"00000001", "", [1], np.array([1])])
def test_what_is_neither_a_key_nor_a_number_is_refused(numbers, wrong):
    with pytest.raises(InputError) as caught:
        found(numbers, wrong)
    assert not isinstance(caught.value, SampleNotFoundError)


def test_a_shard_that_is_damaged_or_gone_is_an_error_and_not_a_key_that_is_not_there(tmp_path):
    path = sized_dataset(tmp_path, [5] * 4, lanes=4, window=4)  # without sample tables, which know all keys
    samples, data = opened(path), (tmp_path / "000001.tar").read_bytes()
    os.truncate(f"{path}/000001.tar", 1000)
    assert samples.sample(0)["cls"] == b"0"
    for lost in (7, "00000007", "no such key"):
        with pytest.raises(CorruptDataError, match="another size"):
            found(path, lost)
    os.remove(f"{path}/000001.tar")
    for lost in (7, "00000007"):
        with pytest.raises(DatasetNotFoundError):
            samples.sample(lost)
        (tmp_path / "000001.tar").write_bytes(data)
        assert samples.sample(lost)["cls"] == b"7"  # it is opened anew
        os.remove(f"{path}/000001.tar")
        samples = opened(path)
