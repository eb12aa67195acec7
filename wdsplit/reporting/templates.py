"""The HTML templates, and the functions that they call."""

from __future__ import annotations

from wdsplit.errors import MissingDependencyError
from wdsplit.texts import counted, human_bytes, human_number, human_seconds, safe_text

try:
    import jinja2
    from markupsafe import Markup
except ModuleNotFoundError as error:
    raise MissingDependencyError.for_extra("report") from error

__all__ = ["TEMPLATES", "Markup"]

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("wdsplit.reporting", "."),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"bytes": human_bytes, "number": human_number, "seconds": human_seconds, "shown": safe_text}
TEMPLATES.globals["counted"] = counted
