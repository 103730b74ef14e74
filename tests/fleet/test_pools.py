"""Branch and bound on pools: the optimum of the whole model, however few points are in its linear programs."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from fleet_cases import random_stages
from scipy.optimize import linprog

from formulations.fleet.methods import pools
from formulations.fleet.model import FleetModel
from optmodels.solver import Settings, solve_compiled
from optmodels.solver.cancel import cancellable
from optmodels.solver.highs import relaxation


def several_capacities(seed):
    """`random_stages` with two capacities, and points of which some share a pool."""
    rng = np.random.default_rng([seed, 1])
    problem, tables = random_stages(seed)
    other = tables.load * rng.uniform(0.5, 2.0, tables.load.shape)
    points = replace(tables.points, pool=rng.integers(0, 3, len(tables.points)))
    capacities = np.stack([tables.load, other])
    return problem, replace(tables, points=points, capacities=capacities, load=capacities.max(axis=0))


def solved(problem, tables, settings=None):
    relaxed = relaxation(FleetModel(problem, tables).compiled())
    if relaxed.x is None:
        return None
    return pools.solve(problem, tables, settings or Settings(), relaxed, None)[0]


@pytest.mark.parametrize("case", [random_stages, several_capacities])
def test_the_optimum_is_that_of_the_whole_model(case, monkeypatch):
    """With one point at first and one at a time most nodes are open only because of points outside."""
    for name in ("FIRST", "MORE", "NEAR"):
        monkeypatch.setattr(pools, name, 1)
    optima = outside = 0
    for seed in range(40):
        problem, tables = case(seed)
        expected = solve_compiled(FleetModel(problem, tables).compiled()).objective
        found = solved(problem, tables)
        if expected is None or found is None:  # interior point does not solve every relaxation
            assert found is None or found.x is None
            continue
        assert found.status == "optimal"
        assert found.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert found.bound <= found.objective * (1 + 1e-9)
        optima += 1
        outside += "of 5 points" in found.message and not found.message.startswith("branch and bound on pools, 5")
    assert optima >= 25
    assert outside >= 10


def test_the_worth_of_room_is_at_least_what_a_linear_program_finds_and_close():
    rng = np.random.default_rng(0)
    gain, each = rng.uniform(0, 1, (6, 30)), rng.uniform(0, 1, (3, 6, 30))
    gain[rng.random(gain.shape) < 0.3] = 0.0
    worth, mix = pools.worth_of_room(gain, each, np.full((3, 30), 1 / 3))
    best = np.array([
        -linprog(-gain[:, p], A_ub=each[:, :, p], b_ub=np.ones(3), bounds=(0, 1)).fun for p in range(30)
    ])  # fmt: skip
    np.testing.assert_allclose(mix.sum(axis=0), 1.0)
    assert (worth >= best * (1 - 1e-9)).all()
    assert (worth <= best * 1.15).all()


def test_a_call_that_is_stopped_says_so_and_keeps_its_bound():
    problem, tables = random_stages(0)
    relaxed = relaxation(FleetModel(problem, tables).compiled())
    event = threading.Event()
    event.set()
    with cancellable(event):
        found = pools.solve(problem, tables, Settings(), relaxed, None)[0]
    assert (found.status, found.limit) == ("no_solution_found", "interrupt")


def test_a_limit_of_time_leaves_a_bound_below_every_fleet():
    for seed in range(10):
        problem, tables = random_stages(seed)
        expected = solve_compiled(FleetModel(problem, tables).compiled()).objective
        found = solved(problem, tables, Settings(time_limit=0.0))
        if expected is not None and found is not None:
            assert found.bound is None or found.bound <= expected * (1 + 1e-9)
