"""The model file: coefficients with intervals, errors, residual quantiles, range, provenance; and prediction.

Safety. A model keeps the quantiles of measured/predicted on held-back workloads. `predict(safety=0.95)` multiplies
by the 0.95 quantile, so a fresh measurement of the same kind lies below with that probability (split conformal
prediction: the ⌈(n+1)·level⌉-th smallest of n ratios, exact where held-back and fresh rows are exchangeable).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from optmodels import catalog
from optmodels.arrays import Array, Mask
from optmodels.catalog.types import Entry
from optmodels.errors import InputError, Mistake, one_of
from optmodels.latency.calibration import MOST, TOLERANCE, Quantiles, quantile_factor
from optmodels.latency.fit import loads
from optmodels.latency.fit.loads import TERMS, Load, Values
from optmodels.latency.fit.measurements import TARGETS, Kind
from optmodels.latency.fit.reference import Reference
from optmodels.latency.work import KvPrecision, Precision

ModelName = Literal["scaled", "two_segment", "additive", "decay", "linear_batch", "steps"]
LEVELS = (
    0.5,
    0.6,
    0.7,
    0.75,
    0.8,
    0.85,
    0.9,
    0.925,
    0.95,
    0.96,
    0.97,
    0.975,
    0.98,
    0.985,
    0.99,
    0.995,
    0.998,
    0.999,
)
DECAY = ("base_tokens_per_s", "delta", "epsilon")  # of MS(1)


class Errors(Entry):
    """Relative errors of predictions."""

    rows: int
    r2: float | None = Field(description="R² of the latencies; null where they do not vary")
    mape: float
    p50: float
    p90: float
    p99: float
    bias: float = Field(description="mean of predicted/measured − 1")


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError("the smaller bound first")
    return bounds


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]


class Coefficient(Entry):
    """One fitted number with its 95 % interval (null where it sits at zero or the data do not identify it)."""

    name: str
    value: float = Field(ge=-MOST, le=MOST)
    unit: str = ""
    low: float | None = None
    high: float | None = None


class Segment(Entry):
    """Coefficients that apply to rows of one sort: a kind of step, a tensor-parallel degree, or all."""

    when: str = Field(default="all", pattern=r"^(all|prefill|decode|mixed|prefilling|tp=\d+(\.\d+)?)$")
    terms: tuple[Coefficient, ...] = Field(min_length=1)


class Target(Entry):
    """One predicted quantity."""

    segments: tuple[Segment, ...] = Field(min_length=1)
    in_sample: Errors
    cross_validated: Errors | None = None
    held_back: str = ""
    residual_quantiles: Quantiles = Field(default={}, description="level → quantile of measured/predicted")

    def factor(self, safety: float | None) -> float:
        """The residual quantile for a safety level (the next higher one stored); 1 for None.

        Raises:
            InputError: no such level: too few measurements to support it.
        """
        return quantile_factor(self.residual_quantiles, safety)


def residual_quantiles(measured: Array, predicted: Array) -> dict[str, float]:
    """The ⌈(n+1)·level⌉-th smallest measured/predicted, for every level that n rows support."""
    ratio = np.sort(measured / predicted)
    n = len(ratio)
    found = {}
    for level in LEVELS:
        rank = math.ceil((n + 1) * level - TOLERANCE)
        if rank <= n:
            found[f"{level:g}"] = float(ratio[rank - 1])
    return found


def errors(measured: Array, predicted: Array) -> Errors:
    """Relative errors |predicted/measured − 1|, and R² of the latencies."""
    signed = predicted / measured - 1.0
    size = np.abs(signed)
    total = float(((measured - measured.mean()) ** 2).sum())
    p50, p90, p99 = (float(q) for q in np.quantile(size, [0.5, 0.9, 0.99]))
    return Errors(
        rows=len(measured),
        r2=1.0 - float(((predicted - measured) ** 2).sum()) / total if total > 0 else None,
        mape=float(size.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        bias=float(signed.mean()),
    )


@dataclass(frozen=True)
class Frame:
    """Inputs that coefficients need besides their values to predict."""

    model: str
    kind: Kind
    reference: Reference | None = None
    batch_limit: float | None = None


class LatencyModel(Entry):
    """A fitted latency model, as written to a model file."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    model: ModelName
    measured: Kind
    title: str = ""
    source: str = ""
    date: str = ""
    gpu: str | None = None
    llm: str | None = None
    engine: str | None = Field(default=None, description="vllm, sglang or trtllm, where they were measured under one")
    precision: Precision = "fp16"
    kv_precision: KvPrecision = "fp16"
    batch_limit: float | None = Field(
        default=None, gt=0, le=MOST, description="MS(1): batch size beyond which throughput no longer decays"
    )
    targets: dict[str, Target] = Field(min_length=1)
    domain: dict[str, Range] = Field(default={})
    warnings: tuple[str, ...] = ()
    why: tuple[str, ...] = Field(default=(), description="reasons for the choice of --form auto")
    provenance: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _terms_that_it_has(self) -> LatencyModel:
        for name, target in self.targets.items():
            if name not in TARGETS[self.measured]:
                expected = " or ".join(TARGETS[self.measured])
                raise ValueError(f"{expected} as targets of {self.measured} measurements, not {name[:40]!r}")
            known = _terms_of(self.model, self.measured, name)
            for segment in target.segments:
                given = [c.name for c in segment.terms]
                if self.measured == "pairs" and segment.when != "all":
                    raise ValueError(f"when: all with pairs, not {segment.when!r}")
                if strange := next((n for n in given if n not in known), None):
                    raise ValueError(f"terms of {self.model} that {self.measured} rows have, not {strange[:40]!r}")
                if known == DECAY and sorted(given) != sorted(DECAY):
                    raise ValueError(f"{', '.join(DECAY)} once each in every segment of {name}")
                if known == DECAY and min(c.value for c in segment.terms if c.name == DECAY[0]) <= 0:
                    raise ValueError(f"a {DECAY[0]} > 0 in every segment of {name}")
        return self

    @property
    def reference(self) -> Reference | None:
        """The GPU and LLM, where the file names both."""
        if self.gpu is None or self.llm is None:
            return None
        return Reference(self.gpu, self.llm, self.precision, self.kv_precision)

    def predict(self, values: Values, target: str | None = None, *, safety: float | None = None) -> Array:
        """Latency in seconds, shape (n,).

        Args:
            values: the columns of the measured kind (`measurements.COLUMNS`), shape (n,) each.
            target: e.g. ``ttft_s``; may be left out where the model has one.
            safety: probability that a fresh measurement stays below, or None for the central prediction.

        Raises:
            InputError: no such target, or a safety level the data do not support.
        """
        name = target or (next(iter(self.targets)) if len(self.targets) == 1 else TARGETS[self.measured][-1])
        one_of("target", name, self.targets)
        found = self.targets[name]
        frame = Frame(self.model, self.measured, self.reference, self.batch_limit)
        predicted = predict_segments(frame, found.segments, values, name)
        return predicted * found.factor(safety)

    def extrapolation(self, values: Values) -> tuple[str, ...]:
        """One sentence for each column that leaves the range the model was fitted on."""
        said = []
        for column, (low, high) in self.domain.items():
            if column not in values or not len(values[column]):
                continue
            least, most = float(np.min(values[column])), float(np.max(values[column]))
            if least < low - TOLERANCE or most > high + TOLERANCE:
                said.append(
                    f"{column} from {least:g} to {most:g} leaves the calibrated range "
                    f"{low:g} to {high:g}: an extrapolation"
                )
        return tuple(said)


