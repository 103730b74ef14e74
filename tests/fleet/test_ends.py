"""Loops that end: reserves that no number of spare deployments keeps, and methods told to stop."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from formulations.fleet import FORMULATION
from formulations.fleet.methods import heuristics
from formulations.fleet.methods.columns import relaxation
from formulations.fleet.points import build_tables
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load

REPORTED = Path(__file__).parents[1] / "reported" / "fleet"


@pytest.fixture(scope="module")
def instance():
    """A spot market whose machines take 19 million years to come back: no reserve keeps a pool of them."""
    problem = load(REPORTED / "reserve-that-nothing-keeps.yaml")
    return problem, build_tables(problem)


@pytest.mark.parametrize("method", ["greedy", "greedy_dp", "lp_rounding", "single_type", "melange"])
def test_a_reserve_that_nothing_keeps_is_no_plan_and_no_endless_loop(instance, method):
    began = time.process_time()
    outcome = FORMULATION.methods[method](*instance, Options(time_limit=10.0))
    assert time.process_time() - began < 10
    if method == "single_type":  # on demand, which the reserve does not ask about
        assert outcome.status == "feasible"
    else:
        assert outcome.status == "no_solution_found" and outcome.log["reason"]


def test_the_exact_method_refuses_such_a_reserve(instance):
    with pytest.raises(InputError, match="survive_probability"):
        FORMULATION.methods["exact"](*instance, Options(time_limit=10.0))


def test_the_fewest_spare_deployments_are_those_added_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(300):
        points = SimpleNamespace(rho=rng.uniform(0.5, 1, 3), unavailable=rng.random(3) * rng.choice([0.01, 0.3, 0.9]))
        lost = None if rng.random() < 0.7 else int(rng.integers(0, 4))
        reserve = SimpleNamespace(load_after_loss=1.0, lost=lost, survive_probability=0.99, pools=2)
        of = SimpleNamespace(reserve=reserve), SimpleNamespace(points=points)
        n = rng.integers(0, 6, 3) + np.array([1, 0, 0])
        used, mine = n * rng.random(3), np.arange(3)
        grown = n.copy()
        while heuristics._short(*of, grown, used, mine) > 0:
            grown[0] += 1
        assert heuristics._more(*of, n, used, mine) == grown[0] - n[0]


def test_a_relaxation_without_time_still_has_a_bound(instance):
    problem, tables = instance
    whole, none = relaxation(problem, tables), relaxation(problem, tables, seconds=0.0)
    assert none.bound <= whole.bound + 1e-9 and np.isfinite(none.bound)
