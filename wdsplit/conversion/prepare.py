"""Prepares a conversion before it writes anything: finds inputs, plans each split, checks outputs, keys and space."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.planning import input_paths, plan_files, shown_notes
from wdsplit.conversion.run import Run, is_below
from wdsplit.conversion.shuffle.needs import Needs, needs_of
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER
from wdsplit.conversion.task import keys_of
from wdsplit.engines.local import Engine
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError
from wdsplit.fields.keys import Place, find_duplicate_keys, hash_keys
from wdsplit.shards.manifest import HEADER_NAME, SHARDS_NAME, shard_path
from wdsplit.shards.sample_tables import samples_path
from wdsplit.storage.given import PathLike, divided_options, located, located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import is_remote, open_storage
from wdsplit.storage.patterns import Files, finds, has_magic, patterns
from wdsplit.tables.formats.common import grouped
from wdsplit.tables.read import read_rows
from wdsplit.tables.snapshots import folder_of_table, open_inputs_of
from wdsplit.tables.table import joined
from wdsplit.texts import human_bytes, listed
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = [
    "Endpoints",
    "Target",
    "locked",
    "prepare",
    "refuse_duplicate_keys",
    "refuse_inside_input",
    "share_needs",
    "target_of",
]

logger = logging.getLogger(__name__)

_JOBS_OF_A_SHARE = 4
"""The assumed number of jobs of a share that divide its memory, when the scatter tasks are cut."""
_HASHED_TOGETHER = 2**14
"""To hash the keys of a small shard takes as long as to hash some thousands."""
_HASHES_AT_ONCE = 32_000_000


@dataclass(frozen=True)
class Endpoints:
    """The inputs and the output of a conversion.

    Attributes:
        inputs: Paths and URLs of the inputs.
        output: Path or URL of the output.
        input_options: Options for the stores of the inputs.
        output_options: Options for the store of the output.
        are_spooled: Whether the input was written for this conversion, so that it may be in the output.
    """

    inputs: Sequence[str]
    output: str
    input_options: Mapping[str, Any] | None
    output_options: Mapping[str, Any] | None
    are_spooled: bool = False

    @classmethod
    def of(
        cls,
        inputs: PathLike | Sequence[PathLike],
        output: PathLike,
        storage_options: Mapping[str, Any] | None,
        fs: AbstractFileSystem | None,
        input_fs: AbstractFileSystem | None,
    ) -> Endpoints:
        """Return what the arguments of `convert` name.

        Raises:
            InputError: A path is not on its file system.
        """
        of_inputs, of_output = divided_options(storage_options, input_fs, fs)
        urls, input_options = located(input_paths(inputs), of_inputs, input_fs)
        url, output_options = located_one(output, of_output, fs)
        return cls(urls, url, input_options, output_options)

    def folders(self, splits: Iterable[str]) -> dict[str, str]:
        """Return the folder of each split's dataset; without splits, the output under the empty name."""
        return {name: os.path.join(self.output, name) for name in splits} or {"": self.output}


@dataclass(frozen=True)
class Target:
    """A dataset to write: that of a split, or the only one.

    Attributes:
        split: Name of the split; empty without splits.
        folder: The folder of the dataset.
        storage_options: Options for its store.
        run: Its run.
        plan: Its plan.
        needs: The resources that its conversion needs.
        is_resumed: Whether it continues an existing run.
        overwrite: Whether it may replace what its folder has.
    """

    split: str
    folder: str
    storage_options: Mapping[str, Any] | None = field(repr=False)
    run: Run
    plan: Plan
    needs: Needs
    is_resumed: bool
    overwrite: bool


def share_needs(plan: Plan, memory: int | None) -> Needs:
    """Return the resources of a conversion in shares, whose machines are unknown; `memory` as for `needs_of`."""
    return needs_of(plan, memory, _JOBS_OF_A_SHARE, is_local=False, on_disk=False)


def target_of(
    split: str,
    folder: str,
    run: Run,
    plan: Plan,
    is_resumed: bool,
    endpoints: Endpoints,
    options: ConvertOptions,
    engine: Engine | None,
) -> Target:
    """Return a dataset to write, with the resources that its conversion needs; the arguments are as for `prepare`."""
    if engine is None:
        needs = share_needs(plan, options.memory)
    else:
        needs = needs_of(plan, options.memory, engine.jobs_of_a_node, engine.is_local, not run.storage.is_remote)
    if needs.temporary_bytes:
        text = "reordering rows through about %s of temporary files in %s/%s"
        logger.info(text, human_bytes(needs.temporary_bytes), run.storage.url, SPILL_FOLDER)
    return Target(split, folder, endpoints.output_options, run, plan, needs, is_resumed, options.overwrite)


@contextmanager
def locked(targets: Sequence[Target]) -> Iterator[None]:
    """Lock other runs out of the outputs, and refuse outputs that others have written meanwhile."""
    with ExitStack() as locks:
        for target in targets:
            locks.enter_context(target.run.locked())
            target.run.refuse_output(target.overwrite, target.is_resumed)
        yield


