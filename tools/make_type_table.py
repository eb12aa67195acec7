"""Write the table of types into README.md, from the rules that the code itself goes by.

python tools/make_type_table.py            # write it
python tools/make_type_table.py --check    # only say whether it is up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from wdsplit.fields.rules import RULES, WRAPPERS

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- types: made by tools/make_type_table.py -->\n"
END = "<!-- end of types -->\n"


def type_table() -> str:
    """Return the rules as a Markdown table."""
    lines = ["| column | field | what is written | inside lists, structs and maps (JSON) |", "|---|---|---|---|"]
    for rule in (*RULES, *WRAPPERS):
        field = f"`{rule.extension}`" if rule.extension else "by its first bytes" if rule.encoding else ""
        lines.append(f"| {rule.types} | {field} | {rule.payload} | {rule.inner} |")
    lines.append("| union, run-end encoded, interval | | refused | refused, with what it stands in |")
    return "\n".join(lines) + "\n"


def with_table(document: str) -> str:
    """Return a document with the table between its two marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md has no marks {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{type_table()}\n{end}{after}"


def main() -> None:
    found = README.read_text(encoding="utf-8")
    wanted = with_table(found)
    if "--check" in sys.argv[1:]:
        if found != wanted:
            raise SystemExit("README.md has another table of types: run python tools/make_type_table.py")
    elif found != wanted:
        README.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
