"""Limits named as groups of rows: conflicts and what one more unit is worth, by hand."""

import pytest

from optmodels.model import Model, at_least, at_most
from optmodels.solver import Settings, solve_compiled
from optmodels.study.explanation import named


class Halls(Model):
    """Tickets x_td for two days t in halls h: 10 a hall, at most two halls a day; two tickets sold need one worker."""

    def __init__(self, tickets, staff=99.0):
        super().__init__("halls")
        self.x = self.variable("x", ("t", "h"), (2, 3), upper=10.0)
        self.open = self.variable("open", ("t", "h"), (2, 3), upper=1.0, integer=True)
        self.tickets, self.staff = tickets, staff
        self.state((seats, inside, sold, staff_limit))
        self.minimise("cost", self.open * 5.0)


def seats(m):
    """Σ_h open_th ≤ 2."""
    return at_most(2.0, m.open.by("t"))


def inside(m):
    """x_th ≤ 10·open_th."""
    return at_most(0.0, m.x - m.open * 10.0)


def sold(m):
    """Σ_h x_th ≥ tickets_t."""
    return at_least(m.tickets, m.x.by("t"))


def staff_limit(m):
    """Σ_t Σ_h x_th / 2 ≤ staff."""
    return at_most(m.staff, (m.x * 0.5).by())


def words(family, label):
    match family:
        case "seats":
            return "two halls a day"
        case "sold":
            return f"tickets of day {label[0]}"
        case "staff_limit":
            return f"staff {len(label)}"
    return None


def test_rows_go_to_the_words_for_them():
    m = Halls([25.0, 5.0])
    found = named.groups(m, words)
    names = m.compiled().row_names
    assert {k: [names[i] for i in rows] for k, rows in found.items()} == {
        "two halls a day": ["seats[0]", "seats[1]"], "tickets of day 0": ["sold[0]"], "tickets of day 1": ["sold[1]"],
        "staff 0": ["staff_limit"],
    }  # fmt: skip


def test_a_conflict_has_only_what_it_takes():
    """25 tickets do not go into two halls of 10; the other day and the staff are innocent."""
    m = Halls([25.0, 5.0])
    assert named.conflict(m.compiled(), named.groups(m, words), 10.0, order=lambda k: k != "two halls a day") == {
        "conflict": ["two halls a day", "tickets of day 0"], "conflict_irreducible": True,
        "reason": "these cannot hold together: two halls a day; tickets of day 0",
    }  # fmt: skip


def test_what_nobody_named_is_no_conflict():
    m = Halls([35.0, 5.0])
    assert named.conflict(m.compiled(), {}, 10.0) == {
        "reason": "no plan exists, and no smaller set of limits was found"
    }


@pytest.mark.parametrize("relaxed", [False, True])
def test_what_does_not_bind_is_worth_nothing(relaxed):
    """11 and 4 tickets take two halls and one, at 5 each; as a relaxation 1.5 halls. Neither limit is reached."""
    m = Halls([11.0, 4.0])
    compiled = m.compiled()
    best = solve_compiled(compiled).objective
    assert best == pytest.approx(15.0)
    limits = {"halls": m.positions("seats"), "staff": m.positions(staff_limit)}
    assert named.gains(compiled, limits, Settings(10.0), None if relaxed else best) == {"halls": 0.0, "staff": 0.0}


def test_a_binding_limit_is_worth_what_it_saves():
    """One more worker lets two more tickets be sold, at 3 each."""
    m = Model("stall")
    x = m.variable("x", ("i",), (2,), upper=10.0, integer=True)

    def workers(m):
        """Σ_i x_i / 2 ≤ 4."""
        return at_most(4.0, (x * 0.5).by())

    m.state([workers])
    m.maximise("usd", x * 3.0)
    assert named.gains(m.compiled(), {"workers": m.positions(workers)}, Settings(10.0), 24.0) == {
        "workers": pytest.approx(6.0)
    }
    assert named.gains(m.compiled(), {"workers": m.positions(workers)}, Settings(10.0), None) == {
        "workers": pytest.approx(6.0)
    }
