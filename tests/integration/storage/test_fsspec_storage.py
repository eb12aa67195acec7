import logging
import os
import pickle
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import wdsplit
from faults import Cut, Delay, ErrorAnswer, FaultProxy, Hold, IgnoreRange, SeededPlan, Shorten, Stall, Truncate
from s3server import S3Server
from tables import wait_until
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, MissingDependencyError, StorageError
from wdsplit.storage import fsspec_storage
from wdsplit.storage.fsspec_storage import FsspecStorage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.urls import shown_url

FAST = {"first_delay_s": 0.01, "max_delay_s": 0.05, "timeout_s": 30, "deadline_s": 200}
"""Times that do not keep the tests waiting; there is patience only with what a test does not wait for."""
FOLDER = "train set/größe 100%"


@pytest.fixture(scope="module")
def web(tmp_path_factory, numbers):
    """Return an HTTP server whose folder holds a dataset."""
    folder = tmp_path_factory.mktemp("web") / "served"
    folder.mkdir()
    shutil.copytree(numbers, folder / FOLDER)
    with S3Server(folder, protocol="http") as server:
        yield server


@pytest.fixture
def proxy(web):
    """Return a proxy before that server."""
    with FaultProxy(web.port) as proxy:
        yield proxy


@pytest.fixture
def remote(web):
    """Return the URL of the dataset."""
    return f"{web.endpoint}/train set/größe 100%25"


@pytest.fixture
def by_proxy(proxy):
    """Return the URL of the dataset, by the proxy."""
    return f"{proxy.endpoint}/train set/größe 100%25"


@pytest.fixture
def in_memory(numbers, memory):
    """Return the URL of the same dataset in fsspec's memory."""
    memory.put(str(numbers), "/bucket/numbers", recursive=True)
    return "memory://bucket/numbers"


@pytest.fixture(params=["remote", "in_memory"])
def anywhere(request):
    return request.getfixturevalue(request.param)


def samples_of(dataset):
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in dataset]


# Reading


def test_a_dataset_is_the_one_on_the_disk(anywhere, numbers):
    dataset, local = wdsplit.Dataset(anywhere, seed=3), wdsplit.Dataset(numbers, seed=3)
    assert samples_of(dataset) == samples_of(local)
    assert next(iter(dataset))["__url__"].startswith(f"{anywhere}/0")
    assert dataset.source.fingerprint == local.source.fingerprint


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}])
def test_workers_of_all_kinds_read(anywhere, numbers, options):
    """Connections that were used before a process forks are not used after."""
    dataset = wdsplit.Dataset(anywhere).to_tuple("__key__", "__position__")
    next(iter(dataset))
    batches = [keys for keys, _ in wdsplit.Loader(dataset, 7, **options)]
    expected = wdsplit.Dataset(numbers).to_tuple("__key__", "__position__")
    assert batches == [keys for keys, _ in wdsplit.Loader(expected, 7)]


def test_names_and_sizes_are_those_of_the_folder(anywhere, numbers):
    storage, local = open_readable_storage(anywhere), open_readable_storage(numbers)
    assert storage.url == anywhere and storage.is_remote
    assert storage.list() == local.list()
    assert storage.size("000000.tar") == local.size("000000.tar")
    assert storage.size("none.tar") is None
    assert storage.list("none") == []
    assert storage.describe_contents() == local.describe_contents()
    assert storage.read("000000.tar") == local.read("000000.tar")
    assert pickle.loads(pickle.dumps(storage)).list() == local.list()


def test_folders_are_listed_and_have_no_size(in_memory, web):
    storage = open_readable_storage("memory://bucket")
    assert storage.list() == ["numbers"]
    assert storage.size("numbers") is None
    assert open_readable_storage(web.endpoint).list() == ["train set"]
    assert open_readable_storage(f"{web.endpoint}/train set").list() == ["größe 100%"]
    assert open_readable_storage(f"{web.endpoint}/train set/?token=x").list() == ["größe 100%"]


