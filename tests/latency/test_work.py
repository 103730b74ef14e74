"""Work per layer: equal to LLM-Pilot's Table V for OPT, worked out by hand for other architectures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optmodels import catalog
from optmodels.catalog.types import Architecture, Linear, Mla, MoE, Window
from optmodels.latency.work import layer_work, peak_flops

BYTES = {"fp16": 2.0, "fp8": 1.0, "int4": 0.53125}


def architecture(**changes):
    shape = {
        "layers": 2, "hidden": 8, "heads": 4, "kv_heads": 4, "head_dim": 2, "ffn": 32, "ffn_matrices": 2, "vocab": 10,
        "max_positions": 100,
    }  # fmt: skip
    return Architecture(**(shape | changes))


@given(
    heads=st.integers(1, 128), head_dim=st.integers(1, 256), layers=st.integers(1, 120), B=st.integers(1, 4096),
    S_in=st.integers(1, 32768), t=st.integers(0, 4096), kv=st.sampled_from(["fp16", "fp8"]),
    weights=st.sampled_from(["fp16", "fp8", "int4"]),
)  # fmt: skip
def test_opt_shapes_give_table_v_exactly(heads, head_dim, layers, B, S_in, t, kv, weights):
    h = heads * head_dim
    arch = architecture(layers=layers, hidden=h, heads=heads, kv_heads=heads, head_dim=head_dim, ffn=4 * h)
    w = layer_work(arch, weights, kv)
    l_t, b_w = S_in + t, BYTES[kv]
    assert w.prefill_flops(B, S_in) == pytest.approx(B * S_in * (24 * h**2 + 4 * S_in * h), rel=1e-15)
    assert w.kv_bytes(B, l_t) == pytest.approx(2 * B * l_t * h * b_w, rel=1e-15)
    assert w.ao_bytes(B, S_in) == pytest.approx(4 * B * S_in * h * 2, rel=1e-15)
    assert w.ao_bytes(B) == pytest.approx(4 * B * h * 2, rel=1e-15)
    assert w.kv_cache_bytes(B, l_t) == pytest.approx(layers * 2 * B * l_t * h * b_w, rel=1e-15)


@pytest.mark.parametrize("name", ["opt-6.7b", "opt-13b", "opt-30b"])
def test_the_shipped_opt_models_give_table_v(name):
    arch = catalog.llms()[name]
    w, h = layer_work(arch), arch.hidden
    assert w.linear_flops_per_token == 24 * h**2
    assert w.attention_flops_per_pair == 4 * h
    assert w.kv_bytes_per_token == 4 * h
    assert w.ao_bytes_per_token == 8 * h


def test_grouped_query_attention_with_a_gated_feed_forward():
    # h = 8, 4 query heads of 3 (q = 12), 2 KV heads (kv = 6), gated ffn 20, vocab 10, 2 layers
    w = layer_work(architecture(kv_heads=2, head_dim=3, ffn=20, ffn_matrices=3), kv="fp8", weights="int4")
    attention = 8 * 12 + 2 * 8 * 6 + 12 * 8  # Q, K and V, O: 96 + 96 + 96
    ffn = 3 * 8 * 20
    assert w.linear_flops_per_token == 2 * (attention + ffn) == 1536
    assert w.attention_flops_per_pair == 4 * 12
    assert w.kv_bytes_per_token == 2 * 6 * 1
    assert w.ao_bytes_per_token == (2 * 12 + 2 * 6) * 2  # queries out, keys and values out, results back
    assert w.head_flops_per_token == 2 * 80 / 2
    # 4 bits and 32 of scale and zero for 128 weights; embeddings and head stay in 16 bits
    assert w.fixed_weight_bytes == (attention + ffn) * (4 + 32 / 128) / 8 + 80 / 2 * 2
    assert w.weight_bytes == 2 * (attention + ffn) * (4 + 32 / 128) / 8 + 2 * 80 * 2
    assert w.kv_bytes_per_token_all_layers == 24
    assert w.logit_bytes_per_sequence == 40


def test_tied_embeddings_are_stored_once_and_position_tables_count():
    tied = layer_work(architecture(tied_embeddings=True, learned_positions=7))
    untied = layer_work(architecture())
    assert untied.weight_bytes - tied.weight_bytes == (80 - 7 * 8) * 2


def test_mixture_of_experts():
    # 4 layers, the first dense (ffn 32, plain); others: 6 experts of width 5, 2 active, shared width 3
    moe = MoE(experts=6, active=2, expert_ffn=5, shared_experts=1, shared_ffn=3, dense_layers=1)
    w = layer_work(architecture(layers=4, moe=moe))
    attention, dense, expert, shared, router = 4 * 64, 2 * 8 * 32, 2 * 8 * 5, 2 * 8 * 3, 8 * 6
    fixed = (dense + 3 * (shared + router)) / 4
    assert w.linear_flops_per_token == pytest.approx(2 * (attention + fixed + 3 / 4 * 2 * expert))
    assert w.expert_weight_bytes == pytest.approx(3 / 4 * 6 * expert * 2)
    assert w.fixed_weight_bytes == pytest.approx((attention + fixed + 80 / 4) * 2)
    assert w.weight_bytes == pytest.approx((4 * attention + dense + 3 * (shared + router + 6 * expert) + 160) * 2)
    # One token touches exactly its 2 experts; two tokens 1 − (2/3)² of them; very many all.
    assert w.weight_bytes_read(1) == pytest.approx(w.fixed_weight_bytes + 3 / 4 * 2 * expert * 2)
    assert w.weight_bytes_read(2) == pytest.approx(w.fixed_weight_bytes + w.expert_weight_bytes * 5 / 9)
    assert w.weight_bytes_read(1e6) == pytest.approx(w.fixed_weight_bytes + w.expert_weight_bytes)


def test_latent_attention():
    mla = Mla(kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=3)
    w = layer_work(architecture(mla=mla))
    q = 8 * 5 + 5 * 4 * (2 + 1)
    down = 8 * (6 + 1)
    up = 6 * 4 * (2 + 3)
    out = 4 * 3 * 8
    assert w.linear_flops_per_token == 2 * (q + down + up + out + 2 * 8 * 32)
    assert w.kv_bytes_per_token == (6 + 1) * 2  # one latent and one rotary key, no separate values
    assert w.attention_flops_per_pair == 2 * 4 * (7 + 6)  # scores over 7, values over 6, for each of 4 heads
    assert w.ao_bytes_per_token == (4 * (7 + 6) + 7) * 2
    direct = layer_work(architecture(mla=mla.model_copy(update={"q_lora_rank": 0})))
    assert (w.linear_flops_per_token - direct.linear_flops_per_token) == 2 * (q - 8 * 4 * 3)


@pytest.mark.parametrize("name", sorted(catalog.llms()))
def test_stored_weights_are_the_published_parameters(name):
    arch = catalog.llms()[name]
    if arch.moe is not None:
        arch = arch.model_copy(update={"moe": arch.moe.model_copy(update={"expert_precision": None})})
    if arch.params is not None:
        assert layer_work(arch).weight_bytes / 2 == pytest.approx(arch.params, rel=0.02)


@given(st.sampled_from(sorted(catalog.llms())), st.integers(1, 10**6))
def test_a_pass_never_reads_more_weights_than_there_are(name, tokens):
    arch = catalog.llms()[name]
    w = layer_work(arch)
    assert 0 < w.layers * float(w.weight_bytes_read(tokens)) <= w.weight_bytes * (1 + 1e-12)
    assert float(w.weight_bytes_read(tokens)) <= float(w.weight_bytes_read(tokens + 1)) * (1 + 1e-12)


def test_latent_attention_prefills_in_the_unabsorbed_causal_form():
    """Keys of d_nope + d_rope and values of d_v for each head, over the earlier half of the square."""
    mla = Mla(kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=3)
    w = layer_work(architecture(mla=mla))
    assert w.prefill_flops(3, 10) == 3 * 10 * (w.linear_flops_per_token + 2 * 4 * (2 + 1 + 3) * 10 / 2)
    v3 = layer_work(catalog.llms()["deepseek-v3"])
    absorbed = 8192 * (v3.linear_flops_per_token + v3.attention_flops_per_pair * 8192)
    assert absorbed / v3.prefill_flops(1, 8192) == pytest.approx(2.3, abs=0.1)


def test_an_indexer_scores_every_pair():
    mla = Mla(kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=3)
    without = layer_work(architecture(mla=mla))
    w = layer_work(architecture(mla=mla.model_copy(update={"index_heads": 2, "index_head_dim": 7})))
    assert w.attention_flops_per_pair - without.attention_flops_per_pair == 2 * 2 * 7
    assert w.linear_flops_per_token - without.linear_flops_per_token == 2 * (5 * 2 * 7 + 8 * 7 + 8 * 2)


def test_a_gate_on_attention_is_a_second_query_projection():
    gated = layer_work(architecture(attention_gate=True))
    assert gated.weight_bytes - layer_work(architecture()).weight_bytes == 2 * 8 * 8 * 2


def test_windows_in_flops_and_bytes():
    """Of 4 layers 3 attend to the last 10 tokens: prefill works in a band of the square, decode reads the band."""
    w = layer_work(architecture(layers=4, window=Window(tokens=10, layers=3)))
    plain = layer_work(architecture(layers=4))
    assert w.kv_bytes(2, 100) == plain.kv_bytes(2, 1) * (0.25 * 100 + 0.75 * 10)
    assert w.kv_bytes(2, 7) == plain.kv_bytes(2, 7)
    pairs = w.prefill_flops(1, 100) - 100 * w.linear_flops_per_token
    # Twice the causal pairs, as Table V counts the whole square: 10·10 below the first window, then 10 a token.
    band = 2 * (10 * 10 / 2 + 90 * 10)
    assert pairs == pytest.approx(w.attention_flops_per_pair * (0.25 * 100 * 100 + 0.75 * band))
    assert w.prefill_flops(1, 9) == plain.prefill_flops(1, 9)


@given(st.integers(1, 200), st.integers(1, 100))
def test_a_prompt_attends_to_its_band_in_the_mean(S, tokens):
    w = layer_work(architecture(layers=4, window=Window(tokens=tokens, layers=3)))
    middles = np.arange(S) + 0.5
    band = np.minimum(middles, tokens).sum()
    assert S * w.attended(S) == pytest.approx(0.25 * S * S / 2 + 0.75 * band)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 80))
def test_a_line_stands_for_what_is_seen(first, steps, tokens):
    w = layer_work(architecture(layers=4, window=Window(tokens=tokens, layers=3)))
    constant, slope = w.seen_line(first, steps)
    contexts = np.arange(first, first + steps)
    assert (constant + slope * contexts).mean() == pytest.approx(w.seen(contexts).mean())
    if first + steps - 1 <= tokens:
        assert (constant, slope) == (0.0, 1.0)
    elif first >= tokens and steps > 1:
        assert (constant, slope) == (pytest.approx(0.75 * tokens), pytest.approx(0.25))


def test_linear_attention_works_on_a_state():
    """One of 4 layers has attention, the others 2 value heads with states of 4 × 8: 8 FLOPs an element and token."""
    linear = Linear(layers=3, key_heads=1, value_heads=2, key_head_dim=4, value_head_dim=8)
    w = layer_work(architecture(layers=4, linear=linear))
    plain = layer_work(architecture(layers=4))
    assert w.kv_bytes_per_token == plain.kv_bytes_per_token / 4
    assert w.attention_flops_per_pair == plain.attention_flops_per_pair / 4
    projections = 8 * (2 * 4 + 2 * 16 + 2 * 2) + 16 * 8
    expected = 2 * (4 * 64 / 4 + 3 / 4 * projections + 2 * 8 * 32) + 8 * 3 / 4 * 2 * 4 * 8
    assert w.linear_flops_per_token == expected
    assert w.state_bytes == 3 / 4 * 2 * 4 * 8 * 4


@pytest.mark.parametrize(
    ("precision", "bits"),
    [("fp16", 16), ("fp8", 8), ("fp8_block", 8 + 32 / 128**2), ("fp4", 4.5), ("mxfp4", 4.25), ("int4", 4.25)],
)
def test_precisions_with_the_scales_of_their_blocks(precision, bits):
    layers = layer_work(architecture(), precision).weight_bytes - 2 * 80 * 2  # embeddings and head stay in 16 bits
    assert layers == pytest.approx(2 * (4 * 64 + 2 * 8 * 32) * bits / 8)


def test_peaks_of_precisions_a_gpu_lacks_are_those_of_16_bits():
    gpus = catalog.gpus()
    assert [peak_flops(gpus["b200"], p) for p in ("fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4")] == [
        2250e12, 4500e12, 4500e12, 9000e12, 9000e12, 2250e12,
    ]  # fmt: skip
    assert [peak_flops(gpus["a100-80g"], p) for p in ("fp8", "fp4")] == [312e12, 312e12]
    assert peak_flops(gpus["rtx-pro-4500"], "fp8") is None


def test_experts_published_in_four_bits_stay_so():
    """gpt-oss: 4.25 bits in the experts, 16 in all else, whatever precision is asked for but a smaller one."""
    as_published = layer_work(catalog.llms()["gpt-oss-20b"])
    assert as_published.weight_bytes == pytest.approx(13.8e9, rel=0.02)  # 12.8 GiB, as the model card says
    assert layer_work(catalog.llms()["gpt-oss-20b"], "fp8").weight_bytes == as_published.weight_bytes


def test_bytes_of_collectives():
    moe = MoE(experts=6, active=2, expert_ffn=5, dense_layers=1)
    w = layer_work(architecture(layers=4, moe=moe))
    hidden = 8 * 2
    assert w.collective_bytes(1) == 0
    assert w.collective_bytes(4) == 2 * 2 * 3 / 4 * hidden
    # Two ranks of 4 GPUs: all-reduces of half the tokens; 2 experts there and back, over 8 GPUs, in 3 of 4 layers
    assert w.collective_bytes(4, 2) == (2 * 2 * 3 / 4 / 2 + 3 / 4 * 2 * 2 / 8) * hidden
