"""What the solver's answers rest on: rows by their own size, scaling, safe bounds, proofs of infeasibility."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from optmodels.errors import SolverError
from optmodels.solver import Compiled, Settings, highs, infeasible, solve_compiled
from optmodels.solver.safe import least_value, propagated
from optmodels.solver.scaling import extremes, scaled
from optmodels.solver.session import Session

INF = np.inf


def compiled(cost, A, row_lower, row_upper, lower, upper, integer, offset=0.0):
    A = sp.csc_matrix(np.atleast_2d(np.asarray(A, dtype=float)))
    m, n = A.shape
    return Compiled(
        np.asarray([cost], dtype=float), np.array([offset]), np.ones(1), A, np.broadcast_to(row_lower, m).astype(float),
        np.broadcast_to(row_upper, m).astype(float), np.broadcast_to(lower, n).astype(float),
        np.broadcast_to(upper, n).astype(float), np.broadcast_to(integer, n).astype(bool),
        [f"x[{j}]" for j in range(n)], [f"row[{i}]" for i in range(m)],
    )  # fmt: skip


def fleet(load, usd, start=None):
    """min usd·n with Σ_p x_wp = 1, Σ_w load_wp·x_wp ≤ n_p; columns n (P,), then x (W·P,)."""
    W, P = load.shape
    demand = np.hstack([np.zeros((W, P)), np.kron(np.eye(W), np.ones(P))])
    capacity = np.hstack([-np.eye(P), np.hstack([np.diag(load[w]) for w in range(W)])])
    most = np.ceil(load.sum(axis=0))
    return compiled(
        np.append(usd, np.zeros(W * P)), np.vstack([demand, capacity]), np.append(np.ones(W), np.full(P, -INF)),
        np.append(np.ones(W), np.zeros(P)), 0.0, np.append(np.maximum(most, 1.0), np.ones(W * P)),
        np.arange(P + W * P) < P,
    )  # fmt: skip


def cheapest(load, usd, most):
    """The least cost by trying every count up to `most` of each, the shares by an LP of ordinary numbers."""
    best = INF
    W, P = load.shape
    for n in itertools.product(range(most + 1), repeat=P):
        value = float(np.dot(usd, n))
        if value >= best:
            continue
        shares = compiled(np.zeros(W * P), fleet(load, usd).A.toarray()[:, P:],
                          np.append(np.ones(W), np.full(P, -INF)), np.append(np.ones(W), n), 0.0,
                          np.repeat([np.array(n) > 0], W, axis=0).ravel().astype(float), False)  # fmt: skip
        if Session(shares).run() == "optimal":
            best = value
    return best


# ---------------------------------------------------------------------------------------------------- rows and points


@pytest.mark.parametrize("whole", [2, 3, 4])
@pytest.mark.parametrize("missing", [1e-9, 1e-7, 4e-7, 6e-7, 8e-7, 9.9e-7, 1.2e-6, 2e-6, 1e-5])
def test_a_demand_a_hair_below_what_whole_machines_carry_is_served(whole, missing):
    """min 3n + 15u, x + u = 1, whole·(1 − missing)·x ≤ n: all `whole` machines are worth it, and one less is not."""
    model = compiled([3.0, 0.0, 15.0], [[0, 1, 1], [-1, whole * (1 - missing), 0]], [1.0, -INF], [1.0, 0.0], 0.0,
                     [whole, 1.0, 1.0], [True, False, False])  # fmt: skip
    fewer = 3.0 * (whole - 1) + 15.0 * (1 - (whole - 1) / (whole * (1 - missing)))
    report = solve_compiled(model)
    assert (report.status, report.x[0]) == ("optimal", whole)
    assert report.bound == pytest.approx(3.0 * whole, rel=1e-6) and report.objective < fewer


@pytest.mark.parametrize("loaded", [0, 1, 2])
@pytest.mark.parametrize("most", [1.0, INF])
@pytest.mark.parametrize("whole", [2, 3, 4])
@pytest.mark.parametrize("missing", [6e-7, 9e-7, 1.5e-6])
def test_rows_added_later_and_bounds_of_other_rows_count_too(loaded, most, whole, missing):
    """The same model, its last rows added to one in HiGHS, and x bounded by x + u = 1 alone."""
    A, low, high = np.array([[0, 1.0, 1], [-1, whole * (1 - missing), 0]]), np.array([1, -INF]), np.array([1, 0.0])
    first = compiled([3.0, 0.0, 15.0], A[:loaded].reshape(-1, 3), low[:loaded], high[:loaded], 0.0, [whole, most, 1.0],
                     [True, False, False])  # fmt: skip
    session = Session(first)
    if loaded < 2:
        session.add_rows(low[loaded:], high[loaded:], sp.csr_array(A[loaded:]))
    assert session.run() == "optimal"
    assert session.objective == pytest.approx(3.0 * whole, rel=1e-6)


def test_bounds_of_integers_that_change_bring_hairs_of_rows_that_were_looked_at():
    """n + 0.3m ≥ 2.3·(1 − 3·10⁻⁷)·x asks for 2.3 of n where m may be 0, and for 2 and a hair less where it is 1."""
    model = compiled([3.0, 1.0, 0.0, 15.0], [[0, 0, 1, 1], [-1, -0.3, 2.3 * (1 - 3e-7), 0]], [1.0, -INF], [1.0, 0.0],
                     0.0, [3.0, 2.0, 1.0, 1.0], [True, True, False, False])  # fmt: skip
    session = Session(model)
    assert session.run() == "optimal" and not session.near_integral
    session.set_column_bounds([1], [1.0], [1.0])
    assert session.run() == "optimal" and session.near_integral
    assert session.objective == pytest.approx(7.0, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "cost"),
    [
        # min 2.13n + 8.97u, x + u = 1, 4.0000032·x ≤ n: four machines and the rest unserved. HiGHS: none.
        (compiled([0.0, 2.134883895, 8.966050495], [[1, 0, 1], [4.0000032, -1, 0]], [1.0, -INF], [1.0, 0.0], 0.0,
                  [INF, 6.0, 1.0], [False, True, False]), 8.53954),
        # Two demands on two machines, 2 + 1.2·10⁻⁶ where all is served, without an upper bound. HiGHS: one machine.
        (compiled([0.0, 0.0, 4.292181186, 3.95197105, 8.838618421],
                  [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0.4782037919134021, 1.521797408086598, -1, 0, 0]],
                  [1.0, 1.0, -INF], [INF, INF, 0.0], 0.0, [INF, INF, 4.0, 1.0, 1.0], np.arange(5) == 2), 8.58437),
    ],
)  # fmt: skip
def test_a_demand_a_hair_above_what_whole_machines_carry_is_served_but_for_the_hair(model, cost):
    report = solve_compiled(model)
    assert (report.status, report.objective) == ("optimal", pytest.approx(cost, rel=1e-5))


def test_of_a_model_with_a_hair_one_run_is_not_believed():
    """Two demands, which two kinds of machines share, five at most, hairs of 10⁻⁷: HiGHS proves 13.716 in one run.

    Four machines of the second kind carry both demands, for 13.309.
    """
    rows = [
        [1, 1, 0, 0, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0, 0, 1], [1.5490313478880484, 0, 3.450968252111952, 0, -1, 0, 0, 0],
        [0, 1.5002828418826872, 0, 1.4997173981173133, 0, -1, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0],
    ]  # fmt: skip
    cost = [0.0, 0.0, 0.0, 0.0, 3.7348828122904565, 3.3272038054483586, 41.702055141629785, 24.757688337422675]
    model = compiled(cost, rows, [1.0, 1.0, -INF, -INF, -INF], [1.0, 1.0, 0.0, 0.0, 5.0], 0.0,
                     [INF, INF, INF, INF, 6.0, 5.0, 0.0, 0.0], [k in (4, 5) for k in range(8)])  # fmt: skip
    report = solve_compiled(model)
    assert report.status in ("optimal", "feasible") and report.objective == pytest.approx(4 * cost[5], rel=1e-6)
    assert report.bound is None or report.bound <= report.objective * (1 + 1e-6)


def test_a_row_has_to_hold_by_its_own_size():
    """Half of what a row of size 10⁻⁷ asks for is not within 10⁻⁶ of it."""
    model = compiled([1.0, 1.0], [[1e-7, 0.0], [1e7, 1.0]], [1e-7, -INF], [INF, 2e7], 0.0, INF, False)
    assert model.violation(np.array([1.0, 1.0])) is None
    assert model.violation(np.array([0.5, 1.0])) == "row[0] by 0.5"
    assert model.violation(np.array([2.0 + 1e-7, 1.0])) is None  # by 2 of 2·10⁷: rounding at that size
    assert model.violation(np.array([2.1, 1.0])).startswith("row[1] by 0.04")
    assert model.violation(np.array([np.nan, 1.0])) is not None


def test_a_hair_beside_a_bound_is_the_bound():
    """A share of 10⁻⁸ on a machine that is not bought is the solver's rounding; half a share is not."""
    model = fleet(np.array([[1.0, 1.0]]), np.array([1.0, 1.0]))
    assert highs.verify(model, np.array([1.0, 0.0, 1 - 1e-8, 1e-8])).tolist() == [1.0, 0.0, 1.0, 0.0]
    moved = highs.verify(model, np.array([1.0, 1e-9, 0.5, 0.5]))  # completed: the bought machine serves all
    assert moved.tolist() == [1.0, 0.0, 1.0, 0.0]
    with pytest.raises(SolverError, match=r"row\[1\]|row\[2\]"):
        highs.verify(model, np.array([0.0, 0.0, 0.5, 0.5]))


