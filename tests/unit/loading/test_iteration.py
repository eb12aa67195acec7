import copy
import gc
import itertools
import json
import shutil
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from made_datasets import (
    all_deliveries,
    converted,
    deliveries,
    delivering,
    expected_epoch,
    images_table,
    numbers_dataset,
    numbers_table,
    real_rows,
    sized_dataset,
)
from wdsplit import mix
from wdsplit.errors import InputError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 calls it
]

in_process_and_workers = pytest.mark.parametrize("num_workers", [0, 2])


def through_json(state):
    return json.loads(json.dumps(state))


def dataset_of(path, epoch=0, **options):
    dataset = Dataset(path, **{"rank": 0, "world_size": 1} | options)
    dataset.set_epoch(epoch)
    return dataset


# The iterator's own state


def resumed_at(dataset, fresh, items):
    """Return the rest of an iteration, resumed by another dataset after some items."""
    iteration = iter(dataset)
    for _ in range(items):
        next(iteration)
    again = iter(fresh)
    again.load_state_dict(through_json(iteration.state_dict()))
    return list(again)


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("rank", [0, 2])
def test_an_iteration_resumes_anywhere(numbers, tail, rank):
    options = {"tail": tail, "rank": rank, "world_size": 3, "epoch": 4}
    whole = list(delivering(dataset_of(numbers, **options)))
    for items in (0, 1, 2, 7, len(whole) - 1, len(whole)):
        first, second = (delivering(dataset_of(numbers, **options)) for _ in range(2))
        assert resumed_at(first, second, items) == whole[items:]


STAGES = {
    "none": lambda dataset: dataset,
    "batched": lambda dataset: dataset.decode().to_tuple("cls").batched(7),
    "whole batches only": lambda dataset: dataset.decode().to_tuple("cls").batched(7, partial=False),
    "listed": lambda dataset: dataset.listed(7),
    "selected": lambda dataset: dataset.decode().select(lambda sample: sample["cls"] % 3),
    "selected, then batched": lambda dataset: dataset.decode().select(lambda sample: sample["cls"] % 3).batched(5),
    "batches of batches": lambda dataset: dataset.to_tuple("__key__").listed(3).listed(2),
    "a stage of one's own": lambda dataset: dataset.compose(lambda samples: map(sorted, samples)),
    "a random map": lambda dataset: dataset.map_random(lambda sample, generator: generator.random()),
}


