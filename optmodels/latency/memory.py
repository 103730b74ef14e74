"""Device memory as serving engines use it: the contents of each GPU, and the tokens of KV cache that are left.

On n = t·D GPUs, where t share one attention rank by tensor parallelism (D data-parallel attention ranks; `pp` stages
besides), one GPU holds

    weights   experts over n, all others over t, but whole: routers and the down-projections of latent attention
    KV cache  of its rank's requests, ⌈h/t⌉ of the h KV heads: heads fewer than t are replicated, and so is a latent
              (h = 1), which only data-parallel attention splits
    a pass    activations of a chunk of prompt tokens (hidden states and experts' results whole, the rest 1/t), logits
    sampler   sorted logits of the sequences beyond 256, whole on every GPU
    runtime   CUDA context, communication buffers, CUDA graphs, the sampler of up to 256 sequences

within `utilization` of its memory. Engines' defaults of that share: vLLM ``gpu_memory_utilization`` 0.9, since 2026
0.92 with CUDA graphs counted inside (vllm/config/cache.py); TensorRT-LLM ``free_gpu_memory_fraction`` 0.9 of what
weights and activations leave free (KvCacheConfig); SGLang ``mem_fraction_static``, for weights and cache alone,
computed from the GPU, the chunk and the batches of its CUDA graphs (server_args.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from optmodels import catalog
from optmodels.latency.work import LayerWork
from optmodels.units import GIB

UTILIZATION = 0.9
CHUNK_TOKENS = 8192.0  # prompt tokens of a pass: vLLM's and SGLang's usual default on large GPUs
MAX_REQUESTS = 256.0  # whose logits a pass has: vLLM's max_num_seqs
RUNTIME_GIB = 1.0  # of each GPU, fitted to engines' logs: benchmarks/kv_capacity.py
# vLLM's profiling run samples max_num_seqs sequences (vllm/v1/sample/ops/topk_topp_sampler.py). A logit then takes 2
# bytes in 16 bits, 4 in fp32, 12 sorted with its index, 4 as probability, 4 cumulated, 4 scattered back and 1 masked.
SAMPLER_BYTES = 31.0


@dataclass(frozen=True)
class Drafts:
    """Memory of an engine that draft tokens take.

    Attributes:
        drafts: k, verified of a request in a pass, so that it has k more logits.
        work: work of the draft model; None without one.
        head: share of the model's weights and cache that a draft head has.
    """

    drafts: int
    work: LayerWork | None = None
    head: float = 0.0


def runtime_interval(routed: bool) -> dict[float, tuple[float, float]]:
    """Level → GiB a GPU that engines' runtimes took beyond `RUNTIME_GIB` at the lower and the upper end.

    Args:
        routed: whether the model has routed experts.
    """
    found = catalog.kv_memory_document()["experts" if routed else "dense"]["gib"]
    return {float(level): (low, high) for level, (low, high) in found.items()}


def runtime_gib(stated: float | None, safety: float | None = None, routed: bool = False) -> float:
    """GiB of each GPU that an engine's runtime takes.

    Args:
        stated: the user's figure, which has no interval; None: `RUNTIME_GIB`, at a safety level with its upper end.
        safety: probability that latencies and memory stay below; None: the central prediction.
        routed: whether the model has routed experts.
    """
    if stated is not None:
        return stated
    if safety is None:
        return RUNTIME_GIB
    ends = runtime_interval(routed)
    return RUNTIME_GIB + ends[min((level for level in ends if level >= safety - 1e-9), default=max(ends))][1]


def kv_copies(work: LayerWork, tp: Any) -> Any:
    """How often each KV head is held among `tp` GPUs, tp·⌈h/tp⌉/h: 1 where they divide the heads, tp for a latent."""
    tp = np.asarray(tp, dtype=float)
    return tp * np.ceil(work.kv_heads / tp) / work.kv_heads


def weight_bytes(work: LayerWork, tp: Any, attention_ranks: int = 1) -> Any:
    """Weights on all tp·attention_ranks GPUs together, with replicated parts, bytes."""
    layers = work.layers
    copied = (kv_copies(work, tp) - 1.0) * work.kv_weight_bytes + (np.asarray(tp) - 1.0) * work.whole_weight_bytes
    one_rank = layers * copied
    once = layers * work.expert_weight_bytes
    padding = work.expert_padding_bytes(tp if attention_ranks == 1 else 1)  # several ranks split no expert
    return once + padding + attention_ranks * (work.weight_bytes - once + one_rank)


def pass_bytes(work: LayerWork, tp: Any, tokens: Any, requests: Any) -> Any:
    """Activations of `tokens` tokens and logits of `requests` sequences on all `tp` GPUs of a rank together, bytes."""
    whole = work.whole_activation_bytes_per_token
    per_token = work.activation_bytes_per_token + (np.asarray(tp, dtype=float) - 1.0) * whole
    return tokens * per_token + requests * work.logit_bytes_per_sequence


def sampler_bytes(work: LayerWork, requests: Any) -> Any:
    """Sampler's memory on each GPU for sequences beyond `MAX_REQUESTS`, which the runtime has, bytes."""
    return np.maximum(requests - MAX_REQUESTS, 0.0) * work.vocab * SAMPLER_BYTES


