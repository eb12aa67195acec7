"""The syntax of conditions: parses the text with Python's parser, and makes errors that mark their place in it.

Pure (no I/O). Refuses invalid expressions, and those too deep or too large for Arrow. `parse` translates the nodes.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wdsplit.errors import InputError

__all__ = ["GRAMMAR", "STRING", "Source"]

_MAX_CHARACTERS = 100_000
_MAX_DEPTH = 50
_MAX_CONDITIONS = 500
"""Arrow walks joined conditions recursively, on the small stacks of its threads."""
_MAX_SHOWN = 40
"""Characters of the text that an error shows before, between and after the carets."""

GRAMMAR = "comparisons joined by `and`, `or` and `not`, such as `label < 10 and width >= 256`"
STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_RESERVED = [word for word in keyword.kwlist if word not in ("and", "or", "not", "in", "is", "None", "True", "False")]
_ODD_NAME = 'write column("...") for a column whose name is not a plain word, or is a keyword of Python'
_ADVICE = {
    r"<>": "write `!=` instead",
    r"===|(?<![<>!=:])=(?![=<>])": "write `==` to compare",
    r"&&?|\b(?!and\b)(?i:and)\b": "write `and`",
    r"\|\|?|\b(?!or\b)(?i:or)\b": "write `or`",
    r"!(?!=)|~|\b(?!not\b)(?i:not)\b(?!\s+(?i:null)\b)": "write `not`",
    r"\b(?i:is)\s+(?i:not\s+)?(?i:null)\b": "write `is None` or `is not None`",
    r"\b(?i:i?like)\b": 'write startswith(column, "..."), endswith(column, "...") or contains(column, "...")',
    r"\b(?i:between)\b": "write `low <= column <= high`",
    r"\b(?!in\b)(?i:in)\b": "write `in [..., ...]`",
    rf"\b(?:{'|'.join(_RESERVED)})\b|[`\\$?@]": _ODD_NAME,
}
"""Remedies for the syntax of other languages, by pattern; used if the text is not a valid expression."""


@dataclass(frozen=True)
class Source:
    """The text of a condition, as one line."""

    line: str

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the start and end of a node in the line, in characters: the parser counts bytes."""
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        if self.line.isascii():
            return start, end
        data = self.line.encode()
        return len(data[:start].decode()), len(data[:end].decode())

    def fault(
        self, at: tuple[int, int] | ast.AST | None, cause: str, expected: str = "", found: str = "", remedy: str = ""
    ) -> InputError:
        """Return an error whose place is the text, with carets around the wrong characters or node."""
        start, end = self.span(at) if isinstance(at, ast.AST) else at or (0, 0)
        before, wrong, after = self.line[:start], self.line[start:end], self.line[end:]
        before = before if len(before) <= _MAX_SHOWN else f"...{before[-_MAX_SHOWN:]}"
        wrong, after = (text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..." for text in (wrong, after))
        return InputError(cause, f"{before}^{wrong}^{after}" if wrong else f"{before}^{after}", expected, found, remedy)

    @contextmanager
    def placing(self, node: ast.AST) -> Iterator[None]:
        """Set the place of errors that have none to a node."""
        try:
            yield
        except InputError as error:
            raise error if error.place else error.at(self.fault(node, "").place) from error.__cause__

    def parse(self) -> ast.expr:
        """Parse the text.

        Raises:
            InputError: It is not a valid expression, contains a comment, or is too deep or too large.
        """
        if not self.line or len(self.line) > _MAX_CHARACTERS:
            cause = "the condition is too long" if self.line else "the condition is empty"
            raise InputError(cause, expected=f"at most {_MAX_CHARACTERS} characters: {GRAMMAR}")
        bare = STRING.sub(lambda found: '"' * len(found[0]), self.line)
        if "#" in bare:
            at = bare.index("#"), len(bare)
            raise self.fault(at, "the condition contains a comment", remedy="remove it")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                tree = ast.parse(self.line, mode="eval").body
        except SyntaxError as error:
            matches = [(found.span(), advice) for word, advice in _ADVICE.items() if (found := re.search(word, bare))]
            start = error.offset - 1 if error.offset else len(self.line)
            at, remedy = min(matches, default=((start, max(start + 1, (error.end_offset or 0) - 1)), _ODD_NAME))
            raise self.fault(at, "invalid condition", GRAMMAR, error.msg, remedy) from error
        except (MemoryError, RecursionError) as error:
            raise self.fault(None, "the condition is nested too deeply") from error
        except ValueError as error:
            raise self.fault(None, "invalid condition", found=str(error)) from error
        level: list[ast.AST] = [tree]
        num_conditions = depth = 0
        while level:
            depth += 1
            num_conditions += sum(len(node.values) for node in level if isinstance(node, ast.BoolOp))
            num_conditions += sum(len(node.ops) - 1 for node in level if isinstance(node, ast.Compare))
            if depth > _MAX_DEPTH:
                raise self.fault(None, "the condition is nested too deeply", f"at most {_MAX_DEPTH} levels")
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        if num_conditions > _MAX_CONDITIONS:
            remedy = "write `column in [..., ...]` for many values of one column"
            raise self.fault(None, "the condition has too many parts", f"at most {_MAX_CONDITIONS}", remedy=remedy)
        return tree
