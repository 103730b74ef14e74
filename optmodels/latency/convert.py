"""A model fitted to measurements as the costs of a step: its predictions over its range, put into sums over requests.

A fitted model is asked for what its measurements were (single steps, whole static batches, the mean step of a closed
loop) on a grid over the range it was fitted on, at the deployment's tensor parallelism; non-negative least squares on
relative errors finds the costs that give these. Terms that are sums over requests come back as they are; hinges and
the longest context of a step, which are none, leave an error, which is measured on the grid, stated, and added to the
interval. A `scaled` model gives times at the peaks of the catalogue its slopes and intercepts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake
from optmodels.latency.engines.terms import CHUNK_TOKENS
from optmodels.latency.fit.document import LatencyModel, columns
from optmodels.latency.fit.forms import STEPS
from optmodels.latency.fit.loads import Values
from optmodels.latency.fit.steps import step_costs
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts, static_batch

LINEAR = (
    "fixed_s", "prompt_step_s", "prompt_token_s", "prompt_pair_s", "prompt_context_s", "decode_request_s", "context_s",
)  # fmt: skip
SHARES = (0.0, 0.1, 0.3, 1.0)  # of the longest context that a chunk was measured over
OWN_PROMPT = ("first_fixed", "first_shard", "prompt", "prompt_host", "prompt_comm", "prompt_attention")
SUMS = ("additive", "two_segment", "linear_batch")


@dataclass(frozen=True)
class Converted:
    """Costs, and how far the model lies from them on the grid.

    Attributes:
        costs: seconds of a step.
        ratio: model/costs, (n,).
    """

    costs: StepCosts
    ratio: Array

    def quantiles(self, target: str, model: LatencyModel) -> tuple[tuple[float, float], ...]:
        """Level → quantile of measured/costs: the model's own, times its distance's quantile where that is above 1."""
        found = {float(level): q for level, q in model.targets[target].residual_quantiles.items()}
        return tuple((level, q * max(1.0, float(np.quantile(self.ratio, level)))) for level, q in sorted(found.items()))


def convert(
    model: LatencyModel, tp: int, prompt_tokens: float, at_peak: StepCosts, path: str = "latency.model"
) -> Converted:
    """Costs of a step from a fitted model.

    Args:
        model: fitted to steps, static batches or closed-loop runs.
        tp: GPUs of the deployment that share a request.
        prompt_tokens: typical length of a prompt.
        at_peak: times at the peaks of the deployment's GPU; its experts and windows are the LLM's.
        path: path of the model in the instance.

    Raises:
        InputError: a model that is no sum over requests, or of pairs of predictions.
    """
    if model.measured == "pairs" or model.model not in (*SUMS, STEPS, "scaled"):
        expected = (
            f"{', '.join(SUMS)}, {STEPS} or scaled, from steps, batches or closed loops: what a step takes as a sum "
            "over its requests (MS(1)'s decay is a rate of full batches; coefficients from pairs go into "
            "latency.calibration)"
        )
        raise InputError(Mistake(None, path, f"{model.model} from {model.measured}", expected))
    if model.model == "scaled":
        return _scaled(model, at_peak)
    if model.model == STEPS:
        return Converted(replace(step_costs(model), window=at_peak.window), np.ones(1))
    experts, window = at_peak.experts, at_peak.window
    values, each = _grid(model, tp, experts, window)
    target = {"served": "tpot_s"}.get(model.measured, "latency_s")
    predicted = model.predict(values, target)
    names = [name for name in each if np.any(each[name])]
    X = np.stack([each[name] for name in names], axis=1)
    found = _nonnegative(X, predicted)
    costs = _with(StepCosts(0.0, window=window), dict(zip(names, found.tolist(), strict=True)), experts)
    if "mixed_context_s" not in names:
        costs = replace(costs, mixed_context_s=costs.context_s)
    if model.measured == "served" and "ttft_s" in model.targets:
        S = float(np.clip(prompt_tokens, *model.domain.get("input_tokens", (prompt_tokens, prompt_tokens))))
        ttft = _alone(model, tp, S)
        own = costs.step(np.array([S]), np.zeros(1), np.zeros(0))
        costs = replace(costs, request_s=max(0.0, ttft - own))
    if not (costs.prompt_token_s or costs.prompt_pair_s):  # states nothing of prompts
        costs = replace(costs, prompt_token_s=at_peak.prompt_token_s, prompt_pair_s=at_peak.prompt_pair_s)
    return Converted(costs, predicted / (X @ found))


def _alone(model: LatencyModel, tp: int, prompt_tokens: float) -> float:
    """Seconds to the first token of a lone request: what its own prompt takes, and nothing of a concurrency."""
    one = np.ones(1)
    values = {"concurrency": one, "input_tokens": prompt_tokens * one, "output_tokens": one, "tp": tp * one}
    terms = [t for segment in model.targets["ttft_s"].segments for t in segment.terms if t.name in OWN_PROMPT]
    X = columns(tuple(t.name for t in terms), "served", values, model.reference)
    return float(X[0] @ [t.value for t in terms]) if terms else 0.0


def _with(costs: StepCosts, seconds: dict[str, Any], experts: Experts | None) -> StepCosts:
    if experts is not None:
        costs = replace(costs, experts=replace(experts, all_s=seconds.pop("experts", 0.0)))
    return replace(costs, **seconds)


def _nonnegative(X: Array, seconds: Array) -> Array:
    """Least squares on relative errors, coefficients ≥ 0."""
    from scipy.optimize import nnls

    A = X / seconds[:, None]
    scale = np.linalg.norm(A, axis=0)
    return nnls(A / scale, np.ones(len(A)))[0] / scale


def _scaled(model: LatencyModel, at_peak: StepCosts) -> Converted:
    """LP(18): slopes on what prompts and decode steps take at peak, intercepts on every step that does it."""
    value: dict[str, float] = {}
    for target in model.targets.values():
        for segment in target.segments:
            value |= {c.name: c.value for c in segment.terms if c.value > 0 or c.name not in value}
    prefill, decode = value.get("roofline_prefill", 1.0), value.get("roofline_decode", 1.0)
    costs = replace(
        at_peak.scaled(decode),
        fixed_s=decode * at_peak.fixed_s + value.get("offset_decode", 0.0),
        prompt_step_s=value.get("offset_prefill", 0.0),
        prompt_token_s=prefill * at_peak.prompt_token_s, prompt_pair_s=prefill * at_peak.prompt_pair_s,
        prompt_context_s=prefill * at_peak.prompt_context_s,
    )  # fmt: skip
    return Converted(costs, np.ones(1))


def _grid(
    model: LatencyModel, tp: int, experts: Experts | None, window: AttentionWindow | None
) -> tuple[Values, dict[str, Array]]:
    """Inputs of the model, (n,) each, and its output for one second of each cost."""
    none = StepCosts(0.0, window=window)
    unit = [(name, _with(none, {name: 1.0}, None)) for name in LINEAR]
    if model.measured == "step":
        unit.append(("mixed_context_s", replace(none, mixed_context_s=1.0)))
    else:  # one slope for all steps
        unit[-1] = ("context_s", replace(none, context_s=1.0, mixed_context_s=1.0))
    if experts is not None:
        unit.append(("experts", StepCosts(0.0, experts=replace(experts, all_s=1.0))))
    if model.measured == "step":
        rows = _steps(model)
        values = dict(zip(_STEP, np.array(rows, dtype=float).T, strict=True))
        each = {name: np.array([_step(costs, row) for row in rows]) for name, costs in unit}
    else:
        first = "batch" if model.measured == "static" else "concurrency"
        usual = {first: (1.0, 64.0), "input_tokens": (128.0, 4096.0), "output_tokens": (64.0, 1024.0)}
        axes = [_between(*model.domain.get(name, between)) for name, between in usual.items()]
        C, S, out = (np.array(x) for x in zip(*product(*axes), strict=True))
        values = {first: C, "input_tokens": S, "output_tokens": out}
        seconds = static_seconds if model.measured == "static" else closed_loop_step
        each = {name: seconds(costs, C, S, out) for name, costs in unit}
    return values | {"tp": np.full(len(next(iter(values.values()))), float(tp))}, each


_STEP = (
    "prefill_tokens", "prefill_context_tokens", "prefill_requests", "decode_requests", "decode_context_tokens",
)  # fmt: skip


def _between(low: float, high: float) -> list[float]:
    """Whole numbers from one end of a range to the other, even in their logarithm."""
    low = max(1.0, low)
    return sorted({float(round(low * (max(high, low) / low) ** share)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)})


def _steps(model: LatencyModel) -> list[tuple[float, ...]]:
    """Steps that decode, that prefill and that do both, over the model's range."""
    top = {name: model.domain.get(name, (0.0, 0.0))[1] for name in _STEP}
    decodes = list(product(_between(1, top["decode_requests"]), _between(64, top["decode_context_tokens"])))
    if not top["decode_requests"]:
        decodes = []
    prompts = list(product(_between(64, top["prefill_tokens"]), [s * top["prefill_context_tokens"] for s in SHARES]))
    if not top["prefill_tokens"]:
        prompts = []
    rows: list[tuple[float, ...]] = [(0.0, 0.0, 0.0, n, c) for n, c in decodes]
    rows += [(p, k, 1.0, 0.0, 0.0) for p, k in prompts]
    return rows + [(p, k, 1.0, n, c) for (p, k), (n, c) in product(prompts[::3], decodes[::3])]


