"""Fitted models as costs of a step: what they predict comes back, transfers are named, what is no sum is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from optmodels import catalog
from optmodels.errors import InputError
from optmodels.latency.convert import closed_loop_step, convert
from optmodels.latency.engines.terms import ModelInstance
from optmodels.latency.fit.document import LatencyModel
from optmodels.latency.resolve import Source, read_source, resolve, roofline_costs
from optmodels.latency.steps import StepCosts
from optmodels.problem import Problem

NONE = np.zeros(0)
SERVED, STEPS, EXPERTS = "h100-qwen3-32b-fp8-served", "rtxpro6000-llama-3.1-8b-bf16-tp1-steps", "qwen3-235b-a22b"


class Instance(Problem):
    """A problem with nothing in it."""

    def resolve(self) -> None: ...
    def inline(self) -> Instance:
        return self


def document(**over: Any) -> dict[str, Any]:
    """A model of steps that is a sum over requests, by hand."""
    terms = {"fixed": 0.01, "tokens": 1e-4, "decode_kv": 2e-7, "prefill_attention": 3e-9, "chunk_attention": 6e-9}
    found: dict[str, Any] = {
        "model": "additive", "measured": "step", "title": "by hand", "gpu": "h100", "llm": "llama-3.1-8b",
        "targets": {"latency_s": {
            "segments": [{"terms": [{"name": n, "value": v} for n, v in terms.items()]}],
            "in_sample": {"rows": 9, "r2": 1.0, "mape": 0, "p50": 0, "p90": 0, "p99": 0, "bias": 0},
            "residual_quantiles": {"0.5": 1.0, "0.9": 1.25},
        }},
        "domain": {"prefill_tokens": [0, 2048], "prefill_context_tokens": [0, 8192], "decode_requests": [0, 128],
                   "decode_context_tokens": [0, 8192], "tp": [1, 1]},
    }  # fmt: skip
    return found | over


def deployment(llm: str = "llama-3.1-8b", gpu: str = "h100", **over: Any) -> ModelInstance:
    return ModelInstance(catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, **{"engine": "vllm"} | over)


def source(*documents: dict[str, Any], engine: Any = "vllm") -> Source:
    return read_source(
        Instance(formulation="none", schema=1), tuple(LatencyModel.model_validate(d) for d in documents), engine
    )


def test_sums_over_requests_come_back_as_they_are() -> None:
    costs, where = resolve(source(document()), deployment())
    known = StepCosts(0.01, prompt_token_s=1e-4, prompt_pair_s=6e-9, decode_request_s=1e-4, context_s=2e-7,
                      mixed_context_s=2e-7)  # fmt: skip
    for step in (
        (np.array([500.0]), np.zeros(1), np.array([900.0, 80.0])), (NONE, NONE, np.array([7000.0])),
        (np.array([2000.0]), np.zeros(1), NONE),
    ):  # fmt: skip
        assert costs.step(*step) == pytest.approx(known.step(*step))
    assert (where.model, where.transfer) == ("by hand", ())
    assert where.factors(0.9) == pytest.approx((1.25, 1.25))


def test_contexts_cost_more_in_steps_with_prompts_where_measured_so() -> None:
    shipped = LatencyModel.model_validate(catalog.latency_model_document(STEPS))
    found = convert(shipped, 1, 1000.0, roofline_costs(deployment()))
    assert found.costs.context_s == pytest.approx(0.09e-6, rel=0.05)  # as design notes have it from the same rows
    assert found.costs.mixed_context_s == pytest.approx(0.17e-6, rel=0.2)
    central, widened = (
        shipped.targets["latency_s"].residual_quantiles["0.9"],
        dict(found.quantiles("latency_s", shipped)),
    )
    assert widened[0.9] > central  # hinges are no sums over requests


def test_mean_steps_of_a_closed_loop_come_back() -> None:
    for name, llm, tp in ((SERVED, "qwen3-32b", 2), ("h100-qwen3-235b-a22b-fp8-served", EXPERTS, 4)):
        shipped = LatencyModel.model_validate(catalog.latency_model_document(name))
        at_peak = roofline_costs(deployment(llm, precision="fp8", gpus=tp))
        costs = convert(shipped, tp, 1000.0, at_peak).costs
        C, S, out = np.array([8.0, 64.0, 16.0]), np.array([1000.0, 500.0, 3000.0]), np.array([500.0, 200.0, 700.0])
        values = {"concurrency": C, "input_tokens": S, "output_tokens": out, "tp": np.full(3, float(tp))}
        assert closed_loop_step(costs, C, S, out) == pytest.approx(shipped.predict(values, "tpot_s"), rel=0.01)


def test_a_lone_request_waits_for_its_own_prompt_alone() -> None:
    shipped = LatencyModel.model_validate(catalog.latency_model_document(SERVED))
    costs = convert(shipped, 1, 2000.0, roofline_costs(deployment("qwen3-32b", precision="fp8"))).costs
    value = {t.name: t.value for t in shipped.targets["ttft_s"].segments[0].terms}
    alone = value["first_fixed"] + 2000 * (value["prompt"] + value["prompt_host"]) + 4e6 * value["prompt_attention"]
    assert costs.request_s + costs.step(np.array([2000.0]), np.zeros(1), NONE) == pytest.approx(alone)


def test_scaled_models_scale_the_time_at_peak() -> None:
    terms = {"roofline_decode": 1.5, "roofline_prefill": 2.0, "offset_decode": 0.004, "offset_prefill": 0.05}
    segment = {"terms": [{"name": n, "value": v} for n, v in terms.items()]}
    scaled = document(model="scaled", measured="static", domain={"tp": [1, 1]})
    scaled["targets"]["latency_s"] |= {"segments": [segment]}
    peak, (costs, _) = roofline_costs(deployment()), resolve(source(scaled), deployment())
    assert costs.fixed_s == pytest.approx(1.5 * peak.fixed_s + 0.004)
    assert costs.context_s == pytest.approx(1.5 * peak.context_s)
    assert costs.prompt_token_s == pytest.approx(2.0 * peak.prompt_token_s)
    assert costs.prompt_step_s == 0.05


def test_the_entry_that_fits_best_is_taken() -> None:
    here, faster = document(), document(title="tp 2", domain=document()["domain"] | {"tp": [2, 2]})
    other = document(title="other gpu", gpu="l4")
    both = source(other, here, faster)
    assert resolve(both, deployment())[1].model == "by hand"
    assert resolve(both, deployment(gpus=2))[1].model == "tp 2"
    assert resolve(both, deployment(gpu="l4"))[1].model == "other gpu"


def test_elsewhere_a_model_is_carried_over_and_named() -> None:
    slow = document(gpu="h100")
    at_home, _ = resolve(source(slow), deployment())
    default = read_source(Instance(formulation="none", schema=1), "default")
    for other in (deployment(gpu="l4"), deployment("mistral-7b"), deployment(gpus=2), deployment(precision="fp8")):
        costs, where = resolve(source(slow), other)
        theirs, known = resolve(default, other)
        assert len(where.transfer) == 1 and "carried over" in where.notes[0]
        assert where.factors(0.9) >= known.factors(0.9)  # the interval of what was not measured
        ratio = costs.decode_request_s / theirs.decode_request_s
        assert costs.fixed_s == pytest.approx(ratio * theirs.fixed_s)
        there = at_home.decode_request_s / resolve(default, deployment())[0].decode_request_s
        assert 0.3 * there < ratio < 3.0 * there  # one ratio for all of a decoding step
    named = {resolve(source(slow), d)[1].transfer for d in (deployment(gpu="l4"), deployment(gpus=2))}
    assert named == {("gpu",), ("parallelism",)}
    assert "gpu h100 for l4" in resolve(source(slow), deployment(gpu="l4"))[1].notes[0]


def test_what_was_measured_on_is_needed_to_carry_it_over() -> None:
    with pytest.raises(InputError, match=r"by hand.*gpu.*names of what it was measured on"):
        resolve(source(document(gpu=None)), deployment())


@pytest.mark.parametrize("over", [
    {"model": "decay", "measured": "served", "terms": ("base_tokens_per_s", "delta", "epsilon")},
    {"model": "scaled", "measured": "pairs", "terms": ("predicted_s", "offset")},
])  # fmt: skip
def test_what_is_no_sum_over_requests_is_refused(over: dict[str, Any]) -> None:
    terms, kind = [{"name": n, "value": 1.0} for n in over.pop("terms")], over["measured"]
    (target,) = document()["targets"].values()
    over["targets"] = {"tpot_s" if kind == "served" else "latency_s": target | {"segments": [{"terms": terms}]}}
    with pytest.raises(InputError, match="a sum over its requests"):
        resolve(source(document(**over)), deployment())


def test_files_hold_one_model_or_several_or_coefficients(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(document()))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({"models": [document(), document(gpu="l4")]}))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(catalog.engine_model_document("default") | {"title": "mine"}))
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({"models": [document(model="additve")]}))
    problem = Instance(formulation="none", schema=1)
    problem._folder = tmp_path
    assert len(read_source(problem, "one.yaml").models) == 1
    two = read_source(problem, "two.yaml")
    assert [m.gpu for m in two.models] == ["h100", "l4"]
    alone = read_source(Instance(formulation="none", schema=1), two.documents)
    assert resolve(alone, deployment()) == resolve(two, deployment())
    own = read_source(problem, "own.yaml")
    assert own.coefficients is not None and own.coefficients.title == "mine" and own.models == ()
    assert read_source(problem, SERVED).models[0].llm == "qwen3-32b"
    with pytest.raises(InputError, match=r"additve"):
        read_source(problem, "bad.yaml")
    with pytest.raises(InputError, match=r"latency\.model.*none\.yaml.*existing file"):
        read_source(problem, "none.yaml")
    with pytest.raises(InputError, match="did you mean default"):
        read_source(problem, "defalt")
