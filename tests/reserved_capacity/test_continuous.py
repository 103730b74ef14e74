"""Throughput of machines that batch continuously: brute force over levels, reach, the check, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from best_steps import with_best

import optmodels
from formulations.reserved_capacity.check import check
from formulations.reserved_capacity.problem import ReservedCapacity
from formulations.reserved_capacity.throughput import hardware_of, on_engines
from optmodels import catalog, formulation
from optmodels.errors import InputError
from optmodels.plan.engines import Request, at_level, capacities, latencies
from optmodels.serving.engine import engine_costs
from optmodels.serving.levels import LOADS

SLO = {
    "ttft_s": {"at_most": 0.8, "percentile": 0.9}, "tbt_s": {"at_most": 0.1, "percentile": 0.9}, "queue_s": 0.1,
}  # fmt: skip


def instance(slo: dict[str, Any] = SLO, rtt_ms: float = 90.0, **changes: Any) -> ReservedCapacity:
    day = {"west": [20.0, 60.0, 10.0], "east": [60.0, 15.0, 30.0]}
    return ReservedCapacity.model_validate({
        "formulation": "reserved_capacity", "schema": 1, "name": "two",
        "regions": [{"region": r, "utc_offset_h": 0} for r in day],
        "network": {"rtt_ms": {"west": {"east": rtt_ms}}, "local_rtt_ms": 5.0},
        "services": [{
            "service": "chat", "slo": slo,
            "demand": {"kind": "inline", "unit": "requests_per_second", "by_region": day},
            "workload": {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 128},
        }],
        "machines": [
            {"machine": "box", "gpu": "l40s", "gpu_count": 2, "prices": {"on_demand": 3.0, "reserved_1y": 2.0}},
        ],
        "terms": ["reserved_1y", "on_demand"], "serving": "continuous", "latency": {"model": "roofline"},
    } | changes)  # fmt: skip


def most(problem: ReservedCapacity) -> tuple[float, float]:
    """Most requests/s of a machine that reaches both regions, level by level in plain numbers, and its TTFT."""
    service, level = problem.services[0], problem.level()
    assert service.workload is not None and level is not None and level.engine is not None
    gpu, gpus, vram = hardware_of(problem.machines[0])
    of, limits, best = on_engines(service, level), level.engine, (0.0, 0.0)
    for tp in (1, 2):
        e = engine_costs(of, limits, catalog.gpus()[gpu or ""], gpu or "", tp, vram)
        fixed = e.costs.fixed_s + e.costs.prompt_step_s
        request = Request(512, 512, 128, 1.0)
        for t in with_best(fixed / (1 - LOADS), limits, e, request, 0.1, 0.9):
            at = at_level(limits, e.costs, e.kv_tokens, {"": request}, t)
            if at is None:
                continue
            for of_wait in (4.0, None):
                (first, tpot, _), (later, _, _) = (
                    latencies(at, at.requests[""], t, wait, of_wait, limits.max_num_seqs, e.slower, e.costs.request_s,
                              (0.9, 0.9, None)) for wait in (0.0, 1.0)
                )  # fmt: skip
                wait = 0.1 / (later - first)
                if tpot > 0.1 or 0.005 + 0.1 + first > 0.8:
                    continue
                rate = gpus // tp / max(capacities(at, t, wait, of_wait, limits.max_num_seqs)[""].values())
                best = max(best, (rate, first))
    return best


DRAFTS = {
    "max_num_seqs": 64, "max_num_batched_tokens": 4096,
    "speculation": [{"drafts": 3, "acceptance": 0.7, "draft": "qwen3-0.6b"}],
}  # fmt: skip


@pytest.mark.parametrize("engine", [{}, DRAFTS], ids=["plain", "drafts"])
def test_a_machine_serves_what_brute_force_finds(engine: dict[str, Any]) -> None:
    problem = instance(engine=engine)
    case = problem.resolve()
    rate, first = most(problem)
    assert case.requests_per_second[0, 0] == pytest.approx(rate, rel=5e-5)  # the best level is found by halving
    assert case.prefill_s[0, 0] == pytest.approx(first, rel=5e-5)


def test_a_level_that_reaches_more_users_wins() -> None:
    near = instance().resolve()
    far = instance(machines=[
        {"machine": "box", "gpu": "l40s", "gpu_count": 2, "regions": ["west"], "prices": {"reserved_1y": 2.0}}
    ], terms=["reserved_1y"], rtt_ms=1000 * (0.8 - 0.1 - 0.6 * float(near.prefill_s[0, 0]))).resolve()  # fmt: skip
    assert far.prefill_s[0, 0] <= 0.6 * near.prefill_s[0, 0]
    assert far.requests_per_second[0, 0] < near.requests_per_second[0, 0]
    assert far.allowed.any(axis=(2, 3)).all()


def test_plans_are_checked_and_say_how_to_run_the_engines() -> None:
    problem = instance()
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    (line,) = found.plan["serving"]
    assert max(line["engine"]["capacities"].values()) == pytest.approx(1.0)
    made = formulation.get("reserved_capacity").deployments(problem, found.plan)
    assert {d.max_num_batched_tokens for d in made.deployments} == {line["engine"]["max_num_batched_tokens"]}
    bought = {(p.region, p.count) for p in made.purchases}
    assert {(d.region, d.machines) for d in made.deployments} == bought
    for path, factor in (
        ("requests_per_second", 1.01),
        ("ttft_s", 0.9),
        ("wait_s", 0.5),
        ("tpot_s", 0.9),
        ("e2e_s", 2),
    ):
        wrong = copy.deepcopy(found.plan)
        wrong["serving"][0][path] *= factor
        assert not check(problem, wrong).ok, path
    for path in ("step_s", "wait_s", "kv_tokens"):
        wrong = copy.deepcopy(found.plan)
        wrong["serving"][0]["engine"][path] *= 1.05
        assert not check(problem, wrong).ok, path


def test_inlined_it_says_the_same() -> None:
    problem = instance()
    again = ReservedCapacity.model_validate(problem.inline().model_dump(mode="json", by_alias=True))
    assert np.array_equal(again.resolve().requests_per_second, problem.resolve().requests_per_second)
    assert optmodels.solve(again).plan["serving"] == optmodels.solve(problem).plan["serving"]


@pytest.mark.parametrize(
    ("slo", "serving", "path"),
    [
        (SLO | {"queue_s": 0.0}, "continuous", "queue_s"),
        (SLO, "static", "ttft_s"),
        ({"ttft_s": 0.8, "tbt_s": 0.1}, "continuous", "queue_s"),
    ],
)
def test_limits_that_say_nothing_are_refused(slo: dict[str, Any], serving: str, path: str) -> None:
    with pytest.raises(InputError, match=rf"services\[0\]\.slo\.{path}"):
        instance(slo, serving=serving).resolve()