def plain(value):
    """Return a value that can be compared."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [plain(each) for each in value]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return type(value), str(value.dtype), value.tolist()
    if isinstance(value, Image.Image):
        return Image.Image, value.mode, np.asarray(value).tolist()
    return value


@pytest.mark.parametrize("stages", STAGES)
def test_what_stages_have_taken_tells_where_they_go_on(numbers, stages):
    make = STAGES[stages]
    whole = plain(list(make(dataset_of(numbers))))[1]
    for items in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        rest = resumed_at(make(dataset_of(numbers)), make(dataset_of(numbers)), items)
        assert plain(rest)[1] == whole[items:]


def test_a_mixture_resumes(numbers, whole_lanes):
    def dataset():
        return delivering(mix({numbers: 0.6, whole_lanes: 0.4}, rank=1, world_size=2))

    whole = list(dataset())
    assert resumed_at(dataset(), dataset(), 40) == whole[40:]


def test_what_was_consumed_is_not_read_again(tmp_path):
    path = numbers_dataset(tmp_path, 40, shards=4, lanes=1)
    first = iter(dataset_of(path, shuffle=False))
    for _ in range(20):
        next(first)
    state = first.state_dict()
    shards = read_manifest(open_storage(path)).shards
    for shard in (0, 1):
        (Path(path) / shards[shard].path).unlink()
    again = iter(delivering(dataset_of(path, shuffle=False)))
    again.load_state_dict(state)
    assert [row for _, row, _ in again] == list(range(20, 40))


def test_a_state_is_a_small_dict_of_plain_values(numbers):
    iteration = iter(dataset_of(numbers, epoch=3, rank=1, world_size=2, seed=9))
    next(iteration)
    assert iteration.state_dict() == {
        "version": 1,
        "epoch": 3,
        "taken": 1,
        "fingerprint": Dataset(numbers).manifest.fingerprint,
        "seed": 9,
        "shuffle": True,
        "lanes": 4,
        "window": 4,
        "tail": "pad",
        "rank": 1,
        "world_size": 2,
        "worker": 0,
        "num_workers": 1,
    }


def test_a_state_of_something_else_is_refused_with_all_differences(numbers, whole_lanes):
    state = iter(dataset_of(numbers, seed=1, rank=1, world_size=2)).state_dict()
    with pytest.raises(StateError) as caught:
        iter(dataset_of(whole_lanes, seed=2, tail="drop", rank=0, world_size=3)).load_state_dict(state)
    assert caught.value.found.count(";") == 6
    for name in ("fingerprint", "seed", "lanes", "window", "tail", "rank", "world_size"):
        assert f"{name}: {state[name]!r} in the state" in caught.value.found


@pytest.mark.parametrize("wrong", [{"taken": -1}, {"taken": "1"}, {"epoch": True}, {"version": 2}, {"worker": 1}])
def test_a_state_that_was_changed_is_refused_by_name(numbers, wrong):
    iteration = iter(dataset_of(numbers))
    with pytest.raises(StateError, match=f"{next(iter(wrong))}: "):
        iteration.load_state_dict(iteration.state_dict() | wrong)


@pytest.mark.parametrize("tail", ["pad", "uneven"])
def test_a_state_beyond_the_end_is_refused(numbers, tail):
    iteration = iter(dataset_of(numbers, tail=tail))
    iteration.load_state_dict(iteration.state_dict() | {"taken": 101})
    assert list(iteration) == []
    with pytest.raises(StateError, match="at most 101 samples"):
        iteration.load_state_dict(iteration.state_dict() | {"taken": 102})


@pytest.mark.parametrize("state", [None, [], Loader])
def test_what_is_no_state_is_refused(numbers, state):
    state = Loader(dataset_of(numbers), 4).state_dict() if state is Loader else state
    with pytest.raises(StateError, match=r"no state dict|taken: None"):
        iter(dataset_of(numbers)).load_state_dict(state)


UNRESUMABLE = {
    "shuffle": lambda dataset: dataset.shuffle(10),
    "detshuffle": lambda dataset: dataset.compose(webdataset.filters.detshuffle(10)),
    "unbatched": lambda dataset: dataset.decode().to_tuple("cls").batched(4).unbatched(),
    "unlisted": lambda dataset: dataset.listed(4).unlisted(),
    "slice": lambda dataset: dataset.slice(30),
    "Cached": lambda dataset: dataset.mcached(),
}


@pytest.mark.parametrize("stage", UNRESUMABLE)
def test_stages_of_webdataset_that_cannot_be_resumed_are_refused_from_the_start(numbers, stage):
    iteration = iter(UNRESUMABLE[stage](dataset_of(numbers)))
    for call in (iteration.state_dict, lambda: iteration.load_state_dict(iter(dataset_of(numbers)).state_dict())):
        with pytest.raises(StateError, match=f"stage {stage}") as caught:
            call()
        assert "leave the stage out" in caught.value.remedy


def in_threes(samples):
    while chunk := list(itertools.islice(samples, 3)):
        yield from reversed(chunk)


def test_a_stage_of_ones_own_that_holds_samples_is_found_out(numbers):
    iteration = iter(dataset_of(numbers).compose(in_threes))
    assert iteration.state_dict()["taken"] == 0
    next(iteration)
    with pytest.raises(StateError, match="stage in_threes") as caught:
        iteration.state_dict()
    assert caught.value.found.startswith("3 items taken, 1 given")


def but_the_first(samples):
    return itertools.islice(samples, 1, None)


def test_when_all_is_given_a_stage_of_ones_own_holds_nothing(numbers):
    iteration = iter(dataset_of(numbers).compose(but_the_first))
    assert len(list(iteration)) == 100
    state = iteration.state_dict()
    iteration.load_state_dict(state)
    assert iteration.state_dict() == state
    assert list(iteration) == []


def test_a_reader_without_samples_has_a_state(tmp_path):
    path = sized_dataset(tmp_path, [1], lanes=2, window=4)
    assert resumed_at(*(dataset_of(path, tail="uneven", rank=1, world_size=2) for _ in range(2)), 0) == []


def test_an_iteration_goes_on_in_the_epoch_of_its_state_and_says_so(numbers, caplog):
    state = iter(dataset_of(numbers, epoch=3)).state_dict()
    dataset = delivering(dataset_of(numbers, epoch=5))
    iteration = iter(dataset)
    iteration.load_state_dict(state)
    assert list(iteration) == list(itertools.islice(expected_epoch(numbers, epoch=3), 101))
    assert dataset.epoch == 5
    assert [record.getMessage() for record in caplog.records if "the rest of epoch" in record.getMessage()] == [
        f"{numbers}: the rest of epoch 3 is given, as the state says, but the dataset is set to epoch 5: "
        "call set_epoch before each epoch, also before one that is resumed"
    ]


def test_nothing_is_said_where_the_epoch_is_the_same_or_nothing_is_left_of_it(numbers, caplog):
    iteration = iter(dataset_of(numbers, epoch=3))
    iter(dataset_of(numbers, epoch=3)).load_state_dict(iteration.state_dict())
    list(iteration)
    iter(dataset_of(numbers, epoch=4)).load_state_dict(iteration.state_dict())
    assert not [record for record in caplog.records if "the rest of epoch" in record.getMessage()]


# Under torchdata's StatefulDataLoader


def stateful(dataset, num_workers=0, batch_size=5, **options):
    return StatefulDataLoader(dataset, batch_size=batch_size, num_workers=num_workers, **options)


def taken_of(loader, steps):
    """Return the first batches of a loader, and its state after them, with the epoch not yet ended."""
    iteration = iter(loader)
    batches = [next(iteration) for _ in range(steps)]
    return batches, through_json(loader.state_dict())


def resumed(loader, state):
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize(
    ("num_workers", "every", "at"), [(0, 1, (0, 1, 6, 20)), (0, 4, (6,)), (2, 1, (0, 1, 7)), (2, 4, (1, 10))]
)
def test_a_stateful_loader_resumes_in_the_middle(numbers, num_workers, every, at):
    def loader():
        return stateful(delivering(dataset_of(numbers, epoch=2)), num_workers, snapshot_every_n_steps=every)

    whole = [deliveries(batch) for batch in loader()]
    assert real_rows(itertools.chain(*whole)) == list(range(101))
    for steps in at:
        first, state = taken_of(loader(), steps)
        assert [deliveries(batch) for batch in [*first, *resumed(loader(), state)]] == whole


@in_process_and_workers
def test_a_stateful_loader_resumes_batches_that_a_stage_makes(numbers, num_workers):
    def loader():
        dataset = delivering(dataset_of(numbers)).batched(5)
        return stateful(dataset, num_workers, batch_size=None, snapshot_every_n_steps=2)

    whole = [deliveries(batch) for batch in loader()]
    assert real_rows(itertools.chain(*whole)) == list(range(101))
    for steps in (1, 7):
        first, state = taken_of(loader(), steps)
        assert [deliveries(batch) for batch in [*first, *resumed(loader(), state)]] == whole


@in_process_and_workers
def test_a_stateful_loader_resumes_twice(numbers, num_workers):
    def loader():
        return stateful(delivering(dataset_of(numbers)), num_workers)

    whole = all_deliveries(loader())
    first, state = taken_of(loader(), 3)
    second, state = taken_of(resumed(loader(), state), 5)
    assert all_deliveries([*first, *second, *resumed(loader(), state)]) == whole


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("batch_size", [5, 101])
def test_at_the_end_of_an_epoch_nothing_is_left_and_set_epoch_begins_the_next(
    numbers, num_workers, persistent_workers, batch_size
):
    """The state is taken after the last batch, or after the loop has ended; both are followed by a whole epoch."""

    def loader(epoch):
        dataset = delivering(dataset_of(numbers, epoch=epoch))
        return stateful(dataset, num_workers, batch_size=batch_size, persistent_workers=persistent_workers)

    first = loader(3)
    num_steps = len(list(loader(3)))
    _, after_the_last_batch = taken_of(first, num_steps)
    again = resumed(loader(3), after_the_last_batch)
    assert list(again) == []
    again.dataset.set_epoch(4)
    whole = sorted(itertools.islice(expected_epoch(numbers, epoch=4), 101))
    assert sorted(all_deliveries(again)) == whole

    ended = loader(3)
    list(ended)
    again = resumed(loader(4), through_json(ended.state_dict()))
    assert sorted(all_deliveries(again)) == whole


@in_process_and_workers
def test_epochs_after_a_resumed_one_are_those_of_a_run_that_was_not_interrupted(numbers, num_workers):
    def epochs(loader, first):
        batches = []
        for epoch in range(first, 4):
            loader.dataset.set_epoch(epoch)
            batches += list(loader)
        return all_deliveries(batches)

    def loader(epoch):
        return stateful(delivering(dataset_of(numbers, epoch=epoch)), num_workers, persistent_workers=num_workers > 0)

    whole = epochs(loader(1), 1)
    first, state = taken_of(loader(1), 4)
    assert all_deliveries(first) + epochs(resumed(loader(0), state), 1) == whole


def test_spawned_workers_resume(numbers):
    def loader(**options):
        return stateful(delivering(dataset_of(numbers, epoch=2)), 1, **options)

    first, state = taken_of(loader(), 4)
    rest = list(resumed(loader(multiprocessing_context="spawn"), state))
    assert all_deliveries([*first, *rest]) == list(itertools.islice(expected_epoch(numbers, epoch=2), 101))


@contextmanager
def raises_in_workers(match):
    """Expect a StateError; let go of what its traceback holds, so that the workers end now and not at a gc."""
    with pytest.raises(StateError, match=match) as caught:
        yield
    traceback.clear_frames(caught.tb)
    gc.collect()


@pytest.mark.parametrize(
    ("other", "match"),
    [({"seed": 2}, "seed: 0 in the state, 2 here"), ({"rank": 1}, "rank: 0 in the state, 1 here")],
)
def test_workers_refuse_a_state_of_another_reader(numbers, other, match):
    options = {"rank": 0, "world_size": 2}
    _, state = taken_of(stateful(delivering(dataset_of(numbers, **options)), 1), 2)
    with raises_in_workers(match):
        iter(resumed(stateful(delivering(dataset_of(numbers, **options | other)), 1), state))


def test_another_number_of_workers_is_refused(numbers):
    _, state = taken_of(stateful(delivering(dataset_of(numbers)), 1), 2)
    with raises_in_workers("num_workers: 1 in the state, 2 here"):
        iter(resumed(stateful(delivering(dataset_of(numbers)), 2), state))


def test_a_stage_that_shuffles_works_until_a_state_is_asked_for(numbers):
    dataset = delivering(dataset_of(numbers)).shuffle(10)
    loader = stateful(dataset)
    assert real_rows(all_deliveries(loader)) == list(range(101))
    with pytest.raises(StateError, match="stage shuffle"):
        loader.state_dict()


def test_workers_say_that_a_stage_that_shuffles_cannot_be_resumed(numbers):
    with raises_in_workers("stage shuffle"):
        iter(stateful(delivering(dataset_of(numbers)).shuffle(10), 1))


# The fluid stages, against webdataset's own pipelines

NUM_IMAGES = 23


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(NUM_IMAGES), key="name", shards=4, lanes=4)


@pytest.fixture(scope="module")
def raw_samples(images):
    """Return the samples as webdataset reads them from the tars, pads left out; it leaves files open."""
    urls = sorted(map(str, Path(images).glob("*.tar")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(webdataset.WebDataset(urls, shardshuffle=False))
        gc.collect()
    return [sample for sample in samples if not sample["__key__"].startswith("_pad_/")]


class Fluid(webdataset.DataPipeline, webdataset.compat.FluidInterface):
    """A pipeline of webdataset's."""


