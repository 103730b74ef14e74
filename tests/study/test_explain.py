"""`explain`: conflicts, relaxations and margins against hand-worked numbers, brute force and second solves."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from reserved import two_regions

import optmodels
from optmodels import formulation as registry
from optmodels.formulation import Formulation, Options
from optmodels.limits import ELEMENT, Limit, Restriction, changed, offers, restrictions
from optmodels.loading import load
from optmodels.plans.outcome import CheckReport, Document, Outcome
from optmodels.problem import Problem
from optmodels.reporting.explanation import limit_rows
from optmodels.solver import solve_model
from optmodels.study.explanation import margins, run
from optmodels.study.explanation.conflicts import CLOSE, JointConflicts
from optmodels.study.explanation.irreducible import deletion_filter
from optmodels.study.explanation.margins import next_plans
from optmodels.study.explanation.named import listed
from optmodels.study.explanation.oracle import DROPPED, Answer, Budget, InstanceOracle, Oracle, OutOfBudgetError
from optmodels.study.explanation.purchases import purchases
from optmodels.study.explanation.run import importance
from optmodels.study.explanation.thresholds import least_change, relative_change, rounded, roundest, tidy

ROOT = Path(__file__).resolve().parents[2]
INFEASIBLE = sorted(p for g in ("*/infeasible/*.yaml", "*/infeasible-*.yaml") for p in (ROOT / "instances").glob(g))


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    """A busy machine cuts nothing off."""
    monkeypatch.setattr(run, "EXAMINED", 60.0)


def family(path: Path) -> str:
    """The formulation an instance is shipped under."""
    return path.relative_to(ROOT / "instances").parts[0]


def three_machines(**changes):
    """Measured: slow (1 s, 1 USD/h), middle (0.3 s, 3 USD/h), fast (0.1 s, 10 USD/h)."""
    rows = {"slow": (1.0, 1.0), "middle": (0.3, 3.0), "fast": (0.1, 10.0)}
    return {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "three", "model": "opt-6.7b",
        "workload": {"batch": 1, "input_tokens": 100, "output_tokens": 100},
        "slo": {"kind": "real_time", "tps": 10.0, "ttft_s": 0.2, "tpot_s": 1.0},
        "pool": {"machines": [
            {"machine": n, "vram_gib": 24, "prices": {"on_demand": price}} for n, (_, price) in rows.items()
        ]},
        "latency": {"operating_points": [
            {"name": n, "family": "high_end", "main": n, "tps": 100.0, "ttft_s": ttft, "tpot_s": 0.1}
            for n, (ttft, _) in rows.items()
        ]},
    } | changes  # fmt: skip


# -------------------------------------------------------------------------------------------------- infeasible


def test_conflict_and_ways_out_by_hand() -> None:
    found = optmodels.explain(three_machines(budget_usd_per_hour=2.0))
    assert found.status == "infeasible" and found.exit_status == 3
    [conflict] = found.conflicts
    needed = {m.limit.path: m.needed for m in conflict.members}
    assert conflict.irreducible
    assert needed == {"slo.ttft_s": 1.0, "budget_usd_per_hour": 10.0}  # exactly: round numbers are tried
    assert found.restored
    alone = {r.limit.path: r.needed for r in found.alone}
    assert alone == needed
    # Together: 0.2 → 0.3 s and 2 → 3 USD/h are 50 % each; alone, either costs 400 %.
    assert found.jointly is not None
    assert found.jointly.cost == pytest.approx(1.0, rel=0.03)
    assert found.jointly.at_least <= 1.0 + 1e-9
    assert found.jointly.at_least >= 0.97 * found.jointly.cost
    assert {r.limit.path for r in found.jointly.relaxations} == set(needed)
    assert (
        "TTFT at most 0.2 s; with budget at most 2 USD/h, the lowest possible value is 1 s" in found.model_dump_json()
    )


def test_where_no_limit_is_the_reason_machines_say_what_they_lack() -> None:
    """70B parameters on one small GPU: no limit of the file changes that, and nothing is said of rows or marks."""
    small = three_machines(model="llama-3.1-70b", latency={}, budget_usd_per_hour=2.0)
    small["pool"]["machines"] = [
        {"machine": "one", "gpu": "l4", "gpu_count": 1, "vram_gib": 24, "prices": {"on_demand": 1.0}}
    ]
    small["strategies"] = {"families": ["high_end"]}
    for change, lacks in (
        ({}, "nearest is High-end"),
        (
            {"serving": "continuous", "latency": {"model": "roofline"}},
            "one: no memory for a KV cache beside the weights",
        ),
        ({"markets": {"main": ["spot"], "ao": ["spot"]}}, "no price in a market allowed"),
    ):
        found = optmodels.explain(small | change)
        assert found.status == "infeasible"
        assert lacks in found.words and "rows" not in found.words, found.words
        if "markets" not in change:
            assert found.words.endswith("without all of them there is no plan either.") and not found.conflicts


def test_a_limit_is_loosened_to_what_its_field_holds_or_left_out() -> None:
    """One region, which may be lost: nothing is kept then, and a share of 0 cannot be written in a file."""
    one = two_regions(resilience={"lose_any_region_keep": 0.8})
    one["regions"], one["network"] = one["regions"][:1], {"rtt_ms": {"west": {}}, "local_rtt_ms": 5.0}
    one["services"][0]["demand"]["by_region"] = {"west": [10.0, 2.0]}
    found = optmodels.explain(one)
    assert found.jointly is not None and found.jointly.cost == pytest.approx(1.0)
    assert [r.needed for r in (*found.alone, *found.jointly.relaxations)] == [None, None]
    assert "without it" in found.jointly.words and "→ 0 %" not in found.jointly.words


def test_values_asked_about_are_values_of_the_field() -> None:
    load_level = next(
        r for r in restrictions(load(ROOT / "tests/fleet/static/day-and-night.yaml")) if r.name.startswith("load")
    )
    found = least_change(load_level, lambda value: value <= 0.001, looser=False)
    assert found is not None and found[0] == 0.001
    assert least_change(load_level, lambda value: value < 0.001, looser=False) is None
    least = Restriction(("x",), ("x",), Limit("x", "least", "%"), 0.0, "x", "%", "", True, (("x",), None))
    assert tidy(least, 2e-9, looser=False) == 2e-9  # and not the limit's own 0


@pytest.mark.parametrize(
    ("enough", "not_enough", "round_one"),
    [
        (4.0029, 3.9991, 4.0), (3.9991, 4.0029, 4.0), (0.30012, 0.29985, 0.3), (41.37, 41.28, 41.3),
        (1.0, 0.9995, 1.0), (2.00049, 2.00041, None), (123456.0, 123400.0, None), (1e-9, 0.0, None), (-1.0, 1.0, None),
    ],
)  # fmt: skip
def test_the_roundest_number_that_may_be_enough(enough, not_enough, round_one) -> None:
    assert roundest(enough, not_enough) == round_one


@pytest.mark.parametrize("side", ["most", "least"])
@given(st.floats(1e-3, 1e5), st.floats(0.5, 2.0), st.booleans())
def test_rounding_keeps_to_the_side_that_was_proved(side, now, times, looser) -> None:
    """Towards looser values where the value was enough, towards tighter ones where not; never past the limit."""
    limit = Restriction(("x",), ("x",), Limit("x", side), now, "x", "", "", True, (("x",), None))
    value = now * times
    shown = tidy(limit, value, looser)
    sign = 1 if (side == "most") == looser else -1
    assert shown == now or sign * (shown - value) >= -1e-8 * value
    assert shown == pytest.approx(value, rel=1.1e-3)
    assert (shown - now) * (value - now) >= 0
    up, down = rounded(value, up=True), rounded(value, up=False)
    assert down <= value * (1 + 1e-8) and up >= value * (1 - 1e-8) and up - down <= 1.01e-3 * value


def test_two_conflicts_need_both_removed(tiny) -> None:
    """Neither the time between tokens nor the chat's budget alone: two conflicts without a common limit."""
    found = optmodels.explain(three_machines(
        slo={"kind": "real_time", "tps": 10.0, "ttft_s": 0.05, "tpot_s": 0.01}
    ))  # fmt: skip
    assert sorted(m.limit.path for c in found.conflicts for m in c.members) == ["slo.tpot_s", "slo.ttft_s"]
    assert [len(c.members) for c in found.conflicts] == [1, 1]
    assert found.alone == [] and found.restored
    assert found.jointly is not None
    assert found.jointly.cost == pytest.approx((0.1 - 0.05) / 0.05 + (0.1 - 0.01) / 0.01, rel=0.03)


