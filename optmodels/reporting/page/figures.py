"""Key figures of any plan: the numbers at its top, named with their units as everywhere in this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optmodels.reporting.quantities import BARE, label, unit_of
from optmodels.reporting.text import seconds

NOT_SHOWN = {"bin_s", "first_priority_served_per_s"}  # how a plan is counted, not its value
MOST = 12


@dataclass(frozen=True)
class Figure:
    """One number for people."""

    label: str
    value: str
    unit: str


def number(value: float, unit: str = "") -> str:
    """A number for people: thousands separated, about five digits."""
    if unit == "%":
        return f"{100 * value:.4g}"
    if isinstance(value, int) or (abs(value) >= 1e4 and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.5g}"


def key_figures(plan: Mapping[str, Any]) -> list[Figure]:
    """Numbers at the top of a plan, one level of sections included; parts of a cost that are nothing are left out."""
    found = []
    for section, value in plan.items():
        inner = value if isinstance(value, Mapping) else {section: value}
        for name, v in inner.items():
            unit = unit_of(name)
            if not isinstance(v, int | float) or isinstance(v, bool) or not unit or name in NOT_SHOWN:
                continue
            if v == 0 and unit.startswith("USD"):
                continue
            said = label(name) or (label(section) if inner is value else "") or BARE.get(unit, unit)
            text, unit = seconds(v).split() if unit == "s" else (number(v, unit), unit)
            found.append(Figure(said, text, unit))
    return found[:MOST]
