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
from orchestration_cases import agreeing, handful, levels, two_models
from rich.console import Console
from tampering import leaves, other_values, replaced, value_at

import optmodels
from formulations.orchestration.check import check
from formulations.orchestration.engines import CAPACITIES, PLACE_WAITS_S, Taken
from formulations.orchestration.flow import latency_threshold
from formulations.orchestration.making import _engine
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.model import FlowModel
from formulations.orchestration.plan import ConfigurationLine, OrchestrationPlan
from formulations.orchestration.points import build_tables
from formulations.orchestration.problem import Continuous
from formulations.orchestration.recomputed import first_s, legs, recompute, service_s
from formulations.orchestration.recomputed_engines import check_line, taken
from formulations.orchestration.replay import replay
from formulations.orchestration.show import summary
from optmodels.engine.continuous import WAITING
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts
from optmodels.loading import load
from optmodels.plans.findings import Findings
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


def test_a_level_by_hand():
    """A prompt of 1,000 tokens adds 10 ms in one step, 100 tokens after the first 0.1 ms each: 20 ms in 101 steps."""
    limits = Continuous(max_num_seqs=64, max_num_batched_tokens=1064, waits=0.5)
    (e,) = levels(PLAIN, limits, [1000], [101], [8])
    t = 0.010 + 8 * 0.020 / 101
    load = 1 - 0.010 / t
    assert (e.step_s, e.fixed_s) == pytest.approx((t, 0.010))
    rows = dict(zip(CAPACITIES, e.load[:, 0], strict=True))
    assert (rows["time"], rows["tokens"]) == pytest.approx((0.020 / load, t / 0.9))
    assert rows["chunks"] == rows["transfer"] == 0  # contexts and experts cost the same in every step
    beside = 0.010 + load * t / 2  # half of the load is prompts'
    turn = beside + 0.010
    assert e.wait_s == pytest.approx(0.5 * turn * math.e * 0.2)  # the wait at 0.8 is 1/(e·0.2) times the mean
    mean_turn = 0.010 + load * t / 4 + 0.010 + 0.010 * load / 4 / (0.010 / t)
    assert rows["waiting"] == pytest.approx(turn**2 / (2 * e.wait_s) + mean_turn)
    first = t / 2 + t + 0.010 + load / 2 * 0.010 / 2 + e.wait_s
    assert e.sees.first_s[0] == pytest.approx(first)
    assert e.sees.first_s[0] < e.sees.ttft_s[0] < e.sees.e2e_s[0]
    assert e.sees.e2e_s[0] > e.sees.first_s[0] + e.sees.rest_s[0]
    assert 1.0 < e.pace_s / t < 1.1  # beside more than 8, which 20 % of crowds are
    assert 8 < e.lets_in(8.0) <= 64
    # By (S2) and Little's law 8 requests run in the mean where the time is used up.
    assert 101 * t / rows["time"] == pytest.approx(8)
    assert e.most_running == pytest.approx(101 * t / rows["running"])


def test_room_for_bursts_by_hand():
    """An engine that serves a quarter of a stream with I = 9 sees 3: two mean turns more behind every prompt."""
    limits = Continuous(max_num_seqs=64, max_num_batched_tokens=1064, waits=3.0)
    t = 0.010 + 8 * 0.020 / 101
    turn = 0.010 + (t - 0.010) / 2 + 0.010
    (e,) = levels(PLAIN, limits, [1000], [101], [8], stream=(4 * 8 / (101 * t), 9.0))
    (calm,) = levels(PLAIN, limits, [1000], [101], [8], stream=(4 * 8 / (101 * t), 1.0))
    assert (e.part, e.burst_s) == pytest.approx((0.25, 2 * turn))
    more = e.load[WAITING, 0] - calm.load[WAITING, 0]
    assert more == pytest.approx(turn * 2 * turn / (2 * e.wait_s))
    (alone,) = levels(PLAIN, limits, [1000], [101], [8], stream=(1e-3, 9.0))  # it could serve more than come
    assert alone.burst_s == pytest.approx(8 * turn)
    (median,) = levels(PLAIN, limits.model_copy(update={"quantile": 0.5}), [1000], [101], [8])
    assert median.wait_s == pytest.approx(3 * turn)  # it stands for the mean
    assert median.sees.e2e_s == pytest.approx(median.sees.first_s + median.sees.rest_s)


