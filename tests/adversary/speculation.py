"""Speculative decoding, from the mathematics (docs/drafts-and-prefixes.md): costs of steps with drafts, and memory.

In a step each decoding request has k tokens verified beside its own, at the price of prompt tokens over its context,
and a draft model or head takes k passes over all of them; prompts go through both once. It gets 1 + a tokens of a step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from optmodels import catalog
from optmodels.catalog.types import Architecture
from optmodels.latency.steps import StepCosts

FIELDS = ("acceptance", "accepted", "draft", "draft=Architecture", "draft=str", "drafts", "head", "model")
UNDRAWN = {
    f"Speculation.{field}": "drafts change an engine's costs and levels, which fleet's instances have: there they are "
    "judged, and by hand in tests/latency/test_speculation.py and tests/serving/test_speculation.py"
    for field in FIELDS
}
FLEET_UNDRAWN = {k: v for k, v in UNDRAWN.items() if k.endswith(("=Architecture", "draft=Architecture", ".model"))}


def of_model(limits: Any) -> Any:
    """The only entry, which is every model's; None without."""
    return limits.speculation[0] if limits.speculation else None


def shape_of(s: Any) -> Architecture | None:
    return catalog.llms()[s.draft] if isinstance(s.draft, str) else s.draft


def with_drafts(alone: StepCosts, draft: StepCosts | None, s: Any) -> StepCosts | None:
    """Costs of a step, or None where the draft model's layers see another window than the model's."""
    k = s.drafts
    if draft is None:
        guess = {name: (s.head or 0.0) * v for name, v in vars(alone).items() if name.endswith("_s")}
        reads = (s.head or 0.0) * (alone.experts.all_s if alone.experts else 0.0)
    else:
        if alone.window is not None and draft.window != alone.window:
            return None
        guess = {name: v for name, v in vars(draft).items() if name.endswith("_s")}
        reads = draft.experts.all_s if draft.experts else 0.0
    changed = {
        name: getattr(alone, name) + guess[name]
        for name in ("prompt_step_s", "prompt_token_s", "prompt_pair_s", "prompt_context_s")
    }
    changed["fixed_s"] = alone.fixed_s + k * (guess["fixed_s"] + reads)
    pairs = sum(alone.prompt_pair_s * i for i in range(1, k + 1))
    changed["decode_request_s"] = (
        alone.decode_request_s + k * alone.prompt_token_s + pairs + k * guess["decode_request_s"]
    )
    for name in ("context_s", "mixed_context_s"):
        changed[name] = getattr(alone, name) + k * (alone.prompt_pair_s + guess[name])
    accepted = s.accepted if s.accepted is not None else sum(s.acceptance**i for i in range(1, k + 1))
    return replace(alone, **changed, drafts=k, tokens=1.0 + accepted)


def decodes(c: StepCosts, output: float) -> float:
    """Steps that make the tokens after the first."""
    return output - 1.0 if c.tokens == 1.0 else float(math.ceil((output - 1.0) / c.tokens - 1e-9))
