"""Translates a condition on rows, such as `label < 10 and width >= 256`, to an Arrow expression.

Pure (no I/O). The text has the grammar of Python expressions. It is parsed (`syntax`) and translated node by node
(values in `compare`), never run; other nodes are errors. A condition on a null is null, as in SQL, and so is its `not`.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from wdsplit.arrays import Int64
from wdsplit.conditions.compare import Operand, compare, compute, is_among, join, read
from wdsplit.conditions.syntax import GRAMMAR, STRING, Source
from wdsplit.errors import InputError, nearest_names
from wdsplit.fields.rules import is_binary, is_list, is_text, unwrap
from wdsplit.tar.names import escape_key
from wdsplit.texts import listed

__all__ = ["UnknownColumnError", "Where", "parse_where"]

_ROW_NAME = "wdsplit row number"
_MAX_EXPONENT = 400
_MAX_NAMES = 50

_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.UAdd: operator.add,
    ast.Sub: operator.sub,
    ast.USub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, list[tuple[Callable[[pa.DataType], bool], Callable[..., Any]]]] = {
    "contains": [(is_text, pc.match_substring)],
    "endswith": [(is_text, pc.ends_with)],
    "len": [(is_text, pc.utf8_length), (is_binary, pc.binary_length), (is_list, pc.list_value_length)],
    "lower": [(is_text, pc.utf8_lower)],
    "startswith": [(is_text, pc.starts_with)],
}
"""For each function the types of columns that it takes, with what computes it."""
_ARGUMENTS = {"len": "one column of strings, bytes or lists", "lower": "one column of strings"}
_WORDS: dict[type[ast.AST], str] = {ast.BitAnd: "write `and`", ast.BitOr: "write `or`", ast.Invert: "write `not`"}
_SPELLINGS = {"null": "None", "none": "None", "true": "True", "false": "False"}


class UnknownColumnError(InputError):
    """A condition names a column that does not exist, and none has a similar name."""


@dataclass(frozen=True, eq=False)
class Where:
    """A condition on rows.

    Attributes:
        text: Its text, for errors.
        columns: The distinct top-level columns that it reads, in the order of the text.
        expression: The condition as an Arrow expression: true for the rows to keep, else false or null.
        pruning: The same or a weaker condition, for row group statistics; None if they cannot exclude anything. They
            ignore NaN, for which `x != 3` and `not x < 3` are true, so such conditions on floats are omitted.
    """

    text: str
    columns: tuple[str, ...]
    expression: Any
    pruning: Any

    def rows(self, columns: Sequence[Any], num_rows: int) -> Int64:
        """Return the rows of a batch that meet the condition: int64, in ascending order.

        Args:
            columns: The condition's columns, in order, as Arrow arrays.
            num_rows: Number of rows of the batch.

        Raises:
            InputError: The condition fails for some row.
        """
        batch = pa.table([*columns, pa.array(np.arange(num_rows))], names=[*self.columns, _ROW_NAME])
        try:
            kept: Int64 = batch.filter(self.expression).column(_ROW_NAME).to_numpy()
        except pa.ArrowInvalid as error:
            raise InputError(
                "the condition fails for some row",
                place=self.text,
                found=str(error),
                remedy="keep integers within 64 bits, and integers that are combined with floats below 2**53",
            ) from error
        return kept


def parse_where(
    text: str,
    schema: pa.Schema,
    class_names: Mapping[str, Sequence[str]] | None = None,
    key: str | None = None,
    hints: Mapping[str, str] | None = None,
) -> Where:
    """Parse a condition on the rows of a table.

    Args:
        text: The condition.
        schema: The table's columns.
        class_names: The class names, in the order of their numbers, of columns with class numbers. `label == "cat"`
            then compares the number.
        key: The column with sample keys, if any. These may be escaped: `==` and `in` look up both forms of a string.
        hints: Remedies for names that are not columns, by name.

    Raises:
        InputError: The condition is invalid, names an unknown column, or compares incompatible values.
    """
    source = Source(re.sub(r"[\r\n]", " ", text.strip()))
    for found in STRING.finditer(text.strip()):
        if "\n" in found[0] or "\r" in found[0]:
            raise source.fault(found.span(), "a string contains a line break", remedy=r"write \n instead")
    tree = source.parse()
    translator = _Translator(source, schema, class_names or {}, key, hints or {})
    conditions, pruning = [], []
    for node in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
        translator.reads_floats = False
        conditions.append(translator.condition(node))
        negates = any(isinstance(child, (ast.Not, ast.NotEq, ast.NotIn)) for child in ast.walk(node))
        if not (translator.reads_floats and negates):
            pruning.append(conditions[-1])
    expression, columns = join(operator.and_, conditions), tuple(translator.columns)
    try:
        known = pa.schema([schema.field(name) for name in columns])
        pyarrow.dataset.Scanner.from_batches([], schema=known, columns={"": expression})
    except pa.ArrowException as error:
        cause = f"pyarrow {pa.__version__} cannot compute the condition"
        raise source.fault(None, cause, found=str(error)) from error
    return Where(text, columns, expression, join(operator.and_, pruning) if pruning else None)


@dataclass
class _Translator:
    """Translates the nodes of a condition on the rows of a table."""

    source: Source
    schema: pa.Schema
    class_names: Mapping[str, Sequence[str]]
    key: str | None
    hints: Mapping[str, str]
    columns: dict[str, None] = field(default_factory=dict)
    reads_floats: bool = False

    def condition(self, node: ast.expr) -> Any:
        """Translate a node that is true, false or null for each row."""
        if isinstance(node, ast.BoolOp):
            return join(_OPERATIONS[type(node.op)], [self.condition(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.condition(node.operand)
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            pairs = zip(operands, node.ops, operands[1:], strict=False)
            return join(operator.and_, [self._compare(node, *pair) for pair in pairs])
        values = self._operand(node)
        if values.kind is None or not pa.types.is_boolean(values.kind):
            cause = "a condition is neither true nor false"
            raise self.source.fault(node, cause, expected=GRAMMAR, found=f"this is {values}")
        return values.value

    def _compare(self, node: ast.Compare, left: ast.expr, operation: ast.cmpop, right: ast.expr) -> Any:
        is_negated = isinstance(operation, (ast.IsNot, ast.NotIn, ast.NotEq))
        if isinstance(operation, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                null = isinstance(right, ast.Name) and _SPELLINGS.get(right.id.lower()) == "None"
                remedy = "write None" if null else "write `==` or `!=`"
                raise self.source.fault(right, "`is` must be followed by None", remedy=remedy)
            path = self._path(left)
            values = self._operand(left) if path is None else self._column(path, is_compared=False)
            if values.kind is None:
                raise self.source.fault(left, "`is None` needs a column, not a value")
            return ~values.value.is_null() if is_negated else values.value.is_null()
        with self.source.placing(node):
            values = self._operand(left)
            if isinstance(operation, (ast.In, ast.NotIn)):
                items = self._items(left, right)
            else:
                other = self._operand(right)
                if type(operation) in _OPERATIONS:
                    return compare(values, _OPERATIONS[type(operation)], other)
                if values.kind is None:
                    left, values, right, other = right, other, left, values
                items = self._meant(other, right, left)
                if len(items) == 1:
                    return compare(values, operator.ne if is_negated else operator.eq, *items)
            if values.kind is None:
                raise self.source.fault(left, "`in` needs a column, not a value")
            return ~is_among(values, items) if is_negated else is_among(values, items)

    def _items(self, column: ast.expr, node: ast.expr) -> list[Operand]:
        """Return the values of the list that follows `in`."""
        if not isinstance(node, (ast.List, ast.Tuple, ast.Set)) or not node.elts:
            cause, expected = "`in` must be followed by a list of values", 'a list such as `[1, 2]` or `["a", "b"]`'
            remedy = 'write contains(column, "...") to look for a part of a string'
            raise self.source.fault(node, cause, expected, remedy=remedy)
        items: list[Operand] = []
        for item in node.elts:
            value = self._operand(item)
            if value.kind is not None:
                raise self.source.fault(item, "a list may contain only numbers, strings, True and False")
            items += self._meant(value, item, column)
        return items

    def _meant(self, operand: Operand, node: ast.expr, column: ast.expr) -> list[Operand]:
        """Return what a string means beside a column: a class's number, or a key as it is and as it is in a tar."""
        name, *members = [name for name, _ in self._path(column) or [("", column)]]
        text, names = operand.value, self.class_names.get(name, ())
        if members or not isinstance(text, str):
            return [operand]
        if names and text not in names:
            near = nearest_names([text], names)
            cause, remedy = f"column {name!r} has no class {text!r}", f'did you mean "{near[0]}"?' if near else ""
            raise self.source.fault(node, cause, expected=f"one of {listed(names, _MAX_NAMES)}", remedy=remedy)
        if names:
            return [Operand(Fraction(names.index(text)))]
        is_escaped = name == self.key and text and escape_key(text) != text
        return [operand, Operand(escape_key(text))] if is_escaped else [operand]

    def _operand(self, node: ast.expr) -> Operand:
        """Translate a value or column that can be compared."""
        if isinstance(node, ast.Constant):
            return self._literal(node)
        path = self._path(node)
        if path is not None:
            return self._column(path)
        if isinstance(node, ast.Call):
            return self._call(node)
        operation = _OPERATIONS.get(type(getattr(node, "op", None)))  # type: ignore[arg-type]
        with self.source.placing(node):
            if operation and isinstance(node, ast.UnaryOp):
                return compute(Operand(Fraction(0)), operation, self._operand(node.operand))
            if operation and isinstance(node, ast.BinOp):
                return compute(self._operand(node.left), operation, self._operand(node.right))
        raise self._not_allowed(node)

    def _not_allowed(self, node: ast.expr) -> InputError:
        remedy = _WORDS.get(type(getattr(node, "op", None)), "")  # type: ignore[arg-type]
        return self.source.fault(node, "not allowed in a condition", expected=GRAMMAR, remedy=remedy)

    def _literal(self, node: ast.Constant) -> Operand:
        start, end = self.source.span(node)
        text, value = self.source.line[start:end], node.value
        if isinstance(value, (str, bytes)) and len(STRING.findall(text)) > 1:
            raise self.source.fault(node, "two adjacent strings", remedy="put a comma between them")
        if isinstance(value, str) and not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise self.source.fault(node, "invalid string", expected="Unicode characters", found="a surrogate")
        if isinstance(value, float):
            try:
                number = Decimal(text)
            except ArithmeticError:
                number = Decimal("Infinity")
            if not number.is_finite() or abs(number.adjusted()) > _MAX_EXPONENT:
                raise self.source.fault(node, "a number is too large or too small")
            return Operand(Fraction(number))
        if not isinstance(value, (int, str, bytes, type(None))):
            raise self._not_allowed(node)
        return Operand(Fraction(value) if type(value) is int else value)

    def _call(self, node: ast.Call) -> Operand:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS:
            raise self.source.fault(node, "unknown function", expected=f"one of {', '.join(['column', *_FUNCTIONS])}")
        values, *more = [self._operand(argument) for argument in node.args] or [Operand(None)]
        texts = [each.value for each in more if isinstance(each.value, str)]
        fitting = [function for fits, function in _FUNCTIONS[name] if values.kind is not None and fits(values.kind)]
        if not fitting or node.keywords or not len(more) == len(texts) == (name not in _ARGUMENTS):
            expected = _ARGUMENTS.get(name, "a column of strings and a string")
            raise self.source.fault(node, f"invalid arguments of {name}", expected, found=str(values))
        kind = {"len": pa.int64(), "lower": values.kind}.get(name, pa.bool_())
        return Operand(fitting[0](values.value, *texts).cast(kind), kind)

    def _path(self, node: ast.expr) -> list[tuple[str, ast.expr]] | None:
        """Return the names of a column or of a member of one, with their nodes; None for other nodes."""
        if isinstance(node, ast.Name):
            return [(node.id, node)]
        if isinstance(node, ast.Attribute):
            path = self._path(node.value)
            return None if path is None else [*path, (node.attr, node)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "column":
            names = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
            if node.keywords or not names or len(names) < len(node.args):
                raise self.source.fault(node, "column() needs the column's name", expected='such as column("my col")')
            return [(name, node) for name in names]
        return None

    def _column(self, path: list[tuple[str, ast.expr]], is_compared: bool = True) -> Operand:
        """Translate a column, or a member of one; it is cast if it is compared, or a dictionary with nulls inside."""
        fields: Sequence[pa.Field] = list(self.schema)
        for number, (name, at) in enumerate(path):
            names = [one.name for one in fields]
            if names.count(name) != 1:
                raise self._unknown(name, at, names, [name for name, _ in path[:number]])
            kind = fields[names.index(name)].type
            inner = unwrap(kind)
            fields = [inner.field(i) for i in range(inner.num_fields)] if pa.types.is_struct(inner) else []
        self.columns[path[0][0]] = None
        reference = pc.field(*(name for name, _ in path))
        if not (is_compared or pa.types.is_dictionary(kind)):
            return Operand(reference, kind)
        self.reads_floats = self.reads_floats or pa.types.is_floating(inner)
        return read(reference, kind)

    def _unknown(self, name: str, node: ast.expr, names: list[str], above: list[str]) -> InputError:
        """Return the error for an unknown or ambiguous name."""
        if name in names:
            return self.source.fault(node, f"duplicate column {name!r}: {names.count(name)} in the table")
        if above and not names:
            return self.source.fault(node, f"column {'.'.join(above)!r} is not a struct and has no member {name!r}")
        owner = f"column {'.'.join(above)!r} has no member" if above else "the table has no column"
        near = nearest_names([name], names)
        remedy = f"did you mean {_spelling([*above, *near])}?" if near else ""
        if not above and any(name in classes for classes in self.class_names.values()):
            remedy = f"write {name!r} in quotes"
        if not above and name.lower() in _SPELLINGS:
            remedy = f"write {_SPELLINGS[name.lower()]}"
        if not above and name in self.hints:
            owner, remedy = "the sample tables have no column", self.hints[name]
        expected = f"one of {listed(names, _MAX_NAMES)}"
        fault = self.source.fault(node, f"{owner} {name!r}", expected=expected, remedy=remedy)
        return fault if above or remedy else UnknownColumnError(fault.cause, fault.place, fault.expected)


def _spelling(path: Sequence[str]) -> str:
    """Return how a condition names a column, or a member of one."""
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in path):
        return ".".join(path)
    quoted = ('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in path)
    return f"column({', '.join(quoted)})"
