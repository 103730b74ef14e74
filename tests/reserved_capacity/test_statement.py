"""The statement of reserved capacity: golden rows of every family, mistakes in it that they notice, rows by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model.golden_files import REST, check_rest, golden_rows, names
from model.mutants import mutants, survivors
from reserved import machine, service, two_regions

from formulations.reserved_capacity import model as statement_of
from formulations.reserved_capacity.dispatch import RowLp
from formulations.reserved_capacity.methods.exact import CommitmentMaster
from formulations.reserved_capacity.methods.oracles import OracleCut
from formulations.reserved_capacity.model import FAMILIES, PURCHASES, TrafficModel
from formulations.reserved_capacity.points import build_tables
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.model.document import written
from optmodels.model.golden import GoldenStatement, differences, parse, rows_of, statement

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/reserved_capacity"


def hours(**by_region):
    """Demand in requests/s."""
    return {"kind": "inline", "unit": "requests_per_s", "by_region": by_region}


def tables(**changes):
    """Of the two regions with changes."""
    return build_tables(load(two_regions(**changes)))


def growth():
    """Two quarters, reservations for one year from either; steps, a minimum, a stock; any region may be lost.

    A box serves 4 requests/s, a forwarded one costs 1.5 local ones. In the west 3 more can be bought, in the east any.
    """
    box = machine(prices={"on_demand": 3.0, "reserved_1y": 2.0}, step=2, minimum=5, reservable=9,
                  on_demand_available={"west": 3},
                  serves={"chat": {"requests_per_s": 4.0, "prefill_s": 0.1}})  # fmt: skip
    return tables(
        services=service(kappa=1.5, demand=hours(west=[8.0], east=[2.0])), machines=box,
        terms=["reserved_1y", "on_demand"],
        growth={"quarters": 2, "factor_per_quarter": 1.5, "beyond_horizon_charged": 0.5},
        resilience={"lose_any_region_keep": 0.5, "count_on_demand": True},
    )  # fmt: skip


def risk():
    """Two futures; any region 50 % above its demand, or all spot machines lost; of two services one may fall short.

    A big machine stands in the west only and is not bought by the hour; bits leave a region at a price.
    """
    [box] = machine(prices={"on_demand": 3.0, "spot": 1.0, "reserved_3y": 1.0}, on_demand_available=4, spot_available=6,
                    spot_lost_share=0.5, serves={"chat": {"requests_per_s": 2.0, "prefill_s": 0.1},
                                                 "code": {"requests_per_s": 1.0, "prefill_s": 0.1}})  # fmt: skip
    big = {"machine": "big", "prices": {"reserved_3y": 4.0}, "regions": ["west"], "minimum": 3, "reservable": 8,
           "serves": {"chat": {"requests_per_s": 8.0, "prefill_s": 0.1}}}  # fmt: skip
    [chat] = service(demand=hours(west=[4.0], east=[2.0]), request_kb=10.0, answer_kb=40.0)
    code = chat | {"service": "code", "demand": hours(west=[1.0], east=[0.0]), "unserved_usd_per_request": 0.001}
    network = two_regions()["network"] | {"egress": {"usd_per_gb": {"west": 0.1, "east": 0.2}}}
    futures = [{"scenario": "a", "probability": 0.25},
               {"scenario": "b", "probability": 0.75, "factor": 2.0, "by_region": {"east": 1.5}}]  # fmt: skip
    return tables(
        services=[chat, code], machines=[box, big], network=network, terms=["reserved_3y", "on_demand", "spot"],
        uncertainty={"scenarios": futures, "worst_case": {"deviation": 0.5, "regions": 1}},
        resilience={"lose_spot_keep": 0.75},
    )  # fmt: skip


def apart():
    """Two regions out of each other's reach, any of which may be lost: nobody is left to serve its users."""
    [chat] = service(slo={"ttft_s": 0.15}, demand=hours(west=[3.0, 0.0], east=[0.0, 1.0]))
    return tables(services=[chat], resilience={"lose_any_region_keep": 1.0})


