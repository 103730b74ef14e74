"""Every configuration of the shared data is read: parameters as published, cache of a token by hand.

The shapes below are the keys of published `config.json` that say one; the whole files are read where they are there.
"""

import json
from pathlib import Path

import pytest

from optmodels.catalog.config import config_file, read_config
from optmodels.latency.work import layer_work

CONFIGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "configs"

HYBRID = ["linear_attention"] * 3 + ["full_attention"]
SLIDING = ["sliding_attention"] * 5 + ["full_attention"]
VISION = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16, "temporal_patch_size": 2,
          "spatial_merge_size": 2, "num_position_embeddings": 2304}  # fmt: skip
GEMMA_4 = {
    "model_type": "gemma4", "vision_config": {
        "model_type": "gemma4_vision", "num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304,
        "patch_size": 16, "position_embedding_size": 10240,
    }, "text_config": {
        "model_type": "gemma4_text", "num_hidden_layers": 60, "hidden_size": 5376, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 256, "num_global_key_value_heads": 4, "global_head_dim": 512,
        "attention_k_eq_v": True, "intermediate_size": 21504, "vocab_size": 262144, "max_position_embeddings": 262144,
        "sliding_window": 1024, "layer_types": SLIDING * 10, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}  # fmt: skip
LLAMA_4 = {
    "model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 2, "num_local_experts": 128, "num_experts_per_tok": 1, "vocab_size": 202048,
        "attention_chunk_size": 8192, "max_position_embeddings": 1048576,
    },
}  # fmt: skip
QWEN_35 = {
    "model_type": "qwen3_5_moe", "vision_config": VISION | {"out_hidden_size": 3072}, "text_config": {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 48, "hidden_size": 3072, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 256, "attn_output_gate": True, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
        "layer_types": HYBRID * 12, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 248320,
        "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1,
    },
}  # fmt: skip
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4", "num_hidden_layers": 43, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_lora_rank": 1024,
    "o_groups": 8, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "sliding_window": 128, "hc_mult": 4,
    "compress_ratios": [0, 0, 4] + [128, 4] * 20 + [0], "n_routed_experts": 256, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "vocab_size": 129280, "max_position_embeddings": 1048576,
    "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
GLM_52 = {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 12288, "kv_lora_rank": 512, "q_lora_rank": 2048,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128,
    "index_topk": 2048, "indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "vocab_size": 154880, "max_position_embeddings": 1048576,
}  # fmt: skip
MINIMAX_M3 = {
    "model_type": "minimax_m3", "num_hidden_layers": 60, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "dense_intermediate_size": 12288, "moe_intermediate_size": 3072,
    "moe_layer_freq": [0] * 3 + [1] * 57, "num_local_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1,
    "shared_intermediate_size": 3072, "hidden_act": "swigluoai", "vocab_size": 200064,
    "max_position_embeddings": 1048576, "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_attention_freq": [0] * 3 + [1] * 57,
        "sparse_disable_index_value": [0] * 3 + [1] * 57, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16, "sparse_block_size": 128,
    },
}  # fmt: skip
NEMOTRON_3 = {
    "model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "hybrid_override_pattern": "ME" * 40 + "*" * 8, "intermediate_size": 2688, "vocab_size": 131072,
    "max_position_embeddings": 262144, "mlp_hidden_act": "relu2", "mamba_num_heads": 128, "mamba_head_dim": 64,
    "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "n_routed_experts": 512, "num_experts_per_tok": 22,
    "moe_intermediate_size": 2688, "moe_latent_size": 1024, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 5376,
}  # fmt: skip
MIMO_V2 = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "hybrid_layer_pattern": [0] + [1] * 39 + [0] * 8,
    "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
    "sliding_window": 128, "moe_layer_freq": [0] + [1] * 47, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "intermediate_size": 16384, "vocab_size": 152576, "max_position_embeddings": 262144,
}  # fmt: skip
KIMI_LINEAR = {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
    "num_key_value_heads": 32, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 9216, "moe_intermediate_size": 1024,
    "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                           "short_conv_kernel_size": 4},
    "vocab_size": 163840, "model_max_length": 1048576,
}  # fmt: skip

