"""Branch and bound on pools: the optimum of the whole model, however few points are in its linear programs."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from fleet_cases import BUSY, random_stages
from scipy.optimize import linprog

import optmodels
from formulations.fleet.methods import benders, exact, pools
from formulations.fleet.model import FleetModel
from optmodels.solver import Settings, solve_compiled
from optmodels.solver.cancel import cancellable, cancelled, caught_interrupt
from optmodels.solver.highs import relaxation


def several_capacities(seed):
    """`random_stages` with two capacities, and points of which some share a pool."""
    rng = np.random.default_rng([seed, 1])
    problem, tables = random_stages(seed)
    other = tables.load * rng.uniform(0.5, 2.0, tables.load.shape)
    points = replace(tables.points, pool=rng.integers(0, 3, len(tables.points)))
    capacities = np.stack([tables.load, other])
    return problem, replace(tables, points=points, capacities=capacities, load=capacities.max(axis=0))


def replicas(seed):
    """`several_capacities` where a workload asks for deployments beyond its load."""
    rng = np.random.default_rng([seed, 2])
    problem, tables = several_capacities(seed)
    least = [w.model_copy(update={"min_replicas": int(rng.integers(0, 5))}) for w in tables.case.workloads]
    problem = problem.model_copy(update={"workloads": tuple(least)})
    return problem, replace(tables, case=replace(tables.case, problem=problem, workloads=tuple(least)))


def solved(problem, tables, settings=None):
    model = FleetModel(problem, tables)
    compiled = model.compiled()
    relaxed = relaxation(compiled)
    if relaxed.x is None:
        return None
    return by_tree(model, compiled, settings or Settings(), relaxed)


def by_tree(model, compiled, settings, relaxed):
    """The tree alone, from the plain relaxation."""
    tree = pools.Tree(model, compiled, settings)
    with caught_interrupt():
        for _ in tree.search(relaxed):
            pass
        return tree.report(cancelled(), "branch and bound on pools")


@pytest.mark.parametrize("case", [random_stages, several_capacities, replicas])
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


def test_a_bound_under_bounds_of_sums_holds_for_points_that_no_program_has():
    """The whole model with the same bounds on M, N and U, each stated over all points, costs no less."""
    compared = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, 5])
        problem, tables = several_capacities(seed)
        pool = tables.points.pool * (seed % 2)  # of even seeds all one
        tables = replace(tables, points=replace(tables.points, pool=pool))
        model = FleetModel(problem, tables)
        compiled = model.compiled()
        tree = pools.Tree(model, compiled, Settings())
        whole, some = tree.whole, rng.permutation(len(tables.points))[:2]
        few = tree.few(some, np.zeros(whole.P, dtype=bool))
        sums = {("U", p): (whole.group == whole.group[p]) & (whole.rank <= whole.rank[p]) for p in some.tolist()}
        sums |= {("N", g): whole.group == g for g in range(len(whole.groups))}
        sums |= {("M", c): whole.of_price[whole.group] == c for c in range(len(whole.prices))}
        keys = [key for key in sums if rng.random() < 0.5]
        bounds = {key: (low := float(rng.integers(0, 2)), low + float(rng.integers(0, 3))) for key in keys}
        rows = np.zeros((len(keys), compiled.A.shape[1]))
        for i, key in enumerate(keys):
            rows[i, model.n.columns] = sums[key]
        limited = replace(
            compiled, A=sp.csc_array(sp.vstack([compiled.A, rows])),
            row_names=[*compiled.row_names, *["sum"] * len(keys)],
            row_lower=np.append(compiled.row_lower, [bounds[key][0] for key in keys]),
            row_upper=np.append(compiled.row_upper, [bounds[key][1] for key in keys]),
        )  # fmt: skip
        least = solve_compiled(limited).objective
        if least is not None and few.solve(bounds):
            assert few.bound()[0] <= least * (1 + 1e-6) + 1e-9
            compared += len(keys) > 0
    assert compared >= 25


@pytest.mark.parametrize("by_cuts", [True, False])
@pytest.mark.parametrize("case", [random_stages, several_capacities, replicas])
def test_cuts_and_tree_find_the_optimum_of_the_whole_model(case, by_cuts, monkeypatch):
    """With the tree, and, where cuts end first, without: no cut may be above what a fleet costs."""
    monkeypatch.setattr(benders, "BEST", 1)
    monkeypatch.setattr(benders, "MORE", 1)
    monkeypatch.setattr(benders, "ROUNDING_S", 0.0)
    optima = cuts = 0
    for seed in range(40):
        problem, tables = case(seed)
        model = FleetModel(problem, tables)
        compiled = model.compiled()
        expected = solve_compiled(compiled).objective
        found = benders.solve(model, compiled, Settings(), None, by_cuts)
        if expected is None or found is None:  # no fleet, or one that cuts do not tell: others do
            assert found is None or found.x is None
            continue
        assert found.status == "optimal"
        assert found.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
        optima += 1
        cuts += int(found.message.partition(" Benders")[0].rsplit(" ", 1)[-1]) if by_cuts else 0
    assert optima >= 20
    assert cuts > optima or not by_cuts


@pytest.mark.parametrize("seed", range(10))
def test_cuts_alone_prove_no_more_than_the_optimum(seed, monkeypatch):
    monkeypatch.setattr(pools.Tree, "search", lambda self, _: iter(lambda: self.reached() or self.left() <= 0, True))
    problem, tables = several_capacities(seed)
    model = FleetModel(problem, tables)
    compiled = model.compiled()
    expected = solve_compiled(compiled).objective
    found = benders.solve(model, compiled, Settings(time_limit=5.0), None)
    if expected is not None and found is not None and found.bound is not None:
        assert found.bound <= expected * (1 + 1e-7)


def tight(model, compiled):
    """The model with x ≤ n for every share, as the relaxation that Dantzig and Wolfe's columns give."""
    x, p = model.x.columns, model.x.labels[2]
    k = np.arange(len(x))
    columns = np.concatenate([x, model.n.columns[p]])
    rows = sp.csc_array((np.repeat([1.0, -1.0], len(k)), (np.tile(k, 2), columns)), (len(k), compiled.A.shape[1]))
    return replace(
        compiled, A=sp.csc_array(sp.vstack([compiled.A, rows])), row_names=[*compiled.row_names, *["within"] * len(k)],
        row_lower=np.append(compiled.row_lower, np.full(len(k), -np.inf)),
        row_upper=np.append(compiled.row_upper, np.zeros(len(k))),
    )  # fmt: skip


