"""What all storages promise, by real ones; a web server is only read."""

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import s3fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.dirfs import DirFileSystem
from pyarrow.fs import LocalFileSystem as ArrowLocal

import wdsplit
from faults import ErrorAnswer, LoseAnswer
from made_datasets import without_urls
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, StorageError
from wdsplit.storage.fsspec_storage import FsspecStorage
from wdsplit.storage.given import located_one
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.storage.s3 import S3Storage

WRITABLE = ["disk", "s3", "folder of s3fs", "memory", "pyarrow"]
FOLDER = "train set/größe 100%"
DATA = bytes(range(256)) * 40


@dataclass(frozen=True)
class Place:
    """A folder of a store: what a user calls it, its file system, and how a test puts a folder there."""

    path: str
    fs: Any
    put: Callable[[str], object]

    @property
    def storage(self):
        return open_readable_storage(*located_one(self.path, None, self.fs))


def on_disk(folder, path, fs=None):
    return Place(path, fs, lambda source: shutil.copytree(source, folder / FOLDER))


@pytest.fixture(scope="module")
def kept():
    """Return what the tests of this file share: a client of s3fs takes a third of a second to make."""
    return {}


@pytest.fixture(params=[*WRITABLE, "http"])
def place(request, tmp_path, monkeypatch, kept):
    def refuse(*paths):
        raise PermissionError(1, "Operation not permitted")

    kind, fixture = request.param, request.getfixturevalue
    if kind == "disk without links":
        monkeypatch.setattr("wdsplit.storage.local.os.link", refuse)
    if kind.startswith("disk"):
        return on_disk(tmp_path, str(tmp_path / FOLDER))
    if kind == "pyarrow":
        return on_disk(tmp_path, str(tmp_path / FOLDER), ArrowFSWrapper(ArrowLocal()))
    if kind == "memory":
        memory = fixture("memory")
        return Place(f"memory://{FOLDER}", None, lambda source: memory.put(str(source), f"/{FOLDER}", recursive=True))
    if kind == "http":
        web = fixture("web")
        shutil.rmtree(web.folder / "train set", ignore_errors=True)
        return on_disk(web.folder, f"{web.endpoint}/{FOLDER}".replace("%", "%25"))
    bucket = fixture("bucket")
    if kind == "s3":
        return on_disk(bucket.folder, f"{bucket.url}/{FOLDER}")
    fs = kept.setdefault("s3fs", s3fs.S3FileSystem(skip_instance_cache=True))
    return on_disk(bucket.folder, FOLDER, DirFileSystem(bucket.name, fs))


writable = pytest.mark.parametrize("place", WRITABLE, indirect=True)


# Writing


@writable
def test_a_file_appears_complete_when_its_block_ends_or_not_at_all(place):
    storage = open_storage(*located_one(place.path, None, place.fs))
    assert storage.list() == []
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), storage.publish("x.tar") as file:
            file.write([b"x" * 100])
            raise error
    assert storage.list() == []
    with storage.publish("deep/x.tar") as file:
        file.write([b"one", memoryview(b"two"), b""])
        file.write([])
        file.write([b"three"])
        assert storage.size("deep/x.tar") is None
    assert storage.read("deep/x.tar") == b"onetwothree"
    with pytest.raises(ZeroDivisionError), storage.publish("deep/x.tar") as file:
        file.write([b"new"])
        raise ZeroDivisionError
    assert storage.read("deep/x.tar") == b"onetwothree" and storage.list("deep") == ["x.tar"]
    with storage.publish("deep/x.tar", durable=True) as file:
        file.write([b"new"])
    assert storage.read("deep/x.tar") == b"new"


@writable
def test_files_and_folders_are_removed(place):
    storage = open_storage(*located_one(place.path, None, place.fs))
    for name in ("a", "a.idx", "deep/x", "deep/er/y", "deeper"):
        with storage.publish(name):
            pass
    storage.remove("a", "none")
    assert storage.sizes() == {"a.idx": 0, "deeper": 0} and storage.read("a.idx") == b""
    storage.remove("deep")
    assert (storage.list(), storage.list("deep")) == (["a.idx", "deeper"], [])


@pytest.mark.parametrize("place", ["disk", "s3", "memory"], indirect=True)
def test_a_lock_excludes_another_until_its_block_ends_or_raises(place):
    storage = open_storage(*located_one(place.path, None, place.fs))
    for error in (None, ZeroDivisionError):
        try:
            with storage.lock("run/lock"), pytest.raises(StorageError, match="another process") as caught:
                with storage.lock("run/lock"):
                    pass
                if error is not None:
                    raise error
        except ZeroDivisionError:
            pass
        assert storage.url in caught.value.place


@pytest.mark.parametrize("place", ["disk", "disk without links", "s3", "memory"], indirect=True)
def test_a_file_is_created_once_and_never_replaced(place):
    storage = open_storage(*located_one(place.path, None, place.fs))
    assert storage.create("versions/2.json", b"first") is True
    assert storage.create("versions/2.json", b"second") is False
    assert storage.create("versions/2.json", b"first") is True  # as after a lost answer
    assert storage.read("versions/2.json") == b"first"
    assert storage.list("versions") == ["2.json"]


def test_of_many_writers_one_creates_the_file(tmp_path):
    for number in range(20):
        with ThreadPoolExecutor(8) as pool:
            made = list(
                pool.map(lambda each, n=number: LocalStorage(str(tmp_path)).create(f"{n}", b"%d" % each), range(8))
            )
        assert sum(made) == 1
        assert (tmp_path / f"{number}").read_bytes() == b"%d" % made.index(True)
    assert len(list(tmp_path.iterdir())) == 20