def test_a_list_is_widened_by_no_more_than_it_needs() -> None:
    problem = three_machines(budget_usd_per_hour=2.0, markets={"main": ["spot"], "ao": ["spot"]})
    problem["pool"]["machines"][2]["prices"] = {"on_demand": 1.5, "reserved_1y": 1.9, "spot": 9.0}
    found = optmodels.explain(problem)
    [markets] = [r for r in found.alone if r.limit.path == "markets.main"]
    assert set(markets.needed) in ({"spot", "on_demand"}, {"spot", "reserved_1y"})


@pytest.mark.parametrize("path", INFEASIBLE, ids=lambda p: f"{family(p)}-{p.stem}")
def test_shipped_infeasible_instances(path: Path) -> None:
    """Removing the explanation restores a plan; every conflict is one, and none without any of its members."""
    found = optmodels.explain(path, max_solves=30)
    assert found.status == "infeasible"
    assert found.conflicts and all(c.irreducible for c in found.conflicts)
    assert found.restored
    problem = load(path, limits_may_fail=True)
    form = registry.get(problem.formulation)
    limits = {r.where: r for r in restrictions(problem)}

    def plan_without(off: set[str]):
        other = changed(problem, dict(widest(problem, limits[w]) for w in off))
        try:
            outcome = form.methods["exact"](other, form.tables(other), Options(answer_only=True, gap=0.9))
        except optmodels.errors.UnattainableError:
            return None
        return outcome.plan

    members = [{m.limit.path for m in c.members} for c in found.conflicts]
    assert plan_without(set().union(*members)) is not None
    assert plan_without(set()) is None
    scope = any(limits[w].marker.scope for mine in members for w in mine)
    written = {w for w, r in limits.items() if r.written and (scope or not r.marker.scope)}
    for k, mine in enumerate(members):
        others = (written - mine) | set().union(*members[:k], set())
        assert plan_without(others) is None
        for member in mine:
            assert plan_without(others | {member}) is not None