def prepare(endpoints: Endpoints, options: ConvertOptions, engine: Engine | None) -> list[Target]:
    """Plan a conversion, and check everything that can be checked before anything is written.

    Args:
        endpoints: Inputs and output.
        options: The options.
        engine: Engine that will run the tasks; None for shares, whose machines are unknown.

    Raises:
        WdsplitError: As for `convert`.
    """
    folders = endpoints.folders(options.splits)
    runs = {name: Run(open_storage(folder, endpoints.output_options), options.emit) for name, folder in folders.items()}
    resumed = set[str]()
    if options.resume:  # splits without a run start one; if none has one, the first says that there is none
        resumed = {name for name, run in runs.items() if run.exists} or set(runs)
    pinned = next((run.snapshot for name, run in runs.items() if name in resumed), "")
    found = open_inputs_of(endpoints.inputs, endpoints.input_options, pinned)
    if options.splits:
        _check_parent(open_storage(endpoints.output, endpoints.output_options), options)
    for name, run in runs.items():
        refuse_inside_input(run.storage, endpoints)
        for path in [] if endpoints.are_spooled else found.paths:
            run.refuse_file_inside(path, "an input")
        run.refuse_output(options.overwrite, name in resumed)
    plans = plan_files(found, options, endpoints.input_options)
    first = next(iter(plans.values()))
    for note in shown_notes(first):
        logger.warning("%s", note)
    if first.key is not None and set(plans) - resumed:
        whole = dataclasses.replace(first, table=joined([plan.table for plan in plans.values()]))
        refuse_duplicate_keys(whole, first.key)  # in one split or in two
    return [
        target_of(name, folders[name], runs[name], plan, name in resumed, endpoints, options, engine)
        for name, plan in plans.items()
    ]


def refuse_duplicate_keys(
    plan: Plan,
    key: str,
    known: Callable[[], Iterator[tuple[pa.LargeStringArray, Place]]] | None = None,
    num_known: int = 0,
) -> None:
    """Refuse duplicate and invalid keys; the key column is read once for every 32 million rows.

    Args:
        plan: The plan.
        key: The key column.
        known: Yields keys that the rows may not have either, and their places.
        num_known: Number of these.
    """

    def key_batches() -> Iterator[tuple[pa.LargeStringArray, Place]]:
        yield from known() if known is not None else ()
        for rows in read_rows(plan.table, 0, plan.num_rows, [key]):
            yield keys_of(plan, rows), rows.where

    num_passes = -(-(plan.num_rows + num_known) // _HASHES_AT_ONCE)  # each hash belongs to one pass
    for number in watched("checking keys", range(num_passes), num_passes):
        groups = grouped((keys for keys, _ in key_batches()), len, _HASHED_TOGETHER)
        found = (hash_keys(pa.concat_arrays(keys)) for keys in groups)
        hashes = [each[each % np.uint64(num_passes) == number] if num_passes > 1 else each for each in found]
        for duplicate in find_duplicate_keys(hashes, lambda _: key_batches()):
            if known is None:
                remedy = "choose another key column, remove the duplicate, or number the rows: leave out --key, or "
                remedy += "give --number-keys for tars"
            else:
                remedy = "leave out rows that the dataset has already (--where), or choose another key column"
            raise duplicate.error(InputError, remedy)


def refuse_inside_input(output: Storage, endpoints: Endpoints) -> None:
    """Refuse an output inside a folder of inputs: its files would be inputs of later and resumed runs."""
    for given in map(folder_of_table, endpoints.inputs):
        for pattern in patterns(Files(given, endpoints.input_options)):
            if _would_find(pattern, output.url):
                raise InputError(
                    "the output is inside an input folder",
                    expected=f"an output outside {shown_url(given)}",
                    remedy="choose another output folder, or name the inputs by a glob of files, such as '*.parquet'",
                    url=output.url,
                )


def _would_find(pattern: str, output: str) -> bool:
    """Return whether a path or glob of inputs matches files that a conversion writes into an output."""
    if not has_magic(pattern):
        folder = pattern.rstrip("/")
        return (is_remote(pattern) or os.path.isdir(folder)) and is_below(output, folder)
    if not is_remote(pattern):
        pattern, output = os.path.abspath(pattern), os.path.abspath(output)
    names = (shard_path(0), samples_path(shard_path(0)), SHARDS_NAME, HEADER_NAME)
    return any(finds(pattern.split("/"), f"{output}/{name}".split("/")) for name in names)


def _check_parent(storage: Storage, options: ConvertOptions) -> None:
    """Refuse an output of splits that is itself a dataset, and warn about datasets in it that are not splits."""
    if Run(storage).exists:
        cause = "the output is a dataset, so it cannot contain the datasets of splits"
        Run(storage).refuse(cause, "a folder without a dataset", listed(storage.list(), 5), "choose another folder")
    others = [name for name in storage.list() if name not in options.splits]
    others = [name for name in others if storage.size(f"{name}/{HEADER_NAME}") is not None]
    if others:
        text = "%s: not among the splits, and left as it is: %s (its rows may be in other splits now)"
        logger.warning(text, storage.url, listed(others))
