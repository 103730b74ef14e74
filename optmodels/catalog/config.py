"""LLMs by the `config.json` of a Hugging Face checkpoint: a file, or a folder such as one of the local cache.

A key that is not read and may change the shape is refused by its name: nothing is guessed. Read are dense models and
mixtures of experts with grouped-query, latent, compressed or sparse attention, sliding and chunked windows, linear
attention (gated DeltaNet, Kimi Delta Attention, Mamba-2), multi-token prediction, and the size of vision towers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from optmodels.catalog.families import (
    ACTIVATIONS,
    ALIASES,
    ANY_ACTIVATION,
    OTHER,
    PLAIN_FEED_FORWARD,
    TIED,
    translate,
)
from optmodels.catalog.spelling import precision_of
from optmodels.catalog.types import Architecture
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.io.read import read_document, validate

Config = dict[str, Any]


class _Reading(dict[str, Any]):
    """A section that remembers which of its keys were read, so that the others can be refused."""

    def __init__(self, data: Config) -> None:
        super().__init__(data)
        self.names: dict[str, str] = {}  # the configuration's own spelling of a key
        self.read: set[str] = set()
        self.last = "model_type"

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        self.last = key
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        self.last = key
        return super().get(key, default)


_PLAIN = {
    "llama", "mistral", "qwen2", "qwen3", "mimo", "mixtral", "qwen2_moe", "qwen3_moe", "minimax_m2", "glm4_moe",
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "gpt_oss", "qwen3_vl_text",
    "qwen3_vl_moe_text", "step3p5", "step3p7", "seed_oss", "phi3", "gemma2", "glm4", "glm4_moe_lite", "granite",
    "olmo2", "olmo3", "smollm3", "exaone4", "ernie4_5", "ernie4_5_moe", "cohere2", "ministral3", "dots1", "bailing_moe",
    "bailing_moe_v2", "qwen2_5_vl_text", "gpt2", "opt", "bloom", "falcon", "gpt_neox", "phi", "starcoder2", "nemotron",
    "arcee", "apertus", "gemma", "cohere", "olmo", "olmoe", "phimoe", "internlm2", "internlm3", "stablelm", "chatglm",
    "exaone", "deepseek", "minicpm", "dbrx", "grok-1", "granitemoe", "solar_open", "hunyuan_v1_moe",
    "hunyuan_v1_dense", "exaone_moe", "laguna", "longcat_flash", "afmoe", "qwen2_vl_text", "glm4v_text",
    "glm4v_moe_text",
}  # fmt: skip
# Layers with attention and layers with a state: Mamba, Mamba-2, lightning attention or short convolutions.
_STATEFUL = {"jamba", "bamba", "falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "minimax"}
# Multimodal models: kind of the outer section → kinds of the language model within.
_WRAPPED: dict[str, set[str | None]] = {
    "qwen3_vl": {"qwen3_vl_text"}, "qwen3_vl_moe": {"qwen3_vl_moe_text"}, "qwen3_5": {"qwen3_5_text"},
    "qwen3_5_moe": {"qwen3_5_moe_text"}, "gemma3": {"gemma3_text"}, "gemma4": {"gemma4_text"},
    "llama4": {"llama4_text"}, "kimi_k25": {"deepseek_v3", "kimi_k2"}, "minimax_m3_vl": {"minimax_m3", None},
    "mistral3": {"mistral", "ministral3"}, "qwen2_5_vl": {"qwen2_5_vl_text", None},
    "qwen2_vl": {"qwen2_vl_text", None}, "kimi_k3": {"kimi_linear"}, "glm4v_moe": {"glm4v_moe_text"},
    "glm4v": {"glm4v_text"},
}  # fmt: skip
# Multimodal models around any language model that is read.
_AROUND = {"internvl_chat", "internvl", "kimi_vl", "llava", "llava_next", "aya_vision", "cohere2_vision"}
_FLAT = ("qwen2_5_vl", "qwen2_vl")
_SECTIONS = ("text_config", "llm_config", "language_config")
_KINDS = {
    *_PLAIN, *_WRAPPED, *_STATEFUL, *_AROUND, "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma3_text",
    "gemma4_text", "llama4_text",
    "minimax_m3", "nemotron_h", "nemotron-nas", "deepseek_v4", "deepseek_ref", "kimi_linear", "mimo_v2_flash",
}  # fmt: skip
# Keys that change neither reads nor products of a forward pass. Biases and norms are below 0.1 % of the weights.
_OTHER = {
    "model_type", "quantization_config", "expert_dtype", "max_window_layers", "qk_head_dim", "index_topk_pattern",
    "index_skip_topk_offset", "expand", "full_attention_interval", "index_topk_freq", "num_hidden_layers",
    "architectures", "attention_bias", "attention_dropout", "auto_map", "aux_loss_alpha", "bos_token_id", "dtype",
    "eos_token_id", "ep_size", "indexer_rope_interleave", "initial_context_length", "initializer_range", "mlp_bias",
    "mtp_transformer_layers", "n_group", "norm_topk_prob", "output_router_logits", "pad_token_id",
    "partial_rotary_factor", "pretraining_tp", "qk_norm_type", "rms_norm_eps", "rope_interleave", "rope_parameters",
    "rope_scaling", "rope_theta", "rotary_dim", "routed_scaling_factor", "router_aux_loss_coef", "scoring_func",
    "seq_aux", "swiglu_limit", "swiglu_alpha", "topk_group", "topk_method", "torch_dtype", "transformers_version",
    "use_cache", "use_mrope", "use_mtp", "use_qk_norm", "use_routing_bias", "_name_or_path", "bos_token", "eos_token",
    "unsloth_fixed", "unsloth_version", "attn_implementation", "qkv_bias", "router_jitter_noise", "use_gemma_norm",
    "mamba_ssm_dtype", "mtp_use_dedicated_embeddings", "output_gate_type", "index_share_for_mtp_iteration",
    "moe_router_dtype", "final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar",
    "rope_local_base_freq", "use_bidirectional_attention", "vocab_size_per_layer_input", "attn_scale",
    "attn_temperature_tuning", "floor_scale", "for_llm_compressor", "chunk_size", "hidden_dropout",
    "layer_norm_epsilon", "layernorm_epsilon", "mamba_hidden_act", "mamba_ssm_cache_dtype", "norm_eps",
    "num_logits_to_keep", "rescale_prenorm_residual", "time_step_floor", "time_step_limit", "time_step_max",
    "time_step_min", "time_step_rank", "use_conv_bias", "use_mamba_kernels", "mtp_hybrid_override_pattern",
    "mtp_layers_block_type", "moe_shared_expert_overlap", "compress_rope_theta", "hc_eps", "hc_sinkhorn_iters",
    "num_hash_layers", "use_moe_router_bias", "moe_router_scaling_factor", "mla_use_nope", "moe_renormalize",
    "moe_router_activation_func", "num_expert_group", "use_grouped_topk", "num_heads", "attention_value_scale",
    "original_max_position_embeddings", "resid_pdrop", "embd_pdrop", "cache_implementation", "embedding_multiplier",
    "logits_scaling", "attention_multiplier", "residual_multiplier", "no_rope_layers", "no_rope_layer_interval",
    "use_bias", "use_qkv_bias", "logit_scale", "use_parallel_block", "use_gated_activation", "position_embedding_type",
    "rotary_pct", "use_embedding_sharing", "use_parallel_embedding", "layer_norm_eps", "layer_switch",
    "order_of_interleaved_layers", "score_function", "router_dtype", "moe_router_enable_expert_bias",
    "embedding_dropout", "output_dropout", "norm_head", "norm_softmax", "use_rmsnorm", "moe_gate", "moe_use_aux_free",
    "moe_capacity", "moe_gate_act", "moe_router_enable_shared_expert", "mtp_loss_scaling_factor", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "compression_ratio", "moe_norm_min", "moe_statics", "rope_3d",
    "add_full_attention_sink_bias", "add_swa_attention_sink_bias", "swa_rope_theta", "attention_projection_layout",
    # of every configuration of transformers: how text is generated, and labels
    "add_cross_attention", "bad_words_ids", "chunk_size_feed_forward", "do_sample", "early_stopping", "id2label",
    "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length", "num_beam_groups", "num_beams",
    "num_return_sequences", "repetition_penalty", "return_dict", "temperature", "tokenizer_class", "top_k", "top_p",
    "torchscript", "typical_p", "use_bfloat16", "problem_type", "output_attentions", "output_hidden_states",
    # of multimodal models outside their towers
    "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "audio_token_id",
    "boa_token_id", "boi_token_id", "eoa_token_id", "eoa_token_index", "eoi_token_id", "boi_token_index",
    "eoi_token_index", "image_token_index", "video_token_index", "vision_soft_tokens_per_image", "mm_tokens_per_image",
    "ignore_index", "media_placeholder_token_id", "use_unified_vision_chunk", "video_placeholder",
    "image_grid_pinpoints", "image_seq_length", "img_token_compression_config", "multimodal_projector_bias",
    "num_reward_heads", "process_image_mode", "projector_hidden_act", "projector_hidden_size", "vision_feature_layer",
    "vision_feature_select_strategy", "spatial_merge_size", "language_model_only", "downsample_ratio",
    "dynamic_image_size", "force_image_size", "image_fold", "max_dynamic_patch", "min_dynamic_patch", "pad2square",
    "ps_version", "select_layer", "system_message", "template", "use_backbone_lora", "use_llm_lora", "use_thumbnail",
    "vision_token_id", "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id",
}  # fmt: skip
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")  # of a layer
_HYBRID = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
_GATED = ("silu", "swigluoai", "gelu_pytorch_tanh")


def config_file(name: str) -> Path | None:
    """The `config.json` that a name means: the file, or the one in a folder, also in the local cache."""
    path = Path(name).expanduser()
    if path.suffix == ".json":
        return path
    try:
        if not path.is_dir():
            return None
    except (OSError, ValueError):
        return None
    found = [path / "config.json", *sorted(path.glob("snapshots/*/config.json"))]
    main = path / "refs" / "main"  # the snapshot that the cache's default revision names
    if main.is_file():
        found.append(path / "snapshots" / main.read_text(errors="replace").strip() / "config.json")
    return next((f for f in reversed(found) if f.is_file()), None)


def read_config(path: Path) -> tuple[Architecture, str]:
    """The architecture and the weight precision that a `config.json` states.

    Raises:
        InputError: no such file, an architecture or a key that is not read, or a key that is missing.
    """
    if not path.exists():
        raise InputError(Mistake(str(path), "", "no such file", "a checkpoint's config.json, or a folder with one"))
    outer, line = read_document(path)
    wrong = Mistakes()
    data, inside = _language_model(outer, wrong)
    _raise(wrong, path, line)
    other = _OTHER | OTHER.get(data["model_type"], set())
    try:
        made = _shape(data, wrong, inside)
        if inside or data["model_type"] in ("qwen2_5_vl_text", "qwen2_vl_text"):
            made["vision_params"] = _vision(data.get("vision_config"), made, data)
    except _MissingError as missing:
        wrong.add(inside + data.names.get(missing.key, missing.key), missing.value, missing.expected)
        made = {}
    except _MALFORMED:  # a section without one of its keys, or a value of another type
        value = dict(data).get(data.last)
        wrong.add(
            inside + data.names.get(data.last, data.last),
            value,
            f"a value as models of this kind have it: {dict(data).get('model_type')}",
        )
        made = {}
    for key, value in data.items() if made else ():
        if key not in data.read | other and value not in (None, False, 0, "", [], {}):
            expected = f"no such key in a model of kind {data['model_type']}: it may change the shape, and is not read"
            shown = data.names.get(key, key)
            wrong.add(shown if shown in outer else inside + shown, value, expected)
    _raise(wrong, path, line)
    title = _title(outer, path)
    made |= {"title": title, "source": f"{path.name} of {title}"}
    try:
        weights, kept = _precision(outer, made, title, path, wrong)
    except _MALFORMED:
        weights, kept = "fp16", []
        wrong.add("quantization_config", outer.get("quantization_config"), "a section as checkpoints have it")
    if kept:
        made["kept"] = kept
    _raise(wrong, path, line)
    return validate(Architecture, made, str(path)), weights


_MALFORMED = (KeyError, TypeError, AttributeError, IndexError, ValueError, ZeroDivisionError)


class _MissingError(Exception):
    def __init__(self, key: str, value: Any, expected: str) -> None:
        super().__init__(key)
        self.key, self.value, self.expected = key, value, expected


def _raise(wrong: Mistakes, path: Path, line: Any) -> None:
    if wrong:
        raise InputError(replace(m, file=str(path), line=line((m.path,))) for m in wrong)


def _title(data: Config, path: Path) -> str:
    """A name for people: the name of the checkpoint's folder."""
    folder = path.resolve().parent
    for part in (folder.name, *(p.name for p in folder.parents)):
        if part.startswith("models--"):
            return part.removeprefix("models--").rpartition("--")[2]
    return path.stem if path.stem != "config" else folder.name or str(data["model_type"])


