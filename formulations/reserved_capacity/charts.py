"""Charts of a reserved-capacity plan: the sun's round by region, where requests go, its cost."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import Any

import numpy as np

from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables, build_tables
from formulations.reserved_capacity.show import COMPARED, hours
from optmodels.arrays import Array
from optmodels.catalog import geography
from optmodels.reporting.charts import Chart, chart, coloured, labels, legend_choice, named, tables_of
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.colours import ALARM, REST, SERIES

WEEK, FLOWS_SHOWN, DAYS_SHOWN = 168, 100, 400
PARTS = {"reserved": "#4477aa", "after the horizon": "#aabbcc", "on demand": "#ee6677", "spot": "#228833",
         "unserved": "#999999", "egress": "#ccbb44"}  # fmt: skip
SIDES = {"above": (0, -13, "center"), "below": (0, 17, "center"), "right": (12, 4, "left"), "left": (-12, 4, "right")}
WIDE, LABELS_ON_PHONES = 600, 8  # px of a map with all its labels; this many fit on a narrower one


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a solve document."""
    if document.get("plan") is None or not document.get("problem"):
        return []
    tables = tables_of(document, build_tables)
    plan = ReservedPlan.model_validate(document["plan"])
    hours = _Hours(tables, plan)
    comparisons = document.get("report", {}).get("comparisons") or {}
    found = [*hours.week(), hours.year(), _map(tables, plan), _cost(plan, comparisons)]
    return [c for c in found if c is not None]


