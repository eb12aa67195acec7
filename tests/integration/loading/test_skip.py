"""`Loader.skip`: steps that are left out on any topology, before and during an iteration, and after a resume."""

import itertools
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import wdsplit
from made_datasets import all_deliveries, deliveries, delivering, interleaved, numbers_dataset, sized_dataset
from wdsplit.debug import AUDITED, audit
from wdsplit.errors import InputError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

NUM_STEPS = 9
"""Of an epoch of 101 samples, in global batches of 12."""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return numbers_dataset(tmp_path_factory.mktemp("numbers"), 101, world_size=2, workers=2)


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    return sized_dataset(tmp_path_factory.mktemp("sized"), [30, 70, 5, 0, 41, 9, 2, 44], lanes=4, window=4)


def loader_of(path, batch_size=12, rank=0, world_size=1, tail="pad", **options):
    dataset = Dataset(path, rank=rank, world_size=world_size, tail=tail)
    return Loader(delivering(dataset), batch_size, **options)


def loaders_of(path, readers, tail="pad", state=None):
    """Return the loader of each rank; readers are ranks, threads and the batch size."""
    world_size, num_workers, batch_size = readers
    how = {"num_workers": num_workers, "workers": "thread", "tail": tail}
    loaders = [loader_of(path, batch_size, rank, world_size, **how) for rank in range(world_size)]
    for loader in loaders if state else ():
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loaders


def in_step(loaders, num_steps=None):
    lockstep = itertools.islice(zip(*loaders, strict=True), num_steps)
    return [interleaved([deliveries(part) for part in parts]) for parts in lockstep]


def without(steps, *ranges):
    """Return steps without those of some ranges, first to last."""
    left_out = {number for first, last in ranges for number in range(first, last + 1)}
    return [step for number, step in enumerate(steps) if number not in left_out]


@pytest.mark.parametrize("ranges", [[(0, 0)], [(3, 5)], [(8, 8)], [(0, 3), (5, 5), (7, 8)], [(0, 8)]], ids=str)
@pytest.mark.parametrize("readers", [(1, 0, 12), (2, 2, 6), (3, 1, 4)], ids=str)
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_steps_that_are_skipped_are_not_delivered_and_the_others_are_as_before(numbers, ranges, readers, tail):
    all_steps = in_step(loaders_of(numbers, (1, 0, 12), tail))
    loaders = loaders_of(numbers, readers, tail)
    ranges = [(first, min(last, len(all_steps) - 1)) for first, last in ranges if first < len(all_steps)]
    for loader in loaders:
        for each in ranges:
            loader.skip(*each)
    expected = without(all_steps, *ranges)
    assert {len(loader) for loader in loaders} == {len(expected)}
    assert in_step(loaders) == expected
    for loader in loaders:
        assert loader.epoch == 1
        assert "skipped" not in loader.state_dict()
        assert len(loader) == len(all_steps)


readers = st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 2), st.sampled_from([1, 4, 7]))


@given(readers, readers, st.data())
def test_what_was_skipped_stays_out_after_a_resume_on_another_topology(sized, before, after, data):
    loaders = loaders_of(sized, before)
    num_steps, size = len(loaders[0]), before[0] * before[2]
    taken = data.draw(st.integers(0, num_steps - 1))
    first = data.draw(st.integers(0, num_steps - 1))
    last = data.draw(st.integers(first, num_steps - 1))
    for loader in loaders:
        loader.skip(first, last)
    assume(taken < len(loaders[0]))
    seen = in_step(loaders, taken)
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    assert states[0]["skipped"] == [[first * size, min(201, (last + 1) * size)]]
    rest = loaders_of(sized, after, state=states[0])
    seen_after = in_step(rest)
    everything = {position for position, _, pad in in_step(loaders_of(sized, (1, 0, 201)))[0] if not pad}
    due = everything - set(range(first * size, (last + 1) * size))
    real = [position for step in [*seen, *seen_after] for position, _, pad in step if not pad]
    assert sorted(real) == sorted(due)
    if before[0] * before[2] == after[0] * after[2]:
        all_steps = in_step(loaders_of(sized, (1, 0, size)))
        assert [*seen, *seen_after] == without(all_steps, (first, last))


# While it is iterated


