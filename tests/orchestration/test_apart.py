"""Prefill and decode apart: by brute force, by hand, against plans without stages, in the check, replay and export."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from orchestration_cases import two_models
from tampering import replaced

import optmodels
from formulations.orchestration.certify import cut, loosened
from formulations.orchestration.check import check
from formulations.orchestration.deploy import deployments
from formulations.orchestration.engines import TRANSFER
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.model import dispatch
from formulations.orchestration.plan import Dispatcher, ModelCut, OrchestrationPlan
from formulations.orchestration.points import build_tables
from formulations.orchestration.pruning import together
from formulations.orchestration.replay import cluster_of, replay, requests_of, sent, shares_of
from formulations.orchestration.show import summary
from optmodels.engine.continuous import RUNNING
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.simulation.options import ReplayOptions

GB = 131072e-9  # of KV a token of llama-3.1-8b: 32 layers, 8 heads of 128, keys and values in two bytes


def document(stages=("both", "prefill", "decode"), net_gbps=400, **changes):
    """Long prompts and a deadline that steps beside others' prompts hardly meet; two GPU types."""
    link = {"net_gbps": net_gbps, "latency_s": 0.01, "most_used": 0.5}
    return two_models(**{
        "cluster": {"servers": [{"server": s, "gpu": gpu, "gpus": 2} for s, gpu in (("s", "h100"), ("a", "a100-80g"))]},
        "models": [{"model": "llama-3.1-8b"}], "candidates": {"tp": [1], "batch": [1, 4]},
        "latency": {"model": "roofline"}, "serving": "continuous",
        "deployment": {"stages": list(stages), "link": link},
        "requests": {"duration_s": 20, "classes": [
            {"model": "llama-3.1-8b", "prompt_tokens": 3000, "output_tokens": 200, "slo_factor": 1.7,
             "requests_per_s": 9},
            {"model": "llama-3.1-8b", "prompt_tokens": 300, "output_tokens": 100, "slo_factor": 1.5,
             "requests_per_s": 4}]},
        "bins": {"seconds": 5.0},
    } | changes)  # fmt: skip


def solved(data, **options):
    problem = load(data)
    t = build_tables(problem)
    return problem, t, exact(problem, t, Options(**options))


@pytest.fixture(scope="module")
def apart():
    return solved(document(("prefill", "decode")))


@pytest.mark.parametrize("changes", [
    {"candidates": {"tp": [1], "batch": [1]}}, {"stages": ("prefill", "decode")},
    {"stages": ("prefill", "decode"), "net_gbps": 30, "slo": {"ttft_s": 0.9}},
], ids=str)  # fmt: skip
def test_equals_every_choice_of_instances_tried(changes):
    """The best schedule of all numbers of instances that fit the four GPUs."""
    _, t, found = solved(document(**changes))
    assert found.status == "optimal"
    of = [[c for c in range(len(t.configurations)) if t.gpu_of[c] == g] for g in range(2)]
    every = [[picked for n in range(3) for picked in itertools.combinations_with_replacement(mine, n)] for mine in of]
    best = -np.inf
    for chosen in itertools.product(*every):
        counts = np.bincount(np.array([c for part in chosen for c in part], dtype=np.int64),
                             minlength=len(t.configurations))  # fmt: skip
        if counts.sum() < 4 or not t.open(counts).any():
            continue  # fewer serve no more
        flow, report = dispatch(t, counts)
        if flow is not None and report.objective is not None:
            best = max(best, report.objective)
    assert found.plan.score.total == pytest.approx(best, abs=1e-6)


def test_stages_both_is_the_instance_without_the_key():
    plain = document(("both",))
    (_, t, found), (_, u, other) = solved(plain), solved({k: v for k, v in plain.items() if k != "deployment"})
    for name in ("service_s", "first_s", "share", "wait_s"):
        np.testing.assert_array_equal(getattr(t, name), getattr(u, name))
    assert found.plan == other.plan
    assert found.plan.apart == [] == found.plan.shares.decode
    # Among configurations that do one stage, those that do both have what they had.
    v = together(build_tables(load(document())))
    np.testing.assert_array_equal(v.wait_s, t.wait_s)
    assert len(v.apart) == 0