def _language_model(outer: Config, wrong: Mistakes) -> tuple[_Reading, str]:
    """The section of the language model, with the outer keys that it lacks, and its path as a prefix."""
    kind = outer.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS | ALIASES.keys():
        near = [k for k in sorted(_KINDS) if str(kind)[:4] == k[:4]][:3]
        like = f" (nearest: {', '.join(near)})" if near else ""
        wrong.add("model_type", kind, f"an architecture that is read{like}: the shape of others is not known")
        return _Reading(outer), ""
    if outer.get("audio_config"):
        wrong.add("audio_config", "a section", "none: audio towers are not read")
    section = next((k for k in _SECTIONS if outer.get(k) is not None), "text_config")
    text = outer.get(section)
    if kind in _FLAT and text is None:  # of transformers before 4.52: the language model's keys are the outer ones
        return _Reading(outer | {"model_type": f"{kind}_text"}), ""
    if kind in {*_WRAPPED, *_AROUND} and not isinstance(text, dict):
        wrong.add(section, text, "the section of the language model")
        return _Reading(outer), ""
    if not isinstance(text, dict):
        return _translated(outer, wrong, ""), ""
    inner = text.get("model_type") if isinstance(text.get("model_type"), str | None) else ""
    if inner not in (_KINDS - {*_WRAPPED, *_AROUND} if kind in _AROUND else _WRAPPED.get(str(kind), {str(kind)})):
        wrong.add(f"{section}.model_type", inner, f"the language model of {kind}")
        return _Reading(outer), ""
    data = {k: v for k, v in outer.items() if k not in _SECTIONS} | text
    data["model_type"] = inner or ("minimax_m3" if kind == "minimax_m3_vl" else f"{kind}_text")
    return _translated(data, wrong, f"{section}."), f"{section}."


