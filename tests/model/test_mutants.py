"""The mutation test itself: it makes the mistakes people make, golden rows notice them, and gaps are reported."""

import numpy as np
import pytest
from model.mutants import mutants, survivors
from model.transport import FAMILIES, Transport, capacity, demand_met, half_returns, same_mix

from optmodels.model import Model, at_most
from optmodels.model.golden import rows_of, text

CASES = [Transport(), Transport(cyclic=True), Transport(budget=20.0)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_golden_rows_notice_every_mutant(family):
    assert len(list(mutants(family))) > 3
    assert survivors(family, [(m, rows_of(m, family)) for m in CASES]) == []


def test_the_mistakes_people_make_are_made():
    made = {m.description.partition(": ")[2] for m in mutants(capacity)}
    assert "m.open * m.supply → m.open" in made
    assert "m.open * m.supply → m.supply" in made
    assert "m.x.by('t', 'i') → m.x.by('i', 't')" in made
    assert "0.0 → 1.0" in made
    assert any(d.startswith("at_most(") and "→ at_least(" in d for d in made)
    assert any(d.startswith("m.x.by('t', 'i') - (m.open") and d.endswith("→ m.x.by('t', 'i')") for d in made)
    assert any(d.startswith("m.x.by('t', 'i') - (m.open") and "→ m.x.by('t', 'i') + (m.open" in d for d in made)
    assert "m.cyclic → not m.cyclic" in {m.description.partition(": ")[2] for m in mutants(same_mix)}
    at = "(i[entry], t[entry] + later)"
    assert any(f"{at}, " in d and "(t[entry] + later, i[entry])" in d for d in
               (m.description for m in mutants(half_returns)))  # fmt: skip


def test_what_no_case_shows_survives():
    """Without a budget the family has no rows, whatever it says."""
    budget = FAMILIES[3]
    m = Transport()
    assert text(rows_of(m, budget)) == ""
    left = survivors(budget, [(m, rows_of(m, budget))])
    assert any("m.x * m.usd[i, j] → m.x" in d for d in left)
    assert survivors(budget, [(m, rows_of(m, budget))], dict.fromkeys(left, "no budget")) == []


def test_a_list_of_equivalents_must_be_true():
    cases = [(m, rows_of(m, capacity)) for m in CASES]
    noticed = next(m.description for m in mutants(capacity) if m.description.endswith("0.0 → 1.0"))
    assert survivors(capacity, cases, {noticed: "wrong", "line 9: a → b": "gone"}) == [
        f"{noticed}: said to be equivalent, but noticed",
        "line 9: a → b: said to be equivalent, but there is no such mutant",
    ]


def test_golden_rows_that_are_others_are_no_base():
    with pytest.raises(AssertionError, match="golden rows of demand_met"):
        survivors(demand_met, [(CASES[0], rows_of(CASES[1], demand_met))])


def test_a_mutant_sees_what_the_family_closes_over():
    limit = np.array([1.0, 2.0])

    def closed(m):
        """x_i ≤ limit_i."""
        return at_most(limit, m.x)

    m = Model()
    m.x = m.variable("x", ("i",), (2,))
    m.state([closed])
    assert survivors(closed, [(m, rows_of(m, closed))]) == []
