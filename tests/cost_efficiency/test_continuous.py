"""Cost efficiency with continuous batching: brute force over engines, the check's verdict, what is refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from best_steps import with_best
from loop_cases import TPOT, TTFT, instance

import optmodels
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.making import OF_BOUNDS
from formulations.cost_efficiency.points import WAITS, build_tables
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.errors import InputError
from optmodels.plan.engines import Request, at_level, capacities, latencies
from optmodels.serving.continuous import seconds_and_quantile
from optmodels.serving.engine import engine_costs
from optmodels.serving.levels import LOADS


def cheapest(problem: CostEfficiency) -> tuple[float, float]:
    """USD/h and mean E2E of the best deployment, level by level in plain numbers: the first beats the second."""
    case, w, slo = problem.resolve(), problem.workload, problem.slo
    best = (math.inf, math.inf)
    assert slo.kind == "real_time"
    within, quantile = seconds_and_quantile(slo.deadline_s)
    for m in case.machines:
        for tp in (t for t in problem.strategies.tensor_parallel if m.gpu_count % t == 0):
            of, limits = problem.engines(case), problem.engine
            e = engine_costs(of, limits, case.gpus[m.gpu or ""], m.gpu or "", tp, m.vram_gib / m.gpu_count)
            request = Request(w.input_tokens, w.input_tokens, w.output_tokens, 1.0)
            fixed = e.costs.fixed_s + e.costs.prompt_step_s + (e.costs.experts.all_s if e.costs.experts else 0.0)
            for t in with_best(fixed / (1 - LOADS), limits, e, request, 0.12, 0.9):
                level = at_level(limits, e.costs, e.kv_tokens, {"": request}, t)
                if level is None:
                    continue
                r = level.requests[""]
                for most in (4.0, None):
                    seen = [latencies(level, r, t, wait, most, limits.max_num_seqs, e.slower, e.costs.request_s,
                                      (0.9, 0.9, None)) for wait in (0.0, 1.0)]  # fmt: skip
                    late = [latencies(level, r, t, wait, most, limits.max_num_seqs, e.slower, e.costs.request_s,
                                      (0.9, 0.9, quantile))[2] for wait in (0.0, 1.0)]  # fmt: skip
                    longest = min((3.0 - seen[0][0]) / (seen[1][0] - seen[0][0]), 30.0)
                    longest = min(longest, (within - late[0]) / (late[1] - late[0]))
                    if seen[0][1] > 0.12 or longest <= 0:
                        continue
                    for share in WAITS:
                        wait = share * longest
                        rate = 1 / max(capacities(level, t, wait, most, limits.max_num_seqs)[""].values())
                        running = math.floor(rate * r.steps * level.fixed / (1 - rate * r.work) + 1e-9)
                        count = next((n for n in range(1, 61) if n * (m.gpu_count // tp) * running >= w.batch), None)
                        e2e = seen[0][2] + wait * (seen[1][2] - seen[0][2])
                        if count and w.batch * (w.input_tokens + w.output_tokens) / e2e >= slo.tps:
                            price = m.prices.on_demand
                            assert price is not None
                            best = min(best, (count * price, e2e))
    return best


DRAFTS = {
    "max_num_seqs": 64, "max_num_batched_tokens": 4096,
    "speculation": [{"model": "llama-3.1-8b", "drafts": 3, "acceptance": 0.7, "head": 0.05}],
}  # fmt: skip


def before(deadline: Any) -> dict[str, Any]:
    """The SLO of `instance` with a deadline."""
    return {"kind": "real_time", "tps": 200, "ttft_s": TTFT, "tbt_s": TPOT, "deadline_s": deadline}


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {}}, {"engine": DRAFTS}, {"slo": before(4.0)}, {"slo": before({"at_most": 4.0, "percentile": 0.95})},
        {"slo": before({"at_most": 3.0, "percentile": 0.99}), "engine": DRAFTS},
    ],
    ids=["plain", "drafts", "mean deadline", "deadline", "drafts, deadline"],
)  # fmt: skip
def test_exact_is_the_cheapest_by_brute_force(changes: dict[str, Any]) -> None:
    problem = instance(**changes)
    found = optmodels.solve(problem)
    assert found.plan is not None
    assert found.check is not None and found.check.ok
    usd, e2e = cheapest(problem)
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] == pytest.approx(e2e, rel=5e-5)  # the best level is found by halving


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({"serving": "static", "latency": {}}, "engine.speculation", "none but with serving: continuous"),
        ({"model": "mistral-7b"}, "engine.speculation[0].model", "a model of this instance"),
        ({"engine": {"speculation": [{"drafts": 1, "accepted": 1, "draft": "lama"}]}}, "[0].draft", "of the catalogue"),
    ],
)
def test_drafts_that_nobody_makes_are_refused(changes: dict[str, Any], path: str, expected: str) -> None:
    slo = {"kind": "real_time", "tps": 200, "ttft_s": 3.0, "tbt_s": 0.12}
    with pytest.raises(InputError) as caught:
        instance(**({"engine": DRAFTS, "slo": slo} | changes)).resolve()
    assert any(path in m.path and expected in m.expected for m in caught.value.mistakes), caught.value


def test_a_deadline_costs_what_it_shortens() -> None:
    """None and one that nothing comes near are the same plan; a percentile costs no less than the mean of as many s."""

    def best(deadline: Any) -> dict[str, Any]:
        found = optmodels.solve(instance(slo=before(deadline)))
        assert found.plan is not None and found.check is not None and found.check.ok, deadline
        return found.plan

    none, loose, mean, late = map(best, (None, 1000.0, 4.0, {"at_most": 4.0, "percentile": 0.95}))
    assert none == loose | {"limits": [line for line in loose["limits"] if line["name"] != "E2E"]}
    assert none["usd_per_hour"] < mean["usd_per_hour"] <= late["usd_per_hour"]
    assert none["prediction"]["e2e_s"] > 4.0
    said = {line["name"]: line for line in late["limits"]}["E2E"]
    assert late["prediction"]["e2e_s"] < said["value"] <= said["limit"] == 4.0
    report = check(instance(slo=before(4.0)), none)
    assert any("E2E ≤ SLO" in v.requirement for v in report.violations)
    wrong = copy.deepcopy(late)
    next(line for line in wrong["limits"] if line["name"] == "E2E")["value"] *= 0.9
    assert not check(instance(slo=before({"at_most": 4.0, "percentile": 0.95})), wrong).ok


@pytest.mark.parametrize("percentile", [0.3, 0.5, 0.55, 0.62, 0.64, 0.8, 0.999])
def test_the_check_knows_every_percentile(percentile: float) -> None:
    limits = {k: {"at_most": v, "percentile": percentile}
              for k, v in (("ttft_s", 3.0), ("tbt_s", 0.12), ("deadline_s", 8.0))}  # fmt: skip
    found = optmodels.solve(instance(slo={"kind": "real_time", "tps": 200, **limits}))
    assert found.check is not None and found.check.ok, found.check.violations


def test_a_deadline_that_nothing_keeps_is_said() -> None:
    found = optmodels.solve(instance(slo=before(0.1)))
    assert found.plan is None and found.status == "infeasible"


@pytest.mark.parametrize(("ttft_s", "status"), [({"at_most": 1.0, "percentile": 0.95}, "infeasible"), (1.0, "optimal")])
def test_levels_that_miss_the_slo_are_said_to_be_bounds(ttft_s: Any, status: str) -> None:
    one = {"batch": 1, "input_tokens": 4000, "output_tokens": 4}
    found = optmodels.solve(instance(workload=one, slo={"kind": "real_time", "tps": 1, "ttft_s": ttft_s, "tbt_s": 5}))
    assert found.status == status
    of_all = f"small, large, pair: at no level within the SLO has it room for the requests in flight{OF_BOUNDS}"
    assert found.log.get("reason", "") == ("" if status == "optimal" else f"no candidate in the pool: {of_all}")


@pytest.mark.parametrize("method", ["enumerate", "config_tree", "greedy_dp"])
def test_other_methods_know_the_same_candidates(method: str) -> None:
    problem = instance()
    assert optmodels.solve(problem, method=method).objective == pytest.approx(optmodels.solve(problem).objective)


def test_no_static_technique_is_offered() -> None:
    problem = instance(strategies={"families": ["high_end", "multi_pass", "kvo_ram", "ao"]})
    assert set(build_tables(problem).configurations.family.tolist()) == {0}


@pytest.mark.parametrize(
    ("path", "value"),
    [("step_s", 1.02), ("wait_s", 1.5), ("kv_tokens", 1.1), ("max_num_batched_tokens", 2), ("max_num_seqs", 2)],
)
def test_the_check_recomputes_the_engine(path: str, value: float) -> None:
    problem = instance()
    found = optmodels.solve(problem)
    assert found.plan is not None
    plan = copy.deepcopy(found.plan)
    plan["engine"][path] = type(plan["engine"][path])(plan["engine"][path] * value)
    assert not check(problem, plan).ok


def test_more_in_flight_than_the_level_takes_is_noticed() -> None:
    found = optmodels.solve(instance())
    assert found.plan is not None
    report = check(instance(workload={"batch": 600, "input_tokens": 500, "output_tokens": 120}),
                             found.plan | {"batch_split": [600]})  # fmt: skip
    assert any("what there is" in v.requirement for v in report.violations)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"latency": {"calibration": "of-batches.yaml"}}, "latency.model"),
        ({"serving": "static"}, "slo.ttft_s"),
        ({"serving": "static", "slo": before({"at_most": 9.0, "percentile": 0.9})}, "slo.deadline_s"),
        ({"strategies": {"families": ["kvo_ram"]}}, "strategies.families"),
    ],
)
def test_what_says_nothing_is_refused(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match=path.replace(".", r"\.")):
        instance(**changes).resolve()


def test_a_longer_ttft_limit_loses_nothing():
    """What keeps 1 s keeps 8 s, 32 s and no limit at all: each optimum is as good, but for the step of waits."""
    workload = {"batch": 64, "input_tokens": 300, "output_tokens": 20}

    def best(slo: dict[str, Any]) -> float:
        found = optmodels.solve(instance(objective="uncapped", workload=workload, slo=slo))
        assert found.status == "optimal" and found.objective is not None
        return found.objective

    tight = best({"kind": "real_time", "tps": 100.0, "ttft_s": 1.0, "tbt_s": 1.0})
    for limit in (8.0, 32.0):
        assert best({"kind": "real_time", "tps": 100.0, "ttft_s": limit, "tbt_s": 1.0}) > 0.98 * tight
    assert best({"kind": "batch", "tps": 100.0}) > 0.98 * tight
