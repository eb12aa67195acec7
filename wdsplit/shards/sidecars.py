"""The files that other readers need beside the shards (`--emit`): indexes for DALI, wids and Megatron-Energon.

A task writes the indexes of its shard for DALI and Energon. The driver writes the files of the dataset before the
header, so a dataset that exists has them. They leave pads out: these readers split by samples, so they need no equal
shards, and read each sample exactly once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.engines.local import ahead
from wdsplit.errors import StorageError
from wdsplit.shards.manifest import RUN_FOLDER, Manifest, Shard
from wdsplit.shards.places import read_places
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.places import Rows, rows_of

__all__ = [
    "ENERGON_FOLDER",
    "ENERGON_NAMES",
    "WIDS_NAME",
    "shard_sidecars",
    "write_shard_sidecars",
    "write_sidecars",
]

WIDS_NAME = "wids.json"
ENERGON_FOLDER = ".nv-meta"
ENERGON_NAMES = (".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml")
"""The files of Energon's folder, sorted."""

_ENERGON_SCHEMA = (
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
_COPY_BYTES = 8 * 1024**2
_CACHE_KIB = 64 * 1024


# The files of a shard


def _dali_path(path: str) -> str:
    """Return the path of a shard's DALI index, as DALI's own `wds2idx` names it: 000000.tar -> 000000.idx."""
    return f"{path.removesuffix('.tar')}.idx"


def shard_sidecars(shard: Shard, emit: Sequence[str]) -> list[str]:
    """Return the paths of a shard's sidecars. DALI refuses an empty index, so a shard without samples has none."""
    paths = [_dali_path(shard.path)] if "dali" in emit and shard.num_samples > shard.num_pads else []
    return [*paths, f"{shard.path}.idx"] if "energon" in emit else paths


def write_shard_sidecars(storage: Storage, shard: Shard, names: Sequence[str], emit: Sequence[str]) -> None:
    """Publish the sidecars of a shard. Runs in the task that has written the shard.

    Energon's has the offsets at which samples begin, then the end, as little-endian uint64.

    Args:
        storage: The dataset.
        shard: The shard.
        names: The fields of the manifest.
        emit: The readers to write for.
    """
    for path in shard_sidecars(shard, emit):
        if path == _dali_path(shard.path):
            data = _dali_index(*_read_rows(storage, shard, names), names)
        else:
            data = read_places(storage, shard, names).offsets().astype("<u8").tobytes()
        with storage.publish(path) as file:
            file.write([data])


def _read_rows(storage: ReadableStorage, shard: Shard, names: Sequence[str]) -> tuple[pa.LargeStringArray, Rows]:
    """Return the keys and the places of a shard's samples, without its pads."""
    keys = read_samples(storage, shard, [KEY]).column(0).combine_chunks().cast(pa.large_string())
    return keys, rows_of([(read_places(storage, shard, names), slice(0, len(keys)))])


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
        _publish_index(storage, manifest)
        # All shards are in the split `train`. Samples are crude: dicts of fields, for a cooker of the task encoder.
        info = {"energon_version": _ENERGON_VERSION, "shard_counts": {path: count for path, count, _ in shards}}
        digest = manifest.fingerprint
        variant = "89ab"[int(digest[16], 16) % 4]
        uuid = f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"  # RFC 9562
        train = "".join(f"  - {orjson.dumps(path).decode()}\n" for path, _, _ in shards)
        for name, data in (
            (".info.json", orjson.dumps(info, option=orjson.OPT_INDENT_2)),
            ("dataset.yaml", b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"),
            ("index.uuid", uuid.encode()),
            ("split.yaml", f"split_parts:\n  train:\n{train}  val: []\n  test: []\nexclude: []\n".encode()),
        ):
            _publish(storage, f"{ENERGON_FOLDER}/{name}", data)


def _publish(storage: Storage, path: str, data: bytes) -> None:
    with storage.publish(path, durable=True) as file:
        file.write([data])


def _publish_index(storage: Storage, manifest: Manifest) -> None:
    """Write Energon's `index.sqlite`, one shard in memory at a time."""
    import sqlite3  # here, because few conversions write such an index

    run = None
    if isinstance(storage, LocalStorage):  # whose disk has room for it; what a kill leaves goes with the run
        run = storage.root / RUN_FOLDER
        run.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wdsplit-", dir=run) as folder:
        scratch = Path(folder).absolute() / "index.sqlite"
        try:
            _build_index(scratch, storage, manifest)
        except sqlite3.Error as error:
            raise StorageError(
                f"sqlite cannot write an index: {error}",
                place=str(scratch),
                remedy="check permissions, free space and the mount",
                url=str(scratch),
            ) from error
        data = memoryview(LocalStorage(folder).map(scratch.name))
        with storage.publish(f"{ENERGON_FOLDER}/index.sqlite", durable=True) as file:
            for first in range(0, len(data), _COPY_BYTES):
                file.write([data[first : first + _COPY_BYTES]])


def _build_index(scratch: Path, storage: Storage, manifest: Manifest) -> None:
    """Write the rows in the order of the samples, so that the same shards give the same bytes.

    An unfinished file is useless, so it needs no journal. No other process opens it, so it needs no locks, which some
    network file systems lack.
    """
    import sqlite3

    names = manifest.field_names
    with closing(sqlite3.connect(f"{scratch.as_uri()}?nolock=1", uri=True, isolation_level=None)) as index:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            index.execute(f"PRAGMA {pragma}")
        index.execute("BEGIN")
        for statement in _ENERGON_SCHEMA:
            index.execute(statement)
        shards = [manifest.shards[number] for number in np.flatnonzero(manifest.shards.num_real).tolist()]
        for number, (keys, rows) in enumerate(ahead(_read_rows(storage, shard, names) for shard in shards)):
            begins, sizes = rows.begins.tolist(), (rows.ends - rows.begins).tolist()
            samples = zip(keys.to_pylist(), range(len(keys)), begins, sizes, strict=True)
            index.executemany(f"INSERT INTO samples VALUES ({number}, ?, ?, ?, ?)", samples)
            sample, field = np.nonzero(rows.sizes >= 0)
            places = (each[sample, field].tolist() for each in (rows.starts, rows.sizes))
            parts = zip(sample.tolist(), [names[each] for each in field.tolist()], *places, strict=True)
            index.executemany(f"INSERT INTO sample_parts VALUES ({number}, ?, ?, ?, ?)", parts)
        index.execute("COMMIT")