class _Hours:
    """Demand and machines of the first scenario and quarter by hour and region, from east to west like the sun."""

    def __init__(self, t: ReservedTables, plan: ReservedPlan) -> None:
        table = hours(t, plan)
        shown = (table["scenario"] == 0) & (table["quarter"] == 0)
        longitude = {n: p[1] for n, p in _places(t).items()}
        order = sorted(t.case.regions, key=lambda n: (-longitude.get(n, 0.0), n))
        names = labels(order)

        def columns(what: str) -> Array:
            return np.stack([table[f"{n} {what}"][shown] for n in order], axis=1).astype(float)

        self.names = [names[n] for n in order]
        self.demand, self.busy = columns("demand req/s"), columns("machines busy")
        self.held = columns("machines reserved")

    def _colour(self) -> dict[str, Any]:
        """Neighbours on the globe have neighbouring hues, lighter and darker by turns."""
        n = len(self.names)
        shades = [colorsys.hls_to_rgb(0.03 + 0.92 * i / n, 0.44 + 0.18 * (i % 2), 0.52) for i in range(n)]
        colours = list(SERIES[:n]) if n <= 6 else [f"#{''.join(f'{round(255 * x):02x}' for x in c)}" for c in shades]
        return coloured("region", self.names, colours)

    def week(self) -> list[Chart]:
        """The week with the busiest hour: where demand arises, and where reserved machines serve it."""
        count = len(self.demand)
        first = 0 if count <= WEEK else int(self.demand.sum(axis=1).argmax()) // WEEK * WEEK
        last = min(first + WEEK, count)
        which = "every hour"
        if count > WEEK:
            which = f"hours {first} to {last - 1} of {count}, the week with the busiest hour"
        x = amounts("hour", "hour", scale={"nice": False}, axis={"tickMinStep": 1})
        chosen = {"filter": {"param": "pick"}}
        stepped = last - first <= 48
        hours = [*range(first, last), last] if stepped else range(first, last)  # a step ends where the next begins

        def rows(values: Array) -> list[dict[str, Any]]:
            return [
                {"region": name, "y": [_short(values[min(h, last - 1), r], 3) for h in hours]}
                for r, name in enumerate(self.names)
                if values[first:last, r].any()
            ]  # a row a region, not one an hour, which would be a quarter of the page

        def area(title: str) -> dict[str, Any]:
            return {
                "params": [legend_choice("region", "pick")],
                "transform": [{"flatten": ["y"]},
                              {"window": [{"op": "row_number", "as": "row"}], "groupby": ["region"]},
                              {"calculate": f"datum.row + {first - 1}", "as": "hour"}, chosen],
                "mark": {"type": "area", "interpolate": "step-after" if stepped else "linear"},
                "encoding": {
                    "x": x, "y": amounts("y", title, stack="zero"), "color": self._colour(),
                    "tooltip": tips("region"),  # an area is one mark: it has no hour
                },
            }  # fmt: skip

        held = [
            {"hour": h, "region": name, "y": float(self.held[min(h, last - 1), r])}
            for r, name in enumerate(self.names)
            for h in (first, hours[-1])
        ]  # reservations change from quarter to quarter, so within a week two points state it all
        line = {
            "data": {"values": held},
            "transform": [chosen, {"aggregate": [{"op": "sum", "field": "y", "as": "held"}], "groupby": ["hour"]}],
            "mark": {"type": "line", "interpolate": "step-after", "color": "#111", "strokeWidth": 2},
            "encoding": {"x": x, "y": amounts("held"), "tooltip": tips("hour", ("held", "reserved", ",.0f"))},
        }  # fmt: skip
        how = "Click regions in the legend, which runs from east to west, to see only them."
        arises = f"Requests per second by the region of their users ({which}). {how}"
        served = (
            f"Machines at work by region ({which}) and, as a line, the machines reserved there; what rises above"
            f" the line is bought by the hour. {how}"
        )
        layers = [area("machines"), named(line, "reserved there")] if self.held.any() else [area("machines")]
        return [
            chart("Where demand arises", arises, rows(self.demand), {"layer": [area("requests/s")]}, height=280),
            chart("Where it is served", served, rows(self.busy), {"layer": layers}, height=280),
        ]

    def year(self) -> Chart | None:
        """Beyond a week: the busiest and the quietest hour of every day, against the reservation."""
        count = len(self.demand)
        if count <= WEEK:
            return None
        size = max(24, -(-count // DAYS_SHOWN // 24) * 24)
        busy, held = self.busy.sum(axis=1), self.held.sum(axis=1)
        rows = [
            {"day": h / 24, "most": float(busy[h : h + size].max()), "least": float(busy[h : h + size].min()),
             "mean": float(busy[h : h + size].mean()), "held": float(held[h : h + size].max())}
            for h in range(0, count, size)
        ]  # fmt: skip
        x = amounts("day", "day", scale={"nice": False})
        tip = tips(("day", None, ".0f"), ("most", "busiest hour", ",.1~f"), ("mean", "mean", ",.1~f"),
                   ("least", "quietest hour", ",.1~f"), ("held", "reserved", ",.1~f"))  # fmt: skip
        band = {
            "mark": {"type": "area", "color": SERIES[0], "opacity": 0.35},
            "encoding": {"x": x, "y": amounts("least", "machines"), "y2": {"field": "most"}, "tooltip": tip},
        }
        lines = {"mean": "mean (band: quietest to busiest hour)", "held": "reserved"}
        colour = coloured("line", lines.values(), (SERIES[0], "#111"))
        layers = [band] + [
            named({"mark": {"type": "line"}, "encoding": {"x": x, "y": amounts(field), "tooltip": tip}}, what,
                  color=colour)
            for field, what in lines.items()
        ]  # fmt: skip
        return chart(
            "The whole horizon",
            f"Machines at work everywhere: mean (blue line), quietest to busiest hour (band) of every"
            f" {'day' if size == 24 else f'{size // 24} days'}, and machines reserved (black line).",
            rows, {"layer": layers}, height=240,
        )  # fmt: skip


def _places(t: ReservedTables) -> dict[str, tuple[float, float]]:
    """(latitude, longitude) of the regions whose place the instance or the catalogue knows, degrees."""
    known = {n: (p.latitude_deg, p.longitude_deg) for n, p in geography.places().items() if n in t.case.regions}
    for name, (latitude, longitude) in zip(t.case.regions, t.case.places, strict=True):
        if latitude is not None and longitude is not None:
            known[name] = (float(latitude), float(longitude))
    return known


def _short(value: float, digits: int = 4) -> float:
    """As many digits as are shown, whole numbers without a point: a page holds tens of thousands."""
    found = float(f"{value:.{digits}g}")
    return int(found) if found.is_integer() else found


def _sides(labels: Mapping[str, tuple[tuple[float, float], int]]) -> dict[str, str]:
    """On which side of its circle each label stands, so that none covers another; without room a region has none.

    Lengths are degrees of longitude at the equator, as the map is drawn in a page of full width.

    Args:
        labels: region → ((latitude, longitude), letters of its label), the most important first.
    """
    letter, height, radius = 2.8, 5.4, 4.6
    centre = {n: (lon * (1 - 0.1516 * np.radians(lat) ** 2), lat * 1.1) for n, ((lat, lon), _) in labels.items()}
    taken: dict[str, tuple[float, float, float, float]] = {}  # left, right, bottom, top
    found: dict[str, str] = {}
    for name, (_, letters) in labels.items():
        x, y = centre[name]
        wide = letter * letters
        boxes = {
            "above": (x - wide / 2, x + wide / 2, y + radius, y + radius + height),
            "below": (x - wide / 2, x + wide / 2, y - radius - height, y - radius),
            "right": (x + radius, x + radius + wide, y - height / 2, y + height / 2),
            "left": (x - radius - wide, x - radius, y - height / 2, y + height / 2),
        }
        circles = [(p - radius, p + radius, q - radius, q + radius) for n, (p, q) in centre.items() if n != name]
        free = [s for s, box in boxes.items() if not any(_overlap(box, other) for other in taken.values())]
        clear = [s for s in free if not any(_overlap(boxes[s], circle) for circle in circles)]
        if free:
            found[name] = (clear or free)[0]
            taken[name] = boxes[found[name]]
    return found


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _map(t: ReservedTables, plan: ReservedPlan) -> Chart | None:
    """Regions at their places, reserved machines as areas, forwarding as great circles; None without places."""
    known = _places(t)
    if len(known) < len(t.case.regions):
        return None
    short = labels(known)
    held = dict.fromkeys(known, 0)
    for line in plan.reservations:
        held[line.region] += line.count if line.first_quarter == 0 else 0
    taken, sent = dict.fromkeys(known, 0.0), dict.fromkeys(known, 0.0)
    away = sorted((f for f in plan.flows if f.origin != f.server), key=lambda f: -f.mean_requests_per_s)
    for f in away:
        sent[f.origin] += f.mean_requests_per_s
        taken[f.server] += f.mean_requests_per_s
    flows = [
        {"type": "Feature", "region": short[f.origin], "to": short[f.server], "rtt": _short(f.rtt_ms),
         "rate": _short(f.mean_requests_per_s), "peak": _short(f.peak_requests_per_s),
         "geometry": {"type": "LineString", "coordinates": [[known[f.origin][1], known[f.origin][0]],
                                                            [known[f.server][1], known[f.server][0]]]}}
        for f in away[:FLOWS_SHOWN]
    ]  # fmt: skip
    label = {n: f"{short[n]} {held[n]}" for n in sorted((n for n in known if held[n]), key=lambda n: -held[n])}
    side = _sides({n: (known[n], len(text)) for n, text in label.items()})
    regions = [
        {"region": short[n], "latitude": known[n][0], "longitude": known[n][1], "held": held[n],
         "sent": _short(sent[n]), "taken": _short(taken[n]), "label": label.get(n, ""), "side": side.get(n, "")}
        for n in known
    ]  # fmt: skip
    land = [[[(_short(x), _short(y)) for x, y in ring] for ring in polygon] for polygon in geography.land()]
    continents = {"type": "Feature", "geometry": {"type": "MultiPolygon", "coordinates": land}}
    pick = {"name": "pick", "select": {"type": "point", "fields": ["region"], "on": "click", "toggle": "true"}}
    place = {"longitude": amounts("longitude"), "latitude": amounts("latitude")}
    tip = tips("region", ("held", "reserved machines"), ("sent", "sends away, req/s", ",.4~g"),
               ("taken", "takes in, req/s", ",.4~g"))  # fmt: skip
    layers: list[dict[str, Any]] = [
        {"data": {"values": [continents]}, "mark": {"type": "geoshape", "fill": "#e9ecef", "stroke": "#d0d5da",
                                                    "strokeWidth": 0.5, "tooltip": None}},
    ]  # fmt: skip
    if flows:
        layers.append({
            "data": {"values": flows},
            "mark": {"type": "geoshape", "fill": None, "stroke": SERIES[0], "strokeCap": "round"},
            "encoding": {
                "strokeWidth": amounts("rate", scale={"range": [0.4, 7], "domainMin": 0}, legend=None),
                "opacity": {"condition": {"param": "pick", "value": 0.65}, "value": 0.03},
                "tooltip": tips(("region", "from"), "to", ("rate", "mean req/s", ",.4~g"),
                                ("peak", "peak req/s", ",.4~g"), ("rtt", "round trip, ms", ".0f")),
            },
        })  # fmt: skip
    # Labels have their sides at full width; on a phone the circles state who is who where there are many.
    seen = {"expr": f"width < {WIDE} ? 0 : 1"} if len(side) > LABELS_ON_PHONES else 1
    layers += [
        {"params": [pick], "mark": {"type": "circle", "stroke": "#fff", "strokeWidth": 1, "opacity": 0.85},
         "encoding": place | {
             "size": amounts("held", legend=None, scale={"range": [25, {"expr": f"width < {WIDE} ? 140 : 420"}],
                                                         "domainMin": 0}),
             "color": {"condition": {"test": "datum.held > 0", "value": ALARM}, "value": "#7a828a"}, "tooltip": tip}},
        *(
            {"transform": [{"filter": f"datum.side === '{where}'"}],
             "mark": {"type": "text", "fontSize": 10, "fontWeight": 600, "dx": dx, "dy": dy, "align": align,
                      "opacity": seen} | halo,
             "encoding": place | {"text": {"field": "label"}}}
            for where, (dx, dy, align) in SIDES.items() if where in side.values()
            for halo in ({"stroke": "#fff", "strokeWidth": 3, "strokeOpacity": 0.85}, {})
        ),
    ]  # fmt: skip
    more = f" The {len(flows)} largest of {len(away)} flows are drawn." if len(away) > len(flows) else ""
    if len(side) < len(label):
        more += f" {len(label) - len(side)} regions have no room for their name: point at them."
    spec = {"layer": layers, "projection": {"type": "naturalEarth1"}}
    return chart(
        "Flow map",
        "Reserved machines (red, area and number) and where requests are forwarded to (line width: mean rate). Click a"
        f" region to see only what it sends away.{more}",
        regions, spec, height=400,
    )  # fmt: skip


def _cost(plan: ReservedPlan, comparisons: Mapping[str, float | None]) -> Chart:
    """USD per month by part, next to the paper's other ways to provision."""
    c = plan.cost
    usd = (c.reserved_usd_per_month, c.beyond_horizon_usd_per_month, c.on_demand_usd_per_month, c.spot_usd_per_month,
           c.unserved_usd_per_month, c.egress_usd_per_month)  # fmt: skip
    rows = [{"way": "this plan", "part": k, "usd": v} for k, v in zip(PARTS, usd, strict=True) if v > 0]
    other = "not split"
    rows += [{"way": k.replace("_", " "), "part": other, "usd": v} for k, v in comparisons.items() if v is not None]
    domain = [k for k in (*PARTS, other) if any(r["part"] == k for r in rows)]
    encoding = {
        "y": entries("way"),
        "x": amounts("usd", "USD per month", axis={"format": "~s", "tickCount": 6}),
        "color": coloured("part", domain, [PARTS.get(k, REST) for k in domain]),
        "tooltip": tips("way", "part", ("usd", "USD/month", ",.0f")),
    }  # fmt: skip
    ways = len({r["way"] for r in rows})
    meaning = "; ".join(f"{k.replace('_', ' ')}: {COMPARED[k]}" for k in comparisons if k in COMPARED)
    caption = "Cost per month of this plan by part, and of other ways to provision the same demand"
    caption = f"{caption} ({meaning})." if meaning else f"{caption}."
    if c.committed_usd:
        later = c.committed_beyond_horizon_usd
        after = f", {later:,.0f} of it after the horizon" if later else ""
        caption += f" The reservations commit to {c.committed_usd:,.0f} USD until the last term ends{after}."
    return chart(
        "Cost", caption, rows,
        {"mark": {"type": "bar", "height": {"band": 0.7}}, "encoding": encoding}, height=max(60, 34 * ways),
    )  # fmt: skip
