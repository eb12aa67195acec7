"""Remote stores that do not answer, or not as they should, by real clients."""

import logging
import math
import re
import socket
import threading
from functools import partial

import pytest

import wdsplit
from commands import run
from faults import (
    Chunked,
    Cut,
    Earlier,
    ErrorAnswer,
    Fault,
    FaultProxy,
    Flip,
    Garbled,
    Hold,
    IgnoreRange,
    Other,
    Shorten,
    SlowHead,
    Stall,
    Throttle,
    Truncate,
    expired_token,
    internal_error,
    slow_down,
)
from s3server import S3Server
from tables import reading_ahead, wait_for_threads
from wdsplit.errors import CorruptDataError, StorageError, UnansweredError
from wdsplit.storage import retry
from wdsplit.storage.opening import open_readable_storage, open_storage

TIMES = {"first_delay_s": 0.02, "max_delay_s": 0.1, "timeout_s": 1}
KEYS = {"key": "k" * 20, "secret": "s" * 40, "region": "eu-x"}
STORES = {
    "s3": lambda host, **times: open_storage("s3://bucket/x", TIMES | KEYS | {"endpoint_url": host} | times),
    "http": lambda host, **times: open_readable_storage(f"{host}/bucket/x", TIMES | times),
}


@pytest.fixture
def warns_soon(monkeypatch):
    monkeypatch.setattr(retry, "_WARN_AFTER_S", 0.1)
    monkeypatch.setattr(retry, "_last_warning", -math.inf)


@pytest.fixture
def unnamed(monkeypatch):
    """Return a host without a name, given up soon, whatever name server there is here, or whether there is one."""

    def no_name(host, *arguments, **options):
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *arguments, **options)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    monkeypatch.setattr(retry, "_UNKNOWN_HOST_S", 0.2)
    return "http://no-such-host.invalid"


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_host_without_a_name_is_given_up_sooner(unnamed, store):
    with pytest.raises(StorageError, match="cannot resolve") as caught:
        store(unnamed, deadline_s=60).open("a.tar").read(0, 10)
    assert caught.value.expected == "an answer within 0.2 s"


