"""Rows that come from Python, converted: what is written, and what is left when it ends in the middle."""

import importlib
import os
import signal

import numpy as np
import pandas
import PIL.Image
import pyarrow as pa
import pytest

import wdsplit
from stops import stopped_at
from tables import (
    all_samples,
    files_below,
    options,
    real_samples,
    shard_files,
    start_script,
    wait_until,
)
from wdsplit.checks.verify import verify
from wdsplit.conversion.convert import convert, convert_splits
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.spool import spooled
from wdsplit.errors import InputError, OutputExistsError, StorageError
from wdsplit.storage.local import LocalStorage
from wdsplit.tables.python_source import PythonSource

RUN = ".wdsplit-run"


def rows(count=40, first=0):
    for number in range(first, first + count):
        yield {"image": b"\xff\xd8\xff" + bytes([number % 251]) * 50, "label": number % 5, "meta": {"number": number}}


def is_whole(folder):
    return not verify(str(folder)).problems and not (folder / RUN).exists()


def test_rows_of_a_generator_become_samples(tmp_path):
    seen, out = [], tmp_path / "year=2024" / "out"
    manifest = convert(rows(3000), out, options(shards=4), seen.append)
    columns = [("jpg", "image"), ("cls", "label"), ("json", "meta")]
    assert [(field.name, field.column) for field in manifest.fields] == columns, "the output's folders are no columns"
    assert is_whole(out)
    fields = {"jpg": b"\xff\xd8\xff" + b"\7" * 50, "cls": b"2", "json": b'{"number":7}'}
    assert real_samples(out)[7][1] == fields
    sample = next(iter(wdsplit.Dataset(out, shuffle=False).decode()))
    assert sample["json"] == {"number": 0}
    assert [one.done for one in seen if one.name == "read"] == [1024, 2048, 3000]
    assert [(one.done, one.total) for one in seen if one.name == "write"][-1] == (4, 4)
    chosen = {"shards": 2, "splits": {"a": 0.5, "b": 0.5}}
    manifests = convert_splits(rows(100), tmp_path / "splits", options(**chosen))
    assert sum(manifest.num_samples for manifest in manifests.values()) == 100
    assert sorted(os.listdir(tmp_path / "splits")) == ["a", "b"]
    assert convert_splits(rows(100), tmp_path / "splits", options(**chosen, resume=True))


def test_types_may_widen_after_many_rows_and_nothing_is_lost(tmp_path):
    def widening():
        for number in range(2500):
            row = {"x": number if number < 1500 else number / 2}
            yield {**row, "late": {"n": number}} if number >= 2000 else {**row, "late": None}

    manifest = convert(widening(), tmp_path / "out", options(shards=1, null="omit"))
    assert [(field.name, field.type) for field in manifest.fields] == [("x.json", "double"), ("json", "string")]
    samples = [fields for _, fields in real_samples(tmp_path / "out")]
    assert [float(fields["x.json"]) for fields in samples] == [n if n < 1500 else n / 2 for n in range(2500)]
    assert [fields.get("json") for fields in samples[1999:2001]] == [None, b'{"n":2000}']
    assert is_whole(tmp_path / "out")


@pytest.mark.parametrize(
    ("late", "cause"),
    [("text", "a column changes type"), (0.5, "a value of column 'x' has another type")],
)
def test_values_that_do_not_go_with_the_rows_before_are_refused(tmp_path, late, cause):
    batches = [*pa.table({"x": [2**53 + 1] * 3}).to_batches(), *pa.table({"x": [late]}).to_batches()]
    source, storage = PythonSource("batches", 0, lambda: iter(batches)), LocalStorage(str(tmp_path / "out"))
    with (
        pytest.raises(InputError, match=cause) as caught,
        spooled(source, storage, True, lambda schema: None, lambda num_rows: None),
    ):
        pass
    assert caught.value.place.startswith("rows ")
    assert files_below(tmp_path) == []


