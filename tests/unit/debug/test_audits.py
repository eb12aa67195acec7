"""Audits in one process."""

from itertools import chain, islice

import pytest

from wdsplit import debug, mix
from wdsplit.errors import InputError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader


def delivering(given, deliver, batch_size=12):
    """Return a loader that delivers otherwise than it says; `deliver` gets it and its batches."""

    class Wrong(Loader):
        def __iter__(self):
            return iter(deliver(self, super().__iter__()))

    return Wrong(given, batch_size)


def repeating(loader, batches):
    """Give the third batch again after the fourth."""
    kept = None
    for step, batch in enumerate(batches):
        yield batch
        kept = batch if step == 2 else kept
        if step == 3:
            yield kept


def losing(loader, batches):
    return (batch for step, batch in enumerate(batches) if step != 1)


def going_back(loader, batches):
    """Give the first batch of the epoch again."""
    return chain([next(iter(Loader(loader.dataset, 12)))], batches)


@pytest.mark.parametrize(
    ("deliver", "start", "stop", "parts"),
    [
        (repeating, 0, None, ["12 samples too many: position 24 in step 4, "]),
        (losing, 0, 3, ["rank 0: 12 samples missing: position 12 in step 1, ", "12 samples too many"]),
        (going_back, 60, None, ["12 samples too many: position 0 in step 5, "]),
    ],
)
def test_an_audit_believes_the_batches_and_not_the_loader(numbers, deliver, start, stop, parts):
    loader = delivering(Dataset(numbers), deliver)
    loader.load_state_dict({**loader.state_dict(), "position": start})
    with pytest.raises(debug.CheckError) as caught, debug.audit(loader) as audited:
        list(islice(audited, stop))
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(("limit", "samples", "pads"), [(None, 101, 7), (20, 20, 4)])
def test_an_epoch_is_complete_with_its_last_batch(numbers, limit, samples, pads):
    with debug.audit(Loader(Dataset(numbers, limit=limit), 12)) as audited:
        list(islice(audited, len(audited)))
    assert (audited.epochs[0].samples, audited.epochs[0].pads, audited.epochs[0].complete) == (samples, pads, True)


def test_an_epoch_resumed_on_one_rank_is_audited_from_where_two_have_left_it(numbers):
    two = Loader(Dataset(numbers, rank=1, world_size=2), 6)
    for _, _ in zip(two, range(3), strict=False):
        state = two.state_dict()
    one = Loader(Dataset(numbers), 9)
    one.load_state_dict(state)
    with debug.audit(one) as audited:
        list(audited)
    epoch = audited.epochs[0]
    assert (epoch.start, epoch.samples, epoch.complete) == (state["position"], 101 - state["position"], True)


def test_a_mixture_is_audited_and_batches_without_positions_are_refused(numbers):
    dataset = mix(repeat={numbers: 2})
    with debug.audit(Loader(dataset, 12)) as audited:
        list(audited)
    assert audited.epochs[0].samples == 202
    for loader in (Loader(dataset.to_tuple("__key__"), 12), Loader(dataset, 12, collate_fn=list)):
        with pytest.raises(InputError, match="cannot tell"), debug.audit(loader) as audited:
            list(audited)


def test_without_a_process_group_one_rank_of_several_is_audited_alone(numbers, caplog):
    loader = Loader(Dataset(numbers, rank=1, world_size=3), 4)
    with debug.audit(loader) as audited:
        list(audited)
    assert audited.epochs[0].complete
    assert audited.epochs[0].samples == 34
    assert "auditing only rank 1 of 3" in caplog.text


def test_an_audit_stands_in_for_its_loader(numbers):
    loader, other = Loader(Dataset(numbers), 12), Loader(Dataset(numbers), 12)
    other.set_epoch(3)
    with debug.audit(loader) as audited:
        audited.set_epoch(3)
        assert (len(audited), audited.epoch, audited.batch_size) == (9, 3, 12)
        assert [batch["__key__"] for batch in audited] == [batch["__key__"] for batch in other]
        assert audited.state_dict() == loader.state_dict()
        assert "9 batches" in debug.diagnose(audited)
    assert [epoch.epoch for epoch in audited.epochs] == [3]
    with pytest.raises(InputError, match="an audit is a context"):
        list(audited)
    with pytest.raises(InputError, match=r"wdsplit\.Loader"):
        debug.audit([1, 2])
