"""Deviations by shrinking sets against all subsets, one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reserved import machine, service, two_regions

from formulations.reserved_capacity.dispatch import RowLp
from formulations.reserved_capacity.losses import of_guard, undominated, unserved
from optmodels import formulation
from optmodels.loading import load


def tables(seed: int, regions: int, budget: int):
    g = np.random.default_rng(seed)
    names = [f"r{i}" for i in range(regions)]
    xy = g.uniform(0, 150, (regions, 2))
    rtt = np.sqrt(((xy[:, None] - xy[None]) ** 2).sum(-1)) + 5
    demand = {n: g.uniform(0, 10, 4).tolist() for n in names}
    document = two_regions(
        regions=[{"region": n, "utc_offset_h": 0} for n in names],
        network={"rtt_ms": {a: {b: float(rtt[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)}},
        services=service(
            slo={"ttft_s": 0.2}, demand={"kind": "inline", "unit": "requests_per_s", "by_region": demand}
        ),
        machines=machine(), uncertainty={"worst_case": {"deviation": 0.5, "regions": budget}},
    )  # fmt: skip
    return formulation.get("reserved_capacity").tables(load(document)), g


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 3))
def test_a_plan_fails_if_and_only_if_some_set_of_regions_does(seed, regions, budget):
    t, g = tables(seed, regions, budget)
    held = np.round(t.demand.mean(axis=0) @ t.reach / t.reach.sum(axis=0) * g.uniform(0.8, 2.5))[:, None]
    lp, [guard] = RowLp(t, phase_one=True), t.guards

    def short(demand, machines):
        lp.solve(demand, machines)
        return lp.objective > 1e-7 * demand.sum()

    every = any(
        short(row * np.where(np.isin(t.source_region, chosen), 1.5, 1.0), held[:, 0])
        for chosen in combinations(range(regions), min(budget, regions)) for row in t.demand
    )  # fmt: skip
    case = of_guard(t, guard)
    assert every == any(
        short(d, m) for demand, have, _ in unserved(t, case, held) for d, m in zip(demand, have, strict=True)
    )


def test_undominated_rows():
    assert undominated(np.array([[1.0, 1.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])).tolist() == [1, 2]


@pytest.mark.parametrize("budget", [1, 2])
def test_sets_of_a_served_row_are_not_looked_at(budget):
    t, _ = tables(1, 6, budget)
    assert list(unserved(t, of_guard(t, t.guards[0]), np.full((6, 1), 1e4))) == []
