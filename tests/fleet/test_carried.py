"""The largest rate that given engines serve: by hand, by the command, and by simulation."""

import json

import numpy as np
import pytest

import optmodels
from formulations.fleet.carried import CarriedModel, engines_of, tables_of
from formulations.fleet.plan import FleetPlan
from optmodels.api.max_rate import max_rate
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.solver import solve_compiled


def measured(chat=20.0, code=6.0):
    """Two demands; engine a serves 10 chats/s or 2 codes/s, engine b 5 chats/s or 4 codes/s."""
    return {
        "formulation": "fleet", "schema": 1, "name": "measured",
        "workloads": [
            {"name": "chat", "buckets": [{"name": "all", "requests_per_s": chat}]},
            {"name": "code", "buckets": [{"name": "all", "requests_per_s": code}]},
        ],
        "points": [
            {"name": "a", "machine": "A", "usd_per_hour": 3, "requests_per_s": {"chat/all": 10, "code/all": 2}},
            {"name": "b", "machine": "B", "usd_per_hour": 3, "requests_per_s": {"chat/all": 5, "code/all": 4}},
        ],
        "stock": [{"machine": "A", "at_most": 2}, {"machine": "B", "at_most": 3}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def solved():
    return optmodels.solve(measured()).document()


def by_hand(chat, code, a, b):
    """max f: f·chat = 10·x + 5·y, f·code = 2·(a − x) + 4·(b − y) over a grid of splits."""
    x, y = np.meshgrid(np.linspace(0, a, 2001), np.linspace(0, b, 2001))
    return np.minimum((10 * x + 5 * y) / chat, (2 * (a - x) + 4 * (b - y)) / code).max()


def test_the_bound_is_the_best_split_of_the_plans_engines(solved):
    counts = {d["point"]: d["count"] for d in solved["plan"]["periods"][0]["deployments"]}
    found = max_rate(solved)
    expected = by_hand(20, 6, counts.get("a", 0), counts.get("b", 0))
    assert found["best_shares"]["factor"] == pytest.approx(expected, rel=2e-3)
    assert found["best_shares"]["bound"] >= found["best_shares"]["requests_per_s"] * (1 - 1e-9)
    assert found["planned_shares"]["factor"] <= found["best_shares"]["factor"] * (1 + 1e-6)
    assert found["headroom"] == pytest.approx(found["planned_shares"]["factor"] - 1)


def test_a_plan_carries_what_it_was_made_for_and_a_loss_costs_capacity(solved):
    problem, plan = load(measured()), FleetPlan.model_validate(solved["plan"])
    tables = tables_of(problem, plan)
    engines = engines_of(tables, plan.periods[0].deployments)
    served = solve_compiled(CarriedModel(tables, 0, engines.kind, engines.counts, common=False).compiled())
    assert served.objective == pytest.approx(26.0, rel=1e-6)
    lost = engines.without(0, 10**6)
    less = solve_compiled(CarriedModel(tables, 0, lost.kind, lost.counts, common=False).compiled())
    assert less.objective < served.objective - 1


def test_without_a_plan_stock_limits_the_rate():
    found = max_rate(measured(), simulate=False)
    assert found["best_shares"]["factor"] == pytest.approx(by_hand(20, 6, 2, 3), rel=2e-3)
    assert found["headroom"] is None and "fleet" in found


def test_an_instance_without_limits_is_refused():
    with pytest.raises(InputError, match="a quota or a budget"):
        max_rate({**measured(), "stock": []})


def test_the_simulation_brackets_the_rate_of_engines(cli, folder):
    asked = ["max-rate", "--model", "llama-3.1-8b", "--input", 500, "--output", 100, "--quota", "l40s=2"]
    done = cli(*asked, "--ttft", 1, "--tpot", 0.05, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    seen, best = found["simulated"], found["best_shares"]
    assert 0.5 * best["requests_per_s"] < seen["requests_per_s"] < seen["fails_at"] * (1 + 1e-9)
    assert seen["missed"] and best["bound"] >= best["requests_per_s"] * (1 - 1e-9)
    done = cli(*asked, "--ttft", 1, "--no-simulate")
    assert done.status == 0 and "Largest rate within the SLOs" in done.out


def test_mistakes_name_what_is_missing(cli, folder):
    for arguments, expected in (
        ([], "one of the two"), (["nothing.json"], "no such file"),
        (["--model", "llama-3.1-8b", "--input", 500, "--output", 100], "--quota, --budget"),
    ):  # fmt: skip
        done = cli("max-rate", *arguments)
        assert done.status == 2 and expected in done.err, done.err


def test_a_plans_summary_states_its_headroom(solved):
    share = solved["summary"]["headroom"]["share"]
    assert share == pytest.approx(max_rate(solved)["best_shares"]["factor"] - 1, abs=0.01)
    assert f"Headroom: the request rate may rise by {share:.1%} until" in solved["summary"]["headroom"]["text"]
    refused = {**measured(40.0, 12.0), "objective": "max_ce"}
    for w in refused["workloads"]:
        w["serve_at_least"] = 0.0
    assert optmodels.solve(refused).document()["summary"]["headroom"] is None
    assert optmodels.check(solved).ok
    forged = json.loads(json.dumps(solved))
    forged["summary"]["headroom"]["share"] += 1
    assert not optmodels.check(forged).ok


def test_where_time_is_over_the_summary_names_the_command(solved, monkeypatch):
    monkeypatch.setattr("formulations.fleet.carried.MOST_SHARES", 0)
    found = optmodels.solve(measured()).document()["summary"]["headroom"]
    assert found["share"] is None and "optmodels max-rate PLAN" in found["text"]