def doubled(number):
    return 2 * number


def with_twice(sample):
    return {**sample, "twice": 2 * sample["cls"]}


def enumerated(samples):
    return ((number, sample["__key__"]) for number, sample in enumerate(samples))


def decoded_numbers(pipeline):
    return pipeline.decode(only="cls npy").rename(npy="npy").to_tuple("cls", "npy")


ONE_TO_ONE = {
    "decode": lambda pipeline: pipeline.decode(),
    "decode pil": lambda pipeline: pipeline.decode("pil"),
    "decode rgb8": lambda pipeline: pipeline.decode("rgb8", only="png"),
    "decode torchrgb": lambda pipeline: pipeline.decode("torchrgb", partial=True),
    "map": lambda pipeline: pipeline.decode().map(with_twice),
    "map_dict": lambda pipeline: pipeline.decode().map_dict(cls=doubled, txt=str.upper),
    "to_tuple": lambda pipeline: pipeline.to_tuple("__key__", "png", "cls"),
    "to_tuple of one text": lambda pipeline: pipeline.decode().to_tuple("npy jpg;png cls"),
    "to_tuple without a field": lambda pipeline: pipeline.to_tuple("cls", "none", missing_is_error=False),
    "map_tuple": lambda pipeline: pipeline.decode().to_tuple("cls", "txt").map_tuple(doubled, str.upper),
    "rename": lambda pipeline: pipeline.rename(image="png;jpg", label="cls"),
    "rename only": lambda pipeline: pipeline.rename(image="png", __key__="__key__", keep=False),
    "rename_keys": lambda pipeline: pipeline.rename_keys(("image", "png"), ("key", "__key__")),
    "extract_keys": lambda pipeline: pipeline.extract_keys("*.png", "*.cls;*.cls2"),
    "xdecode": lambda pipeline: pipeline.to_tuple("txt").map_tuple(bytes.decode),
    "compose": lambda pipeline: pipeline.compose(enumerated),
    "compose of two": lambda pipeline: pipeline.decode().compose(
        webdataset.map(with_twice), webdataset.to_tuple("twice", "__key__")
    ),
}
OTHERS = {
    "select": lambda pipeline: pipeline.decode().select(lambda sample: sample["cls"] % 3),
    "map that drops": lambda pipeline: pipeline.decode().map(lambda sample: sample if sample["cls"] % 3 else None),
    "batched": lambda pipeline: decoded_numbers(pipeline).batched(4),
    "batched dicts": lambda pipeline: pipeline.decode(only="cls").batched(4),
    "batched by a function": lambda pipeline: pipeline.to_tuple("cls").batched(4, collation_fn=len),
    "whole batches only": lambda pipeline: decoded_numbers(pipeline).batched(4, partial=False),
    "unbatched": lambda pipeline: decoded_numbers(pipeline).batched(4).unbatched(),
    "listed": lambda pipeline: pipeline.to_tuple("cls").listed(4),
    "unlisted": lambda pipeline: pipeline.to_tuple("cls").listed(4).unlisted(),
    "slice": lambda pipeline: pipeline.to_tuple("cls").slice(2, 9),
    "mcached": lambda pipeline: pipeline.to_tuple("cls").mcached(),
    "a shuffle with a seed": lambda pipeline: pipeline.to_tuple("cls").shuffle(5, seed=1),
}
ALL = ONE_TO_ONE | OTHERS

