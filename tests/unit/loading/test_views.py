"""Views of a dataset that is open: which samples its epochs hold, by name, condition or epoch, and when they change."""

import copy
import json
from itertools import islice

import pytest

from made_datasets import (
    all_deliveries,
    deliveries,
    delivering,
    numbers_dataset,
    real_rows,
    sized_dataset,
)
from made_views import expected_view, store_view, view_of
from wdsplit.errors import InputError, StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.mix import mix

EASY, HARD = range(0, 101, 3), range(40, 90)
ALL = range(101)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a dataset of 101 rows in 7 shards, with two views."""
    path = numbers_dataset(tmp_path_factory.mktemp("numbers"), 101, shards=7, pad="none", lanes=4, window=4)
    store_view(path, "easy", EASY)
    store_view(path, "hard", HARD)
    return path


def opened(path, **options):
    return Dataset(path, **{"rank": 0, "world_size": 1} | options)


def loader_of(dataset, batch_size=12, **options):
    return Loader(delivering(dataset), batch_size, **options)


def first(path, rows, count, **options):
    return list(islice(expected_view(path, rows, **options), count))


def rows_of(loader):
    return real_rows(all_deliveries(loader))


def test_a_view_is_named_or_given_or_a_condition_or_a_list_of_keys(path):
    for chosen in ({"view": "easy"}, {"view": view_of(path, EASY)}):
        assert rows_of(loader_of(opened(path, **chosen))) == list(EASY)
    assert rows_of(loader_of(opened(path, where="cls >= 40 and cls < 90"))) == list(HARD)
    keys = [str(opened(path).sample(row)["__key__"]) for row in EASY]
    assert rows_of(loader_of(opened(path, keys=keys))) == list(EASY)
    assert rows_of(loader_of(opened(path, exclude=keys))) == [row for row in ALL if row % 3]
    both = opened(path, view="easy", where="cls < 20", exclude=keys[:2])
    assert rows_of(loader_of(both)) == [6, 9, 12, 15, 18]
    given = opened(path, view=view_of(path, EASY), where="cls < 20")
    assert rows_of(loader_of(given)) == [0, 3, 6, 9, 12, 15, 18]


def test_what_a_dataset_says_of_itself_names_the_view(path):
    dataset = opened(path, view={0: "easy", 2: None})
    assert dataset.source.num_samples == len(EASY)
    assert repr(dataset) == f"<Dataset {path}: 34 samples (view: easy, from epoch 2 on all samples), 0 stages>"
    assert "34 samples in epoch 0" in dataset._repr_html_()
    dataset.set_epoch(2)
    assert "101 samples" in repr(dataset)
    with pytest.raises(TypeError, match="101 samples"):
        len(dataset)
    assert "view" not in repr(opened(path))


@pytest.mark.parametrize(("limit", "is_given"), [(1, False), (30, True), (500, True)])
def test_a_limit_comes_before_the_view(path, limit, is_given):
    view = view_of(path, EASY) if is_given else "easy"
    assert rows_of(loader_of(opened(path, view=view, limit=limit))) == [row for row in EASY if row < limit]
    both = opened(path, limit=limit, view=view, where="cls > 9")
    assert rows_of(loader_of(both)) == [row for row in EASY if 9 < row < limit]


# By epoch


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"view": "eazy"}, "did you mean 'easy'"),
        ({"view": 7}, "invalid view name"),
        ({"view": {-1: "easy"}}, "-1 as an epoch"),
        ({"view": {True: "easy"}}, "True as an epoch"),
        ({"view": {0: {"were": "cls < 3"}}}, "were"),
        ({"view": {0: {"keys": ["a"]}}, "keys": ["b"]}, "keys for all epochs and for one"),
        ({"where": "clz < 3"}, "clz"),
    ],
)
def test_an_invalid_view_is_refused_when_it_is_chosen(path, chosen, problem):
    with pytest.raises(InputError) as caught:
        opened(path, **chosen)
    assert problem in str(caught.value)


def test_a_view_of_another_dataset_is_refused(path, tmp_path):
    other = sized_dataset(tmp_path, [30, 40, 31], lanes=2, window=4)
    with pytest.raises(InputError, match="another dataset"):
        opened(other, view=view_of(path, EASY))


def test_copies_have_the_view(path):
    other = copy.deepcopy(opened(path, view={0: "easy", 1: "hard"}))
    other.set_epoch(1)
    assert rows_of(loader_of(other.at_rank(0, 1))) == list(HARD)


# State


def saved(loader, steps):
    for _ in islice(loader, steps):
        pass
    return json.loads(json.dumps(loader.state_dict()))


def of(path, **options):
    return loader_of(opened(path, **options))


@pytest.mark.parametrize(
    ("before", "after", "expected", "found", "remedy"),
    [
        ({"view": "easy"}, {"view": "hard"}, "the view 'hard'", "the view 'easy'", "view='easy'"),
        ({}, {"view": "easy"}, "the view 'easy'", "all samples, without a view", "all samples, without view="),
        ({"where": "cls < 30"}, {"view": "easy"}, "the view 'easy'", "cls < 30", "the same view=, where=, keys="),
        ({"view": {0: "easy", 1: "hard"}}, {"view": {0: "hard", 1: "easy"}}, "'hard'", "'easy'", "view='easy'"),
    ],
)
def test_a_state_of_another_view_is_refused_with_both_names(path, before, after, expected, found, remedy):
    state = saved(of(path, **before), 1)
    with pytest.raises(StateError, match="another view of the dataset") as caught:
        of(path, **after).load_state_dict(state)
    assert expected in caught.value.expected and found in caught.value.found
    assert remedy in caught.value.remedy


def test_a_view_that_was_stored_anew_is_refused(tmp_path):
    path = sized_dataset(tmp_path, [10, 10], lanes=2, window=4)
    state = saved(of(path, view=store_view(path, "mine", range(16))), 1)
    with pytest.raises(StateError, match="overwritten since") as caught:
        of(path, view=store_view(path, "mine", range(17))).load_state_dict(state)
    assert caught.value.expected.count("'mine'") == caught.value.found.count("'mine'") == 1


@pytest.mark.parametrize(
    ("after", "rows", "count"),
    [
        ({"view": {0: "easy", 1: "hard"}}, HARD, 60),
        ({"view": {0: "easy", 1: None}}, ALL, 108),
        ({}, ALL, 108),
    ],
)
def test_a_state_at_the_start_of_an_epoch_goes_with_any_view(path, after, rows, count):
    state = saved(of(path, view="easy"), None)
    assert (state["epoch"], state["position"], state["view"]) == (1, 0, "easy")
    resumed = of(path, **after)
    resumed.load_state_dict(state)
    here = resumed.dataset.source.view_at(1)
    assert resumed.state_dict().get("view") == (here and here.name)
    batches = [deliveries(batch) for batch in islice(resumed, 1)]
    state = resumed.state_dict()
    assert (state["position"], state.get("view")) == (12, here and here.name)
    again = of(path, **after)
    again.load_state_dict(state)
    assert batches[0] + all_deliveries(again) == first(path, rows, count, epoch=1)


# Mixtures


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Return two datasets of 40 and 30 rows, each with a view "easy" of its even rows."""
    paths = []
    for num_rows, shards in ((40, 2), (30, 3)):
        folder = tmp_path_factory.mktemp("mixed")
        paths.append(numbers_dataset(folder, num_rows, shards=shards, pad="none", lanes=4, window=4))
        store_view(paths[-1], "easy", range(0, num_rows, 2))
    return paths