def _translated(data: Config, wrong: Mistakes, inside: str) -> _Reading:
    """The section with the keys of most families."""
    try:
        found, names = translate(data)
    except _MALFORMED as error:
        key = str(error.args[0]) if isinstance(error, KeyError) else "model_type"
        wrong.add(inside + key, data.get(key), f"a value as models of this kind have it: {data.get('model_type')}")
        return _Reading(data)
    reading = _Reading(found)
    reading.names = names
    return reading


def _first(data: Config, *keys: str) -> Any:
    """The first of the keys that has a value other than 0."""
    return next((v for v in [data.get(k) for k in keys] if v), None)


def _whole(data: Config, *keys: str) -> int:
    found = _first(data, *keys)
    if type(found) is not int or found < 1:
        raise _MissingError(keys[0], data.get(keys[0]), "a whole number")
    return found


def _shape(data: Config, wrong: Mistakes, inside: str) -> Config:
    """The keys of `Architecture` that the language model's section states."""
    kind = data["model_type"]
    if kind == "nemotron_h":
        return _mixers(data, wrong, inside)
    if kind == "nemotron-nas":
        return _searched(data, wrong, inside)
    layers, heads = _whole(data, "num_hidden_layers"), _whole(data, "num_attention_heads")
    moe, width = _experts(data, layers, wrong, inside)
    mla = _latent(data, layers, wrong, inside)
    plain = kind in PLAIN_FEED_FORWARD
    for key in ("hidden_act", "hidden_activation"):
        allowed = ANY_ACTIVATION if plain else ACTIVATIONS.get(kind, _GATED)
        if (data.get(key) or allowed[0]) not in allowed:
            gated = "not gated" if plain else "gated"
            wrong.add(inside + key, data[key], f"{' or '.join(allowed)}, whose feed-forward is {gated}")
    tied = data.get("tie_word_embeddings")
    made: Config = {
        "layers": layers, "hidden": _whole(data, "hidden_size"), "heads": heads,
        "kv_heads": heads if mla else data.get("num_key_value_heads") or heads,
        "head_dim": (mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]) if mla
        else data.get("head_dim") or data["hidden_size"] // heads,
        "ffn": width, "ffn_matrices": 2 if plain else 3, "vocab": _whole(data, "vocab_size"),
        "tied_embeddings": bool(kind in TIED if tied is None else tied),
        "max_positions": _whole(data, "model_max_length", "max_position_embeddings"), "moe": moe, "mla": mla,
        "mtp_layers": _first(data, "num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers") or 0,
        "attention_gate": bool(data.get("attn_output_gate") or data.get("attention_output_gate")
                               or data.get("mla_use_output_gate") or data.get("gating") == "per-element"
                               or kind in ("qwen3_next", "afmoe")),
    }  # fmt: skip
    if kind in ("deepseek_v4", "deepseek_ref"):
        made |= _compressed(data, layers, wrong, inside)
        return made
    if kind in ("gpt2", "opt"):
        made["learned_positions"] = made["max_positions"] + (2 if kind == "opt" else 0)
        if data.get("word_embed_proj_dim") not in (None, made["hidden"]):
            wrong.add(inside + "word_embed_proj_dim", data["word_embed_proj_dim"], "the hidden size")
    if kind == "longcat_flash" and moe:
        moe |= {"layers": layers // 2, "dense_layers": 0}
        made["ffn_layers"] = layers
    if kind in _STATEFUL:
        return made | _stateful(data, layers, wrong, inside)
    kinds = _layer_kinds(data, layers, wrong, inside)
    made["linear"] = _linear(data, kinds)
    made["window"] = _window(data, kinds, made, wrong, inside)
    sparse = data.get("sparse_attention_config") or {}
    if sparse.get("use_sparse_attention"):
        having = [f for f in sparse["sparse_attention_freq"][:layers] if f]
        if len([f for f in (sparse.get("sparse_disable_index_value") or [])[:layers] if f]) != len(having):
            wrong.add(f"{inside}sparse_attention_config.sparse_disable_index_value", "0 in a sparse layer",
                      "1 wherever sparse_attention_freq is 1")  # fmt: skip
        made["sparse"] = {
            "layers": len(having), "heads": sparse["sparse_num_index_heads"], "head_dim": sparse["sparse_index_dim"],
            "topk": sparse["sparse_topk_blocks"] * sparse["sparse_block_size"],
        }  # fmt: skip
    if kind == "mimo_v2_flash":
        made["value_head_dim"] = _whole(data, "v_head_dim")
    return made


# --- which layers have what -------------------------------------------------------------------------------------------

_LAYER_KINDS = {
    "full_attention": "full", "sliding_attention": "window", "chunked_attention": "chunk",
    "linear_attention": "linear", "deepseek_sparse_attention": "full",
}  # fmt: skip


def _stateful(data: Config, layers: int, wrong: Mistakes, inside: str) -> Config:
    """Layers with attention and layers with a state of fixed size; Falcon-H1 has both in each."""
    kind, named, hidden = data["model_type"], data.get("layer_types"), data["hidden_size"]
    if named is None and kind == "jamba":
        every, offset = data.get("attn_layer_period") or 8, data.get("attn_layer_offset") or 0
        full = [i % every == offset for i in range(layers)]
    elif named is None:
        listed, types = _first(data, "attn_layer_indices", "full_attn_idxs"), data.get("attn_type_list")
        if listed is None and types is None and kind != "falcon_h1":
            raise _MissingError("layer_types", None, "the kind of every layer")
        full = [t == 1 for t in types] if types else [listed is None or i in listed for i in range(layers)]
    else:
        known = {"attention", "full_attention", "mamba", "conv", "linear_attention"}
        for other in sorted({*named} - known):
            wrong.add(inside + "layer_types", other, f"one of {', '.join(sorted(known))}: other layers are not read")
        full = [n in ("attention", "full_attention") for n in named]
    if len(full) != layers:
        wrong.add(inside + "layer_types", len(full), f"{layers} entries, as num_hidden_layers says")
        return {}
    attending, rest = sum(full), layers - sum(full)
    if kind == "falcon_h1":
        rest = layers
    if not rest:
        return {}
    state: Config = {"layers": rest}
    if kind == "jamba":
        rank = data.get("mamba_dt_rank")
        state |= {"kind": "mamba1", "key_heads": 1, "key_head_dim": _whole(data, "mamba_d_state"), "value_head_dim": 1,
                  "value_heads": (data.get("mamba_expand") or 2) * hidden, "conv_kernel": _whole(data, "mamba_d_conv"),
                  "rank": rank if type(rank) is int else -(-hidden // 16)}  # fmt: skip
    elif kind == "minimax":
        heads, dim = data["num_attention_heads"], data.get("head_dim") or hidden // data["num_attention_heads"]
        state |= {"kind": "lightning", "key_heads": heads, "key_head_dim": dim, "value_heads": heads,
                  "value_head_dim": dim}  # fmt: skip
    elif kind.startswith("lfm2"):
        state |= {"kind": "conv", "key_heads": 0, "key_head_dim": 0, "value_heads": 1, "value_head_dim": hidden,
                  "conv_kernel": _whole(data, "conv_L_cache")}  # fmt: skip
    else:
        state |= {"kind": "mamba2", "key_heads": _whole(data, "mamba_n_groups"),
                  "key_head_dim": _whole(data, "mamba_d_state"), "value_heads": _whole(data, "mamba_n_heads"),
                  "value_head_dim": _whole(data, "mamba_d_head"), "conv_kernel": _whole(data, "mamba_d_conv"),
                  "parallel": kind == "falcon_h1"}  # fmt: skip
    return {"linear": state, "attention_layers": attending}


def _layer_kinds(data: Config, layers: int, wrong: Mistakes, inside: str) -> list[str]:
    """full, window, chunk or linear: the attention of every layer."""
    kind, attention, named = data["model_type"], data.get("attn_type_list"), data.get("layer_types")
    if attention is not None and set(attention) != {1}:
        wrong.add(inside + "attn_type_list", attention, "1 in every layer: lightning attention is not read")
    if named is not None:
        known = {k for k, v in _LAYER_KINDS.items() if v != "linear" or kind in _HYBRID}
        for other in sorted({*named} - known):
            wrong.add(inside + "layer_types", other, f"one of {', '.join(sorted(known))}: other layers are not read")
        if len(named) != layers:
            wrong.add(inside + "layer_types", len(named), f"{layers} entries, as num_hidden_layers says")
        return [_LAYER_KINDS.get(k, "full") for k in named]
    if kind == "mimo_v2_flash":
        return ["window" if w else "full" for w in data["hybrid_layer_pattern"]]
    if kind == "llama4_text" and data.get("attention_chunk_size"):
        rotary = data.get("no_rope_layers")
        if not rotary:
            every = data.get("no_rope_layer_interval") or 4
            rotary = [int((i + 1) % every != 0) for i in range(layers)]
        return ["chunk" if r else "full" for r in rotary]
    if kind == "kimi_linear":
        full = set((data.get("linear_attn_config") or {}).get("full_attn_layers") or ())
        return ["full" if i + 1 in full else "linear" for i in range(layers)]
    if kind in _HYBRID:
        every = _whole(data, "full_attention_interval")
        return ["full" if (i + 1) % every == 0 else "linear" for i in range(layers)]
    if not data.get("sliding_window") or data.get("use_sliding_window") is False:
        data.get("sliding_window_pattern"), data.get("max_window_layers")
        return ["full"] * layers
    if data["sliding_window"] >= _whole(data, "max_position_embeddings"):
        return ["full"] * layers
    if kind in ("mistral", "starcoder2"):
        return ["window"] * layers
    if kind == "gemma2":
        return ["full" if i % 2 else "window" for i in range(layers)]
    pattern = data.get("sliding_window_pattern")
    if isinstance(pattern, str) and {*pattern} <= {"L", "G"}:
        return ["full" if pattern[i % len(pattern)] == "G" else "window" for i in range(layers)]
    if kind == "gemma3_text" or type(pattern) is int:
        every = pattern or 6
        return ["full" if (i + 1) % every == 0 else "window" for i in range(layers)]
    if kind.startswith("qwen") and type(data.get("max_window_layers")) is int:
        return ["window" if i >= data["max_window_layers"] else "full" for i in range(layers)]
    wrong.add(inside + "sliding_window", data["sliding_window"],
              "layer_types beside it, which say the layers that have the window")  # fmt: skip
    return ["full"] * layers


def _window(data: Config, kinds: list[str], made: Config, wrong: Mistakes, inside: str) -> Config | None:
    """Sliding and chunked windows, with the heads that their layers have in place of the others'."""
    windowed, chunked = kinds.count("window"), kinds.count("chunk")
    if windowed and chunked:
        wrong.add(inside + "layer_types", "sliding and chunked attention", "one kind of window")
    if chunked:
        return {"tokens": _whole(data, "attention_chunk_size"), "layers": chunked, "chunked": True}
    if not windowed:
        return None
    found: Config = {"tokens": _whole(data, "sliding_window", "sliding_window_size"), "layers": windowed}
    each = data.get("num_attention_heads_per_layer")
    if each:
        own, rest = ({n for n, k in zip(each, kinds, strict=True) if (k == "window") is w} for w in (True, False))
        if len(own) != 1 or len(rest) > 1:
            wrong.add(inside + "num_attention_heads_per_layer", each, "one number for the layers of each kind")
            return None
        found["heads"], found["kv_heads"] = own.pop(), made["kv_heads"]
        made["heads"] = rest.pop() if rest else made["heads"]
    if data["model_type"] == "gemma4_text":  # the configuration's heads are the window's, global_* the others'
        found |= {"kv_heads": made["kv_heads"], "head_dim": made["head_dim"]}
        made["head_dim"] = _whole(data, "global_head_dim", "head_dim")
        if data.get("attention_k_eq_v"):
            made |= {"kv_heads": _whole(data, "num_global_key_value_heads"), "value_projection": False}
    if data["model_type"] == "mimo_v2_flash":
        found |= {
            "heads": _whole(data, "swa_num_attention_heads", "num_attention_heads"),
            "kv_heads": _whole(data, "swa_num_key_value_heads"), "head_dim": _whole(data, "swa_head_dim"),
            "value_head_dim": _whole(data, "swa_v_head_dim"),
        }  # fmt: skip
    return found


def _linear(data: Config, kinds: list[str]) -> Config | None:
    layers = kinds.count("linear")
    if not layers:
        return None
    if data["model_type"] == "kimi_linear":
        own = data["linear_attn_config"]
        dim = {"key_head_dim": own["head_dim"], "value_head_dim": own["head_dim"]}
        return {"kind": "kda", "layers": layers, "key_heads": own["num_heads"], "value_heads": own["num_heads"], **dim,
                "conv_kernel": own.get("short_conv_kernel_size") or 0}  # fmt: skip
    return {
        "layers": layers, "key_heads": _whole(data, "linear_num_key_heads"),
        "value_heads": _whole(data, "linear_num_value_heads"), "key_head_dim": _whole(data, "linear_key_head_dim"),
        "value_head_dim": _whole(data, "linear_value_head_dim"), "conv_kernel": data.get("linear_conv_kernel_dim") or 0,
    }  # fmt: skip


def _experts(data: Config, layers: int, wrong: Mistakes, inside: str) -> tuple[Config | None, int]:
    """The mixture of experts, and the width of the plain feed-forward: an expert's where no layer has one."""
    kind, experts = data["model_type"], _first(data, *_EXPERTS)
    if experts is None or data.get("enable_moe_block", True) is False or (kind == "jamba" and experts == 1):
        if kind == "granitemoehybrid":  # whose plain feed-forward is the shared expert's
            data.get("intermediate_size"), data.get("num_experts_per_tok")
            return None, _whole(data, "shared_intermediate_size")
        return None, _whole(data, "intermediate_size")
    names = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    width = _whole(data, *(names[2:] if kind == "llama4_text" else names))
    plain = _first(data, "dense_intermediate_size", "intermediate_size_mlp") or data.get("intermediate_size") or width
    shared = _first(data, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
    shared_width = _first(data, "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
    if shared_width is None:
        shared_width = shared * (_first(data, "moe_shared_expert_intermediate_size") or width)
    if kind == "llama4_text":
        shared, shared_width = 1, width
    if kind == "gemma4_text":  # a plain feed-forward next to the experts of every layer
        shared, shared_width, plain = 1, data["intermediate_size"], width
    routed = _routed(data, layers, wrong, inside)
    found = {
        "experts": experts, "expert_ffn": width,
        "active": _whole(data, "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts",
                         "moe_k"),
        "shared_experts": max(shared, 1) if shared_width else 0, "shared_ffn": shared_width,
        "dense_layers": layers - sum(routed), "latent": data.get("moe_latent_size") or 0,
    }  # fmt: skip
    if (data.get("quantization_config") or {}).get("quant_method") == "mxfp4":
        found["expert_precision"] = "mxfp4"
    return found, plain


def _routed(data: Config, layers: int, wrong: Mistakes, inside: str) -> list[bool]:
    """Whether each layer has routed experts."""
    lists: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("mlp_layer_types", lambda v: v == "sparse"),
        ("moe_layer_freq", bool),
        ("is_moe_layer", bool),
    )
    for key, has in lists:
        named = data.get(key)
        if isinstance(named, list):
            [data.get(k) for k in ("first_k_dense_replace", "moe_layer_freq", "is_moe_layer")]
            if len(named) < layers:
                wrong.add(inside + key, len(named), f"{layers} entries, as num_hidden_layers says")
            return [has(v) for v in named[:layers]]
    if data["model_type"] == "jamba":
        every, offset = data.get("expert_layer_period") or 2, data.get("expert_layer_offset", 1)
        return [i % every == offset for i in range(layers)]
    if data.get("moe_layers"):
        return [i in data["moe_layers"] for i in range(layers)]
    if data.get("moe_layer_freq", 1) not in (1, None):
        wrong.add(inside + "moe_layer_freq", data["moe_layer_freq"], "1, or a list of the layers")
    step = _first(data, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    leading, only = _first(data, "first_k_dense_replace", "moe_layer_start_index") or 0, data.get("mlp_only_layers")
    last = data.get("moe_layer_end_index")
    end = layers if last in (None, -1) else last + 1
    return [leading <= i < end and (i + 1) % step == 0 and i not in (only or ()) for i in range(layers)]


def _latent(data: Config, layers: int, wrong: Mistakes, inside: str) -> Config | None:
    if not data.get("kv_lora_rank"):
        return None
    found = {k: _whole(data, k) for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    found["q_lora_rank"] = data.get("q_lora_rank") or 0
    data.get("head_dim"), data.get("num_key_value_heads"), data.get("layer_types")  # which state nothing of a latent
    if data.get("index_topk"):
        found |= {
            "index_heads": _whole(data, "index_n_heads"), "index_head_dim": _whole(data, "index_head_dim"),
            "index_topk": data["index_topk"],
        }  # fmt: skip
        types = data.get("indexer_types")
        if types is None and data.get("index_topk_freq", 1) != 1:
            wrong.add(inside + "index_topk_freq", data["index_topk_freq"], "indexer_types, which say the layers")
        if types is not None and "shared" in types[:layers]:
            found["index_layers"] = types[:layers].count("full")
    return found


def _compressed(data: Config, layers: int, wrong: Mistakes, inside: str) -> Config:
    """Attention of DeepSeek-V4: `compress_ratios` states the tokens of an entry of each layer, 0 for the window
    alone.
    """
    ratios = list(data.get("compress_ratios") or [])[:layers]
    data.get("qk_rope_head_dim")  # a part of head_dim
    groups = sorted({*ratios} - {0})
    if len(ratios) != layers or len(groups) != 2:
        wrong.add(inside + "compress_ratios", ratios, f"{layers} entries of two ratios, or 0")
        return {}
    return {
        "kv_heads": 1, "head_dim": _whole(data, "head_dim"), "residual_streams": data.get("hc_mult") or 1,
        "compressed": {
            "window": _whole(data, "sliding_window"), "q_lora_rank": _whole(data, "q_lora_rank"),
            "indexed_ratio": groups[0], "indexed_layers": ratios.count(groups[0]),
            "ratio": groups[1], "layers": ratios.count(groups[1]),
            "output_groups": _whole(data, "o_groups"), "output_rank": _whole(data, "o_lora_rank"),
            "index_heads": _whole(data, "index_n_heads"), "index_head_dim": _whole(data, "index_head_dim"),
            "index_topk": _whole(data, "index_topk"),
        },
    }  # fmt: skip


def _mixers(data: Config, wrong: Mistakes, inside: str) -> Config:
    """Nemotron-H: every layer is Mamba-2, attention, a plain feed-forward or a mixture of experts."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    named = data.get("layers_block_type") or [letters.get(c, c) for c in data.get("hybrid_override_pattern") or ""]
    for other in sorted({*named} - {*letters.values()}):
        wrong.add(inside + "hybrid_override_pattern", other, "M, *, - or E")
    if not named:
        raise _MissingError("hybrid_override_pattern", None, "the kind of every layer")
    if data.get("mlp_hidden_act", "relu2") != "relu2":
        wrong.add(inside + "mlp_hidden_act", data["mlp_hidden_act"], "relu2, whose feed-forward is not gated")
    count = {k: list(named).count(k) for k in letters.values()}
    made: Config = {
        "layers": len(named), "hidden": _whole(data, "hidden_size"), "heads": _whole(data, "num_attention_heads"),
        "kv_heads": _whole(data, "num_key_value_heads"), "head_dim": _whole(data, "head_dim", "attention_head_dim"),
        "attention_layers": count["attention"], "ffn": _whole(data, "intermediate_size"), "ffn_layers": count["mlp"],
        "ffn_matrices": 2, "vocab": _whole(data, "vocab_size"),
        "tied_embeddings": bool(data.get("tie_word_embeddings", False)),
        "max_positions": _whole(data, "max_position_embeddings"),
        "mtp_layers": data.get("num_nextn_predict_layers") or 0,
        "linear": {
            "kind": "mamba2", "layers": count["mamba"], "key_heads": _whole(data, "n_groups"),
            "value_heads": _whole(data, "mamba_num_heads"), "key_head_dim": _whole(data, "ssm_state_size"),
            "value_head_dim": _whole(data, "mamba_head_dim"), "conv_kernel": _whole(data, "conv_kernel"),
        },
    }  # fmt: skip
    if count["moe"]:
        made["moe"] = {
            "experts": _whole(data, "n_routed_experts"), "active": _whole(data, "num_experts_per_tok"),
            "expert_ffn": _whole(data, "moe_intermediate_size"), "shared_experts": data.get("n_shared_experts") or 0,
            "shared_ffn": data.get("moe_shared_expert_intermediate_size") or 0, "layers": count["moe"],
            "latent": data.get("moe_latent_size") or 0,
        }  # fmt: skip
    return made


def _searched(data: Config, wrong: Mistakes, inside: str) -> Config:
    """Llama-Nemotron: widths of the feed-forward differ, and some layers have no attention or no feed-forward."""
    blocks, hidden = data.get("block_configs") or [], _whole(data, "hidden_size")
    attention = [b["attention"] for b in blocks]
    feeds = [b["ffn"] for b in blocks]
    if data.get("hidden_act", "silu") != "silu":
        wrong.add(inside + "hidden_act", data["hidden_act"], "silu, whose feed-forward is gated")
    for i, (a, f) in enumerate(zip(attention, feeds, strict=True)):
        if a.get("replace_with_linear") or f.get("replace_with_linear") or a.get("window_length"):
            wrong.add(f"{inside}block_configs.{i}", "a linear layer or a window", "attention or none")
    groups = {a["n_heads_in_group"] for a in attention if not a.get("no_op")}
    if len(blocks) != _whole(data, "num_hidden_layers") or len(groups) != 1:
        wrong.add(inside + "block_configs", len(blocks), "an entry a layer, all with one number of heads in a group")
        return {}
    # DeciLM: two thirds of the multiple, rounded up to 256
    widths = [-(-int(2 * f["ffn_mult"] * hidden / 3) // 256) * 256 for f in feeds if not f.get("no_op")]
    heads = _whole(data, "num_attention_heads")
    return {
        "layers": len(blocks), "hidden": hidden, "heads": heads, "kv_heads": heads // groups.pop(),
        "head_dim": data.get("head_dim") or hidden // heads, "ffn": round(sum(widths) / len(widths)),
        "ffn_layers": len(widths), "attention_layers": sum(not a.get("no_op") for a in attention), "ffn_matrices": 3,
        "vocab": _whole(data, "vocab_size"), "tied_embeddings": bool(data.get("tie_word_embeddings", False)),
        "max_positions": _whole(data, "max_position_embeddings"),
    }  # fmt: skip


def _vision(v: Config | None, made: Config, data: Config) -> int:
    """Parameters of the vision tower: its layers, patches, positions, and the projection into the language model."""
    if not v:
        return 0
    kind, own = data["model_type"], str(v.get("model_type", ""))
    try:
        depth = _whole(v, "depth", "num_hidden_layers", "vt_num_hidden_layers")
        h = _whole(v, *(("embed_dim",) if kind == "qwen2_vl_text" else ()), "hidden_size", "vt_hidden_size")
        ratio = v.get("mlp_ratio")
        width = int(h * ratio) if ratio else _whole(v, "intermediate_size", "vt_intermediate_size")
        patch = _edge(v, "patch_size")
    except _MissingError as missing:
        raise _MissingError(f"vision_config.{missing.key}", missing.value, missing.expected) from None
    qwen, intern = kind == "qwen2_5_vl_text", own.startswith("intern")
    gated = 3 if qwen or own.startswith(("gemma4", "pixtral", "glm4v")) else 2
    merge = _first(v, "spatial_merge_size") or (round(1 / (data.get("downsample_ratio") or 0.5)) if intern else 2)
    merged, hidden = h * merge**2, made["hidden"]
    text = _first(v, "out_hidden_size", "projection_dim", "text_hidden_size") or hidden
    if own.startswith("glm4v"):  # its layers are as wide as its output; the merger has the width that it states
        projections, width = merged * text + text * text + 3 * text * width, text
    elif intern:
        projections = merged * hidden + hidden * hidden
    elif not qwen and kind != "qwen2_vl_text" and (gated == 3 or own.startswith(("siglip", "clip"))):
        projections = h * text
    else:
        projections = (1 + len(v.get("deepstack_visual_indexes") or ())) * (merged * merged + merged * text)
    positions = h * (_first(v, "num_position_embeddings", "position_embedding_size") or 0)
    if intern:
        positions = h * ((_edge(v, "image_size") // patch) ** 2 + 1)
    pixels = h * 3 * patch * patch * (_first(v, "temporal_patch_size") or 1)
    return int(depth * (4 * h * h + gated * h * width) + projections + positions + pixels)


def _edge(v: Config, key: str) -> int:
    """The length of a square's edge, which some write as a pair."""
    value = v.get(key)
    return _whole({key: value[0]} if isinstance(value, list) and len({*value}) == 1 else v, key)


# --- precision --------------------------------------------------------------------------------------------------------

_ALGORITHMS = {"FP8": "fp8", "NVFP4": "fp4", "MXFP4": "mxfp4", "MXFP8": "fp8", "FP8_PB_WO": "fp8_block",
               "FP8_BLOCK_SCALES": "fp8_block", "W4A16_AWQ": "int4", "INT4_AWQ": "int4"}  # fmt: skip
_SKIPPED = re.compile(
    r"norm|bias|lm_head|^head$|embed|router|mtp|visual|vision|projector|rotary|conv1d|\.gate(\W|$)|^gate$"
)


def _precision(outer: Config, made: Config, title: str, path: Path, wrong: Mistakes) -> tuple[str, list[Config]]:
    """Weight precision, and the parts that have another.

    It comes from `quantization_config`, of `hf_quant_config.json` next to it, or the checkpoint's name; 16
    bits without any.
    """
    q, beside = outer.get("quantization_config"), path.with_name("hf_quant_config.json")
    q = q or (outer.get("text_config") or {}).get("quantization_config")
    if not q and beside.is_file():
        q = {"quant_method": "modelopt"} | (read_document(beside)[0].get("quantization") or {})
    stated = precision_of(title)
    if not q:
        return stated or ("mxfp4" if outer.get("expert_dtype") == "fp4" else "fp16"), []
    method, algorithm = str(q.get("quant_method") or ""), str(q.get("quant_algo") or "").upper()
    bits = q.get("bits") or q.get("w_bit")
    block = bool(q.get("weight_block_size"))
    named = {
        part: _ALGORITHMS.get(str(v.get("quant_algo")).upper())
        for name, v in (q.get("quantized_layers") or {}).items() for part in _parts(name, made)
    }  # fmt: skip
    groups = {
        part: _group_precision(g.get("weights") or {})
        for g in (q.get("config_groups") or {}).values()
        for name in g.get("targets") or () for part in _parts(name, made)
    }  # fmt: skip
    own: dict[str, str | None]
    if algorithm == "MIXED_PRECISION":
        own = named | groups
        weights = _ALGORITHMS.get(str(q.get("moe_quant_algo") or "").upper())
        if weights is None:
            largest = next((p for p in ("experts", "dense") if p in own), "")
            weights = own.get("experts" if made.get("moe") else largest) or stated
        if method == "fp8":  # parts that the mixture does not name stay in the precision that it was published in
            own = dict.fromkeys(("attention", "linear", "dense", "shared"), "fp8_block" if block else "fp8")
    else:
        own = {}
        one: dict[str, Any] = next(iter((q.get("config_groups") or {}).values()), {})
        first = one.get("weights") or {}
        weights = {
            ("fp8", ""): "fp8_block" if block else "fp8", ("fbgemm_fp8", ""): "fp8", ("mxfp4", ""): "mxfp4",
            ("awq", ""): "int4" if bits == 4 else None, ("gptq", ""): "int4" if bits == 4 else None,
            ("compressed-tensors", ""): _group_precision(first),
        }.get((method, algorithm), _ALGORITHMS.get(algorithm))  # fmt: skip
    if weights is None or None in own.values():
        shown = {k: v for k, v in q.items() if not isinstance(v, list | dict)}
        wrong.add("quantization_config", shown, "FP8, NVFP4, MXFP4, or AWQ, GPTQ or integers of 4 bits, for every part")
        return "fp16", []
    kept = [{"part": part, "precision": p} for part, p in own.items() if p != weights and _has(part, made)]
    if weights != "mxfp4" or method == "compressed-tensors":
        kept += _ignored(q, made)
    return weights, kept


def _group_precision(weights: Config) -> str | None:
    """Weight precision of a group of compressed-tensors or ModelOpt."""
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if (bits, kind) == (8, "float"):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (bits, kind) == (4, "float"):
        return "mxfp4" if size == 32 else "fp4"
    return "int4" if (bits, kind) == (4, "int") else None


def _has(part: str, made: Config) -> bool:
    return {"linear": made.get("linear"), "shared": (made.get("moe") or {}).get("shared_ffn"),
            "experts": made.get("moe"), "dense": _dense_layers(made)}.get(part, True) not in (None, 0)  # fmt: skip


def _dense_layers(made: Config) -> int:
    if made.get("ffn_layers") is not None:
        return int(made["ffn_layers"])
    return int(made["moe"]["dense_layers"] if made.get("moe") else made["layers"])


def _parts(name: str, made: Config) -> list[str]:
    """The parts of the weights that a module's name means; none for norms, routers, embeddings and towers."""
    if _SKIPPED.search(name):
        return []
    if "shared_expert" in name:
        return ["shared"]
    if "experts" in name or "block_sparse_moe" in name:
        return ["experts"]
    if "linear_attn" in name or "mamba" in name:
        return ["linear"]
    if re.search(r"attn|attention", name):  # Kimi's linear layers have the same name
        return ["attention", "linear"] if (made.get("linear") or {}).get("kind") == "kda" else ["attention"]
    if "mlp" in name or "feed_forward" in name or "ffn" in name:
        index = _layer(name)
        moe = made.get("moe")
        if moe is None or (index is not None and index < moe.get("dense_layers", 0)):
            return ["dense"]
        return ["dense"] if index is None else ["shared"] if moe.get("shared_ffn") else []
    if _layer(name) is not None:  # a whole layer
        index, moe = _layer(name) or 0, made.get("moe")
        if moe is None or index < moe.get("dense_layers", 0):
            return ["attention", "dense"]
        return ["attention", "experts", *(["shared"] if moe["shared_ffn"] else [])]
    return []


def _layer(name: str) -> int | None:
    """The number of the layer in a module's name; None: all."""
    found = re.search(r"layers\.(\d+)", name)
    return int(found[1]) if found else None


def _ignored(q: Config, made: Config) -> list[Config]:
    """The parts that stay in 16 bits, with the number of layers where they do."""
    found: dict[str, set[int] | None] = {}
    for name in [*(q.get("ignore") or ()), *(q.get("modules_to_not_convert") or ()), *(q.get("exclude_modules") or ())]:
        if q.get("moe_quant_algo"):  # what stays in the published precision
            continue
        for part in _parts(str(name), made):
            index, seen = _layer(str(name)), found.setdefault(part, set())
            if index is None or seen is None:
                found[part] = None
            else:
                seen.add(index)
    return [
        {"part": part, "precision": "fp16"} | ({} if layers is None else {"layers": len(layers)})
        for part, layers in found.items() if _has(part, made)
    ]  # fmt: skip
