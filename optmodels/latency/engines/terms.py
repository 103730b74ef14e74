"""The parts of a step of a serving engine: times at the hardware's peaks and counts, one named term each.

A closed-loop run of C requests, each of S_in prompt and S_out output tokens, has the mean step (`latency.fit.loads`)

    decode tokens  C          prompt tokens  P = C·S_in/S_out          context of a decode token  S_in + S_out/2

on n GPUs where t = n/D share one attention rank (D data-parallel attention ranks). Per GPU and step, in seconds:

    dense      bytes of attention, shared and dense feed-forward weights (over t) and the output head / bandwidth
    experts    bytes of the experts touched (over n) / bandwidth; touched: (1 − f)·E(1 − (1 − k/E)^C) + f·E
    kv         the longer of reading a request's KV cache (bytes over min(t, kv heads), a latent cache being replicated,
               / bandwidth) and computing with it (FLOPs over t / 16-bit peak); with sparse attention the keys of the
               tokens that the indexer scores, and the latents of the picked ones (`context_seconds`); and states of
               linear layers, read and written back (bytes over t / bandwidth)
    decode     FLOPs of C tokens / peak
    prefill    FLOPs of P tokens but for the routed experts' / peak          routed    the routed experts' / peak
    attention  FLOPs of causal prompt attention, unabsorbed / 16-bit peak; sparse: `pair_seconds`
    collective bytes of all-reduces (t > 1) and all-to-alls (D > 1) / link bandwidth; PCIe takes longer (`collectives`)
    layer, moe, mla, comm       layers; layers with experts, with a latent cache, of more than one GPU (1e-6 each)
    running    requests of one attention rank (1e-6 each)
    prompt     f·layers·2·S_in/(S_in + 500) (1e-6 each): a step that carries a prompt costs more launches and kernels
    sparse, sparse_prompt       layers whose sparse attention picks tokens, in every step and in a share f (1e-6 each)
    linear     layers with linear attention (1e-6 each)

f is the share of steps that carry a prompt, min(1, C·⌈S_in/8192⌉/S_out). A fitted coefficient states how many times its
peak time a term takes, or microseconds a count (`fit`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from optmodels.arrays import Array
from optmodels.catalog.types import Architecture, Gpu
from optmodels.errors import InputError, Mistake, UnpublishedError, one_of
from optmodels.latency.collectives import over_pcie
from optmodels.latency.memory import kv_copies
from optmodels.latency.work import LayerWork, Precision, band, layer_work, peak_flops

MEASURED_AS: dict[str, Any] = {"fp8_block": "fp8", "mxfp4": "fp4"}  # whatever the blocks of their scales
CHUNK_TOKENS = 8192  # prompt tokens that engines put in a step by default
SHORT_PROMPT_TOKENS = 500.0
MEASURED_USERS = 4.0, 4096.0  # of the public loops, fewest and most: beyond these trends are level
ROUTED_PRODUCTS = 2.5  # how many times as long a prompt's products with routed experts take, for waiting requests
MOST_RELEASES = 4  # behind the newest: the trend is level beyond
MICRO = 1e-6

STEP = (
    "dense", "experts", "kv", "decode", "prefill", "routed", "attention", "collective", "layer", "moe", "mla", "comm",
    "running", "prompt", "sparse", "sparse_prompt", "linear",
)  # fmt: skip
FIRST_TOKEN = (
    "fixed", "layer", "moe", "mla", "comm", "step", "weights", "prefill", "routed", "attention", "collective",
    "burst", "burst_attention", "queue", "running", "tokens",
)  # fmt: skip
TRENDS = ("age", "crowd", "crowd²", "prompt length", "crowd·prompt length")
NEWEST = {"vllm": "0.19", "sglang": "0.5.9", "trtllm": "1.3"}  # measured releases that predictions are for by default


@dataclass(frozen=True)
class ModelInstance:
    """One model instance: an LLM at a precision on some GPUs under an engine.

    Attributes:
        llm: the shape, with its name in `llm_name`.
        precision: precision of the weights and, where the GPU has a peak for it, of the matrix products.
        kv_precision: KV precision of the cache.
        gpus: GPUs of the whole instance, n.
        attention_ranks: data-parallel attention ranks, D; n/D GPUs share one by tensor parallelism.
        version: version of the engine; measured versions have factors of their own, None for no version in particular.
    """

    llm: Architecture
    llm_name: str
    gpu: Gpu
    gpu_name: str
    engine: str
    precision: Precision = "fp16"
    kv_precision: Literal["fp16", "fp8"] = "fp16"
    gpus: int = 1
    attention_ranks: int = 1
    version: str | None = None

    def __post_init__(self) -> None:
        one_of("precision", self.precision, get_args(Precision))
        if self.gpus < 1 or self.gpus % self.attention_ranks:
            raise InputError(
                Mistake(None, "attention_ranks", self.attention_ranks, f"a divisor of the {self.gpus} GPUs")
            )
        if self.gpu.fp16_flops is None:
            raise UnpublishedError(Mistake(None, "gpu", self.gpu_name, "a GPU with a published fp16 peak"))

    @property
    def measured_as(self) -> str:
        """The precision under which engines were measured with such weights."""
        return MEASURED_AS.get(self.precision, self.precision)

    @property
    def own_peak(self) -> bool:
        """Whether the GPU has a peak for the precision, int4 and 16 bit in 16 bit; else it computes in 16 bit."""
        peaks = {"fp8": self.gpu.fp8_flops, "fp4": self.gpu.fp4_flops}
        return peaks.get(self.measured_as, self.gpu.fp16_flops) is not None

    @property
    def peak_flops(self) -> float:
        """Dense FLOP/s of matrix products: the precision's own peak, or of 16 bit where the GPU has none."""
        return float(peak_flops(self.gpu, self.precision) or 0.0)


