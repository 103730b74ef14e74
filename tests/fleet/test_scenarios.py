"""Plans for draws of demand and slow machines: by hand, against the whole model, and what the check refuses."""

import copy

import numpy as np
import pytest

import optmodels
from formulations.fleet.methods.exact import exact
from formulations.fleet.methods.whole import whole
from formulations.fleet.points import build_tables
from formulations.fleet.scenarios import Scenarios, draws_of
from optmodels.api.stress import stress
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.plans.outcome import CheckReport


def fleet(scenarios, points=1, workloads=("chat",), **more):
    """Workloads of 200 requests/s on machine types that serve 10 requests/s for 3 USD/h or a little more."""
    return {
        "formulation": "fleet", "schema": 1, "name": "drawn",
        "workloads": [{"name": w, "buckets": [{"name": "all", "requests_per_s": 200}]} for w in workloads],
        "points": [
            {"name": f"p{k}", "machine": "AB"[k], "usd_per_hour": 3 + 0.2 * k,
             "requests_per_s": {f"{w}/all": 10 for w in workloads}} for k in range(points)
        ],
        "scenarios": {"draws": 30, "demand_sd": 0.3, "slow_probability": 0.25} | scenarios,
    } | more  # fmt: skip


def missed(count, asked):
    """Unserved share and requests/s of each draw with this number of machines of type A."""
    draws = draws_of(Scenarios.model_validate(asked), ["chat"], ["A"])
    rate = 200 * draws.demand["chat"]
    short = np.maximum(rate - 10 * count / draws.slow["A"], 0.0)
    return short / rate, short


def test_the_unserved_share_is_kept_with_the_fewest_machines():
    asked = {"unserved": 0.02}
    found = optmodels.solve(fleet(asked)).document()
    full = fleet(asked)["scenarios"]
    least = next(n for n in range(20, 200) if missed(n, full)[0].mean() <= 0.02)
    assert found["status"] == "optimal" and found["check"]["ok"] and found["objective"] == pytest.approx(3 * least)
    line = found["plan"]["scenarios"]
    assert line["unserved_share"] == pytest.approx(missed(least, full)[0].mean(), abs=1e-9)
    assert line["worst_share"] == pytest.approx(missed(least, full)[0].max(), abs=1e-9)


def test_a_price_trades_machines_for_unserved_requests():
    asked = {"usd_per_1000_unserved": 0.5}
    found = optmodels.solve(fleet(asked)).document()
    full = fleet(asked)["scenarios"]
    costs = {n: 3 * n + 3.6 * 0.5 * missed(n, full)[1].mean() for n in range(20, 80)}
    assert found["check"]["ok"] and found["objective"] == pytest.approx(min(costs.values()), rel=1e-9)
    assert found["plan"]["usd_per_hour"] == pytest.approx(3 * min(costs, key=costs.get))


def test_types_that_are_slow_at_different_times_share_the_risk():
    """The dearer type is bought, too: both are seldom slow in the same draw."""
    asked = {"unserved": 0.001, "demand_sd": 0.0, "slow_probability": 0.2, "slow": [2.0, 2.0]}
    one, two = (optmodels.solve(fleet(asked, points=k)).document() for k in (1, 2))
    assert len(two["plan"]["periods"][0]["deployments"]) == 2 and two["objective"] < one["objective"] - 1


@pytest.mark.parametrize("seed", range(4))
def test_few_points_and_bounds_agree_with_the_whole_model(seed):
    rng = np.random.default_rng(seed)
    data = fleet({"draws": 6, "unserved": 0.01, "seed": seed}, workloads=("chat", "code"))
    data["points"] = [
        {"name": f"p{k}", "machine": f"m{k % 3}", "usd_per_hour": float(rng.uniform(1, 6)),
         "requests_per_s": {f"{w}/all": float(rng.uniform(20, 60)) for w in ("chat", "code")}} for k in range(6)
    ]  # fmt: skip
    data["stock"] = [{"machine": "m0", "at_most": 3}]
    problem = load(data)
    tables = build_tables(problem)
    options = Options(time_limit=20.0, gap=1e-6)
    a, b = exact(problem, tables, options), whole(problem, tables, options)
    assert a.plan.total_usd_per_hour == pytest.approx(b.plan.total_usd_per_hour, rel=1e-5)
    assert a.bound <= b.plan.total_usd_per_hour * (1 + 1e-6)


def test_modelled_engines_pass_the_check():
    workloads = [
        {"name": name, "model": "llama-3.1-8b", "buckets": [{"input_tokens": i, "output_tokens": 128,
         "requests_per_s": 60}], "slo": {"ttft_s": 2.0, "tpot_s": 0.1}} for name, i in (("chat", 256), ("docs", 2048))
    ]  # fmt: skip
    found = optmodels.solve({
        "formulation": "fleet", "schema": 1, "name": "modelled", "serving": "continuous", "workloads": workloads,
        "pool": {"catalog": "aws", "include": ["g6.xlarge", "g6e.xlarge"]},
        "scenarios": {"draws": 20, "demand_sd": {"chat": 0.4}, "slow_probability": 0.3, "unserved": 0.01},
    }, time_limit=10.0).document()  # fmt: skip
    assert found["check"]["ok"], found["check"]
    assert 0 < found["plan"]["scenarios"]["unserved_share"] <= 0.01 and found["gap"] < 0.1


