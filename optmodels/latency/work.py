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
engines' steps use it in `engines.terms`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from optmodels.catalog.types import Architecture, Gpu, spelled
from optmodels.catalog.types import Precision as Precision

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
# Kernels for MXFP4 experts want whole tiles: hidden sizes in multiples of 256, a GPU's share of an expert's width in
# multiples of 128 (vllm/model_executor/layers/quantization/mxfp4.py, Marlin).
MXFP4_TILE = 256, 128


def peak_flops(gpu: Gpu, weights: Precision) -> float | None:
    """Dense FLOP/s of matrix products with weights of this precision; None: the GPU's 16-bit peak is not published.

    A GPU without the precision's own peak computes in 16 bit; int4 is weight-only and always does.
    """
    own = {"fp8": gpu.fp8_flops, "fp8_block": gpu.fp8_flops, "fp4": gpu.fp4_flops, "mxfp4": gpu.fp4_flops}.get(weights)
    return gpu.fp16_flops if own is None else own


def band(S: Any, tokens: Any) -> Any:
    """Mean over a prompt of S tokens of the earlier ones each attends to, at most this many: W·(1 − W/2S), W ≤ S."""
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
    whole_activation_bytes_per_token: float  # of these, the part that every GPU of a tensor-parallel group holds whole
    logit_bytes_per_sequence: float
    vocab: int
    kv_heads: int  # parts that a token's cache can be split into; a latent is one
    kv_weight_bytes: float  # of the key and value projections, repeated with the heads
    whole_weight_bytes: float  # routers and a latent's down-projections: whole on every GPU of a tensor-parallel group
    routed_flops_per_token: float = 0.0  # of `linear_flops_per_token`, the routed experts'
    latent_share: float = 0.0  # of the layers, those with latent attention
    window_share: float = 0.0  # of the KV cache, what belongs to the last tokens only
    window_pair_share: float = 0.0  # the same of the FLOPs of attention
    kept_share: float = 0.0  # the same for the cache: 0 where chunks attend and the whole sequence is kept
    window_tokens: float = np.inf
    top_tokens: float = np.inf  # of the context, that the indexer of sparse attention picks
    top_share: float = 1.0  # of the layers with attention, those that read the picked tokens only
    index_bytes_per_token: float = 0.0  # of `kv_bytes_per_token`, the indexer's keys
    index_flops_per_pair: float = 0.0  # of both `*_flops_per_pair`, the indexer's
    state_bytes: float = 0.0  # of a sequence's recurrent state in linear layers, read and written in each decode step
    params: float = 0.0  # of the whole model without layers of multi-token prediction
    tiled_expert: tuple[int, int] | None = None  # hidden size and width of experts that are padded to `MXFP4_TILE`

    def seen(self, context: Any) -> Any:
        """Mean over the layers with attention of the context tokens that one more token attends to."""
        if not self.window_share:
            return context
        return (1.0 - self.window_share) * context + self.window_share * np.minimum(context, self.window_tokens)

    def kept(self, context: Any) -> Any:
        """Mean over the layers with attention of the tokens that the cache keeps of a sequence."""
        if not self.kept_share:
            return context
        return (1.0 - self.kept_share) * context + self.kept_share * np.minimum(context, self.window_tokens)

    def attended(self, S_in: Any) -> Any:
        """Mean over the layers with attention of the earlier tokens that a prompt's tokens attend to (`band`)."""
        share = self.window_pair_share
        return (1.0 - share) * S_in / 2.0 + share * band(S_in, self.window_tokens)

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

    def expert_padding_bytes(self, tp: Any) -> Any:
        """Bytes that all routed experts take beyond their weights, each split over `tp` GPUs in whole tiles."""
        tp = np.asarray(tp, dtype=float)
        if self.tiled_expert is None:
            return 0.0 * tp
        (hidden, width), (row, column) = self.tiled_expert, MXFP4_TILE
        stored = np.ceil(hidden / row) * row * np.ceil(width / tp / column) * column * tp
        return self.layers * self.expert_weight_bytes * (stored / (hidden * width) - 1.0)

    def kv_cache_bytes(self, B: Any, tokens: Any) -> Any:
        """M_KV of LP(1): KV cache of B sequences of `tokens` tokens over all layers, bytes."""
        return B * self.kept(tokens) * self.kv_bytes_per_token_all_layers


@dataclass(frozen=True)
class _Attention:
    """Softmax attention of one layer: parameters, FLOPs of a pair, elements of a cached token."""

    params: float = 0.0
    kv_params: float = 0.0  # of the key and value projections, repeated with the heads
    whole_params: float = 0.0  # on every GPU of a tensor-parallel group
    pair_flops: float = 0.0
    prefill_pair_flops: float = 0.0
    kv_elements: float = 0.0
    ao_elements: float = 0.0
    index_params: float = 0.0
    index_flops: float = 0.0
    index_bytes: float = 0.0


