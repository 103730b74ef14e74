"""Golden rows: a round trip without loss, and every kind of difference is found and said readably."""

from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
import pytest
from model.transport import Transport

from optmodels.errors import SolverError
from optmodels.model import Model, at_most
from optmodels.model.golden import differences, parse, rows_of, statement, text

WRITTEN = """\
# a comment
capacity[0,3]: 0.25 x[0,1,3] - n[0,3] <= 0
least: -x[0,1,3] >= -1e-05
both: 1 <= x[0,1,3] + n[0,3] <= 2.5
same: n[0,3] = 2
never: 0 >= 1
x[0,1,3] in [0, inf]
n[0,3] integer in [-2, 5]

minimise cost: 2.5 n[0,3] - x[0,1,3] - 10
maximise kept: 0
"""


def test_text_is_read_back_without_loss():
    stated = parse(WRITTEN)
    assert stated.rows["capacity[0,3]"].coefficients == {"x[0,1,3]": 0.25, "n[0,3]": -1.0}
    assert stated.rows["least"].lower == -1e-05
    assert stated.objectives["cost"].constant == -10.0
    assert parse(text(stated)) == stated
    assert text(stated) == WRITTEN.replace("# a comment\n", "").replace("\n\n", "\n")
    model = statement(Transport(budget=1 / 3))
    assert parse(text(model)) == model


@pytest.mark.parametrize(
    "line",
    ["nonsense", "row: 2 x", "row: 2 x + 3 <= 4", "row: x + x <= 1", "x in [0; 1]", "x real in [0, 1]", "row: <= 1",
     "same: n[0,3] = 2\nsame: n[0,3] = 2"],
)  # fmt: skip
def test_text_that_is_none_is_refused(line):
    with pytest.raises(ValueError, match="line"):
        parse(line)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.25 x[0,1,3]", "0.26 x[0,1,3]", "row capacity[0,3]: x[0,1,3]: 0.26, expected 0.25"),
        ("- n[0,3] <= 0", "- y[0,3] <= 0", "row capacity[0,3]: n[0,3]: 0, expected -1"),
        ("0.25 x[0,1,3] - n[0,3]", "0.25 x[0,1,3]", "row capacity[0,3]: n[0,3]: 0, expected -1"),
        ("0.25 x[0,1,3] - n[0,3] <= 0", "0.25 x[0,1,3] - n[0,3] >= 0", "upper bound"),
        ("0.25 x[0,1,3] - n[0,3] <= 0", "0.25 x[0,1,3] + n[0,3] <= 0", "row capacity[0,3]: n[0,3]"),
        (
            "0.25 x[0,1,3] - n[0,3] <= 0",
            "0.25 x[0,1,3] - n[0,3] <= 1e-6",
            "row capacity[0,3]: upper bound: 1e-06, expected 0",
        ),
        ("capacity[0,3]:", "capacity[3,0]:", "row capacity[0,3] is missing: 0.25 x[0,1,3] - n[0,3] <= 0"),
        ("capacity[0,3]:", "capacity[3,0]:", "row capacity[3,0] is new: 0.25 x[0,1,3] - n[0,3] <= 0"),
        ("never: 0 >= 1\n", "", "row never is missing: 0 >= 1"),
        ("both: 1 <=", "both: 0 <=", "row both: lower bound: 0, expected 1"),
        ("n[0,3] = 2", "n[0,3] <= 2", "row same: lower bound: -inf, expected 2"),
        ("[0, inf]", "[0, 7]", "variable x[0,1,3]: upper bound: 7, expected inf"),
        ("[-2, 5]", "[-1, 5]", "variable n[0,3]: lower bound: -1, expected -2"),
        ("n[0,3] integer", "n[0,3]", "variable n[0,3]: continuous"),
        ("x[0,1,3] in [0, inf]\n", "", "variable x[0,1,3] is missing"),
        ("x[0,1,3] in [0, inf]\n", "x[0,1,3] in [0, inf]\nz in [0, 1]\n", None),
        ("minimise cost", "maximise cost", "objective cost: maximise, expected minimise"),
        ("2.5 n[0,3] - x", "2.4 n[0,3] - x", "objective cost: n[0,3]: 2.4, expected 2.5"),
        ("- 10", "+ 10", "objective cost: constant: 10, expected -10"),
        ("maximise kept: 0\n", "", "objectives are ['cost'], expected ['cost', 'kept']"),
        ("0.25 x[0,1,3] - n[0,3] <= 0", "n[0,3] - 0.25 x[0,1,3] >= 0", None),
        ("0.25 x[0,1,3]", "0.2500000000001 x[0,1,3]", None),
        ("same:", "idle: 0 <= 3\nsame:", None),
    ],
)
def test_every_kind_of_difference_is_found(old, new, said):
    assert old in WRITTEN
    found = differences(parse(WRITTEN), parse(WRITTEN.replace(old, new)))
    assert any(said in line for line in found) if said else found == []


def test_objectives_in_another_order_are_others():
    stated = parse(WRITTEN)
    turned = replace(stated, objectives=dict(reversed(stated.objectives.items())))
    assert differences(stated, turned) == ["objectives are ['kept', 'cost'], expected ['cost', 'kept']"]


def test_a_pyomo_statement_is_compared_with_a_stated_one():
    """As in a conversion: the same rows written in Pyomo, with sides exchanged, a range and an unused variable."""

    def link(m):
        return at_most(0.0, m.x - 2.0 * m.b.across(j=3).by("j"))

    m = Model("new")
    m.x = m.variable("x", ("j",), (3,), upper=4.0)
    m.b = m.variable("b", upper=1.0, integer=True)
    m.variable("unused", upper=np.inf)
    m.state([link])
    m.minimise("cost", m.b - m.x.by())
    old = pyo.ConcreteModel()
    old.x = pyo.Var(range(3), bounds=(0, 4))
    old.b = pyo.Var(domain=pyo.Binary)
    old.link = pyo.Constraint(range(3), rule=lambda o, j: 2 * o.b >= o.x[j])
    old.cost = pyo.Objective(expr=o_cost(old))
    assert differences(statement(old), statement(m)) == []
    old.link[1].deactivate()
    old.both = pyo.Constraint(expr=(0, old.x[0] + old.x[1], 3))
    assert differences(statement(old), statement(m)) == [
        "row both is missing: 0 <= x[0] + x[1] <= 3",
        "row link[1] is new: x[1] - 2 b <= 0",
    ]


def o_cost(m):
    return m.b - sum(m.x[j] for j in range(3))


def test_rows_of_one_family():
    m = Transport()
    only = rows_of(m, "capacity")
    assert len(only.rows) == 6
    assert not only.variables
    assert differences(only, parse(text(only))) == []
    assert differences(only, rows_of(m, "capacity", m.rows("trades")))


def test_two_rows_of_one_name_are_refused():
    compiled = Transport().compiled()
    with pytest.raises(SolverError, match="two different rows"):
        statement(replace(compiled, row_names=["row"] * compiled.A.shape[0]))
