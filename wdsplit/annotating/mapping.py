"""`map_samples`: calls a Python function with the samples of a dataset; what it returns becomes columns and fields.

The pass `map` calls the function, a shard in each task, and spills the results with the types that they have there.
Once all shards are done, the types of all results are known: the results are then written like the rows of a table.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import operator
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from wdsplit.annotating.annotate import Making, Rows
from wdsplit.annotating.columns import Chosen, joined_columns
from wdsplit.annotating.options import AnnotateOptions, MapOptions
from wdsplit.annotating.run import AnnotationRun
from wdsplit.annotating.writing import AnnotateProgress, Take, WriteJob, run_pass, values_of
from wdsplit.arrays import Int64
from wdsplit.conversion.plan.options import chosen
from wdsplit.conversion.shuffle.in_memory import MemoryRows
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, damaged_spill, parse_runs
from wdsplit.engines.local import Engine, LocalEngine, ahead, raise_if_cancelled
from wdsplit.errors import (
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    PipelineError,
    StorageError,
    WdsplitError,
)
from wdsplit.fields.infer import is_field_name, needs_sniff
from wdsplit.loading.samples import Samples
from wdsplit.shards.annotations import ANNOTATIONS, Annotation, find_covered
from wdsplit.shards.manifest import parse_fields
from wdsplit.shards.sample_tables import KEY, dump_schema, parse_columns, read_samples
from wdsplit.storage.given import PathLike, located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tables.python_rows import row_batches

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["map_samples"]

_SNIFF_BYTES, _DTYPE = 64, re.compile(rb"^\x93NUMPY.*'descr': '([^']+)'", re.S)
_AT_ONCE, _AT_ONCE_BYTES = 64, 4 * 1024**2
"""Samples that a thread decodes at a time where the function takes one, and their bytes in the shard."""
_ROW = "row"
"""The column of spilled results with the sample in its shard; the values are c0, c1, ..."""
_LIBRARIES = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
"""How the names of files begin that are no code of the user's."""
_LISTED = 1000
"""The failed samples that are listed."""


