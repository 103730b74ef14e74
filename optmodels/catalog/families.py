"""Names and defaults of configurations by kind of model: `config.py` reads every family by the keys of most.

A row says what the configuration class of that kind does when a key is absent, and how it spells a key. Sources: the
configuration and modelling classes of Hugging Face transformers 4.57 and the checkpoints' own (`auto_map`).
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

# Kind → its spelling of a key → the key of most.
SPELLINGS: dict[str, dict[str, str]] = {
    "gpt2": {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
             "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"},
    "opt": {"ffn_dim": "intermediate_size"},
    "bloom": {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
              "seq_length": "max_position_embeddings"},
    "falcon": {"num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size"},
    "chatglm": {"num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "kv_channels": "head_dim",
                "multi_query_group_num": "num_key_value_heads", "padded_vocab_size": "vocab_size",
                "seq_length": "max_position_embeddings"},
    "exaone": {"num_layers": "num_hidden_layers", "activation_function": "hidden_act"},
    "dbrx": {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
             "max_seq_len": "max_position_embeddings"},
    "longcat_flash": {"ffn_hidden_size": "intermediate_size", "expert_ffn_hidden_size": "moe_intermediate_size",
                      "moe_topk": "num_experts_per_tok"},
    "hunyuan_v1_moe": {"moe_topk": "num_experts_per_tok", "num_shared_expert": "n_shared_experts"},
    "afmoe": {"num_dense_layers": "first_k_dense_replace"},
    "lfm2": {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
    "lfm2_moe": {"num_dense_layers": "first_k_dense_replace", "tie_embedding": "tie_word_embeddings"},
    "gemma3_text": {}, "starcoder2": {}, "kimi_linear": {"routed_expert_hidden_size": "moe_latent_size"},
}  # fmt: skip
SPELLINGS["hunyuan"] = SPELLINGS["hunyuan_v1_moe"]

# Kind → keys that its class sets where a configuration has none.
DEFAULTS: dict[str, Config] = {
    "bloom": {"max_position_embeddings": 2048},
    "falcon": {"max_position_embeddings": 2048},
    "gemma3_text": {"vocab_size": 262208, "max_position_embeddings": 131072, "num_attention_heads": 8,
                    "num_key_value_heads": 4, "head_dim": 256},
}  # fmt: skip

# Feed-forward without a gate: two matrices.
PLAIN_FEED_FORWARD = {
    "gpt2", "opt", "bloom", "falcon", "gpt_neox", "phi", "starcoder2", "nemotron", "arcee", "apertus",
}  # fmt: skip
# The output head is the embedding unless the configuration denies it.
TIED = {
    "gemma", "gemma2", "gemma3_text", "gemma4_text", "cohere", "cohere2", "gpt2", "opt", "bloom", "falcon",
    "starcoder2", "lfm2", "lfm2_moe", "smollm3", "ernie4_5", "ernie4_5_moe",
}  # fmt: skip
ACTIVATIONS = {
    "gemma": ("gelu_pytorch_tanh", "gelu"), "gemma2": ("gelu_pytorch_tanh", "gelu"), "grok-1": ("gelu", "silu"),
    "gemma3_text": ("gelu_pytorch_tanh",), "gemma4_text": ("gelu_pytorch_tanh",), "kimi_linear": ("silu", "situ"),
}  # fmt: skip
ANY_ACTIVATION = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2", "xielu")  # without a gate

# Keys by which a family names what changes neither weights by 0.1 % nor the cache.
OTHER = {
    "gpt2": {"activation_function", "attn_pdrop", "n_ctx", "summary_activation", "summary_first_dropout",
             "summary_proj_to_labels", "summary_type", "summary_use_proj", "scale_attn_weights",
             "task_specific_params", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"},
    "opt": {"_remove_final_layer_norm", "activation_dropout", "activation_function", "do_layer_norm_before", "dropout",
            "init_std", "layerdrop", "enable_bias", "layer_norm_elementwise_affine", "prefix"},
    "bloom": {"apply_residual_connection_post_layernorm", "attention_softmax_in_fp32", "bias_dropout_fusion",
              "masked_softmax_fusion", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "unk_token_id"},
    "falcon": {"bias", "parallel_attn", "activation", "alibi", "num_ln_in_parallel_attn"},
    "gpt_neox": {"rotary_emb_base", "use_parallel_residual", "classifier_dropout", "attention_dropout"},
    "phi": {"qk_layernorm"},
    "phimoe": {"input_jitter_noise", "lm_head_bias"},
    "starcoder2": {"attention_softmax_in_fp32", "mlp_type", "norm_epsilon", "norm_type", "residual_dropout",
                   "scale_attention_softmax_in_fp32", "scale_attn_weights", "activation_function"},
    "apertus": {"post_norm", "qk_norm"},
    "olmo": {"clip_qkv"}, "olmoe": {"clip_qkv"},
    "internlm2": {"bias"}, "internlm3": {"bias"},
    "stablelm": {"qk_layernorm", "use_parallel_residual", "norm_eps", "rope_pct"},
    "chatglm": {"add_bias_linear", "add_qkv_bias", "apply_query_key_layer_scaling",
                "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32", "bias_dropout_fusion",
                "fp32_residual_connection", "layernorm_epsilon", "original_rope", "post_layer_norm", "rmsnorm",
                "rope_ratio", "classifier_dropout", "pre_seq_len", "prefix_projection", "quantization_bit"},
    "exaone": {"embed_dropout"},
    "minicpm": {"dim_model_base", "scale_depth", "scale_emb"},
    "grok-1": {"attn_output_multiplier", "max_attn_value", "output_multiplier_scale", "embedding_multiplier_scale"},
    "dbrx": {"emb_pdrop"},
    "longcat_flash": {"attention_method", "mla_scale_kv_lora", "mla_scale_q_lora", "zero_expert_type", "router_bias"},
    "hunyuan_v1_dense": {"add_classification_head", "class_num", "dense_list", "eod_token_id", "norm_type",
                         "org_vocab_size", "pool_type", "position_embedding_xdrope", "sep_token_id",
                         "use_rotary_pos_emb",
                         "attention_head_dim", "cla_share_factor", "im_end_id", "im_newline_id", "im_start_id",
                         "mask_init_id", "text_end_id", "text_start_id", "video_end_id", "video_start_id", "vit_type",
                         "anyres_pooling_size", "num_media_embeds", "skip_cls_token", "xdrope_section",
                         "moe_drop_tokens", "moe_random_routing_dropped_token", "use_mixed_mlp_moe"},
    "afmoe": {"load_balance_coeff", "mup_enabled", "num_expert_groups", "num_limited_groups", "route_norm",
              "route_scale", "score_func", "use_grouped_mm", "global_attn_every_n_layers"},
    "falcon_h1": {"attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "lm_head_multiplier",
                  "mlp_multipliers", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier",
                  "mlp_expansion_factor", "projectors_bias", "mamba_norm_before_gate", "mamba_rms_norm"},
    "bamba": {"attn_rotary_emb", "z_loss_coefficient"},
    "granitemoehybrid": {"init_method", "normalization_function", "mamba_norm_before_gate"},
    "lfm2": {"block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "block_dim",
             "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
             "block_use_xavier_init", "conv_bias", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "use_pos_enc",
             "theta"},
    "lfm2_moe": {"conv_bias", "use_expert_bias", "use_pos_enc"},
    "minimax": {"block_size", "postnorm", "shared_moe_mode", "rotary_dim", "shared_intermediate_size"},
    "exaone4": {"sliding_window_pattern"}, "exaone_moe": {"sliding_window_pattern"},
    "laguna": {"gating", "moe_routed_scaling_factor", "moe_router_logit_softcapping"},
    "seed_oss": {"residual_dropout", "attention_out_bias"},
    "llama": {"is_llama_config", "rope_interleaved", "transformers.js_config"},
    "kimi_linear": {"activation_situ_beta", "activation_situ_linear_beta", "latent_moe_use_norm", "attn_res_block_size",
                    "mla_use_output_gate"},
    "glm4v_moe_text": {"image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id"},
}  # fmt: skip
OTHER["hunyuan_v1_moe"] = OTHER["hunyuan_v1_dense"] | {"moe_layer_num_skipped"}
OTHER["glm4v_text"] = OTHER["glm4v_moe_text"]
_MAMBA = {"mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "mamba_expand", "mamba_use_mlp", "mamba_d_ssm"}
for _kind in ("jamba", "bamba", "falcon_h1", "granitemoehybrid"):
    OTHER[_kind] = OTHER.get(_kind, set()) | _MAMBA
_SCALES = ("full_attn", "linear_attn", "mlp")
OTHER["minimax"] |= {f"{a}_{b}_factor" for a in _SCALES for b in ("alpha", "beta")}
OTHER["minimax"] |= {
    f"layernorm_{a}_{b}" for a in ("full_attention", "linear_attention", "mlp") for b in ("alpha", "beta")
}
ALIASES = {"minimax_m1": "minimax", "minimax_text_01": "minimax", "hunyuan": "hunyuan_v1_moe",
           "grok1": "grok-1", "phi4": "phi3", "hunyuan_dense": "hunyuan_v1_dense"}  # fmt: skip


def translate(data: Config) -> tuple[Config, dict[str, str]]:
    """A configuration with the keys of most, and the spelling that it had of each.

    Values that a family states as a list with one value for all layers become that value.
    """
    kind = ALIASES.get(str(data.get("model_type")), str(data.get("model_type")))
    spelled = SPELLINGS.get(kind, {})
    found: Config = {"model_type": kind}
    names = {ours: theirs for theirs, ours in spelled.items() if data.get(ours) is None}
    for key, value in data.items():
        ours = spelled.get(key, key)
        if ours != key and data.get(ours) is not None:
            continue
        if key != "model_type":
            found[ours] = value
    for key, value in DEFAULTS.get(kind, {}).items():
        if found.get(key) is None:
            found[key] = value
    own = _OWN.get(kind)
    return (own(found) if own else found), names


def _four_times(data: Config) -> Config:
    if data.get("intermediate_size") is None and type(data.get("hidden_size")) is int:
        data["intermediate_size"] = 4 * data["hidden_size"]
    return data


def _falcon(data: Config) -> Config:
    if not data.get("new_decoder_architecture"):  # Falcon-7B: one head of keys and values
        data["num_key_value_heads"] = 1 if data.get("multi_query", True) else data.get("num_attention_heads")
    return _four_times(data) | {"multi_query": None, "new_decoder_architecture": None}


def _chatglm(data: Config) -> Config:
    if data.get("multi_query_attention") is False:
        data["num_key_value_heads"] = data.get("num_attention_heads")
    return data | {"multi_query_attention": None}


def _dbrx(data: Config) -> Config:
    attention, ffn = data.pop("attn_config", None) or {}, data.pop("ffn_config", None) or {}
    return data | {
        "num_key_value_heads": attention["kv_n_heads"], "intermediate_size": ffn["ffn_hidden_size"],
        "num_experts": ffn["moe_num_experts"], "num_experts_per_tok": ffn["moe_top_k"],
    }  # fmt: skip


def _hunyuan(data: Config) -> Config:
    for key in ("moe_intermediate_size", "num_experts_per_tok", "n_shared_experts"):
        value = data.get(key)
        if isinstance(value, list) and len({*value}) == 1:
            data[key] = value[0]
    if data.get("use_cla") is False:
        data["cla_share_factor"] = None
    return data


def _longcat(data: Config) -> Config:
    """Each layer has two attentions, two plain feed-forwards and one mixture, some of whose experts do nothing."""
    data["num_hidden_layers"] = 2 * (data.pop("num_layers", None) or data["num_hidden_layers"])
    idle, real = data.pop("zero_expert_num", 0) or 0, data["n_routed_experts"]
    data["num_experts_per_tok"] = max(1, round(data["num_experts_per_tok"] * real / (real + idle)))
    return data


def _lfm2(data: Config) -> Config:
    width = data.get("intermediate_size")
    if data.get("block_auto_adjust_ff_dim", True) and type(width) is int:
        multiple = data.get("block_multiple_of") or 256
        width = int((data.get("block_ffn_dim_multiplier") or 1.0) * int(2 * width / 3))
        data["intermediate_size"] = -(-width // multiple) * multiple
    return data


_OWN = {
    "gpt2": _four_times, "bloom": _four_times, "falcon": _falcon, "chatglm": _chatglm, "dbrx": _dbrx,
    "hunyuan_v1_moe": _hunyuan, "hunyuan_v1_dense": _hunyuan, "longcat_flash": _longcat, "lfm2": _lfm2,
}  # fmt: skip
