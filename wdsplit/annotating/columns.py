"""The columns of a table to join, with their names and types. Pure (no I/O)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from wdsplit.errors import InputError, did_you_mean
from wdsplit.fields.infer import class_names, refuse_repeated
from wdsplit.fields.keys import is_key_type
from wdsplit.fields.rules import unwrap
from wdsplit.shards.annotations import Annotation
from wdsplit.shards.sample_tables import sample_type, with_names

__all__ = ["check_key", "chosen_columns", "joined_schema", "refuse_clashes"]

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def check_key(schema: pa.Schema, key: str) -> None:
    """Refuse a column that cannot be the key.

    Raises:
        InputError: The column does not exist, has neither strings nor integers, or two columns have the same name.
    """
    try:
        refuse_repeated(schema)
    except InputError as error:
        error.remedy = "rename them in the table"
        raise
    _refuse_unknown(schema, [key], "--key")
    if not is_key_type(schema.field(key).type):
        raise InputError(
            f"column {key!r} cannot be the key",
            expected="strings or integers",
            found=str(schema.field(key).type),
            remedy="choose another --key column",
        )


def chosen_columns(schema: pa.Schema, key: str, mapping: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    """Return the columns to join: their names in the dataset, and those in the table.

    An unnamed pandas index is joined only if it is named explicitly.

    Raises:
        InputError: A column is not in the table, no column is left, or two have the same name.
    """
    left_out = {key, *filter(_PANDAS_INDEX.fullmatch, schema.names)}
    names = columns or ([] if mapping else [name for name in schema.names if name not in left_out])
    _refuse_unknown(schema, [*mapping.values(), *names], "--columns and --map")
    twice = [name for name in names if name in mapping and mapping[name] != name]
    if twice:
        raise InputError(
            f"two columns are called {twice[0]!r}",
            expected="different names",
            found=f"column {twice[0]!r}, and {mapping[twice[0]]!r} by --map",
            remedy="choose another name with --map NAME=COLUMN",
        )
    chosen = {**mapping, **{name: name for name in names}}
    if not chosen:
        raise InputError(
            "the table has no column to join",
            expected=f"columns besides the key {key!r}",
            found=", ".join(schema.names),
        )
    return chosen


def _refuse_unknown(schema: pa.Schema, names: Iterable[str], option: str) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InputError(
            f"column {unknown[0]!r} is not in the table",
            expected=f"one of {', '.join(schema.names)}",
            remedy=did_you_mean(unknown, schema.names) or f"check {option}",
        )


def joined_schema(schema: pa.Schema, chosen: Mapping[str, str]) -> pa.Schema:
    """Return the schema of the joined columns: categories become strings, class columns keep their names.

    Raises:
        InputError: Columns have types that conditions cannot compare, such as lists; the error lists all of them.
    """
    kinds = {name: sample_type(unwrap(schema.field(column).type)) for name, column in chosen.items()}
    wrong = [chosen[name] for name, kind in kinds.items() if kind is None]
    if wrong:
        raise InputError(
            "a column cannot be joined",
            expected="numbers, booleans, strings, dates, times or categories",
            found=", ".join(f"{column} ({schema.field(column).type})" for column in wrong),
            remedy="name the columns to join with --columns, or compute a number or a text from each",
        )
    classes = class_names(schema)
    fields = [
        with_names(pa.field(name, kind), classes.get(chosen[name], ()) if pa.types.is_integer(kind) else ())
        for name, kind in kinds.items()
        if kind is not None
    ]
    return pa.schema(fields)


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
