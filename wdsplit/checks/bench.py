"""Measures how fast a loader reads on this machine, and how much memory it uses."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.texts import Brief

__all__ = ["BenchResult", "bench"]

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, repr=False)
class BenchResult(Brief):
    """The result of `bench`.

    Attributes:
        batches: Number of batches.
        samples: Number of samples in them.
        num_bytes: Approximate bytes of their payloads.
        seconds: Seconds from creating the first iterator to the last batch.
        first_batch_s: Seconds to the first batch, including the start of workers; None without a batch.
        wait_share: Share of the time spent waiting for batches, from 0 to 1.
        peak_bytes: Peak memory of this process since its start; on systems without `/proc`, also of what started it.
        worker_peak_bytes: Peak memory of a worker process that has ended; 0 without any.
        bad_samples: Number of bad samples that were replaced, with `Dataset(on_bad_sample="substitute")`.
    """

    batches: int
    samples: int
    num_bytes: int
    seconds: float
    first_batch_s: float | None
    wait_share: float
    peak_bytes: int
    worker_peak_bytes: int
    bad_samples: int

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of payloads per second."""
        return self.num_bytes / self.seconds if self.seconds else 0.0


def bench(
    loader: Loader,
    *,
    epochs: int = 1,
    seconds: float | None = None,
    step_s: float = 0.0,
    progress: Callable[[int, int, int], None] | None = None,
) -> BenchResult:
    """Measure how fast a loader reads on this machine, as in training; discards the batches.

        result = wdsplit.bench(wdsplit.Loader(wdsplit.Dataset("data/train"), 256, num_workers=4), seconds=30)
        print(f"{result.samples_per_s:,.0f} samples/s, waited {100 * result.wait_share:.0f} % of the time")

    Args:
        loader: The loader; it continues from its current position.
        epochs: Number of epochs to read.
        seconds: Stop after this many seconds; None to read complete epochs.
        step_s: Seconds to wait after each batch, to simulate a training step.
        progress: Called after each batch with the number of batches so far, of all epochs, and of samples so far.

    Raises:
        InputError: An argument is out of range.
        WdsplitError: The dataset cannot be read.
    """
    if epochs < 1 or step_s < 0 or (seconds is not None and seconds <= 0):
        raise InputError(
            "invalid bench arguments",
            expected="epochs >= 1, seconds > 0, step_s >= 0",
            found=f"epochs = {epochs}, seconds = {seconds}, step_s = {step_s}",
        )
    before = loader.statistics()
    batches, num_epochs, first_batch_s, is_over = 0, 0, None, False
    started = last = time.perf_counter()
    while num_epochs < epochs and not is_over:
        num_epochs += 1
        for _ in loader:
            last = time.perf_counter()
            batches += 1
            first_batch_s = last - started if first_batch_s is None else first_batch_s
            if progress is not None:
                progress(batches, epochs * len(loader), loader.statistics().samples - before.samples)
            is_over = seconds is not None and last - started >= seconds
            if is_over:
                break
            time.sleep(step_s)
    done, elapsed_s = loader.statistics(), last - started
    return BenchResult(
        batches=batches,
        samples=done.samples - before.samples,
        num_bytes=done.delivered_bytes - before.delivered_bytes,
        seconds=elapsed_s,
        first_batch_s=first_batch_s,
        wait_share=done.scalars(before)["wait_share"],
        peak_bytes=_peak_bytes(),
        worker_peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _MAXRSS_BYTES,
        bad_samples=done.bad_samples - before.bad_samples,
    )


def _peak_bytes() -> int:
    """Return the peak memory of this process: that of getrusage survives fork and exec, so it may be a parent's."""
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(peak[1]) * 1024 if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
