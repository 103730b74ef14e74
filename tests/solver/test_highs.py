"""The solver layer on small models with known answers: statuses, senses, limits, priorities, warm starts, Ctrl-C."""

import json
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyomo.environ as pyo
import pytest

from optmodels.errors import SolverError
from optmodels.solver import Settings, compile_model, solve_compiled, solve_model
from optmodels.solver.highs import relative_gap


def knapsack(n=12, sense=pyo.maximize, offset=0.0):
    rng = np.random.default_rng(5)
    value, weight = rng.integers(5, 40, n), rng.integers(5, 40, n)
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(n), domain=pyo.Binary)
    m.room = pyo.Constraint(expr=sum(int(weight[i]) * m.x[i] for i in range(n)) <= int(weight.sum()) // 2)
    gain = sum(int(value[i]) * m.x[i] for i in range(n)) + offset
    m.gain = pyo.Objective(expr=gain if sense == pyo.maximize else -gain, sense=sense)
    best = max(
        value @ pick
        for pick in (np.array(list(np.binary_repr(i, n)), dtype=int) for i in range(2**n))
        if weight @ pick <= weight.sum() // 2
    )
    return m, float(best)


def hard(rows=5, columns=40, seed=1):
    """Market split (Cornuéjols–Dawande): incumbents at once, a proof in no reasonable time."""
    rng = np.random.default_rng(seed)
    A = rng.integers(0, 100, (rows, columns))
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(columns), domain=pyo.Binary)
    m.over = pyo.Var(range(rows), domain=pyo.NonNegativeReals)
    m.under = pyo.Var(range(rows), domain=pyo.NonNegativeReals)
    m.split = pyo.Constraint(
        range(rows),
        rule=lambda m, i: (
            sum(int(A[i, j]) * m.x[j] for j in range(columns)) + m.under[i] - m.over[i] == int(A[i].sum()) // 2
        ),
    )
    m.slack = pyo.Objective(expr=sum(m.over[i] + m.under[i] for i in range(rows)))
    return m


def solved(model, **settings):
    return solve_model(model, Settings(**settings))[0]


# ------------------------------------------------------------------------------------------------------- statuses


@pytest.mark.parametrize("sense", [pyo.maximize, pyo.minimize])
@pytest.mark.parametrize("offset", [0.0, 1000.0, -7.5])
def test_optimal_in_the_models_own_sense_with_its_offset(sense, offset):
    model, best = knapsack(sense=sense, offset=offset)
    expected = best + offset if sense == pyo.maximize else -best - offset
    report = solved(model)
    assert (report.status, report.limit) == ("optimal", None)
    assert report.objective == pytest.approx(expected)
    assert report.bound == pytest.approx(expected, rel=1e-6)
    assert report.gap <= 1e-6
    assert pyo.value(model.gain) == pytest.approx(expected)  # written back
    assert set(report.x.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("integer", [False, True])
def test_infeasible(integer):
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.Integers if integer else pyo.Reals, bounds=(0, 10))
    m.c = pyo.Constraint(expr=3 * m.x >= 31)
    m.o = pyo.Objective(expr=m.x)
    report = solved(m)
    assert (report.status, report.objective, report.bound, report.gap, report.x) == ("infeasible", *[None] * 4)
    assert m.x.value is None


def test_integers_can_make_it_infeasible():
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.Integers, bounds=(0, 10))
    m.c = pyo.Constraint(expr=(0.4, m.x, 0.6))
    m.o = pyo.Objective(expr=m.x)
    assert solved(m).status == "infeasible"


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("sense", [pyo.maximize, pyo.minimize])
def test_unbounded(integer, sense):
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.Integers if integer else pyo.Reals)
    m.y = pyo.Var(domain=pyo.NonNegativeReals)
    m.c = pyo.Constraint(expr=m.x - m.y <= 4)
    m.o = pyo.Objective(expr=m.x, sense=sense)
    report = solved(m)
    assert report.status == "unbounded"
    assert (report.objective, report.bound, report.gap) == (None, None, None)


def test_a_time_limit_returns_the_incumbent_and_a_true_bound():
    report = solved(hard(), time_limit=1.0)
    assert (report.status, report.limit) == ("feasible", "time")
    assert report.objective >= report.bound
    assert report.gap > 1e-6
    assert report.x is not None


def test_no_time_at_all_is_said_so():
    report = solved(hard(), time_limit=1e-9)
    assert report.limit == "time"
    assert report.status in ("feasible", "no_solution_found")
    assert (report.status == "no_solution_found") == (report.x is None)
    if report.x is None:
        assert report.objective is None
        assert report.gap is None


