"""How each S3 client gets a range of an object: what plain GETs cost, without any dataset.

A client takes a bucket and gives a function that fetches; the environment has the rest: credentials, endpoint, region.
Libraries are imported where they are used, because few have all of them.
"""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RANGE_BYTES = 8 * 2**20
THREADS = (1, 4)

Fetch = Callable[[str, int, int], int]
"""Gets an object's bytes from a first to before a last one; returns how many came."""


def with_s3fs(bucket: Path) -> Fetch:
    import s3fs

    files = s3fs.S3FileSystem()
    return lambda key, start, end: len(files.cat_file(f"{bucket.name}/{key}", start=start, end=end))


def with_botocore(bucket: Path) -> Fetch:
    import botocore.session
    from botocore.config import Config

    client = botocore.session.Session().create_client("s3", config=Config(max_pool_connections=max(THREADS)))

    def fetch(key: str, start: int, end: int) -> int:
        answer = client.get_object(Bucket=bucket.name, Key=key, Range=f"bytes={start}-{end - 1}")
        return len(answer["Body"].read())

    return fetch


def with_obstore(bucket: Path) -> Fetch:
    import obstore
    from obstore.store import S3Store

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    store = S3Store(bucket.name, endpoint=endpoint, skip_signature=True, client_options={"allow_http": True})
    return lambda key, start, end: len(obstore.get_range(store, key, start=start, end=end))


def with_pyarrow(bucket: Path) -> Fetch:
    from pyarrow.fs import S3FileSystem

    scheme, _, address = os.environ["AWS_ENDPOINT_URL"].partition("://")
    files = S3FileSystem(endpoint_override=address, scheme=scheme, region=os.environ["AWS_REGION"])
    opened = {key: files.open_input_file(f"{bucket.name}/{key}") for key, _ in shards_of(bucket)}
    return lambda key, start, end: len(opened[key].read_at(end - start, start))


def with_http_client(bucket: Path) -> Fetch:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    keys = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    signing = S3SigV4Auth(keys, "s3", os.environ["AWS_REGION"])
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    own = threading.local()

    def fetch(key: str, start: int, end: int) -> int:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(endpoint.partition("://")[2])
            own.buffer = bytearray(RANGE_BYTES)
        path = f"/{bucket.name}/{key}"
        request = AWSRequest("GET", endpoint + path, {"Range": f"bytes={start}-{end - 1}"})
        signing.add_auth(request)
        own.connection.request("GET", path, headers=dict(request.headers))
        answer, filled = own.connection.getresponse(), 0
        with memoryview(own.buffer) as view:
            while count := answer.readinto(view[filled:]):
                filled += count
        answer.close()
        return filled

    return fetch


def with_wdsplit(bucket: Path) -> Fetch:
    from wdsplit.storage.s3 import S3Storage

    storage = S3Storage(f"s3://{bucket.name}")
    opened = {key: storage.open(key, num_bytes) for key, num_bytes in shards_of(bucket)}
    own = threading.local()

    def fetch(key: str, start: int, end: int) -> int:
        if not hasattr(own, "buffer"):
            own.buffer = bytearray(RANGE_BYTES)
        with memoryview(own.buffer) as view:
            opened[key].read_into(view[: end - start], start)
        return end - start

    return fetch


@dataclass(frozen=True)
class Client:
    """A client: its name, the module that it needs, how it is made, and the server's protocol."""

    name: str
    module: str
    make: Callable[[Path], Fetch]
    protocol: str = "s3"


CLIENTS = (
    Client("s3fs", "s3fs", with_s3fs),
    Client("botocore", "botocore", with_botocore),
    Client("obstore", "obstore", with_obstore, protocol="http"),
    Client("pyarrow.fs", "pyarrow", with_pyarrow),
    Client("http.client", "botocore", with_http_client),
    Client("wdsplit", "botocore", with_wdsplit),
)


def shards_of(bucket: Path) -> list[tuple[str, int]]:
    """Return the keys of the shards in a bucket, whose folder this is, and their bytes."""
    return [(path.name, path.stat().st_size) for path in sorted(bucket.glob("*.tar"))]


def ranges_of(bucket: Path) -> list[tuple[str, int, int]]:
    """Return the requests for all shards: key, first byte, byte after the last."""
    return [
        (key, start, min(start + RANGE_BYTES, num_bytes))
        for key, num_bytes in shards_of(bucket)
        for start in range(0, num_bytes, RANGE_BYTES)
    ]
