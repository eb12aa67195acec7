"""`Loader.skip`: steps that are left out before and during an iteration, and after a resume.

Skips and resumes on any topology are compared with a model in checks/test_batch.py.
"""

import itertools

import pytest

from loader_kinds import every_kind
from made_datasets import all_deliveries, deliveries, delivering, numbers_dataset
from wdsplit.debug import AUDITED, audit
from wdsplit.errors import InputError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

NUM_STEPS = 9
"""Of an epoch of 101 samples, in global batches of 12."""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return numbers_dataset(tmp_path_factory.mktemp("numbers"), 101, world_size=2, workers=2)


def loader_of(path, tail="pad", **options):
    return Loader(delivering(Dataset(path, rank=0, world_size=1, tail=tail)), 12, **options)


# While it is iterated


@every_kind
def test_steps_that_come_later_can_be_skipped_while_a_loader_is_iterated(numbers, options):
    all_steps = all_deliveries(loader_of(numbers))
    loader = loader_of(numbers, **options)
    seen = []
    steps = []
    for step, batch in loader.enumerate():
        seen += deliveries(batch)
        steps.append(step)
        if step == 1:
            loader.skip(2, 3)  # the next ones, which workers have made already
            assert (loader.step, len(loader)) == (4, NUM_STEPS - 2)
        if step == 5:
            loader.skip(6, 6)
            assert (loader.step, len(loader)) == (7, NUM_STEPS - 3)
    assert steps == [0, 1, 4, 5, 7, 8]
    assert seen == [each for each in all_steps if each[0] // 12 not in (2, 3, 6)]
    if options:
        assert loader.statistics().batches == NUM_STEPS - 3
    following = loader_of(numbers)
    following.set_epoch(1)
    assert all_deliveries(loader) == all_deliveries(following)  # of the next epoch nothing is left out


@pytest.mark.parametrize("taken", [0, 1])
def test_an_iteration_ends_when_all_that_is_left_is_skipped(numbers, taken):
    loader = loader_of(numbers, num_workers=1, workers="thread")
    batches = iter(loader)
    list(itertools.islice(batches, taken))
    loader.skip(taken, NUM_STEPS - 1)
    assert list(batches) == []
    assert (loader.epoch, loader.step, len(loader)) == (1, 0, NUM_STEPS)


def test_samples_that_are_skipped_are_not_read(numbers):
    """Also when they are skipped because they cannot be read."""

    def refuse(row):
        assert row["__position__"] // 12 != 4, "read"
        return row

    loader = Loader(Dataset(numbers, rank=0, world_size=1).map(refuse), 12)
    loader.skip(4, 4)
    assert len(list(loader)) == NUM_STEPS - 1
    again = Loader(Dataset(numbers, rank=0, world_size=1).map(refuse), 12)
    with pytest.raises(AssertionError, match="read"):
        list(again)
    assert again.step == 4
    again.skip(4, 4)
    again.load_state_dict(again.state_dict())
    assert len(list(again)) == 4


# Counting, and the state


def test_the_length_is_the_number_of_batches_and_the_step_counts_what_is_skipped(numbers):
    loader = loader_of(numbers)
    loader.skip(0, 1)
    loader.skip(5, 5)
    loader.skip(7, 7)
    assert [step for step, _ in itertools.islice(loader.enumerate(), 4)] == [2, 3, 4, 6]
    state = loader.state_dict()
    assert (state["position"], state["skipped"], loader.step) == (7 * 12, [[0, 24], [60, 72], [84, 96]], 8)
    resumed = loader_of(numbers)
    resumed.load_state_dict(state)
    assert (resumed.step, len(resumed)) == (8, NUM_STEPS - 1)  # what is behind counts as delivered
    assert [step for step, _ in resumed.enumerate()] == [8]
    assert len(resumed) == NUM_STEPS


def test_skips_belong_to_the_samples_of_their_view(numbers):
    loader = loader_of(numbers)
    loader.skip(0, 0)
    of_view = {"where": "cls < 90", "rank": 0, "world_size": 1}
    with pytest.raises(StateError, match="another view"):
        Loader(Dataset(numbers, **of_view), 12).load_state_dict(loader.state_dict())
    loader = Loader(Dataset(numbers, **of_view), 12)
    loader.skip(0, 0)
    for _ in loader:
        loader.set_epoch(0)  # so that the next iteration has it again, with its skips
    assert loader.state_dict()["position"] == 0
    again = Loader(Dataset(numbers, **of_view), 12)
    again.load_state_dict(loader.state_dict())
    assert len(again) == len(loader) == 7


@pytest.mark.parametrize("steps", [(-1, 2), (3, 2), (0, NUM_STEPS), (1.5, 2), (True, 2), (None, None)])
def test_steps_that_are_none_are_refused(numbers, steps):
    loader = loader_of(numbers)
    with pytest.raises(InputError, match=rf"cannot skip these steps(.|\n)*0 <= first <= last < {NUM_STEPS}"):
        loader.skip(*steps)
    assert len(loader) == NUM_STEPS


def test_steps_that_were_delivered_are_refused_and_those_of_ranks_that_advance_by_themselves(numbers):
    loader = loader_of(numbers)
    list(itertools.islice(loader, 4))
    for steps in ((0, 0), (3, 3), (3, 6)):
        with pytest.raises(InputError, match=r"cannot skip these steps(.|\n)*steps from 4 on: earlier ones"):
            loader.skip(*steps)
    with pytest.raises(InputError, match="tail='uneven'"):
        loader_of(numbers, tail="uneven").skip(0, 1)


@pytest.mark.parametrize("skipped", [[[3, 2]], [[0, 1, 2]], 5, [[0, "1"]], [[-1, 4]], [[True, 4]], {"a": 1}])
def test_a_state_whose_skips_are_damaged_is_refused(numbers, skipped):
    loader = loader_of(numbers)
    with pytest.raises(StateError, match=r"damaged(.|\n)*pairs of skipped"):
        loader.load_state_dict({**loader.state_dict(), "skipped": skipped})


# What wraps a loader


def test_an_audit_knows_what_is_skipped(numbers):
    loader = Loader(Dataset(numbers, rank=0, world_size=1).to_tuple("cls", *AUDITED), 12)
    loader.skip(1, 2)
    with audit(loader) as audited:
        for step, _ in enumerate(audited):
            if step == 2:
                loader.skip(6, 7)
    (epoch,) = audited.epochs
    assert (epoch.complete, epoch.steps, epoch.samples) == (True, NUM_STEPS - 4, 101 - 48)


@pytest.mark.slow
def test_accelerates_loader_knows_its_last_batch(numbers):
    import accelerate

    from wdsplit.integrations.accelerate import PreparedLoader

    loader = PreparedLoader(loader_of(numbers), accelerate.Accelerator(cpu=True))
    assert isinstance(loader.loader, Loader), "whose statistics docs/monitoring.md logs"
    ends = {}
    for step, _ in loader.enumerate():
        ends[step] = loader.end_of_dataloader
        if step == 2:
            loader.skip(5, 7)
    assert ends == {0: False, 1: False, 2: False, 3: False, 4: False, 8: True}
    loader.skip(0, 0)
    steps = [step for step, _ in itertools.islice(loader.enumerate(), 2)]
    with pytest.warns(UserWarning, match="begins again with the same batches"):
        assert steps == [step for step, _ in itertools.islice(loader.enumerate(), 2)] == [1, 2]