REFUSED = ErrorAnswer("412 Precondition Failed", "PreconditionFailed", "At least one of the conditions did not hold")
UNKNOWN = ErrorAnswer("501 Not Implemented", "NotImplemented", "A header implies functionality that is not there")


@pytest.mark.parametrize(
    ("answers", "is_made"),
    [([REFUSED], False), ([None], True), ([LoseAnswer(), REFUSED], True), ([UNKNOWN, None], True)],
    ids=["another file", "none", "lost answer", "no conditions"],
)
def test_a_store_with_conditions_decides_between_writers_that_saw_no_file(
    bucket, fault_proxy, monkeypatch, answers, is_made
):
    storage, left, asked = open_storage(f"{bucket.url}/train"), list(answers), []
    if not is_made:
        storage.create("2.json", b"first")

    def plan(request):
        if request.method != "PUT":
            return None
        asked.append(request.head["If-None-Match"])
        return left.pop(0)

    fault_proxy.plan = plan
    monkeypatch.setattr(S3Storage, "size", lambda storage, path: None)
    assert storage.create("2.json", b"second") is is_made
    assert asked == ["*", None] if answers[0] is UNKNOWN else asked == ["*"] * len(answers)
    assert storage.read("2.json") == (b"second" if is_made else b"first")


# Reading


@pytest.fixture
def files(place, tmp_path):
    """Return the storage with a few files."""
    source = tmp_path / "source"
    for name in ("b", "a b.txt", "é%20.txt", "a?b.txt", "a#b&c.txt", "a+b='c'.txt", "sub/x", "10", "9", "empty"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"" if name == "empty" else DATA if name == "b" else name.encode())
    place.put(source)
    return place.storage


def test_names_and_sizes_are_listed_and_files_of_odd_names_are_read(files):
    """A web server lists nothing."""
    names = sorted(["10", "9", "a b.txt", "a#b&c.txt", "a+b='c'.txt", "a?b.txt", "b", "empty", "sub", "é%20.txt"])
    if not files.url.startswith("http"):
        assert files.list() == names and files.list("sub") == ["x"] and files.list("none") == []
        assert files.describe_contents() == ", ".join(names[:5])
        assert list(files.sizes()) == [name for name in names if name != "sub"] and files.sizes()["b"] == len(DATA)
    assert [files.size(name) for name in ("b", "empty", "none", "sub")] == [len(DATA), 0, None, None]
    if files.url.startswith("memory"):  # with its file system, which belongs to this process
        files = FsspecStorage(files.url)
    files = pickle.loads(pickle.dumps(files))
    for name in set(names) - {"b", "empty", "sub"}:
        assert files.read(name) == files.read(name, 100) == name.encode()
    assert files.read("empty") == files.read("empty", 100) == b""


def test_ranges_are_those_of_the_file_and_nothing_is_read_beyond_its_end(files, monkeypatch):
    monkeypatch.setattr(FsspecStorage, "max_request_bytes", 1000)
    for size in (None, len(DATA)):
        file = files.open("b", size)
        assert file.read(0, 10) == DATA[:10]
        assert file.read(700, 3001) == DATA[700:3701]
        assert file.read(5, 0) == file.read(len(DATA), 0) == b""
        buffer = bytearray(1500)
        file.read_into(memoryview(buffer), len(DATA) - 1500)
        assert buffer == DATA[-1500:] and file.size == len(DATA) and file.version
        for offset, count in ((len(DATA) - 1, 2), (len(DATA), 1), (len(DATA) + 9, 1), (0, len(DATA) + 1)):
            with pytest.raises(CorruptDataError, match="shorter") as caught:
                files.open("b", size).read(offset, count)
            assert caught.value.url == f"{files.url}/b"


def test_a_file_that_is_too_large_or_missing_is_refused(files):
    assert files.read("b", len(DATA)) == files.read("b") == DATA
    with pytest.raises(CorruptDataError, match="too large") as caught:
        files.read("b", len(DATA) - 1)
    assert caught.value.found == f"{len(DATA)} bytes"
    for act in (lambda: files.read("none"), lambda: files.open("none").read(0, 1)):
        with pytest.raises(DatasetNotFoundError) as caught:
            act()
        assert caught.value.url == f"{files.url}/none"


def test_threads_read_a_file_at_once(files):
    file = files.open("b")
    ranges = [(number * 97 % 9_000, 100 + number) for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: file.read(*each), ranges))
    assert found == [DATA[offset : offset + count] for offset, count in ranges]


# Datasets


@pytest.mark.parametrize("place", ["s3", "folder of s3fs", "memory", "http"], indirect=True)
def test_a_dataset_is_the_one_on_the_disk(place, numbers):
    """For forked workers too: connections and event loops that were used before a process forks are not used after."""
    with pytest.raises(DatasetNotFoundError, match="no dataset") as caught:
        wdsplit.Dataset(place.path, fs=place.fs)
    assert caught.value.place == place.storage.url
    place.put(numbers)
    dataset, local = wdsplit.Dataset(place.path, fs=place.fs, seed=3), wdsplit.Dataset(numbers, seed=3)
    assert next(iter(dataset))["__url__"].startswith(f"{dataset.source.url}/0")
    assert dataset.source.fingerprint == local.source.fingerprint
    assert without_urls(dataset) == without_urls(local)
    expected = [keys for (keys,) in wdsplit.Loader(local.to_tuple("__key__"), 7)]
    assert [keys for (keys,) in wdsplit.Loader(dataset.to_tuple("__key__"), 7, num_workers=2)] == expected
