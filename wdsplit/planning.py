"""Planning: from the inputs and what is asked for to a plan, before anything is written.

Composition of the formats, the selection of rows, the fields and the planner.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence

from wdsplit.counting import select_rows
from wdsplit.errors import InputError
from wdsplit.fields import infer_fields, refuse_repeated
from wdsplit.grouping import Groups
from wdsplit.inputs import find_inputs, first_payloads, open_inputs
from wdsplit.keys import is_key_type
from wdsplit.options import ConvertOptions
from wdsplit.plan import Plan, make_plan
from wdsplit.select import check_group_type, parts_of
from wdsplit.table import Table, joined

__all__ = ["TAR_KEY", "PathLike", "input_paths", "plan_conversion", "plan_splits", "refuse_splits"]

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]

_MANY_PADS, _MANY_FIELDS = 1000, 50

TAR_KEY = "__key__"
"""The column of tars that holds the keys."""


def input_paths(inputs: PathLike | Sequence[PathLike]) -> list[str]:
    """Return one or several paths as a list of texts."""
    several = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    return [os.fspath(path) for path in several]


def plan_conversion(inputs: PathLike | Sequence[PathLike], options: ConvertOptions) -> Plan:
    """Decide a conversion into one dataset, as `plan_splits` does."""
    refuse_splits(options)
    return plan_splits(inputs, options)[""]


def refuse_splits(options: ConvertOptions) -> None:
    """Refuse splits where one dataset is asked for."""
    if options.splits:
        raise InputError("one dataset is asked for, and splits too", remedy="use the function for splits")


def plan_splits(inputs: PathLike | Sequence[PathLike], options: ConvertOptions) -> dict[str, Plan]:
    """Decide a conversion: read the footers of the inputs, infer the fields, select rows and cut them into shards.

    Args:
        inputs: One or several of: a file, a folder of them, a glob, a brace expression.
        options: What is wanted.

    Returns:
        A plan for each split; without splits one, under the empty name.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted so.
    """
    table = open_inputs(find_inputs(input_paths(inputs)))
    if table.files[0].format == "tar":
        options = _as_tars(table, options)
    schema, key, group_by = table.schema, options.key, options.plan.group_by
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
    parts = dict(parts_of(options.splits, group_by or key)) if options.splits else {"": None}
    selected: dict[str, tuple[Table, Groups | None]] = dict.fromkeys(parts, (table, None))
    if options.where or options.limit is not None or options.splits or group_by is not None:
        refuse_repeated(schema)
        counted = select_rows(table, options.where, options.limit, list(parts.values()), group_by)
        selected = dict(zip(parts, counted, strict=True))
    sample = joined([wanted for wanted, _ in selected.values()])
    inferred = options.columns or ([] if options.mapping else [name for name in schema.names if name != key])
    payloads = first_payloads(sample, [name for name in inferred if name not in options.mapping.values()])
    try:
        fields = infer_fields(schema, options.mapping, key, payloads, options.class_names, options.columns)
    except InputError as error:
        raise error.at(table.files[0].path) from error
    if len(fields) > _MANY_FIELDS and table.files[0].format == "tar":
        logger.warning(
            "%d fields: do the keys hold dots? By webdataset's rule a key ends at the first dot of a name", len(fields)
        )
    unused = [name for name in schema.names if name not in {field.column for field in fields} | {key}]
    if unused:
        logger.info("columns that are not written: %s", ", ".join(unused))
    plans = {}
    for name, (wanted, groups) in selected.items():
        try:
            plans[name] = make_plan(wanted, fields, key, options.plan, groups)
        except InputError as error:
            if not name:
                raise
            raise error.at(f"split {name!r}") from error
        if plans[name].num_pads > max(_MANY_PADS, plans[name].num_rows // 10):
            logger.warning(
                "%d pads for %d rows in %d shards%s: use fewer shards, or --pad none",
                plans[name].num_pads,
                plans[name].num_rows,
                plans[name].num_shards,
                ", because groups differ in size" if groups is not None else "",
            )
    return plans


def _as_tars(table: Table, options: ConvertOptions) -> ConvertOptions:
    """Return the options for samples that have keys and fields already: they keep them, and lack what they lack."""
    names: Sequence[str] = options.columns
    if not (names or options.mapping):
        names = [name for name in table.schema.names if name != TAR_KEY]
    mapping = {**options.mapping, **{name: name for name in names if name not in options.mapping.values()}}
    key = options.key or (None if options.number_keys else TAR_KEY)
    null = "omit" if options.plan.null == "error" else options.plan.null
    plan = dataclasses.replace(options.plan, null=null)
    return dataclasses.replace(options, mapping=mapping, columns=(), key=key, number_keys=False, plan=plan)
