"""The options of s3fs for plain s3://: honoured, or refused by name."""

import sys
from importlib import import_module

import pytest

from forked_workers import code_of_fork
from s3server import S3Server
from wdsplit.errors import InputError, UnansweredError
from wdsplit.storage import s3_client
from wdsplit.storage.opening import open_storage
from wdsplit.storage.s3_options import S3Options


def client_of(**options):
    return s3_client.client_of(S3Options.of({"region": "us-east-1", **options})).client


def test_connections_are_made_as_the_options_say(s3_server, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert client_of(use_ssl=False).meta.endpoint_url.startswith("http://")
    assert client_of().meta.endpoint_url.startswith("https://")
    assert client_of(client_kwargs={"use_ssl": False}).meta.endpoint_url.startswith("http://")
    config = client_of(config_kwargs={"read_timeout": 7, "s3": {"addressing_style": "path"}}).meta.config
    assert (config.read_timeout, config.s3["addressing_style"], config.connect_timeout) == (7, "path", 30)
    assert client_of(config_kwargs={"signature_version": "s3"}).meta.config.signature_version == "s3"


CERTIFICATE = """
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUCNkORJPlyRgpce6vv33zIhZHouIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyNDIzMzQyMFoYDzIxMjYxMDMx
MjMzNDIwWjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR0geMF4UTj/YvxZ7e8gsM/1EG/lSq6+DqJe1jo8FuwKI9VPbjlbgou
H7/1s+BLnLCF+GYmfAzbZwyP5g3oX7juo2QwYjAdBgNVHQ4EFgQU71zlz3wh5vPM
Yk9E0kyrqhCj8UowHwYDVR0jBBgwFoAU71zlz3wh5vPMYk9E0kyrqhCj8UowDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0gAMEUC
IQCYhWaP3RySiKQRVA2cgAIyF9TJev/Z4rNulilFDPgD7wIgBwe0RoQUNHb89QCO
8PXRuzwX4OQ3FGS/Cp5Fxc9TCNM=
-----END CERTIFICATE-----
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIK8Ut7JiCkwxtoE710D9qqhegGiNG9Yi4+eNJYviHo2joAoGCCqGSM49
AwEHoUQDQgAEdIHjBeFE4/2L8We3vILDP9RBv5Uquvg6iXtY6PBbsCiPVT245W4K
Lh+/9bPgS5ywhfhmJnwM22cMj+YN6F+47g==
-----END EC PRIVATE KEY-----
"""
"""Of 127.0.0.1 for a hundred years, signed by itself, and its key."""


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_certificates_are_checked_as_the_options_say(bucket, s3_server, tmp_path, monkeypatch):
    (bucket.folder / "x").write_bytes(b"abc")
    pem = tmp_path / "pem"
    pem.write_text(CERTIFICATE)
    with S3Server(s3_server.folder, f"--cert={pem}", f"--key={pem}") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint.replace("http:", "https:"))
        with pytest.raises(UnansweredError) as caught:
            open_storage(bucket.url, {"deadline_s": 1}).read("x")
        assert "SSLError" in caught.value.found
        for options in ({"verify": str(pem)}, {"verify": False}, {"client_kwargs": {"verify": False}}):
            file = open_storage(bucket.url, options).open("x")
            assert file.read(0, 2) + file.read(2, 1) == b"abc", options
        with pytest.raises(InputError, match="certificates"):
            open_storage(bucket.url, {"verify": str(tmp_path / "none")}).read("x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
        assert open_storage(bucket.url).list() == ["x"]


def test_parameters_of_requests_are_sent_where_they_are_taken(bucket, fault_proxy):
    options = {"s3_additional_kwargs": {"StorageClass": "STANDARD_IA"}, "requester_pays": True}
    storage = open_storage(bucket.url, options)
    with storage.publish("x") as file:
        file.write([b"abc"])
    assert storage.read("x") == b"abc"
    asked = {exchange.request.method: exchange.request.head for exchange in fault_proxy.exchanges}
    assert asked["PUT"]["x-amz-storage-class"] == "standard_ia" and asked["GET"]["x-amz-storage-class"] is None
    assert asked["PUT"]["x-amz-request-payer"] == asked["GET"]["x-amz-request-payer"] == "requester"


@pytest.mark.parametrize(
    ("options", "found", "said"),
    [
        ({"endpoint_ur": "x"}, "endpoint_ur", "did you mean 'endpoint_url'?"),
        ({"default_block_size": 1}, "default_block_size", "fs=s3fs.S3FileSystem(default_block_size=...)"),
        ({"client_kwargs": {"api_version": "x"}}, "api_version", "fs=s3fs"),
        ({"config_kwargs": {"read_timeou": 1}}, "read_timeou", "did you mean 'read_timeout'?"),
        ({"config_kwargs": {"retries": {"max_attempts": 3}}}, "retries", "deadline_s"),
        ({"s3_additional_kwargs": {"StorageClas": "x"}}, "StorageClas", "did you mean 'StorageClass'?"),
        ({3: 4, "5": 6}, "3, 5", "anon"),
        ({"anon": "yes"}, "anon: str", "anon: True or False"),
        ({"requester_pays": None}, "requester_pays: NoneType", "requester_pays: True or False"),
        ({"key": 3.25, "secret": b"3.25"}, "key: float, secret: bytes", "key: a text, secret: a text"),
        ({"client_kwargs": {"region_name": 3.25}}, "region: float", "region: a text"),
        ({"client_kwargs": None}, "NoneType", "a dict"),
        ("key=3.25", "str", "a dict"),
    ],
    ids=str,
)
def test_what_is_not_honoured_is_refused_by_name_and_its_value_is_not_told(bucket, options, found, said):
    with pytest.raises(InputError) as caught:
        open_storage(bucket.url, options).list()
    assert caught.value.found == found and said in f"{caught.value.expected} {caught.value.remedy}"
    assert "3.25" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_s3_needs_no_fsspec(bucket):
    (bucket.folder / "x").write_bytes(b"abc")

    def read():
        for name in [name for name in sys.modules if name.partition(".")[0] in ("fsspec", "wdsplit")]:
            del sys.modules[name]
        sys.modules["fsspec"] = None
        assert import_module("wdsplit.storage.opening").open_storage(bucket.url).read("x") == b"abc"

    assert code_of_fork(read) == 0
