import logging
import shutil
import sys
import threading

import pyarrow as pa
import pytest

import wdsplit
from faults import FAST, Cut, ErrorAnswer, FaultProxy, Hold, Shorten
from forked_workers import code_of_fork
from made_datasets import without_urls
from tables import wait_until
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, MissingDependencyError, StorageError
from wdsplit.storage import fsspec_storage
from wdsplit.storage.fsspec_storage import FsspecStorage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.urls import shown_url

FOLDER = "train set/größe 100%"


@pytest.fixture(scope="module")
def web(web, numbers):
    """Return an HTTP server whose folder holds a dataset."""
    shutil.copytree(numbers, web.folder / FOLDER)
    return web


@pytest.fixture
def proxy(web):
    """Return a proxy before that server."""
    with FaultProxy(web.port) as proxy:
        yield proxy


@pytest.fixture
def by_proxy(proxy):
    """Return the URL of the dataset, by the proxy."""
    return f"{proxy.endpoint}/train set/größe 100%25"


def test_what_may_be_read_at_once_is_one_request_and_of_a_file_that_is_too_large_little_is_read(
    by_proxy, proxy, numbers
):
    storage = open_readable_storage(by_proxy)
    storage.read("000000.tar.places", 10_000)
    storage.open("000000.tar", open_readable_storage(numbers).size("000000.tar")).read(1000, 5000)
    with pytest.raises(CorruptDataError, match="too large"):
        storage.read("000000.tar", 1000)
    assert [(exchange.request.method, exchange.request.range) for exchange in proxy.exchanges] == [
        ("GET", (0, 10_000)),
        ("GET", (1000, 5999)),
        ("GET", (0, 1000)),
    ]
    assert all(exchange.request.head["Accept-Encoding"] == "identity" for exchange in proxy.exchanges)


def test_views_and_annotations_are_read_of_a_web_server_by_name_and_what_needs_a_list_says_so(web, numbers, caplog):
    folder, url = web.folder / "annotated", f"{web.endpoint}/annotated"
    shutil.copytree(numbers, folder)
    rows = [
        {"key": sample["__key__"], "score": place, "note": {"place": place}}
        for place, sample in enumerate(wdsplit.Dataset(str(folder), shuffle=False))
    ]
    wdsplit.annotate(folder, pa.Table.from_pylist(rows), "key", "quality")
    wdsplit.make_view(folder, "low", where="score < 30")
    here, there = (list(wdsplit.Dataset(str(each), view="low", join=["quality"])) for each in (folder, url))
    assert len(here) == 30 and "note.json" in here[0]
    assert without_urls(here) == without_urls(there)
    with pytest.raises(InputError, match="web server lists no annotations"):
        wdsplit.Dataset(url, where="score < 30")
    assert "lists no files" not in caplog.text
    assert wdsplit.verify(url).problems == ()
    assert f"{url}: a web server lists no files: its annotations and views are not checked" in caplog.text


def test_a_fork_leaves_the_connections_of_its_parent_alone(by_proxy, proxy, numbers):
    """What ends a connection in a child takes it away from the parent, because they share what waits for it."""
    expected = open_readable_storage(numbers).read("000000.tar")
    file = FsspecStorage(by_proxy, FAST).open("000000.tar", len(expected))
    assert file.read(0, 100) == expected[:100]

    def read():
        assert file.read(7, 99) == expected[7:106]

    assert code_of_fork(read) == 0
    assert file.read(100, 100) == expected[100:200]
    connections = [exchange.request.connection for exchange in proxy.exchanges]
    assert connections[0] == connections[2] != connections[1]


def status(code, **headers):
    return ErrorAnswer(f"{code} Some Reason", "Code", "Some reason", **headers)


SECRET = "secret-that-nobody-may-see"
FAILURES = {
    "refused": status(403),
    "not there": status(404),
    "unavailable": status(503),
    "cut": Cut(0),
    "short": Shorten(10),
}


