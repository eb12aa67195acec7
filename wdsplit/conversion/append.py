"""Appends rows to a dataset: a conversion into a folder of its own, then a version that has its shards too.

Until the version's header exists, the dataset is as before; what was converted is found by the next attempt.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from wdsplit.conversion.base import Base, next_key_of
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.planning import plan_files, shown_notes
from wdsplit.conversion.prepare import Endpoints, Target, refuse_duplicate_keys, refuse_inside_input, target_of
from wdsplit.conversion.run import Run
from wdsplit.conversion.task import keys_of
from wdsplit.engines.local import Engine, in_order
from wdsplit.errors import ConvertError, InputError
from wdsplit.fields.keys import Place
from wdsplit.shards.erased import read_erased
from wdsplit.shards.files import existing_versions, finish_version, read_manifest, read_pending, write_version
from wdsplit.shards.manifest import HEADER_NAME, MAX_HEADER_BYTES, Manifest, Shards, parse_header
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.shards.sidecars import write_sidecars
from wdsplit.shards.versions import ADDED_FOLDER, NO_NEXT_KEY, VERSIONS_FOLDER, Version, version_path
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.tables.read import read_rows
from wdsplit.tables.snapshots import open_inputs_of
from wdsplit.texts import listed
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["append", "create_version", "history_of", "latest_locked", "list_versions", "next_version"]

logger = logging.getLogger(__name__)

_HASH_CHARACTERS = 16
_MAX_INPUTS = 3
_THREADS = 8


def append(
    endpoints: Endpoints,
    options: ConvertOptions,
    engine: Engine,
    carry_out: Callable[[Target], Manifest],
) -> Manifest:
    """Append rows to the dataset in the output; return the manifest of its new version.

    Args:
        endpoints: Inputs and output.
        options: The user's options.
        engine: Engine that will run the tasks.
        carry_out: Converts what a target plans, or what is left of it, and returns the manifest.

    Raises:
        DatasetNotFoundError: There is no dataset.
        InputError: The rows do not fit the dataset, or one of their keys is not new.
        ConvertError: Another writer has made a version meanwhile.
        StorageError: Another process of this machine writes to the dataset.
    """
    storage = open_storage(endpoints.output, endpoints.output_options)
    with latest_locked(storage) as manifest:
        refuse_inside_input(storage, endpoints)
        base = Base(manifest, storage.url)
        made = base.options(options)
        found = open_inputs_of(endpoints.inputs, endpoints.input_options)
        plan = plan_files(found, made, endpoints.input_options, base)[""]
        for note in shown_notes(plan):
            logger.warning("%s", note)
        # Rows that were erased since a version has added them come back, if that is allowed.
        erased = max((each.number for each in manifest.history if each.erased and options.allow_erased), default=0)
        added = {each.source: each.number for each in manifest.history if each.number > erased}
        known = added.get(plan.source)
        if known is not None:
            logger.warning("%s: version %d has added these rows already: nothing is appended", storage.url, known)
        else:
            _refuse_known_rows(storage, manifest, plan, options.allow_erased)
            folder = f"{ADDED_FOLDER}/{plan.hash[:_HASH_CHARACTERS]}"
            if folder in {each.folder for each in manifest.history}:
                folder = f"{ADDED_FOLDER}/{xxhash.xxh3_64_hexdigest(f'{plan.hash} {manifest.version}'.encode())}"
            target = _target(endpoints, folder, plan, made, engine)
            part = carry_out(target)
            inputs = found.snapshot or listed(map(shown_url, found.paths), _MAX_INPUTS)
            if endpoints.are_spooled:
                inputs = "rows from Python"
            manifest = _grown(manifest, plan, part, folder, inputs)
            create_version(storage, manifest)
        write_sidecars(storage, manifest, made.emit)
    return manifest


@contextmanager
def latest_locked(storage: Storage) -> Iterator[Manifest]:
    """Lock other writers out of a dataset, and give its latest version, which is finished if its writer was stopped.

    Raises:
        DatasetNotFoundError: There is no dataset.
        StorageError: Another process of this machine writes to the dataset.
    """
    read_manifest(storage)  # before the lock makes a folder
    with Run(storage).locked():
        storage.remove_temporary(VERSIONS_FOLDER)
        yield finish_version(storage, read_manifest(storage))


def create_version(storage: Storage, manifest: Manifest) -> None:
    """Write a new version of a dataset, and make it the latest.

    Raises:
        ConvertError: Another writer has made a version of its number.
    """
    if not write_version(storage, manifest):
        raise ConvertError(
            f"another writer has made version {manifest.version} meanwhile",
            expected=f"version {manifest.version - 1} to be the latest still",
            found=version_path(manifest.version),
            remedy="run the same command again: it starts from the new version",
            url=storage.url,
        )


def list_versions(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> tuple[Version, ...]:
    """Return the versions of a dataset, the latest last: their samples, shards and bytes, and what each added.

    Versions that `gc` removed are left out.

        for version in wdsplit.list_versions("data/train"):
            print(version.number, version.num_samples)  # 1 64

    Args:
        url: The dataset's folder.
        storage_options: Options for a remote store, as for `Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        DatasetNotFoundError: There is no dataset.
    """
    storage = open_readable_storage(*located_one(url, storage_options, fs))
    manifest = read_pending(storage, read_manifest(storage))
    return existing_versions(storage, manifest) or history_of(manifest)


def _target(endpoints: Endpoints, folder: str, plan: Plan, options: ConvertOptions, engine: Engine) -> Target:
    """Return the conversion of the rows, which continues what an attempt of the same plan has left."""
    path = os.path.join(endpoints.output, folder)
    run = Run(open_storage(path, endpoints.output_options), options.emit)
    is_finished = run.storage.size(HEADER_NAME) is not None
    is_resumed = is_finished or (run.is_unfinished and run.plan.get("modified") == plan.modified)
    options = dataclasses.replace(options, overwrite=not is_resumed)
    return target_of("", path, run, plan, is_resumed, endpoints, options, engine)


def _refuse_known_rows(storage: ReadableStorage, manifest: Manifest, plan: Plan, allow_erased: bool) -> None:
    """Refuse rows whose keys the dataset has or had; without keys, inputs that it was made of."""
    if plan.key is None:
        _refuse_known_inputs(storage, manifest, plan)
        return
    refuse_duplicate_keys(plan, plan.key, lambda: _keys(storage, manifest), manifest.num_samples)
    if not allow_erased:
        _refuse_erased(storage, manifest, plan, plan.key)


def _keys(storage: ReadableStorage, manifest: Manifest) -> Iterator[tuple[pa.LargeStringArray, Place]]:
    """Yield the keys of a dataset, shard by shard."""

    def read(number: int) -> tuple[pa.LargeStringArray, Place]:
        shard = manifest.shards[number]
        keys = read_samples(storage, shard, [KEY], manifest.samples).column(0).combine_chunks()
        return keys.cast(pa.large_string()), f"the dataset, {shard.path}"

    # Threads that read from a disk would mostly wait for each other.
    return in_order(read, range(len(manifest.shards)), _THREADS if storage.is_remote else 1)


def _refuse_erased(storage: ReadableStorage, manifest: Manifest, plan: Plan, key: str) -> None:
    """Refuse rows with keys that were erased from the dataset; reads the column of keys."""
    erased = read_erased(storage, manifest)
    for rows in read_rows(plan.table, 0, plan.num_rows, [key]) if erased else ():
        keys = keys_of(plan, rows)
        found = np.flatnonzero(erased.contains(keys.to_pylist()))
        if len(found):
            row = int(found[0])
            raise InputError(
                "a row has a key that was erased from the dataset",
                place=rows.where(row),
                expected="keys that `wdsplit erase` did not remove",
                found=repr(keys[row].as_py()),
                remedy="leave such rows out (--where); or bring them back with --allow-erased (allow_erased=True)",
                key=keys[row].as_py(),
            )


def _refuse_known_inputs(storage: ReadableStorage, manifest: Manifest, plan: Plan) -> None:
    """Refuse inputs that the dataset was made of already: their rows have no keys that would tell."""
    selection = plan.table.selection.to_json()
    files = {(file.path, file.num_bytes, file.num_rows) for file in plan.table.files}
    for number, folder in [(1, ""), *((each.number, each.folder) for each in manifest.history[1:])]:
        provenance = manifest.provenance
        if folder:
            provenance = parse_header(storage.read(f"{folder}/{HEADER_NAME}", MAX_HEADER_BYTES))["provenance"]
        if provenance.get("selection") != selection:
            continue
        for file in provenance.get("inputs", ()):
            if (file.get("path"), file.get("num_bytes"), file.get("num_rows")) in files:
                raise InputError(
                    f"version {number} of the dataset was made of an input already",
                    expected="new files: their rows are numbered, and would come twice",
                    found=f"the path, size and number of rows ({file['num_rows']:,}) of then",
                    remedy="leave it out; or rename it, if its rows are other ones",
                    url=file["path"],
                )


def _grown(manifest: Manifest, plan: Plan, part: Manifest, folder: str, inputs: str) -> Manifest:
    """Return the manifest of the next version, whose added shards, in `folder`, are those of the manifest `part`."""
    table = part.shards.table
    paths = pa.array([f"{folder}/{path}" for path in table.column("path").to_pylist()])
    table = table.set_column(0, table.schema.field(0), paths)
    shards = Shards(pa.concat_tables([manifest.shards.table, table]).combine_chunks())
    next_key = NO_NEXT_KEY if plan.key is not None else plan.first_key + plan.table.total_rows
    changes = {"shards": shards, "fields": plan.fields, "samples": part.samples}
    return next_version(manifest, next_key, changes, source=plan.source, inputs=inputs, folder=folder)


def next_version(manifest: Manifest, next_key: int, changes: Mapping[str, Any], **how: Any) -> Manifest:
    """Return the manifest of the next version, given what changes; how it was made are attributes of `Version`."""
    history, grown = history_of(manifest), dataclasses.replace(manifest, **changes, shards_checksum="")
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    made = _version(grown, history[-1].number + 1, next_key, created=created, **how)
    return dataclasses.replace(grown, history=(*history, made))


def history_of(manifest: Manifest) -> tuple[Version, ...]:
    """Return the versions of a dataset up to this one, also if it has only one."""
    if manifest.history:
        return manifest.history
    files = manifest.provenance.get("inputs", ())
    names = [str(file.get("path", "")) if isinstance(file, dict) else str(file) for file in files]
    return (_version(manifest, 1, next_key_of(manifest), inputs=listed(map(shown_url, names), _MAX_INPUTS)),)


def _version(manifest: Manifest, number: int, next_key: int, **how: Any) -> Version:
    """Return the entry of a version, given its manifest; how it was made are the other attributes."""
    counts = manifest.num_samples, len(manifest.shards), manifest.num_bytes
    return Version(number, manifest.fingerprint, *counts, next_key, **how)
