import os
import shutil
import signal
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import wdsplit
import wdsplit.debug
from commands import done, refused
from made_datasets import all_deliveries, numbers_dataset
from sampled import columns_of, keys_of, rows_of, sampled_dataset
from tables import start_script, write_table
from wdsplit.errors import CorruptDataError, InputError, OutputExistsError, PipelineError
from wdsplit.order import bundles
from wdsplit.order.bundles import shard_units
from wdsplit.order.selection import Selection
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.views import VIEWS, read_view, write_view
from wdsplit.storage.opening import open_storage
from wdsplit.views import choosing

COUNTS = (10, 0, 13, 8, 20, 1)
NUM_SAMPLES = sum(COUNTS)
ROWS = columns_of(NUM_SAMPLES).to_pylist()
KEYS = keys_of(NUM_SAMPLES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sampled_dataset(tmp_path_factory.mktemp("made") / "d", COUNTS)


@pytest.fixture
def dataset(made, tmp_path, monkeypatch):
    """Return a dataset whose shards are worked through two at a time."""
    monkeypatch.setattr(choosing, "_SHARDS_AT_ONCE", 2)
    shutil.copytree(made, tmp_path / "d")
    return str(tmp_path / "d")


def rows_in(url, name):
    storage = open_storage(url)
    return rows_of(read_view(storage, read_manifest(storage), name)[1])


EXPECTED = [row["row"] for row in ROWS if row["label"] != 0 and row["score"] is not None and row["score"] > 1]
WHERE = "label != 'cat' and score > 1"


def test_a_view_is_what_a_list_comprehension_says(dataset):
    progress = []
    made = wdsplit.make_view(dataset, "good", where=WHERE, progress=lambda *done: progress.append(done))
    assert rows_in(dataset, "good") == EXPECTED
    assert (made.stored.num_selected, made.stored.num_samples) == (len(EXPECTED), NUM_SAMPLES)
    assert (made.num_shards, made.num_empty_shards) == (6, sum(rows == 0 for rows in selected_in_shards(EXPECTED)))
    assert progress[0] == (0, 6, 0)
    assert progress[-1] == (6, 6, NUM_SAMPLES)
    assert wdsplit.list_views(dataset) == {"good": made.stored}
    assert made.stored.recipe == {"where": WHERE}


def selected_in_shards(rows):
    return [len(part) for part in np.split(rows, np.searchsorted(rows, np.cumsum(COUNTS)[:-1]))]


def test_views_outlive_a_conversion_to_the_same_shards_and_no_other(tmp_path):
    url = numbers_dataset(tmp_path, 50, shards=4)
    wdsplit.make_view(url, "v", where="cls >= 40")

    def convert_again(shards):
        wdsplit.convert([str(tmp_path / "table.parquet")], url, shuffle=False, shards=shards, overwrite=True)

    convert_again(4)
    assert rows_in(url, "v") == list(range(40, 50))
    convert_again(5)
    with pytest.raises(InputError, match="view 'v' was made for other shards"):
        rows_in(url, "v")
    assert list(wdsplit.list_views(url)) == ["v"]
    (problem,) = wdsplit.verify(url).problems
    assert "view 'v' was made for other shards" in problem.cause


# Processes


STALL = """
import os, sys, time
import wdsplit

def stall(*_):
    print("stalled", flush=True)
    time.sleep(600)

if sys.argv[2] == "rename":
    os.replace = stall
wdsplit.make_view(sys.argv[1], "v", where="row > 5", overwrite=True, progress=stall if sys.argv[2] == "read" else None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["read", "rename"])
def test_a_process_that_is_killed_leaves_the_old_view(dataset, moment):
    wdsplit.make_view(dataset, "v", where="row < 3")
    process = start_script(STALL, dataset, moment)
    assert process.stdout.readline() == "stalled\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert rows_in(dataset, "v") == [0, 1, 2]
    assert list(wdsplit.list_views(dataset)) == ["v"]
    assert (len(os.listdir(f"{dataset}/views")) > 2) == (moment == "rename")
    wdsplit.make_view(dataset, "v", where="row < 4", overwrite=True)
    assert rows_in(dataset, "v") == [0, 1, 2, 3]
    (name,) = os.listdir(f"{dataset}/views")
    assert name.startswith("v@")


# Stores


@pytest.mark.slow
@pytest.mark.parametrize("store", ["disk", "bucket", "memory"])
def test_views_are_made_refused_replaced_and_dropped_on_any_store(dataset, store, request, caplog):
    url, fs = dataset, None
    if store == "bucket":
        url = sampled_dataset(f"{request.getfixturevalue('bucket').url}/d", COUNTS)
    elif store == "memory":
        fs = request.getfixturevalue("memory")
        sampled_dataset("memory://views/d", COUNTS)
        url = "/views/d"

    def rows(name="v"):
        return [int(sample["cls"]) for sample in wdsplit.Samples(url, view=name, fs=fs)]

    def make(name="v", **options):
        return wdsplit.make_view(url, name, **options, fs=fs)

    with pytest.raises(InputError, match="no column"):
        make(where="scor > 1")
    with pytest.raises(InputError, match="some of the keys have no sample"):
        make(keys=[*KEYS[:3], "nope"])
    if store == "disk":
        assert not (Path(dataset) / "views").exists()
    make(keys=[*KEYS[:3], "nope"], allow_missing=True)
    assert rows() == [0, 1, 2] and "'nope'" in caplog.records[-1].getMessage()
    with pytest.raises(OutputExistsError):
        make(where="row < 4")
    with pytest.raises(InputError, match="has no column"):
        make(where="rwo < 4", overwrite=True)
    assert rows() == [0, 1, 2]
    make(view="v", where="row > 0", overwrite=True, jobs=2 if store == "bucket" else 1)
    assert rows() == [1, 2]
    make("none", where="row < 0")
    assert "view 'none' has no samples" in caplog.records[-1].getMessage() and rows("none") == []
    assert list(wdsplit.list_views(url, fs=fs)) == ["none", "v"]
    for name in ("v", "none"):
        wdsplit.drop_view(url, name, fs=fs)
    with pytest.raises(InputError, match="there is no view 'v'"):
        wdsplit.drop_view(url, "v", fs=fs)
    assert wdsplit.list_views(url, fs=fs) == {}


# The command


def test_the_command_says_what_the_view_keeps(dataset, tmp_path):
    (tmp_path / "bad.txt").write_text(f"{KEYS[20]}\n{KEYS[20]}\n")
    lines = done("view", dataset, "good", "--where", WHERE, "--exclude", tmp_path / "bad.txt").out.splitlines()
    kept = len(EXPECTED) - (20 in EXPECTED)
    share = f"{100 * kept / NUM_SAMPLES:.1f} %"
    assert lines[0] == f"{dataset}: view 'good' keeps {kept} of {NUM_SAMPLES} samples ({share})"
    assert lines[1] == "shards without a selected sample: 3 of 6"
    assert lines[2] == f"--exclude {tmp_path}/bad.txt: 1 key, 1 duplicate, 0 without a sample"
    inspected = done("inspect", dataset, "--samples", 0).out
    assert f'view good: {share} of the samples: --where "{WHERE}" --exclude {tmp_path}/bad.txt'[:110] in inspected
    found = done("view", dataset, "good", "--where", WHERE, "--overwrite", "--json").json
    assert (found["num_selected"], found["num_shards"], found["num_empty_shards"]) == (len(EXPECTED), 6, 3)
    assert "removed view 'good'" in done("view", dataset, "--drop", "good").out
    assert wdsplit.list_views(dataset) == {}
    for arguments, text in (
        ((), "expected the NAME of a view to make, or --drop NAME"),
        (("v", "--drop", "w"), "[NAME]: not allowed with --drop"),
        (("--drop", "v", "--overwrite"), "--overwrite: not allowed with --drop"),
    ):
        assert f"error: {text}" in refused(2, "view", dataset, *arguments)


# Samples that come several times


def weighted_columns(num_samples):
    weights = [None if row % 11 == 10 else -1 if row == 33 else row % 4 for row in range(num_samples)]
    table = columns_of(num_samples).append_column("weight", pa.array(weights, pa.int16()))
    return table.append_column("parts", pa.array([row % 3 for row in range(num_samples)]))


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """Return a dataset with a column that says how often samples come; of row 10 and others nothing, of row 33 -1."""
    return sampled_dataset(tmp_path_factory.mktemp("weighted") / "d", COUNTS, weighted_columns)


RIGHT = "weight >= 0 and row != 20"
DUE = Counter(
    (row, part) for row in range(NUM_SAMPLES) for part in range(row % 4) if row % 11 != 10 and row not in (20, 33)
)


@pytest.mark.parametrize(("kind", "name", "is_stored"), [("repeat", "__repeat__", True), ("expand", "__part__", False)])
def test_samples_come_as_often_as_a_column_says(weighted, tmp_path, kind, name, is_stored):
    chosen = {kind: "weight", "where": RIGHT}
    if is_stored:
        wdsplit.make_view(weighted, kind, overwrite=True, jobs=2, **chosen)
        stored = wdsplit.list_views(weighted)[kind]
        assert (stored.num_selected, stored.num_units) == (len({row for row, _ in DUE}), DUE.total())
        assert stored.recipe == {"where": RIGHT, kind: "weight"}
        chosen = {"view": kind}
    for num_workers in (0, 2):
        dataset = wdsplit.Dataset(weighted, **chosen, rank=0, world_size=1).decode().to_tuple("cls", name, "__pad__")
        batches = list(wdsplit.Loader(dataset, 7, num_workers=num_workers))
        assert Counter((row, part) for row, part, pad in all_deliveries(batches) if not pad) == DUE
    where, view = chosen.get("where"), chosen.get("view")
    how = {"read": True, "world_size": 3, "num_workers": 2, "batch_size": 2, "view": view, "where": where}
    if is_stored:
        assert all(finding.held for finding in wdsplit.audit(weighted, **how).findings)
        samples = wdsplit.Samples(weighted, view=kind)
        assert Counter((int(sample["cls"]), sample[name]) for sample in samples) == DUE
        assert {samples[sample["__key__"]]["cls"] == sample["cls"] for sample in samples} == {True}


def test_substitutes_have_the_part_of_their_own_position(weighted):
    def refuse_some(sample):
        if int(sample["cls"]) % 5 == 3:
            raise ValueError
        return int(sample["cls"]), sample["__part__"], sample["__pad__"]

    options = {"on_bad_sample": "substitute", "max_bad_samples": 1.0, "rank": 0, "world_size": 1}
    dataset = wdsplit.Dataset(weighted, where=RIGHT, expand="weight", **options).map(refuse_some)
    found = list(dataset)
    assert {(row, part) for row, part, _ in found} <= set(DUE)
    assert Counter((row, part) for row, part, pad in found if not pad) == Counter(
        {each: 1 for each in DUE if each[0] % 5 != 3}
    )


def test_a_view_that_repeats_cannot_be_limited(weighted):
    wdsplit.make_view(weighted, "many", where=RIGHT, repeat="weight", overwrite=True)
    with pytest.raises(InputError, match="repeats, packs or groups samples"):
        wdsplit.Dataset(weighted, view="many", limit=20)


# Packs


@pytest.mark.parametrize(
    ("chosen", "jobs"), [({}, 1), ({"where": "row < 30"}, 1), ({"expand": "parts", "where": "is_odd"}, 2)], ids=str
)
def test_packs_hold_all_that_is_chosen_and_are_made_of_blocks(weighted, chosen, jobs):
    made = wdsplit.make_view(weighted, "packed", **chosen, pack="row", capacity=60, overwrite=True, jobs=jobs)
    units = read_view(open_storage(weighted), read_manifest(open_storage(weighted)), "packed")[1]
    due = [
        row
        for row in range(NUM_SAMPLES)
        if "where" not in chosen or (row < 30 if "row" in chosen["where"] else row % 2)
    ]
    due = [row for row in due for _ in range(row % 3 if "expand" in chosen else 1)]
    firsts, found, costs = np.cumsum(COUNTS) - COUNTS, [], []
    for shard, count in enumerate(units.counts.tolist()):
        rows, samples, *_ = shard_units(units, units.totals, shard, 1).items(np.arange(count))
        assert rows is None or (np.bincount(rows, samples + firsts[shard]) <= 60).all()
        found += (samples + firsts[shard]).tolist()
        costs += [] if rows is None else np.bincount(rows, (samples + firsts[shard]) ** 2).tolist()
    assert sorted(found) == due
    drawn = np.random.default_rng(0).choice(costs, (100_000, 8)).max(1).mean() / np.mean(costs)
    assert abs(drawn / made.stored.recipe["imbalance"] - 1) < 0.02
    assert (made.stored.num_units, made.stored.num_selected) == (units.num_samples, len(set(due)))
    assert "in " in repr(made) and "packs" in repr(made)
    assert made.stored.recipe["fill"] == round(sum(due) / 60 / units.num_samples, 4)


@pytest.mark.parametrize(("long", "kept"), [("drop", 31), ("truncate", NUM_SAMPLES)])
def test_samples_longer_than_a_pack_are_dropped_or_truncated_and_counted(weighted, long, kept):
    made = wdsplit.make_view(weighted, "packed", pack="row", capacity=30, long=long, overwrite=True)
    assert made.stored.num_selected == kept and made.stored.recipe["num_long"] == NUM_SAMPLES - 31
    output = done("view", weighted, "doubled", "--repeat", "weight", "--where", RIGHT, "--overwrite").out
    assert f"an epoch has {DUE.total()} samples: --repeat weight" in output
    output = done("view", weighted, "packed", "--pack", "row", "--capacity", 30, "--long", long, "--overwrite").out
    assert f"{made.stored.num_units} packs of up to 30" in output
    assert f"longer samples: {NUM_SAMPLES - 31} {long[:4]}" in output
    for tail in ("pad", "drop", "uneven"):
        audit = wdsplit.audit(weighted, view="packed", world_size=2, batch_size=3, tail=tail, read=True)
        assert [finding.promise for finding in audit.findings if not finding.held] == []
        (evidence,) = [each.evidence for each in audit.findings if each.promise == "exactly once, read"]
        assert tail == "drop" or evidence.startswith(f"{kept} of {kept} keys read, each once")
    assert len(wdsplit.Samples(weighted, view="packed")) == kept


GROUPS = {"group": "is_odd", "size": 4, "allow_pads": True}


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"repeat": "weight", "where": "row <= 10"}, "null"),
        ({"expand": "weight", "where": "weight < 0"}, "-1"),
        ({"expand": "row"}, "810"),
        ({"repeat": "score"}, "double"),
        ({"repeat": "wieght"}, ""),
        ({"repeat": 3}, "int"),
        ({"repeat": "weight", "expand": "weight"}, ""),
        ({"view": "many", "where": "row > 3"}, ""),
        ({"view": "many", "repeat": "weight"}, ""),
        ({"pack": "row", "capacity": 50}, "51"),
        ({"pack": "label", "capacity": 50}, "classes"),
        ({"pack": "row"}, "none"),
        ({"pack": "row", "capacity": 0}, "0"),
        ({"pack": "row", "capacity": 2**31}, str(2**31)),
        ({"pack": "row", "capacity": 60, "long": "cut"}, "'cut'"),
        ({"capacity": 60}, ""),
        ({"view": "packed", "where": "row > 3"}, ""),
        ({"pack": "row", "capacity": 60, "group": "row", "size": 2}, ""),
        ({"group": "is_odd"}, "neither"),
        ({"group": "is_odd", "size": 0}, "0"),
        ({"group": "is_odd", "size": 4.5}, "4.5"),
        ({"group": "is_odd", "budget": 4}, "bool"),
        ({"group": "is_odd", "size": 4, "allow_pads": "no"}, "'no'"),
        ({"where": "row > 3", "allow_pads": True}, "no group"),
        ({"group": "weight", "size": 4}, "null"),
        ({"group": "row", "budget": 50}, "51"),
        ({"group": "row", "budget": 51, "long": "truncate"}, "'truncate'"),
        ({"group": "is_odd", "size": 4, "long": "drop"}, ""),
        ({"size": 4}, ""),
    ],
    ids=str,
)
def test_what_cannot_be_repeated_packed_or_grouped_is_refused(weighted, chosen, found, monkeypatch):
    monkeypatch.setattr(choosing, "_MAX_UNITS", 800)  # of a shard, samples would come 810 times by the column row
    if "view" in chosen:
        wdsplit.make_view(weighted, "many", where=RIGHT, repeat="weight", overwrite=True)
        wdsplit.make_view(weighted, "packed", pack="row", capacity=60, overwrite=True)
    for act in (lambda: wdsplit.make_view(weighted, "v", **chosen), lambda: wdsplit.Dataset(weighted, **chosen)):
        with pytest.raises(InputError) as caught:
            act()
        assert caught.value.found == found
        assert bool(caught.value.key) == (found in ("null", "-1", "51"))
        assert caught.value.expected or caught.value.remedy
    assert "v" not in wdsplit.list_views(weighted)


def test_each_sample_of_a_pack_draws_numbers_of_its_own(weighted):
    def drawn(sample, generator):
        return sample | {"drawn": int(generator.integers(2**40))}

    dataset = wdsplit.Dataset(weighted, pack="row", capacity=60, rank=0, world_size=1).map_random(drawn)
    found = []
    for num_workers in (0, 2):
        packs = [
            pack for batch in wdsplit.Loader(dataset, 3, num_workers=num_workers, collate_fn=list) for pack in batch
        ]
        assert all([sample["__place__"] for sample in pack] == list(range(len(pack))) for pack in packs)
        found.append([sample["drawn"] for pack in packs for sample in pack])
    assert found[0] == found[1] and len(set(found[0])) == len(found[0]) > len(packs)


def test_packs_are_padded_to_their_capacity_on_request_and_nothing_else_is(tmp_path):
    lengths = [1 + row * 7 % 10 for row in range(60)]
    columns = {"npy": [np.full(length, row) for row, length in enumerate(lengths)], "tokens": lengths}
    wdsplit.convert(pa.table(columns), tmp_path / "d", shards=3, shuffle=False, keep=["tokens"])
    dataset = wdsplit.Dataset(tmp_path / "d", pack="tokens", capacity=16, rank=0, world_size=1).decode()
    found = Counter()
    for batch in wdsplit.Loader(dataset, 4, num_workers=2, pad_to="capacity"):
        assert batch["npy"].shape == batch["__mask__"].shape == (4, 16)
        is_pad = batch["__pad__"][batch["__segment_ids__"][batch["__mask__"]]]
        found.update(batch["npy"][batch["__mask__"]][~is_pad].tolist())
    assert found == dict(enumerate(lengths))
    with pytest.raises(InputError, match="no packs to pad"):
        next(iter(wdsplit.Loader(wdsplit.Dataset(tmp_path / "d", rank=0, world_size=1), 4, pad_to="capacity")))


def refuse_some(sample):
    if int(sample["cls"]) % 5 != 1:
        raise ValueError
    return sample


def test_bad_samples_are_left_out_of_packs_and_packs_of_only_bad_ones_have_a_substitute(weighted):
    packs = {"pack": "row", "capacity": 60, "rank": 0, "world_size": 1, "shuffle": False}
    one_by_one = wdsplit.Dataset(weighted, **packs, on_bad_sample="substitute", max_bad_samples=1.0).map(refuse_some)
    assert {int(sample["cls"]) % 5 for sample in one_by_one} == {1}
    whole = wdsplit.Loader(wdsplit.Dataset(weighted, **packs), 1, collate_fn=lambda packs: packs[0])
    dataset = wdsplit.Dataset(weighted, **packs, on_bad_sample="substitute", max_bad_samples=1.0).map(refuse_some)
    for num_workers in (0, 2):
        loader = wdsplit.Loader(dataset, 1, num_workers=num_workers, collate_fn=lambda packs: packs[0])
        for found, expected in zip(loader, whole, strict=True):
            good = [int(sample["cls"]) for sample in expected if int(sample["cls"]) % 5 == 1]
            if good:
                assert [int(sample["cls"]) for sample in found] == good
            else:
                assert len(found) == 1 and found[0]["__pad__"] and int(found[0]["cls"]) % 5 == 1


# Groups


@pytest.mark.parametrize(
    ("chosen", "jobs", "block"),
    [
        ({"group": "is_odd", "size": 4}, 1, 0),
        ({"group": "label", "size": 3, "where": "row < 30"}, 2, 7),
        ({"group": "row", "budget": 150}, 2, 0),
        ({"group": "row", "budget": 150, "size": 3, "expand": "parts"}, 1, 7),
    ],
    ids=str,
)
def test_groups_are_of_one_value_or_of_a_budget_and_change_from_epoch_to_epoch(
    weighted, monkeypatch, chosen, jobs, block
):
    monkeypatch.setattr(choosing, "group_block_of", lambda *_: block)
    made = wdsplit.make_view(weighted, "groups", **chosen, allow_pads=True, overwrite=True, jobs=jobs)
    due = Counter()
    for row in range(NUM_SAMPLES):
        if "where" not in chosen or row < 30:
            due[row] = row % 3 if "expand" in chosen else 1
    dataset = wdsplit.Dataset(weighted, view="groups", rank=0, world_size=1).decode()
    epochs, costs = [], []
    for _ in range(2):
        groups = [each for (each,) in wdsplit.Loader(dataset, 1, collate_fn=list)]
        assert len(groups) == made.stored.num_units
        seen = Counter(sample["cls"] for group in groups for sample in group if not sample["__pad__"])
        assert seen == +due
        for group in groups:
            rows, (value,) = [sample["cls"] for sample in group], {sample["__group__"] for sample in group}
            if "budget" in chosen:
                assert len(rows) * max(rows) <= 150 and max(rows) <= value and len(rows) <= chosen.get("size", 999)
                costs.append(len(rows) * value**2)
            else:
                assert {ROWS[row][chosen["group"]] for row in rows} == {value} and len(rows) == chosen["size"]
        num_pads = sum(map(len, groups)) - due.total()
        epochs.append({tuple(sorted(sample["cls"] for sample in group)) for group in groups})
        dataset.set_epoch(1)
    assert epochs[0] != epochs[1] and num_pads == made.stored.recipe["pads"]
    for tail in ("pad", "drop", "uneven") if block else ("pad",):
        audit = wdsplit.audit(weighted, view="groups", world_size=2, batch_size=1, tail=tail, read=not block)
        assert [finding.promise for finding in audit.findings if not finding.held] == []
    if "budget" in chosen:
        padded = sum(len(group) * group[0]["__group__"] for group in groups)
        assert made.stored.recipe["fill"] == round(sum(row * times for row, times in due.items()) / padded, 4)
        drawn = np.random.default_rng(0).choice(costs, (100_000, 8)).max(1).mean() / np.mean(costs)
        assert abs(drawn / made.stored.recipe["imbalance"] - 1) < 0.02


def test_groups_of_many_repeated_samples_need_permission_and_those_of_many_values_are_refused(weighted, monkeypatch):
    for allow_pads, size in ((False, 7), (True, 60)):
        with pytest.raises(InputError, match="too many samples would be repeated") as caught:
            wdsplit.make_view(weighted, "refused", group="is_odd", size=size, allow_pads=allow_pads)
        assert "smaller --size" in caught.value.remedy and ("--allow-pads" in caught.value.remedy) != allow_pads
    assert "refused" not in wdsplit.list_views(weighted)
    output = done("view", weighted, "groups", "--overwrite", "--group", "is_odd", "--size", 7, "--allow-pads").out
    assert "groups of 7, by 2 values; " in output and "squared lengths" not in output
    monkeypatch.setattr(choosing, "_MAX_VALUES", 20)
    for chosen in ({"where": "row < 15"}, {}):  # of one shard, and of several together
        with pytest.raises(InputError, match="too many values") if not chosen else nullcontext():
            wdsplit.make_view(weighted, "groups", group="row", size=1, **chosen, overwrite=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_groups_are_batches_and_those_of_a_budget_are_padded(tmp_path, num_workers):
    lengths = [1 + row * 7 % 10 for row in range(60)]
    columns = {"npy": [np.full(length, row) for row, length in enumerate(lengths)], "tokens": lengths}
    wdsplit.convert(pa.table(columns), tmp_path / "d", shards=3, shuffle=False, keep=["tokens"])
    how = {"num_workers": num_workers}
    dataset = wdsplit.Dataset(tmp_path / "d", group="tokens", budget=32, rank=0, world_size=1).decode()
    found = Counter()
    for batch in wdsplit.Loader(dataset, 1, **how):
        longest = int(batch["__lengths__"].max())
        assert batch["npy"].shape == batch["__mask__"].shape == (len(batch["__key__"]), longest)
        assert batch["__mask__"].sum(1).tolist() == batch["__lengths__"].tolist()
        assert len(batch["__key__"]) * longest <= 32 and not batch["npy"][~batch["__mask__"]].any()
        found.update(batch["npy"][batch["__mask__"]].tolist())
    assert found == dict(enumerate(lengths))
    sized = {"group": "tokens", "size": 3, "allow_pads": True}
    dataset = wdsplit.Dataset(tmp_path / "d", **sized, rank=0, world_size=1).decode()
    for batch in wdsplit.Loader(dataset, 1, **how):
        assert batch["npy"].shape == (3, int(batch["__group__"][0])) and "__mask__" not in batch
    with pytest.raises(InputError, match="a group is a whole batch"):
        next(iter(wdsplit.Loader(dataset, 2, **how)))


def test_bad_samples_of_a_group_are_replaced_by_its_good_ones_or_left_out_of_a_budget(weighted):
    for chosen in ({"group": "is_odd", "size": 4, "allow_pads": True}, {"group": "row", "budget": 200}):
        how = chosen | {"rank": 0, "world_size": 1}
        whole = list(wdsplit.Loader(wdsplit.Dataset(weighted, **how).decode().to_tuple("cls"), 1, collate_fn=list))
        dataset = wdsplit.Dataset(weighted, **how, on_bad_sample="substitute", max_bad_samples=1.0).map(refuse_some)
        for num_workers in (0, 2):
            given = dataset.decode().to_tuple("cls", "__pad__")
            loader = wdsplit.Loader(given, 1, num_workers=num_workers, collate_fn=list)
            for (found,), (expected,) in zip(loader, whole, strict=True):
                good = {row for (row,) in expected if row % 5 == 1}
                assert {row for row, _ in found} == good or not good
                assert sorted(row for row, pad in found if not pad) == sorted(good)
                assert len(found) == (4 if "size" in chosen else max(1, len(good)))
            batches = list(wdsplit.Loader(given, 1, num_workers=num_workers)) if "size" in chosen else []
            assert all(len(cls) == 4 for cls, _ in batches)


def test_groups_longer_than_their_budget_are_refused_when_they_are_read(tmp_path):
    columns = {"npy": [np.zeros(4)] * 40, "tokens": [3] * 40}
    wdsplit.convert(pa.table(columns), tmp_path / "d", shards=2, keep=["tokens"])
    dataset = wdsplit.Dataset(tmp_path / "d", group="tokens", budget=12, rank=0, world_size=1).decode()
    with pytest.raises(PipelineError, match="a group is longer than its budget") as caught:
        next(iter(wdsplit.Loader(dataset, 1)))
    assert caught.value.found == "16"


@pytest.mark.parametrize(
    ("chosen", "collate_fn"),
    [({"pack": "row", "capacity": 60}, None), (GROUPS, None)],
    ids=str,
)
def test_statistics_and_benchmarks_count_samples(weighted, chosen, collate_fn):
    dataset = wdsplit.Dataset(weighted, **chosen, rank=0, world_size=1).map(with_array)
    loader = wdsplit.Loader(dataset, 1, num_workers=2, collate_fn=collate_fn)
    found = wdsplit.bench(loader)
    pads = 4 * found.batches - NUM_SAMPLES if "size" in chosen else 0
    assert found.samples == loader.statistics().samples == loader.statistics().samples_made == NUM_SAMPLES + pads


def with_array(sample):
    return {"npy": np.zeros(int(sample["cls"])) if "__group__" not in sample else np.zeros(1)}


@pytest.mark.parametrize("chosen", [{"pack": "row", "capacity": 60}, {"group": "row", "budget": 100}], ids=str)
def test_views_of_large_windows_have_fewer_lanes_unless_others_are_asked_for(weighted, monkeypatch, chosen):
    own, world = wdsplit.Dataset(weighted).options.lanes, {"rank": 0, "world_size": 1}
    wdsplit.make_view(weighted, "small", **chosen, overwrite=True)
    monkeypatch.setattr(bundles, "_MIN_LANES", 1)
    monkeypatch.setattr(bundles, "_LANES_BYTES", own * 1024**2)
    monkeypatch.setattr(Manifest, "sample_bytes", 2 * 1024**2)
    wdsplit.make_view(weighted, "large", **chosen, overwrite=True)
    opened = {"small": {"view": "small"}, "large": {"view": "large"}, "given": {"view": "large", "lanes": own}}
    opened |= {"at once": chosen, "later": {"view": {0: None, 2: "large"}}}
    lanes = {name: wdsplit.Dataset(weighted, **each, **world).options.lanes for name, each in opened.items()}
    assert lanes["small"] == lanes["given"] == own > lanes["large"] == lanes["at once"] == lanes["later"]
    loader = wdsplit.Loader(wdsplit.Dataset(weighted, view="large", **world), 1, collate_fn=list)
    assert sum(len(unit) for (unit,) in loader) >= NUM_SAMPLES


# Checks


def test_verify_checks_views(dataset):
    wdsplit.make_view(dataset, "good", where=WHERE)
    assert wdsplit.verify(dataset).problems == ()
    storage = open_storage(dataset)
    manifest = read_manifest(storage)
    right = read_view(storage, manifest, "good")[1]
    bits = right.bitmaps.copy()
    bits[0] ^= 1
    write_view(storage, manifest, "forged", Selection(right.totals, right.counts, bits), {})
    data = storage.read(VIEWS.path("good", manifest.fingerprint))
    with storage.publish(VIEWS.path("cut", manifest.fingerprint)) as file:
        file.write([data[:-50]])
    problems = wdsplit.verify(dataset).problems
    assert [problem.cause for problem in problems] == [
        "view 'cut' cannot be read",
        "the bitmaps of a view do not match its counts",
    ]
    assert all(isinstance(problem, CorruptDataError) for problem in problems)
    assert [name in problem.place for name, problem in zip(("cut", "forged"), problems, strict=True)] == [True, True]


def test_a_key_that_belongs_to_two_samples_is_refused_and_each_has_another_spelling(tmp_path):
    """`img.1` is `img_x2E1` in the tar, and `img_x2E1` is `img_x5Fx2E1` there."""
    raw = ["img.1", "img_x2E1", "plain", "z.1"]
    source = write_table(tmp_path / "in.parquet", {"key": raw, "cls": list(range(4))})
    options = wdsplit.ConvertOptions(shards=2, key="key", columns=("cls",))
    wdsplit.convert(source, tmp_path / "data", options)
    data = str(tmp_path / "data")

    def chosen(**choice):
        return sorted(int(sample["cls"]) for sample in wdsplit.Dataset(data, **choice) if not sample["__pad__"])

    samples, allow_missing = wdsplit.Samples(data), wdsplit.AnnotateOptions(allow_missing=True)
    for act in (
        lambda: chosen(keys=["img_x2E1"]),
        lambda: chosen(exclude=raw),
        lambda: samples["img_x2E1"],
        lambda: wdsplit.Dataset(data).sample("img_x2E1"),
        lambda: wdsplit.annotate(data, [{"key": "img_x2E1", "new": 1}], "key", "new", allow_missing),
    ):
        with pytest.raises(InputError, match="a key belongs to two samples") as caught:
            act()
        assert "'img.1', which is" in caught.value.expected
        assert "'img_x5Fx2E1', which was" in caught.value.expected
    for row, spellings in enumerate([["img.1"], ["img_x5Fx2E1"], ["plain"], ["z.1", "z_x2E1"]]):
        for key in spellings:
            assert chosen(keys=[key]) == [row]
            assert chosen(exclude=[key]) == [each for each in range(4) if each != row]
            assert int(samples[key]["cls"]) == row
