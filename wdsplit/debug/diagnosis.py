"""Who waits for whom, and what would help: a diagnosis of the gaps between the batches of a loader.

What is said of a loader is a pure function of figures that were measured (`advice`), each piece of advice tied to a
condition on them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stages.decoders import Decode
from wdsplit.loading.stages.images import ImageField
from wdsplit.order.distribution import reading_advice

__all__ = ["Diagnosis", "Figures", "advice", "diagnose"]

_PERCENTILES = (50, 90, 99, 100)
_LARGE_SAMPLE_BYTES = 300_000
_BUSY_SHARE = 0.1
_STARTING_SHARE = 0.5
_STALL_FACTOR, _STALL_SHARE = 20, 0.5
_REREAD = 1.2


@dataclass(frozen=True)
class Figures:
    """What was measured of a loader, and how it is set up.

    Attributes:
        batches: Batches that were delivered.
        samples: Samples in them.
        num_bytes: About how many bytes of payloads they had.
        iterations: Epochs that were begun.
        wait_s: Seconds that the training has waited for batches.
        compute_s: Seconds that it has taken between batches.
        first_wait_s: Seconds of `wait_s` for the first batches of iterations: workers start, the first windows come.
        waits: Percentiles of the seconds waited for a batch, without those first ones.
        computes: Percentiles of the seconds between a batch and asking for the next.
        stall_share: The part of the waiting, without the first batches, that the longest hundredth of the waits makes.
        num_workers: Workers of the loader.
        num_processors: Processors of this machine that this process may use.
        prefetch_factor: As of the loader.
        is_threaded: Whether the workers are threads.
        is_persistent: Whether worker processes stay from one epoch to the next.
        is_remote: Whether the dataset lies across a network.
        is_cached: Whether a cache on this machine's disk is used.
        read_ahead_bytes: As of the dataset.
        connections: As of the dataset.
        decodes_images: Whether images are decoded at their full size.
        is_columnar: Whether no stage runs sample by sample.
        collates: Whether there is a collate_fn.
        windows_read: Windows that were read, for each that would have done.
        sharing: What `reading_advice` says, if several readers share a lane.
    """

    batches: int
    samples: int
    num_bytes: int
    iterations: int
    wait_s: float
    compute_s: float
    first_wait_s: float
    waits: dict[str, float]
    computes: dict[str, float]
    stall_share: float
    num_workers: int
    num_processors: int
    prefetch_factor: int
    is_threaded: bool
    is_persistent: bool
    is_remote: bool
    is_cached: bool
    read_ahead_bytes: int
    connections: int
    decodes_images: bool
    is_columnar: bool
    collates: bool
    windows_read: float
    sharing: str | None

    @property
    def wait_share(self) -> float:
        """The part of the time in which the training waited, from 0 to 1."""
        total = self.wait_s + self.compute_s
        return self.wait_s / total if total else 0.0

    @property
    def sample_bytes(self) -> int:
        """Bytes of the payloads of a sample, on average."""
        return self.num_bytes // max(1, self.samples)


Rule = tuple[Callable[[Figures], bool], Callable[[Figures], str]]

_RULES: tuple[Rule, ...] = (
    (
        lambda at: (
            at.first_wait_s > _STARTING_SHARE * at.wait_s
            and at.iterations > 1
            and at.num_workers > 0
            and not (at.is_persistent or at.is_threaded)
        ),
        lambda at: (
            f"{at.first_wait_s / at.wait_s:.0%} of the waiting is for the first batches of {at.iterations} epochs: "
            "keep the workers (persistent_workers=True), or use threads (workers='thread')"
        ),
    ),
    (
        lambda at: not at.num_workers,
        lambda at: (
            f"nothing is read while the model computes: num_workers=1 or more (this machine has {at.num_processors} "
            "processors, for all its ranks)"
        ),
    ),
    (
        lambda at: 0 < at.num_workers < at.num_processors,
        lambda at: (
            f"more workers: there are {at.num_workers}, and {at.num_processors} processors for all ranks of this "
            "machine"
        ),
    ),
    (
        lambda at: at.num_workers >= at.num_processors,
        lambda at: (
            f"{at.num_workers} workers keep all {at.num_processors} processors busy: more will not help; do less work "
            "a sample, for example by converting the table with what is computed each time"
        ),
    ),
    (
        lambda at: at.decodes_images,
        lambda at: (
            "images are decoded at their full size: decode(wdsplit.resized(224)) decodes JPEG no larger than needed, "
            "and lets threads run"
        ),
    ),
    (
        lambda at: at.sample_bytes > _LARGE_SAMPLE_BYTES,
        lambda at: (
            f"samples have {at.sample_bytes / 1e3:,.0f} kB on average: store smaller images, or name the fields that "
            "are needed (Dataset(fields=...))"
        ),
    ),
    (
        lambda at: not at.is_columnar and at.is_threaded,
        lambda at: "stages of your own run in threads, one at a time unless they let others run: try workers='process'",
    ),
    (
        lambda at: at.collates and at.num_workers > 0,
        lambda at: (
            "collate_fn runs in the training's own process, to which workers send each sample: do its work in a map, "
            "and let the loader collate"
        ),
    ),
    (
        lambda at: at.is_remote and not at.is_cached and at.iterations > 1,
        lambda at: "each epoch is fetched anew: cache_dir= keeps the shards on this machine's disk",
    ),
    (
        lambda at: at.is_remote and not at.is_cached,
        lambda at: (
            f"fetch further ahead: read_ahead_bytes (now {at.read_ahead_bytes / 2**20:,.0f} MiB) and connections (now "
            f"{at.connections})"
        ),
    ),
    (
        lambda at: at.stall_share > _STALL_SHARE and at.waits["100"] > _STALL_FACTOR * at.waits["50"],
        lambda at: (
            f"{at.stall_share:.0%} of the waiting is in one wait of a hundred, up to {_time(at.waits['100'])}: storage "
            f"stalls, or single samples are slow; work further ahead (prefetch_factor, now {at.prefetch_factor})"
        ),
    ),
    (
        lambda at: at.sharing is not None and at.windows_read > _REREAD,
        lambda at: f"each window is read {at.windows_read:.1f} times: {at.sharing}",
    ),
)


def advice(figures: Figures) -> list[str]:
    """Return what would let the training wait less; nothing if it waits for a tenth of the time or less. Pure."""
    if figures.wait_share <= _BUSY_SHARE:
        return []
    return [told(figures) for holds, told in _RULES if holds(figures)]


@dataclass(frozen=True)
class Diagnosis:
    """Whether the loader or the model is the bottleneck, the figures that say so, and what would help.

    Attributes:
        figures: What was measured.
        advice: What would help, most likely first; empty if the loader keeps up.
    """

    figures: Figures
    advice: tuple[str, ...]

    @property
    def bottleneck(self) -> str:
        """`loader` if the training waits for more than a tenth of the time, else `model`; "" without a batch."""
        if not self.figures.batches:
            return ""
        return "loader" if self.figures.wait_share > _BUSY_SHARE else "model"

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values, with `bottleneck`, `wait_share` and throughput."""
        seconds = self.figures.wait_s + self.figures.compute_s
        return {
            "bottleneck": self.bottleneck,
            "wait_share": self.figures.wait_share,
            "samples_per_s": self.figures.samples / seconds if seconds else 0.0,
            "bytes_per_s": self.figures.num_bytes / seconds if seconds else 0.0,
            **dataclasses.asdict(self.figures),
            "advice": list(self.advice),
        }

    def __str__(self) -> str:
        at, values = self.figures, self.as_dict()
        if not at.batches:
            return "nothing was delivered yet"
        bound = {
            "loader": "loader-bound: the training waits for batches",
            "model": "compute-bound: the loader keeps up",
        }
        lines = [
            f"{bound[self.bottleneck]} {at.wait_share:.0%} of the time",
            f"  {at.batches:,} batches, {at.samples:,} samples: {values['samples_per_s']:,.0f} samples/s, "
            f"{values['bytes_per_s'] / 1e6:,.1f} MB/s",
            f"  first batches of {at.iterations} epochs: waited {_time(at.first_wait_s)}",
            f"  then waited for a batch: {_told(at.waits)}",
            f"  between batches: {_told(at.computes)}",
        ]
        return "\n".join([*lines, *(f"  - {each}" for each in self.advice)])


