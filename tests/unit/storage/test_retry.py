"""How long is tried, what is told meanwhile, and which numbers can be meant."""

import math
import re
import socket
import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from faults import slow_down
from s3server import free_port
from tables import DEADLINE_S, start_script
from wdsplit.errors import InputError, StorageError
from wdsplit.storage import fsspec_connection, retry, s3_client
from wdsplit.storage.fsspec_storage import FsspecStorage
from wdsplit.storage.opening import open_storage
from wdsplit.storage.retry import Retries, RetryOptions, is_unknown_host

TIMES = {"first_delay_s": 0.02, "max_delay_s": 0.1, "timeout_s": 1}
KEYS = {"key": "k" * 20, "secret": "s" * 40, "region": "eu-x"}


@pytest.fixture
def impatient(monkeypatch):
    """Let what fails be told after a fifth of a second."""
    monkeypatch.setattr(retry, "_TOLD_AFTER_S", 0.2)
    monkeypatch.setattr(retry, "_turns", retry._Turns())


def nobody():
    """Return the URL of a server that is not there."""
    return f"http://127.0.0.1:{free_port()}"


STORES = {
    "s3": lambda host, **times: open_storage("s3://bucket/x", TIMES | KEYS | {"endpoint_url": host} | times),
    "http": lambda host, **times: open_storage(f"{host}/bucket/x", TIMES | times),
}
stores = pytest.mark.parametrize("store", STORES.values(), ids=STORES)


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "wdsplit.storage.retry"]


# What is told


@stores
def test_a_store_that_does_not_answer_is_told_once_with_all_that_is_known(store, impatient, caplog):
    storage = store(nobody(), deadline_s=2.5)
    with pytest.raises(StorageError, match="does not answer"):
        storage.open("a.tar").read(0, 10)
    (text,) = told(caplog)
    assert text.startswith(f"{storage.url}/a.tar, bytes 0 to 9: no answer for ")
    assert re.search(r"for \d s \(attempt \d+: \w*Connect\w+\); it is tried for [0-2] s more$", text)


@stores
def test_of_many_threads_that_wait_one_tells(store, impatient, caplog):
    def read(storage):
        with pytest.raises(StorageError):
            storage.open("a.tar").read(0, 10)

    storage = store(nobody(), deadline_s=2.5)
    threads = [threading.Thread(target=read, args=(storage,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told(caplog)) == 1


def test_who_could_not_tell_tells_when_the_last_warning_is_long_ago(impatient, monkeypatch, caplog):
    monkeypatch.setattr(retry, "_TOLD_EVERY_S", 0.3)
    options = RetryOptions(**TIMES | {"deadline_s": DEADLINE_S})
    first, second = Retries(options, place="first"), Retries(options, place="second")
    while len(told(caplog)) < 2:
        assert first.wait() and second.wait()
    assert {text.partition(":")[0] for text in told(caplog)} == {"first", "second"}


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_short_failure_and_one_in_which_something_comes_are_not_told(impatient, monkeypatch, caplog):
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    retries = Retries(RetryOptions(**TIMES), clock.sleep, place="x")
    for _ in range(8):
        assert retries.wait(0.08)
        retries.progressed()
    assert told(caplog) == []
    while not told(caplog):
        assert retries.wait()
    assert 0.83 < clock.now < 0.95, "a fifth of a second after the last progress"


def test_a_long_wait_that_the_store_asks_for_is_told_while_it_lasts(bucket, fault_proxy, impatient, caplog):
    asked = []
    fault_proxy.plan = lambda request: None if asked else asked.append(request) or slow_down(retry_after=1)
    assert open_storage(bucket.url, TIMES).list() == []
    (text,) = told(caplog)
    assert "(attempt 1: SlowDown)" in text


SHOWN = """
from wdsplit.storage import retry
from wdsplit.cli.main import main

retry._TOLD_AFTER_S = 0.2
main(["inspect", "s3://bucket/x"])
"""


def test_the_command_line_shows_it(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody())
    with start_script(SHOWN) as script:
        shown = script.stderr.readline()
        script.kill()
    assert shown.startswith("wdsplit.storage.retry: s3://bucket/x/")
    assert re.search(r"EndpointConnectionError\); it is tried for (2\d\d|300) s more\n$", shown)


# A host without a name


@stores
def test_a_host_without_a_name_is_given_up_sooner(store, monkeypatch):
    """Whatever name server there is here, or whether there is one."""

    def no_name(host, *arguments, **options):
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *arguments, **options)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    for module in (s3_client, fsspec_connection):
        monkeypatch.setattr(module, "UNKNOWN_HOST_S", 0.5)
    with pytest.raises(StorageError, match="no name") as caught:
        store("http://no-such-host.invalid", deadline_s=60).open("a.tar").read(0, 10)
    assert caught.value.expected == "an answer within 0.5 s"
    assert "name server" in caught.value.remedy


def test_a_name_server_that_does_not_answer_is_no_answer():
    def failed(number):
        try:
            try:
                raise socket.gaierror(number, "x")
            except OSError as error:
                raise ConnectionError from error
        except ConnectionError as error:
            return error

    assert is_unknown_host(failed(socket.EAI_NONAME))
    assert not is_unknown_host(failed(socket.EAI_AGAIN))
    assert not is_unknown_host(ConnectionError())


# Numbers


@pytest.mark.parametrize("name", ["deadline_s", "first_delay_s", "max_delay_s", "timeout_s"])
@pytest.mark.parametrize("value", ["5", None, math.nan, True, [1], {}, Decimal(1), 1j, b"1"], ids=repr)
def test_a_time_that_is_no_number_is_refused_by_name(name, value):
    with pytest.raises(InputError, match=name) as caught:
        RetryOptions(**{name: value})
    assert caught.value.expected == "a number of seconds"


@pytest.mark.parametrize("make", [RetryOptions, lambda **times: FsspecStorage("memory://x", times)])
def test_only_the_deadline_may_be_infinite(make):
    make(deadline_s=math.inf)
    for name in ("first_delay_s", "max_delay_s", "timeout_s"):
        with pytest.raises(InputError, match=name):
            make(**{name: math.inf})


@pytest.mark.parametrize("number", [5, 5.0, np.float32(5), np.int64(5), Fraction(5)], ids=repr)
def test_numbers_of_all_kinds_are_times(number):
    assert RetryOptions(deadline_s=number).deadline_s == 5


def test_times_that_contradict_each_other_are_refused():
    for times in ({"deadline_s": 0}, {"timeout_s": -1}, {"first_delay_s": 2, "max_delay_s": 1}, {"first_delay_s": 0}):
        with pytest.raises(InputError, match="no times"):
            RetryOptions(**times)