# ------------------------------------------------------------------------------------------------------------ scaling


def test_ordinary_models_are_passed_as_they_are():
    model = fleet(np.array([[0.3, 20.0], [7.0, 1.5]]), np.array([2.0, 3.0]))
    seen = scaled(model)
    assert (seen.row == 1).all() and (seen.column == 1).all()
    assert seen.model.A is model.A
    assert extremes(seen.model) is None


@pytest.mark.parametrize("seed", range(12))
def test_the_answer_does_not_depend_on_the_units_of_rows_and_columns(seed):
    rng = np.random.default_rng(seed)
    m, n, whole = 6, 8, 3
    A = rng.integers(0, 9, (m, n)).astype(float)
    A[:, 0] += 1
    integer = np.arange(n) < whole
    plain = compiled(rng.integers(3, 20, n), A, rng.integers(5, 40, m), INF, 0.0, np.where(integer, 9, INF), integer)
    row, column = 10.0 ** rng.integers(-11, 12, m), 10.0 ** rng.integers(-9, 10, n)
    column[:whole] = 1.0
    changed = replace(
        plain, A=sp.csc_matrix(sp.diags(row) @ plain.A @ sp.diags(column)), costs=plain.costs * column,
        row_lower=plain.row_lower * row, lower=plain.lower / column, upper=plain.upper / column,
    )  # fmt: skip
    expected, found = solve_compiled(plain), solve_compiled(changed)
    assert (expected.status, found.status) == ("optimal", "optimal")
    assert found.objective == pytest.approx(expected.objective, rel=1e-6)
    assert changed.violation(found.x) is None