def test_an_lp_stopped_by_time_claims_nothing():
    rng = np.random.default_rng(0)
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(300), bounds=(0, 1))
    m.c = pyo.Constraint(range(200), rule=lambda m, i: sum(float(rng.random()) * m.x[j] for j in range(300)) <= 40)
    m.o = pyo.Objective(expr=sum(m.x[j] for j in range(300)), sense=pyo.maximize)
    report = solved(m, time_limit=1e-9, options={"presolve": "off"})
    assert report.status in ("no_solution_found", "feasible")
    assert report.limit == "time"
    assert report.bound is None


def test_a_gap_limit_stops_early_and_says_so():
    report = solved(hard(3, 20), gap=0.9, time_limit=60.0)
    assert report.status in ("feasible", "optimal")
    if report.status == "feasible":
        assert report.limit == "gap"
        assert 1e-6 < report.gap <= 0.9
    assert report.bound <= report.objective


def test_maximising_under_a_limit_keeps_bound_above_objective():
    m = hard()
    m.slack.deactivate()
    m.mirrored = pyo.Objective(expr=5000 - m.slack.expr, sense=pyo.maximize)
    report = solved(m, time_limit=1.0)
    assert report.status == "feasible"
    assert report.bound >= report.objective
    assert all(e.bound is None or e.objective is None or e.bound >= e.objective - 1e-6 for e in report.events)


def test_progress_is_monotone_and_reported_as_it_happens():
    seen = []
    report = solved(hard(), time_limit=1.0, on_event=seen.append)
    assert tuple(seen) == report.events
    values = [e.objective for e in seen if e.objective is not None]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(report.objective)
    assert [e.seconds for e in seen] == sorted(e.seconds for e in seen)


# ----------------------------------------------------------------------------------------------------- compilation


def test_every_kind_of_row_and_bound():
    m = pyo.ConcreteModel()
    m.x = pyo.Var(bounds=(None, 9))
    m.y = pyo.Var(bounds=(-3, None))
    m.n = pyo.Var(domain=pyo.NonNegativeIntegers)
    m.equal = pyo.Constraint(expr=m.x + m.y == 4)
    m.range = pyo.Constraint(expr=(-2, m.x - m.y, 6))
    m.least = pyo.Constraint(expr=m.n >= 1.5 + 0 * m.x)
    m.most = pyo.Constraint(expr=2 * m.n + m.y <= 20)
    m.o = pyo.Objective(expr=3 * m.x + m.n + 2)
    report = solved(m)
    assert (m.x.value, m.y.value, m.n.value) == pytest.approx((1.0, 3.0, 2.0))
    assert report.objective == pytest.approx(7.0)