# What cannot be converted leaves nothing


def failing(error):
    yield from rows(2000)
    raise error


@pytest.mark.parametrize("error", [KeyError("boom"), KeyboardInterrupt(), OSError("no answer")], ids=repr)
def test_a_source_that_fails_leaves_nothing_and_its_error_names_the_row(tmp_path, error):
    with pytest.raises(type(error)) as caught:
        convert(failing(error), tmp_path / "out", options())
    assert caught.value is error
    if not isinstance(error, KeyboardInterrupt):
        assert "at row 2000 (counted from 0)" in str(getattr(error, "__notes__", error.args))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("changes", [{"key": "lable"}, {"mapping": {"jpg": "img"}}], ids=str)
def test_columns_that_are_not_there_are_refused_after_the_first_rows(tmp_path, changes):
    read = []

    def watched():
        for row in rows(5000):
            read.append(row)
            yield row

    with pytest.raises(InputError, match=r"invalid columns|not in the table"):
        convert(watched(), tmp_path / "out", options(**changes))
    assert len(read) < 1500
    assert os.listdir(tmp_path) == []


def used_up():
    source = rows(3)
    list(source)
    return source


@pytest.mark.parametrize(
    ("source", "keywords", "cause"),
    [
        (rows, {"key": "label"}, "duplicate key"),
        (used_up, {}, r"the source has no rows(.|\n)*make a new one for each call"),
        (lambda: pandas.DataFrame([[1, 2]], columns=[0, 1]), {}, r"not unique strings(.|\n)*found: 0, 1"),
        (lambda: pandas.DataFrame([[1, 2]], columns=["a", "a"]), {}, r"not unique strings(.|\n)*found: 'a'"),
        (lambda: pandas.Series([1, 2]), {}, "cannot convert an object of this type"),
        (rows, {"options": {"key": "a"}}, "options are not ConvertOptions"),
        (rows, {"options": wdsplit.IndexOptions()}, "options are not ConvertOptions"),
    ],
)
def test_what_cannot_be_converted_leaves_nothing(tmp_path, source, keywords, cause):
    with pytest.raises(InputError, match=cause):
        convert(source(), tmp_path / "out", **{"shuffle": False, **keywords})
    assert os.listdir(tmp_path) == []


def test_an_error_names_the_row_of_the_source(tmp_path):
    with pytest.raises(InputError, match="a value is null") as caught:
        convert(({"x": None if number == 1500 else number} for number in range(2000)), tmp_path / "out", options())
    assert caught.value.place == "generator, row 1500, column 'x'"


def test_what_takes_paths_or_a_shared_folder_says_so():
    for call in (wdsplit.plan, lambda rows: wdsplit.plan_shares(rows, "out", "plan")):
        with pytest.raises(InputError, match="the inputs are not paths") as caught:
            call(rows())
        assert "wdsplit.convert" in caught.value.expected
    elsewhere = type("Elsewhere", (), {"is_local": False})
    with pytest.raises(InputError, match="other machines cannot access rows"):
        convert(rows(), "memory://python-rows/out", engine=elsewhere())


def test_keys_of_webdataset_are_keys_only_if_they_are_named(tmp_path):
    source = [{"__key__": name, "txt": name} for name in ("a", "b")]
    with pytest.raises(InputError, match="which is not their key") as caught:
        convert(source, tmp_path / "out", options())
    assert caught.value.remedy.startswith("give key='__key__'") and os.listdir(tmp_path) == []
    convert(source, tmp_path / "out", options(key="__key__"))
    assert [sample["__key__"] for sample in wdsplit.Dataset(tmp_path / "out", shuffle=False)] == ["a", "b"]


