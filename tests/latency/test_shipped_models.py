"""What the catalogue ships: every file loads, says where it is from and how wrong it is, and predicts."""

from pathlib import Path

import numpy as np
import pytest

from optmodels import catalog
from optmodels.errors import InputError
from optmodels.latency.calibration import Calibration, calibrate
from optmodels.latency.fit.document import LatencyModel, read_latency_model
from optmodels.latency.strategies import BatchModel, Hardware
from optmodels.latency.work import layer_work


@pytest.mark.parametrize("name", catalog.latency_models())
def test_model(name):
    model = read_latency_model(Path(name))
    assert model.source and model.date and model.title
    assert model.gpu in catalog.gpus() and model.llm in catalog.llms()  # or no plan could carry it over
    assert model.engine == ("trtllm" if "TensorRT-LLM" in model.title else "vllm")
    for target, found in model.targets.items():
        assert found.cross_validated.mape < 0.35 and found.residual_quantiles["0.9"] >= 1
        middle = {k: np.array([low, (low + high) / 2, high]) for k, (low, high) in model.domain.items()}
        if "decode_requests" in middle:
            middle["decode_requests"][0] = 1.0  # not an empty step
        predicted = model.predict(middle, target)
        assert (predicted > 0).all() and (model.predict(middle, target, safety=0.9) >= predicted).all()
        assert model.extrapolation(middle) == ()


@pytest.mark.parametrize("name", catalog.calibrations())
def test_calibration(name):
    c = Calibration.model_validate(catalog.calibration_document(name))
    assert c.source and c.date
    if c.model is None:
        pytest.skip("typed in from a paper: no measurements of our own behind it")
    LatencyModel.model_validate(c.model)
    assert all(k.residual_quantiles for k in c.coefficients)


def test_safety_inflates_calibrated_curves():
    n = 2
    one = np.ones(n)
    hw = Hardware(one, 1e15 * one, 3e12 * one, 8e10 * one, 6e10 * one, one, one, 4e11 * one, one, one)
    curves = BatchModel(layer_work(catalog.llms()["llama-3.1-8b"]), 512, 128).resident(hw, np.array([1.0, 8.0]), one)
    c = Calibration.model_validate(
        {"coefficients": [
            {"phase": "prefill", "slope": 2.0, "residual_quantiles": {"0.9": 1.1}},
            {"phase": "decode", "slope": 3.0, "intercept_s": 0.001, "residual_quantiles": {"0.9": 1.5, "0.95": 2.0}},
        ]}
    )  # fmt: skip
    names = (["h100"] * n, ["high_end"] * n)
    plain, safe = calibrate(curves, c, *names), calibrate(curves, c, *names, safety=0.9)
    zero = np.zeros(n)
    np.testing.assert_allclose(safe.ttft(zero), 1.1 * plain.ttft(zero))
    np.testing.assert_allclose(safe.tbt(zero), 1.5 * plain.tbt(zero))
    with pytest.raises(InputError, match=r"latency\.safety.*at most 0\.9"):
        calibrate(curves, c, *names, safety=0.95)  # prefill keeps no such quantile
    only = Calibration.model_validate(
        {"coefficients": [{"phase": "prefill", "slope": 2.0, "residual_quantiles": {"0.9": 1.1}}]}
    )
    with pytest.raises(InputError, match="its error is unknown"):
        calibrate(curves, only, *names, safety=0.9)