def test_scaling_changes_no_digit():
    model = compiled([3.0, 1e-9], [[1e-9, 3e5], [7e8, 1e-12]], [1e-9, -INF], [INF, 7e9], 0.0, [5.0, INF], [True, False])
    seen = scaled(model)
    assert seen.column[0] == 1.0
    assert np.log2(seen.row).tolist() == np.round(np.log2(seen.row)).tolist()
    back = sp.diags(1 / seen.row) @ seen.model.A @ sp.diags(1 / seen.column)
    assert (back.toarray() == model.A.toarray()).all()
    assert (seen.model.row_upper / seen.row).tolist() == model.row_upper.tolist()


def test_no_row_is_scaled_up_to_what_the_solver_refuses():
    """A tiny right-hand side beside a large coefficient: HiGHS takes no coefficient above 10¹⁵."""
    model = compiled([1.0, 1.0], [[3e5, 2e-16], [1.0, 1.0]], [1e-14, 2.0], [INF, INF], 0.0, INF, [False, False])
    assert abs(scaled(model).model.A).max() <= 2e12
    assert solve_compiled(model).objective == pytest.approx(2.0)


@pytest.mark.parametrize("big", [1e3, 1e6, 1e8])
@pytest.mark.parametrize("seed", range(3))
def test_machines_that_would_take_millions_change_nothing(big, seed):
    """A point of nearly no throughput has loads of 10⁷ and bounds to match: HiGHS proved a false optimum with these."""
    rng = np.random.default_rng(seed)
    load, usd = rng.uniform(0.3, 2.5, (3, 3)), rng.uniform(0.5, 2.0, 3)
    expected = cheapest(load, usd, 6)
    slow = np.hstack([load, rng.uniform(0.5, 1.5, (3, 2)) * big])
    model = fleet(slow, np.append(usd, [0.4, 0.6]))
    start = {j: float(v) for j, v in enumerate([*np.ceil(load.sum(axis=0)), 0, 0])}
    found = solve_compiled(model, Settings(time_limit=60), start)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tiny", [1e-4, 1e-6, 1e-7, 1e-9, 1e-12])
