"""The plan of a cost-efficiency problem made from its tables; what killed the plans that there are not."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from formulations.cost_efficiency.plan import CostEfficiencyValue, CostPlan, LatencyPrediction
from formulations.cost_efficiency.points import CandidateEngines, CostTables, candidate_order
from optmodels.batch.points import NONE, batch_split, in_memory, market_name
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.latency.strategies import AO_FAMILIES, FAMILIES, FAMILY_TITLES, Family
from optmodels.plans.lines import LimitLine, MachineLine, engine_line
from optmodels.units import GIB

BINDING = 1e-6  # relative slack below which a limit binds
ROUNDING = 1e-9  # relative, of requests in flight
OF_BOUNDS = (
    " (bounds assume Poisson arrivals, and a few users may see far shorter latencies: relax the SLO, or limit the mean,"
    " then replay the plan)"
)


def make_plan(tables: CostTables, candidate: int, alpha: float) -> CostPlan:
    """The plan of one candidate at one α, with every prediction evaluated on its true curve."""
    case, s, c = tables.case, tables.candidates, tables.configurations
    p, limits = case.problem, case.limits
    row = int(s.configuration[candidate])
    curve = tables.curves.take(np.array([row]))
    at = np.array([alpha])
    ttft, tbt, e2e = (float(v[0]) for v in curve.metrics(at))
    family, count = FAMILIES[c.family[row]], int(c.count[row])
    cost = float(s.usd_per_hour[candidate])
    tps = case.tokens / e2e
    point = tables.measured[row] if tables.measured else None
    lines = []
    sides: tuple[tuple[Literal["main", "ao"], int, int, int], ...] = (
        ("main", int(c.main[row]), int(s.main_market[candidate]), 1 if family == "multi_pass" else count),
        ("ao", int(c.ao[row]), int(s.ao_market[candidate]), count if family == "ao_parallel" else 1),
    )
    for role, machine, market, number in sides:
        if machine == NONE:
            continue
        m, bought = case.machines[machine], market_name(market)
        assert bought is not None
        price = m.prices.get(bought)
        assert price is not None
        lines.append(MachineLine(
            role=role, machine=m.machine, region=m.region, gpu=m.gpu, gpus_per_machine=m.gpu_count, market=bought,
            count=number, usd_per_hour_each=price,
        ))  # fmt: skip
    parts = count * int(c.dp[row])
    known = point is None
    offloaded = family in AO_FAMILIES or family.startswith("kvo")
    kv, fixed = float(curve.kv[0]), float(curve.vram_fixed[0])
    requirements: list[LimitLine] = []

    def require(name: str, value: float, limit: float, unit: str, sense: Literal["<=", ">="] = "<=") -> None:
        finite = bool(np.isfinite(limit))
        tight = finite and abs(value - limit) <= BINDING * max(abs(limit), 1e-12)
        requirements.append(LimitLine(
            name=name, value=value, limit=limit if finite else None, unit=unit, sense=sense, binding=tight
        ))  # fmt: skip

    if p.slo.kind == "real_time":
        require("TTFT", ttft, limits.ttft_s, "s")
        require("TPOT", tbt, limits.tpot_s, "s")
        if p.slo.deadline_s is not None:
            require("E2E", _whole_s(tables.engines, row, e2e), seconds_and_quantile(p.slo.deadline_s)[0], "s")
    if p.slo.itl is not None and tables.engines is not None:
        require("ITL", float(tables.engines.at.itl_s[tables.engines.row[row]]), seconds_and_quantile(p.slo.itl)[0], "s")
    require("TPS", tps, p.slo.tps, "tokens/s", ">=")
    require("budget", cost, np.inf if p.budget_usd_per_hour is None else p.budget_usd_per_hour, "USD/h")
    engine = None
    if tables.engines is not None:
        found, level = tables.engines.at, int(tables.engines.row[row])
        part, rate = int(c.batch[row]), float(found.requests_per_s[level])
        require("requests in flight per replica", part, math.floor(float(found.running[level]) * (1 + ROUNDING)), "")
        of = list(tables.engines.costs.values())[found.engine[level]]
        engine = engine_line(found, level, of, p.engine, found.rate_of(level, part) / rate)
    elif known:
        require("VRAM per replica", (fixed + (1 - alpha) * kv) / GIB, float(curve.vram[0]) / GIB, "GiB")
        if offloaded:
            where = {"kvo_ram": "host RAM", "kvo_disk": "disk volume"}.get(family, "AO machine's VRAM")
            require(f"{where} per replica", alpha * float(curve.kv_host[0]) / GIB, float(curve.host[0]) / GIB, "GiB")
    theta = min(tps, p.slo.tps)
    return CostPlan(
        name=p.name, family=family, machines=lines, tensor_parallel=int(c.tp[row]),
        attention_ranks=int(c.ranks[row]) if c.ranks[row] > 1 else None, replicas_per_machine=int(c.dp[row]),
        passes=count if family == "multi_pass" else 1, alpha=alpha, batch_split=batch_split(p.workload.batch, parts),
        prediction=LatencyPrediction(
            ttft_s=ttft if known or point.ttft_s is not None else None,  # type: ignore[union-attr]
            tpot_s=tbt if known or point.tpot_s is not None else None,  # type: ignore[union-attr]
            e2e_s=e2e, tps=tps, ao_load=float(curve.load(at)[0]) if family == "ao_shared" and known else None,
        ),
        usd_per_hour=cost,
        usd_per_million_tokens=float(tables.objective(np.array(e2e), np.array(cost))),
        ce_capped=_ce(theta, cost), ce_uncapped=_ce(tps, cost),
        limits=requirements, uses_spot=any(line.market == "spot" for line in lines),
        engine=engine, measured=point.name if point is not None else None,
    )  # fmt: skip


def _whole_s(engines: CandidateEngines | None, row: int, e2e_s: float) -> float:
    """E2E at the quantile of the deadline."""
    return e2e_s if engines is None else float(engines.at.deadline_s[engines.row[row]])


def _ce(tps: float, usd_per_hour: float) -> CostEfficiencyValue:
    return CostEfficiencyValue(tokens_per_usd=tps * 3600.0 / usd_per_hour, tps_per_usd_per_hour=tps / usd_per_hour)


def best_row(tables: CostTables, rows: Any = None) -> int | None:
    """The best feasible candidate by exhaustive evaluation, within a mask if given."""
    o, s = tables.optimum, tables.candidates
    ok = o.feasible[s.configuration] & (s.usd_per_hour <= tables.limits.usd_per_hour)
    if rows is not None:
        ok &= rows
    index = np.flatnonzero(ok)
    if not len(index):
        return None
    return int(index[next(candidate_order(tables.restricted(index), o.e2e_s))])


def nearest_miss(tables: CostTables) -> str:
    """The candidate that misses its limits by the least factor, in words; without candidates what machines lack."""
    if not len(tables.candidates):
        lacking = unmodelled(tables) or ["every machine: no price in a market allowed"]
        return f"no candidate in the pool: {by_reason(lacking)}"
    best, text = np.inf, ""
    for family in FAMILIES:
        line = family_line(tables, family, lambda _: None)
        over = line["killed_by"]
        if not over:
            continue
        worst = max(max(k["value"], k["limit"]) / max(min(k["value"], k["limit"]), 1e-12) for k in over)
        if worst < best:
            best, late = worst, {k["name"] for k in over} & {"TTFT", "TPOT", "E2E"}
            misses = ", ".join(
                f"{k['name']} {k['value']:,.4g} {k['unit']} against {k['limit']:,.4g} {k['unit']}".replace("  ", " ")
                for k in over
            )
            text = f"the nearest is {FAMILY_TITLES[family]} on {' + '.join(line['nearest']['machines'])}: {misses}"
            text += OF_BOUNDS if late and tables.engines is not None else ""
    return text


def unmodelled(tables: CostTables) -> list[str]:
    """Machines of the pool that no configuration uses, with the figure they lack or the role they cannot fill."""
    c = tables.configurations
    used = set(c.main.tolist()) | set(c.ao.tolist())
    bounds = OF_BOUNDS if any(limit is not None for limit in tables.case.problem.slo.latencies) else ""
    lines = []
    for i, m in enumerate(tables.machines):
        if i in used:
            continue
        gpu, engines = tables.case.gpus.get(m.gpu or ""), tables.engines
        if gpu is not None and gpu.fp16_flops is None:
            reason = "no published FLOP/s for its GPU"
        elif engines is None:
            reason = "in no configuration"
        elif any((name, vram) == (m.gpu, m.vram_gib / m.gpu_count) for name, _, vram, _ in engines.costs):
            reason = "no number of machines holds the requests in flight, or keeps the deadline" + bounds
        else:
            reason = "no memory for a KV cache beside the weights, or latencies unknown"
        lines.append(f"{m.machine}: {reason}")
    return lines


def by_reason(lines: list[str]) -> str:
    """`unmodelled` lines, machines of one reason together."""
    machines: dict[str, list[str]] = {}
    for machine, _, reason in (line.rpartition(": ") for line in lines):
        machines.setdefault(reason, []).append(machine)
    return "; ".join(f"{', '.join(of[:4])}{' …' * (len(of) > 4)}: {reason}" for reason, of in machines.items())


def family_line(tables: CostTables, family: Family, plan_of: Any) -> dict[str, Any]:
    """The best feasible candidate of one family, or the constraint that killed its nearest one."""
    o, s, c, limits = tables.optimum, tables.candidates, tables.configurations, tables.limits
    line: dict[str, Any] = {"family": family, "title": FAMILY_TITLES[family], "plan": None, "killed_by": []}
    mine = c.family[s.configuration] == FAMILIES.index(family)
    line["candidates"] = int(mine.sum())
    if not mine.any():
        allowed = family in tables.case.problem.strategies.families
        line["reason"] = "no candidate in the pool" if allowed else "not among strategies.families"
        if allowed and tables.engines is not None and family != "high_end":
            line["reason"] = "for static batches: engines that batch continuously do not offer it"
        return line
    row = best_row(tables, mine)
    if row is not None:
        line["plan"] = plan_of(row)
        line["reason"] = "feasible"
        return line
    rows = np.flatnonzero(mine)
    of, cost = s.configuration[rows], s.usd_per_hour[rows]
    curves = tables.curves
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        saturated = in_memory(curves)[of] & ~np.isfinite(o.tpot_s[of])
        every = np.ones(len(rows))
        load = np.where(saturated, curves.load(curves.alpha_lo)[of], 0.0)
        ratios = {
            "load of the shared AO machine": (load, every, ""),
            "TTFT": (o.ttft_s[of], limits.ttft_s * every, "s"),
            "TPOT": (o.tpot_s[of], limits.tpot_s * every, "s"),
            "E2E": (o.e2e_s[of], tables.case.deadline_s * every, "s"),
            "TPS": (tables.case.tokens / o.e2e_s[of], tables.case.problem.slo.tps * every, "tokens/s"),
            "budget": (cost, limits.usd_per_hour * every, "USD/h"),
            "weights in VRAM": (curves.vram_fixed[of] / GIB, curves.vram[of] / GIB, "GiB"),
            "KV cache in VRAM + offload": (
                (curves.vram_fixed + curves.kv)[of] / GIB, (curves.vram + curves.host)[of] / GIB, "GiB",
            ),
        }  # fmt: skip
        excess = np.stack([lim / v if name == "TPS" else v / lim for name, (v, lim, _) in ratios.items()])
        # The load makes these infinite, and is named in their place.
        excess[:, saturated] *= (~np.isin(list(ratios), ("TPOT", "E2E", "TPS")))[:, None]
        excess = np.nan_to_num(excess, nan=0.0, posinf=1e9)
    if tables.measured:
        excess[-2:] = 0.0
    # A configuration that fits no memory has no latencies; rank it after all that run but miss an SLO.
    rank = excess.max(axis=0) + np.where(in_memory(curves)[of], 0.0, 1e6)
    nearest = int(rank.argmin())
    over = [k for k, name in enumerate(ratios) if excess[k, nearest] > 1 + 1e-9]
    names = list(ratios)
    line["killed_by"] = [
        {
            "name": names[k], "value": float(ratios[names[k]][0][nearest]),
            "limit": float(ratios[names[k]][1][nearest]), "unit": ratios[names[k]][2],
        }
        for k in over
    ]  # fmt: skip
    row = int(rows[nearest])
    config = int(of[nearest])
    machines = [tables.machines[c.main[config]].machine]
    if c.ao[config] != NONE:
        machines.append(tables.machines[c.ao[config]].machine)
    line["nearest"] = {"machines": machines, "count": int(c.count[config]), "usd_per_hour": float(s.usd_per_hour[row])}
    if not over and not in_memory(curves)[config]:
        line["killed_by"] = [{"name": "alpha range", "value": float(curves.alpha_lo[config]),
                              "limit": float(curves.alpha_hi[config]), "unit": ""}]  # fmt: skip
    line["reason"] = "infeasible"
    return line
