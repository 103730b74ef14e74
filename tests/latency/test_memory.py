"""KV cache in device memory, against what the engines' formulas give by hand and what their logs say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from optmodels import catalog
from optmodels.catalog.types import Architecture
from optmodels.latency.memory import (
    RUNTIME_GIB,
    kv_copies,
    kv_tokens,
    longest_request,
    pass_bytes,
    runtime_gib,
    runtime_interval,
    sampler_bytes,
    weight_bytes,
)
from optmodels.latency.work import layer_work

GIB = 2.0**30
DEEPSEEK_KV = 61 * (512 + 64)  # elements a token: one latent and one rotary key a layer, whole on every GPU

# GPU: GiB. Weights of one GPU, GiB: the published parameters by hand, or what an engine's log says. A pass over 8192
# tokens, GiB: 2 bytes of two hidden states, of an active expert's result each and, over tp, of queries, keys, values,
# gate and up; and 256 logits of 4 bytes. Last: KV bytes of a token on one GPU.
CASES = {
    # vLLM's fork for Gaudi loads 79.41 GiB a device (HabanaAI/vllm-fork, issue 809).
    "DeepSeek-V3 fp8, 8 H200, TP8": ("deepseek-v3", "fp8_block", "fp16", 141, 8, 1, 1, 79.41, 1.33, DEEPSEEK_KV * 2),
    "the same with an 8-bit cache": ("deepseek-v3", "fp8_block", "fp8", 141, 8, 1, 1, 79.41, 1.33, DEEPSEEK_KV),
    # 58 × 256 experts of 3·7168·2048 over 8; 17.2 G of others and 1.85 GB more for embeddings in 16 bits on each
    "the same, 8 attention ranks": ("deepseek-v3", "fp8_block", "fp16", 141, 1, 8, 1, 93.9, 2.90, DEEPSEEK_KV * 2),
    # 235.1 G at 1 byte, 1.24 G of embeddings at 2; 4 KV heads on 8 GPUs: one each
    "Qwen3-235B fp8, 8 H100, TP8": ("qwen3-235b-a22b", "fp8", "fp16", 80, 8, 1, 1, 27.6, 0.71, 94 * 2 * 128 * 2),
    "Qwen3-235B, 4 H200, TP4": ("qwen3-235b-a22b", "fp16", "fp16", 141, 4, 1, 1, 109.5, 0.79, 94 * 2 * 128 * 2),
    # vLLM's log: 14.96 GiB (vllm-project/vllm, pull request 10511)
    "Llama-3.1-8B, H100": ("llama-3.1-8b", "fp16", "fp16", 80, 1, 1, 1, 14.96, 0.78, 32 * 2 * 8 * 128 * 2),
    "Llama-3.1-70B, 4 H100, TP4": ("llama-3.1-70b", "fp16", "fp16", 80, 4, 1, 1, 32.86, 0.54, 80 * 2 * 2 * 128 * 2),
    # 8 KV heads on 16 GPUs: one each, as on 8
    "Llama-3.1-70B, 16 H100, TP16": ("llama-3.1-70b", "fp16", "fp16", 80, 16, 1, 1, 8.3, 0.32, 80 * 2 * 128 * 2),
    "Llama-3.1-70B, TP4 × PP2": ("llama-3.1-70b", "fp16", "fp16", 80, 4, 1, 2, 16.43, 0.54, 40 * 2 * 2 * 128 * 2),
    "Mixtral-8x7B, 2 A100, TP2": ("mixtral-8x7b", "fp16", "fp16", 80, 2, 1, 1, 43.5, 0.77, 32 * 2 * 4 * 128 * 2),
    # 31.2 G at 1 byte, 1.56 G of embeddings at 2
    "Qwen2.5-32B fp8, 2 L40S, TP2": ("qwen2.5-32b", "fp8", "fp16", 48, 2, 1, 1, 16.0, 0.69, 64 * 2 * 4 * 128 * 2),
    "Llama-3.3-70B NVFP4, B200": ("llama-3.3-70b", "fp4", "fp8", 180, 1, 1, 1, 39.8, 1.40, 80 * 2 * 8 * 128),
}


@pytest.mark.parametrize("name", CASES)
def test_kv_tokens_by_hand(name: str) -> None:
    llm, weights, kv, vram, tp, ranks, pp, weights_gib, pass_gib, kv_bytes = CASES[name]
    expected = ranks * (0.9 * vram - weights_gib - pass_gib) * GIB / kv_bytes
    work = layer_work(catalog.llms()[llm], weights, kv)
    found = kv_tokens(work, vram * GIB, tp, attention_ranks=ranks, pp=pp, runtime_bytes=0.0)
    assert found == pytest.approx(expected, rel=0.03)


def test_deepseek_v3_on_eight_h200_has_two_thirds_of_a_million_tokens_not_six() -> None:
    work = layer_work(catalog.llms()["deepseek-v3"], "fp8")
    assert 0.65e6 < kv_tokens(work, 139.8 * GIB, 8) < 0.70e6


def test_kv_tokens_against_a_log_of_vllm() -> None:
    """Meta-Llama-3-8B on an H100: 53.29 GiB of cache (vllm-project/vllm, pull request 10511)."""
    work = layer_work(catalog.llms()["llama-3-8b"])
    found = kv_tokens(work, 79.22 * GIB, runtime_bytes=1.79 * GIB)
    assert found == pytest.approx(53.29 * GIB / (32 * 2 * 8 * 128 * 2), rel=0.03)


def test_weights_that_do_not_fit_leave_nothing() -> None:
    assert kv_tokens(layer_work(catalog.llms()["llama-3.1-70b"]), 80 * GIB, 1) == 0.0


@pytest.mark.parametrize(("tp", "copies"), [(1, 1.0), (2, 1.0), (4, 1.0), (8, 2.0), (16, 4.0), (3, 6 / 4)])
def test_whole_heads_on_every_gpu(tp: int, copies: float) -> None:
    work = layer_work(catalog.llms()["qwen3-235b-a22b"])  # 4 KV heads
    assert kv_copies(work, tp) == copies
    assert kv_copies(layer_work(catalog.llms()["deepseek-v3"]), tp) == tp
    assert kv_copies(work, np.array([tp])).shape == (1,)


SMALL = {
    "layers": 4, "hidden": 16, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 32, "ffn_matrices": 3, "vocab": 10,
    "max_positions": 10**6,
}  # fmt: skip


def small(**more: object) -> Architecture:
    return Architecture.model_validate(SMALL | more)


def test_replicated_weights_by_hand() -> None:
    plain = layer_work(small())
    assert weight_bytes(plain, 2) == plain.weight_bytes
    # On 4 GPUs every KV head is there twice: keys and values, 2·16·16 elements a layer, once more.
    assert weight_bytes(plain, 4) == plain.weight_bytes + 4 * 2 * 16 * 16 * 2
    moe = {"experts": 6, "active": 2, "expert_ffn": 8, "dense_layers": 1}
    work = layer_work(small(moe=moe))
    assert weight_bytes(work, 2) == work.weight_bytes + 3 * 16 * 6 * 2  # routers of three layers
    experts = 3 * 6 * 3 * 16 * 8 * 2
    assert weight_bytes(work, 1, 3) == pytest.approx(experts + 3 * (work.weight_bytes - experts))


def test_activations_by_hand() -> None:
    work = layer_work(small())
    split = 32 + 2 * 16 + 2 * 32  # queries, keys and values, gate and up
    assert pass_bytes(work, 1, 100, 7) == 100 * (2 * 16 + split) * 2 + 7 * 10 * 4
    assert pass_bytes(work, 2, 100, 7) == 100 * (2 * 2 * 16 + split) * 2 + 7 * 10 * 4
    routed = layer_work(small(moe={"experts": 6, "active": 2, "expert_ffn": 8}))
    split = 32 + 2 * 16 + 2 * 2 * 8  # gate and up of two experts, whose results of 16 values each GPU has whole
    assert pass_bytes(routed, 2, 100, 7) == 100 * (2 * (2 + 2) * 16 + split) * 2 + 7 * 10 * 4


def test_sampling_many_sequences_takes_whole_logits_on_every_gpu() -> None:
    work = layer_work(small())
    assert sampler_bytes(work, 256) == 0
    assert sampler_bytes(work, 300) == 44 * 10 * 31
    less = kv_tokens(work, 2 * GIB, 2, max_requests=256) - kv_tokens(work, 2 * GIB, 2, max_requests=300)
    assert less == pytest.approx(44 * (10 * 4 + 2 * 10 * 31) / work.kv_bytes_per_token_all_layers)


# Weights on each GPU as engines log them, GiB. The 16 KV heads are of the first upload.
LOADED = {
    "Llama-3.1-405B-FP8, TP8 (vllm-project/vllm, issue 6746)": ("llama-3.1-405b", "fp8", 8, {"kv_heads": 16}, 57.75),
    "gpt-oss-120b, one GPU (vllm-project/vllm, issue 23278)": ("gpt-oss-120b", "mxfp4", 1, {}, 65.97),
    "gpt-oss-120b, TP4 (dennislee22/vLLM-benchmarking)": ("gpt-oss-120b", "mxfp4", 4, {}, 17.22),
    "Llama-3.1-70B of 8 bits (vllm-project/vllm, pull request 12569)": ("llama-3.1-70b", "fp8", 1, {}, 67.72),
}


@pytest.mark.parametrize("name", LOADED)
def test_weights_of_published_checkpoints_against_logs(name: str) -> None:
    llm, weights, tp, other, logged = LOADED[name]
    work = layer_work(catalog.llms()[llm].model_copy(update=other), weights)
    assert weight_bytes(work, tp) / tp / GIB == pytest.approx(logged, rel=0.005)


def test_parts_that_one_precision_keeps_do_not_bind_another() -> None:
    shape = catalog.llms()["llama-3.1-405b"]
    plain = shape.model_copy(update={"kept": ()})
    assert layer_work(shape, "fp8").weight_bytes > 1.15 * layer_work(plain, "fp8").weight_bytes
    assert layer_work(shape, "fp4").weight_bytes == layer_work(plain, "fp4").weight_bytes


# Tokens that vLLM logs, at the memory, the batched tokens and the sequences that its log has: every layer counts all.
CAPACITY = {
    "Llama-2-7B, H100": ("llama-2-7b", "h100", 1, "fp16", 0.9, 2048, 128, 119_408),
    "Llama-3.1-70B, 4 H100": ("llama-3.1-70b", "h100", 4, "fp16", 0.9, 8192, 128, 484_016),
    "Qwen2.5-7B, H100": ("qwen2.5-7b", "h100", 1, "fp16", 0.9, 2048, 128, 1_045_632),
    "Qwen2.5-7B, 2 A100": ("qwen2.5-7b", "a100-80g", 2, "fp16", 0.5, 2048, 256, 1_192_160),
    "gpt-oss-120b, 4 A100": ("gpt-oss-120b", "a100-80g", 4, "mxfp4", 0.8, 2048, 256, 2_640_144),
    "Llama-3-8B, H100": ("llama-3-8b", "h100", 1, "fp16", 0.9, 8192, 256, 436_551),
    "gpt-oss-120b, H100: refused": ("gpt-oss-120b", "h100", 1, "mxfp4", 0.9, 8192, 1024, 0),
}


@pytest.mark.parametrize("name", CAPACITY)
def test_kv_tokens_against_logs(name: str) -> None:
    llm, gpu, tp, weights, share, batched, seqs, logged = CAPACITY[name]
    found = kv_tokens(
        layer_work(catalog.llms()[llm], weights), catalog.gpus()[gpu].usable_gib * GIB, tp, utilization=share,
        chunk_tokens=batched, max_requests=seqs, request_tokens=1.0,
    )  # fmt: skip
    assert found == pytest.approx(logged, rel=0.04)


def test_runtime_at_a_safety_level_is_the_upper_end_of_engines_logs() -> None:
    for routed in (False, True):
        ends = runtime_interval(routed)
        assert all(low <= 0 <= high for low, high in ends.values())
        assert [high for _, high in ends.values()] == sorted(high for _, high in ends.values())
        assert runtime_gib(None, 0.9, routed) == runtime_gib(None, 0.85, routed) == RUNTIME_GIB + ends[0.9][1]
        assert runtime_gib(None, 0.999, routed) == RUNTIME_GIB + ends[0.95][1]
    assert runtime_interval(True)[0.9][1] > runtime_interval(False)[0.9][1]  # experts, vision towers
    assert (runtime_gib(None), runtime_gib(0.4, 0.9)) == (RUNTIME_GIB, 0.4)  # a stated one is known


def test_llama_4_keeps_every_token_of_its_chunks() -> None:
    """vLLM logs 132,048 tokens of Scout FP8 on two H100, a third of what windows would hold."""
    work = layer_work(catalog.llms()["llama-4-scout"], "fp8")
    held = kv_tokens(work, 79.2 * GIB, 2, chunk_tokens=2048)
    assert 132_048 < held < 1.4 * 132_048
    assert held == kv_tokens(work, 79.2 * GIB, 2, chunk_tokens=2048, request_tokens=1.0)


def test_windows_bound_what_is_kept() -> None:
    """gpt-oss-20b: 12 of 24 layers keep the last 128 tokens; a token and layer takes 2·8·64·2 bytes."""
    work = layer_work(catalog.llms()["gpt-oss-20b"])
    layer = 2 * 8 * 64 * 2
    assert work.kv_cache_bytes(3, 100) == 3 * 24 * layer * 100
    assert work.kv_cache_bytes(3, 4096) == 3 * 12 * layer * (4096 + 128)
    held = kv_tokens(work, 48 * GIB, request_tokens=4096) / 4096
    room = (0.9 * 48 - 1) * GIB - weight_bytes(work, 1) - pass_bytes(work, 1, 8192, 256)
    assert held == pytest.approx(room / (12 * layer * (4096 + 128)))
    assert kv_tokens(work, 48 * GIB) == pytest.approx(room / (12 * layer))
    assert longest_request(work, 1, 12 * layer * (4096 + 128)) == pytest.approx(4096)
    assert longest_request(work, 1, 24 * layer * 100) == pytest.approx(100)


def test_windows_everywhere_hold_requests_of_any_length() -> None:
    work = layer_work(small(window={"tokens": 10, "layers": 4}))
    assert kv_tokens(work, GIB) == math.inf
    assert longest_request(work, 1, work.kv_bytes_per_token_all_layers * 11) == math.inf


def test_linear_layers_keep_a_state() -> None:
    """One of four layers has attention; the others keep 2 value heads of 4 × 8 in 4 bytes."""
    linear = {"layers": 3, "key_heads": 1, "value_heads": 2, "key_head_dim": 4, "value_head_dim": 8}
    work = layer_work(small(linear=linear))
    assert work.kv_bytes_per_token_all_layers == 2 * 2 * 8 * 2
    assert work.layers * work.state_bytes == 3 * 2 * 4 * 8 * 4
    attention = 16 * 32 * 2 + 2 * 16 * 16
    linear_params = 16 * (2 * 4 + 2 * 16 + 2 * 2) + 16 * 16
    assert work.weight_bytes == (attention + 3 * linear_params + 4 * 3 * 16 * 32 + 2 * 10 * 16) * 2
    room = 0.9 * GIB - work.weight_bytes - pass_bytes(work, 1, 8192, 256)
    assert kv_tokens(work, GIB, runtime_bytes=0.0, request_tokens=5) == pytest.approx(room / (5 * 64 + 768) * 5)


def test_an_indexer_keeps_a_key_of_its_own() -> None:
    v3, v32 = (layer_work(catalog.llms()[name]) for name in ("deepseek-v3", "deepseek-v3.2"))
    assert v32.kv_bytes_per_token_all_layers - v3.kv_bytes_per_token_all_layers == 61 * (128 + 4)
