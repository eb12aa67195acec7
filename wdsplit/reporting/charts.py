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

import numpy as np

from wdsplit.errors import MissingDependencyError

try:
    import vl_convert
except ModuleNotFoundError as error:
    raise MissingDependencyError.for_extra("report") from error

__all__ = ["Picture", "bars", "draw", "heatmap", "histogram"]

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
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "titleFontWeight": "normal"},
    "bar": {"color": "#2f7ed8"},
}
_WIDTH, _HEIGHT = 350, 240
_X_LABELS = 7


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


def heatmap(
    columns: Sequence[int], names: Sequence[str], shares: Any, titles: tuple[str, str, str], top: float
) -> Spec:
    """Return a heatmap: dark is none, bright is `top` or more.

    Args:
        columns: The numbers of the columns.
        names: The names of the rows, all different.
        shares: float64 of shape (rows, columns).
        titles: The titles of columns, rows and shares.
        top: The share of the brightest colour.
    """
    encoding = {
        "x": {
            "field": "x",
            "type": "ordinal",
            "title": titles[0],
            "axis": {
                "labelAngle": 0,
                "values": columns[:: -(-len(columns) // _X_LABELS) or 1],
                "ticks": False,
                "domain": False,
            },
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
    values = np.asarray(shares, float).round(4).reshape(-1).tolist()
    y = [name for name in names for _ in columns]
    height = max(150, min(440, 90 + 17 * len(names)))
    return _chart({"type": "rect"}, height, encoding, x=[*columns] * len(names), y=y, value=values)


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
