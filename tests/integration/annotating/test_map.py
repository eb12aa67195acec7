"""Functions that are mapped over samples: results as if they had been annotated, whatever carries them out."""

import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import mapped_functions
import wdsplit
from commands import refused, run
from made_datasets import converted
from mapped_functions import COUNTED, values, values_of_batch
from stops import killed, stopped_at
from tables import files_of
from wdsplit.errors import ConvertError, InputError, OutputExistsError, PipelineError

NUM_ROWS, SHARDS = 101, 7
KEYS = [f"a/é.{row}" if row % 3 else f"b{row}" for row in range(NUM_ROWS)]
COLUMNS, FIELDS = ["is_odd", "more", "score", "word"], ["boxes.npy", "latent.npy", "mask.png", "more.json", "word.txt"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a dataset whose shards end in pads."""
    drawn = np.random.default_rng(7)
    table = pa.table({"id": KEYS, "bin": [drawn.bytes(50 + row) for row in range(NUM_ROWS)], "row": range(NUM_ROWS)})
    plan = {"key": "id", "shards": SHARDS, "lanes": 4, "keep": ("row",)}
    return converted(tmp_path_factory.mktemp("made"), table, mapping={"bin": "bin", "cls": "row"}, **plan)


@pytest.fixture
def data(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "data"))


@pytest.fixture
def counting(monkeypatch, tmp_path):
    """Return a function that gives the samples which were counted since its last call."""
    path = tmp_path / "counted"
    monkeypatch.setenv(COUNTED, str(path))

    def seen():
        found = sorted(map(int, path.read_text().split())) if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    return seen


def files_in(data, annotation):
    """Return the tables and side shards of an annotation; their list has their folder in it."""
    return {name: each for name, each in files_of(data / annotation.folder).items() if not name.startswith("shards@")}


@pytest.fixture(scope="module")
def annotated(made, tmp_path_factory):
    """Return the files of an annotation whose table has what the function returns."""
    data = shutil.copytree(made, tmp_path_factory.mktemp("annotated") / "data")
    rows = [{"id": KEYS[row], **(values({"cls": row}) or {})} for row in range(NUM_ROWS) if row % 10]
    mapping = {field: field if field == "latent.npy" else field.partition(".")[0] for field in FIELDS}
    options = {"mapping": mapping, "columns": tuple(COLUMNS), "allow_missing": True}
    return files_in(data, wdsplit.annotate(data, rows, "id", "made", **options))


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "batch_size"), [(1, 1000), (2, None)])
def test_results_are_the_bytes_of_an_annotation_with_them(data, annotated, jobs, batch_size, monkeypatch):
    if batch_size == 1000:  # the results of a shard are spilled in several parts
        monkeypatch.setattr("wdsplit.tables.python_rows._BATCH_ROWS", 4)
    function = values if batch_size is None else values_of_batch
    found = wdsplit.map_samples(data, function, "made", batch_size=batch_size, jobs=jobs)
    assert (found.schema.names, [field.name for field in found.fields]) == (COLUMNS, FIELDS)
    assert (found.num_samples, found.num_missing) == (NUM_ROWS, 11)
    assert files_in(data, found) == annotated


def test_a_run_that_is_stopped_or_killed_goes_on_with_the_shards_that_are_left(data, annotated, counting):
    given = data, "mapped_functions:counted", "made"
    with stopped_at("map", 40) as stop:
        wdsplit.map_samples(*given, progress=stop)
    before = counting()
    with pytest.raises(OutputExistsError, match="unfinished"):
        wdsplit.map_samples(*given)
    found = wdsplit.map_samples(*given, resume=True)
    assert sorted([*before, *counting()]) == list(range(NUM_ROWS))
    assert files_in(data, found) == annotated
    assert wdsplit.map_samples(*given, resume=True) == found
    assert counting() == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_that_is_killed_leaves_the_dataset_as_it_was(data, annotated, counting, jobs):
    """That of the run itself, or a worker of it."""
    given = data, "mapped_functions:killed_once", "made"
    if jobs == 1:
        killed(partial(wdsplit.map_samples, *given))
    else:
        with pytest.raises(ConvertError, match="a worker process died"):
            wdsplit.map_samples(*given, jobs=jobs)
    assert wdsplit.list_annotations(data) == {}
    before = counting()
    found = wdsplit.map_samples(*given, resume=True)
    after = counting()
    assert len(before) + len(after) < 2 * NUM_ROWS - 10 and {*before, *after} == set(range(NUM_ROWS))
    assert files_in(data, found) == annotated
    assert [name.partition("@")[0] for name in sorted(os.listdir(data / "fields"))] == [found.folder[7:], "made"]


def place(row):
    """Return what names a sample in an error, but for the row in its shard."""
    return f"sample {wdsplit.tar.names.escape_key(KEYS[row])!r} ("


def changing(first, second):
    """Return a function that returns other values from some shard on."""
    return lambda sample: first if sample["cls"] < 59 else second


BAD = {
    "an error": (mapped_functions.raising, [place(50), "row 5)", "no value for 50", "line"]),
    "shapes": (
        lambda samples: [{"x": x} for x in np.stack([np.zeros(sample["cls"]) for sample in samples])],
        [place(0), "or 3 more of its batch", "their shapes may differ", f"({__file__}, line"],
    ),
    "of lists": (values_of_batch, ["dicts with bin, cls: it gets", "with --batch-size N, a list"]),
    "no dict": (lambda sample: 5, ["a dict for each sample", "found: int", place(0)]),
    "too few": (lambda samples: [None], ["found: 1 for 4 samples (list)", place(0)]),
    "no key": (lambda sample: {5: 5}, ["string keys", place(0)]),
    "a set": (lambda sample: {"x": {1, 2}}, ["a set has no order", place(0), "column 'x'"]),
    "two types": (lambda sample: {"x": "a" if sample["cls"] % 2 else 1}, [place(1), "column 'x'"]),
    "other types": (changing({"x": 5}, {"x": "text"}), ["as 'x'", "int64 for sample", "string, x.txt (string)"]),
    "other arrays": (changing({"x": np.zeros(2, "f4")}, {"x": np.zeros(2)}), ["<f4 for", "<f8 for", "as 'x'"]),
    "one name later": (changing({"x": "a"}, {"x.txt": "b"}), ["become the field 'x.txt'", "'x' and 'x.txt'"]),
    "a column": (lambda sample: {"row": 5}, ["has a column 'row' already", "return other names"]),
    "nothing": (lambda sample: None, ["returns no values", "found: None for each sample"]),
    "options": (values, ["batch_size", "on_error", "names"]),
}
OPTIONS = {
    "too few": {"batch_size": 4},
    "shapes": {"batch_size": 4},
    "options": {"batch_size": 0, "on_error": "x", "fields": "a"},
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_and_names_the_sample(data, case):
    function, said = BAD[case]
    with pytest.raises(PipelineError if case in ("an error", "shapes", "of lists") else InputError) as caught:
        wdsplit.map_samples(data, function, "made", **OPTIONS.get(case, {}))
    text = str(caught.value)
    assert [part for part in said if part not in text] == [], text
    assert wdsplit.list_annotations(data) == {}


def test_samples_that_fail_can_be_skipped_and_are_listed(data):
    for function, batch_size in ((mapped_functions.raising, None), (mapped_functions.raising_in_batch, 8)):
        found = wdsplit.map_samples(data, function, "made", batch_size=batch_size, on_error="skip", overwrite=True)
        assert found.num_missing == 13 - 1  # row 50 has no values anyway
        assert found.provenance["num_failed"] == 2
        failed = {one["key"]: one["error"] for one in found.provenance["failed"]}
        keys = [wdsplit.tar.names.escape_key(KEYS[row]) for row in (50, 57)]
        assert failed == dict(zip(keys, ["ValueError: no value for 50", "ValueError: no value for 57"], strict=True))
    with pytest.raises(InputError, match=r"RuntimeError: always \(sample"):
        wdsplit.map_samples(data, _always, "made", on_error="skip", overwrite=True)


def _always(sample):
    raise RuntimeError("always")


def test_samples_that_cannot_be_decoded_fail_too(data):
    def refuse_some(name, payload):
        if name == ".bin" and len(payload) in (60, 61, 90):
            raise ValueError("no such payload")
        return

    with pytest.raises(PipelineError, match="a sample cannot be decoded") as caught:
        wdsplit.map_samples(data, values, "made", decode=[refuse_some])
    assert place(10) in str(caught.value)
    found = wdsplit.map_samples(data, values, "made", decode=[refuse_some], on_error="skip")
    rows = sorted(KEYS.index(wdsplit.unescape_key(one["key"])) for one in found.provenance["failed"])
    assert (rows, found.num_missing) == ([10, 11, 40], 12)


def test_only_requested_fields_are_read_and_joined_ones_can_be_input(data):
    wdsplit.map_samples(data, values, "made")
    found = wdsplit.map_samples(data, mapped_functions.texts, "next", join=["made"], fields=["latent.npy", "cls"])
    assert found.schema.names == ["read", "twice"]
    assert len(wdsplit.Samples(data, where="read == 'cls,latent.npy'")) == NUM_ROWS - 11
    chosen = wdsplit.Samples(data, where="twice >= 150", join=["made", "next"], fields=["cls", "latent.npy"]).decode()
    found = {int(one["cls"]): one.get("latent.npy") for one in chosen}
    for row in range(75, NUM_ROWS):
        expected = values({"cls": row})
        assert found[row] is None if expected is None else np.array_equal(found[row], expected["latent.npy"])
    wdsplit.map_samples(data, mapped_functions.shown_bin, "hex", decode=["mapped_functions:upper"])
    some = wdsplit.Samples(data, join=["hex"])
    assert [one["shown.txt"].decode() for one in some] == [one["bin"].hex().upper() for one in some]


def test_another_run_replaces_an_annotation_only_once_it_is_complete(data):
    before = wdsplit.map_samples(data, values, "made")
    files = files_of(data / "fields")
    with pytest.raises(OutputExistsError, match="already has an annotation 'made'"):
        wdsplit.map_samples(data, values, "made")
    assert files_of(data / "fields") == files
    with stopped_at("write", 3) as stop:
        wdsplit.map_samples(data, values, "made", overwrite=True, progress=stop)
    assert wdsplit.list_annotations(data) == {"made": before}
    assert wdsplit.verify(data).problems == ()
    found = wdsplit.map_samples(data, values, "made", resume=True)
    assert found.folder != before.folder
    assert [name.partition("@")[0] for name in sorted(os.listdir(data / "fields"))] == [found.folder[7:], "made"]
    assert wdsplit.verify(data).problems == ()


def test_the_command_prints_what_was_made_and_what_was_skipped(data):
    arguments = ("map", data, "mapped_functions:raising", "--name", "made", "--jobs", 1)
    assert "no value for 50" in refused(1, *arguments)
    assert "made by another plan" in refused(2, *arguments, "--on-error", "skip", "--resume", "--fields", "cls")
    ended = run(*arguments, "--on-error", "skip", "--resume")
    assert ended.code == 0, ended.err
    assert "missing: 10 samples for which it returned None" in ended.out
    assert "skipped: 2 samples that failed" in ended.out and "ValueError: no value for 57" in ended.out
    failed = run(*arguments, "--on-error", "skip", "--overwrite", "--json").json["failed"]
    assert [one["error"] for one in failed] == [f"ValueError: no value for {n}" for n in (50, 57)]


def appended(data, first, stop):
    """Append rows to a dataset."""
    rows = range(first, stop)
    table = {"id": [f"new{row}" for row in rows], "bin": [bytes([row]) * 20 for row in rows], "row": list(rows)}
    wdsplit.convert(pa.table(table), data, append=True, samples_per_shard=10, shuffle=False)


def found_in(data, version=None):
    """Return what the samples of a version have, by row."""
    samples = wdsplit.Samples(data, version=version, join=["made"], fields=["cls", *FIELDS]).decode()
    return {int(one["cls"]): {name: one.get(name) for name in ("latent.npy", "word.txt")} for one in samples}


def expected_for(rows):
    results = {row: values({"cls": row}) or {} for row in rows}
    return {row: {"latent.npy": each.get("latent.npy"), "word.txt": each.get("word")} for row, each in results.items()}


def test_an_update_computes_what_was_added_and_earlier_versions_keep_theirs(data, counting, tmp_path):
    given = data, "mapped_functions:counted", "made"
    before = wdsplit.map_samples(*given)
    counting()
    appended(data, NUM_ROWS, 131)
    whole = Path(shutil.copytree(data, tmp_path / "whole"))
    with pytest.raises(InputError, match="--update"):
        wdsplit.Samples(data, join=["made"])
    with stopped_at("map", 10) as stop:
        wdsplit.map_samples(*given, update=True, progress=stop)
    np.testing.assert_equal(found_in(data, 1), expected_for(range(NUM_ROWS)))
    with pytest.raises(OutputExistsError, match="unfinished"):
        wdsplit.map_samples(*given, update=True)
    made = wdsplit.map_samples(*given, update=True, resume=True)
    assert counting() == list(range(NUM_ROWS, 131))
    assert (made.folder, made.num_samples, made.num_missing) == (before.folder, 131, 14)
    again = wdsplit.map_samples(whole, "mapped_functions:counted", "made", overwrite=True)
    assert files_in(data, made) == files_in(whole, again)
    counting()
    assert wdsplit.map_samples(*given, update=True) == made
    appended(data, 131, 145)
    last = wdsplit.map_samples(*given, update=True, batch_size=None)
    assert counting() == list(range(131, 145)) and last.num_samples == 145
    for version, stop_row in ((1, NUM_ROWS), (2, 131), (3, 145)):
        np.testing.assert_equal(found_in(data, version), expected_for(range(stop_row)))
        chosen = wdsplit.Samples(data, version=version, where="score >= 0")
        assert len(chosen) == sum(row % 10 > 0 for row in range(stop_row))
        assert wdsplit.verify(data, version=version).problems == ()


def test_samples_that_are_appended_during_a_run_are_left_to_an_update(data, counting, caplog):
    given = data, "mapped_functions:counted", "made"
    with stopped_at("map", 40) as stop:
        wdsplit.map_samples(*given, progress=stop)
    appended(data, NUM_ROWS, 121)

    def append_more(progress):
        if progress.name == "write" and progress.done == progress.total:
            appended(data, 121, 131)

    wdsplit.map_samples(*given, resume=True, progress=append_more)
    assert counting() == list(range(NUM_ROWS)) and "covers version 1, but the latest is 3" in caplog.text
    np.testing.assert_equal(found_in(data, 1), expected_for(range(NUM_ROWS)))
    wdsplit.map_samples(*given, update=True)
    assert counting() == list(range(NUM_ROWS, 131))
    np.testing.assert_equal(found_in(data), expected_for(range(131)))


def test_a_training_with_joined_fields_that_resumes_stays_on_its_version(data):
    wdsplit.map_samples(data, values, "made")

    def loader(**options):
        dataset = wdsplit.Dataset(data, join=["made"], fields=["latent.npy", "cls"], where="word == word", **options)
        return wdsplit.Loader(dataset.decode(), 8, collate_fn=list)

    whole, stopped = list(loader()), loader()
    assert next(iter(stopped))[0]["__key__"] == whole[0][0]["__key__"]
    state = stopped.state_dict()
    appended(data, NUM_ROWS, 131)
    wdsplit.map_samples(data, values, "made", update=True)
    resumed = loader()
    with pytest.warns(UserWarning, match="version 1"):
        resumed.load_state_dict(state)
    np.testing.assert_equal(list(resumed), whole[1:])


def test_an_update_goes_on_from_shards_that_are_there_still(data, counting, tmp_path):
    """Erasing writes shards again: one of those that were added does not matter, one of those before does."""
    given = "mapped_functions:counted", "made"
    wdsplit.map_samples(data, *given)
    appended(data, NUM_ROWS, 131)
    other = Path(shutil.copytree(data, tmp_path / "other"))
    wdsplit.erase(data, keys=["new110"])
    counting()
    wdsplit.map_samples(data, *given, update=True)
    assert counting() == [row for row in range(NUM_ROWS, 131) if row != 110]
    rows = [row for row in range(131) if row != 110]
    np.testing.assert_equal(found_in(data), expected_for(rows))
    appended(data, 140, 141)  # one sample, without values
    assert wdsplit.map_samples(data, *given, update=True).num_missing == 14
    wdsplit.erase(other, keys=[KEYS[3]])
    with pytest.raises(InputError, match="made for version 1 of the dataset, not for this one") as caught:
        wdsplit.map_samples(other, *given, update=True)
    assert "written again" in caught.value.remedy and "--overwrite" in caught.value.remedy


def test_an_update_with_other_values_is_refused(data, monkeypatch):
    before = wdsplit.map_samples(data, "mapped_functions:values", "made")
    appended(data, NUM_ROWS, 131)

    def assert_refused(said, function="mapped_functions:values", name="made", **options):
        with pytest.raises(InputError, match=said):
            wdsplit.map_samples(data, function, name, update=True, **options)

    assert_refused("no annotation 'other'", name="other")
    assert_refused("was made in another way", mapped_functions.texts)
    assert_refused("was made in another way", fields=["cls"])
    monkeypatch.setattr(mapped_functions, "values", lambda sample: {"score": "text"})
    wdsplit.annotating.mapping._imported.cache_clear()
    assert_refused("returns other values than annotation 'made' has")
    wdsplit.annotating.mapping._imported.cache_clear()
    assert wdsplit.list_annotations(data) == {"made": before}
    np.testing.assert_equal(found_in(data, 1), expected_for(range(NUM_ROWS)))