def test_the_command_line_shows_the_warning(s3_server, unnamed, warns_soon, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", unnamed)
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's: with them the command adds none of its own
    said = run("inspect", "s3://bucket/x").err
    assert re.match(r"warning: s3://bucket/x\b.*Error\); retrying for up to 0 s more\nerror: cannot resolve", said)


@pytest.fixture(scope="module")
def web_proxy(s3_process):
    """Return a proxy before an HTTP server of the buckets. It outlives the threads that a test leaves behind."""
    with S3Server(s3_process.folder, protocol="http") as web, FaultProxy(web.port, ignored=s3_process.removed) as proxy:
        yield proxy


@pytest.fixture
def behind(bucket, fault_proxy, web_proxy, numbers, request):
    """Return the URL of the dataset of numbers on a store behind a proxy, and the proxy."""
    url = bucket.put(numbers, "numbers")
    proxy = fault_proxy if request.param == "s3" else web_proxy
    yield url if request.param == "s3" else f"{proxy.endpoint}/{bucket.name}/numbers", proxy
    proxy.plan = lambda request: None


on_both = pytest.mark.parametrize("behind", ["s3", "http"], indirect=True)
on_s3 = pytest.mark.parametrize("behind", ["s3"], indirect=True)


def each_on_s3(names, of_web):
    """Give each name to a test of S3, and to one of the web those that take another way there."""
    cases = [*(("s3", name) for name in names), *(("http", name) for name in of_web)]
    return pytest.mark.parametrize(("behind", "name"), cases, indirect=["behind"])


# Faults that pass


FAULTS = {
    "cut": Cut(3000),
    "cut at once": Cut(0),
    "truncated": Truncate(3000),
    "shorter than it should be": Shorten(3000),
    "nothing at all": Shorten(0),
    "in chunks": Chunked(),
    "stalled": Stall(3000),
    "slow down": slow_down(),
    "slow down, try later": slow_down(retry_after=1),
    "too many requests": ErrorAnswer("429 Some Reason", "Code", "Some reason"),
    "internal error": internal_error(),
    "expired": expired_token(),
}
PATIENT = TIMES | {"timeout_s": 30}


def keys_and_positions(dataset):
    return [(sample["__key__"], sample["__position__"]) for sample in dataset]


@each_on_s3(
    FAULTS, ["cut", "truncated", "shorter than it should be", "nothing at all", "in chunks", "stalled", "slow down"]
)
def test_a_read_goes_on_where_it_stopped(behind, numbers, name, monkeypatch):
    """Each range fails once, except that a client waits for a stalled one only twice."""
    url, proxy = behind
    monkeypatch.setattr("wdsplit.storage.remote._BYTES_PER_READ", 1000)
    fault, seen = FAULTS[name], set()

    def plan(request):
        if request.range in seen or request.num_bytes <= 4000 or (isinstance(fault, Stall) and len(seen) == 2):
            return None
        seen.add(request.range)
        return fault

    expected = open_storage(numbers).read("000000.tar")
    times = PATIENT | ({"timeout_s": 0.2} if isinstance(fault, Stall) else {})
    file = open_readable_storage(url, times).open("000000.tar", len(expected))
    proxy.plan, before = plan, len(proxy.exchanges)
    assert file.read(1000, len(expected) - 1000) == expected[1000:]
    ranges = [exchange.request.range for exchange in proxy.exchanges[before:]]
    assert ranges[0] == (1000, len(expected) - 1) and (len(ranges) > 1) == (name != "in chunks")
    if isinstance(fault, Shorten) or (type(fault) in (Truncate, Stall) and url.startswith("s3")):
        assert ranges[1] == (1000 + fault.after, len(expected) - 1)


@on_both
def test_a_server_that_ignores_ranges_is_read_with_a_warning(behind, numbers, s3_process, caplog):
    url, proxy = behind
    expected = open_storage(numbers).read("000000.tar")
    proxy.plan = lambda request: IgnoreRange(s3_process.folder) if request.range else None
    for size in (None, len(expected)):
        file = open_readable_storage(url).open("000000.tar", size)
        assert file.read(1000, 2000) == expected[1000:3000]
        assert file.read(0, 2000) == expected[:2000]
    assert open_readable_storage(url).read("000000.tar", 10**6) == expected
    assert [record.getMessage().count("whole file") for record in caplog.records] == [1]


@on_both
def test_a_size_is_asked_for_again(behind, numbers):
    """fsspec says of any failure of such a request that there is no file."""
    url, proxy = behind
    left = [slow_down()] * 3
    proxy.plan = lambda request: left.pop() if left else None
    assert open_readable_storage(url, PATIENT).size("000000.tar") == open_storage(numbers).size("000000.tar")
    assert left == []


NEVER = {
    "slow down": slow_down(),
    "empty": Shorten(0),
    "stalled": Stall(50),
    "slow head": SlowHead(),
    "slow body": Throttle(100),
    "silent": Hold(threading.Event()),
}


@each_on_s3(NEVER, ["slow down", "empty", "slow body"])
def test_what_never_works_or_trickles_is_given_up_at_the_deadline(behind, name, warns_soon, caplog):
    """Also where each byte comes in time."""
    (url, proxy), fault = behind, NEVER[name]
    file = open_readable_storage(url, TIMES | {"deadline_s": 0.3, "timeout_s": 30}).open("000000.tar")
    proxy.plan = lambda request: fault if request.method == "GET" else None
    with pytest.raises(UnansweredError, match="does not answer") as caught:
        file.read(0, 100)
    assert caught.value.place == f"{url}/000000.tar, bytes 0 to 99"
    assert caught.value.expected == "an answer within 0.3 s"
    if name.startswith("slow ") and url.startswith("s3"):  # of the web: at the next attempt
        assert "no answer for" in caplog.text


@pytest.mark.slow
@on_both
def test_a_connection_that_trickles_is_given_up_with_a_warning_and_the_read_goes_on(
    behind, numbers, warns_soon, caplog
):
    url, proxy = behind
    file = open_readable_storage(url, TIMES | {"timeout_s": 0.1}).open("000000.tar")
    trickling = [SlowHead(), Throttle(100)]
    proxy.plan = lambda request: trickling.pop() if trickling and request.method == "GET" else None
    assert file.read(0, 1000) == open_storage(numbers).read("000000.tar")[:1000] and trickling == []
    assert "no answer for" in caplog.text


@on_s3
@pytest.mark.parametrize("suffix", [".tar", ".tar.places"])
def test_a_header_or_an_index_that_was_damaged_on_its_way_is_read_again(behind, numbers, suffix):
    url, proxy = behind
    dataset, left = wdsplit.Dataset(url, storage_options=TIMES, on_bad_sample="substitute"), [Flip(5)]
    proxy.plan = lambda request: left.pop() if left and request.path.endswith(suffix) else None
    assert keys_and_positions(dataset) == keys_and_positions(wdsplit.Dataset(numbers)) and left == []


# Answers that do not fit


NO_VERSION = (("ETag", None), ("Last-Modified", None))
PAGE = b"<html>something went wrong: try again</html>"
UNFIT = {
    "an error page": Other("200 OK", PAGE, (("Content-Range", None), *NO_VERSION)),
    "another length": Other("200 OK", PAGE, (("Content-Range", None),)),
    "a part without its place": Other("206 Partial Content", None, (("Content-Range", None),)),
    "an earlier part": Earlier,
    "a later part": partial(Earlier, num_bytes=-512),
    "another size": Other("206 Partial Content", None, (("Content-Range", "bytes 512-1023/77"),)),
    "an unreadable part": Other("206 Partial Content", None, (("Content-Range", "bytes ?-1023/77"),)),
    "beyond the end": ErrorAnswer("416 Range Not Satisfiable", "InvalidRange", "no such range"),
    "no HTTP": Garbled(),
    "an odd delay": ErrorAnswer("503 Slow Down", "SlowDown", "slow down", "²"),
}


def of_tars(fault, always=False):
    """Apply a fault to the requests for parts of tars, except for their beginnings; to each part once or always."""
    seen = set()

    def plan(request):
        key = request.path, request.range
        if ".tar.places" in request.path or not request.range or not request.range[0] or key in seen:
            return None
        if not always:
            seen.add(key)
        plan.num_given += 1
        return fault

    plan.num_given = 0
    return plan


def unfit(name, folder):
    return UNFIT[name] if isinstance(UNFIT[name], Fault) else UNFIT[name](folder)


@each_on_s3(UNFIT, ["an error page", "an earlier part", "beyond the end", "no HTTP"])
def test_an_answer_that_does_not_fit_is_fetched_again_and_makes_no_sample_bad(behind, numbers, s3_process, name):
    url, proxy = behind
    dataset = wdsplit.Dataset(url, storage_options=TIMES | {"timeout_s": 30}, on_bad_sample="substitute")
    plan = proxy.plan = of_tars(unfit(name, s3_process.folder))
    keys = [sample["__key__"] for sample in dataset]
    assert keys == [sample["__key__"] for sample in wdsplit.Dataset(numbers)]
    assert plan.num_given > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behind", "name"), [("s3", "an earlier part"), ("http", "beyond the end")], indirect=["behind"]
)
def test_answers_that_never_fit_are_an_error_of_the_store_and_not_of_samples(behind, s3_process, name):
    url, proxy = behind
    dataset = wdsplit.Dataset(url, storage_options={**TIMES}, on_bad_sample="substitute", shuffle=False)
    dataset.source.access.storage_options["deadline_s"] = 0.5  # less than a busy machine takes to open a dataset
    proxy.plan, before = of_tars(unfit(name, s3_process.folder), always=True), reading_ahead()
    with pytest.raises(UnansweredError, match="does not answer"):
        list(dataset)
    wait_for_threads(before)


