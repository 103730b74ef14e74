"""The kernel on models worked by hand and at random: rows, errors, solutions; HiGHS's arrays and Pyomo's agree."""

from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.transport import FAMILIES, Transport, capacity, demand_met

from optmodels.errors import SolverError
from optmodels.model import Model, StatementError, at_least, at_most, between, equal, golden, no_rows
from optmodels.solver import InfeasibleModelError, compile_model, solve_compiled, solve_model


def lines(model, family):
    return golden.text(golden.rows_of(model, family)).splitlines()


# ------------------------------------------------------------------------------------------------------- rows by hand


def test_rows_of_a_family_by_hand():
    m = Transport()
    assert lines(m, demand_met)[:4] == [
        "demand_met[0,0]: x[0,0,0] + x[0,1,0] - stock[0,0] + late >= 1",
        "demand_met[0,1]: x[0,0,1] + x[0,1,1] - stock[0,1] + late >= 2",
        "demand_met[0,2]: x[0,1,2] - stock[0,2] + late >= 3",
        "demand_met[1,0]: x[1,0,0] + x[1,1,0] + stock[0,0] - stock[1,0] + late >= 2",
    ]
    assert lines(m, capacity)[1] == "capacity[0,1]: -9 open[1] + x[0,1,0] + x[0,1,1] + x[0,1,2] <= 0"
    assert lines(m, "trades") == [
        "trades[0]: 1 <= open[0] + 2 open[1] <= 4",
        "trades[1]: 1 <= 3 open[1] <= 4.5",
    ]
    assert lines(m, "budget") == []
    assert lines(m, "same_mix")[0] == "same_mix[0,0]: -x[0,0,0] + x[1,0,0] = 0"
    assert lines(m, "half_returns")[1] == "half_returns[0,1]: 0.5 x[0,0,0] + 0.5 x[0,0,1] + x[1,0,0] + x[1,0,1] <= 8.5"


def test_a_cycle_begins_anew():
    assert "+ stock[2,0]" in lines(Transport(cyclic=True), demand_met)[0]
    assert lines(Transport(cyclic=True), "same_mix") == []


def test_a_scalar_family_has_no_index():
    assert lines(Transport(budget=20.0), "budget")[0].startswith("budget: x[0,0,0] + 2 x[0,0,1]")


class Small(Model):
    def __init__(self, *families):
        super().__init__("small")
        self.x = self.variable("x", ("i", "j"), (2, 3), upper=4.0)
        self.y = self.variable("y", ("i",), [4, 1], integer=True, lower=-1.0)
        self.state(families)


def rows(make):
    def family(m):
        return make(m)

    return lines(Small(family), family)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda m: at_most(1.0, m.y * 2.0), ["family[1]: 2 y[1] <= 1", "family[4]: 2 y[4] <= 1"]),
        (lambda m: at_most([5.0, 6.0], m.y, over=[1, 4]), ["family[1]: y[1] <= 5", "family[4]: y[4] <= 6"]),
        (lambda m: at_least(np.arange(5.0), m.y), ["family[1]: y[1] >= 1", "family[4]: y[4] >= 4"]),
        (lambda m: equal(0.0, (m.x - m.x).by("i")),
         ["family[0]: 0 = 0", "family[1]: 0 = 0"]),
        (lambda m: at_most(3.0, m.x[m.x.labels[0] == 0].by("j"))
         , ["family[0]: x[0,0] <= 3", "family[1]: x[0,1] <= 3", "family[2]: x[0,2] <= 3"]),
        (lambda m: at_most(np.array([np.inf, 2.0, np.inf]), m.x.by("j"), over=(3,)),
         ["family[1]: x[0,1] + x[1,1] <= 2"]),
        (lambda m: at_most(1.0, -m.y.by() + np.array([1.0, 3.0]) * m.y.by()), ["family: 2 y[1] <= 1"]),
        (lambda m: at_most(1.0, m.y.at([0, 0, 1], ([0, 1, 1],), [1.0, 2.0, 3.0])),
         ["family[0]: y[4] <= 1", "family[1]: 2 y[4] + 3 y[1] <= 1"]),
        (lambda m: at_most(1.0, m.y.at(m.y.find([1]), (7,))), ["family[7]: y[1] <= 1"]),
        (lambda m: at_most(1.0, m.x.lag("j", -2)), ["family[0,0]: x[0,2] <= 1", "family[1,0]: x[1,2] <= 1"]),
        (lambda m: at_most(0.0, m.x.by("j")[:1] - m.x.by("j")[3:].among(m.x.by("j")[:1])),
         ["family[0]: x[0,0] - x[1,0] <= 0"]),
        (lambda m: between(-1.0, 1.0, m.x.by("j", k=np.array([0, 0, 0, 1, 1, 1]))[:2], over=[[1, 0], [0, 0], [9, 9]]),
         ["family[1,0]: -1 <= x[0,1] <= 1", "family[0,0]: -1 <= x[0,0] <= 1", "family[9,9]: -1 <= 0 <= 1"]),
        (lambda m: no_rows(), []),
        (lambda m: at_least(2.0, m.y[:0], over=(2,)), ["family[0]: 0 >= 2", "family[1]: 0 >= 2"]),
        (lambda m: at_least(2.0, m.y[:0]), []),
        (lambda m: at_least(2.0, m.y[:0].by()), []),
        (lambda m: at_least(2.0, m.y[:0].by(), over=()), ["family: 0 >= 2"]),
    ],
)  # fmt: skip
def test_small_families(make, expected):
    assert rows(make) == expected


