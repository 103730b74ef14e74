"""The report of a cost-efficiency plan, its lines in the terminal, and its tables as data frames."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from formulations.cost_efficiency.making import best_row, by_reason, family_line, make_plan, unmodelled
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, candidate_order
from formulations.cost_efficiency.predicted import predicted
from optmodels.batch.points import NONE
from optmodels.catalog.types import MARKETS
from optmodels.engine.lengths import mean_tokens
from optmodels.latency.strategies import FAMILIES, Family
from optmodels.reporting.decision import usd
from optmodels.reporting.sources import at_most, compared_lines, of_requests, source_entries, source_lines
from optmodels.reporting.text import plain, seconds, titled, told_apart


def report(tables: CostTables, plan: CostPlan | None) -> dict[str, Any]:
    """The report next to the plan, by exhaustive evaluation of the tables.

    Returns:
        ``without_spot`` (best plan with no spot part), ``next`` (best plans on other main
        machines), ``families`` (best feasible candidate of each, or what killed the nearest one), ``size``; of engines
        ``predicted``.
    """
    o, s, c = tables.optimum, tables.candidates, tables.configurations
    of, problem = s.configuration, tables.case.problem

    def plan_of(row: int | None) -> dict[str, Any] | None:
        if row is None:
            return None
        return make_plan(tables, row, float(o.alpha[of[row]])).model_dump()

    hardware = [tables.machines[i].machine for i in c.main.tolist()]
    seen = set() if plan is None else {plan.machines[0].machine}
    following: list[dict[str, Any]] = []
    ok = np.flatnonzero(o.feasible[of] & (s.usd_per_hour <= tables.limits.usd_per_hour))
    wanted = problem.alternatives
    if plan is not None and wanted and len(ok):
        for position in candidate_order(tables.restricted(ok), o.e2e_s):
            row = int(ok[position])
            if hardware[of[row]] in seen:
                continue
            seen.add(hardware[of[row]])
            found = plan_of(row)
            assert found is not None
            following.append(found)
            if len(following) == wanted:
                break
    at_users = None if plan is None else predicted(tables.case.problem, plan)
    output_cost: dict[str, Any] = {}
    if plan is not None:
        prompt, output = mean_tokens(tables.case.lengths)
        output_cost["usd_per_million_output_tokens"] = plan.usd_per_million_tokens * (prompt + output) / output
    return output_cost | {
        "without_spot": plan_of(best_row(tables, tables.spot_free())),
        "next": following,
        "families": [family_line(tables, family, plan_of) for family in FAMILIES],
        "candidates": {"candidates": len(s), "configurations": len(c), "feasible": len(ok)},
        "unmodelled": unmodelled(tables),
        "latencies": _latencies(tables, plan),
        "prices": tables.case.price_source,
        "notes": of_requests(problem.slo.latencies, tables.case.lengths),
        **({} if at_users is None else {"predicted": at_users}),
    }


def _latencies(tables: CostTables, plan: CostPlan | None) -> dict[str, Any] | None:
    """Source and interval of the plan's latencies, of the compared plans' latencies, and the SLO at the pessimistic
    end.

    None where they are measured points of the instance.
    """
    case, c = tables.case, tables.configurations
    if tables.measured:
        return None
    safety = case.problem.latency.safety
    gpus = [case.machines[i].gpu or "" for i in c.main.tolist()]
    families: list[Family] = ["high_end" if case.source is not None else FAMILIES[f] for f in c.family.tolist()]
    kinds = sorted(set(zip(gpus, c.tp.tolist(), families, c.ranks.tolist(), strict=True)))
    found: dict[str, Any] = {"plan": [], "predicted": [], "compared": []}
    if plan is not None:
        main = plan.machines[0].gpu or ""
        where = case.provenance(main, plan.tensor_parallel, plan.family, plan.attention_ranks or 1)
        found["plan"] = source_entries([(f"the plan's {main}", where)], safety)
        found["predicted"] = _ends(tables, plan, at_most(where, safety))
    found["compared"] = source_entries(((of[0], case.provenance(*of)) for of in kinds), safety)
    return found


def _ends(tables: CostTables, plan: CostPlan, at_end: tuple[float, float] | None) -> list[dict[str, Any]]:
    """Predictions next to the SLO, and their values where TPOT and TTFT are this many times as long."""
    case, pr = tables.case, plan.prediction
    tps: float | None = None
    ttft = tbt = None
    if at_end is not None and pr.ttft_s is not None and pr.tpot_s is not None:
        decode = (mean_tokens(case.lengths)[1] - 1) * pr.tpot_s
        first = pr.e2e_s / plan.passes - decode
        one = at_end[1] * first + at_end[0] * decode
        ttft, tbt = (plan.passes - 1) * one + at_end[1] * first, at_end[0] * pr.tpot_s
        tps = case.tokens / (plan.passes * one)
        if plan.engine is not None:  # E2E is a mean next to TTFT and TPOT at percentiles
            ttft, tps = at_end[1] * pr.ttft_s, pr.tps / max(at_end)
    slo, limits = case.problem.slo, case.limits
    lines: list[dict[str, Any]] = [
        {"name": "TPS", "predicted": pr.tps, "pessimistic": tps, "slo": slo.tps, "unit": "tokens/s"}
    ]
    if slo.kind == "real_time":
        times = [("TTFT", pr.ttft_s, ttft, limits.ttft_s), ("TPOT", pr.tpot_s, tbt, limits.tpot_s)]
        for line in plan.limits:
            if line.name in ("E2E", "ITL") and line.limit is not None:
                end = None if tps is None else line.value * pr.tps / tps  # longer as TPS, tokens over E2E, is less
                times.append((line.name, line.value, end, line.limit))
        for name, value, end, limit in times:
            lines.append({"name": name, "predicted": value, "pessimistic": end, "slo": limit, "unit": "s"})
    return lines


CALLED = {"TPS": "throughput"}  # limits by their names in documents → in print


def _number(value: float | None, more: int = 0, *, unit: str) -> str:
    if value is None:
        return "none"
    if unit == "s":
        return seconds(value, more)
    return f"{value:,.{more}f} {unit}" if value >= 1000 else f"{value:.{5 + more}g} {unit}".strip()


def _plan_lines(plan: Mapping[str, Any], seen: Mapping[str, float] | None = None) -> list[str]:
    """`seen`: prediction at the planned number of users, where the plan's own prediction is a bound."""
    p = CostPlan.model_validate(plan)
    pr = p.prediction
    lines = [f"[bold]{plain(p.headline())}[/bold]"]
    for m in p.machines:
        role = "main machine" if m.role == "main" else "attention-offload machine"
        where = f" in {plain(m.region)}" if m.region else ""
        lines.append(
            f"  {role}: {m.count} × {plain(m.machine)}{where}, {m.market.replace('_', '-')}"
            f" at {m.usd_per_hour_each:.4g} USD/h each"
        )
    split = p.batch_split
    shown = "+".join(map(str, split[:12])) + ("+…" if len(split) > 12 else "")
    e = p.engine
    if e is None:
        lines.append(f"  batch split: {shown} requests; offload ratio α = {p.alpha:.4f}")
    else:
        lines.append(
            f"  in flight: {shown} requests; iterations of at most {seconds(e.step_s)},"
            f" {e.max_num_batched_tokens:,} tokens;"
            f" KV of {e.kv_tokens:,.0f} tokens"
        )
    load = f", AO load ρ {pr.ao_load:.2f}" if pr.ao_load is not None else ""
    if seen is not None:
        said = ", ".join(f"{name} {seconds(seen[key])}" for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"),
                                                                          ("E2E", "e2e_s")))  # fmt: skip
        lines.append(f"  predicted, in the mean: {said}, {seen['tokens_per_s']:,.0f} tokens/s")
    known = [("TTFT", pr.ttft_s), ("TPOT", pr.tpot_s), ("E2E", pr.e2e_s)]
    said = ", ".join(f"{name} {'not measured' if value is None else seconds(value)}" for name, value in known)
    bound = ("predicted", "") if e is None else ("at most", "at least ")
    lines.append(f"  {bound[0]}: {said}, {bound[1]}{pr.tps:,.0f} tokens/s{load}")
    lines.append(f"  cost: {usd(p.usd_per_hour)} USD/h = {p.usd_per_million_tokens:.4g} USD per million tokens")
    for name, ce in (("capped at the SLO", p.ce_capped), ("uncapped", p.ce_uncapped)):
        lines.append(
            f"  cost efficiency, {name}: {ce.tokens_per_usd:,.0f} tokens/USD = {ce.tps_per_usd_per_hour:.1f} tokens/s"
            " per USD/h"
        )
    return lines