TABLES = {"growth": growth(), "risk": risk(), "apart": apart()}
CASES = {name: TrafficModel(t) for name, t in TABLES.items()}
LOST = "line 9: reserved.by('j', 't', g=m.g[s], v=m.v[s]) → reserved.by('t', 'j', g=m.g[s], v=m.v[s])"
EQUIVALENT = {"survivors_capacity": {LOST: "the by after it puts the sets in order"}}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_every_mistake_in_a_family_is_noticed_by_its_golden_rows(family):
    golden = golden_rows(GOLDEN, family, CASES)
    assert len(list(mutants(family))) > 1
    assert survivors(family, golden, EQUIVALENT.get(family.__name__)) == []


def test_bounds_integrality_and_objectives():
    check_rest(GOLDEN, CASES)


def test_golden_files_are_those_of_the_families():
    assert names(GOLDEN) == {f.__name__ for f in FAMILIES} | {REST}


@pytest.mark.parametrize("part", ["held", "held_at", "hourly_usd_per_month"])
def test_every_mistake_in_what_families_and_objectives_are_made_of_is_noticed(part, monkeypatch):
    """Rows and objectives of the same cases; they are the golden ones, as the tests above say."""
    golden = {name: statement(m) for name, m in CASES.items()}
    left = []
    for mutant in mutants(getattr(statement_of, part)):
        monkeypatch.setattr(statement_of, part, mutant.function)
        if not any(_differs(golden[name], t) for name, t in TABLES.items()):
            left.append(mutant.description)
    assert left == []


def _differs(golden, t):
    try:
        return bool(differences(golden, statement(TrafficModel(t))))
    except Exception:
        return True  # whoever builds the model notices


def test_rows_by_hand():
    """A box takes 1/4 for a request/s, 1.5 times as much of a forwarded one; two boxes in a step; 8·1.5 requests/s.

    Reservations of the first quarter run in both; once the east is lost, half of the demand is left for the west, and 3
    boxes on demand. What is bought in the east has no limit: without the west no row bounds it.
    """
    expected = parse("""
        capacity[0,0]: 0.25 f[0,0,0] + 0.375 f[1,0,0] - 2 k[0] - x[0,0] <= 0
        capacity[0,1]: 0.25 f[0,0,1] + 0.375 f[1,0,1] - 2 k[0] - 2 k[1] - x[0,1] <= 0
        capacity[1,0]: 0.25 f[1,1,0] + 0.375 f[0,1,0] - 2 k[2] - x[1,0] <= 0
        capacity[1,1]: 0.25 f[1,1,1] + 0.375 f[0,1,1] - 2 k[2] - 2 k[3] - x[1,1] <= 0
        survivors_capacity[1,0,0,0]: 0.25 e[1,0,0,0,0] + 0.375 e[1,0,1,0,0] - 2 k[0] <= 3
        survivors_capacity[1,0,0,1]: 0.25 e[1,0,0,0,1] + 0.375 e[1,0,1,0,1] - 2 k[0] - 2 k[1] <= 3
    """)
    m = CASES["growth"]
    found = GoldenStatement(rows_of(m, "capacity").rows | rows_of(m, "survivors_capacity").rows)
    assert differences(expected, found) == []


def test_the_worst_case_by_hand():
    """Two futures, 4 and 8 requests/s of chat in the west: half as much again where the west deviates (v = 0)."""
    rows = rows_of(CASES["risk"], "survivors_meet_demand").rows
    assert [rows[f"survivors_meet_demand[1,{v},0,{t}]"].lower for v in (0, 1) for t in (0, 1)] == [6, 12, 4, 8]


