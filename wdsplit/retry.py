"""Trying again: which failures of a store pass, how long to wait between attempts, and when to give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from wdsplit.errors import InputError

__all__ = ["Retries", "RetryOptions"]


@dataclass(frozen=True)
class RetryOptions:
    """How long to try.

    Attributes:
        deadline_s: Seconds after which a request, with all its attempts, has failed.
        first_delay_s: Seconds before the second attempt at most; twice as many before each further one.
        most_delay_s: Seconds between two attempts at most, unless the store asks for more.
        timeout_s: Seconds after which an attempt to which nothing comes any more has failed.
    """

    deadline_s: float = 300.0
    first_delay_s: float = 0.2
    most_delay_s: float = 20.0
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.first_delay_s <= self.most_delay_s or min(self.deadline_s, self.timeout_s) <= 0:
            raise InputError(
                "these are no times to try for",
                expected="deadline_s and timeout_s > 0, and 0 < first_delay_s <= most_delay_s",
                found=str(self),
            )


class Retries:
    """The attempts of one request.

    Delays grow exponentially, and each is drawn between half of that and all of it, so that the readers of a cluster do
    not come back at the same moment.

    Args:
        options: How long to try.
        sleep: What waits some seconds.
    """

    def __init__(self, options: RetryOptions, sleep: Callable[[float], object] = time.sleep) -> None:
        self._options = options
        self._sleep = sleep
        self._deadline = time.monotonic() + options.deadline_s
        self._failures = 0
        self.num_attempts = 1

    def progressed(self) -> None:
        """Take note that an attempt has brought something: the next delay is short again."""
        self._failures = 0

    def wait(self, at_least_s: float = 0.0) -> bool:
        """Wait before the next attempt; return False, at once, if the deadline comes before it."""
        longest = min(self._options.most_delay_s, self._options.first_delay_s * 2.0 ** min(self._failures, 30))
        delay = max(at_least_s, longest * random.uniform(0.5, 1.0))
        if time.monotonic() + delay >= self._deadline:
            return False
        self._failures += 1
        self.num_attempts += 1
        self._sleep(delay)
        return True
