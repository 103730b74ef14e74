"""Charts of an orchestration plan: the cluster, requests and busy slots over time, who is served in time.

From the document alone: the instance may name a trace that is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.orchestration.problem import GpuCluster
from optmodels.reporting.charts import Chart, chart, coloured, labels, legend_choice, named, shortened
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.colours import ALARM, SERIES

SERVERS_SHOWN, CLASSES_SHOWN, BINS_SHOWN = 60, 40, 400
GPUS_NAMED = 10  # the widest server whose instances have room for their names
FREE, DEAD = "free", "out of order"
TIME = amounts("time", "seconds", scale={"nice": False})


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a solve document."""
    plan = document.get("plan")
    if plan is None:
        return []
    timeline = document.get("report", {}).get("timeline") or {}
    found = [_cluster(document, plan), _requests(plan, timeline), _busy(plan, timeline), _classes(plan)]
    return [c for c in found if c is not None]


def _kind(line: Mapping[str, Any]) -> str:
    degrees = {**line, "ranks": line.get("attention_ranks", 1)}
    parts = " ".join(f"{k}-{degrees[k]}" for k in ("tp", "pp", "ranks", "dp") if degrees[k] > 1)
    return f"{parts} batch {line['batch']}".strip()


def _models(plan: Mapping[str, Any]) -> dict[str, str]:
    return labels(c["model"] for c in plan["configurations"])


def _servers(document: Mapping[str, Any]) -> dict[str, tuple[str, int, set[int]]]:
    """GPU type, number of GPUs and those in order, by server."""
    if not document.get("problem"):
        return {}
    cluster = GpuCluster.model_validate(document["problem"]["cluster"])  # the rest may name files that are elsewhere
    return {
        name: (s.gpu, s.gpus, set(range(s.gpus)) - set(cluster.failed_gpus.get(name, ())))
        for s in cluster.servers for name in s.names
    }  # fmt: skip


def _cluster(document: Mapping[str, Any], plan: Mapping[str, Any]) -> Chart | None:
    """Every GPU of every server as a cell in the colour of the model that runs there, instances as blocks."""
    models, servers = _models(plan), _servers(document)
    used: dict[str, dict[int, tuple[str, str, str]]] = {}
    for i in plan["instances"]:
        line = plan["configurations"][i["configuration"]]
        for server, gpus in i["placement"].items():
            for g in gpus:
                used.setdefault(server, {})[g] = (models[line["model"]], _kind(line), shortened(i["name"], 60))
    every = servers or {n: ("", max(g) + 1, set(range(max(g) + 1))) for n, g in used.items()}
    shown = list(every)[:SERVERS_SHOWN]
    if not shown:
        return None
    short = labels((f"{n} ({every[n][0]})" if every[n][0] else n for n in shown), 30)
    rows: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for name, label in zip(shown, short.values(), strict=True):
        gpu, count, working = every[name]
        for g in range(count):
            model, how, instance = used.get(name, {}).get(g, (FREE if g in working else DEAD, "", ""))
            place = {"server": label, "gpu": g, "end": g + 1}
            if instance and g and rows[-1]["instance"] == instance and rows[-1]["server"] == label:
                blocks[-1] |= {"end": g + 1, "middle": (blocks[-1]["gpu"] + g + 1) / 2}
            elif instance:
                blocks.append(place | {"how": how, "middle": g + 0.5})
            rows.append(place | {"type": gpu, "model": model, "how": how, "instance": instance})
    domain = [m for m in models.values() if any(r["model"] == m for r in rows)]
    colours = [SERIES[i % len(SERIES)] for i in range(len(domain))]
    for state, colour in ((FREE, "#eceff1"), (DEAD, "#555555")):
        if any(r["model"] == state for r in rows):
            domain, colours = [*domain, state], [*colours, colour]
    widest = max(every[n][1] for n in shown)
    y = entries("server")
    axis = {"values": [g + 0.5 for g in range(widest)], "labelExpr": "floor(datum.value)", "grid": False,
            "labelOverlap": True}  # fmt: skip
    x = amounts("gpu", "GPU", axis=axis, scale={"domain": [0, widest], "nice": False})
    tip = tips("server", ("gpu", "GPU"), "type", "model", ("how", "parallelism"), "instance")
    block = {"y": y, "x": x, "x2": {"field": "end"}}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rect"},
         "encoding": block | {"fill": coloured("model", domain, colours), "tooltip": tip,
                              "stroke": {"condition": {"test": "datum.instance", "value": None}, "value": "#fff"}}},
        {"data": {"values": blocks}, "mark": {"type": "rect", "fill": None, "stroke": "#222", "tooltip": None},
         "encoding": block},
    ]  # fmt: skip
    if widest <= GPUS_NAMED:  # there is room for words
        text = {"y": y, "x": amounts("middle"), "text": {"field": "how"}}
        layers.append({"data": {"values": blocks}, "encoding": text,
                       "mark": {"type": "text", "fontSize": 8.5, "color": "#fff", "tooltip": None}})  # fmt: skip
    p = plan["prediction"]
    more = f" The first {len(shown)} of {len(every):,} servers are shown." if len(every) > len(shown) else ""
    return chart(
        "Cluster map",
        f"Which model runs on which GPU: {len(plan['instances']):,} instances (outlined) on {p['gpus_used']:,} of"
        f" {p['gpus']:,} GPUs. Point at a GPU for its instance.{more}",
        rows, {"layer": layers}, height=max(80, 20 * len(shown)),
    )  # fmt: skip


