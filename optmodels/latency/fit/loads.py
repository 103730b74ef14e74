"""The work of engine steps as sums of per-request terms: the terms that every latency form is linear in.

A step processes prompt chunks (p_i tokens over k_i earlier tokens each) and decoding requests (one token over
c_i context tokens each). LV(1) needs Σp, Σc, Σp², |B|; the additive roofline adds Σk and Σp·k (chunked prefill
reads the KV of earlier chunks), the per-step reading of the weights, and tensor-parallel communication.

Because latency is linear in these sums, longer observations are sums or means of the same terms:

* a static batch (B, S_in, S_out) is one prefill step and S_out − 1 decode steps over contexts S_in + t, so its
  terms are closed sums (Σ_t c = B·Σ(S_in + t));
* a closed-loop run of C users admits one prompt per S_out steps and user, so its mean step has Σp = C·S_in/S_out,
  Σp² = C·S_in²/S_out and Σc = C·(S_in + S_out/2). Time per output token is that mean step's latency.

Two effects of real engines are not sums. A step that mixes prefill and decode runs one attention kernel without
splitting long contexts, so it lasts at least as long as its longest context (`longest`), and concurrencies of decoding
requests run in waves (hinges in their number). Both stay additive per request (see `attribution`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optmodels.arrays import Array

Values = Mapping[str, Array]

TOKEN_KNOTS = (64, 128, 256, 512, 1024, 2048, 4096)
CROWD_KNOTS = (8, 16, 32, 64, 128)
CONTEXT_KNOTS = (2**14, 2**17)
PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"


@dataclass(frozen=True)
class Load:
    """Sums over the requests (and steps) of each observation, shape (n,) each."""

    steps: Array
    tp: Array
    prefill_steps: Array
    prefills: Array  # prompt chunks
    prefill_tokens: Array  # Σp
    prefill_squares: Array  # Σp²
    prefill_context: Array  # Σk
    prefill_products: Array  # Σp·k
    decodes: Array  # Σ1 over decoding requests
    decode_context: Array  # Σc
    longest_prefill: Array  # max k
    longest_decode: Array  # max c

    @property
    def segment(self) -> npt.NDArray[np.str_]:
        """prefill, decode or mixed, by row."""
        return np.where(self.prefills <= 0, DECODE, np.where(self.decodes <= 0, PREFILL, MIXED))

    @property
    def tokens(self) -> Array:
        """Tokens processed."""
        return self.prefill_tokens + self.decodes


def step_load(v: Values) -> Load:
    """Loads of single steps; columns of the ``step`` kind."""
    p, k, r = v["prefill_tokens"], v["prefill_context_tokens"], v["prefill_requests"]
    n, c = v["decode_requests"], v["decode_context_tokens"]
    k = np.where(r > 0, k, 0.0)
    c = np.where(n > 0, c, 0.0)
    return Load(
        steps=np.ones_like(p),
        tp=v["tp"],
        prefill_steps=(r > 0).astype(float),
        prefills=r,
        prefill_tokens=p,
        prefill_squares=p * p / np.maximum(r, 1.0),
        prefill_context=k * r,
        prefill_products=p * k,
        decodes=n,
        decode_context=n * c,
        longest_prefill=k,
        longest_decode=c,
    )


def static_load(v: Values) -> Load:
    """Loads of whole static batches: one prefill step, then S_out − 1 decode steps; columns of ``static``."""
    B, S, out = v["batch"], v["input_tokens"], v["output_tokens"]
    steps = out - 1.0
    zero = np.zeros_like(B)
    return Load(
        steps=out + 0.0,
        tp=v["tp"],
        prefill_steps=zero + 1.0,
        prefills=B,
        prefill_tokens=B * S,
        prefill_squares=B * S * S,
        prefill_context=zero,
        prefill_products=zero,
        decodes=B * steps,
        decode_context=B * steps * (S + out / 2.0),
        longest_prefill=zero,
        longest_decode=zero,
    )


def served_load(v: Values) -> Load:
    """The mean step of a closed-loop run (see the module's docstring); columns of ``served``."""
    C, S, out = v["concurrency"], v["input_tokens"], v["output_tokens"]
    zero = np.zeros_like(C)
    return Load(
        steps=zero + 1.0,
        tp=v["tp"],
        prefill_steps=np.minimum(1.0, C / out),
        prefills=C / out,
        prefill_tokens=C * S / out,
        prefill_squares=C * S * S / out,
        prefill_context=zero,
        prefill_products=zero,
        decodes=C + 0.0,
        decode_context=C * (S + out / 2.0),
        longest_prefill=zero,
        longest_decode=zero,
    )


@dataclass(frozen=True)
class Term:
    """One column of a linear form: its value from a load, and whom a request's share of it follows.

    `share` names the per-request weight that divides the term among a batch (`attribution`).
    """

    value: Callable[[Load], Array]
    unit: str
    share: str
    pooled: bool = False  # only of use where tensor parallelism varies


def _hinge(x: Array, knot: float) -> Array:
    return np.maximum(x - knot, 0.0)


def _tokens_over(knot: float) -> Callable[[Load], Array]:
    return lambda L: _hinge(L.tokens, knot) / L.tp


def _crowd_over(knot: float) -> Callable[[Load], Array]:
    # (n − knot)⁺ · mean context: the KV of the decoding requests beyond `knot`.
    return lambda L: _hinge(L.decodes, knot) / np.maximum(L.decodes, 1.0) * L.decode_context / L.tp


def _context_over(knot: float) -> Callable[[Load], Array]:
    return lambda L: _hinge(L.decode_context, knot) / L.tp


def _parallel(L: Load) -> Array:
    return np.asarray(L.tp > 1, dtype=float)


TERMS: dict[str, Term] = {
    "fixed": Term(lambda L: L.steps, "s/step", "fixed"),
    "prefill_fixed": Term(lambda L: L.prefill_steps, "s/prefill step", "prefill"),
    "weights": Term(lambda L: L.steps / L.tp, "s/step·tp", "fixed", pooled=True),
    "comm_fixed": Term(lambda L: L.steps * np.log2(L.tp), "s/step·log2(tp)", "fixed", pooled=True),
    "tokens": Term(lambda L: L.tokens / L.tp, "s·tp/token", "tokens"),
    "prefill_tokens": Term(lambda L: L.prefill_tokens / L.tp, "s·tp/token", "prefill_tokens"),
    "decode_tokens": Term(lambda L: L.decodes / L.tp, "s·tp/token", "decode"),
    "comm_tokens": Term(lambda L: L.tokens * _parallel(L), "s/token", "tokens", pooled=True),
    "comm_decodes": Term(lambda L: L.decodes * _parallel(L), "s/token", "decode", pooled=True),
    "decode_kv": Term(lambda L: L.decode_context / L.tp, "s·tp/token", "decode_context"),
    "prefill_attention": Term(lambda L: L.prefill_squares / L.tp, "s·tp/token²", "prefill_squares"),
    "chunk_kv": Term(lambda L: L.prefill_context / L.tp, "s·tp/token", "prefill_context"),
    "chunk_attention": Term(lambda L: L.prefill_products / L.tp, "s·tp/token²", "prefill_products"),
    # Of `latency.steps.StepCosts`: a context token costs more in a step that carries a prompt.
    "prompt_pairs": Term(
        lambda L: (L.prefill_products + L.prefill_squares / 2.0) / L.tp, "s·tp/token²", "prefill_products"
    ),
    "pure_kv": Term(lambda L: L.decode_context * (L.prefills <= 0) / L.tp, "s·tp/token", "decode_context"),
    "mixed_kv": Term(lambda L: L.decode_context * (L.prefills > 0) / L.tp, "s·tp/token", "decode_context"),
    "requests": Term(lambda L: L.decodes + L.prefills, "s/request", "request"),
    "longest_context": Term(
        lambda L: np.maximum(L.longest_prefill, L.longest_decode) * ((L.prefills > 0) & (L.decodes > 0)),
        "s/token",
        "longest",
    ),
    # LV(1) as printed: no division by tp.
    "sum_p": Term(lambda L: L.tokens, "s/token", "tokens"),
    "sum_c": Term(lambda L: L.decode_context + L.prefill_context, "s/token", "context"),
    "sum_p2": Term(lambda L: L.prefill_squares + L.decodes, "s/token²", "squares"),
    "batch": Term(lambda L: L.decodes + L.prefills, "s/request", "request"),
}
for _k in TOKEN_KNOTS:
    TERMS[f"tokens_over_{_k}"] = Term(_tokens_over(_k), "s·tp/token", "tokens")
for _k in CROWD_KNOTS:
    TERMS[f"crowd_over_{_k}"] = Term(_crowd_over(_k), "s·tp/token", "decode_context")
for _k in CONTEXT_KNOTS:
    TERMS[f"context_over_{_k}"] = Term(_context_over(_k), "s·tp/token", "decode_context")


def experts_touched(load: Load, experts: int, active: int, *, single: bool) -> Array:
    """Expected share of a MoE's routed experts that a step reads, per step and TP shard: 1 − (1 − k/E)^tokens.

    Over many steps (not `single`) the tokens are a decode step's: prompts come in few steps that read every
    expert, and the share is concave, so a mean step's token count would overstate it.
    """
    per_step = load.tokens if single else load.decodes / load.steps
    return load.steps / load.tp * (1.0 - (1.0 - active / experts) ** per_step)