def test_labels_far_apart_are_found_without_a_table():
    far = 2_000_000
    m = Model()
    x = m.variable("x", ("i", "j"), ([far, 3, 0], [0, far, far]))
    assert x.find([0, far], [far, 0]).tolist() == [2, 0]
    with pytest.raises(StatementError, match=r"variable x: there is no \[3,3\]"):
        x.find([3], [3])
    m.state([demand_of := lambda m: at_most([1.0, 2.0, 3.0], x, over=([0, 3, far], [far, far, 0]))])
    assert lines(m, demand_of)[0] == f"<lambda>[0,{far}]: x[0,{far}] <= 1"
    with pytest.raises(StatementError, match="twice"):
        m.variable("y", ("i", "j"), ([far, 3, far], [0, far, 0]))
    made = at_most(1.0, x)
    assert [part.tolist() for part in made.labels] == [[0, 3, far], [far, far, 0]]
    assert made.columns[np.argsort(made.row)].tolist() == [2, 1, 0]


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: at_most(0.0, m.y, over=(4,)), r"family family: there is no \[4\]"),
        (lambda m: at_most(0.0, m.y, over=[4]), r"there is no \[1\]"),
        (lambda m: at_most(0.0, m.x, over=(2,)), "no rows over 1 indices"),
        (lambda m: at_most(0.0, m.y, over=[1, 4, 1]), r"the label \[1\] is there twice"),
        (lambda m: at_most(0.0, m.y, over=np.zeros((2, 2, 2), dtype=int)), "shape"),
        (lambda m: at_most(0.0, m.y, over=[1.0, 4.0]), "integers"),
        (lambda m: at_most(0.0, m.y, over=[-1, 4]), "0 or more"),
        (lambda m: at_most(np.nan, m.y), "not a number"),
        (lambda m: at_most(-np.inf, m.y), "infinite"),
        (lambda m: at_least(np.zeros(3), m.y), "too small"),
        (lambda m: at_least(np.zeros((2, 2)), m.y), "neither a scalar"),
        (lambda m: at_least(np.zeros(6), m.x), "neither a scalar"),
        (lambda m: at_most(0.0, m.y * np.array([1.0, np.nan])), r"coefficient of row \[1\]"),
        (lambda m: at_most(0.0, m.y * np.inf), "finite"),
        (lambda m: at_most(0.0, m.y * np.ones(3)), r"shape \(3,\), the terms have 2"),
        (lambda m: at_most(0.0, m.y[np.array([True])]), "mask"),
        (lambda m: at_most(0.0, m.x.by("k")), "not by 'k'"),
        (lambda m: at_most(0.0, m.x.by("i") + m.x.by("j")), "cannot be added"),
        (lambda m: at_most(0.0, m.x.by("i", "j") + m.x.by("j", "i")), "cannot be added"),
        (lambda m: at_most(0.0, m.x.by("i", k=np.array([1, 2]))), "labels of k are 2"),
        (lambda m: at_most(0.0, m.x.by(k=np.full(6, -1))), "0 or more"),
        (lambda m: at_most(0.0, m.y.at([2], ([0],))), "no entry 2"),
        (lambda m: at_most(0.0, m.y.at([1], ([0, 1],))), "lengths"),
        (lambda m: at_most(0.0, m.y.at([1], ([0],), sets=("a", "b"))), "named"),
        (lambda m: at_most(0.0, m.y.dot("i", np.ones((2, 2)), "h")), "none for i = 4"),
        (lambda m: at_most(0.0, m.y.across(i=2)), "already"),
        (lambda m: at_most(0.0, m.y.among(m.x)), "not among"),
        (lambda m: m.y, "returns Variable, not rows"),
    ],
)  # fmt: skip
def test_what_is_stated_wrongly_is_refused(make, said):
    with pytest.raises(StatementError, match=said):
        rows(make)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda m: m.variable("x"), "two of the name x"),
        (lambda m: m.variable("z", ("i",), (2, 2)), "variable z: 1 sets"),
        (lambda m: m.variable("z", ("i",), (2,), upper=[1.0, np.nan]), r"upper bound is not a number at \[1\]"),
        (lambda m: m.variable("z", ("i",), (2,), lower=[[1.0]]), "neither a scalar"),
        (lambda m: m.variable("z", ("i",), [1, 1]), r"\[1\] is there twice"),
        (lambda m: m.variable("z", ("i",), (-1,)), "sizes"),
        (lambda m: m.variable("z", ("i", "j"), ([1, 2], [1])), "length"),
        (lambda m: m.start({"y": [1.0]}), "1 values for 2"),
        (lambda m: m.expression("c", m.y * np.nan), "finite"),
        (lambda m: m.minimise("x", m.y), "two of the name x"),
    ],
)
def test_what_is_declared_wrongly_is_refused(declare, said):
    with pytest.raises(StatementError, match=said):
        declare(Small())