@pytest.mark.parametrize("fault", FAILURES.values(), ids=FAILURES)
def test_credentials_are_never_told(proxy, fault, caplog):
    caplog.set_level(logging.DEBUG, "wdsplit")
    host = proxy.endpoint.removeprefix("http://")
    url = f"http://user-{SECRET}:{SECRET}@{host}/train set/größe 100%25?token={SECRET}"
    storage = FsspecStorage(url, FAST | {"deadline_s": 0.1})
    proxy.plan = lambda request: fault if request.method == "GET" or isinstance(fault, ErrorAnswer) else None
    actions = [lambda: storage.open("000000.tar").read(0, 100), lambda: storage.read("000000.tar")]
    if isinstance(fault, ErrorAnswer):
        actions += [lambda: storage.open("000000.tar").size, lambda: storage.read("000000.tar", 10**6)]
    for action in actions:
        with pytest.raises((StorageError, DatasetNotFoundError, CorruptDataError)) as caught:
            action()
        error = caught.value
        while error is not None:
            assert SECRET not in f"{error} {error!r} {vars(error)}"
            assert f"{proxy.endpoint}/train set/größe 100%25/000000.tar" in str(error)
            error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text + storage.url
    asked = proxy.exchanges[0].request
    assert f"000000.tar?token={SECRET}" in asked.path
    assert asked.head["Authorization"].startswith("basic ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/a/b.tar?sig=x&y=z#f", "https://h/a/b.tar"),
        ("https://u:p@h/a", "https://h/a"),
        ("HTTPS://token@h/a@b", "HTTPS://h/a@b"),
        ("sftp://u:p@h/a", "sftp://u@h/a"),
        ("abfs://container@account.dfs.core.windows.net/a?b", "abfs://container@account.dfs.core.windows.net/a?b"),
        ("gs://bucket/a:b@c", "gs://bucket/a:b@c"),
        ("/a?b", "/a?b"),
    ],
)
def test_of_a_url_only_what_may_be_seen_is_shown(url, shown):
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "module", "said"),
    [
        ("gs://b/x", "gcsfs", "wdsplit[gcs]"),
        ("az://b/x", "adlfs", "wdsplit[azure]"),
        ("hf://datasets/x/y", "huggingface_hub", "wdsplit[hf]"),
        ("https://host/x", "fsspec", "https:// needs a library"),
    ],
)
def test_a_library_that_is_missing_is_told_with_its_extra(url, module, said, monkeypatch):
    fsspec_storage._class_of.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError) as caught:
        open_readable_storage(url)
    assert said in str(caught.value)


def test_schemes_and_options_that_nobody_knows_are_refused(by_proxy, proxy):
    with pytest.raises(InputError, match="unknown file system") as caught:
        wdsplit.Dataset("gopher://host/x")
    assert "gs://" in caught.value.expected and caught.value.found == "gopher://"
    with pytest.raises(InputError, match="storage option") as caught:
        wdsplit.Dataset(by_proxy, storage_options={"anonymous": True})
    assert "anonymous" in caught.value.found
    with pytest.raises(InputError, match="times"):
        FsspecStorage(by_proxy, {"deadline_s": -1})
    with pytest.raises(InputError, match="https:// can only be read") as caught:
        open_storage("https://user:secret@host/folder?token=x")
    assert caught.value.place == "https://host/folder" and "s3://" in caught.value.expected
    assert proxy.exchanges == []
    wdsplit.Dataset(by_proxy, storage_options=FAST | {"headers": {"X-Mine": "yes"}})
    assert {exchange.request.head["X-Mine"] for exchange in proxy.exchanges} == {"yes"}


def test_other_threads_do_not_wait_for_one_that_waits(by_proxy, proxy, numbers):
    num_bytes = open_readable_storage(numbers).size("000000.tar")
    file = FsspecStorage(by_proxy, FAST).open("000000.tar", num_bytes)
    may_come = threading.Event()
    proxy.plan = lambda request: Hold(may_come) if request.range == (0, 9) else None
    slow = threading.Thread(target=file.read, args=(0, 10))
    slow.start()
    wait_until(lambda: proxy.exchanges, "one waits")
    file.read(10, 10)
    assert slow.is_alive() and len(proxy.exchanges) == 2
    may_come.set()
    slow.join()
