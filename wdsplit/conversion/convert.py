"""`convert` and `convert_splits`: plan, carry out the passes, commit.

Tasks write shards and note what they wrote; only this driver's process commits. What a resumed run finds is in `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.commit import commit
from wdsplit.conversion.driver import Driver, Progress, no_progress
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.planning import PathLike
from wdsplit.conversion.prepare import Places, Prepared, prepare
from wdsplit.conversion.record.job import Job
from wdsplit.conversion.record.published import Published
from wdsplit.conversion.shuffle.scatter import task_bytes
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError
from wdsplit.shards.manifest import Manifest, Shard

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Progress", "convert", "convert_splits"]


def convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> Manifest:
    """Convert tables into a dataset of shards.

    The dataset exists when this returns; until then the output holds published shards without a manifest, and can be
    continued with `resume`.

    Args:
        inputs: One or several of: a file, a folder of them, a glob, a brace expression.
        output: The dataset's folder: a path, or `s3://bucket/folder`.
        options: The options; without splits.
        progress: Called with the progress so far, at the beginning of each pass and after each task.
        storage_options: How to reach remote stores, as for `wdsplit.Dataset`: that of the inputs and of the output,
            but for one that `fs` or `input_fs` reaches.
        engine: What carries the tasks out, such as `wdsplit.RayEngine`; None for `options.jobs` jobs of this machine.
        fs: The file system that the output is on, an object of fsspec such as `s3fs.S3FileSystem(...)`; None for what
            the path says itself. Files are gathered in TMPDIR and then sent.
        input_fs: The file system that the inputs are on.

    Returns:
        The manifest.

    Raises:
        WdsplitError: The inputs cannot be read or converted, or the output exists or cannot be written.
    """
    options = options or ConvertOptions()
    if options.splits:
        raise InputError("convert writes one dataset, but options.splits is set", remedy="use wdsplit.convert_splits")
    places = Places.of(inputs, output, storage_options, fs, input_fs)
    return _convert(places, options, progress, engine)[""]


def convert_splits(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> dict[str, Manifest]:
    """Convert tables into a dataset for each split, in folders below the output that are called after the splits.

    The arguments are those of `convert`, and so are its errors; the options must have splits.

    Returns:
        The manifest of each split.
    """
    if not options.splits:
        raise InputError("options.splits is empty", remedy="use wdsplit.convert")
    return _convert(Places.of(inputs, output, storage_options, fs, input_fs), options, progress, engine)


def _convert(
    places: Places, options: ConvertOptions, progress: Callable[[Progress], None] | None, engine: Engine | None
) -> dict[str, Manifest]:
    """Convert; nothing is written, of no split, before everything that can be refused is checked."""
    engine, report = engine or LocalEngine(options.jobs), progress or no_progress
    buffer_bytes = task_bytes(options.memory, engine.jobs_of_a_node)
    prepared = prepare(places, options)
    with prepared.locked():
        finished, published = _begin(prepared)
        manifests = {}
        try:
            for name, run in prepared.runs.items():
                if name in finished:
                    manifests[name] = finished[name]
                    report(_all_skipped(finished[name], name))
                    continue
                folder, plan = prepared.folders[name], prepared.plans[name]
                job = Job(folder, plan, buffer_bytes, options.emit, places.output_options, shared=not engine.is_local)
                shards = Driver(job, engine, report, split=name).carry_out(Published(plan, published[name]))
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
    # Resuming may be refused, so it comes before others start, which replaces what is there.
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
