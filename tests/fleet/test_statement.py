"""The statement of the fleet model: golden rows of every family, mistakes in it that they notice, rows by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fleet_cases import fleet, scored
from model.golden_files import REST, check_rest, golden_rows, names
from model.mutants import mutants, survivors

from formulations.fleet import model as statement_of
from formulations.fleet.model import FAMILIES, FleetModel, build, extract
from formulations.fleet.points import build_tables
from formulations.fleet.scenarios import Draws
from optmodels.model.golden import differences, parse, rows_of, statement
from optmodels.solver import solve_compiled, solve_model

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/fleet"
BUCKETS = [{"name": "b", "requests_per_s": 4.0, "input_tokens": 3, "output_tokens": 2}]
DAY = [{"name": "night", "hours": 6}, {"name": "day", "hours": 18, "rate_factor": 2.0}]


def limits():
    """Stock, quota, budget, spot shares, replicas, unserved demand and a soft SLO; w1 sleeps at night."""
    problem = fleet(
        [2.0, 3.0], [[4.0, 1.0, 0.0], [2.0, 0.0, 8.0]], [3.0, 1.0, 2.0],
        periods=[DAY[0] | {"rate_factors": {"w1": 0.0}}, DAY[1]], budget_usd_per_hour=20.0,
        w0={"spot_share_max": 0.5, "min_replicas": 2, "unserved_usd_per_1000_requests": 0.5, "serve_at_least": 0.25},
        p0={"market": "spot", "count": 2}, p2={"machine": "m0"},
        stock=[{"machine": "m0", "at_most": 7}, {"machine": "m0", "market": "spot", "at_most": 5}],
        quota=[{"machine": "*", "at_most": 9}],
    )  # fmt: skip
    late = np.array([[0.0, 0.25, 0.0], [0.125, 0.0, 0.0]])  # USD per request that misses a soft SLO
    return problem, replace(build_tables(problem), penalty=late)


def lost(**changes):
    """Two points in one pool, one on demand outside of it; what is left after one loss may be 80 % full."""
    problem = fleet(
        [2.0, 4.0], [[4.0, 1.0, 2.0], [0.0, 2.0, 8.0]], [3.0, 1.0, 3.0], max_load=0.5,
        p0={"market": "spot"}, p2={"machine": "m0", "market": "spot"},
        reserve={"lost": 1, "machines": "spot", "load_after_loss": 0.8} | changes,
    )  # fmt: skip
    return problem, pooled(build_tables(problem), 0, 1, 0)


def pooled(tables, *pools):
    """The tables with points in these pools, as modelled ones of one machine set are; measured ones have one each."""
    return replace(tables, points=replace(tables.points, pool=np.array(pools)))


def small():
    """Two of three loads are less than a ten-thousandth of a deployment: of half a one, of whole ones."""
    problem = fleet([2.0, 0.00005, 0.00008], [[1.0, 8.0], [1.0, 1.0], [1.0, 0.0]], [1.0, 2.0], periods=DAY)
    return problem, build_tables(problem)


def small_pool():
    """Loads that two pools after a loss barely notice: all of one pool's, one of the other's. Two periods."""
    problem = fleet([2.0, 0.00005, 0.00004], [[1.0, 8.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.5]], [1.0, 2.0, 3.0],
                    periods=DAY, reserve={"lost": 2})  # fmt: skip
    return problem, pooled(build_tables(problem), 0, 0, 1)


def kept():
    """A pool under the reserve whose machines are started and stopped: some may be idle."""
    problem = fleet(
        [2.0], [[4.0, 1.0, 2.0]], [3.0, 1.0, 3.0], periods=DAY, change={"start_usd": 1.0},
        p2={"machine": "m0"}, reserve={"lost": 1, "load_after_loss": 0.5},
    )  # fmt: skip
    return problem, pooled(build_tables(problem), 0, 1, 0)


def survive():
    """Losses as they happen: how many spare ones protect a pool depends on its size. Two periods, two pools."""
    problem = fleet(
        [2.0], [[1.0, 2.0, 1.0]], [1.0, 3.0, 2.0], periods=DAY, p1={"market": "spot"}, p2={"market": "spot"},
        reserve={"survive_probability": 0.9, "pools": 2}, interruptions=[{"per_hour": 0.3, "recovery_s": 600}],
    )  # fmt: skip
    return problem, build_tables(problem)


def cycle():
    """Three periods, each following the one before it and the first the last; machines m0 are in two points.

    A horizon of 12 hours counts for one period alone.
    """
    periods = [{"name": f"q{i}", "hours": h} for i, h in enumerate((6, 6, 12))]
    problem = fleet(
        [2.0], [[1.0, 2.0, 4.0]], [1.0, 2.0, 3.0], periods=periods, p2={"machine": "m0", "count": 3},
        change={"start_usd": 6.0, "stop_usd": 2.4, "max_starts": 5, "max_stops": 4, "horizon_hours": 12},
    )  # fmt: skip
    return problem, build_tables(problem)


def running():
    """A day that begins with machines that run; no point uses the spot ones."""
    problem = fleet(
        [2.0], [[1.0, 2.0]], [1.0, 2.0], p1={"count": 2}, periods=DAY, change={"max_stops": 0},
        running=[{"machine": "m1", "count": 3}, {"machine": "m1", "market": "spot", "count": 2}],
    )  # fmt: skip
    return problem, build_tables(problem)


def now():
    """One period after what runs: changes are paid off over the horizon."""
    problem = fleet([2.0], [[1.0]], [1.0], change={"start_usd": 6.0, "horizon_hours": 12},
                    running=[{"machine": "m0", "count": 1}])  # fmt: skip
    return problem, build_tables(problem)


def several():
    """Engines of three capacities: of p0 the first is never the scarcest, of p1 the last two are equal.

    w2 takes all but nothing of p0, which is the only point of it: less than one deployment in all.
    """
    problem = fleet(
        [2.0, 4.0, 0.5], [[4.0, 1.0, 0.0], [2.0, 8.0, 0.0], [0.0, 0.0, 1.0]], [3.0, 1.0, 2.0],
        periods=[DAY[0] | {"rate_factors": {"w1": 3.0}}, DAY[1]],
    )  # fmt: skip
    tables = build_tables(problem)
    inf = np.inf
    capacities = np.array([
        [[0.25, 0.125, inf], [0.125, 0.5, inf], [inf, inf, 0.25]],
        [[0.5, 1.0, inf], [0.125, 0.0625, inf], [inf, inf, 0.5]],
        [[0.25, 1.0, inf], [0.5, 0.0625, inf], [inf, inf, 0.125]],
    ])  # fmt: skip
    return problem, replace(tables, load=capacities.max(axis=0), capacities=capacities)


def apart():
    """Prefill and decode apart: of the first exchange two points prefill and three decode, of the second one each.

    w0 has a deadline of 10 s: the slower prefill point (6 s) is in time for decoding of 4 s, the faster one (2 s) for
    that of 4 and of 7 s; nothing is for that of 9 s, nor in the second exchange. w1 has none. Only p0 does both. p0, p2
    and p4 are on spot.
    """
    problem = fleet(
        [2.0, 4.0], [[1.0, 2.0, 4.0, 2.0, 1.0, 0.5, 2.0, 4.0], [2.0, 4.0, 0.0, 4.0, 0.0, 0.0, 1.0, 1.0]], [1.0] * 8,
        w0={"slo": {"deadline_s": 10.0}, "spot_share_max": 0.25}, w1={"min_replicas": 3},
        periods=[DAY[0] | {"rate_factors": {"w1": 0.0}}, DAY[1]], **{f"p{k}": {"market": "spot"} for k in (0, 2, 4)},
    )  # fmt: skip
    tables = build_tables(problem)
    stage, exchange = np.array([0, 1, 1, 2, 2, 2, 1, 2]), np.array([0, 0, 0, 0, 0, 0, 1, 1])
    part = np.array([[0.0, 6.0, 2.0, 4.0, 7.0, 9.0, 5.0, 6.0], np.zeros(8)])
    return problem, replace(tables, points=replace(tables.points, stage=stage, exchange=exchange), part_s=part)


def answers():
    """Three models, one of them just as good as w0's mean has to be; w1 asks for none; w2 is w0's second bucket.

    p3 decodes what p2 prefills.
    """
    two = [{"name": "b", "requests_per_s": 2.0}, {"name": "c", "requests_per_s": 6.0}]
    problem = fleet(
        [2.0, 4.0], [[1.0, 2.0, 4.0, 2.0], [2.0, 4.0, 0.0, 4.0]], [1.0] * 4, w0={"buckets": two}, periods=DAY,
        p1={"requests_per_s": {"w0/b": 1.0, "w0/c": 2.0, "w1/b": 1.0}}, p0={"requests_per_s": {"w0/c": 2.0}},
    )  # fmt: skip
    asking = problem.workloads[0].model_copy(update={"quality_at_least": 0.5})
    problem = problem.model_copy(update={"workloads": (asking, problem.workloads[1])})
    tables = scored(problem, [[0.375, 0.5, 0.625], [0.1, 0.2, 0.3]], [0, 1, 2, 2])
    stage = replace(tables.points, stage=np.array([0, 0, 1, 2]))
    return problem, replace(tables, points=stage, part_s=np.zeros(tables.load.shape))


def goal(objective):
    """Tokens per dollar, or served by priority: three workloads of two priorities."""
    problem = fleet(
        [2.0, 4.0, 1.0], [[1.0], [2.0], [4.0]], [3.0], objective=objective, budget_usd_per_hour=6.0, periods=DAY,
        w0={"weight": 3.0, "priority": 2}, w1={"buckets": BUCKETS}, w2={"weight": 0.5, "priority": 2},
    )  # fmt: skip
    return problem, build_tables(problem)


def drawn(unserved, usd_per_1000):
    """Two draws of two capacities: m0 is twice as slow in the second, in which w1 sends nothing; p1 serves w0 alone."""
    problem = fleet([2.0, 4.0], [[4.0, 1.0], [2.0, 0.0]], [3.0, 1.0])
    tables, inf = build_tables(problem), np.inf
    capacities = np.array([[[0.25, 1.0], [0.0625, inf]], [[0.125, 0.0], [0.5, inf]]])
    demand = {"w0": np.array([0.5, 2.0]), "w1": np.array([2.0, 0.0])}
    draws = Draws(demand, {"m0": np.array([1.0, 2.0])}, unserved, usd_per_1000)
    tables = replace(tables, load=capacities.max(axis=0), capacities=capacities)
    return problem, replace(tables, case=replace(tables.case, draws=draws))


MADE = {
    "limits": (*limits(), 0.0), "lost": (*lost(), 0.0), "all lost": (*lost(machines="all"), 0.0),
    "small": (*small(), 0.0), "small pool": (*small_pool(), 0.0), "kept": (*kept(), 0.0),
    "survive": (*survive(), 0.0), "cycle": (*cycle(), 0.0), "running": (*running(), 0.0), "now": (*now(), 0.0),
    "several": (*several(), 0.0), "apart": (*apart(), 0.0), "answers": (*answers(), 0.0),
    "max_ce": (*goal("max_ce"), 100.0), "max_ce in a larger model": (*goal("max_ce"), None),
    "max_served": (*goal("max_served"), 0.0),
    "drawn": (*drawn(0.25, 0.0), 0.0), "drawn at a price": (*drawn(None, 10.0), 0.0),
}  # fmt: skip
CASES = {name: FleetModel(*made) for name, made in MADE.items()}
NO_POOL = {"_levels": ["line 13: 1 → 2"]}  # a point under no reserve is marked by −2 as well as by −1


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_every_mistake_in_a_family_is_noticed_by_its_golden_rows(family):
    golden = golden_rows(GOLDEN, family, CASES)
    assert len(list(mutants(family))) > 1
    assert survivors(family, golden) == []


def test_bounds_integrality_and_objectives():
    check_rest(GOLDEN, CASES)


def test_golden_files_are_those_of_the_families():
    assert names(GOLDEN) == {f.__name__ for f in FAMILIES} | {REST}


@pytest.mark.parametrize("part", ["by_pool", "usd", "usd_per_hour", "served", "_levels", "breakpoints", "drawn_of"])
def test_every_mistake_in_what_families_and_objectives_are_made_of_is_noticed(part, monkeypatch):
    """Rows, bounds and objectives of the same cases; they are the golden ones, as the tests above say."""
    golden = {name: statement(m) for name, m in CASES.items()}
    left = []
    for mutant in mutants(getattr(statement_of, part)):
        monkeypatch.setattr(statement_of, part, mutant.function)
        if not any(_differs(golden[name], made) for name, made in MADE.items()):
            left.append(mutant.description)
    assert left == NO_POOL.get(part, [])


def _differs(golden, made):
    try:
        return bool(differences(golden, statement(FleetModel(*made))))
    except Exception:
        return True  # whoever builds the model notices


# ---------------------------------------------------------------------------------------------------- rows by hand

# p0 is on spot and carries 4 requests/s, p1 carries 1: the 2 requests/s of w0 are all that half of a deployment of p0
# carries, or 2 deployments of p1. The reserve protects 6 of p0 (0.5 rounded up, or the 5 replicas asked for, and one
# spare), further ones are idle.
BY_HAND = """
demand_met[0,0]: x[0,0,0] + x[0,0,1] + s[0,0] = 1
capacity[0,0]: x[0,0,0] - n[0,0] <= 0
capacity[0,1]: 2 x[0,0,1] - n[0,1] <= 0
stock[0,0]: n[0,0] <= 3
within_budget[0]: 3 n[0,0] + n[0,1] <= 9
spot_share[0,0]: x[0,0,0] <= 0.5
min_replicas[0,0]: n[0,0] + n[0,1] >= 5
one_level[0,0]: y[0,0,0] <= 1
pool_size[0,0]: n[0,0] - idle[0,0] - 6 y[0,0,0] <= 0
survives[0,0]: x[0,0,0] - n[0,0] + idle[0,0] + y[0,0,0] <= 0
starts_limit[0]: up[0,0] + up[0,1] <= 5
stops_limit[0]: down[0,0] + down[0,1] <= 4
machine_balance[0,0]: n[0,0] - up[0,0] + down[0,0] = 0
machine_balance[0,1]: n[0,1] - up[0,1] + down[0,1] = 1
n[0,0] integer in [0, 1000000]
n[0,1] integer in [0, 1000000]
x[0,0,0] in [0, 1]
x[0,0,1] in [0, 1]
s[0,0] in [0, 0]
y[0,0,0] integer in [0, 1]
idle[0,0] integer in [0, inf]
up[0,0] in [0, inf]
up[0,1] in [0, inf]
down[0,0] in [0, inf]
down[0,1] in [0, inf]
minimise cost: 3 n[0,0] + n[0,1] + 0.1 up[0,0] + 0.1 up[0,1]
"""


@pytest.mark.parametrize("made", [FleetModel, build])
def test_rows_are_the_mathematics(made):
    """One model with rows of nearly every family, worked out by hand: as arrays, and as Pyomo has them."""
    problem = fleet(
        [2.0], [[4.0, 1.0]], [3.0, 1.0], w0={"spot_share_max": 0.5, "min_replicas": 5}, p0={"market": "spot"},
        stock=[{"machine": "m0", "at_most": 3}], budget_usd_per_hour=9.0,
        reserve={"lost": 1, "machines": "spot"},
        running=[{"machine": "m1", "count": 1}], change={"start_usd": 2.4, "max_starts": 5, "max_stops": 4},
    )  # fmt: skip
    assert differences(parse(BY_HAND), statement(made(problem, build_tables(problem)))) == []


def test_a_pool_survives_losses_by_hand():
    """λ·l = 2 / (0.5·4) = 1 deployment at half load: 0.5 of a full one; after the loss 80 % of the rest may be used."""
    survives = next(f for f in FAMILIES if f.__name__ == "survives")
    by_hand = "survives[0,0]: 0.625 x[0,0,0] + 1.25 x[0,0,2] + 0.625 x[0,1,2] - n[0,0] - n[0,2] + y[0,0,0] <= 0\n"
    assert differences(parse(by_hand), rows_of(CASES["lost"], survives)) == []


def test_rows_of_several_capacities_by_hand():
    """Night: 2, 12 and 0.5 requests/s. On p0 the first capacity never is the scarcest, on p1 the last is the second.

    w2 loads a quarter of a deployment of p2, in units of which its row is.
    """
    capacities = next(f for f in FAMILIES if f.__name__ == "capacities")
    by_hand = """
    capacities[0,0,1]: x[0,0,0] + 1.5 x[0,1,0] - n[0,0] <= 0
    capacities[0,0,2]: 0.5 x[0,0,0] + 6 x[0,1,0] - n[0,0] <= 0
    capacities[0,1,0]: 0.25 x[0,0,1] + 6 x[0,1,1] - n[0,1] <= 0
    capacities[0,1,2]: 2 x[0,0,1] + 0.75 x[0,1,1] - n[0,1] <= 0
    capacities[0,2,1]: x[0,2,2] - n[0,2] <= 0
    """
    found = {name: row for name, row in rows_of(CASES["several"], capacities).rows.items() if "[0," in name}
    assert found == parse(by_hand.replace("    ", "")).rows


def test_rows_of_stages_apart_by_hand():
    """The decode points slower than 4 s take no more than the faster prefill point sends; those of 9 s nothing."""
    by_name = {f.__name__: f for f in FAMILIES}
    found = rows_of(CASES["apart"], by_name["deadlines"]).rows
    by_hand = """
    deadlines[0,0,0,0]: x[0,0,5] <= 0
    deadlines[0,0,0,1]: x[0,0,4] + x[0,0,5] - x[0,0,2] <= 0
    deadlines[0,0,1,0]: x[0,0,7] <= 0
    """
    assert {name: row for name, row in found.items() if "[0," in name} == parse(by_hand.replace("    ", "")).rows
    by_hand = """
    decoded[0,0,0]: x[0,0,3] + x[0,0,4] + x[0,0,5] - x[0,0,1] - x[0,0,2] = 0
    decoded[0,0,1]: x[0,0,7] - x[0,0,6] = 0
    """
    found = rows_of(CASES["apart"], by_name["decoded"]).rows
    assert {name: row for name, row in found.items() if "[0," in name} == parse(by_hand.replace("    ", "")).rows


def test_spot_shares_and_replicas_of_either_stage_by_hand():
    """w0 is prefilled on p0 or p2 if on spot, and decoded on p0 or p4; three points each."""
    by_name = {f.__name__: f for f in FAMILIES}
    for family, by_hand in (
        ("spot_share", "spot_share[0,0]: x[0,0,0] + x[0,0,2] <= 0.25\n"),
        ("spot_share_decoded", "spot_share_decoded[0,0]: x[0,0,0] + x[0,0,4] <= 0.25\n"),
        ("min_replicas", "min_replicas[0,1]: n[0,0] + n[0,1] + n[0,6] >= 3\n"),
        ("min_replicas_decoding", "min_replicas_decoding[0,1]: n[0,0] + n[0,3] + n[0,7] >= 3\n"),
    ):
        found = {name: row for name, row in rows_of(CASES["apart"], by_name[family]).rows.items() if "[0," in name}
        assert found == parse(by_hand).rows


def test_rows_of_quality_by_hand():
    """Of the 8 requests/s of w0, 0.5 asked for: model 0 answers a quarter worse (0.375), model 2 one better (0.625).

    What model 1 answers is as good as it has to be; p3 only decodes; w1 asks for nothing.
    """
    quality = next(f for f in FAMILIES if f.__name__ == "quality")
    by_hand = "quality[0,0]: 0.1875 x[0,1,0] - 0.0625 x[0,0,2] <= 0\n"
    found = {name: row for name, row in rows_of(CASES["answers"], quality).rows.items() if "[0," in name}
    assert found == parse(by_hand).rows


def test_rows_of_draws_by_hand():
    """Draw 0 has 1 request/s of w0 and 8 of w1, draw 1 has 4 of w0 on machines m0 that are twice as slow."""
    by_name = {f.__name__: f for f in FAMILIES}
    for family, by_hand in (
        ("drawn_served", "drawn_served[0,1]: drawn[0,1,0] + refused[0,1] = 1\n"),
        ("drawn_capacities", "drawn_capacities[0,0,0,1]: 2 drawn[1,0,0] - n[0,0] <= 0\n"),
        ("drawn_unserved", "drawn_unserved: 0.0555555555555555556 refused[0,0] + 0.444444444444444444 refused[0,1]"
                           " + 0.5 refused[1,0] <= 0.25\n"),
    ):  # fmt: skip
        found, expected = rows_of(CASES["drawn"], by_name[family]).rows, parse(by_hand).rows
        name = next(iter(expected))
        assert found[name].coefficients == pytest.approx(expected[name].coefficients), family


def test_entries_alike_are_grouped_by_both_labels():
    """Deadlines compare the entries of one workload and one exchange group: no other entry is among them."""
    one, other = np.array([1, 0, 1, 0, 0, 1, 0]), np.array([0, 0, 0, 2, 0, 1, 1])
    groups = [(w, k, e.tolist()) for w, k, e in statement_of.alike(np.array([6, 5, 4, 3, 2, 0]), one, other)]
    assert groups == [(0, 0, [4]), (0, 1, [6]), (0, 2, [3]), (1, 0, [2, 0]), (1, 1, [5])]
    assert statement_of.alike(np.zeros(0, dtype=np.intp), one, other) == []


def test_a_load_however_small_may_have_a_deployment():
    problem = fleet([1e-12], [[1.0]], [1.0])
    bounds = statement(FleetModel(problem, build_tables(problem))).variables["n[0,0]"]
    assert (bounds.lower, bounds.upper, bounds.integer) == (0.0, 1.0, True)


def test_words_of_rows_are_those_of_the_instance():
    """Every family but those that no user states has words; the conflict and the plan's limits name them alike."""
    said = {f: CASES[case].words(f, label) for f, case, label in (
        ("demand_met", "limits", (1, 0)), ("stock", "limits", (0, 1)), ("within_budget", "limits", (0,)),
        ("quality", "answers", (1, 0)), ("spot_share", "limits", (1, 0)),
        ("min_replicas", "limits", (1, 0)), ("survives", "lost", (0, 0)),
        ("spot_share_decoded", "apart", (1, 0)), ("min_replicas_decoding", "apart", (1, 1)),
        ("few_pools", "survive", (1,)), ("starts_limit", "cycle", (0,)), ("stops_limit", "cycle", (2,)),
        ("drawn_unserved", "drawn", ()),
    )}  # fmt: skip
    assert said == {
        "demand_met": "bucket w0/b (4 requests/s)", "stock": "stock of m0 (spot) at most 5",
        "within_budget": "budget at most 20 USD/h", "spot_share": "spot share of w0 at most 0.5",
        "quality": "quality of w0 at least 0.5", "spot_share_decoded": "spot share of w0 at most 0.25",
        "min_replicas_decoding": "replicas for w1 at least 3",
        "min_replicas": "replicas for w0 at least 2", "survives": "reserve",
        "few_pools": "at most 2 pools under the reserve", "starts_limit": "machines started at most 5",
        "stops_limit": "machines stopped at most 4",
        "drawn_unserved": "unserved share over the draws at most 25 %",
    }  # fmt: skip
    silent = {f.__name__ for f in FAMILIES} - said.keys()
    assert silent == {
        "decoded",
        "deadlines",
        "capacity",
        "capacities",
        "small_shares",
        "small_survives",
        "one_level",
        "pool_size",
        "machine_balance",
        "something_runs",
        "drawn_served",
        "drawn_capacities",
    }
    assert {CASES["cycle"].words(family, (0, 0)) for family in silent} == {None}


def test_a_solution_of_the_pyomo_model_is_the_one_of_the_arrays():
    problem, tables = limits()
    problem = problem.model_copy(update={"stock": (), "quota": ()})
    block = build(problem, tables)
    solve_model(block)
    choice = extract(block, tables)
    stated = FleetModel(problem, tables)
    found = stated.choice(solve_compiled(stated.compiled()).x)
    assert choice.n.shape == (2, 3)
    assert (choice.n == found.n).all() and choice.n.any()
    np.testing.assert_array_equal(choice.served(tables) > 0, [[True, False], [True, True]])
    assert [list(block.T), len(block.x)] == [[0, 1], len(stated.x)]
