"""Random instances, and answers found the slow way (imported by the tests; not a test itself)."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from formulations.cost_efficiency.points import build_tables
from optmodels import catalog
from optmodels.latency.strategies import AO_FAMILIES, FAMILIES
from optmodels.loading import load

GIB = 2.0**30
MODELS = ("opt-6.7b", "opt-13b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "qwen2.5-32b")
POOLS = ("llm-pilot-table-ii", "llm-pilot-table-vi", "llm-pilot-table-vii", "aws")
MARKET_SETS = (["on_demand"], ["spot"], ["on_demand", "spot"], ["on_demand", "spot", "reserved_1y", "reserved_3y"])


@st.composite
def instances(draw, pools=POOLS, models=MODELS, most_machines=5, calibrated=True):
    """Instance documents that mostly have a few feasible plans and sometimes none."""
    pool = draw(st.sampled_from(pools))
    names = sorted({m.machine for m in catalog.machines(pool)})
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=most_machines, unique=True))
    batch = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 29, 64, 128]))
    s_in = draw(st.sampled_from([16, 128, 511, 1024]))
    s_out = draw(st.sampled_from([1, 2, 33, 256, 1000]))
    tps = draw(st.floats(1.0, 5000.0))
    if draw(st.booleans()):
        slo = {"kind": "batch", "tps": tps}
    else:
        ttft, tbt = draw(st.floats(0.02, 60.0)), draw(st.floats(0.005, 0.5))
        slo = {"kind": "real_time", "tps": tps, "ttft_s": ttft, "tpot_s": tbt}
        if draw(st.booleans()):
            slo["deadline_s"] = draw(st.floats(0.1, 200.0))
    low = draw(st.sampled_from([0.0, 0.0, 0.0, 0.2, 0.7, 1.0]))
    problem = {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static",
        "name": "random", "model": draw(st.sampled_from(models)),
        "precision": {"weights": draw(st.sampled_from(["fp16", "fp8", "int4"])), "kv": "fp16"},
        "workload": {"batch": batch, "input_tokens": s_in, "output_tokens": s_out}, "slo": slo,
        "objective": draw(st.sampled_from(["capped", "uncapped"])),
        "pool": {
            "catalog": pool, "include": chosen,
            "assumed_discounts": draw(st.sampled_from([{}, {"spot": 0.6}, {"spot": 0.6, "reserved_1y": 0.6}])),
        },
        "markets": {"main": draw(st.sampled_from(MARKET_SETS)), "ao": draw(st.sampled_from(MARKET_SETS))},
        "strategies": {
            "families": draw(st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=7, unique=True)),
            "replicas": draw(st.sampled_from([[1], [1, 2, 3]])), "multi_pass": [2, 3, 4, 8], "parallel": [2, 3],
            "shared": [2, 4],
            "alpha": {"min": low, "max": draw(st.floats(low, 1.0, allow_subnormal=False)) if low < 1 else 1.0},
        },
        "latency": {"variant": draw(st.sampled_from(["paper", "roofline"]))},
    }  # fmt: skip
    if calibrated and draw(st.booleans()):
        problem["latency"]["calibration"] = {
            "coefficients": [
                {
                    "phase": "prefill",
                    "slope": draw(st.floats(0.5, 3)),
                    "intercept_s": draw(st.floats(0, 0.1, allow_subnormal=False)),
                },
                {"phase": "decode", "family": "ao_shared", "slope": 1.3, "intercept_s": 0.001},
                {"phase": "decode", "slope": draw(st.floats(0.5, 3))},
            ]
        }
    if draw(st.booleans()):
        problem["budget_usd_per_hour"] = draw(st.floats(0.1, 30.0))
    return problem


def tables_of(document):
    """(problem, tables) of a document."""
    problem = load(document)
    return problem, build_tables(problem)


def alpha_range(tables):
    """The offload ratios each configuration may use, from memory and the instance alone."""
    curves, c, p = tables.curves, tables.configurations, tables.case.problem
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.maximum(1 - (curves.vram - curves.vram_fixed) / curves.kv, 0.0)
        high = np.minimum(curves.host / curves.kv_host, 1.0)
    offloads = np.isin(c.family, [FAMILIES.index(f) for f in FAMILIES if f in AO_FAMILIES or f.startswith("kvo")])
    low = np.where(offloads, np.maximum(low, p.strategies.alpha.min), low)
    high = np.where(offloads, np.minimum(high, p.strategies.alpha.max), 0.0)
    return low, high


def brute_force(problem, tables, grid=801):
    """Least USD per million tokens over candidates × a dense grid of α; inf where nothing is feasible.

    Shares the latency curves with the code under test (they have tests of their own), and nothing else: no
    convexity, no search, no pruning, no light-load cut.
    """
    low, high = alpha_range(tables)
    rows = np.flatnonzero(low <= high)
    if not len(rows):
        return np.inf
    part, tokens = tables.curves.take(rows), tables.case.tokens
    real_time = problem.slo.kind == "real_time"
    best = np.full(len(tables.curves), np.inf)
    found = np.full(len(rows), np.inf)
    for share in np.linspace(0.0, 1.0, grid):
        ttft, tbt, e2e = part.metrics(low[rows] + share * (high[rows] - low[rows]))
        ok = tokens / e2e >= problem.slo.tps
        if real_time:
            ok &= (ttft <= problem.slo.ttft_s) & (tbt <= problem.slo.tpot_s)
            ok &= e2e <= (problem.slo.deadline_s or np.inf)
        np.minimum(found, np.where(ok, e2e, np.inf), out=found)
    best[rows] = found
    s = tables.candidates
    e2e = best[s.configuration]
    affordable = np.isfinite(e2e)
    if problem.budget_usd_per_hour is not None:
        affordable &= s.usd_per_hour <= problem.budget_usd_per_hour
    if not affordable.any():
        return np.inf
    e2e = e2e[affordable]
    tps = np.full(len(e2e), problem.slo.tps) if problem.objective == "capped" else tokens / e2e
    return float((s.usd_per_hour[affordable] / (3600 * tps) * 1e6).min())