# In 16 bits: cache bytes of a token far beyond every window, those of the tokens within a window besides, and bytes of
# a sequence's state. Published billions of parameters, multi-token prediction apart.
BY_HAND = {
    # 10 of 60 layers keep all tokens: 2 × 4 heads of 512; 50 the last 1024: 2 × 16 heads of 256. 30.7 + 0.55 vision
    "Gemma 4 31B": (GEMMA_4, 10 * 2 * 4 * 512 * 2, 50 * 2 * 16 * 256 * 2, 0, 31.25),
    # attention of 36 layers ends at chunks of 8192, and the cache keeps every token
    "Llama 4 Maverick": (LLAMA_4, 48 * 2 * 8 * 128 * 2, 0, 0, 400.7),
    # 36 layers keep 64 states of 128 × 128 in 4 bytes and 3 inputs of a convolution over 2·16·128 + 64·128 in 2
    "Qwen3.5 122B": (QWEN_35, 12 * 2 * 2 * 256 * 2, 0,
                     36 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2), 122.5),
    # 21 layers: an entry of 512 for 4 tokens and an indexer's 128 bytes and scale of 4; 20: one for 128 tokens. All 43
    # keep the last 128 tokens, 512 each
    "DeepSeek V4 Flash": (DEEPSEEK_V4, 21 * (512 * 2 + 128 + 4) / 4 + 20 * 512 * 2 / 128, 43 * 512 * 2, 0, 284.0),
    # a latent of 512 + 64; 21 of 78 layers have an indexer's key of 128 bytes and a scale of 4
    "GLM 5.2": (GLM_52, 78 * (512 + 64) * 2 + 21 * (128 + 4), 0, 0, 744.0),
    # 2 × 4 heads of 128; 57 of 60 layers have an indexer's key of 128 in 16 bits
    "MiniMax M3": (MINIMAX_M3, 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2, 0, 0, 426.2),
    # 8 of 88 layers have attention; 40 keep 128 states of 128 × 64 in 4 bytes and 3 inputs of 2·8·128 + 128·64 in 2
    "Nemotron 3 Super": (NEMOTRON_3, 8 * 2 * 2 * 128 * 2, 0,
                         40 * (128 * 128 * 64 * 4 + 3 * (2 * 8 * 128 + 128 * 64) * 2), 120.6),
    # keys of 192 and values of 128: 9 layers of 4 heads, 39 with a window of 8 heads
    "MiMo V2 Flash": (MIMO_V2, 9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2, 0, 309.0),
    # 7 of 27 layers keep a latent; 20 keep 32 states of 128 × 128 in 4 bytes and 3 inputs of 3·32·128 in 2
    "Kimi Linear 48B": (KIMI_LINEAR, 7 * (512 + 64) * 2, 0, 20 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2), 49.1),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_cache_and_parameters_of_a_configuration_by_hand(tmp_path, name):
    config, every, window, state, billions = BY_HAND[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    work = layer_work(read_config(config_file(str(tmp_path)))[0])
    far = work.kv_cache_bytes(1.0, 10**6) - work.kv_cache_bytes(1.0, 10**6 - 1)
    assert far == pytest.approx(every, rel=1e-9)
    assert work.kv_bytes_per_token_all_layers == pytest.approx(every + window, rel=1e-12)
    assert work.layers * work.state_bytes == pytest.approx(state, rel=1e-12)
    assert work.params / 1e9 == pytest.approx(billions, rel=0.01)


def dense(kind, layers, hidden, ffn, heads, kv_heads, vocab, **more):
    """The keys of most configurations that say a shape."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
             "vocab_size")  # fmt: skip
    sizes = dict(zip(names, (layers, hidden, ffn, heads, kv_heads, vocab), strict=True))
    return {"model_type": kind, "max_position_embeddings": 131072, "tie_word_embeddings": False} | sizes | more


# Configuration, cache bytes of a token far beyond every window, of a token within, and published billions.
OTHERS = {
    "Phi 4": (dense("phi3", 40, 5120, 17920, 40, 10, 100352), 40 * 2 * 10 * 128 * 2, 0, 14.66),
    "Phi 4 mini": (dense("phi3", 32, 3072, 8192, 24, 8, 200064, sliding_window=262144, tie_word_embeddings=True),
                   32 * 2 * 8 * 128 * 2, 0, 3.84),
    # every other layer of 46 keeps the last 4096 tokens
    "Gemma 2 27B": (dense("gemma2", 46, 4608, 36864, 32, 16, 256000, head_dim=128, sliding_window=4096,
                          hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True),
                    23 * 2 * 16 * 128 * 2, 23 * 2 * 16 * 128 * 2, 27.23),
    "GLM 4 32B": (dense("glm4", 61, 6144, 23040, 48, 2, 151552, head_dim=128), 61 * 2 * 2 * 128 * 2, 0, 32.57),
    "Granite 3.3 8B": (dense("granite", 40, 4096, 12800, 32, 8, 49159, tie_word_embeddings=True,
                             embedding_multiplier=12.0), 40 * 2 * 8 * 128 * 2, 0, 8.17),
    "OLMo 2 32B": (dense("olmo2", 64, 5120, 27648, 40, 8, 100352), 64 * 2 * 8 * 128 * 2, 0, 32.23),
    "SmolLM 3": (dense("smollm3", 36, 2048, 11008, 16, 4, 128256, tie_word_embeddings=True, no_rope_layer_interval=4),
                 36 * 2 * 4 * 128 * 2, 0, 3.08),
    # three of four layers keep the last 4096
    "EXAONE 4 32B": (dense("exaone4", 64, 5120, 27392, 40, 8, 102400, sliding_window=4096,
                           sliding_window_pattern="LLLG"),
                     16 * 2 * 8 * 128 * 2, 48 * 2 * 8 * 128 * 2, 32.0),
    "Command A": (dense("cohere2", 64, 12288, 36864, 96, 8, 256000, sliding_window=4096, sliding_window_pattern=4,
                        tie_word_embeddings=None), 16 * 2 * 8 * 128 * 2, 48 * 2 * 8 * 128 * 2, 111.1),
    "ERNIE 4.5 21B": (dense("ernie4_5_moe", 28, 2560, 12288, 20, 4, 103424, tie_word_embeddings=True,
                            moe_num_experts=64, moe_k=6, moe_num_shared_experts=2, moe_intermediate_size=1536,
                            moe_layer_start_index=1, moe_layer_end_index=27, moe_layer_interval=1),
                      28 * 2 * 4 * 128 * 2, 0, 21.83),
    # named 123B, which its larger vocabulary exceeds: 88·(2·12288² + 2·12288·1024 + 3·12288·28672) + 2·131072·12288
    "Devstral 2": (dense("ministral3", 88, 12288, 28672, 96, 8, 131072, head_dim=128), 88 * 2 * 8 * 128 * 2, 0, 125.02),
    # a latent of 512 + 64
    "GLM 4.7 Flash": (dense("glm4_moe_lite", 47, 2048, 10240, 20, 20, 154880, kv_lora_rank=512, q_lora_rank=768,
                            qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, n_routed_experts=64,
                            n_shared_experts=1, num_experts_per_tok=4, first_k_dense_replace=1,
                            moe_intermediate_size=1536), 47 * (512 + 64) * 2, 0, 29.94),
    "dots.llm1": (dense("dots1", 62, 4096, 10944, 32, 32, 152064, n_routed_experts=128, n_shared_experts=2,
                        num_experts_per_tok=6, first_k_dense_replace=1, moe_intermediate_size=1408),
                  62 * 2 * 32 * 128 * 2, 0, 142.8),
    "Ling mini 2.0": (dense("bailing_moe_v2", 20, 2048, 5120, 16, 4, 157184, head_dim=128, num_experts=256,
                            num_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=1,
                            moe_intermediate_size=512, moe_shared_expert_intermediate_size=512),
                      20 * 2 * 4 * 128 * 2, 0, 16.26),
    "Qwen2.5-VL 7B": (dense("qwen2_5_vl", 28, 3584, 18944, 28, 4, 152064, vision_config={
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "out_hidden_size": 3584}), 28 * 2 * 4 * 128 * 2, 0, 8.29),
    "Command R+": (dense("cohere", 64, 12288, 33792, 96, 8, 256000, tie_word_embeddings=None), 64 * 2 * 8 * 128 * 2, 0,
                   103.81),
    "Gemma 7B": (dense("gemma", 28, 3072, 24576, 16, 16, 256000, head_dim=256, hidden_act="gelu",
                       tie_word_embeddings=None), 28 * 2 * 16 * 256 * 2, 0, 8.54),
    "Phi 3.5 MoE": (dense("phimoe", 32, 4096, 6400, 32, 8, 32064, num_local_experts=16, num_experts_per_tok=2),
                    32 * 2 * 8 * 128 * 2, 0, 41.87),
    "OLMoE": (dense("olmoe", 16, 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8),
              16 * 2 * 16 * 128 * 2, 0, 6.92),
    # two matrices in the feed-forward
    "Apertus 70B": (dense("apertus", 80, 8192, 43008, 64, 8, 131072, hidden_act="xielu"), 80 * 2 * 8 * 128 * 2, 0,
                    70.6),
    "AFM 4.5B": (dense("arcee", 36, 2560, 18432, 20, 4, 128004, head_dim=128, hidden_act="relu2"),
                 36 * 2 * 4 * 128 * 2, 0, 4.62),
    "Falcon 40B": ({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
                    "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024}, 60 * 2 * 8 * 64 * 2, 0,
                   41.3),
    "BLOOM": ({"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
               "vocab_size": 250880},
              70 * 2 * 112 * 128 * 2, 0, 176.25),
    "GPT-2 XL": ({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024,
                  "vocab_size": 50257}, 48 * 2 * 25 * 64 * 2, 0, 1.558),
    "GLM 4 9B": ({"model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "ffn_hidden_size": 13696,
                  "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2,
                  "kv_channels": 128, "padded_vocab_size": 151552, "seq_length": 131072, "tie_word_embeddings": False},
                 40 * 2 * 2 * 128 * 2, 0, 9.4),
    "DBRX": ({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
              "vocab_size": 100352, "attn_config": {"kv_n_heads": 8}, "tie_word_embeddings": False, "ffn_config": {
                  "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}, 40 * 2 * 8 * 128 * 2, 0, 131.6),
    "Hunyuan A13B": (dense("hunyuan_v1_moe", 32, 4096, 3072, 32, 8, 128167, tie_word_embeddings=True, num_experts=64,
                           moe_topk=[8] * 32, num_shared_expert=[1] * 32, moe_intermediate_size=[3072] * 32),
                     32 * 2 * 8 * 128 * 2, 0, 80.39),
    # two attentions and two plain feed-forwards in each of 28 layers; 256 of 768 experts do nothing
    "LongCat Flash": ({"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
                       "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512,
                       "moe_topk": 12, "zero_expert_num": 256, "kv_lora_rank": 512, "q_lora_rank": 1536,
                       "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 131072,
                       "max_position_embeddings": 131072}, 56 * (512 + 64) * 2, 0, 560.0),
    # one layer in eight has attention; the others Mamba
    "Jamba 1.5 Mini": (dense("jamba", 32, 4096, 14336, 32, 8, 65536, num_experts=16, num_experts_per_tok=2,
                             attn_layer_period=8, attn_layer_offset=4, expert_layer_period=2, expert_layer_offset=1,
                             mamba_d_conv=4, mamba_d_state=16, mamba_expand=2, mamba_dt_rank=256),
                       4 * 2 * 8 * 128 * 2, 0, 51.57),
    # attention and Mamba-2 in every layer
    "Falcon H1 34B": (dense("falcon_h1", 72, 5120, 21504, 20, 4, 261120, head_dim=128, mamba_d_conv=4, mamba_d_head=128,
                            mamba_d_state=256, mamba_n_groups=2, mamba_n_heads=32), 72 * 2 * 4 * 128 * 2, 0, 33.64),
    "Granite 4 H Small": (dense("granitemoehybrid", 40, 4096, 768, 32, 8, 100352, tie_word_embeddings=True,
                                layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, num_local_experts=72,
                                num_experts_per_tok=10, shared_intermediate_size=1536, mamba_d_conv=4, mamba_d_head=64,
                                mamba_d_state=128, mamba_n_groups=1, mamba_n_heads=128), 4 * 2 * 8 * 128 * 2, 0, 32.21),
    "Granite 4 H Micro": (dense("granitemoehybrid", 40, 2048, 8192, 32, 8, 100352, tie_word_embeddings=True,
                                layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, num_local_experts=0,
                                num_experts_per_tok=0, shared_intermediate_size=8192, mamba_d_conv=4, mamba_d_head=64,
                                mamba_d_state=128, mamba_n_groups=1, mamba_n_heads=64), 4 * 2 * 8 * 64 * 2, 0, 3.19),
    # lightning attention in seven of eight layers
    "MiniMax Text 01": (dense("minimax_text_01", 80, 6144, 9216, 64, 8, 200064, head_dim=128, num_local_experts=32,
                              num_experts_per_tok=2, attn_type_list=([0] * 7 + [1]) * 10), 10 * 2 * 8 * 128 * 2, 0,
                        456.1),
    # short convolutions in 10 of 16 layers; the width is two thirds of the stated one
    "LFM 2 1.2B": (dense("lfm2", 16, 2048, 12288, 32, 8, 65536, tie_word_embeddings=None, conv_L_cache=3,
                         full_attn_idxs=[2, 5, 8, 10, 12, 14]), 6 * 2 * 8 * 64 * 2, 0, 1.17),
    "K-EXAONE": (dense("exaone_moe", 48, 6144, 18432, 64, 8, 153600, head_dim=128, num_experts=128,
                       num_experts_per_tok=8, num_shared_experts=1, moe_intermediate_size=2048,
                       is_moe_layer=[False] + [True] * 47), 48 * 2 * 8 * 128 * 2, 0, 236.6),
    # a language model within; the tower's layers, 32² + 1 positions and a projection of 2 × 2 patches
    "InternVL 3 8B": ({"model_type": "internvl_chat", "downsample_ratio": 0.5, "llm_config": dense(
        "qwen2", 28, 3584, 18944, 28, 4, 151674), "vision_config": {
            "model_type": "intern_vit_6b", "hidden_size": 1024, "image_size": 448, "intermediate_size": 4096,
            "num_hidden_layers": 24, "patch_size": 14}}, 28 * 2 * 4 * 128 * 2, 0, 7.94),
    "GLM 4.5V": ({"model_type": "glm4v_moe", "text_config": dense(
        "glm4v_moe_text", 46, 4096, 10944, 96, 8, 151552, head_dim=128, n_routed_experts=128, num_experts_per_tok=8,
        n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=1408), "vision_config": {
            "model_type": "glm4v_moe", "depth": 24, "hidden_size": 1536, "intermediate_size": 10944, "patch_size": 14,
            "out_hidden_size": 4096, "spatial_merge_size": 2, "temporal_patch_size": 2}},
        46 * 2 * 8 * 128 * 2, 0, 107.71),
    # 30 of 40 layers keep the last 512 tokens and have more query heads; a gate a head
    "Laguna XS": (dense("laguna", 40, 2048, 8192, 48, 8, 100352, head_dim=128, sliding_window=512, num_experts=256,
                        layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 10, num_experts_per_tok=8,
                        num_attention_heads_per_layer=[48, 64, 64, 64] * 10, moe_intermediate_size=512,
                        shared_expert_intermediate_size=512, mlp_layer_types=["dense"] + ["sparse"] * 39),
                  10 * 2 * 8 * 128 * 2, 30 * 2 * 8 * 128 * 2, 33.4),
    # experts of 3584 wide inputs; 24 of 93 layers keep a latent
    "Kimi K3": ({"model_type": "kimi_k3", "text_config": dense(
        "kimi_linear", 93, 7168, 33792, 96, 96, 163840, hidden_act="situ", q_lora_rank=1536, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, mla_use_output_gate=True, num_experts=896,
        num_experts_per_token=16, num_shared_experts=2, moe_intermediate_size=3072, routed_expert_hidden_size=3584,
        first_k_dense_replace=1, linear_attn_config={
            "full_attn_layers": [*range(4, 93, 4), 93], "head_dim": 128, "num_heads": 96,
            "short_conv_kernel_size": 4})}, 24 * (512 + 64) * 2, 0, 2780.0),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_further_families_are_read(tmp_path, name):
    config, every, window, billions = OTHERS[name]
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    work = layer_work(read_config(tmp_path / "config.json")[0])
    far = work.kv_cache_bytes(1.0, 10**6) - work.kv_cache_bytes(1.0, 10**6 - 1)
    assert far == pytest.approx(every, rel=1e-9)
    assert work.kv_bytes_per_token_all_layers == pytest.approx(every + window, rel=1e-12)
    assert work.params / 1e9 == pytest.approx(billions, rel=0.01)


# Billions of parameters as model cards or weight indices name them, multi-token prediction apart, vision towers within
# where the configuration has one. Not here: names that round to a digit or two (Qwen3-VL, Nemotron 3 Ultra, MiMo-7B).
PUBLISHED = {
    "Qwen__Qwen3-1.7B": 1.72, "Qwen__Qwen3-235B-A22B": 235.09, "Qwen__Qwen3-30B-A3B": 30.53,
    "Qwen__Qwen3-32B-FP8": 32.76, "Qwen__Qwen3-32B-FP8-Static-PerTensor": 32.76,
    "Qwen__Qwen3-Coder-480B-A35B-Instruct": 480.2, "Qwen__Qwen3-VL-235B-A22B-Instruct": 235.7,
    "Qwen__Qwen3-VL-2B-Instruct": 2.13, "Qwen__Qwen3-VL-30B-A3B-Instruct": 31.07,
    "Qwen__Qwen3-VL-32B-Instruct": 33.36, "Qwen__Qwen3-VL-4B-Instruct": 4.44, "Qwen__Qwen3-VL-8B-Instruct": 8.77,
    "deepseek-ai__DeepSeek-V3.2": 671.0, "nvidia__DeepSeek-V3.2-NVFP4": 671.0, "mistralai__Mixtral-8x22B-v0.1": 140.6,
    "nvidia__DeepSeek-V4-Flash-NVFP4": 284.0, "sgl-project__DeepSeek-V4-Flash-FP8": 284.0,
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": 400.7, "openai__gpt-oss-20b": 20.91,
    "MiniMaxAI__MiniMax-M2.7": 229.0, "nvidia__MiniMax-M2.7-NVFP4": 229.0, "nvidia__Qwen3-235B-A22B-NVFP4": 235.09,
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": 49.87, "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 31.6,
    "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 120.6, "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 120.6,
    "google__gemma-4-26B-A4B": 25.8, "nvidia__Gemma-4-26B-A4B-NVFP4": 25.8, "nvidia__Gemma-4-31B-IT-NVFP4": 31.25,
    "nvidia__Nemotron-H-56B-Base-8K": 56.3, "stepfun-ai__Step-3.7-Flash-FP8": 196.0,
    **dict.fromkeys(("zai-org__GLM-5", "zai-org__GLM-5-FP8", "zai-org__GLM-5.1", "zai-org__GLM-5.2",
                     "nvidia__GLM-5-NVFP4"), 744.0),
}  # fmt: skip


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the shared configurations are not here")
def test_every_shared_configuration_is_read_with_its_published_parameters():
    files = sorted(CONFIGS.glob("*.json"))
    assert len(files) >= 58 and PUBLISHED.keys() <= {f.stem for f in files}
    for file in files:
        found = layer_work(read_config(file)[0])
        assert found.kv_bytes_per_token_all_layers > 0
        if file.stem in PUBLISHED:
            assert found.params / 1e9 == pytest.approx(PUBLISHED[file.stem], rel=0.01), file.stem