def map_samples(
    dataset: PathLike,
    function: Callable[[Any], Any] | str,
    name: str,
    options: MapOptions | None = None,
    progress: Callable[[AnnotateProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> Annotation:
    """Call a function with each sample of a dataset, and store what it returns as an annotation.

    The function returns a dict: numbers, booleans, dates and texts become columns, which conditions of views can use;
    bytes, arrays, images, lists, dicts and texts become fields, which `Dataset(join=[name])` reads. A name such as
    `latent.npy` is that of a field. None leaves the sample without values. No shard of the dataset changes.

        def brightness(sample):
            return {"brightness": float(sample["jpg"].mean())}

        wdsplit.map_samples("data/train", brightness, "brightness", fields=["jpg"], decode=["rgb"])

    Args:
        dataset: Folder of the dataset, which must have sample tables.
        function: Called with a sample, a dict as `wdsplit.Samples` gives it; with `batch_size`, called with a list of
            samples of a shard, for which it returns a list. Or its name, `module:function`, which each process
            imports. The results of a sample must depend on this sample alone.
        name: Name of the annotation.
        options: The options.
        progress: Called with the progress so far, at the start of each pass and after each shard.
        storage_options: Options for a remote store, as for `wdsplit.Dataset`.
        engine: Engine that runs the tasks, such as `wdsplit.RayEngine`; None for `options.jobs` processes of this
            machine.
        fs: fsspec file system of the dataset; None to choose it by the path.
        **keywords: Fields of `MapOptions`. They replace those of `options`.

    Returns:
        The annotation. Its provenance says which samples were skipped.

    Raises:
        PipelineError: The function raises an error for a sample, or a sample cannot be decoded.
        InputError: An option is invalid, or results are not dicts, have names that the dataset uses already, or have
            values of different types under one name.
        OutputExistsError: There is an annotation of this name, or an unfinished run.
        WdsplitError: The dataset cannot be read or written.
    """
    options = chosen(MapOptions, options, keywords)
    url, storage_options = located_one(dataset, storage_options, fs)
    storage = open_storage(url, storage_options)
    opened = partial(Samples, url, fields=options.fields or None, join=options.join, storage_options=storage_options)
    samples = opened()
    if options.resume:  # a run goes on with the version that it began with
        begun = AnnotationRun(storage, ANNOTATIONS.checked(name)).plan.get("fingerprint")
        version = next((each.number for each in samples.manifest.history[:-1] if each.fingerprint == begun), None)
        samples = samples if version is None else opened(version=version)
    covered = find_covered(storage, ANNOTATIONS.checked(name), samples.manifest) if options.update else None
    if covered is not None and covered.num_shards == len(samples.manifest.shards):
        return covered.annotation
    work = _Mapping(
        output=url,
        storage_options=storage_options,
        storage=storage,
        manifest=samples.manifest,
        name=ANNOTATIONS.checked(name),
        options=options,
        engine=engine or LocalEngine(options.jobs),
        report=progress or (lambda _: None),
        covered=covered,
        samples=samples.decode(*(_named(each) if ":" in str(each) else each for each in options.decode)),
        function=_named(function),
    )
    work.refuse_early()
    return work.carry_out()


def _named(function: Any) -> Any:
    """Return a function; one that is given by its name, `module:function`, is imported by each process."""
    if not isinstance(function, str):
        return function
    _imported(function)
    return _Named(function)


@dataclass(frozen=True)
class _Named:
    name: str

    def __call__(self, *arguments: Any) -> Any:
        return _imported(self.name)(*arguments)


@functools.cache
def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return operator.attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"function {name!r} not found",
            expected="module:function, of a module in this folder or an installed one",
            found=str(error),
            remedy="check both names",
        ) from error


def _name_of(function: Any) -> str:
    """Return what a plan calls a function."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    return str(getattr(function, "name", f"{kind.__module__}:{kind.__qualname__}"))


@dataclass(frozen=True, kw_only=True)
class _MapJob(WriteJob):
    """The input of the tasks of a map; `near_bytes` are those of the results."""

    near_bytes: int | None = None

    @property
    def shard_cuts(self) -> Int64:
        """Each shard is a group."""
        return np.arange(len(self.shards) + 1)


class _Seen(NamedTuple):
    """What some results have under a name.

    Attributes:
        columns: The column that they become, as of `dump_schema`; or none.
        fields: The fields that they become, as JSON values.
        dtype: The type of numbers in arrays; empty for other values.
        place: The first sample with such a value.
    """

    columns: Any
    fields: Any
    dtype: str
    place: str

    def __str__(self) -> str:
        kinds = [each["type"] for each in self.columns] + [f"{each['name']} ({each['type']})" for each in self.fields]
        return f"{', '.join([*kinds, *filter(None, [self.dtype])])} for {self.place}"


class _Mapped(NamedTuple):
    """The results for a shard.

    Attributes:
        runs: The results, in spill files.
        seen: What they are, by their names.
        num_missing: Number of samples without results.
        num_failed: How many of these could not be decoded, or made the function raise an error.
        failed: The first of these: key, shard, row and error, as JSON values.
    """

    runs: list[SortedRun]
    seen: dict[str, _Seen]
    num_missing: int
    num_failed: int
    failed: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Mapping(Making):
    """The arguments of a call of `map_samples`."""

    samples: Samples
    function: Callable[[Any], Any]

    def carry_out(self) -> Annotation:
        """Map the samples."""
        made_of = {
            "function": _name_of(self.function),
            "fields": list(self.options.fields),
            "join": list(self.options.join),
            "decode": [each if isinstance(each, str) else _name_of(each) for each in self.options.decode],
        }
        if self.covered is not None:
            before = {name: self.covered.annotation.provenance.get(name) for name in made_of}
            if before != made_of:
                raise InputError(
                    f"annotation {self.name!r} was made in another way",
                    place=self.storage.url,
                    expected=str(before),
                    found=str(made_of),
                    remedy="update it with the function and options that made it, or make it again with --overwrite",
                )
        plan, live = xxhash.xxh3_64_hexdigest(orjson.dumps([self.manifest.fingerprint, made_of])), self.live()
        # A function may be changed and keep its name, so an annotation is never written into the folder of another.
        job = _MapJob(
            **self.job_arguments([plan, live and live.folder], Chosen(pa.schema([]), (), ())),
            task_bytes=0,
            buffer_bytes=0,
        )
        if live is not None and live.provenance.get("plan") == plan and not self.run.is_unfinished:
            job = dataclasses.replace(job, folder=live.folder) if self.options.resume else job
        version = self.manifest.fingerprint if self.covered is not None else ""
        return self.make(job, version, partial(self._map, {**made_of, "plan": plan}))

    def _map(self, provenance: Mapping[str, Any], job: _MapJob) -> Rows:
        """Call the function for all shards, and return its results as rows."""
        seen: dict[str, _Seen] = {}

        def check(task: int, mapped: _Mapped) -> None:
            before = len(seen)
            _merge(seen, mapped.seen)
            if len(seen) > before:
                self.without_clashes(self._chosen(seen))

        first = 0 if self.covered is None else self.covered.num_shards
        work = partial(_map_shards, job, self.samples, self.function, self.options, first)
        amounts = job.shards.num_real
        mapped = run_pass(
            job, self.engine, self.report, "map", work, _parse_mapped, amounts, collect=check, threads=False
        )
        failed = [one for each in mapped for one in each.failed]
        if not (seen or self.covered):
            raise InputError(
                "the function returns no values",
                place=self.storage.url,
                expected="a dict for some sample, such as {'score': 0.5}",
                found="{error} (sample {key!r})".format(**failed[0]) if failed else "None for each sample",
            )
        num_bytes = [sum(run.num_bytes for run in each.runs) for each in mapped]
        job = dataclasses.replace(
            job,
            **self._chosen(seen)._asdict(),
            buffer_bytes=max(num_bytes, default=0),
            near_bytes=None if self.storage.has_latency else sum(num_bytes),
        )
        num_failed = sum(each.num_failed for each in mapped)
        if self.covered is not None:
            earlier = self.covered.annotation.provenance
            num_failed, failed = num_failed + earlier["num_failed"], [*earlier["failed"], *failed]
        provenance = {**provenance, "num_failed": num_failed, "failed": failed[:_LISTED]}
        read = partial(_read_results, job, [each.runs for each in mapped])
        return job, read, (sum(each.num_missing for each in mapped), 0, 0), provenance

    def _chosen(self, seen: Mapping[str, _Seen]) -> Chosen:
        """Return the columns and fields of results; of an update, those of the annotation, which has them all."""
        found, owners = [seen[name] for name in sorted(seen)], dict[str, str]()
        for name, made in ((key, each["name"]) for key in sorted(seen) for each in seen[key].fields):
            if owners.setdefault(made, name) != name:
                raise InputError(
                    f"two values of the function become the field {made!r}",
                    place=seen[name].place,
                    expected="different names",
                    found=f"{owners[made]!r} and {name!r}",
                    remedy="let it return one of them, and start again with --overwrite",
                )
        schema = parse_columns([each for one in found for each in one.columns])
        fields = parse_fields([each for one in found for each in one.fields])
        if self.covered is not None:
            before = self.covered.annotation
            new = [each for each in (*schema, *fields) if each not in (*before.schema, *before.fields)]
            if new:
                raise InputError(
                    f"the function returns other values than annotation {self.name!r} has",
                    place=self.storage.url,
                    expected=f"{', '.join(before.schema.names)}; fields {', '.join(map(str, before.fields))}",
                    found=str(new[0]),
                    remedy="let it return the same as before, or make the annotation again with --overwrite",
                )
            schema, fields = before.schema, before.fields
        return Chosen(schema, tuple(schema.names), fields)

    def without_clashes(self, chosen: Chosen) -> Chosen:
        """Refuse names that the dataset has already."""
        try:
            return super().without_clashes(chosen)
        except InputError as error:
            error.remedy = "let the function return other names, and start again with --overwrite"
            raise

    def is_useless(self, error: WdsplitError, job: WriteJob) -> bool:
        """No shard is done."""
        return not self.storage.list(job.spill_folder)


def _merge(seen: dict[str, _Seen], others: Mapping[str, _Seen]) -> None:
    """Add what other results are; refuse other types under one name."""
    for name, other in others.items():
        one = seen.setdefault(name, other)
        if one[:-1] != other[:-1]:
            raise InputError(
                f"the function returns values of different types as {name!r}",
                place=other.place,
                expected=str(one),
                found=str(other),
                remedy="let it return one type, such as float(value), and start again with --overwrite",
            )


def _parse_mapped(note: Any) -> _Mapped:
    runs, seen, num_missing, num_failed, failed = note
    return _Mapped(
        parse_runs(runs), {name: _Seen(*each) for name, each in seen.items()}, num_missing, num_failed, failed
    )


# The tasks: they run in workers, and may run twice


def _map_shards(
    job: _MapJob, samples: Samples, function: Any, options: MapOptions, first: int, storage: Storage, shards: range
) -> Iterator[_Mapped]:
    starts = np.append(0, np.cumsum(samples.manifest.shards.num_real))[first:].tolist()
    for number in shards:
        yield _OneShard(job, function, options, storage, number, samples[starts[number] : starts[number + 1]]).mapped()


@dataclass(frozen=True)
class _OneShard:
    """Calls the function with the samples of a shard."""

    job: _MapJob
    function: Callable[[Any], Any]
    options: MapOptions
    storage: Storage
    number: int
    samples: Samples
    failed: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def keys(self) -> list[str]:
        return list(read_samples(self.storage, self.job.shards[self.number], [KEY]).column(0).to_pylist())

    @cached_property
    def url(self) -> str:
        return f"{self.storage.url}/{self.job.shards[self.number].path}"

    def place(self, row: int) -> str:
        return f"sample {self.keys[row]!r} ({self.url}, row {row})"

    def mapped(self) -> _Mapped:
        """Call the function with the samples of the shard, and spill the results."""
        rows: list[int] = []
        size = self.options.batch_size or min(_AT_ONCE, 1 + _AT_ONCE_BYTES // (1 + self.samples.source.sample_bytes))
        decoded = self._decoded()

        def given() -> Iterator[Any]:
            for batch in ahead(iter(lambda: list(islice(decoded, size)), [])):
                for (row, _), result in zip(batch, self._results(batch), strict=True):
                    if result:
                        rows.append(row)
                        yield result

        runs, seen, done = list[SortedRun](), dict[str, _Seen](), 0
        for batch in row_batches(given(), lambda number: self.place(rows[number])):
            found, table = self._encoded(batch, rows[done : done + len(batch)])
            _merge(seen, found)
            done += len(batch)
            spilled = RunWriter(self.storage, f"{self.job.spill_folder}/map-{self.number:06d}-{done}", 0)
            spilled.append(table, np.zeros(len(table), np.int64), table.nbytes)
            runs += spilled.end()
        failed = sorted(self.failed, key=lambda one: one["row"])
        return _Mapped(runs, seen, len(self.keys) - len(rows), len(failed), failed[:_LISTED])

    def _encoded(self, batch: pa.RecordBatch, rows: list[int]) -> tuple[dict[str, _Seen], pa.Table]:
        """Return what results are, and their rows, columns and payloads; names that have only None are left out."""
        firsts = {
            name: int(np.argmax(column.is_valid().to_numpy(zero_copy_only=False)))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if column.null_count < len(batch)
        }
        batch = batch.select(list(firsts))
        if not firsts:
            return {}, pa.table({_ROW: pa.array(rows, pa.int64())})
        heads = {
            name: batch.column(name)[first].as_py()[:_SNIFF_BYTES]
            for name, first in firsts.items()
            if needs_sniff(batch.schema.field(name).type)
        }
        fields = {name: name for name in firsts if is_field_name(name)}
        others = tuple(name for name in firsts if name not in fields)
        schema = batch.schema.append(pa.field(KEY, pa.string()))
        try:
            found = joined_columns(schema, KEY, AnnotateOptions(mapping=fields, columns=others), heads)
        except InputError as error:
            error.remedy = "let the function return other names or types"
            raise error.at(self.place(rows[0])) from error
        job = dataclasses.replace(self.job, **found._asdict())
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        values = values_of(job, columns, lambda row: self.place(rows[row]))
        seen = {
            name: _Seen(
                dump_schema(pa.schema([each for each in found.schema if each.name == name])),
                [{**dataclasses.asdict(each), "names": []} for each in found.fields if each.column == name],
                b"".join(_DTYPE.findall(heads.get(name, b""))).decode(),
                self.place(rows[first]),
            )
            for name, first in firsts.items()
        }
        return seen, pa.table([pa.array(rows, pa.int64()), *values], [_ROW, *job.value_names])

    def _decoded(self) -> Iterator[tuple[int, Any]]:
        """Give samples with their rows, without those that fail."""
        row = 0
        while row < len(self.keys):
            try:
                for sample in self.samples[row:]:
                    yield row, sample
                    row += 1
            except Exception:  # of any sample that was read together with this one
                try:
                    sample = self.samples[row]
                except Exception as error:
                    self._fail(error, [row], "a sample cannot be decoded")
                else:
                    yield row, sample
                row += 1

    def _results(self, batch: list[tuple[int, Any]]) -> Sequence[Any]:
        """Return the results of a batch; None for samples that fail."""
        raise_if_cancelled()
        samples = [sample for _, sample in batch]
        try:
            results = self.function(samples) if self.options.batch_size else list(map(self.function, samples))
        except Exception as error:
            alone = [result for one in batch for result in self._results([one])] if len(batch) > 1 else [None]
            if len(batch) == 1 or self.options.on_error == "raise":  # else each sample has failed or not by itself
                expected = (
                    "a function that takes these samples together, too: their shapes may differ" if alone[1:] else ""
                )
                if isinstance(error, (AttributeError, LookupError, TypeError)):  # it may be made for something else
                    called = "a list of them" if self.options.batch_size else "one; with --batch-size N, a list of them"
                    names = ", ".join(name for name in sorted(samples[0]) if not name.startswith("__"))
                    expected = f"a function of samples, dicts with {names}: it gets {called}"
                self._fail(error, [row for row, _ in batch], "the function raised an error", expected)
            return alone
        given = results if isinstance(results, Sequence) else []
        wrong = [type(each).__name__ for each in given if not isinstance(each, Mapping | None)]
        if len(given) != len(batch) or wrong:
            raise InputError(
                "the function does not return a dict for each sample",
                place=self.place(batch[0][0]),
                expected=f"{'a list of dicts, as many as samples' if self.options.batch_size else 'a dict'}, or None",
                found=wrong[0] if wrong else f"{len(given)} for {len(batch)} samples ({type(results).__name__})",
                remedy="let it return names and values, such as {'score': 0.5}",
            )
        return given

    def _fail(self, error: Exception, rows: Sequence[int], cause: str, expected: str = "") -> None:
        """Note that a sample has failed, or raise an error that names it."""
        if isinstance(error, (StorageError, DatasetNotFoundError, MissingDependencyError)):
            raise error  # that is no fault of the sample
        key = self.keys[rows[0]]
        found = error.cause if isinstance(error, WdsplitError) else f"{type(error).__name__}: {error}"
        if self.options.on_error == "skip":
            shard = self.job.shards[self.number].path
            self.failed.append({"key": key, "shard": shard, "row": rows[0], "error": found})
            return
        frames = traceback.extract_tb(error.__traceback__)
        last = next((each for each in reversed(frames) if not each.filename.startswith(_LIBRARIES)), frames[-1])
        raise PipelineError(
            cause,
            place=self.place(rows[0]) + (f", or {len(rows) - 1} more of its batch" if len(rows) > 1 else ""),
            expected=expected,
            found=f"{found} ({last.filename}, line {last.lineno})",
            remedy="correct it and run the same command, with --resume if shards are finished; "
            "or leave such samples out with --on-error skip",
            url=self.url,
            key=key,
        ) from error


def _read_results(job: _MapJob, runs: Sequence[Sequence[SortedRun]], storage: Storage, number: int) -> Take:
    """Open the results of a shard."""
    order, batches = np.full(int(job.shards.num_real[number]), -1), list[pa.RecordBatch]()
    for run in runs[number]:
        for batch in OpenRun(storage, run).read_buckets(0, 0):
            order[batch.column(_ROW)] = sum(map(len, batches)) + np.arange(len(batch))
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            values = zip(job.value_names, job.values.types, strict=True)
            arrays = [columns[name] if name in columns else pa.nulls(len(batch), kind) for name, kind in values]
            batches.append(pa.record_batch(arrays, schema=job.values))
    if np.count_nonzero(order >= 0) != sum(run.num_rows for run in runs[number]):
        raise damaged_spill(f"{storage.url}/{job.spill_folder}", "results of fewer samples")
    return MemoryRows(job.values, batches, order).take
