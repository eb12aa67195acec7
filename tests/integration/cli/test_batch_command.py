"""`wdsplit batch`: what it prints, at 80 columns too, what it saves, and what it refuses."""

import json
import textwrap
from pathlib import Path

import pytest

import wdsplit
from commands import done, refused, run
from made_datasets import numbers_dataset
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a dataset `data`, and states in `early.json` and `checkpoint.json`, which skips a step."""
    folder = tmp_path_factory.mktemp("batch")
    Path(numbers_dataset(folder / "made", 101, world_size=2, workers=2)).rename(folder / "data")
    loader = Loader(Dataset(folder / "data", rank=0, world_size=1), 4)
    list(loader)
    batches = iter(loader)
    next(batches)
    (folder / "early.json").write_text(json.dumps(loader.state_dict()))
    loader.skip(2, 2)
    for _ in range(3):
        next(batches)
    (folder / "checkpoint.json").write_text(json.dumps({"step": 4, "loader": loader.state_dict()}))
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def text(block):
    """Return a block of text without its indentation."""
    return textwrap.dedent(block.removeprefix("\n").rstrip(" "))


def invoked(*arguments):
    return done("batch", *arguments).out


LAST_STEP = text("""
    data, epoch 0, step 25 of 26: 4 samples of 4 shards, 3 pads
    rank  position  shard       pad  class  key
    0     100       000005.tar       36     00000036
    1     101       000008.tar  pad  56     00000056
    0     102       000009.tar  pad  59     00000059
    1     103       000014.tar  pad  90     00000090
    """)


def test_a_step_is_listed_sample_by_sample_and_as_json():
    options = ["data", "--step", 25, "--batch-size", 2, "--world-size", 2]
    assert invoked(*options) == LAST_STEP
    (step,) = json.loads(invoked(*options, "--rank", 1, "--json"))
    seen = wdsplit.batch("data", 25, batch_size=2, world_size=2).of_rank(1)
    samples = step.pop("samples")
    assert step.items() >= {"dataset": "data", "epoch": 0, "step": 25, "steps": 26, "skipped": False}.items()
    assert [(row["position"], row["rank"], row["pad"]) for row in samples] == [(101, 1, True), (103, 1, True)]
    for name, column in (("key", seen.keys), ("shard", seen.shards), ("class", seen.labels)):
        assert [row[name] for row in samples] == column.tolist()


def test_parts_of_samples_are_listed():
    wdsplit.make_view("data", "clips", expand="cls", where="cls == 3")
    options = ["data", "--view", "clips", "--step", 0, "--batch-size", 3]
    header, *rows = invoked(*options).splitlines()[-4:]
    assert header.split() == ["position", "shard", "part", "class", "key"]
    assert {row.split()[2] for row in rows} == {"0", "1", "2"}
    (step,) = json.loads(invoked(*options, "--json"))
    assert sorted(row["part"] for row in step["samples"]) == [0, 1, 2]


def test_steps_before_a_state_say_which_epoch_they_are_of_and_what_was_skipped():
    lines = invoked("data", "--state", "checkpoint.json", "--last", 3).splitlines()
    heads = [line for line in lines if line.startswith("data, ")]
    assert heads == [f"data, epoch 1, step {step} of 26: 4 samples of 4 shards" for step in (1, 3, 4)]
    assert len(lines) == 3 * 6 + 2
    assert invoked("data", "--state", "checkpoint.json", "--step", 2).startswith(
        "data, epoch 1, step 2 of 26: 4 samples of 4 shards\nskipped: the loader skipped this step (Loader.skip)\n"
    )
    ended = run("batch", "data", "--state", "early.json", "--last", 2, "--batch-size", 2)
    assert ended.err == "1 step of epoch 0, then 1 of epoch 1, in which the state was saved\n"
    assert ended.out.startswith(f"{LAST_STEP}\ndata, epoch 1, step 0 of 26: 4 samples of 4 shards\n")
    start = {**json.loads(Path("early.json").read_text()), "epoch": 0, "previous": None}
    Path("start.json").write_text(json.dumps(start))
    assert run("batch", "data", "--state", "start.json").err == "only 1 whole step before the state\n"


def test_options_of_the_order_are_those_of_the_dataset():
    options = ["--seed", 3, "--no-shuffle", "--lanes", 2, "--window", 5, "--limit", 50, "--tail", "drop"]
    found = json.loads(invoked("data", "--step", "2:3", "--epoch", 1, "--batch-size", 8, *options, "--json"))
    dataset = Dataset("data", seed=3, shuffle=False, lanes=2, window=5, limit=50, tail="drop", rank=0, world_size=1)
    loader = Loader(dataset.to_tuple("__key__"), 8)
    loader.set_epoch(1)
    assert [[row["key"] for row in step["samples"]] for step in found] == [keys for (keys,) in loader][2:4]


def test_payloads_are_saved_by_step(tmp_path):
    assert invoked("data", "--state", "checkpoint.json", "--last", 2, "-o", tmp_path / "seen") == (
        "data, epoch 1, step 3 of 26: 4 samples of 4 shards\ndata, epoch 1, step 4 of 26: 4 samples of 4 shards\n"
        f"{tmp_path}/seen/step000003\n{tmp_path}/seen/step000004\n"
    )
    (seen,) = wdsplit.batches("data", [4], epoch=1, batch_size=4)
    saved = {path.stem: path.read_bytes() for path in (tmp_path / "seen/step000004").glob("*.txt")}
    assert saved == {sample["__key__"]: sample["txt"] for sample in seen.samples()}
    again = ["data", "--state", "checkpoint.json", "--last", 1, "-o", tmp_path / "seen"]
    assert "folder already exists" in refused(2, "batch", *again)
    invoked(*again, "--overwrite")
    assert run("batch", "data", "--state", "early.json", "--last", 2, "-o", tmp_path / "two").code == 0
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["epoch0-step000025", "epoch1-step000000"]


def test_what_cannot_be_listed_is_refused():
    for arguments, message in (
        (["data"], "expected --step, or --state"),
        (["data", "--step", "3", "--last", "2"], "--step and --last cannot be combined"),
        (["data", "--step", "3:1", "--batch-size", "2"], "expected a number such as 1200"),
        (["data", "--step", "x"], "expected a number such as 1200"),
        (["data", "--state", "none.json"], "no such file"),
        (["none", "--step", "1", "--batch-size", "2"], "no dataset"),
        (["data", "--state", "checkpoint.json", "--seed", "4"], "seed: 0 in the state, 4 here"),
    ):
        assert message in " ".join(run("batch", *arguments).err.split())
