"""Writes the sidecars, which other readers need beside the shards, in the pass that writes the shards.

A task writes the indexes of its shard for DALI and Energon. The driver writes the files of the dataset before the
header, so a dataset that exists has them. Both make catalogs from the places and the sample tables of shards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from wdsplit.engines.local import ahead
from wdsplit.errors import StorageError
from wdsplit.shards.manifest import RUN_FOLDER, Manifest, Shard
from wdsplit.shards.places import read_places
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.shards.sidecars import (
    ENERGON_FOLDER,
    ENERGON_SCHEMA,
    WIDS_NAME,
    Catalog,
    dali_path,
    dump_dali,
    dump_energon,
    dump_wids,
    energon_path,
)
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.places import rows_of

__all__ = ["shard_sidecars", "write_shard_sidecars", "write_sidecars"]

_SCRATCH_NAME = f"{RUN_FOLDER}/index.sqlite"
_COPY_BYTES = 8 * 1024**2
_CACHE_KIB = 64 * 1024


def shard_sidecars(shard: Shard, emit: Sequence[str]) -> list[str]:
    """Return the paths of a shard's sidecars. DALI refuses an empty index, so a shard without samples has none."""
    paths = []
    if "dali" in emit and shard.num_samples > shard.num_pads:
        paths.append(dali_path(shard.path))
    if "energon" in emit:
        paths.append(energon_path(shard.path))
    return paths


def write_shard_sidecars(storage: Storage, shard: Shard, names: Sequence[str], emit: Sequence[str]) -> None:
    """Publish the sidecars of a shard. Runs in the task that has written the shard.

    Args:
        storage: The dataset.
        shard: The shard.
        names: The fields of the manifest.
        emit: The readers to write for.
    """
    for path in shard_sidecars(shard, emit):
        if path == dali_path(shard.path):
            data = dump_dali(_catalog(storage, shard, names))
        else:
            data = read_places(storage, shard, names).offsets().astype("<u8").tobytes()
        with storage.publish(path) as file:
            file.write([data])


def _catalog(storage: ReadableStorage, shard: Shard, names: Sequence[str]) -> Catalog:
    """Return the catalog of a shard, without its pads."""
    keys = read_samples(storage, shard, [KEY]).column(0).combine_chunks().cast(pa.large_string())
    rows = rows_of([(read_places(storage, shard, names), slice(0, len(keys)))])
    offsets = np.append(rows.begins, rows.ends[-1:]) if len(keys) else np.zeros(1, np.int64)
    return Catalog(keys, tuple(names), offsets, rows.starts, rows.sizes)


def write_sidecars(storage: Storage, manifest: Manifest, emit: Sequence[str]) -> None:
    """Publish the sidecars of the whole dataset; the shards and their own sidecars must exist.

    Raises:
        StorageError: The files cannot be written.
    """
    if "wids" in emit:
        with storage.publish(WIDS_NAME, durable=True) as file:
            file.write([dump_wids(manifest)])
    if "energon" in emit:
        storage.remove(ENERGON_FOLDER)
        _publish_index(storage, manifest)
        for name, data in dump_energon(manifest).items():
            with storage.publish(f"{ENERGON_FOLDER}/{name}", durable=True) as file:
                file.write([data])


def _publish_index(storage: Storage, manifest: Manifest) -> None:
    """Merge the shards' catalogs into Energon's `index.sqlite`, one shard in memory at a time."""
    import sqlite3  # here, because few conversions write such an index

    with _scratch(storage) as local:
        scratch = Path(local.url).absolute() / _SCRATCH_NAME
        try:
            _build_index(scratch, storage, manifest)
        except sqlite3.Error as error:
            raise StorageError(
                f"sqlite cannot write an index: {error}",
                place=str(scratch),
                remedy="check permissions, free space and the mount",
                url=str(scratch),
            ) from error
        data = memoryview(local.map(_SCRATCH_NAME))
        with storage.publish(f"{ENERGON_FOLDER}/index.sqlite", durable=True) as file:
            for first in range(0, len(data), _COPY_BYTES):
                file.write([data[first : first + _COPY_BYTES]])


@contextmanager
def _scratch(storage: Storage) -> Iterator[LocalStorage]:
    """Yield a local folder for the index, which is small compared with the data: the output, if it is local."""
    if isinstance(storage, LocalStorage):
        storage.remove(_SCRATCH_NAME)
        yield storage
        storage.remove(_SCRATCH_NAME)
        return
    with tempfile.TemporaryDirectory(prefix="wdsplit-") as folder:
        (Path(folder) / RUN_FOLDER).mkdir()
        yield LocalStorage(folder)


def _build_index(scratch: Path, storage: Storage, manifest: Manifest) -> None:
    """Write the rows in the order of the samples, so that the same shards give the same bytes.

    An unfinished file is useless, so it needs no journal. No other process opens it, so it needs no locks, which some
    network file systems lack.
    """
    import sqlite3

    with closing(sqlite3.connect(f"{scratch.as_uri()}?nolock=1", uri=True, isolation_level=None)) as index:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            index.execute(f"PRAGMA {pragma}")
        index.execute("BEGIN")
        for statement in ENERGON_SCHEMA:
            index.execute(statement)
        shards = [manifest.shards[number] for number in np.flatnonzero(manifest.shards.num_real).tolist()]
        catalogs = ahead(_catalog(storage, shard, manifest.field_names) for shard in shards)
        for number, catalog in enumerate(catalogs):
            index.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", catalog.sample_rows(number))
            index.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", catalog.part_rows(number))
        index.execute("COMMIT")