def test_a_demand_too_small_for_the_tolerance_is_served(tiny):
    """10⁻⁷ machines' worth of demand takes a whole machine; that the solver takes it for none is no answer."""
    load, usd = np.array([[0.8, 9.0], [9.0, tiny]]), np.array([1.0, 5.0])
    model = replace(fleet(load, usd), upper=np.array([9.0, 9.0, 1.0, 0.0, 0.0, 1.0]))
    found = solve_compiled(model)
    assert (found.status, found.objective) == ("optimal", pytest.approx(6.0))


def test_what_is_extreme_is_named():
    tiny = compiled([1.0, 1.0], [[1.0, 1e-11]], 0.0, 1.0, 0.0, [1.0, INF], [True, False])
    assert "row[0]" in extremes(replace(tiny, upper=np.array([1.0, 1e9])))
    assert extremes(replace(tiny, upper=np.array([1.0, 0.05]))) is None  # rounding beside one
    assert extremes(compiled([1.0, 1.0], [[1.0, 1e-320]], 1.0, INF, 0.0, 10.0, False)) is None  # fuzz 154542: overflow
    assert extremes(compiled([1.0], [[1.0]], 0.0, INF, 0.0, 1e8, True)) == "the whole number x[0] may be 1e+08"
    assert "right-hand side of row[0]" in extremes(compiled([1.0], [[1.0]], 1e12, INF, 0.0, INF, False))
    assert "costs of x[1] and x[0]" in extremes(compiled([1e6, 1e-6], [[1.0, 1.0]], 1.0, INF, 0.0, INF, False))


@pytest.mark.parametrize("most", [1e3, 1e7])
def test_small_costs_beside_a_large_one_still_count(most):
    """With the median cost at one the others are below 10⁻⁷, HiGHS' tolerance of reduced costs."""
    cost = [2.0, 1.0, 3.0, most * 1e3, most * 1e3, most * 1e3, most * 1e3]
    model = compiled(cost, np.ones((1, 7)), 4.5, INF, 0.0, 9.0, [True, False, True, False, False, False, False])
    found = solve_compiled(model)
    assert (found.status, found.objective) == ("optimal", pytest.approx(4.5))


