"""The loop of attempts: which failures are repeated, for how long, and what is logged meanwhile."""

import math
import random
import socket
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from wdsplit.errors import InputError, StorageError, UnansweredError
from wdsplit.storage import retry
from wdsplit.storage.fsspec_storage import FsspecStorage
from wdsplit.storage.retry import (
    Failure,
    FailureKind,
    Retries,
    RetryOptions,
    UnfitAnswerError,
    attempt,
    patience_s,
)
from wdsplit.storage.store_errors import classify

TIMES = {"first_delay_s": 0.02, "max_delay_s": 0.1, "timeout_s": 1}
REFUSED = StorageError("the store refuses")


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(retry, "_WARN_AFTER_S", 0.2)
    monkeypatch.setattr(retry, "_last_warning", -math.inf)
    return clock


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "wdsplit.storage.retry"]


# The loop


def attempts_of(clock, outcomes, deadline_s=60, **keywords):
    """Attempt what has these outcomes in turn, Failures or a result; return the result and how many there were."""
    left, failures = list(outcomes), {}

    def action(retries):
        outcome = left.pop(0)
        if not isinstance(outcome, Failure):
            return outcome
        error = RuntimeError("secret")
        failures[id(error)] = outcome, error
        raise error

    def classify(error, place, url):
        assert (place, url) == ("s3://b/x, bytes 0 to 9", "s3://b/x")
        return failures[id(error)][0]

    options = RetryOptions(**TIMES | {"deadline_s": deadline_s})
    result = attempt(action, classify, Retries(options, "s3://b/x", "bytes 0 to 9", clock.sleep), **keywords)
    return result, len(outcomes) - len(left)


TRANSIENT = Failure(FailureKind.TRANSIENT, "SlowDown")
EXPIRED = Failure(FailureKind.EXPIRED, "ExpiredToken", REFUSED)


def test_transient_failures_are_repeated_with_growing_delays_that_draw_no_numbers_of_the_training(clock):
    before = random.getstate()
    assert attempts_of(clock, [TRANSIENT] * 5 + ["done"]) == ("done", 6)
    assert random.getstate() == before
    assert 0.5 <= clock.now / (0.02 + 0.04 + 0.08 + 0.1 + 0.1) <= 1


def test_a_final_failure_is_raised_at_once_and_what_must_not_be_seen_is_no_context(clock):
    with pytest.raises(StorageError, match="refuses") as caught:
        attempts_of(clock, [Failure(FailureKind.FINAL, "x", REFUSED), "done"])
    assert caught.value is REFUSED and clock.now == 0
    assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(StorageError, match="refuses"):  # its own error for the deadline
        attempts_of(clock, [Failure(FailureKind.TRANSIENT, "x", REFUSED)] * 1000, deadline_s=2)


def test_expired_credentials_are_renewed_three_times(clock):
    renewed = []
    assert attempts_of(clock, [EXPIRED] * 3 + ["done"], renew=renewed.append) == ("done", 4)
    assert renewed == sorted(set(renewed)) and len(renewed) == 3, "each time those from before the attempt"
    with pytest.raises(StorageError, match="refuses"):
        attempts_of(clock, [EXPIRED] * 4 + ["done"])


def test_at_the_deadline_the_error_says_what_was_tried(clock):
    with pytest.raises(UnansweredError, match="does not answer") as caught:
        attempts_of(clock, [TRANSIENT] * 1000, deadline_s=2)
    assert 1.8 < clock.now < 2
    assert (caught.value.place, caught.value.url) == ("s3://b/x, bytes 0 to 9", "s3://b/x")
    assert caught.value.expected == "an answer within 2 s"
    assert caught.value.found.endswith(" attempts, the last of which ended with SlowDown")


def test_a_host_without_a_name_is_given_up_sooner(clock):
    with pytest.raises(UnansweredError, match="cannot resolve") as caught:
        attempts_of(clock, [Failure(FailureKind.UNKNOWN_HOST, "x")] * 1000, deadline_s=300)
    assert 29 < clock.now < 30
    assert caught.value.expected == "an answer within 30 s"
    assert "name server" in caught.value.remedy


