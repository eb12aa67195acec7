"""Reads single samples of a dataset or mixture, by their places. The parts of a mixture are its datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wdsplit.engines.local import in_order
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.reading.windows import read_window
from wdsplit.order.epoch import Located

__all__ = ["parts_of", "samples_at"]

_CONNECTIONS, _MAX_OPEN = 16, 256


def parts_of(source: AnySource) -> tuple[Source, ...]:
    """Return the datasets of a mixture, or the only one."""
    parts: Any = getattr(source, "sources", (source,))
    return tuple(parts)


def samples_at(parts: tuple[Source, ...], places: Located) -> Iterator[dict[str, Any]]:
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

    rows = zip(places.source.tolist(), places.shard.tolist(), places.sample.tolist(), strict=True)
    threads = _CONNECTIONS if any(storage.has_latency for storage in storages) else 1
    yield from in_order(read, rows, threads)