def test_a_level_is_where_so_many_run_whatever_depends_on_its_step():
    limits = Continuous(max_num_seqs=64, max_num_batched_tokens=1064, waits=1.0)
    prompt, output = np.linspace(20, 3000, 300), np.linspace(1, 200, 300)[::-1]
    found = levels(RICH, limits, prompt, output, [2, 8, 24])
    assert [e.batch for e in found] == [2, 8, 24]
    for e in found:
        p = e.points
        assert e.step_s == pytest.approx(e.fixed_s + e.batch * p.work_s.mean() / p.steps.mean(), rel=1e-9)


def test_max_num_seqs_is_a_decision_where_the_file_says_none():
    """A batch of 250 is more than 256 slots seldom hold; where it says 256 there is no such level."""
    open_, closed = Continuous(waits=1.0), Continuous(waits=1.0, max_num_seqs=256)
    costs = dataclasses.replace(PLAIN, decode_request_s=20e-6)
    several, one = (levels(costs, x, [100], [200], [32, 250], kv_tokens=1e6) for x in (open_, closed))
    assert {(e.batch, e.limits.slots) for e in one if not e.place_wait_s} >= {(32, 256)}
    of_many = [e for e in several if e.batch == 250]
    assert {e.limits.slots for e in of_many} > {256}
    best = max(1 / e.mean_load.max() for e in of_many)
    assert best > 1.03 * max(1 / e.mean_load.max() for e in one)
    few = levels(costs, Continuous(waits=1.0, most_num_seqs=512), [100], [200], [32, 250], kv_tokens=1e6)
    names = [(e.batch, e.limits.slots, e.waits, e.place_wait_s) for e in several]
    assert {(e.batch, e.limits.slots, e.waits, e.place_wait_s) for e in few} <= set(names)  # nested


def test_waiting_for_a_place_counts_against_the_first_token():
    """A cache of few requests: who may wait for a place is served by fewer engines, and sees the wait."""
    limits = Continuous(waits=1.0)
    found = levels(PLAIN, limits, [1000, 200], [100, 400], [2, 16], kv_tokens=6_000)
    placed, seldom = ([e for e in found if e.batch == 16 and (e.place_wait_s > 0) == so] for so in (True, False))
    assert {e.place_wait_s for e in placed} == set(PLACE_WAITS_S)
    assert all(e.slots == 5 for e in placed)  # of the largest requests, whole
    assert max(1 / e.mean_load.max() for e in placed) > 1.5 * max(1 / e.mean_load.max() for e in seldom)
    for e in placed:
        (bare,) = [x for x in seldom if (x.batch, x.waits) == (e.batch, e.waits)]
        assert (e.sees.first_s >= bare.sees.first_s + 0.9 * e.place_wait_s).all()
    none = levels(PLAIN, limits.model_copy(update={"longest_wait_s": 0.1}), [1000, 200], [100, 400], [2, 16], 6_000)
    assert not any(e.place_wait_s for e in none)


def test_several_waits_and_engines_that_run_are_refused():
    running = {"running": [{"model": "mistral-7b", "batch": 16}]}
    with pytest.raises(InputError, match="waits: one beside change"):
        optmodels.solve(two_models(6, engine={"waits": [1, 2]}, change=running, **ENGINES, **H100, **SMALL))
    with pytest.raises(InputError, match="each of waits once"):
        optmodels.solve(two_models(6, engine={"waits": [1, 1]}, **ENGINES, **H100, **SMALL))


