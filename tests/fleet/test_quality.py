"""Models and precisions as decisions, under a floor on quality: a plain program, figures by hand, plans with lies."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from fleet_cases import APART, fleet, scored
from scipy.optimize import Bounds, LinearConstraint, milp

import optmodels
from formulations.fleet import replay as of_replay
from formulations.fleet.check import check
from formulations.fleet.deploy import deployments
from formulations.fleet.methods import METHODS
from formulations.fleet.methods.columns import relaxation
from formulations.fleet.methods.exact import exact
from formulations.fleet.points import build_case, build_tables, prune
from formulations.fleet.problem import Fleet
from formulations.fleet.replay import replay
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.simulation.options import ReplayOptions

SMALL = {"model": "llama-3.1-8b", "precision": {"weights": "fp8", "kv": "fp8"}, "quality": 0.7}
LARGE = {"name": "large", "model": "llama-3.3-70b", "precision": {"weights": "fp8", "kv": "fp8"}, "quality": 0.86}
CHAT = {
    "name": "chat", "models": [SMALL, LARGE], "quality_at_least": 0.78, "requests_per_s": 40.0,
    "buckets": [{"input_tokens": 512, "output_tokens": 256, "share": 0.75},
                {"input_tokens": 2048, "output_tokens": 512, "share": 0.25}],
    "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
}  # fmt: skip
BOTH_MODELS = {
    "formulation": "fleet", "schema": 1, "name": "two", "serving": "continuous", "workloads": [CHAT],
    "pool": {"catalog": "aws", "include": ["g6e.2xlarge", "p5.48xlarge"]},
    "markets": {"main": ["on_demand"], "ao": ["on_demand"]}, "strategies": {"tensor_parallel": [1, 2]},
}  # fmt: skip
STATIC = BOTH_MODELS | {
    "serving": "static",
    "strategies": {"families": ["high_end"], "batches": [8, 32], "tensor_parallel": [1, 2]},
}


@pytest.fixture(scope="module")
def solved():
    result = optmodels.solve(BOTH_MODELS)
    assert result.status == "optimal"
    assert result.check.ok, result.check.violations
    return result


def random_case(seed):
    """A random fleet of three models, of which every workload accepts some, with floors between their scores."""
    rng = np.random.default_rng(seed)
    demands, points, models = 3, 6, 3
    throughput = rng.uniform(0.5, 4.0, (demands, points)).round(2)
    throughput[rng.random((demands, points)) < 0.15] = 0.0
    scores = rng.uniform(0.3, 0.9, (demands, models)).round(2)
    scores[rng.random((demands, models)) < 0.2] = 0.0
    changes = {"w0": {"buckets": [{"name": "b", "requests_per_s": 1.3}, {"name": "c", "requests_per_s": 0.4}]}}
    for k in range(points):
        own = {f"w{i}/b": throughput[i, k] for i in range(demands) if throughput[i, k]}
        changes[f"p{k}"] = {"requests_per_s": own | {"w0/c": float(rng.uniform(0.5, 4.0))}}
    if rng.random() < 0.4:
        changes["w1"] = {"unserved_usd_per_1000_requests": float(rng.uniform(0.1, 1.0))}
    if rng.random() < 0.3:
        changes["quota"] = [{"machine": "*", "at_most": int(rng.integers(2, 8))}]
    if rng.random() < 0.3:
        changes["periods"] = [{"name": "a", "hours": 8}, {"name": "b", "hours": 16, "rate_factor": 0.4}]
    if rng.random() < 0.3:
        changes |= {"objective": "max_served", "budget_usd_per_hour": float(rng.uniform(2, 8))}
    problem = fleet(rng.uniform(0.2, 3.0, demands).round(2).tolist(), throughput.tolist(),
                    rng.uniform(0.5, 4.0, points).round(2).tolist(), **changes)  # fmt: skip
    works = [
        w.model_copy(update={"quality_at_least": float(rng.choice(s[s > 0])) + 0.05 if s.any() else None})
        for w, s in zip(problem.workloads, scores, strict=True)
    ]
    problem = problem.model_copy(update={"workloads": tuple(works)})
    model = [*range(models), *rng.integers(0, models, points - models).tolist()]
    return problem, scored(problem, scores.tolist(), model), scores, model


def plain_program(problem, tables, scores, model):
    """The optimum by one program written here: counts, shares, unserved shares; a row for every sentence."""
    T, W, P = len(tables.case.periods), len(tables.demands), len(tables.points)
    names = [w.name for w in problem.workloads]
    of = [names.index(d.workload) for d in tables.demands]
    works = [problem.workloads[i] for i in of]
    hours = np.array([q.hours for q in tables.case.periods]) / sum(q.hours for q in tables.case.periods)
    N, X, S = (lambda t, p: t * P + p), (lambda t, w, p: T * P + (t * W + w) * P + p), None
    size = T * P + T * W * P + T * W
    S = lambda t, w: T * P + T * W * P + t * W + w  # noqa: E731
    cost, high, rows = np.zeros(size), np.full(size, 1.0), []
    high[: T * P] = 50

    def row(entries, low, top):
        a = np.zeros(size)
        for j, v in entries:
            a[j] += v
        rows.append((a, low, top))

    for t in range(T):
        rate = [d.requests_per_s[t] for d in tables.demands]
        row([(N(t, p), 1.0) for p in range(P)] if problem.quota else [], -np.inf,
            problem.quota[0].at_most if problem.quota else 0)  # fmt: skip
        usd = [(N(t, p), tables.points.usd_per_hour[p]) for p in range(P)]
        if problem.budget_usd_per_hour is not None:
            row(usd, -np.inf, problem.budget_usd_per_hour)
        for p in range(P):
            row([(X(t, w, p), rate[w] * tables.load[w, p]) for w in range(W) if np.isfinite(tables.load[w, p])]
                + [(N(t, p), -1.0)], -np.inf, 0)  # fmt: skip
        for w in range(W):
            row([(X(t, w, p), 1.0) for p in range(P)] + [(S(t, w), 1.0)], 1, 1)
            high[[X(t, w, p) for p in range(P) if not np.isfinite(tables.load[w, p])]] = 0
            must = problem.objective == "min_cost" and not works[w].unserved_usd_per_1000_requests
            high[S(t, w)] = 0.0 if must else 1.0
            unserved = 3.6 * works[w].unserved_usd_per_1000_requests
            cost[S(t, w)] = hours[t] * rate[w] * (1.0 if problem.objective == "max_served" else unserved)
        if problem.objective == "min_cost":
            for j, v in usd:
                cost[j] = hours[t] * v
        for i, w in enumerate(problem.workloads):
            if w.quality_at_least is not None:  # mean score of what is answered
                row([(X(t, k, p), rate[k] * (scores[i, model[p]] - w.quality_at_least))
                     for k in range(W) if of[k] == i for p in range(P)], 0, np.inf)  # fmt: skip
    A, low, top = zip(*rows, strict=True)
    whole = np.zeros(size)
    whole[: T * P] = 1
    found = milp(cost, constraints=LinearConstraint(np.array(A), low, top), bounds=Bounds(0, high), integrality=whole,
                 options={"mip_rel_gap": 0})  # fmt: skip
    if found.x is None:
        return None
    if problem.objective == "min_cost":
        return found.fun
    return float(hours @ [sum(d.requests_per_s[t] for d in tables.demands) for t in range(T)]) - found.fun


@pytest.mark.parametrize("seeds", [range(24)])
def test_the_optimum_is_that_of_a_plain_program(seeds):
    bound_by_floor = 0
    for seed in seeds:
        problem, tables, scores, model = random_case(seed)
        true = plain_program(problem, tables, scores, model)
        found = exact(problem, tables, Options(time_limit=20, answer_only=True))
        assert (found.plan is None) == (true is None), (seed, found.log)
        if found.plan is None:
            continue
        least = problem.objective == "min_cost"
        value = found.plan.total_usd_per_hour if least else found.plan.first_priority_served_per_s
        assert value == pytest.approx(true, rel=1e-6, abs=1e-9), seed
        lines = [x for q in found.plan.periods for x in q.limits if x.name.startswith("quality")]
        assert all(x.value >= x.limit * (1 - 1e-6) for x in lines)
        bound_by_floor += any(x.binding for x in lines)
        if least:
            parts = [relaxation(problem, tables, t).bound for t in range(len(tables.case.periods))]
            hours = np.array([q.hours for q in tables.case.periods])
            assert float(hours / hours.sum() @ parts) <= true * (1 + 1e-9)
        for name in ("greedy", "greedy_dp", "lp_rounding", "column_pruning"):
            plan = METHODS[name](problem, tables, Options(time_limit=20)).plan
            if plan is not None:
                theirs = plan.total_usd_per_hour if least else plan.first_priority_served_per_s
                assert theirs >= true * (1 - 1e-6) if least else theirs <= true * (1 + 1e-6), (seed, name)
                assert all(x.value >= x.limit * (1 - 1e-6) for q in plan.periods for x in q.limits
                           if x.name.startswith("quality"))  # fmt: skip
    assert bound_by_floor


def test_pruning_keeps_better_answers_only_where_they_count():
    """Of two equal points of unlike models the worse goes under a floor; without one either is as good."""
    problem = fleet([1.0], [[1.0, 1.0, 1.0]], [1.0, 1.0, 2.0], p1={"machine": "m0"}, p2={"machine": "m0"})
    for floor, kept in ((0.5, [1, 2]), (None, [0])):
        asking = problem.workloads[0].model_copy(update={"quality_at_least": floor})
        asked = problem.model_copy(update={"workloads": (asking,)})
        tables = scored(asked, [[0.4, 0.6, 0.7]], [0, 1, 2])
        assert prune(tables)[0].points.model.tolist() == kept


def test_seven_tenths_to_the_small_model_by_hand():
    """Scores 0.7 and 0.8: a mean of 0.73 is 70 % of requests to the first and 30 % to the second.

    Of 10 requests/s, 1 and 0.25 a deployment: 7 of the first at 1 USD/h and 12 of the second at 4 USD/h.
    """
    problem = fleet([10.0], [[1.0, 0.25]], [1.0, 4.0])
    asking = problem.workloads[0].model_copy(update={"quality_at_least": 0.73})
    problem = problem.model_copy(update={"workloads": (asking,)})
    plan = exact(problem, scored(problem, [[0.7, 0.8]], [0, 1]), Options()).plan
    assert plan.total_usd_per_hour == pytest.approx(7 + 48)
    assert {d.point: (d.count, round(d.serves[0].share, 9)) for d in plan.periods[0].deployments} == {
        "p0": (7, 0.7), "p1": (12, 0.3)
    }  # fmt: skip
    [line] = plan.periods[0].limits
    assert (line.name, line.sense, line.binding) == ("quality of w0", ">=", True)
    assert line.value == pytest.approx(0.73)


def test_a_plan_says_which_model_serves_which_share(solved):
    lines = solved.plan["periods"][0]["deployments"]
    rates = {"chat/512x256": 30.0, "chat/2048x512": 10.0}
    score = {"llama-3.1-8b fp8, fp8 KV cache": 0.7, "large": 0.86}
    assert {d["model"] for d in lines} == set(score)
    by_hand = sum(s["share"] * rates[s["demand"]] * score[d["model"]] for d in lines for s in d["serves"]) / 40
    [limit] = solved.plan["periods"][0]["limits"]
    assert limit["value"] == pytest.approx(by_hand)
    assert by_hand >= 0.78 - 1e-6
    made = deployments(Fleet.model_validate(BOTH_MODELS), solved.plan).deployments
    assert {(d.checkpoint.partition("/")[2], d.weights, d.kv) for d in made} == {
        ("Llama-3.1-8B", "fp8", "fp8"), ("Llama-3.3-70B-Instruct", "fp8", "fp8")
    }  # fmt: skip


def broken_plans(plan):
    """Plans with one lie each."""
    lines = plan["periods"][0]["deployments"]
    for k, d in enumerate(lines):
        other = copy.deepcopy(plan)
        other["periods"][0]["deployments"][k]["model"] = "large" if d["model"] != "large" else LIES
        yield "the other model", other
        other = copy.deepcopy(plan)
        other["periods"][0]["deployments"][k]["model"] = None
        yield "no model", other
    other = copy.deepcopy(plan)
    other["periods"][0]["limits"][0]["value"] += 0.01
    yield "a better quality", other
    other = copy.deepcopy(plan)
    other["periods"][0]["limits"] = []
    yield "no line of quality", other


LIES = "llama-3.1-8b fp8, fp8 KV cache"


def test_lies_about_models_fail_the_check(solved):
    problem = Fleet.model_validate(BOTH_MODELS)
    assert check(problem, solved.plan).ok
    for what, plan in broken_plans(solved.plan):
        assert not check(problem, plan).ok, what
    higher = Fleet.model_validate(BOTH_MODELS | {"workloads": [CHAT | {"quality_at_least": 0.859}]})
    assert any("quality of chat >=" in v.requirement for v in check(higher, solved.plan).violations)


def test_replay_sends_shares_to_either_model(solved, monkeypatch):
    monkeypatch.setattr(of_replay, "DRAWN", 5000)
    seen = replay(Fleet.model_validate(BOTH_MODELS), solved.plan, None, ReplayOptions(policy="planned_shares"))
    assert seen["policies"]["planned_shares"]["served_share"] == pytest.approx(1.0)
    assert seen["policies"]["planned_shares"]["ttft_s"]["p50"] > 0


@pytest.mark.parametrize("base", [BOTH_MODELS, STATIC], ids=["continuous", "static"])
def test_one_model_in_a_list_is_the_model_alone(base):
    """The same points, costs and shares, whether the model stands alone or in a list of one."""
    alone = {k: v for k, v in CHAT.items() if k not in ("models", "quality_at_least")}
    plain = Fleet.model_validate(base | {"workloads": [alone | {k: SMALL[k] for k in ("model", "precision")}]})
    listed = Fleet.model_validate(base | {"workloads": [alone | {"models": [SMALL], "quality_at_least": 0.5}]})
    a, b = build_tables(plain), build_tables(listed)
    np.testing.assert_array_equal(a.load, b.load)
    np.testing.assert_array_equal(a.points.usd_per_hour, b.points.usd_per_hour)
    np.testing.assert_array_equal(a.points.pool, b.points.pool)


def test_static_batches_of_two_models():
    result = optmodels.solve(STATIC)
    assert result.status == "optimal"
    assert result.check.ok, result.check.violations
    [limit] = result.plan["periods"][0]["limits"]
    assert limit["value"] >= 0.78 - 1e-6
    floors = [optmodels.solve(STATIC | {"workloads": [CHAT | {"quality_at_least": q}]}).objective for q in (0.7, 0.86)]
    assert floors[0] < result.objective < floors[1]


def test_stages_of_a_request_load_one_model():
    """Each model has exchanges of its own: what one prefills no other decodes."""
    two = [{"model": "llama-3.1-8b", "quality": 0.7}, {"model": "llama-3.1-70b", "quality": 0.9}]
    work = {k: v for k, v in APART["workloads"][0].items() if k != "model"} | {"models": two, "quality_at_least": 0.8}
    problem = Fleet.model_validate(
        APART | {"workloads": [work], "deployment": {"stages": ["prefill", "decode"]},
                 "pool": {"catalog": "aws", "include": ["p5.48xlarge"]}}
    )  # fmt: skip
    tables = build_case(problem.resolve())
    x = tables.points
    assert all(len(set(x.model[x.exchange == k])) == 1 for k in set(x.exchange[x.stage > 0]))
    found = exact(problem, tables, Options(gap=0.02, time_limit=60, answer_only=True))
    assert found.plan is not None
    document = json.loads(found.plan.model_dump_json())
    assert check(problem, document).ok, check(problem, document).violations
    sent = {x.model for q in found.plan.periods for x in q.transfers}
    assert sent and sent <= {"llama-3.1-8b fp16", "llama-3.1-70b fp16"}


WRONG = [
    ({"models": []}, "at least one of models"),
    ({"models": [SMALL, SMALL]}, "each of models once"),
    ({"models": [SMALL, SMALL | {"name": "b"}]}, "each model at each precision once"),
    ({"models": [SMALL, {"model": "llama-3.3-70b"}]}, "quality of every one of models"),
    ({"model": "llama-3.1-8b"}, "either models, each with its precision, or model and precision"),
    ({"models": None, "model": "llama-3.1-8b"}, "models, each with its quality"),
    ({"models": [SMALL | {"model": "nonsense"}]}, "a model of the catalogue"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_mistakes_are_named(change, said):
    with pytest.raises(InputError, match=said):
        optmodels.solve(BOTH_MODELS | {"workloads": [CHAT | change]})


def test_a_floor_above_every_score_is_said_to_be_the_conflict():
    result = optmodels.solve(BOTH_MODELS | {"workloads": [CHAT | {"quality_at_least": 0.9}]})
    assert result.status == "infeasible"
    assert "quality of chat at least 0.9" in result.log["reason"]
