"""Charts of an orchestration plan: the cluster, requests over time, who is served in time. From its document alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.orchestration.problem import Cluster
from optmodels.reporting.charts import Chart, chart, labels, shortened
from optmodels.reporting.colours import ALARM, SERIES

SERVERS_SHOWN, CLASSES_SHOWN, BINS_SHOWN = 60, 40, 400
FREE, DEAD = "free", "out of order"


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a solve document."""
    plan = document.get("plan")
    if plan is None:
        return []
    found = [_cluster(document, plan), _timeline(plan), _classes(plan)]
    return [c for c in found if c is not None]


def _kind(line: Mapping[str, Any]) -> str:
    parts = " ".join(f"{k}-{line[k]}" for k in ("tp", "pp", "dp") if line[k] > 1)
    return f"{parts} batch {line['batch']}".strip()


def _models(plan: Mapping[str, Any]) -> dict[str, str]:
    return labels(c["model"] for c in plan["configurations"])


def _servers(document: Mapping[str, Any]) -> dict[str, tuple[str, int, set[int]]]:
    """GPU type, number of GPUs and those in order, by server."""
    if not document.get("problem"):
        return {}
    cluster = Cluster.model_validate(document["problem"]["cluster"])  # the rest may name files that are elsewhere
    return {
        name: (s.gpu, s.gpus, set(range(s.gpus)) - set(cluster.failed_gpus.get(name, ())))
        for s in cluster.servers for name in s.names
    }  # fmt: skip


def _cluster(document: Mapping[str, Any], plan: Mapping[str, Any]) -> Chart | None:
    """Every GPU of every server as a cell in the colour of the model that runs there."""
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
    short = labels(shown, 30)
    rows = []
    for name in shown:
        gpu, count, working = every[name]
        for g in range(count):
            model, how, instance = used.get(name, {}).get(g, (FREE if g in working else DEAD, "", ""))
            rows.append(
                {"server": short[name], "gpu": g, "type": gpu, "model": model, "how": how, "instance": instance}
            )
    domain = [m for m in models.values() if any(r["model"] == m for r in rows)]
    colours = [SERIES[i % len(SERIES)] for i in range(len(domain))]
    for state, colour in ((FREE, "#eceff1"), (DEAD, "#555555")):
        if any(r["model"] == state for r in rows):
            domain, colours = [*domain, state], [*colours, colour]
    encoding = {
        "x": {"field": "gpu", "type": "ordinal", "title": "GPU", "axis": {"labelAngle": 0}},
        "y": {"field": "server", "type": "nominal", "sort": None, "title": None},
        "color": {"field": "model", "type": "nominal", "title": None, "scale": {"domain": domain, "range": colours}},
        "tooltip": [{"field": "server"}, {"field": "gpu", "title": "GPU"}, {"field": "type"}, {"field": "model"},
                    {"field": "how", "title": "parallelism"}, {"field": "instance"}],
    }  # fmt: skip
    p = plan["prediction"]
    more = f" The first {len(shown)} of {len(every):,} servers are shown." if len(every) > len(shown) else ""
    return chart(
        "Cluster map",
        f"Which model runs on which GPU: {len(plan['instances']):,} instances on {p['gpus_used']:,} of {p['gpus']:,}"
        f" GPUs. Point at a GPU for its instance.{more}",
        rows, {"mark": {"type": "rect", "stroke": "#fff", "strokeWidth": 1.5}, "encoding": encoding},
        height=max(80, 20 * len(shown)),
    )  # fmt: skip


def _timeline(plan: Mapping[str, Any]) -> Chart | None:
    """Requests per second that start, by model, over time."""
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
        "x": {"field": "time", "type": "quantitative", "title": "seconds", "scale": {"nice": False}},
        "y": {"field": "rate", "type": "quantitative", "stack": "zero", "title": "requests/s"},
        "color": {"field": "model", "type": "nominal", "title": None,
                  "scale": {"domain": names, "range": [SERIES[i % len(SERIES)] for i in range(len(names))]}},
        "tooltip": [{"field": "model"}, {"field": "time", "title": "from, s"}, {"field": "rate", "format": ",.4~g"}],
    }  # fmt: skip
    pick = {"name": "pick", "select": {"type": "point", "fields": ["model"], "toggle": "true"}, "bind": "legend"}
    spec = {"transform": [{"filter": {"param": "pick"}}], "params": [pick],
            "mark": {"type": "area", "interpolate": "step-after"}, "encoding": encoding}  # fmt: skip
    return chart(
        "Requests over time",
        "Requests per second that arrive and are planned in time, by model. Click the legend to single out models.",
        rows, spec, height=280,
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
        "y": {"field": "name", "type": "nominal", "sort": None, "title": None},
        "x": {"field": "requests", "type": "quantitative", "title": "requests", "stack": True},
        "color": {"field": "what", "type": "nominal", "title": None,
                  "scale": {"domain": ["in time", "not in time"], "range": [SERIES[0], ALARM]}},
        "order": {"field": "what"},
        "tooltip": [{"field": "name", "title": "class"}, {"field": "what", "title": " "},
                    {"field": "requests", "format": ",.0f"}, {"field": "share", "format": ".2%"},
                    {"field": "deadline", "title": "deadline, s", "format": ".4~g"}],
    }  # fmt: skip
    return chart(
        "Request classes",
        "Requests of each class that the plan serves within their deadline, and those that it does not.",
        rows, {"mark": {"type": "bar", "height": {"band": 0.7}, "cornerRadiusEnd": 0}, "encoding": encoding},
        height=max(90, 22 * len(found)),
    )  # fmt: skip