def widest(problem, limit):
    """What drops a limit; the list of terms has to leave out what has no price."""
    place, value = limit.drop
    if limit.where == "terms":
        value = tuple(v for v in value if all(m.prices.get(v) for m in problem.machines))
    return place, value


def test_there_are_infeasible_instances_of_every_formulation() -> None:
    assert len(INFEASIBLE) >= 10
    assert {family(p) for p in INFEASIBLE} >= {"cost_efficiency", "fleet", "reserved_capacity"}


# --------------------------------------------------------------------------------- the joint search, brute force


class Points(Oracle):
    """Plans are points in the space of limits: one fits if every limit is at most as tight."""

    def __init__(self, plans, values) -> None:
        super().__init__(Budget(1e9, 10**9), "min")
        self.plans = plans
        self.of = [
            Restriction((f"l{i}",), (f"l{i}",), Limit(f"l{i}", "most"), v, f"l{i}", "", "", True, ((f"l{i}",), None))
            for i, v in enumerate(values)
        ]

    def limits(self):
        return self.of

    def priced(self):
        return self, []

    def checked(self, settings):
        return self.solve(settings, 0.0), True

    def solve(self, settings, gap):
        now = [settings.get(r, r.value) for r in self.of]
        top = [float("inf") if v is DROPPED else v for v in now]
        return Answer(any(all(x <= t for x, t in zip(plan, top, strict=True)) for plan in self.plans))


