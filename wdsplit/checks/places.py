"""The places of an epoch's positions in a dataset or mixture, and the samples there.

Combines orders and the readers of windows. The parts of a mixture are its datasets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.engines.local import in_order
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.reading.windows import read_window
from wdsplit.order.epoch import EpochOrder, Int64

__all__ = ["Places", "parts_of", "places_of", "samples_at"]

_CONNECTIONS, _MAX_OPEN = 16, 256


@dataclass(frozen=True)
class Places:
    """Where samples are: int64 arrays of one shape.

    Attributes:
        part: The number of the part.
        shard: The number of the shard in its part.
        sample: The number of the sample in its shard.
    """

    part: Int64
    shard: Int64
    sample: Int64


def parts_of(source: AnySource) -> tuple[Source, ...]:
    """Return the datasets of a mixture, or the only one."""
    parts: Any = getattr(source, "sources", (source,))
    return tuple(parts)


def places_of(source: AnySource, order: Any, positions: Int64) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Return where the samples at some positions are, and which of them are pads: bool of shape (n,).

    Args:
        source: The source of the samples.
        order: The order of an epoch.
        positions: int64 of shape (n,).
    """
    if isinstance(order, EpochOrder):
        located = order.locate(positions)
        return Places(np.zeros_like(positions), located.shard, located.sample), located.pad
    part, shard, sample = (np.empty(len(positions), np.int64) for _ in range(3))
    mixture: Any = source
    for quota in order.quotas(positions):
        located = mixture.order_of(quota.source, quota.source_epoch, order.epoch).locate(quota.positions)
        part[quota.rows], shard[quota.rows], sample[quota.rows] = quota.source, located.shard, located.sample
    return Places(part, shard, sample), order.pads(positions)


def samples_at(parts: tuple[Source, ...], places: Places) -> Iterator[dict[str, Any]]:
    """Yield samples with all payloads, in their order; remote ones are read by several threads."""
    storages = [part.storage() for part in parts]
    opened: dict[tuple[int, int], OpenShard] = {}

    def read(place: tuple[int, int, int]) -> dict[str, Any]:
        part, shard, sample = place
        found = opened.get((part, shard))
        if found is None:  # two threads may both open it
            manifest = parts[part].manifest
            found = parts[part].access.open_shard(storages[part], manifest, manifest.shards[shard])
            if len(opened) >= _MAX_OPEN:
                opened.clear()
            opened[part, shard] = found
        return read_window(found, sample, sample + 1).take(0, 0, False)

    rows = zip(places.part.tolist(), places.shard.tolist(), places.sample.tolist(), strict=True)
    threads = _CONNECTIONS if any(storage.has_latency for storage in storages) else 1
    yield from in_order(read, rows, threads)
