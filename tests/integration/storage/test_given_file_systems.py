"""`fs=`: real s3fs against the S3 server, and other file systems of fsspec."""

import pickle
import shutil
import zipfile

import fsspec
import pytest
import s3fs
import webdataset as wds
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.zip import ZipFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocal

import wdsplit
from faults import FAST
from forked_workers import code_of_fork
from made_datasets import without_urls
from tables import mixed_table, options, shard_files, write_files
from wdsplit.checks.audit import AuditOptions, audit
from wdsplit.checks.verify import verify
from wdsplit.conversion.shares import needed_passes
from wdsplit.engines import local
from wdsplit.errors import DatasetNotFoundError, InputError, OutputExistsError, StorageError
from wdsplit.storage.given import located, located_one
from wdsplit.storage.opening import open_storage

NUM_ROWS = 120


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a folder of tables."""
    folder = tmp_path_factory.mktemp("source")
    write_files(folder, mixed_table(NUM_ROWS).select(["image", "caption", "label"]), [80], 40)
    return str(folder)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """Return a conversion of them to the disk."""
    output = tmp_path_factory.mktemp("expected") / "out"
    wdsplit.convert(source, output, options(shards=4))
    return output


@pytest.fixture(scope="module")
def kept():
    """Return what the tests of this file share: a client of s3fs takes a third of a second to make."""
    return {}


@pytest.fixture
def s3(s3_server, kept):
    return kept.setdefault("s3fs", s3fs.S3FileSystem(skip_instance_cache=True))


@pytest.fixture(params=["folder of s3fs", "memory"])
def place(request):
    """Return a file system, a path on it, and what returns the files that are there by their names."""
    if request.param == "memory":
        fs, path = request.getfixturevalue("memory"), "/train set/a"
        return fs, path, lambda: {each.rpartition("/")[2]: fs.cat(each) for each in fs.find(path) if ".tar" in each}
    fs, bucket = request.getfixturevalue("s3"), request.getfixturevalue("bucket")
    return DirFileSystem(f"{bucket.name}/train set", fs), "a", lambda: shard_files(bucket.folder / "train set" / "a")


@pytest.mark.slow
def test_what_is_converted_to_it_is_what_the_disk_gets(place, source, expected):
    fs, path, files = place
    wdsplit.convert(source, path, options(shards=4), fs=fs)
    assert files() == shard_files(expected)
    assert without_urls(wdsplit.Dataset(path, fs=fs)) == without_urls(wdsplit.Dataset(expected))
    assert verify(path, fs=fs).problems == ()
    assert audit(path, AuditOptions(read=True), fs=fs).held
    assert wdsplit.inspect(path, fs=fs).manifest.fingerprint == wdsplit.inspect(str(expected)).manifest.fingerprint
    assert wdsplit.assign(path, 2, fs=fs) == wdsplit.assign(str(expected), 2)
    with pytest.raises(OutputExistsError):
        wdsplit.convert(source, path, options(shards=4), fs=fs)
    wdsplit.convert(source, path, options(shards=3, overwrite=True), fs=fs)
    assert sorted(files()) == [f"{number:06}.tar{end}" for number in range(3) for end in ("", ".parquet", ".places")]


@pytest.fixture
def on_s3(s3, bucket, expected):
    """Return the path of a dataset in the bucket."""
    s3.put(str(expected), f"{bucket.name}/data", recursive=True)
    return f"{bucket.name}/data"


@pytest.mark.slow
def test_processes_convert(s3, bucket, source, expected, monkeypatch):
    monkeypatch.setattr(local, "_MAX_THREADS", 1)
    wdsplit.convert(source, f"{bucket.url}/out", options(shards=4, jobs=2), fs=s3)
    assert shard_files(bucket.folder / "out") == shard_files(expected)
    assert verify(f"{bucket.url}/out", fs=s3).problems == ()


def test_inputs_have_a_file_system_of_their_own(s3, bucket, source, expected, tmp_path, memory):
    s3.put(source, f"{bucket.name}/raw", recursive=True)
    wdsplit.convert(f"{bucket.name}/raw/*.parquet", tmp_path / "out", options(shards=4), input_fs=s3)
    wdsplit.convert(f"{bucket.name}/raw", "/out", options(shards=4), fs=memory, input_fs=s3)
    assert wdsplit.plan(f"{bucket.name}/raw", options(shards=4), input_fs=s3).num_shards == 4
    assert shard_files(tmp_path / "out") == shard_files(expected)
    assert memory.cat("/out/000000.tar") == (expected / "000000.tar").read_bytes()


def test_splits_go_to_it(memory, source):
    made = wdsplit.convert_splits(source, "/out", options(shards=2, splits={"train": 0.8, "val": 0.2}), fs=memory)
    assert sum(manifest.num_samples for manifest in made.values()) == NUM_ROWS
    assert wdsplit.Dataset("/out/val", fs=memory).manifest.num_samples == made["val"].num_samples


@pytest.mark.parametrize("beside", [True, False], ids=["plan in the bucket", "plan on the disk"])
def test_shares_write_to_it(s3, bucket, memory, source, expected, tmp_path, beside):
    fs, output = (s3, f"{bucket.name}/out") if beside else (memory, "/out")
    plan = f"{bucket.url}/plan" if beside else str(tmp_path / "plan")
    wdsplit.plan_shares(source, output, plan, options(shards=4), fs=fs)
    assert needed_passes(plan, fs=fs) == ("write",)
    for share in range(2):
        wdsplit.convert_share(plan, share, 2, fs=fs)
    wdsplit.commit_shares(plan, fs=fs)
    assert without_urls(wdsplit.Dataset(output, fs=fs)) == without_urls(wdsplit.Dataset(expected))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_memory_of_another_process_is_another_output(memory):
    def lock(then=lambda: None):
        with open_storage(*located_one("/out", None, memory)).lock("x"):
            return then()

    assert lock(lambda: code_of_fork(lock)) == 0


def test_datasets_of_it_are_mixed(on_s3, s3, expected):
    mixed, local = wdsplit.mix({on_s3: 1.0}, fs=s3), wdsplit.mix({str(expected): 1.0})
    assert [sample["__key__"] for sample in mixed] == [sample["__key__"] for sample in local]
    assert {sample["__source__"] for sample in mixed} == {f"s3://{on_s3}"}


def test_a_bucket_that_is_not_there_is_named(s3, source):
    with pytest.raises(DatasetNotFoundError, match="no such bucket") as caught:
        wdsplit.convert(source, "no-such-bucket/out", options(shards=4), storage_options=FAST, fs=s3)
    assert "s3://no-such-bucket/out" in caught.value.place
    with pytest.raises(DatasetNotFoundError):
        wdsplit.Dataset("no-such-bucket/out", fs=s3)


def test_credentials_that_are_not_found_are_said_to_be_missing(bucket, on_s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for given in ({"fs": s3fs.S3FileSystem(skip_instance_cache=True)}, {}):
        with pytest.raises(StorageError, match="no credentials were found") as caught:
            wdsplit.Dataset(f"s3://{on_s3}", **given)
        assert "AWS_PROFILE" in caught.value.remedy


def test_memory_is_written_to_and_read_in_one_process_and_not_by_others(memory, source, expected):
    wdsplit.convert(source, "memory://out", options(shards=4, jobs=4))
    assert without_urls(wdsplit.Dataset("memory://out")) == without_urls(wdsplit.Dataset(expected))
    for given in ({"output": "/other", "fs": memory}, {"output": "memory://other"}):
        with pytest.raises(InputError, match="another process") as caught:
            wdsplit.convert(source, options=options(shards=8, jobs=8), **given)
        assert "jobs=1" in caught.value.remedy
    with pytest.raises(InputError, match="another process"):
        pickle.dumps(located(["/out"], None, memory))


def test_a_zip_is_read(expected, tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for path in expected.iterdir():
            archive.write(path, f"inner/{path.name}")
    fs = ZipFileSystem(str(tmp_path / "data.zip"))
    dataset = wdsplit.Dataset("inner", fs=fs)
    assert without_urls(dataset) == without_urls(wdsplit.Dataset(expected))
    loader = wdsplit.Loader(dataset.to_tuple("__key__"), 6, num_workers=2)
    assert sum(len(keys) for (keys,) in loader) == NUM_ROWS
    with pytest.raises(InputError, match="can only be read"):
        wdsplit.convert(str(expected), "out", options(shards=2), fs=fs, storage_options=FAST)


def test_the_local_file_system_is_the_local_disk(expected):
    dataset = wdsplit.Dataset(f"file://{expected}", fs=LocalFileSystem())
    assert dataset.source.url == str(expected)
    nested = DirFileSystem(str(expected.parent), LocalFileSystem())
    assert wdsplit.Dataset(expected.name, fs=nested).source.url == str(expected)


def test_what_is_no_file_system_is_refused(expected, s3, on_s3):
    refused = {
        "s3fs.S3FileSystem": {"fs": "s3"},
        "ArrowFSWrapper": {"fs": ArrowLocal()},
        "asynchronous=False": {"fs": s3fs.S3FileSystem(asynchronous=True, skip_instance_cache=True)},
        "anon": {"fs": s3, "storage_options": {"anon": True}},
        "a dict": {"fs": s3, "storage_options": "anon"},
    }
    for said, given in refused.items():
        with pytest.raises(InputError) as caught:
            wdsplit.Dataset(on_s3, **given)
        assert said in str(caught.value)
    with pytest.raises(InputError, match="not on the file system") as caught:
        wdsplit.Dataset(f"gs://{on_s3}", fs=s3)
    assert "s3://" in caught.value.expected


class Unpicklable(LocalFileSystem):
    protocol = "unpicklable"

    def __reduce__(self):
        raise TypeError("a thread lock")


def test_a_file_system_that_cannot_be_copied_is_named(expected):
    dataset = wdsplit.Dataset(str(expected), fs=Unpicklable())
    assert len(without_urls(dataset)) == NUM_ROWS
    with pytest.raises(InputError, match="cannot get a copy") as caught:
        pickle.dumps(dataset)
    assert "Unpicklable" in caught.value.place


def test_chains_are_opened_by_fsspec_and_refused_as_urls(on_s3, expected, tmp_path):
    url = f"simplecache::s3://{on_s3}"
    fs, path = fsspec.core.url_to_fs(url, simplecache={"cache_storage": str(tmp_path / "cache")})
    assert without_urls(wdsplit.Dataset(path, fs=fs)) == without_urls(wdsplit.Dataset(expected))
    assert any((tmp_path / "cache").iterdir())
    with pytest.raises(InputError) as caught:
        wdsplit.Dataset(url)
    assert "url_to_fs" in caught.value.remedy


def test_tars_and_shard_lists_are_on_it(s3, bucket, expected, tmp_path, monkeypatch):
    """As a pattern, a list, as the first stage of a webdataset pipeline, and indexed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path in expected.glob("*.tar"):
        s3.put_file(str(path), f"{bucket.name}/tars/{path.name}")
        shutil.copy(path, tmp_path)
    keys = {sample["__key__"] for sample in wdsplit.Dataset(expected)}
    several = [f"{bucket.name}/tars/00000{number}.tar" for number in range(4)]
    for urls in (f"{bucket.name}/tars/*.tar", several):
        assert {sample["__key__"] for sample in wdsplit.Dataset(urls, fs=s3)} == keys
        shards = wdsplit.EpochShardList(urls, fs=s3)
        pipeline = wds.DataPipeline(shards, wds.split_by_worker, wds.tarfile_to_samples())
        assert {sample["__key__"] for sample in pipeline if not sample["__key__"].startswith("_pad_")} == keys
    assert len(wdsplit.EpochShardList("::".join(several), fs=s3)) == 4
    manifest = wdsplit.index_tars(f"{bucket.name}/tars", fs=s3)
    assert manifest.num_samples == wdsplit.index_tars(tmp_path).num_samples == NUM_ROWS
    assert shard_files(bucket.folder / "tars") == shard_files(tmp_path)
    assert len(without_urls(wdsplit.Dataset(f"{bucket.name}/tars", fs=s3))) == NUM_ROWS
