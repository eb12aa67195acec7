import copy
import itertools
import logging
import pickle
import types

import pyarrow as pa
import pytest
import torch.utils.data
import webdataset
from torch.testing._internal.distributed.fake_pg import FakeStore
from webdataset.compat import FluidInterface

from made_datasets import converted, delivering, expected_epoch, numbers_dataset, numbers_table
from tables import with_class_names
from wdsplit.errors import DatasetNotFoundError, InputError, TopologyError, UnsizedError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.mix import mix
from wdsplit.tar.names import RESERVED_FIELDS

# The order


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [None, 1])
def test_a_dataset_gives_the_samples_in_the_order_of_the_epoch(numbers, shuffle, lanes):
    """Unshuffled, all epochs are the same, and one lane is the table itself."""
    dataset, found = delivering(Dataset(numbers, seed=3, shuffle=shuffle, lanes=lanes)), []
    for epoch in (0, 7, 7):
        dataset.set_epoch(epoch)
        found.append(list(dataset))
        expected = expected_epoch(numbers, epoch, seed=3, shuffle=shuffle, lanes=lanes)
        assert found[-1] == list(itertools.islice(expected, 101))
    assert (found[0] == found[1]) == (not shuffle)
    assert shuffle or not lanes or [row for _, row, _ in found[0]] == list(range(101))