def _step(costs: StepCosts, row: tuple[float, ...]) -> float:
    p, k, prompts, n, c = row
    chunk = np.array([p]) if prompts else np.zeros(0)
    return costs.step(chunk, np.full(len(chunk), k), np.full(round(n), c))


def static_seconds(costs: StepCosts, batch: Array, input_tokens: Array, output_tokens: Array) -> Array:
    """Seconds of whole static batches, (n,)."""
    found = np.zeros(len(batch))
    for i, (B, S, out) in enumerate(zip(batch, input_tokens, output_tokens, strict=True)):
        first, decode = static_batch(costs, np.array([B]), int(S), int(out), CHUNK_TOKENS)
        found[i] = first[0] + (out - 1.0) * decode[0]
    return found


def closed_loop_step(costs: StepCosts, concurrency: Array, input_tokens: Array, output_tokens: Array) -> Array:
    """Seconds of the mean step while `concurrency` requests of equal lengths always run, (n,) (`engines.terms`)."""
    C, S, out = concurrency, input_tokens, output_tokens
    carrying = np.minimum(1.0, C * np.ceil(S / CHUNK_TOKENS) / out)
    context = (1.0 - carrying) * costs.context_s + carrying * costs.mixed_context_s
    seconds = (
        costs.fixed_s + carrying * costs.prompt_step_s
        + C / out * (costs.prompt_token_s * S + costs.prompt_pair_s * costs.pairs(S, 0.0))
        + C * (costs.decode_request_s + context * costs.seen(S + out / 2.0))
    )  # fmt: skip
    if costs.experts is not None:
        touched = (1.0 - carrying) * costs.experts.seconds(C) + carrying * costs.experts.seconds(C + S)
        seconds = seconds + touched
    return seconds
