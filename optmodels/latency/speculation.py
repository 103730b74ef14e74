"""Speculative decoding: cost and tokens of an engine's steps where a draft guesses tokens that the model verifies.

In a step a decoding request has k draft tokens next to its last token. The model runs over all k + 1 at once and keeps
the draft tokens up to the first that it would not have made itself, so that the request gets 1 + a tokens, a of them
draft tokens. Where each is accepted with probability p, whatever came before it,

    a = p + p² + … + pᵏ         (Leviathan, Kalman, Matias, ICML 2023, equation (1): 1 + a = (1 − pᵏ⁺¹)/(1 − p))

The tokens of a step are 1 + min(G, k), G geometric, so that D tokens take a number of steps whose mean R(D) follows by
the first step's tokens (renewal): R(D) = 1 + Σ_j P(1 + j)·R(D − 1 − j), R = 0 up to D = 0. Never below D/(1 + a),
for the last step makes more than is asked for.

A verified draft costs as much as a prompt token over the same context. The draft model or head takes k passes one after
another, each over one token of every decoding request, and the first also over the prompt tokens of the step. Nothing
states how much longer a step gets for choosing among samples; measured step costs of an engine that speculates have it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from optmodels.arrays import Array
from optmodels.catalog.types import AnyLlm, Entry
from optmodels.errors import InputError, Mistake
from optmodels.latency.steps import StepCosts
from optmodels.units import PositiveFraction

EXACTLY = 1024  # tokens up to which R(D) follows the recursion; from there on a step makes 1 + a


def steps_for(decodes: npt.ArrayLike, drafts: int, tokens: float) -> Array:
    """R(D): steps that this many tokens after the first take in the mean, where a step has draft tokens.

    Args:
        decodes: D; between whole numbers R is linear.
        drafts: k of a step.
        tokens: 1 + a that it makes in the mean; each draft is accepted with the probability that makes it so.
    """
    D, mean = np.asarray(decodes, dtype=float), _mean_steps(drafts, tokens)
    return np.interp(D, np.arange(len(mean)), mean) + np.maximum(D - EXACTLY, 0.0) / tokens


@lru_cache(maxsize=256)
def _mean_steps(drafts: int, tokens: float) -> Array:
    """R(0), …, R(`EXACTLY`)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**i for i in range(drafts + 1)) < tokens else (low, p)
    first = high ** np.arange(drafts + 1.0)
    first[:-1] *= 1.0 - high  # P(1 + j tokens)
    mean = np.zeros(drafts + 1 + EXACTLY)  # after k + 1 zeros for D ≤ 0
    for D in range(1, EXACTLY + 1):
        mean[drafts + D] = 1.0 + first @ mean[D - 1 : drafts + D][::-1]
    return mean[drafts:]


class Speculation(Entry):
    """How engines of a model speculate."""

    model: str | None = Field(default=None, description="model whose engines speculate; default: every model")
    drafts: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(description="k: draft tokens of a step")
    acceptance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None, description="probability that a draft token is accepted, independently"
    )
    accepted: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="a, in place of acceptance: mean accepted draft tokens of a step, as measured"
    )
    draft: AnyLlm | None = Field(
        default=None, description="draft model, at the precisions of the model and on the same GPUs"
    )
    head: PositiveFraction | None = Field(
        default=None,
        description="draft head (EAGLE, MTP, Medusa) in place of a draft model: its share of the model's weights, KV "
        "cache and step; without draft and head guesses cost nothing (n-gram)",
    )

    @model_validator(mode="after")
    def _stated_once(self) -> Self:
        if (self.acceptance is None) == (self.accepted is None):
            raise ValueError("either acceptance or accepted")
        if self.accepted is not None and self.accepted > self.drafts:
            raise ValueError(f"accepted at most drafts, {self.drafts}")
        if self.draft is not None and self.head is not None:
            raise ValueError("either draft or head, or neither")
        return self

    @property
    def tokens(self) -> float:
        """1 + a: tokens that a request gets of a step, in the mean."""
        if self.accepted is not None:
            return 1.0 + self.accepted
        return float(sum((self.acceptance or 0.0) ** i for i in range(self.drafts + 1)))


def with_drafts(
    costs: StepCosts, s: Speculation, draft: StepCosts | None, path: str = "engine.speculation[0].draft"
) -> StepCosts:
    """Costs of steps that verify draft tokens.

    Args:
        costs: costs of the model's steps without.
        s: how it speculates.
        draft: draft of the draft model's steps, where there is one.
        path: path of the draft model in the instance file.

    Raises:
        InputError: the model attends to a window or to picked tokens, and the draft model does not.
    """
    k = s.drafts
    d = draft or costs.scaled(s.head or 0.0)
    if costs.window is not None and d.window != costs.window:
        expected = "a draft model with the model's attention window or token selection, or a head"
        raise InputError(Mistake(None, path, s.draft, expected))
    reads = 0.0 if d.experts is None else d.experts.all_s
    return replace(
        costs,
        fixed_s=costs.fixed_s + k * (d.fixed_s + reads),
        prompt_step_s=costs.prompt_step_s + d.prompt_step_s,
        prompt_token_s=costs.prompt_token_s + d.prompt_token_s,
        prompt_pair_s=costs.prompt_pair_s + d.prompt_pair_s,
        prompt_context_s=costs.prompt_context_s + d.prompt_context_s,
        # Draft i of a request over c tokens attends to c + i.
        decode_request_s=costs.decode_request_s
        + k * (costs.prompt_token_s + costs.prompt_pair_s * (k + 1) / 2 + d.decode_request_s),
        context_s=costs.context_s + k * (costs.prompt_pair_s + d.context_s),
        mixed_context_s=costs.mixed_context_s + k * (costs.prompt_pair_s + d.mixed_context_s),
        drafts=k,
        tokens=s.tokens,
        prompt_expert_s=costs.prompt_expert_s + d.prompt_expert_s,
        decode_expert_s=costs.decode_expert_s + k * (costs.prompt_expert_s + d.decode_expert_s),
    )
