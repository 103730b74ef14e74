"""Purchases of a plan, from its JSON: objects (or columns) that name a ``machine`` and a ``market`` or ``term``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Key = tuple[str, str, str]  # machine, region, market


def purchases(plan: Any) -> dict[Key, float]:
    """Number bought by (machine, region, market), summed over periods, pools and hours; {} if the plan names none.

    A number is the product of the ``count`` of the object and of the objects around it that repeat it.
    """
    found: dict[Key, float] = {}
    for key, count in _lines(plan, 1.0):
        found[key] = found.get(key, 0.0) + count
    return {k: v for k, v in found.items() if v > 0}


def _lines(node: Any, times: float) -> Iterator[tuple[Key, float]]:
    if isinstance(node, Mapping):
        machine, market = node.get("machine"), node.get("market", node.get("term"))
        count = node.get("count", node.get("machines"))
        if isinstance(machine, str) and isinstance(market, str):
            number = float(count) if isinstance(count, int | float) else 1.0
            yield (machine, str(node.get("region") or ""), market), number * times
            return
        if isinstance(machine, list) and isinstance(market, list) and isinstance(node.get("machines"), list):
            regions = node.get("region") or [""] * len(machine)
            for m, r, k, number in zip(machine, regions, market, node["machines"], strict=True):
                yield (m, r, k), float(number) * times
            return
        inner = times * (float(count) if isinstance(count, int | float) else 1.0)
        for value in node.values():
            yield from _lines(value, inner)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _lines(value, times)


def same_purchases(a: Mapping[Key, float], b: Mapping[Key, float]) -> bool:
    """Whether two plans buy the same numbers of the same machines in the same places and markets."""
    return a.keys() == b.keys() and all(abs(a[k] - b[k]) <= 1e-6 * max(a[k], 1.0) for k in a)
