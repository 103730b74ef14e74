"""Engines that batch continuously: levels by hand, what requests take by a slow reference, plans, check, replay."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import math

import numpy as np
import pytest
from document_cases import CASES
from orchestration_cases import agreeing, handful, two_models
from rich.console import Console
from tampering import leaves, other_values, replaced, value_at

import optmodels
from formulations.orchestration.check import check
from formulations.orchestration.engines import RESOURCES, Engine, Lengths, Taken
from formulations.orchestration.flow import latency_threshold
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.model import FlowModel
from formulations.orchestration.points import build_tables
from formulations.orchestration.problem import Continuous
from formulations.orchestration.rates import Steps
from formulations.orchestration.recomputed import first_s, legs, recompute, service_s
from formulations.orchestration.recomputed_engines import taken
from formulations.orchestration.replay import replay
from formulations.orchestration.show import summary
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.latency.steps import AttentionWindow, Experts, Provenance, StepCosts
from optmodels.loading import load
from optmodels.simulation.options import ReplayOptions
from optmodels.solver.highs import solve_compiled

ENGINES = {"latency": {"model": "default"}, "serving": "continuous"}
H100 = {"cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 4}]}}
SMALL = {"candidates": {"tp": [1, 2], "batch": [2, 16]}}
PLAIN = StepCosts(0.010, prompt_token_s=10e-6, decode_request_s=100e-6)
RICH = StepCosts(
    0.004, prompt_step_s=0.002, prompt_token_s=8e-6, prompt_pair_s=1e-9, prompt_context_s=2e-9, decode_request_s=30e-6,
    context_s=5e-8, mixed_context_s=9e-8, request_s=0.02, experts=Experts(0.006, 16, 2),
    window=AttentionWindow(0.5, 300, 0.7),
)  # fmt: skip


def at(costs, limits, prompt, output, batch, kv_tokens=100_000.0, waits=0.5, stream=()):
    n = len(prompt)
    lengths = Lengths(np.array(prompt, dtype=float), np.array(output, dtype=float), np.full(n, 1 / n), *stream)
    return Engine.at(Steps(costs, 1.0, costs, Provenance("", "")), limits, kv_tokens, lengths, batch, waits)


def test_a_level_by_hand():
    """A prompt of 1,000 tokens adds 10 ms in one step, 100 tokens after the first 0.1 ms each: 20 ms in 101 steps."""
    e = at(PLAIN, Continuous(max_num_seqs=64, max_num_batched_tokens=1064, bursts="none"), [1000], [101], 8)
    t = 0.010 + 8 * 0.020 / 101
    assert e.step_s == pytest.approx(t)
    assert e.capacity[0] == pytest.approx(1 - 0.010 / t)
    assert e.capacity[3] == pytest.approx(0.9 * 1000)
    assert e.capacity[4] == np.inf  # contexts and experts cost the same in every step
    wait = (t + 0.010) / 2  # half of the whole room for a step and its work
    assert e.first_s(np.array([1000.0]))[0] == pytest.approx(wait + 1.5 * t + 0.010)
    assert e.first_s(np.array([1001.0]))[0] == pytest.approx(wait + 2.5 * t + 0.01001)  # two chunks
    # A prompt of the mean length takes (s + s²/2ω) = 2s: prompts wait ω where the prefill is busy half of the time.
    assert e.waits(np.array([1000.0]))[0] == pytest.approx(2 * (t + 0.010))
    assert e.rest_s(np.array([1.0, 11.0])) == pytest.approx([0.0, 10 * e.pace_s])
    assert 1.0 < e.pace_s / t < 1.1  # beside more than 8, which 20 % of crowds are
    assert 8 < e.lets_in(8.0) <= 64
    # By (S2) and Little's law 8 requests run in the mean where the time is used up.
    assert e.capacity[0] / 0.020 * 101 * t == pytest.approx(8)


def test_room_for_bursts_by_hand():
    """An engine that serves a quarter of a stream with I = 9 sees 3; at 0.8 waits are 1/(e·0.2) means at most."""
    limits = Continuous(max_num_seqs=64, max_num_batched_tokens=1064, bursts=9)
    t = 0.010 + 8 * 0.020 / 101
    turn = t + 0.010
    e = at(PLAIN, limits, [1000], [101], 8, waits=3.0, stream=(4 * 8 / (101 * t), 9.0))
    assert e.wait_s == pytest.approx(3 * turn)
    assert e.mean_wait_s == pytest.approx(3 * turn * math.e * 0.2)
    assert e.burst_s == pytest.approx(2 * turn)
    assert e.waits(np.array([1000.0]))[0] == pytest.approx(turn * (1 + 3 / (2 * 3 * math.e * 0.2)))
    alone = at(PLAIN, limits, [1000], [101], 8, stream=(1e-3, 9.0))  # it could serve more than come
    assert alone.burst_s == pytest.approx(8 * turn)
    median = limits.model_copy(update={"quantile": 0.5})  # below the mean: the mean
    assert at(PLAIN, median, [1000], [101], 8).mean_wait_s == pytest.approx(turn / 2)


def test_several_waits_and_engines_that_run_are_refused():
    running = {"running": [{"model": "mistral-7b", "batch": 16}]}
    with pytest.raises(InputError, match="waits: one beside change"):
        optmodels.solve(two_models(6, engine={"waits": [1, 2]}, change=running, **ENGINES, **H100, **SMALL))
    with pytest.raises(InputError, match="each of waits once"):
        optmodels.solve(two_models(6, engine={"waits": [1, 1]}, **ENGINES, **H100, **SMALL))


def test_a_step_with_prompts_is_paid_by_chunks_or_by_every_step_whichever_is_less():
    costs = StepCosts(0.010, prompt_step_s=0.005, prompt_token_s=10e-6, decode_request_s=100e-6)
    limits = Continuous(max_num_seqs=64, max_num_batched_tokens=1064)
    few, many = at(costs, limits, [1000], [101], 8), at(costs, limits, [1000], [2], 8)
    assert (few.charged, many.charged) == (True, False)
    assert few.fixed_s == pytest.approx(0.010)
    assert many.fixed_s == pytest.approx(0.015)


@pytest.mark.parametrize("costs", [PLAIN, RICH])
@pytest.mark.parametrize(("prompt", "output", "bin_s"), [(700.0, 90.0, 1.5), (2500.0, 1.0, 0.2), (10.0, 400.0, 0.7)])
def test_what_a_start_takes_is_the_mean_over_starts_in_its_bin(costs, prompt, output, bin_s):
    """The use of a request at every age, averaged over 2,000 starts and 200 moments of each bin."""
    e = at(costs, Continuous(max_num_seqs=32, max_num_batched_tokens=544), [prompt], [output], 4)
    one = Taken.by(e, np.array([prompt]), np.array([output]), np.zeros(1, dtype=np.int64), 1)
    rows = np.isfinite(e.capacity)
    found = one.shares(e, 0, bin_s)[rows] * e.capacity[rows, None]
    first, last = float(e.first_s(np.array([prompt]))[0]), float(one.service_s[0])
    work = e.prompt_work_s(np.array([prompt]))[0], e.decode_work_s(np.array([prompt]), np.array([output]))[0]
    starts = (np.arange(2000) + 0.5) / 2000 * bin_s
    for i in range(found.shape[1]):
        age = (i + (np.arange(200) + 0.5)[:, None] / 200) * bin_s - starts
        filling, running = (age >= 0) & (age < first), (age >= 0) & (age < last)
        grown = np.clip((age - first) / max(last - first, 1e-9), 0, 1)
        expected = [  # and nothing of the network
            (filling * work[0] / first + (running & ~filling) * work[1] / max(last - first, 1e-9)).mean(),
            running.mean(),
            (running * (prompt + output * grown)).mean(), (filling * prompt * e.step_s / first).mean(),
            (filling * np.ceil(prompt / 512) * e.step_s / first).mean(),
            (filling * float(e.waits(np.array([prompt]))[0]) / first).mean(), 0.0,
        ]  # fmt: skip
        scale = np.array([sum(work), 1, prompt + output, prompt, 5, 1, 1])[rows]
        np.testing.assert_allclose(found[:, i] / scale, np.array(expected)[rows] / scale, atol=3e-3)


NAMES = (
    "time", "running requests", "KV tokens", "prompt tokens of a step", "chunks of a step", "waiting of prompts",
    "network for KV caches",
)  # fmt: skip
VARIANTS = {
    "apart": {
        "deployment": {"stages": ["both", "prefill", "decode"], "link": {"net_gbps": 20, "tensor_parallel": "equal"}},
        "slo": {"ttft_s": 0.8}, "candidates": {"tp": [1, 2], "dp": [1, 2], "batch": [1, 8]},
    },
    "experts apart": {
        "models": [{"model": "mistral-7b", "architecture": "deepseek-moe-16b"}, {"model": "llama-3.2-3b"}],
        "deployment": {"stages": ["prefill", "decode"], "link": {"net_gbps": 100}},
    },
    "prefixes": {"engine": {"waits": [1, 4]}, "slo": {"ttft_s": 0.8}},
    "prefixes apart": {
        "deployment": {"stages": ["both", "prefill", "decode"], "link": {"net_gbps": 20}},
        "candidates": {"tp": [1], "batch": [1, 8]},
    },
    "prefixes and windows": {
        "models": [{"model": "mistral-7b", "architecture": "gpt-oss-20b"}, {"model": "llama-3.2-3b"}],
        "engine": {"max_num_seqs": 24, "max_num_batched_tokens": 512},
    },
    "two models": {},
    "chunks, limits, quantile": {
        "engine": {"max_num_seqs": 24, "max_num_batched_tokens": 512, "chunk_tokens": 100, "quantile": 0.95},
        "slo": {"ttft_s": 0.5}, "bins": {},
    },
    "roofline, data parallel": {
        "latency": {"model": "roofline"}, "candidates": {"tp": [1, 2, 3], "dp": [1, 2], "batch": [1, 8, 64, 300]},
    },
    "experts": {
        "models": [{"model": "mistral-7b", "architecture": "deepseek-moe-16b"}, {"model": "llama-3.2-3b"}],
        "latency": {"model": "default", "safety": 0.9},
    },
    "ranks": {
        "models": [{"model": "mistral-7b", "architecture": "deepseek-moe-16b"}, {"model": "llama-3.2-3b"}],
        "latency": {"model": "default", "safety": 0.9}, "engine": {"max_num_seqs": 24, "waits": [1, 4]},
        "candidates": {"tp": [2, 1], "dp": [1, 2], "attention_ranks": [4, 2], "batch": [1, 8, 16]},
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 4}, {"server": "w", "gpu": "h100", "gpus": 2}]},
    },
    "ranks, chunks, drafts": {
        "models": [
            {"model": "mistral-7b", "architecture": "deepseek-v2-lite"},
            {"model": "llama-3.2-3b", "candidates": {"tp": [1], "batch": [4]}},
        ],
        "candidates": {"tp": [1], "attention_ranks": [1, 3], "batch": [2, 16]}, "bins": {},
        "engine": {
            "max_num_seqs": 24, "max_num_batched_tokens": 512, "chunk_tokens": 100, "quantile": 0.95, "bursts": 4,
            "speculation": [{"model": "deepseek-v2-lite", "drafts": 2, "acceptance": 0.6, "head": 0.05}],
        },
    },
    "drafts": {"engine": {
        "max_num_seqs": 24, "max_num_batched_tokens": 512,
        "speculation": [{"model": "mistral-7b", "drafts": 2, "acceptance": 0.6, "head": 0.05},
                        {"model": "llama-3.2-3b", "drafts": 4, "accepted": 1.25, "draft": "qwen3-0.6b"}],
    }},
    "a model that nobody asks for": {
        "requests": {"duration_s": 60, "classes": [
            {"model": "mistral-7b", "output_tokens": 400, "prompt_tokens": 90, "slo_factor": 1.5, "requests_per_s": 2},
        ]},
    },
    "waits": {"engine": {"waits": [1, 4], "bursts": "trace", "quantile": 0.9}},
    "rates": {
        "requests": {"duration_s": 60, "classes": [
            {"model": "mistral-7b", "output_tokens": 400, "prompt_tokens": 90, "slo_factor": 1.5, "requests_per_s": 2},
            {"model": "llama-3.2-3b", "output_tokens": 30.5, "slo_factor": 3, "requests_per_s": [3.0], "weight": 2.0},
        ], "classes_bin_s": 60},
    },
}  # fmt: skip


def document(name, count=60):
    rng = np.random.default_rng(len(name))
    requests = {"rows": {
        "arrival_s": np.sort(rng.uniform(0, 8, count)).tolist(), "output_tokens": rng.integers(1, 300, count).tolist(),
        "prompt_tokens": rng.integers(1, 3000, count).tolist(),
        "model": rng.choice(["mistral-7b", "llama-3.2-3b"], count).tolist(),
        "slo_factor": rng.uniform(1, 6, count).tolist(),
    }}  # fmt: skip
    if name.startswith("prefixes"):  # of each model three families, whose prompts begin alike for a while
        ids = [[family * 1000 + d if d < shared else 10_000 * (r + 1) + d for d in range(tokens // 16)] for r, (
            family, shared, tokens) in enumerate(zip(
                rng.integers(0, 3, count).tolist(), rng.integers(0, 150, count).tolist(),
                requests["rows"]["prompt_tokens"], strict=True))]  # fmt: skip
        requests["rows"] |= {"prefix_blocks": ids, "prefix_block_tokens": 16}
    return two_models(10, **{"requests": requests} | ENGINES | H100 | SMALL | VARIANTS[name])


def test_drafts_do_not_change_what_was_promised():
    """Deadlines are multiples of what a token takes on one idle GPU: with drafts as without."""
    given = document("drafts", 10)
    limits = {k: v for k, v in given["engine"].items() if k != "speculation"}
    drafts, none = (build_tables(load(x)).t_slice_s for x in (given, given | {"engine": limits}))
    assert drafts.tolist() == none.tolist()


@pytest.mark.parametrize("name", VARIANTS)
def test_recomputed_from_the_instance_as_in_the_tables(name):
    problem = load(document(name))
    t, true = build_tables(problem), recompute(problem)
    usable = [c for c in true.candidates.values() if not c.refused]
    assert usable
    assert [(c.model, c.gpu, c.tp, c.ranks, c.dp, c.batch, c.waits) for c in usable] == [
        (c.model, c.gpu, c.tp, c.ranks, c.dp, c.batch, c.waits) for c in t.configurations
    ]
    assert (true.bins, true.bin_s) == (t.bins, pytest.approx(t.bin_s))
    assert true.latency_threshold_s() == pytest.approx(latency_threshold(t))
    for i, c in enumerate(usable):
        e = t.configurations[i].engine
        assert (c.level.step_s, c.level.fixed_s, c.level.token_s) == pytest.approx((e.step_s, e.fixed_s, e.token_s))
        found = [c.level.limits.get(x, np.inf) for x in NAMES]
        expected = np.where(e.capacity == np.inf, np.inf, e.capacity)
        left_out = {"both": [6], "prefill": [], "decode": [3, 4, 5]}[e.stage]  # that nothing takes anything of
        expected[left_out] = np.inf
        np.testing.assert_allclose(found, expected, rtol=5e-9)  # crowds are 1e-9 below what is allowed
    for r, (a, b) in enumerate(t.legs.tolist()):
        way = usable[a], usable[b]
        for k, q in enumerate(true.groups):
            if way[0].model != q.model:
                continue
            share, wait = true.in_time(q, way)
            assert share == pytest.approx(t.share[k, r], abs=1e-12)
            assert wait == pytest.approx(t.wait_s[k, r]) if share > 0 else t.wait_s[k, r] < 0
            if a == b and way[0].stage != "both":
                continue
            q = true.starting(q, way)
            whole = sum(service_s(q, c) for c in legs(way))
            assert (first_s(q, way), whole) == pytest.approx((t.first_s[k, r], t.service_s[k, r]))
            x = np.zeros(t.bins)
            x[0] = 1.0  # what one start takes in each bin, from the curve of starts
            since = 0.0
            for c, (_, busy) in zip(legs(way), t.uses(k, r), strict=True):
                curve = taken(c.level, q.prompt, q.output, x, t.bin_s, since, c.cached(q))
                amount = np.array([
                    curve.get(name, np.zeros(t.bins + 2)) / c.level.limits.get(name, np.inf) for name in NAMES
                ])  # fmt: skip
                shares = np.zeros((len(RESOURCES), max(t.bins + 2, busy.shape[1])))
                shares[:, : busy.shape[1]] = busy * c.dp
                np.testing.assert_allclose(amount, shares[:, : t.bins + 2], rtol=1e-6, atol=1e-9)
                since += service_s(q, c)


def test_a_start_takes_what_those_in_time_take():
    """Of a class half has prompts that no engine prefills in time: what starts is as short as the other half."""
    requests = {"rows": {
        "arrival_s": [float(i) for i in range(8)], "output_tokens": [20] * 8, "model": ["mistral-7b"] * 8,
        "prompt_tokens": [500, 12_000] * 4, "slo_factor": [7.0] * 8,
    }}  # fmt: skip
    one_class = {"requests": requests, "bins": {"seconds": 4, "lengths": 1, "slo": 1}, "engine": {"waits": 0.5}}
    problem = load(two_models(10, **one_class | ENGINES | H100 | {"candidates": {"tp": [1], "batch": [1]}}))
    t = build_tables(problem)
    ((c, x),) = [(i, x) for i, x in enumerate(t.configurations) if t.case.models[x.model] == "mistral-7b"]
    (k,) = np.flatnonzero(t.classes.model == x.model)
    assert t.share[k, c] == pytest.approx(0.5)
    short, output = np.array([500.0]), np.array([20.0])
    one = Taken.by(x.engine, short, output, np.zeros(1, dtype=np.int64), 1)
    assert t.first_s[k, c] == pytest.approx(x.engine.first_s(short)[0])
    assert t.service_s[k, c] == pytest.approx(one.service_s[0])
    assert t.taken[c].waits[k] == pytest.approx(x.engine.waits(short)[0])
    np.testing.assert_allclose(t.busy(k, c), one.shares(x.engine, 0, t.bin_s))
    plan = exact(problem, t, Options(gap=0, time_limit=20)).plan.model_dump(mode="json")
    assert plan["prediction"]["in_time"] == pytest.approx(4)
    assert check(problem, plan).violations == []


def test_each_instance_is_planned_for_the_wait_that_suits_its_requests():
    """Of several waits a plan does as well as of the best one alone, is checked, and says which it chose."""

    def solved(waits):
        problem = load(document("two models", 40) | {
            "engine": {"waits": waits, "bursts": "trace"}, "candidates": {"tp": [1], "batch": [4, 16]},
            "bins": {"seconds": 4, "lengths": 2, "slo": 2}, "objective": {"alpha": 1.0},
        })  # fmt: skip
        return problem, exact(problem, build_tables(problem), Options(gap=1e-4, time_limit=20))

    (problem, both), *single = (solved(w) for w in ([0.5, 4.0], 0.5, 4.0))
    plan = both.plan.model_dump(mode="json")
    assert check(problem, plan).violations == []
    assert both.plan.score.total >= max(x.plan.score.total for _, x in single) - 2e-4
    lines = plan["configurations"]
    assert {c["engine"]["waits"] for c in lines} <= {0.5, 4.0}
    assert all(c.waits is None for _, x in single for c in x.plan.configurations)
    for i in plan["instances"]:
        wait = lines[i["configuration"]]["engine"]["waits"]
        assert f"-w{wait:g}".replace(".", "-") in i["name"]
    lines[0]["engine"]["waits"] = 1.0
    assert not check(problem, plan).ok
    assert replay(problem, both.plan.model_dump(mode="json"))["requests"] == 40


@pytest.fixture(scope="module")
def planned():
    problem = load(document("two models", 240) | {"slo": {"shortfall_penalty": 0.1}})
    plan = exact(problem, build_tables(problem), Options(gap=0.05, time_limit=3)).plan.model_dump(mode="json")
    assert check(problem, plan).violations == []
    return problem, plan


def test_every_figure_of_an_engine_is_recomputed(planned):
    problem, plan = planned
    decided = "max_num_seqs"
    first = [path for path in leaves(plan) if path[:2] == ("configurations", 0) and "engine" in path]
    paths = [path for path in first if decided not in path] + [("prediction", "slot_use"), ("prediction", "in_time")]
    assert len(paths) == 12
    for path in paths:
        for wrong in other_values(path, value_at(plan, path)):
            if wrong != value_at(plan, path):
                assert not check(problem, replaced(plan, path, wrong)).ok, path


def test_an_engine_that_is_given_too_much_is_found(planned):
    problem, plan = planned
    for j, line in enumerate(plan["configurations"]):
        tampered = copy.deepcopy(plan)
        tampered["configurations"][j]["engine"]["max_num_seqs"] = 10**6
        assert any("max_num_seqs" in v.requirement for v in check(problem, tampered).violations)
        if line["requests"] > 20:
            tampered["configurations"][j]["engine"]["max_num_seqs"] = 0
            assert any("max_num_seqs" in v.requirement for v in check(problem, tampered).violations)
    crowded = load(document("two models", 240) | {"slo": {"shortfall_penalty": 0.1}, "latency": {"model": "roofline"}})
    assert not check(crowded, plan).ok
    tampered = copy.deepcopy(plan)
    started = tampered["shares"]["started"]
    b = int(np.argmax(started))
    for column in ("admitted", "started"):
        tampered["shares"][column][b] *= 1000
    assert any(v.requirement.split(" of ")[0] in ("time", "running requests", "KV tokens", "prompt tokens")
               for v in check(problem, tampered).violations)  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_literal_and_column_form_agree_without_aggregation(seed):
    changes = ENGINES | H100 | {"candidates": {"tp": [1, 2], "batch": [1, 4]}}
    _, column = agreeing(load(handful(seed=seed) | changes))
    assert column.plan.prediction.in_time > 0


def test_rows_left_out_are_implied_by_others(monkeypatch):
    """The bound with every row of every resource is the bound without those that others imply."""
    t = build_tables(load(document("chunks, limits, quantile", 240)))
    few = FlowModel(t).compiled()
    monkeypatch.setattr(
        "formulations.orchestration.model._binding", lambda busy, c, n: np.ones((len(busy), n), dtype=bool)
    )
    every = FlowModel(t).compiled()
    assert len(few.row_lower) < len(every.row_lower)
    assert solve_compiled(few).objective == pytest.approx(solve_compiled(every).objective, abs=1e-6)


def test_replay_on_engines_keeps_what_is_predicted(planned):
    problem, plan = planned
    result = optmodels.formulation.get("orchestration").replay(problem, plan)
    assert set(result["policies"]) >= {"planned_shares", "earliest_finish", "least_kv"}
    assert "named" not in result
    assert any("named" in note for note in result["notes"])
    best = max(x["attainment"] for x in result["policies"].values())
    assert best >= result["predicted"]["attainment"] - 0.05


@pytest.mark.parametrize(
    ("asked", "path"), [({"policy": "maaso"}, "policy"), ({"speed": "worst_case"}, "speed"),
                        ({"controller": "static"}, "controller")],
)  # fmt: skip
def test_what_engines_do_not_have_is_refused_in_words(planned, asked, path):
    problem, plan = planned
    with pytest.raises(InputError, match=path):
        optmodels.formulation.get("orchestration").replay(problem, plan, None, ReplayOptions(**asked))


def test_continuous_serving_needs_costs_of_steps():
    with pytest.raises(InputError, match=r"latency: \{model: default\}"):
        load(two_models(10, serving="continuous"))
    with pytest.raises(InputError, match="slots have no steps"):
        load(two_models(10, engine={"max_num_seqs": 8}))
    with pytest.raises(InputError, match="room for prompts"):
        load(document("two models") | {"engine": {"max_num_seqs": 256, "max_num_batched_tokens": 256}})


def test_pipelines_and_levels_beyond_the_engine_are_refused_with_the_reason():
    t = build_tables(load(document("two models") | {"candidates": {"tp": [1], "pp": [1, 2], "batch": [8, 300]}}))
    reasons = {d.reason for d in t.discarded}
    assert any("pipelines" in r for r in reasons)
    assert any("max_num_seqs 256" in r for r in reasons)


def test_dispatchers_go_by_predicted_lengths(planned):
    """Answers believed ten thousand tokens long are refused by who refuses what would be late; true lengths are not."""
    problem, plan = planned
    replay, own = optmodels.formulation.get("orchestration").replay, problem.own_trace()
    options = ReplayOptions(policy="earliest_finish", overflow_protection=True)
    right, wrong = (
        replay(problem, plan, trace, options)["policies"]["earliest_finish"]["attainment"]
        for trace in (own, dataclasses.replace(own, predicted_output_tokens=np.full(len(own), 10_000)))
    )
    assert right > 0 == wrong


def test_exports_tell_engines_their_limits(planned):
    problem, plan = planned
    found = optmodels.formulation.get("orchestration").deployments(problem, plan)
    told = {(d.max_num_seqs, d.max_num_batched_tokens) for d in found.deployments}
    assert told == {(c["engine"]["max_num_seqs"], 8192) for c in plan["configurations"]}
    assert any("refuse" in note for note in found.notes)


@pytest.mark.parametrize("method", [m for m in optmodels.formulation.get("orchestration").methods if m != "exact"])
def test_every_heuristic_sends_requests_as_engines_can(method):
    instance, _ = CASES["orchestration"]["continuous batching"]
    made = optmodels.solve(instance, method, time_limit=20)
    assert made.plan is None or (made.check.ok and made.plan["dispatcher"]["policy"] != "maaso")


@pytest.mark.parametrize("more", [{"latency": {"roofline": "roofline"}}, ENGINES])
def test_the_runtime_takes_its_part_of_every_gpu(more):
    """1.6 GiB of 16 are a tenth: what fits is that of a tenth less of the memory, and the check agrees."""
    served = {"models": [{"model": "mistral-7b"}], "requests": {"rows": {
        "arrival_s": [0.0, 1.0, 2.0], "output_tokens": [200, 300, 400], "prompt_tokens": [100, 900, 300],
        "slo_factor": [3.0, 3.0, 3.0]}}}  # fmt: skip
    given, less = (
        load(two_models(4, **served, **more, memory=m)) for m in ({"runtime_gib": 1.6}, {"vram_usable": 0.8})
    )
    a, b = build_tables(given), build_tables(less)
    assert [d.reason for d in a.discarded] == [d.reason for d in b.discarded]
    assert len(a.discarded) > len(build_tables(load(two_models(4, **served, **more))).discarded)
    if "serving" in more:
        assert [x.engine.kv_tokens for x in a.configurations] == pytest.approx([
            x.engine.kv_tokens for x in b.configurations
        ])  # fmt: skip
    plan = optmodels.solve(given)
    assert plan.check.ok


@pytest.mark.parametrize("serving", ["slots", "continuous"])
def test_latencies_have_a_source_and_a_pessimistic_end(serving):
    """Slots and engines alike; a plan made with safety 0.9 is in time at that end, one without in part."""
    share = {}
    for safety in (None, 0.9):
        latency = {"model": "default"} | ({"safety": safety} if safety else {})
        result = optmodels.solve(two_models(20, **H100, latency=latency, serving=serving), time_limit=10)
        known = result.report["latency"]
        assert [s["model"] for s in known["sources"]] == ["default"]
        share[safety] = known["in_time_at_the_pessimistic_end"]
    assert known["sources"][0]["tbt_at_most"] == known["sources"][0]["ttft_at_most"] == 1.0
    assert share[None] < share[0.9] == 1.0


def test_what_classes_see_is_stated_beside_their_limits_and_recomputed():
    """TTFT and E2E of each class by hand from its requests, in plan, summary and check; earlier plans say nothing."""
    document = handful() | ENGINES | H100 | SMALL
    document["slo"] = document.get("slo", {}) | {"ttft_s": 30.0}
    result = optmodels.solve(document)
    plan = result.plan
    assert plan is not None and result.check.ok
    seen = [c for c in plan["classes"] if c["in_time"] > 0]
    assert seen and all(0 < c["ttft_s"] < c["e2e_s"] <= c["e2e_at_most_s"] * (1 + 1e-6) for c in seen)
    mean = sum(c["in_time"] * c["ttft_s"] for c in seen) / sum(c["in_time"] for c in seen)
    assert mean == pytest.approx(plan["prediction"]["mean_latency_s"])
    slowest = max(c["engine"]["token_s"] for c in plan["configurations"])
    for c in seen:
        assert c["e2e_s"] == pytest.approx(c["ttft_s"] + c["token_s"] * (c["output_tokens"] - 1))
        assert 0 < c["token_s"] <= slowest * (1 + 1e-6)
    text = shown(json.loads(result.to_json()))
    assert "What requests in time see" in text and "of 30 s" in text
    for name in ("ttft_s", "token_s", "e2e_s", "e2e_at_most_s"):
        wrong = copy.deepcopy(plan)
        next(c for c in wrong["classes"] if c["in_time"] > 0)[name] *= 1.01
        assert not check(load(document), wrong).ok, name
    for c in plan["classes"]:
        for name in ("ttft_s", "token_s", "e2e_s", "e2e_at_most_s"):
            c[name] = None
    assert check(load(document), plan).ok


def shown(document):
    """The summary of a result as text."""
    console = Console(width=200, record=True, file=io.StringIO())
    for line in summary(document):
        console.print(line)
    return console.export_text()


def test_of_many_classes_the_tightest_are_shown():
    classes = [
        {"label": f"c{k}", "model": "m", "requests": 1.0, "output_tokens": 5.0, "deadline_s": 9.0, "in_time": 1.0,
         "ttft_s": 0.5, "token_s": 0.1, "e2e_s": 0.9, "e2e_at_most_s": 1.0 + k}
        for k in range(30)
    ]  # fmt: skip
    result = optmodels.solve(handful() | ENGINES | H100 | SMALL)
    document = json.loads(result.to_json())
    document["plan"]["classes"] += classes[::-1]
    text = shown(document).partition("What requests in time see")[2]
    rows = [k for k in range(30) if f"c{k} " in text]
    left = len([c for c in document["plan"]["classes"] if c["ttft_s"] is not None]) - 16
    assert f"({left} looser classes left out)" in text and rows == list(range(len(rows))) and rows
