"""A limit on the time between tokens of a closed-loop run."""

from typing import Any

import pytest

import optmodels
from formulations.cost_efficiency.replay import replay
from optmodels.errors import InputError
from optmodels.simulation.options import ReplayOptions


def instance(itl: Any, **changes: Any) -> dict[str, Any]:
    slo = {"kind": "real_time", "tps": 3000, "ttft_s": 3.0, "tpot_s": 0.05}
    return {
        "formulation": "cost_efficiency", "schema": 1, "name": "itl", "model": "llama-3.1-8b",
        "workload": {"batch": 64, "input_tokens": 2000, "output_tokens": 300},
        "slo": slo | ({} if itl is None else {"itl_s": itl}), "serving": "continuous",
        "latency": {"model": "default", "engine": "vllm"},
        "pool": {"machines": [
            {"machine": "a", "gpu": "h100", "gpu_count": 1, "vram_gib": 80, "prices": {"on_demand": 2.0}},
        ]},
        "markets": {"main": ["on_demand"]}, **changes,
    }  # fmt: skip


def test_a_tighter_limit_takes_more_engines_and_the_replay_keeps_it():
    limit = {"at_most": 0.06, "percentile": 0.95}
    free, tight = optmodels.solve(instance(None)), optmodels.solve(instance(limit))
    assert free.check.ok and tight.check.ok and tight.plan["usd_per_hour"] > free.plan["usd_per_hour"]
    stated = next(line for line in tight.plan["limits"] if line["name"] == "ITL")
    assert 0 < stated["value"] <= stated["limit"] == 0.06
    assert any("ITL" in said for said in tight.summary["slo"])
    problem = optmodels.load(instance(limit))
    found = replay(problem, tight.plan, None, ReplayOptions(policy="spread"))
    (kept,) = [row for row in found["promises"] if row["promise"].startswith("ITL p95")]
    assert kept["kept"] and 0.4 * stated["value"] < kept["replayed"] <= stated["value"]
    document = tight.model_dump(mode="json", by_alias=True)
    next(line for line in document["plan"]["limits"] if line["name"] == "ITL")["value"] *= 0.9
    assert not optmodels.check(document).ok


def test_static_batches_have_none():
    with pytest.raises(InputError) as refused:
        optmodels.load(instance(0.1, serving="static")).resolve()
    assert any(m.path == "slo.itl_s" for m in refused.value.mistakes)


@pytest.mark.parametrize("limit", [0.001, {"at_most": 0.001, "percentile": 0.9}])
def test_answers_of_one_token_have_no_time_between_tokens(limit: Any) -> None:
    """A limit on its mean was "infeasible, proved", and the check of a plan without any ended with a traceback."""
    workload = {"batch": 8, "input_tokens": 2000, "output_tokens": 1}
    slo = {"kind": "real_time", "tps": 10.0, "ttft_s": 3.0, "tpot_s": 0.05}
    free, found = (optmodels.solve(instance(None, workload=workload, slo=slo | x)) for x in ({}, {"itl_s": limit}))
    assert found.status == "optimal" and found.check.ok and found.objective == free.objective
