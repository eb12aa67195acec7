"""Sample tables for existing tars: made from their contents, shard by shard.

Where the header lists columns, and no others are asked for, tables that are missing or damaged are made again. Else the
options say which columns all tables have: the header loses its columns before the first table is replaced, and gets the
new ones at the end. Tables that are right are kept, so that a stopped run can continue.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import xxhash

from wdsplit.conversion.plan.options import IndexOptions
from wdsplit.engines.local import Engine
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, did_you_mean
from wdsplit.indexing.sample_rows import Recipe, as_types, joined_columns, read_rows, typed_schema
from wdsplit.shards.annotations import list_annotations
from wdsplit.shards.files import write_samples_schema
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.shards.parquet import MAX_TABLE_BYTES
from wdsplit.shards.sample_tables import dump_samples, parse_samples, recipe_of, samples_path
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.texts import counted, listed

__all__ = ["IndexProgress", "make_sample_tables", "map_tars"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_SHOWN = 20


@dataclass(frozen=True)
class IndexProgress:
    """Progress of `index_tars`: tars read, all tars, and the samples and bytes in those read."""

    tars: int
    num_tars: int
    samples: int
    num_bytes: int


@dataclass(frozen=True)
class _Job:
    """The input of all tasks: the dataset, how its tables are made, and their columns if these stay."""

    url: str
    options: Mapping[str, Any] | None
    manifest: Manifest
    recipe: Recipe
    columns: pa.Schema | None

    @property
    def text(self) -> str:
        """An identifier of how columns were found; empty if the manifest's types decide."""
        names = self.recipe.untyped
        return xxhash.xxh3_64_hexdigest(orjson.dumps([names, self.recipe.keep, self.recipe.no_keep])) if names else ""


def make_sample_tables(
    storage: Storage,
    storage_options: Mapping[str, Any] | None,
    manifest: Manifest,
    options: IndexOptions,
    engine: Engine,
    report: Callable[[IndexProgress], None],
) -> Manifest:
    """Make the sample tables of a dataset, and write their columns into its header.

    Args:
        storage: The dataset.
        storage_options: Options for a remote store, for the tasks.
        manifest: Its manifest.
        options: Which columns to keep. If none are named, those in the manifest stay.
        engine: Engine that runs the tasks.
        report: Called at the start and after each tar.

    Returns:
        The manifest, with the columns.

    Raises:
        InputError: A column has the same name as a column of an annotation, or would be lost.
        WdsplitError: A shard is missing or damaged, or the storage fails.
    """
    stay = None if options.keep or options.no_keep else manifest.samples
    texts = tuple(column.name for column in stay or () if column.type == pa.string())
    recipe = Recipe(manifest.fields, texts or options.keep, options.no_keep)
    job = _Job(storage.url, storage_options, manifest, recipe, stay)
    _refuse_unknown(job, storage, options.keep)
    _refuse_lost(job, storage)
    counts, sizes = manifest.shards.column("num_samples"), manifest.shards.column("num_bytes")
    made = map_tars(
        engine,
        partial(_make, job),
        manifest.shards.table.column("path").to_pylist(),
        None if storage.has_latency else manifest.num_bytes,
        lambda number, _: (int(counts[number]), int(sizes[number])),
        report,
    )
    _warn(storage, sum((lost for _, lost in made), Counter[str]()))
    if stay is not None:
        return manifest
    columns = joined_columns(schema for schema, _ in made)
    typed = {column.name: column.metadata for column in recipe.typed_columns()}
    columns = pa.schema([column.with_metadata(typed.get(column.name)) for column in columns])
    others = [number for number, (schema, _) in enumerate(made) if not schema.equals(columns)]
    for _ in engine.map(partial(_rewrite, job, columns), others, num_bytes=None):
        pass
    _refuse_annotated(storage, manifest, columns)
    write_samples_schema(storage, columns)
    return replace(manifest, samples=columns)


def _refuse_unknown(job: _Job, storage: Storage, keep: Sequence[str]) -> None:
    """Refuse columns to keep that no sample has; reads tars only until all are found."""
    known = {*job.recipe.typed, *job.recipe.untyped}
    missing = [name for name in keep if name not in known]
    has_json = any(name.rpartition(".")[2] == "json" for name in job.recipe.untyped)
    for number in range(len(job.manifest.shards)) if has_json else ():
        if not missing:
            return
        lost: Counter[str] = Counter()
        known |= set(read_rows(storage, job.manifest.shards[number], job.recipe, lost).column_names)
        known |= {match[1] for what in lost if (match := re.match(r"column '(.*)': texts$", what))}
        missing = [name for name in missing if name not in known]
    if not missing:
        return
    texts = [field.column for field in job.manifest.fields if field.encoding not in ("media", "npy")]
    raise InputError(
        "sample tables cannot have these columns",
        place=storage.url,
        expected=f"numbers, booleans or texts in the tars, such as {', '.join(sorted(known)[:_MAX_SHOWN])}",
        found=", ".join(map(repr, missing)),
        remedy=did_you_mean(missing, sorted({*known, *texts})) or "change --keep",
    )


