"""A call of `annotate`: its checks, and the run of tasks that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa
import xxhash

from wdsplit.annotating.columns import check_key, chosen_columns, joined_schema, refuse_clashes
from wdsplit.annotating.driver import AnnotateDriver, AnnotateProgress, cut_run, table_bytes
from wdsplit.annotating.job import AnnotateJob
from wdsplit.annotating.join import Joined
from wdsplit.annotating.options import AnnotateOptions
from wdsplit.annotating.run import AnnotationRun
from wdsplit.annotating.unmatched import refuse_unmatched
from wdsplit.conversion.needs import memory_budget
from wdsplit.conversion.prepare import Places
from wdsplit.conversion.shuffle.scatter import task_bytes
from wdsplit.engines.local import Engine
from wdsplit.errors import InputError, WdsplitError
from wdsplit.fields.keys import numbered_width
from wdsplit.shards.annotations import (
    Annotation,
    annotation_folder,
    annotation_names,
    find_annotation,
    list_annotations,
    write_annotation,
)
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sample_tables import dump_schema
from wdsplit.storage.interface import Storage
from wdsplit.tables.find import find_inputs
from wdsplit.tables.media import is_media_input
from wdsplit.tables.read import open_inputs
from wdsplit.tables.table import Table
from wdsplit.urls import shown_url

__all__ = ["Joining"]


@dataclass(frozen=True)
class Joining:
    """The arguments of a call of `annotate`."""

    places: Places
    storage: Storage
    manifest: Manifest
    run: AnnotationRun
    name: str
    key: str
    options: AnnotateOptions

    def refuse_early(self) -> None:
        """Check everything that can be checked before the table is read."""
        if self.manifest.samples is None:
            raise InputError(
                "the dataset has no sample tables",
                place=self.storage.url,
                expected="a table of keys beside each shard",
                remedy=f"make them with `wdsplit index {self.storage.url} --sample-tables`",
                url=self.storage.url,
            )
        self.run.refuse(annotation_names(self.storage), self.options.overwrite, self.options.resume)

    def columns(self, schema: pa.Schema) -> tuple[dict[str, str], pa.Schema]:
        """Return the columns to join, and their schema in the dataset; refuse invalid ones."""
        check_key(schema, self.key)
        chosen = chosen_columns(schema, self.key, self.options.mapping, self.options.columns)
        joined = joined_schema(schema, chosen)
        others = list_annotations(self.storage, self.manifest)
        assert self.manifest.samples is not None
        refuse_clashes(chosen, self.manifest.samples, [each for name, each in others.items() if name != self.name])
        return chosen, joined

    def carry_out(
        self, paths: Sequence[str], engine: Engine, report: Callable[[AnnotateProgress], None], what: str = ""
    ) -> Annotation:
        """Join the table in these paths; if it was spooled, `what` is the origin of the rows."""
        table = _open_table(paths, self.places.input_options, self.options.hive and not what)
        chosen, schema = self.columns(table.schema)
        names = {self.key, *chosen.values()}
        table = replace(table, files=tuple(file.narrowed(names) for file in table.files))
        with self.run.locked():
            self.refuse_early()
            live = self._live()
            job = self._job(table, list(chosen.values()), schema, engine)
            if live is not None and self.options.resume and not self.run.is_unfinished:
                self.run.refuse_other(live.folder, job.folder)
                return live
            kept = live.folder if live is not None else None
            modified = xxhash.xxh3_64_hexdigest(orjson.dumps([file.modified_ns for file in table.files]))
            cuts = self.run.cuts(job, modified, self.options.resume, kept)
            job = replace(job, cuts=cuts, spill_folder=self.run.spill_folder(job, cuts))
            driver = AnnotateDriver(job, engine, report)
            try:
                found = driver.join()
                refuse_unmatched(found, self.options, job.table, job.shards, job.key)
                annotation = self._annotation(job, found, driver.write(found.runs), what)
                self.run.refuse_taken_over(job.run, shared=True)
                self._refuse_changed(job)
                write_annotation(self.storage, annotation)
            except BaseException as error:
                if isinstance(error, InputError) and not self.options.resume:
                    self.run.finish(kept)  # the input must be mended, so nothing can be continued
                else:
                    self.run.leave_resumable(job)
                raise
            self.run.finish(annotation.folder)
            return annotation

    def _live(self) -> Annotation | None:
        """Return the existing annotation; None if there is none, or if it is damaged and will be replaced."""
        if self.name not in annotation_names(self.storage):
            return None
        try:
            return find_annotation(self.storage, self.name)
        except WdsplitError:
            if self.options.overwrite:
                return None
            raise

    def _job(self, table: Table, columns: Sequence[str], schema: pa.Schema, engine: Engine) -> AnnotateJob:
        """Return the input of the tasks of a new run, without the folder of its spill files."""
        provenance, num_real = self.manifest.provenance, self.manifest.shards.num_real
        width = numbered_width(provenance)
        duplicates = self.options.allow_duplicates or "first"
        memory = memory_budget(self.options.memory, engine.is_local)
        num_bytes = table_bytes(table, int(num_real.sum()))
        buffer_bytes = task_bytes(memory, engine.jobs_of_a_node, None if self.storage.is_remote else num_bytes)
        content = {
            "fingerprint": self.manifest.fingerprint,
            "inputs": [
                (file.path.rpartition("/")[2], file.num_bytes, file.num_rows, file.footer, file.constants)
                for file in table.files
            ],
            "key": [self.key, width],
            "columns": [columns, dump_schema(schema)],
            "duplicates": duplicates,
        }
        run = xxhash.xxh3_64_hexdigest(orjson.dumps(content))
        return AnnotateJob(
            output=self.places.output,
            storage_options=self.places.output_options,
            shared=not engine.is_local,
            table=table,
            key=self.key,
            number_width=width,
            schema=schema,
            columns=tuple(columns),
            shards=self.manifest.shards,
            duplicates=duplicates,
            cuts=cut_run(table, num_real, engine.jobs, buffer_bytes),
            folder=annotation_folder(self.name, run),
            spill_folder="",
            buffer_bytes=buffer_bytes,
        )

    def _annotation(self, job: AnnotateJob, found: Joined, num_bytes: int, what: str) -> Annotation:
        return Annotation(
            self.name,
            job.folder,
            job.schema,
            self.manifest.fingerprint,
            self.manifest.num_samples,
            found.missing.total,
            found.extra.total,
            found.duplicates.total,
            num_bytes,
            {
                "inputs": [
                    {"path": what or file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows}
                    for file in job.table.files
                ],
                "key": job.key,
                "columns": dict(zip(job.schema.names, job.columns, strict=True)),
            },
        )

    def _refuse_changed(self, job: AnnotateJob) -> None:
        """Refuse a dataset that was replaced meanwhile, or annotated with the same columns."""
        self.columns(job.table.schema)
        fingerprint = read_manifest(self.storage).fingerprint
        if fingerprint != self.manifest.fingerprint:
            raise InputError(
                "the dataset was replaced while it was annotated",
                place=self.storage.url,
                expected=f"fingerprint {self.manifest.fingerprint}",
                found=fingerprint,
                remedy="annotate it again",
            )


def _open_table(paths: Sequence[str], options: Mapping[str, Any] | None, hive: bool) -> Table:
    """Open the table in these paths."""
    files = find_inputs(paths, options)
    if any(is_media_input(path, options) for path in files):
        raise InputError(
            "images and audio cannot be joined",
            place=shown_url(files[0]),
            expected="a table with a column of keys",
            remedy="name the table, such as scores.parquet",
        )
    return open_inputs(files, options, hive)