def load_of(kind: Kind, values: Values) -> Load:
    """The load of each row of a kind."""
    return {"step": loads.step_load, "static": loads.static_load, "served": loads.served_load}[kind](values)


# Terms of the time to first token in a closed-loop run, with their units, of concurrency, prompt, output and tp: own
# prefill, the step under way, the queue ahead. `burst` is the work of C prompts that arrive together (every client
# starts at once), `spacing` the time between two completions, S_out/C steps, for which engines that admit on completion
# make a request wait.
FIRST_TOKEN: dict[str, tuple[str, Callable[[Array, Array, Array, Array], Array]]] = {
    "first_fixed": ("s", lambda C, S, out, tp: np.ones_like(C)),
    "first_shard": ("s·tp", lambda C, S, out, tp: 1.0 / tp),
    "prompt": ("s·tp/token", lambda C, S, out, tp: S / tp),
    "prompt_host": ("s/token", lambda C, S, out, tp: S + 0.0),
    "prompt_comm": ("s/token", lambda C, S, out, tp: S * (tp > 1)),
    "prompt_attention": ("s·tp/token²", lambda C, S, out, tp: S * S / tp),
    "running": ("s/request", lambda C, S, out, tp: C + 0.0),
    "running_kv": ("s·tp/token", lambda C, S, out, tp: C * (S + out / 2.0) / tp),
    "running_prefill": ("s·tp·token/token", lambda C, S, out, tp: C * S / out / tp),
    "burst": ("s·tp/token", lambda C, S, out, tp: C * S / tp),
    "spacing": ("s·request/token", lambda C, S, out, tp: out / C),
    "crowding": ("s/request²", lambda C, S, out, tp: C * C),
}
ROOFLINE = ("roofline_prefill", "roofline_decode", "offset_prefill", "offset_decode", "predicted_s", "offset")


def _terms_of(model: ModelName, kind: Kind, target: str) -> tuple[str, ...]:
    """Names that a model's coefficients of a target may have."""
    if model == "scaled":
        return ROOFLINE[4:] if kind == "pairs" else ROOFLINE[:4]
    if target == "ttft_s":
        return tuple(FIRST_TOKEN)
    return DECAY if model == "decay" else (*TERMS, "experts")