@settings(max_examples=40)
@given(
    plans=st.lists(st.tuples(*[st.floats(1.05, 6.0)] * 2), min_size=1, max_size=8),
)
def test_joint_search_is_exact_in_two_limits(plans) -> None:
    oracle = Points(plans, [1.0, 1.0])
    exact = min(sum(x - 1.0 for x in plan) for plan in plans)
    search = JointConflicts(oracle, oracle.of, None)
    search.search()
    assert search.best is not None
    assert search.at_least <= exact * (1 + 1e-9)
    assert sum(search.best) >= exact * (1 - 1e-9)
    if search.closed:
        assert sum(search.best) <= exact / (1 - CLOSE) * (1 + 1e-6)


@settings(max_examples=15)
@given(plans=st.lists(st.tuples(*[st.integers(3, 9)] * 3), min_size=1, max_size=6))
def test_joint_search_is_exact_in_whole_numbers(plans) -> None:
    oracle = Points(plans, [2, 2, 2])
    exact = min(sum((x - 2) / 2 for x in plan) for plan in plans)
    search = JointConflicts(oracle, oracle.of, None)
    search.search()
    assert search.best is not None and search.closed
    assert sum(search.best) == pytest.approx(exact)


@given(sets=st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=5))
def test_deletion_filter_leaves_one_irreducible_set(sets) -> None:
    """Infeasible as long as some of the sets is whole."""
    kept, proved = deletion_filter(list(range(10)), lambda off: any(not s & set(off) for s in sets))
    assert proved
    assert any(s <= set(kept) for s in sets)
    assert all(not any(s <= set(kept) - {k} for s in sets) for k in kept)


# ---------------------------------------------------------------------------------------------------- feasible


def test_margins_by_hand() -> None:
    problem = three_machines(
        budget_usd_per_hour=50.0, slo={"kind": "real_time", "tps": 10.0, "ttft_s": 0.5, "tpot_s": 1.0}
    )
    found = optmodels.explain(problem)
    assert found.status == "feasible" and found.exit_status == 0
    assert found.objective == pytest.approx(10 * 3600 / 3.0)
    limits = {line.limit.path: line for line in found.limits}
    ttft, budget = limits["slo.ttft_s"], limits["budget_usd_per_hour"]
    assert ttft.binds and not budget.binds
    assert ttft.gain_without == pytest.approx(10 * 3600 * (1 / 1.0 - 1 / 3.0))
    assert ttft.gain_of_step == 0.0  # 0.505 s allows nothing new
    assert ttft.better_at == pytest.approx(1.0, rel=6e-3)
    assert ttft.tightest == pytest.approx(0.3, rel=6e-3) and ttft.tightest >= 0.3 * (1 - 1e-3)
    assert budget.tightest == pytest.approx(3.0, rel=6e-3)
    row = next(r for r in limit_rows(found.model_dump()) if r["limit"] == "TTFT")
    down, up = (f"{end:.4g} s" for end in (ttft.tightest, ttft.loosest))  # sentence and table say the same two ends
    assert row["range"] == f"{down} … {up}" and f"stays best down to {down} and up to {up}; at " in ttft.words
    [following] = found.next_plans
    assert "fast" in following.headline and following.without == ["middle (on-demand)"]
    prices = {p.name: p for p in found.prices}
    middle, fast = prices["middle (on-demand)"], prices["fast (on-demand)"]
    assert middle.bought and middle.high == pytest.approx(10.0, rel=6e-3) and middle.low is None
    assert not fast.bought and fast.low == pytest.approx(3.0, rel=6e-3)


def test_next_plans_are_those_of_brute_force(tiny) -> None:
    """One machine kind a plan: the ranking is that of the best plan of every (machine, market)."""
    problem = tiny(strategies={"families": ["high_end"], "replicas": [1, 2]})
    oracle, every = InstanceOracle(registry.get("cost_efficiency"), load(problem), Budget(60, 100)).priced()
    base = oracle.best({})
    found = [base.objective, *(line.objective for line, _ in next_plans(oracle, every, base, 4, "tokens/USD"))]
    best = {}
    for machine, market in itertools.product(("big", "mid", "small"), ("on_demand", "spot")):
        only = tiny(strategies={"families": ["high_end"], "replicas": [1, 2]}, markets={"main": [market]})
        only["pool"]["machines"] = [m for m in only["pool"]["machines"] if m["machine"] == machine]
        if market in only["pool"]["machines"][0]["prices"]:
            result = optmodels.solve(only)
            if result.plan is not None:
                best[machine, market] = result.objective
    ranked = sorted(best.values(), reverse=True)
    assert len(ranked) == 5 and found == pytest.approx(ranked)