def test_a_model_without_objective_is_refused():
    for make in (Small().compiled, Small().pyomo):
        with pytest.raises(SolverError, match="no objective"):
            make()


# ------------------------------------------------------------------------------------------------ solving, and Pyomo


def test_solutions_are_read_by_variable():
    m = Transport()
    report = solve_compiled(m.compiled())
    values = {name: v.of(report.x) for name, v in m.variables.items()}
    assert {name: len(v) for name, v in values.items()} == {"open": 2, "x": 15, "stock": 9, "late": 1}
    assert values["open"].tolist() == m.open.of(report.x).tolist()
    usd = m.expressions["usd_roads"].value(report.x) + values["open"] @ m.usd_open + 100 * values["late"][0] + 5
    assert report.status == "optimal"
    assert m.objectives[0].expression.value(report.x) == pytest.approx(usd) == pytest.approx(report.objective)
    assert solve_compiled(compile_model(m.pyomo())).objective == pytest.approx(report.objective)


def test_a_start_is_by_column():
    m = Transport()
    assert m.start({"open": [0.0, np.nan], "late": 2.0}) == {0: 0.0, m.late.start: 2.0}
    full = m.start({"stock": np.full((3, 3), 0.5)})
    assert full == dict.fromkeys(range(m.stock.start, m.stock.start + 9), 0.5)


def test_known_optimum():
    """max 3a + 2b, a + b ≤ 4, a + 3b ≤ 6, a ≤ 3 integer: a = 3, b = 1."""

    def both(m):
        return at_most(np.array([4.0, 6.0]), m.v.at([0, 1, 0, 1], ([0, 0, 1, 1],), [1.0, 1.0, 1.0, 3.0]))

    m = Model()
    m.v = m.variable("v", ("k",), (2,), upper=[3.0, np.inf], integer=True)
    m.state([both])
    m.maximise("profit", m.v * [3.0, 2.0])
    report = solve_compiled(m.compiled())
    assert (report.objective, report.x.tolist()) == (pytest.approx(11.0), [3.0, 1.0])


def test_an_empty_row_that_cannot_hold_makes_the_model_infeasible():
    def served(m):
        return equal(1.0, m.y[m.y.labels[0] < 4], over=[1, 4])

    m = Small(served)
    m.minimise("nothing", m.y)
    assert solve_compiled(m.compiled()).status == "infeasible"
    with pytest.raises(InfeasibleModelError, match=r"served\[4\]"):
        compile_model(m.pyomo())


@pytest.mark.parametrize("options", [{}, {"cyclic": True}, {"budget": 15.0}])
def test_pyomo_says_the_same(options):
    m = Transport(**options)
    assert golden.differences(golden.statement(m), golden.statement(m.pyomo())) == []
    assert golden.differences(golden.statement(m.compiled()), replace_names(golden.statement(m.pyomo()))) == []


def replace_names(stated):
    return replace(stated, objectives={f"objective_{k}": o for k, o in enumerate(stated.objectives.values())})


def test_attached_to_a_block_of_a_larger_model():
    larger = pyo.ConcreteModel()
    larger.part = pyo.Block()
    Transport(cyclic=True).attach(larger.part)
    larger.total = pyo.Objective(expr=larger.part.usd_roads + 10 * larger.part.open[0] + 14 * larger.part.open[1])
    compiled = compile_model(larger)
    assert solve_compiled(compiled).status == "optimal"
    assert "part.capacity[0,1]" in compiled.row_names
    assert larger.part.demand_met.doc.startswith("Σ_i x_tij + I_t−1,j")
    assert not hasattr(larger.part, "budget")
    assert larger.part.open[0].is_binary()
    assert larger.part.late.bounds == (0.0, 3.0)


