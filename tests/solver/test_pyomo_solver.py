"""Any solver that Pyomo knows gives HiGHS' answers; what it gets wrong is noticed."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from pyomo.environ import SolverFactory
from pyomo.opt import SolverResults, SolverStatus, TerminationCondition

from optmodels.errors import InputError
from optmodels.solver import Compiled, Settings, pyomo_solver, solve_compiled
from optmodels.solver.otherwise import Way, otherwise

INSTALLED = [n for n in ("appsi_highs", "highs", "cbc", "glpk", "scip", "gurobi", "cplex_direct", "xpress_direct")
             if SolverFactory(n).available(exception_flag=False)]  # fmt: skip


def compiled(A, low, high, lower, upper, cost, integer, offset=0.0):
    m, n = A.shape
    return Compiled(
        np.array([cost], dtype=float), np.array([offset]), np.array([1.0]), sp.csc_matrix(A), np.asarray(low, float),
        np.asarray(high, float), np.asarray(lower, float), np.asarray(upper, float), np.asarray(integer, bool),
        [f"x[{j}]" for j in range(n)], [f"row[{i}]" for i in range(m)],
    )  # fmt: skip


def random_model(seed):
    """Integers, continuous columns, rows of every kind, an offset."""
    rng = np.random.default_rng(seed)
    m, n = 5, 8
    A = rng.integers(-2, 6, (m, n)).astype(float)
    inside = rng.integers(0, 4, n).astype(float)
    middle = A @ inside
    low, high = np.full(m, -np.inf), middle + rng.integers(0, 5, m)
    low[0], high[1] = middle[0] - 3, middle[1]
    low[1] = high[1]  # an equation
    return compiled(A, low, high, np.zeros(n), np.full(n, 6.0), rng.integers(-9, 9, n), np.arange(n) % 3 > 0, 2.5)


@pytest.mark.parametrize("name", INSTALLED)
def test_other_solvers_come_to_the_same_answers(name):
    statuses = set()
    for seed in range(6):
        model = random_model(seed)
        usual = solve_compiled(model)
        way = Way(name)
        with otherwise(way):
            found = solve_compiled(model, Settings(time_limit=30))
        assert way.said == [f"{name}: {usual.status}"]
        assert found.status == usual.status
        assert found.objective == pytest.approx(usual.objective, rel=1e-6)
        assert found.bound == pytest.approx(usual.bound, rel=1e-6)
        statuses.add(found.status)
    assert "optimal" in statuses


@pytest.mark.parametrize("name", INSTALLED)
def test_other_solvers_have_no_plan_where_there_is_none(name):
    contrary = compiled(np.array([[1.0, 1.0], [1.0, 1.0]]), [3, -np.inf], [np.inf, 2], [0, 0], [9, 9], [1, 1], [1, 0])
    endless = compiled(np.array([[1.0, -1.0]]), [-np.inf], [5], [0, 0], [np.inf, np.inf], [-1, 0], [1, 0])
    with otherwise(Way(name)):
        assert solve_compiled(contrary).status == "infeasible"
        assert solve_compiled(endless).status == "unbounded"


class Liar:
    """A solver of Pyomo's that says what it was told to."""

    says: TerminationCondition
    x: float
    options: dict = {}

    def __init__(self, **_):
        self.options = {}

    def available(self, exception_flag=True):
        return True

    def solve(self, model, load_solutions=False, timelimit=None):
        results = SolverResults()
        results.solver.status = SolverStatus.ok
        results.solver.termination_condition = self.says
        results.problem.lower_bound = -self.x
        return results

    def load_vars(self):
        for v in self.model.x.values():
            v.set_value(self.x, skip_validation=True)


@pytest.fixture
def liar(monkeypatch):
    def made(says, x):
        def solve(self, model, load_solutions=False, timelimit=None):
            self.model = model
            return Liar.solve(self, model)

        kind = type("It", (Liar,), {"says": says, "x": x, "solve": solve})
        monkeypatch.setattr(pyomo_solver, "_made", lambda name: kind())
        return Way("liar")

    return made


ONE = compiled(np.array([[1.0]]), [-np.inf], [3.5], [0], [9], [-1], [1])  # optimum: 3


@pytest.mark.parametrize(("says", "x", "why"), [
    (TerminationCondition.optimal, 4.0, "beyond the row"),
    (TerminationCondition.optimal, 3.4, "no whole number"),
    (TerminationCondition.optimal, 2.0, "a bound that HiGHS' point refutes"),
    (TerminationCondition.infeasible, 0.0, "there is a point"),
])  # fmt: skip
def test_lies_are_not_passed_on(liar, says, x, why):
    """A point outside is replaced by a verified one; no false "optimal" stands on a refuted claim."""
    with otherwise(liar(says, x)):
        found = solve_compiled(ONE)
    if why.startswith("a bound"):  # a bound on the claim: verified is the point
        assert (found.status, found.objective, found.bound) == ("optimal", -2.0, -2.0)
    else:
        assert found.objective == -3.0 and found.bound == -3.0, why


def test_the_limit_that_stopped_it_is_told(liar, monkeypatch):
    way = liar(TerminationCondition.maxTimeLimit, 2.0)
    monkeypatch.setattr(pyomo_solver, "_number", lambda value: -3.0)  # the bound so far
    with otherwise(way):
        found = solve_compiled(ONE, Settings(time_limit=5))
    assert (found.status, found.limit, found.objective, found.bound) == ("feasible", "time", -2.0, -3.0)


@pytest.mark.parametrize(("name", "said"), [
    ("nobody", "one that Pyomo knows: appsi_cbc"), ("ipopt", "mixed-integer"), ("_cbc_shell", "one that Pyomo knows"),
])  # fmt: skip
def test_solvers_that_cannot_be_asked_are_refused(name, said):
    with pytest.raises(InputError, match=said):
        pyomo_solver.named(name)


def test_one_that_is_not_installed_is_said_to_be_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="neither its program nor its package"):
        pyomo_solver.named("cplex")


def test_the_command_line_asks_by_name(cli, folder, tiny):
    (folder / "tiny.json").write_text(json.dumps(tiny()))
    usual = json.loads(cli("solve", "tiny.json", "--json").out)
    run = cli("solve", "tiny.json", "--json", "--solver", "appsi_highs")
    found = json.loads(run.out)
    assert (run.status, found["objective"]) == (0, pytest.approx(usual["objective"]))
    assert found["log"]["asked"] == {"solver": "appsi_highs", "runs": ["appsi_highs: optimal"]}
    assert "asked" not in usual["log"]
    said = cli("solve", "tiny.json", "--solver", "appsi_highs").out
    assert "The bound stands on the word of appsi_highs" in said
    run = cli("solve", "tiny.json", "--solver", "nobody")
    assert (run.status, "--solver" in run.err) == (2, True)
