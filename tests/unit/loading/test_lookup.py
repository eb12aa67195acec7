import dataclasses
import os
from functools import partial

import numpy as np
import pytest

from made_datasets import converted, image_pixels, images_table, numbers_table, png_bytes, sized_dataset
from tables import all_samples, is_pad_key
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, SampleNotFoundError
from wdsplit.loading.reading.numbered import NumberedSamples
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage
from wdsplit.tar.names import escape_key


def samples_of(path, opener=open_shard, **changes):
    storage = open_storage(path)
    manifest = dataclasses.replace(read_manifest(storage), **changes)
    return NumberedSamples(storage, manifest, partial(opener, storage, names=manifest.field_names))


def found(path, key_or_index, opener=open_shard, **changes):
    return samples_of(path, opener, **changes).sample(key_or_index)


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    """Return a dataset of numbers whose keys do not rise."""
    return converted(tmp_path_factory.mktemp("shuffled"), numbers_table(101), shards=7, lanes=7, shuffle=True)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Return a dataset of images whose keys were escaped, and neither rise nor all look alike."""
    return converted(tmp_path_factory.mktemp("images"), images_table(30), key="name", shards=4, lanes=4)


@pytest.fixture
def opened():
    """Return what opens shards, and the list of those that it has opened."""
    paths = []

    def noted(storage, shard, names):
        paths.append(shard.path)
        return open_shard(storage, shard, names)

    return noted, paths


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


@pytest.mark.parametrize("name", ["numbers", "shuffled", "images"])
def test_every_sample_is_found_by_its_number_from_both_ends_and_by_its_key(name, request):
    path = request.getfixturevalue(name)
    samples, find = real_samples_in_order(path), samples_of(path).sample
    for number, (key, fields) in enumerate(samples):
        sample = find(number)
        assert (sample["__key__"], sample["__position__"], sample["__pad__"]) == (key, number, False)
        assert {field: sample[field] for field in fields} == fields
        assert find(number - len(samples)) == sample
        assert find(key) == sample


def test_shards_of_nothing_and_of_pads_only_are_passed_over(tmp_path):
    path = sized_dataset(tmp_path, [0, 3, 0, 0, 2, 1, 0], lanes=2, window=2)
    assert [found(path, number)["cls"] for number in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [found(path, f"{number:08d}")["cls"] for number in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_key_may_be_given_as_it_was_before_it_was_escaped(images):
    raw = "class-1/img.7"
    assert found(images, raw) == found(images, escape_key(raw))
    assert found(images, raw)["png"] == png_bytes(image_pixels(7))
    assert found(images, raw)["__key__"] == escape_key(raw) != raw


@pytest.mark.parametrize("index", [np.int64(3), np.uint8(3), np.int32(-98)])
def test_the_number_may_be_one_of_numpys(numbers, index):
    assert found(numbers, index)["cls"] == b"3"


# What it costs


def test_a_key_among_keys_that_rise_is_found_in_a_few_shards(tmp_path, opened):
    opener, paths = opened
    path = sized_dataset(tmp_path, [3] * 200, lanes=2, window=2)
    assert found(path, "00000400", opener)["cls"] == b"400"
    assert len(paths) <= 10


def test_a_number_opens_one_shard(numbers, opened):
    opener, paths = opened
    assert found(numbers, -1, opener)["cls"] == b"100"
    assert paths == ["000006.tar"]


def test_a_key_that_does_not_stand_in_its_place_is_looked_for_shard_by_shard_up_to_it(shuffled, opened):
    samples, (opener, paths) = real_samples_in_order(shuffled), opened
    assert found(shuffled, samples[20][0], opener, samples=None)["__position__"] == 20
    tried = len(paths)
    assert {*paths[:tried]} >= {"000000.tar", "000001.tar"}
    assert found(shuffled, samples[100][0], opener, samples=None)["__position__"] == 100
    assert {*paths[tried:]} == {f"{shard:06d}.tar" for shard in range(7)}


def test_sample_tables_spare_the_headers_of_shards(shuffled, opened):
    samples, (opener, paths) = real_samples_in_order(shuffled), opened
    assert found(shuffled, samples[100][0], opener)["__position__"] == 100
    assert len(set(paths)) == len(paths) <= 4  # of the bisection, and its own


# What is not there


@pytest.mark.parametrize("index", [101, -102, 10**30, np.int64(2**62)])
def test_a_number_beyond_the_samples_is_not_found(numbers, index):
    with pytest.raises(SampleNotFoundError, match="no sample has this number") as caught:
        found(numbers, index)
    assert isinstance(caught.value, IndexError)
    assert (caught.value.place, caught.value.expected) == (numbers, "a number from -101 to 100")
    assert caught.value.found == str(int(index))


@pytest.mark.parametrize("key", ["17", "00000101", "zebra", "0", "a b"])
def test_a_key_that_no_sample_has_is_not_found(numbers, key):
    with pytest.raises(SampleNotFoundError, match="no sample has this key") as caught:
        found(numbers, key)
    assert isinstance(caught.value, KeyError)
    assert (caught.value.key, caught.value.found) == (key, repr(key))
    assert "101 samples" in caught.value.expected


def test_a_pad_is_no_sample(numbers):
    pads = [key for key, _ in all_samples(numbers) if is_pad_key(key)]
    assert pads
    with pytest.raises(SampleNotFoundError):
        found(numbers, pads[0])


def test_a_dataset_without_samples_has_no_first_one(tmp_path):
    path = sized_dataset(tmp_path, [0, 0], lanes=1, window=1)
    for missing in (0, -1, "00000000"):
        with pytest.raises(SampleNotFoundError):
            found(path, missing)


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, None, b"00000001", "", [1]])
def test_what_is_neither_a_key_nor_a_number_is_refused(numbers, wrong):
    with pytest.raises(InputError) as caught:
        found(numbers, wrong)
    assert not isinstance(caught.value, SampleNotFoundError)


def test_a_shard_that_is_damaged_or_gone_is_an_error_and_not_a_key_that_is_not_there(tmp_path):
    path = sized_dataset(tmp_path, [5] * 4, lanes=4, window=4)  # without sample tables, which know all keys
    os.truncate(f"{path}/000001.tar", 1000)
    assert found(path, 0)["cls"] == b"0"
    for lost in (7, "00000007", "no such key"):
        with pytest.raises(CorruptDataError, match="another size"):
            found(path, lost)
    os.remove(f"{path}/000001.tar")
    with pytest.raises(DatasetNotFoundError):
        found(path, 7)
