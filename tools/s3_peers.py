"""How each library streams a dataset from a store of the S3 kind, as its documentation shows it, with nothing cached.

A reader gives the payloads of all samples, one by one; with workers they travel in batches. None decodes, none but
wdsplit shuffles. Everyone's data is made of the same table, each in a bucket of its own, which is a folder in BUCKETS.
Libraries are imported where they are used, because few have all of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from pathlib import Path
from typing import Any

from bench_convert import litdata_optimize, mds_writer
from load_peers import BATCH_SIZE, SOURCE, Kind, Reader, torch_batches

BUCKETS = "buckets"
WDSPLIT = "wdsplit"
URL = f"s3://{WDSPLIT}"
FIELD = "jpg"


def flattened(batches: Iterable[Iterable[Any]]) -> Iterator[Any]:
    return (item for batch in batches for item in batch)


# wdsplit


def make_shards(folder: Path) -> None:
    from wdsplit import ConvertOptions, PlanOptions, convert

    options = ConvertOptions(PlanOptions(pad="none"), jobs=2)
    convert(str(folder / SOURCE), str(folder / BUCKETS / WDSPLIT), options)


def wdsplit_payloads(dataset: Any, workers: int, kind: Kind = "process") -> Iterator[bytes]:
    """Return the payloads of a wdsplit.Dataset, but for those that are repeated to fill up the last step."""
    import wdsplit

    if not workers:
        return (sample[FIELD] for sample in dataset if not sample["__pad__"])
    dataset = dataset.to_tuple(FIELD, "cls", "__pad__")
    loader = wdsplit.Loader(dataset, BATCH_SIZE, num_workers=workers, workers=kind)
    return flattened(compress(payloads, (~pads).tolist()) for payloads, _, pads in loader)


def wdsplit_reader(kind: Kind) -> Callable[[Path, int], Iterable[bytes]]:
    def read(folder: Path, workers: int) -> Iterator[bytes]:
        import wdsplit

        return wdsplit_payloads(wdsplit.Dataset(URL, seed=0), workers, kind)

    return read


# Peers


def webdataset_payloads(urls: list[str], workers: int) -> Iterator[bytes]:
    import webdataset

    dataset = webdataset.WebDataset(urls, shardshuffle=False)
    if not workers:
        return (sample[FIELD] for sample in dataset)
    batched = dataset.batched(BATCH_SIZE, collation_fn=list)
    loader = webdataset.WebLoader(batched, batch_size=None, num_workers=workers)
    return (sample[FIELD] for sample in flattened(loader))


def shard_urls(folder: Path) -> list[str]:
    return [f"{URL}/{path.name}" for path in sorted((folder / BUCKETS / WDSPLIT).glob("*.tar"))]


def webdataset_aws(folder: Path, workers: int) -> Iterable[bytes]:
    """Return its samples; each shard by one GET, because `aws s3 cp` of several parts to a pipe sometimes hangs."""
    config = Path(tempfile.mkdtemp()) / "config"
    config.write_text("[default]\ns3 =\n  multipart_threshold = 1GB\n")
    os.environ["AWS_CONFIG_FILE"] = str(config)
    return webdataset_payloads([f"pipe:aws s3 cp --quiet {url} -" for url in shard_urls(folder)], workers)


def webdataset_s3fs(folder: Path, workers: int) -> Iterable[bytes]:
    import s3fs
    import webdataset

    webdataset.gopen_schemes["s3"] = lambda url, mode, *_: s3fs.S3FileSystem().open(url, mode)
    return webdataset_payloads(shard_urls(folder), workers)


def make_mds(folder: Path) -> None:
    mds_writer(str(folder / SOURCE), str(folder / BUCKETS / "mds"))


def mds_reader(folder: Path, workers: int) -> Iterable[bytes]:
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    dataset = streaming.StreamingDataset(remote="s3://mds", local=tempfile.mkdtemp(), batch_size=BATCH_SIZE)
    samples = torch_batches(dataset, workers)
    return (sample["image"] for sample in (flattened(samples) if workers else samples))


def make_litdata(folder: Path) -> None:
    litdata_optimize(str(folder / SOURCE), str(folder / BUCKETS / "litdata"))


def litdata_reader(folder: Path, workers: int) -> Iterable[bytes]:
    """Return its samples; its obstore would refuse HTTP, and the status of rclone's answers to requests for ranges."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    downloader._PARALLEL_GET_MIN_BYTES = 2**62
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    dataset = litdata.StreamingDataset("s3://litdata", cache_dir=tempfile.mkdtemp(), storage_options=options)
    if not workers:
        return (sample["image"] for sample in dataset)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, collate_fn=list)
    return (sample["image"] for sample in flattened(loader))


WDSPLIT_READERS = (
    Reader("wdsplit", "botocore", wdsplit_reader("process")),
    Reader("wdsplit, threads", "botocore", wdsplit_reader("thread")),
)
READERS = (
    *WDSPLIT_READERS,
    Reader("webdataset by aws s3 cp", "webdataset", webdataset_aws),
    Reader("webdataset by s3fs", "s3fs", webdataset_s3fs),
    Reader("MosaicML streaming", "streaming", mds_reader, make_mds),
    Reader("LitData", "litdata", litdata_reader, make_litdata),
)