def test_marginal_values_are_those_of_second_solves() -> None:
    path = ROOT / "instances/reserved_capacity/infeasible/losing-a-region.yaml"
    problem = changed(load(path), {("resilience", "lose_any_region_keep"): 0.8})
    found = optmodels.explain(problem, max_solves=80, next=0)
    [kept] = [x for x in found.limits if x.limit.path == "resilience.lose_any_region_keep"]
    assert kept.binds and kept.step == pytest.approx(0.792)
    for share, objective in ((None, kept.objective_without), (kept.step, kept.objective_at_step)):
        again = optmodels.solve(changed(problem, {("resilience", "lose_any_region_keep"): share}))
        assert again.objective == pytest.approx(objective)


def test_a_default_that_restricts_is_a_limit() -> None:
    problem = load(ROOT / "instances/fleet/stock-limited.yaml")
    [served] = [r for r in restrictions(problem) if r.where == "workloads[0].serve_at_least"]
    assert not served.written and served.value == 1.0 and served.words() == "served share of chat at least 100 %"


# ------------------------------------------------------------------------------------------- third parties


class Site(BaseModel):
    """A place that can be opened."""

    site: str
    usd: float
    seats: int


class Sites(Problem):
    """Open sites for enough seats; nothing is marked."""

    sites: tuple[Site, ...]
    seats: float
    most_usd: float

    def resolve(self):
        return self

    def inline(self):
        return self


class MarkedSites(Sites):
    """The same with marked limits."""

    seats: Seats
    most_usd: Usd


from typing import Annotated  # noqa: E402

Seats = Annotated[float, Limit("seats", "least", "seats", off=0.0)]
Usd = Annotated[float, Limit("spending", "most", "USD", off=1e9)]
MarkedSites.model_rebuild()


class SitePlan(Document):
    """Open sites."""

    open: list[str]
    usd: float

    def headline(self) -> str:
        return " + ".join(self.open) or "nothing"


def enough_seats(m):
    """Σ seats·x ≥ seats: everybody sits."""
    return sum(s.seats * m.x[s.site] for s in m.problem.sites) >= m.problem.seats


def affordable(m):
    """Σ usd·x ≤ most_usd."""
    return sum(s.usd * m.x[s.site] for s in m.problem.sites) <= m.problem.most_usd


def build(problem, tables):
    m = pyo.ConcreteModel()
    m.problem = problem
    m.x = pyo.Var([s.site for s in problem.sites], domain=pyo.Binary)
    m.enough_seats = pyo.Constraint(rule=enough_seats)
    m.affordable = pyo.Constraint(rule=affordable)
    m.cost = pyo.Objective(expr=sum(s.usd * m.x[s.site] for s in problem.sites))
    return m


def exact(problem, tables, options):
    m = build(problem, tables)
    report, _, _ = solve_model(m)
    if report.x is None:
        return Outcome(report.status, None)
    chosen = [s for s in problem.sites if m.x[s.site].value > 0.5]
    plan = SitePlan(open=[s.site for s in chosen], usd=sum(s.usd for s in chosen))
    return Outcome("optimal", plan, plan.usd)


def third_party(name, schema):
    return Formulation(
        name=name, title=name, problem=schema, sense="min", unit="USD", tables=lambda p: p, build=build,
        attach=lambda *_: None, methods={"exact": exact}, objective=lambda plan: plan.usd,
        check=lambda *_: CheckReport(ok=True), report=lambda *_: {}, summary=lambda _: [], frames=lambda *_: {},
        template="",
    )  # fmt: skip