# ------------------------------------------------------------------------------------------------------- safe bounds


def random_model(rng, integers=3):
    m, n = 5, 7
    A = np.where(rng.random((m, n)) < 0.6, rng.normal(0, 3, (m, n)), 0.0)
    inside = rng.uniform(-2, 4, n)
    inside[:integers] = np.round(inside[:integers])
    act = A @ inside
    low = np.where(rng.random(m) < 0.6, act - rng.uniform(0, 2, m), -INF)
    high = np.where(rng.random(m) < 0.6, act + rng.uniform(0, 2, m), INF)
    lower = np.where(rng.random(n) < 0.7, np.floor(inside) - rng.integers(0, 3, n), -INF)
    upper = np.where(rng.random(n) < 0.7, np.ceil(inside) + rng.integers(0, 3, n), INF)
    return compiled(rng.normal(0, 1, n), A, low, high, lower, upper, np.arange(n) < integers), inside


@pytest.mark.parametrize("seed", range(60))
def test_multipliers_never_prove_more_than_is_true(seed):
    rng = np.random.default_rng(seed)
    model, inside = random_model(rng)
    assert model.violation(inside) is None
    for _ in range(20):
        y = rng.normal(0, 1, 5) * (rng.random(5) < 0.7)
        assert least_value(model, model.costs[0], y) <= model.costs[0] @ inside
        assert least_value(model, np.zeros(7), y) <= 0.0
    bounds = propagated(model, model.lower, model.upper)
    assert bounds is not None
    assert (bounds[0] <= inside).all() and (inside <= bounds[1]).all()
    assert infeasible.refute(scaled(model).model, 5.0) is None


@pytest.mark.parametrize("seed", range(20))
def test_an_lps_bound_is_what_its_duals_prove(seed):
    model, _ = random_model(np.random.default_rng(seed), integers=0)
    found = solve_compiled(model)
    if found.status != "unbounded":
        assert found.status == "optimal"
        assert found.bound == pytest.approx(found.objective, rel=1e-6, abs=1e-6)


def test_a_bound_needs_a_limit_of_every_column_it_uses():
    model = compiled([1.0, 1.0], [[1.0, 1.0], [1.0, -1.0]], [2.0, -1.0], [INF, 1.0], 0.0, INF, False)
    assert least_value(model, model.costs[0], np.array([1.0, 0.0])) == pytest.approx(2.0)
    assert least_value(model, model.costs[0], np.array([1.1, 0.0])) == -INF  # nothing limits x but the cost
    below = replace(model, row_upper=np.array([8.0, 1.0]))  # now rows do: 10 % of 8 are lost, twice
    assert least_value(below, model.costs[0], np.array([1.1, 0.0])) == pytest.approx(0.6)


# ----------------------------------------------------------------------------------------------- infeasible, and lies


def test_an_infeasible_relaxation_is_verified():
    model = compiled([1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]], [10.0, -INF], [INF, 8.0], 0.0, [3.0, 3.0], True)
    found = solve_compiled(model)
    assert (found.status, found.message) == ("infeasible", "Infeasible, verified")


@pytest.mark.parametrize("least", [1 + 1e-4, 1 + 1e-6])
def test_infeasible_is_near_integral_is_infeasible(least):
    """x + y ≥ least, x + y ≤ 1: the ray is verified although HiGHS' tolerance is 10⁻⁷."""
    model = compiled([1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]], [least, -INF], [INF, 1.0], 0.0, INF, False)
    assert solve_compiled(model).message == "Infeasible, verified"