def test_ranges_are_those_of_the_file(anywhere, numbers, monkeypatch):
    monkeypatch.setattr(fsspec_storage.FsspecStorage, "max_request_bytes", 1000)
    expected = open_readable_storage(numbers).read("000000.tar")
    file = open_readable_storage(anywhere).open("000000.tar")
    assert file.read(0, 10) == expected[:10]
    assert file.read(700, 3001) == expected[700:3701]
    assert file.read(5, 0) == file.read(len(expected), 0) == b""
    buffer = bytearray(1500)
    file.read_into(memoryview(buffer), len(expected) - 1500)
    assert buffer == expected[-1500:]


@pytest.mark.parametrize("size", [None, "known"])
def test_what_is_not_there_is_told_as_too_short(anywhere, numbers, size):
    num_bytes = open_readable_storage(numbers).size("000000.tar")
    for offset, count in ((num_bytes - 1, 2), (num_bytes, 1), (num_bytes + 9, 1), (0, num_bytes + 1)):
        with pytest.raises(CorruptDataError, match="shorter") as caught:
            open_readable_storage(anywhere).open("000000.tar", num_bytes if size else None).read(offset, count)
        assert caught.value.url == f"{anywhere}/000000.tar"


def test_a_file_that_has_too_many_bytes_is_refused(anywhere, numbers):
    num_bytes = open_readable_storage(numbers).size("000000.tar")
    storage = open_readable_storage(anywhere)
    assert len(storage.read("000000.tar", num_bytes)) == num_bytes
    with pytest.raises(CorruptDataError, match="too large") as caught:
        storage.read("000000.tar", num_bytes - 1)
    assert caught.value.found == f"{num_bytes} bytes"


def test_of_a_file_that_is_too_large_little_is_read(by_proxy, proxy):
    with pytest.raises(CorruptDataError, match="too large"):
        open_readable_storage(by_proxy).read("000000.tar", 1000)
    assert sum(exchange.bytes_sent for exchange in proxy.exchanges) == 1001


@pytest.mark.parametrize("name", ["a b.txt", "é%20.txt", "a?b.txt", "a#b&c.txt", "a+b='c'.txt"])
def test_a_file_of_an_odd_name_is_found_and_read(web, name):
    folder = web.folder / "odd"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(name.encode())
    storage = open_readable_storage(f"{web.endpoint}/odd")
    assert name in storage.list()
    assert storage.read(name) == storage.read(name, 100) == name.encode()


def test_an_empty_file_is_read(web):
    (web.folder / "empty").write_bytes(b"")
    assert (
        open_readable_storage(web.endpoint).read("empty", 100)
        == open_readable_storage(web.endpoint).read("empty")
        == b""
    )


def test_what_may_be_read_at_once_is_one_request(by_proxy, proxy, numbers):
    storage = open_readable_storage(by_proxy)
    storage.read("000000.tar.idx", 10_000)
    storage.open("000000.tar", open_readable_storage(numbers).size("000000.tar")).read(1000, 5000)
    assert [(exchange.request.method, exchange.request.range) for exchange in proxy.exchanges] == [
        ("GET", (0, 10_000)),
        ("GET", (1000, 5999)),
    ]
    assert all(exchange.request.head["Accept-Encoding"] == "identity" for exchange in proxy.exchanges)


def test_threads_read_a_file_at_once(anywhere, numbers):
    expected = open_readable_storage(numbers).read("000000.tar")
    file = open_readable_storage(anywhere).open("000000.tar")
    ranges = [(number * 97 % 30_000, 100 + number) for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: file.read(*each), ranges))
    assert found == [expected[offset : offset + count] for offset, count in ranges]


