"""Counts → plan."""

from __future__ import annotations

import numpy as np

from .plan import Line, Plan
from .points import Array, Tables


def make_plan(tables: Tables, counts: Array) -> Plan:
    """The plan of (I, J) counts."""
    services, machines = tables.instance.services, tables.instance.machines
    lines = [
        Line(
            machine=machines[j].machine, market=machines[j].market, service=services[i].service,
            count=int(counts[i, j]), usd_per_hour_each=float(tables.usd_per_hour[j]),
            tokens_per_s=float(counts[i, j] * tables.rate[i, j]),
        )
        for i, j in zip(*np.nonzero(counts), strict=True)
    ]  # fmt: skip
    cost = sum(line.count * line.usd_per_hour_each for line in lines)
    return Plan(name=tables.instance.name, lines=lines, usd_per_hour=cost)
