"""Measure ImageNet's shape streamed from an S3 server of this machine: the benchmark that LitData and others quote.

JPEGs of 256 x 256 pixels and quality 90, in batches of 256, decoded to float32, two epochs, shuffled; the caches are
empty at first. docs/imagenet-benchmark.md has the rules, and says how to read the table. A second table is of DALI,
which reads a local disk only. Images are squares of scikit-learn's two sample photos, or of yours (--photos).

In each round every reader is run once, in a process of its own, and the order alternates; the tables have medians. What
is not installed is left out (pip install '.[bench,torch,images]' scikit-learn; DALI: nvidia-dali-cuda120). Linux only.

Example: python -m tools.bench.imagenet --output /dev/shm --images 10240 --rounds 3
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import core, data, peers
from tools.bench.core import Aim, Result
from tools.bench.data import PHOTO_PIXELS, SHARDS, SOURCE
from tools.bench.meter import Meter
from tools.bench.peers import BATCH_SIZE, BUCKETS, FIELD, URL, Kind, Reader, reader_of

IMAGES, EPOCHS, ROUNDS = 6_144, 2, 3
PHOTOS, PHOTO_SIZE, CROP_PIXELS = "photos", (500, 375), 224
MEAN, STD = (255 * np.array(values, np.float32) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
SCALE, SHIFT = (values.reshape(3, 1, 1) for values in (1 / STD, -MEAN / STD))
IMPORTED = ("torch", "simplejpeg", "wdsplit.loading.loader", "botocore.session")
"""What is imported before the clock of any reader starts, even where a library would import it later."""
PACKAGES = ("torch", "simplejpeg", "litdata", "mosaicml-streaming", "webdataset", "s3fs", "nvidia-dali-cuda120")
COLUMNS = {
    "images/s": ("rate", 0),
    "images/s per core": ("per core", 0),
    "CPU s": ("busy", 1),
    "server's CPU s": ("server", 1),
    "MB": ("megabytes", 1),
    "requests": ("requests", 0),
    "images": ("seen", 0),
    "distinct": ("distinct", 0),
}
"""The columns of the tables: what they show, and how many digits behind the point."""

Epochs = Iterator[Iterable[Sequence[Any]]]
"""Epochs of batches: images (float32 of shape (batch, 3, 256, 256)), their numbers, and maybe which are repeated."""


# The work that all have in common


def pixels(jpeg: bytes) -> Any:
    """Decode a JPEG with simplejpeg; return normalised float32 of shape (3, 256, 256)."""
    import simplejpeg
    import torch

    planes = np.ascontiguousarray(simplejpeg.decode_jpeg(jpeg, "RGB").transpose(2, 0, 1)).astype(np.float32)
    planes *= SCALE
    planes += SHIFT
    return torch.from_numpy(planes)


def collated(rows: list[dict[str, Any]]) -> Any:
    """Decode the rows of a batch in a worker, and stack them as torch does, in shared memory."""
    from torch.utils.data import default_collate

    return default_collate([(pixels(row["image"]), row["label"]) for row in rows])


# Readers


def wdsplit_epochs(place: Callable[[Path], dict[str, Any]], kind: Kind) -> Callable[[Path, int], Epochs]:
    def read(folder: Path, workers: int) -> Epochs:
        import wdsplit

        dataset = wdsplit.Dataset(**place(folder), seed=0).map_dict(jpg=pixels, cls=int)
        return loader_epochs(
            wdsplit.Loader(dataset.to_tuple(FIELD, "cls", "__pad__"), BATCH_SIZE, num_workers=workers, workers=kind)
        )

    return read


def wdsplit_stage(
    place: Callable[[Path], dict[str, Any]], kind: Kind, size: int = PHOTO_PIXELS, **crop: Any
) -> Callable[[Path, int], Epochs]:
    """Return a reader by wdsplit's own stage, which decodes and normalises in the memory of the batches."""

    def read(folder: Path, workers: int) -> Epochs:
        import wdsplit

        stage = wdsplit.resized(size, **crop, mean=tuple(MEAN / 255), std=tuple(STD / 255))
        dataset = wdsplit.Dataset(**place(folder), seed=0).decode(stage).to_tuple(FIELD, "cls", "__pad__")
        options: dict[str, Any] = {"num_workers": workers, "workers": kind, "persistent_workers": kind == "process"}
        return loader_epochs(wdsplit.Loader(dataset, BATCH_SIZE, **options))

    return read


