"""Trying again: which failures of a store pass, how long to wait between attempts, and when to give up."""

from __future__ import annotations

import logging
import math
import random
import reprlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real

from wdsplit.errors import InputError

__all__ = ["UNKNOWN_HOST_S", "Retries", "RetryOptions", "is_unknown_host"]

logger = logging.getLogger(__name__)

UNKNOWN_HOST_S = 30.0
"""Seconds after which a host has no name, though there may be more patience with one that has."""
_TOLD_AFTER_S = 10.0
_TOLD_EVERY_S = 60.0
"""After which time a request that fails again and again is told, and how often any is, in a process."""
_UNKNOWN_HOST = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)
)  # EAI_AGAIN: whoever knows the names does not answer


@dataclass(frozen=True)
class RetryOptions:
    """How long to try.

    Attributes:
        deadline_s: Seconds after which a request, with all its attempts, has failed; it may be infinite. A store whose
            host has no name (the name server says so) is given up after 30 s in any case.
        first_delay_s: Seconds before the second attempt at most; twice as many before each further one.
        max_delay_s: Seconds between two attempts at most, unless the store asks for more.
        timeout_s: Seconds after which an attempt to which nothing comes any more has failed.

    Raises:
        InputError: One of them is no number, or cannot be.
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
                raise InputError(f"{each.name} cannot be", expected="a number of seconds", found=reprlib.repr(value))
        if not 0 < self.first_delay_s <= self.max_delay_s or min(self.deadline_s, self.timeout_s) <= 0:
            raise InputError(
                "these are no times to try for",
                expected="deadline_s and timeout_s > 0, and 0 < first_delay_s <= max_delay_s",
                found=str(self),
            )


class Retries:
    """The attempts of one request.

    Delays grow exponentially, and each is drawn between half of that and all of it, so that the readers of a cluster do
    not come back at the same moment. A request that fails for a while is told by a warning.

    Args:
        options: How long to try.
        sleep: What waits some seconds.
        place: What the request is about, for the warning.
    """

    def __init__(
        self, options: RetryOptions, sleep: Callable[[float], object] = time.sleep, place: str = "a request"
    ) -> None:
        self._options = options
        self._sleep = sleep
        self._place = place
        self._failing_since = time.monotonic()
        self._deadline = self._failing_since + options.deadline_s
        self._failures = 0
        self._is_told = False
        self.num_attempts = 1

    def progressed(self) -> None:
        """Take note that an attempt has brought something: the next delay is short again."""
        self._failures = 0
        self._failing_since = time.monotonic()

    def wait(self, at_least_s: float = 0.0, last: str = "an error", max_s: float = math.inf) -> bool:
        """Wait before the next attempt; return False, at once, if it would come too late.

        Args:
            at_least_s: Seconds to wait.
            last: What the last attempt ended with, for a warning.
            max_s: Seconds for which attempts may fail, if the deadline is not before.
        """
        longest = min(self._options.max_delay_s, self._options.first_delay_s * 2.0 ** min(self._failures, 30))
        delay = max(at_least_s, longest * random.uniform(0.5, 1.0))
        now = time.monotonic()
        deadline = min(self._deadline, self._failing_since + max_s)
        if now + delay >= deadline:
            return False
        silent_s = max(0.0, self._failing_since + _TOLD_AFTER_S - now)
        if silent_s < delay and not self._is_told:
            self._sleep(silent_s)
            delay -= silent_s
            self._tell(last, deadline)
        self._failures += 1
        self.num_attempts += 1
        self._sleep(delay)
        return True

    def _tell(self, last: str, deadline: float) -> None:
        """Warn that nothing has come for a while, if nobody in this process has done so lately."""
        now = time.monotonic()
        if _turns.take(now):
            self._is_told = True
            logger.warning(
                "%s: no answer for %.0f s (attempt %d: %s); it is tried for %.0f s more",
                self._place,
                now - self._failing_since,
                self.num_attempts,
                last,
                deadline - now,
            )


class _Turns:
    """Whose turn it is to warn: one of many threads that all wait for the same store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = -math.inf

    def take(self, now: float) -> bool:
        """Tell whether the last warning was long ago, and this one may be given; nobody waits for the answer."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            is_due = now - self._last >= _TOLD_EVERY_S
            self._last = now if is_due else self._last
            return is_due
        finally:
            self._lock.release()


_turns = _Turns()


def is_unknown_host(error: BaseException | None) -> bool:
    """Tell whether an error comes of a host that has no name, as the name server says."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, socket.gaierror):
            return error.errno in _UNKNOWN_HOST
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
