"""Charts as Vega-Lite specifications: drawn by the HTML page, and by vl-convert as PNG or SVG for papers.

Specifications are written out as data (a formulation may as well make its own with Altair's ``to_dict``): importing
Altair would double the time of a small solve. Names of users appear as data values only, never as field names or
expressions, which Vega would parse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optmodels.errors import printable
from optmodels.io.write import safe_name, write_bytes, write_text

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "#ffffff",
    "aria": False,  # a description of every mark costs a fifth of the drawing; the page has captions for the charts
    "view": {"stroke": None},
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


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        title: what it shows.
        caption: how to read it, in words that serve who cannot see it, too.
        spec: Vega-Lite, with its data inline; width ``container`` is filled in by who draws it.
    """

    title: str
    caption: str
    spec: dict[str, Any]


def chart(
    title: str, caption: str, rows: Iterable[Mapping[str, Any]], spec: Mapping[str, Any], height: int = 300
) -> Chart:
    """A chart over rows of data, as wide as its page.

    Args:
        title: what it shows.
        caption: how to read it.
        rows: the data; floats are rounded to six significant digits.
        spec: Vega-Lite without schema, data and size; its own ``height`` wins.
        height: pixels.
    """
    data = [{k: _short(v) for k, v in row.items()} for row in rows]
    full = {"$schema": SCHEMA, "data": {"values": data}, "width": "container", "height": height} | dict(spec)
    return Chart(title, caption, full)


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


def drawn(picture: Chart, width: int = 720) -> dict[str, Any]:
    """The specification of a picture that stands alone: with a width, the common style and its title."""
    spec = dict(picture.spec)
    if spec.get("width") == "container":
        spec["width"] = width
    return spec | {"config": CONFIG | spec.get("config", {}), "title": printable(picture.title, 160), "padding": 12}


def save_figures(pictures: Iterable[Chart], folder: Path, kind: str = "png", *, overwrite: bool = False) -> list[Path]:
    """Write every chart as a picture; the files written. Needs the ``report`` extra.

    Args:
        pictures: the charts.
        folder: where to; files are named after the titles.
        kind: png (at 192 dpi) or svg.
        overwrite: replace existing files.

    Raises:
        InputError: a file exists.
    """
    import vl_convert

    made: list[Path] = []
    for number, picture in enumerate(pictures, 1):
        path = folder / f"{number:02d}-{safe_name(picture.title.lower(), 60)}.{kind}"
        if kind == "svg":
            write_text(path, vl_convert.vegalite_to_svg(drawn(picture)), overwrite=overwrite)
        else:
            write_bytes(path, vl_convert.vegalite_to_png(drawn(picture), scale=2, ppi=96), overwrite=overwrite)
        made.append(path)
    return made


def numbered(pictures: Iterable[Chart], prefix: str) -> list[Chart]:
    """The same charts with a prefix to their titles, where several results share a page or a folder."""
    return [replace(p, title=f"{prefix}: {p.title}") for p in pictures]
