"""Planning: makes a plan from inputs and options, before anything is written.

Combines formats, the selection of rows, fields and the planner.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wdsplit.conversion.base import Base, next_key_of
from wdsplit.conversion.counting import select_rows
from wdsplit.conversion.labels import find_label
from wdsplit.conversion.plan.options import ConvertOptions, chosen
from wdsplit.conversion.plan.plan import Plan, make_plan
from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names, infer_fields, refuse_repeated
from wdsplit.fields.keys import is_key_type
from wdsplit.fields.sample_columns import MAX_COLUMNS, check_kept, left_out
from wdsplit.shards.manifest import Field
from wdsplit.storage.given import PathLike, located
from wdsplit.tables.formats.media import LABEL, STEM, field_of_media
from wdsplit.tables.media import is_media_input, open_media
from wdsplit.tables.read import first_payloads, open_inputs
from wdsplit.tables.select import check_split_type, cut_splits
from wdsplit.tables.snapshots import Inputs, open_inputs_of
from wdsplit.tables.table import FILE_NAME, Table, joined
from wdsplit.tar.samples import KEY_COLUMN
from wdsplit.texts import human_bytes, listed

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["input_paths", "plan", "plan_files", "plan_splits", "refuse_early", "shown_notes"]

logger = logging.getLogger(__name__)

_MANY_PADS, _MANY_FIELDS, _MANY_NOTES = 1000, 50, 20
_MANY_SHARDS, _TINY_SHARD_BYTES = 1000, 1_000_000


def input_paths(inputs: PathLike | Sequence[PathLike]) -> list[str]:
    """Return one or more paths as a list of strings.

    Raises:
        InputError: They are not paths.
    """
    several = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    try:
        return [os.fspath(path) for path in several]
    except TypeError as error:
        raise InputError(
            "the inputs are not paths",
            expected="paths or URLs of files; only wdsplit.convert and convert_splits accept rows from Python",
            found=type(inputs).__name__,
            remedy="write the rows to a table first, such as parquet",
        ) from error


def plan(
    inputs: PathLike | Sequence[PathLike],
    options: ConvertOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    input_fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> Plan:
    """Plan what `wdsplit.convert` would do with the same arguments, without writing anything.

    Reads the footers of the inputs; inputs without footers are read once.

        print(wdsplit.plan("raw/*.parquet", world_size=8, workers=4))

    Args:
        inputs: One or more files, folders of tables or images, globs, brace expressions.
        options: The options, without splits.
        storage_options: Options for a remote store, as for `wdsplit.Dataset`.
        input_fs: fsspec file system of the inputs.
        **keywords: Fields of `ConvertOptions`, such as `world_size=8`. They replace those of `options`.

    Returns:
        The plan: files, fields, shards and the rows of each.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted with these options.
    """
    options = chosen(ConvertOptions, options, keywords)
    if options.splits:
        raise InputError(
            "plan makes one dataset, but splits is set",
            remedy="leave the splits out; `wdsplit plan --split` shows a plan for each",
        )
    urls, storage_options = located(input_paths(inputs), storage_options, input_fs)
    return plan_splits(urls, options, storage_options)[""]


def plan_splits(
    inputs: PathLike | Sequence[PathLike],
    options: ConvertOptions,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Plan]:
    """Plan a conversion: read the footers of the inputs, infer the fields, select rows and cut them into shards.

    The arguments are those of `wdsplit.convert`.

    Returns:
        A plan for each split; without splits, one plan under the empty name.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted with these options.
    """
    return plan_files(open_inputs_of(input_paths(inputs), storage_options), options, storage_options)


def plan_files(
    inputs: Inputs,
    options: ConvertOptions,
    storage_options: Mapping[str, Any] | None = None,
    base: Base | None = None,
) -> dict[str, Plan]:
    """Plan a conversion of the files that `open_inputs_of` has found, like `plan_splits`; or an append to a dataset."""
    paths = inputs.paths
    if any(is_media_input(path, storage_options) for path in paths):
        table = open_media(paths, storage_options, () if base is None else base.names_of(LABEL))
    else:
        table = open_inputs(paths, storage_options, options.hive and inputs.hive)
    if inputs.snapshot:
        table = dataclasses.replace(table, snapshot=inputs.snapshot, notes=(f"reading {inputs.snapshot}", *table.notes))
    if table.files[0].format == "tar":
        options = _as_tars(table, options)
    elif table.files[0].format == "media":
        options = _as_media(table, options)
    _check_key_and_split(table.schema, options)
    selected = _selected(table, options)
    whole = joined(list(selected.values()))
    if base is not None:
        options = base.sized(options, whole)
    fields, label = _fields(whole, options) if base is None else base.fields(whole, options)
    _check_absent(whole, fields, options)
    _check_kept(whole.schema, fields, options)
    plans = {}
    for name, part in selected.items():
        try:
            plans[name] = make_plan(part, fields, options.key, options.plan, label)
        except InputError as error:
            if not name:
                raise
            raise error.at(f"split {name!r}") from error
        if base is not None:
            first_key = next_key_of(base.manifest) if options.key is None else 0
            plans[name] = dataclasses.replace(plans[name], first_key=first_key, has_sizes=base.has_sizes)
            base.refuse_other_samples(plans[name])
        _warn_of_shards(plans[name])
    return plans


def shown_notes(plan: Plan) -> list[str]:
    """Return notes for the user about the columns of a plan, in a few lines."""
    notes = plan.table.notes
    more = [f"and {len(notes) - _MANY_NOTES:,} more: see `wdsplit plan --json`"] if len(notes) > _MANY_NOTES else []
    return [*notes[:_MANY_NOTES], *more]


def _check_key_and_split(schema: pa.Schema, options: ConvertOptions) -> None:
    """Refuse columns whose types cannot be the key or assign rows to splits, before any row is read."""
    key, split_by = options.key, options.split_by or options.key
    if schema.names.count(key) == 1 and not is_key_type(schema.field(key).type):
        raise InputError(
            f"column {key!r} cannot be the key",
            expected="strings or integers",
            found=str(schema.field(key).type),
            remedy="choose another --key column, or omit --key to number the rows",
        )
    if options.splits and split_by is not None and schema.names.count(split_by) < 2:
        check_split_type(schema, split_by)


def refuse_early(schema: pa.Schema, options: ConvertOptions) -> None:
    """Refuse unknown columns in the options, and columns that cannot be keys, before rows are available.

    Raises:
        InputError: There are such columns.
    """
    _check_key_and_split(schema, options)
    if KEY_COLUMN in schema.names and options.key is None:
        raise InputError(
            f"rows have a column {KEY_COLUMN!r}, which is not their key",
            expected="the name of the key column, because row numbers are the keys otherwise",
            found="no key",
            remedy=f"give key={KEY_COLUMN!r}, or leave the column out",
        )
    check_kept(schema, options.keep, options.no_keep)
    named = {*options.mapping.values(), *options.columns, *({options.key, options.classes} - {None})}
    if not named <= set(schema.names):
        columns = [*options.columns, *([options.classes] if options.classes else [])]
        infer_fields(schema, options.mapping, options.key, {}, columns=columns)


def _selected(table: Table, options: ConvertOptions) -> dict[str, Table]:
    """Return the selected rows of each split."""
    splits = dict(cut_splits(options.splits, options.split_by or options.key)) if options.splits else {"": None}
    if not (options.where or options.limit is not None or options.splits):
        return {"": table}
    refuse_repeated(table.schema)
    counted = select_rows(table, options.where, options.limit, list(splits.values()))
    return dict(zip(splits, counted, strict=True))


def _inferred(schema: pa.Schema, options: ConvertOptions) -> list[str]:
    """Return the columns whose fields are inferred: the named ones, else all; not empty ones with `--null omit`.

    Raises:
        InputError: None are named, and one has no values.
    """
    label = [options.classes] if options.classes is not None and "cls" not in options.mapping else []
    if options.columns or options.mapping:
        names = [name for name in options.columns if name not in options.mapping.values()]
        return list(dict.fromkeys([*names, *label]))
    names = list(dict.fromkeys([*(name for name in schema.names if name != options.key), *label]))
    empty = [
        name for name, kind in zip(schema.names, schema.types, strict=True) if name in names and pa.types.is_null(kind)
    ]
    if empty and options.null != "omit":
        raise InputError(
            "a column has no values",
            expected="at least one value that is not null",
            found=f"only untyped nulls: {', '.join(map(repr, empty))}",
            remedy="use --null omit to leave such columns out, or name the columns to write with --columns",
        )
    return [name for name in names if name not in empty]


def _fields(table: Table, options: ConvertOptions) -> tuple[tuple[Field, ...], str | None]:
    """Return the fields of each sample, and the label; types decide, or else the first payloads."""
    schema, key, path = table.schema, options.key, table.files[0].path
    inferred = _inferred(schema, options)
    payloads = first_payloads(table, inferred)
    label, classes = find_label(table, options, inferred)
    try:
        fields = infer_fields(schema, options.mapping, key, payloads, inferred, label, classes)
    except InputError as error:
        raise error.at(path) from error
    if len(fields) > _MANY_FIELDS and table.files[0].format == "tar":
        logger.warning(
            "%d fields: do the keys contain dots? In WebDataset tars, a key ends at the first dot of a name",
            len(fields),
        )
    used = {field.column for field in fields} | {key}
    unused = [name for name in schema.names if name not in used]
    if unused:
        logger.info("columns not written: %s", ", ".join(unused))
    return fields, label


def _check_kept(schema: pa.Schema, fields: Sequence[Field], options: ConvertOptions) -> None:
    """Refuse columns that sample tables cannot have, and warn about columns that they leave out."""
    check_kept(schema, options.keep, options.no_keep)
    names = [name for name in left_out(schema, fields) if name not in {*options.keep, *options.no_keep}]
    if names:
        text = "columns left out of the sample tables: %s (names of their own columns, or more than %d columns)"
        logger.warning(text, listed(names, _MANY_NOTES), MAX_COLUMNS)


def _check_absent(table: Table, fields: Sequence[Field], options: ConvertOptions) -> None:
    """Refuse a column that is null in all selected rows of a file, if it is the key or nulls are refused."""
    refused = {field.column for field in fields} if options.null == "error" else set()
    if options.key is not None:
        refused.add(options.key)
    absent: dict[str, list[str]] = {}
    for file in table.files:
        if file.constants and any(file.counts):
            for name, value in file.constants:
                if value is None and name in refused:
                    absent.setdefault(name, []).append(file.path)
    if absent:
        paths = next(iter(absent.values()))
        remedy = "use --null omit to leave such members out, --null empty to write empty ones, or other --columns"
        raise InputError(
            "a column has no values in a file",
            expected="a value in each row",
            found="; ".join(
                f"column {name!r} is missing or null in {len(paths):,} of {len(table.files):,} files"
                for name, paths in absent.items()
            ),
            remedy="choose another --key column" if options.key in absent else remedy,
            url=paths[0],
        )


def _warn_of_shards(plan: Plan) -> None:
    """Warn about many pads, and about many tiny shards."""
    if plan.num_pads > max(_MANY_PADS, plan.num_rows // 10):
        logger.warning(
            "%d pads for %d rows in %d shards: use fewer shards, or --pad none",
            plan.num_pads,
            plan.num_rows,
            plan.num_shards,
        )
    shard_bytes = plan.shard_bytes // plan.num_shards
    if plan.num_shards > _MANY_SHARDS and shard_bytes < _TINY_SHARD_BYTES:
        logger.warning(
            "%s shards of only about %s: reading them will be slow; use %s",
            f"{plan.num_shards:,}",
            human_bytes(shard_bytes),
            "fewer shards"
            if plan.options.shard_size is None
            else "a --shard-size such as 256MB (a number without a unit is bytes)",
        )


def _as_media(table: Table, options: ConvertOptions) -> ConvertOptions:
    """Return the options for media files: they become the field of their kind; paths are not written by default."""
    columns: Sequence[str] = options.columns
    if not (columns or options.mapping):
        columns = [name for name in table.schema.names if name not in (FILE_NAME, STEM, options.key)]
    column, field = field_of_media(table.schema)
    fields = {column: field}
    for label in class_names(table.schema) if options.classes is None else [options.classes]:
        fields[label] = "cls"
    mapping = {
        fields[column]: column
        for column in fields
        if column in columns and column not in options.mapping.values() and fields[column] not in options.mapping
    }
    return dataclasses.replace(options, mapping={**mapping, **options.mapping}, columns=tuple(columns))


def _as_tars(table: Table, options: ConvertOptions) -> ConvertOptions:
    """Return the options for tars: samples keep their keys and fields, and may lack fields."""
    names: Sequence[str] = options.columns
    if not (names or options.mapping):
        names = [name for name in table.schema.names if name != KEY_COLUMN]
    mapping = {**options.mapping, **{name: name for name in names if name not in options.mapping.values()}}
    key = options.key or (None if options.number_keys else KEY_COLUMN)
    null = "omit" if options.null == "error" else options.null
    return dataclasses.replace(options, mapping=mapping, columns=(), key=key, number_keys=False, null=null)