def _grouped(h: int, heads: int, kv_heads: int, dim: int, value_dim: int, gate: bool, values: bool) -> _Attention:
    """Grouped-query attention. `values`: with a value projection of its own."""
    kv_dim = kv_heads * (dim + value_dim)
    kv_params = float(h * (kv_dim if values else kv_heads * dim))
    pair = 2.0 * heads * (dim + value_dim)
    params = (2 if gate else 1) * h * heads * dim + kv_params + heads * value_dim * h
    return _Attention(params, kv_params, 0.0, pair, pair, kv_dim, heads * (dim + value_dim) + kv_dim)


def _latent(arch: Architecture) -> _Attention:
    """Latent attention; decode in the absorbed form, in which keys and values are the cached vectors."""
    h, m = arch.hidden, arch.mla
    assert m is not None
    qk_dim = m.qk_nope_head_dim + m.qk_rope_head_dim
    q_params = h * m.q_lora_rank + m.q_lora_rank * arch.heads * qk_dim if m.q_lora_rank else h * arch.heads * qk_dim
    index_dim = m.index_heads * m.index_head_dim
    own = (m.index_layers or arch.layers) / arch.layers
    index_params = own * ((m.q_lora_rank or h) * index_dim + h * (m.index_head_dim + m.index_heads))
    elements = float(m.kv_lora_rank + m.qk_rope_head_dim)
    params = (
        q_params
        + h * (m.kv_lora_rank + m.qk_rope_head_dim)
        + m.kv_lora_rank * arch.heads * (m.qk_nope_head_dim + m.v_head_dim)
        + (2 if arch.attention_gate else 1) * arch.heads * m.v_head_dim * h
        + index_params
    )
    return _Attention(
        params, 0.0, float(h * (m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim) + index_params),
        2.0 * arch.heads * (elements + m.kv_lora_rank), 2.0 * arch.heads * (qk_dim + m.v_head_dim),
        elements, arch.heads * (elements + m.kv_lora_rank) + elements, 0.0, own * 2.0 * index_dim,
        own * _key_bytes(m.index_head_dim) if index_dim else 0.0,
    )  # fmt: skip


def _key_bytes(dim: float) -> float:
    """Bytes of an indexer's key: elements of 8 bits and a scale."""
    return dim + 4.0


def _compressed(arch: Architecture) -> tuple[_Attention, float]:
    """Compressed attention of DeepSeek-V4 in the mean layer, and the share of its cache that is the window's.

    Every layer has projections of queries and outputs through low ranks and one head of keys that are values, too.
    Compressors project to that head and to its gate, twice where entries overlap (with an indexer). A query reads
    every entry: the indexer's choice is not subtracted, an upper bound.
    """
    h, c, dim = arch.hidden, arch.compressed, arch.head_dim
    assert c is not None
    indexed, plain = c.indexed_layers / arch.layers, c.layers / arch.layers
    width = c.index_heads * c.index_head_dim
    index_params = indexed * (c.q_lora_rank * width + h * c.index_heads + 4 * h * c.index_head_dim)
    compressor = h * dim * (4 * indexed + 2 * plain)
    params = (
        h * c.q_lora_rank + c.q_lora_rank * arch.heads * dim + h * dim
        + arch.heads * dim * c.output_rank + c.output_groups * c.output_rank * h + compressor + index_params
    )  # fmt: skip
    entries = indexed / c.indexed_ratio + plain / c.ratio
    pair = 4.0 * arch.heads * dim * (1.0 + entries)
    found = _Attention(
        params, 0.0, h * (c.q_lora_rank + dim) + compressor + index_params, pair, pair, dim * (1.0 + entries),
        2.0 * arch.heads * dim + dim, 0.0, indexed * 2.0 * width / c.indexed_ratio,
        indexed * _key_bytes(c.index_head_dim) / c.indexed_ratio,
    )  # fmt: skip
    return found, 1.0 / (1.0 + entries)


def _mixed(one: _Attention, other: _Attention, share: float) -> _Attention:
    """Mean of two kinds of layers, `share` of the other."""
    return _Attention(
        *((1.0 - share) * getattr(one, f) + share * getattr(other, f) for f in _Attention.__dataclass_fields__)
    )


def _bytes_each(arch: Architecture, weights: Precision, part: str, layers: float) -> float:
    """Bytes of a weight of one part, which `layers` layers have, with the checkpoint's exceptions."""
    stated = WEIGHT_BYTES[weights]
    if weights == "fp16":
        return stated
    for kept in arch.kept:
        if kept.part == part and layers and kept.weights in (None, weights):
            stated += min((kept.layers or layers) / layers, 1.0) * (
                WEIGHT_BYTES[kept.precision] - WEIGHT_BYTES[weights]
            )
    return stated


