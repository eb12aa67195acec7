import itertools
import shutil
from pathlib import Path

import pytest
import webdataset

from iterations import dataset_of, plain, through_json
from made_datasets import (
    converted,
    delivering,
    expected_epoch,
    numbers_dataset,
    numbers_table,
    sized_dataset,
)
from wdsplit import mix
from wdsplit.errors import InputError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_storage

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
    with pytest.raises(StateError, match=r"not a state dict|taken: None"):
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
        assert "remove the stage" in caught.value.remedy


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
    assert [record.getMessage() for record in caplog.records if "resuming epoch" in record.getMessage()] == [
        f"{numbers}: resuming epoch 3 of the state, but the dataset is set to epoch 5: "
        "call set_epoch before each epoch, also before a resumed one"
    ]


def test_nothing_is_said_where_the_epoch_is_the_same_or_nothing_is_left_of_it(numbers, caplog):
    iteration = iter(dataset_of(numbers, epoch=3))
    iter(dataset_of(numbers, epoch=3)).load_state_dict(iteration.state_dict())
    list(iteration)
    iter(dataset_of(numbers, epoch=4)).load_state_dict(iteration.state_dict())
    assert not [record for record in caplog.records if "resuming epoch" in record.getMessage()]


def test_a_batch_size_that_cannot_be_fails_as_webdatasets_does(numbers):
    with pytest.raises(IndexError):
        list(Dataset(numbers).batched(0))


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