OWN_NAMES = ("__url__", "__position__", "__pad__", "__local_path__")


def comparable(item):
    """Return an item to be compared, without what each reader adds of its own."""
    if isinstance(item, list):
        return [comparable(each) for each in item]
    if isinstance(item, dict):
        item = {name: value for name, value in item.items() if name not in OWN_NAMES}
    return plain(item)


def by_webdataset(samples, stages, num_workers=1):
    """Return what webdataset's stages make of every worker's samples, the workers' items in turn."""

    def of(worker):
        return list(stages(Fluid(lambda: iter(copy.deepcopy(samples[worker::num_workers])))))

    turns = itertools.zip_longest(*map(of, range(num_workers)), fillvalue=Fluid)
    return [comparable(item) for turn in turns for item in turn if item is not Fluid]


def in_table_order(path):
    return Dataset(path, shuffle=False, lanes=1, rank=0, world_size=1)


def unchanged(item):
    return item


@pytest.mark.parametrize("stages", ALL)
def test_a_stage_gives_what_webdatasets_gives(images, raw_samples, stages):
    dataset = ALL[stages](in_table_order(images))
    expected = by_webdataset(raw_samples, ALL[stages])
    assert len(expected) > 0
    for _ in range(2):
        assert [comparable(item) for item in dataset] == expected


