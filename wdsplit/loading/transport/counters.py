"""Counts of what a loader's workers made and read, and times that the loader and its consumer waited.

Workers count in memory that all processes share, each in a row of its own.
"""

from __future__ import annotations

import time
from collections import deque

from wdsplit.arrays import Int64
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.storage.traffic import Traffic

__all__ = ["COUNTED", "Clock", "Counters"]

COUNTED = "samples_made", "num_bytes", "windows_read", "windows_reused", "fetched_bytes", "retries", "bad_samples"
"""What workers count: fields of `Statistics`."""

_SAMPLES, _BYTES, _READ, _REUSED, _FETCHED, _RETRIES, _BAD = range(len(COUNTED))
_GAPS_KEPT = 10_000


class Counters:
    """What the workers of a loader have made and read."""

    def __init__(self, num_workers: int) -> None:
        self._rows = SharedIntegers(num_workers, len(COUNTED))
        self._bad = SharedIntegers(num_workers, 2)

    def made(self, worker: int, samples: int, num_bytes: int) -> None:
        """Count samples of a worker."""
        row = self._rows.array[worker]
        row[_SAMPLES] += samples
        row[_BYTES] += num_bytes

    def read(self, worker: int, windows_read: int, windows_reused: int) -> None:
        """Count windows that a worker has read, and found in memory."""
        row = self._rows.array[worker]
        row[_READ] += windows_read
        row[_REUSED] += windows_reused

    def traffic(self, worker: int) -> Traffic:
        """Return a counter of a worker's bytes and retries of remote storage."""
        return Traffic(self._rows.array[worker, _FETCHED : _RETRIES + 1])

    def take_over(self, worker: int, traffic: Traffic) -> None:
        """Have the counter that a worker's threads have from another iteration count here from now on."""
        traffic.move(self._rows.array[worker, _FETCHED : _RETRIES + 1])

    def bad(self, worker: int, iteration: int) -> int:
        """Count a bad sample of a worker; return how many all workers have found in the iteration of this number."""
        self._rows.array[worker, _BAD] += 1
        found = self._bad.array
        if found[worker, 0] != iteration:
            found[worker] = iteration, 0
        found[worker, 1] += 1
        return int(found[found[:, 0] == iteration, 1].sum())

    def total(self) -> Int64:
        """Return what all workers have counted together: int64, in the order of `COUNTED`."""
        total: Int64 = self._rows.array.sum(axis=0)
        return total


class Clock:
    """Seconds that the loader and its consumer have waited for each other; the time between iterations does not count.

    Attributes:
        batches: Batches that were delivered.
        samples: Samples in them.
        wait_s: Seconds that the consumer waited.
        compute_s: Seconds that it spent between batches.
        gaps: For the last batches, but not the first of an iteration: the seconds that the consumer spent after the
            previous batch, and that it then waited.
    """

    def __init__(self) -> None:
        self.batches = self.samples = 0
        self.wait_s = self.compute_s = 0.0
        self.gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS_KEPT)
        self._entered = 0.0
        self._left: float | None = None

    def begin(self) -> None:
        """An iteration begins."""
        self._left = None

    def enter(self) -> None:
        """The consumer begins to wait."""
        self._entered = time.perf_counter()
        if self._left is not None:
            self.compute_s += self._entered - self._left

    def leave(self, samples: int) -> None:
        """The consumer has a batch of some samples; of none if the iteration has ended."""
        now = time.perf_counter()
        self.wait_s += now - self._entered
        self.batches += samples > 0
        self.samples += samples
        if samples and self._left is not None:
            self.gaps.append((self._entered - self._left, now - self._entered))
        self._left = now if samples else None
