"""`latency.model` in an instance: plans at an engine's latencies in place of the hardware's peaks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import optmodels
from optmodels import catalog
from optmodels.errors import InputError
from optmodels.latency.engines.document import deployed
from optmodels.latency.engines.terms import ModelInstance
from optmodels.latency.resolve import engine_costs
from optmodels.latency.steps import static_batch

LLM, GPU, BATCH, S, OUT = "llama-3.1-8b", "l40s", 8, 512, 64


def instance(**latency: object) -> dict:
    return {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "level", "model": LLM,
        "workload": {"batch": BATCH, "input_tokens": S, "output_tokens": OUT},
        "slo": {"kind": "real_time", "tps": 1, "ttft_s": "100 s", "tpot_s": "100 s"},
        "pool": {"catalog": "llm-pilot-table-vii", "include": ["g6e.2xlarge"]},
        "strategies": {"families": ["high_end"], "replicas": [1]}, "latency": latency,
    }  # fmt: skip


def prediction(**latency: object) -> dict:
    result = optmodels.solve(instance(**latency))
    assert result.plan is not None and result.check is not None and result.check.ok, result.check
    return result.plan["prediction"]


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_latencies_are_those_of_the_engines_steps(engine: str) -> None:
    found = prediction(model="default", engine=engine)
    d = ModelInstance(catalog.llms()[LLM], LLM, catalog.gpus()[GPU], GPU, engine)
    costs, where = engine_costs(deployed(engine, GPU, LLM).source.at(d), S)
    first, decode = static_batch(costs, np.array([float(BATCH)]), S, OUT, 8192)
    assert found["ttft_s"] == pytest.approx(first[0])
    assert found["tpot_s"] == pytest.approx(decode[0])
    assert found["e2e_s"] == pytest.approx(first[0] + (OUT - 1) * decode[0])
    safe = prediction(model="default", engine=engine, safety=0.9)
    tpot, ttft = where.factors(0.9)
    assert safe["ttft_s"] == pytest.approx(ttft * found["ttft_s"])
    assert safe["tpot_s"] == pytest.approx(tpot * found["tpot_s"])


def test_without_a_model_and_at_the_roofline_plans_are_at_the_peaks_of_the_hardware() -> None:
    assert prediction(model="roofline") == prediction()
    assert prediction()["tpot_s"] < prediction(model="default")["tpot_s"]


def test_a_problem_written_out_holds_its_coefficients() -> None:
    problem = optmodels.load(instance(model="default", safety=0.5))
    alone = json.loads(problem.inline().model_dump_json(by_alias=True))
    assert alone["latency"]["model"][0]["title"] == "engine coefficients"
    assert optmodels.solve(alone).plan["prediction"] == prediction(model="default", safety=0.5)


def test_offloading_keeps_its_ratio_to_its_roofline() -> None:
    offload = {"families": ["kvo_ram"], "replicas": [1], "alpha": {"min": 0.2, "max": 0.2}}
    at_peak, levelled = (
        optmodels.solve(instance(**latency) | {"strategies": offload}).plan["prediction"]
        for latency in ({}, {"model": "default"})
    )
    ratio = prediction(model="default")["tpot_s"] / prediction()["tpot_s"]
    assert levelled["tpot_s"] == pytest.approx(ratio * at_peak["tpot_s"])


@pytest.mark.parametrize(("latency", "expected"), [
    ({"model": "default", "calibration": "llm-pilot-table-viii"}, "either a model or a calibration"),
    ({"model": "default", "variant": "paper"}, "variant: roofline beside a model"),
    ({"model": "default", "safety": 0.9999}, r"latency\.safety.*support"),
    ({"model": "roofline", "safety": 0.9}, "the error of latencies is unknown"),
    ({"model": "defualt"}, r"latency\.model"),
    ({"model": "default", "engine": "vlm"}, r"latency\.engine"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(latency: dict, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        optmodels.solve(instance(**latency))
