"""Mixtures whose weights change over time, through loaders."""

from collections import Counter

import pytest

import wdsplit
from made_datasets import numbers_dataset
from made_views import view_of
from wdsplit.errors import InputError, StateError

SCHEDULE = [(0, (9, 1)), (60, (1, 1)), (150, (0, 1))]
EPOCH = 72


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return two datasets of 101 and of 40 samples."""
    one = numbers_dataset(tmp_path_factory.mktemp("one"), 101, shards=7, lanes=4, window=4)
    return one, numbers_dataset(tmp_path_factory.mktemp("other"), 40, shards=3, lanes=2, window=4)


def mixed(sources, points=SCHEDULE, **options):
    schedule = [(position, dict(zip(sources, weights, strict=True))) for position, weights in points]
    return wdsplit.mix(schedule=schedule, num_samples=EPOCH, **options)


def test_a_state_of_another_schedule_is_refused(sources):
    state = wdsplit.Loader(mixed(sources), 12).state_dict()
    assert "schedule of 3 points (step, epochs of 72)" in state["fingerprint"]
    with pytest.raises(StateError, match="schedule of") as caught:
        wdsplit.Loader(mixed(sources, SCHEDULE[:2]), 12).load_state_dict(state)
    assert "schedule" in caught.value.remedy
    same = [(0, (0.9, 0.1)), (60, (0.5, 0.5)), (150, (0, 3))]
    wdsplit.Loader(mixed(sources, same), 12).load_state_dict(state)


def test_views_of_the_datasets_go_with_a_schedule(sources):
    views = {sources[0]: view_of(sources[0], range(0, 101, 2)), sources[1]: view_of(sources[1], range(10))}
    dataset = mixed(sources, view=views).decode()
    rows = []
    for epoch in range(4):
        dataset.set_epoch(epoch)
        rows += [(sample["__source__"], int(sample["cls"])) for sample in dataset if not sample["__pad__"]]
    assert len(rows) == 4 * EPOCH
    for source, chosen in zip(sources, (range(0, 101, 2), range(10)), strict=True):
        seen = Counter(row for each, row in rows if each == source)
        assert set(seen) <= set(chosen)
        assert set(seen.values()) <= {seen.total() // len(chosen), -(-seen.total() // len(chosen))}
    empty = {sources[1]: view_of(sources[1], [])}
    with pytest.raises(InputError, match="has a weight, but no samples"):
        mixed(sources, view=empty)
