"""Sample tables for existing tars: made from their contents, shard by shard.

Valid tables are kept, so that a stopped run can continue. Columns in the manifest stay until they are left out by name.
If columns change, they are removed from the header before the first table is replaced, and written to it at the end.
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
from wdsplit.fields.image_sizes import first_image_field
from wdsplit.fields.sample_columns import own_columns
from wdsplit.indexing.sample_rows import Recipe, as_types, joined_columns, read_rows, typed_schema
from wdsplit.shards.annotations import list_annotations
from wdsplit.shards.files import write_samples_schema
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.shards.parquet import MAX_TABLE_BYTES
from wdsplit.shards.sample_tables import (
    KEY,
    NUM_BYTES,
    dump_samples,
    parse_samples,
    recipe_of,
    samples_path,
)
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.texts import counted, listed

__all__ = ["IndexProgress", "make_sample_tables", "map_tars"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_SHOWN = 20
_TAKEN = (KEY, NUM_BYTES)


@dataclass(frozen=True)
class IndexProgress:
    """Progress of `index_tars`: tars read, all tars, and the samples and bytes in those read."""

    tars: int
    num_tars: int
    samples: int
    num_bytes: int


@dataclass(frozen=True)
class _Job:
    """The input of all tasks: the dataset, and how its tables are made."""

    url: str
    options: Mapping[str, Any] | None
    manifest: Manifest
    recipe: Recipe
    kept: pa.Schema | None
    new: frozenset[str]

    @property
    def text(self) -> str:
        """An identifier of how columns were found; empty if the manifest's types decide."""
        names = self.recipe.untyped
        return xxhash.xxh3_64_hexdigest(orjson.dumps([names, self.recipe.keep, self.recipe.no_keep])) if names else ""