def test_an_attempt_has_a_part_of_the_time_of_its_request_and_much_data_moves_both(clock):
    """An attempt that only trickles is given up after four timeouts."""
    options, seen = RetryOptions(**TIMES | {"deadline_s": 10}), []

    def action(retries):
        for num_bytes in (0, 16 * 1024**2 - 1, 1):
            seen.append(patience_s())
            clock.sleep(3)
            retries.progressed(num_bytes)
        seen.append(patience_s())
        raise UnfitAnswerError("3 of 9 bytes") if len(seen) == 4 else StorageError("enough")

    with pytest.raises(StorageError, match="enough"):
        attempt(action, lambda error, place, url: None, Retries(options, "x", sleep=clock.sleep))
    assert seen[:4] == [4, 1, -2, 4]
    assert patience_s() == math.inf
    assert seen[4] == 4


def test_a_name_server_that_does_not_answer_is_transient():
    def failed(number):
        try:
            try:
                raise socket.gaierror(number, "x")
            except OSError as error:
                raise ConnectionError from error
        except ConnectionError as error:
            return error

    assert classify(failed(socket.EAI_NONAME), "", "").kind is FailureKind.UNKNOWN_HOST
    assert classify(failed(socket.EAI_AGAIN), "", "").kind is FailureKind.TRANSIENT
    assert classify(ConnectionError(), "", "").kind is FailureKind.TRANSIENT


# Warnings


def test_a_process_warns_again_after_a_while_of_what_it_has_not_warned_of(clock, monkeypatch, caplog):
    monkeypatch.setattr(retry, "_WARN_EVERY_S", 0.3)
    options = RetryOptions(**TIMES)
    first, second = (Retries(options, url, sleep=clock.sleep) for url in ("first", "second"))
    while not warnings(caplog):
        assert first.wait() and second.wait()
    assert first.wait() and second.wait()
    assert len(warnings(caplog)) == 1, "the other has failed for as long"
    while len(warnings(caplog)) < 2:
        assert first.wait() and second.wait()
    assert {text.partition(":")[0] for text in warnings(caplog)} == {"first", "second"}


def test_there_is_no_warning_of_a_short_failure_or_of_one_with_progress(clock, caplog):
    retries = Retries(RetryOptions(**TIMES), "x", sleep=clock.sleep)
    for _ in range(8):
        assert retries.wait(0.08)
        retries.progressed()
    assert warnings(caplog) == []
    while not warnings(caplog):
        assert retries.wait()
    assert 0.83 < clock.now < 0.95, "a fifth of a second after the last progress"


def test_a_long_wait_that_the_store_asks_for_is_warned_of_while_it_lasts(clock, caplog):
    attempts_of(clock, [Failure(FailureKind.TRANSIENT, "SlowDown", retry_after_s=5.0), "done"])
    (text,) = warnings(caplog)
    assert text == "s3://b/x, bytes 0 to 9: no answer for 0 s (attempt 1: SlowDown); retrying for up to 60 s more"
    assert clock.now == 5


@pytest.mark.parametrize("name", ["deadline_s", "first_delay_s", "max_delay_s", "timeout_s"])
@pytest.mark.parametrize("value", ["5", None, math.nan, True, Decimal(1), math.inf], ids=repr)
def test_a_time_that_is_no_number_is_refused_by_name(name, value):
    """Only the deadline may be infinite."""
    if (name, value) == ("deadline_s", math.inf):
        RetryOptions(deadline_s=math.inf)
        FsspecStorage("memory://x", {"deadline_s": math.inf})
        return
    for make in (RetryOptions, lambda **times: FsspecStorage("memory://x", times)):
        with pytest.raises(InputError, match=name) as caught:
            make(**{name: value})
        assert caught.value.expected == "a number of seconds" or value == math.inf


def test_numbers_of_all_kinds_are_times_unless_they_contradict_each_other():
    for number in (5, 5.0, np.float32(5), np.int64(5), Fraction(5)):
        assert RetryOptions(deadline_s=number).deadline_s == 5
    for times in ({"deadline_s": 0}, {"timeout_s": -1}, {"first_delay_s": 2, "max_delay_s": 1}, {"first_delay_s": 0}):
        with pytest.raises(InputError, match="times"):
            RetryOptions(**times)
