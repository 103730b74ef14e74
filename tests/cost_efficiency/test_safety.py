"""`latency.safety` in an instance: latencies inflated by the calibration's held-back residual quantile."""

from __future__ import annotations

import pytest

import optmodels
from optmodels.errors import InputError

COEFFICIENTS = [
    {"phase": "prefill", "slope": 2.0, "residual_quantiles": {"0.5": 1.0, "0.9": 1.5, "0.95": 3.0}},
    {"phase": "decode", "slope": 1.5, "residual_quantiles": {"0.5": 1.0, "0.9": 1.2, "0.95": 1.25}},
]


def instance(latency: dict, **slo: float) -> dict:
    return {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "safety", "model": "opt-6.7b",
        "workload": {"batch": 4, "input_tokens": 256, "output_tokens": 128},
        "slo": {"kind": "real_time", "tps": 1, "ttft_s": "100 s", "tpot_s": "100 s"} | slo,
        "pool": {"catalog": "llm-pilot-table-vii", "include": ["g6e.2xlarge"]},
        "strategies": {"families": ["high_end"], "replicas": [1]}, "latency": latency,
    }  # fmt: skip


def prediction(safety: float | None) -> dict:
    latency: dict = {"calibration": {"coefficients": COEFFICIENTS}}
    if safety is not None:
        latency["safety"] = safety
    result = optmodels.solve(instance(latency))
    assert result.check is not None
    assert result.check.ok  # the checker applies the margin on its own
    assert result.plan is not None
    return result.plan["prediction"]


@pytest.mark.parametrize(("safety", "prefill", "decode"), [(0.5, 1.0, 1.0), (0.9, 1.5, 1.2), (0.91, 3.0, 1.25)])
def test_latencies_grow_by_the_next_stored_quantile(safety, prefill, decode):
    central, safe = prediction(None), prediction(safety)
    assert safe["ttft_s"] == pytest.approx(prefill * central["ttft_s"])
    assert safe["tpot_s"] == pytest.approx(decode * central["tpot_s"])


def test_a_safe_plan_is_held_to_the_slo_with_its_margin():
    tpot_s = 1.1 * prediction(None)["tpot_s"]
    calibration = {"coefficients": COEFFICIENTS}
    assert optmodels.solve(instance({"calibration": calibration}, tpot_s=tpot_s)).status == "optimal"
    assert optmodels.solve(instance({"calibration": calibration, "safety": 0.9}, tpot_s=tpot_s)).status == "infeasible"


def test_a_level_the_data_do_not_support_is_refused():
    with pytest.raises(InputError, match=r"latency\.safety.*0\.99"):
        prediction(0.99)


def test_safety_needs_a_calibration():
    with pytest.raises(InputError, match="a calibration or a model with safety"):
        optmodels.load(instance({"safety": 0.9}))


def test_a_calibration_without_residuals_supports_no_level():
    with pytest.raises(InputError, match="residuals"):
        optmodels.solve(instance({"calibration": "llm-pilot-table-viii", "safety": 0.9}))


def test_a_calibration_that_omits_the_gpu_supports_no_level():
    other = [c | {"gpu": "h100"} for c in COEFFICIENTS]
    with pytest.raises(InputError, match="covers prefill on GPU l40s"):
        optmodels.solve(instance({"calibration": {"coefficients": other}, "safety": 0.9}))
