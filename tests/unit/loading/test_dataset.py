import copy
import itertools
import json
import logging
import pickle
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data
import webdataset
from webdataset.compat import FluidInterface

from made_datasets import (
    converted,
    delivering,
    expected_epoch,
    image_pixels,
    images_table,
    numbers_dataset,
    real_rows,
)
from wdsplit import ConvertOptions, convert
from wdsplit.errors import DatasetNotFoundError, InputError, TopologyError, UnsizedError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.mix import mix
from wdsplit.tar.names import RESERVED_FIELDS, unescape_key

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

NUM_IMAGES = 23


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(NUM_IMAGES), key="name", shards=4, lanes=4)


def first_positions(path, count, **options):
    return list(itertools.islice(expected_epoch(path, **options), count))


# The order


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_dataset_gives_the_samples_in_the_order_of_the_epoch(numbers, shuffle):
    for epoch in (0, 7):
        dataset = delivering(Dataset(numbers, shuffle=shuffle))
        dataset.set_epoch(epoch)
        assert list(dataset) == first_positions(numbers, 101, epoch=epoch, shuffle=shuffle)


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_are_disjoint_and_cover_the_dataset(numbers, world_size, tail):
    ranks = [Dataset(numbers, rank=rank, world_size=world_size, tail=tail) for rank in range(world_size)]
    delivered = [list(delivering(dataset)) for dataset in ranks]
    positions = sorted(position for part in delivered for position, _, _ in part)
    assert len(set(positions)) == len(positions)
    rows = real_rows(itertools.chain(*delivered))
    if tail == "drop":
        assert len(set(rows)) == len(rows) == 101 // world_size * world_size
    else:
        assert rows == list(range(101))
    if tail != "uneven":
        assert len(set(map(len, delivered))) == 1
    if tail != "pad":
        assert not any(pad for part in delivered for _, _, pad in part)


def test_uneven_unshuffled_ranks_read_whole_shards_as_webdataset_splits_them(tmp_path):
    path = numbers_dataset(tmp_path, 200, shards=100, lanes=32)
    for rank in range(8):
        dataset = Dataset(path, shuffle=False, tail="uneven", rank=rank, world_size=8)
        shards = {sample["__url__"].rpartition("/")[2] for sample in dataset}
        assert shards == {f"{shard:06d}.tar" for shard in range(100)[rank::8]}


# Stages


def test_decoded_fields_are_the_values_of_the_table(images):
    rows = images_table(NUM_IMAGES).to_pylist()
    keys = {row["name"]: row for row in rows}
    samples = list(Dataset(images).decode("pil"))
    assert len(samples) == NUM_IMAGES
    for sample in samples:
        row = keys.pop(unescape_key(sample["__key__"]))
        assert (np.asarray(sample["png"]) == image_pixels(row["cls"])).all()
        assert sample["npy"].tolist() == row["npy"]
        assert {name: sample[name] for name in ("cls", "txt", "json")} == {
            name: row[name] for name in ("cls", "txt", "json")
        }
    assert not keys


def test_the_epoch_is_shared_with_what_stages_derive_in_both_directions(numbers):
    base = Dataset(numbers)
    derived = base.decode().to_tuple("cls")
    base.set_epoch(3)
    assert derived.epoch == 3
    derived.set_epoch(5)
    assert base.epoch == 5


