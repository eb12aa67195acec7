import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampled import keys_of, rows_of, sampled_dataset
from wdsplit.errors import InputError
from wdsplit.order.selection import Selection
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Field, first_samples
from wdsplit.shards.views import write_view
from wdsplit.storage.local import LocalStorage
from wdsplit.views import choosing, view
from wdsplit.views.view import resolve_view

COUNTS = (10, 0, 13, 8)
NUM_SAMPLES = sum(COUNTS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return the storage and manifest of a dataset with the stored view `third`."""
    storage = LocalStorage(sampled_dataset(tmp_path_factory.mktemp("sampled") / "d", COUNTS))
    manifest = read_manifest(storage)
    masks = np.split(np.arange(NUM_SAMPLES) % 3 == 0, np.cumsum(COUNTS)[:-1])
    write_view(storage, manifest, "third", Selection.of_masks(masks), {})
    return storage, manifest


@pytest.fixture(autouse=True)
def few_shards_at_once(monkeypatch):
    monkeypatch.setattr(choosing, "_SHARDS_AT_ONCE", 3)


def rows_in(dataset, **asked):
    return rows_of(resolve_view(*dataset, **asked).selection)


def refused(dataset, **asked):
    with pytest.raises(InputError) as caught:
        resolve_view(*dataset, **asked)
    return caught.value


some_rows = st.lists(st.integers(0, NUM_SAMPLES - 1), max_size=12)


@given(
    view=st.sampled_from([None, "third"]),
    least=st.none() | st.integers(0, NUM_SAMPLES),
    kept=st.none() | some_rows,
    left_out=st.none() | some_rows,
    limit=st.none() | st.integers(1, NUM_SAMPLES + 5),
)
def test_everything_that_is_asked_is_combined(dataset, view, least, kept, left_out, limit):
    keys = keys_of(NUM_SAMPLES)
    asked = {
        "view": view,
        "where": None if least is None else f"row >= {least}",
        "keys": None if kept is None else [keys[row] for row in kept],
        "exclude": None if left_out is None else [keys[row] for row in left_out],
    }
    if any(each is not None for each in asked.values()):
        among = range(min(limit or NUM_SAMPLES, NUM_SAMPLES))
        expected = [
            row
            for row in among
            if (view is None or row % 3 == 0)
            and (least is None or row >= least)
            and (kept is None or row in kept)
            and (left_out is None or row not in left_out)
        ]
        found = resolve_view(*dataset, **asked, limit=limit).selection
        assert rows_of(found) == expected
        limited = dataset[1] if limit is None else first_samples(dataset[1], limit)
        assert found.totals.tolist() == limited.shards.num_real.tolist()


TEXT, KEPT = ("txt", "text", "text", "string"), "it is a field (txt): convert with --keep text, or join it "


@pytest.mark.parametrize(
    ("field", "where", "remedy"),
    [
        (TEXT, "text == 'a'", KEPT),
        (TEXT, "txt == 'a'", KEPT),
        (
            ("jpg", "image", "bytes", "binary"),
            "image == 'a'",
            "it is a field (jpg): `wdsplit map` makes a column of it",
        ),
        (
            ("npy", "ids", "npy", "list<item: int64>"),
            "ids == 1",
            "it is a field (npy): `wdsplit map` makes a column of it",
        ),
        (
            ("day.json", "day", "json", "date32[day]"),
            "day == 1",
            "it is a field (day.json): join it with wdsplit annotate",
        ),
        (("cls", "label", "integer", "int64"), "cls == 1", "use label, the column of the field cls"),
    ],
)
def test_a_condition_on_a_field_says_how_it_becomes_a_column(dataset, field, where, remedy):
    storage, manifest = dataset
    error = refused((storage, dataclasses.replace(manifest, fields=(Field(*field),))), where=where)
    assert error.cause == f"the sample tables have no column {where.split()[0]!r}"
    assert error.remedy.startswith(remedy)


def test_bad_samples_whose_keys_could_not_be_read_are_found_by_their_places(dataset, tmp_path, caplog):
    url, bad = dataset[0].url, tmp_path / "bad.jsonl"
    rows = [
        {"key": "00000001", "shard": f"{url}/000000.tar", "sample": 1},
        {"key": None, "shard": f"{url}/000002.tar", "sample": 3},
        {"key": None, "shard": "s3://moved/here/000003.tar", "sample": 7},
        {"key": None, "shard": f"{url}/000003.tar", "sample": 8},
        {"key": None, "shard": f"{url}/9.tar", "sample": 0},
    ]
    bad.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rows_in(dataset, exclude=bad) == [row for row in range(NUM_SAMPLES) if row not in (1, 13, 30)]
    (record,) = caplog.records
    assert "2 of the 5 keys" in record.getMessage()
    assert f"'sample 8 of {url}/000003.tar'" in record.getMessage()


def test_keys_that_no_sample_has_are_refused_or_if_left_out_or_beyond_a_limit_warned_of(dataset, caplog):
    assert resolve_view(*dataset) is None
    error = refused(dataset, keys=["img.0", "nope", *(f"no-{n}" for n in range(9))])
    assert error.found == "10 of 11 keys without a sample: 'nope', 'no-0', 'no-1', 'no-2', 'no-3', ..."
    assert "such as 'img_x2E0'" in error.expected
    assert rows_in(dataset, exclude=["img.0", "nope"]) == list(range(1, NUM_SAMPLES))
    assert rows_in(dataset, keys=["img.0", "img.30", "nope"], limit=20) == [0]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 of the 2 keys of a list have no sample: 'nope'",
        "2 of the 3 keys of a list have no sample among the first 20: 'img.30', 'nope'",
    ]
    found = resolve_view(*dataset, view="third", where="row > 3", keys=keys_of(NUM_SAMPLES), exclude=["img.0"])
    assert repr(found) == "<View 'third and row > 3 and in a list and not in a list': 9 of 31 samples>"


def test_errors_of_conditions_are_those_of_where(dataset):
    error = refused(dataset, where="scor > 1")
    assert error.place == "^scor^ > 1"
    assert error.remedy == "did you mean score?"
    assert "one of __key__, num_bytes, row, score, label, is_odd" in error.expected
    assert "cannot be compared with a string" in refused(dataset, where="score > 'x'").cause
    assert "column 'label' has no class 'dig'" in refused(dataset, where="label == 'dig'").cause
    assert refused(dataset, where=3).cause == "invalid where"
    assert "empty" in refused(dataset, where="").cause
    assert "fails for some row" in refused(dataset, where="row * 9223372036854775807 > 0").cause


def test_too_large_a_dataset_says_which_command_stores_the_view(dataset, monkeypatch):
    command = f"`wdsplit view {dataset[0].url} NAME` and the same --where, --keys, --exclude, --view,"
    for limits in ((3, 31), (4, 30)):
        monkeypatch.setattr(view, "_MAX_SHARDS", limits[0])
        monkeypatch.setattr(view, "_MAX_SAMPLES", limits[1])
        error = refused(dataset, view="third", where="label == 'cat'", keys=["a"], exclude="my bad.txt")
        assert command in error.remedy
    assert rows_in(dataset, where="row < 2", limit=10) == [0, 1]
    assert resolve_view(*dataset, view="third").name == "third"
