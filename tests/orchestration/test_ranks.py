"""Engines of several attention ranks: a level by hand, GPUs, plans, replays, what runs, exports, refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from orchestration_cases import agreeing, handful, levels, two_models

import optmodels
from formulations.orchestration.check import check
from formulations.orchestration.making import make_plan
from formulations.orchestration.methods.exact import exact, scheduled
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import build_tables
from formulations.orchestration.problem import Continuous
from formulations.orchestration.served import engines_of
from optmodels import formulation
from optmodels.engine.continuous import crowd_allowed, longest_wait
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.latency.memory import kv_tokens
from optmodels.latency.steps import Experts, StepCosts
from optmodels.latency.work import layer_work
from optmodels.loading import load
from optmodels.simulation.continuous import Arrivals, simulate
from optmodels.simulation.continuous import Engine as Simulated
from optmodels.targets.vllm import arguments
from optmodels.units import GIB

COSTS = StepCosts(
    0.010, prompt_step_s=0.001, prompt_token_s=20e-6, decode_request_s=100e-6, context_s=1e-8, mixed_context_s=1e-8,
    experts=Experts(0.002, 64, 6), prompt_expert_s=8e-6,
)  # fmt: skip
LIMITS = Continuous(max_num_seqs=64, max_num_batched_tokens=564, bursts=3.0)
PROMPT, OUTPUT, WEIGHT = np.array([200.0, 900.0]), np.array([101.0, 41.0]), np.array([0.75, 0.25])
LITE = {
    "serving": "continuous", "latency": {"model": "default"}, "models": [{"model": "deepseek-v2-lite"}],
    "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 4}]},
    "candidates": {"tp": [1, 2], "attention_ranks": [1, 2, 4], "batch": [4, 32]},
}  # fmt: skip


def requests(count=40, seed=0, span=6.0, factor=(2.0, 6.0)):
    rng = np.random.default_rng(seed)
    return {"rows": {
        "arrival_s": np.sort(rng.uniform(0, span, count)).tolist(),
        "prompt_tokens": rng.integers(50, 3000, count).tolist(), "output_tokens": rng.integers(20, 200, count).tolist(),
        "slo_factor": rng.uniform(*factor, count).tolist(),
    }}  # fmt: skip


def document(**changes):
    return two_models(1, **{"requests": requests(), "bins": {"lengths": 1, "slo": 2, "seconds": 1.0}} | LITE | changes)


def engine(ranks, batch=8, kv_tokens=20_000.0, waits=2.0):
    limits = LIMITS.model_copy(update={"waits": waits})
    found = levels(COSTS, limits, PROMPT, OUTPUT, [batch], ranks * kv_tokens, (2.0, 3.0), ranks, WEIGHT, 1.5)
    return next(e for e in found if not e.place_wait_s)


def test_a_level_has_requests_and_waits_of_each_rank():
    """Four ranks run four times as many; a prompt keeps the others of its rank waiting four of its turns."""
    e = engine(4)
    p, steps = e.points, e.points.steps[0, 0]
    assert e.step_s == pytest.approx(e.fixed_s + 4 * 8 * float(WEIGHT @ p.work_s[0, 0] / (WEIGHT @ steps)))
    turn = float(WEIGHT @ p.turn_s[0, 0])
    assert e.wait_s * longest_wait(0.8, math.inf) == pytest.approx(2 * 4 * turn)
    assert e.part == pytest.approx(min(1.0, 4 * 8 / (float(WEIGHT @ steps) * e.step_s) / 2.0))
    assert e.burst_s == pytest.approx(e.part * 2 * turn)
    assert e.most_running == pytest.approx(4 * crowd_allowed(np.array(64.0), np.array(1 - e.fixed_s / e.step_s)))


def test_one_rank_says_nothing_of_ranks():
    one, none = (build_tables(load(document(candidates=c))) for c in (
        {"tp": [1, 2], "attention_ranks": [1], "batch": [4]}, {"tp": [1, 2], "batch": [4]}))  # fmt: skip
    for name in ("service_s", "first_s", "share", "wait_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(none, name))
    plan = scheduled(one, np.eye(len(one.configurations), dtype=int)[0])
    assert "attention_ranks" not in str(make_plan(one, plan.assignment).model_dump(mode="json"))


def test_an_engine_that_is_filled_to_its_level_keeps_to_it():
    """Poisson arrivals at the level's rate on the step simulator: the mean step is no longer, nor the first tokens."""
    e, seconds = engine(4, batch=24, kv_tokens=200_000.0), 400.0
    rng = np.random.default_rng(3)
    n = rng.poisson(seconds / e.mean_load.max())
    kind = rng.choice(2, n, p=WEIGHT)
    arrivals = Arrivals.of(np.sort(rng.uniform(0, seconds, n)), PROMPT[kind].astype(int), OUTPUT[kind].astype(int))
    seen = simulate(arrivals, [Simulated(COSTS, 200_000, 64, 564, ranks=4)], "shortest_queue")
    assert seen.busy_s[0] / seen.steps[0] <= e.step_s
    assert seen.ttft_s.mean() <= (WEIGHT @ e.sees.first_s) / e.of.slower
    assert np.nanmean(seen.tpot_s) <= e.token_s
    assert np.mean(seen.finish_s - arrivals.arrival_s <= e.sees.e2e_s[kind]) > 0.8


