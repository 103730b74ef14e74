"""Per-request and per-tenant shares of a step's latency (LLMVisor §2), additive and non-negative.

A step's predicted latency is Σ_t β_t·X_t(batch) with β_t ≥ 0. Every term X_t is divided among the batch's requests in
proportion to a non-negative weight w_t: a sum over requests by its own summands (p_i, c_i, p_i², k_i, p_i·k_i), a
hinge in a sum by the same summands, the per-step constants by the chosen rule (`equal`, or by `tokens`). Shares
therefore sum to the predicted latency to machine precision, and none is negative.

The one term that is no sum, the longest context of a mixed step, is divided by the Shapley value of the airport game
(Littlechild & Owen 1973): with contexts sorted upwards, the stretch between two neighbours is split equally among all
that are at least as long. It too sums exactly, and no request pays for a length beyond its own.

VTC shares, in proportion to tokens processed, stand next to them: what token counting would have charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from optmodels.arrays import Array, Mask
from optmodels.catalog.types import Entry
from optmodels.errors import InputError, Mistake
from optmodels.latency.fit import loads
from optmodels.latency.fit.document import Coefficient, LatencyModel, Segment
from optmodels.latency.fit.loads import DECODE, MIXED, PREFILL, TERMS, Load

FixedRule = Literal["equal", "tokens"]
_WEIGHTS = (
    "request",
    "tokens",
    "decode",
    "prefill",
    "prefill_tokens",
    "decode_context",
    "prefill_context",
    "prefill_squares",
    "prefill_products",
    "context",
    "squares",
)
_REQUEST = 0


class StepRequest(Entry):
    """One request of a batch: `tokens` processed in this step, `context_tokens` already in the KV cache."""

    id: str = Field(min_length=1, max_length=200)
    tenant: str = "default"
    tokens: int = Field(ge=1)
    context_tokens: int = Field(default=0, ge=0)
    phase: Literal["prefill", "decode"] | None = Field(
        default=None, description="default: decode if tokens is 1 and there is context"
    )

    @property
    def decoding(self) -> bool:
        """Whether this request decodes in this step."""
        return self.phase == "decode" if self.phase else self.tokens == 1 and self.context_tokens > 0


class StepBatch(Entry):
    """A batch file: the requests of one step, and optionally one more to be considered for admission."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    tp: int = Field(default=1, ge=1)
    requests: tuple[StepRequest, ...] = Field(min_length=1)
    admit: StepRequest | None = None


@dataclass(frozen=True)
class LatencyShares:
    """The division of one step's latency.

    Attributes:
        latency_s: Predicted latency of the step.
        request_s: (n,) each request's share; sums to `latency_s`.
        vtc_s: (n,) the share that token counting gives.
        tenant_s: Share of each tenant.
        vtc_tenant_s: The same by token counting.
    """

    latency_s: float
    request_s: Array
    vtc_s: Array
    tenant_s: dict[str, float]
    vtc_tenant_s: dict[str, float]


class Attributor:
    """A step model compiled for the scheduling loop: arrays in, shares out.

    Args:
        model: A model of single steps (measured: step).
        fixed: How constants of the step are divided.
        safety: Inflate by the residual quantile of this level.

    Raises:
        InputError: the model is not one of single steps.
    """

    def __init__(self, model: LatencyModel, *, fixed: FixedRule = "equal", safety: float | None = None) -> None:
        if model.measured != "step" or model.model not in ("two_segment", "additive", "linear_batch"):
            raise InputError(
                Mistake(
                    None,
                    "model",
                    f"{model.model} from {model.measured} measurements",
                    "a model of single steps: two_segment or additive, from step measurements",
                )
            )
        self.model = model
        self.fixed = fixed
        target = model.targets["latency_s"]
        self._factor = target.factor(safety)
        self._segments = target.segments
        self._compiled = {s.when: _compile(s, fixed) for s in target.segments}

    def latency(self, tokens: Array, context: Array, decoding: Mask, tp: float = 1.0) -> float:
        """Predicted latency of a step, seconds."""
        return self._total(tokens, context, decoding, tp) * self._factor

    def shares(self, tokens: Array, context: Array, decoding: Mask, tp: float = 1.0) -> Array:
        """Each request's share of the step's latency, seconds, shape (n,).

        Args:
            tokens: (n,) tokens processed in this step.
            context: (n,) tokens already in the KV cache.
            decoding: (n,) whether the request decodes.
            tp: tensor-parallel degree.
        """
        basis = _basis(tokens, context, decoding)
        sums = basis.sum(axis=1)
        load = _load(sums, basis, tp)
        kind = _kind(sums)
        plain, longest = self._compiled[self._segment(kind).when]
        per_unit = np.zeros(len(sums))
        everyone = 0.0
        for name, value, weight in plain:
            amount = value * self._value(name, load)
            if sums[weight] > 0:
                per_unit[weight] += amount / sums[weight]
            else:
                everyone += amount
        per_unit[_REQUEST] += everyone / sums[_REQUEST]
        share: Array = per_unit @ basis
        if longest and kind == MIXED:
            share += longest * airport(context)
        return share * self._factor

    def _segment(self, kind: str) -> Segment:
        for s in self._segments:
            if s.when in (kind, "all") or (s.when == "prefilling" and kind != DECODE):
                return s
        return self._segments[-1]

    def _value(self, name: str, load: Load) -> float:
        if name == "experts":
            reference = self.model.reference
            moe = reference.architecture.moe if reference is not None else None
            return float(loads.experts_touched(load, moe.experts, moe.active, single=True)) if moe is not None else 0.0
        return float(TERMS[name].value(load))

    def _total(self, tokens: Array, context: Array, decoding: Mask, tp: float) -> float:
        basis = _basis(tokens, context, decoding)
        sums = basis.sum(axis=1)
        load = _load(sums, basis, tp)
        plain, longest = self._compiled[self._segment(_kind(sums)).when]
        total = sum(value * self._value(name, load) for name, value, _ in plain)
        return total + longest * float(TERMS["longest_context"].value(load))


