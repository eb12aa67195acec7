"""What a loader has done so far, and whether it or the training waits.

Composition. Workers count in memory that all processes share, each in a row of its own.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from wdsplit.loading.transport.shared_integers import SharedIntegers

__all__ = ["Clock", "Counters", "Statistics"]

_SAMPLES, _BYTES, _READ, _REUSED = range(4)
_BUSY_SHARE = 0.1
_GAPS_KEPT = 10_000


@dataclass(frozen=True)
class Statistics:
    """Counters of a loader, from its beginning on.

    Attributes:
        batches: Batches that were delivered.
        samples: Samples in these batches.
        num_bytes: Bytes of the payloads of all samples that the workers have made.
        windows_read: Windows that were read and parsed.
        windows_reused: Times that a window was in memory already.
        wait_s: Seconds that the consumer has waited for batches.
        compute_s: Seconds that the consumer has taken between batches.
        samples_made: Samples that the workers have made: those of batches that were made ahead too.
    """

    batches: int
    samples: int
    num_bytes: int
    windows_read: int
    windows_reused: int
    wait_s: float
    compute_s: float
    samples_made: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as plain values, with `wait_share` and `bottleneck`."""
        return {**asdict(self), "wait_share": self.wait_share, "bottleneck": self.bottleneck}

    @property
    def delivered_bytes(self) -> int:
        """About how many bytes of payloads were delivered: workers are ahead, so it is in proportion to the samples."""
        return self.num_bytes * self.samples // max(1, self.samples_made)

    @property
    def wait_share(self) -> float:
        """The part of the time in which the consumer waited, from 0 to 1."""
        total = self.wait_s + self.compute_s
        return self.wait_s / total if total else 0.0

    @property
    def bottleneck(self) -> str:
        """`loader` if the consumer waits for more than a tenth of the time, else `model`."""
        return "loader" if self.wait_share > _BUSY_SHARE else "model"

    def __str__(self) -> str:
        seconds = self.wait_s + self.compute_s
        if not self.batches or not seconds:
            return "nothing was delivered yet"
        rate = f"{self.samples / seconds:,.0f} samples/s, {self.delivered_bytes / 1e6 / seconds:,.1f} MB/s"
        advice = {
            "loader": "the loader is the bottleneck: more workers, or less to decode",
            "model": "the model is the bottleneck: the loader keeps up",
        }[self.bottleneck]
        return (
            f"{self.batches:,} batches, {self.samples:,} samples; {rate}; waited {self.wait_share:.0%} of the time: "
            f"{advice}"
        )


class Counters:
    """What the workers of a loader have made.

    Args:
        num_workers: Rows; one for each worker.
    """

    def __init__(self, num_workers: int) -> None:
        self._rows = SharedIntegers(num_workers, 4)

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

    def total(self) -> list[int]:
        """Return samples, bytes, windows read and windows reused of all workers."""
        return [int(value) for value in self._rows.array.sum(axis=0)]


class Clock:
    """Seconds that the loader and its consumer have waited for each other; the time between iterations counts for none.

    Attributes:
        batches: Batches that were delivered.
        samples: Samples in them.
        wait_s: Seconds that the consumer has waited.
        compute_s: Seconds that it has taken between batches.
        gaps: Of the last batches but the first of each iteration: the seconds that the consumer took after the one
            before, and those that it then waited.
        first_waits: Of the last iterations: the seconds that it waited for the first batch.
    """

    def __init__(self) -> None:
        self.batches = self.samples = 0
        self.wait_s = self.compute_s = 0.0
        self.gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS_KEPT)
        self.first_waits: deque[float] = deque(maxlen=_GAPS_KEPT)
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
        elif samples:
            self.first_waits.append(now - self._entered)
        self._left = now if samples else None
