"""Charts of a fleet: cost by machine, who serves whom, how full everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from formulations.fleet.plan import DeploymentLine, FleetPlan
from optmodels.latency.strategies import FAMILY_TITLES
from optmodels.reporting.charts import Chart, chart, coloured, labels, legend_choice, shortened
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.colours import REST, SERIES

MACHINES_SHOWN, DEMANDS_SHOWN, DEPLOYMENTS_SHOWN = 20, 30, 24
MARKET_COLOURS = {"on-demand": "#4477aa", "spot": "#ee6677", "reserved 1y": "#228833", "reserved 3y": "#ccbb44"}


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a solve document."""
    if document.get("plan") is None:
        return []
    plan = FleetPlan.model_validate(document["plan"])
    return [c for c in (_cost(plan), _allocation(plan), _use(plan), _day(plan)) if c is not None]


def _cost(plan: FleetPlan) -> Chart | None:
    """USD per hour by machine and market, mean over the day."""
    hours = sum(q.hours for q in plan.periods)
    cost: dict[tuple[str, str], float] = {}
    count: dict[tuple[str, str], float] = {}
    for q in plan.periods:
        for d in q.deployments:
            for m in d.machines:
                name = m.machine + (f" in {m.region}" if m.region else "")
                key = (name, m.market.replace("_", "-" if m.market == "on_demand" else " "))
                share = q.hours / hours * d.count * m.count
                cost[key] = cost.get(key, 0.0) + share * m.usd_per_hour_each
                count[key] = count.get(key, 0.0) + share
    if not cost:
        return None
    total: dict[str, float] = {}
    for (name, _), usd in cost.items():
        total[name] = total.get(name, 0.0) + usd
    shown = sorted(total, key=lambda n: -total[n])[:MACHINES_SHOWN]
    short = labels(shown)
    rows = [{"machine": short[n], "market": m, "usd": usd, "count": count[n, m]} for (n, m), usd in cost.items()
            if n in short]  # fmt: skip
    markets = [m for m in MARKET_COLOURS if any(r["market"] == m for r in rows)]
    encoding = {
        "y": entries("machine", sort=[short[n] for n in shown]),
        "x": amounts("usd", "USD per hour"),
        "color": coloured("market", markets, [MARKET_COLOURS[m] for m in markets]),
        "tooltip": tips("machine", "market", ("count", "machines", ".4~f"), ("usd", "USD/h", ",.4~f")),
    }  # fmt: skip
    mean = " (mean over the day)" if len(plan.periods) > 1 else ""
    more = f" The most expensive {len(shown)} of {len(total)} are shown." if len(total) > len(shown) else ""
    return chart("Cost by machine", f"What the machines cost by the hour{mean}, by type and market.{more}", rows,
                 {"mark": {"type": "bar", "height": {"band": 0.7}}, "encoding": encoding},
                 height=max(90, 28 * len(shown)))  # fmt: skip


def _names(deployments: Sequence[DeploymentLine]) -> list[str]:
    """A short distinct name for each: machines, strategy where there are several, how it runs; numbered where that
    states too little."""
    found: list[str] = []
    several = len({d.family for d in deployments}) > 1
    for d in deployments:
        machines = " + ".join(f"{m.count}× {m.machine}" if m.count > 1 else m.machine for m in d.machines)
        how = f", {FAMILY_TITLES[d.family]}" if d.family and several else ""
        runs = f"steps of {1e3 * d.engine.step_s:.3g} ms" if d.engine else f"batch {d.batch}"
        text = shortened(f"{machines}{how}, {runs}", 60)
        found.append(text if text not in found else f"{text}, no. {len(found) + 1}")
    return found


def _peak(plan: FleetPlan) -> Any:
    return max(plan.periods, key=lambda q: q.usd_per_hour)


