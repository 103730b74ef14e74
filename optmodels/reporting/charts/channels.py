"""Channels of Vega-Lite specifications in short: numbers, names, lines of tooltips."""

from __future__ import annotations

from typing import Any


def amounts(field: str, title: str | None = "", form: str = "", **more: Any) -> dict[str, Any]:
    """A channel of numbers; `title`: of its axis, none if empty; `form`: format of the axis' labels."""
    axis = ({"title": title} if title != "" else {}) | ({"axis": {"format": form}} if form else {})
    return {"field": field, "type": "quantitative"} | axis | more


def entries(field: str, **more: Any) -> dict[str, Any]:
    """A channel of names in the order of the rows, without a title."""
    return {"field": field, "type": "nominal", "sort": None, "title": None} | more


def tips(*fields: str | tuple[str, str | None] | tuple[str, str | None, str]) -> list[dict[str, str]]:
    """Lines of a tooltip: each a field, with its title and the format of its numbers where these are given."""
    rows = [(x,) if isinstance(x, str) else x for x in fields]
    return [{k: v for k, v in zip(("field", "title", "format"), x, strict=False) if v is not None} for x in rows]