def test_fixed_variables_and_inactive_parts_stay_out():
    m = pyo.ConcreteModel()
    m.x, m.y = pyo.Var(bounds=(0, 5)), pyo.Var(bounds=(0, 5))
    m.y.fix(2)
    m.c = pyo.Constraint(expr=m.x + m.y <= 6)
    m.off = pyo.Constraint(expr=m.x <= 1)
    m.off.deactivate()
    m.o = pyo.Objective(expr=m.x + 10 * m.y, sense=pyo.maximize)
    report = solved(m)
    assert (report.objective, m.x.value, m.y.value) == pytest.approx((24.0, 4.0, 2.0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["row", "cost", "offset"])
def test_a_number_that_is_none_is_refused(bad, where):
    m = pyo.ConcreteModel()
    m.p = pyo.Param(mutable=True, initialize=1.0, within=pyo.Any)
    m.x = pyo.Var(bounds=(0, 1))
    m.c = pyo.Constraint(expr=(m.p if where == "row" else 1.0) * m.x <= 1)
    m.o = pyo.Objective(expr=(m.p if where == "cost" else 1.0) * m.x + (m.p if where == "offset" else 0.0))
    m.p.value = bad
    with pytest.raises(SolverError):
        solve_model(m)


def test_a_bound_that_is_no_number_is_refused():
    m = pyo.ConcreteModel()
    m.x = pyo.Var(bounds=(0, float("nan")))
    m.c = pyo.Constraint(expr=m.x <= 1)
    m.o = pyo.Objective(expr=m.x)
    with pytest.raises((SolverError, ValueError)):
        solve_model(m)


def test_a_nonlinear_model_is_refused_in_our_own_words():
    m = pyo.ConcreteModel()
    m.x = pyo.Var(bounds=(0, 1))
    m.c = pyo.Constraint(expr=m.x * m.x <= 1)
    m.o = pyo.Objective(expr=m.x)
    with pytest.raises(SolverError):
        solve_model(m)


@pytest.mark.parametrize("missing", ["constraint", "objective"])
def test_half_a_model_is_refused(missing):
    m = pyo.ConcreteModel()
    m.x = pyo.Var(bounds=(0, 1))
    if missing == "constraint":
        m.o = pyo.Objective(expr=m.x)
    else:
        m.c = pyo.Constraint(expr=m.x <= 1)
    with pytest.raises(SolverError, match=missing):
        solve_model(m)


def test_a_row_that_fixing_made_impossible_is_infeasible_not_a_crash():
    m = pyo.ConcreteModel()
    m.x, m.y = pyo.Var(bounds=(0, 5)), pyo.Var(bounds=(0, 5))
    m.x.fix(0)
    m.c = pyo.Constraint(expr=m.x >= 1)
    m.d = pyo.Constraint(expr=m.y >= 1)
    m.o = pyo.Objective(expr=m.y)
    assert solved(m).status == "infeasible"


def test_an_unknown_option_is_refused():
    model, _ = knapsack(4)
    with pytest.raises(SolverError, match="no_such_option"):
        solved(model, options={"no_such_option": 1})


def test_the_size_counts_what_highs_sees():
    model, _ = knapsack(6)
    _, seconds, size = solve_model(model)
    assert size == {"variables": 6, "integers": 6, "constraints": 1, "nonzeros": 6}
    assert set(seconds) == {"compile", "solve"}


def test_a_violation_is_named():
    model, _ = knapsack(6)
    compiled = compile_model(model)
    assert compiled.violation(np.zeros(6)) is None
    assert "room" in compiled.violation(np.ones(6))
    assert "x[2]" in compiled.violation(np.array([0, 0, 0.5, 0, 0, 0]))
    assert "x[4]" in compiled.violation(np.array([0, 0, 0, 0, -1.0, 0]))


def test_integers_a_hair_off_do_not_spoil_a_good_answer():
    """HiGHS allows an integer to be 10⁻⁶ off; rounded, a row with a large coefficient moves by more than that."""
    m = pyo.ConcreteModel()
    m.z = pyo.Var(range(2), domain=pyo.Binary)
    m.e = pyo.Var(range(2), bounds=(0, None))
    m.one = pyo.Constraint(expr=m.z[0] + m.z[1] == 1)
    m.most = pyo.Constraint(range(2), rule=lambda m, i: m.e[i] <= 1e7 * m.z[i])
    m.least = pyo.Constraint(range(2), rule=lambda m, i: m.e[i] >= (4 + i) * m.z[i])
    m.need = pyo.Constraint(expr=m.e[0] + m.e[1] >= 3.999999)
    m.o = pyo.Objective(expr=m.e[0] + m.e[1])
    report = solved(m)
    assert report.status == "optimal"
    assert report.objective == pytest.approx(4.0, rel=1e-5)


# ------------------------------------------------------------------------------------------- priorities, warm start


def assignment():
    """Three jobs on three machines; many assignments cost the least."""
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(3), range(3), domain=pyo.Binary)
    m.job = pyo.Constraint(range(3), rule=lambda m, i: sum(m.x[i, j] for j in range(3)) == 1)
    m.machine = pyo.Constraint(range(3), rule=lambda m, j: sum(m.x[i, j] for i in range(3)) == 1)
    m.first = pyo.Objective(expr=sum(m.x[i, j] for i in range(3) for j in range(3)))
    return m


def test_objectives_are_lexicographic_in_declaration_order():
    m = assignment()
    m.second = pyo.Objective(expr=5 * m.x[0, 0] + 3 * m.x[0, 1] + m.x[0, 2], sense=pyo.maximize)
    m.third = pyo.Objective(expr=m.x[1, 1] + 10, sense=pyo.minimize)
    report = solved(m)
    assert report.objectives == pytest.approx((3.0, 5.0, 10.0))
    assert (m.x[0, 0].value, m.x[1, 1].value) == (1, 0)
    assert report.objective == pytest.approx(3.0)


def test_a_later_objective_never_spoils_an_earlier_one():
    model, best = knapsack()
    model.greed = pyo.Objective(expr=sum(model.x[i] for i in range(12)), sense=pyo.minimize)
    report = solved(model)
    assert report.objectives[0] == pytest.approx(best)
    assert report.bound == pytest.approx(best, rel=1e-6)


