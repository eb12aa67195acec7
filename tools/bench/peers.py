"""How each library writes a dataset, and reads it from a disk or a bucket, as its documentation shows it.

Libraries are imported where they are used, because few have all of them. None decodes but those of `JPEG`, `WEBP` and
`PNG`. Besides wdsplit only `LitData, shuffled` shuffles. Local readers return samples without workers, else batches;
`REMOTE` readers return the payloads of all samples, with nothing cached.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq

from tools.bench.core import ProcessError, is_installed
from tools.bench.data import SHARDS, SOURCE, make_shards

SHARD_BYTES = 128_000_000
BATCH_SIZE, PICTURE_BATCH_SIZE = 256, 64
PIXELS, SMALL_PIXELS = 224, 32
BUCKETS = "buckets"
"""The folder of the buckets: one for each library."""
URL = f"s3://{SHARDS}"
FIELD = "jpg"

Kind = Literal["process", "thread"]


@dataclass(frozen=True)
class Reader:
    """A way to load.

    Attributes:
        name: Its name in tables.
        module: The module that it needs.
        read: Takes the folder with everyone's data and a number of workers.
        prepare: Takes a table and a folder; writes what `read` reads, unless it reads wdsplit's shards.
        data: The name of that folder.
    """

    name: str
    module: str
    read: Callable[[Path, int], Iterable[Any]]
    prepare: Callable[[str, str], None] | None = None
    data: str = ""

    def write(self, folder: str) -> None:
        """Write its data from the table of a folder."""
        if self.prepare is not None:
            self.prepare(f"{folder}/{SOURCE}", f"{folder}/{self.data}")


def reader_of(readers: Iterable[Reader], name: str) -> Reader:
    """Return a reader by its name."""
    return next(reader for reader in readers if reader.name == name)


def ready(readers: Iterable[Reader], prepare: Callable[[str], Any]) -> list[str]:
    """Let readers write their data in a process; return the names of those that are installed and could."""
    names = []
    for reader in readers:
        if not is_installed(reader.name, reader.module):
            continue
        try:
            if reader.prepare is not None:
                prepare(reader.name)
            names.append(reader.name)
        except ProcessError as error:
            print(f"{reader.name} is left out: {error}", flush=True)
    return names


# Writing


def rows_of(source: str) -> Any:
    for batch in pq.ParquetFile(source).iter_batches(1000):
        yield from batch.to_pylist()


def write_webdataset(source: str, output: str) -> None:
    import webdataset

    os.makedirs(output)
    with webdataset.ShardWriter(f"{output}/%06d.tar", maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as sink:
        for number, row in enumerate(rows_of(source)):
            payload = {"txt": row["text"]} if "text" in row else {"jpg": row["image"]}
            sink.write({"__key__": f"{number:08d}", **payload, "cls": row["label"]})


def write_mds(source: str, output: str) -> None:
    from streaming import MDSWriter

    name, kind = ("text", "str") if "text" in pq.read_schema(source).names else ("image", "bytes")
    with MDSWriter(out=output, columns={name: kind, "label": "int"}, size_limit=SHARD_BYTES) as sink:
        for row in rows_of(source):
            sink.write(row)


def _rows_of_group(source: str, group: int) -> Any:
    yield from pq.ParquetFile(source).read_row_group(group).to_pylist()


def write_litdata(source: str, output: str) -> None:
    from litdata import optimize

    groups = list(range(pq.ParquetFile(source).num_row_groups))
    optimize(partial(_rows_of_group, source), groups, output, num_workers=2, chunk_bytes=SHARD_BYTES)


def write_parquet(source: str, output: str) -> None:
    """Write a file a row group: Hugging Face's workers get whole files."""
    file = pq.ParquetFile(source)
    os.makedirs(output)
    for group in range(file.num_row_groups):
        pq.write_table(file.read_row_group(group), f"{output}/{group:04d}.parquet", compression="none")


def write_two_shards(source: str, output: str) -> None:
    """Write a shard for each of 2 workers, where all others read one."""
    make_shards(Path(source).parent, Path(output).name, shards=2, workers=2)


# Reading from a disk


def tars(dataset: Path) -> list[str]:
    """Return the shards that wdsplit has made."""
    return sorted(map(str, dataset.glob("*.tar")))


def wdsplit_reader(kind: Kind) -> Callable[[Path, int], Iterable[Any]]:
    def read(folder: Path, workers: int) -> Iterable[Any]:
        import wdsplit

        dataset = wdsplit.Dataset(folder / SHARDS, seed=0)
        if not workers:
            return dataset
        fields = [field.name for field in dataset.manifest.fields]
        return wdsplit.Loader(dataset.to_tuple(*fields), BATCH_SIZE, num_workers=workers, workers=kind)

    return read


