"""Write the tables of types into docs/types.md, from the rules that the code itself goes by.

python tools/make_type_table.py
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from wdsplit.fields.promote import common_type
from wdsplit.fields.rules import RULES, WRAPPERS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "types.md"

PAIRS = (
    (pa.null(), pa.string(), ""),
    (pa.int32(), pa.int64(), ""),
    (pa.uint8(), pa.int8(), ""),
    (pa.uint64(), pa.int64(), "integers over 2^63 - 1"),
    (pa.float32(), pa.float64(), ""),
    (pa.int16(), pa.float32(), ""),
    (pa.int32(), pa.float32(), ""),
    (pa.int64(), pa.float64(), "integers over 2^53"),
    (pa.int32(), pa.decimal128(10, 2), ""),
    (pa.decimal128(10, 2), pa.decimal128(20, 5), ""),
    (pa.string(), pa.large_string(), ""),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), ""),
    (pa.binary(), pa.binary(16), ""),
    (pa.date32(), pa.date64(), ""),
    (pa.timestamp("us"), pa.timestamp("ns"), "times before 1677 or after 2262"),
    (pa.duration("ms"), pa.duration("ns"), "over 292 years"),
    (pa.list_(pa.int32()), pa.large_list(pa.int64()), ""),
    (pa.list_(pa.float32(), 3), pa.list_(pa.float32()), ""),
    (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.string()), ("a", pa.int64())]), ""),
    (pa.bool_(), pa.int64(), ""),
    (pa.int64(), pa.string(), ""),
    (pa.float64(), pa.decimal128(10, 2), ""),
    (pa.string(), pa.binary(), ""),
    (pa.date32(), pa.timestamp("us"), ""),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), ""),
)
"""Types of two files, and which values are refused because the common type cannot hold them."""


def type_table() -> str:
    """Return the rules as a Markdown table."""
    lines = ["| column | field | what is written | inside lists, structs and maps (JSON) |", "|---|---|---|---|"]
    for rule in (*RULES, *WRAPPERS):
        field = "by its first bytes" if rule.encoding else ""
        if rule.extension:
            field = f"`{'COLUMN' if rule.extension.startswith('.') else ''}{rule.extension}`"
        lines.append(f"| {rule.types} | {field} | {rule.payload} | {rule.inner} |")
    lines.append("| union, run-end encoded, interval | | refused | refused, also inside another type |")
    return "\n".join(lines) + "\n"


def promotion_table() -> str:
    """Return what types are promoted to as a Markdown table."""
    lines = ["| type in one file | type in another | read as | refused when it is read |", "|---|---|---|---|"]
    for one, other, refused in PAIRS:
        common = common_type(one, other)
        read_as = f"`{_name(common)}`" if common is not None else "refused"
        lines.append(f"| `{_name(one)}` | `{_name(other)}` | {read_as} | {refused} |")
    return "\n".join(lines) + "\n"


def _name(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return f"dictionary<{kind.value_type}>"
    return str(kind).replace("item: ", "")


TABLES = {"types": type_table, "promotions": promotion_table}
"""What makes the table between the two marks of each name."""


def with_tables(document: str) -> str:
    """Return the text of the page with each table between its two marks."""
    for name, made in TABLES.items():
        before, begin, rest = document.partition(f"<!-- {name}: made by tools/make_type_table.py -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not (begin and end):
            raise SystemExit(f"{PAGE} lacks the marks of the table {name}")
        document = f"{before}{begin}\n{made()}\n{end}{after}"
    return document


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