def _told(percentiles: dict[str, float]) -> str:
    if not percentiles:
        return "never"
    names = {"50": "median", "100": "at most"}
    return ", ".join(f"{names.get(name, f'{name} %')} {_time(value)}" for name, value in percentiles.items())


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"


def diagnose(loader: Any) -> Diagnosis:
    """Say who waits for whom in a training, from what its loader has delivered so far.

    Print it, or take `as_dict()`. Percentiles are of the last 10,000 batches, all else of the loader's whole life. A
    GPU computes on its own: while you measure, let the program wait for it once a step, for example by `loss.item()`.

    Args:
        loader: The loader; or the audit of one, or what an integration has made of one.

    Raises:
        InputError: It is none of these.
    """
    found = loader if isinstance(loader, Loader) else getattr(loader, "loader", getattr(loader, "_loader", None))
    if not isinstance(found, Loader):
        raise InputError(
            "there is nothing to diagnose in this",
            expected="a wdsplit.Loader, or what an integration or an audit has made of one",
            found=type(loader).__name__,
        )
    figures = _figures(found)
    return Diagnosis(figures, tuple(advice(figures)))


def _figures(loader: Loader) -> Figures:
    clock, made, dataset = loader._clock, loader.statistics(), loader.dataset
    waits = np.array([wait for _, wait in clock.gaps])
    source: Any = dataset.source
    sources: tuple[Source, ...] = getattr(source, "sources", (source,))
    access, world = sources[0].access, dataset.world()
    num_windows = sum(int((-(-each.manifest.shards.num_real // each.options.window)).sum()) for each in sources)
    needed = num_windows * made.samples_made / max(1, source.num_samples)
    return Figures(
        batches=made.batches,
        samples=made.samples,
        num_bytes=made.delivered_bytes,
        iterations=len(clock.first_waits),
        wait_s=made.wait_s,
        compute_s=made.compute_s,
        first_wait_s=sum(clock.first_waits),
        waits=_percentiles(waits),
        computes=_percentiles([compute for compute, _ in clock.gaps]),
        stall_share=float(np.sort(waits)[-max(1, len(waits) // 100) :].sum() / max(waits.sum(), 1e-9)),
        num_workers=loader.num_workers,
        num_processors=_num_processors(),
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
    if not len(values):
        return {}
    return {str(each): float(np.percentile(values, each)) for each in _PERCENTILES}


def _decodes_images(stage: Any) -> bool:
    return isinstance(stage, Decode) and any(isinstance(handler, ImageField) for handler in stage.handlers)


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
