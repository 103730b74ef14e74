"""Step costs for simulators and plans from a model fitted to measured steps (``calibrate --form steps``).

Steps are measured as the sum of their kernels, or by a loop around one forward pass. An engine does more for every
request that runs: sampling, building batches, turning tokens into text. `HOST_REQUEST_S` is that, as 2,622 rows of
closed-loop runs state it (`latency.engines`: 15 µs a running request). With it, and nothing fitted to them, 300 public
requests to vLLM are replayed to 1 % in mean TTFT (`benchmarks/engine_simulator.py`).
"""

from __future__ import annotations

from dataclasses import replace

from optmodels.errors import InputError, Mistake
from optmodels.latency.fit.document import LatencyModel
from optmodels.latency.fit.forms import STEPS
from optmodels.latency.steps import Experts, StepCosts

HOST_REQUEST_S = 15e-6
_FIELDS = {
    "fixed": "fixed_s",
    "prefill_fixed": "prompt_step_s",
    "prefill_tokens": "prompt_token_s",
    "prompt_pairs": "prompt_pair_s",
    "chunk_kv": "prompt_context_s",
    "decode_tokens": "decode_request_s",
    "pure_kv": "context_s",
    "mixed_kv": "mixed_context_s",
}


def step_costs(model: LatencyModel, host_request_s: float = HOST_REQUEST_S) -> StepCosts:
    """Costs of a step on the deployment that was measured, and the engine's own work around it.

    Args:
        model: model of the family ``steps``.
        host_request_s: seconds of a step for each request that decodes, next to the measured step.

    Raises:
        InputError: a model of another family.
    """
    if model.model != STEPS:
        expected = "steps: fitted by calibrate --form steps to measured steps"
        raise InputError(Mistake(None, "model", f"{model.model} from {model.measured} measurements", expected))
    tp = model.domain.get("tp", (1.0, 1.0))[0]
    value = {c.name: c.value for c in model.targets["latency_s"].segments[0].terms}
    seconds = {field: value.get(name, 0.0) for name, field in _FIELDS.items()}
    for name, field in _FIELDS.items():
        if name not in ("fixed", "prefill_fixed"):
            seconds[field] /= tp
    seconds["decode_request_s"] += host_request_s
    reference = model.reference
    moe = reference.architecture.moe if reference is not None else None
    all_s = value.get("experts", 0.0) / tp
    experts = Experts(all_s, moe.experts, moe.active) if moe is not None else None
    return replace(StepCosts(0.0, experts=experts), **seconds)  # type: ignore[arg-type]
