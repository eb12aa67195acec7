"""How each library loads a dataset: what it makes of the table first, and its samples or batches as users take them.

A reader returns what is iterated: samples one by one without workers, else batches, of the table's two fields where a
library keeps no more. None decodes but those of `JPEG`, none but wdsplit shuffles. Libraries are imported where they
are used, because few have all of them.
"""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from bench_convert import litdata_optimize, mds_writer

BATCH_SIZE, JPEG_BATCH_SIZE, PIXELS = 256, 64, 224
SOURCE = "source.parquet"

Kind = Literal["process", "thread"]


@dataclass(frozen=True)
class Reader:
    """A way to load.

    Attributes:
        name: What tables call it.
        module: The module that must be there.
        read: Takes the folder of a part and a number of workers; returns samples or batches.
        prepare: Takes the folder; makes what `read` reads, where it does not read wdsplit's shards.
    """

    name: str
    module: str
    read: Callable[[Path, int], Iterable[Any]]
    prepare: Callable[[Path], None] | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the module is there."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False


def tars(dataset: Path) -> list[str]:
    """Return the shards that wdsplit has made."""
    return sorted(map(str, dataset.glob("*.tar")))


def torch_batches(dataset: Any, workers: int) -> Iterable[Any]:
    """Return torch's DataLoader over samples, with batches as lists; the samples themselves without workers."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=list) if workers else dataset


# wdsplit


def make_shards(folder: Path, name: str = "wdsplit", **plan: Any) -> None:
    from wdsplit import ConvertOptions, PlanOptions, convert

    options = ConvertOptions(PlanOptions(pad="none", **plan), emit=("energon",), jobs=2)
    convert(str(folder / SOURCE), str(folder / name), options)


def wdsplit_reader(kind: Kind) -> Callable[[Path, int], Iterable[Any]]:
    def read(folder: Path, workers: int) -> Iterable[Any]:
        import wdsplit

        dataset = wdsplit.Dataset(folder / "wdsplit", seed=0)
        if not workers:
            return dataset
        fields = [field.name for field in dataset.source.manifest.fields]  # type: ignore[attr-defined]
        return wdsplit.Loader(dataset.to_tuple(*fields), BATCH_SIZE, num_workers=workers, workers=kind)

    return read


def wdsplit_jpeg(kind: Kind) -> Callable[[Path, int], Iterable[Any]]:
    def read(folder: Path, workers: int) -> Iterable[Any]:
        import wdsplit

        dataset = wdsplit.Dataset(folder / "wdsplit", seed=0).decode(wdsplit.resized(PIXELS)).to_tuple("jpg", "cls")
        return wdsplit.Loader(dataset, JPEG_BATCH_SIZE, num_workers=workers, workers=kind)

    return read


# Peers


def webdataset_reader(folder: Path, workers: int) -> Iterable[Any]:
    import webdataset

    dataset = webdataset.WebDataset(tars(folder / "wdsplit"), shardshuffle=False)
    if not workers:
        return dataset  # type: ignore[no-any-return]
    batched = dataset.batched(BATCH_SIZE, collation_fn=list)
    return webdataset.WebLoader(batched, batch_size=None, num_workers=workers)  # type: ignore[no-any-return]


def make_two_shards(folder: Path) -> None:
    """Write a shard for each of 2 workers, where all others read one."""
    make_shards(folder, "two", shards=2, workers=2)


def webdataset_jpeg(folder: Path, workers: int) -> Iterable[Any]:
    import webdataset

    dataset = webdataset.WebDataset(tars(folder / "two"), shardshuffle=False).map_dict(jpg=_pillow_pixels, cls=int)
    batched = dataset.to_tuple("jpg", "cls").batched(JPEG_BATCH_SIZE)
    return webdataset.WebLoader(batched, batch_size=None, num_workers=workers)  # type: ignore[no-any-return]


def _pillow_pixels(data: bytes) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))


def turboloader_jpeg(folder: Path, workers: int) -> Iterable[Any]:
    import turboloader

    loaders = [
        turboloader.DataLoader(
            path, batch_size=JPEG_BATCH_SIZE, num_workers=workers, image_size=PIXELS, output_format="pytorch"
        )
        for path in tars(folder / "wdsplit")
    ]
    return (images for loader in loaders for images, _ in loader)


def make_mds(folder: Path) -> None:
    mds_writer(str(folder / SOURCE), str(folder / "mds"))


def mds_reader(folder: Path, workers: int) -> Iterable[Any]:
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return torch_batches(streaming.StreamingDataset(local=str(folder / "mds"), batch_size=BATCH_SIZE), workers)


def make_litdata(folder: Path) -> None:
    litdata_optimize(str(folder / SOURCE), str(folder / "litdata"))


def litdata_reader(folder: Path, workers: int) -> Iterable[Any]:
    import litdata

    dataset = litdata.StreamingDataset(str(folder / "litdata"))
    if not workers:
        return dataset  # type: ignore[no-any-return]
    return litdata.StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=list
    )


def make_parquet(folder: Path) -> None:
    """Write a file a row group: workers get whole files."""
    source = pq.ParquetFile(folder / SOURCE)
    (folder / "parquet").mkdir()
    for group in range(source.num_row_groups):
        pq.write_table(source.read_row_group(group), folder / "parquet" / f"{group:04d}.parquet", compression="none")


def huggingface_reader(folder: Path, workers: int) -> Iterable[Any]:
    import datasets

    files = sorted(map(str, (folder / "parquet").glob("*.parquet")))
    return torch_batches(datasets.load_dataset("parquet", data_files=files, split="train", streaming=True), workers)


def energon_reader(folder: Path, workers: int) -> Iterable[Any]:
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

    @stateless  # type: ignore[untyped-decorator]
    def cook(sample: Any) -> Any:
        return sample

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        decoder = None
        cookers = (Cooker(cook),)

        @stateless  # type: ignore[untyped-decorator]
        def batch(self, samples: list[Any]) -> Any:
            return samples

    dataset = get_val_dataset(
        str(folder / "wdsplit"),
        split_part="train",
        batch_size=BATCH_SIZE if workers else None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        task_encoder=Encoder(),
    )
    return get_loader(dataset)  # type: ignore[no-any-return]


PEERS = (
    Reader("webdataset", "webdataset", webdataset_reader),
    Reader("LitData", "litdata", litdata_reader, make_litdata),
    Reader("MosaicML streaming", "streaming", mds_reader, make_mds),
    Reader("Hugging Face datasets", "datasets", huggingface_reader, make_parquet),
    Reader("Energon", "megatron.energon", energon_reader),
)
ONE_PROCESS = (Reader("wdsplit", "torch", wdsplit_reader("process")), *PEERS)
TWO_WORKERS = (
    Reader("wdsplit, processes", "torch", wdsplit_reader("process")),
    Reader("wdsplit, threads", "torch", wdsplit_reader("thread")),
    *PEERS,
)
JPEG = (
    Reader("wdsplit, threads", "simplejpeg", wdsplit_jpeg("thread")),
    Reader("wdsplit, processes", "simplejpeg", wdsplit_jpeg("process")),
    Reader("TurboLoader", "turboloader", turboloader_jpeg),
    Reader("webdataset and Pillow, processes", "webdataset", webdataset_jpeg, make_two_shards),
)


def restrict_to_cores(count: int) -> None:
    """Leave this process and its workers so many processors; to be called before libraries count them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
