"""Work of one transformer layer: the hardware-independent functions F, M, D of LLM-Pilot Table V, generalised.

Table V is written for multi-head attention with a 4h feed-forward (OPT):

    F_pre = B·S_in·(24h² + 4·S_in·h)    F_dec(l) = B·(24h² + 4·l·h)         FLOPs
    M(l)  = D_kvo(l) = 2·B·l·h·b_w                                          bytes
    D_ao  = 4·B·S_in·h·b_w in prefill, 4·B·h·b_w in decode                  bytes

Here grouped-query and latent attention, gated feed-forwards of any width, mixtures of experts, sliding windows, layers
of linear attention and separate weight and KV precisions are read off the architecture. For OPT every function below
equals Table V exactly (tests/latency/test_work.py). A layer is the mean layer of the model: where layers differ
(leading dense layers of a MoE, windows), their sum over the model is exact and is divided by the number of layers.

Latent attention (DeepSeek-V2, arXiv 2405.04434) has two forms. Decode absorbs the up-projections: every head attends
over the cached latent, 2·H·(2r + d_rope) FLOPs a pair. Prefill does not: keys and values are made from the latent (in
the projections) and a pair costs 2·H·(d_nope + d_rope + d_v), over the earlier tokens only, S_in/2 in the mean. Table V
counts the whole square S_in² of prefill attention, which stays so for all others.

The functions of Table V take sparse attention (`top_tokens`) to read and score every earlier token, an upper bound;
what engines' steps take of it is in `engines.terms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from optmodels.catalog.types import Architecture, Gpu, spelled

Array = npt.NDArray[np.float64]
Precision = Literal["fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4"]
KvPrecision = Literal["fp16", "fp8", "int4"]
StatedPrecision = Annotated[Precision, spelled("precision")]  # by any of its names, as files have it
StatedKvPrecision = Annotated[KvPrecision, spelled("kv_precision")]
# Bytes of a weight with the scales of its block: fp8_block one fp32 for 128 × 128 (DeepSeek-V3, arXiv 2412.19437 §3.3);
# fp4 is NVFP4, one fp8 for 16; mxfp4 one 8-bit exponent for 32 (OCP Microscaling Formats 1.0); int4 a 16-bit scale and
# a 16-bit zero for 128 (AWQ, GPTQ).
WEIGHT_BYTES: dict[Precision, float] = {
    "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4.0 / 128**2, "fp4": 0.5 + 1.0 / 16, "mxfp4": 0.5 + 1.0 / 32,
    "int4": 0.5 + 4.0 / 128,
}  # fmt: skip
KV_BYTES: dict[KvPrecision, float] = {"fp16": 2.0, "fp8": 1.0, "int4": 0.5}
ACTIVATION_BYTES = 2.0
STATE_BYTES = 4.0  # of a linear layer's recurrent state: engines keep it in fp32


def peak_flops(gpu: Gpu, weights: Precision) -> float | None:
    """Dense FLOP/s of matrix products with weights of this precision; None: the GPU's 16-bit peak is not published.

    A GPU without the precision's own peak computes in 16 bit; int4 is weight-only and always does.
    """
    own = {"fp8": gpu.fp8_flops, "fp8_block": gpu.fp8_flops, "fp4": gpu.fp4_flops, "mxfp4": gpu.fp4_flops}.get(weights)
    return gpu.fp16_flops if own is None else own


def band(S: Any, tokens: Any) -> Any:
    """Mean over a prompt of S tokens of the earlier ones each attends to, at most so many: W·(1 − W/2S), W ≤ S."""
    W = np.minimum(S, tokens)
    return W * (1.0 - W / (2.0 * S))


@dataclass(frozen=True)
class LayerWork:
    """Coefficients of the per-layer work of one model at one precision.

    All `*_flops_*` in FLOPs, `*_bytes_*` in bytes; `B` sequences, `S_in` prompt tokens, `l` context tokens.
    """

    layers: int
    linear_flops_per_token: float  # 24h²: projections and feed-forward, F_ffn in LP(14)
    attention_flops_per_pair: float  # 4h: per query token and context token
    prefill_flops_per_pair: float  # the same in prefill
    causal: bool  # whether prefill skips the half of the square that is masked
    kv_bytes_per_token: float  # 2·h·b_w, of a token that every layer with attention keeps
    ao_bytes_per_token: float  # 4·h·b_w: queries, keys, values out, results back
    head_flops_per_token: float  # output projection, spread over the layers (not in Table V)
    fixed_weight_bytes: float  # weights every step reads: attention, dense/shared feed-forward, output head
    expert_weight_bytes: float  # all routed experts' weights
    experts: int
    active_experts: int
    expert_layers: float  # share of the layers
    allreduce_bytes_per_token: float  # hidden state, summed twice a layer under tensor parallelism
    weight_bytes: float  # of the whole model, as stored
    kv_bytes_per_token_all_layers: float
    activation_bytes_per_token: float  # of a pass on one GPU
    whole_activation_bytes_per_token: float  # of these, what every GPU of a tensor-parallel group holds whole
    logit_bytes_per_sequence: float
    kv_heads: int  # parts that a token's cache can be split into; a latent is one
    kv_weight_bytes: float  # of the key and value projections, repeated with the heads
    attention_weight_bytes: float  # of all projections of attention, which every data-parallel attention rank holds
    whole_weight_bytes: float  # routers and a latent's down-projections: whole on every GPU of a tensor-parallel group
    window_share: float = 0.0  # of the layers with attention, those that attend to the last tokens only
    window_tokens: float = np.inf
    top_tokens: float = np.inf  # of the context, that the indexer of sparse attention picks
    index_bytes_per_token: float = 0.0  # of `kv_bytes_per_token`, the indexer's keys
    index_flops_per_pair: float = 0.0  # of both `*_flops_per_pair`, the indexer's
    state_bytes: float = 0.0  # of a sequence's recurrent state in linear layers, read and written in each decode step

    def seen(self, context: Any) -> Any:
        """Mean over the layers with attention of the context tokens that one more token attends to."""
        if not self.window_share:
            return context
        return (1.0 - self.window_share) * context + self.window_share * np.minimum(context, self.window_tokens)

    def attended(self, S_in: Any) -> Any:
        """Mean over the layers with attention of the earlier tokens that a prompt's tokens attend to (`band`)."""
        return (1.0 - self.window_share) * S_in / 2.0 + self.window_share * band(S_in, self.window_tokens)

    def seen_line(self, first: int, steps: int) -> tuple[float, float]:
        """(a, b): a + b·l stands for `seen(l)` of the contexts l = first … first + steps − 1; the mean is exact.

        `seen` itself where no window ends among them.
        """
        if not self.window_share or first + steps - 1 <= self.window_tokens:
            return 0.0, 1.0
        contexts = np.arange(first, first + max(steps, 1), dtype=float)
        values = np.asarray(self.seen(contexts), dtype=float)
        slope = float((values[-1] - values[0]) / (len(values) - 1)) if len(values) > 1 else 1.0 - self.window_share
        return float(values.mean() - slope * contexts.mean()), slope

    def prefill_flops(self, B: Any, S_in: Any) -> Any:
        """F_pre(B, S_in), FLOPs per layer (Table V)."""
        pairs = self.attended(S_in) * (1.0 if self.causal else 2.0)
        return B * S_in * (self.linear_flops_per_token + self.prefill_flops_per_pair * pairs)

    def kv_bytes(self, B: Any, l: Any) -> Any:  # noqa: E741 - the paper's symbol
        """M(B, l) = D_kvo(B, l), bytes per layer (Table V)."""
        return B * self.seen(l) * self.kv_bytes_per_token

    def ao_bytes(self, B: Any, tokens: Any = 1) -> Any:
        """D_ao, bytes per layer: `tokens` = S_in in prefill, 1 in decode (Table V)."""
        return B * tokens * self.ao_bytes_per_token

    def collective_bytes(self, tp: Any, attention_ranks: float = 1.0) -> Any:
        """Bytes that every GPU sends per layer and token of the whole step, on n = tp·attention_ranks GPUs.

        Two ring all-reduces of the hidden state among the tp GPUs of the token's attention rank, 2·2·(tp − 1)/tp times
        its size; and with several ranks, in layers with experts, an all-to-all to the token's k experts and back, whose
        2·k hidden states spread over the n GPUs.
        """
        reduced = 4.0 * (tp - 1.0) / tp / attention_ranks
        exchanged = (
            2.0 * self.active_experts * self.expert_layers / (tp * attention_ranks) if attention_ranks > 1 else 0.0
        )
        return (reduced + exchanged) * self.allreduce_bytes_per_token

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
        return B * self.seen(tokens) * self.kv_bytes_per_token_all_layers