class Entry:
    """An entry point."""

    def __init__(self, form) -> None:
        self.form = form

    def load(self):
        return self.form


@pytest.fixture
def registered(monkeypatch):
    known = dict(registry._registered())
    known |= {n: Entry(third_party(n, s)) for n, s in (("sites", Sites), ("marked_sites", MarkedSites))}
    monkeypatch.setattr(registry, "_registered", lambda: known)
    registry.get.cache_clear()
    yield
    registry.get.cache_clear()


def sites(formulation, seats, most_usd):
    return {
        "formulation": formulation, "schema": 1, "seats": seats, "most_usd": most_usd,
        "sites": [{"site": "hall", "usd": 50, "seats": 60}, {"site": "barn", "usd": 20, "seats": 30},
                  {"site": "attic", "usd": 15, "seats": 10}],
    }  # fmt: skip


def test_third_party_with_marked_limits(registered) -> None:
    found = optmodels.explain(sites("marked_sites", 80.0, 40.0))
    assert [m.limit.words for m in found.conflicts[0].members] == ["seats at least 80 seats", "spending at most 40 USD"]
    assert {r.limit.path: r.needed for r in found.alone} == {
        "seats": pytest.approx(40.0, rel=2e-3), "most_usd": pytest.approx(70.0, rel=2e-3)
    }  # fmt: skip
    again = optmodels.explain(sites("marked_sites", 40.0, 60.0))
    assert again.objective == 35.0 and again.headline == "barn + attic"
    [seats] = [x for x in again.limits if x.limit.path == "seats"]
    assert seats.too_tight == pytest.approx(40.0, rel=6e-3) and seats.better_at == pytest.approx(30.0, rel=6e-3)


@pytest.mark.parametrize(("seats", "most_usd"), [(80.0, 40.0)])
def test_third_party_without_marks_is_explained_by_its_rows(registered, seats, most_usd) -> None:
    found = optmodels.explain(sites("sites", seats, most_usd))
    assert found.status == "infeasible"
    words = found.model_dump_json()
    assert "Σ usd·x ≤ most_usd" in words and "everybody sits" in words
    assert {r.limit.name: r.needed for r in found.alone} == {
        "enough_seats": pytest.approx(40.0, rel=2e-3), "affordable": pytest.approx(70.0, rel=2e-3)
    }  # fmt: skip


def test_third_party_rows_of_a_feasible_model(registered) -> None:
    found = optmodels.explain(sites("sites", 30.0, 60.0), next=2)
    assert (found.status, found.objective) == ("feasible", 20.0)
    [row] = found.limits
    assert row.limit.name == "enough_seats" and row.gain_without == pytest.approx(20.0)
    assert row.better_at == pytest.approx(10.0, rel=6e-3)  # the attic is enough
    assert [n.objective for n in found.next_plans] == [50.0]  # hall, without the barn
    prices = {p.name: p for p in found.prices}
    assert prices["x[barn]"].high == pytest.approx(50.0, rel=6e-3)
    assert prices["x[hall]"].low == pytest.approx(20.0, rel=6e-3)


# ------------------------------------------------------------------------------------------------- around it


@pytest.mark.parametrize(
    ("objective", "bound", "binds", "gain"),
    [(8.0, 5.0, True, 2.0), (10.0, 10.0, False, 0.0), (10.0, 9.0, None, None), (10.0, None, None, None),
     (None, 10.0, False, 0.0), (None, None, None, None)],
)  # fmt: skip
def test_a_solve_that_ends_early_tells_what_it_proves(monkeypatch, objective, bound, binds, gain) -> None:
    problem = load(three_machines())
    oracle = InstanceOracle(registry.get("cost_efficiency"), problem, Budget(math.inf, 1000))
    oracle.sense = "min"
    monkeypatch.setattr(oracle, "best", lambda _: Answer(objective is not None or None, objective, bound=bound))
    limit = next(r for r in restrictions(problem) if r.name == "TTFT")
    line = margins.effect(oracle, limit, Answer(True, 10.0, optimal=True), "USD/h")
    assert (line.binds, line.gain_without, line.at_least) == (binds, gain, binds is True)
    assert ("by at least 2 USD/h" in line.words) == (binds is True)


