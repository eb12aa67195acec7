"""One loop for all stores: retry after temporary failures, wait longer each time, fail at a deadline.

A store only classifies its errors (`Failure`). Start with `attempt`. The deadline bounds whole requests: code that
waits for an answer's bytes asks `patience_s` how long it may wait.
"""

from __future__ import annotations

import enum
import logging
import math
import random
import reprlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TypeVar

from wdsplit.errors import InputError, UnansweredError
from wdsplit.storage.traffic import count
from wdsplit.texts import counted

__all__ = [
    "RETRY_NAMES",
    "Failure",
    "FailureKind",
    "Retries",
    "RetryOptions",
    "UnfitAnswerError",
    "attempt",
    "patience_s",
]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_SHORT_DEADLINE_S = 10.0
_UNKNOWN_HOST_S = 30.0
"""Deadline in seconds for a host name that cannot be resolved, even if the general deadline is later."""
_MAX_RENEWALS = 3
_TIMEOUTS_OF_ATTEMPT = 4
"""Maximum duration of an attempt in multiples of `timeout_s`: a connection that only trickles is given up."""
_DEADLINE_BYTES = 16 * 1024**2
"""After so many bytes, a request has its time anew: the deadline of a large object would depend on its size."""
_WARN_AFTER_S = 10.0
_WARN_EVERY_S = 60.0
"""A process warns at most this often, however many requests fail."""


@dataclass(frozen=True)
class RetryOptions:
    """How long to retry requests.

    Attributes:
        deadline_s: Seconds after which a request, with all its attempts, fails; it may be infinite. A read of more
            than 16 MiB has so long for each 16 MiB. A host name that cannot be resolved fails after 30 s in any case.
        first_delay_s: Seconds before the second attempt at most; twice as many before each further one.
        max_delay_s: Seconds between two attempts at most, unless the store asks for more.
        timeout_s: Seconds without data after which an attempt fails. It fails after four times as long if the data
            only trickles.

    Raises:
        InputError: One of the times is invalid.
    """

    deadline_s: float = 300.0
    first_delay_s: float = 0.2
    max_delay_s: float = 20.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, may_be_infinite = getattr(self, each.name), each.name == "deadline_s"
            is_number = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
            if not is_number or (math.isinf(value) and not may_be_infinite):
                raise InputError(f"invalid {each.name}", expected="a number of seconds", found=reprlib.repr(value))
        if not 0 < self.first_delay_s <= self.max_delay_s or min(self.deadline_s, self.timeout_s) <= 0:
            raise InputError(
                "invalid retry times",
                expected="deadline_s and timeout_s > 0, and 0 < first_delay_s <= max_delay_s",
                found=str(self),
            )

    def shortened(self) -> RetryOptions:
        """Return the same with a short deadline, for requests that clean up after an error."""
        return replace(self, deadline_s=min(_SHORT_DEADLINE_S, self.deadline_s))


RETRY_NAMES = frozenset(each.name for each in fields(RetryOptions))
"""The names of these options among those of a store."""


class FailureKind(enum.Enum):
    """The likely outcome of another attempt."""

    TRANSIENT = enum.auto()
    UNKNOWN_HOST = enum.auto()
    """Like TRANSIENT, but with a short deadline."""
    EXPIRED = enum.auto()
    """Another attempt may succeed with renewed credentials; they are renewed a few times."""
    FINAL = enum.auto()


@dataclass(frozen=True)
class Failure:
    """A failed attempt, as its store classifies it.

    Attributes:
        kind: Whether another attempt may succeed.
        name: The store's name for it, such as "SlowDown" or "status 503".
        error: What to raise if there is no further attempt; None for the UnansweredError that `attempt` makes.
        cause: The error to chain; None if its text may contain credentials.
        retry_after_s: Seconds that the store asks to wait.
    """

    kind: FailureKind
    name: str
    error: Exception | None = None
    cause: BaseException | None = None
    retry_after_s: float = 0.0


class UnfitAnswerError(Exception):
    """An answer does not fit its request: it has other bytes, or lacks a header. Another attempt may succeed."""


_thread = threading.local()
"""The request that this thread sends."""


def attempt(
    action: Callable[[Retries], Result],
    classify: Callable[[Exception, str, str], Failure | None],
    retries: Retries,
    renew: Callable[[float], object] = lambda moment: None,
) -> Result:
    """Call an action until it succeeds, fails for good, or the deadline has passed.

    Args:
        action: Called for each attempt; calls `Retries.progressed` when data arrives.
        classify: Called with an error, the place for messages and the URL; returns None to raise the error unchanged.
        retries: The attempts of this request.
        renew: Renews credentials older than a moment of `time.monotonic`.

    Raises:
        UnansweredError: No attempt succeeded before the deadline.
        Exception: The error that `classify` returns for a final failure.
    """
    failure: Failure | None
    num_renewals = 0
    while True:
        began = time.monotonic()
        outer, _thread.retries = getattr(_thread, "retries", None), retries
        retries.begin()
        try:
            return action(retries)
        except UnfitAnswerError as error:
            failure = Failure(FailureKind.TRANSIENT, str(error))
        except Exception as error:
            failure = classify(error, retries.place, retries.url)
            if failure is None:
                raise
        finally:
            _thread.retries = outer
        try:  # outside of the handler: an error with credentials in its text must not become the context of ours
            if failure.kind is FailureKind.EXPIRED and num_renewals < _MAX_RENEWALS:
                num_renewals += 1
                renew(began)
            elif failure.kind in (FailureKind.EXPIRED, FailureKind.FINAL):
                assert failure.error is not None
                raise failure.error from failure.cause
            max_s = _UNKNOWN_HOST_S if failure.kind is FailureKind.UNKNOWN_HOST else math.inf
            if not retries.wait(failure.retry_after_s, failure.name, max_s):
                raise failure.error or _unanswered(failure, retries, max_s) from failure.cause
            count(retries=1)
        finally:
            del failure  # the traceback of its error refers to this frame