def test_a_fork_leaves_the_connections_of_its_parent_alone(by_proxy, proxy, numbers):
    """What ends a connection in a child takes it away from the parent, because they share what waits for it."""
    expected = open_readable_storage(numbers).read("000000.tar")
    file = FsspecStorage(by_proxy, FAST).open("000000.tar", len(expected))
    assert file.read(0, 100) == expected[:100]
    child = os.fork()
    if not child:
        os._exit(0 if file.read(7, 99) == expected[7:106] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read(100, 100) == expected[100:200]
    connections = [exchange.request.connection for exchange in proxy.exchanges]
    assert connections[0] == connections[2] != connections[1]


# Faults


def status(code, **headers):
    return ErrorAnswer(f"{code} Some Reason", "Code", "Some reason", **headers)


FAULTS = {
    "cut": Cut(3000),
    "cut at once": Cut(0),
    "truncated": Truncate(3000),
    "shorter than it should be": Shorten(3000),
    "nothing at all": Shorten(0),
    "stalled": Stall(3000),
    "internal error": status(500),
    "unavailable": status(503),
    "too many requests": status(429),
}


def once_a_range(fault):
    """Apply a fault to the first request of each range."""
    seen = set()

    def plan(request):
        if request.method != "GET" or request.range is None or (request.path, request.range) in seen:
            return None
        seen.add((request.path, request.range))
        return fault if request.num_bytes > 4000 else None

    return plan


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_read_that_fails_is_tried_again(by_proxy, proxy, numbers, fault):
    expected = open_readable_storage(numbers).read("000000.tar")
    times = FAST | ({"timeout_s": 2} if isinstance(fault, Stall) else {})
    file = FsspecStorage(by_proxy, times).open("000000.tar", len(expected))
    proxy.plan = once_a_range(fault)
    assert file.read(1000, len(expected) - 1000) == expected[1000:]
    assert len([exchange for exchange in proxy.exchanges if exchange.request.method == "GET"]) >= 2


def test_an_epoch_survives_faults_of_all_kinds(by_proxy, proxy, numbers):
    makers = [lambda chance, size, fault=fault: fault for name, fault in FAULTS.items() if name != "stalled"]
    dataset = wdsplit.Dataset(by_proxy, storage_options=FAST)
    local = wdsplit.Dataset(numbers)
    plan = SeededPlan(1, 0.6, makers)
    proxy.plan = lambda request: None if ".idx" in request.path else plan(request)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        local.set_epoch(epoch)
        assert samples_of(dataset) == samples_of(local)
    assert plan.num_given > len(makers)


@pytest.mark.parametrize("fault", [status(503), Delay(0.2)], ids=["unavailable", "late"])
def test_a_size_is_asked_for_again(by_proxy, proxy, numbers, fault):
    """fsspec says of any failure of such a request that there is no file."""
    proxy.plan = lambda request: fault if request.number < 3 else None
    assert FsspecStorage(by_proxy, FAST).size("000000.tar") == open_readable_storage(numbers).size("000000.tar")


def test_a_server_that_ignores_ranges_is_read_with_a_warning(by_proxy, proxy, web, numbers, caplog):
    expected = open_readable_storage(numbers).read("000000.tar")
    proxy.plan = lambda request: IgnoreRange(web.folder) if request.range else None
    caplog.set_level(logging.WARNING)
    for size in (None, len(expected)):
        file = open_readable_storage(by_proxy).open("000000.tar", size)
        assert file.read(1000, 2000) == expected[1000:3000]
        assert file.read(0, 2000) == expected[:2000]
    assert open_readable_storage(by_proxy).read("000000.tar", 10**6) == expected
    assert [record.getMessage().partition(":")[2].count("whole file") for record in caplog.records] == [1]


def test_what_never_works_is_given_up_at_the_deadline(by_proxy, proxy):
    file = FsspecStorage(by_proxy, FAST | {"deadline_s": 0.5}).open("000000.tar")
    proxy.plan = lambda request: status(503)
    with pytest.raises(StorageError, match="does not answer") as caught:
        file.read(0, 100)
    assert "status 503" in caught.value.found
    assert caught.value.place.endswith("000000.tar, bytes 0 to 99")


@pytest.mark.parametrize("fault", [Shorten(0), Stall(50)])
def test_answers_that_are_always_short_are_never_taken(by_proxy, proxy, fault):
    file = FsspecStorage(by_proxy, FAST | {"deadline_s": 1.5, "timeout_s": 0.5}).open("000000.tar")
    proxy.plan = lambda request: fault if request.method == "GET" else None
    with pytest.raises(StorageError, match="does not answer"):
        file.read(0, 100)


# What is told


def test_what_is_not_there_is_told_by_its_url(web, in_memory):
    for url in (f"{web.endpoint}/nothing", "memory://bucket/nothing"):
        with pytest.raises(DatasetNotFoundError, match="no dataset") as caught:
            wdsplit.Dataset(url)
        assert caught.value.place == url
        with pytest.raises(DatasetNotFoundError, match="no such file") as caught:
            open_readable_storage(url).open("x.tar").read(0, 1)
        assert caught.value.url == f"{url}/x.tar"


SECRET = "secret-that-nobody-may-see"
FAILURES = {
    "refused": status(403),
    "not there": status(404),
    "bad request": status(400),
    "beyond the end": status(416),
    "unavailable": status(503),
    "cut": Cut(0),
    "short": Shorten(10),
}


@pytest.mark.parametrize("fault", FAILURES.values(), ids=FAILURES)
def test_credentials_are_never_told(proxy, fault, caplog):
    caplog.set_level(logging.DEBUG, "wdsplit")
    host = proxy.endpoint.removeprefix("http://")
    url = f"http://user-{SECRET}:{SECRET}@{host}/train set/größe 100%25?token={SECRET}"
    storage = FsspecStorage(url, FAST | {"deadline_s": 0.3})
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


def test_a_list_that_is_refused_is_no_list(by_proxy, proxy):
    proxy.plan = lambda request: status(403)
    assert open_readable_storage(by_proxy).list() == []
    assert open_readable_storage(by_proxy).describe_contents() == "no list of files"


@pytest.mark.parametrize(("url", "extra"), [("gs://b/x", "gcs"), ("az://b/x", "azure"), ("hf://datasets/x/y", "hf")])
def test_a_library_that_is_missing_is_told_with_its_extra(url, extra, monkeypatch):
    fsspec_storage._class_of.cache_clear()
    for module in ("gcsfs", "adlfs", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError) as caught:
        open_readable_storage(url)
    assert f"wdsplit[{extra}]" in caught.value.remedy


def test_fsspec_that_is_missing_is_told(monkeypatch):
    fsspec_storage._class_of.cache_clear()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match="https:// needs a library"):
        open_readable_storage("https://host/x")


def test_schemes_that_nobody_knows_are_refused():
    with pytest.raises(InputError, match="unknown file system") as caught:
        wdsplit.Dataset("gopher://host/x")
    assert "gs://" in caught.value.expected and caught.value.found == "gopher://"


def test_options_that_the_file_system_does_not_have_are_refused_by_name(remote):
    with pytest.raises(InputError, match="storage option") as caught:
        wdsplit.Dataset(remote, storage_options={"anonymous": True})
    assert "anonymous" in caught.value.found


def test_options_are_those_of_the_file_system_and_ours(by_proxy, proxy):
    options = FAST | {"headers": {"X-Mine": "yes"}}
    wdsplit.Dataset(by_proxy, storage_options=options)
    assert {exchange.request.head["X-Mine"] for exchange in proxy.exchanges} == {"yes"}
    with pytest.raises(InputError, match="times"):
        FsspecStorage(by_proxy, {"deadline_s": -1})


def test_what_can_only_be_read_is_no_place_to_write_to():
    with pytest.raises(InputError, match="https:// can only be read") as caught:
        open_storage("https://user:secret@host/folder?token=x")
    assert caught.value.place == "https://host/folder"
    assert "s3://" in caught.value.expected


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
