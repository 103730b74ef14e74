r"""Prefill and decode on separate machines (as DistServe and Splitwise do), sized by a MILP.

Sets        g ∈ G machine types of the pool, each as one instance of the model over all its GPUs
Parameters  r requests/s; a_g prefills/s of an instance at most `max_load` busy, 0 where TTFT is missed;
            b_g requests/s that an instance decodes at the largest batch that keeps TBT and memory; c_g USD/h
Variables   p_g, d_g ∈ ℤ≥0 instances for prefill, for decode
Objective   min Σ_g c_g (p_g + d_g)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyomo.environ as pyo
from pydantic import Field

from optmodels import catalog
from optmodels.catalog.types import Architecture, Gpu, Machine
from optmodels.errors import InputError, Mistake
from optmodels.formulation import Formulation, Options
from optmodels.latency.strategies import BatchModel, Hardware
from optmodels.latency.work import layer_work
from optmodels.plans.findings import Findings
from optmodels.plans.outcome import CheckReport, Document, Outcome
from optmodels.problem import Problem
from optmodels.solver import Settings, solve_model
from optmodels.units import GIB, PositiveFraction, PositiveInt, Seconds

BATCHES = np.unique(np.round(np.geomspace(1, 512, 40)))


class PrefillDecode(Problem):
    """Instance file of this formulation."""

    formulation: Literal["prefill_decode"]
    model: str
    requests_per_s: float = Field(gt=0, le=1e6)
    input_tokens: PositiveInt
    output_tokens: PositiveInt = Field(ge=2)
    ttft_s: Seconds
    tpot_s: Seconds
    pool: str = "aws"
    machines: tuple[str, ...]
    max_load: PositiveFraction = 0.7

    def resolve(self) -> tuple[Architecture, tuple[tuple[Machine, Gpu], ...]]:
        """The architecture and the machines with their GPU."""
        if self.model not in catalog.llms():
            raise InputError(Mistake(None, "model", self.model, f"one of {', '.join(catalog.llms())}"))
        if self.pool not in catalog.pools():
            raise InputError(Mistake(None, "pool", self.pool, f"one of {', '.join(catalog.pools())}"))
        offered = {m.machine: m for m in catalog.machines(self.pool) if m.gpu and m.prices.on_demand is not None}
        wrong = [Mistake(None, f"machines[{i}]", name, f"a GPU machine of {self.pool} with an on-demand price")
                 for i, name in enumerate(self.machines) if name not in offered]  # fmt: skip
        if wrong:
            raise InputError(wrong)
        return catalog.llms()[self.model], tuple(
            (offered[name], catalog.gpus()[str(offered[name].gpu)]) for name in self.machines
        )

    def inline(self) -> PrefillDecode:
        """The catalogue is dated and part of the package: nothing to write out."""
        return self


@dataclass(frozen=True)
class Tables:
    """Per machine type, (G,): prefills/s and decodes/s of an instance, USD/h."""

    machines: tuple[str, ...]
    prefills_per_s: Any
    decodes_per_s: Any
    usd_per_hour: Any


def build_tables(problem: PrefillDecode) -> Tables:
    """Rates from the roofline of the catalogue."""
    architecture, machines = problem.resolve()
    model = BatchModel(
        layer_work(architecture, "fp16", "fp16"), problem.input_tokens, problem.output_tokens, "roofline", 0.9
    )
    prefill, decode = [], []
    for machine, gpu in machines:
        tp, n = machine.gpu_count, len(BATCHES)
        hardware = Hardware(
            tp=np.full(n, float(tp)), flops=np.full(n, tp * (gpu.fp16_flops or 0.0)),
            mem_bytes_per_s=np.full(n, tp * gpu.mem_bytes_per_s), vram_bytes=np.full(n, machine.vram_gib * GIB),
            pcie_bytes_per_s=np.full(n, tp * (gpu.pcie_bytes_per_s or np.nan)), disk_bytes_per_s=np.full(n, np.nan),
            net_bytes_per_s=np.full(n, np.nan), link_bytes_per_s=np.full(n, gpu.link_bytes_per_s),
            ram_bytes=np.full(n, np.nan), disk_bytes=np.full(n, np.nan),
        )  # fmt: skip
        curves = model.resident(hardware, BATCHES, np.ones(n))
        alone_s = float(curves.ttft(np.zeros(n))[0])
        tbt = curves.tbt(np.zeros(n))
        fits = curves.vram_fixed + curves.kv <= curves.vram
        # M/D/1: the mean wait of a prefill is ρ/(2(1 − ρ)) prefills
        wait = problem.max_load / (2 * (1 - problem.max_load)) if problem.max_load < 1 else np.inf
        prefill.append(problem.max_load / alone_s if fits[0] and alone_s * (1 + wait) <= problem.ttft_s else 0.0)
        rate = BATCHES / ((problem.output_tokens - 1) * tbt)
        decode.append(float(np.where(fits & (tbt <= problem.tpot_s), rate, 0.0).max()))
    return Tables(
        problem.machines, np.array(prefill), np.array(decode), np.array([m.prices.on_demand for m, _ in machines])
    )


def prefill_capacity(m: Any) -> Any:
    """Σ_g a_g·p_g ≥ r."""
    return sum(float(m.data.prefills_per_s[g]) * m.p[g] for g in m.G) >= m.rate


def decode_capacity(m: Any) -> Any:
    """Σ_g b_g·d_g ≥ r."""
    return sum(float(m.data.decodes_per_s[g]) * m.d[g] for g in m.G) >= m.rate


def attach(block: Any, problem: PrefillDecode, tables: Tables) -> None:
    """Variables and constraints on a Pyomo block; no objective. The block gets ``p``, ``d`` and ``usd_per_hour``."""
    block.data, block.G, block.rate = tables, range(len(tables.machines)), problem.requests_per_s

    def useful(rates: Any) -> Any:  # an instance that serves nothing is never run; no more than serve all of r
        return lambda _, g: (0, int(np.ceil(problem.requests_per_s / rates[g])) if rates[g] > 0 else 0)

    block.p = pyo.Var(block.G, domain=pyo.NonNegativeIntegers, bounds=useful(tables.prefills_per_s))
    block.d = pyo.Var(block.G, domain=pyo.NonNegativeIntegers, bounds=useful(tables.decodes_per_s))
    block.prefill_capacity = pyo.Constraint(rule=prefill_capacity)
    block.decode_capacity = pyo.Constraint(rule=decode_capacity)
    block.usd_per_hour = pyo.Expression(
        expr=sum(float(tables.usd_per_hour[g]) * (block.p[g] + block.d[g]) for g in block.G)
    )


def build(problem: PrefillDecode, tables: Tables) -> Any:
    """The ConcreteModel."""
    model = pyo.ConcreteModel(name=problem.name or "prefill_decode")
    attach(model, problem, tables)
    model.cost = pyo.Objective(expr=model.usd_per_hour)
    return model


class Line(Document):
    """Instances of one machine type."""

    machine: str
    prefill: int = Field(ge=0)
    decode: int = Field(ge=0)
    usd_per_hour_each: float


class Plan(Document):
    """What to run."""

    lines: list[Line]
    usd_per_hour: float

    def headline(self) -> str:
        """One line for tables."""
        return " + ".join(f"{x.prefill}p/{x.decode}d {x.machine}" for x in self.lines)


def _plan(tables: Tables, prefill: Any, decode: Any) -> Plan:
    lines = [
        Line(machine=name, prefill=int(p), decode=int(d), usd_per_hour_each=float(c))
        for name, p, d, c in zip(tables.machines, prefill, decode, tables.usd_per_hour, strict=True) if p or d
    ]  # fmt: skip
    return Plan(lines=lines, usd_per_hour=sum((x.prefill + x.decode) * x.usd_per_hour_each for x in lines))


def exact(problem: PrefillDecode, tables: Tables, options: Options) -> Outcome[Plan]:
    """The MILP by HiGHS."""
    clock = time.perf_counter()
    if not (tables.prefills_per_s.any() and tables.decodes_per_s.any()):
        what = "prefill within TTFT" if not tables.prefills_per_s.any() else "decode within TBT and memory"
        return Outcome("infeasible", None, log={"reason": f"no machine can {what}"})
    model = build(problem, tables)
    built = time.perf_counter() - clock
    found, seconds, size = solve_model(
        model, Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    )
    plan = None
    if found.x is not None:
        plan = _plan(tables, [round(model.p[g].value) for g in model.G], [round(model.d[g].value) for g in model.G])
    return Outcome(found.status, plan, found.bound, found.limit, {"build": built} | seconds, size, {}, found.events)


def one_type(problem: PrefillDecode, tables: Tables, options: Options) -> Outcome[Plan]:
    """The cheapest fleet of a single machine type, which is what most guides recommend."""
    r = problem.requests_per_s
    best: Plan | None = None
    for g in np.flatnonzero((tables.prefills_per_s > 0) & (tables.decodes_per_s > 0)):
        p, d = np.zeros(len(tables.machines)), np.zeros(len(tables.machines))
        p[g], d[g] = np.ceil(r / tables.prefills_per_s[g]), np.ceil(r / tables.decodes_per_s[g])
        plan = _plan(tables, p, d)
        if best is None or plan.usd_per_hour < best.usd_per_hour:
            best = plan
    return Outcome("feasible" if best else "no_solution_found", best)


def check(problem: PrefillDecode, data: Mapping[str, Any]) -> CheckReport:
    """The plan serves the rate with the instance's own machines, and costs what it says."""
    findings = Findings()
    plan = findings.read(Plan, data, "a prefill_decode plan")
    if plan is None:
        return findings.report()
    tables = build_tables(problem)
    rows = {name: g for g, name in enumerate(tables.machines)}
    prefill = decode = cost = 0.0
    for line in plan.lines:
        findings.require("machine is of the pool", line.machine in rows, line.machine, "machines")
        if line.machine in rows:
            g = rows[line.machine]
            prefill += line.prefill * tables.prefills_per_s[g]
            decode += line.decode * tables.decodes_per_s[g]
            cost += (line.prefill + line.decode) * tables.usd_per_hour[g]
    findings.at_most("requests prefilled", problem.requests_per_s, prefill, "requests/s")
    findings.at_most("requests decoded", problem.requests_per_s, decode, "requests/s")
    findings.equal("cost", plan.usd_per_hour, cost, "USD/h")
    return findings.report()