def wdsplit_images(kind: Kind, pixels: int, batch_size: int) -> Callable[[Path, int], Iterable[Any]]:
    def read(folder: Path, workers: int) -> Iterable[Any]:
        import wdsplit

        dataset = wdsplit.Dataset(folder / SHARDS, seed=0)
        fields = [field.name for field in dataset.manifest.fields]
        decoded = dataset.decode(wdsplit.resized(pixels)).to_tuple(*fields)
        return wdsplit.Loader(decoded, batch_size, num_workers=workers, workers=kind)

    return read


def torch_stream(dataset: Any, workers: int) -> Iterable[Any]:
    """Return torch's DataLoader over samples, with batches as lists; the samples themselves without workers."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=list) if workers else dataset


def webdataset_stream(urls: list[str], workers: int) -> Iterable[Any]:
    import webdataset

    dataset = webdataset.WebDataset(urls, shardshuffle=False)
    if not workers:
        return dataset  # type: ignore[no-any-return]
    batched = dataset.batched(BATCH_SIZE, collation_fn=list)
    return webdataset.WebLoader(batched, batch_size=None, num_workers=workers)  # type: ignore[no-any-return]


def webdataset_pictures(folder: Path, workers: int) -> Iterable[Any]:
    import webdataset

    dataset = webdataset.WebDataset(tars(folder / "two"), shardshuffle=False).to_tuple("jpg;webp", "cls")
    batched = dataset.map_tuple(_pillow_pixels, int).batched(PICTURE_BATCH_SIZE)
    return webdataset.WebLoader(batched, batch_size=None, num_workers=workers)  # type: ignore[no-any-return]


def webdataset_png(folder: Path, workers: int) -> Iterable[Any]:
    import webdataset

    dataset = webdataset.WebDataset(tars(folder / SHARDS), shardshuffle=False).decode("torchrgb8")
    batched = dataset.to_tuple("png", "cls").batched(BATCH_SIZE)
    return webdataset.WebLoader(batched, batch_size=None, num_workers=workers)  # type: ignore[no-any-return]


def _pillow_pixels(data: bytes) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))


def turboloader_jpeg(folder: Path, workers: int) -> Iterable[Any]:
    import turboloader

    options = {
        "batch_size": PICTURE_BATCH_SIZE,
        "num_workers": workers,
        "image_size": PIXELS,
        "output_format": "pytorch",
    }
    loaders = [turboloader.DataLoader(path, **options) for path in tars(folder / SHARDS)]
    return (images for loader in loaders for images, _ in loader)


def mds_stream(workers: int, **places: str) -> Iterable[Any]:
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return torch_stream(streaming.StreamingDataset(**places, batch_size=BATCH_SIZE), workers)


def litdata_stream(url: str, workers: int, **options: Any) -> Iterable[Any]:
    import litdata

    dataset = litdata.StreamingDataset(url, **options)
    if not workers:
        return dataset  # type: ignore[no-any-return]
    return litdata.StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=list
    )


def huggingface_reader(folder: Path, workers: int) -> Iterable[Any]:
    import datasets

    files = sorted(map(str, (folder / "parquet").glob("*.parquet")))
    return torch_stream(datasets.load_dataset("parquet", data_files=files, split="train", streaming=True), workers)


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
        str(folder / SHARDS),
        split_part="train",
        batch_size=BATCH_SIZE if workers else None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        task_encoder=Encoder(),
    )
    return get_loader(dataset)  # type: ignore[no-any-return]


PEERS = (
    Reader("webdataset", "webdataset", lambda folder, workers: webdataset_stream(tars(folder / SHARDS), workers)),
    Reader(
        "LitData",
        "litdata",
        lambda folder, workers: litdata_stream(str(folder / "litdata"), workers),
        write_litdata,
        "litdata",
    ),
    Reader(
        "LitData, shuffled",
        "litdata",
        lambda folder, workers: litdata_stream(str(folder / "litdata"), workers, shuffle=True),
    ),
    Reader(
        "MosaicML streaming",
        "streaming",
        lambda folder, workers: mds_stream(workers, local=str(folder / "mds")),
        write_mds,
        "mds",
    ),
    Reader("Hugging Face datasets", "datasets", huggingface_reader, write_parquet, "parquet"),
    Reader("Energon", "megatron.energon", energon_reader),
)
ONE_PROCESS = (Reader("wdsplit", "torch", wdsplit_reader("process")), *PEERS)
TWO_WORKERS = (
    Reader("wdsplit, processes", "torch", wdsplit_reader("process")),
    Reader("wdsplit, threads", "torch", wdsplit_reader("thread")),
    *PEERS,
)
JPEG = (
    Reader("wdsplit, threads", "simplejpeg", wdsplit_images("thread", PIXELS, PICTURE_BATCH_SIZE)),
    Reader("wdsplit, processes", "simplejpeg", wdsplit_images("process", PIXELS, PICTURE_BATCH_SIZE)),
    Reader("TurboLoader", "turboloader", turboloader_jpeg),
    Reader("webdataset and Pillow, processes", "webdataset", webdataset_pictures, write_two_shards, "two"),
)
WEBP = tuple(reader for reader in JPEG if reader.name != "TurboLoader")
PNG = (
    Reader("wdsplit, processes", "PIL", wdsplit_images("process", SMALL_PIXELS, BATCH_SIZE)),
    Reader("wdsplit, threads", "PIL", wdsplit_images("thread", SMALL_PIXELS, BATCH_SIZE)),
    Reader("webdataset and Pillow", "webdataset", webdataset_png),
)


# Reading from a bucket


def flattened(batches: Iterable[Iterable[Any]]) -> Iterator[Any]:
    return (item for batch in batches for item in batch)


def payloads_of(stream: Iterable[Any], workers: int, field: str) -> Iterator[bytes]:
    """Return a field of all samples, whether they come one by one or in batches."""
    return (sample[field] for sample in (flattened(stream) if workers else stream))


def wdsplit_payloads(dataset: Any, workers: int, kind: Kind = "process") -> Iterator[bytes]:
    """Return the payloads of a wdsplit.Dataset, without those that are repeated to fill the last step."""
    import wdsplit

    if not workers:
        return (sample[FIELD] for sample in dataset if not sample["__pad__"])
    dataset = dataset.to_tuple(FIELD, "cls", "__pad__")
    loader = wdsplit.Loader(dataset, BATCH_SIZE, num_workers=workers, workers=kind)
    return flattened(compress(payloads, (~pads).tolist()) for payloads, _, pads in loader)


def wdsplit_from_bucket(kind: Kind) -> Callable[[Path, int], Iterable[bytes]]:
    def read(folder: Path, workers: int) -> Iterator[bytes]:
        import wdsplit

        return wdsplit_payloads(wdsplit.Dataset(URL, seed=0), workers, kind)

    return read


def wdsplit_by_s3fs(folder: Path, workers: int) -> Iterable[bytes]:
    import s3fs

    import wdsplit

    return wdsplit_payloads(wdsplit.Dataset(URL, seed=0, fs=s3fs.S3FileSystem()), workers)


def urls_of(folder: Path) -> list[str]:
    return [f"{URL}/{Path(path).name}" for path in tars(folder / SHARDS)]


def webdataset_aws(folder: Path, workers: int) -> Iterable[bytes]:
    """Return its samples; each shard by one GET, because `aws s3 cp` of several parts to a pipe sometimes hangs."""
    config = Path(tempfile.mkdtemp()) / "config"
    config.write_text("[default]\ns3 =\n  multipart_threshold = 1GB\n")
    os.environ["AWS_CONFIG_FILE"] = str(config)
    urls = [f"pipe:aws s3 cp --quiet {url} -" for url in urls_of(folder)]
    return payloads_of(webdataset_stream(urls, workers), workers, FIELD)


def register_s3fs() -> None:
    """Let webdataset open s3:// by s3fs."""
    import s3fs
    import webdataset

    webdataset.gopen_schemes["s3"] = lambda url, mode, *_: s3fs.S3FileSystem().open(url, mode)