@dataclass(frozen=True)
class Loads:
    """Closed-loop runs: `concurrency` requests at once of `input_tokens` and `output_tokens` each, (n,) arrays."""

    concurrency: Array
    input_tokens: Array
    output_tokens: Array


def step_terms(d: ModelInstance, loads: Loads) -> dict[str, Array]:
    """Terms of the mean step and the age of the engine, (n,) each, by the names of `STEP` and `TRENDS`."""
    found = {name: found for name, found in _terms(d, loads).items() if name in STEP}
    return found | {"age": np.full_like(loads.concurrency, age(d.engine, d.version))}


def age(engine: str, version: str | None) -> float:
    """Releases from a version to the newest measured one; 0 for no version, a version without a number or a newer one.

    The last number of `NEWEST` counts releases: minor ones of vLLM and TensorRT-LLM, patches of SGLang 0.5.
    """
    newest = release(NEWEST.get(engine, ""))
    mine = release(version or "") or newest
    if not newest:
        return 0.0
    behind = newest[-1] - mine[len(newest) - 1] if len(mine) >= len(newest) else 0
    return float(min(max(0, behind), MOST_RELEASES))


def states(d: ModelInstance) -> float:
    """Of `kv`, the part of one request's states of linear layers, whatever its context; seconds at peak."""
    one = np.ones(1)
    return float(_terms(d, Loads(one, one, one))["states"][0])


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; none of a nightly build."""
    found = re.match(r"v?(\d+(?:\.\d+)+)", version)
    return tuple(int(x) for x in found[1].split(".")) if found else ()


def first_token_terms(d: ModelInstance, loads: Loads, step_s: Array) -> dict[str, Array]:
    """Terms of the time to first token and what its trends go along, (n,) each, by `FIRST_TOKEN` and `TRENDS`.

    A prompt waits for the step under way, passes the model once and shares it with prompts that arrive at the same
    time: of C at once (burst), or of the requests that the load ρ = C·pass/(S_out·step) finds before it (queue). Of D
    data-parallel attention ranks one computes its attention and dense products; all share the routed experts'.

    Args:
        d: the deployment.
        loads: closed-loop runs.
        step_s: predicted (or measured) mean step, seconds, (n,).
    """
    t, C = _terms(d, loads), loads.concurrency
    prompts_per_step = C / loads.output_tokens
    prefill, routed, attention = (t[name] / prompts_per_step for name in ("prefill", "routed", "attention"))
    products = prefill + ROUTED_PRODUCTS * routed
    one_pass = 1.6 * products + 6.0 * attention + t["weights"]
    return {
        "fixed": np.full_like(C, 1e-3), "layer": t["layer"], "moe": t["moe"], "mla": t["mla"], "comm": t["comm"],
        "step": step_s, "weights": t["weights"], "prefill": d.attention_ranks * prefill, "routed": routed,
        "attention": d.attention_ranks * attention,
        "collective": t["collective_token"] * loads.input_tokens, "burst": C * products,
        "burst_attention": C * attention, "queue": np.minimum(1.0, prompts_per_step * one_pass / step_s) * one_pass,
        "running": C * 1e-3, "tokens": loads.input_tokens * MICRO, **_trends(loads),
        "age": np.full_like(C, age(d.engine, d.version)),
    }  # fmt: skip


def pair_seconds(d: ModelInstance, work: LayerWork, prompt_tokens: Array) -> tuple[Array, Array, float]:
    """Seconds at peak of one GPU for a prompt token and an earlier one in the mean layer, and of how many of the last.

    Sparse attention (DeepSeek-V3.2, arXiv 2512.02556 §2.1) works in the absorbed form on the `index_topk` tokens that
    an indexer in 8 bits picks among the earlier ones; prompts that are no longer are computed densely, unabsorbed and
    without scores, as SGLang does by default (docs/basic_usage/deepseek_v32.md).

    Returns:
        of pairs with every earlier token, (n,); of pairs with this many at most, (n,); how many.
    """
    sixteen = float(d.gpu.fp16_flops or 0.0)
    S, dense = np.asarray(prompt_tokens, dtype=float), work.prefill_flops_per_pair / sixteen
    if np.isinf(work.top_tokens):
        share = work.window_pair_share
        return np.full_like(S, (1.0 - share) * dense), np.full_like(S, share * dense), work.window_tokens
    index = work.index_flops_per_pair
    short = prompt_tokens <= work.top_tokens
    absorbed = (work.attention_flops_per_pair - index) / sixteen
    all_tokens = index / (d.gpu.fp8_flops or sixteen) + (1.0 - work.top_share) * absorbed
    every = np.where(short, dense - index / sixteen, all_tokens)
    picked = np.where(short, 0.0, work.top_share * absorbed)
    return every, picked, work.top_tokens


def context_seconds(d: ModelInstance, work: LayerWork) -> tuple[float, float, float]:
    """Seconds at peak of one GPU for a decoded token and an earlier one in the mean layer, and of how many of the last.

    Reading and computing overlap: the longer of both. With few GPUs to a rank decode is short of FLOP/s where every
    head attends over one latent in the absorbed form: 128 heads do 2·128·(2·512 + 64) FLOPs for its 576 elements, 484 a
    byte in 8 bits, and an H200 does 206 in the time in which it reads one (DeepSeek-V2, arXiv 2405.04434).

    Returns:
        of every earlier token; of this many at most (sparse attention's, of the picked ones); how many.
    """
    t, gpu = d.gpus / d.attention_ranks, d.gpu
    sixteen, copies = float(gpu.fp16_flops or 0.0), float(kv_copies(work, t))

    def longer(read_bytes: float, flops: float, peak: float) -> float:
        return max(copies * read_bytes / gpu.mem_bytes_per_s, flops / peak) / t

    index_bytes, index = work.index_bytes_per_token, work.index_flops_per_pair
    kept = longer(work.kv_bytes_per_token - index_bytes, work.attention_flops_per_pair - index, sixteen)
    if np.isinf(work.top_tokens):
        return kept, 0.0, np.inf
    scored = longer(index_bytes, index, gpu.fp8_flops or sixteen)
    return scored + (1.0 - work.top_share) * kept, work.top_share * kept, work.top_tokens


def _trends(loads: Loads) -> dict[str, Array]:
    """Variables that trends go along, (n,) each: logarithms of loads, level beyond the measured range.

    Hardly any public loop has fewer than four users: drawn out to one, TensorRT-LLM's lone prompt would wait longer
    than among eight.
    """
    C = np.log(np.clip(loads.concurrency, *MEASURED_USERS) / 32.0) / 1.5
    S = np.log(np.clip(loads.input_tokens, 128.0, 15000.0) / 1024.0)
    return {"crowd": C, "crowd²": C * C - 0.7, "prompt length": S, "crowd·prompt length": C * S}


def _terms(d: ModelInstance, loads: Loads) -> dict[str, Array]:
    """Terms of the step, and the further terms of the first token."""
    a, gpu = d.llm, d.gpu
    work = layer_work(a, d.precision, d.kv_precision)
    C, S, out = loads.concurrency, loads.input_tokens, loads.output_tokens
    n, ranks = float(d.gpus), float(d.attention_ranks)
    t = n / ranks
    layers = float(a.layers)
    prompts = C * S / out
    carrying = np.minimum(1.0, C * np.ceil(S / CHUNK_TOKENS) / out)
    touched = np.zeros_like(C)
    if work.experts:
        touched = (1.0 - carrying) * (1.0 - (1.0 - work.active_experts / work.experts) ** C) + carrying
    all_experts = layers * work.expert_weight_bytes / n
    dense = layers * work.fixed_weight_bytes / t
    context = S + out / 2.0
    seen, few, most = context_seconds(d, work)
    kv = layers * C / ranks * (seen * work.seen(context) + few * np.minimum(context, most))
    states = layers * C / ranks * 2.0 * work.state_bytes / t / gpu.mem_bytes_per_s
    every, picked, tokens = pair_seconds(d, work, S)
    flops = work.linear_flops_per_token * layers
    routed = layers * work.routed_flops_per_token
    launch, many = over_pcie(gpu, n)
    per_token = layers * work.collective_bytes(t, ranks) / gpu.link_bytes_per_s * many
    one = np.ones_like(C)
    sparse_layers = layers * work.top_share if np.isfinite(work.top_tokens) else 0.0
    return {
        "dense": one * dense / gpu.mem_bytes_per_s,
        "experts": touched * all_experts / gpu.mem_bytes_per_s,
        "kv": kv + states,
        "decode": C * (flops + layers * work.head_flops_per_token) / n / d.peak_flops,
        "prefill": prompts * (flops - routed) / n / d.peak_flops,
        "routed": prompts * routed / n / d.peak_flops,
        "attention": prompts * layers * (every * S / 2.0 + picked * band(S, tokens)) / n,
        "collective": (C + prompts) * per_token,
        "layer": one * layers * MICRO,
        "moe": one * layers * work.expert_layers * MICRO,
        "mla": one * layers * work.latent_share * MICRO,
        "comm": one * (launch * layers if d.gpus > 1 else 0.0) * MICRO,
        "running": C / ranks * MICRO,
        "prompt": carrying * layers * MICRO * 2.0 * S / (S + SHORT_PROMPT_TOKENS),
        "sparse": one * sparse_layers * MICRO,
        "sparse_prompt": carrying * sparse_layers * MICRO,
        "linear": one * (a.linear.layers if a.linear is not None else 0.0) * MICRO,
        "states": states,
        "weights": one * (dense + all_experts) / gpu.mem_bytes_per_s,
        "collective_token": one * per_token,
    }