@pytest.mark.parametrize("case", [random_stages, several_capacities, replicas])
def test_the_relaxation_is_that_with_every_share_within_its_counts_and_its_prices_bound_counts(case, monkeypatch):
    """However few shares it begins with; and no cheaper fleet has more of a point than they leave."""
    monkeypatch.setattr(benders, "BEST", 1)
    monkeypatch.setattr(benders, "CLOSE", 1e-9)
    higher = bounded = 0
    for seed in range(40):
        problem, tables = case(seed)
        model = FleetModel(problem, tables)
        compiled = model.compiled()
        best, plain, literal = solve_compiled(compiled), relaxation(compiled), relaxation(tight(model, compiled))
        search = benders._Search(benders.Tree(model, compiled, Settings()))
        if best.x is None or None in (plain.bound, literal.bound) or search.cuts.mixed or not search.cuts.proper:
            continue
        if search.relaxation() is None:
            continue
        assert search.cost <= best.objective * (1 + 1e-9)
        assert search.cost == pytest.approx(literal.bound, rel=2e-2)
        higher += search.cost > plain.bound * (1 + 1e-6)
        search.tree.usd = best.objective * (1 + 1e-6)
        most = search.most()
        assert (best.x[model.n.columns] <= most + 1e-6).all()
        bounded += (most < compiled.upper[model.n.columns]).any()
    assert higher >= 4
    assert bounded >= 10


