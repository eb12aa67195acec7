"""The contents of a dataset, and the shards that each rank and worker reads, from the manifest and some samples."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsplit.checks.audit import AuditOptions
from wdsplit.checks.contents import Contents, read_contents
from wdsplit.loading.numbered import NumberedSamples
from wdsplit.loading.opening import open_source
from wdsplit.notebook import html_table
from wdsplit.order.numbers import SampleNumbers
from wdsplit.order.split import readers_per_lane
from wdsplit.order.trace import Trace, reading_advice
from wdsplit.shards.annotations import ANNOTATIONS, Annotation
from wdsplit.shards.files import versions_with_erased
from wdsplit.shards.manifest import Manifest, fields_table
from wdsplit.shards.views import VIEWS, StoredView
from wdsplit.texts import Brief, counted

__all__ = ["Assignment", "Inspection", "ReaderShare", "assign", "inspect"]


@dataclass(frozen=True, repr=False)
class Inspection:
    """The contents of a dataset.

    Attributes:
        manifest: The dataset's manifest: its shards, fields, columns, versions and origin.
        num_samples: Number of samples, without pads; of a view, only its samples.
        contents: Classes, sizes and presence of each field; None if no sample was requested.
        views: The stored views, including stale ones with another fingerprint.
        annotations: The stored annotations, including stale ones with another fingerprint.
        damaged: Causes of damaged views and annotations: `{"view good": "view 'good' cannot be read"}`.
        first_samples: The first samples: `__key__`, `__url__`, and the fields as bytes.
        view: Name of the view; empty for the whole dataset. The manifest is always that of the dataset.
        with_erased: The versions that still have samples which a later one erased.
    """

    manifest: Manifest
    num_samples: int
    contents: Contents | None
    views: tuple[StoredView, ...]
    annotations: tuple[Annotation, ...]
    damaged: dict[str, str]
    first_samples: tuple[dict[str, Any], ...]
    view: str
    with_erased: tuple[int, ...]

    def __repr__(self) -> str:
        shards = counted(len(self.manifest.shards), "shard")
        stored = f"{counted(len(self.views), 'view')}, {counted(len(self.annotations), 'annotation')}"
        return f"<Inspection: {counted(self.num_samples, 'sample')} in {shards}; {stored}>"

    def _repr_html_(self) -> str:
        described = {**self.manifest.described(), "samples": f"{self.num_samples:,}"}
        facts = [*described.items(), ("fingerprint", self.manifest.fingerprint)]
        facts += [("view", self.view)] if self.view else []
        facts += [("views", ", ".join(one.name for one in self.views))] if self.views else []
        facts += [("annotations", ", ".join(one.name for one in self.annotations))] if self.annotations else []
        return html_table("Dataset", facts) + fields_table(self.manifest.fields)


def inspect(url: str, samples: int = 3, **options: Any) -> Inspection:
    """Return the contents of a dataset: totals, fields, classes, image sizes and the first samples.

    Counts are exact for local datasets of up to 65,536 samples and 512 MiB. Otherwise they are estimated from 1,024
    samples, or 256 of a remote dataset, always the same ones.

        print(wdsplit.inspect("data/train").num_samples)  # 64

    Args:
        url: The dataset's folder, or tars, as for `Dataset`.
        samples: Number of first samples to read; with 0, only the manifest is read.
        options: Arguments of `Dataset`: `view` (only one) or `where` to inspect only these samples, `version`,
            `storage_options`, ...

    Raises:
        InputError: The view does not exist.
        WdsplitError: The manifest or a shard cannot be read.
    """
    source: Any = open_source(url, **options)
    storage, manifest = source.storage(), source.manifest
    units = source.selection_at(0)
    numbers = SampleNumbers(manifest.shards.num_real, None if units is None else units.chosen)
    *places, _ = numbers.places(np.arange(min(samples, len(numbers))))
    reader = NumberedSamples.of_all(source)
    views, bad_views = VIEWS.scan(storage, manifest)
    annotations, bad_annotations = ANNOTATIONS.scan(storage, manifest)
    return Inspection(
        manifest=manifest,
        num_samples=len(numbers),
        contents=read_contents(storage, manifest, numbers) if samples else None,
        views=tuple(views.values()),
        annotations=tuple(annotations.values()),
        damaged={
            f"{kind} {name}": error.cause
            for kind, bad in (("view", bad_views), ("annotation", bad_annotations))
            for name, error in bad.items()
        },
        first_samples=tuple(reader.read(reader.numbers.of(*places))),
        view=source.view_text,
        with_erased=versions_with_erased(storage, manifest),
    )


@dataclass(frozen=True, repr=False)
class ReaderShare(Brief):
    """What one worker of one rank reads in an epoch.

    Attributes:
        rank: The rank.
        worker: The worker; 0 if the rank has none.
        samples: Number of samples, including pads.
        shards: The numbers of the shards that it reads from, in reading order.
    """

    rank: int
    worker: int
    samples: int
    shards: list[int]


@dataclass(frozen=True, repr=False)
class Assignment(Brief):
    """The shards that each rank and worker reads in an epoch.

    Attributes:
        lanes: Number of parallel sequences of shards in the epoch.
        readers_per_lane: Number of workers that share a lane and read the same windows; at least 1.
        recut: Whether lanes were cut at equal counts, because shards differ in size.
        read_amplification: Mean number of times that each window is read, by all readers together.
        pads: Number of repeated samples that fill up lanes and the last step.
        advice: If ranks and workers do not divide the lanes: a sentence with numbers that do.
        readers: The share of each worker, by rank and worker.
    """

    lanes: int
    readers_per_lane: int
    recut: bool
    read_amplification: float
    pads: int
    advice: str | None
    readers: list[ReaderShare]

    def _repr_html_(self) -> str:
        rows = [(each.rank, each.worker, each.samples, reprlib.repr(each.shards)[1:-1]) for each in self.readers]
        title = f"{counted(self.lanes, 'lane')}, {counted(self.pads, 'pad')}"
        return html_table(title, rows, ("rank", "worker", "samples", "shards"))


def assign(
    url: str, world_size: int = 1, num_workers: int = 0, *, batch_size: int = 1, epoch: int = 0, **options: Any
) -> Assignment:
    """Return the shards that each rank and worker reads in an epoch. Reads only the manifest and the view.

        print(wdsplit.assign("data/train", world_size=2, num_workers=4))

    Args:
        url: The dataset's folder, or tars, as for `Dataset`.
        world_size: Number of ranks.
        num_workers: Workers per rank; 0 reads in the rank's own process.
        batch_size: Samples per batch on each rank.
        epoch: The epoch.
        options: Arguments of `Dataset`: `seed`, `shuffle`, `tail`, `lanes`, `view`, `version`, `storage_options`, ...

    Raises:
        InputError: A number is too small, there are too many readers, or the view does not exist.
        WdsplitError: The manifest cannot be read.
    """
    AuditOptions(world_size, num_workers, batch_size)  # refuses the same numbers
    source: Any = open_source(url, **options)
    workers = max(1, num_workers)
    order, lanes = source.order(epoch), source.options.lanes
    readers = Trace(order, world_size, workers, batch_size)
    return Assignment(
        lanes=lanes,
        readers_per_lane=readers_per_lane(lanes, world_size, workers),
        recut=order.is_recut,
        read_amplification=readers.read_amplification,
        pads=readers.num_pads,
        advice=reading_advice(lanes, world_size, workers),
        readers=[
            ReaderShare(rank, worker, readers.num_given(rank, worker), readers.shards(rank, worker))
            for rank in range(world_size)
            for worker in range(workers)
        ],
    )
