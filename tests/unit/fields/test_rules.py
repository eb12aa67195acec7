import runpy

import pyarrow as pa
import pytest

from columns import COLUMNS
from paths import ROOT
from wdsplit.fields.decode import _DECODERS
from wdsplit.fields.encode import _ENCODERS
from wdsplit.fields.rules import RULES, WRAPPERS, rule_of

TOOL = runpy.run_path(str(ROOT / "tools" / "make_type_table.py"))


def test_the_page_of_types_has_the_tables_that_the_rules_make():
    document = TOOL["PAGE"].read_text(encoding="utf-8")
    assert TOOL["with_tables"](document) == document, "run python tools/make_type_table.py"


def test_the_table_has_a_line_for_each_rule():
    table = TOOL["type_table"]().splitlines()
    assert {line.count("|") for line in table} == {5}
    assert len(table) == 2 + len(RULES) + len(WRAPPERS) + 1


def test_each_rule_names_an_encoding_that_there_is():
    assert {rule.encoding for rule in RULES} - {""} == set(_ENCODERS) == set(_DECODERS) - {"category"}


@pytest.mark.parametrize("number", range(len(RULES)))
def test_each_rule_decides_for_some_column(number):
    kinds = [*(column.type for column in COLUMNS.values()), pa.null(), pa.struct([("bytes", pa.binary())])]
    assert any(rule_of(kind) is RULES[number] for kind in kinds)
