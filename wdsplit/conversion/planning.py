"""Planning: from the inputs and what is asked for to a plan, before anything is written.

Composition of the formats, the selection of rows, the fields and the planner.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wdsplit.conversion.counting import select_rows
from wdsplit.conversion.plan.grouping import Groups
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan, make_plan
from wdsplit.errors import InputError
from wdsplit.fields.infer import infer_fields, refuse_repeated
from wdsplit.fields.keys import is_key_type
from wdsplit.shards.manifest import Field
from wdsplit.storage.given import located
from wdsplit.tables.find import find_inputs
from wdsplit.tables.read import first_payloads, open_inputs
from wdsplit.tables.select import check_group_type, cut_splits
from wdsplit.tables.table import Table, joined
from wdsplit.tar.samples import KEY_COLUMN

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["PathLike", "input_paths", "plan", "plan_files", "plan_splits"]

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]

_MANY_PADS, _MANY_FIELDS = 1000, 50


def input_paths(inputs: PathLike | Sequence[PathLike]) -> list[str]:
    """Return one or several paths as a list of texts."""
    several = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    return [os.fspath(path) for path in several]


def plan(
    inputs: PathLike | Sequence[PathLike],
    options: ConvertOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> Plan:
    """Return what `wdsplit.convert` would do with the same arguments; nothing is written.

    The inputs' footers are read; inputs without footers are read once.

    Args:
        inputs: One or several of: a file, a folder of them, a glob, a brace expression.
        options: The options; without splits.
        storage_options: How to reach a remote store, as for `wdsplit.Dataset`.
        input_fs: The file system that the inputs are on.

    Returns:
        The plan: files, fields, shards and the rows of each.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted so.
    """
    options = options or ConvertOptions()
    if options.splits:
        raise InputError(
            "plan plans one dataset, but options.splits is set",
            remedy="leave the splits out; `wdsplit plan --split` shows a plan for each",
        )
    urls, storage_options = located(input_paths(inputs), storage_options, input_fs)
    return plan_splits(urls, options, storage_options)[""]


def plan_splits(
    inputs: PathLike | Sequence[PathLike],
    options: ConvertOptions,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Plan]:
    """Decide a conversion: read the footers of the inputs, infer the fields, select rows and cut them into shards.

    The arguments are those of `wdsplit.convert`.

    Returns:
        A plan for each split; without splits one, under the empty name.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted so.
    """
    return plan_files(find_inputs(input_paths(inputs), storage_options), options, storage_options)


def plan_files(
    paths: Sequence[str], options: ConvertOptions, storage_options: Mapping[str, Any] | None = None
) -> dict[str, Plan]:
    """Decide a conversion of the files that `find_inputs` has found, as `plan_splits` does."""
    table = open_inputs(paths, storage_options)
    if table.files[0].format == "tar":
        options = _as_tars(table, options)
    _check_key_and_group(table.schema, options)
    selected = _selected(table, options)
    fields = _fields(joined([chosen for chosen, _ in selected.values()]), options)
    plans = {name: _plan(name, chosen, fields, groups, options) for name, (chosen, groups) in selected.items()}
    for plan in plans.values():
        _warn_of_pads(plan)
    return plans


def _check_key_and_group(schema: pa.Schema, options: ConvertOptions) -> None:
    """Refuse columns whose types cannot hold keys or name groups, before any row is read."""
    key, group_by = options.key, options.plan.group_by
    if schema.names.count(key) == 1 and not is_key_type(schema.field(key).type):
        raise InputError(
            f"column {key!r} cannot hold keys",
            expected="strings or integers",
            found=str(schema.field(key).type),
            remedy="choose another --key column, or leave it out to number the rows",
        )
    if group_by is not None and schema.names.count(group_by) < 2:
        check_group_type(schema, group_by)
    elif options.splits and key is not None and schema.names.count(key) < 2:
        check_group_type(schema, key)


def _selected(table: Table, options: ConvertOptions) -> dict[str, tuple[Table, Groups | None]]:
    """Return the selected rows of each split, and their groups if rows are grouped."""
    group_by = options.plan.group_by
    splits = dict(cut_splits(options.splits, group_by or options.key)) if options.splits else {"": None}
    if not (options.where or options.limit is not None or options.splits or group_by is not None):
        return dict.fromkeys(splits, (table, None))
    refuse_repeated(table.schema)
    counted = select_rows(table, options.where, options.limit, list(splits.values()), group_by)
    return dict(zip(splits, counted, strict=True))


def _fields(table: Table, options: ConvertOptions) -> tuple[Field, ...]:
    """Return the fields of each sample; types decide, or else the first payloads."""
    schema, key, path = table.schema, options.key, table.files[0].path
    inferred = options.columns or ([] if options.mapping else [name for name in schema.names if name != key])
    payloads = first_payloads(table, [name for name in inferred if name not in options.mapping.values()])
    try:
        fields = infer_fields(schema, options.mapping, key, payloads, options.class_names, options.columns)
    except InputError as error:
        raise error.at(path) from error
    if len(fields) > _MANY_FIELDS and table.files[0].format == "tar":
        logger.warning(
            "%d fields: do the keys hold dots? By webdataset's rule a key ends at the first dot of a name", len(fields)
        )
    unused = [name for name in schema.names if name not in {field.column for field in fields} | {key}]
    if unused:
        logger.info("columns that are not written: %s", ", ".join(unused))
    return fields


def _plan(split: str, table: Table, fields: Sequence[Field], groups: Groups | None, options: ConvertOptions) -> Plan:
    """Return the plan of a split; errors name it."""
    try:
        return make_plan(table, fields, options.key, options.plan, groups)
    except InputError as error:
        if not split:
            raise
        raise error.at(f"split {split!r}") from error


def _warn_of_pads(plan: Plan) -> None:
    if plan.num_pads > max(_MANY_PADS, plan.num_rows // 10):
        logger.warning(
            "%d pads for %d rows in %d shards%s: use fewer shards, or --pad none",
            plan.num_pads,
            plan.num_rows,
            plan.num_shards,
            ", because groups differ in size" if plan.groups is not None else "",
        )


def _as_tars(table: Table, options: ConvertOptions) -> ConvertOptions:
    """Return the options for samples that have keys and fields already: they keep them, and lack what they lack."""
    names: Sequence[str] = options.columns
    if not (names or options.mapping):
        names = [name for name in table.schema.names if name != KEY_COLUMN]
    mapping = {**options.mapping, **{name: name for name in names if name not in options.mapping.values()}}
    key = options.key or (None if options.number_keys else KEY_COLUMN)
    null = "omit" if options.plan.null == "error" else options.plan.null
    plan = dataclasses.replace(options.plan, null=null)
    return dataclasses.replace(options, mapping=mapping, columns=(), key=key, number_keys=False, plan=plan)
