"""The page: facts and pictures in one HTML file that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from wdsplit.reporting.charts import draw
from wdsplit.reporting.cluster import ASSUMPTIONS
from wdsplit.reporting.facts import Facts
from wdsplit.reporting.pictures import pictures
from wdsplit.reporting.templates import TEMPLATES, Markup
from wdsplit.reporting.verdicts import verdicts
from wdsplit.texts import safe_text

__all__ = ["page"]

_PROVENANCE_CHARACTERS, _PARTS = 4000, 20


def page(facts: Facts) -> str:
    """Return the HTML of a report."""
    made = pictures(facts)
    drawn = draw(made)
    return TEMPLATES.get_template("page.html.jinja").render(
        facts=facts,
        name=safe_text(facts.name, 200),
        verdicts=verdicts(facts),
        pictures={picture.name: picture for picture in made},
        svg={name: Markup(text) for name, text in drawn.items()},  # parsed and written anew by `charts`
        field_pictures=[picture.name for picture in made if picture.name.startswith("field-")],
        assumptions=ASSUMPTIONS,
        provenance=_provenance(facts),
        keys={row: safe_text(key, 60) for row, key in facts.shown.keys.items()},
    )


def _provenance(facts: Facts) -> list[tuple[str, str]]:
    """Return the provenance of each part, as shortened JSON; of many parts the first."""
    found = []
    for part in facts.parts[:_PARTS]:
        content: Mapping[str, Any] = part.provenance
        text = orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()
        found.append((safe_text(part.name, 200), safe_text(text, _PROVENANCE_CHARACTERS, lines=True)))
    return found
