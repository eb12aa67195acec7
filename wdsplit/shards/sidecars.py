"""The files that other readers need beside the shards: wids, DALI and Megatron-Energon.

Pure (no I/O). A catalog has the keys of a shard, and the offsets of its members. The files are made from catalogs and
the manifest. They leave pads out: these readers split by samples, so they need no
equal shards, and read each sample exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.arrays import Int64
from wdsplit.shards.manifest import Manifest

__all__ = [
    "ENERGON_FOLDER",
    "ENERGON_NAMES",
    "ENERGON_SCHEMA",
    "WIDS_NAME",
    "Catalog",
    "dali_path",
    "dump_dali",
    "dump_energon",
    "dump_wids",
    "energon_path",
    "listed_shards",
]

WIDS_NAME = "wids.json"
ENERGON_FOLDER = ".nv-meta"
ENERGON_NAMES = (".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml")
"""The files of Energon's folder, sorted."""

ENERGON_SCHEMA = (
    """CREATE TABLE samples (
        tar_file_id INTEGER NOT NULL,
        sample_key TEXT NOT NULL UNIQUE,
        sample_index INTEGER NOT NULL,
        byte_offset INTEGER,
        byte_size INTEGER
    )""",
    """CREATE TABLE sample_parts (
        tar_file_id INTEGER,
        sample_index INTEGER,
        part_name TEXT,
        content_byte_offset INTEGER,
        content_byte_size INTEGER
    )""",
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON sample_parts"
    "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)
"""The tables of Energon's `index.sqlite`; tar_file_id counts the shards of `.info.json` in their order."""

_ENERGON_VERSION = "7.4.1"
"""The version of Megatron-Energon whose `energon prepare` these files follow."""
_DALI_VERSION = "v1.2"


@dataclass(frozen=True)
class Catalog:
    """The offsets of a shard's samples and members: n samples of up to m fields, without pads.

    Attributes:
        keys: The n keys.
        fields: The m fields, in the order of a sample's members.
        offsets: int64 of shape (n + 1,): the tar offset of each sample's first header, then the end of the last.
        starts: int64 of shape (n, m): the tar offset of each payload.
        sizes: int64 of shape (n, m): bytes of each payload; -1 where a sample lacks the field.
    """

    keys: pa.LargeStringArray
    fields: tuple[str, ...]
    offsets: Int64
    starts: Int64
    sizes: Int64

    def sample_rows(self, tar_file_id: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of Energon's table `samples`, in order."""
        begins, sample_bytes = self.offsets[:-1].tolist(), np.diff(self.offsets).tolist()
        for number, row in enumerate(zip(self.keys.to_pylist(), begins, sample_bytes, strict=True)):
            yield tar_file_id, row[0], number, row[1], row[2]

    def part_rows(self, tar_file_id: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of Energon's table `sample_parts`, in the order of the tar's members."""
        samples, columns = np.nonzero(self.sizes >= 0)
        starts, sizes = self.starts[samples, columns].tolist(), self.sizes[samples, columns].tolist()
        for sample, column, start, size in zip(samples.tolist(), columns.tolist(), starts, sizes, strict=True):
            yield tar_file_id, sample, self.fields[column], start, size


def energon_path(path: str) -> str:
    """Return the path of a shard's index for Energon: where samples begin, then the end, as little-endian uint64."""
    return f"{path}.idx"


def dali_path(path: str) -> str:
    """Return the path of a shard's DALI index, as DALI's own `wds2idx` names it: 000000.tar -> 000000.idx."""
    return f"{path.removesuffix('.tar')}.idx"


def dump_dali(catalog: Catalog) -> bytes:
    """Return the index of a shard for DALI's `fn.readers.webdataset`.

    The first line has the version and the number of samples. Then each sample has a line with extension, payload
    offset, size and name of each of its members (NVIDIA DALI, tools/wds2idx.py, version v1.2).
    """
    columns = []
    for number, field in enumerate(catalog.fields):
        missing = catalog.sizes[:, number] < 0
        offsets, sizes = (
            pa.array(values[:, number], mask=missing).cast(pa.large_string())
            for values in (catalog.starts, catalog.sizes)
        )
        name = pc.binary_join_element_wise(catalog.keys, _text(field), _text("."))
        columns.append(pc.binary_join_element_wise(_text(field), offsets, sizes, name, _text(" ")))
    samples = pc.binary_join_element_wise(*columns, _text(" "), null_handling="skip").to_pylist() if columns else []
    return "\n".join([f"{_DALI_VERSION} {len(samples)}", *samples, ""]).encode("ascii")


def _text(value: str) -> pa.LargeStringScalar:
    return pa.scalar(value, pa.large_string())


def listed_shards(manifest: Manifest) -> list[tuple[str, int, int]]:
    """Return path, number of samples and bytes of each shard with samples other than pads, in their order."""
    paths = manifest.shards.table.column("path").to_pylist()
    rows = zip(paths, manifest.shards.num_real.tolist(), manifest.shards.column("num_bytes").tolist(), strict=True)
    return [row for row in rows if row[1]]


def dump_wids(manifest: Manifest) -> bytes:
    """Return the shard list for `wids.ShardListDataset`; URLs are relative to it, so the dataset can be moved."""
    shards = [
        {"url": path, "nsamples": num_samples, "filesize": num_bytes}
        for path, num_samples, num_bytes in listed_shards(manifest)
    ]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    return orjson.dumps(index, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def dump_energon(manifest: Manifest) -> dict[str, bytes]:
    """Return the files of Energon's folder by their names, without its `index.sqlite`.

    All shards are in the split `train`. Samples are crude: dicts of fields, for a cooker of the task encoder.
    """
    shards = listed_shards(manifest)
    info = {"energon_version": _ENERGON_VERSION, "shard_counts": {path: count for path, count, _ in shards}}
    train = "".join(f"  - {orjson.dumps(path).decode()}\n" for path, _, _ in shards)
    return {
        ".info.json": orjson.dumps(info, option=orjson.OPT_INDENT_2),
        "dataset.yaml": b"__module__: megatron.energon\n__class__: CrudeWebdataset\n",
        "index.uuid": _uuid(manifest.fingerprint).encode(),
        "split.yaml": f"split_parts:\n  train:\n{train}  val: []\n  test: []\nexclude: []\n".encode(),
    }


def _uuid(digest: str) -> str:
    """Return 32 hexadecimal digits as a UUID of version 8, which is for custom formats (RFC 9562)."""
    variant = "89ab"[int(digest[16], 16) % 4]
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"