@pytest.mark.parametrize(
    ("off", "objective", "binds"),
    [(Answer(True, 8.0, optimal=True, bound=8.0), 8.0, True),
     (Answer(True, 12.0, optimal=True, bound=12.0), 10.0, False),
     (Answer(False), 10.0, False), (Answer(None), 10.0, None), (Answer(True, 9.0, bound=7.0), 9.0, True)],
)  # fmt: skip
def test_a_number_that_helps_some_plans_and_harms_others_is_dropped_for_either_value(
    monkeypatch, off, objective, binds
) -> None:
    problem = load(ROOT / "instances/fleet/two-models.yaml")
    oracle = InstanceOracle(registry.get("fleet"), problem, Budget(math.inf, 1000))
    [limit] = [r for r in restrictions(problem) if r.where == "engine.more_prompts"]
    base = Answer(True, 10.0, optimal=True, bound=10.0)
    monkeypatch.setattr(oracle, "_solved", lambda settings, gap: off if limit in settings else base)
    found = oracle.solve({limit: DROPPED}, 0.0)
    assert found.feasible and found.objective == objective
    assert margins.effect(oracle, limit, base, "USD/h").binds is binds
    assert oracle.feasible({limit: DROPPED})
    assert not limit.number
    assert limit.words() == "iterations that carry a prompt at most 3 × those of the planned requests"


def test_a_question_is_asked_again_where_there_is_more_time(monkeypatch) -> None:
    oracle = InstanceOracle(registry.get("cost_efficiency"), load(three_machines()), Budget(math.inf, 1000))
    asked = []

    def solve(settings, gap):
        asked.append(oracle.budget.share)
        return Answer(True, 1.0, optimal=oracle.budget.share > 5)

    monkeypatch.setattr(oracle, "solve", solve)
    for share in (1.0, 1.5, 9.0, 99.0):
        oracle.budget.share = share
        oracle.best({})
    assert asked == [1.0, 9.0]


def test_what_the_file_says_in_numbers_is_examined_first() -> None:
    limits = sorted(restrictions(load(ROOT / "instances/fleet/aws-six-workloads.yaml")), key=importance)
    kinds = [(bool(r.marker.scope), r.written, r.number) for r in limits]
    assert kinds[0] == (False, True, True)
    assert kinds == sorted(kinds, key=lambda k: (k[0], not k[1], not k[2]))
    assert limits[0].name == "TTFT of chat"


def test_a_part_of_the_budget_ends_and_the_rest_goes_on() -> None:
    budget = Budget(100.0, 1000)
    with budget.part(0.0):
        with pytest.raises(OutOfBudgetError):
            budget.take()
        assert budget.why_over == "their part of the time limit of 100 s"
    assert 99 < budget.take() <= 100


def test_budget_is_kept_and_what_it_cuts_off_is_said() -> None:
    found = optmodels.explain(three_machines(budget_usd_per_hour=50.0, slo={
        "kind": "real_time", "tps": 10.0, "ttft_s": 0.5, "tpot_s": 1.0
    }), max_solves=5)  # fmt: skip
    assert found.solves <= 5 and found.skipped and found.status == "feasible"
    assert any("5 solves" in s for s in found.skipped)


def test_a_long_list_of_what_was_left_is_cut_and_counted() -> None:
    words = listed([f"limit {i}" for i in range(2000)])
    assert words.startswith("limit 0; limit 1") and words.endswith("; and 1,992 more")
    assert listed(["a", "b"]) == "a; b"


def test_changed_problems_leave_the_original_alone() -> None:
    problem = load(ROOT / "instances/fleet/stock-limited.yaml")
    by_path = {r.where: r for r in restrictions(problem)}
    other = changed(problem, dict([by_path["stock[0].at_most"].drop, by_path["workloads[0].slo.ttft_s"].drop]))
    assert len(other.stock) == len(problem.stock) - 1 and other.stock[0] == problem.stock[1]
    assert other.workloads[0].slo.ttft_s is None and problem.workloads[0].slo.ttft_s == 2.0
    assert by_path["stock[0].at_most"].drop[1] is ELEMENT
    keys = {o.key for o in offers(problem.inline())}
    assert ("p5.4xlarge", "us-east-1", "on_demand") in keys


