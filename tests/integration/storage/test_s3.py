import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

import wdsplit
from commands import done
from faults import FAST, Delay, ErrorAnswer, Flip, Hold
from made_datasets import without_urls
from tables import DEADLINE_S, session_processes, start_script, wait_until
from wdsplit.checks.verify import verify
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.storage import s3_client, s3_http
from wdsplit.storage.opening import open_storage
from wdsplit.storage.s3 import S3Storage
from wdsplit.storage.s3_options import S3Options


@pytest.fixture
def remote(bucket, numbers):
    """Return the URL of a dataset in a bucket; the same lies on the disk."""
    return bucket.put(numbers, "train set/größe")


def of(url, **options):
    return S3Storage(url, S3Options.of(FAST | options))


# Reading


def test_botocores_client_builds_the_first_get_and_the_next_after_an_error(bucket, fault_proxy):
    names = ["plain", "with space", "größe/%25+~!'()*&$@=;:,.tar", '?#[]{}|^`"<>']
    storage = of(bucket.url, requester_pays=True)
    for name in names:
        with storage.publish(name) as file:
            file.write([name.encode() * 100])
    client, built = s3_client.client_of(storage.options).client, []
    client.meta.events.register("before-parameter-build.s3.GetObject", lambda params, **_: built.append(params["Key"]))
    for name in names * 2:
        expected = name.encode() * 100
        file = storage.open(name)
        assert file.read(3, 50) == expected[3:53] and file.read(60, 7) == expected[60:67]
        assert storage.read(name) == expected
    assert built == names[:1]
    sent = [exchange.request.head for exchange in fault_proxy.exchanges if exchange.request.method == "GET"]
    assert len(sent) == 3 * 2 * len(names)
    assert all(head["x-amz-request-payer"] == "requester" for head in sent)
    with pytest.raises(DatasetNotFoundError):
        storage.open("nothing").read(0, 1)
    assert storage.read("plain") == b"plain" * 100 and built == [names[0], names[0]]


def test_a_signature_serves_all_ranges_of_an_object_for_a_minute(bucket, fault_proxy, monkeypatch):
    storage = of(bucket.url)
    for name in ("a", "b"):
        with storage.publish(name) as file:
            file.write([b"x" * 1000])

    def authorizations(name):
        before, file = len(fault_proxy.exchanges), storage.open(name)
        assert [file.read(first, 10) for first in (0, 500)] == [b"x" * 10] * 2
        return [exchange.request.head["authorization"] for exchange in fault_proxy.exchanges[before:]]

    storage.read("a")
    now = time.time()
    monkeypatch.setattr("wdsplit.storage.s3_http.time.time", lambda: now)
    first, again = authorizations("a")
    assert first == again and "range" not in first and "host" in first
    assert set(authorizations("b")).isdisjoint({first})
    signed = []
    client = s3_client.client_of(storage.options).client
    client.meta.events.register("before-sign.s3.GetObject", lambda **_: signed.append(1))
    for later, num_signed in ((59, 0), (61, 1), (-1, 2)):
        now += later
        authorizations("a")
        assert len(signed) == num_signed


def test_a_proxy_is_used_if_the_environment_names_one(bucket, s3_server, fault_proxy, monkeypatch):
    """The store itself is named, and only the proxy is asked."""
    storage = of(bucket.url)
    with storage.publish("object") as file:
        file.write([b"0123456789"])
    monkeypatch.setenv("HTTP_PROXY", fault_proxy.endpoint)
    monkeypatch.setenv("http_proxy", fault_proxy.endpoint)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    file = of(bucket.url, endpoint_url=s3_server.endpoint).open("object")
    before = len(fault_proxy.exchanges)
    assert [file.read(first, 2) for first in (0, 3, 6)] == [b"01", b"34", b"67"]
    assert len(fault_proxy.exchanges) == before + 3


def test_bodies_are_read_in_place_and_leave_their_connection_to_the_next_request(bucket, fault_proxy):
    """From the second GET on; what urllib3's readinto gives was copied twice."""
    storage, data = of(bucket.url), bytes(range(256)) * 1000
    with storage.publish("object") as file:
        file.write([data])
    file, before = storage.open("object"), len(fault_proxy.exchanges)
    for first in range(3):
        assert file.read(first, 200_000) == data[first : first + 200_000]
    body = storage.get("object", 5, 100_005, None).body
    buffer = bytearray(200_000)
    assert isinstance(body, s3_http._BodyInPlace)
    assert body.readinto(memoryview(buffer)) == 100_000 and buffer[:100_000] == data[5:100_005]
    assert body.readinto(memoryview(buffer)) == 0
    body.close()
    assert storage.read("object") == data
    connections = {exchange.request.connection for exchange in fault_proxy.exchanges[before:]}
    assert len(fault_proxy.exchanges) == before + 5 and len(connections) == 1


