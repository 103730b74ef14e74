"""Engines of several ranks: rows by hand, the checker's own arithmetic, plans, tampering, refusals, exports."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from references import continuous_engine as reference
from scipy.optimize import brentq

import optmodels
from formulations.fleet.check import check
from formulations.fleet.deploy import deployments
from formulations.fleet.engines import EngineKind, costs_of
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import LEVEL, build_tables
from formulations.fleet.predicted import predicted
from formulations.fleet.replay import replay
from formulations.fleet.show import summary
from optmodels.engine.continuous import (
    CHUNKS,
    MARGIN,
    MEMORY,
    RUNNING,
    TIME,
    TOKENS,
    Classes,
    EngineLimits,
    crowd_allowed,
    crowd_quantile,
    operating_points,
)
from optmodels.errors import InputError
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import deployment, resolve
from optmodels.latency.steps import Experts, StepCosts
from optmodels.latency.work import layer_work
from optmodels.plans.engines import Request, at_level, capacities, latencies
from optmodels.simulation.continuous import Arrivals, Engine
from optmodels.simulation.options import ReplayOptions
from optmodels.targets import of_plan
from optmodels.targets.vllm import arguments
from optmodels.traces.types import Trace
from optmodels.units import GIB

PLAIN = StepCosts(0.01, prompt_token_s=3e-5, decode_request_s=3e-5, context_s=8e-8, mixed_context_s=8e-8)
EVEN = replace(PLAIN, prompt_expert_s=3e-5)  # a prompt's work is the experts' alone
LONG = {"input_tokens": 2000, "output_tokens": 1000, "requests_per_s": 20.0}


def instance(model="deepseek-r1", weights="fp8_block", ranks=(1, 2, 4, 8), machine="p5en.48xlarge", **changes):
    """One workload on machines of 8 GPUs."""
    return {
        "formulation": "fleet", "schema": 1, "name": "ranks", "serving": "continuous",
        "workloads": [{"name": "chat", "model": model, "precision": {"weights": weights}, "buckets": [LONG],
                       "slo": {"ttft_s": {"at_most": 5.0, "percentile": 0.95}, "tpot_s": 0.1}}],
        "pool": {"catalog": "aws", "include": [machine]}, "markets": {"main": ["on_demand"]},
        "strategies": {"attention_ranks": list(ranks)},
    } | changes  # fmt: skip


@pytest.fixture(scope="module")
def solved():
    result = optmodels.solve(instance())
    assert result.status == "optimal"
    assert result.check.ok
    return result


def lines(plan):
    return plan["periods"][0]["deployments"]


def test_rows_of_two_ranks_by_hand():
    """Each rank has the slots, the prompt tokens and half of the cache of one, and half of the requests."""
    classes, limits = Classes.of([300.0], [101.0]), EngineLimits(max_num_seqs=64, max_num_batched_tokens=364)
    step, kv, rho, room = 0.02, 50_000.0, 0.5, 300.0
    one, two = (
        operating_points([EVEN], np.array([kv]), limits, classes, np.array([[step]]), attention_ranks=d)
        for d in (1, np.array([2]))
    )
    work = 300 * 3e-5 + 100 * 3e-5 + 8e-8 * (100 * 300 + 99 * 100 / 2)  # of which prefill 9 ms, decodes 5.796 ms
    assert two.load[TIME, 0, 0, 0] == one.load[TIME, 0, 0, 0] == pytest.approx(work / rho)
    crowd = float(crowd_allowed(np.array(64.0), np.array(rho)))
    assert two.load[RUNNING, 0, 0, 0] == pytest.approx(101 * step / (2 * crowd))
    assert two.load[CHUNKS, 0, 0, 0] == 0  # no cost of a step depends on prompts
    assert two.load[TOKENS, 0, 0, 0] == pytest.approx(300 * step / (0.9 * 2 * room))
    held = 300.0 + np.array([0, *range(1, 101)])
    size = (held**2).sum() / held.sum()
    tokens = size * float(crowd_allowed(np.array(kv / 2 / size), np.array(rho)))  # of a rank
    assert step * held.sum() / two.load[MEMORY, 0, 0, 0] == pytest.approx(2 * tokens, rel=1e-9)
    assert two.load[MEMORY, 0, 0, 0] > one.load[MEMORY, 0, 0, 0]  # two halves of a cache hold less than the whole
    # A step has room for 2·300 prompt tokens; while prompts wait it lasts 10 ms, decodes' 3.917 ms and the prompts'.
    decodes = rho * step * (work - 0.009) / work
    s = 300 / (2 * room) * (0.01 + decodes) + 0.009
    assert two.turn_s[0, 0, 0] == pytest.approx(s, rel=1e-9)
    assert s == pytest.approx(0.0159586, rel=1e-4)
    # M/G/1 of a rank: half of the arrivals, each of twice s.
    omega, v = 0.1, 0.009 / work
    mean_turn = 0.5 * (0.01 + step * rho * (1 - v) ** 2) + 0.009 + (work - 0.009) * rho * v**2 / (0.009 / (0.5 * step))
    share = two.waiting(np.array([[[omega]]]), np.inf)[0, 0, 0, 0]
    assert share == pytest.approx(0.5 * (2 * s) ** 2 / (2 * omega) + mean_turn, rel=1e-9)
    assert np.isfinite(two.waiting(np.array([[[2.01 * s / 4]]]), 4.0)).all()
    assert np.isinf(two.waiting(np.array([[[1.99 * s / 4]]]), 4.0)).all()  # a prompt keeps its rank for 2·s


def test_latencies_of_two_ranks_by_hand():
    """A prompt's own step carries the other rank's prompts; quantiles of TPOT count up to the slots of both."""
    classes, limits = Classes.of([300.0], [101.0]), EngineLimits(max_num_seqs=64, max_num_batched_tokens=364)
    one, two = (
        operating_points([EVEN], np.array([1e9]), limits, classes, np.array([[0.02]]), attention_ranks=d)
        for d in (1, 2)
    )
    prefilling = 0.5 * 0.009 / float(one.work_s[0, 0, 0])
    for quantile, own in ((0.9, 1.2), (0.95, 1.15), (0.99, 0.97)):
        (first, per), (other, same) = (p.ttft_s(quantile, 4.0) for p in (one, two))
        assert per == same
        assert (other - first)[0, 0, 0] == pytest.approx(own * 0.5 * prefilling * 0.02, rel=1e-9)
    np.testing.assert_array_equal(two.ttft_s(None, 4.0)[0], one.ttft_s(None, 4.0)[0])
    np.testing.assert_array_equal(two.tpot_s(None), one.tpot_s(None))
    full = (
        operating_points([EVEN], np.array([1e9]), limits, classes, np.array([[0.1]]), attention_ranks=d)
        for d in (1, 2, 1000)
    )
    at = [p.tpot_s(0.99)[0, 0, 0] - p.left_s[0, 0, 0] for p in full]
    c = float(one.crowd_s[0, 0, 0])
    assert at[:2] == pytest.approx([0.01 + MARGIN * c * 64, 0.01 + MARGIN * c * 128])
    p = operating_points([EVEN], np.array([1e9]), limits, classes, np.array([[0.1]]))
    crowd = crowd_quantile(0.99, np.array(0.9 * 0.01 / c), np.array(0.9), p.bursts[0, 0, 0] / c**2)
    assert at[2] == pytest.approx(0.01 + MARGIN * c * float(crowd))


def test_the_busiest_rank_of_four_by_hand():
    """Of 9 ms of a prompt 6 ms are outside the experts: alone in its step it takes 3 × 6 ms more."""
    costs, classes, step = replace(PLAIN, prompt_expert_s=1e-5), Classes.of([300.0], [101.0]), 0.02
    p = operating_points([costs], np.array([1e9]), EngineLimits(), classes, np.array([[step]]), attention_ranks=4)
    work = 0.009 + 100 * 3e-5 + 8e-8 * (100 * 300 + 99 * 100 / 2)
    n = brentq(lambda n: n * work + 0.018 * (1 - math.exp(-n)) - 0.01, 0, 10)
    paid, rest = 0.018 * math.exp(-n), 0.018 * (1 - (1 + n) * math.exp(-n))
    assert p.fixed_s[0, 0] == pytest.approx(0.01 + rest, rel=1e-9)
    assert p.work_s[0, 0, 0] == pytest.approx(work + paid, rel=1e-9)
    assert p.prefill_s[0, 0, 0] == pytest.approx(0.009 + 0.018 - rest, rel=1e-9)
    # At full load a step lasts what n prompts in it take: the tangent is the curve there.
    assert p.load[TIME, 0, 0, 0] * n / step == pytest.approx(1.0, rel=1e-9)
    assert p.fixed_s[0, 0] + n * p.work_s[0, 0, 0] == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("stage", ["both", "prefill"])
def test_steps_never_take_longer_for_their_longest_prompt_than_the_rows_say(stage):
    """Whatever the mixture: chunks by chance, each the longest where there is no longer one."""
    rng = np.random.default_rng(4)
    costs = replace(PLAIN, prompt_pair_s=2e-9, prompt_expert_s=1e-5, prompt_step_s=0.003)
    inputs, outputs, ranks = np.array([200.0, 1500.0, 4000.0]), np.array([60.0, 20.0, 80.0]), 4
    classes, limits = Classes.of(inputs, outputs, weight=np.array([0.6, 0.3, 0.1])), EngineLimits()
    step = np.array([[0.03, 0.1, 0.4]])
    p = operating_points([costs], np.array([1e9]), limits, classes, step, stage, attention_ranks=ranks)
    own = (3e-5 - 1e-5) * inputs + 2e-9 * inputs**2 / 2
    even = own + 1e-5 * inputs
    if stage == "both":
        even += 3e-5 * (outputs - 1) + 8e-8 * ((outputs - 1) * inputs + (outputs - 1) * (outputs - 2) / 2)
    for level in range(3):
        for mixture in rng.dirichlet(np.full(3, 0.5), 5):
            n = mixture * step[0, level] / (p.load[TIME, 0, level] @ mixture)  # requests a step at the row's edge
            none = np.exp(-n)  # of a class: inputs grow, so that the longest is the last that there is
            longest = (ranks - 1) * sum(own[i] * (1 - none[i]) * none[i + 1 :].prod() for i in range(3))
            carries = 1.0 if stage == "prefill" else 1 - none.prod()
            assert 0.01 + n @ even + longest + 0.003 * carries <= step[0, level] * (1 + 1e-9)


def test_the_crowd_that_touches_experts_is_of_all_ranks():
    costs = StepCosts(0.01, decode_request_s=1e-9, context_s=1e-12, prompt_token_s=1e-7, experts=Experts(0.01, 64, 4))
    classes, limits = Classes.of([100.0], [1000.0]), EngineLimits(max_num_seqs=8, max_num_batched_tokens=512)
    for d in (1, 2, 4):
        p = operating_points([costs], np.array([1e9]), limits, classes, np.array([[0.021]]), "decode",
                             attention_ranks=d)  # fmt: skip
        assert p.fixed_s[0, 0] == pytest.approx(0.01 + 0.01 * (1 - (1 - 4 / 64) ** (8 * d)))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(k, marks=pytest.mark.slow) for k in range(6, 30))])
def test_every_figure_is_that_of_the_checker(seed):
    """Slow: 24 plans more, each made and checked."""
    rng = np.random.default_rng([seed, 7])
    n, ranks = int(rng.integers(1, 5)), int(rng.choice([1, 2, 4, 8]))
    context = rng.uniform(1e-8, 2e-7)
    costs = StepCosts(
        rng.uniform(0.003, 0.02), prompt_step_s=float(rng.choice([0.0, 0.01])), prompt_token_s=rng.uniform(1e-6, 6e-5),
        prompt_pair_s=rng.uniform(0, 2e-9), decode_request_s=rng.uniform(1e-5, 1e-4), context_s=context,
        mixed_context_s=context * rng.uniform(1, 2), experts=Experts(rng.uniform(0.001, 0.02), 64, 4),
    )  # fmt: skip
    costs = replace(costs, prompt_expert_s=costs.prompt_token_s * rng.uniform(0, 1))
    inputs = np.rint(np.exp(rng.uniform(np.log(20), np.log(6000), n)))
    outputs = np.rint(np.exp(rng.uniform(np.log(2), np.log(800), n)))
    weight, stage = rng.dirichlet(np.full(n, 2.0)), ("both", "prefill", "decode")[seed % 3]
    limits = EngineLimits(
        max_num_seqs=64, max_num_batched_tokens=int(rng.integers(128, 4096)),
        chunk_tokens=None if rng.random() < 0.6 else 512,
    )  # fmt: skip
    kv, omega, moved = float(rng.uniform(5e4, 1e6)), float(rng.uniform(0.01, 2.0)), rng.uniform(0, 0.05, n)
    moved = moved if stage != "both" else 0.0 * moved
    steps = rng.uniform(0.01, 0.2, 4)
    p = operating_points(
        [costs], np.array([kv]), limits, Classes.of(inputs, outputs, weight=weight), np.sort(steps)[None], stage,
        moved[None, None], ranks,
    )  # fmt: skip
    names = [str(i) for i in range(n)]
    asked = {
        k: Request(a, 0.0 if stage == "decode" else a, 1.0 if stage == "prefill" else b, w)
        for k, a, b, w in zip(names, inputs, outputs, weight, strict=True)
    }
    for j, step in enumerate(np.sort(steps)):
        level = at_level(limits, costs, kv, asked, float(step), stage, ranks)
        assert (level is not None) == p.exists[0, j]
        if level is None:
            continue
        way = dict(zip(names, moved.tolist(), strict=True))
        each = capacities(level, float(step), omega, 4.0, 64, way)
        shares = p.waiting(np.array([[[omega]] * len(steps)]), 4.0)[0, j, 0]
        for i, k in enumerate(names):
            found = [*p.load[:, 0, j, i], 0.0 if stage == "decode" else shares[i]]
            assert found == pytest.approx(list(each[k].values()), rel=1e-6)
            if stage == "decode":
                continue
            for q in (None, 0.95):
                ttft, tpot, _ = latencies(level, level.requests[k], float(step), 0.0, 4.0, 64, 1.0, 0.0, (q, q, None))
                assert p.ttft_s(q, 4.0)[0][0, j, i] == pytest.approx(ttft, rel=1e-9)
                if stage == "both" and level.requests[k].output > 1 and np.isfinite(p.load[:, 0, j]).all(axis=0).any():
                    assert p.tpot_s(q)[0, j, i] == pytest.approx(tpot, rel=1e-9)


def test_engines_of_ranks_take_their_gpus_and_hold_their_caches():
    tables = build_tables(optmodels.load(instance(ranks=(1, 2, 4, 8, 16))))
    case, (block,) = tables.case, tables.blocks
    c = block.configurations
    split = {*zip(c.tp.tolist(), c.ranks.tolist(), c.dp.tolist(), strict=True)}
    assert split == {(t, d, 8 // (t * d)) for t in (1, 2, 4, 8) for d in (1, 2, 4, 8) if t * d <= 8}
    assert len(block.candidates) == len(c) == 10
    machine, work = case.machines[0], layer_work(case.architectures["chat"], "fp8_block", "fp16")
    chat, engine = case.workload("chat"), case.problem.engine

    def tokens_held(t, d, max_num_seqs):
        kind = EngineKind(machine.gpu, t, machine.vram_gib / 8, attention_ranks=d)
        limits = engine.choosing(max_num_seqs)
        return costs_of(case, chat, kind, request_tokens=3000.0, limits=limits).kv_tokens

    holds = {(t, d): tokens_held(t, d, 256) for t, d, _ in split}
    assert {k for k, tokens in holds.items() if tokens > 0} == {(8, 1), (4, 2), (2, 4), (1, 8)}
    # A latent cache is replicated t times in a rank: eight ranks hold it once, beside eight times the attention.
    assert 3 * holds[8, 1] < holds[1, 8] < 8 * holds[8, 1]
    assert holds[2, 4] == kv_tokens(
        work, machine.vram_gib / 8 * GIB, 2, attention_ranks=4, utilization=case.problem.memory.vram_usable,
        chunk_tokens=8192, max_requests=256, request_tokens=3000.0,  # and 1 GiB of runtime
    )  # fmt: skip
    x = tables.points
    short = instance()
    short["workloads"][0]["buckets"] = [LONG | {"input_tokens": 300, "output_tokens": 300}]
    assert set(x.slots.tolist()) == {256} and min(build_tables(optmodels.load(short)).points.slots) > 256
    for b, k, slots, level in zip(x.block, x.configuration, x.slots, x.level.T, strict=True):
        c = tables.blocks[b].configurations
        assert level[LEVEL.index("kv_tokens")] == tokens_held(int(c.tp[k]), int(c.ranks[k]), int(slots))


def test_one_rank_is_the_default_and_all_there_is_without_routed_experts():
    def tables(**how):
        data = instance(**how)
        return build_tables(optmodels.load(data))

    plain = instance(ranks=(1,))
    del plain["strategies"]
    for one, other in (
        (build_tables(optmodels.load(plain)), tables(ranks=(1,))),
        (tables(model="llama-3.1-70b", weights="fp8", ranks=(1,)),
         tables(model="llama-3.1-70b", weights="fp8", ranks=(2, 8))),
    ):  # fmt: skip
        np.testing.assert_array_equal(one.capacities, other.capacities)
        np.testing.assert_array_equal(one.points.level, other.points.level)
        assert all((b.configurations.ranks == 1).all() for b in other.blocks)


def test_more_ranks_are_more_choices(solved):
    without = optmodels.solve(instance(ranks=(1,)))
    assert without.status == "optimal"
    assert solved.objective < without.objective
    (line,) = lines(solved.plan)
    t, d = line["tensor_parallel"], line["attention_ranks"]
    assert (t * d, line["replicas_per_machine"]) == (8, 1)
    assert f"TP{t} × DP{d}" in line["name"]
    assert all("attention_ranks" not in x for x in lines(without.plan))


def test_the_steps_are_those_of_the_latency_layer(solved):
    case = optmodels.load(instance()).resolve()
    (line,) = lines(solved.plan)
    t, d = line["tensor_parallel"], line["attention_ranks"]
    model, gpu = case.architectures["chat"], case.machines[0].gpu
    at = deployment(case.source, model, "deepseek-r1", case.gpus[gpu], gpu, "fp8_block", "fp16", t, d)
    assert (at.gpus, at.attention_ranks) == (8, d)
    costs, _ = resolve(case.source, at, 2000.0)
    level = at_level(
        case.problem.engine, costs, line["engine"]["kv_tokens"], {"": Request(2000.0, 2000.0, 1000.0, 20.0)},
        line["engine"]["step_s"], "both", d,
    )  # fmt: skip
    most = line["engine"]["most_of_wait"]
    each = capacities(level, line["engine"]["step_s"], line["engine"]["wait_s"], most, 256)[""]
    for name, value in line["engine"]["capacities"].items():
        assert value == pytest.approx(each[name] * 20.0 / line["count"], rel=1e-6)


@pytest.mark.parametrize("false", [
    {"attention_ranks": None}, {"attention_ranks": 8}, {"attention_ranks": 16}, {"attention_ranks": 3},
    {"attention_ranks": 8, "tensor_parallel": 1}, {"attention_ranks": 2, "tensor_parallel": 4},
    {"attention_ranks": None, "tensor_parallel": 8}, {"attention_ranks": 2, "replicas_per_machine": 2},
])  # fmt: skip
def test_tampered_ranks_are_found(solved, false):
    (line,) = lines(solved.plan)
    assert (line["tensor_parallel"], line["attention_ranks"], line["replicas_per_machine"]) == (2, 4, 1)
    plan = copy.deepcopy(solved.plan)
    lines(plan)[0].update(false)
    found = check(optmodels.load(instance()), json.loads(json.dumps(plan)))
    assert not found.ok


def test_ranks_that_the_instance_does_not_allow_are_found(solved):
    for other in (instance(ranks=(1, 2, 8)), instance(ranks=(1,)), instance(model="llama-3.1-405b", weights="fp8")):
        assert not check(optmodels.load(other), solved.plan).ok


def test_engines_of_one_stage_have_ranks_too():
    result = optmodels.solve(instance(
        deployment={"stages": ["prefill", "decode"], "link": {"net_gbps": 3200, "tensor_parallel": "equal"}},
        ranks=(1, 8), strategies={"attention_ranks": [1, 8], "tensor_parallel": [1]},
    ))  # fmt: skip
    assert result.status == "optimal"
    assert result.check.ok
    assert {(d["stage"], d.get("attention_ranks")) for d in lines(result.plan)} == {("prefill", 8), ("decode", 8)}
    plan = copy.deepcopy(result.plan)
    for d in lines(plan):
        if d["stage"] == "decode":
            d["engine"]["kv_tokens"] *= 1.01
    assert not check(optmodels.load(instance(
        deployment={"stages": ["prefill", "decode"], "link": {"net_gbps": 3200, "tensor_parallel": "equal"}},
        strategies={"attention_ranks": [1, 8], "tensor_parallel": [1]},
    )), plan).ok  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), [
    ({"serving": "static"}, "serving: static"),
    ({"prefix_cache": {"hits": [{"engines": 4, "kv_tokens": 1e5, "share": 0.5}], "engines": 4}}, "each rank has"),
    ({"strategies": {"attention_ranks": [1, 2, 2]}}, "each number of attention ranks once"),
    ({"strategies": {"attention_ranks": [0]}}, "≥ 1"),
    ({"strategies": {"attention_ranks": []}}, "at least 1"),
])  # fmt: skip
def test_what_ranks_do_not_go_with_is_refused(changes, expected):
    with pytest.raises(InputError) as raised:
        optmodels.load(instance(**changes)).resolve()
    mistake = next(m for m in raised.value.mistakes if "attention_ranks" in m.path)
    assert expected in mistake.expected


def test_a_plan_is_replayed_step_by_step_on_its_ranks(solved):
    problem, (line,) = optmodels.load(instance()), lines(solved.plan)
    case, e, rng = problem.resolve(), line["engine"], np.random.default_rng(5)
    n, count = 600, line["count"]
    trace = Trace("t", np.cumsum(rng.exponential(1 / 20, n)), rng.integers(500, 4000, n), rng.integers(200, 1500, n))
    seen = replay(problem, solved.plan, trace, ReplayOptions(policy="planned_shares"))
    assert seen == replay(problem, solved.plan, trace, ReplayOptions(policy="planned_shares"))
    gpu = case.machines[0].gpu
    at = deployment(case.source, case.architectures["chat"], "deepseek-r1", case.gpus[gpu], gpu, "fp8_block", "fp16",
                    2, 4)  # fmt: skip
    costs, _ = resolve(case.source, at, 2000.0)
    engine = Engine(costs, int(e["kv_tokens"] / 4), 256, 8192, ranks=4)
    arrivals = Arrivals.of(trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    served = reference.simulate(arrivals, [engine] * count, assigned=np.arange(n) % count)
    (row,) = seen["demands"]
    assert row["ttft_planned_s"] == line["serves"][0]["ttft_s"]
    assert row["ttft_replayed_s"] == pytest.approx(np.quantile(served.ttft_s, 0.95), rel=1e-9)
    assert row["tpot_replayed_s"] == pytest.approx(served.tpot_s.mean(), rel=1e-9)
    assert row["tpot_within"] == pytest.approx((served.tpot_s <= 0.1).mean())
    assert seen["policies"]["planned_shares"]["utilisation"] == pytest.approx(
        served.busy_s.sum() / (count * (trace.arrival_s + served.e2e_s).max())
    )


def test_promises_of_engines_with_ranks_hold_on_poisson_streams(solved):
    result = optmodels.solve(instance(certify="replay", certification={"stretch": 1}))
    assert result.check.ok
    assert result.plan["certification"]["status"] == "certified"
    assert result.objective == pytest.approx(solved.objective)  # as certain as it is promised: nothing is cut
    (row,) = replay(optmodels.load(instance()), solved.plan, None, ReplayOptions(policy="random"))["demands"]
    assert row["ttft_replayed_s"] <= 5.0
    assert row["tpot_replayed_s"] <= 0.1


def test_what_is_predicted_of_plans_with_ranks_is_near_their_replay(solved):
    assert all(d["attention_ranks"] > 1 for d in solved.plan["periods"][0]["deployments"])
    (seen,) = solved.report["predicted"]
    (row,) = replay(optmodels.load(instance()), solved.plan, None, ReplayOptions(policy="random"))["demands"]
    assert seen["ttft_s"] == pytest.approx(row["ttft_replayed_s"], rel=0.2)
    assert seen["tpot_s"] == pytest.approx(row["tpot_replayed_s"], rel=0.1)
    assert seen["ttft_s"] < row["ttft_planned_s"] and seen["tpot_s"] < row["tpot_planned_s"]


def test_the_summary_says_why_something_is_not_predicted(solved):
    """Requests that come more often than planned: the levels' bounds stand, nothing is predicted."""
    document = solved.model_dump(mode="json")
    assert not any("Not predicted" in str(x) for x in summary(document))
    assert any("predicted" in [c.header for c in getattr(x, "columns", ())] for x in summary(document))
    plan = FleetPlan.model_validate(solved.plan)
    for s in (s for d in plan.periods[0].deployments for s in d.serves):
        s.requests_per_s *= 10
    rows = predicted(optmodels.load(instance()).resolve(), plan)
    assert rows == [{"demand": "chat/2000x1000", "ttft_s": None, "tpot_s": None, "deadline_s": None}]
    document["report"]["predicted"] = rows
    (said,) = (x for x in summary(document) if "Not predicted" in str(x))
    assert "chat/2000x1000" in said


