"""Remote stores that do not answer, by real clients: the warning, and hosts without a name."""

import re
import socket
import threading

import pytest

from s3server import free_port
from tables import start_script
from wdsplit.errors import StorageError
from wdsplit.storage import retry
from wdsplit.storage.opening import open_readable_storage, open_storage

TIMES = {"first_delay_s": 0.02, "max_delay_s": 0.1, "timeout_s": 1}
KEYS = {"key": "k" * 20, "secret": "s" * 40, "region": "eu-x"}


def nobody():
    """Return the URL of a server that is not there."""
    return f"http://127.0.0.1:{free_port()}"


STORES = {
    "s3": lambda host, **times: open_storage("s3://bucket/x", TIMES | KEYS | {"endpoint_url": host} | times),
    "http": lambda host, **times: open_readable_storage(f"{host}/bucket/x", TIMES | times),
}
stores = pytest.mark.parametrize("store", STORES.values(), ids=STORES)


@stores
def test_of_many_threads_that_wait_for_a_store_one_warns_with_all_that_is_known(store, monkeypatch, caplog):
    monkeypatch.setattr(retry, "_WARN_AFTER_S", 0.2)
    monkeypatch.setattr(retry, "_warnings", retry._WarningTurns())
    storage = store(nobody(), deadline_s=2.5)

    def read():
        with pytest.raises(StorageError, match="does not answer"):
            storage.open("a.tar").read(0, 10)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (text,) = [record.getMessage() for record in caplog.records if record.name == "wdsplit.storage.retry"]
    assert text.startswith(f"{storage.url}/a.tar, bytes 0 to 9: no answer for ")
    assert re.search(r"for \d s \(attempt \d+: \w*Connect\w+\); retrying for up to [0-2] s more$", text)


SHOWN = """
from wdsplit.storage import retry
from wdsplit.cli.main import main

retry._WARN_AFTER_S = 0.2
main(["inspect", "s3://bucket/x"])
"""


def test_the_command_line_shows_the_warning(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody())
    with start_script(SHOWN) as script:
        shown = script.stderr.readline()
        script.kill()
    assert shown.startswith("warning: s3://bucket/x/")
    assert re.search(r"EndpointConnectionError\); retrying for up to (2\d\d|300) s more\n$", shown)


@stores
def test_a_host_without_a_name_is_given_up_sooner(store, monkeypatch):
    """Whatever name server there is here, or whether there is one."""

    def no_name(host, *arguments, **options):
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *arguments, **options)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    monkeypatch.setattr(retry, "_UNKNOWN_HOST_S", 0.5)
    with pytest.raises(StorageError, match="cannot resolve") as caught:
        store("http://no-such-host.invalid", deadline_s=60).open("a.tar").read(0, 10)
    assert caught.value.expected == "an answer within 0.5 s"