@pytest.mark.parametrize("costs", [PLAIN, RICH])
@pytest.mark.parametrize(("prompt", "output", "bin_s"), [(700.0, 90.0, 1.5), (2500.0, 1.0, 0.2), (10.0, 400.0, 0.7)])
def test_what_a_start_takes_is_the_mean_over_starts_in_its_bin(costs, prompt, output, bin_s):
    """The use of a request at every age, averaged over 2,000 starts and 200 moments of each bin."""
    limits = Continuous(max_num_seqs=32, max_num_batched_tokens=544, waits=1.0)
    e = next(x for x in levels(costs, limits, [prompt], [output], [4]) if not x.place_wait_s)
    one = Taken.by(e, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 1)
    found = one.shares(e, 0, bin_s)
    first, last = float(e.sees.first_s[0]), float((e.sees.first_s + e.sees.rest_s)[0])
    time, running, memory, tokens, chunks, waiting, _ = e.load[:, 0]
    early = e.prefill_load[0] if last > first else time
    held = first * prompt + (last - first) * (prompt + output / 2)
    starts = (np.arange(2000) + 0.5) / 2000 * bin_s
    for i in range(found.shape[1]):
        age = (i + (np.arange(200) + 0.5)[:, None] / 200) * bin_s - starts
        filling, on = (age >= 0) & (age < first), (age >= 0) & (age < last)
        grown = np.clip((age - first) / max(last - first, 1e-9), 0, 1)
        expected = np.array([  # and nothing of the network
            (filling * early / first + (on & ~filling) * (time - early) / max(last - first, 1e-9)).mean(),
            (on * running / last).mean(), (on * (prompt + output * grown) * memory / held).mean(),
            (filling * tokens / first).mean(), (filling * chunks / first).mean(), (filling * waiting / first).mean(), 0,
        ])  # fmt: skip
        scale = np.array([time / first, running / last, memory / last, tokens / first, chunks / first + 1e-9,
                          waiting / first, 1])  # fmt: skip
        np.testing.assert_allclose(found[:, i] / scale, expected / scale, atol=4e-3)


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
    problem = load(document(name, 12 if name.startswith("prefixes") else 40))
    t = build_tables(problem)
    true = recompute(problem, as_lines(t))
    usable = [c for c in true.candidates.values() if not c.refused]
    assert usable
    assert [(c.model, c.gpu, c.tp, c.ranks, c.dp, c.batch) for c in usable] == [
        (c.model, c.gpu, c.tp, c.ranks, c.dp, c.batch) for c in t.configurations
    ]
    assert (true.bins, true.bin_s) == (t.bins, pytest.approx(t.bin_s))
    assert true.latency_threshold_s() == pytest.approx(latency_threshold(t))
    for c, x in zip(usable, t.configurations, strict=True):
        e, found = x.engine, Findings()
        check_line(found, "engine", c.level, c.batch, problem.continuous)
        assert found.violations == []
        assert c.level.of.fixed == pytest.approx(e.fixed_s)
        assert (c.level.fits == e.fits).all()
        for name, row in zip(CAPACITIES, e.load, strict=True):
            np.testing.assert_allclose(c.level.load.get(name, 0 * row)[e.fits], row[e.fits], rtol=5e-8)
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
            starts = [true.starting(q, way, c) for c in legs(way)]
            if not all(len(x.number) for x in starts):
                assert share == 0
                continue
            whole = sum(service_s(x, c) for x, c in zip(starts, legs(way), strict=True))
            assert (first_s(starts[0], way), whole) == pytest.approx((t.first_s[k, r], t.service_s[k, r]))
            x = np.zeros(t.bins)
            x[0] = 1.0  # what one start takes in each bin, from the curve of starts
            since = 0.0
            for c, (_, busy), q in zip(legs(way), t.uses(k, r), starts, strict=True):
                curve = taken(c.level, q.number, x, t.bin_s, since)
                amount = np.array([curve.get(name, np.zeros(t.bins + 2)) for name in CAPACITIES])
                shares = np.zeros((len(CAPACITIES), max(t.bins + 2, busy.shape[1])))
                shares[:, : busy.shape[1]] = busy * c.dp
                np.testing.assert_allclose(amount, shares[:, : t.bins + 2], rtol=1e-6, atol=1e-9)
                since += service_s(q, c)


