"""What load levels that change over time would be worth: the best of one plan with its batch limits free by period.

    python -m papers.orchestration_levels

A configuration is planned at the rate of its full batch, so every batch size is a static load level of its
parallelism. Here each parallelism keeps its instances, and in every period each of them takes any batch size: z_{c,p}
whole instances at level c, Σ_c z_{c,p} = n over the levels of one parallelism, and what is started at a level needs its
slots there until it is done. Beside it, what a plan gains in replay as tokens come faster than with a full batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.orchestration.making import counts_of
from formulations.orchestration.model import FlowModel
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from optmodels.arrays import Ints
from optmodels.formulation import Options, get
from optmodels.simulation.options import ReplayOptions
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import Report, Settings, solve_compiled
from papers.maaso import BATCHES, DELTA, SPEEDUP, TOKENS_PER_S, case

GAP, TIME_LIMIT_S = 1e-3, 60.0
PEAK_PER_S = {"urgent": 2.2, "relaxed": 4.0}
DAY_BINS = 24


def levels_model(t: OrchestrationTables, counts: Ints, period_bins: int) -> tuple[FlowModel, Compiled]:
    """The exact form with the instances of every parallelism given and their levels free in every period."""
    parallelism = [(x.model, x.gpu, x.tp, x.pp, x.dp) for x in t.configurations]
    running = {p: int(sum(n for n, q in zip(counts, parallelism, strict=True) if q == p)) for p in set(parallelism)}
    flow = FlowModel(t, np.array([int(running[p] > 0) for p in parallelism], dtype=np.int64))
    model = flow.compiled()
    used, bins = np.unique(flow.c), flow.bins + 1
    occupancy = np.flatnonzero([name.startswith("occupancy[") for name in model.row_names])
    periods = -(-bins // period_bins)
    # Slots of bin b come from z[c, b // period] in place of n[c].
    c, b = np.repeat(np.arange(len(used)), bins), np.tile(np.arange(bins), len(used))
    slots = sp.coo_matrix(
        (-t.slots_of[used][c].astype(float), (occupancy, c * periods + b // period_bins)),
        shape=(model.A.shape[0], len(used) * periods),
    )  # fmt: skip
    keep = np.ones(model.A.shape[0])
    keep[occupancy] = 0.0
    n = np.zeros(model.A.shape[1])
    flow.n.of(n)[:] = 1.0
    without = model.A - sp.diags(1.0 - keep) @ model.A @ sp.diags(n)
    of = sorted({parallelism[c] for c in used})
    each = sp.coo_matrix(
        (np.ones(len(used)), (np.array([of.index(parallelism[c]) for c in used]), np.arange(len(used)))),
        shape=(len(of), len(used)),
    )  # fmt: skip
    A = sp.bmat([[without, slots], [None, sp.kron(each, sp.eye(periods))]]).tocsc()
    more, rows = len(used) * periods, len(of) * periods
    return flow, replace(
        model, A=A, costs=np.hstack((model.costs, np.zeros((len(model.costs), more)))),
        row_lower=np.append(model.row_lower, np.full(rows, -np.inf)),
        row_upper=np.append(model.row_upper, np.repeat([float(running[p]) for p in of], periods)),
        lower=np.append(model.lower, np.zeros(more)), upper=np.append(model.upper, np.full(more, np.inf)),
        integer=np.append(model.integer, np.ones(more, dtype=bool)),
        variables=[SimpleNamespace(name=str(i)) for i in range(A.shape[1])],
        row_names=[str(i) for i in range(A.shape[0])],
    )  # fmt: skip


def by_period(t: OrchestrationTables, counts: Ints, period_bins: int) -> tuple[float, Report]:
    """Share of requests in time with levels free in every period, and the solver's report (score and bound)."""
    flow, model = levels_model(t, counts, period_bins)
    found = solve_compiled(model, Settings(TIME_LIMIT_S, GAP))
    assert found.x is not None
    served = flow.assignment(found.x[: flow.width]).admitted.sum()
    return float(served / t.classes.count.sum()), found


def urgent(low: float, high: float, cv: float, requests: int) -> Orchestration:
    """MaaSO's cluster with factors down to what only a lightly loaded tp-8 meets: its idle token takes 0.24 t_slice."""
    data = case(4, cv=cv, requests=requests).model_dump(mode="json", by_alias=True, exclude_none=True)
    generated = data["requests"]["trace"]["generated"]
    del generated["maaso"]
    generated["mix"] = [{"output_tokens": [300, 500], "slo_factor": [low, high]}]
    data["candidates"]["batch"] = [1, *BATCHES]
    return Orchestration.model_validate(data | {"name": f"urgent-{low:g}-{high:g}-cv-{cv:g}"})


