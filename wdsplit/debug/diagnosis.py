"""Is the loader or the model the bottleneck, and what would help: a diagnosis of the gaps between batches.

Advice is a pure function of the figures that were measured: each piece has a condition on them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stages.decoders import Decode
from wdsplit.loading.stages.images import ImageField
from wdsplit.order.distribution import reading_advice

__all__ = ["Diagnosis", "diagnose"]

_PERCENTILES = (50, 90, 99, 100)
_MAX_WAIT_SHARE = 0.1


@dataclass(frozen=True)
class Diagnosis:
    """Whether the loader or the model is the bottleneck, the figures that show it, and what would help.

    The fields are what was measured of a loader, and how it is set up.
    """

    batches: int
    samples: int
    num_bytes: int  # about how many bytes of payloads they had
    iterations: int  # epochs that were begun
    wait_s: float  # in which the training waited for batches
    compute_s: float  # between batches
    first_wait_s: float  # of wait_s, for the first batches of epochs, while workers start
    waits: dict[str, float]  # percentiles of the seconds waited for a batch, without those first ones
    computes: dict[str, float]  # percentiles of the seconds between a batch and the request for the next
    num_workers: int
    num_processors: int  # those that this process may use
    prefetch_factor: int
    is_threaded: bool
    is_persistent: bool
    is_remote: bool
    is_cached: bool  # on this machine's disk
    read_ahead_bytes: int
    connections: int
    decodes_images: bool  # at their full size
    is_columnar: bool  # no stage runs sample by sample
    collates: bool  # by a collate_fn
    windows_read: float  # as a multiple of those needed
    sharing: str | None  # what reading_advice says, if several readers share a lane

    @property
    def wait_share(self) -> float:
        """The share of the time in which the training waited, from 0 to 1."""
        return self.wait_s / ((self.wait_s + self.compute_s) or 1.0)

    @property
    def bottleneck(self) -> str:
        """`loader` if the training waits for more than a tenth of the time, else `model`; "" without a batch."""
        if not self.batches:
            return ""
        return "loader" if self.wait_share > _MAX_WAIT_SHARE else "model"

    @property
    def advice(self) -> tuple[str, ...]:
        """What would let the training wait less, most likely first; empty if the loader keeps up."""
        return tuple(text for holds, text in _rules(self) if holds) if self.bottleneck == "loader" else ()

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values, with throughput."""
        seconds = (self.wait_s + self.compute_s) or 1.0
        return {
            "bottleneck": self.bottleneck,
            "wait_share": self.wait_share,
            "samples_per_s": self.samples / seconds,
            "bytes_per_s": self.num_bytes / seconds,
            **dataclasses.asdict(self),
            "advice": list(self.advice),
        }

    def __str__(self) -> str:
        if not self.batches:
            return "nothing was delivered yet"
        values = self.as_dict()
        bound = {
            "loader": "loader-bound: the training waits for batches",
            "model": "compute-bound: the loader keeps up",
        }
        lines = [
            f"{bound[self.bottleneck]} {self.wait_share:.0%} of the time",
            f"  {self.batches:,} batches, {self.samples:,} samples: {values['samples_per_s']:,.0f} samples/s, "
            f"{values['bytes_per_s'] / 1e6:,.1f} MB/s",
            f"  first batches of {self.iterations} epochs: waited {_time(self.first_wait_s)}",
            f"  then waited for a batch: {_listed(self.waits)}",
            f"  between batches: {_listed(self.computes)}",
        ]
        return "\n".join([*lines, *(f"  - {each}" for each in self.advice)])


