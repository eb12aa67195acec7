"""What is in a dataset, and who reads which part of it: read from the manifest and the first shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from wdsplit.errors import InputError
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.order.distribution import Readers, reading_advice
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.split import readers_per_lane
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Field, Manifest
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.opening import open_readable_storage

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Assignment", "Inspection", "ReaderShare", "assign", "inspect"]


@dataclass(frozen=True)
class Inspection:
    """What is in a dataset.

    Attributes:
        num_samples: Samples, pads left out.
        num_pads: Repeated samples that fill up shards.
        num_shards: Shards.
        num_bytes: Bytes of all shards.
        lanes: Parallel sequences of shards that an epoch is woven from.
        window: Samples that are read and shuffled together.
        fingerprint: What a loader's state belongs to.
        fields: The fields of each sample: name, column of the table, type and encoding.
        first_samples: The first samples: `__key__`, `__url__`, and the fields as bytes.
        provenance: The inputs, options and versions of the conversion.
    """

    num_samples: int
    num_pads: int
    num_shards: int
    num_bytes: int
    lanes: int
    window: int
    fingerprint: str
    fields: tuple[Field, ...]
    first_samples: tuple[dict[str, Any], ...]
    provenance: dict[str, Any]


def inspect(
    url: str,
    samples: int = 3,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Inspection:
    """Return what is in a dataset: totals, fields and the first samples.

    Args:
        url: The dataset's folder.
        samples: First samples to read.
        storage_options: How to reach a remote store, as of `Dataset`.
        fs: The file system that the folder is on, as of `Dataset`.

    Raises:
        WdsplitError: The manifest, or a shard of the first samples, cannot be read.
    """
    storage = open_readable_storage(*located_one(url, storage_options, fs))
    manifest = read_manifest(storage)
    return Inspection(
        num_samples=manifest.num_samples,
        num_pads=manifest.num_pads,
        num_shards=len(manifest.shards),
        num_bytes=manifest.num_bytes,
        lanes=manifest.lanes,
        window=manifest.window,
        fingerprint=manifest.fingerprint,
        fields=tuple(manifest.fields),
        first_samples=tuple(_first_samples(storage, manifest, samples)),
        provenance=manifest.provenance,
    )


def _first_samples(storage: ReadableStorage, manifest: Manifest, count: int) -> Iterator[dict[str, Any]]:
    """Give the first samples of the dataset, pads left out."""
    for shard, num_real in enumerate(manifest.shards.num_real.tolist()):
        if count <= 0:
            return
        taken = min(count, num_real)
        if taken:
            window = open_shard(storage, manifest.shards[shard]).window(0, taken)
            yield from window.take(range(taken), [0] * taken, [False] * taken)
        count -= taken


@dataclass(frozen=True)
class ReaderShare:
    """What one worker of one rank reads in an epoch.

    Attributes:
        rank: The rank.
        worker: The worker, 0 where a rank has none.
        samples: Samples that it gives, pads included.
        shards: The numbers of the shards that it reads from, in the order of its first visits.
    """

    rank: int
    worker: int
    samples: int
    shards: list[int]


@dataclass(frozen=True)
class Assignment:
    """Who reads what in an epoch.

    Attributes:
        lanes: Parallel sequences of shards that the epoch is woven from.
        readers_per_lane: Workers that share a lane and read the same windows; 1 is the least.
        recut: Whether lanes were cut at equal counts, because shards differ.
        read_amplification: How often each window is read on average, by all readers together.
        pads: Repeated samples that fill up lanes and the last step.
        advice: A sentence with numbers that divide the lanes, if these do not.
        readers: What each worker of each rank reads, by rank and worker.
    """

    lanes: int
    readers_per_lane: int
    recut: bool
    read_amplification: float
    pads: int
    advice: str | None
    readers: list[ReaderShare]


def assign(
    url: str,
    world_size: int = 1,
    num_workers: int = 0,
    *,
    batch_size: int = 1,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    tail: Literal["pad", "drop", "uneven"] = "pad",
    lanes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Assignment:
    """Return which shards each rank and worker reads in an epoch; only the manifest is read.

    Args:
        url: The dataset's folder.
        world_size: Ranks.
        num_workers: Workers of each rank; 0 reads in the rank's own process.
        batch_size: Samples a batch and rank.
        epoch: The epoch.
        seed: As of `Dataset`.
        shuffle: As of `Dataset`.
        tail: As of `Dataset`.
        lanes: As of `Dataset`; None for the dataset's.
        storage_options: How to reach a remote store, as of `Dataset`.
        fs: The file system that the folder is on, as of `Dataset`.

    Raises:
        InputError: A number is too small.
        WdsplitError: The manifest cannot be read.
    """
    lows = {"world_size": (world_size, 1), "num_workers": (num_workers, 0), "batch_size": (batch_size, 1)}
    problems = [f"{name} = {value}: expected at least {low}" for name, (value, low) in lows.items() if value < low]
    if problems:
        raise InputError("invalid assign arguments", found="; ".join(problems))
    manifest = read_manifest(open_readable_storage(*located_one(url, storage_options, fs)))
    options = OrderOptions(seed, shuffle, lanes or manifest.lanes, manifest.window, tail)
    order = EpochOrder(manifest.shards.num_real, options, epoch)
    workers = max(1, num_workers)
    readers = Readers(order, world_size, workers, batch_size)
    return Assignment(
        lanes=options.lanes,
        readers_per_lane=readers_per_lane(options.lanes, world_size, workers),
        recut=order.is_recut,
        read_amplification=readers.read_amplification,
        pads=readers.num_pads,
        advice=reading_advice(options.lanes, world_size, workers),
        readers=[
            ReaderShare(rank, worker, readers.num_given(rank, worker), readers.shards(rank, worker))
            for rank in range(world_size)
            for worker in range(workers)
        ],
    )