# Faults


def test_an_object_that_is_replaced_while_it_is_read_is_told(remote, bucket):
    file = of(remote).open("000000.tar")
    file.read(0, 512)
    (bucket.folder / "train set" / "größe" / "000000.tar").write_bytes(bytes(file.size))
    with pytest.raises(CorruptDataError, match="replaced"):
        file.read(0, 512)


def test_a_server_that_was_killed_and_comes_back_is_waited_for(remote, numbers, s3_server):
    samples = iter(wdsplit.Dataset(remote, storage_options=FAST))
    begun = [next(samples)]
    s3_server.stop()
    s3_server.start()
    assert without_urls([*begun, *samples]) == without_urls(wdsplit.Dataset(numbers))


ORPHANS = """
import sys
import wdsplit
from wdsplit.engines import local

local._LOOK_S = 0.05
dataset = wdsplit.Dataset(sys.argv[1], storage_options={"deadline_s": 1e6, "timeout_s": 1e6})
if sys.argv[2] == "torch":
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, 4, num_workers=2)
else:
    loader = wdsplit.Loader(dataset, 4, num_workers=2, multiprocessing_context=sys.argv[2])
for batch in loader:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["fork", "torch", "spawn"])
def test_workers_end_with_their_parent_while_the_store_is_silent(remote, fault_proxy, loader):
    fault_proxy.plan = lambda request: Hold(threading.Event()) if request.path.endswith(".tar") else None
    with start_script(ORPHANS, remote, loader) as process:
        wait_until(lambda: sum(each.fault is not None for each in fault_proxy.exchanges) >= 2, "both workers wait")
        process.kill()
        process.wait()
        wait_until(lambda: not session_processes(process.pid), "no worker is left")


def read_one(file):
    file.read(0, 100)


def head(file):
    file.size  # noqa: B018


ELSEWHERE = "a redirect that does not name the region"


@pytest.mark.parametrize(
    ("action", "status", "code", "found", "remedy", "num_attempts"),
    [
        (read_one, 403, "ExpiredToken", "ExpiredToken", "renew the credentials", 4),
        (head, 400, "ExpiredToken", "ExpiredToken", "renew the credentials", None),
        (head, 403, "AccessDenied", "AccessDenied", "what they allow (s3:GetObject); storage_options={'anon'", 1),
        (head, 403, "RequestTimeTooSkewed", "RequestTimeTooSkewed", "clock", 1),
        (head, 301, "PermanentRedirect", ELSEWHERE, "AWS_REGION", None),
        (read_one, 301, "PermanentRedirect", ELSEWHERE, "AWS_REGION", None),
    ],
)
def test_a_refusal_is_named_also_where_the_answer_has_no_body(
    remote, fault_proxy, action, status, code, found, remedy, num_attempts
):
    file = of(remote).open("000000.tar")
    fault_proxy.plan = lambda request: ErrorAnswer(f"{status} Some Reason", code, "Some message")
    with pytest.raises(StorageError) as caught:
        action(file)
    assert caught.value.found == found and remedy in caught.value.remedy
    if num_attempts is not None:
        methods = [exchange.request.method for exchange in fault_proxy.exchanges]
        assert methods == (["HEAD", "GET"] if action is head else ["GET"]) * num_attempts


def test_a_conflict_passes(remote, fault_proxy):
    left = [ErrorAnswer("409 Conflict", "OperationAborted", "Some message")] * 5
    fault_proxy.plan = lambda request: left.pop() if left else None
    head(of(remote).open("000000.tar"))
    assert left == []


# Verifying and inspecting


def test_verifying_fetches_each_shard_once(remote, fault_proxy):
    done("verify", remote, "--jobs", 2)
    tars = [exchange.request.path for exchange in fault_proxy.exchanges if exchange.request.path.endswith(".tar")]
    assert len(tars) == len(set(tars)) == 7


@pytest.mark.slow
def test_what_was_damaged_on_its_way_is_no_problem_of_the_dataset(remote, bucket, fault_proxy):
    left = [Flip(600)]
    fault_proxy.plan = lambda request: left.pop() if left and request.path.endswith("3.tar") else None
    assert verify(remote).problems == ()
    assert left == []
    tar = bucket.folder / "train set" / "größe" / "000003.tar"
    data = bytearray(tar.read_bytes())
    data[600] ^= 1
    tar.write_bytes(data)
    assert [problem.url for problem in verify(remote).problems] == [f"{remote}/000003.tar"]


def test_inspecting_reads_a_small_dataset_once_and_without_samples_its_manifest_alone(remote, fault_proxy):
    assert "101 samples" in done("inspect", remote, "--samples", "0").out
    assert [exchange for exchange in fault_proxy.exchanges if ".tar" in exchange.request.path] == []
    done("inspect", remote)
    tars = [exchange for exchange in fault_proxy.exchanges if exchange.request.path.endswith(".tar")]
    *counted, first = [(exchange.request.path, *exchange.request.range) for exchange in tars]
    assert first[1:] == (0, 3 * 2048 - 1)
    assert len({path for path, *_ in counted}) == len(counted) == len(wdsplit.Dataset(remote).manifest.shards)
    assert all(begin == 0 for _, begin, _ in counted)


# Credentials


def test_credentials_are_never_told(remote, fault_proxy):
    secret = {"key": "AKIDTHATNOBODYMAYSEE", "secret": "secret-that-nobody-may-see-of-40-letters", "region": "eu-x"}
    options = S3Options.of(secret)
    assert "NOBODY" not in repr(options).upper() and "eu-x" in repr(options)
    with pytest.raises(StorageError) as caught:
        wdsplit.Dataset(remote, storage_options=FAST | secret)
    assert "check the credentials" in caught.value.remedy
    assert "NOBODY" not in str(caught.value).upper()


def shown(caught):
    return "".join(traceback.format_exception(caught.type, caught.value, caught.tb))


@pytest.mark.parametrize("of_environment", [False, True])
def test_an_endpoint_that_holds_credentials_is_refused_and_they_are_not_told(s3_server, monkeypatch, of_environment):
    endpoint = s3_server.endpoint.replace("://", "://user:secret-of-a-user@")
    if of_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    options = {} if of_environment else {"endpoint_url": endpoint}
    with pytest.raises(InputError, match="endpoint") as caught:
        of("s3://bucket/x", **options).list()
    assert caught.value.place == s3_server.endpoint
    assert "secret-of-a-user" not in shown(caught) + repr(S3Options.of(options))


def test_a_token_that_cannot_be_sent_is_told_at_once_and_not_what_it_is(remote, fault_proxy):
    storage = of(remote, key="k" * 20, secret="s" * 40, token="secret-token\nof two lines", deadline_s=300)
    for action in (storage.list, lambda: storage.read("wdsplit.json")):
        with pytest.raises(StorageError, match="refused the request") as caught:
            action()
        assert "line break" in caught.value.remedy
        assert "secret-token" not in shown(caught)


def test_as_many_connections_are_kept_as_are_used_at_once(remote, fault_proxy, caplog):
    num_threads = 48
    file = of(remote).open("000000.tar", open_storage(remote).size("000000.tar"))
    together = threading.Barrier(num_threads)

    def read(number):
        for _ in range(2):
            together.wait(DEADLINE_S)
            file.read(0, 10)

    fault_proxy.plan = lambda request: Delay(0.1)
    before = {exchange.request.connection for exchange in fault_proxy.exchanges}
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(read, range(num_threads)))
    used = {exchange.request.connection for exchange in fault_proxy.exchanges}
    assert len(used - before) <= num_threads
    assert "pool is full" not in caplog.text


def test_what_is_known_of_the_store_is_read_once_for_all_clients(s3_server, monkeypatch):
    """Botocore's description of S3 takes a quarter of a second to read: each worker process would pay for it."""
    from botocore.loaders import JSONFileLoader

    read, load_file = [], JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: read.append(path) or load_file(self, path))
    s3_client._model_loader.cache_clear()
    s3_client.client_of(S3Options(region="us-east-1", profile=None))
    assert any("s3" in path for path in read)
    read.clear()
    s3_client.client_of(S3Options(region="us-west-2"))
    assert read == []
