"""The files that other readers need beside the shards (`--emit`): indexes for DALI, wids and Megatron-Energon.

A task writes the indexes of its shard for DALI and Energon. The driver writes the files of the dataset before the
header, so a dataset that exists has them. They leave pads out: these readers split by samples, so they need no equal
shards, and read each sample exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.shards.places import read_places
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tar.places import Rows, rows_of

__all__ = ["ENERGON_FOLDER", "ENERGON_NAMES", "WIDS_NAME", "shard_sidecars", "write_shard_sidecars", "write_sidecars"]

WIDS_NAME = "wids.json"
ENERGON_FOLDER = ".nv-meta"
ENERGON_NAMES = (".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml")
"""The files of Energon's folder, sorted; `energon prepare` writes those of its index of keys."""

_ENERGON_VERSION = "7.4.1"
"""The version of Megatron-Energon whose `energon prepare` these files follow."""
_DALI_VERSION = "v1.2"


# The files of a shard


def _dali_path(path: str) -> str:
    """Return the path of a shard's DALI index, as DALI's own `wds2idx` names it: 000000.tar -> 000000.idx."""
    return f"{path.removesuffix('.tar')}.idx"


def shard_sidecars(shard: Shard, emit: Sequence[str]) -> list[str]:
    """Return the paths of a shard's sidecars. DALI refuses an empty index, so a shard without samples has none."""
    paths = [_dali_path(shard.path)] if "dali" in emit and shard.num_samples > shard.num_pads else []
    return [*paths, f"{shard.path}.idx"] if "energon" in emit else paths


def write_shard_sidecars(storage: Storage, shard: Shard, names: Sequence[str], emit: Sequence[str]) -> None:
    """Publish the sidecars of a shard, given the names of the fields. Runs in the task that has written the shard.

    Energon's has the offsets at which samples begin, then the end, as little-endian uint64.
    """
    for path in shard_sidecars(shard, emit):
        if path == _dali_path(shard.path):
            keys = read_samples(storage, shard, [KEY]).column(0).combine_chunks().cast(pa.large_string())
            rows = rows_of([(read_places(storage, shard, names), slice(0, len(keys)))])  # without pads
            data = _dali_index(keys, rows, names)
        else:
            data = read_places(storage, shard, names).offsets().astype("<u8").tobytes()
        with storage.publish(path) as file:
            file.write([data])


def _dali_index(keys: pa.LargeStringArray, rows: Rows, names: Sequence[str]) -> bytes:
    """Return the index of a shard for DALI's `fn.readers.webdataset`.

    The first line has the version and the number of samples. Then each sample has a line with extension, payload
    offset, size and name of each of its members (NVIDIA DALI, tools/wds2idx.py, version v1.2).
    """

    def text(value: str) -> pa.LargeStringScalar:
        return pa.scalar(value, pa.large_string())

    columns = []
    for number, name in enumerate(names):
        missing = rows.sizes[:, number] < 0
        places = [pa.array(each[:, number], mask=missing).cast(pa.large_string()) for each in (rows.starts, rows.sizes)]
        member = pc.binary_join_element_wise(keys, text(name), text("."))
        columns.append(pc.binary_join_element_wise(text(name), *places, member, text(" ")))
    samples = pc.binary_join_element_wise(*columns, text(" "), null_handling="skip").to_pylist() if columns else []
    return "\n".join([f"{_DALI_VERSION} {len(samples)}", *samples, ""]).encode("ascii")


# The files of a dataset


def write_sidecars(storage: Storage, manifest: Manifest, emit: Sequence[str]) -> None:
    """Publish the sidecars of the whole dataset; the shards and their own sidecars must exist.

    Raises:
        StorageError: The files cannot be written.
    """
    paths = manifest.shards.table.column("path").to_pylist()
    counts, sizes = manifest.shards.num_real.tolist(), manifest.shards.column("num_bytes").tolist()
    shards = [row for row in zip(paths, counts, sizes, strict=True) if row[1]]
    if "wids" in emit:
        listed = [{"url": path, "nsamples": count, "filesize": num_bytes} for path, count, num_bytes in shards]
        index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}  # URLs relative to it
        _publish(storage, WIDS_NAME, orjson.dumps(index, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    if "energon" in emit:
        storage.remove(ENERGON_FOLDER)
        # All shards are in the split `train`. Samples are crude: dicts of fields, for a cooker of the task encoder.
        info = {"energon_version": _ENERGON_VERSION, "shard_counts": {path: count for path, count, _ in shards}}
        train = "".join(f"  - {orjson.dumps(path).decode()}\n" for path, _, _ in shards)
        for name, data in (
            (".info.json", orjson.dumps(info, option=orjson.OPT_INDENT_2)),
            ("dataset.yaml", b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"),
            ("split.yaml", f"split_parts:\n  train:\n{train}  val: []\n  test: []\nexclude: []\n".encode()),
        ):
            _publish(storage, f"{ENERGON_FOLDER}/{name}", data)


def _publish(storage: Storage, path: str, data: bytes) -> None:
    with storage.publish(path, durable=True) as file:
        file.write([data])
