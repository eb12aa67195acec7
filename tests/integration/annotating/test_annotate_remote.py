import shutil

import numpy as np
import pyarrow as pa
import pytest

import wdsplit
from faults import FAST, internal_error
from stops import stopped_at
from tables import files_below, files_of, write_table
from wdsplit import AnnotateOptions, ConvertOptions
from wdsplit.errors import ConvertError, InputError, OutputExistsError
from wdsplit.shards.annotations import ANNOTATIONS
from wdsplit.storage.opening import open_storage

NUM_ROWS, SHARDS = 30, 3


def table(first=0):
    numbers = range(first, NUM_ROWS)
    latents = pa.array([[number] * (number % 7) for number in numbers], pa.list_(pa.float32()))
    return pa.table({"id": [f"a.{n}" for n in numbers], "score": np.array(numbers) / 3, "latent": latents})


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a table, whose rows are in several row groups, and its dataset, plain and annotated."""
    folder = tmp_path_factory.mktemp("source")
    write_table(folder / "in.parquet", table().append_column("cls", pa.array(range(NUM_ROWS))).select(["id", "cls"]))
    write_table(folder / "scores.parquet", table(), 7)
    wdsplit.convert(folder / "in.parquet", folder / "plain", ConvertOptions(shards=SHARDS, key="id"))
    shutil.copytree(folder / "plain", folder / "data")
    wdsplit.annotate(folder / "data", folder / "scores.parquet", "id")
    return folder


@pytest.fixture
def url(bucket, source):
    """Return the URL of a dataset in a bucket."""
    return bucket.put(source / "plain", "data")


def names_of(made):
    """Return what the folder `fields` has if there is only one annotation."""
    return sorted(path.partition("/")[2] for path in (made.folder, ANNOTATIONS.path(made.name, made.fingerprint)))


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)


def test_a_dataset_in_a_bucket_is_annotated_as_one_on_a_disk(bucket, source, url):
    before = set(files_below(bucket.folder))
    (bucket.folder / "scores.parquet").write_bytes((source / "scores.parquet").read_bytes())
    made = wdsplit.annotate(url, f"{bucket.url}/scores.parquet", "id", options=AnnotateOptions(memory=1, jobs=2))
    assert files_of(bucket.folder / "data" / made.folder) == files_of(source / "data" / made.folder)
    assert len(files_of(source / "data" / made.folder)) == 3 * SHARDS + 1
    assert wdsplit.verify(url).problems == ()
    with pytest.raises(OutputExistsError):
        wdsplit.annotate(url, table(), "id", "scores")
    changed = table().set_column(1, "score", pa.array(np.zeros(NUM_ROWS)))
    made = wdsplit.annotate(url, changed, "id", "scores", AnnotateOptions(overwrite=True))
    assert open_storage(url).list("fields") == names_of(made)
    wdsplit.drop_annotation(url, "scores")
    assert set(files_below(bucket.folder)) - {"scores.parquet"} == before


def test_a_run_in_a_bucket_is_continued_or_refused_and_cleared_up(bucket, source, url):
    before = set(files_below(bucket.folder))
    with pytest.raises(InputError, match="1 sample without a row"):
        wdsplit.annotate(url, table(1), "id", "scores")
    assert set(files_below(bucket.folder)) == before
    given = url, source / "scores.parquet", "id"
    with stopped_at() as stop:
        wdsplit.annotate(*given, options=AnnotateOptions(memory=1), progress=stop)
    assert wdsplit.list_annotations(url) == {}
    seen = []
    made = wdsplit.annotate(*given, options=AnnotateOptions(memory=1, resume=True), progress=seen.append)
    assert any(progress.skipped for progress in seen)
    assert open_storage(url).list("fields") == names_of(made)
    assert wdsplit.verify(url).problems == ()
    wdsplit.drop_annotation(url, "scores")

    def take_over(progress):
        if progress.name == "write" and progress.done == progress.total:
            (bucket.folder / "data/fields/scores.run/plan.json").write_text('{"run": "another"}')

    with pytest.raises(ConvertError, match="taken over"):
        wdsplit.annotate(*given, progress=take_over)
    assert wdsplit.list_annotations(url) == {}


def mapped(sample):
    number = int(sample["cls"])
    return {"score": number / 3, "latent": [number] * (number % 7)} if number % 9 else None


def test_a_function_is_mapped_over_a_dataset_in_a_bucket_as_over_one_on_a_disk(bucket, source, url, tmp_path):
    local = shutil.copytree(source / "plain", tmp_path / "data")
    expected = wdsplit.map_samples(local, mapped, "scores")
    with stopped_at("map", 10) as stop:
        wdsplit.map_samples(url, mapped, "scores", progress=stop)
    seen = []
    made = wdsplit.map_samples(url, mapped, "scores", progress=seen.append, resume=True)
    assert seen[0].skipped >= 10
    assert (made, files_of(bucket.folder / "data/fields")) == (expected, files_of(local / "fields"))
    assert wdsplit.verify(url).problems == ()
    with pytest.raises(OutputExistsError):
        wdsplit.map_samples(url, mapped, "scores")
    for data in (local, url):
        wdsplit.convert(pa.table({"id": ["new"], "cls": [NUM_ROWS]}), data, append=True)
        wdsplit.map_samples(data, mapped, "scores", update=True)
    assert files_of(bucket.folder / "data/fields") == files_of(local / "fields")
    assert len(wdsplit.Samples(url, join=["scores"], where="score >= 0")) == NUM_ROWS + 1 - 4
    wdsplit.drop_annotation(url, "scores")
    assert open_storage(url).list("fields") == []


@pytest.mark.slow
def test_answers_that_are_lost_are_asked_for_again(bucket, source, url, fault_proxy):
    fault_proxy.plan = lambda request: internal_error() if request.number % 3 == 0 else None
    made = wdsplit.annotate(
        url, source / "scores.parquet", "id", options=AnnotateOptions(memory=1, jobs=2), storage_options=FAST
    )
    fault_proxy.plan = lambda request: None
    assert files_of(bucket.folder / "data" / made.folder) == files_of(source / "data" / made.folder)
