"""Prefill and decode apart in a closed loop: brute force over levels and counts, the check's verdict, a simulation."""

from __future__ import annotations

import copy
import heapq
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from best_steps import with_best

import optmodels
from formulations.cost_efficiency.apart import End, fewest, loop_rate
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.deploy import deployments
from formulations.cost_efficiency.points import WAITS
from formulations.cost_efficiency.problem import CostEfficiency
from formulations.cost_efficiency.replay import replay
from formulations.cost_efficiency.show import summary
from optmodels.errors import InputError
from optmodels.latency.memory import kv_bytes
from optmodels.latency.work import layer_work
from optmodels.plan.engines import Request, at_level, capacities, latencies
from optmodels.serving.continuous import Coefficients, levels_of_loads, seconds_and_quantile
from optmodels.serving.engine import engine_costs
from optmodels.serving.levels import LOADS

APART = {"stages": ["prefill", "decode"], "link": {"net_gbps": 20, "latency_s": 0.01, "most_used": 0.4}}


def instance(**changes: Any) -> CostEfficiency:
    """Two machines of unlike GPUs; limits on the 90th percentiles."""
    data: dict[str, Any] = {
        "formulation": "cost_efficiency", "schema": 1, "name": "loop", "model": "llama-3.1-8b",
        "workload": {"batch": 150, "input_tokens": 1500, "output_tokens": 100},
        "slo": {"kind": "real_time", "tps": 4000, "ttft_s": {"at_most": 4.0, "percentile": 0.9},
                "tbt_s": {"at_most": 0.07, "percentile": 0.9}},
        "pool": {"machines": [
            {"machine": "small", "gpu": "l4", "gpu_count": 1, "vram_gib": 24,
             "prices": {"on_demand": 0.8, "reserved_1y": 0.5}},
            {"machine": "pair", "gpu": "l40s", "gpu_count": 2, "vram_gib": 96, "prices": {"on_demand": 3.6}},
        ]},
        "markets": {"main": ["on_demand", "reserved_1y"]}, "serving": "continuous", "latency": {"model": "roofline"},
        "strategies": {"families": ["high_end"], "tensor_parallel": [1, 2]}, "deployment": APART,
    }  # fmt: skip
    return CostEfficiency.model_validate(data | changes)


def before(deadline: Any) -> dict[str, Any]:
    """The SLO of `instance` with a deadline."""
    limits = {k: {"at_most": v, "percentile": 0.9} for k, v in (("ttft_s", 4.0), ("tbt_s", 0.07))}
    return {"kind": "real_time", "tps": 4000, **limits, "deadline_s": deadline}


def routed(ranks: list[int], **changes: Any) -> dict[str, Any]:
    """A model with routed experts, on machines of four GPUs whose engines have so many attention ranks."""
    pool = {"machines": [
        {"machine": "quad", "gpu": "l40s", "gpu_count": 4, "vram_gib": 192, "prices": {"on_demand": 7.2}},
    ]}  # fmt: skip
    strategies = {"families": ["high_end"], "tensor_parallel": [1, 2], "attention_ranks": ranks}
    return {"model": "deepseek-v2-lite", "pool": pool, "strategies": strategies} | changes


