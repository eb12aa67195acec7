"""Mixtures whose weights change over time, through loaders."""

from collections import Counter

import pytest

import wdsplit
from made_datasets import numbers_dataset
from made_views import view_of
from wdsplit import debug
from wdsplit.errors import InputError, StateError

SCHEDULE = [(0, (9, 1)), (60, (1, 1)), (150, (0, 1))]
EPOCH = 72


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return two datasets of 101 and of 40 samples."""
    one = numbers_dataset(tmp_path_factory.mktemp("one"), 101, shards=7, lanes=4, window=4)
    return one, numbers_dataset(tmp_path_factory.mktemp("other"), 40, shards=3, lanes=2, window=4)


def mixed(sources, points=SCHEDULE, interpolate="linear", **options):
    schedule = [(position, dict(zip(sources, weights, strict=True))) for position, weights in points]
    return wdsplit.mix(schedule=schedule, interpolate=interpolate, num_samples=EPOCH, **options)


def loader_of(sources, rank, world_size, epoch=0, global_batch=12, **options):
    dataset = mixed(sources, rank=rank, world_size=world_size, **options).decode()
    dataset.set_epoch(epoch)
    return wdsplit.Loader(dataset.to_tuple("__position__", "__source__", "cls", "__pad__"), global_batch // world_size)


def rows_of(batches):
    """Return (position, source, row, pad) of samples, by their positions."""
    return sorted(row for batch in batches for row in zip(*(list(map(plain, column)) for column in batch), strict=True))


def plain(value):
    return value.item() if hasattr(value, "item") else value


@pytest.mark.parametrize("interpolate", ["step", "linear"])
def test_shares_change_as_scheduled_and_no_sample_comes_twice_before_all_were_seen(sources, interpolate):
    rows = []
    for epoch in range(4):
        found = rows_of(loader_of(sources, 0, 1, epoch, interpolate=interpolate))
        assert [position for position, *_ in found] == list(range(EPOCH))
        rows += found
    assert not any(pad for *_, pad in rows)
    source_of = [source for _, source, _, _ in rows]
    counts = [Counter(source_of[begin:end])[sources[0]] for begin, end in ((0, 60), (60, 150), (216, 288))]
    assert counts == ([54, 45, 0] if interpolate == "step" else [42, 23, 0])
    for source, size in zip(sources, (101, 40), strict=True):
        seen = [row for _, each, row, _ in rows if each == source]
        assert set(Counter(seen).values()) <= {len(seen) // size, -(-len(seen) // size)}


def test_a_state_of_another_schedule_is_refused(sources):
    state = wdsplit.Loader(mixed(sources), 12).state_dict()
    assert "schedule of 3 points (linear, epochs of 72)" in state["fingerprint"]
    for other in (mixed(sources, SCHEDULE[:2]), mixed(sources, interpolate="step")):
        with pytest.raises(StateError, match="schedule of") as caught:
            wdsplit.Loader(other, 12).load_state_dict(state)
        assert "schedule" in caught.value.remedy
    same = [(0, (0.9, 0.1)), (60, (0.5, 0.5)), (150, (0, 3))]
    wdsplit.Loader(mixed(sources, same), 12).load_state_dict(state)


def test_a_report_and_an_audit_take_a_schedule(sources, tmp_path):
    dataset = mixed(sources)
    report = wdsplit.report(dataset, tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()
    assert report is not None
    with debug.audit(wdsplit.Loader(dataset, 12)) as audited:
        for epoch in range(3):
            audited.set_epoch(epoch)
            assert len(list(audited)) == 6
    assert len(audited.epochs) == 3


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"schedule": [(0, {"a": 1})], "weights": {"a": 1}}, "which datasets to mix"),
        ({"schedule": [(0, {"a": 1})], "repeat": {"a": 1}}, "which datasets to mix"),
        ({"schedule": []}, "which datasets to mix"),
        ({"schedule": {"a": 1}}, "invalid schedule"),
        ({"schedule": [0, {"a": 1}]}, "invalid schedule"),
        ({"schedule": [(0, ["a"])]}, "which datasets to mix"),
        ({"weights": {"a": 1}, "interpolate": "linear"}, "interpolate works only with schedule"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, found):
    with pytest.raises(InputError, match=found):
        wdsplit.mix(**arguments)


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
