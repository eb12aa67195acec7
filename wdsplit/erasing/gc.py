"""`gc` removes the files that only old versions of a dataset name, and what stopped writers have left.

Files that wdsplit does not know stay. The tables that name files go last, so that a stopped run can be run again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from wdsplit.annotating.run import AnnotationRun
from wdsplit.conversion.append import latest_locked
from wdsplit.conversion.run import Run
from wdsplit.errors import InputError, WdsplitError
from wdsplit.integers import at_least
from wdsplit.jobs.record import Record
from wdsplit.shards.annotations import ANNOTATIONS, RUN_SUFFIX, SIDE_TABLES, annotation_of_folder, side_table_path
from wdsplit.shards.files import existing_versions, read_manifest
from wdsplit.shards.manifest import ERASE_FOLDER, HEADER_NAME, RUN_FOLDER, SHARDS_NAME, Manifest
from wdsplit.shards.sidecars import write_sidecars
from wdsplit.shards.stored import Kind, version_of
from wdsplit.shards.table import MAX_TABLE_BYTES, parse_shards
from wdsplit.shards.versions import (
    ADDED_FOLDER,
    OF_APPEND,
    OF_SHARD,
    OF_VERSION,
    REWRITTEN,
    VERSIONS_FOLDER,
    table_path,
    version_path,
)
from wdsplit.shards.views import VIEWS
from wdsplit.storage.given import PathLike, located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.texts import Brief, listed

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Collected", "gc"]


@dataclass(frozen=True, repr=False)
class Collected(Brief):
    """What was removed from a dataset.

    Attributes:
        kept: The versions that were kept.
        removed: The versions that were removed.
        num_files: Number of removed files.
    """

    kept: tuple[int, ...]
    removed: tuple[int, ...]
    num_files: int


def gc(
    dataset: PathLike,
    *,
    keep: int = 1,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Collected:
    """Remove old versions of a dataset: the files that no later version needs, and what stopped writers have left.

    Afterwards no file of the dataset has anything of samples that were erased up to the oldest version that is kept.
    Files that wdsplit does not know stay. An interrupted run can be run again.

        wdsplit.gc("data/train", keep=1)

    Args:
        dataset: Folder of the dataset.
        keep: Number of versions to keep, the newest.
        storage_options: Options for a remote store, as for `wdsplit.convert`.
        fs: fsspec file system of the dataset; None to choose it by the path.

    Raises:
        InputError: `keep` is invalid; or a view or an annotation belongs to no version that would be kept.
        StorageError: Another process of this machine writes to the dataset.
    """
    keep = at_least(1, "keep", keep, also=": versions to keep")
    storage = open_storage(*located_one(dataset, storage_options, fs))
    with latest_locked(storage) as latest:
        numbers = [each.number for each in existing_versions(storage, latest)]
        kept = [read_manifest(storage, number) for number in numbers[-keep:]] or [latest]
        work = _Collecting(storage, latest, kept)
        for kind in (VIEWS, ANNOTATIONS):
            work.collect_stored(kind, is_trial=True)
        work.end_annotations()
        write_sidecars(storage, latest, latest.emit)
        Record(storage, ERASE_FOLDER).end()  # a writer on another machine notices
        work.collect_stored(VIEWS)
        work.collect_stored(ANNOTATIONS)
        work.collect_annotations()
        work.collect_shards()
        work.collect_tables()
        Run(storage).finish()
    return Collected(tuple(each.version for each in kept), tuple(numbers[:-keep]), work.num_files)


class _Collecting:
    """A run: removes what no kept version names.

    Args:
        storage: The dataset.
        latest: The manifest of its latest version.
        kept: Those of the versions to keep, the latest last.
    """

    def __init__(self, storage: Storage, latest: Manifest, kept: list[Manifest]) -> None:
        self._storage, self.num_files = storage, 0
        self._kept = {version_of(each.fingerprint): each for each in kept}
        self._dropped = {version_of(each.fingerprint) for each in latest.history} - self._kept.keys()
        self._has_erased = "erased" in latest.provenance
        self._folders = {each.folder for each in latest.history}
        self._named = {path for each in kept for path in each.shards.table.column("path").to_pylist()}

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files."""
        found = list(paths)
        self._storage.remove(*found)
        self.num_files += len(found)

    @cached_property
    def _known(self) -> set[str]:
        """The shards that any table in the dataset lists."""
        tables = [path for path in self._of_versions() if path.endswith(".parquet")]
        known = set(self._named)
        for path in (SHARDS_NAME, *tables):
            with suppress(WdsplitError):  # of a writer that was stopped, or removed already
                known.update(parse_shards(self._storage.read(path, MAX_TABLE_BYTES)).table.column("path").to_pylist())
        return known

    def collect_stored(self, kind: Kind[Any], is_trial: bool = False) -> None:
        """Remove the views or annotations of versions that are not kept.

        Those of other shards than any version has stay, unless a kept version has the same name, or samples were
        erased, which they may still have.

        Args:
            kind: Views or annotations.
            is_trial: Whether to remove nothing, and only to refuse what would be lost.

        Raises:
            InputError: One belongs to no version that is kept.
        """
        lost: list[str] = []
        for name, versions in kind.versions(self._storage).items():
            gone = [version for version in versions if version not in self._kept]
            if len(gone) == len(versions):
                gone = [version for version in gone if version in self._dropped or self._has_erased]
                lost += [name] if gone else []
            if not is_trial:
                self.remove(kind.path(name, version) for version in gone)
        if lost:
            raise InputError(
                f"{kind.what} {lost[0]!r} belongs to no version that would be kept",
                place=self._storage.url,
                expected=f"{kind.what}s of the versions that are kept",
                found=listed(list(map(repr, lost)), 5),
                remedy=f"make it for the latest version with {kind.again.format(name=lost[0])}, or remove it with "
                f"`wdsplit {kind.make.split()[1]} DATASET --drop {lost[0]}`; or --keep more versions",
            )

    def end_annotations(self) -> None:
        """Remove the unfinished runs of annotations for other versions: their spill files have keys and payloads.

        Raises:
            StorageError: Another process is annotating the dataset.
        """
        for entry in self._storage.list(ANNOTATIONS.folder):
            if entry.endswith(RUN_SUFFIX):
                run = AnnotationRun(self._storage, entry.removesuffix(RUN_SUFFIX))
                with run.locked():
                    if version_of(str(run.plan.get("fingerprint"))) not in self._kept:
                        run.end()

    def collect_annotations(self) -> None:
        """Remove tables and side shards of shards that are not kept, and the folders of annotations that are gone."""
        used: dict[str, set[str]] = {}
        unknown, storage = set[str](), self._storage
        for name, versions in ANNOTATIONS.versions(storage).items():
            try:
                for version in versions:
                    folder = ANNOTATIONS.read(storage, name, ANNOTATIONS.path(name, version)).folder
                    used.setdefault(folder, set()).update(self._kept[version].shards.table.column("path").to_pylist())
            except (WdsplitError, KeyError):  # damaged, or made for other shards than any version has
                if self._has_erased:  # its folder may still have these samples
                    raise
                unknown.add(name)
        entries = storage.list(ANNOTATIONS.folder)
        for entry in entries:
            name, folder = annotation_of_folder(entry), f"{ANNOTATIONS.folder}/{entry}"
            if not name or name in unknown:
                continue
            is_unfinished = f"{name}{RUN_SUFFIX}" in entries  # the run of a kept version may write its shards there
            if folder not in used and not is_unfinished:
                self._remove_folder(folder)
                continue
            self._sweep(f"{folder}/", used.get(folder, set()) | (self._named if is_unfinished else set()))
            tables = {side_table_path(folder, version) for version in self._kept}
            found = [f"{folder}/{each}" for each in storage.sizes(folder) if each.startswith(SIDE_TABLES)]
            self.remove(path for path in found if path not in tables)

    def collect_shards(self) -> None:
        """Remove shards with their files, and what appends that were stopped have left."""
        for entry in filter(OF_APPEND.fullmatch, self._storage.list(ADDED_FOLDER)):
            folder = f"{ADDED_FOLDER}/{entry}"
            if folder in self._folders:  # its header stays: it says of which inputs no row may come again
                self._remove_folder(f"{folder}/{RUN_FOLDER}")
            else:
                self._storage.remove(f"{folder}/{RUN_FOLDER}", f"{folder}/{HEADER_NAME}")  # its writer notices
                self._remove_folder(folder)
        self._sweep("", self._named)

    def collect_tables(self) -> None:
        """Remove what named the files that are gone."""
        kept = {each for manifest in self._kept.values() for each in manifest.provenance.get("erased", ())}
        for manifest in self._kept.values():
            kept |= {version_path(manifest.version), table_path(manifest.version, manifest.shards_checksum)}
        found = [*self._of_versions(), *([SHARDS_NAME] if self._storage.size(SHARDS_NAME) is not None else [])]
        gone = [path for path in found if path not in kept]
        self.remove(path for path in gone if path.endswith(".json"))
        self.remove(path for path in gone if not path.endswith(".json"))
        for folder in (VERSIONS_FOLDER, VIEWS.folder, ANNOTATIONS.folder):
            self._storage.remove_temporary(folder)

    def _of_versions(self) -> list[str]:
        """Return the paths of headers, tables and hashes of versions."""
        names = filter(OF_VERSION.fullmatch, self._storage.list(VERSIONS_FOLDER))
        return [f"{VERSIONS_FOLDER}/{name}" for name in names]

    def _sweep(self, prefix: str, named: Collection[str]) -> None:
        """Remove the files of shards that wdsplit has written or listed, and that have none of some names."""
        for folder in sorted({"", *map(os.path.dirname, self._known)}):
            self._storage.remove_temporary(f"{prefix}{folder}".rstrip("/"))
            gone = []
            for name in self._storage.sizes(f"{prefix}{folder}".rstrip("/")):
                match = OF_SHARD.fullmatch(os.path.join(folder, name))
                shard = f"{match[1]}.tar" if match else ""
                if shard and shard not in named and (shard in self._known or REWRITTEN.search(shard)):
                    gone.append(f"{prefix}{os.path.join(folder, name)}")
            self.remove(gone)

    def _remove_folder(self, folder: str) -> None:
        """Remove a folder, if there is one."""
        self.num_files += len(self._storage.sizes(folder))
        self._storage.remove(folder)
