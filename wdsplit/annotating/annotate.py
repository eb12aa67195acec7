"""`annotate` joins a table to a dataset; also lists and drops the annotations of a dataset."""

from __future__ import annotations

import dataclasses
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import pyarrow as pa
import xxhash

from wdsplit.annotating.columns import Chosen, joined_columns, refuse_clashes
from wdsplit.annotating.match import Counted, refuse_unmatched
from wdsplit.annotating.options import AnnotateOptions
from wdsplit.annotating.passes import AnnotateJob, join_table, sizes_of
from wdsplit.annotating.run import AnnotationRun
from wdsplit.annotating.writing import AnnotateProgress, Read, Report, WriteJob, write_shards
from wdsplit.conversion.convert import Source
from wdsplit.conversion.plan.options import chosen
from wdsplit.conversion.prepare import Endpoints
from wdsplit.conversion.spool import spooled
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError, WdsplitError
from wdsplit.fields.keys import numbered_width
from wdsplit.shards import annotations as stored
from wdsplit.shards.annotations import ANNOTATIONS, Annotation, Covered
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest, Shards
from wdsplit.shards.sample_tables import dump_schema
from wdsplit.storage.given import PathLike, located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.tables.media import is_media_input
from wdsplit.tables.python_source import PythonSource, python_source
from wdsplit.tables.read import first_payloads, open_inputs
from wdsplit.tables.snapshots import open_inputs_of
from wdsplit.tables.table import Table
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["AnnotateProgress", "Making", "Rows", "annotate", "drop_annotation", "list_annotations"]

logger = logging.getLogger(__name__)

