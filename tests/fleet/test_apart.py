"""Prefill and decode as known tools size them: against every pair and unit one by one, and plans that hold."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fleet_cases import APART, BUSY, random_stages

import optmodels
from formulations.fleet import FORMULATION, making
from formulations.fleet.check import check
from formulations.fleet.methods import METHODS
from formulations.fleet.points import DECODE, PREFILL, build_tables
from optmodels.formulation import Options

ROOT = Path(__file__).resolve().parents[2]


def by_hand(tables, units):
    """The least USD/h over all pairs that serve both demands, and all units of the given sizes, repeated."""
    x, rates, best = tables.points, tables.rates[0], math.inf
    demands = range(len(rates))
    for p in np.flatnonzero(x.stage == PREFILL):
        for d in np.flatnonzero(x.stage == DECODE):
            late = any(tables.part_s[w, p] + tables.part_s[w, d] > tables.deadlines[w] for w in demands)
            first, rest = (sum(rates[w] * tables.load[w, k] for w in demands) for k in (p, d))
            if late or x.exchange[p] != x.exchange[d] or not math.isfinite(first + rest):
                continue
            for n, m in units:
                times = math.ceil(max(first / (0.9 * n), rest / (0.92 * m)) - 1e-9)
                best = min(best, times * (n * x.usd_per_hour[p] + m * x.usd_per_hour[d]))
    return best


def test_units_of_x_and_y_workers_are_the_cheapest_of_all(monkeypatch):
    monkeypatch.setattr(making, "_transfers", lambda *_: [])  # measured points have no caches
    found = 0
    for seed in range(120):
        problem, tables = random_stages(seed)
        if any(w.min_replicas or w.spot_share_max < 1 for w in problem.workloads):  # which a pair may break
            continue
        plan = METHODS["xpyd"](problem, tables, Options()).plan
        if plan is not None:
            found += 1
            units = [(n, m) for n in range(1, 9) for m in range(1, 9)]  # no more are needed here
            assert plan.total_usd_per_hour == pytest.approx(by_hand(tables, units))
    assert found >= 10


def test_the_rate_takes_as_many_replicas_as_it_needs_on_equal_gpus():
    problem = optmodels.load(APART)
    tables = build_tables(problem)
    outcomes = {name: METHODS[name](problem, tables, Options()) for name in ("distserve", "xpyd")}
    best = optmodels.solve(APART).objective
    for outcome in outcomes.values():
        plan = outcome.plan
        assert check(problem, plan.model_dump(mode="json")).ok
        assert plan.total_usd_per_hour >= best - 1e-6
        assert sorted(d.stage for d in plan.periods[0].deployments) == ["decode", "prefill"]
    lines = outcomes["distserve"].plan.periods[0].deployments
    assert len({d.machines[0].gpu for d in lines}) == 1
    for d in lines:
        used = max(d.engine.capacities.values())  # of all of its deployments
        assert (d.count - 1) / d.count < used <= 1 + 1e-9


def test_they_say_nothing_of_fleets_without_stages():
    assert {"distserve", "xpyd"} <= set(FORMULATION.methods_for(optmodels.load(APART)))
    assert not {"distserve", "xpyd"} & set(FORMULATION.methods_for(optmodels.load(BUSY)))
    rows = optmodels.compare([BUSY], ["greedy", "xpyd"])
    assert [row["status"] for row in rows] == ["feasible", "no_solution_found"]


def test_the_page_states_what_the_baselines_of_aws_stages_cost() -> None:
    page = (ROOT / "docs" / "results" / "disaggregation.md").read_text(encoding="utf-8")
    rows = optmodels.compare([ROOT / "instances" / "fleet" / "aws-stages.yaml"], ["distserve", "xpyd"])
    stated = ", ".join(f"`{r['method']}` {r['objective']:.2f}" for r in rows)
    assert f"Baselines on `aws-stages.yaml`, USD/h: exact 85.25, {stated}." in page