def test_a_route_by_hand(apart):
    """At 400 Gbit/s for two GPUs, half of it planned, one sends 3,000 tokens in 31 ms and receives them so."""
    _, t, _ = apart
    r = next(r for r, (a, b) in enumerate(t.legs.tolist()) if a != b and t.admissible[0, r])
    a, b = (t.configurations[c].engine for c in t.legs[r])
    moved = 3000 * GB / (25 * 0.5)
    alone = a.points.whole(0.8, np.array([[a.wait_s]]), a.of.slower)
    assert a.sees.rest_s[0] == pytest.approx(moved + 0.01)
    assert t.first_s[0, r] == pytest.approx(float(alone.first_s[0, 0, 0]) + moved + 0.01)
    joins = moved + b.step_s + b.of.costs.request_s
    assert b.sees.first_s[0] == pytest.approx(joins)
    assert t.service_s[0, r] == pytest.approx(t.first_s[0, r] + joins + b.sees.rest_s[0])
    due = t.classes.deadline_s[0]
    assert t.wait_s[0, r] == pytest.approx(due - a.sees.e2e_s[0] - b.sees.e2e_s[0])
    assert a.sees.e2e_s[0] == pytest.approx(float(alone.ttft_s[0, 0, 0]) + moved + 0.01)
    (_, begun), (_, rest) = t.uses(0, r)
    # Over all its bins each takes the network for 3,000 tokens of the planned half, and a slot as the engine's theory.
    for e, shares in ((a, begun), (b, rest)):
        assert shares[TRANSFER].sum() * t.bin_s == pytest.approx(3000 * GB / (25 * 0.5))
        assert shares[RUNNING].sum() * t.bin_s == pytest.approx(e.load[RUNNING, 0])
    assert not rest[3:6].any()  # nothing of prompts


@pytest.mark.parametrize(("speculation", "times"), [
    ({"drafts": 2, "acceptance": 0.6, "head": 0.05}, 1.05),
    ({"drafts": 3, "acceptance": 0.7, "draft": "llama-3.2-3b"}, 1 + 28 / 32),  # of 28 layers with heads as wide
])  # fmt: skip
def test_what_drafts_goes_with_the_cache(speculation, times):
    problem, _, found = solved(document(("prefill", "decode"), engine={"speculation": [speculation]}))
    plan = found.plan.model_dump(mode="json")
    assert check(problem, plan).ok
    line = plan["apart"][0]
    prompt = (3000, 300)[line["request_class"]]
    assert line["kv_gb"] == pytest.approx(line["requests"] * prompt * GB * times)


def test_the_network_limits_what_is_sent(apart):
    """A network of 3 Gbit/s lets at most its planned half of caches a second through, which binds."""
    *_, found = solved(
        document(
            ("prefill", "decode"),
            net_gbps=3,
            slo={},
            requests={
                "duration_s": 20,
                "classes": [
                    {
                        "model": "llama-3.1-8b",
                        "prompt_tokens": 3000,
                        "output_tokens": 200,
                        "slo_factor": 30,
                        "requests_per_s": 9,
                    }
                ],
            },
        )
    )
    plan = found.plan
    prefills = sum(c.instances for c in plan.configurations if c.stage == "prefill")
    sent = sum(line.kv_gb for line in plan.apart)
    assert sent > 0
    links = {c.stage: c.link for c in plan.configurations}
    assert links["prefill"].net_gbps == 1.5 and links["prefill"].planned_gbps == 0.75
    assert links["prefill"].busiest_gbps == pytest.approx(0.75, rel=1e-6)  # it binds
    assert 0 < links["decode"].busiest_gbps <= 0.75 * (1 + 1e-6)
    assert sent <= prefills * 3 / 8 / 2 * 0.5 * (20 + 2 * 5)  # each of two GPUs has half; the last bins' go on later
    more = apart[2].plan
    assert more.prediction.in_time > plan.prediction.in_time


