"""Loaders that continue on other ranks, in processes that stay: `Loader.reshape`."""

import itertools
import json
import multiprocessing

import pytest
import torch.distributed as distributed

from made_datasets import deliveries, delivering, expected_batches, global_batches, loaders_of
from wdsplit.errors import InputError, StateError, TopologyError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

WORLDS = (3, 2, 4, 6, 1, 12)


def reshaped(loaders, world_size, state=None):
    """Return the loaders of other ranks: of each old rank that stays, and for new ones of any."""
    return [loaders[rank % len(loaders)].reshape(rank, world_size, state) for rank in range(world_size)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "workers": "thread"}, {"tail": "drop"}], ids=str)
def test_ranks_that_come_and_go_get_the_batches_of_ranks_that_stay(numbers, options):
    loaders, epochs = loaders_of(numbers, WORLDS[0], **options), (0, 1)
    tail = options.get("tail", "pad")
    expected = [expected_batches(numbers, len(loaders[0]), epoch=epoch, tail=tail) for epoch in epochs]
    for world_size in itertools.cycle(WORLDS[1:]):
        epoch, step = loaders[0].epoch, loaders[0].step
        if epoch not in epochs:
            break
        assert {(loader.epoch, loader.step) for loader in loaders} == {(epoch, step)}
        assert global_batches(loaders, steps=2) == expected[epoch][step : step + 2]
        loaders = reshaped(loaders, world_size)
    assert loaders[0].state_dict()["global_batch"] == 12


def test_ranks_that_differ_by_a_step_agree_by_one_state_which_keeps_skips(numbers):
    loaders = loaders_of(numbers, 3)
    for loader in loaders:
        loader.skip(4, 5)
    iterators = [iter(loader) for loader in loaders]
    for rank, iterator in enumerate(iterators):
        list(itertools.islice(iterator, 3 if rank == 0 else 2))
    assert [loader.step for loader in loaders] == [3, 2, 2]
    state = json.loads(json.dumps(loaders[1].state_dict()))
    assert global_batches(reshaped(loaders[:2], 2, state)) == [
        batch for step, batch in enumerate(expected_batches(numbers, 9)) if step in (2, 3, 6, 7, 8)
    ]


def test_the_global_batch_is_that_of_the_iteration_whatever_a_new_process_group_says(numbers, tmp_path):
    def join(world_size):
        store = distributed.FileStore(str(tmp_path / f"store {world_size}"), 1)
        distributed.init_process_group("fake", rank=0, world_size=world_size, store=store)

    from torch.testing._internal.distributed import fake_pg  # noqa: F401, registers the backend

    join(3)
    try:
        loader = Loader(delivering(Dataset(numbers)), 4)
        list(itertools.islice(loader, 5))
        distributed.destroy_process_group()
        join(2)
        state = loader.state_dict()
        assert (state["global_batch"], state.get("since", 0)) == (12, 0)
        smaller = loader.reshape(0, 2)
        assert (smaller.batch_size, smaller.step, len(smaller)) == (6, 5, 9)
        assert smaller.state_dict() == state
    finally:
        distributed.destroy_process_group()
    assert [deliveries(batch) for batch in smaller] == [batch[::2] for batch in expected_batches(numbers, 9)[5:]]


def test_workers_of_the_loader_before_end_with_it(numbers):
    loader = Loader(delivering(Dataset(numbers, rank=0, world_size=3)), 4, num_workers=2, persistent_workers=True)
    list(itertools.islice(loader, 3))
    before = multiprocessing.active_children()
    loader = loader.reshape(1, 2)
    assert len([deliveries(batch) for batch in loader]) == 6
    assert not set(before) & set(multiprocessing.active_children())


def test_what_cannot_be_reshaped_is_refused_and_the_loader_stays_as_it_is(numbers):
    loader = Loader(delivering(Dataset(numbers, rank=0, world_size=4)), 3)
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    with pytest.raises(TopologyError, match=r"divides 12 \(3 x 4 ranks\)(.|\n)*world_size 5(.|\n)*continue on 4 of"):
        loader.reshape(0, 5)
    with pytest.raises(TopologyError, match="rank and world_size contradict"):
        loader.reshape(3, 3)
    with pytest.raises(StateError, match="seed"):
        loader.reshape(0, 2, {**state, "seed": 1})
    assert loader.state_dict() == state
    with pytest.raises(InputError, match="tail='uneven' cannot be reshaped"):
        Loader(Dataset(numbers, rank=0, world_size=2, tail="uneven"), 3).reshape(0, 1)


def test_a_step_of_groups_is_as_many_as_there_are_ranks(numbers):
    loader = Loader(Dataset(numbers, rank=0, world_size=4, group="cls", size=1), 1)
    with pytest.raises(InputError, match="a group is a whole batch"):
        loader.reshape(0, 2)
    assert loader.reshape(1, 4).batch_size == 1
