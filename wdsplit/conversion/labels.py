"""Finds the label of a table: the column with the classes, and the names of the classes.

Columns of text are read once, so that each class has its number before any task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate, pairwise
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError
from wdsplit.fields.encode import utf8_text
from wdsplit.fields.infer import MAX_CLASSES, class_names, is_json_text
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import in_column
from wdsplit.fields.rules import is_text, unwrap
from wdsplit.tables.read import Rows, file_batches, read_rows
from wdsplit.tables.table import InputFile, Table

__all__ = ["classes_of_texts", "find_label"]

logger = logging.getLogger(__name__)

_NAMES = ("label", "labels", "class", "target", "category", "cls")
_MAX_TEXT_BYTES = 1024
_ALWAYS_FEW = 10
"""So many different texts may be classes in any table, however small; more must each have two rows on average."""
_THREADS = 8

Classes = dict[str, tuple[str, ...]]


def find_label(table: Table, options: ConvertOptions, columns: Sequence[str]) -> tuple[str | None, Classes]:
    """Return the label of a table, and the classes of each column of text that is to be written as numbers.

    Args:
        table: The input, with its selected rows.
        options: The options; `classes` and a mapping of `cls` name the label.
        columns: The columns whose fields are inferred: one of them may be the label.

    Raises:
        InputError: Several columns could be the label, the named column cannot be it, or a file cannot be read.
    """
    schema = table.schema
    mapped = [column for field, column in options.mapping.items() if field.rpartition(".")[2] == "cls"]
    named = {*columns, *mapped, *([options.classes] if options.classes else [])}
    if table.files[0].format == "tar" or not table.num_rows or any(schema.names.count(name) != 1 for name in named):
        return None, {}
    if options.classes is not None and not _is_able(schema, options.classes):
        raise InputError(
            f"column {options.classes!r} cannot be the label",
            place=table.files[0].path,
            expected="strings, integers or booleans",
            found=str(schema.field(options.classes).type),
            remedy="choose another --classes column",
        )
    if not mapped and options.classes is None:
        return _found(table, [name for name in columns if _is_able(schema, name)])
    chosen = options.classes or options.mapping.get("cls")
    wanted = [name for name in dict.fromkeys([chosen, *mapped]) if name and _is_able(schema, name)]
    texts = [name for name in wanted if is_text(unwrap(schema.field(name).type))]
    classes = classes_of_texts(table, texts)
    for name in texts:
        if name not in classes:
            raise InputError(
                f"column {name!r} cannot be the label",
                place=table.files[0].path,
                expected=f"at most {MAX_CLASSES:,} different values, of at most {_MAX_TEXT_BYTES:,} bytes each",
                found="more, or longer ones",
                remedy="write it as a text, such as --map txt=COLUMN, or choose another --classes column",
            )
    return (chosen if chosen in wanted else None), classes


def _is_able(schema: pa.Schema, column: str) -> bool:
    """Return whether a column can be the label, by its type."""
    kind = unwrap(schema.field(column).type)
    is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return is_number or (is_text(kind) and not is_json_text(schema, column))


def _found(table: Table, able: Sequence[str]) -> tuple[str | None, Classes]:
    """Return the label that no option names: found by name, or by its type."""
    schema = table.schema
    texts = [name for name in able if is_text(unwrap(schema.field(name).type))]
    named = [name for name in able if name.lower() in _NAMES]
    named_texts = [name for name in named if name in texts]
    max_values = max(_ALWAYS_FEW, min(MAX_CLASSES, table.num_rows // 2))
    classes = classes_of_texts(table, named_texts, max_values)
    for name in named_texts:
        if name not in classes:
            logger.warning(
                "column %r has too many different values for classes (over %s), or long ones, and becomes a text: use "
                "--classes %s if it is the label",
                name,
                f"{max_values:,}",
                name,
            )
    declared = [name for name in class_names(schema) if name in able and name not in texts]
    for some in ([name for name in named if name in classes or name not in texts], declared):
        if len(some) > 1:
            raise InputError(
                "several columns could be the label",
                place=table.files[0].path,
                expected="one",
                found=", ".join(f"{name!r} ({schema.field(name).type})" for name in some),
                remedy=f"choose one: --classes {' or --classes '.join(some)}; the others keep their names",
            )
        if some:
            return some[0], {name: classes[name] for name in some if name in classes}
    return None, {}


def classes_of_texts(table: Table, columns: Sequence[str], max_values: int = MAX_CLASSES) -> Classes:
    """Return the classes of columns of text, in the order of their numbers; those with too many values are left out.

    The order is that of the declared categories, or of a dictionary that is the same in the whole table, or sorted:
    as numbers if all are whole numbers, else as texts.
    """
    known = class_names(table.schema)
    declared = {name: known.get(name) or _dictionary(table, name) for name in columns}
    classes = {name: names for name, names in declared.items() if names and len(names) <= MAX_CLASSES}
    others = [name for name in columns if not declared[name]]
    for name, values in _values(table, others, max_values).items():
        are_numbers = all(value.isascii() and value.isdigit() for value in values)
        classes[name] = tuple(sorted(values, key=lambda value: (int(value) if are_numbers else 0, value)))
    return classes


def _dictionary(table: Table, column: str) -> tuple[str, ...]:
    """Return the values of a column's dictionary, if it is the same in the whole table; else nothing."""
    if not pa.types.is_dictionary(table.schema.field(column).type):
        return ()

    def read(file: InputFile) -> list[pa.Array]:
        groups = [group for group, count in enumerate(file.counts) if count]
        found: list[pa.Array] = []
        for batch in file_batches(table, file, groups, [column]) if groups else ():
            dictionary = batch.column(0).dictionary
            if not any(dictionary.equals(other) for other in found):
                found.append(dictionary)
            if len(found) > 1:
                break
        return found

    first = None
    for found in in_order(read, table.files, _THREADS):
        for dictionary in found:
            first = dictionary if first is None else first
            if not first.equals(dictionary):
                return ()
    names = first.to_pylist() if first is not None else []
    return tuple(names) if None not in names and len(set(names)) == len(names) else ()


def _values(table: Table, columns: Sequence[str], max_values: int) -> dict[str, set[str]]:
    """Return the different values of columns of text, without null; not of those with more values, or long ones."""
    found = {name: set[str]() for name in columns}  # threads add to it, and remove columns; the result is the same
    lock = Lock()

    def add(rows: Rows, name: str) -> None:
        column = utf8_text(stored(rows.columns[name]), in_column(rows.where, name))
        is_long = (pc.max(pc.binary_length(column)).as_py() or 0) > _MAX_TEXT_BYTES
        values: set[str] = set() if is_long else {*pc.unique(column).to_pylist()} - {None}
        with lock:
            if name in found:
                found[name] |= values
                if is_long or len(found[name]) > max_values:
                    del found[name]

    def read(place: tuple[int, int]) -> None:
        names = list(found)
        for rows in read_rows(table, *place, names) if names else ():
            raise_if_cancelled()
            for name in names:
                if name in found:
                    add(rows, name)
            if found.keys().isdisjoint(names):
                break

    ends = accumulate((sum(file.counts) for file in table.files), initial=0)
    places = [(first, stop) for first, stop in pairwise(ends) if first < stop]
    for _ in watched("counting classes", in_order(read, places, _THREADS), len(places)) if columns else ():
        if not found:
            break
    return found
