"""Charts of a cost-efficiency result: budget against CE, decision map, alternatives; all by exhaustive evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, build_tables, candidate_order
from optmodels.arrays import Index
from optmodels.batch.points import NONE, in_memory, optimise
from optmodels.batch.static import BatchLimits
from optmodels.latency.strategies import FAMILIES, FAMILY_TITLES
from optmodels.reporting.charts import Chart, chart, coloured, labels, legend_choice, rule, shortened, tables_of
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.colours import FAMILY_COLOURS, SERIES

NOTHING = "nothing feasible"
TIGHTNESS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5)  # factors on the latency an SLO allows
BUDGETS = 16
READINGS = {"capped": "CE capped at the SLO", "uncapped": "CE uncapped"}


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a solve document."""
    if not document.get("problem"):
        return []
    tables = tables_of(document, build_tables)
    plan = None if document.get("plan") is None else CostPlan.model_validate(document["plan"])
    found = [_frontier(tables, plan), _decision_map(tables, plan)]
    if plan is not None:
        found.append(_alternatives(tables, plan, document.get("report", {})))
    return [c for c in found if c is not None]


def _colour(families: list[str]) -> dict[str, Any]:
    """One colour a family, the same in every picture; only families that occur are in the legend."""
    known = [f for f in FAMILIES if FAMILY_TITLES[f] in families]
    domain, colours = [FAMILY_TITLES[f] for f in known], [FAMILY_COLOURS[f] for f in known]
    if NOTHING in families:
        domain, colours = [*domain, NOTHING], [*colours, FAMILY_COLOURS[None]]
    return coloured("family", domain, colours)


def _words(tables: CostTables, row: int) -> str:
    """The hardware of one candidate: ``2× g5.xlarge + g4dn.4xlarge``."""
    c, k = tables.configurations, int(tables.candidates.configuration[row])
    family, count = FAMILIES[c.family[k]], int(c.count[k])
    main = 1 if family == "multi_pass" else count
    text = f"{main}× {tables.machines[c.main[k]].machine}"
    if c.ao[k] != NONE:
        others = count if family == "ao_parallel" else 1
        text += f" + {others}× {tables.machines[c.ao[k]].machine}"
    split = f"TP={c.tp[k]}" + (f"×DP={c.ranks[k]}" if c.ranks[k] > 1 else "")
    return text + (f", {split}" if c.tp[k] * c.ranks[k] > 1 else "")


def _frontier(tables: CostTables, plan: CostPlan | None) -> Chart | None:
    """The best CE that every family reaches within a budget: each budget solved, not only the instance's."""
    o, s, c = tables.optimum, tables.candidates, tables.configurations
    of = s.configuration
    rows: list[dict[str, Any]] = []
    ends: list[float] = [] if plan is None else [plan.usd_per_hour]
    steps: dict[str, list[dict[str, Any]]] = {}
    for f, family in enumerate(FAMILIES):
        mine = np.flatnonzero(o.feasible[of] & (c.family[of] == f))
        if not len(mine):
            continue
        ce = 1e6 / tables.objective(o.e2e_s[of[mine]], s.usd_per_hour[mine])
        order = np.lexsort((-ce, s.usd_per_hour[mine]))
        mine, ce = mine[order], ce[order]
        better = ce > np.maximum.accumulate(np.concatenate([[-np.inf], ce[:-1]])) * (1 + 1e-9)
        steps[FAMILY_TITLES[family]] = [
            {"budget": float(s.usd_per_hour[i]), "ce": float(v), "family": FAMILY_TITLES[family],
             "plan": _words(tables, int(i))}
            for i, v in zip(mine[better], ce[better], strict=True)
        ]  # fmt: skip
        ends.append(float(s.usd_per_hour[mine[better][-1]]))
    if not steps:
        return None
    right = 1.15 * max(ends)
    short = labels({r["plan"] for mine in steps.values() for r in mine}, 60)
    chosen = None if plan is None else FAMILY_TITLES[plan.family]
    for _, found in sorted(steps.items(), key=lambda s: s[0] == chosen):  # drawn last: nothing hides it
        rows += [r | {"plan": short[r["plan"]]} for r in found]
        rows.append(rows[-1] | {"budget": right, "end": True})
    p = tables.case.problem
    encoding = {
        "x": amounts("budget", "budget, USD per hour", scale={"domainMin": 0, "domainMax": right, "nice": False}),
        "y": amounts("ce", "tokens per USD", "~s", scale={"zero": True}),
        "color": _colour(list(steps)),
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.12},
        "tooltip": tips("plan", "family", ("budget", "from USD/h", ".4~f"), ("ce", "tokens/USD", ",.0f")),
    }  # fmt: skip
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2.5}, "encoding": encoding,
         "params": [legend_choice("family")]},
        {"transform": [{"filter": "!datum.end"}], "mark": {"type": "point", "filled": True, "size": 45},
         "encoding": encoding},
    ]  # fmt: skip
    if plan is not None:
        value = (plan.ce_capped if p.objective == "capped" else plan.ce_uncapped).tokens_per_usd
        mark = {"budget": plan.usd_per_hour, "ce": value}
        layers.append({
            "data": {"values": [mark]}, "mark": {"type": "point", "shape": "diamond", "size": 220, "stroke": "#111",
                                                 "strokeWidth": 2.5, "filled": False},
            "encoding": {"x": amounts("budget"), "y": amounts("ce"), "tooltip": {"value": "this plan"}},
        })  # fmt: skip
    if np.isfinite(tables.limits.usd_per_hour) and tables.limits.usd_per_hour <= right:
        layers.append(rule(float(tables.limits.usd_per_hour), "the budget"))
    capped = p.objective == "capped"
    why = " Capped at the SLO, paying more is never more efficient: each family's first step is its best." * capped
    return chart(
        "Budget and cost efficiency",
        f"The best {READINGS[p.objective]} of each strategy family within every budget; the diamond is this plan, a"
        f" dashed line the instance's budget. Click the legend to single out families.{why}",
        rows, {"layer": layers}, height=320,
    )  # fmt: skip