def test_values_are_read_from_a_block():
    m = Transport()
    model = m.pyomo()
    assert np.isnan(m.solution(model)).all()
    report, _, _ = solve_model(model)
    x = m.solution(model)
    assert m.objectives[0].expression.value(x) == pytest.approx(report.objective)
    model.late.set_value(2.0)
    model.x[1, 1, 2].set_value(7.0)
    x = m.solution(model)
    assert m.variables["late"].of(x).tolist() == [2.0]
    assert m.x.of(x)[m.x.find([1], [1], [2])].tolist() == [7.0]


def test_names_are_those_of_the_statement():
    compiled = Transport(budget=9.0).compiled()
    rows, columns = compiled.row_names, compiled.column_names
    assert len(rows) == compiled.A.shape[0]
    assert len(columns) == compiled.A.shape[1]
    assert [rows[i] for i in range(len(rows))] == list(rows)
    assert [columns[i] for i in range(len(columns))] == list(columns)
    assert sorted(columns) == sorted(compile_model(Transport(budget=9.0).pyomo()).column_names)
    assert rows[-1] == "half_returns[1,2]"
    assert rows[:2] == ["demand_met[0,0]", "demand_met[0,1]"]
    assert columns[:1] == ["open[0]"]
    assert "budget" in rows
    with pytest.raises(IndexError):
        rows[len(rows)]
    x = np.zeros(len(columns))
    assert compiled.violation(x) == "demand_met[0,0] by 1"


@st.composite
def random_models(draw):
    """A model of two families over random labels, with duplicates, zeros, empty rows and all kinds of bounds."""
    number = st.sampled_from([-2.5, -1.0, 0.0, 0.5, 1.0, 3.0])
    m = Model("random")
    sizes = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    x = m.variable("x", ("i", "j"), sizes, lower=draw(number) - 3, upper=draw(st.sampled_from([1.0, 4.5, np.inf])))
    at = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
    y = m.variable("y", ("k",), at, integer=True, upper=draw(st.sampled_from([1.0, 5.0])))
    entries = draw(st.lists(st.tuples(st.integers(0, len(x) - 1), st.integers(0, 3), number), max_size=12))
    more = draw(st.lists(st.tuples(st.integers(0, len(y) - 1), st.integers(0, 3), number), max_size=6))
    part = [v.at([e[0] for e in some], ([e[1] for e in some],), [e[2] for e in some])
            for v, some in ((x, entries), (y, more))]  # fmt: skip
    low, high = draw(st.sampled_from([(-np.inf, 2.0), (-1.0, np.inf), (-1.0, 2.0), (0.0, 0.0), (-np.inf, np.inf)]))
    over = draw(st.sampled_from([None, (4,), [3, 1, 0, 2]]))

    def placed(_):
        return between(low, high, part[0] - part[1], over)

    def lagged(_):
        return at_most(draw(number), x.lag("j", draw(st.integers(-1, 2)), cyclic=draw(st.booleans())) - 0.5 * x)

    def never_empty(_):
        return at_most(9.0, x.by())

    m.state([placed, lagged, never_empty])
    m.maximise("first", (x * draw(number)).by() + (y * np.resize([1.0, 0.0], len(y))).by())
    m.minimise("second", m.expression("named", y, 3.0) - 1.5)
    return m


@given(random_models())
def test_random_models_are_the_same_in_pyomo(m):
    expected = golden.statement(m)
    assert golden.differences(expected, golden.statement(m.pyomo())) == []
    assert golden.parse(golden.text(expected)) == expected


@given(random_models())
def test_rows_are_sums_of_their_entries(m):
    """Activities by the matrix are those of the entries one by one."""
    x = np.random.default_rng(1).random(m.width)
    compiled = m.compiled()
    at = 0
    for family in m.families:
        rows = m.rows(family)
        expected = np.zeros(len(rows))
        for r, j, value in zip(rows.row, rows.columns, rows.coefficients, strict=True):
            expected[r] += value * x[j]
        np.testing.assert_allclose((compiled.A @ x)[at : at + len(rows)], expected, atol=1e-12)
        at += len(rows)
    assert at == compiled.A.shape[0]


def test_every_family_is_stated_in_its_order():
    assert list(Transport().families.values()) == list(FAMILIES)
