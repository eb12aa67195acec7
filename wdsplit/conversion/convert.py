"""`convert` and `convert_splits`: plan, run the passes, commit.

Tasks write shards and note what they wrote; only this process commits. `run` finds the work of an earlier run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.append import append
from wdsplit.conversion.driver import Driver, Progress
from wdsplit.conversion.job import ConvertJob, ShardRow
from wdsplit.conversion.plan.options import ConvertOptions, chosen
from wdsplit.conversion.planning import refuse_early
from wdsplit.conversion.prepare import Endpoints, Target, locked, prepare
from wdsplit.conversion.run import Run
from wdsplit.conversion.spool import spooled
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError, OutputExistsError, noted
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.given import PathLike
from wdsplit.storage.opening import open_storage
from wdsplit.tables.python_source import PythonSource, python_source

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Progress", "Source", "convert", "convert_splits"]

logger = logging.getLogger(__name__)

Source = PathLike | Sequence[PathLike] | Iterable[Mapping[str, Any]] | Any
"""Paths or rows, the input of `convert`; Any, because libraries of datasets and frames are not imported for types."""


def convert(
    inputs: Source,
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> Manifest:
    """Convert tables, or rows from Python, into a dataset of shards.

    The dataset exists once this function returns. If it is interrupted, the output contains shards without a manifest;
    continue with `resume`.

        wdsplit.convert("raw/*.parquet", "data/digits", world_size=8, workers=4)
        wdsplit.convert(({"jpg": image, "cls": label} for image, label in samples), "data/rows")

    Rows from Python are streamed once into an Arrow file in the output's folder, or in TMPDIR for a remote output. The
    file is removed at the end. `resume` reads the rows again: they must be the same, in the same order.

    Args:
        inputs: Paths: one or more files, folders of tables or images, globs, brace expressions; or a table:
            `delta+PATH` or `iceberg+CATALOG/NAMESPACE.TABLE`. Or rows: an iterable of dicts; a Hugging Face `Dataset`
            or `IterableDataset`; a Polars or pandas DataFrame; an Arrow Table,
            RecordBatchReader or Dataset; any object with `__arrow_c_stream__`. In dicts, numpy arrays become npy, PIL
            images the bytes of their files, and dicts JSON.
        output: The dataset's folder: a path, or `s3://bucket/folder`.
        options: The options, without splits.
        progress: Called with the progress so far, at the start of each pass and after each task.
        storage_options: Options for the remote stores of inputs and output, as for `wdsplit.Dataset`. Not used for
            `fs` and `input_fs`.
        engine: Engine that runs the tasks, such as `wdsplit.RayEngine`; None for `options.jobs` jobs on this machine.
        fs: fsspec file system of the output, such as `s3fs.S3FileSystem(...)`; None to choose it by the path. Files are
            written to TMPDIR first, then uploaded.
        input_fs: fsspec file system of the inputs.
        **keywords: Fields of `ConvertOptions`, such as `world_size=8`. They replace those of `options`.

    Returns:
        The manifest.

    Raises:
        WdsplitError: The inputs cannot be read or converted, or the output exists or is not writable.
    """
    options = chosen(ConvertOptions, options, keywords)
    if options.splits:
        raise InputError("convert writes one dataset, but splits is set", remedy="use wdsplit.convert_splits")
    return _convert_any(inputs, output, options, progress, storage_options, engine, fs, input_fs)[""]


def convert_splits(
    inputs: Source,
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> dict[str, Manifest]:
    """Convert into a dataset for each split, in a folder of the split's name below the output.

    Arguments and errors are the same as for `convert`, but the options must have splits.

        wdsplit.convert_splits("raw/*.parquet", "data/digits", splits={"train": 0.9, "val": 0.1})
        dataset = wdsplit.Dataset("data/digits/val")

    Returns:
        The manifest of each split.
    """
    options = chosen(ConvertOptions, options, keywords)
    if not options.splits:
        raise InputError("splits is empty", remedy="use wdsplit.convert")
    return _convert_any(inputs, output, options, progress, storage_options, engine, fs, input_fs)


def _convert_any(
    inputs: Source,
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Progress], None] | None,
    storage_options: Mapping[str, Any] | None,
    engine: Engine | None,
    fs: AbstractFileSystem | None,
    input_fs: AbstractFileSystem | None,
) -> dict[str, Manifest]:
    """Convert files, or rows from Python through a file."""
    source, engine, report = python_source(inputs), engine or LocalEngine(options.jobs), progress or (lambda _: None)
    if not isinstance(source, PythonSource):
        return _convert(Endpoints.of(source, output, storage_options, fs, input_fs), options, report, engine)
    endpoints = Endpoints.of([], output, storage_options, fs, input_fs)
    storage = open_storage(endpoints.output, endpoints.output_options)
    if not (options.splits or options.append):
        Run(storage).refuse_output(options.overwrite, options.resume)

    def report_read(num_rows: int) -> None:
        report(Progress("read", num_rows, source.num_rows))

    with spooled(source, storage, engine.is_local, lambda schema: refuse_early(schema, options), report_read) as path:
        endpoints = replace(endpoints, inputs=[path], input_options=None, are_spooled=True)
        try:
            return _convert(endpoints, replace(options, hive=False), report, engine)
        except OutputExistsError as error:
            if options.resume:
                noted(error, "the rows were read again: they must be those of the run, in their order")
            raise


def _convert(
    endpoints: Endpoints, options: ConvertOptions, report: Callable[[Progress], None], engine: Engine
) -> dict[str, Manifest]:
    """Convert; all checks for all splits are done before anything is written."""
    if options.append:
        return {"": append(endpoints, options, engine, lambda target: _carry_out([target], report, engine)[""])}
    return _carry_out(prepare(endpoints, options, engine), report, engine)


def _carry_out(targets: Sequence[Target], report: Callable[[Progress], None], engine: Engine) -> dict[str, Manifest]:
    """Carry out what was planned; return the manifest of each split."""
    manifests: dict[str, Manifest] = {}
    begun: dict[str, Mapping[int, ShardRow]] = {}  # the shards that exist already, of each split that is not finished
    with locked(targets):
        try:
            # Resuming may fail, so runs to resume come before those that replace an output.
            for target in sorted(targets, key=lambda target: not target.is_resumed):
                finished = target.run.continued(target.plan) if target.is_resumed else None
                if finished is not None:
                    target.run.finish()
                    manifests[target.split] = finished
                elif target.is_resumed:
                    target.run.remove_temporary()
                    existing = target.run.existing_shards(target.plan, range(target.plan.num_shards))
                    logger.info("resuming: %d of %d shards exist", len(existing), target.plan.num_shards)
                    begun[target.split] = existing
                else:
                    begun[target.split] = {}
                    target.run.start(target.plan)
            for target in targets:
                if target.split in begun:
                    manifests[target.split] = _written(target, begun[target.split], report, engine)
                else:
                    _report_finished(manifests[target.split], target.split, report)
        except BaseException:
            for target in targets:
                if target.split in begun:
                    target.run.leave_resumable(target.plan)
            raise
    return {target.split: manifests[target.split] for target in targets}


def _written(
    target: Target, known: Mapping[int, ShardRow], report: Callable[[Progress], None], engine: Engine
) -> Manifest:
    """Write the shards of a run that do not exist, and commit it; `known` are those that exist."""
    job = ConvertJob(
        output=target.folder,
        storage_options=target.storage_options,
        shared=not engine.is_local,
        plan=target.plan,
        buffer_bytes=target.needs.buffer_bytes,
        emit=tuple(target.run.emit),
    )
    driver = Driver(job, engine, report, split=target.split, loadable_bytes=target.needs.loadable_bytes)
    return target.run.commit(target.plan, driver.carry_out(known))


def _report_finished(manifest: Manifest, split: str, report: Callable[[Progress], None]) -> None:
    """Report that a dataset was finished already."""
    num_shards, num_samples = len(manifest.shards), manifest.num_samples + manifest.num_pads
    report(Progress("write", num_shards, num_shards, num_samples, manifest.num_bytes, num_shards, split))
