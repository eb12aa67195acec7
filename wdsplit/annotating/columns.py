"""The columns of a table to join: which become columns of the samples, and which fields. Pure (no I/O)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from wdsplit.annotating.options import AnnotateOptions
from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names, infer_fields, is_field_name, refuse_repeated, refuse_unknown_columns
from wdsplit.fields.keys import is_key_type
from wdsplit.fields.rules import is_text, unwrap
from wdsplit.shards.annotations import MISSING, Annotation
from wdsplit.shards.manifest import Field
from wdsplit.shards.sample_tables import sample_type, with_names

__all__ = ["Chosen", "joined_columns", "refuse_clashes"]

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class Chosen(NamedTuple):
    """What is joined.

    Attributes:
        schema: The columns that conditions can name, with their names and types in the dataset.
        columns: The table's column for each of them.
        fields: The fields, which are written as members of tars.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    fields: tuple[Field, ...]

    @property
    def sources(self) -> list[str]:
        """The table's columns that are read, each once."""
        return list(dict.fromkeys([*self.columns, *(field.column for field in self.fields)]))


def joined_columns(
    schema: pa.Schema, key: str, options: AnnotateOptions, first_bytes: Mapping[str, bytes | None] | None = None
) -> Chosen:
    """Decide what the columns of a table become in the dataset.

    Numbers, booleans, dates, times, decimals and categories become columns, with their class names. Everything else
    becomes a field, by the rules of a conversion, with the name of its column first. Strings become both. A mapping
    says which of both: its names are names of fields if they end like `txt`, else of columns. An unnamed pandas index
    is joined only if it is named explicitly.

    Args:
        schema: The columns of the table.
        key: The key column.
        options: The options that name columns.
        first_bytes: For each binary column the first payload that is not null, which decides its field.

    Raises:
        InputError: A column is not in the table, two have the same name, the key has neither strings nor integers, no
            column is left, or a field cannot be written.
    """
    try:
        refuse_repeated(schema)
    except InputError as error:
        error.remedy = "rename them in the table"
        raise
    mapping = options.mapping
    refuse_unknown_columns(schema, [key], "--key")
    refuse_unknown_columns(schema, [*mapping.values(), *options.columns], "--columns and --map")
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
    classes, columns = class_names(schema), list[pa.Field]()
    mapped: dict[str, str] = {}
    inferred: list[str] = []
    for name, column in chosen.items():
        kind = sample_type(unwrap(schema.field(column).type))
        if kind is not None and not (name in mapping and is_field_name(name)):
            names = classes.get(column, ()) if pa.types.is_integer(kind) else ()
            columns.append(with_names(pa.field(name, kind), names))
            inferred += [column] if name not in mapping and is_text(schema.field(column).type) else []
        elif name in mapping:
            mapped[name] = column
        else:
            inferred.append(column)
    fields: tuple[Field, ...] = ()
    if mapped or inferred:
        fields = infer_fields(schema, mapped, None, first_bytes or {}, columns=inferred, prefixed=True)
    return Chosen(pa.schema(columns), tuple(chosen[each.name] for each in columns), fields)


def refuse_clashes(joined: Chosen, samples: pa.Schema, fields: Iterable[str], others: Iterable[Annotation]) -> None:
    """Refuse names that the dataset already uses. Two annotations may have fields of one name.

    Args:
        joined: What is joined.
        samples: The columns of the sample tables.
        fields: The names of the dataset's fields.
        others: The other annotations.

    Raises:
        InputError: The sample tables or another annotation have a column of this name, or the dataset such a field.
    """
    both = {each.name for each in joined.fields} & {*fields, MISSING}
    if both:
        name = min(both)
        raise InputError(
            f"the samples have a field {name!r} already" if name != MISSING else f"the field {name!r} is reserved",
            expected="names that no field of the dataset has",
            found=name,
            remedy=f"join it under another name with --map new.{name}=COLUMN, and name the others with --columns",
        )
    for name in joined.schema.names:
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
