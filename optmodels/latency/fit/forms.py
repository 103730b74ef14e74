"""The families of latency models, each a list of segments with non-negative terms (or MS(1)'s decay).

* ``linear_batch`` D(b) = D₀ + D₁·b (dynamic batching, §II-B).
* ``two_segment``  LV(1): Σp, Σc, Σp², |B| and a constant, once for steps with prompts (compute-bound) and once for
                   pure decode (memory-bound). Relative weighting by default; ``absolute`` is the paper's.
* ``additive``     the additive roofline: weights + compute + KV + prefill attention (with earlier KV) + per request
                   + tensor-parallel communication, pooled over TP. Over single steps it is continuous and piecewise
                   linear in tokens (hinges), and has one set of coefficients for each kind of step, because mixed
                   steps run another attention kernel than pure ones.
* ``scaled``       LP(18): β₁·T_pred + β₀ of the catalogue's roofline, or of given predictions.
* ``steps``        `latency.steps.StepCosts`, for simulators and plans: one additive form for all steps of a deployment,
                   with a slope for context in pure decode steps and one in steps that carry prompts. Pure decode steps
                   are most of an engine's steps and few of the measured ones: they weigh `DECODE_WEIGHT` times. Steps
                   with prompts weigh by the root of their prompt tokens, so that every token counts alike in squares.
* ``decay``        MS(1): tokens/s per request T₀·(1 − δ·ln(ε + min(B, W))), by tensor-parallel degree.
* ``vtc``          token counts only: the baseline of LLMVisor, for comparisons; not a model file.

The published forms are of the time per token alone. The TTFT of a closed-loop run is in every model file: by the terms
`document.FIRST_TOKEN` (``scaled``: by LP(18) too), so that every file gives operating points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake
from optmodels.latency.calibration import MOST
from optmodels.latency.fit.document import (
    FIRST_TOKEN,
    Coefficient,
    ModelName,
    Segment,
    columns,
    decay_rate,
    load_of,
    segment_mask,
)
from optmodels.latency.fit.linear import MIN_ROWS, fit_nonnegative
from optmodels.latency.fit.loads import CONTEXT_KNOTS, CROWD_KNOTS, DECODE, MIXED, PREFILL, TERMS, TOKEN_KNOTS
from optmodels.latency.fit.measurements import TARGETS, Kind, Measurements
from optmodels.latency.fit.reference import Reference

MODELS: tuple[ModelName, ...] = (
    "linear_batch",
    "decay",
    "scaled",
    "two_segment",
    "additive",
)  # simplest first
STEPS: ModelName = "steps"  # what simulators read; predicts less well than hinges, so ``auto`` leaves it out
DECODE_WEIGHT = 10.0
UNIT_CHUNK = 128.0  # prompt tokens of a step that weighs 1
_LV = ("fixed", "sum_p", "sum_c", "sum_p2", "batch")
_STEP = (
    "fixed",
    "weights",
    "comm_fixed",
    "tokens",
    "comm_tokens",
    "requests",
    "decode_kv",
    "prefill_attention",
    "chunk_kv",
    "chunk_attention",
)
_RUN = (
    "fixed",
    "weights",
    "comm_fixed",
    "prefill_fixed",
    "prefill_tokens",
    "decode_tokens",
    "decode_kv",
    "prefill_attention",
    "requests",
    "comm_tokens",
    "comm_decodes",
)
_STEP_COSTS = (
    "fixed",
    "prefill_fixed",
    "prefill_tokens",
    "prompt_pairs",
    "chunk_kv",
    "decode_tokens",
    "pure_kv",
    "mixed_kv",
)
_POOLED_FIRST = ("first_shard", "prompt_comm")


@dataclass(frozen=True)
class FitOptions:
    """How to fit.

    Attributes:
        reference: GPU, LLM and precision that were measured.
        engine: engine that they were measured under, to be kept in the model.
    """

    reference: Reference | None = None
    relative: bool = True
    batch_limit: float | None = None
    engine: str | None = None


def targets_of(model: str, kind: Kind) -> tuple[str, ...]:
    """Targets that a model can predict from a kind of measurement; empty where it does not apply."""
    if kind == "pairs":
        return ("latency_s",) if model == "scaled" else ()
    if model == STEPS and kind != "step":
        return ()
    if kind == "step" and model in ("scaled", "decay"):
        return ()
    return TARGETS[kind]


def fit_segments(
    model: str, m: Measurements, target: str, options: FitOptions
) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Fit one target of one model.

    Returns:
        Its segments (the last applies where no other does), and warnings.

    Raises:
        InputError: too few rows, or the model does not apply.
    """
    if target not in targets_of(model, m.kind):
        raise InputError(Mistake(None, "model", model, f"a model that applies to {m.kind} measurements of {target}"))
    if len(m) < MIN_ROWS:
        expected = f"at least {MIN_ROWS} measurements to fit a latency model"
        raise InputError(Mistake(None, target, f"{len(m)} row{'s' * (len(m) != 1)}", expected))
    if model == "decay" and target != "ttft_s":
        return _fit_decay(m, target, options)
    segments, warnings = [], []
    for when, names in _segments(model, m, target, options):
        part = m.take(segment_mask(when, m.kind, m.values)) if when != "all" else m
        X = columns(names, m.kind, part.values, options.reference)
        emphasis = None
        if model == STEPS:
            load = load_of("step", part.values)
            emphasis = np.where(load.segment == DECODE, DECODE_WEIGHT, np.sqrt(load.prefill_tokens / UNIT_CHUNK))
        fit = fit_nonnegative(
            X, part.values[target], names, relative=options.relative, emphasis=emphasis, where=f"{target}, {when} rows"
        )
        prefix = f"{target}: " if when == "all" else f"{target}, {when} rows: "
        warnings += [prefix + w for w in fit.warnings]
        segments.append(
            Segment(
                when=when,
                terms=tuple(
                    _coefficient(target, n, v, _unit(n), lo, hi)
                    for n, v, lo, hi in zip(names, fit.value, fit.low, fit.high, strict=True)
                    if v > 0 or n == names[0]
                ),
            )
        )
    return tuple(segments), tuple(warnings)


