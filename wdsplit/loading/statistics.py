"""Statistics of a loader: as text, as a dict, and as scalars to plot.

Pure (no I/O).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from wdsplit.texts import counted

__all__ = ["Statistics"]

_BUSY_SHARE = 0.1


@dataclass(frozen=True)
class Statistics:
    """Counters of a loader, from its beginning on.

    Attributes:
        batches: Batches that were delivered.
        samples: Samples in these batches.
        num_bytes: Bytes of the payloads of all samples that the workers have made.
        windows_read: Windows that were read and parsed.
        windows_reused: Times that a window was in memory already.
        wait_s: Seconds that the consumer waited for batches.
        compute_s: Seconds that the consumer spent between batches.
        samples_made: Samples that the workers have made: those of batches that were made ahead too.
        fetched_bytes: Bytes that came from remote storage, a bucket or a network file system, repeated ones too; 0 from
            a local disk.
        retries: Requests to remote storage that were retried after a failure.
        epoch: The epoch of the position.
        position: Samples of the epoch, of all ranks together, up to the last batch that was delivered.
        rank: The loader's rank.
        bad_samples: Bad samples that were replaced, with `on_bad_sample="substitute"`; those of batches
            that were made ahead too.
    """

    batches: int
    samples: int
    num_bytes: int
    windows_read: int
    windows_reused: int
    wait_s: float
    compute_s: float
    samples_made: int = 0
    fetched_bytes: int = 0
    retries: int = 0
    epoch: int = 0
    position: int = 0
    rank: int = 0
    bad_samples: int = 0

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

    def scalars(self, before: Statistics | None = None, prefix: str = "") -> dict[str, float]:
        """Return scalars to plot, for TensorBoard, W&B, MLflow or any other log.

            before = loader.statistics()
            for batch in loader: ...
            print(loader.statistics().scalars(before, "wdsplit/"))

        Rates count the time in which the consumer waited for batches or used them, not a validation between epochs.

        Args:
            before: Earlier statistics of the same loader, from which rates and shares count; None for its beginning.
            prefix: Prefix of all names.

        Returns:
            `samples_per_s`; `bytes_per_s`, of payloads; `fetched_bytes_per_s`, from remote storage; `wait_share`, from
            0 to 1; `retries` and `bad_samples`, since the loader's beginning; `epoch` and `position`, as they are now.
        """
        before = before or Statistics(0, 0, 0, 0, 0, 0.0, 0.0)
        wait_s, compute_s = self.wait_s - before.wait_s, self.compute_s - before.compute_s
        seconds = wait_s + compute_s or math.inf
        scalars = {
            "samples_per_s": (self.samples - before.samples) / seconds,
            "bytes_per_s": max(0, self.delivered_bytes - before.delivered_bytes) / seconds,
            "fetched_bytes_per_s": (self.fetched_bytes - before.fetched_bytes) / seconds,
            "wait_share": wait_s / seconds,
            "retries": float(self.retries),
            "bad_samples": float(self.bad_samples),
            "epoch": float(self.epoch),
            "position": float(self.position),
        }
        return {f"{prefix}{name}": value for name, value in scalars.items()}

    def summary(self, before: Statistics | None = None) -> str:
        """Return the changes since earlier statistics as one line of text: rates, retries, bad samples, waiting."""
        found = self.scalars(before)
        retries = self.retries - (before.retries if before else 0)
        bad_samples = self.bad_samples - (before.bad_samples if before else 0)
        parts = [
            f"{found['samples_per_s']:,.0f} samples/s, {found['bytes_per_s'] / 1e6:,.1f} MB/s",
            *([f"{retries:,} retries"] if retries else []),
            *([f"{counted(bad_samples, 'bad sample')}"] if bad_samples else []),
            f"waited {100 * found['wait_share']:.0f} % of the time",
        ]
        return "; ".join(parts)

    def __str__(self) -> str:
        if not self.batches or not self.wait_s + self.compute_s:
            return "no batches were delivered yet"
        advice = {
            "loader": "the loader is the bottleneck: more workers, or less to decode",
            "model": "the model is the bottleneck: the loader keeps up",
        }[self.bottleneck]
        counts = f"{counted(self.batches, 'batch', 'batches')}, {counted(self.samples, 'sample')}"
        return f"{counts}; {self.summary()}: {advice}"