def layer_work(arch: Architecture, weights: Precision = "fp16", kv: KvPrecision = "fp16") -> LayerWork:
    """Read the work coefficients off an architecture (see the module's docstring).

    Embeddings, output head and routers stay in 16 bit where weights are quantised, and so does everything but the
    experts of a model that was published so (`MoE.expert_precision`).
    """
    h, q_dim, kv_dim = arch.hidden, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    kv_params = whole_params = index_bytes = index_flops = 0.0
    if arch.mla is None:
        kv_params = 2.0 * h * kv_dim
        attention_params = (2 if arch.attention_gate else 1) * h * q_dim + kv_params + q_dim * h
        flops_per_pair = prefill_flops_per_pair = 4.0 * q_dim
        kv_elements = 2.0 * kv_dim
        ao_elements = 2.0 * q_dim + 2.0 * kv_dim
    else:
        m = arch.mla
        qk_dim = m.qk_nope_head_dim + m.qk_rope_head_dim
        q_params = h * m.q_lora_rank + m.q_lora_rank * arch.heads * qk_dim if m.q_lora_rank else h * arch.heads * qk_dim
        index_dim = m.index_heads * m.index_head_dim
        index_flops = 2.0 * index_dim
        index_params = (m.q_lora_rank or h) * index_dim + h * (m.index_head_dim + m.index_heads)
        index_bytes = (m.index_head_dim + 4.0) if index_dim else 0.0  # a key of 8-bit elements and its scale
        whole_params = float(h * (m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim) + index_params)
        attention_params = (
            q_params
            + h * (m.kv_lora_rank + m.qk_rope_head_dim)
            + m.kv_lora_rank * arch.heads * (m.qk_nope_head_dim + m.v_head_dim)
            + arch.heads * m.v_head_dim * h
            + index_params
        )
        # Absorbed form: every head attends over the shared latent, so keys and values are the cached vectors.
        kv_elements = float(m.kv_lora_rank + m.qk_rope_head_dim)
        flops_per_pair = 2.0 * arch.heads * (kv_elements + m.kv_lora_rank) + index_flops
        prefill_flops_per_pair = 2.0 * arch.heads * (qk_dim + m.v_head_dim) + index_flops
        ao_elements = arch.heads * (kv_elements + m.kv_lora_rank) + kv_elements
    linear = arch.linear
    state_elements = state_flops = 0.0
    with_attention = 1.0
    if linear is not None:
        with_attention = 1.0 - linear.layers / arch.layers
        keys, values = linear.key_heads * linear.key_head_dim, linear.value_heads * linear.value_head_dim
        params = h * (2 * keys + 2 * values + 2 * linear.value_heads) + values * h
        attention_params = with_attention * attention_params + (1 - with_attention) * params
        kv_params, whole_params = with_attention * kv_params, with_attention * whole_params
        state = linear.value_heads * linear.key_head_dim * linear.value_head_dim
        state_elements = (1 - with_attention) * state
        state_flops = 8.0 * state_elements  # decay, the delta rule's read and write, the query's read
    dense_ffn = float(arch.ffn_matrices * h * arch.ffn)
    router = 0.0
    if arch.moe is None:
        ffn_active, ffn_fixed, expert_params, experts, active, width = dense_ffn, dense_ffn, 0.0, 0, 0, float(arch.ffn)
    else:
        e = arch.moe
        dense = e.dense_layers / arch.layers
        one_expert = arch.ffn_matrices * h * e.expert_ffn
        router = (1 - dense) * h * e.experts
        ffn_fixed = dense * dense_ffn + (1 - dense) * arch.ffn_matrices * h * e.shared_ffn
        ffn_active = ffn_fixed + router + (1 - dense) * e.active * one_expert
        expert_params = (1 - dense) * e.experts * one_expert
        experts, active = e.experts, e.active
        width = max(dense * arch.ffn, e.active * e.expert_ffn + e.shared_ffn)
    head = float(arch.vocab * h)
    embeddings = head * (1 if arch.tied_embeddings else 2) + arch.learned_positions * h
    w = expert_w = WEIGHT_BYTES[weights]
    if arch.moe is not None and arch.moe.expert_precision is not None:
        w, expert_w = WEIGHT_BYTES["fp16"], min(w, WEIGHT_BYTES[arch.moe.expert_precision])
    plain = WEIGHT_BYTES["fp16"]
    expert_bytes = expert_params * expert_w
    body_bytes = (attention_params + ffn_fixed) * w + router * plain
    kv_bytes = with_attention * (kv_elements * KV_BYTES[kv] + index_bytes)
    whole_activations = 2 * h * ACTIVATION_BYTES
    return LayerWork(
        layers=arch.layers,
        linear_flops_per_token=2.0 * (attention_params + ffn_active) + state_flops,
        attention_flops_per_pair=with_attention * flops_per_pair,
        prefill_flops_per_pair=with_attention * prefill_flops_per_pair,
        causal=arch.mla is not None,
        kv_bytes_per_token=kv_bytes,
        ao_bytes_per_token=with_attention * ao_elements * ACTIVATION_BYTES,
        head_flops_per_token=2.0 * head / arch.layers,
        fixed_weight_bytes=body_bytes + head / arch.layers * plain,
        expert_weight_bytes=expert_bytes,
        experts=experts,
        active_experts=active,
        expert_layers=1.0 - arch.moe.dense_layers / arch.layers if arch.moe is not None else 0.0,
        allreduce_bytes_per_token=h * ACTIVATION_BYTES,
        weight_bytes=arch.layers * (body_bytes + expert_bytes) + embeddings * plain,
        kv_bytes_per_token_all_layers=arch.layers * kv_bytes,
        activation_bytes_per_token=(
            whole_activations + (q_dim + 2 * kv_dim + width * (arch.ffn_matrices - 1)) * ACTIVATION_BYTES
        ),
        whole_activation_bytes_per_token=whole_activations,
        logit_bytes_per_sequence=arch.vocab * 4.0,
        kv_heads=arch.kv_heads if arch.mla is None else 1,
        kv_weight_bytes=kv_params * w,
        attention_weight_bytes=attention_params * w,
        whole_weight_bytes=whole_params * w + router * plain,
        window_share=arch.window.layers / (arch.layers * with_attention) if arch.window is not None else 0.0,
        window_tokens=float(arch.window.tokens) if arch.window is not None else np.inf,
        top_tokens=float(arch.mla.index_topk or np.inf) if arch.mla is not None else np.inf,
        index_bytes_per_token=with_attention * index_bytes,
        index_flops_per_pair=with_attention * index_flops,
        state_bytes=state_elements * STATE_BYTES,
    )