def kv_token_bytes(work: LayerWork, tp: Any) -> Any:
    """Cache of a token that every layer keeps on all `tp` GPUs of a rank, bytes; an indexer's keys are on each."""
    index = work.layers * work.index_bytes_per_token
    copies = kv_copies(work, tp)
    return copies * work.kv_bytes_per_token_all_layers + (tp - copies) * index


def kv_bytes(work: LayerWork, tp: Any, requests: Any, tokens: Any) -> Any:
    """KV cache and recurrent states of `requests` sequences of `tokens` tokens on all `tp` GPUs of a rank, bytes."""
    return requests * (work.kept(tokens) * kv_token_bytes(work, tp) + work.layers * work.state_bytes)


def longest_request(work: LayerWork, tp: int, room_bytes: float) -> float:
    """Tokens of the longest single sequence whose KV cache takes at most `room_bytes` on all `tp` GPUs of a rank."""
    most = (room_bytes - work.layers * work.state_bytes) / float(kv_token_bytes(work, tp))
    if most > work.window_tokens and work.kept_share:
        beyond = most - work.kept_share * work.window_tokens
        return beyond / (1.0 - work.kept_share) if work.kept_share < 1.0 else math.inf
    return most


def kv_tokens(
    work: LayerWork, vram_bytes: float, tp: int = 1, *, attention_ranks: int = 1, pp: int = 1,
    utilization: float = UTILIZATION, runtime_bytes: float = RUNTIME_GIB * GIB, chunk_tokens: float = CHUNK_TOKENS,
    max_requests: float = MAX_REQUESTS, request_tokens: float | None = None, drafts: Drafts | None = None,
) -> float:  # fmt: skip
    """Tokens of KV cache of a whole deployment on tp·attention_ranks·pp GPUs; 0 where the weights do not fit.

    Args:
        work: work of the model at its precisions.
        vram_bytes: bytes of VRAM of one GPU, as its driver gives to programs.
        tp: GPUs that share one attention rank.
        attention_ranks: data-parallel attention ranks, each with requests and cache of its own.
        pp: pipeline stages of equal layers.
        utilization: share of the memory that the engine may take.
        runtime_bytes: runtime bytes of one GPU, further memory of the engine (CUDA context, communication, CUDA
            graphs).
        chunk_tokens: prompt tokens of a pass.
        max_requests: sequences of a pass.
        request_tokens: length of the requests; matters only where layers have windows or recurrent states. None: long
            ones, and a windowed layer's share is nothing.
        drafts: drafts of engines that speculate. The cache of a draft model or head holds the same tokens next to.
    """
    found = drafts or Drafts(0)
    gpus = tp * attention_ranks * pp
    room = gpus * (utilization * vram_bytes - runtime_bytes)
    room -= attention_ranks * pp * pass_bytes(work, tp, chunk_tokens, (1 + found.drafts) * max_requests)
    room -= attention_ranks * tp * sampler_bytes(work, max_requests)  # of the last stage
    per_token = 0.0
    for part, share in ((work, 1.0 + found.head), (found.work, 1.0)):
        if part is None:
            continue
        room -= share * weight_bytes(part, tp, attention_ranks)
        if request_tokens is None:
            each = (1.0 - part.kept_share) * float(kv_token_bytes(part, tp))
        else:
            each = float(kv_bytes(part, tp, 1.0, request_tokens)) / request_tokens
        per_token += share * each
    return max(0.0, float(room)) / per_token if per_token else math.inf
