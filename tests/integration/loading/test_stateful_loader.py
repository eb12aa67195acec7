"""The state of an iteration under torchdata's StatefulDataLoader, in this process and in workers."""

import gc
import itertools
import traceback
from contextlib import contextmanager

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from iterations import dataset_of, through_json
from made_datasets import all_deliveries, deliveries, delivering, expected_epoch, real_rows
from wdsplit.errors import StateError
from wdsplit.loading.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 calls it
]


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
    ("num_workers", "persistent_workers", "batch_size"), [(0, False, 5), (0, False, 101), (2, False, 101), (2, True, 5)]
)
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


@pytest.mark.parametrize(
    ("num_workers", "every", "at"), [(0, 1, (0, 1, 6, 20)), (0, 4, (6,)), (2, 1, (0, 7)), (2, 4, (10,))]
)
def test_a_resumed_epoch_and_those_after_it_are_those_of_a_run_that_was_not_interrupted(
    numbers, num_workers, every, at
):
    def epochs(loader, first):
        batches = []
        for epoch in range(first, 4):
            loader.dataset.set_epoch(epoch)
            batches += [deliveries(batch) for batch in loader]
        return batches

    def loader(epoch):
        dataset = delivering(dataset_of(numbers, epoch=epoch))
        return stateful(dataset, num_workers, snapshot_every_n_steps=every, persistent_workers=num_workers > 0)

    whole = epochs(loader(2), 2)
    assert real_rows(itertools.chain(*whole)) == sorted([*range(101)] * 2)
    for steps, is_set in itertools.product(at, (False, True)):
        first, state = taken_of(loader(2), steps)
        again = resumed(loader(0), state)
        rest = [] if is_set else [deliveries(batch) for batch in again]
        assert [deliveries(batch) for batch in first] + rest + epochs(again, 2 if is_set else 3) == whole


@pytest.mark.parametrize("at", [3, 21])
def test_a_loader_without_workers_resumes_and_moves_on_by_itself(numbers, at):
    """A state is that of a batch in the second epoch, or of its end."""

    def loader():
        return stateful(delivering(Dataset(numbers, rank=0, world_size=1)))

    whole = [deliveries(batch) for batches in [loader()] for _ in range(4) for batch in batches]
    interrupted = loader()
    batches = [deliveries(batch) for batch in interrupted]
    batches += [deliveries(batch) for batch in itertools.islice(interrupted, at)]
    if at == 21:
        assert list(interrupted._iterator) == []
    again = resumed(loader(), through_json(interrupted.state_dict()))
    for _ in range(3 if at < 21 else 2):
        batches += [deliveries(batch) for batch in again]
    assert batches == whole


@contextmanager
def raises_in_workers(match):
    """Expect a StateError; let go of what its traceback holds, so that the workers end now and not at a gc."""
    with pytest.raises(StateError, match=match) as caught:
        yield
    traceback.clear_frames(caught.tb)
    gc.collect()


def test_another_number_of_workers_is_refused(numbers):
    _, state = taken_of(stateful(delivering(dataset_of(numbers)), 1), 2)
    with raises_in_workers("num_workers: 1 in the state, 2 here"):
        iter(resumed(stateful(delivering(dataset_of(numbers)), 2), state))


def test_workers_say_that_a_stage_that_shuffles_cannot_be_resumed(numbers):
    with raises_in_workers("shuffle: it draws at random"):
        iter(stateful(delivering(dataset_of(numbers)).shuffle(10), 1))