def test_costs_by_hand():
    """730 h a month, a quarter of the time future a; half of spot is lost; a request unserved is 0.001 USD."""
    cost = statement(CASES["risk"]).objectives["cost"].coefficients
    assert cost["k[2]"] == pytest.approx(4 * 730)
    assert cost["x[1,0]"] == pytest.approx(1 / (1 - 0.5) * 730 / 4)
    assert cost["u[2,0]"] == pytest.approx(0.001 * 3600 * 730 / 4)
    # West to east 10 kB at 0.1 USD/GB, back 40 kB at 0.2: 9e-6 USD a request.
    assert cost["f[0,1,0]"] == pytest.approx(9e-6 * 3600 * 730 / 4)
    # A one-year reservation from the second of two quarters on: a quarter of it, and half of the three after them.
    paid = 2 * 2.0 * 730 * (1 + 0.5 * 3) / 2
    assert statement(CASES["growth"]).objectives["cost"].coefficients["k[1]"] == pytest.approx(paid)


@pytest.mark.parametrize("name", TABLES)
def test_the_master_of_exact_has_the_same_purchases(name):
    master, whole = CommitmentMaster(TABLES[name], 3, Options()), CASES[name]
    for family in PURCHASES:
        assert differences(rows_of(whole, family), rows_of(master.model, family)) == []
    assert bounds(master.model) == bounds(whole)
    assert (master.session.rows, master.session.columns) == (master.structural, len(whole.k) + len(whole.b) + 3)


def bounds(model):
    """Of the purchase variables."""
    return {name: b for name, b in statement(model).variables.items() if name[0] in "kb"}


@pytest.mark.parametrize("quarter, worth", [(0, [4, 0, 2, 0]), (1, [4, 4, 2, 2])])
def test_a_cut_of_the_master_by_hand(quarter, worth):
    """2·(machines in the west) + machines in the east + θ_1 ≥ 5 in a quarter, two machines in a step."""
    master = CommitmentMaster(TABLES["growth"], 2, Options())
    session, columns = master.session, np.arange(4)
    master.add([OracleCut(np.array([2.0, 1.0]), 5.0, group=1, quarter=quarter)])
    session.set_costs((np.arange(session.columns) == master.theta.start + 1).astype(float))
    session.set_integer(master.integer, on=False)
    session.set_row_bounds(np.arange(master.structural), np.full(master.structural, -np.inf),
                           np.full(master.structural, np.inf))  # fmt: skip
    for bought in np.eye(4):
        session.set_column_bounds(columns, bought, bought)
        assert session.run() == "optimal"
        assert session.objective == pytest.approx((5 - bought @ worth) * master.unit)  # θ in the unit of money


def test_the_lp_of_a_row_is_the_flow_model_with_machines_given():
    """Rows of the growth case in its first row, without reservations; every source may fall short."""
    expected = parse("""
        demand_met[0,0]: f[0,0,0] + f[0,1,0] + u[0,0] = 8
        demand_met[1,0]: f[1,0,0] + f[1,1,0] + u[1,0] = 2
        capacity[0,0]: 0.25 f[0,0,0] + 0.375 f[1,0,0] - x[0,0] <= 0
        capacity[1,0]: 0.375 f[0,1,0] + 0.25 f[1,1,0] - x[1,0] <= 0
        minimise cost: 3 x[0,0] + 3 x[1,0] + 11250 u[0,0] + 11250 u[1,0]
    """)
    lp = RowLp(TABLES["growth"], tie_break=False)
    assert differences(expected, statement(lp.model)) == []
    lp.solve(np.array([8.0, 2.0]), np.array([1.0, 2.0]))
    # One box in the west serves 4 of 8; two in the east its own 2 by half a one, and the other 4 by 4·0.375 = 1.5.
    assert lp.objective == pytest.approx(0.0, abs=1e-9)


def test_the_table_of_the_readme_is_that_of_the_families():
    readme = (ROOT / "formulations/reserved_capacity/README.md").read_text(encoding="utf-8")
    assert written(readme, FAMILIES) == readme