def as_lines(t):
    """A plan that says of every candidate's engine what one with it would, and nothing else."""
    lines = [
        ConfigurationLine.model_construct(
            model=t.case.models[x.model], gpu=t.case.gpu_types[x.gpu], tp=x.tp, pp=x.pp, dp=x.dp,
            attention_ranks=x.ranks, batch=x.batch, stage=x.stage, engine=_engine(x, 1.0, np.zeros(len(CAPACITIES))),
        ) for x in t.configurations
    ]  # fmt: skip
    return OrchestrationPlan.model_construct(configurations=lines)


def test_a_start_takes_what_those_in_time_take():
    """Of a class half has prompts that no engine prefills in time: what starts is as short as the other half."""
    requests = {"rows": {
        "arrival_s": [float(i) for i in range(8)], "output_tokens": [20] * 8, "model": ["mistral-7b"] * 8,
        "prompt_tokens": [500, 12_000] * 4, "slo_factor": [9.0] * 8,
    }}  # fmt: skip
    one_class = {"requests": requests, "bins": {"seconds": 4, "lengths": 1, "slo": 1}, "engine": {"waits": 0.5}}
    problem = load(two_models(10, **one_class | ENGINES | H100 | {"candidates": {"tp": [1], "batch": [1]}}))
    t = build_tables(problem)
    ((c, x),) = [(i, x) for i, x in enumerate(t.configurations) if t.case.models[x.model] == "mistral-7b"]
    (k,) = np.flatnonzero(t.classes.model == x.model)
    assert t.share[k, c] == pytest.approx(0.5)
    one = Taken.by(x.engine, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 1)
    assert t.first_s[k, c] == pytest.approx(x.engine.sees.first_s[0])
    assert t.service_s[k, c] == pytest.approx(one.service_s[0])
    assert t.taken[c].load[WAITING, k] == pytest.approx(x.engine.load[WAITING, 0])
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
    assert all("-w" not in i.name for _, x in single for i in x.plan.instances)
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
    assert len(paths) == 20
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
            tampered["configurations"][j]["engine"]["max_num_seqs"] = 1
            assert any("max_num_seqs" in v.requirement for v in check(problem, tampered).violations)
    crowded = load(document("two models", 240) | {"slo": {"shortfall_penalty": 0.1}, "latency": {"model": "roofline"}})
    assert not check(crowded, plan).ok
    tampered = copy.deepcopy(plan)
    started = tampered["shares"]["started"]
    b = int(np.argmax(started))
    for column in ("admitted", "started"):
        tampered["shares"][column][b] *= 1000
    assert any(v.requirement.split(" of ")[0] in CAPACITIES for v in check(problem, tampered).violations)


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


def test_pipelines_are_refused_with_the_reason():
    t = build_tables(load(document("two models") | {
        "candidates": {"tp": [1], "pp": [1, 2], "batch": [8, 300]}, "engine": {"max_num_seqs": 256}}))  # fmt: skip
    reasons = {d.reason for d in t.discarded}
    assert any("pipelines" in r for r in reasons)


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
        load(two_models(4, **served, **more, memory=m))
        for m in ({"runtime_gib": 1.6}, {"vram_usable": 0.8, "runtime_gib": 0.0})
    )
    a, b = build_tables(given), build_tables(less)
    assert [d.reason for d in a.discarded] == [d.reason for d in b.discarded]
    without = load(two_models(4, **served, **more, memory={"runtime_gib": 0.0}))
    assert len(a.discarded) > len(build_tables(without).discarded)
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
    assert known["sources"][0]["tpot_at_most"] == known["sources"][0]["ttft_at_most"] == 1.0
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
    assert "Mean latencies within the SLO" in text and "of 30 s" in text
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
    text = shown(document).partition("Mean latencies within the SLO")[2]
    rows = [k for k in range(30) if f"c{k} " in text]
    left = len([c for c in document["plan"]["classes"] if c["ttft_s"] is not None]) - 8
    assert f"({left} classes with more slack not shown)" in text and rows == list(range(len(rows))) and rows