def _requests(plan: Mapping[str, Any], timeline: Mapping[str, Any]) -> Chart | None:
    """Requests per second that are planned in time by model, over time, under all that arrive."""
    shares, bins = plan["shares"], plan["bins"]
    if not bins or not shares["bin"]:
        return None
    models = _models(plan)
    size = -(-bins // BINS_SHOWN)  # bins drawn as one
    total: dict[tuple[int, str], float] = {}
    for c, b, n in zip(shares["configuration"], shares["bin"], shares["admitted"], strict=True):
        key = (b // size, models[plan["configurations"][c]["model"]])
        total[key] = total.get(key, 0.0) + n
    width = size * plan["bin_s"]
    names = list(dict.fromkeys(models.values()))
    rows = [{"time": i * width, "model": m, "rate": total.get((i, m), 0.0) / width}
            for m in names for i in range(-(-bins // size))]  # fmt: skip
    encoding = {
        "x": TIME,
        "y": amounts("rate", "requests/s", stack="zero"),
        "color": coloured("model", names),
        "tooltip": tips("model", ("time", "from, s"), ("rate", None, ",.4~g")),
    }  # fmt: skip
    layers: list[dict[str, Any]] = [
        {"transform": [{"filter": {"param": "shown"}}], "params": [legend_choice("model")],
         "mark": {"type": "area", "interpolate": "step-after"}, "encoding": encoding},
    ]  # fmt: skip
    arriving = [{"time": i * timeline["step_s"], "rate": v} for i, v in enumerate(timeline.get("arriving") or [])]
    if arriving:
        line = {
            "data": {"values": arriving},
            "mark": {"type": "line", "interpolate": "step-after", "color": "#111", "strokeWidth": 1},
            "encoding": {"x": TIME, "y": amounts("rate")},
        }
        layers.append(named(line, "arriving"))
    under = " under the line of all that arrive: what lies between them is refused" if arriving else ""
    return chart(
        "Requests over time",
        f"Requests per second that are planned in time, by model{under}. Click the legend to single out models.",
        rows, {"layer": layers}, height=280,
    )  # fmt: skip


def _busy(plan: Mapping[str, Any], timeline: Mapping[str, Any]) -> Chart | None:
    """Busy share of the slots of the largest configurations, over time."""
    found = timeline.get("busy") or []
    lines = [plan["configurations"][b["configuration"]] for b in found]
    names = [f"{n}. {c['instances']} × {c['model']} {_kind(c)}" for n, c in enumerate(lines, 1)]
    short = labels(names, 60)
    rows = [{"time": i * timeline["step_s"], "name": short[name], "share": v}
            for name, b in zip(names, found, strict=True) for i, v in enumerate(b["share"])]  # fmt: skip
    if not rows:
        return None
    encoding = {
        "x": TIME,
        "y": amounts("share", "busy slots", "%",
                     scale={"domain": [0, max(1.0, *(r["share"] for r in rows))], "nice": False}),
        "color": coloured("name", short.values()),
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.1},
        "tooltip": tips("name", ("time", "from, s"), ("share", None, ".1%")),
    }  # fmt: skip
    mark = {"type": "line", "strokeWidth": 1.5, "interpolate": "step-after"}
    return chart(
        "Busy slots",
        f"Share of the slots that are busy over time, of the {len(lines)} configurations with most GPUs. Click the"
        " legend to single them out.",
        rows, {"mark": mark, "encoding": encoding, "params": [legend_choice("name")]}, height=240,
    )  # fmt: skip


def _classes(plan: Mapping[str, Any]) -> Chart | None:
    """Requests of every class, in time and not."""
    found = sorted(plan["classes"], key=lambda c: -c["requests"])[:CLASSES_SHOWN]
    if not found:
        return None
    names = [c["label"] if c["label"].startswith(c["model"]) else f"{c['model']} {c['label']}" for c in found]
    short = labels(names, 60)
    rows = []
    for name, c in zip(names, found, strict=True):
        late = max(c["requests"] - c["in_time"], 0.0)
        for what, n in (("in time", c["in_time"]), ("not in time", late)):
            share = n / c["requests"] if c["requests"] else 0.0
            row = {"name": short[name], "what": what, "requests": n}
            rows.append(row | {"share": share, "deadline": c["deadline_s"]})
    encoding = {
        "y": entries("name"),
        "x": amounts("requests", "requests", stack=True),
        "color": coloured("what", ["in time", "not in time"], (SERIES[0], ALARM)),
        "order": {"field": "what"},
        "tooltip": tips(("name", "class"), ("what", " "), ("requests", None, ",.0f"), ("share", None, ".2%"),
                        ("deadline", "deadline, s", ".4~g")),
    }  # fmt: skip
    return chart(
        "Request classes",
        "Requests of each class that the plan serves within their deadline, and those that it does not.",
        rows, {"mark": {"type": "bar", "height": {"band": 0.7}, "cornerRadiusEnd": 0}, "encoding": encoding},
        height=max(90, 22 * len(found)),
    )  # fmt: skip