def test_plans_for_draws_are_certified_at_the_planned_rates():
    """The first plan breaks an SLO in simulation; with its engines cut the plan still serves the draws."""
    slo = {"ttft_s": {"at_most": 0.25, "percentile": 0.99}, "tpot_s": {"at_most": 0.06, "percentile": 0.99}}
    buckets = [{"input_tokens": 256, "output_tokens": 128, "requests_per_s": 20}]
    workload = {"name": "chat", "model": "llama-3.1-8b", "buckets": buckets, "slo": slo}
    found = optmodels.solve({
        "formulation": "fleet", "schema": 1, "name": "certified", "serving": "continuous", "workloads": [workload],
        "pool": {"catalog": "aws", "include": ["g6.xlarge"]}, "certify": "replay",
        "scenarios": {"draws": 20, "demand_sd": 0.4, "slow_probability": 0.3, "unserved": 0.01},
    }, time_limit=120.0).document()  # fmt: skip
    assert found["check"]["ok"], found["check"]
    made, line = found["plan"]["certification"], found["plan"]["scenarios"]
    assert made["status"] == "certified" and made["cuts"] and {r["stretch"] for r in made["rounds"]} == {1.0}
    assert line["unserved_share"] <= 0.01


def test_a_claim_better_than_the_draws_is_found():
    problem = load(fleet({"unserved": 0.02}))
    plan = exact(problem, build_tables(problem), Options()).plan.model_dump(mode="json")
    from formulations.fleet.check import check

    def wrong(**changed) -> CheckReport:
        other = copy.deepcopy(plan)
        other["scenarios"] |= changed
        return check(problem, other)

    assert wrong().ok
    for field, value in (
        ("unserved_share", 0.0), ("worst_share", 0.0), ("draws", 31), ("all_served", 1.0), ("usd_per_hour", 1.0),
        ("routes", [[]]), ("routes", [["chat/none"]]), ("routes", []),
    ):  # fmt: skip
        assert not wrong(**{field: value}).ok, field
    assert not check(problem, plan | {"scenarios": None}).ok
    fewer = copy.deepcopy(plan)
    problem = problem.model_copy(update={"scenarios": problem.scenarios.model_copy(update={"unserved": 0.001})})
    problem._resolved = None
    assert not check(problem, fewer).ok


def test_draws_depend_on_names_and_seed_alone():
    s = Scenarios(draws=2000, demand_sd={"a": 0.3}, slow_probability=0.25, unserved=0.1)
    one, more = draws_of(s, ["a"], ["x"]), draws_of(s, ["b", "a"], ["y", "x"])
    np.testing.assert_array_equal(one.demand["a"], more.demand["a"])
    np.testing.assert_array_equal(one.slow["x"], more.slow["x"])
    assert not np.array_equal(more.slow["x"], more.slow["y"]) and (more.demand["b"] == 1).all()
    a = one.demand["a"]
    assert a.mean() == pytest.approx(1.0, abs=0.02) and a.std() == pytest.approx(0.3, abs=0.02)
    assert (one.slow["x"] > 1).mean() == pytest.approx(0.25, abs=0.03) and one.slow["x"].max() <= 1.5


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"objective": "max_ce"}, "objective"), ({"reserve": {"lost": 1}}, "stress --lose"),
        ({"change": {"start_usd": 1.0}}, "change"),
        ({"periods": [{"name": "a", "hours": 12}, {"name": "b", "hours": 12}]}, "one file for each period"),
        ({"scenarios": {"draws": 3, "unserved": 0.1, "demand_sd": {"chta": 0.1}}}, "scenarios.demand_sd.chta"),
        ({"scenarios": {"draws": 3}}, "scenarios"),
        ({"scenarios": {"draws": 3, "unserved": 0.1, "slow": [1.5, 1.1]}}, "scenarios"),
    ],
)  # fmt: skip
def test_keys_without_a_meaning_are_refused(change, path):
    with pytest.raises(InputError) as error:
        optmodels.solve(fleet({"unserved": 0.02}) | change)
    assert path in str(error.value)


def test_other_methods_make_no_plan_for_draws():
    found = optmodels.solve(fleet({"unserved": 0.02}), method="greedy").document()
    assert found["plan"] is None and "only the method exact" in found["log"]["reason"]


def test_limits_that_leave_no_plan_are_named():
    found = optmodels.solve(fleet({"unserved": 0.001}) | {"stock": [{"machine": "A", "at_most": 22}]}).document()
    assert found["status"] == "infeasible" and "unserved share" in found["log"]["reason"]


def test_scenarios_beat_margins_where_volatilities_differ(tmp_path):
    asked = fleet(
        {"unserved": 0.02, "demand_sd": {"chat": 0.05, "code": 0.4}, "slow_probability": 0.0},
        workloads=("chat", "code"),
    )
    asked["points"] = [
        {"name": w, "machine": m, "usd_per_hour": 3, "requests_per_s": {f"{w}/all": 10}}
        for w, m in (("chat", "A"), ("code", "B"))
    ]  # fmt: skip
    plan = optmodels.solve({k: v for k, v in asked.items() if k != "scenarios"}).document()
    found = stress(plan, draws=400, problem=asked, picture=tmp_path / "s.svg")
    at = found["cost_at_unserved"]["0.02"]
    assert at["scenarios"] < 0.97 * at["uniform margin"]
    assert (tmp_path / "s-frontier.svg").read_text().startswith("<svg")