def test_options_are_keywords_that_replace_those_of_an_object(tmp_path):
    found = convert(rows(12), tmp_path / "keywords", world_size=2, columns=["label"], shards=4)
    options = ConvertOptions(world_size=2, columns=("label",), shards=2)
    assert found.fingerprint == convert(rows(12), tmp_path / "object", options, shards=4).fingerprint
    splits = convert_splits(rows(12), tmp_path / "splits", splits={"a": 0.5, "b": 0.5}, pad="none", shards=1)
    assert sum(manifest.num_samples for manifest in splits.values()) == 12
    for call in (convert, convert_splits):
        with pytest.raises(TypeError, match="unexpected keyword argument 'world_sze', did you mean 'world_size'"):
            call(rows(12), tmp_path / "none", world_sze=2)
    assert not (tmp_path / "none").exists()


def test_a_dataset_is_replaced_only_when_all_rows_are_there(tmp_path):
    out = tmp_path / "out"
    convert(rows(), out, options(shards=1))
    before = shard_files(out)
    with pytest.raises(KeyError):
        convert(failing(KeyError("boom")), out, options(overwrite=True))
    with pytest.raises(OutputExistsError, match="finished dataset"):
        convert(failing(AssertionError("a row was read")), out, options())
    assert shard_files(out) == before
    assert is_whole(out)

    def nested():
        yield from rows(10)
        with pytest.raises(StorageError, match="another process"):
            convert(rows(), out, options(overwrite=True))

    convert(nested(), out, options(shards=1, overwrite=True))
    assert len(real_samples(out)) == 10 and is_whole(out)


# Resuming

COUNT = 8 * 1024
"""Of eight batches, so that each of eight shards is a task of its own."""


def stopped(out, source, **changes):
    """Convert until two shards are published, and stop there."""
    with stopped_at(done=2) as stop:
        convert(source, out, options(shards=8, **changes), stop)
    assert sorted(os.listdir(out / RUN)) == ["lock", "plan.json", "shards"]


def test_a_run_is_resumed_with_the_same_rows_and_keeps_its_shards(tmp_path):
    out, seen = tmp_path / "out", []
    stopped(out, rows(COUNT), jobs=2)
    convert(rows(COUNT), out, options(shards=8, resume=True), seen.append)
    assert next(progress for progress in seen if progress.name == "write").skipped >= 2
    assert is_whole(out)
    convert(rows(COUNT), tmp_path / "straight", options(shards=8))
    assert shard_files(out) == shard_files(tmp_path / "straight")
    assert convert(rows(COUNT), out, options(shards=8, resume=True)).num_samples == COUNT


def test_other_rows_are_refused_on_resume_and_the_run_stays(tmp_path):
    out = tmp_path / "out"
    one_digit = (
        {**row, "meta": {"number": 501 if number == 500 else number}} for number, row in enumerate(rows(COUNT))
    )
    stopped(out, rows(COUNT))
    for changed in (rows(COUNT, first=1), rows(COUNT - 1), reversed(list(rows(COUNT))), one_digit):
        with pytest.raises(OutputExistsError, match="another plan") as caught:
            convert(changed, out, options(shards=8, resume=True))
        assert "rows were read again" in str(getattr(caught.value, "__notes__", caught.value.args))
    convert(rows(COUNT), out, options(shards=8, resume=True))
    assert is_whole(out)


@pytest.mark.slow
def test_a_run_that_was_killed_while_rows_were_read_does_not_block_the_next(tmp_path):
    script = """
import sys
import wdsplit
def rows():
    for number in range(3000):
        yield {"x": number}
    print("read", flush=True)
    sys.stdin.read()
wdsplit.convert(rows(), sys.argv[1])
"""
    out = tmp_path / "out"
    killed = start_script(script, out)
    assert killed.stdout.readline() == "read\n"
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    wait_until(lambda: not (out / "wdsplit.json").exists(), "no dataset is there")
    convert(rows(), out, options(shards=1))
    assert is_whole(out)


# Elsewhere


