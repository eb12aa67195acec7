"""`erase` removes samples from a dataset: the shards that have them are written again, and named by a new version.

Until the header of that version exists, the dataset is as before; shards that were written are found by the next try.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from wdsplit.conversion.append import create_version, latest_locked, next_version
from wdsplit.conversion.base import next_key_of
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.erasing.rewrite import EraseJob, Rewritten, parse_rewritten, rewrite_shards
from wdsplit.errors import InputError, StorageError, WdsplitError
from wdsplit.jobs.record import Record
from wdsplit.jobs.run import Pass, run
from wdsplit.order.bundles import Groups, Packs, Units
from wdsplit.order.selection import Selection
from wdsplit.order.units import Repeats
from wdsplit.shards.annotations import list_annotations, read_side_shards, write_annotation, write_side_shards
from wdsplit.shards.erased import dump_erased, hash_erased, read_erased
from wdsplit.shards.manifest import ERASE_FOLDER, Manifest, Shard, Shards
from wdsplit.shards.sidecars import write_sidecars
from wdsplit.shards.versions import erased_path
from wdsplit.shards.views import VIEWS, read_view, write_view
from wdsplit.storage.given import PathLike, located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tar.names import escape_key
from wdsplit.texts import counted
from wdsplit.views.choosing import Chosen, choose, read_choice, refuse_missing
from wdsplit.views.columns import SampleColumns
from wdsplit.views.keys import KeyList

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["EraseProgress", "erase"]

logger = logging.getLogger(__name__)


class EraseProgress(NamedTuple):
    """Progress of a pass.

    Attributes:
        name: The pass: samples are chosen (`choose`), then shards written again (`write`).
        done: Number of shards that are done.
        total: Their total number.
        num_bytes: Bytes of the written shards before.
    """

    name: Literal["choose", "write"]
    done: int
    total: int
    num_bytes: int = 0


def erase(
    dataset: PathLike,
    *,
    keys: Any = None,
    where: str | None = None,
    allow_missing: bool = False,
    jobs: int = 1,
    progress: Callable[[EraseProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
) -> Manifest:
    """Erase samples from a dataset, as a new version; `gc` then removes the versions that still have them.

    Only the shards that have one of the samples are read, and written again under new names, with their tables and the
    side shards of annotations. An interrupted run continues when it is run again.

        wdsplit.erase("data/train", keys=["00000003"])
        wdsplit.gc("data/train", keep=1)

    Args:
        dataset: Folder of the dataset, which must have sample tables.
        keys: The keys of the samples: a list or a file, as for `wdsplit.make_view`.
        where: A condition on the columns of samples, as for `wdsplit.make_view`. With keys, only those of them that
            meet it are erased.
        allow_missing: Warn about keys without a sample, instead of raising an error. Keys that were erased before are
            not missing.
        jobs: Number of parallel tasks.
        progress: Called with the progress so far, at the start of each pass and after each task.
        storage_options: Options for remote stores, as for `wdsplit.convert`.
        engine: Engine that runs the tasks, such as `wdsplit.RayEngine`; None for `jobs` processes of this machine.
        fs: fsspec file system of the dataset; None to choose it by the path.

    Returns:
        The manifest of the new version; of the latest, if no sample is left to erase.

    Raises:
        InputError: The condition or the list is invalid, some of `keys` have no sample, or no sample would be left.
        ConvertError: Another writer has made a version meanwhile.
        StorageError: Another process of this machine writes to the dataset.
    """
    if keys is None and where is None:
        remedy = "give --keys FILE or --where CONDITION"
        raise InputError("no samples to erase", expected="keys or where", remedy=remedy)
    url, storage_options = located_one(dataset, storage_options, fs)
    storage, engine = open_storage(url, storage_options), engine or LocalEngine(jobs)
    report = progress or (lambda _: None)
    with latest_locked(storage) as manifest:
        columns = SampleColumns(storage, manifest)
        choice = read_choice(columns, {"keys": keys, "where": where}, storage_options)
        chosen = choose(
            columns,
            manifest.shards.num_real,
            choice,
            engine=engine,
            progress=lambda done, total, _: report(EraseProgress("choose", done, total)),
        )
        if choice.keys is not None:
            chosen = _with_erased(storage, manifest, choice.keys, chosen)
        refuse_missing(columns, choice, chosen, allow_missing)
        selection = chosen.selection.chosen
        if selection.num_samples == manifest.num_samples:
            raise InputError(
                "no sample would be left",
                place=storage.url,
                expected=f"fewer than all {counted(manifest.num_samples, 'sample')}",
                found=f"{selection.num_samples:,} to erase",
                remedy="remove the folder of the dataset",
                url=storage.url,
            )
        if selection.num_samples:
            job = EraseJob(
                output=url,
                storage_options=storage_options,
                shared=not engine.is_local,
                manifest=manifest,
                selection=selection,
                annotations=tuple(
                    (each, read_side_shards(storage, each, manifest) if each.fields else None)
                    for each in list_annotations(storage, manifest).values()
                ),
            )
            manifest = _carry_out(job, storage, engine, report)
        else:
            logger.warning("%s: no sample is left to erase: nothing is changed", storage.url)
        write_sidecars(storage, manifest, manifest.emit)
    return manifest


def _with_erased(storage: Storage, manifest: Manifest, keys: KeyList, chosen: Chosen) -> Chosen:
    """Return what was chosen, with the keys that were erased before as found."""
    found, erased = chosen.found["keys"].copy(), read_erased(storage, manifest)
    missing = np.flatnonzero(~found)
    texts = [key for key in keys.keys.take(pa.array(missing)).to_pylist() if key]
    if erased and len(texts) == len(missing):
        found[missing] = erased.contains(texts) | erased.contains(map(escape_key, texts))
    return dataclasses.replace(chosen, found={"keys": found})


def _carry_out(job: EraseJob, storage: Storage, engine: Engine, report: Callable[[EraseProgress], None]) -> Manifest:
    """Write the shards that change, or what is left of them, and the new version; return its manifest."""
    manifest, record = job.manifest, Record(storage, ERASE_FOLDER)
    if record.plan.get("plan") != job.run:
        record.end()
        record.begin({"plan": job.run})
    results: dict[int, Rewritten] = {}
    sizes = manifest.shards.column("num_bytes")[job.numbers]
    run(
        job,
        Pass(
            "shards",
            len(job.numbers),
            partial(rewrite_shards, job),
            parse_rewritten,
            f"{ERASE_FOLDER}/{job.run}",
            describe=lambda items: manifest.shards[int(job.numbers[items.start])].path,
        ),
        engine,
        results.__setitem__,
        lambda done, total, _: report(EraseProgress("write", done, total, int(sizes[list(results)].sum()))),
        num_bytes=None if storage.has_latency else int(sizes.sum()),
    )
    made = [results[item] for item in range(len(job.numbers))]
    shards = _replaced(job, manifest.shards, [each.shard for each in made])
    hashes = erased_path(manifest.version + 1, job.run)
    provenance = {**manifest.provenance, "erased": [*manifest.provenance.get("erased", ()), hashes]}
    changes = {"shards": shards, "provenance": provenance}
    grown = next_version(manifest, next_key_of(manifest), changes, inputs="samples erased")
    with storage.publish(hashes, durable=True) as file:
        file.write([dump_erased((each for one in made for each in one.erased), manifest.fingerprint)])
    written = [shards, *_write_annotations(job, storage, grown, made)]
    _write_views(job, storage, grown)
    folders = _refuse_lost(job, storage, written)
    record.refuse_taken_over(job.run, job.shared)
    create_version(storage, grown)
    record.end()
    for folder in folders:
        storage.remove_temporary(folder)
    return grown


def _replaced(job: EraseJob, shards: Shards, made: Sequence[Shard | None]) -> Shards:
    """Return shards of the dataset, or side shards, with those that changed as they are now."""
    columns = shards.table.to_pydict()
    is_left = np.ones(len(shards), np.bool_)
    for number, shard in zip(job.numbers.tolist(), made, strict=True):
        is_left[number] = shard is not None
        for name, value in dataclasses.asdict(shard).items() if shard is not None else ():
            columns[name][number] = value
    return Shards(Shards.of_columns(columns).table.filter(pa.array(is_left)).combine_chunks())


def _write_annotations(job: EraseJob, storage: Storage, grown: Manifest, made: Sequence[Rewritten]) -> list[Shards]:
    """Write the annotations of the new version, beside those of the version before; return their side shards."""
    written, hashes = [], {each for one in made for each in one.erased}
    for number, (annotation, side) in enumerate(job.annotations):
        checksum = ""
        if side is not None:
            written.append(_replaced(job, side.shards, [each.sides[number] for each in made]))
            checksum = write_side_shards(storage, annotation.folder, written[-1], grown.fingerprint)
        changed = dataclasses.replace(
            annotation,
            fingerprint=grown.fingerprint,
            num_samples=grown.num_samples,
            num_missing=max(0, annotation.num_missing - sum(each.missing[number] for each in made)),
            num_bytes=annotation.num_bytes + sum(each.grown[number] for each in made),
            shards_checksum=checksum,
            provenance=_without_failed(annotation.provenance, hashes, job.manifest.fingerprint),
        )
        write_annotation(storage, changed)
    return written


def _without_failed(provenance: Mapping[str, Any], hashes: Collection[str], fingerprint: str) -> Mapping[str, Any]:
    """Return where an annotation comes from, without those samples among the listed failures that were erased."""
    failed = provenance.get("failed", ())
    found = hash_erased((one["key"] for one in failed), fingerprint)
    left = [one for one, each in zip(failed, found, strict=True) if each not in hashes]
    changed = {"num_failed": provenance.get("num_failed", 0) - len(failed) + len(left), "failed": left}
    return {**provenance, **changed} if failed else provenance


def _write_views(job: EraseJob, storage: Storage, grown: Manifest) -> None:
    """Write the views of the new version, beside those of the version before: the same samples without the erased ones.

    Packs and groups must be made again, because their items are shifted.
    """
    for name in VIEWS.versions(storage):
        try:
            stored, units = read_view(storage, job.manifest, name, whole=True)
        except WdsplitError:  # damaged, or of another version
            continue
        if isinstance(units, (Packs, Groups)):
            continue
        masks, stays = [], [np.zeros(0, np.bool_)]
        for number in range(len(job.selection)):
            mask, is_left = units.chosen.mask(number), ~job.selection.mask(number)
            masks += [mask[is_left]] if is_left.any() else []
            stays.append(is_left[mask])
        left: Units = Selection.of_masks(masks)
        if isinstance(units, Repeats):
            left = Repeats(left.chosen, units.times[np.concatenate(stays)], units.kind)
        write_view(storage, grown, name, left, stored.recipe)


def _refuse_lost(job: EraseJob, storage: Storage, written: Sequence[Shards]) -> set[str]:
    """Refuse to make a version of which a shard is not there any more; return the folders of those written again."""
    folders = {""}
    for shards in written:
        for number, path in enumerate(shards.table.column("path").to_pylist()):
            if not path.endswith(f"-{job.run}.tar"):
                continue
            folders.add(os.path.dirname(path))
            if storage.size(path) != shards[number].num_bytes:
                raise StorageError(
                    "a shard that was written is gone",
                    place=f"{storage.url}/{path}",
                    expected=f"{shards[number].num_bytes:,} bytes",
                    found="no such file, or another size",
                    remedy=f"remove {storage.url}/{ERASE_FOLDER}, and run the same command again",
                    url=f"{storage.url}/{path}",
                )
    return folders
