import uuid

import numpy as np
import pyarrow as pa
import pytest

import wdsplit
from faults import internal_error
from tables import files_below, files_of, write_table
from wdsplit import AnnotateOptions, ConvertOptions
from wdsplit.errors import ConvertError, InputError, OutputExistsError
from wdsplit.storage.opening import open_storage

FAST = {"first_delay_s": 0.01, "max_delay_s": 0.05, "timeout_s": 30, "deadline_s": 200}
NUM_ROWS, SHARDS = 60, 5


def table(first=0):
    return pa.table({"id": [f"a.{n}" for n in range(first, NUM_ROWS)], "score": np.arange(first, NUM_ROWS) / 3})


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a table, whose rows are in several row groups."""
    folder = tmp_path_factory.mktemp("source")
    write_table(folder / "in.parquet", table().append_column("cls", pa.array(range(NUM_ROWS))).select(["id", "cls"]))
    write_table(folder / "scores.parquet", table(), 7)
    wdsplit.convert(folder / "in.parquet", folder / "data", chosen())
    wdsplit.annotate(folder / "data", folder / "scores.parquet", "id")
    return folder


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr("wdsplit.conversion.shuffle.needs._LEAST_BYTES", 4096)


def chosen():
    return ConvertOptions(shards=SHARDS, key="id")


def names_of(url):
    """Return what is in the folder of annotations."""
    return open_storage(url).list("annotations")


def tables_of(data, made):
    """Return the bytes of the tables of shards."""
    return files_of(data / made.folder)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_dataset_in_a_bucket_is_annotated_as_one_on_a_disk(bucket, source, jobs):
    url = f"{bucket.url}/data"
    wdsplit.convert(source / "in.parquet", url, chosen())
    before = set(files_below(bucket.folder))
    (bucket.folder / "scores.parquet").write_bytes((source / "scores.parquet").read_bytes())
    made = wdsplit.annotate(url, f"{bucket.url}/scores.parquet", "id", options=AnnotateOptions(memory=1, jobs=jobs))
    assert tables_of(bucket.folder / "data", made) == tables_of(source / "data", made)
    assert len(tables_of(source / "data", made)) == SHARDS
    assert wdsplit.verify(url).problems == ()
    with pytest.raises(OutputExistsError):
        wdsplit.annotate(url, table(), "id", "scores")
    changed = table().set_column(1, "score", pa.array(np.zeros(NUM_ROWS)))
    made = wdsplit.annotate(url, changed, "id", "scores", AnnotateOptions(overwrite=True))
    assert names_of(url) == sorted(["scores.json", made.folder.split("/")[1]])
    wdsplit.drop_annotation(url, "scores")
    assert set(files_below(bucket.folder)) - {"scores.parquet"} == before


def test_a_run_in_a_bucket_is_continued_or_refused_and_cleared_up(bucket, source):
    url = f"{bucket.url}/data"
    wdsplit.convert(source / "in.parquet", url, chosen())
    before = set(files_below(bucket.folder))
    with pytest.raises(InputError, match="1 sample without a row"):
        wdsplit.annotate(url, table(1), "id", "scores")
    assert set(files_below(bucket.folder)) == before

    def interrupt(progress):
        if progress.name == "write" and progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wdsplit.annotate(url, source / "scores.parquet", "id", options=AnnotateOptions(memory=1), progress=interrupt)
    assert wdsplit.list_annotations(url) == {}
    seen = []
    options = AnnotateOptions(memory=1, resume=True)
    made = wdsplit.annotate(url, source / "scores.parquet", "id", options=options, progress=seen.append)
    assert any(progress.skipped for progress in seen)
    assert names_of(url) == sorted(["scores.json", made.folder.split("/")[1]])
    assert wdsplit.verify(url).problems == ()


def test_a_run_that_another_machine_has_taken_over_commits_nothing(bucket, source):
    url = f"{bucket.url}/data"
    wdsplit.convert(source / "in.parquet", url, chosen())

    def take_over(progress):
        if progress.name == "write" and progress.done == progress.total:
            (bucket.folder / "data/annotations/scores.run/plan.json").write_text('{"run": "another"}')

    with pytest.raises(ConvertError, match="taken over"):
        wdsplit.annotate(url, source / "scores.parquet", "id", progress=take_over)
    assert wdsplit.list_annotations(url) == {}


@pytest.mark.slow
def test_answers_that_are_lost_are_asked_for_again(bucket, source, fault_proxy):
    url = f"{bucket.url}/data"
    wdsplit.convert(source / "in.parquet", url, chosen())
    fault_proxy.plan = lambda request: internal_error() if request.number % 3 == 0 else None
    made = wdsplit.annotate(
        url, source / "scores.parquet", "id", options=AnnotateOptions(memory=1, jobs=2), storage_options=FAST
    )
    fault_proxy.plan = lambda request: None
    assert tables_of(bucket.folder / "data", made) == tables_of(source / "data", made)


def test_a_dataset_on_a_file_system_of_fsspec(source):
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://{uuid.uuid4()}/data"
    wdsplit.convert(source / "in.parquet", url, chosen())
    made = wdsplit.annotate(url, source / "scores.parquet", "id", options=AnnotateOptions(memory=1))
    fs = fsspec.filesystem("memory")
    tables = tables_of(source / "data", made)
    assert {name: fs.cat_file(f"{url}/{made.folder}/{name}") for name in tables} == tables
    wdsplit.drop_annotation(url, "scores")
    assert names_of(url) == []