def loader_epochs(loader: Any) -> Epochs:
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        yield loader


def bucket(folder: Path) -> dict[str, Any]:
    return {"path": URL, "cache_dir": tempfile.mkdtemp(), "cache_size": "1TB"}  # also where the disk is nearly full


def uncached_bucket(folder: Path) -> dict[str, Any]:
    return {"path": URL}


def local(folder: Path) -> dict[str, Any]:
    return {"path": folder / SHARDS}


def local_photos(folder: Path) -> dict[str, Any]:
    return {"path": folder / PHOTOS}


def webdataset_epochs(cached: bool) -> Callable[[Path, int], Epochs]:
    def read(folder: Path, workers: int) -> Epochs:
        import webdataset

        peers.register_s3fs()
        options = {"cache_dir": tempfile.mkdtemp()} if cached else {}
        dataset = webdataset.WebDataset(peers.urls_of(folder), shardshuffle=100, **options).shuffle(1000)
        dataset = dataset.to_tuple(FIELD, "cls").map_tuple(pixels, int).batched(BATCH_SIZE)
        loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers)
        yield from [loader] * EPOCHS

    return read


def mds_epochs(folder: Path, workers: int) -> Epochs:
    import streaming
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(**peers.mds_places(), shuffle=True, batch_size=BATCH_SIZE)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=collated)
    yield from [loader] * EPOCHS


def litdata_epochs(folder: Path, workers: int) -> Epochs:
    import litdata

    dataset = litdata.StreamingDataset("s3://litdata", shuffle=True, **peers.litdata_options())
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=collated)
    yield from [loader] * EPOCHS


