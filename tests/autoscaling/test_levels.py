"""The level rule against the linear program that it solves, and hand-worked paths."""

import numpy as np
import pytest
from scipy.optimize import linprog

from optmodels.autoscaling.levels import bridge_gaps, hindsight, paid_minutes


def least_cost(need, start, drain):
    """min Σ n_t + L·Σ up_t + D·Σ down_t with n_t − n_{t−1} = up_t − down_t, n ≥ need, n_{−1} = 0; a linear program."""
    n = len(need)
    balance = np.zeros((n, 3 * n))
    for t in range(n):
        balance[t, t] = 1.0
        if t:
            balance[t, t - 1] = -1.0
        balance[t, n + t], balance[t, 2 * n + t] = -1.0, 1.0
    cost = np.concatenate([np.ones(n), np.full(n, start), np.full(n, drain)])
    bounds = [(x, None) for x in need] + [(0, None)] * (2 * n)
    return linprog(cost, A_eq=balance, b_eq=np.zeros(n), bounds=bounds).fun


@pytest.mark.parametrize("seed", range(40))
def test_the_level_rule_is_the_optimum_of_the_linear_program(seed):
    rng = np.random.default_rng(seed)
    need, start, drain = rng.integers(0, 6, rng.integers(5, 40)), int(rng.integers(0, 6)), int(rng.integers(0, 3))
    found = hindsight(need, start, drain)
    assert (found >= need).all()
    assert paid_minutes(found, start, drain) == pytest.approx(least_cost(need, start, drain), abs=1e-7)


def test_a_gap_is_bridged_where_a_new_start_costs_more():
    need = np.array([2, 1, 1, 1, 2, 0])
    assert bridge_gaps(need, 3).tolist() == [2, 2, 2, 2, 2, 0]
    assert bridge_gaps(need, 2).tolist() == need.tolist()
    # 7 running, 3 starts of 4 minutes, 2 stops and later 2 more of 1 minute each
    assert paid_minutes(need, 4, 1) == 7 + 4 * 3 + 1 * 3