def _allocation(plan: FleetPlan) -> Chart | None:
    """Of every workload bucket, which deployment takes which share."""
    peak = _peak(plan)
    names = _names(peak.deployments)
    requests: dict[str, float] = {}
    rows = []
    for k, d in enumerate(peak.deployments):
        for s in d.serves:
            requests[s.demand] = requests.get(s.demand, 0.0) + s.requests_per_s
            rows.append({"demand": s.demand, "deployment": names[k], "count": d.count, "share": s.share,
                         "rate": s.requests_per_s, "late": "misses its SLO" if s.misses_slo else "",
                         "ttft": s.ttft_s, "wait": s.wait_s})  # fmt: skip
    for u in peak.unserved:
        requests[u.demand] = requests.get(u.demand, 0.0) + u.requests_per_s
        rows.append({"demand": u.demand, "deployment": "not served", "count": 0, "share": u.share,
                     "rate": u.requests_per_s})  # fmt: skip
    if not rows:
        return None
    shown = sorted(requests, key=lambda n: -requests[n])[:DEMANDS_SHOWN]
    short = labels(shown)
    rows = [r | {"demand": short[r["demand"]]} for r in rows if r["demand"] in short]
    domain = list(dict.fromkeys(r["deployment"] for r in rows if r["deployment"] != "not served"))
    colours = [SERIES[i % len(SERIES)] for i in range(len(domain))]
    if any(r["deployment"] == "not served" for r in rows):
        domain, colours = [*domain, "not served"], [*colours, REST]
    encoding = {
        "y": entries("demand", sort=[short[n] for n in shown]),
        "x": amounts("share", "share of the requests", "%", stack=True, scale={"domainMax": 1, "clamp": True}),
        "color": coloured("deployment", domain, colours, legend={"columns": 1, "labelLimit": 640}),
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.15},
        "tooltip": tips("demand", "deployment", ("count", "deployments"), ("share", None, ".1%"),
                        ("rate", "requests/s", ".4~g"), ("ttft", "TTFT, s", ".3~g"),
                        ("wait", "waiting, s", ".3~g"), ("late", "SLO")),
    }  # fmt: skip
    when = f" in the most expensive period ({peak.name})" if len(plan.periods) > 1 else ""
    more = f" The {len(shown)} largest of {len(requests)} are shown." if len(requests) > len(shown) else ""
    return chart(
        "Who serves whom",
        f"Every workload bucket with the deployments that take its requests{when}. Click the legend to single out"
        f" deployments.{more}",
        rows, {"mark": {"type": "bar", "height": {"band": 0.75}, "cornerRadiusEnd": 0}, "encoding": encoding,
               "params": [legend_choice("deployment")]},
        height=max(90, 24 * len(shown)),
    )  # fmt: skip


def _use(plan: FleetPlan) -> Chart | None:
    """How much of every deployment's full capacity is in use, against the planned maximum."""
    peak = _peak(plan)
    found = sorted(peak.deployments, key=lambda d: -d.count * d.usd_per_hour_each)[:DEPLOYMENTS_SHOWN]
    if not found:
        return None
    names = _names(found)
    rows = [{"name": f"{d.count} × {names[k]}", "used": d.utilisation, "planned": d.load_level,
             "usd": d.count * d.usd_per_hour_each} for k, d in enumerate(found)]  # fmt: skip
    y = entries("name")
    tip = tips(("name", "deployment"), ("used", "in use", ".0%"), ("planned", "planned at most", ".0%"),
               ("usd", "USD/h", ",.4~f"))  # fmt: skip
    x = {"type": "quantitative", "axis": {"format": "%"}, "scale": {"domain": [0, 1]}}
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.6}, "color": SERIES[0]},
        "encoding": {"x": x | {"field": "used", "title": "share of full capacity"}, "y": y, "tooltip": tip},
    }
    ticks = {"mark": {"type": "tick", "thickness": 3, "color": "#111", "height": 16},
             "encoding": {"x": x | {"field": "planned"}, "y": y, "tooltip": tip}}  # fmt: skip
    return chart(
        "Load",
        "How full each deployment runs (bar) and the load up to which its promised waiting holds (tick); 100 % would be"
        " saturation.",
        rows, {"layer": [bars, ticks]}, height=max(90, 26 * len(rows)),
    )  # fmt: skip


def _day(plan: FleetPlan) -> Chart | None:
    """Cost and requests by period."""
    if len(plan.periods) < 2:
        return None
    short = labels(q.name for q in plan.periods)
    rows = [{"period": short[q.name], "usd": q.usd_per_hour, "asked": q.requests_per_s,
             "served": q.served_requests_per_s, "hours": q.hours} for q in plan.periods]  # fmt: skip
    x = entries("period", axis={"labelAngle": 0})
    tip = tips("period", "hours", ("usd", "USD/h", ",.4~f"), ("asked", "requests/s", ".4~g"),
               ("served", "served/s", ".4~g"))  # fmt: skip
    bars = {
        "mark": {"type": "bar", "color": SERIES[0], "width": {"band": 0.6}},
        "encoding": {"x": x, "y": amounts("usd", "USD per hour"), "tooltip": tip},
    }
    served = amounts("served", "requests/s served", axis={"titleColor": SERIES[1], "grid": False})
    line = {"mark": {"type": "line", "color": SERIES[1], "point": {"color": SERIES[1]}},
            "encoding": {"x": x, "y": served, "tooltip": tip}}  # fmt: skip
    return chart("The day", "Cost by the hour (bars, left) and requests served (line, right) in every period.", rows,
                 {"layer": [bars, line], "resolve": {"scale": {"y": "independent"}}}, height=240)  # fmt: skip