def test_the_check_recomputes_stages(apart):
    problem, _, found = apart
    plan = found.plan.model_dump(mode="json")
    assert check(problem, plan).ok
    assert {c["stage"] for c in plan["configurations"]} == {"prefill", "decode"}
    assert plan["apart"][0]["kv_gb"] == pytest.approx(plan["apart"][0]["requests"] * 3000 * GB)
    stated = plan["apart"][0]
    for path, value in (
        (("apart", 0, "ttft_s"), stated["ttft_s"] * 0.9), (("apart", 0, "tpot_s"), stated["tpot_s"] * 1.1),
        (("apart", 0, "kv_gb"), stated["kv_gb"] * 1.1), (("apart", 0, "requests"), stated["requests"] * 0.9),
        (("apart",), []), (("shares", "decode"), []), (("shares", "decode"), plan["shares"]["configuration"]),
        (("configurations", 0, "stage"), "both"), (("configurations", 0, "link"), None),
        (("configurations", 0, "link", "busiest_gbps"), plan["configurations"][0]["link"]["busiest_gbps"] * 1.1),
        (("shares", "configuration"), plan["shares"]["decode"]),
    ):  # fmt: skip
        assert not check(problem, replaced(plan, path, value)).ok, path


def test_replayed_on_prefill_and_decode_engines(apart):
    """Who is alone waits for nobody: first token after its prompt's steps and the cache, the last one decodes later."""
    problem, t, found = apart
    plan = found.plan
    seen = replay(problem, plan.model_dump(mode="json"), tables=t)
    assert seen["policies"][seen["policy"]]["attainment"] >= plan.prediction.attainment - 0.02
    requests = requests_of(t, None).take(np.arange(len(requests_of(t, None))) < 1)
    for policy in ("planned_shares", "earliest_finish", "least_kv", "shortest_queue"):
        way = Dispatcher(policy=policy, queue="deadline")
        out = sent(t, plan, requests, cluster_of(t, plan), shares_of(t, plan), way, ReplayOptions())
        assert out.instance[0] >= 0
        stage = plan.configurations[plan.instances[out.instance[0]].configuration].stage
        assert stage == "prefill"
        prompt, output = float(requests.prompt_tokens[0]), float(requests.output_tokens[0])
        moved = prompt * GB / (25 * 0.5)
        first = float(out.first_token_s[0] - requests.arrival_s[0])
        took = float(out.finish_s[0] - out.first_token_s[0])
        engines = [t.configurations[c].engine.of.costs for c in range(len(t.configurations))]
        least = min(c.fixed_s + c.prompt_token_s * prompt for c in engines)
        assert least + moved + 0.01 <= first <= t.first_s[0].max()
        fastest = min(c.fixed_s + c.decode_request_s for c in engines)
        assert moved + (output - 1) * fastest <= took


def test_exported_with_their_roles(apart):
    problem, _, found = apart
    made = deployments(problem, found.plan.model_dump(mode="json"))
    assert {d.stage for d in made.deployments} == {"prefill", "decode"}
    assert all(d.notes for d in made.deployments)


@pytest.mark.parametrize(("changes", "path"), [
    ({"serving": "slots", "engine": None}, "deployment.stages"),
    ({"deployment": {"stages": ["prefill", "decode"]}}, "deployment.link.net_gbps"),
    ({"deployment": {"stages": ["prefill", "decode"], "link": {"net_gbps": 100}},
      "change": {"running": [{"model": "llama-3.1-8b", "gpu": "h100", "tp": 1, "batch": 1, "count": 1}]}},
     "change.running[0].stage"),
])  # fmt: skip
def test_what_is_refused_says_where_and_why(changes, path):
    with pytest.raises(InputError) as error:
        build_tables(load(document(**changes)))
    assert [m.path for m in error.value.mistakes] == [path]


def test_what_runs_may_do_one_stage():
    """Of a plan whose instances run, with places, nothing changes; one that does another stage is a change."""
    price = {"score_per_start": 0.02, "score_per_stop": 0.01}

    def running(stage_of):
        return {"running": [
            {"model": c.model, "gpu": c.gpu, "tp": c.tp, "pp": c.pp, "dp": c.dp, "batch": c.batch,
             "stage": stage_of(i, c.stage), "placement": {s: list(g) for s, g in i.placement.items()}}
            for i in plan.instances for c in [plan.configurations[i.configuration]]]}  # fmt: skip

    stages, engine = ("prefill", "decode"), {"waits": 4.0}
    *_, found = solved(document(stages, engine=engine))
    plan = found.plan
    problem, _, again = solved(document(stages, engine=engine, change=price | running(lambda _, stage: stage)))
    assert check(problem, again.plan.model_dump(mode="json")).ok
    assert (again.plan.started, again.plan.stopped, again.plan.moved) == (0, 0, 0)
    assert again.plan.score.total == pytest.approx(plan.score.total)
    first = plan.instances[0].name
    other = {"prefill": "decode", "decode": "prefill"}
    problem, _, changed = solved(document(stages, engine=engine, change=price | running(
        lambda i, stage: other[stage] if i.name == first else stage)))  # fmt: skip
    assert check(problem, changed.plan.model_dump(mode="json")).ok
    assert changed.plan.started == changed.plan.stopped == 1
    assert changed.plan.score.total == pytest.approx(plan.score.total - 0.03)