def test_purchases_are_read_off_every_plan() -> None:
    fleet = optmodels.solve(ROOT / "instances/fleet/stock-limited.yaml")
    assert purchases(fleet.plan) == {
        ("g6e.xlarge", "us-east-1", "on_demand"): 1.0, ("p5.4xlarge", "us-east-1", "on_demand"): 1.0
    }  # fmt: skip
    reserved = optmodels.solve(ROOT / "instances/reserved_capacity/textbook-two-regions.yaml")
    assert sum(purchases(reserved.plan).values()) == 12


def test_relative_change_of_nothing_counts_in_units() -> None:
    limit = Restriction(("a",), ("a",), Limit("a", "most"), 0, "a", "", "", True, (("a",), None))
    assert relative_change(limit, 3) == 3.0


def test_command_line(cli, write) -> None:
    name = write(three_machines(budget_usd_per_hour=2.0))
    run = cli("explain", name, "--json", "--max-solves", "40")
    run.assert_clean()
    document = json.loads(run.out)
    assert run.status == 3 and document["kind"] == "explanation" and document["status"] == "infeasible"
    assert "solve 1" in run.err
    run = cli("explain", name, "--out", "explanations")
    assert "Cannot hold together" in run.out and "budget: 2 USD/h → 10 USD/h (+400 %)" in run.out
    assert json.loads(Path("explanations/instance-explanation/explanation.json").read_text())["conflicts"]
    assert cli("explain", write(three_machines(slo={
        "kind": "real_time", "tps": 10.0, "ttft_s": 0.5, "tpot_s": 1.0
    }), "fine.yaml")).status == 0  # fmt: skip
    assert cli("explain", name, "--time-limit", "-1").status == 2
    assert "got -3;" in cli("explain", name, "--next", "-3").err
    assert cli("explain", "nowhere.yaml").status == 2


def test_a_short_budget_says_of_every_limit_whether_it_binds_before_how_far_it_moves(tiny):
    """The expensive questions come last, those of limits that matter most first."""
    problem = tiny()
    whole = optmodels.explain(problem)
    stated = list(itertools.takewhile(lambda e: e.limit.written, whole.limits))
    assert stated and not any(e.limit.written for e in whole.limits[len(stated) :] if e.limit.side != "among")
    found = optmodels.explain(problem, max_solves=1 + len(stated))  # the instance, and each stated limit dropped
    assert [(e.limit.path, e.binds) for e in found.limits] == [(e.limit.path, e.binds) for e in stated]
    assert [e.gain_without for e in found.limits] == [e.gain_without for e in stated]
    assert all(e.tightest is None and e.step is None for e in found.limits)
    assert any(e.tightest is not None or e.step is not None for e in whole.limits)
    assert any(s.startswith("ranges of ") for s in found.skipped)


def test_an_answer_that_a_tighter_plan_proves_wrong_is_forgotten():
    """Levels that moved with a limit once made a looser limit "infeasible, proved"."""

    class Wrong(Points):
        def solve(self, settings, gap):
            value = settings.get(self.of[0], 1.0)
            return Answer(value == 1.5, plan=None)  # and at 2 and 3 not: false

    oracle = Wrong([], [1.0])
    (limit,) = oracle.of
    assert oracle.feasible({limit: 2.0}) is False and not oracle.contradicted
    assert oracle.best({limit: 1.5}).feasible and oracle.contradicted == 1  # which asks whatever is remembered
    assert oracle.feasible({limit: 2.0}) is True  # by the plan of 1.5
    other = Wrong([], [1.0])
    (limit,) = other.of
    assert other.feasible({limit: 1.5}) is True
    assert other._remembered({limit: 3.0}, False) is True and other.contradicted == 1