IN_WORKERS = ("decode pil", "map_dict", "to_tuple", "select", "batched", "listed", "unbatched", "compose")


@pytest.mark.parametrize(
    ("stages", "num_workers"), [*((stages, 0) for stages in ALL), *((stages, 2) for stages in IN_WORKERS)]
)
def test_a_stage_gives_the_same_in_a_plain_dataloader(images, raw_samples, stages, num_workers):
    dataset = ALL[stages](in_table_order(images))
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, collate_fn=unchanged)
    assert [comparable(item) for item in loader] == by_webdataset(raw_samples, ALL[stages], max(1, num_workers))


IN_LOADERS = [stages for stages in ONE_TO_ONE if stages != "compose"]


@pytest.mark.parametrize(
    ("stages", "workers"),
    [
        *((stages, "thread") for stages in IN_LOADERS),
        *((stages, "process") for stages in IN_LOADERS if stages in (*IN_WORKERS, "map", "rename", "compose of two")),
    ],
)
def test_a_stage_that_is_one_to_one_gives_the_same_in_the_loader(images, raw_samples, stages, workers):
    dataset = ONE_TO_ONE[stages](in_table_order(images))
    loader = Loader(dataset, 5, num_workers=2, workers=workers, collate_fn=list)
    items = [comparable(item) for batch in loader for item in batch]
    assert len(items) == 25
    assert items[:NUM_IMAGES] == by_webdataset(raw_samples, ONE_TO_ONE[stages])


