"""`convert` and `convert_splits`: plan, run the passes, commit.

Tasks write shards and note what they wrote; only this process commits. `run` finds the work of an earlier run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.commit import commit
from wdsplit.conversion.driver import Driver, Progress, no_progress, noted_rows
from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.needs import needs_of, refuse_little_space
from wdsplit.conversion.plan.options import ConvertOptions, chosen
from wdsplit.conversion.planning import PathLike, refuse_early
from wdsplit.conversion.prepare import Places, Prepared, prepare
from wdsplit.conversion.published import ShardRow
from wdsplit.conversion.run import Run
from wdsplit.conversion.spool import spooled
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError, OutputExistsError, noted
from wdsplit.shards.manifest import Manifest
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
        inputs: Paths: one or more files, folders of tables or images, globs, brace expressions. Or rows: an iterable of
            dicts; a Hugging Face `Dataset` or `IterableDataset`; a Polars DataFrame or LazyFrame; a pandas DataFrame;
            an Arrow Table, RecordBatchReader or Dataset; any object with `__arrow_c_stream__`. In dicts, numpy arrays
            become npy, PIL images the bytes of their files, and dicts JSON.
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
    source = python_source(inputs)
    paths = [] if isinstance(source, PythonSource) else source
    places = Places.of(paths, output, storage_options, fs, input_fs)
    if not isinstance(source, PythonSource):
        return _convert(places, options, progress, engine)
    storage = open_storage(places.output, places.output_options)
    if not options.splits:
        Run(storage).refuse_output(options.overwrite, options.resume)

    def report(num_rows: int) -> None:
        (progress or no_progress)(Progress("read", num_rows, source.num_rows))

    is_local = engine is None or engine.is_local
    with spooled(source, storage, is_local, lambda schema: refuse_early(schema, options), report) as path:
        places = replace(places, inputs=[path], input_options=None, are_spooled=True)
        try:
            return _convert(places, replace(options, hive=False), progress, engine)
        except OutputExistsError as error:
            if options.resume:
                noted(error, "the rows were read again: they must be those of the run, in their order")
            raise


def _convert(
    places: Places, options: ConvertOptions, progress: Callable[[Progress], None] | None, engine: Engine | None
) -> dict[str, Manifest]:
    """Convert; all checks for all splits are done before anything is written."""
    engine, report = engine or LocalEngine(options.jobs), progress or no_progress
    prepared = prepare(places, options)
    on_disk = not any(run.storage.is_remote for run in prepared.runs.values())
    settings = options.memory, engine.jobs_of_a_node, engine.is_local, on_disk
    needs = {name: needs_of(plan, *settings) for name, plan in prepared.plans.items()}
    refuse_little_space(prepared, needs)
    with prepared.locked():
        finished, published = _begin(prepared)
        manifests = {}
        try:
            for name, run in prepared.runs.items():
                if name in finished:
                    manifests[name] = finished[name]
                    report(_all_skipped(finished[name], name))
                    continue
                plan, need = prepared.plans[name], needs[name]
                job = ConvertJob(
                    output=prepared.folders[name],
                    storage_options=places.output_options,
                    shared=not engine.is_local,
                    plan=plan,
                    buffer_bytes=need.buffer_bytes,
                    emit=options.emit,
                )
                driver = Driver(job, engine, report, split=name, loadable_bytes=need.loadable_bytes)
                shards = driver.carry_out(published[name])
                manifests[name] = commit(run, plan, options.emit, shards)
        except BaseException:
            for name in published:
                prepared.runs[name].leave_resumable(prepared.plans[name])
            raise
    return manifests


def _begin(prepared: Prepared) -> tuple[dict[str, Manifest], dict[str, dict[int, ShardRow]]]:
    """Start or resume the run of each split.

    Returns:
        The manifests of the finished splits, and the published shards of the others.
    """
    runs, plans = prepared.runs, prepared.plans
    finished, published = dict[str, Manifest](), dict[str, dict[int, ShardRow]]()
    # Resuming may fail, so runs to resume come before those that replace an output.
    for name in sorted(runs, key=lambda name: name not in prepared.resumed):
        run, plan = runs[name], plans[name]
        manifest = run.finished(plan) if name in prepared.resumed else None
        if manifest is not None:
            finished[name] = manifest
        elif name in prepared.resumed:
            run.resume(plan)
            published[name] = run.complete(noted_rows(run.storage, plan, range(plan.num_shards)))
            logger.info("resuming: %d of %d shards exist already", len(published[name]), plan.num_shards)
        else:
            run.start(plan)
            published[name] = {}
    return finished, published


def _all_skipped(manifest: Manifest, split: str) -> Progress:
    """Return the progress of a finished conversion."""
    num_shards, num_samples = len(manifest.shards), manifest.num_samples + manifest.num_pads
    return Progress("write", num_shards, num_shards, num_samples, manifest.num_bytes, num_shards, split)
