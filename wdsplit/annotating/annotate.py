"""`annotate` joins a table to a dataset; also lists and drops the annotations of a dataset."""

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
from wdsplit.conversion.plan.options import chosen
from wdsplit.conversion.planning import PathLike
from wdsplit.conversion.prepare import Places
from wdsplit.conversion.spool import spooled
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError
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
    **keywords: Any,
) -> Annotation:
    """Join columns of a table to the samples of a finished dataset, by their keys.

    Conditions of views can then use the columns, like those of the sample tables. The shards, the manifest and its
    fingerprint do not change. The annotation exists once this function returns; an interrupted run can be continued
    with `resume`.

        wdsplit.annotate("data/train", "scores.parquet", key="id", name="scores")
        wdsplit.annotate("data/train", frame, key="id", name="more", allow_missing=True)

    Args:
        dataset: Folder of the dataset, which must have sample tables.
        source: Paths or rows, as for `wdsplit.convert`.
        key: Column with the keys: sample keys (`__key__`), or values of the key column that the dataset was converted
            with. If the keys of the dataset are row numbers, integers are row numbers too.
        name: Name of the annotation; by default the name of the first file, without extension.
        options: The options.
        progress: Called with the progress so far, at the start of each pass and after each task.
        storage_options: Options for remote stores, as for `wdsplit.convert`.
        engine: Engine that runs the tasks, such as `wdsplit.RayEngine`; None for `options.jobs` jobs of this machine.
        fs: fsspec file system of the dataset; None to choose it by the path.
        input_fs: fsspec file system of the source.
        **keywords: Fields of `AnnotateOptions`. They replace those of `options`.

    Returns:
        The annotation: its columns, and the counts of missing, extra and duplicate keys.

    Raises:
        InputError: The table cannot be joined, or its keys do not match the dataset.
        OutputExistsError: There is an annotation of this name, or an unfinished run.
        WdsplitError: The table or the dataset cannot be read, or the dataset cannot be written to.
    """
    options = chosen(AnnotateOptions, options, keywords)
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
    """Write rows from Python to a file and join that. It is in the run's folder; for a remote dataset, in TMPDIR."""

    def report_rows(num_rows: int) -> None:
        report(AnnotateProgress("read", num_rows, rows.num_rows))

    folder = open_storage(work.run.path, work.places.output_options)
    try:
        with spooled(rows, folder, engine.is_local, work.columns, report_rows) as path:
            work = replace(work, places=replace(work.places, inputs=[path], input_options=None))
            return work.carry_out([path], engine, report, rows.what)
    finally:
        work.run.tidy()


def _no_progress(progress: AnnotateProgress) -> None:
    """Ignore the progress."""


def _default_name(paths: Sequence[str]) -> str:
    """Return the default name of an annotation: the name of the first file, without extensions."""
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
    """Remove an annotation of a dataset, with any leftovers of its unfinished runs.

        wdsplit.drop_annotation("data/train", "quality")

    Args:
        dataset: The dataset's folder.
        name: The annotation's name.
        storage_options: Options for a remote store, as for `wdsplit.Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        InputError: There is no annotation of this name.
        StorageError: Another process is making it.
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

    The result includes annotations made for an earlier version of the dataset, with another fingerprint. Damaged ones
    are left out, with a warning.

        for name, annotation in wdsplit.list_annotations("data/train").items():
            print(name, annotation.schema.names)

    Args:
        dataset: The dataset's folder.
        storage_options: Options for a remote store, as for `wdsplit.Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        DatasetNotFoundError: There is no dataset.
    """
    url, storage_options = located_one(dataset, storage_options, fs)
    storage = open_readable_storage(url, storage_options)
    read_manifest(storage)
    found = stored.scan_annotations(storage)
    warn_of_damaged(found, "annotation", storage.url)
    return intact(found)
