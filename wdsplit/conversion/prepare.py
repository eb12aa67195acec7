"""Prepares a conversion before it writes anything: finds inputs, checks outputs and keys, plans each split."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.duplicate_keys import check_unique_keys
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.planning import PathLike, input_paths, plan_files, shown_notes
from wdsplit.conversion.run import Run, is_below
from wdsplit.errors import InputError
from wdsplit.shards.manifest import HEADER_NAME, SHARDS_NAME, shard_path
from wdsplit.storage.given import divided_options, located, located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import is_remote, open_storage
from wdsplit.storage.patterns import finds, has_magic, patterns, place_of
from wdsplit.tables.find import find_inputs
from wdsplit.tables.table import joined
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Places", "Prepared", "prepare"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
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
    ) -> Places:
        """Return the places that the arguments of `convert` name.

        Raises:
            InputError: A path is not on its file system.
        """
        of_inputs, of_output = divided_options(storage_options, input_fs, fs)
        urls, input_options = located(input_paths(inputs), of_inputs, input_fs)
        url, output_options = located_one(output, of_output, fs)
        return cls(urls, url, input_options, output_options)


@dataclass(frozen=True)
class Prepared:
    """A conversion that is ready to start, by split name; "" without splits.

    Attributes:
        folders: The folders of the datasets.
        runs: Their runs.
        plans: Their plans.
        resumed: The splits that continue an existing run.
        overwrite: Whether a dataset, or another run, may be replaced.
    """

    folders: Mapping[str, str]
    runs: Mapping[str, Run]
    plans: Mapping[str, Plan]
    resumed: Collection[str]
    overwrite: bool

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock other runs out of the outputs, and refuse outputs that others have written meanwhile."""
        with ExitStack() as locks:
            for name, run in self.runs.items():
                locks.enter_context(run.locked())
                run.refuse_output(self.overwrite, name in self.resumed)
            yield


def prepare(places: Places, options: ConvertOptions) -> Prepared:
    """Plan a conversion, and check everything that can be checked before anything is written.

    Raises:
        WdsplitError: As for `convert`.
    """
    folders = {name: os.path.join(places.output, name) for name in options.splits} or {"": places.output}
    runs = {name: Run(open_storage(folder, places.output_options), options.emit) for name, folder in folders.items()}
    paths = find_inputs(places.inputs, places.input_options)
    if options.splits:
        _check_parent(open_storage(places.output, places.output_options), options)
    resumed = {name for name, run in runs.items() if options.resume and (len(runs) == 1 or run.exists)}
    if options.resume and not resumed:
        resumed = set(runs)
    for name, run in runs.items():
        _refuse_inside_input(run.storage, places)
        for path in [] if places.are_spooled else paths:
            run.refuse_file_inside(path, "an input")
        run.refuse_output(options.overwrite, name in resumed)
    plans = plan_files(paths, options, places.input_options)
    for note in shown_notes(next(iter(plans.values()))):
        logger.warning("%s", note)
    _check_keys(plans, resumed)
    return Prepared(folders, runs, plans, resumed, options.overwrite)


def _refuse_inside_input(output: Storage, places: Places) -> None:
    """Refuse an output inside a folder of inputs: its files would be inputs of later and resumed runs."""
    for given in places.inputs:
        for pattern in patterns(place_of(given, places.input_options)):
            if _would_find(pattern, output.url):
                raise InputError(
                    "the output is inside an input folder",
                    place=output.url,
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
    written = (f"{output}/{name}".split("/") for name in (shard_path(0), SHARDS_NAME, HEADER_NAME))
    return any(finds(pattern.split("/"), path) for path in written)


def _check_parent(storage: Storage, options: ConvertOptions) -> None:
    """Refuse an output of splits that is itself a dataset, and warn about datasets in it that are not splits."""
    Run(storage).refuse_dataset_above()
    others = [name for name in storage.list() if name not in options.splits]
    others = [name for name in others if storage.size(f"{name}/{HEADER_NAME}") is not None]
    if others:
        logger.warning(
            "%s: not among the splits, and left as it is: %s (its rows may be in other splits now)",
            storage.url,
            ", ".join(others),
        )


def _check_keys(plans: Mapping[str, Plan], resumed: Collection[str]) -> None:
    """Refuse duplicate keys, in one split or in two."""
    plan = next(iter(plans.values()))
    if plan.key is not None and set(plans) - set(resumed):
        check_unique_keys(dataclasses.replace(plan, table=joined([other.table for other in plans.values()])))