def _decision_map(tables: CostTables, plan: CostPlan | None) -> Chart | None:
    """The winning family over budget and SLO tightness, every cell by exhaustive evaluation."""
    if tables.measured or not len(tables.candidates):
        return None  # measured points have one α: nothing moves but feasibility
    tables, nearly = _contenders(tables)
    s, c = tables.candidates, tables.configurations
    grids = []
    for factor in TIGHTNESS:
        limits = _scaled(tables.limits, factor)
        rows_here = nearly(limits)
        part = tables.restricted(rows_here).compact()
        o = optimise(part.curves, limits)
        order = np.array(list(candidate_order(part, o.e2e_s)), dtype=np.intp)
        order = order[o.feasible[part.candidates.configuration[order]]]
        cost = part.candidates.usd_per_hour[order]
        cheaper = cost < np.minimum.accumulate(np.concatenate([[np.inf], cost]))[:-1]
        grids.append((rows_here[order[cheaper]], cost[cheaper]))  # best first, each one cheaper than those before
    every = np.concatenate([cost for _, cost in grids])
    if not len(every):
        return None
    top = max(float(every.max()), plan.usd_per_hour if plan is not None else 0.0) * 1.1
    budgets = np.geomspace(float(every.min()), top, BUDGETS)
    rows: list[dict[str, Any]] = []
    for factor, (order, cost) in zip(TIGHTNESS, grids, strict=True):
        for budget in budgets:
            affordable = np.flatnonzero(cost <= budget * (1 + 1e-9))
            row = int(order[affordable[0]]) if len(affordable) else None
            rows.append({
                "budget": f"{budget:.3g}", "slo": f"{factor:g}×",
                "family": NOTHING if row is None else FAMILY_TITLES[FAMILIES[c.family[s.configuration[row]]]],
                "plan": "" if row is None else _words(tables, row),
                "cost": None if row is None else float(s.usd_per_hour[row]),
            })  # fmt: skip
    short = labels((r["plan"] for r in rows), 60)
    for cell in rows:
        cell["plan"] = short[cell["plan"]] or NOTHING
    if len({r["plan"] for r in rows}) == 1:
        return None  # of one colour
    colour, what = _colour([r["family"] for r in rows]), "strategy"
    plans = list(dict.fromkeys(r["plan"] for r in rows if r["plan"] != NOTHING))
    if len({r["family"] for r in rows} - {NOTHING}) == 1 and len(plans) <= len(SERIES):
        colour = coloured("plan", [*plans, NOTHING], [*SERIES[: len(plans)], FAMILY_COLOURS[None]])
        what = "hardware"
    encoding = {
        "x": {"field": "budget", "type": "ordinal", "sort": None, "title": "budget, USD per hour",
              "axis": {"labelAngle": 0, "labelOverlap": True}},
        "y": {"field": "slo", "type": "ordinal", "sort": [f"{f:g}×" for f in reversed(TIGHTNESS)],
              "title": "latency allowed, against the SLO"},
        "color": colour,
        "tooltip": tips("family", "plan", ("cost", "USD/h", ".4~f"), ("budget", "budget, USD/h"),
                        ("slo", "latency allowed")),
    }  # fmt: skip
    return chart(
        "Decision map",
        f"Which {what} is best at another budget or under a tighter (below 1×) or looser SLO: every limit on TTFT,"
        " TPOT and end-to-end time is multiplied by the factor. Point at a cell for the machines.",
        rows, {"mark": {"type": "rect", "stroke": "#fff", "strokeWidth": 1}, "encoding": encoding}, height=300,
    )  # fmt: skip


