"""Small fleets of measured points, and an optimum by brute force that shares nothing with the MILP but the tables."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import yaml
from scipy.optimize import linprog

from formulations.fleet import FORMULATION
from formulations.fleet.points import BOTH, DECODE, PREFILL, build_tables
from formulations.fleet.problem import Fleet, ModelOption


def fleet(rates, throughput, costs, **changes):
    """A fleet of one workload per row of `throughput` (demands × points, requests/s; 0: impossible)."""
    workloads = [
        {"name": f"w{i}", "buckets": [{"name": "b", "requests_per_s": r}]} | changes.pop(f"w{i}", {})
        for i, r in enumerate(rates)
    ]
    points = [
        {"name": f"p{k}", "machine": f"m{k}", "usd_per_hour": c,
         "requests_per_s": {f"w{i}/b": throughput[i][k] for i in range(len(rates)) if throughput[i][k] > 0}}
        | changes.pop(f"p{k}", {})
        for k, c in enumerate(costs)
    ]  # fmt: skip
    return Fleet.model_validate(
        {"formulation": "fleet", "schema": 1, "name": "tiny", "workloads": workloads, "points": points} | changes
    )


def scored(problem, scores, model):
    """The tables of a fleet of measured points as if point p loaded model[p], answering workload i at scores[i][k].

    A score of 0: the workload does not accept the model.
    """
    tables = build_tables(problem)
    views = []
    for k in range(max(model) + 1):
        works = [
            w.model_copy(update={"models": (ModelOption(name=f"k{k}", model="opt-6.7b", quality=scores[i][k]),)})
            for i, w in enumerate(tables.case.workloads) if scores[i][k]
        ]  # fmt: skip
        views.append(replace(tables.case, workloads=tuple(works)))
    names = [w.name for w in tables.case.workloads]
    accepted = np.array([[scores[names.index(d.workload)][k] > 0 for k in model] for d in tables.demands])
    return replace(
        tables, models=tuple(views), points=replace(tables.points, model=np.array(model)),
        load=np.where(accepted, tables.load, np.inf),
    )  # fmt: skip


def random_fleet(rng, demands=3, points=3, **changes):
    """A random instance of which every demand can be served."""
    throughput = rng.uniform(0.5, 4.0, (demands, points)).round(2)
    throughput[rng.random((demands, points)) < 0.2] = 0.0
    for i in range(demands):
        if not throughput[i].any():
            throughput[i, rng.integers(points)] = 1.0
    rates = rng.uniform(0.2, 3.0, demands).round(2)
    costs = rng.uniform(0.5, 4.0, points).round(2)
    return fleet(rates.tolist(), throughput.tolist(), costs.tolist(), **changes)


def brute_force(problem, tables, most=6):
    """Optimum of a one-period instance by trying every vector of counts; shares by a linear program each.

    Returns:
        min_cost: the least USD/h; max_served: the most weighted requests/s; max_ce: tokens per USD; None: infeasible.
    """
    load, rates = tables.load, tables.rates[0]
    every = load[None] if tables.capacities is None else tables.capacities
    W, P = load.shape
    finite = np.isfinite(load)
    pairs = [(w, p) for w in range(W) for p in range(P) if finite[w, p]]
    case = tables.case
    work = [case.workload(d.workload) for d in tables.demands]
    least = np.array([case.serve_at_least(w) for w in work])
    price = np.array([w.unserved_usd_per_1000_requests * 3.6 for w in work]) * rates
    weight = np.array([w.weight for w in work]) * rates
    best = None
    for n in itertools.product(range(most + 1), repeat=P):
        n = np.array(n)
        cost = float(n @ tables.points.usd_per_hour)
        if problem.budget_usd_per_hour is not None and cost > problem.budget_usd_per_hour + 1e-9:
            continue
        if (n @ tables.consumption > tables.limits + 1e-9).any():
            continue
        if problem.objective == "min_cost" and best is not None and cost >= best:
            continue
        if any(n[np.isfinite(load[[i for i, w in enumerate(work) if w.name == k.name]]).any(axis=0)].sum()
               < k.min_replicas for k in case.workloads):  # fmt: skip
            continue
        if problem.objective == "max_ce" and n.sum() == 0:
            continue
        # Variables: shares, then s.
        c = np.concatenate([np.zeros(len(pairs)), price if problem.objective == "min_cost" else weight])
        A_eq = np.zeros((W, len(pairs) + W))
        A_ub = np.zeros((len(every) * P + W, len(pairs) + W))
        for k, (w, p) in enumerate(pairs):
            A_eq[w, k] = 1
            A_ub[p : len(every) * P : P, k] = rates[w] * every[:, w, p]
            A_ub[len(every) * P + w, k] = tables.points.spot[p]
        A_eq[:, len(pairs) :] = np.eye(W)
        rhs = np.concatenate([*[n] * len(every), [w.spot_share_max for w in work]])
        ends = [(0, None)] * len(pairs) + [(0, 1 - v) for v in least]
        found = linprog(c, A_ub=A_ub, b_ub=rhs, A_eq=A_eq, b_eq=np.ones(W), bounds=ends)
        if found.status != 0:
            continue
        served = 1 - found.x[len(pairs) :]
        if problem.objective == "min_cost":
            value = cost + found.fun
            best = value if best is None else min(best, value)
        elif problem.objective == "max_served":
            value = float(weight @ served)
            best = value if best is None else max(best, value)
        else:
            tokens = np.array([d.tokens for d in tables.demands])
            value = float((weight * tokens) @ served) * 3600 / cost
            best = value if best is None else max(best, value)
    return best


CONTINUOUS = yaml.safe_load(FORMULATION.template)
BASE = CONTINUOUS | {
    "serving": "static", "engine": {}, "latency": {},
    "strategies": {"families": ["high_end", "kvo_ram"], "batches": [1, 4, 16, 64]},
    "queueing": {"model": "mmc", "load_levels": [0.5, 0.7, 0.85, 0.95]},
    "workloads": [
        CONTINUOUS["workloads"][0] | {"slo": {"ttft_s": {"at_most": 2.0, "percentile": 0.95}, "tpot_s": 0.1}},
        CONTINUOUS["workloads"][1],
    ],
}  # fmt: skip
# Long prompts that fill memory, short ones that fill steps: no single capacity is the scarcest of all mixtures.
BUSY = CONTINUOUS | {
    "reserve": None, "quota": [], "stock": [], "markets": {"main": ["on_demand"], "ao": ["on_demand"]},
    "pool": {"catalog": "aws", "include": ["g6e.xlarge", "p5.4xlarge"]},
    "workloads": [
        CONTINUOUS["workloads"][0] | {"requests_per_s": 40.0},
        {"name": "documents", "model": "llama-3.1-8b", "prefix_hit_share": 0.25,
         "buckets": [{"input_tokens": 12000, "output_tokens": 300, "requests_per_s": 1.5}],
         "slo": {"ttft_s": {"at_most": 6.0, "percentile": 0.95}, "tpot_s": 0.08}},
    ],
}  # fmt: skip
# 70B on unlike machines: what prefills fast is dear for decoding, and the deadline leaves not every pair.
APART = BUSY | {
    "deployment": {"stages": ["both", "prefill", "decode"]},
    "pool": {"catalog": "aws", "include": ["p4de.24xlarge", "p5.48xlarge"]},
    "workloads": [{
        "name": "chat", "model": "llama-3.1-70b", "requests_per_s": 10.0,
        "buckets": [{"input_tokens": 4096, "output_tokens": 256, "share": 0.5},
                    {"input_tokens": 1024, "output_tokens": 512, "share": 0.5}],
        "slo": {"ttft_s": {"at_most": 2.0, "percentile": 0.95}, "tpot_s": {"at_most": 0.05, "percentile": 0.95},
                "deadline_s": 40},
    }],
}  # fmt: skip
DAY = BASE | {
    "reserve": {"lost": 1, "machines": "spot"},
    "budget_usd_per_hour": 3.0, "quota": [{"machine": "*", "at_most": 8, "unit": "gpus"}],
    "periods": [{"name": "day", "hours": 14}, {"name": "night", "hours": 10, "rate_factor": 0.2}],
    "change": {"start_usd": 0.5, "stop_usd": 0.1, "max_starts": 10}, "running": [],
    "workloads": [
        BASE["workloads"][0] | {"spot_share_max": 0.8, "min_replicas": 1},
        BASE["workloads"][1] | {"unserved_usd_per_1000_requests": 0.05, "serve_at_least": 0.2},
    ],
}  # fmt: skip
SCARCE = BASE | {"reserve": None, "quota": [], "stock": [{"machine": "g6*", "market": "spot", "at_most": 1}]}
MEASURED = fleet(
    [2.0, 1.0], [[1.5, 4.0], [2.0, 0.0]], [1.0, 2.5], p0={"market": "spot", "slots": 4},
    interruptions=[{"per_hour": 0.1}], w0={"slo": {"deadline_s": {"at_most": 30.0, "percentile": 0.9}}},
    w1={"min_replicas": 1}, queueing={"model": "mmc"}, quota=[{"at_most": 20}],
).model_dump(mode="json", by_alias=True, exclude_unset=True)  # fmt: skip


def random_stages(seed):
    """A random fleet of measured points, some of which do one stage, in two exchanges; deadlines bind pairs."""
    rng = np.random.default_rng(seed)
    demands, points = 2, 5
    throughput = rng.uniform(0.5, 4.0, (demands, points)).round(2)
    throughput[rng.random((demands, points)) < 0.15] = 0.0
    changes = {}
    for w in range(demands):
        if rng.random() < 0.7:
            changes[f"w{w}"] = {"slo": {"deadline_s": 10.0}}
        if rng.random() < 0.3:
            changes.setdefault(f"w{w}", {})["unserved_usd_per_1000_requests"] = float(rng.uniform(0.1, 1.0))
    if rng.random() < 0.3:
        changes["quota"] = [{"machine": "*", "at_most": int(rng.integers(2, 6))}]
    if rng.random() < 0.2:
        changes["budget_usd_per_hour"] = float(rng.uniform(3, 9))
    if seed % 3 == 1:  # a prefill and a decode point on spot, each of which may take so much
        changes |= {"p1": {"market": "spot"}, "p4": {"market": "spot"}}
        changes.setdefault("w0", {})["spot_share_max"] = 0.25
    if seed % 4 == 2:
        changes.setdefault("w1", {})["min_replicas"] = 2
    problem = fleet(rng.uniform(0.2, 1.5, demands).round(2).tolist(), throughput.tolist(),
                    rng.uniform(0.5, 4.0, points).round(2).tolist(), **changes)  # fmt: skip
    tables = build_tables(problem)
    stage = np.array([BOTH, PREFILL, PREFILL, DECODE, DECODE])
    exchange = np.array([0, 0, *rng.integers(0, 2, 3)])
    part = np.where(stage[None, :] != BOTH, rng.uniform(1.0, 9.0, (demands, points)).round(1), 0.0)
    points_ = replace(tables.points, stage=stage, exchange=exchange)
    return problem, replace(tables, points=points_, part_s=part, blocked={})