def webdataset_s3fs(folder: Path, workers: int) -> Iterable[bytes]:
    register_s3fs()
    return payloads_of(webdataset_stream(urls_of(folder), workers), workers, FIELD)


def mds_from_bucket(folder: Path, workers: int) -> Iterable[bytes]:
    return payloads_of(mds_stream(workers, **mds_places()), workers, "image")


def mds_places() -> dict[str, str]:
    """Return where a StreamingDataset finds its bucket, and a new folder for its copy."""
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    return {"remote": "s3://mds", "local": tempfile.mkdtemp()}


def litdata_from_bucket(folder: Path, workers: int) -> Iterable[bytes]:
    return payloads_of(litdata_stream("s3://litdata", workers, **litdata_options()), workers, "image")


def litdata_options() -> dict[str, Any]:
    """Return LitData's options of the bucket, and a new folder for its cache.

    Its obstore would refuse HTTP, and the status of rclone's answers to requests for ranges.
    """
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    downloader._PARALLEL_GET_MIN_BYTES = 2**62
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    return {"cache_dir": tempfile.mkdtemp(), "storage_options": options}


REMOTE = (
    Reader("wdsplit", "botocore", wdsplit_from_bucket("process")),
    Reader("wdsplit, threads", "botocore", wdsplit_from_bucket("thread")),
    Reader("wdsplit, fs=s3fs", "s3fs", wdsplit_by_s3fs),
    Reader("webdataset by aws s3 cp", "webdataset", webdataset_aws),
    Reader("webdataset through s3fs", "s3fs", webdataset_s3fs),
    Reader("MosaicML streaming", "streaming", mds_from_bucket, write_mds, "mds"),
    Reader("LitData", "litdata", litdata_from_bucket, write_litdata, "litdata"),
)