def _rules(at: Diagnosis) -> list[tuple[bool, str]]:
    """Return all pieces of advice for a loader that is waited for, and whether each applies. Pure (no I/O)."""
    first_share, sample_kb = at.first_wait_s / at.wait_s, at.num_bytes / max(1, at.samples) / 1e3
    median, slowest = at.waits.get("50", 0.0), at.waits.get("99", 0.0)
    restarts = at.num_workers > 0 and not at.is_persistent and not at.is_threaded
    return [
        (
            restarts and at.iterations > 1 and first_share > 0.5,
            f"{first_share:.0%} of the waiting is for the first batches of {at.iterations} epochs: keep the workers "
            "(persistent_workers=True), or use threads (workers='thread')",
        ),
        (
            at.num_workers < at.num_processors,
            f"more workers (now num_workers={at.num_workers}): this machine has {at.num_processors} processors, for "
            "all its ranks",
        ),
        (
            at.num_workers >= at.num_processors,
            f"{at.num_workers} workers keep all {at.num_processors} processors busy: more will not help; do less work "
            "a sample, for example by converting the table with what is computed each time",
        ),
        (
            at.decodes_images,
            "images are decoded at their full size: decode(wdsplit.resized(224)) decodes JPEG no larger than needed, "
            "and lets threads run",
        ),
        (
            sample_kb > 300,
            f"samples have {sample_kb:,.0f} kB on average: store smaller images, or name the fields that are needed "
            "(Dataset(fields=...))",
        ),
        (
            at.is_threaded and not at.is_columnar,
            "stages of your own run in threads, one at a time unless they let others run: try workers='process'",
        ),
        (
            at.collates and at.num_workers > 0,
            "collate_fn runs in the training's own process, to which workers send each sample: do its work in a map, "
            "and let the loader collate",
        ),
        (
            at.is_remote and not at.is_cached,
            "keep the shards on this machine's disk (cache_dir=), or fetch further ahead: read_ahead_bytes (now "
            f"{at.read_ahead_bytes / 2**20:,.0f} MiB) and connections (now {at.connections})",
        ),
        (
            slowest > 20 * median,
            f"one wait of a hundred takes {_time(slowest)} or more: storage stalls, or single samples are slow; work "
            f"further ahead (prefetch_factor, now {at.prefetch_factor})",
        ),
        (
            at.sharing is not None and at.windows_read > 1.2,
            f"each window is read {at.windows_read:.1f} times: {at.sharing}",
        ),
    ]


def _listed(percentiles: dict[str, float]) -> str:
    names = {"50": "median", "100": "at most"}
    texts = [f"{names.get(name, f'{name} %')} {_time(value)}" for name, value in percentiles.items()]
    return ", ".join(texts) or "never"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"


def diagnose(loader: Any) -> Diagnosis:
    """Find out whether the loader or the model is the bottleneck, from what the loader has delivered so far.

    Print it, or take `as_dict()`. Percentiles are of the last 10,000 batches, all else of the loader's whole life. A
    GPU computes asynchronously: while you measure, let the program wait for it once a step, for example by
    `loss.item()`.

    Args:
        loader: The loader; or the audit of one, or an integration's loader.

    Raises:
        InputError: It is none of these.
    """
    found = loader if isinstance(loader, Loader) else getattr(loader, "loader", getattr(loader, "_loader", None))
    if not isinstance(found, Loader):
        raise InputError(
            "cannot diagnose this object",
            expected="a wdsplit.Loader, the audit of one, or an integration's loader",
            found=type(loader).__name__,
        )
    return _diagnosis(found)


def _diagnosis(loader: Loader) -> Diagnosis:
    clock, made, dataset = loader._clock, loader.statistics(), loader.dataset
    source: Any = dataset.source
    sources: tuple[Source, ...] = getattr(source, "sources", (source,))
    access, world = sources[0].access, dataset.world()
    num_windows = sum(int((-(-each.manifest.shards.num_real // each.options.window)).sum()) for each in sources)
    needed = num_windows * made.samples_made / max(1, source.num_samples)
    return Diagnosis(
        batches=made.batches,
        samples=made.samples,
        num_bytes=made.delivered_bytes,
        iterations=len(clock.first_waits),
        wait_s=made.wait_s,
        compute_s=made.compute_s,
        first_wait_s=sum(clock.first_waits),
        waits=_percentiles(wait for _, wait in clock.gaps),
        computes=_percentiles(compute for compute, _ in clock.gaps),
        num_workers=loader.num_workers,
        num_processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        prefetch_factor=loader.prefetch_factor,
        is_threaded=loader.workers == "thread",
        is_persistent=loader.persistent_workers,
        is_remote=any(each.storage().has_latency for each in sources),
        is_cached=access.cache is not None,
        read_ahead_bytes=access.read_ahead_bytes,
        connections=access.connections,
        decodes_images=any(_decodes_images(stage) for stage in dataset.pipeline[1:]),
        is_columnar=dataset.column_stages() is not None,
        collates=loader.collate_fn is not None,
        windows_read=made.windows_read / needed if needed else 0.0,
        sharing=reading_advice(dataset.options.lanes, world.world_size, max(1, loader.num_workers)),
    )


def _percentiles(seconds: Iterable[float]) -> dict[str, float]:
    values = np.array(list(seconds))
    return {str(each): float(np.percentile(values, each)) for each in _PERCENTILES} if len(values) else {}


def _decodes_images(stage: Any) -> bool:
    return isinstance(stage, Decode) and any(isinstance(handler, ImageField) for handler in stage.handlers)