@pytest.fixture(scope="module")
def solved():
    """Ranks alone, so that the plan has some."""
    choose = {"tp": [1, 2], "attention_ranks": [2, 4], "batch": [4, 16]}
    result = optmodels.solve(document(candidates=choose), time_limit=20)
    assert result.check.ok
    return result


def test_configurations_have_the_gpus_costs_and_caches_of_their_ranks():
    case = load(document()).resolve()
    t = build_tables(case.problem)
    kinds = {(x.tp, x.ranks) for x in t.configurations}
    assert kinds == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)}
    assert {(d.tp, d.ranks, d.reason) for d in t.discarded} == {
        (2, 4, "8 GPUs must share a server and the largest has 4 that work")
    }
    work = layer_work(case.architectures[0], "fp16", "fp16")
    shortest = float((case.trace.prompt_tokens + case.trace.output_tokens).min())
    for x in t.configurations:
        assert (x.gpus, x.unit, x.units) == (x.tp * x.ranks, x.tp * x.ranks, 1)
        assert x.slots == len(x.tokens_per_s) == x.batch * x.ranks
        whole = kv_tokens(
            work, case.vram_gib[0] * GIB, x.tp, attention_ranks=x.ranks, utilization=0.9, chunk_tokens=8192,
            max_requests=256, request_tokens=shortest,
        )  # fmt: skip
        assert x.engine.kv_tokens == pytest.approx(whole)


def test_models_without_routed_experts_have_one_rank():
    t = build_tables(load(document(
        models=[{"model": "deepseek-v2-lite"}, {"model": "llama-3-8b", "candidates": {"tp": [1], "batch": [8],
                                                                                   "attention_ranks": [2, 4]}}],
        requests={"rows": requests()["rows"] | {"model": ["deepseek-v2-lite", "llama-3-8b"] * 20}},
    )))  # fmt: skip
    assert {x.ranks for x in t.configurations if x.model == 1} == {1}


def test_the_best_of_every_choice_of_instances():
    """Counts of all configurations that fit four GPUs, each scheduled exactly."""
    changes = {"candidates": {"tp": [1], "attention_ranks": [1, 2, 4], "batch": [8]}, "engine": {"waits": 1.0}}
    load_ = requests(60, 1, 3.0, (1.0, 3.0))
    problem = load(document(requests=load_, **changes))
    t = build_tables(problem)
    assert t.gpus_of.tolist() == [1, 2, 4]
    best = max(
        scheduled(t, np.array(counts)).objective
        for counts in itertools.product(range(5), range(3), range(2)) if np.array(counts) @ t.gpus_of <= 4
    )  # fmt: skip
    found = exact(problem, t, Options(gap=0, time_limit=60))
    assert found.status == "optimal"
    assert found.plan.score.total == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_literal_and_column_form_agree(seed):
    changes = LITE | {
        "models": [{"model": "deepseek-v2-lite", "t_slice_s": 0.01}],
        "candidates": {"tp": [1], "attention_ranks": [2, 4], "batch": [1, 4]},
    }
    t, column = agreeing(load(handful(seed=seed) | changes))
    assert {x.ranks for x in t.configurations} == {2, 4}
    assert column.plan.prediction.in_time > 0


def test_ranks_share_a_server():
    """Of two servers with three working GPUs each four ranks fit neither; two fit once in each."""
    servers = {"servers": [{"server": "s", "count": 2, "gpu": "h100", "gpus": 4}],
               "failed_gpus": {"s-1": [0], "s-2": [3]}}  # fmt: skip
    choose = {"tp": [1], "attention_ranks": [2, 4], "batch": [16]}
    result = optmodels.solve(document(cluster=servers, candidates=choose, models=[
        {"model": "deepseek-v2-lite", "minimum_instances": 2}]), time_limit=20)  # fmt: skip
    assert result.check.ok
    assert [c["attention_ranks"] for c in result.plan["configurations"]] == [2]
    assert {tuple(i["placement"]) for i in result.plan["instances"]} == {("s-1",), ("s-2",)}
    assert all(len(gpus) == 2 for i in result.plan["instances"] for gpus in i["placement"].values())


def test_a_plan_states_its_ranks_and_the_check_recomputes_them(solved):
    problem, lines = load(solved.problem), solved.plan["configurations"]
    for j, line in enumerate(lines):
        assert line["attention_ranks"] in (2, 4)
        assert line["gpus"] == line["instances"] * line["tp"] * line["attention_ranks"]
        for wrong in (None, 3, 8):
            tampered = [dict(x) for x in lines]
            tampered[j]["attention_ranks"] = wrong
            assert not check(problem, solved.plan | {"configurations": tampered}).ok


