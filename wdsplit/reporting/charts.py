"""Pictures: Vega-Lite specifications, drawn as SVG when the report is made.

The page needs no script: the pictures have the colour of the text around them, and each mark has its numbers as a
title, which browsers show on hover. Values come from datasets that anyone may have made: they are data to Vega, never
expressions or names of columns, and the SVG is parsed and written anew.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.errors import MissingDependencyError

try:
    import vl_convert
except ModuleNotFoundError as error:
    raise MissingDependencyError.for_extra("report") from error

__all__ = ["Picture", "Spec", "bars", "draw", "heatmap", "histogram", "lines"]

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_BLUE, _ORANGE = "#2f7ed8", "#e07b00"
"""Distinguishable with colour blindness, on white and on black."""
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
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "titleFontWeight": "normal"},
    "bar": {"color": _BLUE},
    "range": {"category": [_BLUE, _ORANGE]},
}
_WIDTH, _HEIGHT = 350, 240
_X_LABELS = 7
_LOG_FROM = 10
"""Lines have a logarithmic scale if the largest value is more than this many times the smallest."""


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
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def _chart(values: Rows, mark: Any, encoding: Spec, height: int = _HEIGHT) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": _WIDTH,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "config": _CONFIG,
        "data": {"values": list(values)},
        "mark": mark,
        "encoding": encoding,
    }


def bars(values: Rows, name: str, value: str, titles: tuple[str, str]) -> Spec:
    """Return horizontal bars, one per name, in the order of the values.

    Args:
        values: Rows with the two keys.
        name: The key of the names.
        value: The key of the lengths.
        titles: The titles of names and lengths.
    """
    encoding = {
        "y": {"field": name, "type": "nominal", "sort": None, "title": titles[0]},
        "x": {"field": value, "type": "quantitative", "title": titles[1], "axis": {"tickCount": 4}},
    }
    return _chart(values, "bar", encoding, max(90, min(420, 40 + 20 * len(values))))


def histogram(values: Rows, title: str, count_title: str) -> Spec:
    """Return a histogram of rows with `begin`, `end` and `count`."""
    encoding = {
        "x": {
            "field": "begin",
            "type": "quantitative",
            "bin": {"binned": True},
            "title": title,
            "axis": {"grid": False, "tickCount": 5},
            "scale": {"zero": False},
        },
        "x2": {"field": "end"},
        "y": {"field": "count", "type": "quantitative", "title": count_title, "axis": {"tickCount": 4}},
    }
    return _chart(values, {"type": "bar", "binSpacing": 1}, encoding)


def lines(values: Rows, titles: tuple[str, str], log: bool = False, ordinal: bool = False) -> Spec:
    """Return a line with points for each `series` of rows with `x`, `y` and `series`; the second series is dashed."""
    series = list(dict.fromkeys(row["series"] for row in values))
    least, most = min(row["y"] for row in values), max(row["y"] for row in values)
    encoding = {
        "x": {
            "field": "x",
            "type": "ordinal" if ordinal else "quantitative",
            "title": titles[0],
            "axis": {"labelAngle": 0, "grid": False},
        },
        "y": {
            "field": "y",
            "type": "quantitative",
            "title": titles[1],
            "axis": {"tickCount": 5},
            **({"scale": {"type": "log"}} if log and 0 < least * _LOG_FROM < most else {}),
        },
        "color": {"field": "series", "type": "nominal", "sort": series, "legend": {"orient": "top", "title": None}},
        "strokeDash": {
            "field": "series",
            "type": "nominal",
            "sort": series,
            "legend": None,
            "scale": {"domain": series, "range": [[1, 0], [4, 3]][: len(series)]},
        },
    }
    return _chart(values, {"type": "line", "point": {"size": 45}}, encoding)


def heatmap(values: Rows, titles: tuple[str, str, str], top: float) -> Spec:
    """Return a heatmap of rows with `x`, `y` and `value`: dark is none, bright is `top` or more.

    Args:
        values: The rows; x in the order of their numbers, y as they come.
        titles: The titles of x, y and value.
        top: The value of the brightest colour.
    """
    rows = len(dict.fromkeys(row["y"] for row in values))
    columns = list(dict.fromkeys(row["x"] for row in values))
    each = -(-len(columns) // _X_LABELS) or 1
    encoding = {
        "x": {
            "field": "x",
            "type": "ordinal",
            "title": titles[0],
            "axis": {"labelAngle": 0, "values": columns[::each], "ticks": False, "domain": False},
        },
        "y": {
            "field": "y",
            "type": "nominal",
            "sort": None,
            "title": titles[1],
            "axis": {"ticks": False, "domain": False},
        },
        "color": {
            "field": "value",
            "type": "quantitative",
            "title": titles[2],
            "scale": {"scheme": "viridis", "domain": [0, top], "clamp": True},
            "legend": {"orient": "top", "gradientLength": 200, "tickCount": 3},
        },
    }
    return _chart(values, {"type": "rect"}, encoding, max(150, min(440, 90 + 17 * rows)))


def draw(pictures: Sequence[Picture]) -> dict[str, str]:
    """Draw pictures as SVG elements of one page; return them by their names."""
    return {each.name: _embedded(vl_convert.vegalite_to_svg(each.spec), each) for each in pictures}


def _embedded(svg: str, picture: Picture) -> str:
    """Return an SVG as an element of a page: with names of its own, and one description instead of one per mark."""
    root = ET.fromstring(svg)
    # Vega numbers its names through all pictures. Numbers by place are the same in each report.
    names = {element.get("id"): number for number, element in enumerate(root.iter()) if element.get("id")}
    for element in root.iter():
        for name in ("role", "aria-roledescription", "aria-hidden"):
            element.attrib.pop(name, None)
        label = element.attrib.pop("aria-label", None)
        if label is not None and element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}rect"):
            title = ET.Element(f"{{{_SVG}}}title")
            title.text = label
            element.insert(0, title)
        for name, value in element.attrib.items():
            number = names.get(value.removeprefix("url(#").removesuffix(")"))
            if number is not None and name == "id":
                element.set(name, f"{picture.name}-{number}")
            elif number is not None and value.startswith("url(#"):
                element.set(name, f"url(#{picture.name}-{number})")
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{picture.name}-title")
    root.set("aria-describedby", f"{picture.name}-sentence")
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(root, encoding="unicode")
