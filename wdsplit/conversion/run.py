"""A run and its output: what can be overwritten, resumed or removed.

While a conversion is unfinished, the output has a folder with its plan and a note for each published shard. The folder
is created before anything in the output changes, and removed after the manifest is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from wdsplit.conversion.job import SHARDS_FOLDER, Published, ShardRow, parse_row
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER
from wdsplit.conversion.spool import SPOOL
from wdsplit.errors import DatasetNotFoundError, InputError, OutputExistsError, StorageError, WdsplitError
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.record import Record
from wdsplit.shards.annotations import ANNOTATIONS
from wdsplit.shards.files import read_manifest, write_manifest
from wdsplit.shards.manifest import ERASE_FOLDER, HEADER_NAME, RUN_FOLDER, SHARDS_NAME, Manifest, Shard, shard_path
from wdsplit.shards.places import places_path
from wdsplit.shards.sample_tables import samples_path
from wdsplit.shards.sidecars import ENERGON_FOLDER, ENERGON_NAMES, WIDS_NAME, shard_sidecars, write_sidecars
from wdsplit.shards.versions import ADDED_FOLDER, OF_APPEND, OF_SHARD, OF_VERSION, REWRITTEN, VERSIONS_FOLDER
from wdsplit.shards.views import VIEWS
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import is_temporary
from wdsplit.texts import listed

__all__ = ["Run", "is_below"]

logger = logging.getLogger(__name__)

_KEPT = (ANNOTATIONS.folder, VIEWS.folder)


class Run(Record):
    """The conversion that writes, or wrote, into an output.

    Args:
        storage: The output.
        emit: The sidecars that the run writes.
    """

    def __init__(self, storage: Storage, emit: Sequence[str] = ()) -> None:
        super().__init__(storage, RUN_FOLDER)
        self.emit = list(emit)

    @property
    def exists(self) -> bool:
        """Whether the output contains a dataset or an unfinished run."""
        return self.storage.size(HEADER_NAME) is not None or self.is_unfinished

    @property
    def snapshot(self) -> str:
        """The version of the Delta or Iceberg table that the run reads; empty without one."""
        finished = self.storage.size(HEADER_NAME) is not None and not self.is_unfinished
        noted = read_manifest(self.storage).provenance if finished else self.plan
        return str(noted.get("snapshot", ""))

    def refuse_file_inside(self, path: str, what: str) -> None:
        """Refuse an output that contains a needed file: the output is emptied when a run starts."""
        if is_below(path, self.storage.url):
            raise InputError(
                f"{what} is inside the output",
                expected=f"a path outside {self.storage.url}",
                remedy=f"choose another output, or another folder for {what}: the output is emptied when a run starts",
                url=path,
            )

    def refuse_output(self, overwrite: bool, resume: bool) -> None:
        """Refuse an output that is not empty, unless wdsplit wrote it and it may be overwritten or resumed.

        Raises:
            OutputExistsError: The content does not allow what the options request.
        """
        storage = self.storage
        above = [] if storage.is_remote else [path for path in Path(storage.url).parents if path.is_file()]
        if storage.size("") is not None or above:
            raise InputError(
                "a parent of the output is a file" if above else "the output is a file",
                expected="a folder, which need not exist",
                found=f"the file {above[0]}" if above else "",
                remedy="choose another output, and give it last: INPUT... OUTPUT",
                url=storage.url,
            )
        names = [name for name in storage.list() if name != RUN_FOLDER]
        finished, started = HEADER_NAME in names, self.is_unfinished
        found, nothing = listed(names, 5) or "nothing", "no such folder, or an empty one"
        if overwrite:
            if finished and b'"adopted"' in storage.read(HEADER_NAME):
                remedy = "choose another folder; these tars would be lost"
                cause = "the output contains tars that wdsplit indexed but did not write"
                self.refuse(cause, "a dataset that wdsplit converted, or nothing", found, remedy)
            foreign = {name for name in names if not (finished or started) or not self._is_ours(name)}
            if foreign:  # listed again: a late share renames its files
                foreign.intersection_update(storage.list())
            if foreign:
                cause = "the output contains files that wdsplit did not write"
                remedy, found = "choose another folder, or remove them", listed(sorted(foreign), 5)
                self.refuse(cause, "a dataset, an unfinished run, or nothing", found, remedy)
        elif resume:
            if not (started or finished):
                self.refuse("no unfinished run to resume", "an unfinished run", found, "leave out --resume")
        elif finished:
            cause = "the output is already a finished dataset"
            self.refuse(cause, nothing, found, "use --overwrite to replace it")
        elif started:
            remedy = "use --resume to continue it, or --overwrite to start again"
            self.refuse("the output is an unfinished run", nothing, found, remedy)
        elif names:
            remedy = "choose a folder that is empty or does not exist yet"
            self.refuse("the output is not empty", nothing, found, remedy)

    def refuse(self, cause: str, expected: str, found: str, remedy: str) -> NoReturn:
        """Raise the error for an output whose content does not allow what is requested."""
        url = self.storage.url
        raise OutputExistsError(cause, expected=expected, found=found, remedy=remedy, url=url)

    def _is_ours(self, name: str) -> bool:
        """Return whether wdsplit may have written a file of this name."""
        of_shard = OF_SHARD.fullmatch(REWRITTEN.sub("", name))
        if name in (*_KEPT, ERASE_FOLDER):
            return True
        if name == ENERGON_FOLDER:
            return all(inner in ENERGON_NAMES or is_temporary(inner) for inner in self.storage.list(name))
        if name in (ADDED_FOLDER, VERSIONS_FOLDER):
            pattern = OF_APPEND if name == ADDED_FOLDER else OF_VERSION
            return all(pattern.fullmatch(inner) or is_temporary(inner) for inner in self.storage.list(name))
        alone = name in (HEADER_NAME, SHARDS_NAME, WIDS_NAME)
        known = alone or is_temporary(name) or (of_shard is not None and of_shard[1].isdigit())
        return known and self.storage.size(name) is not None

    def start(self, plan: Plan) -> None:
        """Start a new run; empties the output, the header first.

        Views and annotations are kept: they stay valid if the new shards are the same, else the fingerprint differs.
        """
        inner = [f"{RUN_FOLDER}/{name}" for name in self.storage.list(RUN_FOLDER) if not name.startswith(SPOOL)]
        self.storage.remove(self.plan_path, *(path for path in inner if path != self.lock_path))
        self.begin({**plan.summary(), "emit": self.emit})
        self.storage.remove(HEADER_NAME)
        self.storage.remove(*(name for name in self.storage.list() if name not in (RUN_FOLDER, *_KEPT)))
        self.storage.remove_temporary()

    def continued(self, plan: Plan) -> Manifest | None:
        """Return the manifest of a plan's run if it is finished; None if it is unfinished.

        Raises:
            DatasetNotFoundError: The output has neither.
            OutputExistsError: It has another run or dataset, or an input has changed since the run began.
        """
        manifest = read_manifest(self.storage) if self.storage.size(HEADER_NAME) is not None else None
        found = self.plan if manifest is None else {"emit": [], **manifest.provenance, "modified": plan.modified}
        if not found and not self.is_unfinished:
            raise DatasetNotFoundError(
                "the output has no run of this plan",
                expected=f"the run of plan {plan.hash}",
                found=self.storage.describe_contents(),
                remedy="check that all machines have this output at the same path; if its run was removed, plan again",
                url=self.storage.url,
            )
        for name, expected, cause in (
            ("plan", plan.hash, "the output was made by another plan"),
            ("emit", self.emit, "the output was made with other sidecars"),
            ("modified", plan.modified, "an input has changed since the run began: some shards would contain old rows"),
        ):
            if found.get(name) != expected:
                remedy = "use the inputs, options and plan file of that run, or --overwrite to start again"
                wanted, other = (
                    f"{name} {value}" if name != "emit" else f"--emit {','.join(value)}" if value else "no --emit"
                    for value in (expected, found.get(name))
                )
                self.refuse(cause, wanted, other, remedy)
        return manifest

    def remove_temporary(self, storage: Storage | None = None) -> None:
        """Remove the temporary files of tasks that were killed."""
        for folder in ("", RUN_FOLDER, SHARDS_FOLDER, SPILL_FOLDER):
            (storage or self.storage).remove_temporary(folder)

    def commit(self, plan: Plan, published: Published) -> Manifest:
        """Finish a run whose shards all exist: write sidecars and the manifest, the header last; remove its files.

        Raises:
            WdsplitError: A file is missing or has the wrong size, the output belongs to another run, or is not
                writable.
        """
        manifest = published.manifest(self.emit)
        write_sidecars(self.storage, manifest, self.emit)
        self.refuse_taken_over(plan.hash)
        sizes = cache(self.storage.sizes)
        for number in range(plan.num_shards) if self.storage.is_remote else ():
            path = self._lost(manifest.shards[number], sizes)
            if path is not None:
                raise StorageError(
                    "the store has lost a file that was written",
                    expected="the size that was written",
                    remedy="continue with --resume",
                    url=f"{self.storage.url}/{path}",
                )
        # The last task of a replaced run looks at the plan, and may publish its shard after that was replaced.
        names = sizes("") if self.storage.is_remote else self.storage.list()
        numbers = {name: of_shard[1] for name in names if (of_shard := OF_SHARD.fullmatch(name))}
        late = [name for name, number in numbers.items() if number.isdigit() and int(number) >= plan.num_shards]
        self.storage.remove(*late)
        write_manifest(self.storage, manifest)
        self.finish()
        return manifest

    def leave_resumable(self, plan: Plan) -> None:
        """Clean up after an error: remove temporary files, and everything if there is nothing to resume.

        Leaves the output of another run alone, and does not wait for a store that does not answer.
        """
        storage = self.storage.with_short_deadline()
        try:
            if storage.is_remote and Record(storage, RUN_FOLDER).plan.get("plan") != plan.hash:
                return
            self.remove_temporary(storage)
            spilled = any(name.endswith(".arrow") for name in storage.list(SPILL_FOLDER))
            if {*storage.list()} - {*_KEPT} == {RUN_FOLDER} and not spilled:
                self.end(storage)
        except WdsplitError as error:
            if not storage.is_remote:
                raise
            logger.warning("%s: could not clean up after an error (%s); --resume does it", storage.url, error.cause)

    def finish(self) -> None:
        """Remove the files of an unfinished run, and incomplete uploads."""
        for folder in ("", *([ENERGON_FOLDER] if "energon" in self.emit else [])):
            self.storage.remove_temporary(folder)
        self.end()

    def existing_shards(self, plan: Plan, shards: range) -> dict[int, ShardRow]:
        """Return the shards that tasks have noted and whose files all exist with the right sizes.

        Lists each folder once, after the notes were read.
        """
        noted = dict(Notes(self.storage, SHARDS_FOLDER).read(plan.hash, shards, parse_row))
        sizes = cache(self.storage.sizes)
        return {
            number: row for number, row in noted.items() if self._lost(Shard(shard_path(number), *row), sizes) is None
        }

    def _lost(self, shard: Shard, sizes: Callable[[str], Mapping[str, int]]) -> str | None:
        """Return a file of a shard that is missing or has the wrong size; None if all are correct."""
        for path in (shard.path, places_path(shard.path), samples_path(shard.path), *shard_sidecars(shard, self.emit)):
            folder, _, name = path.rpartition("/")
            found = sizes(folder).get(name)
            if not found or (path == shard.path and found != shard.num_bytes):
                return path
        return None


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is in or below a folder; both are local paths or URLs."""
    if "://" in folder or "://" in path:
        return path.startswith(f"{folder}/")
    return Path(folder).resolve() in Path(path).resolve().parents
