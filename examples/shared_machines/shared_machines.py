"""Reserved capacity and fleet planning in one model: batch work runs on machines that chat has reserved and left idle.

    python examples/shared_machines/shared_machines.py

Two instance files that know nothing of each other, two `attach` calls, one family of constraints between them. Three
plans on the same data: each problem alone; one after the other (reserve for chat, then lend what is idle); both at
once. The joint model contains the other two as special cases, so its proved optimum is never more expensive.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyomo.environ as pyo

from formulations import fleet, reserved_capacity
from formulations.fleet.points import FleetTables
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import HOURS_PER_MONTH
from optmodels import load, tables
from optmodels.solver import solve_model

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lane:
    """A machine type in a region that both sides know: sink j of the one, resource g of the other."""

    sink: int
    resource: int
    usd_per_hour: float  # what the fleet pays for a machine that is not borrowed


def lanes(reserved: ReservedTables, batch: FleetTables) -> list[Lane]:
    """Machine types by region that appear on both sides."""
    problem = reserved.case.problem
    where = {
        (problem.machines[int(k)].machine, problem.regions[int(r)].region): j
        for j, (k, r) in enumerate(zip(reserved.sink_machine, reserved.sink_region, strict=True))
    }
    prices = {(m.machine, m.region): m.prices.on_demand for m in batch.case.machines if m.prices.on_demand is not None}
    return [
        Lane(where[machine, region], g, prices[machine, region])
        for g, (machine, region, market) in enumerate(batch.resources)
        if market == "on_demand" and (machine, region) in where and (machine, region) in prices
    ]


def lend(m: Any, shared: list[Lane], reserved: ReservedTables, batch: FleetTables) -> None:
    """Couple the blocks ``m.chat`` and ``m.batch``: variables ``m.lent`` and the families below.

    lent_tl ≥ 0 machines of lane l that the fleet borrows throughout period t.
    """
    hours = [q.hours for q in batch.case.periods]
    starts = [sum(hours[:t]) for t in range(len(hours))]
    rows = {t: [h for h in range(len(reserved.demand)) if starts[t] <= int(reserved.hour[h]) < starts[t] + hours[t]]
            for t in m.batch.T}  # fmt: skip
    use = batch.use.tocsc()
    m.lent = pyo.Var(m.batch.T, range(len(shared)), domain=pyo.NonNegativeReals)

    def only_idle(_: Any, t: int, k: int, h: int) -> Any:
        """lent_tl ≤ what `capacity` of chat leaves of the machines in j, in every hour of the period."""
        busy_less_there = m.chat.capacity[shared[k].sink, h].body
        return busy_less_there + m.lent[t, k] <= 0

    def only_used(_: Any, t: int, k: int) -> Any:
        """lent_tl ≤ machines of the lane that the fleet runs in the period."""
        column = use[:, [shared[k].resource]]
        runs = sum(float(c) * m.batch.n[t, int(p)] for p, c in zip(column.indices, column.data, strict=True))
        return m.lent[t, k] <= runs

    m.only_idle = pyo.Constraint([(t, k, h) for t in rows for k in range(len(shared)) for h in rows[t]], rule=only_idle)
    m.only_used = pyo.Constraint(m.batch.T, range(len(shared)), rule=only_used)
    m.saved = pyo.Expression(expr=HOURS_PER_MONTH / sum(hours) * sum(
        hours[t] * shared[k].usd_per_hour * m.lent[t, k] for t in m.batch.T for k in range(len(shared))
    ))  # fmt: skip


def model(chat: Any, batch: Any) -> Any:
    """Both problems side by side, lending allowed; the objective is the bill of both in USD/month."""
    chat_tables, batch_tables = tables(chat), tables(batch)
    m = pyo.ConcreteModel(name="shared machines")
    m.chat, m.batch = pyo.Block(), pyo.Block()
    reserved_capacity.attach(m.chat, chat, chat_tables)
    fleet.attach(m.batch, batch, batch_tables)
    lend(m, lanes(chat_tables, batch_tables), chat_tables, batch_tables)
    m.chat_bill = pyo.Expression(expr=m.chat.reserved_usd_per_month + m.chat.hourly_usd_per_month)
    m.batch_bill = pyo.Expression(expr=HOURS_PER_MONTH * m.batch.usd_per_hour - m.saved)
    m.bill = pyo.Objective(expr=m.chat_bill + m.batch_bill)
    return m


def optimum(m: Any) -> tuple[float, float]:
    """Proved optimum and bound, USD/month."""
    report, _, _ = solve_model(m)
    if report.status != "optimal" or report.objective is None or report.bound is None:
        raise RuntimeError(f"no proof: {report.status}, {report.message}")
    return report.objective, report.bound


def compare() -> dict[str, float]:
    """USD/month: ``apart``, ``sequence``, ``together``, and the proved ``bound`` of the last."""
    chat, batch = load(HERE / "interactive.yaml"), load(HERE / "batch.yaml")
    m = model(chat, batch)
    m.lent.fix(0.0)
    apart, _ = optimum(m)
    reserved = {c: m.chat.k[c].value for c in m.chat.k}  # what chat alone reserves
    chat_alone = pyo.value(m.chat_bill)
    m.lent.unfix()
    for c, count in reserved.items():
        m.chat.k[c].fix(round(count))
    m.chat_pays = pyo.Constraint(expr=m.chat_bill <= chat_alone * (1 + 1e-9))  # chat comes first
    sequence, _ = optimum(m)
    m.chat_pays.deactivate()
    m.chat.k.unfix()
    together, bound = optimum(m)
    return {"apart": apart, "sequence": sequence, "together": together, "bound": bound}


if __name__ == "__main__":
    bills = compare()
    for name, words in (("apart", "each alone"), ("sequence", "chat first, batch borrows what is idle"),
                        ("together", "one model, proved optimal")):  # fmt: skip
        print(f"{bills[name]:12,.2f} USD/month  {bills[name] / bills['apart'] - 1:+7.1%}  {words}")
