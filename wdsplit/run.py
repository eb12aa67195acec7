"""A run and its output: what may be overwritten, what can be continued, and what is left behind.

While a conversion is unfinished, the output has a folder with its plan and a note on each shard that is published. The
folder is there before anything of the output is touched, and goes when the manifest is there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from wdsplit.emit import shard_sidecars
from wdsplit.errors import InputError, OutputExistsError
from wdsplit.manifest import HEADER_NAME, RUN_FOLDER, SHARDS_NAME, Manifest, Shard, index_path
from wdsplit.plan import Plan
from wdsplit.scatter import SPILL_FOLDER
from wdsplit.shards import read_manifest
from wdsplit.sidecars import ENERGON_FOLDER, ENERGON_NAMES, WIDS_NAME
from wdsplit.storage import Storage, is_temporary, local_path
from wdsplit.task import DONE_FOLDER

__all__ = ["Run"]

logger = logging.getLogger(__name__)

_PLAN_NAME = f"{RUN_FOLDER}/plan.json"
_LOCK_NAME = f"{RUN_FOLDER}/lock"


class Run:
    """The conversion that writes, or wrote, into an output.

    Args:
        storage: The output.
        emit: The sidecars that the run writes.
    """

    def __init__(self, storage: Storage, emit: Sequence[str] = ()) -> None:
        self.storage = storage
        self.emit = list(emit)
        self._ended = False

    @property
    def is_unfinished(self) -> bool:
        """Whether the output holds the plan of a run that is still to be finished."""
        return self.storage.size(_PLAN_NAME) is not None

    @property
    def is_begun(self) -> bool:
        """Whether the output holds a dataset, or an unfinished run."""
        return self.storage.size(HEADER_NAME) is not None or self.is_unfinished

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other run out of the output; the folder that takes goes with the block, unless a plan is in it.

        Raises:
            StorageError: Another one is at work.
        """
        with self.storage.lock(_LOCK_NAME):
            try:
                yield
            finally:
                if not (self._ended or self.is_unfinished):
                    self.end()

    def refuse_inputs_inside(self, paths: Sequence[str]) -> None:
        """Refuse an output that holds an input: overwriting would remove it, and folders would be read again."""
        folder = Path(local_path(self.storage.url)).resolve()
        for path in paths:
            if folder in Path(path).resolve().parents:
                raise InputError(
                    "an input lies inside the output",
                    place=path,
                    expected=f"inputs outside {self.storage.url}",
                    remedy="choose another output folder",
                    url=path,
                )

    def refuse_dataset_around(self) -> None:
        """Refuse an output for the datasets of splits that is a dataset itself, or an unfinished run."""
        if self.is_begun:
            raise OutputExistsError(
                "the output is a dataset itself, so it cannot hold those of splits",
                place=self.storage.url,
                expected="a folder without a dataset",
                found=_some(self.storage.list()),
                remedy="choose another folder",
                url=self.storage.url,
            )

    def refuse_output(self, overwrite: bool, resume: bool) -> None:
        """Refuse an output that holds anything, unless it is ours and may be overwritten or continued.

        Raises:
            OutputExistsError: It holds something else than was asked for.
        """
        if os.path.isfile(local_path(self.storage.url)):
            raise InputError(
                "the output is a file",
                place=self.storage.url,
                expected="a folder, which need not exist",
                remedy="give the output last: INPUT... OUTPUT",
                url=self.storage.url,
            )
        names = [name for name in self.storage.list() if name != RUN_FOLDER]
        finished, started = HEADER_NAME in names, self.is_unfinished
        if overwrite:
            self._refuse_adopted(finished)
            self._refuse_foreign([name for name in names if not (finished or started) or not self._is_ours(name)])
            return
        if not (names or started or resume) or (resume and (started or finished)):
            return
        if finished:
            cause, remedy = "the output is a finished dataset already", "use --overwrite to replace it"
        elif started:
            cause = "the output is an unfinished run"
            remedy = "use --resume to continue it, or --overwrite to start anew"
        elif names:
            cause, remedy = "the output is not empty", "choose a folder that is empty or does not exist yet"
        else:
            cause, remedy = "there is no unfinished run to resume", "leave out --resume"
        raise OutputExistsError(
            cause,
            place=self.storage.url,
            expected="an unfinished run" if resume else "no such folder, or an empty one",
            found=_some(names) or "nothing",
            remedy=remedy,
            url=self.storage.url,
        )

    def _refuse_adopted(self, finished: bool) -> None:
        """Refuse to remove tars that others wrote, and that `wdsplit index` made a dataset of."""
        if finished and b'"adopted"' in self.storage.read(HEADER_NAME):
            raise OutputExistsError(
                "the output holds tars that wdsplit did not write, but indexed",
                place=self.storage.url,
                expected="a dataset that wdsplit converted, an unfinished run, or nothing",
                found="a dataset of adopted tars",
                remedy="choose another folder; these tars would be lost",
                url=self.storage.url,
            )

    def _refuse_foreign(self, foreign: Sequence[str]) -> None:
        if foreign:
            raise OutputExistsError(
                "the output holds files that wdsplit did not write",
                place=self.storage.url,
                expected="a dataset, an unfinished run, or nothing",
                found=_some(foreign),
                remedy="choose another folder, or remove them yourself",
                url=self.storage.url,
            )

    def _is_ours(self, name: str) -> bool:
        """Tell whether wdsplit may have written a file of this name into its output."""
        stem = name.removesuffix(".idx").removesuffix(".tar")
        if name == ENERGON_FOLDER:
            return all(inner in ENERGON_NAMES or is_temporary(inner) for inner in self.storage.list(name))
        alone = name in (HEADER_NAME, SHARDS_NAME, WIDS_NAME)
        known = alone or is_temporary(name) or (stem != name and stem.isdigit())
        return known and self.storage.size(name) is not None

    def start(self, plan: Plan) -> dict[int, Shard]:
        """Begin anew; what the output held is removed, its header first. Return the shards that are there: none."""
        for name in self.storage.list(RUN_FOLDER):
            if f"{RUN_FOLDER}/{name}" != _LOCK_NAME:
                self.storage.remove(f"{RUN_FOLDER}/{name}")
        with self.storage.publish(_PLAN_NAME, durable=True) as file:
            file.write([orjson.dumps({**plan.summary(), "emit": self.emit}, option=orjson.OPT_INDENT_2)])
        names = [name for name in self.storage.list() if name != RUN_FOLDER]
        for name in sorted(names, key=lambda name: name != HEADER_NAME):
            self.storage.remove(name)
        return {}

    def resume(self, plan: Plan) -> dict[int, Shard]:
        """Return the shards that an earlier run of the same plan has published.

        Raises:
            OutputExistsError: The run that is there was made by another plan.
        """
        note = self._note(_PLAN_NAME)
        self._refuse_other_plan(plan, str(note.get("plan")))
        self._refuse_other_emit(note.get("emit", []))
        self._refuse_new_inputs(plan, str(note.get("modified")))
        for folder in ("", RUN_FOLDER, DONE_FOLDER):
            self.storage.remove_temporary(folder)
        done: dict[int, Shard] = {}
        for name in self.storage.list(DONE_FOLDER):
            shard = self._published(f"{DONE_FOLDER}/{name}")
            if shard is not None:
                done[int(name.removesuffix(".json"))] = shard
        logger.info("resuming: %d of %d shards are there already", len(done), plan.num_shards)
        return done

    def finished(self, plan: Plan) -> Manifest | None:
        """Return the manifest if the run is finished; what it should have cleared up is cleared up.

        Raises:
            OutputExistsError: The dataset that is there was made by another plan.
        """
        if self.storage.size(HEADER_NAME) is None:
            return None
        manifest = read_manifest(self.storage)
        self._refuse_other_plan(plan, str(manifest.provenance.get("plan")))
        self._refuse_other_emit(manifest.provenance.get("emit", []))
        self.end()
        return manifest

    def leave_resumable(self) -> None:
        """Clear up after an error: no temporary files, and nothing at all if there is nothing to continue."""
        self.storage.remove_temporary()
        self.storage.remove_temporary(SPILL_FOLDER)
        if self.storage.list() == [RUN_FOLDER] and len(self.storage.list(SPILL_FOLDER)) < 2:
            self.end()

    def end(self) -> None:
        """Remove what only an unfinished run needs."""
        self.storage.remove(RUN_FOLDER)
        self._ended = True

    def _refuse_other_plan(self, plan: Plan, found: str) -> None:
        if found != plan.hash:
            raise OutputExistsError(
                "the run that is there was made by another plan",
                place=self.storage.url,
                expected=f"plan {plan.hash}",
                found=found,
                remedy="use the inputs and options of that run, or --overwrite to start anew",
                url=self.storage.url,
            )

    def _refuse_new_inputs(self, plan: Plan, found: str) -> None:
        if found != plan.modified:
            raise OutputExistsError(
                "an input was written since the run began",
                place=self.storage.url,
                expected="inputs that were left alone",
                found="another time of writing: some shards would be of the old inputs, some of the new",
                remedy="use --overwrite to start anew",
                url=self.storage.url,
            )

    def _refuse_other_emit(self, found: Sequence[str]) -> None:
        if found != self.emit:
            raise OutputExistsError(
                "the run that is there writes other sidecars",
                place=self.storage.url,
                expected=f"--emit {','.join(self.emit)}" if self.emit else "no --emit",
                found=f"--emit {','.join(found)}" if found else "no --emit",
                remedy="use the --emit of that run, or --overwrite to start anew",
                url=self.storage.url,
            )

    def _note(self, path: str) -> dict[str, Any]:
        """Return a note of the run; an empty one if it was damaged, as by a power failure."""
        try:
            note = orjson.loads(self.storage.read(path))
        except orjson.JSONDecodeError:
            return {}
        return note if isinstance(note, dict) else {}

    def _published(self, path: str) -> Shard | None:
        """Return the shard that a note tells of, if it is there whole."""
        note = self._note(path)
        if not note:
            return None
        shard = Shard(**note)
        beside = [index_path(shard.path), *shard_sidecars(shard, self.emit)]
        whole = self.storage.size(shard.path) == shard.num_bytes
        return shard if whole and all(self.storage.size(path) is not None for path in beside) else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
