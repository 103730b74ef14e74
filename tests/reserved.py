"""Small reserved-capacity instances that several test modules share."""

from __future__ import annotations

import copy

import numpy as np

TERMS = (["reserved_3y"], ["reserved_1y", "reserved_3y", "on_demand"], ["reserved_3y", "on_demand", "spot"])


def two_regions(**changes):
    """Two regions that peak in turn; by hand 20 machines apart, 12 together, 1 USD/h each."""
    document = {
        "formulation": "reserved_capacity",
        "schema": 1,
        "name": "two",
        "regions": [{"region": "west", "utc_offset_h": -8}, {"region": "east", "utc_offset_h": 4}],
        "network": {"rtt_ms": {"west": {"east": 100.0}}, "local_rtt_ms": 5.0},
        "services": [
            {
                "service": "chat",
                "slo": {"ttft_s": 0.5},
                "demand": {
                    "kind": "inline",
                    "unit": "requests_per_s",
                    "by_region": {"west": [10.0, 2.0], "east": [2.0, 10.0]},
                },
            }
        ],
        "machines": [
            {
                "machine": "box",
                "prices": {"on_demand": 3.0, "reserved_3y": 1.0},
                "serves": {"chat": {"requests_per_s": 1.0, "prefill_s": 0.1}},
            }
        ],
        "terms": ["reserved_3y"],
    }
    document = copy.deepcopy(document)
    for key, value in changes.items():
        document[key] = value
    return document


def service(**changes):
    """The service of `two_regions` with changes."""
    return [two_regions()["services"][0] | changes]


def machine(**changes):
    """The machine of `two_regions` with changes."""
    return [two_regions()["machines"][0] | changes]


def random_instance(seed: int):
    """A random network with random features: gains, ceilings, caps, losses, scenarios, growth."""
    g = np.random.default_rng(seed)
    R, T, K, machines = (int(g.integers(1, n)) for n in (5, 7, 3, 3))
    names = [f"r{i}" for i in range(R)]
    xy = g.uniform(0, 200, (R, 2))
    rtt = np.sqrt(((xy[:, None] - xy[None]) ** 2).sum(-1)) + 5
    services = []
    for k in range(K):
        demand = {n: [float(v) for v in np.round(g.uniform(0, 20, T) * g.integers(0, 2, T), 2)] for n in names}
        s = {
            "service": f"s{k}",
            "slo": {"ttft_s": float(g.choice([0.06, 0.12, 0.3]))},
            "kappa": float(g.choice([1.0, 1.0, 1.25])),
            "forwarding_ceiling": float(g.choice([1.0, 1.0, 0.5])),
            "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": demand},
        }
        if g.random() < 0.3:
            s["unserved_usd_per_request"] = float(g.choice([0.001, 0.005]))
        services.append(s)
    types = []
    for i in range(machines):
        base = {"reserved_1y": 6, "reserved_3y": 4, "on_demand": 10, "spot": 5}
        prices = {t: float(np.round(b * g.uniform(0.8, 1.2) * (i + 1), 3)) for t, b in base.items()}
        rate = {
            s["service"]: 2.0 * (i + 1) * (float(g.choice([0.8, 1.2])) if g.random() < 0.5 else 1) for s in services
        }
        m = {
            "machine": f"m{i}",
            "prices": prices,
            "serves": {s: {"requests_per_s": v, "prefill_s": 0.02} for s, v in rate.items()},
        }
        if g.random() < 0.4:
            m["prices_by_region"] = {names[0]: {"on_demand": prices["on_demand"] * 1.3}}
        if g.random() < 0.3:
            m["on_demand_available"] = int(g.integers(0, 6))
        if g.random() < 0.3:
            m |= {"spot_available": int(g.integers(0, 6)), "spot_lost_share": 0.1}
        if g.random() < 0.3:
            m["reservable"] = int(g.integers(5, 30))
        if g.random() < 0.2:
            m["step"] = 3
        if g.random() < 0.2:
            m["minimum"] = 4
        types.append(m)
    document = {
        "formulation": "reserved_capacity",
        "schema": 1,
        "name": f"random-{seed}",
        "regions": [{"region": n, "utc_offset_h": 0} for n in names],
        "network": {"rtt_ms": {a: {b: float(rtt[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)}},
        "services": services,
        "machines": types,
        "terms": TERMS[int(g.integers(3))],
    }
    if g.random() < 0.3 and R > 1:
        document["resilience"] = {"lose_any_region_keep": 0.6, "count_on_demand": bool(g.integers(2))}
    if g.random() < 0.25:
        futures = [
            {"scenario": "a", "probability": 0.6},
            {"scenario": "b", "probability": 0.4, "factor": 1.3, "by_region": {names[0]: 1.5}},
        ]
        document["uncertainty"] = {"scenarios": futures}
    if g.random() < 0.2:
        document.setdefault("uncertainty", {})["worst_case"] = {"deviation": 0.4, "regions": 1}
    if g.random() < 0.2:
        document["growth"] = {"quarters": int(g.choice([2, 5])), "factor_per_quarter": 1.15}
    if g.random() < 0.25 and R > 1:
        document["network"]["egress"] = {"usd_per_gb": {n: float(np.round(g.uniform(0, 0.2), 3)) for n in names}}
        for s in services:
            s["request_kb"], s["answer_kb"] = float(g.integers(1, 50)), float(g.integers(1, 2000))
    return document
