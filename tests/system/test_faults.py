"""The S3 server and the proxy that the tests of S3 stand on, seen by a real client."""

import http.client
import os
import random
import signal
import time

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from faults import FaultProxy, IgnoreRange, Truncate, internal_error
from s3server import HOST

WHOLE = random.Random(5).randbytes(1_000_003)
FIRST, LAST = 100_000, 899_999
PART = WHOLE[FIRST : LAST + 1]
PATIENCE_S = 100
RANGE_STATUS = 200
"""What rclone answers where S3 would answer 206; its Content-Range is right."""


@pytest.fixture
def connect(s3_server):
    """Return a function that makes a client that tries once; the environment says where the server is."""
    clients = []

    def connect(**options):
        config = Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE_S, max_pool_connections=16)
        clients.append(botocore.session.Session().create_client("s3", config=config, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def through(fault_proxy, connect):
    """Return a client of the proxy."""
    return connect()


@pytest.fixture
def direct(s3_server, connect):
    """Return a client of the server."""
    return connect(endpoint_url=s3_server.endpoint)


@pytest.fixture
def whole(bucket):
    """Return where the object is, as arguments of requests."""
    (bucket.folder / "a b").mkdir()
    (bucket.folder / "a b" / "whole.bin").write_bytes(WHOLE)
    return {"Bucket": bucket.name, "Key": "a b/whole.bin"}


def get_part(client, whole):
    return client.get_object(**whole, Range=f"bytes={FIRST}-{LAST}")["Body"].read()


def code_of(error):
    response = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


# The proxy without faults


def test_the_proxy_passes_requests_unchanged(through, direct, whole, bucket, fault_proxy):
    assert get_part(through, whole) == PART
    assert through.get_object(**whole)["Body"].read() == WHOLE
    assert through.get_object(**whole, Range="bytes=-10")["Body"].read() == WHOLE[-10:]
    assert through.get_object(**whole, Range="bytes=1000000-")["Body"].read() == WHOLE[-3:]
    assert through.head_object(**whole)["ContentLength"] == len(WHOLE)
    through.put_object(Bucket=bucket.name, Key="put.bin", Body=WHOLE)
    assert (bucket.folder / "put.bin").read_bytes() == WHOLE
    through.delete_object(Bucket=bucket.name, Key="put.bin")
    listings = [client.list_objects_v2(Bucket=bucket.name)["Contents"] for client in (through, direct)]
    assert listings[0] == listings[1]
    path = f"/{bucket.name}/a%20b/whole.bin"
    seen = [
        (exchange.request.method, exchange.request.path, exchange.request.range, exchange.status, exchange.bytes_sent)
        for exchange in fault_proxy.exchanges
    ]
    assert seen[:5] == [
        ("GET", path, (FIRST, LAST), RANGE_STATUS, len(PART)),
        ("GET", path, None, 200, len(WHOLE)),
        ("GET", path, (-10, None), RANGE_STATUS, 10),
        ("GET", path, (1000000, None), RANGE_STATUS, 3),
        ("HEAD", path, None, 200, 0),
    ]
    put = fault_proxy.exchanges[5]
    assert (put.request.method, put.status, put.request.path) == ("PUT", 200, f"/{bucket.name}/put.bin")
    assert put.bytes_received >= len(WHOLE)
    assert [exchange.request.number for exchange in fault_proxy.exchanges] == list(range(8))
    assert {exchange.request.connection for exchange in fault_proxy.exchanges} == {0}


def test_the_proxy_gives_ranges_the_status_that_s3_gives(s3_server, connect, whole):
    with FaultProxy(s3_server.port, as_s3=True) as proxy:
        client = connect(endpoint_url=proxy.endpoint)
        assert get_part(client, whole) == PART
        assert client.get_object(**whole)["Body"].read() == WHOLE
        proxy.plan = lambda request: IgnoreRange(s3_server.folder)
        assert get_part(client, whole) == WHOLE
        with pytest.raises(ClientError) as refused:
            client.get_object(**whole, Range="bytes=2000000-2000001")
    assert code_of(refused) == (416, "InvalidRange")
    assert [exchange.status for exchange in proxy.exchanges] == [206, 200, 200, 416]


def test_requests_about_buckets_of_tests_that_are_over_are_refused_and_not_counted(s3_server, connect, bucket, whole):
    gone = s3_server.make_bucket()
    s3_server.remove_bucket(gone)
    with FaultProxy(s3_server.port, lambda request: internal_error(), ignored=s3_server.removed) as proxy:
        client = connect(endpoint_url=proxy.endpoint)
        for ask in (client.list_objects_v2, client.head_bucket, client.create_bucket):
            with pytest.raises(ClientError) as refused:
                ask(Bucket=gone.name)
            assert code_of(refused)[0] == 404
        with pytest.raises(ClientError) as refused:
            client.put_object(Bucket=gone.name, Key="x", Body=WHOLE)
        assert code_of(refused) == (404, "NoSuchBucket")
        assert proxy.exchanges == []
        proxy.plan = lambda request: None
        assert get_part(client, whole) == PART
        assert [exchange.request.number for exchange in proxy.exchanges] == [0]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_cut_reaches_the_client_though_a_forked_process_has_the_socket_too(s3_server, whole, fault_proxy):
    fault_proxy.plan = lambda request: Truncate(10) if request.number == 1 else None
    connection = http.client.HTTPConnection(HOST, fault_proxy.port, timeout=PATIENCE_S)
    connection.request("GET", f"/{whole['Bucket']}")
    assert connection.getresponse().read()
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    try:
        connection.request("GET", f"/{whole['Bucket']}")
        with pytest.raises(http.client.IncompleteRead):
            connection.getresponse().read()
    finally:
        connection.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_an_error_in_a_plan_is_raised_at_the_end(s3_server):
    def broken(request):
        raise ValueError("no such request")

    with pytest.raises(ValueError, match="no such request"), FaultProxy(s3_server.port, broken) as proxy:
        connection = http.client.HTTPConnection(HOST, proxy.port, timeout=PATIENCE_S)
        with pytest.raises(http.client.RemoteDisconnected):
            connection.request("GET", "/")
            connection.getresponse()
        connection.close()
