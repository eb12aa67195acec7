"""Mixtures: what they report, without secrets, and weights that change over time."""

from collections import Counter

import numpy as np
import pytest

import wdsplit
from made_datasets import numbers_dataset
from made_views import view_of
from wdsplit.errors import InputError, StateError
from wdsplit.loading.reading.reader import Reading
from wdsplit.order.split import World

SECRET = "hush"


def test_windows_that_were_read_are_counted_though_their_readers_are_gone(numbers):
    """A mixture that reads its source five times keeps the readers of two of these epochs."""
    source = wdsplit.mix(repeat={numbers: 5}).source
    reader = source.reader(source.order(0), World())
    plan = reader.plan(np.arange(source.num_samples))
    readers = {id(own): own for _, own, _ in plan[1]}.values()
    assert len(readers) == 5
    reader.carry_out(plan)
    assert reader.num_read == sum(each.num_read for each in readers) > 5 * 7
    assert reader.num_reused == sum(each.num_reused for each in readers)
    before = reader.num_read, reader.num_reused
    next(Reading(reader, [np.arange(3)]))
    assert reader.num_read + reader.num_reused > sum(before)


URL = f"https://u:{SECRET}@host/x?t={SECRET}"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"weights": URL}, "which datasets to mix"),
        ({"weights": {URL: 1}, "repeat": {URL: 1}}, "which datasets to mix"),
        ({"schedule": [(0, {URL: 1})], "weights": {URL: 1}}, "which datasets to mix"),
        ({"schedule": []}, "which datasets to mix"),
        ({"schedule": [0, {"a": 1}]}, "invalid schedule"),
        ({"schedule": [(0, [URL])]}, "which datasets to mix"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_and_no_secrets_are_told(arguments, found):
    with pytest.raises(InputError, match=found) as caught:
        wdsplit.mix(**arguments)
    assert SECRET not in str(caught.value)


def test_two_views_of_one_dataset_are_mixed_by_names(numbers):
    views = {"low": "cls < 20", "high": "cls >= 20"}
    dataset = wdsplit.mix({"low": 5, "high": 7}, num_samples=12, datasets=dict.fromkeys(views, numbers), where=views)
    samples = [(sample["__source__"], int(sample["cls"]) < 20) for sample in dataset if not sample["__pad__"]]
    assert sorted(samples) == [("high", False)] * 7 + [("low", True)] * 5
    assert all(name in repr(dataset) for name in views)
    with pytest.raises(InputError, match="names a dataset that is not mixed") as caught:
        wdsplit.mix({"low": 1}, datasets={"lwo": numbers})
    assert "low" in caught.value.remedy
    with pytest.raises(InputError, match="uneven"):
        wdsplit.mix({numbers: 1}, tail="uneven")


# Weights that change over time

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