def layer_work(arch: Architecture, weights: Precision = "fp16", kv: KvPrecision = "fp16") -> LayerWork:
    """Read the work coefficients off an architecture (see the module's docstring).

    Embeddings, output head, routers and vision towers stay in 16 bit where weights are quantised, and so do the parts
    that the checkpoint keeps so (`Architecture.kept`), or everything but the experts of a model that was published so
    (`MoE.expert_precision`).
    """
    h, layers = arch.hidden, arch.layers
    linear, window = arch.linear, arch.window
    linear_layers = linear.layers if linear is not None else 0
    beside = linear is not None and linear.parallel
    attending = layers - (0 if beside else linear_layers) if arch.attention_layers is None else arch.attention_layers
    with_attention = attending / layers
    value_dim = arch.value_head_dim or arch.head_dim
    window_share = pair_share = window.layers / attending if window is not None else 0.0
    top_share, window_tokens = 1.0, float(window.tokens) if window is not None else np.inf
    if arch.compressed is not None:
        (one, window_share), window_tokens = _compressed(arch), float(arch.compressed.window)
        pair_share = window_share
    elif arch.mla is not None:
        one = _latent(arch)
    else:
        one = _grouped(h, arch.heads, arch.kv_heads, arch.head_dim, value_dim, arch.attention_gate,
                       arch.value_projection)  # fmt: skip
        if window is not None and any((window.heads, window.kv_heads, window.head_dim, window.value_head_dim,
                                       not arch.value_projection)):  # fmt: skip
            dim = window.head_dim or arch.head_dim
            other = _grouped(h, window.heads or arch.heads, window.kv_heads or arch.kv_heads, dim,
                             window.value_head_dim or (dim if window.head_dim else value_dim), arch.attention_gate,
                             True)  # fmt: skip
            share, full = window_share, one
            one = _mixed(full, other, share)
            window_share = share * other.kv_elements / one.kv_elements
            pair_share = share * other.pair_flops / one.pair_flops
        if arch.sparse is not None:
            s = arch.sparse
            top_share = s.layers / attending
            one = replace(
                one, index_params=top_share * h * s.head_dim * (s.heads + 1.0),
                index_flops=top_share * 2.0 * s.heads * s.head_dim, index_bytes=top_share * s.head_dim * 2.0,
            )  # fmt: skip
    attention_params, kv_params, whole_params = one.params + one.index_params, one.kv_params, one.whole_params
    state_elements = state_flops = linear_params = conv_elements = 0.0
    if linear is not None:
        with_linear = linear_layers / layers
        attention_params = with_attention * attention_params
        kv_params, whole_params = with_attention * kv_params, with_attention * whole_params
        keys, values = linear.key_heads * linear.key_head_dim, linear.value_heads * linear.value_head_dim
        dim = linear.value_head_dim
        inputs = {
            "delta": h * (2 * keys + 2 * values + 2 * linear.value_heads),
            "mamba1": 2 * h * values + values * (2 * linear.rank + 3 * keys),
            "mamba2": h * (2 * keys + 2 * values + linear.value_heads),
            "lightning": h * (2 * keys + 2 * values),
            "conv": 3 * h * values,
            "kda": h * (2 * keys + values + linear.value_heads + 2 * dim) + dim * (keys + values),
        }[linear.kind]
        linear_params = with_linear * (inputs + values * h)
        convolved = values + (0 if linear.kind in ("mamba1", "conv") else 2 * keys)
        state_elements = with_linear * linear.value_heads * linear.key_head_dim * linear.value_head_dim
        state_flops = 8.0 * state_elements  # decay, the delta rule's read and write, the query's read
        conv_elements = with_linear * max(linear.conv_kernel - 1, 0) * convolved
    elif arch.attention_layers is not None:
        attention_params, kv_params, whole_params = (
            with_attention * p for p in (attention_params, kv_params, whole_params)
        )
    dense_ffn = float(arch.ffn_matrices * h * arch.ffn)
    router = routed = shared = expert_params = moe_share = latent = 0.0
    experts = active = 0
    if arch.moe is None:
        dense = 1.0 if arch.ffn_layers is None else arch.ffn_layers / layers
        width = float(arch.ffn)
    else:
        e = arch.moe
        dense = (e.dense_layers if arch.ffn_layers is None else arch.ffn_layers) / layers
        moe_share = 1.0 - e.dense_layers / layers if e.layers is None else e.layers / layers
        one_expert = arch.ffn_matrices * (e.latent or h) * e.expert_ffn
        router = moe_share * h * e.experts
        latent = moe_share * 2.0 * h * e.latent
        shared = moe_share * arch.ffn_matrices * h * e.shared_ffn
        routed = moe_share * e.active * one_expert
        expert_params = moe_share * e.experts * one_expert
        experts, active = e.experts, e.active
        width = max(dense * arch.ffn, e.active * e.expert_ffn + e.shared_ffn)
    head = float(arch.vocab * h)
    embeddings = head * (1 if arch.tied_embeddings else 2) + arch.learned_positions * h
    plain = WEIGHT_BYTES["fp16"]
    shown: Precision = weights
    if arch.moe is not None and arch.moe.expert_precision is not None:
        expert_w, shown = min(WEIGHT_BYTES[weights], WEIGHT_BYTES[arch.moe.expert_precision]), "fp16"
    else:
        expert_w = _bytes_each(arch, weights, "experts", moe_share * layers)
    attention_w = _bytes_each(arch, shown, "attention", attending)
    expert_bytes = expert_params * expert_w
    body_bytes = (
        attention_params * attention_w + linear_params * _bytes_each(arch, shown, "linear", linear_layers)
        + dense * dense_ffn * _bytes_each(arch, shown, "dense", dense * layers)
        + (shared + latent) * _bytes_each(arch, shown, "shared", moe_share * layers) + router * plain
    )  # fmt: skip
    kv_bytes = with_attention * (one.kv_elements * KV_BYTES[kv] + one.index_bytes)
    if arch.compressed is not None:  # an indexer's keys and products are next to, of every entry
        window_share *= one.kv_elements * KV_BYTES[kv] / kv_bytes
        pair_share *= one.pair_flops / (one.pair_flops + one.index_flops)
    whole_activations = 2 * h * arch.residual_streams * ACTIVATION_BYTES
    if arch.moe is not None:  # the tokens' results of each of their experts, before they are added up
        whole_activations += arch.moe.active * (arch.moe.latent or h) * ACTIVATION_BYTES
    q_dim, kv_dim = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    kv_heads = 1 if arch.mla is not None or arch.compressed is not None else arch.kv_heads
    top_tokens = np.inf
    if arch.mla is not None and arch.mla.index_topk:
        top_tokens = float(arch.mla.index_topk)
    elif arch.sparse is not None:
        top_tokens = float(arch.sparse.topk)
    return LayerWork(
        layers=layers,
        linear_flops_per_token=2.0 * (attention_params + linear_params + dense * dense_ffn + shared + latent
                                      + router + routed) + state_flops,
        attention_flops_per_pair=with_attention * (one.pair_flops + one.index_flops),
        prefill_flops_per_pair=with_attention * (one.prefill_pair_flops + one.index_flops),
        causal=arch.mla is not None or arch.compressed is not None,
        kv_bytes_per_token=kv_bytes,
        ao_bytes_per_token=with_attention * one.ao_elements * ACTIVATION_BYTES,
        head_flops_per_token=2.0 * head / layers,
        fixed_weight_bytes=body_bytes + head / layers * plain,
        expert_weight_bytes=expert_bytes,
        experts=experts,
        active_experts=active,
        expert_layers=moe_share,
        allreduce_bytes_per_token=h * ACTIVATION_BYTES,
        weight_bytes=layers * (body_bytes + expert_bytes) + (embeddings + arch.vision_params) * plain,
        kv_bytes_per_token_all_layers=layers * kv_bytes,
        activation_bytes_per_token=(
            whole_activations + (q_dim + 2 * kv_dim + width * (arch.ffn_matrices - 1)) * ACTIVATION_BYTES
        ),
        whole_activation_bytes_per_token=whole_activations,
        logit_bytes_per_sequence=arch.vocab * 4.0,
        vocab=arch.vocab,
        kv_heads=kv_heads,
        kv_weight_bytes=kv_params * attention_w,
        whole_weight_bytes=whole_params * attention_w + router * plain,
        routed_flops_per_token=2.0 * routed,
        latent_share=with_attention if arch.mla is not None or arch.compressed is not None else 0.0,
        window_share=window_share,
        window_pair_share=pair_share,
        kept_share=0.0 if window is not None and window.chunked else window_share,
        window_tokens=window_tokens,
        top_tokens=top_tokens,
        top_share=top_share,
        index_bytes_per_token=with_attention * one.index_bytes,
        index_flops_per_pair=with_attention * one.index_flops,
        state_bytes=state_elements * STATE_BYTES + conv_elements * ACTIVATION_BYTES,
        params=layers * (attention_params + linear_params + dense * dense_ffn + shared + latent + router
                         + expert_params) + embeddings + arch.vision_params,
        tiled_expert=None if arch.moe is None or expert_w != WEIGHT_BYTES["mxfp4"]
        else (arch.moe.latent or h, arch.moe.expert_ffn),
    )  # fmt: skip