KINDS = [
    {},
    {"num_workers": 2, "workers": "thread"},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_steps_that_come_later_can_be_skipped_while_a_loader_is_iterated(numbers, kind):
    all_steps = all_deliveries(loader_of(numbers))
    loader = loader_of(numbers, **kind)
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
    if kind.get("num_workers"):
        assert loader.statistics().batches == NUM_STEPS - 3
    following = loader_of(numbers)
    following.set_epoch(1)
    assert all_deliveries(loader) == all_deliveries(following)  # of the next epoch nothing is left out


def test_a_view_that_is_chosen_meanwhile_is_for_the_next_iteration(numbers):
    dataset = Dataset(numbers, rank=0, world_size=1)
    all_steps = [keys for (keys,) in Loader(dataset.to_tuple("__key__"), 12)]
    view = Dataset(numbers, where="cls < 30", rank=0, world_size=1)
    loader = Loader(dataset.to_tuple("__key__"), 12, num_workers=2, persistent_workers=True)
    seen = []
    for step, (keys,) in enumerate(loader):
        seen.append(keys)
        if step == 2:
            loader.dataset.set_view(where="cls < 30")
            loader.skip(4, 6)
    assert seen == without(all_steps, (4, 6))
    loader.set_epoch(0)
    assert [keys for (keys,) in loader] == [keys for (keys,) in Loader(view.to_tuple("__key__"), 12)]


def test_an_iteration_ends_when_all_that_is_left_is_skipped(numbers):
    loader = loader_of(numbers, num_workers=1, workers="thread")
    batches = iter(loader)
    next(batches)
    loader.skip(1, NUM_STEPS - 1)
    assert list(batches) == []
    assert (loader.epoch, loader.step, len(loader)) == (1, 0, NUM_STEPS)


def test_samples_that_are_skipped_are_not_read(numbers):
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
    assert (loader.step, len(loader), len(list(loader))) == (2, NUM_STEPS - 3, NUM_STEPS - 3)
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


def test_a_second_spike_has_the_same_number_for_the_loop_for_batch_and_for_skip(numbers):
    keys = {key for (batch,) in Loader(Dataset(numbers, rank=0, world_size=1).to_tuple("__key__"), 12) for key in batch}
    loader = Loader(Dataset(numbers, rank=0, world_size=1).to_tuple("__key__"), 12)
    loader.skip(2, 3)
    seen = {}
    for step, (batch,) in loader.enumerate():
        seen[step] = batch
        if step == 5:
            state = loader.state_dict()
            break
    assert wdsplit.batch(numbers, 5, state=state).keys.tolist() == seen[5]
    again = Loader(Dataset(numbers, rank=0, world_size=1).to_tuple("__key__"), 12)
    again.skip(2, 3)
    again.skip(5, 5)
    left = {key for (batch,) in again for key in batch}
    skipped = wdsplit.batches(numbers, [2, 3, 5], batch_size=12)
    assert keys - left == {key for each in skipped for key in each.keys} >= set(seen[5])


def test_skips_belong_to_the_samples_of_their_view(numbers):
    loader = loader_of(numbers)
    loader.skip(0, 0)
    view = Loader(delivering(Dataset(numbers, where="cls < 90", rank=0, world_size=1)), 12)
    with pytest.raises(StateError, match="another view"):
        view.load_state_dict(loader.state_dict())
    loader.dataset.set_view(where="cls < 90")
    with pytest.raises(StateError, match="another view"):
        next(iter(loader))


@pytest.mark.parametrize(
    "steps", [(-1, 2), (3, 2), (0, NUM_STEPS), (NUM_STEPS, NUM_STEPS), (1.5, 2), ("1", 2), (True, 2), (None, None)]
)
def test_steps_that_are_none_are_refused(numbers, steps):
    loader = loader_of(numbers)
    with pytest.raises(InputError, match="cannot skip these steps") as error:
        loader.skip(*steps)
    assert error.value.expected == f"0 <= first <= last < {NUM_STEPS}"
    assert len(loader) == NUM_STEPS


def test_steps_that_were_delivered_are_refused(numbers):
    loader = loader_of(numbers)
    batches = iter(loader)
    list(itertools.islice(batches, 4))
    for steps in ((0, 0), (3, 3), (3, 6)):
        with pytest.raises(InputError, match="cannot skip these steps") as error:
            loader.skip(*steps)
        assert error.value.expected == "steps from 4 on: earlier ones are already delivered"
    loader.skip(4, 4)
    assert len(list(batches)) == NUM_STEPS - 5


def test_ranks_that_advance_by_themselves_have_no_steps_to_skip(numbers):
    loader = loader_of(numbers, tail="uneven")
    with pytest.raises(InputError, match="tail='uneven'"):
        loader.skip(0, 1)


@pytest.mark.parametrize("skipped", [[[3, 2]], [[0, 1, 2]], [5], 5, "x", [[0, "1"]], [[-1, 4]], [[True, 4]], {"a": 1}])
def test_a_state_whose_skips_are_damaged_is_refused(numbers, skipped):
    loader = loader_of(numbers)
    with pytest.raises(StateError, match="invalid skipped positions"):
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


def test_accelerates_loader_knows_its_last_batch(numbers):
    accelerate = pytest.importorskip("accelerate")
    from wdsplit.integrations.accelerate import PreparedLoader

    loader = PreparedLoader(loader_of(numbers), accelerate.Accelerator(cpu=True))
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