def test_epochs_are_shared_with_derived_datasets_and_not_with_deep_copies_and_pickles(numbers):
    base = Dataset(numbers)
    derived = base.decode().to_tuple("cls")
    base.set_epoch(3)
    assert derived.epoch == 3
    for other in (copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert other.epoch == 3
        other.set_epoch(4)
        assert base.shared.epoch == 3
    derived.set_epoch(5)
    assert base.epoch == 5
    assert [sample["__key__"] for sample in other] != [sample["__key__"] for sample in base]


# What is refused, and what is said


def test_items_are_refused_with_a_word_on_sample(numbers):
    with pytest.raises(InputError, match="cannot be indexed") as caught:
        Dataset(numbers)[0]
    assert "dataset.sample(key_or_index)" in caught.value.remedy


def test_no_dataset_is_an_error_that_names_the_path(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=str(tmp_path)):
        Dataset(str(tmp_path))
    with pytest.raises(InputError, match="path of a dataset"):
        Dataset([str(tmp_path)])


def test_rank_worker_and_seed_are_logged_once_and_not_once_a_batch(tmp_path, caplog):
    path = numbers_dataset(tmp_path, 20, shards=4, lanes=4)
    with caplog.at_level(logging.INFO, "wdsplit.loading.announcing"):
        dataset = Dataset(path, seed=11, rank=0, world_size=3)
        for _ in range(3):
            list(dataset)
            list(Loader(dataset, 2))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "rank 0 of 3, worker 0 of 1, seed 11" in messages[0]
    assert "3 ranks x 1 worker do not divide 4 lanes" in messages[1]
    assert "lanes=6" in messages[1]


@pytest.mark.parametrize("group_rank", [0, 1])
def test_a_group_whose_ranks_all_get_the_same_samples_is_warned_of_once(numbers, caplog, group_rank):
    """By rank 1, as rank 0 may evaluate alone."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=group_rank, world_size=3)
    try:
        for world_size in (2, 1, 1):
            dataset = Dataset(numbers, rank=0, world_size=world_size)
            list(dataset), next(iter(Loader(dataset, 2)))
            assert len(caplog.messages) == (group_rank if world_size == 1 else 0)
    finally:
        torch.distributed.destroy_process_group()
    assert all("rank=0, world_size=1, but the process group has 3 ranks" in each for each in caplog.messages)


# What users and libraries ask of any dataset


def test_a_dataset_has_no_length_and_says_what_to_write_instead(numbers):
    dataset = Dataset(numbers, fields=["cls"])
    with pytest.raises(UnsizedError, match=r"wdsplit.Loader\(dataset, batch_size\)(.|\n)*101 samples"):
        len(dataset)
    with pytest.raises(TypeError, match="has no length"):
        len(torch.utils.data.DataLoader(mix({numbers: 1}), batch_size=8))
    assert bool(dataset)
    samples = list(dataset)
    assert len(samples) == 101
    assert all(sample.keys() - set(RESERVED_FIELDS) == {"cls"} for sample in samples)
    assert dataset.get_shard_distribution_info(num_workers=2) == dataset.shard_distribution(num_workers=2)


class Counting:
    """Counts its steps by a length, as Transformers' Trainer does when it is made."""

    def __init__(self, dataset, max_steps):
        self.train_dataset = dataset
        self.args = types.SimpleNamespace(max_steps=max_steps)
        try:
            self.length = len(dataset)
        except TypeError:
            self.length = None


def test_what_counts_its_steps_by_the_length_is_refused_when_it_is_made(numbers):
    dataset = Dataset(numbers)
    with pytest.raises(InputError, match="no handler"):
        dataset.decode(handler=print)
    with pytest.raises(InputError, match="WdsplitTrainer"):
        Counting(dataset, -1)
    assert Counting(dataset, 6).length is None


class Training:
    """A user's own, which knows that there are other ranks."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.num_processes = 2
        self.pipeline = object()

    def rows(self):
        self.dataset.set_epoch(1)
        return [row for _, row, _ in self.dataset]


class Share(Training):
    """What gives every second sample of what its dataset gives."""

    def __iter__(self):
        return iter(self.rows()[::2])


def test_what_iterates_a_dataset_and_splits_it_again_is_refused_and_what_knows_of_other_ranks_is_not(numbers):
    dataset = delivering(Dataset(numbers, rank=0, world_size=2))
    with pytest.raises(InputError, match=r"second time(.|\n)*Share splits it among 2 processes"):
        list(Share(dataset))
    assert len(Training(dataset).rows()) == 51
    assert len(list(Share(delivering(Dataset(numbers, rank=0, world_size=1))))) == 51


@pytest.mark.parametrize(
    ("splitter", "iterated"),
    [
        (webdataset.split_by_node, lambda dataset, splitter: dataset.compose(splitter)),
        (webdataset.split_by_worker, lambda dataset, splitter: webdataset.DataPipeline(dataset, splitter)),
        (webdataset.split_by_node, lambda dataset, splitter: Loader(dataset.compose(splitter), 8)),
    ],
    ids=["a stage", "a pipeline", "a loader"],
)
def test_the_splitters_of_webdataset_after_a_dataset_are_refused(numbers, splitter, iterated):
    with pytest.raises(InputError, match=f"second time(.|\n)*remove {splitter.__name__}"):
        list(iterated(delivering(Dataset(numbers)), splitter))


def dropped_warnings(caplog):
    return [record.getMessage() for record in caplog.records if "may drop samples" in record.getMessage()]


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (lambda dataset: dataset.select(bool), "select"),
        (lambda dataset: dataset.map(dict, handler=webdataset.ignore_and_continue), "map"),
    ],
)
def test_ranks_are_warned_once_of_a_stage_that_may_drop_samples(tmp_path, caplog, stage, name):
    """And not if there is one rank, or they are uneven; not by another than the first; not where all is kept."""
    path = converted(tmp_path, numbers_table(8), shards=2, lanes=2)
    list(stage(Dataset(path, rank=0, world_size=1)))
    list(stage(Dataset(path, rank=0, world_size=2, tail="uneven")))
    list(stage(Dataset(path, rank=1, world_size=2)))
    list(Dataset(path, rank=0, world_size=2).decode().map(dict).batched(4))
    assert not dropped_warnings(caplog)
    for _ in range(2):
        assert len(list(stage(Dataset(path, rank=0, world_size=2)))) == 4
    (message,) = dropped_warnings(caplog)
    assert message.startswith(f"{path}: {name} may drop samples")


def test_a_dataset_that_repeats_or_has_another_length_is_refused(numbers):
    for name in ("repeat", "with_epoch", "with_length"):
        with pytest.raises(InputError, match="repeat, with_epoch and with_length"):
            getattr(Dataset(numbers), name)(2)


def of_classes(folder, *names):
    """Convert a column of classes, given by their names; return the dataset's folder."""
    table = pa.table({"number": [0, 1, 1], "label": [0, 1, 1]})
    return converted(folder, with_class_names(table, "label", names), shards=1)


def test_classes_are_the_names_that_the_manifest_has_and_of_a_mixture_those_that_all_have(tmp_path, numbers):
    one, same = (of_classes(tmp_path / name, "cat", "dog") for name in "ab")
    assert Dataset(one).decode().classes == mix({one: 1, same: 1}).classes == ("cat", "dog")
    assert Dataset(one, fields=["number.json"]).classes == Dataset(numbers).classes == ()
    other = of_classes(tmp_path / "c", "dog", "cat")
    with pytest.raises(InputError, match="different class names") as caught:
        _ = mix({one: 1, other: 1}).classes
    assert caught.value.place == other


def test_dir_lists_stages_and_what_users_call_and_nothing_of_the_machinery(numbers):
    listed = [name for name in dir(Dataset(numbers).decode()) if not name.startswith("__")]
    assert {"decode", "map", "map_random", "to_tuple", "set_epoch", "manifest", "classes", "compose"} <= set(listed)
    stages = [name for name in vars(FluidInterface) if not name.startswith("_")]
    assert set(stages) <= set(listed)
    assert not {"pipeline", "invoke", "repeat", "one_by_one"} & set(listed)


SUBSTITUTE = {"on_bad_sample": "substitute"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"lanes": 0}, "lanes"),
        ({"window": 0}, "window"),
        ({"tail": "repeat"}, "tail"),
        ({"read_ahead_bytes": 0}, "read_ahead_bytes"),
        ({"connections": 0}, "connections"),
        ({"cache_size": "1GB"}, "cache_size"),
        ({"on_bad_sample": "skip"}, "on_bad_sample = 'skip'"),
        (SUBSTITUTE | {"max_bad_samples": -1}, "max_bad_samples = -1"),
        (SUBSTITUTE | {"max_bad_samples": True}, "max_bad_samples = True"),
        (SUBSTITUTE | {"max_bad_samples": "5%"}, "max_bad_samples = '5%'"),
        (SUBSTITUTE | {"bad_samples_file": "s3://bucket/bad.jsonl"}, "expected the path of a local file"),
        (SUBSTITUTE | {"bad_samples_file": "/"}, "found a folder"),
        ({"bad_samples_file": "bad.jsonl"}, "expected on_bad_sample='substitute' too"),
        ({"fields": "cls"}, "fields = 'cls': expected a list"),
        ({"fields": ["cls", "jpg"]}, "no such field"),
        ({"version": 7}, r"no version 7\n  place: [^,\n]*\n"),
        ({"rank": 0}, "go together"),
        ({"rank": 2, "world_size": 2}, "contradict"),
        ({"process_group": "dp", "rank": 0, "world_size": 2}, "process_group cannot be combined with"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(numbers, options, message):
    with pytest.raises(TopologyError if {"rank", "world_size"} >= set(options) else InputError, match=message):
        Dataset(numbers, **options)
