"""The MILP: equal to enumeration, to brute force and to the literal form; tight; every constraint family pinned."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyomo.environ as pyo
import pytest
from cases import brute_force, instances, tables_of
from conftest import tiny_problem
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model.golden_files import REST, check_rest, golden_rows, names
from model.mutants import survivors

from formulations.cost_efficiency import FORMULATION
from formulations.cost_efficiency import model as statement
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.literal import build_literal
from formulations.cost_efficiency.making import best_row
from formulations.cost_efficiency.methods.exact import exact
from formulations.cost_efficiency.model import FAMILIES, CostModel, CurvePieces, Data, attach, build, extract
from formulations.cost_efficiency.points import build_tables, prune
from optmodels.batch.points import in_memory
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.model.golden import rows_of, text
from optmodels.solver import Settings, compile_model, solve_compiled, solve_model

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "instances" / "cost_efficiency").rglob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "cost_efficiency"
SMALL = ("llm-pilot-table-vii", "llm-pilot-table-vi", "llm-pilot-table-ii")


def enumerated(tables):
    """Least USD per million tokens by exhaustive evaluation, inf if infeasible."""
    row = best_row(tables)
    if row is None:
        return np.inf
    s = tables.candidates
    return float(tables.objective(tables.optimum.e2e_s[s.configuration[row]], s.usd_per_hour[row]))


def milp(problem, tables, builder=build, **options):
    """Least USD per million tokens by the MILP, inf if infeasible."""
    usable = in_memory(tables.curves)[tables.candidates.configuration]
    if not usable.any():
        return np.inf
    report, _, _ = solve_model(builder(problem, tables), Settings(options=options))
    assert report.status in ("optimal", "infeasible")
    return report.objective if report.status == "optimal" else np.inf


def relaxed(model):
    """The LP relaxation's report."""
    compiled = compile_model(model)
    return solve_compiled(replace(compiled, integer=np.zeros_like(compiled.integer)))


def same(a, b, rel=1e-6):
    return a == b if np.inf in (a, b) else a == pytest.approx(b, rel=rel)


# ------------------------------------------------------------------------------------- equal to other ways to solve


@settings(max_examples=40)
@given(instances())
def test_the_milp_finds_the_enumerated_optimum(document):
    problem, t = tables_of(document)
    outcome = exact(problem, t, Options())
    expected = enumerated(t)
    if outcome.plan is None:
        assert outcome.status == "infeasible"
        assert expected == np.inf
        return
    assert outcome.status == "optimal"
    assert same(outcome.plan.usd_per_million_tokens, expected)
    assert outcome.bound == pytest.approx(1e6 / expected, rel=1e-6)
    verdict = check(problem, outcome.plan.model_dump(mode="json"))
    assert verdict.ok, verdict.violations


def test_a_deadline_is_what_the_throughput_of_one_batch_says(tiny):
    """Of a static batch E2E ≤ 2 s is TPS ≥ tokens/2 s; without either limit the best takes longer."""

    def best(tps, **deadline):
        slo = {"kind": "real_time", "tps": tps, "ttft_s": "100 s", "tpot_s": "100 s", **deadline}
        problem, t = tables_of(tiny(slo=slo, objective="uncapped"))
        return exact(problem, t, Options()).plan, t.case.tokens

    free, tokens = best(1e-3)
    at_most = 0.9 * free.prediction.e2e_s
    by_tps, by_deadline = best(tokens / at_most)[0], best(1e-3, deadline_s=at_most)[0]
    assert by_deadline is not None and by_deadline.prediction.e2e_s <= at_most
    assert by_deadline.machines == by_tps.machines and by_deadline.prediction == by_tps.prediction
    assert [x.name for x in by_deadline.limits if x.limit == at_most] == ["E2E"]


