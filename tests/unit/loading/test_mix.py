"""What a mixture reports: counts of what was read, and nothing that is secret."""

import numpy as np
import pytest

import wdsplit
from wdsplit.errors import InputError
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