def test_deep_copies_and_pickles_have_an_epoch_of_their_own(numbers):
    base = Dataset(numbers)
    base.set_epoch(3)
    for other in (copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert other.epoch == 3
        other.set_epoch(4)
        assert base.epoch_set == 3
        base.set_epoch(3)
        assert [sample["__key__"] for sample in other] != [sample["__key__"] for sample in base]


# What is refused, and what is said


@pytest.mark.parametrize("index", [0, -1, slice(3), "00000000"])
def test_items_are_refused_with_a_word_on_sample(numbers, index):
    with pytest.raises(InputError, match="cannot be indexed") as caught:
        Dataset(numbers)[index]
    assert "dataset.sample(key_or_index)" in caught.value.remedy


def test_no_dataset_is_an_error_that_names_the_path(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=str(tmp_path)):
        Dataset(str(tmp_path))


@pytest.mark.parametrize("options", [{"seed": -1}, {"lanes": 0}, {"window": 0}, {"tail": "repeat"}, {"seed": 1.5}])
def test_options_that_cannot_be_are_refused_by_name(numbers, options):
    with pytest.raises(InputError, match=next(iter(options))):
        Dataset(numbers, **options)


@pytest.mark.parametrize("world", [{"rank": 0}, {"world_size": 2}, {"rank": 2, "world_size": 2}])
def test_a_world_that_contradicts_itself_is_refused_when_the_dataset_is_made(numbers, world):
    with pytest.raises(TopologyError):
        Dataset(numbers, **world)


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


# What users and libraries ask of any dataset


def test_a_dataset_has_no_length_and_says_what_to_write_instead(numbers):
    dataset = Dataset(numbers)
    with pytest.raises(UnsizedError, match=r"wdsplit.Loader\(dataset, batch_size\)(.|\n)*101 samples"):
        len(dataset)
    with pytest.raises(TypeError, match="has no length"):
        len(torch.utils.data.DataLoader(mix({numbers: 1}), batch_size=8))
    assert bool(dataset)
    assert len(list(dataset)) == 101


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


@pytest.mark.parametrize("splitter", [webdataset.split_by_node, webdataset.split_by_worker])
@pytest.mark.parametrize(
    "iterated",
    [
        lambda dataset, splitter: dataset.compose(splitter),
        lambda dataset, splitter: webdataset.DataPipeline(dataset, splitter),
        lambda dataset, splitter: Loader(dataset.compose(splitter), 8),
    ],
    ids=["a stage", "a pipeline", "a loader"],
)
def test_the_splitters_of_webdataset_after_a_dataset_are_refused(numbers, splitter, iterated):
    with pytest.raises(InputError, match=f"second time(.|\n)*remove {splitter.__name__}"):
        list(iterated(delivering(Dataset(numbers)), splitter))


def test_the_shard_distribution_has_the_name_that_users_search_for(numbers):
    dataset = Dataset(numbers)
    assert dataset.get_shard_distribution_info(num_workers=2) == dataset.shard_distribution(num_workers=2)


def of_classes(path, **columns):
    """Convert columns of classes, given by their names; return the dataset's folder."""
    features = {column: {"names": names, "_type": "ClassLabel"} for column, names in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({column: [0, 1, 1] for column in ["number", *columns]}).replace_schema_metadata(metadata)
    pq.write_table(table, f"{path}.parquet")
    mapping = {f"{column}.cls": column for column in columns} if len(columns) > 1 else {}
    convert(f"{path}.parquet", path, ConvertOptions(shards=1, mapping=mapping))
    return str(path)


def test_classes_are_the_names_that_the_manifest_has(tmp_path, numbers):
    path = of_classes(tmp_path / "out", label=["cat", "dog"])
    assert Dataset(path).decode().classes == ("cat", "dog")
    assert Dataset(path, fields=["number.json"]).classes == ()
    assert Dataset(numbers).classes == ()


def test_a_mixture_has_classes_if_all_its_datasets_have_the_same(tmp_path):
    one, same = (of_classes(tmp_path / name, label=["cat", "dog"]) for name in "ab")
    other = of_classes(tmp_path / "c", label=["dog", "cat"])
    assert mix({one: 1, same: 1}).classes == ("cat", "dog")
    with pytest.raises(InputError, match="different class names") as caught:
        _ = mix({one: 1, other: 1}).classes
    assert caught.value.place == other


def test_dir_lists_stages_and_what_users_call_and_nothing_of_the_machinery(numbers):
    listed = [name for name in dir(Dataset(numbers).decode()) if not name.startswith("__")]
    assert {"decode", "map", "map_random", "to_tuple", "set_epoch", "manifest", "classes", "compose"} <= set(listed)
    stages = [name for name in vars(FluidInterface) if not name.startswith("_")]
    assert set(stages) <= set(listed)
    assert not {"pipeline", "iterator1", "invoke", "apply_stages", "repetitions", "_epoch"} & set(listed)


# What cannot be meant


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: Dataset([path]), "path of a dataset"),
        (lambda path: Dataset(path, fields="cls"), "fields = 'cls': expected a list"),
        (lambda path: Dataset(path, fields=["cls", "jpg"]), "no such field"),
        (
            lambda path: Dataset(path, group="dp", rank=0, world_size=2),
            "group cannot be combined with rank and world_size",
        ),
        (lambda path: Dataset(path).decode(handler=print), "no handler"),
        (lambda path: mix(path), "which datasets to mix"),
        (lambda path: mix([path]), "which datasets to mix"),
        (lambda path: mix({path: 1}, repeat={path: 1}), "which datasets to mix"),
        (lambda path: mix({path: 1}, tail="uneven"), "uneven"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(numbers, make, message):
    with pytest.raises(InputError, match=message):
        make(numbers)


def test_only_the_fields_that_are_wanted_are_given(numbers):
    assert all(sample.keys() - set(RESERVED_FIELDS) == {"cls"} for sample in Dataset(numbers, fields=["cls"]))


def test_two_instances_give_the_same_order_and_another_epoch_another_order_of_the_same_samples(numbers):
    first, second = (delivering(Dataset(numbers, seed=3)) for _ in range(2))
    for dataset in (first, second):
        dataset.set_epoch(4)
    same = list(first)
    assert list(second) == same
    first.set_epoch(4)
    assert list(first) == same
    first.set_epoch(4)
    second.set_epoch(5)
    assert [row for _, row, _ in first] != [row for _, row, _ in second]
    assert real_rows(first) == real_rows(second) == list(range(101))


def test_unshuffled_epochs_are_the_same(numbers):
    dataset = delivering(Dataset(numbers, shuffle=False))
    first = list(dataset)
    dataset.set_epoch(9)
    assert list(dataset) == first


def test_one_lane_unshuffled_is_the_table_itself(numbers):
    rows = [row for _, row, _ in delivering(Dataset(numbers, shuffle=False, lanes=1))]
    assert rows == list(range(101))
