"""The contents of a dataset, and the shards that each rank and worker reads, from the manifest and some samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from wdsplit.shards.manifest import Field, fields_table
from wdsplit.shards.versions import Version
from wdsplit.shards.views import VIEWS, StoredView
from wdsplit.texts import Brief

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Assignment", "Inspection", "ReaderShare", "assign", "inspect"]


@dataclass(frozen=True)
class Inspection:
    """The contents of a dataset.

    Attributes:
        num_samples: Number of samples, without pads; of a view, only its samples.
        num_pads: Number of pads: repeated samples that fill up shards.
        num_shards: Number of shards.
        num_bytes: Bytes of all shards.
        lanes: Number of parallel sequences of shards in an epoch.
        window: Number of samples that are read and shuffled together.
        fingerprint: Identifies the dataset, for example in a loader's state.
        fields: The fields of each sample: name, column of the table, type and encoding.
        contents: Classes, sizes and presence of each field; None if no sample was requested.
        samples: The columns of the sample tables; None if there are none.
        views: The stored views, including stale ones with another fingerprint.
        annotations: The stored annotations, including stale ones with another fingerprint.
        damaged: Causes of damaged views and annotations: `{"view good": "view 'good' cannot be read"}`.
        first_samples: The first samples: `__key__`, `__url__`, and the fields as bytes.
        provenance: The inputs, options and versions of the conversion.
        view: Name of the view; empty for the whole dataset. Shards and bytes are always those of the dataset.
        num_stored: Number of samples of the whole dataset, without pads.
        history: The versions up to this one, if samples were appended to the dataset; else empty.
        with_erased: The versions that still have samples which a later one erased.
    """

    num_samples: int
    num_pads: int
    num_shards: int
    num_bytes: int
    lanes: int
    window: int
    fingerprint: str
    fields: tuple[Field, ...]
    contents: Contents | None
    samples: pa.Schema | None
    views: tuple[StoredView, ...]
    annotations: tuple[Annotation, ...]
    damaged: dict[str, str]
    first_samples: tuple[dict[str, Any], ...] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)
    view: str
    num_stored: int
    history: tuple[Version, ...]
    with_erased: tuple[int, ...]

    def _repr_html_(self) -> str:
        names = ("num_samples", "num_pads", "num_shards", "num_bytes", "lanes", "window", "fingerprint", "view")
        facts = [(name, getattr(self, name)) for name in names if getattr(self, name) != ""]
        facts += [("views", ", ".join(one.name for one in self.views))] if self.views else []
        facts += [("annotations", ", ".join(one.name for one in self.annotations))] if self.annotations else []
        return html_table("Dataset", facts) + fields_table(self.fields)


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
        num_samples=len(numbers),
        num_pads=manifest.num_pads,
        num_shards=len(manifest.shards),
        num_bytes=manifest.num_bytes,
        lanes=manifest.lanes,
        window=manifest.window,
        fingerprint=manifest.fingerprint,
        fields=tuple(manifest.fields),
        contents=read_contents(storage, manifest, numbers) if samples else None,
        samples=manifest.samples,
        views=tuple(views.values()),
        annotations=tuple(annotations.values()),
        damaged={
            f"{kind} {name}": error.cause
            for kind, bad in (("view", bad_views), ("annotation", bad_annotations))
            for name, error in bad.items()
        },
        first_samples=tuple(reader.read(reader.numbers.of(*places))),
        provenance=manifest.provenance,
        view=source.view_text,
        num_stored=manifest.num_samples,
        history=manifest.history,
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
