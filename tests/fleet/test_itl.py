"""A limit on the time between tokens: planned, checked, predicted, replayed, and a reason to disaggregate."""

from typing import Any

import pytest

import optmodels
from formulations.fleet.replay import replay
from optmodels.errors import InputError
from optmodels.simulation.options import ReplayOptions


def instance(itl: Any, **changes: Any) -> dict[str, Any]:
    slo = {"tpot_s": 0.05, "ttft_s": {"at_most": 1.5, "percentile": 0.95}}
    return {
        "formulation": "fleet", "schema": 1, "name": "itl", "serving": "continuous",
        "latency": {"model": "default", "engine": "vllm"},
        "workloads": [{
            "name": "chat", "model": "llama-3.1-8b", "slo": slo | ({} if itl is None else {"itl_s": itl}),
            "buckets": [{"input_tokens": 2000, "output_tokens": 300, "requests_per_s": 8.0},
                        {"input_tokens": 400, "output_tokens": 60, "requests_per_s": 4.0}],
        }],
        "pool": {"machines": [{
            "machine": "a", "gpu": "h100", "gpu_count": 1, "vram_gib": 80, "net_gbps": 400,
            "prices": {"on_demand": 2.0},
        }]},
        "markets": {"main": ["on_demand"]}, **changes,
    }  # fmt: skip


LIMIT = {"at_most": 0.09, "percentile": 0.95}


@pytest.fixture(scope="module")
def solved() -> Any:
    return optmodels.solve(instance(LIMIT))


def shares(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for d in plan["periods"][0]["deployments"] for s in d["serves"]]


def test_a_plan_keeps_the_limit_and_says_so(solved):
    assert solved.check.ok
    assert all(0 < s["itl_s"] <= 0.09 * (1 + 1e-9) for s in shares(solved.plan))
    said = "; ".join(solved.summary["slo"])
    assert "ITL p95" in said and "TPOT mean" in said
    free = optmodels.solve(instance(None))
    assert all(s.get("itl_s") is None for s in shares(free.plan))
    assert free.objective <= solved.objective


def test_replayed_times_between_tokens_are_within_it_and_near_the_prediction(solved):
    problem = optmodels.load(instance(LIMIT))
    at_rates = {x["demand"]: x["itl_s"] for x in solved.report["predicted"]}
    found = replay(problem, solved.plan, None, ReplayOptions(policy="random"))
    for row in found["demands"]:
        assert row["itl_within"] >= 0.95 and row["itl_replayed_s"] <= row["itl_planned_s"] <= row["itl_limit_s"] + 1e-12
        assert at_rates[row["demand"]] == pytest.approx(row["itl_replayed_s"], rel=0.15)
    assert found["policies"]["random"]["itl_s"]["p95"] > found["policies"]["random"]["itl_s"]["p50"]


@pytest.mark.parametrize("factor", [0.9, None])
def test_the_check_recomputes_it(solved, factor):
    document = solved.model_dump(mode="json", by_alias=True)
    share = document["plan"]["periods"][0]["deployments"][0]["serves"][0]
    share["itl_s"] = None if factor is None else share["itl_s"] * factor
    found = optmodels.check(document)
    assert not found.ok and "ITL" in str(found.violations)


def test_engines_that_only_decode_keep_tighter_limits_for_less():
    tight = {"at_most": 0.03, "percentile": 0.99}
    both = optmodels.solve(instance(tight))
    apart = optmodels.solve(instance(tight, deployment={"stages": ["both", "prefill", "decode"]}))
    assert apart.check.ok and apart.plan is not None
    assert both.plan is None or apart.objective < both.objective
    of_stage = {d["stage"]: d["serves"] for d in apart.plan["periods"][0]["deployments"]}
    assert all(s.get("itl_s") is None for s in of_stage["prefill"])
    assert all(s["itl_s"] <= 0.03 * (1 + 1e-9) for s in of_stage["decode"])


def test_a_limit_that_no_step_with_prompts_keeps_names_the_chunk():
    found = optmodels.solve(instance({"at_most": 0.002, "percentile": 0.95}))
    assert found.plan is None
    assert "max_num_batched_tokens" in str(found.model_dump(mode="json"))


def test_static_batches_have_none():
    data = instance(LIMIT, serving="static")
    with pytest.raises(InputError) as refused:
        optmodels.load(data).resolve()
    assert any(m.path == "workloads[0].slo.itl_s" for m in refused.value.mistakes)
