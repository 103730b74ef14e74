"""Key figures of any plan: the numbers at its top, named with their units as everywhere in this project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Ending of a name → unit; the first that fits.
UNITS: tuple[tuple[str, str], ...] = (
    ("usd_per_million_tokens", "USD per million tokens"), ("usd_per_hour", "USD/h"), ("usd_per_month", "USD/month"),
    ("tokens_per_usd", "tokens/USD"), ("tps_per_usd_per_hour", "tokens/s per USD/h"), ("tps", "tokens/s"),
    ("requests_per_second", "requests/s"), ("requests_per_s", "requests/s"), ("per_s", "/s"), ("usd", "USD"),
    ("hours", "h"), ("_ms", "ms"), ("_s", "s"), ("share", "%"), ("probability", "%"), ("bytes", "bytes"), ("gib", "GiB"),
)  # fmt: skip
ACRONYMS = {"ttft": "TTFT", "tbt": "TBT", "e2e": "E2E", "tps": "throughput", "ce": "CE", "ao": "AO", "slo": "SLO",
            "usd": "USD", "kv": "KV"}  # fmt: skip
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


def _label(path: tuple[str, ...]) -> str:
    words: list[str] = []
    for part in path:
        for ending, unit in UNITS:
            if part.endswith(ending):
                keep = "" if "usd" in ending.lower() or ending.startswith("_") or "per" in unit else ending
                part = part[: -len(ending)] + ("_" + keep if keep else "")
                break
        words += [w for w in part.split("_") if w]
    text = " ".join(ACRONYMS.get(w, w) for w in dict.fromkeys(words))
    return text[:1].upper() + text[1:]


def key_figures(plan: Mapping[str, Any]) -> list[Figure]:
    """Numbers at the top of a plan, one level of sections included."""

    def numbers() -> Iterator[tuple[tuple[str, ...], float]]:
        for name, value in plan.items():
            inner = value.items() if isinstance(value, Mapping) else [("", value)]
            for key, v in inner:
                if isinstance(v, int | float) and not isinstance(v, bool) and unit_of(key or name):
                    yield ((name, key) if key else (name,)), v

    found = []
    for path, value in numbers():
        unit = unit_of(path[-1])
        found.append(Figure(_label(path) or "Cost", number(value, unit), unit))
    return found[:MOST]