def test_what_only_integrality_forbids_is_verified_by_branching():
    """Six and ten make no odd number; three of each at most."""
    model = compiled([1.0, 1.0], [[6.0, 10.0]], 27.0, 27.0, 0.0, 3.0, True)
    found = solve_compiled(model)
    assert found.status == "infeasible"
    assert found.message.startswith("Infeasible, verified")
    assert solve_compiled(replace(model, row_lower=np.array([26.0]))).status == "optimal"


def test_what_takes_too_many_branches_needs_two_runs(monkeypatch):
    monkeypatch.setattr(highs, "refute", lambda model, seconds: None)
    model = compiled([1.0, 1.0], [[6.0, 10.0]], 27.0, 27.0, 0.0, 3.0, True)
    found = solve_compiled(model)
    assert found.status == "infeasible"
    assert "two runs" in found.message


class Liar(Session):
    """Calls a model with presolve infeasible; the run without it finds the optimum."""

    def run(self, seconds=None):
        ended = super().run(seconds)
        if self.settings.options.get("presolve") != "off":
            ended = self.status = "infeasible"
        return ended


def test_a_presolve_that_calls_a_feasible_model_infeasible_is_found_out(monkeypatch):
    monkeypatch.setattr(highs, "Session", Liar)
    model = compiled([1.0, 3.0], [[6.0, 10.0]], 26.0, 27.0, 0.0, 3.0, True)
    found = solve_compiled(model)
    assert (found.status, found.objective, found.bound) == ("optimal", 7.0, pytest.approx(7.0))


def test_without_time_to_confirm_it_infeasible_is_not_reported(monkeypatch):
    monkeypatch.setattr(highs, "Session", Liar)
    model = compiled([1.0, 3.0], [[6.0, 10.0]], 26.0, 27.0, 0.0, 3.0, True)
    found = solve_compiled(model, Settings(time_limit=1e-9))
    assert (found.status, found.limit, found.message) == ("no_solution_found", "time", highs.UNCONFIRMED)


class Optimist(Session):
    """Its bound is better than the optimum."""

    @property
    def bound(self):
        return super().bound + 1.0


def test_a_point_better_than_its_bound_is_an_error(monkeypatch):
    monkeypatch.setattr(highs, "Session", Optimist)
    model = compiled([1.0, 3.0], [[6.0, 10.0]], 26.0, 27.0, 0.0, 3.0, True)
    found = solve_compiled(model)
    assert (found.status, found.message) == ("error", highs.CONTRADICTION)


class Sloppy(Session):
    """The first run's point breaks a row."""

    def point(self):
        x = super().point()
        return x if self.settings.options.get("presolve") == "off" else np.zeros(len(x))


def test_a_point_that_breaks_a_row_is_looked_for_again(monkeypatch):
    monkeypatch.setattr(highs, "Session", Sloppy)
    model = compiled([1.0, 3.0], [[6.0, 10.0]], 26.0, 27.0, 0.0, 3.0, True)
    found = solve_compiled(model)
    assert (found.status, found.objective) == ("optimal", 7.0)
    monkeypatch.setattr(Sloppy, "point", lambda self: np.zeros(2))
    with pytest.raises(SolverError, match=r"row\[0\]"):
        solve_compiled(model)


class Helpless(Session):
    """Gives up wherever there are costs."""

    def load(self, cost, *rest):
        self.costs = cost
        super().load(cost, *rest)

    def run(self):
        return "error" if np.any(self.costs) else super().run()

    def point(self):
        return None if np.any(self.costs) else super().point()


@pytest.mark.parametrize(("least", "status"), [(26.0, "feasible"), (90.0, "infeasible")])
def test_where_the_solver_gives_up_costs_do_not_matter_to_whether_there_is_a_point(least, status, monkeypatch):
    monkeypatch.setattr(highs, "Session", Helpless)
    found = solve_compiled(compiled([1.0, 3.0], [[6.0, 10.0]], least, 99.0, 0.0, 3.0, True))
    assert found.status == status
    assert found.limit == ("gap" if status == "feasible" else None)
