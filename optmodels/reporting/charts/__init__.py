"""Charts as Vega-Lite specifications: drawn by the HTML page, and by vl-convert as PNG, SVG or PDF.

Specifications are written out as data (a formulation may as well make its own with Altair's ``to_dict``): importing
Altair would double the time of a small solve. Names of users appear as data values only, never as field names or
expressions, which Vega would parse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from optmodels.errors import InputError, Mistake, printable
from optmodels.io.write import safe_name, write_bytes
from optmodels.loading import load
from optmodels.plans.outcome import Solved
from optmodels.reporting.colours import SERIES

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "#ffffff",
    "aria": False,  # a description of every mark costs a fifth of the drawing; the page has captions for the charts
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 14, "subtitleFontSize": 12, "subtitleColor": "#555", "offset": 10},
    "header": {"titleFontSize": 12, "labelFontSize": 12, "labelFontWeight": 600},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 600, "labelColor": "#333", "titleColor": "#333",
        "gridColor": "#e6e8eb", "domainColor": "#8a9099", "tickColor": "#8a9099", "labelLimit": 300,
    },
    "legend": {"orient": "bottom", "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 220, "symbolLimit": 60,
               "columns": 3},
    "bar": {"cornerRadiusEnd": 2},
    "text": {"fontSize": 12},
}  # fmt: skip
SIGNIFICANT = 6  # digits kept of a number in a chart
WIDTH = 720  # pixels of a picture that stands alone
COMPOSED = {"facet", "hconcat", "vconcat"}  # charts of several panels, each with its own size
FORMATS = ("png", "svg", "pdf")
T = TypeVar("T")


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        title: title of the chart.
        caption: how to read it, in words that serve who cannot see it, too.
        spec: Vega-Lite, with its data inline; width ``container`` is filled in by who draws it.
        name: name of its picture's file, without ending; empty: made of the title.
    """

    title: str
    caption: str
    spec: dict[str, Any]
    name: str = ""

    @property
    def file(self) -> str:
        """Name of its picture's file, without ending."""
        return self.name or safe_name(self.title.lower(), 60)


def tables_of(document: Mapping[str, Any], build: Callable[[Any], T]) -> T:
    """The tables of a solve document: those it was made from, or else built from the instance in it."""
    known = document.tables if isinstance(document, Solved) else None
    return build(load(dict(document["problem"]))) if known is None else known


def chart(
    title: str, caption: str, rows: Iterable[Mapping[str, Any]], spec: Mapping[str, Any], height: int = 300,
    name: str = "",
) -> Chart:  # fmt: skip
    """A chart over rows of data, as wide as its page.

    Args:
        title: title of the chart.
        caption: how to read it.
        rows: the data; floats are rounded to six significant digits.
        spec: Vega-Lite without schema, data and size; its own ``height`` wins, and the panels of a composed one have
            their own sizes.
        height: pixels.
        name: name of its picture's file, without ending; empty: made of the title.
    """
    data = [{k: _short(v) for k, v in row.items()} for row in rows]
    size = {} if COMPOSED & spec.keys() else {"width": "container", "height": height}
    return Chart(title, caption, {"$schema": SCHEMA, "data": {"values": data}} | size | dict(spec), name)


def legend_choice(field: str, name: str = "shown") -> dict[str, Any]:
    """A parameter by which clicks on a legend single out its entries; pictures show all of them."""
    return {"name": name, "select": {"type": "point", "fields": [field], "toggle": "true"}, "bind": "legend"}


def coloured(field: str, domain: Iterable[str], colours: Iterable[Any] = SERIES, **more: Any) -> dict[str, Any]:
    """A channel of colours (or dashes, shapes) by turns: the field's values in the order of their legend."""
    values, known = list(domain), list(colours)
    scale = {"domain": values, "range": [known[i % len(known)] for i in range(len(values))]}
    return {"field": field, "type": "nominal", "title": None, "scale": scale} | more


def named(layer: Mapping[str, Any], what: str, dash: tuple[int, int] = (1, 0), **channel: Any) -> dict[str, Any]:
    """A layer whose line is in the legend under its name (a constant of ours): by its dashes, or by another channel."""
    legend = {"symbolStrokeColor": "#111", "symbolType": "stroke", "symbolStrokeWidth": 2}
    channel = channel or {"strokeDash": coloured("line", [what], [list(dash)], legend=legend)}
    name = {"calculate": json.dumps(what), "as": "line"}
    return {**layer, "transform": [*layer.get("transform", []), name], "encoding": layer["encoding"] | channel}


def rule(x: float, what: str) -> dict[str, Any]:
    """A dashed vertical line at one place, in the legend under its name."""
    line = {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#111"}, "encoding": {"x": {"datum": x}}}
    return named(line, what, (4, 3))


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT}g}") if value - value == 0 else None  # infinities and NaN are not JSON
    return value.item() if hasattr(value, "item") else value


def shortened(name: str, limit: int = 44) -> str:
    """A printable label of a name, cut in the middle where it is too long."""
    text = printable(name).replace("\n", " ")
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}…{text[-(limit // 2 - 1) :]}"


def labels(names: Iterable[str], limit: int = 44) -> dict[str, str]:
    """Distinct short labels of names."""
    out: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        text = shortened(name, limit)
        label, number = text, 2
        while label in taken:
            label, number = f"{text} ({number})", number + 1
        taken.add(label)
        out[name] = label
    return out


def drawn(picture: Chart, subtitle: str = "") -> dict[str, Any]:
    """The specification of a picture that stands alone: with a width, the common style, its title and a subtitle."""
    spec = dict(picture.spec)
    if spec.get("width") == "container":
        spec["width"] = WIDTH
    columns = max(1, min(4, WIDTH // (8 * _longest(spec | {"data": None}) + 30)))  # of the legend
    legend = CONFIG["legend"] | {"columns": columns, "labelLimit": WIDTH // columns - 30}
    config = CONFIG | {"legend": legend} | spec.get("config", {})
    title = {"text": printable(picture.title, 100)} | ({"subtitle": printable(subtitle, 120)} if subtitle else {})
    return spec | {"config": config, "title": title, "padding": 12}


def _longest(node: Any) -> int:
    """Characters of the longest name in a legend of a specification (the page's script does the same)."""
    if isinstance(node, list):
        return max(map(_longest, node), default=0)
    if not isinstance(node, dict):
        return 0
    scale = node.get("scale")
    domain = scale.get("domain") if isinstance(scale, dict) else None
    names = domain if isinstance(domain, list) else []
    return max([0, *(len(str(d)) for d in names), *map(_longest, node.values())])


def save_chart(picture: Chart, path: Path, subtitle: str = "", *, overwrite: bool = False) -> None:
    """Write a chart as a picture: PNG (at 192 dpi), SVG or PDF by the file's ending.

    Args:
        picture: the chart.
        path: the file.
        subtitle: subject of the chart, below its title.
        overwrite: replace an existing file.

    Raises:
        InputError: another ending, or the file exists.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise InputError(Mistake(str(path), "", path.suffix or "no ending", "a file ending in .png, .svg or .pdf"))
    import vl_convert

    options = {"scale": 2, "ppi": 96} if kind == "png" else {}
    made = getattr(vl_convert, f"vegalite_to_{kind}")(drawn(picture, subtitle), **options)
    write_bytes(path, made.encode("utf-8") if isinstance(made, str) else made, overwrite=overwrite)