@pytest.fixture(autouse=True)
def few_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brute force takes its time."""
    monkeypatch.setattr("optmodels.serving.levels.LOADS", LOADS[::6])


def sides(problem: CostEfficiency, stage: Any, left_s: float = math.inf) -> list[dict[str, Any]]:
    """Every machine, TP, ranks and level of a stage in plain numbers.

    `left_s`: of the deadline, for prefill with its wait.
    """
    case, w, slo, link = problem.resolve(), problem.workload, problem.slo, problem.deployment.link
    assert slo.kind == "real_time"
    head = sum(s.head or 0.0 for s in problem.engine.speculation)  # whose cache goes with the model's
    sent = (1 + head) * float(kv_bytes(layer_work(case.architecture, "fp16", "fp16"), 1, 1.0, w.input_tokens))
    found = []
    for i, m in enumerate(case.machines):
        several = problem.strategies.attention_ranks if case.architecture.routed else (1,)
        for tp, ranks in product(problem.strategies.tensor_parallel, several):
            if m.gpu_count % (tp * ranks):
                continue
            net = (link.net_gbps or m.net_gbps or 0) * 1e9 / 8
            if not net:
                continue
            limits, dp = problem.engine, m.gpu_count // (tp * ranks)
            e = engine_costs(problem.engines(case), limits, case.gpus[m.gpu or ""], m.gpu or "", tp,
                             m.vram_gib / m.gpu_count, ranks)  # fmt: skip
            if e.kv_tokens <= 0:
                continue
            decode = stage == "decode"
            asked = Request(w.input_tokens, 0.0 if decode else w.input_tokens, w.output_tokens if decode else 1.0, 1.0)
            moved = sent / (net * (1 - link.most_used)) + (0.0 if decode else link.latency_s)

            steps = levels_of_loads([e.costs], LOADS[::6])[0]
            for t in with_best(steps, limits, e, asked, 0.07, 0.9, stage, moved):
                level = at_level(limits, e.costs, e.kv_tokens, {"": asked}, t, stage, ranks)
                if level is None:
                    continue
                r, per = level.requests[""], dp / 1.0
                for most, share in ((None, 1.0),) if decode else product((4.0, None), WAITS):
                    none, one = (latencies(level, r, t, wait, most, limits.max_num_seqs, e.slower, e.costs.request_s,
                                           (0.9, 0.9, None)) for wait in (0.0, 1.0))  # fmt: skip
                    q = seconds_and_quantile(slo.deadline_s)[1]
                    late, later = (latencies(level, r, t, wait, most, limits.max_num_seqs, e.slower,
                                             e.costs.request_s, (q, 0.9, q)) for wait in (0.0, 1.0))  # fmt: skip
                    wait, ttft, e2e = 0.0, 0.0, 0.0
                    if decode:
                        mean = latencies(level, r, t, 0.0, most, limits.max_num_seqs, e.slower, e.costs.request_s,
                                         (None, None, None))[0]  # fmt: skip
                        joins = t + moved + e.costs.request_s
                        e2e, whole = none[2] - mean + joins, late[2] - late[0] + joins
                        if none[1] + joins / (w.output_tokens - 1) > 0.07:
                            continue
                    else:
                        longest = min((4.0 - none[0] - moved) / (one[0] - none[0]), 30.0)
                        wait = share * min(longest, (left_s - late[2] - moved) / (later[2] - late[2]))
                        if wait <= 0:
                            continue
                        e2e = none[2] + wait * (one[2] - none[2]) + moved
                        whole = late[2] + wait * (later[2] - late[2]) + moved
                    takes = capacities(level, t, wait, most, limits.max_num_seqs, {"": moved})[""]
                    rate = min(per / max(takes.values()), link.most_used * net / sent)
                    if rate > 0:
                        found.append({"machine": i, "tp": tp, "rate": rate, "alone": r.steps * level.fixed, "net": net,
                                      "work": r.work / per, "e2e": e2e, "whole": whole, "sent": sent,
                                      "ttft": ttft})  # fmt: skip
    return found


def cheapest(problem: CostEfficiency, up_to: int) -> tuple[float, float]:
    """USD/h and E2E of the best pair: every two levels, every two counts."""
    case, w, link = problem.resolve(), problem.workload, problem.deployment.link
    price = [min(p for k in problem.markets.main if (p := m.prices.get(k)) is not None) for m in case.machines]
    best = (math.inf, math.inf)
    assert problem.slo.kind == "real_time"
    within, decoding = seconds_and_quantile(problem.slo.deadline_s)[0], sides(problem, "decode")
    for p, d in product(sides(problem, "prefill", within - min(d["whole"] for d in decoding)), decoding):
        if p["whole"] + d["whole"] > within * (1 + 1e-9):
            continue
        if link.tensor_parallel == "equal" and p["tp"] != d["tp"]:
            continue
        e2e, least = p["e2e"] + d["e2e"], link.latency_s + p["sent"] / p["net"] + d["sent"] / d["net"]
        if w.batch * (w.input_tokens + w.output_tokens) / e2e < problem.slo.tps:
            continue
        n = np.arange(1.0, up_to + 1)[:, None]  # that prefill; of those that decode, along the other axis
        x = np.minimum(n * p["rate"], n.T * d["rate"])  # requests/s: transfers alone, each stage's steps by (S1)
        held = x * (least + p["alone"] / (1 - x * p["work"] / n) + d["alone"] / (1 - x * d["work"] / n.T))
        usd = np.where(held >= w.batch, n * price[p["machine"]] + n.T * price[d["machine"]], math.inf).min()
        best = min(best, (float(usd), e2e))
    return best


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"deployment": APART | {"link": {"net_gbps": 4, "latency_s": 0.0, "tensor_parallel": "equal"}}},
        {"workload": {"batch": 20, "input_tokens": 300, "output_tokens": 300}},
        {"engine": {"speculation": [{"head": 0.1, "drafts": 3, "acceptance": 0.7}]}},
        {"slo": before(5.0)},
        {"slo": before({"at_most": 6.0, "percentile": 0.95})},
        routed([2, 4]),
        routed([1, 2, 4]),
        routed([4], workload={"batch": 900, "input_tokens": 200, "output_tokens": 300}),
    ],
    ids=["long prompts", "a slow network", "long answers", "drafts", "mean deadline", "deadline", "several ranks",
         "any ranks", "four ranks"],
)  # fmt: skip
def test_exact_is_the_cheapest_by_brute_force(changes: dict[str, Any]) -> None:
    problem = instance(**changes)
    found = optmodels.solve(problem)
    assert found.plan is not None
    assert found.check is not None and found.check.ok, found.check
    usd, e2e = cheapest(problem, 60)
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] <= e2e * (1 + 1e-5)


def test_both_stages_keep_a_deadline_together() -> None:
    deadline = {"at_most": 6.0, "percentile": 0.95}
    loose, tight = (optmodels.solve(instance(slo=before(x))) for x in (None, deadline))
    assert loose.plan is not None and tight.plan is not None
    assert loose.plan["usd_per_hour"] < tight.plan["usd_per_hour"]
    report = check(instance(slo=before(deadline)), loose.plan)
    assert any("E2E ≤ SLO" in v.requirement for v in report.violations)


@pytest.mark.parametrize("method", ["enumerate", "config_tree"])
def test_other_methods_prove_the_same(method: str) -> None:
    problem = instance()
    assert optmodels.solve(problem, method=method).objective == pytest.approx(optmodels.solve(problem).objective)


def test_heuristics_find_plans_of_two_stages() -> None:
    problem = instance()
    best = optmodels.solve(problem).objective
    found = optmodels.solve(problem, method="greedy")
    assert found.check is not None and found.check.ok
    assert best is not None and found.objective is not None and found.objective <= best * (1 + 1e-9)


def test_the_fewest_of_both_stages_by_brute_force() -> None:
    """The fewest of one stage come with the fewest of the other, gaps in the allowed counts included."""
    rng = np.random.default_rng(5)
    none = 0
    for _ in range(300):
        counts = np.sort(rng.choice(np.arange(1, 40), rng.integers(1, 20), replace=False))
        rate, alone = rng.uniform(0.5, 5.0, 2), rng.uniform(0.1, 3.0, 2)
        work = rng.uniform(0.1, 0.95, 2) / rate
        least, asked = float(rng.uniform(0.0, 0.5)), float(rng.integers(5, 150))
        ends = [End(*(np.array([x]) for x in each)) for each in zip(rate, alone, work, strict=True)]
        found = [int(n[0]) for n in fewest(ends[0], ends[1], np.array([least]), asked, counts)]
        able = []
        for n, m in product(counts.tolist(), counts.tolist()):
            x = min(n * rate[0], m * rate[1])
            if x * (least + alone[0] / (1 - x * work[0] / n) + alone[1] / (1 - x * work[1] / m)) >= asked:
                able.append((n, m))
        assert found == ([min(n for n, _ in able), min(m for _, m in able)] if able else [0, 0])
        none += not able
    assert 0 < none < 200  # some have none


def test_counts_are_those_allowed() -> None:
    """Listed counts leave gaps: the fewest of those listed, of both stages."""
    free = optmodels.solve(instance()).plan
    listed = optmodels.solve(instance(strategies={
        "families": ["high_end"], "tensor_parallel": [1, 2], "replicas": [4, 9, 40]})).plan  # fmt: skip
    assert free is not None and listed is not None
    assert {m["count"] for m in listed["machines"]} <= {4, 9, 40}
    assert listed["usd_per_hour"] >= free["usd_per_hour"]


def test_both_and_apart_is_the_better_of_the_two() -> None:
    costs = [optmodels.solve(instance(deployment=APART | {"stages": stages})).plan for stages in (
        ["both"], ["prefill", "decode"], ["both", "prefill", "decode"])]  # fmt: skip
    together, apart, either = (math.inf if p is None else p["usd_per_hour"] for p in costs)
    assert either == pytest.approx(min(together, apart))
    assert apart < together  # prompts of 1,500 tokens lengthen the steps of who decodes beside them


def test_together_is_todays_answer() -> None:
    data = instance().model_dump(exclude_unset=True)
    data.pop("deployment")
    one, two = (optmodels.solve(CostEfficiency.model_validate(x)) for x in (
        data, data | {"deployment": {"stages": ["both"]}}))  # fmt: skip
    assert one.plan == two.plan


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("decode", "engine", "step_s"), 1.05), (("decode", "requests_per_s"), 1.1), (("decode", "gb_per_s"), 0.9),
        (("decode", "tensor_parallel"), 2), (("engine", "wait_s"), 0.5), (("machines", 1, "count"), 2),
        (("prediction", "e2e_s"), 0.9), (("decode", "engine", "capacities", "transfer"), 0.5),
    ],
    ids=str,
)  # fmt: skip
def test_the_check_recomputes_both_stages(path: tuple[Any, ...], value: float) -> None:
    problem = instance()
    plan = copy.deepcopy(SOLVED.setdefault("plan", optmodels.solve(problem).plan))
    at = plan
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = type(at[path[-1]])(at[path[-1]] * value)
    assert not check(problem, plan).ok


SOLVED: dict[str, Any] = {}


def test_too_few_machines_are_noticed() -> None:
    problem = instance()
    plan = optmodels.solve(problem).plan
    assert plan is not None
    more = instance(workload={"batch": 600, "input_tokens": 1500, "output_tokens": 100})
    report = check(more, plan | {"batch_split": [600]})
    assert any("what there is" in v.requirement or "requests" in v.requirement for v in report.violations)


def test_roles_reach_the_engines() -> None:
    problem = instance()
    plan = optmodels.solve(problem).plan
    assert plan is not None
    first, second = deployments(problem, plan).deployments
    assert (first.stage, second.stage) == ("prefill", "decode")
    assert "attention_ranks" not in plan and "attention_ranks" not in plan["decode"]  # of one rank, as ever
    assert (first.machines, second.machines) == tuple(m["count"] for m in plan["machines"])
    assert first.machine == plan["machines"][0]["machine"] and second.machine == plan["machines"][1]["machine"]


def unlike() -> tuple[CostEfficiency, dict[str, Any]]:
    """A plan whose stages have unlike ranks: prompts of one rank, answers of four."""
    problem = instance(**routed([1, 4], workload={"batch": 2000, "input_tokens": 200, "output_tokens": 100}))
    plan = SOLVED.setdefault("unlike", optmodels.solve(problem).plan)
    assert plan is not None
    return problem, copy.deepcopy(plan)


def test_stages_may_have_unlike_ranks() -> None:
    problem, plan = unlike()
    assert "attention_ranks" not in plan and plan["decode"]["attention_ranks"] == 4
    assert check(problem, plan).ok
    first, second = deployments(problem, plan).deployments
    assert (first.attention_ranks, second.attention_ranks) == (1, 4)
    assert (second.tensor_parallel, second.replicas_per_machine) == (1, 1)
    found = optmodels.solve(problem)
    assert f"TP={plan['tensor_parallel']} and 1 × 4 attention ranks" in str(summary(found.model_dump())[0])
    equal = {"net_gbps": 20, "latency_s": 0.01, "most_used": 0.4, "tensor_parallel": "equal"}
    alike = optmodels.solve(instance(**routed([1, 4], workload=problem.workload.model_dump()),
                                     deployment={"stages": ["prefill", "decode"], "link": equal})).plan  # fmt: skip
    assert alike is not None and alike["tensor_parallel"] == alike["decode"]["tensor_parallel"]  # ranks may differ


@pytest.mark.parametrize(
    ("stage", "value"), [("decode", 2), ("decode", None), ("prefill", 4), ("prefill", 2)]
)  # fmt: skip
def test_the_check_knows_the_ranks_of_each_stage(stage: str, value: int | None) -> None:
    problem, plan = unlike()
    (plan if stage == "prefill" else plan["decode"])["attention_ranks"] = value
    assert not check(problem, plan).ok


def test_the_report_says_which_is_cheaper() -> None:
    problem = instance(deployment=APART | {"stages": ["both", "prefill", "decode"]})
    found = optmodels.solve(problem)
    stages = found.report["stages"]
    ratio = stages["apart"]["usd_per_million_tokens"] / stages["together"]["usd_per_million_tokens"]
    said = "\n".join(str(line) for line in summary(found.model_dump()))
    assert f"apart is {1 - ratio:.1%} cheaper per token" in said


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"deployment": {"stages": ["both", "prefill", "decode"]}}, "deployment.link.net_gbps"),
        ({"serving": "static", "slo": {"kind": "batch", "tps": 9}}, "deployment.stages"),
    ],
)
def test_what_says_nothing_is_refused(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match=path.replace(".", r"\.")):
        instance(**changes).resolve()


def closed_loop(problem: CostEfficiency, plan: dict[str, Any], ends: int) -> dict[str, np.ndarray]:
    """Every engine of a plan step by step, its users asking again as soon as they are answered: what requests see.

    Outputs are drawn around their mean, so that requests do not go in step with one another; each goes to the engine of
    a stage that has fewest.
    """
    rng, case, w, link = np.random.default_rng(3), problem.resolve(), problem.workload, problem.deployment.link
    sent = float(kv_bytes(layer_work(case.architecture, "fp16", "fp16"), 1, 1.0, w.input_tokens))
    costs, has, moved = [], [], []  # by engine, prefill first
    sides = [(plan["engine"], plan["tensor_parallel"], plan["replicas_per_machine"], plan["machines"][0])]
    d = plan["decode"]
    sides.append((d["engine"], d["tensor_parallel"], d["replicas_per_machine"], plan["machines"][1]))
    stage_of, room = [], []
    for stage, (line, tp, dp, bought) in enumerate(sides):
        m = next(m for m in case.machines if m.machine == bought["machine"])
        e = engine_costs(problem.engines(case), problem.engine, case.gpus[m.gpu or ""], m.gpu or "", tp,
                         m.vram_gib / m.gpu_count)  # fmt: skip
        moved.append(sent / ((link.net_gbps or 0) * 1e9 / 8 * (1 - link.most_used)) + link.latency_s * (stage == 0))
        for _ in range(bought["count"] * dp):
            costs.append(e.costs)
            stage_of.append(stage)
            room.append(line["max_num_batched_tokens"])
            has.append([])
    coming = [0] * len(costs)  # requests on their way to an engine or in it
    running: list[list[Any]] = [[] for _ in costs]
    seen: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": [], "ended": []}
    events: list[tuple[float, int, str, int, Any]] = []
    number = 0

    def at(when: float, what: str, engine: int, request: Any = None) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, what, engine, request))

    def send(when: float, stage: int, request: dict[str, float]) -> None:
        engine = min((e for e, s in enumerate(stage_of) if s == stage), key=coming.__getitem__)
        coming[engine] += 1
        at(when, "comes", engine, request)

    def ask(now: float) -> None:
        low, high = w.output_tokens // 2, w.output_tokens * 3 // 2 + 1
        send(now, 0, {"came": now, "left": w.input_tokens, "made": 0, "wants": int(rng.integers(low, high))})

    def step(now: float, e: int) -> None:
        if running[e] or not has[e]:
            return
        if stage_of[e]:
            running[e] = [(r, 0) for r in has[e]]
            seconds = costs[e].step(np.zeros(0), np.zeros(0), np.array([w.input_tokens + r["made"] for r in has[e]]))
        else:
            free = room[e]
            for r in has[e]:
                if free > 0:
                    running[e].append((r, min(r["left"], free)))
                    free -= running[e][-1][1]
            tokens = np.array([n for _, n in running[e]], float)
            earlier = np.array([w.input_tokens - r["left"] for r, _ in running[e]], float)
            seconds = costs[e].step(tokens, earlier, np.zeros(0))
        at(now + float(seconds), "ends", e)

    for _ in range(w.batch):
        ask(float(rng.uniform(0, 5)))
    while len(seen["e2e"]) < ends:
        now, _, what, e, request = heapq.heappop(events)
        if what == "comes":
            has[e].append(request)
        else:
            for r, tokens in running[e]:
                r["left"] -= tokens
                r["made"] += stage_of[e] or r["left"] == 0
                if stage_of[e] == 0 and r["left"] == 0:
                    has[e].remove(r)
                    coming[e] -= 1
                    r["first"] = now
                    seen["ttft"].append(now - r["came"] + moved[0] + costs[e].request_s)
                    send(now + sum(moved), 1, r)
                elif stage_of[e] and r["made"] >= r["wants"]:
                    has[e].remove(r)
                    coming[e] -= 1
                    seen["tpot"].append((now - r["first"] - moved[0]) / (r["made"] - 1))
                    seen["e2e"].append(now - r["came"] + costs[e].request_s)
                    seen["ended"].append(now)
                    ask(now)
            running[e] = []
        step(now, e)
    return {k: np.array(v)[2 * w.batch :] for k, v in seen.items()}


def test_a_closed_loop_keeps_what_the_plan_promises() -> None:
    problem = instance()
    plan = optmodels.solve(problem).plan
    assert plan is not None
    seen, promised = closed_loop(problem, plan, 1500), plan["prediction"]
    assert np.quantile(seen["ttft"], 0.9) <= promised["ttft_s"]
    assert np.quantile(seen["tpot"], 0.9) <= promised["tbt_s"]
    assert 0.6 * promised["e2e_s"] <= seen["e2e"].mean() <= promised["e2e_s"]
    rate = len(seen["ended"]) / np.ptp(seen["ended"])
    assert 0.6 * plan["decode"]["requests_per_s"] <= rate <= plan["decode"]["requests_per_s"] * 1.02


def test_a_loop_of_few_users_touches_few_experts_and_turns_faster_than_its_levels() -> None:
    """A level's a₀ has the experts of its largest crowd: README.md says what that leaves of the loop's rate."""
    workload = {"batch": 12, "input_tokens": 3000, "output_tokens": 200}
    problem = instance(**routed([1], workload=workload))
    plan = optmodels.solve(problem).plan
    assert plan is not None
    seen = replay(problem, plan)
    rates = [at["requests_per_s"] for at in seen["policies"].values()]
    assert all(1.9 * plan["decode"]["requests_per_s"] < rate < fastest(problem, plan) for rate in rates)
    assert fastest(problem, plan) == pytest.approx(15.3, abs=0.05)  # in README.md
    assert all(promise["kept"] for promise in seen["promises"])


def fastest(problem: CostEfficiency, plan: dict[str, Any]) -> float:
    """The root of f with steps in which one token is computed, of engines with one rank whose prompts take one step."""
    case, w = problem.resolve(), problem.alike
    ends = []
    for stage, (line, bought) in enumerate(zip((plan, plan["decode"]), plan["machines"], strict=True)):
        tp, dp = line["tensor_parallel"], line["replicas_per_machine"]
        m = next(m for m in case.machines if m.machine == bought["machine"])
        e = engine_costs(problem.engines(case), problem.engine, case.gpus[m.gpu or ""], m.gpu or "", tp,
                         m.vram_gib / m.gpu_count)  # fmt: skip
        a, one = Coefficients.of(e.costs), np.ones(1)
        lengths, nothing = np.arange(w.input_tokens, w.input_tokens + w.output_tokens - 1.0), np.zeros(0)
        alone = (
            sum(e.costs.step(nothing, nothing, np.array([k])) - a.least_fixed_s for k in lengths) if stage
            else e.costs.step(one * w.input_tokens, 0 * one, nothing) - a.largest_fixed_s
        )  # fmt: skip
        steps, least = (len(lengths), a.least_fixed_s) if stage else (1, a.least_fixed_s + a.prompt_step_s)
        ends.append(End(np.array((1 - 1e-9) / alone * dp), np.array(steps * least), np.array(alone / dp)))
    sent, net = problem.transfer_bytes(case), problem.network(case.machines[0])
    counts = plan["machines"][0]["count"], plan["machines"][1]["count"]
    return loop_rate(*ends, problem.deployment.link.latency_s + 2 * sent / net, counts, w.batch)
