"""The columns of a table to join, with their names and types. Pure (no I/O)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from wdsplit.annotating.options import AnnotateOptions
from wdsplit.errors import InputError, did_you_mean
from wdsplit.fields.infer import class_names, refuse_repeated
from wdsplit.fields.keys import is_key_type
from wdsplit.fields.rules import unwrap
from wdsplit.shards.annotations import Annotation
from wdsplit.shards.sample_tables import sample_type, with_names

__all__ = ["joined_columns", "refuse_clashes"]

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def joined_columns(schema: pa.Schema, key: str, options: AnnotateOptions) -> tuple[dict[str, str], pa.Schema]:
    """Return the columns to join by name in the dataset, and their schema there.

    Categories become strings, and class columns keep their names. An unnamed pandas index is joined only if it is named
    explicitly.

    Args:
        schema: The columns of the table.
        key: The key column.
        options: The options that name columns.

    Raises:
        InputError: A column is not in the table, two have the same name, the key has neither strings nor integers, no
            column is left, or some have types that conditions cannot compare, such as lists.
    """
    try:
        refuse_repeated(schema)
    except InputError as error:
        error.remedy = "rename them in the table"
        raise
    mapping = options.mapping
    _refuse_unknown(schema, [key], "--key")
    _refuse_unknown(schema, [*mapping.values(), *options.columns], "--columns and --map")
    if not is_key_type(schema.field(key).type):
        raise InputError(
            f"column {key!r} cannot be the key",
            expected="strings or integers",
            found=str(schema.field(key).type),
            remedy="choose another --key column",
        )
    left_out = {key, *filter(_PANDAS_INDEX.fullmatch, schema.names)}
    names = options.columns or ([] if mapping else [name for name in schema.names if name not in left_out])
    for name in names:
        if mapping.get(name, name) != name:
            raise InputError(
                f"two columns are called {name!r}",
                expected="different names",
                found=f"column {name!r}, and {mapping[name]!r} by --map",
                remedy="choose another name with --map NAME=COLUMN",
            )
    chosen = {**mapping, **{name: name for name in names}}
    if not chosen:
        raise InputError(
            "the table has no column to join",
            expected=f"columns besides the key {key!r}",
            found=", ".join(schema.names),
        )
    kinds = {name: sample_type(unwrap(schema.field(column).type)) for name, column in chosen.items()}
    wrong = [f"{chosen[name]} ({schema.field(chosen[name]).type})" for name, kind in kinds.items() if kind is None]
    if wrong:
        raise InputError(
            "a column cannot be joined",
            expected="numbers, booleans, strings, dates, times or categories",
            found=", ".join(wrong),
            remedy="name the columns to join with --columns, or compute a number or a text from each",
        )
    classes = class_names(schema)
    fields = [
        with_names(pa.field(name, kind), classes.get(chosen[name], ()) if pa.types.is_integer(kind) else ())
        for name, kind in kinds.items()
    ]
    return chosen, pa.schema(fields)


def _refuse_unknown(schema: pa.Schema, names: Iterable[str], option: str) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InputError(
            f"column {unknown[0]!r} is not in the table",
            expected=f"one of {', '.join(schema.names)}",
            remedy=did_you_mean(unknown, schema.names) or f"check {option}",
        )


def refuse_clashes(names: Iterable[str], samples: pa.Schema, others: Iterable[Annotation]) -> None:
    """Refuse names that the dataset already uses.

    Args:
        names: The names of the columns to join.
        samples: The columns of the sample tables.
        others: The other annotations.

    Raises:
        InputError: The sample tables or another annotation have a column of this name.
    """
    for name in names:
        owners = [f"annotation {other.name!r}" for other in others if name in other.schema.names]
        owners += ["the sample tables"] if name in samples.names else []
        if owners:
            raise InputError(
                f"the dataset has a column {name!r} already",
                place=owners[0],
                expected="names that neither the sample tables nor other annotations have",
                found=name,
                remedy=f"join it under another name with --map NEW={name}, or leave it out with --columns",
            )