AnyJob = TypeVar("AnyJob", bound=WriteJob)


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

    Conditions of views can then use numbers, texts and dates, like the columns of the sample tables. Payloads (bytes,
    texts, lists, tensors) become fields, which `Dataset(join=[name])` reads. They are written to side shards: tars with
    the samples of the dataset's shards. The shards, the manifest and its fingerprint do not change. The annotation
    exists once this function returns; an interrupted run can be continued with `resume`.

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
        The annotation: its columns and fields, and the counts of missing, extra and duplicate keys.

    Raises:
        InputError: The table cannot be joined, or its keys do not match the dataset.
        OutputExistsError: There is an annotation of this name, or an unfinished run.
        WdsplitError: The table or the dataset cannot be read, or the dataset cannot be written to.
    """
    options = chosen(AnnotateOptions, options, keywords)
    rows = python_source(source)
    paths = [] if isinstance(rows, PythonSource) else rows
    endpoints = Endpoints.of(paths, dataset, storage_options, fs, input_fs)
    name = ANNOTATIONS.checked(name or _default_name(paths))
    storage = open_storage(endpoints.output, endpoints.output_options)
    engine, report = engine or LocalEngine(options.jobs), progress or (lambda _: None)
    work = _Annotating(
        output=endpoints.output,
        storage_options=endpoints.output_options,
        storage=storage,
        manifest=read_manifest(storage),
        name=name,
        options=options,
        engine=engine,
        report=report,
        key=key,
    )
    work.refuse_early()
    if not isinstance(rows, PythonSource):
        return work.carry_out(_open_table(paths, endpoints.input_options, options.hive))

    def report_rows(num_rows: int) -> None:
        report(AnnotateProgress("read", num_rows, rows.num_rows))

    # The rows are written to the run's folder; for a remote dataset, to TMPDIR.
    folder = open_storage(os.path.join(storage.url, work.run.folder), endpoints.output_options)
    try:
        with spooled(rows, folder, engine.is_local, work.columns, report_rows) as path:
            return work.carry_out(_open_table([path], None, hive=False), rows.what)
    finally:
        ANNOTATIONS.remove_empty_folder(storage)


Rows = tuple[WriteJob, Read, tuple[int, int, int], Mapping[str, Any]]
"""The rows of an annotation: the job that writes them, what reads them, the numbers of missing, extra and duplicate
keys, and where they come from, for users."""


@dataclass(frozen=True, kw_only=True)
class Making(ABC):
    """The arguments of a call that makes an annotation.

    Attributes:
        covered: What the annotation that is updated covers; None to make one for all shards.
    """

    output: str
    storage_options: Mapping[str, Any] | None
    storage: Storage
    manifest: Manifest
    name: str
    options: Any
    engine: Engine
    report: Report
    covered: Covered | None = None

    @cached_property
    def run(self) -> AnnotationRun:
        """The run of this name in the dataset."""
        return AnnotationRun(self.storage, self.name)

    def refuse_early(self) -> None:
        """Check everything that can be checked before any row is read."""
        self.run.refuse(self.options.overwrite, self.options.resume, self.covered is not None)

    def without_clashes(self, chosen: Chosen) -> Chosen:
        """Return columns and fields; refuse names that the dataset has already."""
        found = stored.list_annotations(self.storage, self.manifest)
        others = [each for name, each in found.items() if name != self.name]
        refuse_clashes(chosen, self.manifest.samples or pa.schema([]), self.manifest.field_names, others)
        return chosen

    def job_arguments(self, content: Any, chosen: Chosen) -> dict[str, Any]:
        """Return the arguments of any job, for a plan with this content."""
        covered, shards = self.covered, self.manifest.shards
        if covered is not None:
            shards = Shards(shards.table.slice(covered.num_shards).combine_chunks())
        folder = f"{ANNOTATIONS.folder}/{self.name}-{xxhash.xxh3_64_hexdigest(orjson.dumps(content))}"
        return {
            "output": self.output,
            "storage_options": self.storage_options,
            "shared": not self.engine.is_local,
            "schema": chosen.schema,
            "columns": chosen.columns,
            "fields": chosen.fields,
            "shards": shards,
            "names": self.manifest.field_names,
            "folder": folder if covered is None else covered.annotation.folder,
        }

    def make(self, job: AnyJob, modified: str, rows: Callable[[AnyJob], Rows]) -> Annotation:
        """Make the annotation, or continue it.

        Args:
            job: The job.
            modified: A hash of what changes with the inputs, besides the plan.
            rows: Makes the rows of a job.
        """
        with self.run.locked():
            self.refuse_early()
            live = self.live()
            kept = None if live is None else live.folder
            if self.options.resume and self.run.is_unfinished:
                job = dataclasses.replace(job, task_bytes=self.run.resumed_bytes(job, modified))
            elif self.options.resume and live is not None and self.covered is None:
                self.run.refuse_other_plan(live.folder.rpartition("-")[2], job)
                return live
            else:
                self.run.start(job, modified, kept, self.manifest.fingerprint)
            try:
                annotation = self._written(*rows(job))
            except WdsplitError as error:
                if self.is_useless(error, job):
                    self.run.finish(job, kept)
                raise
            if self.covered is None:  # what other versions have of this name is replaced
                own = ANNOTATIONS.path(self.name, annotation.fingerprint)
                self.storage.remove(*({*ANNOTATIONS.paths(self.storage, self.name)} - {own}))
            self.run.finish(job, annotation.folder)
            return annotation

    @abstractmethod
    def is_useless(self, error: WdsplitError, job: WriteJob) -> bool:
        """Tell whether nothing of a run that ended with an error can be used again."""

    def live(self) -> Annotation | None:
        """Return the existing annotation; None if there is none, or if it is damaged and will be replaced."""
        if not ANNOTATIONS.paths(self.storage, self.name):
            return None
        try:
            return ANNOTATIONS.newest(self.storage, self.name, self.manifest)
        except WdsplitError:
            if self.options.overwrite:
                return None
            raise

    def _written(
        self, job: WriteJob, read: Read, counts: tuple[int, int, int], provenance: Mapping[str, Any]
    ) -> Annotation:
        """Write tables and side shards, and the file that completes the annotation."""
        missing, extra, duplicates = counts
        num_bytes, side_shards = write_shards(job, self.engine, self.report, read)
        fingerprint, checksum = self.manifest.fingerprint, ""
        if self.covered is not None:
            before = self.covered.annotation
            missing, num_bytes = missing + before.num_missing, num_bytes + before.num_bytes
            if self.covered.sides is not None:
                side_shards = Shards(pa.concat_tables([self.covered.sides.table, side_shards.table]).combine_chunks())
        if job.fields:
            checksum = stored.write_side_shards(self.storage, job.folder, side_shards, fingerprint)
        annotation = Annotation(
            self.name,
            job.folder,
            job.schema,
            fingerprint,
            self.manifest.num_samples,
            missing,
            extra,
            duplicates,
            num_bytes,
            provenance,
            job.fields,
            checksum,
        )
        self.run.refuse_taken_over(job.run, shared=True)
        # another annotation may have got the same columns meanwhile
        self.without_clashes(Chosen(job.schema, job.columns, job.fields))
        latest = read_manifest(self.storage)
        if fingerprint not in (latest.fingerprint, *(each.fingerprint for each in latest.history)):
            raise InputError(
                "the dataset was replaced while it was annotated",
                place=self.storage.url,
                expected=f"fingerprint {fingerprint}",
                found=latest.fingerprint,
                remedy="annotate it again",
            )
        stored.write_annotation(self.storage, annotation)
        if fingerprint != latest.fingerprint:
            logger.warning(
                "%s: annotation %r covers version %d, but the latest is %d: make it for that with %s",
                self.storage.url,
                self.name,
                self.manifest.version,
                latest.version,
                ANNOTATIONS.again.format(name=self.name),
            )
        return annotation


@dataclass(frozen=True, kw_only=True)
class _Annotating(Making):
    """The arguments of a call of `annotate`."""

    key: str
    options: AnnotateOptions

    def columns(self, schema: pa.Schema, first_bytes: Mapping[str, bytes | None] | None = None) -> Chosen:
        """Return what to join; refuse invalid columns."""
        return self.without_clashes(joined_columns(schema, self.key, self.options, first_bytes))

    def carry_out(self, table: Table, what: str = "") -> Annotation:
        """Join the table; if it was spooled, `what` is the origin of the rows."""
        joined = self.columns(table.schema)
        joined = self.columns(table.schema, first_payloads(table, joined.sources))
        table = replace(table, files=tuple(file.narrowed({self.key, *joined.sources}) for file in table.files))
        modified = xxhash.xxh3_64_hexdigest(orjson.dumps([file.modified_ns for file in table.files]))
        return self.make(self._job(table, joined), modified, partial(self._join, what))

    def _job(self, table: Table, joined: Chosen) -> AnnotateJob:
        shards, width = self.manifest.shards, numbered_width(self.manifest.provenance)
        duplicates = self.options.allow_duplicates or "first"
        content = {
            "fingerprint": self.manifest.fingerprint,
            "inputs": [
                (file.path.rpartition("/")[2], file.num_bytes, file.num_rows, file.footer, file.constants)
                for file in table.files
            ],
            "key": [self.key, width],
            "columns": [joined.columns, dump_schema(joined.schema)],
            "fields": [dataclasses.asdict(field) for field in joined.fields],
            "duplicates": duplicates,
        }
        is_near, memory = not self.storage.is_remote, self.options.memory
        task_bytes, buffer_bytes = sizes_of(table, shards, memory, self.engine, is_near)
        return AnnotateJob(
            **self.job_arguments(content, joined),
            table=table,
            key=self.key,
            number_width=width,
            duplicates=duplicates,
            task_bytes=task_bytes,
            buffer_bytes=buffer_bytes,
        )

    def _join(self, what: str, job: AnnotateJob) -> Rows:
        def refuse(unmatched: list[Counted]) -> None:
            refuse_unmatched(unmatched, self.options, job.table, self.manifest, job.key)

        read, unmatched = join_table(job, self.engine, self.report, self.options.memory, refuse)
        inputs = [
            {"path": what or file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows}
            for file in job.table.files
        ]
        columns = dict(zip(job.schema.names, job.columns, strict=True))
        provenance = {"inputs": inputs, "key": job.key, "columns": columns}
        missing, extra, duplicates = (each.total for each in unmatched)
        return job, read, (missing, extra, duplicates), provenance

    def is_useless(self, error: WdsplitError, job: WriteJob) -> bool:
        """The input must be corrected, so nothing can be continued."""
        return isinstance(error, InputError) and not self.options.resume


def _open_table(paths: Sequence[str], options: Mapping[str, Any] | None, hive: bool) -> Table:
    found = open_inputs_of(paths, options)
    if any(is_media_input(path, options) for path in found.paths):
        raise InputError(
            "images and audio cannot be joined",
            place=shown_url(found.paths[0]),
            expected="a table with a column of keys",
            remedy="name the table, such as scores.parquet",
        )
    return open_inputs(found.paths, options, hive and found.hive)


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
    storage = open_storage(*located_one(dataset, storage_options, fs))
    read_manifest(storage)
    run = AnnotationRun(storage, ANNOTATIONS.checked(name))
    run.parts()
    with run.locked():
        storage.remove(*ANNOTATIONS.paths(storage, name))  # first, so that no annotation exists without tables
        storage.remove(*run.parts())


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
    storage = open_readable_storage(*located_one(dataset, storage_options, fs))
    return ANNOTATIONS.listed(storage, read_manifest(storage))