@dataclass(frozen=True)
class _Made:
    """A new table of a shard: its columns, and the values that were left out."""

    columns: pa.Schema
    lost: Counter[str]


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
        options: Which columns to keep.
        engine: Engine that runs the tasks.
        report: Called at the start and after each tar.

    Returns:
        The manifest, with the columns.

    Raises:
        InputError: A column has the same name as a column of an annotation.
        WdsplitError: A shard is missing or damaged, or the storage fails.
    """
    job = _job(storage, storage_options, manifest, options)
    recipe = job.recipe
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
    columns = joined_columns(each.columns for each in made)
    typed = {column.name: column for column in [*recipe.typed_columns(), *(job.kept or ())]}
    columns = pa.schema([column.with_metadata(typed.get(column.name, column).metadata) for column in columns])
    others = [number for number, each in enumerate(made) if not each.columns.equals(columns)]
    for _ in engine.map(partial(_rewrite, job, columns), others, num_bytes=None):
        pass
    _refuse_annotated(storage, manifest, columns)
    write_samples_schema(storage, columns)
    _warn(storage, sum((each.lost for each in made), Counter[str]()))
    return replace(manifest, samples=columns)


def _job(storage: Storage, given: Mapping[str, Any] | None, manifest: Manifest, options: IndexOptions) -> _Job:
    """Return the input of the tasks. Columns in the manifest stay, unless they are left out by name."""
    before, keep = manifest.samples, options.keep
    kept, new = None, frozenset[str]()
    if before is not None:
        kept = pa.schema([column for column in before if column.name not in options.no_keep or column.name in _TAKEN])
        own = {column.name for column in own_columns(first_image_field(manifest.fields) is not None)}
        texts = [column.name for column in kept if not _is_number(column.type)]
        as_text = set(keep) & set(kept.names) - set(texts) if Recipe(manifest.fields).untyped else set()
        new = frozenset({*keep, *(own & set(options.no_keep))} - set(kept.names) | as_text)
        keep = tuple(dict.fromkeys([*keep, *(name for name in texts if name not in own)]))
    return _Job(storage.url, given, manifest, Recipe(manifest.fields, keep, options.no_keep), kept, new)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _refuse_unknown(job: _Job, storage: Storage, keep: Sequence[str]) -> None:
    """Refuse columns to keep that no sample has; reads tars only until all are found."""
    known = {*job.recipe.typed, *job.recipe.untyped, *(() if job.kept is None else job.kept.names)}
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
    lists = [name for name in missing if "," in name]
    repeat = " ".join(f"--keep {part.strip()}" for part in ",".join(lists).split(","))
    texts = [field.column for field in job.manifest.fields if field.encoding not in ("media", "npy")]
    raise InputError(
        "sample tables cannot have these columns",
        place=storage.url,
        expected=f"numbers, booleans or texts in the tars, such as {', '.join(sorted(known)[:_MAX_SHOWN])}",
        found=", ".join(map(repr, missing)),
        remedy=(f"repeat the option: {repeat}" if lists else did_you_mean(missing, sorted({*known, *texts})))
        or "change --keep",
    )


def _refuse_lost(job: _Job, storage: Storage) -> None:
    """Refuse to remake a table with columns that are not in the tars, before anything is written."""
    if job.manifest.provenance.get("adopted"):
        return
    found = [_existing_table(storage, job.manifest.shards[number]) for number in range(len(job.manifest.shards))]
    names = [
        *(() if job.kept is None else job.kept.names),
        *(name for each in found if each for name in each.column_names),
    ]
    available = {*typed_schema(job.recipe).names, *job.recipe.untyped, *job.recipe.no_keep}
    gone = [name for name in dict.fromkeys(names) if name not in available]
    bad = [n for n, each in enumerate(found) if each is None or not set(gone) <= set(each.column_names)]
    if gone and bad:
        paths = listed(bad, _MAX_SHOWN, lambda number: samples_path(job.manifest.shards[number].path))
        without = " ".join(f"--no-keep {name}" for name in gone)
        raise InputError(
            "sample tables are missing or damaged, and the tars do not have all of their columns",
            place=storage.url,
            expected=f"tables with the columns {', '.join(map(repr, gone))}, which cannot be made again from the tars",
            found=f"{counted(len(bad), 'table')} to make again: {paths}",
            remedy=f"use `wdsplit convert --overwrite`; or {without} to leave these columns out of all tables",
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


def _make(job: _Job, number: int) -> tuple[int, _Made]:
    """Make the table of a shard, unless it exists. Runs in a worker process; may run twice."""
    storage, listed = open_storage(job.url, job.options), job.manifest.shards[number]
    found = _existing_table(storage, listed)
    if found is not None and _is_right(job, storage, listed, found):
        return number, _Made(found.schema, Counter())
    lost: Counter[str] = Counter()
    if found is not None and job.kept is not None and not job.new and set(job.kept.names) <= set(found.column_names):
        table = found.select(job.kept.names)
    else:
        table = _merged(job, found, read_rows(storage, listed, job.recipe, lost))
    _publish(job, storage, listed, table)
    return number, _Made(table.schema, lost)


def _merged(job: _Job, existing: pa.Table | None, rows: pa.Table) -> pa.Table:
    """Return the rows read from a tar, with the columns of the existing table."""
    existing = rows.select([]) if existing is None else existing
    old = [name for name in existing.column_names if name not in job.recipe.no_keep]
    if job.kept is not None:
        rows = rows.select([name for name in rows.column_names if name in job.kept.names or name in job.new])
        old = [name for name in old if name in job.kept.names and not (name in job.new and name in rows.column_names)]
    else:
        old = [name for name in old if name not in rows.column_names]
    for name in old:
        place = rows.schema.get_field_index(name)
        column = existing.schema.field(name), existing[name]
        rows = rows.append_column(*column) if place < 0 else rows.set_column(place, *column)
    return as_types(rows, joined_columns([rows.schema if job.kept is None else job.kept, rows.schema]))


def _existing_table(storage: Storage, listed: Shard) -> pa.Table | None:
    """Return the existing table of a shard; None if it is missing, damaged or of another shard."""
    try:
        return parse_samples(storage.read(samples_path(listed.path), MAX_TABLE_BYTES), listed)
    except (DatasetNotFoundError, CorruptDataError):
        return None


def _is_right(job: _Job, storage: Storage, listed: Shard, existing: pa.Table) -> bool:
    """Return whether a table has the right columns."""
    if job.kept is not None:
        return not job.new and _types(existing.schema) == _types(job.kept)
    if recipe_of(storage.read(samples_path(listed.path), MAX_TABLE_BYTES)) != job.text:
        return False
    return bool(job.text) or bool(typed_schema(job.recipe).equals(existing.schema))


def _types(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(column.name, column.type) for column in schema]


def _publish(job: _Job, storage: Storage, listed: Shard, table: pa.Table) -> None:
    """Publish the table of a shard; if its columns are new, remove the columns from the header first."""
    if job.manifest.samples is not None and _types(table.schema) != _types(job.manifest.samples):
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
