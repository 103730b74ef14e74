"""A session against programmes worked by hand: every change of the model, duals, limits, cancellation, refusals."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import numpy as np
import pyomo.environ as pyo
import pytest
import scipy.sparse as sp

from optmodels.errors import SolverError
from optmodels.solver import Session, Settings, compile_model
from optmodels.solver.cancel import cancellable
from optmodels.solver.infeasible import confirmed

ROOT = Path(__file__).resolve().parents[2]
INF = np.inf


def wyndor(**settings):
    """Doors x and windows y (Hillier and Lieberman): max 3x + 5y, x ≤ 4, 2y ≤ 12, 3x + 2y ≤ 18; 36 at (2, 6)."""
    session = Session(settings=Settings(**settings))
    rows = sp.csr_array(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 2.0]]))
    session.load(np.array([-3.0, -5.0]), rows, np.full(3, -INF), [4.0, 12.0, 18.0], np.zeros(2), np.full(2, INF))
    return session


def split(rows=5, columns=40, seed=1, **settings):
    """Market split (Cornuéjols and Dawande): incumbents at once, a proof in no reasonable time."""
    A = np.random.default_rng(seed).integers(0, 100, (rows, columns)).astype(float)
    half = A.sum(axis=1) // 2
    n = columns + 2 * rows
    session = Session(settings=Settings(**settings))
    session.load(
        np.repeat([0.0, 1.0], [columns, 2 * rows]),
        sp.hstack([sp.csc_array(A), sp.eye_array(rows), -sp.eye_array(rows)]),
        half, half, np.zeros(n), np.repeat([1.0, INF], [columns, 2 * rows]), np.arange(n) < columns,
    )  # fmt: skip
    return session


def solved(session):
    assert session.run() == "optimal"
    return session.objective, session.point().tolist()


# ------------------------------------------------------------------------------------------------- what is found


def test_point_duals_reduced_costs_and_activity():
    session = wyndor()
    assert solved(session) == (pytest.approx(-36.0), pytest.approx([2.0, 6.0]))
    assert (session.limit, session.bound, session.nodes) == (None, pytest.approx(-36.0), 0)
    assert session.row_duals() == pytest.approx([0.0, -1.5, -1.0])
    assert session.reduced_costs() == pytest.approx([0.0, 0.0])
    assert session.row_activity() == pytest.approx([2.0, 12.0, 18.0])
    assert (session.rows, session.columns, session.nonzeros) == (3, 2, 4)


def test_maximising_an_offset_and_duals_of_that_sense():
    session = Session()
    session.load(np.array([3.0, 5.0]), sp.csc_array(np.array([[3.0, 2.0]])), [-INF], [18.0], [0.0, 0.0], [4.0, 6.0],
                 offset=100.0, maximise=True)  # fmt: skip
    assert solved(session) == (pytest.approx(136.0), pytest.approx([2.0, 6.0]))
    assert session.row_duals() == pytest.approx([1.0])
    assert session.reduced_costs() == pytest.approx([0.0, 3.0])  # of y at its bound


def test_a_compiled_model_is_its_first_objective():
    m = pyo.ConcreteModel()
    m.x, m.y = pyo.Var(bounds=(0, 4)), pyo.Var(bounds=(0, 6), domain=pyo.Integers)
    m.room = pyo.Constraint(expr=3 * m.x + 2 * m.y <= 17)
    m.profit = pyo.Objective(expr=3 * m.x + 5 * m.y + 1, sense=pyo.maximize)
    m.other = pyo.Objective(expr=m.x)
    compiled = compile_model(m)
    session = Session(compiled)
    assert session.run() == "optimal"
    assert session.objective == pytest.approx(-36.0)  # compiled for minimisation
    assert session.bound == pytest.approx(-36.0)
    assert compiled.violation(session.point()) is None


# ------------------------------------------------------------------------------------------------------ changes


def test_filled_piece_by_piece_it_is_the_same_model():
    session = Session()
    session.add_columns([-3.0], [0.0], [4.0])
    session.add_row(-INF, 18.0, [0], [3.0])
    session.add_columns([-5.0], [0.0], [6.0], sp.csc_array([[2.0]]))
    assert solved(session) == (pytest.approx(-36.0), pytest.approx([2.0, 6.0]))


def test_rows_bounds():
    session = wyndor()
    solved(session)
    session.set_row_bounds([2], [-INF], [24.0])  # six hours more at a dual of 1
    assert solved(session) == (pytest.approx(-42.0), pytest.approx([4.0, 6.0]))
    session.set_row_bounds([0, 2], [-INF, 24.0], [3.0, INF])  # now at least 24: 3·3 + 2·6 are but 21
    assert session.run() == "infeasible"
    session.set_row_bounds(np.array([0, 2]), np.full(2, -INF), np.array([4.0, 18.0]))
    assert solved(session)[0] == pytest.approx(-36.0)


def test_columns_bounds():
    session = wyndor()
    solved(session)
    session.set_column_bounds([0], [0.0], [1.0])
    assert solved(session) == (pytest.approx(-33.0), pytest.approx([1.0, 6.0]))
    assert session.reduced_costs() == pytest.approx([-3.0, 0.0])
    session.set_column_bounds([0, 1], [3.0, 0.0], [3.0, INF])
    assert solved(session) == (pytest.approx(-31.5), pytest.approx([3.0, 4.5]))


def test_costs_and_offset():
    session = wyndor()
    solved(session)
    session.set_costs([-3.0, -1.0], offset=7.0)
    assert solved(session) == (pytest.approx(7.0 - 15.0), pytest.approx([4.0, 3.0]))
    session.set_costs(np.array([0.0, -5.0]))  # the offset stays
    assert solved(session)[0] == pytest.approx(7.0 - 30.0)


def test_integrality_on_and_off():
    session = wyndor()
    session.set_row_bounds([2], [-INF], [17.0])
    assert solved(session) == (pytest.approx(-35.0), pytest.approx([5 / 3, 6.0]))
    session.set_integer([0, 1], on=True)
    assert solved(session) == (pytest.approx(-33.0), pytest.approx([1.0, 6.0]))
    assert session.bound == pytest.approx(-33.0)
    session.set_integer([0], on=False)
    assert solved(session)[0] == pytest.approx(-35.0)


@pytest.mark.parametrize(("gain", "enters"), [(2.0, False), (3.0, True)])
def test_a_column_enters_if_its_reduced_cost_is_negative(gain, enters):
    """A third product needs one hour in the last two plants, which are worth 1.5 and 1."""
    session = wyndor()
    solved(session)
    priced = -gain - np.array([0.0, 1.0, 1.0]) @ session.row_duals()
    assert priced == pytest.approx(2.5 - gain)
    session.add_columns([-gain], [0.0], [1.0], sp.csc_array([[0.0], [1.0], [1.0]]))
    objective, point = solved(session)
    assert point[2] == (1.0 if enters else 0.0)
    assert objective == pytest.approx(-36.0 + min(0.0, priced))


def test_cuts_are_added_and_deleted():
    session = wyndor()
    solved(session)
    session.add_row(-INF, 6.0, [0, 1], [1.0, 1.0])
    session.add_row(1.0, INF, np.array([0]), np.array([1.0]))
    assert solved(session) == (pytest.approx(-28.0), pytest.approx([1.0, 5.0]))
    session.delete_rows([3])  # x ≥ 1 moves up to its place
    assert session.rows == 4
    assert solved(session)[0] == pytest.approx(-36.0)
    session.add_row(0.0, INF, [0], [1.0])
    assert session.row_activity() == pytest.approx([2.0, 12.0, 18.0, 2.0])  # of the last run
    session.delete_rows([4])
    session.set_row_bounds([3], [3.0], [INF])
    assert solved(session) == (pytest.approx(-31.5), pytest.approx([3.0, 4.5]))


def test_a_new_model_takes_the_place_of_the_old():
    session = wyndor()
    solved(session)
    session.load(np.array([1.0]), sp.csc_array([[1.0]]), [2.0], [INF], [0.0], [INF])
    assert solved(session) == (pytest.approx(2.0), pytest.approx([2.0]))


# ------------------------------------------------------------------------------------------------------- statuses


@pytest.mark.parametrize("presolve", ["choose", "off"])
@pytest.mark.parametrize("integer", [False, True])
def test_infeasible_and_unbounded_are_told_apart(integer, presolve):
    session = wyndor(options={"presolve": presolve})
    session.set_integer([0, 1], on=integer)
    session.set_row_bounds([0], [5.0], [INF])
    session.set_row_bounds([2], [-INF], [14.0])
    assert session.run() == "infeasible"
    assert (session.point(), session.bound, session.limit) == (None, None, None)
    session.set_row_bounds([0, 1, 2], np.full(3, -INF), np.full(3, INF))
    assert session.run() == "unbounded"
    assert session.bound is None
    session.set_row_bounds([0, 1, 2], np.full(3, -INF), [4.0, 12.0, 18.0])  # neither spoils what comes after
    assert solved(session)[0] == pytest.approx(-36.0)


def test_a_model_without_columns():
    session = Session()
    assert solved(session) == (0.0, [])
    session.add_row(-1.0, 1.0, [], [])
    assert solved(session) == (0.0, [])
    session.add_row(1.0, INF, [], [])  # 0 ≥ 1
    assert session.run() == "infeasible"


def test_the_limit_of_a_run_is_its_own():
    """HiGHS counts time from the first run; a session's runs do not take from each other's."""
    session = split()
    for _ in range(6):
        began = time.perf_counter()
        assert session.run(0.3) == "limit"
        assert session.limit == "time"
        assert 0.2 < time.perf_counter() - began < 2.0
        assert session.bound <= session.objective
        assert session.point() is not None


def test_the_limit_of_an_lp_is_its_own_after_other_runs():
    session = split()
    session.run(0.4)
    session.set_integer(range(40), on=False)
    assert session.run(0.2) == "optimal"


def test_the_settings_limit_is_shared_by_all_runs():
    session = split(time_limit=1.0)
    assert session.run() == "limit"
    assert session.remaining() == 0.0
    began = time.perf_counter()
    for _ in range(3):
        assert session.run() == "limit"
    assert time.perf_counter() - began < 1.0
    assert split().remaining() is None


def test_a_gap_that_suffices_ends_a_run():
    session = split(3, 16, seed=4, gap=0.9)
    assert session.run(60.0) == "optimal"
    first = session.objective
    assert session.bound >= 0.1 * first - 1e-6
    session.set_option("mip_rel_gap", 0.0)
    solved(session)
    assert session.bound == pytest.approx(session.objective, abs=1e-6)
    assert session.objective <= first


def test_an_lp_that_was_stopped_has_no_bound():
    session = wyndor(options={"presolve": "off", "simplex_iteration_limit": 0})
    assert session.run() == "limit"
    assert session.bound is None


# ----------------------------------------------------------------------------------- warm starts, progress, cancel


def test_a_warm_start_is_completed_and_moved_into_its_bounds():
    """Without heuristics the start is the first incumbent."""
    seen = []
    session = split(options={"presolve": "off", "mip_heuristic_effort": 0.0, "mip_max_nodes": 1})
    session.warm_start({j: 7.0 if j < 20 else -1e-9 for j in reversed(range(40))})
    with session.watched(lambda objective, _bound, _nodes: seen.append(objective)):
        session.run()
    A = np.random.default_rng(1).integers(0, 100, (5, 40))
    start = abs(A[:, :20].sum(axis=1) - A.sum(axis=1) // 2).sum()
    assert next(value for value in seen if np.isfinite(value)) == pytest.approx(start)


def test_progress_is_reported_while_watched():
    seen, session = [], split()
    with session.watched(lambda *news: seen.append(news)):
        session.run(0.5)
    assert min(objective for objective, _, _ in seen) == pytest.approx(session.objective)
    assert all(bound <= objective + 1e-6 for objective, bound, _ in seen)
    before = len(seen)
    session.run(0.2)
    assert len(seen) == before


def test_cancelling_keeps_the_incumbent():
    event, session = threading.Event(), split(6, 50)
    with cancellable(event), session.watched(lambda objective, *_: event.set() if objective < INF else None):
        began = time.perf_counter()
        assert session.run(60.0) == "limit"
    assert time.perf_counter() - began < 30.0
    assert session.limit == "interrupt"
    assert session.point() is not None
    assert session.run(0.2) == "limit"  # no longer watched: not cancelled
    assert session.limit == "time"


def test_a_cancelled_lp_stops():
    event = threading.Event()
    event.set()
    session = wyndor(options={"presolve": "off"})
    with cancellable(event), session.watched():
        assert session.run() == "limit"
    assert session.limit == "interrupt"


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.add_row(0.0, 1.0, [2], [1.0]),
        lambda s: s.add_columns([1.0], [0.0], [1.0], sp.csc_array(np.ones((4, 1)))),
        lambda s: s.set_column_bounds([5], [0.0], [1.0]),
        lambda s: s.set_row_bounds([3], [0.0], [1.0]),
        lambda s: s.delete_rows([7]),
        lambda s: s.set_integer([9], on=True),
        lambda s: s.set_option("no_such_option", 1),
        lambda s: s.warm_start({2: 1.0}),
    ],
)
def test_what_does_not_exist_cannot_be_changed(change):
    session = wyndor()
    with pytest.raises(SolverError, match="HiGHS refused"):
        change(session)
    assert solved(session)[0] == pytest.approx(-36.0)


def test_nobody_else_calls_a_linear_solver():
    """But independent checks of reserved capacity and of scenarios, which share nothing with what they judge."""
    calls = re.compile(r"\b(import|from) highspy\b|\blinprog\b|optimize\.milp|import milp")
    files = [p for tree in ("optmodels", "formulations", "papers") for p in (ROOT / tree).rglob("*.py")]
    users = {p.relative_to(ROOT).as_posix() for p in files if calls.search(p.read_text(encoding="utf-8"))}
    assert users == {"optmodels/solver/session.py", "formulations/reserved_capacity/check.py",
                     "formulations/fleet/check_scenarios.py"}  # fmt: skip


@pytest.mark.parametrize("feasible", [False, True])
def test_a_kept_model_that_a_run_called_infeasible_is_looked_at_again(feasible):
    session = wyndor()
    session.set_integer([0, 1], on=True)
    session.add_row(31.0 if feasible else 37.0, INF, [0, 1], [3.0, 5.0])
    model = session.compiled()
    assert model.A.shape == (4, 2)
    assert model.A.toarray()[3].tolist() == [3.0, 5.0]
    assert model.integer.all()
    assert session.run() == ("optimal" if feasible else "infeasible")
    assert confirmed(session, 5.0) is not feasible