def test_a_plan_for_a_trace_is_replayed_out_of_sample(tmp_path):
    rng = np.random.default_rng(3)
    rows = [f"{t:.3f},{a},{b}" for t, a, b in zip(
        np.cumsum(rng.exponential(0.1, 200)), rng.integers(500, 3000, 200), rng.integers(50, 800, 200), strict=True
    )]  # fmt: skip
    (tmp_path / "requests.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    data = instance(ranks=(8,))
    data["workloads"][0] |= {"trace": {"file": "requests.csv"}}
    del data["workloads"][0]["buckets"]
    result = optmodels.solve(optmodels.load(data, folder=tmp_path))
    assert result.check.ok
    promises = result.report["out_of_sample"]["promises"]
    assert {p["latency"] for p in promises} == {"ttft", "tpot"}
    shares = [p[k] for p in promises for k in ("replayed", "out_of_sample") if p[k] is not None]
    assert len(shares) > len(promises) and all(0 <= share <= 1 for share in shares)


def test_what_to_run_has_the_ranks(solved):
    plan = deployments(optmodels.load(instance()), solved.plan)
    (d,) = plan.deployments
    assert (d.tensor_parallel, d.attention_ranks, d.groups) == (2, 4, [[0, 1, 2, 3, 4, 5, 6, 7]])
    told = arguments(d)
    assert (told["tensor-parallel-size"], told["data-parallel-size"], told["max-num-seqs"]) == (2, 4, 256)
    assert told["enable-expert-parallel"] is True
    (script,) = (text for name, text in of_plan(plan, "vllm").files.items() if name.endswith(".sh"))
    assert "--data-parallel-size=4 --enable-expert-parallel --max-num-seqs=256" in script
    (manifest,) = of_plan(plan, "kubernetes").files.values()
    assert "nvidia.com/gpu: 8" in manifest
    assert "--enable-expert-parallel\n" in manifest
    (graph,) = of_plan(plan, "dynamo").files.values()
    assert "--enable-expert-parallel\n" in graph
    assert "threshold: '1024'" in next(iter(of_plan(plan, "keda").files.values()))
    two = d.model_copy(update={"attention_ranks": 2, "replicas_per_machine": 2})
    assert two.groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(InputError, match="vllm or kubernetes"):
        of_plan(plan.model_copy(update={"deployments": [two]}), "skypilot")
    one = d.model_copy(update={"attention_ranks": 1})
    assert "data-parallel-size" not in arguments(one)


def test_plan_asks_for_ranks(cli):
    asked = ["plan", "--model", "deepseek-r1", "--input", "2000", "--output", "1000", "--rate", "20", "--ttft-p95", "5",
             "--tpot", "0.1", "--gpu", "h200"]  # fmt: skip
    said = cli(*asked, "--attention-ranks", "1,4", "--json")
    assert said.status == 0
    found = json.loads(said.out)
    assert {d["attention_ranks"] for d in lines(found["plan"])} == {4}
    wrong = cli(*asked, "--attention-ranks", "1,x")
    assert (wrong.status, "--attention-ranks" in wrong.err) == (2, True)