def test_rows_go_to_a_bucket_by_way_of_tmpdir_and_a_run_there_is_resumed(bucket, tmp_path, monkeypatch):
    url, seen = f"{bucket.url}/out", []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with stopped_at(done=2) as stop:
        convert(rows(COUNT), url, options(shards=8), stop)
    assert not [name for name in os.listdir(tmp_path / "tmp") if "rows" in name]
    with pytest.raises(OutputExistsError, match="another plan"):
        convert(rows(COUNT - 1), url, options(shards=8, resume=True))
    manifest = convert(rows(COUNT), url, options(shards=8, resume=True, jobs=2), seen.append)
    assert next(progress for progress in seen if progress.name == "write").skipped >= 2
    assert manifest.fingerprint == convert(rows(COUNT), tmp_path / "out", options(shards=8)).fingerprint


def test_memory_does_not_grow_with_the_rows(tmp_path):
    before, peaks = pa.total_allocated_bytes(), []
    large = ({"x": np.random.default_rng(number).bytes(500_000)} for number in range(300))
    convert(large, tmp_path / "out", options(shards=8), lambda progress: peaks.append(pa.total_allocated_bytes()))
    assert max(peaks) - before < 100_000_000
    assert len(all_samples(tmp_path / "out")) == 304


# Hugging Face


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return importlib.import_module("datasets")


@pytest.mark.slow
def test_a_hugging_face_dataset_keeps_images_classes_and_arrays(datasets, tmp_path):
    PIL.Image.new("RGB", (4, 4), (255, 0, 0)).save(tmp_path / "a.jpg")
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=["cat", "dog"]),
        tags=datasets.Sequence(datasets.ClassLabel(names=["x", "y"])),
        grid=datasets.Array2D((2, 2), "int32"),
    )
    columns = {"image": [str(tmp_path / "a.jpg")] * 3, "label": [0, 1, 1], "tags": [[0], [0, 1], []]}
    dataset = datasets.Dataset.from_dict({**columns, "grid": [[[1, 2], [3, 4]]] * 3}, features)
    data, chosen = (tmp_path / "a.jpg").read_bytes(), options(shards=1, mapping={"jpg": "image", "cls": "label"})
    for name, source in (("map", dataset.select([2, 0])), ("stream", dataset.select([2, 0]).to_iterable_dataset())):
        assert convert(source, tmp_path / name, chosen).class_names == {"cls": ("cat", "dog")}
        found = [fields for _, fields in all_samples(tmp_path / name)]
        assert found == [{"jpg": data, "cls": label} for label in (b"1", b"0")]
    manifest = convert(dataset, tmp_path / "all", options(shards=1))
    assert manifest.class_names == {"cls": ("cat", "dog"), "tags.npy": ("x", "y")}
    assert [field.encoding for field in manifest.fields] == ["media", "integer", "npy", "npy"]
    source = datasets.IterableDataset.from_generator(lambda: ({"x": n, "d": {"n": n}} for n in range(600)))
    manifest = convert(source.map(lambda row: {"y": str(row["x"])}), tmp_path / "unknown", options(shards=1))
    assert {field.name for field in manifest.fields} == {"x.json", "json", "txt"}
    assert manifest.num_samples == 600


@pytest.mark.slow
def test_splits_and_transforms_of_hugging_face_are_refused_with_the_line_to_write(datasets, tmp_path):
    dataset = datasets.Dataset.from_dict({"x": [1, 2]})
    with pytest.raises(InputError, match="several datasets") as caught:
        convert(datasets.DatasetDict(train=dataset, test=dataset), tmp_path / "out")
    assert "for name, split in datasets.items(): wdsplit.convert(split" in caught.value.remedy
    with pytest.raises(InputError, match="transform") as caught:
        convert(dataset.with_transform(lambda batch: batch), tmp_path / "out")
    assert "with_format(None)" in caught.value.remedy
    assert convert(dataset.with_format("numpy"), tmp_path / "out").num_samples == 2
