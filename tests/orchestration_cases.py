"""Small orchestration instances that several test modules share."""

from __future__ import annotations

import copy

import numpy as np
import pyomo.environ as pyo
import pytest

from formulations.orchestration import literal
from formulations.orchestration.engines import Stream, engines_at
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.points import build_tables
from optmodels.engine.continuous import Classes
from optmodels.engine.costs import EngineCosts
from optmodels.formulation import Options
from optmodels.latency.steps import Provenance
from optmodels.solver.compile import compile_model
from optmodels.solver.highs import solve_compiled


def levels(
    costs, limits, prompt, output, batches, kv_tokens=100_000.0, stream=(), ranks=1, weight=None, slower=1.0,
    cached=None,
):  # fmt: skip
    """Levels of an engine for requests that are as likely as each other, or as `weight` says."""
    each = np.full(len(prompt), 1 / len(prompt)) if weight is None else np.asarray(weight)
    kind = Classes.of(np.asarray(prompt, dtype=float), np.asarray(output, dtype=float), weight=each)
    engine = EngineCosts(costs, slower, kv_tokens, Provenance("", ""), ranks=ranks, slots=limits.slots)
    return list(engines_at(engine, limits, Stream(kind, *stream), batches, cached=cached))


DECAY = [
    {"model": m, "tp": tp, "base_tokens_per_s": base * speed, "delta": delta}
    for m, base in (("mistral-7b", 40.0), ("llama-3.2-3b", 90.0))
    for tp, speed, delta in ((1, 1.0, 0.10), (2, 1.75, 0.12), (4, 2.9, 0.14))
]


def two_models(count=60, seed=0, **changes):
    """One server of four GPUs (or `cluster`), two models, random requests; `changes` replace top-level keys."""
    rng = np.random.default_rng(seed)
    document = {
        "formulation": "orchestration",
        "schema": 1,
        "name": "two-models",
        "cluster": {"servers": [{"server": "box", "count": 2, "gpu": "v100-16g-pcie", "gpus": 4}]},
        "models": [{"model": "mistral-7b"}, {"model": "llama-3.2-3b"}],
        "candidates": {"tp": [1, 2, 4], "batch": [2, 4]},
        "latency": {"decay": DECAY},
        "requests": {
            "rows": {
                "arrival_s": np.sort(rng.uniform(0, 30, count)).round(3).tolist(),
                "output_tokens": rng.integers(200, 600, count).tolist(),
                "model": rng.choice(["mistral-7b", "llama-3.2-3b"], count).tolist(),
                "slo_factor": rng.uniform(0.8, 1.5, count).round(3).tolist(),
            }
        },
        "bins": {"lengths": 2, "slo": 2, "seconds": 3.0},
    }
    return copy.deepcopy({k: v for k, v in (document | changes).items() if v is not None})


def handful(count=7, seed=0, **changes):
    """Every request a class of its own, arriving at the beginning of a bin: no aggregation error."""
    rng = np.random.default_rng(seed)
    document = two_models(
        cluster={"servers": [{"server": "box", "count": 2, "gpu": "v100-16g-pcie", "gpus": 2}]},
        models=[{"model": "mistral-7b"}],
        candidates={"tp": [1, 2], "batch": [1, 2]},
        latency={"decay": [d for d in DECAY if d["model"] == "mistral-7b" and d["tp"] <= 2]},
        requests={
            "rows": {
                "arrival_s": (2.0 * np.sort(rng.integers(0, 4, count))).tolist(),
                "output_tokens": rng.choice(np.arange(200, 500), count, replace=False).tolist(),
                "slo_factor": rng.uniform(0.7, 1.8, count).round(3).tolist(),
            }
        },
        memory={"tokens_per_slot": 500},
        bins={"lengths": 50, "slo": 50, "seconds": 2.0},
    )
    return copy.deepcopy(document | changes)


def agreeing(problem):
    """Tables and `exact` of requests that are classes of their own, once the literal form says the same.

    Requests may be spread over instances in both.
    """
    t = build_tables(problem)
    assert (t.classes.count == 1).all()
    model = literal.build(problem, t)
    for v in model.x.values():
        v.domain = pyo.NonNegativeReals
        v.setub(1)
    relaxed = solve_compiled(compile_model(model))
    column = exact(problem, t, Options())
    assert relaxed.objective == pytest.approx(column.plan.score.total, abs=1e-6)
    return t, column
