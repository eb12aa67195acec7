"""Print lines, and lines of code (without comments and docstrings), of each package and of the tests, and the targets.

python -m tools.size
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Lines by group of packages. A module counts for the longest name that it begins with.
TARGETS = {
    "order": 1_900,
    "tar": 900,
    "storage": 1_900,
    "engines, jobs": 1_100,
    "fields": 1_500,
    "conditions": 400,
    "shards, indexing, views, annotating, erasing": 2_500,
    "tables": 2_000,
    "conversion": 3_000,
    "loading.reading": 1_900,
    "loading": 3_700,
    "loading.stages": 1_100,
    "checks, debug": 2_200,
    "reporting": 2_000,
    "integrations": 1_100,
    "cli": 1_900,
    "the root": 450,
    "wdsplit": 31_000,
    "tests": 36_000,
}
CODE_TARGETS = {"wdsplit": 21_000}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def size_of(path: Path) -> Counter[str]:
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in NO_CODE]
    text = path.read_text(encoding="utf-8")
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return Counter(lines=len(text.splitlines()), code=len(code))


def main() -> None:
    sizes = {group: Counter[str]() for group in TARGETS}
    groups = {package: group for group in TARGETS for package in group.split(", ")}
    for path in [*ROOT.glob("wdsplit/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        top, *names = path.relative_to(ROOT).with_suffix("").parts
        sizes[top] += size_of(path)
        if top == "wdsplit":
            name = ".".join(names)
            package = max((each for each in groups if f"{name}.".startswith(f"{each}.")), key=len, default="the root")
            sizes[groups[package]] += size_of(path)
    print(f"{'package':45} {'lines':>7} {'target':>7} {'code':>7} {'target':>7}")
    for group, size in sizes.items():
        numbers = (size["lines"], TARGETS[group], size["code"], CODE_TARGETS.get(group))
        print(f"{group:45}", *(f"{'' if number is None else f'{number:,}':>7}" for number in numbers))


if __name__ == "__main__":
    main()