def _compile(segment: Segment, fixed: FixedRule) -> tuple[list[tuple[str, float, int]], float]:
    """(term, coefficient, weight) of every plain term, and the coefficient of the longest context."""
    plain, longest = [], 0.0
    for c in segment.terms:
        if c.value < 0:
            raise InputError(
                Mistake(
                    None,
                    f"targets.latency_s.{segment.when}.{c.name}",
                    c.value,
                    "a coefficient ≥ 0: attribution needs it",
                )
            )
        if c.name == "longest_context":
            longest = c.value
        elif c.value > 0:
            plain.append((c.name, c.value, _weight(c, fixed)))
    return plain, longest


def _weight(c: Coefficient, fixed: FixedRule) -> int:
    share = "fixed" if c.name == "experts" else TERMS[c.name].share
    return _WEIGHTS.index({"equal": "request", "tokens": "tokens"}[fixed] if share == "fixed" else share)


def _basis(tokens: Array, context: Array, decoding: Mask) -> Array:
    """(k, n) non-negative weights; their sums over the batch are all that the terms need."""
    basis = np.empty((len(_WEIGHTS), len(tokens)))
    basis[0] = 1.0
    basis[1] = tokens
    basis[2] = decoding
    np.subtract(1.0, basis[2], out=basis[3])
    np.multiply(tokens, basis[3], out=basis[4])  # p of prompts
    np.multiply(context, basis[2], out=basis[5])  # c of decoding requests
    np.subtract(context, basis[5], out=basis[6])  # k of prompts
    np.multiply(basis[4], basis[4], out=basis[7])
    np.multiply(basis[4], basis[6], out=basis[8])
    basis[9] = context
    np.multiply(tokens, tokens, out=basis[10])
    return basis


def _kind(sums: Array) -> str:
    if sums[3] <= 0:
        return DECODE
    return PREFILL if sums[2] <= 0 else MIXED


def _load(sums: Array, basis: Array, tp: float) -> Load:
    """The step's load, numbers in place of arrays."""
    one: Any = float
    return Load(
        steps=one(1.0),
        tp=one(tp),
        prefill_steps=one(sums[3] > 0),
        prefills=sums[3],
        prefill_tokens=sums[4],
        prefill_squares=sums[7],
        prefill_context=sums[6],
        prefill_products=sums[8],
        decodes=sums[2],
        decode_context=sums[5],
        longest_prefill=basis[6].max(),
        longest_decode=basis[5].max(),
    )


def airport(length: Array) -> Array:
    """Shapley value of v(S) = max_{i∈S} length_i, shape (n,): closed form by one sort."""
    n = len(length)
    order = np.argsort(length)
    steps = length[order]
    steps[1:] -= steps[:-1].copy()
    share = np.empty(n)
    share[order] = np.cumsum(steps / np.arange(n, 0.0, -1.0))
    return share


def arrays(requests: Sequence[StepRequest]) -> tuple[Array, Array, Mask]:
    """(tokens, context, decoding) of a batch's requests."""
    return (
        np.array([float(r.tokens) for r in requests]),
        np.array([float(r.context_tokens) for r in requests]),
        np.array([r.decoding for r in requests], dtype=bool),
    )


def attribute(attributor: Attributor, requests: Sequence[StepRequest], tp: int = 1) -> LatencyShares:
    """Divide a step's latency among its requests and tenants."""
    tokens, context, decoding = arrays(requests)
    share = attributor.shares(tokens, context, decoding, float(tp))
    latency = attributor.latency(tokens, context, decoding, float(tp))
    vtc = latency * tokens / tokens.sum()
    tenant: dict[str, float] = {}
    vtc_tenant: dict[str, float] = {}
    for r, s, v in zip(requests, share, vtc, strict=True):
        tenant[r.tenant] = tenant.get(r.tenant, 0.0) + float(s)
        vtc_tenant[r.tenant] = vtc_tenant.get(r.tenant, 0.0) + float(v)
    return LatencyShares(latency, share, vtc, tenant, vtc_tenant)


@dataclass(frozen=True)
class Admission:
    """Effect of one more request on a step.

    Attributes:
        added_s: Growth of the step's latency.
        share_s: Seconds that the newcomer would be charged.
        after: The division after admission, the newcomer last.
    """

    added_s: float
    share_s: float
    after: LatencyShares


def admit(attributor: Attributor, requests: Sequence[StepRequest], newcomer: StepRequest, tp: int = 1) -> Admission:
    """What-if: the step with `newcomer` next to the step without."""
    before = attributor.latency(*arrays(requests), float(tp))
    after = attribute(attributor, (*requests, newcomer), tp)
    return Admission(after.latency_s - before, float(after.request_s[-1]), after)


__all__ = ["Admission", "Attributor", "LatencyShares", "StepBatch", "StepRequest", "admit", "airport", "attribute"]