def test_priorities_keep_continuous_optima_tight():
    m = pyo.ConcreteModel()
    m.x, m.y = pyo.Var(bounds=(0, 10)), pyo.Var(bounds=(0, 10))
    m.c = pyo.Constraint(expr=m.x + m.y >= 1e-3)
    m.first = pyo.Objective(expr=m.x + m.y)
    m.second = pyo.Objective(expr=m.x, sense=pyo.maximize)
    report = solved(m)
    assert report.objectives == pytest.approx((1e-3, 1e-3), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_answer_does_not_depend_on_the_unit_of_money(scale):
    model, best = knapsack()
    model.gain.deactivate()
    model.scaled = pyo.Objective(expr=scale * model.gain.expr, sense=pyo.maximize)
    assert solved(model).objective == pytest.approx(scale * best, rel=1e-9)


def test_a_warm_start_is_taken_up():
    """Without heuristics the start is the first incumbent."""
    nothing = {"presolve": "off", "mip_heuristic_effort": 0.0, "mip_max_nodes": 1}
    m = hard()
    start = pyo.ComponentMap((m.x[j], 1.0 if j < 20 else 0.0) for j in m.x)
    coefficients = np.random.default_rng(1).integers(0, 100, (5, 40))
    left, half = coefficients[:, :20].sum(axis=1), coefficients.sum(axis=1) // 2
    report, _, _ = solve_model(m, Settings(options=nothing), start)
    alone, _, _ = solve_model(hard(), Settings(options=nothing))
    first, unaided = (next(e.objective for e in r.events if e.objective is not None) for r in (report, alone))
    assert first == pytest.approx(abs(left - half).sum())
    assert unaided != pytest.approx(first)


def test_a_nonsensical_warm_start_does_no_harm():
    model, best = knapsack()
    start = pyo.ComponentMap((model.x[i], 1.0) for i in range(12))  # far too heavy
    assert solve_model(model, None, start)[0].objective == pytest.approx(best)
    half = pyo.ComponentMap([(model.x[0], 0.5)])
    assert solve_model(model, None, half)[0].objective == pytest.approx(best)


# ------------------------------------------------------------------------------------------ determinism, interrupts


def test_the_same_seed_gives_the_same_point():
    points = [solved(hard(3, 16, seed=4), seed=7).x for _ in range(2)]
    assert points[0].tolist() == points[1].tolist()


def test_different_seeds_agree_on_the_optimum():
    values = {round(solved(hard(3, 16, seed=4), seed=s).objective, 6) for s in range(4)}
    assert len(values) == 1


def test_it_solves_outside_the_main_thread():
    box = []
    model, best = knapsack()
    thread = threading.Thread(target=lambda: box.append(solved(model)))
    thread.start()
    thread.join()
    assert box[0].objective == pytest.approx(best)


def test_the_signal_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    solved(knapsack(5)[0])
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_returns_the_incumbent():
    script = textwrap.dedent(
        f"""
        import importlib.util, json, sys
        spec = importlib.util.spec_from_file_location("here", {str(Path(__file__))!r})
        here = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(here)
        started = []
        def on_event(event):
            if event.objective is not None and not started:
                started.append(1)
                print("incumbent", flush=True)
        report = here.solved(here.hard(6, 50), on_event=on_event, time_limit=60.0)
        print(json.dumps([report.status, report.limit, report.objective, report.bound, report.x is not None]))
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline().strip() == "incumbent"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    status, limit, objective, bound, has_point = json.loads(out)
    assert (status, limit, has_point) == ("feasible", "interrupt", True)
    assert objective >= bound


# --------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("objective", "bound", "expected"),
    [(10, 9, 0.1), (-10, -9, 0.1), (0, 0, 0.0), (0, 1, float("inf")), (None, 1, None), (1, None, None),
     (1, float("inf"), None)],
)  # fmt: skip
def test_relative_gap(objective, bound, expected):
    assert relative_gap(objective, bound) == (None if expected is None else pytest.approx(expected))


def test_the_lp_relaxation_of_a_mip_is_a_bound():
    model, best = knapsack()
    compiled = compile_model(model)
    lp = solve_compiled(replace(compiled, integer=np.zeros_like(compiled.integer)))
    assert lp.status == "optimal"
    assert lp.objective >= best - 1e-9


def test_a_rounded_integer_takes_its_continuous_part_along():
    """z at 0.9999995 is within HiGHS' tolerance of 1, but e = 10⁶·z then is not within ours of its row."""
    from optmodels.solver.highs import verify

    m = pyo.ConcreteModel()
    m.z, m.e = pyo.Var(domain=pyo.Binary), pyo.Var(bounds=(0, 1e7))
    m.row = pyo.Constraint(expr=m.e == 1e6 * m.z)
    m.cost = pyo.Objective(expr=m.e - 2e6 * m.z)
    compiled = compile_model(m)
    at = {v.name: i for i, v in enumerate(compiled.variables)}
    x = np.zeros(2)
    x[at["z"]], x[at["e"]] = 0.99999, 0.99999 * 1e6
    assert compiled.violation(np.where(compiled.integer, np.round(x), x)) is not None
    verified = verify(compiled, x)
    assert verified[at["z"]] == 1
    assert verified[at["e"]] == pytest.approx(1e6)
