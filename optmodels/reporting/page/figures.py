"""Key figures of any plan: the numbers at its top, named with their units as everywhere in this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optmodels.reporting.text import CALLED

# Ending of a name → unit; the first that fits.
UNITS: tuple[tuple[str, str], ...] = (
    ("tps_per_usd_per_hour", "tokens/s per USD/h"), ("usd_per_million_tokens", "USD per million tokens"),
    ("usd_per_hour", "USD/h"), ("usd_per_month", "USD/month"), ("tokens_per_usd", "tokens/USD"), ("tps", "tokens/s"),
    ("requests_per_second", "requests/s"), ("requests_per_s", "requests/s"), ("per_s", "/s"), ("usd", "USD"),
    ("hours", "h"), ("_ms", "ms"), ("_s", "s"), ("share", "%"), ("probability", "%"), ("bytes", "bytes"),
    ("gib", "GiB"),
)  # fmt: skip
# What is said of a number whose name is its unit alone.
BARE = {
    "USD/h": "Cost", "USD/month": "Cost", "USD": "Cost", "USD per million tokens": "Cost of tokens",
    "tokens/USD": "Cost efficiency", "tokens/s per USD/h": "Cost efficiency", "tokens/s": "Throughput",
}  # fmt: skip
NOT_SHOWN = {"bin_s", "first_priority_served_per_s"}  # how a plan is counted, not what it is worth
KEPT = {"share": "share", "probability": "probability", "hours": "hours", "tps": "throughput"}  # of an ending
ACRONYMS = {"ttft": "TTFT", "tbt": "TBT", "e2e": "E2E", "ce": "CE", "ao": "AO", "slo": "SLO", "usd": "USD", "kv": "KV"}
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


def unit_of(name: str) -> str:
    """The unit that a name carries, empty for none."""
    return next((unit for ending, unit in UNITS if name.endswith(ending)), "")


def _label(name: str) -> str:
    """``served_share`` as ``Served share``, ``ttft_s`` as ``TTFT``: the name without its unit."""
    for ending, _ in UNITS:
        if name.endswith(ending):
            name = f"{name[: -len(ending)]}_{KEPT.get(ending, '')}"
            break
    name = CALLED.get(name.strip("_"), name)
    text = " ".join(ACRONYMS.get(w, w) for w in name.split("_") if w)
    return text[:1].upper() + text[1:]


def key_figures(plan: Mapping[str, Any]) -> list[Figure]:
    """Numbers at the top of a plan, one level of sections included."""
    found = []
    for section, value in plan.items():
        inner = value if isinstance(value, Mapping) else {section: value}
        for name, v in inner.items():
            unit = unit_of(name)
            if isinstance(v, int | float) and not isinstance(v, bool) and unit and name not in NOT_SHOWN:
                label = _label(name) or (_label(section) if inner is value else "")
                found.append(Figure(label or BARE.get(unit, unit), number(v, unit), unit))
    return found[:MOST]
