"""A diagnosis of the gaps between batches: whether the loader or the model is the bottleneck, and what would help."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsplit.loading.loader import Loader
from wdsplit.loading.monitor import loader_of
from wdsplit.loading.stages.decoders import Decode
from wdsplit.loading.stages.images import ImageField
from wdsplit.loading.statistics import Statistics

__all__ = ["Diagnosis", "advice_for", "diagnose"]

_PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True)
class Diagnosis:
    """Whether the loader or the model is the bottleneck, the figures that show it, and what would help."""

    statistics: Statistics
    waits: dict[str, float]  # percentiles of the seconds waited for a batch that is not the first of an epoch
    computes: dict[str, float]  # percentiles of the seconds between a batch and the request for the next
    advice: tuple[str, ...]  # ways to wait less, most likely first; empty if the loader keeps up

    @property
    def bottleneck(self) -> str:
        """`loader` if the training waits for more than a tenth of the time, else `model`; "" without a batch."""
        return self.statistics.bottleneck if self.statistics.batches else ""

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        named = {"waits": self.waits, "computes": self.computes, "advice": list(self.advice)}
        return {**self.statistics.as_dict(), "bottleneck": self.bottleneck, **named}

    def __str__(self) -> str:
        if not self.bottleneck:
            return "no batches were delivered yet"
        made, bound = self.statistics, "compute-bound: the loader keeps up; the training waits"
        if self.bottleneck == "loader":
            bound = "loader-bound: the training waits for batches"
        waits, computes = (
            ", ".join(f"{percent} % {seconds * 1000:,.2f} ms" for percent, seconds in each.items())
            for each in (self.waits, self.computes)
        )
        lines = [
            f"{bound} {made.wait_share:.0%} of the time",
            f"  {made.batches:,} batches, {made.samples:,} samples: "
            f"{made.samples / (made.wait_s + made.compute_s):,.0f} samples/s",
            f"  percentiles of the wait for a batch: {waits}",
            f"  percentiles of the time between batches: {computes}",
        ]
        return "\n".join([*lines, *(f"  - {each}" for each in self.advice)])


def advice_for(loader: Loader, restart_share: float, num_processors: int) -> list[str]:
    """Return ways to wait less for a loader, most likely first.

    Args:
        loader: The loader.
        restart_share: The share of the waiting, 0 to 1, that was for first batches of epochs; 0 if there was one epoch.
        num_processors: Processors that this process may use.
    """
    dataset, is_threaded = loader.dataset, loader.workers == "thread"
    decoders = [stage for stage in dataset.pipeline[1:] if isinstance(stage, Decode)]
    source: Any = dataset.source
    sources = getattr(source, "sources", (source,))
    access = sources[0].access
    begins_anew = not loader.persistent_workers and (
        (loader.num_workers > 0 and not is_threaded) or any(each.is_ahead for each in sources)
    )
    ahead = "its default" if access.read_ahead_bytes is None else f"{access.read_ahead_bytes / 2**20:,.0f} MiB"
    advice = {
        f"{restart_share:.0%} of the waiting is for the first batches of epochs: keep the workers, and fetch the next "
        "epoch ahead from a remote store (persistent_workers=True)": begins_anew and restart_share > 0.5,
        f"more workers (now num_workers={loader.num_workers}): this machine has {num_processors} processors, for all "
        "its ranks": loader.num_workers < num_processors,
        f"{loader.num_workers} workers keep all {num_processors} processors busy: more will not help; do less work "
        "per sample, for example compute it once, before the conversion": loader.num_workers >= num_processors,
        "stages of your own run in threads, one at a time unless they release the GIL: try workers='process'": (
            is_threaded and dataset.column_stages() is None
        ),
        "images are decoded at their full size: decode(wdsplit.resized(224)) decodes JPEG no larger than needed": any(
            isinstance(handler, ImageField) for stage in decoders for handler in stage.handlers
        ),
        f"keep the shards on this machine's disk (cache_dir=), or fetch further ahead: read_ahead_bytes (now {ahead}) "
        f"and connections (now {access.connections})": (
            access.cache is None and any(each.storage().has_latency for each in sources)
        ),
    }
    return [text for text, applies in advice.items() if applies]


def diagnose(loader: Any) -> Diagnosis:
    """Find out whether the loader or the model is the bottleneck, from what the loader has delivered so far.

    Print the result, or call its `as_dict()`. Percentiles cover the last 10,000 batches, other figures all batches of
    the loader. A GPU computes asynchronously: while you measure, let the program wait for it once per step, for example
    with `loss.item()`.

    Args:
        loader: A `wdsplit.Loader`, the audit of one, or an integration's loader.

    Raises:
        InputError: `loader` is none of these.
    """
    found = loader_of(loader)
    made, clock = found.statistics(), found.clock
    advice: tuple[str, ...] = ()
    if made.batches and made.bottleneck == "loader":
        num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        restart_share = sum(clock.first_waits) / made.wait_s if len(clock.first_waits) > 1 else 0.0
        advice = tuple(advice_for(found, restart_share, num_processors))
    names = list(map(str, _PERCENTILES))
    figures: list[list[float]] = [[], []]
    if clock.gaps:  # pairs of computing and waiting
        figures = np.percentile(np.array(clock.gaps), _PERCENTILES, axis=0).T.tolist()
    computes, waits = (dict(zip(names, each, strict=False)) for each in figures)
    return Diagnosis(made, waits, computes, advice)