def test_promises_of_stages_are_certified_in_replay():
    """Replayed through both stages; a cut of a model is one of all its engines and ways, in tables and check."""
    rules = {"certify": "replay", "certification": {"rounds": 1, "copies": 12}}
    problem = load(document(**rules))
    found = optmodels.solve(problem)
    assert found.check.ok, found.check.violations
    plan = OrchestrationPlan.model_validate(found.plan)
    assert plan.certification.status == "certified" and plan.apart
    assert plan.certification.planned.replayed >= plan.prediction.attainment
    t = build_tables(problem)
    less = cut(t, [ModelCut(model="llama-3.1-8b", keep=0.8, in_time=0.5)])
    np.testing.assert_allclose(less.share, 0.5 * t.share)
    assert len(t.apart)
    loose = loosened(t)
    stages = [[u.configurations[c].stage for c in u.apart.ravel()] for u in (t, loose)]
    assert stages[1] and set(stages[1]) == set(stages[0])
    cuts = {"model": "llama-3.1-8b", "keep": 0.9, "in_time": 1.0}
    data = found.plan | {"certification": found.plan["certification"] | {"cuts": [cuts]}}
    said = [v.requirement for v in check(problem, data).violations]
    assert any("certification" in x for x in said) and any("busiest bin" in x for x in said), said


def test_no_plan_apart_is_better_by_a_proof():
    """Through a network that takes a minute for a cache nothing goes."""
    result = optmodels.solve(document(net_gbps=0.05))
    assert result.status == "optimal" and result.check.ok and not result.plan["apart"]
    assert result.log["stages"]["none_is_better"] and result.log["stages"]["without"]["objective"] == result.objective
    assert "no plan with disaggregated prefill and decode is better" in "".join(map(str, summary(result.model_dump())))


def test_heuristics_without_stages_say_so(apart):
    problem, *_ = apart
    with pytest.raises(InputError, match="both among them"):
        optmodels.solve(problem, "greedy_dp")


def test_instances_of_several_stages_have_names_of_their_own():
    result = optmodels.solve(document())
    assert result.check.ok and result.status == "optimal"
    assert {c["stage"] for c in result.plan["configurations"]} >= {"prefill", "decode"}
    stages = result.log["stages"]
    alone = exact(load(document()), together(build_tables(load(document()))), Options())
    assert stages["used"] and stages["without"]["objective"] == pytest.approx(alone.plan.score.total)
    assert stages["without"]["bound"] < result.objective
    said = "\n".join(str(line) for line in summary(result.model_dump()))
    assert f"without disaggregated prefill and decode: attainment {stages['without']['attainment']:.2%}" in said
    # What knows no stages has no proof where they are allowed.
    found = optmodels.solve(document(), "greedy_dp")
    assert found.status == "feasible" and found.bound is None and found.objective <= result.objective


def test_the_network_of_each_of_several_engines_of_an_instance():
    """5 prompts/s of 1,000 tokens through one instance of two engines: each sends half."""
    data = document(("prefill", "decode")) | {
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 4}]},
        "candidates": {"tp": [1], "batch": [4], "dp": [2]},
        "requests": {"duration_s": 20, "classes": [
            {"model": "llama-3.1-8b", "prompt_tokens": 1000, "output_tokens": 100, "slo_factor": 3,
             "requests_per_s": 5}]},
    }  # fmt: skip
    _, _, outcome = solved(data)
    for line in outcome.plan.configurations:
        assert line.link.busiest_gbps == pytest.approx(5 * 1000 * GB * 8 / 2, rel=1e-4)