def summary(result: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of a solve document."""
    out: list[Any] = []
    plan, report = result.get("plan"), result.get("report", {})
    if plan is not None:
        out += _plan_lines(plan, report.get("predicted"))
        table = titled("Limits", "limit", "plan", "bound by", "room")
        for line in plan["limits"]:
            margin = "[yellow]binds[/yellow]" if line["binding"] else _margin(line)
            table.add_row(
                CALLED.get(line["name"], line["name"]),
                _number(line["value"], unit=line["unit"]),
                _number(line["limit"], unit=line["unit"]),
                margin,
            )
        out += ["", table, *_source_lines(report)]
        spotless = report.get("without_spot")
        if plan["uses_spot"]:
            text = "none feasible" if spotless is None else _short(spotless)
            out += ["", f"[bold]Best without spot:[/bold] {text}"]
        if report.get("next"):
            out += ["", "[bold]Next distinct plans:[/bold]"] + [
                f"  {i}. {_short(n)}" for i, n in enumerate(report["next"], 2)
            ]
    if report.get("families"):
        table = titled("By strategy family", "family", "best candidate, or the limit it misses")
        without: dict[str, list[str]] = {}  # a candidate, by reason
        for f in report["families"]:
            if f["candidates"]:
                table.add_row(f["title"], _short(f["plan"]) if f["plan"] else _killed(f))
            else:
                without.setdefault(f["reason"], []).append(f["title"])
        for reason, titles in without.items():
            table.add_row(titles[0] if len(titles) == 1 else f"{len(titles)} others", f"[dim]{plain(reason)}[/dim]")
        out += ["", table]
    missing = report.get("unmodelled") or []
    if missing:
        said = by_reason(missing)
        out += ["", f"[dim]{len(missing)} machine type{'s' * (len(missing) != 1)} excluded: {plain(said)}[/dim]"]
    return out + [f"[dim]note: {plain(n)}[/dim]" for n in report.get("notes", [])]


def _source_lines(report: Mapping[str, Any]) -> list[str]:
    """Where latencies and prices come from, and the plan's figures in their pessimistic case."""
    lines: list[str] = []
    known = report.get("latencies")
    if known:
        lines += ["", *source_lines(known["plan"])]
        ends = [x for x in known["predicted"] if x["pessimistic"] is not None]
        over = [
            CALLED.get(x["name"], x["name"]) for x in ends
            if (x["pessimistic"] < x["slo"] if x["name"] == "TPS" else x["pessimistic"] > x["slo"])
        ]  # fmt: skip
        if ends:
            kept = f"[yellow]{' and '.join(over)} would miss the SLO[/yellow]" if over else "the SLO would hold"
            said = [
                f"{CALLED.get(x['name'], x['name'])} {end} (SLO {slo})"
                for x in ends
                for end, slo in [_beside(x, x["pessimistic"])]
            ]
            lines.append(f"  Pessimistic case: {', '.join(said)}: {kept}")
        lines += compared_lines(known["compared"])
    if report.get("prices"):
        lines.append(f"[bold]Prices:[/bold] {plain(report['prices'])}")
    return lines


def _beside(x: Mapping[str, Any], value: float) -> tuple[str, str]:
    """A figure and its SLO, the least for throughput and the most for a latency."""
    text = partial(_number, unit=x["unit"])
    if x["name"] == "TPS":
        least, seen = told_apart(x["slo"], value, text)
        return seen, least
    return told_apart(value, x["slo"], text)


def _margin(line: Mapping[str, Any]) -> str:
    if line["limit"] in (None, 0):
        return ""
    ratio = line["value"] / line["limit"]
    return f"{(1 - ratio) * 100:.0f} % free" if line["sense"] == "<=" else f"{(ratio - 1) * 100:.0f} % above"


def _short(plan: Mapping[str, Any]) -> str:
    p = CostPlan.model_validate(plan)
    return plain(f"{p.headline()}; {usd(p.usd_per_hour)} USD/h, {p.prediction.tps:,.0f} tokens/s")


def _killed(family: Mapping[str, Any]) -> str:
    if not family["killed_by"]:
        return f"[dim]{plain(family['reason'])}[/dim]"
    causes = []
    for k in family["killed_by"]:
        sign = "<" if k["name"] == "TPS" else ">"
        value, limit = _beside(k | {"slo": k["limit"]}, k["value"])
        causes.append(f"{k['name']} {value} {sign} {limit}")
    near = family["nearest"]
    count = f" ×{near['count']}" if near["count"] > 1 else ""
    return f"[red]{plain('; '.join(causes))}[/red] ({plain(' + '.join(near['machines']))}{count})"


def frames(tables: CostTables, plan: Any) -> dict[str, Any]:
    """Columns by file name: every configuration at its best α with its cheapest price, best first."""
    import numpy as np

    o, s, c = tables.optimum, tables.candidates, tables.configurations
    order = np.array(list(candidate_order(tables, o.e2e_s)), dtype=np.intp)
    of = s.configuration[order]
    name = np.array([*(m.machine for m in tables.machines), ""], dtype=object)
    market = np.array([*MARKETS, ""], dtype=object)
    cost = s.usd_per_hour[order]
    feasible = o.feasible[of] & (cost <= tables.limits.usd_per_hour)
    columns = {
        "family": np.array(FAMILIES, dtype=object)[c.family[of]],
        "main": name[c.main[of]], "main_market": market[s.main_market[order]],
        "ao": name[np.where(c.ao[of] == NONE, -1, c.ao[of])],
        "ao_market": market[np.where(s.ao_market[order] == NONE, -1, s.ao_market[order])],
        "tensor_parallel": c.tp[of], **({"attention_ranks": c.ranks[of]} if (c.ranks > 1).any() else {}),
        "replicas": c.dp[of], "count": c.count[of], "batch_per_replica": c.batch[of],
        "alpha": o.alpha[of], "ttft_s": o.ttft_s[of], "tpot_s": o.tpot_s[of], "e2e_s": o.e2e_s[of],
        "tps": tables.case.tokens / o.e2e_s[of], "usd_per_hour": cost,
        "usd_per_million_tokens": tables.objective(o.e2e_s[of], cost),
        "feasible": feasible,
    }  # fmt: skip
    shown = np.argsort(~feasible, kind="stable")[:MAX_ROWS]
    return {"operating_points": {k: v[shown] for k, v in columns.items()}}


MAX_ROWS = 5000