def _contenders(tables: CostTables) -> tuple[CostTables, Callable[[BatchLimits], Index]]:
    """Tables without dominated candidates, and the candidates that may win under given limits.

    A configuration is never better than at its fastest α, never earlier than at its least α, never steadier than at
    its calmest one; each is found once, not for every limit. Whoever is feasible at the fastest α beats what costs as
    much and could at best be worse.
    """
    s = tables.candidates
    order = np.lexsort((s.usd_per_hour, s.configuration))
    cheapest = order[np.unique(s.configuration[order], return_index=True)[1]]  # costlier markets never win
    cheapest = cheapest[in_memory(tables.curves)[s.configuration[cheapest]]]
    tables = tables.restricted(np.sort(cheapest)).compact()
    curves, s = tables.curves, tables.candidates
    of, cost = s.configuration, s.usd_per_hour
    ttft, tbt, e2e = curves.metrics(curves.fastest_alpha())
    earliest, calmest = curves.ttft(curves.alpha_lo), curves.tbt(curves.calmest_alpha())
    value = tables.objective(e2e[of], cost)

    def nearly(limits: BatchLimits) -> Index:
        may = ((e2e <= limits.e2e_s) & (earliest <= limits.ttft_s) & (calmest <= limits.tpot_s))[of]
        sure = np.flatnonzero(may & ((ttft <= limits.ttft_s) & (tbt <= limits.tpot_s))[of])
        if len(sure):
            sure = sure[np.argsort(cost[sure], kind="stable")]
            best = np.concatenate([[np.inf], np.minimum.accumulate(value[sure])])
            may &= value <= best[np.searchsorted(cost[sure], cost, side="right")] * (1 + 1e-9)
        return np.flatnonzero(may)

    return tables, nearly


def _scaled(limits: BatchLimits, factor: float) -> BatchLimits:
    return replace(limits, ttft_s=limits.ttft_s * factor, tpot_s=limits.tpot_s * factor, e2e_s=limits.e2e_s * factor)


def _alternatives(tables: CostTables, plan: CostPlan, report: Mapping[str, Any]) -> Chart | None:
    """This plan, the best without spot, the next distinct ones and the best of every family, by cost per token."""
    named: list[tuple[str, Mapping[str, Any]]] = [("this plan", plan.model_dump(mode="json"))]
    if report.get("without_spot") and plan.uses_spot:
        named.append(("without spot", report["without_spot"]))
    named += [(f"no. {i}", n) for i, n in enumerate(report.get("next") or [], 2)]
    named += [("best of its family", f["plan"]) for f in report.get("families") or [] if f.get("plan")]
    rows: list[dict[str, Any]] = []
    seen = set()
    for role, data in named:
        other = CostPlan.model_validate(data)
        key = (other.headline(), round(other.usd_per_hour, 9))
        if key in seen:
            continue
        seen.add(key)
        ce = other.ce_capped if tables.case.problem.objective == "capped" else other.ce_uncapped
        rows.append({"role": role, "plan": other.headline(), "ce": ce.tokens_per_usd,
                     "family": FAMILY_TITLES[other.family], "usd": other.usd_per_hour,
                     "tps": other.prediction.tps})  # fmt: skip
    if len(rows) < 2:
        return None
    rows.sort(key=lambda r: -r["ce"])
    for rank, row in enumerate(rows, 1):
        row["bar"] = shortened(f"{rank}. {row['plan'].partition(':')[0]}")
        row["plan"] = shortened(row["plan"], 90)
    encoding = {
        "y": entries("bar"),
        "x": amounts("ce", "tokens per USD", axis={"format": "~s", "tickCount": 6}),
        "color": _colour([r["family"] for r in rows]),
        "tooltip": tips("role", "plan", ("ce", "tokens/USD", ",.0f"), ("usd", "USD/h", ".4~f"),
                        ("tps", "tokens/s", ",.0f")),
    }  # fmt: skip
    return chart(
        "Alternatives",
        "Cost efficiency of this plan, of the next ones on other machines, and of each family's"
        " best; longer is better.",
        rows, {"mark": {"type": "bar", "height": {"band": 0.7}}, "encoding": encoding}, height=max(90, 28 * len(rows)),
    )  # fmt: skip