def dali_epochs(folder: Path, workers: int, shards_name: str = SHARDS, size: int | None = None) -> Epochs:
    """Yield DALI's epochs, decoded by its own threads on the processor: random crops if a size is given."""
    import torch
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    shards = peers.tars(folder / shards_name)
    indexes = [path.removesuffix(".tar") + ".idx" for path in shards]

    @pipeline_def(batch_size=BATCH_SIZE, num_threads=workers, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        jpegs, numbers = fn.readers.webdataset(
            paths=shards, index_paths=indexes, ext=[FIELD, "cls"], random_shuffle=True, initial_fill=1000, name="images"
        )
        if size is None:
            images, mirror = fn.decoders.image(jpegs, output_type=types.RGB), 0
        else:  # with the areas and proportions of RandomResizedCrop by default; resized with antialiasing, as wdsplit's
            images = fn.resize(fn.decoders.image_random_crop(jpegs, output_type=types.RGB), size=(size, size))
            mirror = fn.random.coin_flip()
        numbers_of = {"mean": MEAN.tolist(), "std": STD.tolist(), "mirror": mirror}
        planes = fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", **numbers_of)
        return planes, fn.pad(numbers, fill_value=ord(" "))

    made = pipeline()
    loader = DALIGenericIterator(
        [made], [FIELD, "cls"], reader_name="images", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )
    for _ in range(EPOCHS):
        yield ((one[FIELD], torch.tensor([int(bytes(row)) for row in one["cls"].numpy()])) for (one,) in loader)


FROM_S3 = (
    Reader("wdsplit, threads", "simplejpeg", wdsplit_epochs(bucket, "thread")),
    Reader("wdsplit, processes", "simplejpeg", wdsplit_epochs(bucket, "process")),
    Reader("wdsplit, threads, its own stage", "simplejpeg", wdsplit_stage(bucket, "thread")),
    Reader("wdsplit, processes, no cache", "simplejpeg", wdsplit_epochs(uncached_bucket, "process")),
    Reader("LitData", "litdata", litdata_epochs, peers.write_litdata, "litdata"),
    Reader("MosaicML streaming", "streaming", mds_epochs, peers.write_mds, "mds"),
    Reader("webdataset through s3fs", "s3fs", webdataset_epochs(cached=True)),
    Reader("webdataset through s3fs, no cache", "s3fs", webdataset_epochs(cached=False)),
)
FROM_DISK = (
    Reader("wdsplit, threads", "simplejpeg", wdsplit_epochs(local, "thread")),
    Reader("wdsplit, processes", "simplejpeg", wdsplit_epochs(local, "process")),
    Reader("wdsplit, threads, its own stage", "simplejpeg", wdsplit_stage(local, "thread")),
    Reader("wdsplit, processes, its own stage", "simplejpeg", wdsplit_stage(local, "process")),
    Reader("DALI, its own decoder", "nvidia.dali", dali_epochs),
)
CROP: dict[str, Any] = {"size": CROP_PIXELS, "crop": "random", "flip": True}
OF_PHOTOS = (
    Reader("wdsplit, threads, its own stage", "simplejpeg", wdsplit_stage(local_photos, "thread", **CROP)),
    Reader("wdsplit, processes, its own stage", "simplejpeg", wdsplit_stage(local_photos, "process", **CROP)),
    Reader("DALI, its own decoder", "nvidia.dali", partial(dali_epochs, shards_name=PHOTOS, size=CROP_PIXELS)),
)
RACES = {"s3": FROM_S3, "disk": FROM_DISK, "crop": OF_PHOTOS}
AIMS = {"wdsplit, threads, its own stage": "1", "wdsplit, processes, its own stage": "0.9"}
TITLES: dict[str, tuple[str, str, dict[str, str]]] = {
    "s3": ("From an S3 server of this machine", "LitData", {}),
    "disk": ("Full frames from the local disk", "DALI, its own decoder", AIMS),
    "crop": (f"Random crops to {CROP_PIXELS} of 500 x 375 from the local disk", "DALI, its own decoder", AIMS),
}
"""Of each race the title of its table, the peer that others are compared with, and what is aimed at beside it."""


# In processes of their own


def read_epochs(folder: str, race: str, name: str, workers: int, server: int, log: str) -> Result:
    """Read all epochs; return for each what it took, and how many images came, and how many different ones."""
    import torch

    reader = reader_of(RACES[race], name)
    core.import_all(reader.module)
    torch.set_num_threads(1)  # workers of all kinds have one: there are as many of them as processors
    meter, found = Meter(core.begin(*IMPORTED), server, Path(log)), []
    for epoch in reader.read(Path(folder), workers):
        numbers = []
        for images, labels, *pads in epoch:
            pixels_of = CROP_PIXELS if race == "crop" else PHOTO_PIXELS
            if images.dtype != torch.float32 or images.shape[1:] != (3, pixels_of, pixels_of):
                raise core.ProcessError(f"{name} gives {images.dtype} of shape {tuple(images.shape)}")
            numbers.append(labels[~pads[0]] if pads else labels)
        used, seen = meter.lap(), torch.cat(numbers)
        found.append({**used, "seen": len(seen), "distinct": len(set(seen.tolist()))})
    return {"epochs": found}


def prepare(folder: str, name: str) -> Result:
    """Write the data of a reader."""
    reader_of(FROM_S3, name).write(folder)
    return {}


# Tables


def report(race: str, results: dict[str, list[Result]], what: str) -> list[Aim]:
    """Print the medians of a race: a row for each reader and epoch, with its rate beside that of a peer.

    Returns:
        What was aimed at, and what the last epoch had.
    """
    title, peer, wished = TITLES[race]
    rows = []
    for epoch in range(EPOCHS):
        found = {name: medians([result["epochs"][epoch] for result in rounds]) for name, rounds in results.items()}
        for name, each in found.items():
            ratio = f"{each['rate'] / found[peer]['rate']:.2f}" if peer in found else ""
            cells = [format(each[key], f",.{digits}f") for key, digits in COLUMNS.values()]
            rows.append((name, str(epoch + 1), ratio, *cells))
    core.print_table(f"{title} ({what})", ("", "epoch", f"x {peer}", *COLUMNS), rows)
    if peer not in found:
        return []
    return [
        Aim(f"{title}: {name.split(', ')[1]}", base, wished[name], f"{each[key] / found[peer][key]:.2f}")
        for key, base in (("rate", "x DALI"), ("per core", "x DALI, by processor time"))
        for name, each in found.items()
        if name in wished
    ]


def medians(laps: Sequence[Result]) -> dict[str, float]:
    """Return the medians of an epoch's figures over the rounds, and the fewest different images of any round."""
    return {
        **{key: core.median_of(laps, itemgetter(key)) for key in laps[0]},
        "rate": core.median_of(laps, lambda lap: lap["distinct"] / lap["seconds"]),
        "per core": core.median_of(laps, lambda lap: lap["distinct"] / lap["busy"]),
        "distinct": min(lap["distinct"] for lap in laps),
    }


def print_versions() -> None:
    """Print the packages that figures depend on, and how busy the machine is besides."""
    found = []
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    print(f"{', '.join(found)}; load before the first round {os.getloadavg()[0]:.1f}", flush=True)


def run_race(race: str, arguments: argparse.Namespace, folder: Path, environ: dict[str, str], server: Any) -> list[Aim]:
    """Run the readers of a race in rounds, and print its table; return what was aimed at."""
    chosen = [reader for reader in RACES[race] if reader.name.startswith(tuple(arguments.names.split(",")))]
    names = peers.ready(chosen, lambda name: core.in_own_process(prepare, folder, name))

    def measure(name: str) -> Result:
        given = (folder, race, name, arguments.workers, server.pid, server.log)
        return core.in_own_process(read_epochs, *given, environ=environ)

    results = core.run_rounds(names, arguments.rounds, measure)
    what = f"{arguments.images:,} images, {arguments.workers} workers, medians of {arguments.rounds}"
    return report(race, results, what)


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.set_defaults(rounds=ROUNDS)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--images", type=int, default=IMAGES, help=f"Images. ImageNet has 1281167. Default: {IMAGES}.")
    parser.add_argument("--photos", type=Path, help="Make the images of the photos in this folder, such as ImageNet's.")
    parser.add_argument("--workers", type=int, default=cores, help=f"Workers. Default: the processors, {cores}.")
    parser.add_argument("--races", default=",".join(RACES), help="Some of s3, disk, crop. Default: all.")
    parser.add_argument("--names", default="", help="Only readers whose names begin so, such as wdsplit,LitData.")
    arguments = parser.parse_args()
    core.print_machine()
    print_versions()
    sys.path.insert(0, str(core.ROOT / "tests" / "support"))
    s3server = import_module("s3server")
    with core.work_folder(arguments.output) as output:
        folder = output / BUCKETS
        folder.mkdir()
        data.make_photos(folder / SOURCE, arguments.images, arguments.photos)
        data.make_shards(folder, emit=("dali",))
        if "crop" in arguments.races:
            with core.work_folder(output) as made:
                data.make_photos(made / SOURCE, arguments.images, arguments.photos, PHOTO_SIZE)
                data.make_shards(made, str(folder / PHOTOS), emit=("dali",))
        print(f"an image has {np.mean(data.payload_sizes(folder / SOURCE)):,.0f} bytes")
        with s3server.S3Server(folder, *s3server.FAST, "-vv") as server:
            environ = {**server.environ, "TMPDIR": str(output)}
            aims = []
            for race in arguments.races.split(","):
                aims += run_race(race, arguments, folder, environ, server)
    core.print_aims(aims)


if __name__ == "__main__":
    main()