def _refuse_lost(job: _Job, storage: Storage) -> None:
    """Refuse to lose columns that the dataset has, before anything is written.

    Only the samples tell which numbers a field of JSON has; a text stays only if it is named.
    """
    recipe, is_adopted = job.recipe, job.manifest.provenance.get("adopted")
    found = {*typed_schema(recipe).names, *recipe.untyped, *recipe.no_keep}
    found |= {*recipe.keep} if job.columns is None or is_adopted else set()
    columns = [column for column in job.manifest.samples or () if not is_adopted or column.type == pa.string()]
    gone = [column.name for column in columns if column.name not in found]
    shards = job.manifest.shards
    bad = [number for number in range(len(shards)) if gone and _existing_table(job, storage, shards[number]) is None]
    if bad:
        without = " ".join(f"--no-keep {name}" for name in gone)
        raise InputError(
            "columns of the sample tables would be lost",
            place=storage.url,
            expected=f"the columns {', '.join(map(repr, gone))}, by --keep if the tars have them",
            found=f"{counted(len(bad), 'table')} to make from tars: "
            + listed(bad, _MAX_SHOWN, lambda number: samples_path(shards[number].path)),
            remedy=f"use {without} to leave them out of all tables; or `wdsplit convert --overwrite`",
        )


def _refuse_annotated(storage: Storage, manifest: Manifest, columns: pa.Schema) -> None:
    for annotation in list_annotations(storage, manifest).values():
        both = [name for name in columns.names if name in annotation.schema.names]
        if both:
            raise InputError(
                f"an annotation has columns with the same names: {', '.join(map(repr, both))}",
                place=f"{storage.url}, annotation {annotation.name!r}",
                expected="each name once",
                remedy=f"leave them out with {' '.join(f'--no-keep {name}' for name in both)}, or drop the annotation",
            )


def map_tars(
    engine: Engine,
    work: Callable[[int], tuple[int, Result]],
    paths: Sequence[str],
    num_bytes: int | None,
    size_of: Callable[[int, Result], tuple[int, int]],
    report: Callable[[IndexProgress], None],
) -> list[Result]:
    """Map a function over tars, and report the progress; return the results in the order of the tars.

    Args:
        engine: Engine that runs the tasks.
        work: Given the number of a tar, returns this and a result.
        paths: The tars.
        num_bytes: As for `Engine.map`.
        size_of: Returns the samples and bytes of a tar, given its number and result.
        report: Called at the start and after each tar.
    """
    found: dict[int, Result] = {}
    samples = read_bytes = 0
    report(IndexProgress(0, len(paths), 0, 0))
    tasks = engine.map(work, range(len(paths)), num_bytes=num_bytes, describe=paths.__getitem__)
    with closing(tasks) as results:
        for number, each in results:
            found[number] = each
            more_samples, more_bytes = size_of(number, each)
            samples, read_bytes = samples + more_samples, read_bytes + more_bytes
            report(IndexProgress(len(found), len(paths), samples, read_bytes))
    return [found[number] for number in range(len(paths))]


def _make(job: _Job, number: int) -> tuple[int, tuple[pa.Schema, Counter[str]]]:
    """Make the table of a shard, unless it exists; return its columns, and the values that were left out.

    Runs in a worker process; may run twice.
    """
    storage, listed = open_storage(job.url, job.options), job.manifest.shards[number]
    found, lost = _existing_table(job, storage, listed), Counter[str]()
    if found is None:
        found = read_rows(storage, listed, job.recipe, lost)
        found = found if job.columns is None else as_types(found, job.columns)
        _publish(job, storage, listed, found)
    return number, (found.schema, lost)


def _existing_table(job: _Job, storage: Storage, listed: Shard) -> pa.Table | None:
    """Return the existing table of a shard; None if it is missing or damaged, or not the one to be made."""
    try:
        data = storage.read(samples_path(listed.path), MAX_TABLE_BYTES)
        found = parse_samples(data, listed, None, job.columns)
    except (DatasetNotFoundError, CorruptDataError):
        return None
    if job.columns is not None:
        return found
    is_typed = not job.text and typed_schema(job.recipe).equals(found.schema)
    return found if recipe_of(data) == job.text and (job.text or is_typed) else None


def _publish(job: _Job, storage: Storage, listed: Shard, table: pa.Table) -> None:
    """Publish the table of a shard; if its columns are new, remove the columns from the header first."""
    before = job.manifest.samples
    if before is not None and not table.schema.equals(before.remove_metadata()):
        write_samples_schema(storage, None)
    with storage.publish(samples_path(listed.path)) as file:
        file.write([dump_samples(table, listed.checksum, job.text)])


def _rewrite(job: _Job, columns: pa.Schema, number: int) -> None:
    """Rewrite the table of a shard with the common columns. Runs in a worker process; may run twice."""
    storage, listed = open_storage(job.url, job.options), job.manifest.shards[number]
    data = storage.read(samples_path(listed.path), MAX_TABLE_BYTES)
    _publish(job, storage, listed, as_types(parse_samples(data, listed), columns))


def _warn(storage: Storage, lost: Counter[str]) -> None:
    """Warn about values that were left out of the tables."""
    if lost:
        texts = [f"{what}, {count:,} values" for what, count in sorted(lost.items())]
        more = f"; and {len(texts) - _MAX_SHOWN:,} more" if len(texts) > _MAX_SHOWN else ""
        text = "%s: left out of the sample tables: %s%s (--keep COLUMN keeps texts)"
        logger.warning(text, storage.url, "; ".join(texts[:_MAX_SHOWN]), more)