@on_both
def test_a_shard_that_is_shorter_in_the_store_is_damaged(behind, bucket):
    """No answer is wrong: so the error is that of the data, and comes at once."""
    url, _ = behind
    tar = bucket.folder / "numbers" / "000000.tar"
    tar.write_bytes(tar.read_bytes()[:2048])
    with pytest.raises(CorruptDataError, match=r"size|shorter") as caught:
        list(wdsplit.Dataset(url, storage_options=TIMES | {"deadline_s": 100}, shuffle=False))
    assert caught.value.url == f"{url}/000000.tar"


def part_of_a_list(token):
    """Return the answer that gives one object, and where the list goes on."""
    body = (
        '<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated>'
        f"<Contents><Key>x/a.tar</Key><Size>1</Size></Contents>{token}</ListBucketResult>"
    )
    return Other("200 OK", body.encode())


@pytest.mark.parametrize(
    ("token", "found"),
    [("<NextContinuationToken>again</NextContinuationToken>", "one that has come before"), ("", "none")],
    ids=["repeated", "missing"],
)
def test_a_list_that_has_no_end_is_an_error_of_the_store(bucket, fault_proxy, token, found):
    fault_proxy.plan = lambda request: part_of_a_list(token)
    with pytest.raises(StorageError, match="list has no end") as caught:
        open_readable_storage(f"{bucket.url}/x", TIMES).list()
    assert (caught.value.place, caught.value.found) == (f"{bucket.url}/x/", found)