def _coefficient(target: str, name: str, value: float, unit: str, low: float, high: float) -> Coefficient:
    """One fitted number.

    Raises:
        InputError: no machine has such a one: its column is in another unit, or next to nothing everywhere.
    """
    if not abs(value) <= MOST:
        expected = f"measurements in their units: {name} is fitted to at most {MOST:g} {unit}".rstrip()
        raise InputError(Mistake(None, target, f"{name} of {value:.3g}", expected))
    return Coefficient(name=name, value=float(value), unit=unit, low=_finite(low), high=_finite(high))


def _finite(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _unit(name: str) -> str:
    if name in TERMS:
        return TERMS[name].unit
    if name == "experts":
        return "s·tp/step"
    return FIRST_TOKEN[name][0] if name in FIRST_TOKEN else "s" if name.startswith("offset") else ""


def _segments(model: str, m: Measurements, target: str, options: FitOptions) -> list[tuple[str, tuple[str, ...]]]:
    """(rows, terms) of each segment; the last one also serves rows that match no other."""
    pooled = bool(np.ptp(m.values["tp"]) > 0) if "tp" in m.values else False
    names: tuple[str, ...]
    if target == "ttft_s" and model != "scaled":
        return [("all", tuple(n for n in FIRST_TOKEN if pooled or n not in _POOLED_FIRST))]
    if model == "scaled":
        if m.kind == "pairs":
            return [("all", ("predicted_s", "offset"))]
        if m.kind == "static":
            return [("all", ("roofline_decode", "roofline_prefill", "offset_decode", "offset_prefill"))]
        phase = "prefill" if target == "ttft_s" else "decode"
        return [("all", (f"roofline_{phase}", f"offset_{phase}"))]
    if model == "linear_batch":
        return [("all", ("fixed", "batch"))]
    if model in ("two_segment", "vtc"):
        names = _LV if model == "two_segment" else ("fixed", "sum_p")
        if m.kind != "step":
            return [("all", names)]
        here = load_of("step", m.values).segment == DECODE
        found: list[tuple[str, tuple[str, ...]]] = []
        if (~here).sum() >= MIN_ROWS:
            found.append(("prefilling", names))
        if here.sum() >= MIN_ROWS:
            found.append((DECODE, names))
        return found or [("all", names)]
    if model == STEPS and pooled:
        raise InputError(Mistake(None, "tp", sorted(set(m.values["tp"].tolist())), "one TP degree: --where tp=…"))
    names = _STEP_COSTS if model == STEPS else _STEP if m.kind == "step" else _RUN
    names = tuple(n for n in names if pooled or not TERMS[n].pooled)
    moe = options.reference.architecture.moe if options.reference is not None else None
    if moe is not None:
        names = (*names, "experts")
    if m.kind != "step" or model == STEPS:
        return [("all", names)]
    return _step_segments(m, names)


def _step_segments(m: Measurements, names: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """One segment for each kind of step with enough rows, mixed steps last (they are the general case)."""
    load = load_of("step", m.values)
    kind = load.segment
    found = []
    for when in (DECODE, PREFILL, MIXED):
        rows = kind == when
        extra = [f"tokens_over_{k}" for k in TOKEN_KNOTS if k < load.tokens[rows].max(initial=0)]
        if when != PREFILL:
            extra += [f"crowd_over_{k}" for k in CROWD_KNOTS if k < load.decodes[rows].max(initial=0)]
            extra += [f"context_over_{k}" for k in CONTEXT_KNOTS if k < load.decode_context[rows].max(initial=0)]
        if when == MIXED:
            extra.append("longest_context")
        if rows.sum() >= 3 * (len(names) + len(extra)):  # room for hinges
            found.append((when, (*names, *extra)))
        elif rows.sum() >= 2 * len(names):
            found.append((when, names))
    if len(found) == len(set(kind)):
        return found
    return [("all", names)]


def _fit_decay(m: Measurements, target: str, options: FitOptions) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """MS(1) by bounded least squares on relative errors of the throughput, for each tensor-parallel degree."""
    from scipy.optimize import least_squares

    tps = np.unique(m.values["tp"])
    segments, warnings = [], []
    for tp in tps:
        part = m.take(m.values["tp"] == tp)
        v = part.values
        W = v["concurrency"] if m.kind == "served" else v["batch"]
        rate = (v["output_tokens"] if target == "latency_s" else 1.0) / v[target]
        if len(rate) < MIN_ROWS or len(np.unique(W)) < MIN_ROWS:
            raise InputError(
                Mistake(
                    None,
                    f"{target}, tp = {tp:g}",
                    f"{len(np.unique(W))} workload levels",
                    f"at least {MIN_ROWS} different levels to fit T₀, δ, ε of MS(1)",
                )
            )
        x_scale = float(np.median(rate))

        def residual(x: Array, W: Array = W, rate: Array = rate, s: float = x_scale) -> Array:
            return decay_rate(x[0] * s, x[1], x[2], W, options.batch_limit) / rate - 1.0

        fit = least_squares(
            residual,
            [1.5, 0.1, 1.0],
            bounds=([1e-6, 0.0, 1e-3], [1e6, 10.0, 1e3]),
            loss="soft_l1",
            f_scale=0.1,
        )
        half = _decay_intervals(np.asarray(fit.jac), fit.fun)
        value = fit.x * np.array([x_scale, 1.0, 1.0])
        half = half * np.array([x_scale, 1.0, 1.0])
        if not np.isfinite(half).all() or (half[2] > 10 * value[2]):
            warnings.append(f"{target}, tp = {tp:g}: ε of MS(1) is not identified by these levels; T₀ and δ absorb it")
        names = (("base_tokens_per_s", "token/s"), ("delta", ""), ("epsilon", ""))
        segments.append(
            Segment(
                when=f"tp={tp:g}" if len(tps) > 1 else "all",
                terms=tuple(
                    _coefficient(target, n, x, u, max(0.0, x - h), x + h)
                    for (n, u), x, h in zip(names, value, half, strict=True)
                ),
            )
        )
    return tuple(segments), tuple(warnings)


def _decay_intervals(jac: Array, residual: Array) -> Array:
    from scipy.stats import t

    n, k = jac.shape
    if n <= k:
        return np.full(k, np.nan)
    variance = np.diag(np.linalg.pinv(jac.T @ jac)) * float(residual @ residual) / (n - k)
    return np.sqrt(np.clip(variance, 0.0, None)) * float(t.ppf(0.975, n - k))