@settings(max_examples=15)
@given(instances(pools=SMALL, most_machines=2))
def test_without_pruning_and_without_presolve_the_optimum_is_the_same(document):
    problem, t = tables_of(document)
    step = max(1, len(t.candidates) // 60)  # enough to differ, few enough to be quick unpruned
    t = t.restricted(np.arange(0, len(t.candidates), step))
    expected = enumerated(t)
    assert same(milp(problem, t), expected)
    assert same(milp(problem, t, presolve="off"), expected)


@settings(max_examples=15)
@given(instances(pools=SMALL, most_machines=3))
def test_brute_force_over_a_grid_finds_nothing_better_and_nothing_much_worse(document):
    problem, t = tables_of(document)
    exact, grid = milp(problem, prune(t).tables), brute_force(problem, t, 401)
    assert exact <= grid * (1 + 1e-6)
    if np.isfinite(grid):
        slopes = 1.05 if problem.objective == "uncapped" else 1.0 + 1e-6
        assert grid <= exact * slopes


@settings(max_examples=12)
@given(instances(pools=("llm-pilot-table-vii",), most_machines=2))
def test_the_literal_form_has_the_same_optimum(document):
    problem, t = tables_of(document)
    t = t.restricted(np.arange(0, len(t.candidates), max(1, len(t.candidates) // 40)))
    assert same(milp(problem, t, build_literal), enumerated(t), rel=1e-5)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_shipped_instances(file):
    problem = load(file)
    readings = [problem.objective] if SHIPPED.index(file) % 12 else ["capped", "uncapped"]
    for objective in readings:
        problem = problem.model_copy(update={"objective": objective})
        t = build_tables(problem)
        outcome, expected = exact(problem, t, Options()), enumerated(t)
        found = np.inf if outcome.plan is None else outcome.plan.usd_per_million_tokens
        assert same(found, expected), objective


def test_the_shipped_instances_are_all_there():
    assert {f.parent.name for f in SHIPPED} >= {"fig1", "fig3", "table_ix", "textbook", "present_day"}
    assert len(SHIPPED) >= 70


# ----------------------------------------------------------------------------------------------------- tightness


@settings(max_examples=15)
@given(instances(pools=("llm-pilot-table-vii", "llm-pilot-table-vi"), most_machines=3))
def test_the_lp_relaxation_is_already_the_optimum(document):
    """Without a budget row, which alone couples candidates, the rows are the convex hull."""
    document.pop("budget_usd_per_hour", None)
    problem, t = tables_of(document)
    t = prune(t).tables
    expected = enumerated(t)
    assume(np.isfinite(expected))
    assert relaxed(build(problem, t)).objective == pytest.approx(expected, rel=1e-6)


def concrete(tiny, objective):
    return tables_of(
        tiny(
            objective=objective,
            strategies={"families": ["high_end", "kvo_ram", "ao"], "replicas": [1]},
            markets={"main": ["on_demand"], "ao": ["on_demand"]},
        )
    )


def test_the_literal_form_is_weaker_where_it_matters(tiny):
    problem, t = concrete(tiny, "uncapped")
    optimum = enumerated(t)
    assert relaxed(build(problem, t)).objective == pytest.approx(optimum, rel=1e-6)
    assert milp(problem, t, build_literal) == pytest.approx(optimum, rel=1e-5)
    literal = relaxed(build_literal(problem, t)).objective
    assert literal == pytest.approx(0.0, abs=1e-6)  # big M: the relaxation says nothing at all
    assert optimum > 0.1


# ----------------------------------------------------------------------------------------------------- tie-break


def twins(tiny, objective):
    """Two machines at one price, one of them faster."""
    machine = {"vram_gib": 48, "gpu": "l40s"}
    gpus = {"l40s-fast": {"fp16_flops": 9e14, "mem_bytes_per_s": 2e12, "vram_gib": 48, "pcie_bytes_per_s": 3e10,
                          "link_bytes_per_s": 3e10}}  # fmt: skip
    return tiny(
        objective=objective,
        gpus=gpus,
        pool={
            "machines": [
                {"machine": "slow", "prices": {"on_demand": 1.5}, **machine},
                {"machine": "fast", "prices": {"on_demand": 1.5}, **machine, "gpu": "l40s-fast"},
            ]
        },
        strategies={"families": ["high_end"]},
    )


@pytest.mark.parametrize("order", [1, -1])
def test_at_equal_cost_the_faster_plan_wins(tiny, order):
    document = twins(tiny, "capped")
    document["pool"]["machines"] = document["pool"]["machines"][::order]
    problem, t = tables_of(document)
    for method in ("exact", "enumerate", "config_tree"):
        plan = FORMULATION.methods[method](problem, t, Options()).plan
        assert plan.machines[0].machine == "fast", method


def test_at_equal_efficiency_the_simpler_strategy_wins_by_every_proving_method(tiny):
    """K pairs of the paper's model serve exactly K times faster at K times the price: uncapped CE ties."""
    document = tiny(
        objective="uncapped",
        latency={"variant": "paper"},
        strategies={"families": ["ao", "ao_parallel"], "parallel": [2, 4]},
        markets={"main": ["on_demand"], "ao": ["on_demand"]},
    )
    document["slo"]["tps"] = 1.0
    document["model"] = {
        "layers": 2, "hidden": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128, "ffn": 4096, "ffn_matrices": 2,
        "vocab": 1000, "max_positions": 4096,
    }  # fmt: skip
    problem, t = tables_of(document)
    o, s = t.optimum, t.candidates
    value = t.objective(o.e2e_s[s.configuration], s.usd_per_hour)
    ties = np.flatnonzero(value <= np.nanmin(value) * (1 + 1e-9))
    assert {int(t.configurations.count[s.configuration[i]]) for i in ties} == {1, 2, 4}
    for method in ("exact", "enumerate", "config_tree"):
        plan = FORMULATION.methods[method](problem, t, Options()).plan
        assert plan.family == "ao", method


def test_offloading_that_buys_nothing_is_not_chosen(tiny):
    """At equal cost and within the SLO either way, no offloading at all is simpler, though offloading is faster."""
    problem, t = tables_of(tiny(slo={"kind": "batch", "tps": 10.0}, strategies={"families": ["kvo_ram", "high_end"]}))
    for method in ("exact", "enumerate", "config_tree"):
        plan = FORMULATION.methods[method](problem, t, Options()).plan
        if plan.machines[0].machine != "small":
            assert plan.family == "high_end", method


def test_a_best_plan_beside_a_hopeless_one_is_still_found(tiny):
    points = [
        {"name": "simple, 0.05 % worse", "family": "high_end", "main": "mid", "e2e_s": 1.0005},
        {"name": "best", "family": "kvo_ram", "main": "mid", "e2e_s": 1.0},
        {"name": "hopeless", "family": "high_end", "main": "mid", "e2e_s": 1e12},
    ]
    document = tiny(
        objective="uncapped", slo={"kind": "batch", "tps": 1e-12}, latency={"operating_points": points},
        markets={"main": ["on_demand"], "ao": ["on_demand"]},
    )  # fmt: skip
    problem, t = tables_of(document)
    for method in ("exact", "enumerate", "config_tree"):
        plan = FORMULATION.methods[method](problem, t, Options()).plan
        assert plan.measured == "best", method
    assert milp(problem, t) == pytest.approx(1e6 / 3600 / (8 * 288), rel=1e-6)


# ------------------------------------------------------------------------------------- infeasible and odd instances


def test_no_candidate_in_memory_is_infeasible_not_an_error(tiny):
    document = tiny(model="llama-3.1-405b")
    problem, t = tables_of(document)
    outcome = exact(problem, t, Options())
    assert (outcome.status, outcome.plan) == ("infeasible", None)


@pytest.mark.parametrize("variant", ["paper", "roofline"])
def test_a_saturated_shared_machine_is_infeasible_not_an_error(tiny, variant):
    """α = 1 forced onto an AO machine that N mains overload: the curve is infinite there."""
    document = tiny(
        strategies={"families": ["high_end", "ao_shared"], "shared": [2, 4, 8], "alpha": {"min": 1.0, "max": 1.0}},
        latency={"variant": variant},
        slo={"kind": "batch", "tps": 1.0},
    )
    problem, t = tables_of(document)
    assert same(milp(problem, t), enumerated(t))
    assert same(enumerated(t), brute_force(problem, t))


def test_a_saturated_shared_machine_beside_measured_looking_limits(tiny):
    """Memory alone forces α beyond saturation: nothing may become infinite inside the model."""
    slow = {"fp16_flops": 1e12, "mem_bytes_per_s": 1e10, "vram_gib": 200, "pcie_bytes_per_s": 1e9,
            "link_bytes_per_s": 1e9}  # fmt: skip
    document = tiny(
        gpus={"slow": slow},
        workload={"batch": 64, "input_tokens": 1024, "output_tokens": 64},
        slo={"kind": "batch", "tps": 1e-3},
        strategies={"families": ["ao_shared", "high_end", "multi_pass"], "shared": [2, 4], "multi_pass": [16]},
    )
    document["pool"]["machines"].append(
        {"machine": "slow-ao", "gpu": "slow", "vram_gib": 200, "net_gbps": 10, "prices": {"on_demand": 0.01}}
    )
    problem, t = tables_of(document)
    saturated = in_memory(t.curves) & ~np.isfinite(t.curves.metrics(t.curves.alpha_lo)[2])
    assert saturated.any()
    assert same(milp(problem, t), enumerated(t))
    outcome = exact(problem, t, Options())
    assert same(outcome.plan.usd_per_million_tokens, enumerated(t))


@pytest.mark.parametrize("budget", [0.0, 0.49])
def test_a_budget_below_every_price_is_infeasible(tiny, budget):
    problem, t = tables_of(tiny(budget_usd_per_hour=budget, markets={"main": ["on_demand"], "ao": ["on_demand"]}))
    assert exact(problem, t, Options()).status == "infeasible"
    assert milp(problem, t) == np.inf


def test_a_budget_of_exactly_the_optimum_is_enough(tiny):
    problem, t = tables_of(tiny())
    cost = exact(problem, t, Options()).plan.usd_per_hour
    problem, t = tables_of(tiny(budget_usd_per_hour=cost))
    assert exact(problem, t, Options()).plan.usd_per_hour == cost


def test_a_budget_of_exactly_five_machines_is_enough(tiny):
    """5 × 5.69 is 28.450000000000003 in binary: a budget of 28.45 pays for it."""
    machine = tiny()["pool"]["machines"][0] | {"prices": {"on_demand": 5.69}}
    five = {"families": ["high_end"], "replicas": [5]}
    document = tiny(pool={"machines": [machine]}, strategies=five, budget_usd_per_hour=28.45)
    problem, t = tables_of(document)
    plan = exact(problem, t, Options()).plan
    assert plan.usd_per_hour == 5 * 5.69 > 28.45
    assert check(problem, plan.model_dump(mode="json")).ok
    assert next(x for x in plan.limits if x.name == "budget").limit == 28.45


def test_limits_of_exactly_the_optimum_are_enough(tiny):
    """An SLO set to what the plan achieves: the boundary belongs to the feasible set."""
    problem, t = tables_of(tiny(strategies={"families": ["kvo_ram"]}))
    p = exact(problem, t, Options()).plan.prediction
    slo = {"kind": "real_time", "tps": p.tps, "ttft_s": p.ttft_s, "tpot_s": p.tpot_s, "deadline_s": p.e2e_s}
    problem, t = tables_of(tiny(strategies={"families": ["kvo_ram"]}, slo=slo))
    assert np.isfinite(milp(problem, prune(t).tables))


# ----------------------------------------------------------------------------------- inside somebody else's model


def test_two_workloads_share_a_budget(tiny):
    small = {"families": ["high_end", "kvo_ram", "ao"], "replicas": [1]}
    first = tables_of(tiny(strategies=small))
    second = tables_of(
        tiny(strategies=small, model="opt-13b", workload={"batch": 16, "input_tokens": 128, "output_tokens": 64})
    )

    def options(problem, t):
        """(USD/h, USD per million tokens) of every feasible candidate."""
        o, s = t.optimum, t.candidates
        ok = o.feasible[s.configuration]
        value = t.objective(o.e2e_s[s.configuration], s.usd_per_hour)
        return np.stack([s.usd_per_hour[ok], value[ok]], axis=1)

    one, two = options(*first), options(*second)
    cheapest = one[:, 0].min() + two[:, 0].min()
    for budget in (cheapest * 0.99, cheapest, cheapest * 1.5, 50.0):
        m = pyo.ConcreteModel()
        m.one, m.two = pyo.Block(), pyo.Block()
        for block, (problem, t) in ((m.one, first), (m.two, second)):
            attach(block, problem, t)
        m.budget = pyo.Constraint(expr=m.one.usd_per_hour + m.two.usd_per_hour <= budget)
        # Spending is good here: the more expensive, the better the revenue, so the shared budget binds.
        m.value = pyo.Objective(expr=m.one.usd_per_hour + 2 * m.two.usd_per_hour, sense=pyo.maximize)
        report, _, _ = solve_model(m)
        total = one[:, None, 0] + two[None, :, 0]
        gain = np.where(total <= budget * (1 + 1e-9), one[:, None, 0] + 2 * two[None, :, 0], -np.inf).max()
        if np.isinf(gain):
            assert report.status == "infeasible"
        else:
            assert report.objective == pytest.approx(gain, rel=1e-6)


def test_extract_reads_the_chosen_candidate(tiny):
    problem, t = tables_of(tiny(objective="uncapped"))
    model = build(problem, t)
    solve_model(model)
    plan = extract(model, t)
    assert plan.usd_per_million_tokens == pytest.approx(enumerated(t), rel=1e-6)
    assert pyo.value(model.usd_per_hour) == pytest.approx(plan.usd_per_hour)
    assert sum(round(z.value) for z in model.z.values()) == 1


# ------------------------------------------------------------------------------------------------- golden files


def pieces(*lines):
    """Chords (row, candidate, j, u, v)."""
    row, candidate, j, u, v = (np.array(column) for column in zip(*lines, strict=True))
    return CurvePieces(row, candidate, j, u.astype(float), v.astype(float))


# Two candidates with round numbers: 3 offloads (the user allows α in [0.375, 0.75]), 7 does not.
HAND = Data(
    candidate=np.array([3, 7]), usd_per_hour=np.array([2.0, 5.0]), usd_per_million_tokens=np.array([40.0, 100.0]),
    rank=np.array([6, 1]), alpha_min=np.array([0.375, 0.0]), alpha_max=np.array([0.75, 0.0]),
    vram_fixed=np.array([0.5, 0.625]), kv_in_vram=np.array([0.75, 0.0]), kv_in_host=np.array([1.25, np.nan]),
    longest_e2e=np.array([1.625, 1.5]),
    ttft=pieces((0, 3, 0, 0.5, 0.0), (0, 3, 1, 0.25, 0.75), (1, 7, 0, 0.875, 0.0)),
    tbt=pieces((0, 3, 0, 1.25, -0.75), (0, 3, 1, 0.25, 0.75), (1, 7, 0, 0.75, 0.0)),
    e2e=pieces((0, 3, 0, 2.0, -1.0), (0, 3, 1, 0.5, 1.5), (1, 7, 0, 1.0, 0.0)),
    budget=6.0,
)  # fmt: skip


def hand(objective, data=HAND):
    """The model on `HAND` in place of tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement, "model_data", lambda problem, tables: data)
        return CostModel(load(tiny_problem(objective=objective)), None)


CASES = {objective: hand(objective) for objective in ("capped", "uncapped")}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_golden_rows_notice_every_mutant(family):
    assert survivors(family, golden_rows(GOLDEN, family, CASES)) == []


def test_golden_variables_and_objectives():
    check_rest(GOLDEN, CASES)


def test_golden_files_are_those_of_the_families():
    assert names(GOLDEN) == {f.__name__ for f in FAMILIES} | {REST}


def test_rows_worked_by_hand():
    """VRAM of candidate 3: 0.5 z + 0.75 (z − a) ≤ z, so 0.25 z − 0.75 a ≤ 0; 7 keeps its KV cache and has no row."""
    assert text(rows_of(CASES["capped"], "vram")).splitlines()[0] == "vram[3]: 0.25 z[3] - 0.75 a[3] <= 0"
    # TBT of 3, first piece: (1.25 − 1) z − 0.75 a ≤ 0; its E2E: e ≥ 2 z − a.
    assert "tbt[3,0]: 0.25 z[3] - 0.75 a[3] <= 0" in text(rows_of(CASES["capped"], "tbt"))
    assert "e2e_epigraph[3,0]: -2 z[3] + a[3] + e[3] >= 0" in text(rows_of(CASES["capped"], "e2e_epigraph"))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        # capped: candidate 3 costs 40, 7 costs 100; both meet every row, so 3; its α is free on [0.375, 0.75] but for
        # ttft 0.25 + 0.75α ≤ 1 (α ≤ 1), tbt 1.25 − 0.75α ≤ 1 (α ≥ 1/3), 0.25 + 0.75α ≤ 1 (α ≤ 1), and
        # e = max(2 − α, 0.5 + 1.5α) ≤ 1.625, least at α = 0.6: e = 1.4.
        ("capped", (40.0, 6, 1.4)),
        # uncapped: 40·1.4 = 56 against 100·1.
        ("uncapped", (56.0, 6, 1.4)),
    ],
)
def test_the_hand_made_model_is_solved_as_by_hand(objective, expected):
    model = hand(objective).pyomo()
    report, _, _ = solve_model(model)
    direct = solve_compiled(hand(objective).compiled())
    assert direct.objectives == pytest.approx(report.objectives)
    assert report.objectives == pytest.approx(expected, rel=1e-6)
    assert model.a[3].value == pytest.approx(0.6, abs=1e-6)
    assert model.z[3].value == 1


def test_the_hand_made_budget_decides():
    model = hand("capped", replace(HAND, usd_per_million_tokens=np.array([200.0, 100.0]))).pyomo()
    assert solve_model(model)[0].objective == pytest.approx(100.0)
    model.within_budget.deactivate()
    model.tight = pyo.Constraint(expr=model.usd_per_hour <= 4.9)
    assert solve_model(model)[0].objective == pytest.approx(200.0)
    model.tighter = pyo.Constraint(expr=model.usd_per_hour <= 1.9)
    assert solve_model(model)[0].status == "infeasible"


def test_chords_are_stated_once():
    """Two straight curves, one with a bend, and one without room for a chord: its largest value."""
    alpha = np.array([[0.0, 0.25, 0.5], [0.0, 0.5, 1.0], [0.0, 0.5, 1.0], [0.25, 0.25, 0.25]])
    y = np.array([[1.0, 1.5, 2.0], [2.0, 2.5, 3.0], [1.0, 1.0, 3.0], [0.5, 0.75, 0.625]])
    at, u, v = statement._chords(alpha, y)
    assert list(zip(at.tolist(), u.tolist(), v.tolist(), strict=True)) == [
        (0, 1.0, 2.0), (1, 2.0, 1.0), (2, -1.0, 4.0), (2, 1.0, 0.0), (3, 0.75, 0.0)
    ]  # fmt: skip


def test_chords_within_the_limit_on_the_range_have_no_row():
    """The last chord of candidate 7 is 0.9 of the limit at most, though it would be above it at α = 1."""
    alpha = np.array([[0.0, 0.25, 0.5], [0.0, 0.25, 0.5]])
    value = np.array([[2.0, 1.0, 3.0], [0.4, 0.8, 1.8]])
    p = statement._pieces(np.array([3, 7, 9]), np.array([0, 1, 0]), alpha, value, 2.0, within=1.0)
    assert (p.row.tolist(), p.candidate.tolist(), p.j.tolist()) == ([0, 2], [3, 9], [0, 0])
    assert (p.u.tolist(), p.v.tolist()) == ([-0.5, -0.5], [4.0, 4.0])
    everything = statement._pieces(np.array([3, 7, 9]), np.array([0, 1, 0]), alpha, value, 2.0)
    assert everything.j.tolist() == [0, 1, 0, 1, 0, 1] and len(everything.u) == 6
    nothing = statement._pieces(np.array([3]), np.array([0]), alpha[:1], value[:1], np.inf)
    assert len(nothing.row) == 0


def test_without_a_candidate_the_model_is_infeasible():
    nothing = np.zeros(0, dtype=np.intp)
    none = CurvePieces(nothing, nothing, nothing, np.zeros(0), np.zeros(0))
    of_none = {f.name: np.zeros(0) for f in fields(Data)} | {
        "candidate": nothing, "ttft": none, "tbt": none, "e2e": none, "budget": 6.0,
    }  # fmt: skip
    assert solve_compiled(hand("capped", Data(**of_none)).compiled()).status == "infeasible"


@settings(max_examples=10)
@given(instances(pools=("llm-pilot-table-vii",), most_machines=2), st.integers(0, 3))
def test_the_order_of_the_rows_does_not_matter(document, seed):
    problem, t = tables_of(document)
    expected = enumerated(t)
    shuffled = t.restricted(np.random.default_rng(seed).permutation(len(t.candidates)))
    assert same(milp(problem, prune(shuffled).tables), expected)
