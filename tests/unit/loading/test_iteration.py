import itertools
import shutil

import pytest
import webdataset

from iterations import dataset_of, plain, through_json
from made_datasets import converted, delivering, expected_epoch, numbers_dataset, numbers_table
from wdsplit import mix
from wdsplit.errors import InputError, StateError
from wdsplit.loading.dataset import Dataset

# The state that torchdata's StatefulDataLoader asks for


def resumed_at(dataset, fresh, items):
    """Return the rest of an iteration, resumed by another dataset after some items."""
    iteration = iter(dataset)
    for _ in range(items):
        next(iteration)
    again = iter(fresh)
    again.load_state_dict(through_json(iteration.state_dict()))
    return list(again)


STAGES = {
    "none": lambda dataset: dataset,
    "batched": lambda dataset: dataset.decode().to_tuple("cls").batched(7),
    "selected, then batched": lambda dataset: dataset.decode().select(lambda sample: sample["cls"] % 3).batched(5),
    "unbatched": lambda dataset: dataset.decode().to_tuple("cls").batched(4).unbatched(),
    "a stage of one's own": lambda dataset: dataset.compose(lambda samples: itertools.islice(samples, 1, None)),
    "a random map": lambda dataset: dataset.map_random(lambda sample, generator: generator.random()),
}


@pytest.mark.parametrize("stages", [*STAGES, "a mixture"])
def test_an_iteration_resumes_after_any_item(numbers, whole_lanes, stages):
    def dataset():
        if stages == "a mixture":
            return delivering(mix({numbers: 0.6, whole_lanes: 0.4}, rank=1, world_size=2))
        return STAGES[stages](dataset_of(numbers, tail="uneven", rank=1, world_size=3, epoch=4))

    whole = plain(list(dataset()))[1]
    for items in (0, 1, len(whole) // 2, len(whole)):
        assert plain(resumed_at(dataset(), dataset(), items))[1] == whole[items:]


def test_a_state_of_something_else_is_refused_with_all_differences(numbers, whole_lanes):
    state = iter(dataset_of(numbers, seed=1, rank=1, world_size=2)).state_dict()
    with pytest.raises(StateError) as caught:
        iter(dataset_of(whole_lanes, seed=2, tail="drop", rank=0, world_size=3)).load_state_dict(state)
    assert caught.value.found.count(";") == 6
    for name in ("fingerprint", "seed", "lanes", "window", "tail", "rank", "world_size"):
        assert f"{name}: {state[name]!r} in the state" in caught.value.found
    iteration = iter(dataset_of(numbers))
    for wrong in ({"given": -1}, {"epoch": True}, {"version": 2}, {"worker": 1}):
        with pytest.raises(StateError, match=f"{next(iter(wrong))}: "):
            iteration.load_state_dict(iteration.state_dict() | wrong)
    with pytest.raises(StateError, match="not a state dict"):
        iteration.load_state_dict(None)


@pytest.mark.parametrize("stage", ["shuffle", "rsample"])
def test_stages_that_draw_at_random_have_no_state(numbers, stage):
    iteration = iter(getattr(dataset_of(numbers), stage)(1))
    with pytest.raises(StateError, match="cannot be repeated"):
        iteration.state_dict()


def test_an_iteration_goes_on_in_the_epoch_of_its_state(numbers):
    state = iter(dataset_of(numbers, epoch=3)).state_dict()
    dataset = delivering(dataset_of(numbers, epoch=5))
    iteration = iter(dataset)
    iteration.load_state_dict(state)
    assert list(iteration) == list(itertools.islice(expected_epoch(numbers, epoch=3), 101))
    assert dataset.epoch == 5


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


def test_a_dataset_that_repeats_is_refused_before_it_is_read(tmp_path):
    path = numbers_dataset(tmp_path, 8, shards=2)
    dataset = Dataset(path).repeat(2)
    shutil.rmtree(path)
    with pytest.raises(InputError, match="repeat and with_epoch"):
        iter(dataset)
