"""Log once what a reader of a dataset reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.stage_kinds import dropping
from wdsplit.loading.world import detect_rank, is_group_initialised
from wdsplit.order.split import World
from wdsplit.order.trace import reading_advice
from wdsplit.texts import counted

__all__ = ["announce", "warn_of_dropped_samples", "warn_of_same_samples"]

logger = logging.getLogger(__name__)

_announced: set[tuple[str, World, str, str]] = set()
_warned: set[tuple[str, str]] = set()


def announce(source: AnySource, epoch: int, world: World, num_workers: int = 0, batch_size: int = 0) -> None:
    """Log who reads, and the cost if lanes are shared; once per process, dataset, view and world.

    With `num_workers`, the rank's own process logs for all of them. Pads are warned of only if there is a `batch_size`.
    """
    url, workers, view = source.url, counted(num_workers, "worker"), source.view_at(epoch)
    if not num_workers:
        workers = f"worker {world.worker} of {world.num_workers}"
    viewed = "" if view is None else f", view {view}: {source.units_text(epoch)}"
    if (url, world, workers, viewed) in _announced:
        return
    _announced.add((url, world, workers, viewed))
    seed = source.options.seed
    logger.info("%s: rank %d of %d, %s, seed %d%s", url, world.rank, world.world_size, workers, seed, viewed)
    is_first = world.rank == 0 and world.worker == 0
    num_samples, global_batch = source.num_samples_at(epoch), batch_size * world.world_size
    if is_first and source.options.tail == "pad" and 0 < 2 * num_samples < global_batch:
        text = "%s: %s of the %s samples of an epoch are pads, which fill its only step: use a smaller batch_size"
        logger.warning(text, url, f"{global_batch - num_samples:,}", f"{global_batch:,}")
    if is_first and not num_samples:
        who = "the dataset has" if view is None else f"view {view} selects"
        logger.warning("%s: there are no batches in epoch %d: %s no samples", url, epoch, who)
    advice = reading_advice(source.options.lanes, world.world_size, num_workers or world.num_workers)
    if advice is not None and is_first:
        logger.warning("%s: %s", url, advice)


def warn_of_dropped_samples(source: AnySource, world: World, stages: Sequence[Any]) -> None:
    """Log once per process and dataset that stages may drop samples, so that ranks may have different steps."""
    key = source.url, ", ".join(dropping(stages))
    if not key[1] or world.world_size == 1 or source.options.tail == "uneven" or world.rank or world.worker:
        return
    if key in _warned:
        return
    _warned.add(key)
    logger.warning(
        "%s: %s may drop samples, so ranks may have different numbers of steps and wait for each other forever: "
        "filter the rows when you convert the table (--where), or end all ranks after the fewest steps",
        *key,
    )


def warn_of_same_samples(url: str) -> None:
    """Log once per process and dataset that each rank of the process group was opened as the only one.

    Rank 1 logs it, as rank 0 may read alone, such as to evaluate.
    """
    world = detect_rank() if is_group_initialised() else World()
    if world.rank != 1 or (url, "") in _warned:
        return
    _warned.add((url, ""))
    logger.warning(
        "%s: opened with rank=0, world_size=1, but the process group has %d ranks: each that does so gets all samples. "
        "To split them, leave out both",
        url,
        world.world_size,
    )