def test_replays_are_of_all_ranks(solved):
    plan = solved.plan
    p = OrchestrationPlan.model_validate(plan)
    engines, _ = engines_of(build_tables(load(solved.problem)), p, 1.0)
    for e, instance in zip(engines, p.instances, strict=True):
        line = p.configurations[instance.configuration]
        assert e.ranks == line.attention_ranks
        assert e.kv_tokens == int(line.engine.kv_tokens / e.ranks)
        assert e.max_num_seqs == line.engine.max_num_seqs
    seen = solved.report["replay"]
    assert max(x["attainment"] for x in seen["policies"].values()) >= plan["prediction"]["attainment"] - 0.05


@pytest.mark.parametrize("method", [m for m in formulation.get("orchestration").methods if m != "exact"])
def test_every_method_plans_with_ranks(method, solved):
    made = optmodels.solve(solved.problem, method, time_limit=20)
    assert made.plan is None or (made.check.ok and all(c["attention_ranks"] for c in made.plan["configurations"]))


def test_exports_say_how_many_ranks(solved):
    found = formulation.get("orchestration").deployments(load(solved.problem), solved.plan)
    lines = solved.plan["configurations"]
    assert {(d.tensor_parallel, d.attention_ranks, d.max_num_seqs) for d in found.deployments} == {
        (c["tp"], c["attention_ranks"], c["engine"]["max_num_seqs"]) for c in lines
    }
    for d in found.deployments:
        told = arguments(d)
        assert told["data-parallel-size"] == d.attention_ranks and told["enable-expert-parallel"]
        assert all(len(gpus) == d.tensor_parallel * d.attention_ranks for gpus in d.devices)


def test_what_runs_has_ranks_of_its_own():
    """The same degrees with another number of ranks are another configuration; where it stands it may stay."""
    runs = {"model": "deepseek-v2-lite", "tp": 1, "attention_ranks": 2, "batch": 16, "placement": {"s": [1, 3]}}
    choose = {"tp": [1], "attention_ranks": [1, 2], "batch": [16]}
    change = {"running": [runs], "score_per_start": 0.3, "score_per_stop": 0.3}
    result = optmodels.solve(document(candidates=choose, change=change), time_limit=20)
    assert result.check.ok
    (kept,) = [i for i in result.plan["instances"] if i["kept"]]
    assert kept["placement"] == {"s": [1, 3]}
    assert result.plan["configurations"][kept["configuration"]]["attention_ranks"] == 2
    wrong = change | {"running": [runs | {"attention_ranks": 4}]}
    with pytest.raises(InputError, match=r"running\[0\].placement.*4 GPUs: tp·pp·dp·attention_ranks"):
        load(document(change=wrong)).resolve()


def test_what_runs_is_evaluated_with_its_ranks():
    today = {"schema": 1, "dispatcher": "least_kv", "deployments": [
        {"model": "deepseek-v2-lite", "instances": 2, "tp": 1, "attention_ranks": 2}]}  # fmt: skip
    found = optmodels.evaluate(today, problem=document(), time_limit=60)
    (line,) = found["report"]["deployments"]
    assert (line["gpus"], line["attention_ranks"], line["engines"]) == (4, 2, 2)


REFUSED = {
    "slots": ({"serving": "slots"}, "serving: slots"),
    "stages": ({"deployment": {"stages": ["both", "prefill", "decode"], "link": {"net_gbps": 100}}}, "decode apart"),
    "hits": ({"requests": {"rows": requests(2)["rows"] | {
        "prefix_blocks": [[1], [1, 2]], "prefix_block_tokens": 16}}}, "hits of prefix caches"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_do_not_go_with_is_refused_with_its_path(name):
    changes, words = REFUSED[name]
    with pytest.raises(InputError, match=rf"(?s)candidates\.attention_ranks.*{words}"):
        load(document(**changes)).resolve()
    own = {"models": [{"model": "deepseek-v2-lite", "candidates": LITE["candidates"]}], "candidates": {"tp": [1]}}
    with pytest.raises(InputError, match=rf"(?s)models\[0\]\.candidates\.attention_ranks.*{words}"):
        load(document(**changes | own)).resolve()
    one = {"candidates": {"tp": [1], "attention_ranks": [1], "batch": [4]}}
    load(document(**changes | one)).resolve()


def test_prefixes_that_are_not_counted_are_no_hindrance():
    shared = requests(2)["rows"] | {"prefix_blocks": [[1], [1, 2]], "prefix_block_tokens": 16}
    result = optmodels.solve(document(requests={"rows": shared}, prefix_cache={"hits": "none"}), time_limit=20)
    assert result.check.ok


def test_ranks_are_listed_once():
    with pytest.raises(InputError, match="each number of attention ranks once"):
        load(document(candidates={"attention_ranks": [2, 2]}))


def test_certified_plans_have_ranks():
    """Their promises are those of replays, and the check knows what was cut of which engines."""
    choose = {"tp": [1], "attention_ranks": [2, 4], "batch": [4, 16]}
    result = optmodels.solve(document(candidates=choose, certify="replay"), time_limit=60)
    assert result.check.ok
    assert result.plan["certification"]["status"] == "certified"
