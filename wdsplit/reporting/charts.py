"""Pictures: Vega-Lite specifications, drawn as SVG when the report is made.

The page needs no script: the pictures have the colour of the text around them, and each mark has its numbers as a
title, which browsers show on hover. Values come from datasets that anyone may have made: they are data to Vega, never
expressions or names of columns, and the SVG is parsed and written anew.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.errors import MissingDependencyError

try:
    import vl_convert
except ModuleNotFoundError as error:
    raise MissingDependencyError.for_extra("report") from error

__all__ = ["Picture", "bars", "draw", "histogram"]

Spec = dict[str, Any]

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_FONT = "Arial, Helvetica, sans-serif"
_CONFIG = {
    "font": _FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor", "gridColor"), "currentColor"),
        "gridOpacity": 0.15,
        "domainOpacity": 0.5,
        "tickOpacity": 0.5,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 110,
        "labelOverlap": True,
    },
    "bar": {"color": "#2f7ed8"},
}
_WIDTH, _HEIGHT = 350, 240


@dataclass(frozen=True)
class Picture:
    """A picture, with its content in words and numbers.

    Attributes:
        name: Prefix for the names of its elements.
        title: What it shows.
        sentence: The same in words.
        basis: `exact`, or how much was sampled.
        spec: What Vega-Lite draws.
        header: The names of the table's columns.
        rows: The numbers behind it.
    """

    name: str
    title: str
    sentence: str
    basis: str
    spec: Spec
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


def _chart(mark: Any, height: int, encoding: Spec, **columns: Iterable[Any]) -> Spec:
    """Return a chart of columns of equal length."""
    rows = zip(*columns.values(), strict=True)
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDTH,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "config": _CONFIG,
        "data": {"values": [dict(zip(columns, row, strict=True)) for row in rows]},
        "mark": mark,
        "encoding": encoding,
    }


def bars(names: Sequence[str], values: Sequence[float], titles: tuple[str, str]) -> Spec:
    """Return horizontal bars, in the order of their names; `titles` are those of names and values."""
    encoding = {
        "y": {"field": "name", "type": "nominal", "sort": None, "title": titles[0]},
        "x": {"field": "value", "type": "quantitative", "title": titles[1], "axis": {"tickCount": 4}},
    }
    return _chart("bar", max(90, min(420, 40 + 20 * len(names))), encoding, name=names, value=values)


def histogram(edges: Sequence[float], counts: Sequence[float], titles: tuple[str, str]) -> Spec:
    """Return a histogram: one more edge than counts."""
    encoding = {
        "x": {
            "field": "begin",
            "type": "quantitative",
            "bin": {"binned": True},
            "title": titles[0],
            "axis": {"grid": False, "tickCount": 5},
            "scale": {"zero": False},
        },
        "x2": {"field": "end"},
        "y": {"field": "count", "type": "quantitative", "title": titles[1], "axis": {"tickCount": 4}},
    }
    return _chart({"type": "bar", "binSpacing": 1}, _HEIGHT, encoding, begin=edges[:-1], end=edges[1:], count=counts)


def draw(pictures: Sequence[Picture]) -> dict[str, str]:
    """Draw pictures as SVG elements of one page; return them by their names."""
    return {each.name: _embedded(vl_convert.vegalite_to_svg(each.spec), each) for each in pictures}


def _embedded(svg: str, picture: Picture) -> str:
    """Return an SVG as an element of a page: with one description instead of one per mark."""
    root = ET.fromstring(svg)
    for element in root.iter():
        for name in ("role", "aria-roledescription", "aria-hidden"):
            element.attrib.pop(name, None)
        label = element.attrib.pop("aria-label", None)
        if label is not None and element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}rect"):
            title = ET.Element(f"{{{_SVG}}}title")
            title.text = label
            element.insert(0, title)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{picture.name}-title")
    root.set("aria-describedby", f"{picture.name}-sentence")
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(root, encoding="unicode")
