"""`convert` and `convert_splits`: plan, carry out the passes, commit.

Tasks write shards and note what they wrote; only this driver's process commits. What a resumed run finds is in `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.commit import commit
from wdsplit.conversion.driver import Driver, Progress, no_progress
from wdsplit.conversion.needs import needs_of, refuse_little_space
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.planning import PathLike, refuse_early
from wdsplit.conversion.prepare import Places, Prepared, prepare
from wdsplit.conversion.record.job import Job
from wdsplit.conversion.record.published import Published
from wdsplit.conversion.run import Run
from wdsplit.conversion.spool import spooled
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError, OutputExistsError, WdsplitError, noted
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.storage.opening import open_storage
from wdsplit.tables.python_source import PythonSource, python_source

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Progress", "Source", "convert", "convert_splits"]

Source = PathLike | Sequence[PathLike] | Iterable[Mapping[str, Any]] | Any
"""Paths, or rows: what `convert` takes; the libraries of datasets and frames are not imported for their types."""


def convert(
    inputs: Source,
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> Manifest:
    """Convert tables, or rows that Python code has, into a dataset of shards.

    The dataset exists when this returns; until then the output holds published shards without a manifest, and can be
    continued with `resume`.

        wdsplit.convert("raw/*.parquet", "data/train")
        wdsplit.convert(({"jpg": image, "cls": label} for image, label in samples), "data/train")

    Rows from Python are read once, as a stream, into an Arrow file in the output's folder (in TMPDIR for a remote one),
    which is removed at the end. `resume` reads them again: they must be the same, in the same order.

    Args:
        inputs: Paths: one or several of a file, a folder of them or of images, a glob, a brace expression. Or rows: an
            iterable of dicts; a Hugging Face `Dataset` or `IterableDataset`; a Polars DataFrame or LazyFrame; a pandas
            DataFrame; an Arrow Table, RecordBatchReader or Dataset; anything with `__arrow_c_stream__`. In dicts, numpy
            arrays become npy, PIL images the bytes of their files, and dicts JSON.
        output: The dataset's folder: a path, or `s3://bucket/folder`.
        options: The options; without splits.
        progress: Called with the progress so far, at the start of each pass and after each task.
        storage_options: How to reach remote stores, as for `wdsplit.Dataset`: that of the inputs and of the output,
            but for one that `fs` or `input_fs` reaches.
        engine: Engine that runs the tasks, such as `wdsplit.RayEngine`; None for `options.jobs` jobs of this machine.
        fs: The file system that the output is on, an object of fsspec such as `s3fs.S3FileSystem(...)`; None for what
            the path says itself. Files are gathered in TMPDIR and then sent.
        input_fs: The file system that the inputs are on.

    Returns:
        The manifest.

    Raises:
        WdsplitError: The inputs cannot be read or converted, or the output exists or cannot be written.
    """
    options = ConvertOptions() if options is None else options
    _check_class(options)
    if options.splits:
        raise InputError("convert writes one dataset, but options.splits is set", remedy="use wdsplit.convert_splits")
    return _convert_any(inputs, output, options, progress, storage_options, engine, fs, input_fs)[""]


def convert_splits(
    inputs: Source,
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> dict[str, Manifest]:
    """Convert into a dataset for each split, in folders below the output that are called after the splits.

    The arguments are those of `convert`, and so are its errors; the options must have splits.

    Returns:
        The manifest of each split.
    """
    _check_class(options)
    if not options.splits:
        raise InputError("options.splits is empty", remedy="use wdsplit.convert")
    return _convert_any(inputs, output, options, progress, storage_options, engine, fs, input_fs)


def _check_class(options: Any) -> None:
    if not isinstance(options, ConvertOptions):
        raise InputError(
            "options are not ConvertOptions",
            expected="wdsplit.ConvertOptions(wdsplit.PlanOptions(shards=...), key=...)",
            found=type(options).__name__,
            remedy="give PlanOptions as the first argument of ConvertOptions",
        )


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
    """Convert files, or rows of Python by way of a file."""
    source = python_source(inputs)
    paths = [] if isinstance(source, PythonSource) else source
    places = Places.of(paths, output, storage_options, fs, input_fs)
    if not isinstance(source, PythonSource):
        return _convert(places, options, progress, engine)
    storage = open_storage(places.output, places.output_options)
    if engine is not None and not engine.is_local and storage.is_remote:
        raise InputError(
            "other machines cannot access rows from Python",
            place=places.output,
            expected="an output on a shared file system, or an engine of this machine",
            remedy="leave out engine=, or write the rows to a table that all machines can access",
        )
    if not options.splits:
        Run(storage).refuse_output(options.overwrite, options.resume)

    def report(num_rows: int) -> None:
        (progress or no_progress)(Progress("read", num_rows, source.num_rows))

    with spooled(source, storage, lambda schema: refuse_early(schema, options), report) as path:
        places = replace(places, inputs=[path], input_options=None, are_spooled=True)
        try:
            return _convert(places, replace(options, hive=False), progress, engine)
        except WdsplitError as error:
            error.place = error.place.replace(path, source.what)
            if options.resume and isinstance(error, OutputExistsError):
                noted(error, "the rows were read again: they must be those of the run, in their order")
            raise


def _convert(
    places: Places, options: ConvertOptions, progress: Callable[[Progress], None] | None, engine: Engine | None
) -> dict[str, Manifest]:
    """Convert; nothing is written, of no split, before everything that can be refused is checked."""
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
                given = (options.emit, places.output_options, not engine.is_local)
                job = Job(prepared.folders[name], plan, need.buffer_bytes, *given)
                driver = Driver(job, engine, report, split=name, loadable_bytes=need.loadable_bytes)
                shards = driver.carry_out(Published(plan, published[name]))
                manifests[name] = commit(run, plan, options.emit, shards)
        except BaseException:
            for name in published:
                prepared.runs[name].leave_resumable(prepared.plans[name])
            raise
    return manifests


def _begin(prepared: Prepared) -> tuple[dict[str, Manifest], dict[str, dict[int, Shard]]]:
    """Begin or resume the run of each split.

    Returns:
        The manifests of the splits that are finished already, and the published shards of the others.
    """
    runs, plans = prepared.runs, prepared.plans
    resumed = [name for name in runs if name in prepared.resumed]
    found = {name: runs[name].finished(plans[name]) for name in resumed}
    finished = {name: manifest for name, manifest in found.items() if manifest is not None}
    # Resuming may be refused, so those that resume begin before those that start again and replace an output.
    published = {name: runs[name].resume(plans[name]) for name in resumed if name not in finished}
    for name in runs:
        if name not in prepared.resumed:
            runs[name].start(plans[name])
            published[name] = {}
    return finished, published


def _all_skipped(manifest: Manifest, split: str) -> Progress:
    """Return the progress of a conversion that is finished already."""
    num_shards, num_samples = len(manifest.shards), manifest.num_samples + manifest.num_pads
    return Progress("write", num_shards, num_shards, num_samples, manifest.num_bytes, num_shards, split)
