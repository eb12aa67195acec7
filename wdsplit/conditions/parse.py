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
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from wdsplit.conditions.compare import Literal, Values, compare, compute, is_among, join, values_of
from wdsplit.conditions.syntax import GRAMMAR, STRING, Source
from wdsplit.errors import InputError, nearest_names
from wdsplit.fields.rules import is_binary, is_list, is_text, unwrap
from wdsplit.tar.names import escape_key

__all__ = ["Where", "parse_where"]

_MAX_EXPONENT = 400
_MAX_NAMES = 50

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_ARITHMETIC: dict[type[ast.AST], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_SIGNS: dict[type[ast.unaryop], str] = {ast.UAdd: "+", ast.USub: "-"}
_TEXT_TESTS = {"contains": pc.match_substring, "endswith": pc.ends_with, "startswith": pc.starts_with}
_LENGTHS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (is_text, pc.utf8_length),
    (is_binary, pc.binary_length),
    (is_list, pc.list_value_length),
)
_FUNCTIONS = ("column", "contains", "endswith", "len", "lower", "startswith")
_WORDS: dict[type[ast.AST], str] = {ast.BitAnd: "and", ast.BitOr: "or", ast.Invert: "not"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPELLINGS = {"null": "None", "none": "None", "true": "True", "false": "False"}


@dataclass(frozen=True, eq=False)
class Where:
    """A condition on rows.

    Attributes:
        columns: The distinct top-level columns that it reads, in the order of the text.
        expression: The condition as an Arrow expression: true for the rows to keep, else false or null.
        pruning: The same or a weaker condition, for row group statistics; None if they cannot exclude anything. They
            ignore NaN, for which `x != 3` and `not x < 3` are true, so such conditions on floats are omitted.
    """

    columns: tuple[str, ...]
    expression: Any
    pruning: Any


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
    source = Source.of(text)
    try:
        return _Translator(source, schema, class_names or {}, key, hints or {}).where(source.parse())
    except RecursionError as error:
        raise source.fault(None, "the condition is nested too deeply") from error


class _Translator:
    """Translates the nodes of a condition on the rows of a table."""

    def __init__(
        self,
        source: Source,
        schema: pa.Schema,
        class_names: Mapping[str, Sequence[str]],
        key: str | None,
        hints: Mapping[str, str],
    ) -> None:
        self._source = source
        self._schema = schema
        self._class_names = class_names
        self._key = key
        self._hints = hints
        self._columns: dict[str, None] = {}
        self._reads_floats = False
        self._negates = False

    def where(self, tree: ast.expr) -> Where:
        """Translate a whole condition."""
        conditions: list[Any] = []
        pruning: list[Any] = []
        for node in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
            self._reads_floats = self._negates = False
            conditions.append(self._condition(node))
            if not (self._reads_floats and self._negates):
                pruning.append(conditions[-1])
        expression = join(operator.and_, conditions)
        self._check(expression)
        return Where(tuple(self._columns), expression, join(operator.and_, pruning) if pruning else None)

    def _check(self, expression: Any) -> None:
        """Check that Arrow can compute the condition."""
        schema = pa.schema([self._schema.field(name) for name in self._columns])
        try:
            pyarrow.dataset.Scanner.from_batches([], schema=schema, columns={"": expression})
        except pa.ArrowException as error:
            cause = f"pyarrow {pa.__version__} cannot compute the condition"
            raise self._source.fault(None, cause, found=str(error)) from error

    def _condition(self, node: ast.expr) -> Any:
        """Translate a node that is true, false or null for each row."""
        if isinstance(node, ast.BoolOp):
            operation = operator.and_ if isinstance(node.op, ast.And) else operator.or_
            return join(operation, [self._condition(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._negates = True
            return ~self._condition(node.operand)
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            pairs = zip(operands, node.ops, operands[1:], strict=False)
            return join(operator.and_, [self._compare(node, *pair) for pair in pairs])
        values = self._operand(node)
        if isinstance(values, Literal) or not pa.types.is_boolean(values.kind):
            what = values if isinstance(values, Literal) else f"of type {values.kind}"
            cause = "a condition is neither true nor false"
            raise self._source.fault(node, cause, expected=GRAMMAR, found=f"this is {what}")
        return values.expression

    def _compare(self, node: ast.Compare, left: ast.expr, operation: ast.cmpop, right: ast.expr) -> Any:
        self._negates = self._negates or isinstance(operation, (ast.NotEq, ast.NotIn))
        if isinstance(operation, (ast.Is, ast.IsNot)):
            is_null = self._is_null(left, right)
            return ~is_null if isinstance(operation, ast.IsNot) else is_null
        with self._source.placing(node):
            if isinstance(operation, (ast.In, ast.NotIn)):
                among = self._among(left, right)
                return ~among if isinstance(operation, ast.NotIn) else among
            operands = self._operand(left), self._operand(right)
            for column, text, literal in ((left, right, operands[1]), (right, left, operands[0])):
                if isinstance(operation, (ast.Eq, ast.NotEq)) and len(self._spellings(literal, column)) > 1:
                    among = self._among(column, ast.copy_location(ast.List([text]), text))
                    return ~among if isinstance(operation, ast.NotEq) else among
            if isinstance(operation, (ast.Eq, ast.NotEq)):
                operands = self._numbered(operands[0], left, right), self._numbered(operands[1], right, left)
            return compare(operands[0], _COMPARISONS[type(operation)], operands[1])

    def _spellings(self, operand: Literal | Values, column: ast.expr) -> list[Literal]:
        """Return a literal, and its escaped form if it is compared with the key column; [] for other operands."""
        if not isinstance(operand, Literal):
            return []
        path, text = self._path(column) if self._key else None, operand.value
        is_key = path is not None and [name for name, _ in path] == [self._key]
        if not is_key or not isinstance(text, str) or not text or escape_key(text) == text:
            return [operand]
        return [operand, Literal(escape_key(text))]

    def _numbered(self, operand: Literal | Values, node: ast.expr, column: ast.expr) -> Literal | Values:
        """Return an operand; if it is a class name that is compared with a column of classes, its number."""
        path = self._path(column)
        names = self._class_names.get(path[0][0], ()) if path is not None and len(path) == 1 else ()
        if not names or not isinstance(operand, Literal) or not isinstance(operand.value, str):
            return operand
        if operand.value not in names:
            near = nearest_names([operand.value], names)
            cause = f"column {path[0][0] if path else ''!r} has no class {operand.value!r}"
            shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
            remedy = f'did you mean "{near[0]}"?' if near else ""
            raise self._source.fault(node, cause, expected=f"one of {shown}", remedy=remedy)
        return Literal(Fraction(names.index(operand.value)))

    def _is_null(self, node: ast.expr, right: ast.expr) -> Any:
        """Translate `is None`, which works for columns of any type."""
        if not (isinstance(right, ast.Constant) and right.value is None):
            null = isinstance(right, ast.Name) and _SPELLINGS.get(right.id.lower()) == "None"
            remedy = "write None" if null else "write `==` or `!=`"
            raise self._source.fault(right, "`is` must be followed by None", remedy=remedy)
        if self._path(node) is not None:
            reference, kind = self._reference(node)
            # Arrow before 18 overlooks nulls inside a dictionary.
            overlooked = pa.types.is_dictionary(kind) and not pa.types.is_nested(kind.value_type)
            return (reference.cast(kind.value_type) if overlooked else reference).is_null()
        values = self._operand(node)
        if isinstance(values, Literal):
            raise self._source.fault(node, "`is None` needs a column, not a value")
        return values.expression.is_null()

    def _among(self, left: ast.expr, right: ast.expr) -> Any:
        if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not right.elts:
            raise self._source.fault(
                right,
                "`in` must be followed by a list of values",
                expected='a list such as `[1, 2]` or `["a", "b"]`',
                remedy='write contains(column, "...") to look for a part of a string',
            )
        values = self._operand(left)
        if isinstance(values, Literal):
            raise self._source.fault(left, "`in` needs a column, not a value")
        items: list[Literal] = []
        for node in right.elts:
            item = self._numbered(self._operand(node), node, left)
            if not isinstance(item, Literal):
                raise self._source.fault(node, "a list may contain only numbers, strings, True and False")
            items.extend(self._spellings(item, left))
        return is_among(values, items)

    def _operand(self, node: ast.expr) -> Literal | Values:
        """Translate a value or column that can be compared."""
        if isinstance(node, ast.Constant):
            return self._literal(node)
        if self._path(node) is not None:
            values = values_of(*self._reference(node))
            self._reads_floats = self._reads_floats or bool(pa.types.is_floating(values.kind))
            return values
        if isinstance(node, ast.Call):
            return self._call(node)
        with self._source.placing(node):
            if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
                return compute(Literal(Fraction(0)), _SIGNS[type(node.op)], self._operand(node.operand))
            if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
                return compute(self._operand(node.left), _ARITHMETIC[type(node.op)], self._operand(node.right))
        raise self._not_allowed(node)

    def _not_allowed(self, node: ast.expr) -> InputError:
        word = next((word for kind, word in _WORDS.items() if isinstance(getattr(node, "op", node), kind)), None)
        remedy = f"write `{word}`" if word else ""
        return self._source.fault(node, "not allowed in a condition", expected=GRAMMAR, remedy=remedy)

    def _literal(self, node: ast.Constant) -> Literal:
        start, end = self._source.span(node)
        text, value = self._source.line[start:end], node.value
        if isinstance(value, (str, bytes)) and len(STRING.findall(text)) > 1:
            raise self._source.fault(node, "two adjacent strings", remedy="put a comma between them")
        if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
            raise self._source.fault(node, "invalid string", expected="Unicode characters", found="a surrogate")
        if isinstance(value, float):
            try:
                number = Decimal(text)
            except ArithmeticError:
                number = Decimal("Infinity")
            if not number.is_finite() or abs(number.adjusted()) > _MAX_EXPONENT:
                raise self._source.fault(node, "a number is too large or too small")
            return Literal(Fraction(number))
        if value is None or isinstance(value, (str, bytes, bool)):
            return Literal(value)
        if isinstance(value, int):
            return Literal(Fraction(value))
        raise self._not_allowed(node)

    def _call(self, node: ast.Call) -> Values:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS or node.keywords or not node.args:
            cause = "unknown function"
            raise self._source.fault(node, cause, expected=f"one of {', '.join(_FUNCTIONS)}")
        values, *more = (self._operand(argument) for argument in node.args)
        if isinstance(values, Literal):
            raise self._source.fault(node.args[0], f"{name} needs a column, not a value")
        if name in _TEXT_TESTS:
            part = more[0].value if len(more) == 1 and isinstance(more[0], Literal) else None
            if not is_text(values.kind) or not isinstance(part, str):
                raise self._source.fault(node, f"{name} needs a column of strings and a string")
            return Values(_TEXT_TESTS[name](values.expression, pattern=part), pa.bool_())
        if more or (name == "lower" and not is_text(values.kind)):
            raise self._source.fault(node, f"{name} needs one column{' of strings' if name == 'lower' else ''}")
        if name == "lower":
            return Values(pc.utf8_lower(values.expression), values.kind)
        length = next((function for has_length, function in _LENGTHS if has_length(values.kind)), None)
        if length is None:
            cause, expected = "a column has no length", "strings, bytes or lists"
            raise self._source.fault(node, cause, expected, found=str(values.kind))
        return Values(length(values.expression).cast(pa.int64()), pa.int64())

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
                raise self._source.fault(node, "column() needs the column's name", expected='such as column("my col")')
            return [(name, node) for name in names]
        return None

    def _reference(self, node: ast.expr) -> tuple[Any, pa.DataType]:
        """Return a column, or a member of one, and its type."""
        path = self._path(node) or []
        fields: Sequence[pa.Field] = list(self._schema)
        kind = None
        for number, (name, at) in enumerate(path):
            names = [field.name for field in fields]
            if names.count(name) != 1:
                raise self._unknown(name, at, names, [name for name, _ in path[:number]])
            kind = fields[names.index(name)].type
            inner = unwrap(kind)
            fields = [inner.field(i) for i in range(inner.num_fields)] if pa.types.is_struct(inner) else []
        self._columns[path[0][0]] = None
        return pc.field(*(name for name, _ in path)), kind

    def _unknown(self, name: str, node: ast.expr, names: list[str], above: list[str]) -> InputError:
        """Return the error for an unknown or ambiguous name."""
        if names.count(name) > 1:
            return self._source.fault(node, f"duplicate column {name!r}: {names.count(name)} in the table")
        if above and not names:
            return self._source.fault(node, f"column {'.'.join(above)!r} is not a struct and has no member {name!r}")
        owner = f"column {'.'.join(above)!r} has no member" if above else "the table has no column"
        near = nearest_names([name], names)
        remedy = f"did you mean {_spelling([*above, *near])}?" if near else ""
        if not above and any(name in classes for classes in self._class_names.values()):
            remedy = f"write {name!r} in quotes"
        if not above and name.lower() in _SPELLINGS:
            remedy = f"write {_SPELLINGS[name.lower()]}"
        if not above and name in self._hints:
            owner, remedy = "the sample tables have no column", self._hints[name]
        shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
        return self._source.fault(node, f"{owner} {name!r}", expected=f"one of {shown}", remedy=remedy)


def _spelling(path: Sequence[str]) -> str:
    """Return how a condition names a column, or a member of one."""
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in path):
        return ".".join(path)
    quoted = ('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in path)
    return f"column({', '.join(quoted)})"