def test_a_batch_size_that_cannot_be_fails_as_webdatasets_does(numbers):
    with pytest.raises(IndexError):
        list(Dataset(numbers).batched(0))


@pytest.mark.filterwarnings("ignore:.with_length:UserWarning")
def test_with_length_names_the_batches_that_a_stage_makes(numbers):
    dataset = delivering(dataset_of(numbers)).batched(10).with_length(11)
    assert len(dataset) == len(list(dataset)) == len(list(stateful(dataset, 1, batch_size=None))) == 11


# Stages that drop samples


def dropped_warnings(caplog):
    return [record.getMessage() for record in caplog.records if "may drop samples" in record.getMessage()]


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (lambda dataset: dataset.select(bool), "select"),
        (lambda dataset: dataset.rsample(1.0), "rsample"),
        (lambda dataset: dataset.map(dict, handler=webdataset.ignore_and_continue), "map"),
    ],
)
def test_ranks_are_warned_once_of_a_stage_that_may_drop_samples(tmp_path, caplog, stage, name):
    path = converted(tmp_path, numbers_table(8), shards=2, lanes=2)
    for _ in range(2):
        assert len(list(stage(Dataset(path, rank=0, world_size=2)))) == 4
    (message,) = dropped_warnings(caplog)
    assert message.startswith(f"{path}: {name} may drop samples")


def test_nothing_is_said_of_one_rank_or_uneven_ones_or_by_another_than_the_first_or_where_all_is_kept(numbers, caplog):
    list(Dataset(numbers, rank=0, world_size=1).select(bool))
    list(Dataset(numbers, rank=0, world_size=2, tail="uneven").select(bool))
    list(Dataset(numbers, rank=1, world_size=2).select(bool))
    list(Dataset(numbers, rank=0, world_size=2).decode().map(dict).batched(4))
    assert not dropped_warnings(caplog)


def test_a_dataset_that_repeats_is_refused_before_it_is_read(tmp_path):
    path = numbers_dataset(tmp_path, 8, shards=2)
    dataset = Dataset(path).repeat(2)
    shutil.rmtree(path)
    with pytest.raises(InputError, match="repeat and with_epoch"):
        iter(dataset)
