"""`annotate`: a table joined to a dataset; and the annotations of a dataset listed and dropped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wdsplit.annotating.driver import AnnotateProgress
from wdsplit.annotating.joining import Joining
from wdsplit.annotating.options import AnnotateOptions
from wdsplit.annotating.run import AnnotationRun
from wdsplit.conversion.convert import Source
from wdsplit.conversion.planning import PathLike
from wdsplit.conversion.prepare import Places
from wdsplit.conversion.spool import spooled
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError, WdsplitError
from wdsplit.shards import annotations as stored
from wdsplit.shards.annotations import Annotation, check_annotation_name
from wdsplit.shards.files import read_manifest
from wdsplit.shards.stored import intact, warn_of_damaged
from wdsplit.storage.given import located_one
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.tables.python_source import PythonSource, python_source
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["AnnotateProgress", "annotate", "drop_annotation", "list_annotations"]


def annotate(
    dataset: PathLike,
    source: Source,
    key: str,
    name: str = "",
    options: AnnotateOptions | None = None,
    progress: Callable[[AnnotateProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> Annotation:
    """Join columns of a table to the samples of a finished dataset, by their keys.

    The columns can then be named in conditions of views, beside those of the sample tables. The shards, the manifest
    and its fingerprint stay as they are. The annotation exists when this returns; until then the dataset is as it was,
    and the run can be continued with `resume`.

        wdsplit.annotate("data/train", "scores.parquet", key="id", name="scores")
        wdsplit.annotate("data/train", frame, key="id", name="scores")

    Args:
        dataset: The dataset's folder; it must have sample tables.
        source: Paths or rows, as for `wdsplit.convert`.
        key: The column that holds the samples' keys, as the column had them that the dataset was converted with, or as
            samples have them (`__key__`). Integers are row numbers, where the dataset's keys are.
        name: What the annotation is called; by default as the first file, without its extension.
        options: The options.
        progress: Called with the progress so far, at the beginning of each pass and after each task.
        storage_options: How to reach remote stores, as for `wdsplit.convert`.
        engine: What carries the tasks out, such as `wdsplit.RayEngine`; None for `options.jobs` jobs of this machine.
        fs: The file system that the dataset is on, an object of fsspec; None for what the path says itself.
        input_fs: The file system that the source is on.

    Returns:
        The annotation: its columns, and the counts of missing, extra and duplicate keys.

    Raises:
        InputError: The table cannot be joined, or its keys are not those of the dataset.
        OutputExistsError: There is an annotation of this name, or an unfinished run.
        WdsplitError: The table or the dataset cannot be read, or the dataset cannot be written to.
    """
    options = options or AnnotateOptions()
    rows = python_source(source)
    paths = [] if isinstance(rows, PythonSource) else rows
    places = Places.of(paths, dataset, storage_options, fs, input_fs)
    name = check_annotation_name(name or _default_name(paths))
    storage = open_storage(places.output, places.output_options)
    run = AnnotationRun(storage, name)
    work = Joining(places, storage, read_manifest(storage), run, name, key, options)
    work.refuse_early()
    engine, report = engine or LocalEngine(options.jobs), progress or _no_progress
    if isinstance(rows, PythonSource):
        return _annotate_rows(work, rows, engine, report)
    return work.carry_out(paths, engine, report)


def _annotate_rows(
    work: Joining, rows: PythonSource, engine: Engine, report: Callable[[AnnotateProgress], None]
) -> Annotation:
    """Join rows of Python by way of a file, which is in the folder of the run, or of a remote dataset in TMPDIR."""
    if work.storage.is_remote and not engine.is_local:
        raise InputError(
            "other machines cannot access rows from Python",
            place=work.storage.url,
            expected="a dataset on a shared file system, or an engine of this machine",
            remedy="leave out engine=, or write the rows to a table that all machines can access",
        )

    def report_rows(num_rows: int) -> None:
        report(AnnotateProgress("read", num_rows, rows.num_rows))

    folder = open_storage(work.run.path, work.places.output_options)
    try:
        with spooled(rows, folder, work.check_columns, report_rows) as path:
            try:
                work = replace(work, places=replace(work.places, inputs=[path], input_options=None))
                return work.carry_out([path], engine, report, rows.what)
            except WdsplitError as error:
                error.place, error.found = (text.replace(path, rows.what) for text in (error.place, error.found))
                raise
    finally:
        work.run.tidy()


def _no_progress(progress: AnnotateProgress) -> None:
    """Show nothing."""


def _default_name(paths: Sequence[str]) -> str:
    """Return the name of an annotation after the first path, without its extensions."""
    if not paths:
        raise InputError(
            "the annotation has no name",
            expected="a name, because rows from Python have no file name",
            remedy='give it: wdsplit.annotate(dataset, rows, key=..., name="scores")',
        )
    return os.path.basename(shown_url(paths[0]).rstrip("/")).partition(".")[0]


def drop_annotation(
    dataset: PathLike,
    name: str,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> None:
    """Remove an annotation of a dataset, and what unfinished runs have left of it.

    Args:
        dataset: The dataset's folder.
        name: The annotation's name.
        storage_options: How to reach a remote store, as for `wdsplit.Dataset`.
        fs: The file system that the folder is on, an object of fsspec; None for what the path says itself.

    Raises:
        InputError: There is no annotation of this name.
        StorageError: A process makes it at the moment.
    """
    url, storage_options = located_one(dataset, storage_options, fs)
    storage = open_storage(url, storage_options)
    read_manifest(storage)
    stored.find_parts(storage, name)
    with AnnotationRun(storage, name).locked():
        stored.drop_annotation(storage, name)


def list_annotations(
    dataset: PathLike,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> dict[str, Annotation]:
    """Return the annotations of a dataset by their names.

    Those of an earlier version of the dataset, which has another fingerprint, are among them. Damaged ones are left
    out, with a warning.

    Args:
        dataset: The dataset's folder.
        storage_options: How to reach a remote store, as for `wdsplit.Dataset`.
        fs: The file system that the folder is on, an object of fsspec; None for what the path says itself.

    Raises:
        DatasetNotFoundError: There is no dataset.
    """
    url, storage_options = located_one(dataset, storage_options, fs)
    storage = open_readable_storage(url, storage_options)
    read_manifest(storage)
    found = stored.scan_annotations(storage)
    warn_of_damaged(found, "annotation", storage.url)
    return intact(found)