def mixed_rows(loader):
    """Return the rows of each dataset that a loader gives."""
    rows = {}
    for sources, numbers, pads in loader:
        for source, row, pad in zip(sources, numbers.tolist(), pads.tolist(), strict=True):
            if not pad:
                rows.setdefault(source, []).append(row)
    return {source: sorted(found) for source, found in rows.items()}


def mixture_loader(*args, **options):
    options = {"rank": 0, "world_size": 1} | options
    return Loader(mix(*args, **options).decode().to_tuple("__source__", "cls", "__pad__"), 7)


def test_a_view_of_a_mixture_is_one_for_all_its_datasets_or_one_for_each(parts):
    first, second = parts
    shares = {first: 1, second: 1}
    even = [list(range(0, 40, 2)), list(range(0, 30, 2))]
    both = mixture_loader(repeat=shares, view="easy")
    assert mixed_rows(both) == dict(zip(parts, even, strict=True))
    assert len(both) == 5
    one = mixture_loader(repeat=shares, view={first: "easy"})
    assert mixed_rows(one) == {first: even[0], second: list(range(30))}
    lists = {first: [opened(first).sample(row)["__key__"] for row in range(5)]}
    chosen = mixture_loader(repeat=shares, view={second: {1: "easy"}}, keys=lists)
    assert [mixed_rows(chosen) for _ in range(2)] == [
        {first: list(range(5)), second: list(range(30))},
        {first: list(range(5)), second: even[1]},
    ]
    assert f"(view: {first}: in " in repr(chosen.dataset)


def test_an_unknown_dataset_of_a_mixture_is_named(parts):
    with pytest.raises(InputError, match="no such dataset") as caught:
        mix(repeat=dict.fromkeys(parts, 1), view={f"{parts[0]}x": "easy"})
    assert parts[0] in caught.value.remedy