def columns(names: tuple[str, ...], kind: Kind, v: Values, reference: Reference | None) -> Array:
    """The terms of each row, shape (n, k)."""
    return np.stack(_columns(names, kind, v, reference), axis=1) if names else np.zeros((0, 0))


def _columns(names: tuple[str, ...], kind: Kind, v: Values, reference: Reference | None) -> list[Array]:
    load = load_of(kind, v) if kind != "pairs" else None
    roof = _roofline(kind, v, reference) if set(names) & set(ROOFLINE) else {}
    found = []
    for name in names:
        if name in FIRST_TOKEN and kind == "served":
            lengths = v["concurrency"], v["input_tokens"], v["output_tokens"], v["tp"]
            found.append(FIRST_TOKEN[name][1](*lengths))
        elif name in roof:
            found.append(roof[name])
        elif (
            name == "experts" and load is not None and reference is not None and reference.architecture.moe is not None
        ):
            moe = reference.architecture.moe
            found.append(loads.experts_touched(load, moe.experts, moe.active, single=kind == "step"))
        elif name in TERMS and load is not None:
            found.append(TERMS[name].value(load))
        else:
            raise InputError(Mistake(None, "terms", name, f"a term that {kind} measurements have"))
    return found


def _roofline(kind: Kind, v: Values, reference: Reference | None) -> dict[str, Array]:
    if kind == "pairs":
        return {"predicted_s": v["predicted_s"] + 0.0, "offset": np.ones_like(v["predicted_s"])}
    if reference is None:
        raise InputError(
            Mistake(None, "gpu, llm", None, "a GPU and an LLM of the catalogue, whose roofline is to be scaled")
        )
    ttft, tbt = reference.latencies(v)
    one = np.ones_like(ttft)
    steps = v["output_tokens"] - 1.0 if kind == "static" else one
    return {
        "roofline_prefill": ttft,
        "offset_prefill": one,
        "roofline_decode": tbt * steps,
        "offset_decode": steps,
    }


def decay_rate(base: float, delta: float, epsilon: float, workload: Array, batch_limit: float | None) -> Array:
    """MS(1): tokens/s of one request among W, never below 1 % of the base rate."""
    W = workload if batch_limit is None else np.minimum(workload, batch_limit)
    return base * np.maximum(1.0 - delta * np.log(epsilon + W), 0.01)


def predict_segments(frame: Frame, segments: tuple[Segment, ...], v: Values, target: str) -> Array:
    """Predicted seconds, each row by the segment it belongs to (the last one where none matches)."""
    n = len(next(iter(v.values())))
    out = np.zeros(n)
    left = np.ones(n, dtype=bool)
    for i, segment in enumerate(segments):
        rows = left & (segment_mask(segment.when, frame.kind, v) if i < len(segments) - 1 else True)
        left &= ~rows
        if not rows.any():
            continue
        part = {k: x[rows] for k, x in v.items()}
        value = {c.name: c.value for c in segment.terms}
        if frame.model == "decay" and target != "ttft_s":
            W = part["concurrency"] if "concurrency" in part else part["batch"]
            rate = decay_rate(value["base_tokens_per_s"], value["delta"], value["epsilon"], W, frame.batch_limit)
            out[rows] = (part["output_tokens"] if target == "latency_s" else 1.0) / rate
        else:
            names = tuple(name for name, x in value.items() if x > 0) or tuple(value)[:1]
            out[rows] = columns(names, frame.kind, part, frame.reference) @ np.array([value[name] for name in names])
    return out


def segment_mask(when: str, kind: Kind, v: Values) -> Mask:
    """Rows to which a segment applies."""
    if when == "all":
        return np.ones(len(next(iter(v.values()))), dtype=bool)
    if when.startswith("tp="):
        return v["tp"] == float(when[3:])
    segment = load_of(kind, v).segment
    if when == "prefilling":  # LV(1): compute-bound as soon as a prompt is in the batch
        return segment != loads.DECODE
    return segment == when


def read_latency_model(path: Path) -> LatencyModel:
    """Read a model file, a file of LP(18) coefficients that keeps its model, or a shipped model by its catalogue name.

    Raises:
        InputError: every problem with it; coefficients without a model.
    """
    from optmodels.io.read import read_document, read_model, validate
    from optmodels.latency.calibration import Calibration

    if not path.exists() and str(path) in catalog.latency_models():
        return LatencyModel.model_validate(catalog.latency_model_document(str(path)))
    if path.is_file() and "coefficients" in read_document(path)[0]:
        model = read_model(path, Calibration).model
        if model is None:
            expected = "a latency model: these are LP(18) coefficients, for a problem's latency.calibration"
            raise InputError(Mistake(str(path), "coefficients", None, expected))
        return validate(LatencyModel, model, str(path), lambda _: None, "model")
    return read_model(path, LatencyModel)