def report(tables: Tables, plan: Plan | None) -> dict[str, Any]:
    """Rates of one instance of every machine type."""
    return {"rates": [
        {"machine": n, "prefills_per_s": float(a), "decodes_per_s": float(b), "usd_per_hour": float(c)}
        for n, a, b, c in zip(
            tables.machines, tables.prefills_per_s, tables.decodes_per_s, tables.usd_per_hour, strict=True
        )
    ]}  # fmt: skip


def summary(result: Mapping[str, Any]) -> list[Any]:
    """Lines for the terminal."""
    plan = result.get("plan")
    if plan is None:
        return []
    return [f"{x['machine']}: {x['prefill']} for prefill, {x['decode']} for decode" for x in plan["lines"]] + [
        f"{plan['usd_per_hour']:.4f} USD/h"
    ]


def frames(tables: Tables, plan: Plan | None) -> dict[str, Any]:
    """Rates as a data frame."""
    import pandas as pd

    return {"rates": pd.DataFrame(report(tables, plan)["rates"])}


FORMULATION = Formulation(
    name="prefill_decode",
    title="Prefill and decode on separate machines (example of a third-party package)",
    problem=PrefillDecode, sense="min", unit="USD/h",
    tables=build_tables, build=build, attach=attach,
    methods={"exact": exact, "one_type": one_type},
    objective=lambda plan: plan.usd_per_hour,
    check=check, report=report, summary=summary, frames=frames,
    method_titles={"exact": "MILP by HiGHS", "one_type": "the best single machine type"},
    template="""\
# Prefill and decode on separate machines.
formulation: prefill_decode
schema: 1
name: my-split
model: llama-3.1-8b
requests_per_s: 20
input_tokens: 2048
output_tokens: 256
ttft_s: 1.0
tpot_s: 0.05
pool: aws
machines: [g5.xlarge, g6.xlarge, g6e.xlarge, g6e.12xlarge, p5.48xlarge]
""",
)  # fmt: skip