def _unanswered(failure: Failure, retries: Retries, max_s: float) -> UnansweredError:
    is_unknown = failure.kind is FailureKind.UNKNOWN_HOST
    # The deadline may have cut the last attempt: then the one before it says more.
    before = f", after {retries.before}" if retries.before not in ("", failure.name) else ""
    return UnansweredError(
        "cannot resolve the store's host name" if is_unknown else "the store does not answer as expected",
        place=retries.place,
        expected=f"an answer within {min(max_s, retries.options.deadline_s):g} s",
        found=f"{counted(retries.num_attempts, 'attempt')}, the last of which ended with {failure.name}{before}",
        remedy="check the URL, the endpoint (of s3://: AWS_ENDPOINT_URL), the region and the name server"
        if is_unknown
        else "check the network and the store's limits; to wait longer: storage_options={'deadline_s': ...}",
        url=retries.url,
    )


def patience_s() -> float:
    """Return how long this thread may still wait for its request, in seconds; at most 0 if its time is over."""
    retries: Retries | None = getattr(_thread, "retries", None)
    return math.inf if retries is None else retries.patience_s()


class Retries:
    """The attempts of one request.

    Delays grow exponentially. Each is drawn from the upper half of its range, so that the readers of a cluster do not
    retry at the same moment. A request that fails for a while logs a warning.

    Args:
        options: How long to retry.
        url: The object concerned.
        details: The part of the object, for messages: "bytes 0 to 99".
        sleep: Called with the seconds to wait.

    Attributes:
        num_attempts: Attempts so far.
        before: How the attempt before the last one ended.
    """

    def __init__(
        self, options: RetryOptions, url: str, details: str = "", sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.options = options
        self.url = url
        self.place = f"{url}, {details}" if details else url
        self._sleep = sleep
        self._failing_since = time.monotonic()
        self._num_bytes = 0
        self._failures = 0
        self._has_warned = False
        self.num_attempts = 1
        self.before = ""
        self._deadline = self._failing_since + options.deadline_s
        self.begin()

    def begin(self) -> None:
        """Start the clock of an attempt."""
        self._attempt_until = time.monotonic() + _TIMEOUTS_OF_ATTEMPT * self.options.timeout_s

    def progressed(self, num_bytes: int = 0) -> None:
        """Record that data has arrived: the next delay is short again, and much data moves the deadline."""
        self._failures = 0
        self._failing_since = time.monotonic()
        self._num_bytes += num_bytes
        if self._num_bytes >= _DEADLINE_BYTES:
            self._num_bytes = 0
            self._deadline = self._failing_since + self.options.deadline_s
            self.begin()

    def patience_s(self) -> float:
        """Return how long the attempt may still take, in seconds; warn if nothing has arrived for a while."""
        now = time.monotonic()
        if not self._has_warned and now >= self._failing_since + _WARN_AFTER_S:
            self._warn(self.before or "still under way", self._deadline)
        return min(self._deadline, self._attempt_until) - now

    def wait(self, at_least_s: float = 0.0, last: str = "an error", max_s: float = math.inf) -> bool:
        """Wait before the next attempt; return False at once if that would be after the deadline.

        Args:
            at_least_s: Minimum seconds to wait.
            last: The error of the last attempt, for a warning.
            max_s: Maximum seconds without progress, in addition to the deadline.
        """
        longest = min(self.options.max_delay_s, self.options.first_delay_s * 2.0 ** min(self._failures, 30))
        # Not by the process's generator, whose numbers may be the training's.
        delay = max(at_least_s, longest * random.SystemRandom().uniform(0.5, 1.0))
        now = time.monotonic()
        deadline = min(self._deadline, self._failing_since + max_s)
        if now + delay >= deadline:
            return False
        silent_s = max(0.0, self._failing_since + _WARN_AFTER_S - now)
        if silent_s < delay and not self._has_warned:
            self._sleep(silent_s)
            delay -= silent_s
            self._warn(last, deadline)
        self._failures += 1
        self.num_attempts += 1
        self.before = last
        self._sleep(delay)
        return True

    def _warn(self, last: str, deadline: float) -> None:
        """Warn that no data has arrived for a while, unless this process has warned recently."""
        global _last_warning
        if not _warning.acquire(blocking=False):  # another thread warns, most likely of the same store
            return
        try:
            now = time.monotonic()
            if now - _last_warning < _WARN_EVERY_S:
                return
            _last_warning, self._has_warned = now, True
        finally:
            _warning.release()
        logger.warning(
            "%s: no answer for %.0f s (attempt %d: %s); retrying for up to %.0f s more",
            self.place,
            now - self._failing_since,
            self.num_attempts,
            last,
            deadline - now,
        )


_warning = threading.Lock()
_last_warning = -math.inf
"""When this process warned, of whichever store."""