def test_a_cut_says_the_same_of_the_points_that_a_better_fleet_may_have_and_nothing_of_others():
    problem, tables = several_capacities(0)
    model = FleetModel(problem, tables)
    compiled = model.compiled()
    y = relaxation(compiled).y
    cuts = [benders._Search(benders.Tree(model, compiled, Settings())).cuts for _ in range(2)]
    alive = np.arange(0, cuts[0].P, 2)
    (least, worth), (same, few) = cuts[0].cut(y[cuts[0].linking]), cuts[1].cut(y[cuts[1].linking], alive)
    assert least == same
    np.testing.assert_allclose(few[alive], worth[alive])
    assert worth[alive].max() > 0
    assert np.delete(worth, alive).max() > 0
    assert (np.delete(few, alive) == 0).all()


def test_the_worth_of_room_is_at_least_what_a_linear_program_finds_and_close():
    rng = np.random.default_rng(0)
    gain, each = rng.uniform(0, 1, (6, 30)), rng.uniform(0, 1, (3, 6, 30))
    gain[rng.random(gain.shape) < 0.3] = 0.0
    third = np.full((3, 30), 1 / 3)
    worth, mix, held = pools.worth_of_room(gain, each, third, np.zeros(30))
    best = np.array([
        -linprog(-gain[:, p], A_ub=each[:, :, p], b_ub=np.ones(3), bounds=(0, 1)).fun for p in range(30)
    ])  # fmt: skip
    np.testing.assert_allclose(mix.sum(axis=0), 1.0)
    assert (worth >= best * (1 - 1e-9)).all()
    assert (worth <= best * 1.15).all()
    np.testing.assert_allclose((gain * held).sum(axis=0), worth)
    rough, _, _ = pools.worth_of_room(gain, each, third, np.full(30, np.median(worth)))
    assert (rough >= best * (1 - 1e-9)).all()
    assert ((rough <= np.median(worth)) | (rough == worth)).all()


def test_a_call_that_is_stopped_says_so_and_keeps_its_bound():
    model = FleetModel(*random_stages(0))
    compiled = model.compiled()
    relaxed = relaxation(compiled)
    event = threading.Event()
    event.set()
    with cancellable(event):
        found = by_tree(model, compiled, Settings(), relaxed)
    assert (found.status, found.limit) == ("no_solution_found", "interrupt")


def test_a_limit_of_time_leaves_a_bound_below_every_fleet():
    for seed in range(10):
        problem, tables = random_stages(seed)
        expected = solve_compiled(FleetModel(problem, tables).compiled()).objective
        found = solved(problem, tables, Settings(time_limit=0.0))
        if expected is not None and found is not None:
            assert found.bound is None or found.bound <= expected * (1 + 1e-9)


def test_without_time_for_the_relaxation_a_fleet_in_hand_is_not_proved():
    """Though it is the best: of what nobody searched nothing is known."""
    asked = 0
    for seed in range(10):
        problem, tables = random_stages(seed)
        model = FleetModel(problem, tables)
        compiled = model.compiled()
        best = solve_compiled(compiled)
        if best.x is None:
            continue
        found = benders.solve(model, compiled, Settings(time_limit=0.0), model.choice(best.x))
        if found is None or found.x is None:  # there are costs that no cut knows
            continue
        assert (found.status, found.limit, found.bound) == ("feasible", "time", None)
        asked += 1
    assert asked >= 5


def test_exact_says_the_same_by_pools_and_by_highs(monkeypatch):
    """Cost, and what one more machine of a binding quota would save."""
    wanted = BUSY | {"quota": [{"machine": "p5.4xlarge", "at_most": 0, "unit": "gpus"}]}
    found = []
    for most in (0, 10**9):
        monkeypatch.setattr(exact, "SOME_PAIRS", most)
        result = optmodels.solve(wanted)
        assert result.status == "optimal"
        assert result.log["solver"].startswith("branch and bound on pools") == (most == 0)
        found.append((result.objective, result.plan["shadow_prices"]))
    (objective, prices), (other_objective, others) = found
    assert prices and objective == pytest.approx(other_objective)
    assert [p["limit"] for p in prices] == [p["limit"] for p in others]
    assert all(p["exact"] for p in prices)
    for p, other in zip(prices, others, strict=True):  # the slower one has a bound below where its time ends first
        assert p["gain"] == pytest.approx(other["gain"]) if other["exact"] else p["gain"] >= other["gain"] - 1e-9