def day(together: bool, gpus: int = 8, load: float = 1.0) -> Orchestration:
    """One model through a day: urgent requests (θ 0.35) by day, relaxed ones (θ 1.5) then too or by night."""
    model = "llama-2-7b"
    wave = [max(0.05, math.sin(2 * math.pi * (h + 0.5) / DAY_BINS)) for h in range(DAY_BINS)]
    other = wave if together else wave[DAY_BINS // 2 :] + wave[: DAY_BINS // 2]
    scale = load * gpus / 8
    name = f"day-{'together' if together else 'in-turn'}-{gpus}-gpus-load-{load:g}"
    return Orchestration.model_validate({
        "formulation": "orchestration", "schema": 1, "name": name,
        "cluster": {"servers": [{"server": "p3", "count": gpus // 8, "gpu": "v100", "gpus": 8, "vram_gib": 16}]},
        "models": [{"model": model}], "candidates": {"batch": [1, *BATCHES]},
        "latency": {"decay": [
            {"model": model, "tp": tp, "base_tokens_per_s": TOKENS_PER_S[model] * SPEEDUP[tp], "delta": DELTA[tp]}
            for tp in SPEEDUP
        ]},
        "requests": {"classes_bin_s": 3600, "classes": [
            {"model": model, "output_tokens": 300, "slo_factor": 0.35,
             "requests_per_s": [PEAK_PER_S["urgent"] * scale * v for v in wave]},
            {"model": model, "output_tokens": 500, "slo_factor": 1.5,
             "requests_per_s": [PEAK_PER_S["relaxed"] * scale * v for v in other]},
        ]},
    })  # fmt: skip


def replanned(problem: Orchestration) -> float:
    """Share in time of class rates with a plan of its own for every bin: parallelism may change too."""
    data = problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    asked = data["requests"]["classes"]
    served = total = 0.0
    for b in range(DAY_BINS):
        data["requests"]["classes"] = [r | {"requests_per_s": [r["requests_per_s"][b]]} for r in asked]
        part = Orchestration.model_validate(data)
        form = get("orchestration")
        plan: Any = form.method("exact")(part, form.tables(part), Options(time_limit=TIME_LIMIT_S, gap=GAP)).plan
        served, total = served + plan.prediction.in_time, total + plan.prediction.requests
    return served / total


def cases() -> Iterator[tuple[Orchestration, bool]]:
    """Problems, and whether their classes may be planned anew for every bin."""
    for trace, extra in (
        (1, {}), (4, {}), (6, {}), (4, {"cv": 8.0}), (4, {"gpus": 8}), (4, {"requests": 20_000}),
    ):  # fmt: skip
        problem = case(trace, **extra)
        name = "-".join([problem.name, *(f"{k}-{v:g}" for k, v in extra.items())])
        yield problem.model_copy(update={"name": name}), False
    for cv in (2.0, 8.0):
        yield urgent(0.26, 0.4, cv, 3000), False
        yield urgent(0.3, 0.6, cv, 6000), False
    yield day(True), True
    yield day(False), True
    yield day(False, 32), True
    yield day(False, 32, 1.6), True


def main() -> int:
    """One line a problem."""
    from optmodels.cli.console import show

    form = get("orchestration")
    assert form.replay is not None
    for problem, anew in cases():
        t = form.tables(problem)
        found = form.method("exact")(problem, t, Options(time_limit=TIME_LIMIT_S, gap=GAP))
        plan: Any = found.plan
        line = f"{problem.name}: static {plan.prediction.attainment:.2%} (score {plan.score.total:.4f})"
        for bins in (8, 2) if t.class_of is not None else (12, 1):
            share, report = by_period(t, counts_of(t, plan), bins)
            line += (f"; levels every {bins * t.bin_s:,.0f} s {share:.2%} (score {report.objective:.4f},"
                     f" at most {report.bound:.4f})")  # fmt: skip
        if anew:
            line += f"; planned anew every bin {replanned(problem):.2%}"
        policy = plan.dispatcher.policy
        if t.class_of is not None:
            data = plan.model_dump(mode="json")
            fast, slow = (
                form.replay(problem, data, None, ReplayOptions(policy=policy, speed=speed))["policies"][policy]
                for speed in ("load", "worst_case")
            )  # fmt: skip
            line += f"; replayed {fast['attainment']:.2%}, at full-batch rates {slow['attainment']:.2%}"
        show([line])
    return 0


if __name__ == "__main__":
    sys.exit(main())
