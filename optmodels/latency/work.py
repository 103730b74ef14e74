"""Work of one transformer layer: the hardware-independent functions F, M, D of LLM-Pilot Table V, generalised.

Table V is written for multi-head attention with a 4h feed-forward (OPT):

    F_pre = B·S_in·(24h² + 4·S_in·h)    F_dec(l) = B·(24h² + 4·l·h)         FLOPs
    M(l)  = D_kvo(l) = 2·B·l·h·b_w                                          bytes
    D_ao  = 4·B·S_in·h·b_w in prefill, 4·B·h·b_w in decode                  bytes

Here grouped-query and latent attention, gated feed-forwards of any width, mixtures of experts and separate
weight and KV precisions are read off the architecture. For OPT every function below equals Table V exactly
(tests/latency/test_work.py). A layer is the mean layer of the model: where layers differ (leading dense
layers of a MoE), their sum over the model is exact and is divided by the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from optmodels.catalog.types import Architecture

Precision = Literal["fp16", "fp8", "int4"]
BYTES: dict[Precision, float] = {"fp16": 2.0, "fp8": 1.0, "int4": 0.5}
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class LayerWork:
    """Coefficients of the per-layer work of one model at one precision.

    All `*_flops_*` in FLOPs, `*_bytes_*` in bytes; `B` sequences, `S_in` prompt tokens, `l` context tokens.
    """

    layers: int
    linear_flops_per_token: float  # 24h²: projections and feed-forward, F_ffn in LP(14)
    attention_flops_per_pair: float  # 4h: per query token and context token
    kv_bytes_per_token: float  # 2·h·b_w
    ao_bytes_per_token: float  # 4·h·b_w: queries, keys, values out, results back
    head_flops_per_token: float  # output projection, spread over the layers (not in Table V)
    fixed_weight_bytes: float  # weights every step reads: attention, dense/shared feed-forward, output head
    expert_weight_bytes: float  # all routed experts' weights
    experts: int
    active_experts: int
    allreduce_bytes_per_token: float  # hidden state, summed twice a layer under tensor parallelism
    weight_bytes: float  # of the whole model, as stored
    kv_bytes_per_token_all_layers: float
    activation_bytes_per_token: float
    logit_bytes_per_sequence: float

    def prefill_flops(self, B: Any, S_in: Any) -> Any:
        """F_pre(B, S_in), FLOPs per layer (Table V)."""
        return B * S_in * (self.linear_flops_per_token + self.attention_flops_per_pair * S_in)

    def kv_bytes(self, B: Any, l: Any) -> Any:  # noqa: E741 - the paper's symbol
        """M(B, l) = D_kvo(B, l), bytes per layer (Table V)."""
        return B * l * self.kv_bytes_per_token

    def ao_bytes(self, B: Any, tokens: Any = 1) -> Any:
        """D_ao, bytes per layer: `tokens` = S_in in prefill, 1 in decode (Table V)."""
        return B * tokens * self.ao_bytes_per_token

    def weight_bytes_read(self, tokens: Any) -> Any:
        """Weight bytes per layer that a pass over `tokens` tokens reads from device memory.

        Of E experts with k active per token, tokens routed evenly touch E·(1 − (1 − k/E)^tokens) in expectation.
        """
        if not self.experts:
            return self.fixed_weight_bytes + 0.0 * np.asarray(tokens, dtype=float)
        share = 1.0 - (1.0 - self.active_experts / self.experts) ** np.asarray(tokens, dtype=float)
        return self.fixed_weight_bytes + self.expert_weight_bytes * share

    def kv_cache_bytes(self, B: Any, tokens: Any) -> Any:
        """M_KV of LP(1): KV cache of B sequences of `tokens` tokens over all layers, bytes."""
        return B * tokens * self.kv_bytes_per_token_all_layers

    def activation_bytes(self, B: Any, S_in: Any, chunk_tokens: float) -> Any:
        """Working memory of a pass: activations of at most `chunk_tokens` prompt tokens at a time, and logits.

        LLM-Pilot leaves activations out; serving engines prefill in chunks, so they do not grow with B·S_in.
        """
        return (
            np.minimum(np.asarray(B, dtype=float) * S_in, chunk_tokens) * self.activation_bytes_per_token
            + B * self.logit_bytes_per_sequence
        )


def layer_work(arch: Architecture, weights: Precision = "fp16", kv: Precision = "fp16") -> LayerWork:
    """Read the work coefficients off an architecture (see the module's docstring)."""
    h, q_dim, kv_dim = arch.hidden, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    if arch.mla is None:
        attention_params = h * q_dim + 2 * h * kv_dim + q_dim * h
        flops_per_pair = 4.0 * q_dim
        kv_elements = 2.0 * kv_dim
        ao_elements = 2.0 * q_dim + 2.0 * kv_dim
    else:
        m = arch.mla
        qk_dim = m.qk_nope_head_dim + m.qk_rope_head_dim
        q_params = h * m.q_lora_rank + m.q_lora_rank * arch.heads * qk_dim if m.q_lora_rank else h * arch.heads * qk_dim
        attention_params = (
            q_params
            + h * (m.kv_lora_rank + m.qk_rope_head_dim)
            + m.kv_lora_rank * arch.heads * (m.qk_nope_head_dim + m.v_head_dim)
            + arch.heads * m.v_head_dim * h
        )
        # Absorbed form: every head attends over the shared latent, so keys and values are the cached vectors.
        kv_elements = float(m.kv_lora_rank + m.qk_rope_head_dim)
        flops_per_pair = 2.0 * arch.heads * (kv_elements + m.kv_lora_rank)
        ao_elements = arch.heads * (kv_elements + m.kv_lora_rank) + kv_elements
    dense_ffn = float(arch.ffn_matrices * h * arch.ffn)
    if arch.moe is None:
        ffn_active, ffn_fixed, expert_params, experts, active, width = dense_ffn, dense_ffn, 0.0, 0, 0, float(arch.ffn)
    else:
        e = arch.moe
        dense = e.dense_layers / arch.layers
        one_expert = arch.ffn_matrices * h * e.expert_ffn
        shared = arch.ffn_matrices * h * e.shared_ffn + h * e.experts  # and the router
        ffn_fixed = dense * dense_ffn + (1 - dense) * shared
        ffn_active = ffn_fixed + (1 - dense) * e.active * one_expert
        expert_params = (1 - dense) * e.experts * one_expert
        experts, active = e.experts, e.active
        width = max(dense * arch.ffn, e.active * e.expert_ffn + e.shared_ffn)
    head = float(arch.vocab * h)
    embeddings = head * (1 if arch.tied_embeddings else 2) + arch.learned_positions * h
    w = BYTES[weights]
    return LayerWork(
        layers=arch.layers,
        linear_flops_per_token=2.0 * (attention_params + ffn_active),
        attention_flops_per_pair=flops_per_pair,
        kv_bytes_per_token=kv_elements * BYTES[kv],
        ao_bytes_per_token=ao_elements * ACTIVATION_BYTES,
        head_flops_per_token=2.0 * head / arch.layers,
        fixed_weight_bytes=(attention_params + ffn_fixed + head / arch.layers) * w,
        expert_weight_bytes=expert_params * w,
        experts=experts,
        active_experts=active,
        allreduce_bytes_per_token=h * ACTIVATION_BYTES,
        weight_bytes=(arch.layers * (attention_params + ffn_fixed + expert_params) + embeddings) * w,
        kv_bytes_per_token_all_layers=arch.layers * kv_elements * BYTES[kv],
        activation_bytes_per_token=(2 * h + q_dim + 2 * kv_dim + width * (arch.ffn_matrices - 1)) * ACTIVATION_BYTES,
        logit_bytes_per_sequence=arch.vocab * 4.0,
    )
