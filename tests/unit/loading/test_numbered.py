import os
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_datasets import converted, images_table, numbers_table, sized_dataset
from wdsplit.errors import DatasetNotFoundError
from wdsplit.loading.reading import numbered
from wdsplit.loading.reading.numbered import NumberedSamples
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage


def opened(path, opener=open_shard, **options):
    storage = open_storage(path)
    manifest = read_manifest(storage)
    return NumberedSamples(storage, manifest, partial(opener, storage, names=manifest.field_names, **options))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Return datasets of small samples, of large ones, and of shards of very different sizes."""
    folder = tmp_path_factory.mktemp("kinds")
    large = numbers_table(60).append_column("bin", [[bytes([row]) * 20_000 for row in range(60)]])
    return {
        "small": converted(folder / "small", numbers_table(101), shards=7, lanes=4, window=4),
        "large": converted(folder / "large", large, shards=5, lanes=5, window=4),
        "uneven": sized_dataset(make(folder / "uneven"), [0, 3, 0, 17, 1, 0, 40, 2, 0], lanes=2, window=4),
    }


def make(folder):
    folder.mkdir()
    return folder


@given(st.sampled_from(["small", "large", "uneven"]), st.data())
def test_any_numbers_in_any_order_are_read_as_one_by_one(kinds, name, data):
    samples = opened(kinds[name])
    numbers = data.draw(st.lists(st.integers(0, len(samples.numbers) - 1), max_size=40))
    found = samples.read(np.array(numbers, np.int64))
    assert [sample["cls"] for sample in found] == [str(number).encode() for number in numbers]
    assert [sample["__position__"] for sample in found] == numbers
    alone = [samples.read(np.array([number]))[0] for number in numbers]
    assert found == alone


@pytest.mark.parametrize("name", ["small", "large", "uneven"])
@pytest.mark.parametrize(("shards", "count"), [(1, 1000), (3, 1000), (64, 5), (64, 1)])
def test_what_is_read_at_a_time_changes_nothing(kinds, name, shards, count, monkeypatch):
    everything = opened(kinds[name]).read(np.arange(50))
    monkeypatch.setattr(numbered, "_SHARDS_TOGETHER", shards)
    monkeypatch.setattr(numbered, "_SAMPLES_TOGETHER", count)
    assert opened(kinds[name]).read(np.arange(50)[::-1]) == everything[::-1]


def test_samples_that_differ_in_their_fields_are_read_together(tmp_path):
    path = converted(tmp_path, images_table(30), key="name", shards=4, lanes=4)
    samples = opened(path)
    everything = samples.read(np.arange(30))
    assert samples.read(np.array([29, 3, 3, 11])) == [everything[number] for number in (29, 3, 3, 11)]
    some = opened(path, requested=("cls",)).read(np.array([7]))
    assert set(some[0]) == {"__key__", "__url__", "__position__", "__pad__", "cls"}


def test_a_sample_that_is_asked_for_twice_is_two_dicts(kinds):
    one, other = opened(kinds["small"]).read(np.array([5, 5]))
    one["cls"] = None
    assert other["cls"] == b"5"


def test_few_shards_stay_open(tmp_path, monkeypatch):
    """Those used longest ago are closed, also while a single batch needs many more of them."""
    path = sized_dataset(tmp_path, [2] * 100, lanes=2, window=2)
    monkeypatch.setattr(numbered, "_OPEN_SHARDS", 8)
    monkeypatch.setattr(numbered, "_SHARDS_TOGETHER", 4)
    most, paths = 0, []

    def counted(storage, shard, names):
        nonlocal most
        paths.append(shard.path)
        shard = open_shard(storage, shard, names)
        most = max(most, len(os.listdir("/proc/self/fd")))
        return shard

    samples = opened(path, counted)
    before = len(os.listdir("/proc/self/fd"))
    assert len(samples.read(np.random.default_rng(0).permutation(200))) == 200
    assert most - before <= 8 + 2 * 4
    assert sorted(paths) == sorted({*paths})
    samples.read(np.arange(199, 183, -1))
    assert len(paths) == 100


def test_a_shard_that_could_not_be_opened_is_opened_anew(tmp_path):
    path = sized_dataset(tmp_path, [2] * 3, lanes=2, window=2)
    samples = opened(path)
    (tmp_path / "000001.tar").rename(tmp_path / "away")
    with pytest.raises(DatasetNotFoundError):
        samples.read(np.array([0, 2]))
    (tmp_path / "away").rename(tmp_path / "000001.tar")
    assert len(samples.read(np.array([0, 2]))) == 2
