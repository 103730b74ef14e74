"""How a result reads: in the terminal, beside the plan, as data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.text import plain

from .plan import Plan
from .points import Tables


def report(tables: Tables, plan: Plan | None) -> dict[str, Any]:
    """What a million tokens cost on a full machine, for every service and machine that can serve it."""
    rows = []
    for i, service in enumerate(tables.instance.services):
        for j, machine in enumerate(tables.instance.machines):
            if tables.rate[i, j]:
                usd = tables.usd_per_hour[j] / tables.rate[i, j] / 3600 * 1e6
                rows.append({"service": service.service, "machine": machine.machine, "market": machine.market,
                             "usd_per_million_tokens": float(usd)})  # fmt: skip
    return {"full_machines": rows}


def summary(result: Mapping[str, Any]) -> list[Any]:
    """Lines for the terminal."""
    plan = result["plan"]
    if plan is None:
        return []
    lines = [
        f"{x['service']}: {x['count']} × {x['machine']} ({x['market'].replace('_', '-')}) "
        f"at {x['usd_per_hour_each']:.4g} USD/h, {x['tokens_per_s']:,.6g} tokens/s"
        for x in plan["lines"]
    ]
    return [plain(line) for line in [*lines, f"cost: {plan['usd_per_hour']:.4f} USD/h"]]


def frames(tables: Tables, plan: Plan | None) -> dict[str, Any]:
    """The report's table, and the plan's lines."""
    import pandas as pd

    lines = [] if plan is None else [line.model_dump() for line in plan.lines]
    return {"full_machines": pd.DataFrame(report(tables, plan)["full_machines"]), "lines": pd.DataFrame(lines)}
