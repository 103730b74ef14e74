"""Prefill and decode apart in a closed loop: brute force over levels and counts, the check's verdict, a simulation."""

from __future__ import annotations

import copy
import math
from itertools import product
from typing import Any

import numpy as np
import pytest

import optmodels
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.deploy import deployments
from formulations.cost_efficiency.points import WAITS
from formulations.cost_efficiency.problem import CostEfficiency
from formulations.cost_efficiency.show import summary
from optmodels.errors import InputError
from optmodels.latency.memory import kv_bytes
from optmodels.latency.work import layer_work
from optmodels.plan.engines import Request, at_level, capacities, latencies
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


@pytest.fixture(autouse=True)
def few_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brute force takes its time."""
    monkeypatch.setattr("optmodels.serving.levels.LOADS", LOADS[::6])


def sides(problem: CostEfficiency, stage: Any) -> list[dict[str, Any]]:
    """Every machine, TP and level of a stage in plain numbers."""
    case, w, slo, link = problem.resolve(), problem.workload, problem.slo, problem.deployment.link
    assert slo.kind == "real_time"
    sent = float(kv_bytes(layer_work(case.architecture, "fp16", "fp16"), 1, 1.0, w.input_tokens))
    found = []
    for i, m in enumerate(case.machines):
        for tp in (t for t in problem.strategies.tensor_parallel if m.gpu_count % t == 0):
            net = (link.net_gbps or m.net_gbps or 0) * 1e9 / 8
            if not net:
                continue
            limits, dp = problem.engine, m.gpu_count // tp
            e = engine_costs(problem.engines(case), limits, case.gpus[m.gpu or ""], m.gpu or "", tp,
                             m.vram_gib / m.gpu_count)  # fmt: skip
            decode = stage == "decode"
            asked = Request(w.input_tokens, 0.0 if decode else w.input_tokens, w.output_tokens if decode else 1.0, 1.0)
            moved = sent / (net * (1 - link.most_used)) + (0.0 if decode else link.latency_s)
            for load in LOADS[::6]:
                t = (e.costs.fixed_s + e.costs.prompt_step_s) / (1 - load)
                level = at_level(limits, e.costs, e.kv_tokens, {"": asked}, t, stage)
                if level is None:
                    continue
                r, per = level.requests[""], dp / 1.0
                for most, share in ((None, 1.0),) if decode else product((4.0, None), WAITS):
                    none, one = (latencies(level, r, t, wait, most, limits.max_num_seqs, e.slower, e.costs.request_s,
                                           (0.9, 0.9, None)) for wait in (0.0, 1.0))  # fmt: skip
                    wait, ttft, e2e = 0.0, 0.0, 0.0
                    if decode:
                        mean = latencies(level, r, t, 0.0, most, limits.max_num_seqs, e.slower, e.costs.request_s,
                                         (None, None, None))[0]  # fmt: skip
                        joins = t + moved + e.costs.request_s
                        e2e = none[2] - mean + joins
                        if none[1] + joins / (w.output_tokens - 1) > 0.07:
                            continue
                    else:
                        wait = share * min((4.0 - none[0] - moved) / (one[0] - none[0]), 30.0)
                        if wait <= 0:
                            continue
                        e2e = none[2] + wait * (one[2] - none[2]) + moved
                    takes = capacities(level, t, wait, most, limits.max_num_seqs, {"": moved})[""]
                    rate = min(per / max(takes.values()), link.most_used * net / sent)
                    if rate > 0:
                        found.append({"machine": i, "tp": tp, "rate": rate, "alone": r.steps * level.fixed, "net": net,
                                      "work": r.work / per, "e2e": e2e, "sent": sent, "ttft": ttft})  # fmt: skip
    return found


def cheapest(problem: CostEfficiency, up_to: int) -> tuple[float, float]:
    """USD/h and E2E of the best pair: every two levels, every two counts."""
    case, w, link = problem.resolve(), problem.workload, problem.deployment.link
    price = [min(p for k in problem.markets.main if (p := m.prices.get(k)) is not None) for m in case.machines]
    best = (math.inf, math.inf)
    for p, d in product(sides(problem, "prefill"), sides(problem, "decode")):
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
    ],
    ids=["long prompts", "a slow network", "long answers"],
)
def test_exact_is_the_cheapest_by_brute_force(changes: dict[str, Any]) -> None:
    problem = instance(**changes)
    found = optmodels.solve(problem)
    assert found.plan is not None
    assert found.check is not None and found.check.ok, found.check
    usd, e2e = cheapest(problem, 60)
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] <= e2e * (1 + 1e-5)


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
    assert (first.machines, second.machines) == tuple(m["count"] for m in plan["machines"])
    assert first.machine == plan["machines"][0]["machine"] and second.machine == plan["machines"][1]["machine"]


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
