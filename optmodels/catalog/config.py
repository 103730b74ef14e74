"""LLMs by the `config.json` of a Hugging Face checkpoint: a file, or a folder such as one of the local cache.

A key that is not read and may change the shape is refused by its name: nothing is guessed. Read are dense and
mixture-of-experts models with grouped-query or latent attention, the indexer of sparse attention, and sliding windows
of gpt-oss. Refused are vision towers, linear attention, chunked windows and every architecture that is not in `_KINDS`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from optmodels.catalog.spelling import precision_of
from optmodels.catalog.types import Architecture
from optmodels.errors import InputError, Mistakes
from optmodels.io.read import read_document, validate

_KINDS = {
    "llama", "mistral", "qwen2", "qwen3", "mimo", "mixtral", "qwen3_moe", "minimax_m2", "glm4_moe", "deepseek_v2",
    "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "gpt_oss",
}  # fmt: skip
_SHAPE = {
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings", "tie_word_embeddings", "hidden_act", "num_experts", "num_local_experts",
    "n_routed_experts", "num_experts_per_tok", "experts_per_token", "moe_intermediate_size", "n_shared_experts",
    "shared_intermediate_size", "first_k_dense_replace", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "index_n_heads", "index_head_dim", "index_topk", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "decoder_sparse_step", "moe_layer_freq",
    "mlp_only_layers", "attn_type_list", "quantization_config", "model_type",
}  # fmt: skip
# Keys that do not change what a forward pass reads or multiplies. Layers of multi-token prediction are not loaded
# unless the engine speculates, biases and norms are below 0.1 % of the weights.
_OTHER = {
    "architectures", "attention_bias", "attention_dropout", "auto_map", "aux_loss_alpha", "bos_token_id", "dtype",
    "eos_token_id", "ep_size", "indexer_rope_interleave", "initial_context_length", "initializer_range", "mlp_bias",
    "mtp_transformer_layers", "n_group", "norm_topk_prob", "num_mtp_modules", "num_nextn_predict_layers",
    "output_router_logits", "pad_token_id", "partial_rotary_factor", "pretraining_tp", "qk_norm_type", "rms_norm_eps",
    "rope_interleave", "rope_parameters", "rope_scaling", "rope_theta", "rotary_dim", "routed_scaling_factor",
    "router_aux_loss_coef", "scoring_func", "seq_aux", "swiglu_limit", "topk_group", "topk_method", "torch_dtype",
    "transformers_version", "use_cache", "use_mrope", "use_mtp", "use_qk_norm", "use_routing_bias", "_name_or_path",
    "bos_token", "eos_token", "unsloth_fixed", "unsloth_version",
}  # fmt: skip


def config_file(name: str) -> Path | None:
    """The `config.json` that a name means: the file, or that of a folder, also of one in the local cache."""
    path = Path(name).expanduser()
    if path.suffix == ".json":
        return path
    try:
        if not path.is_dir():
            return None
    except (OSError, ValueError):
        return None
    found = [path / "config.json", *sorted(path.glob("snapshots/*/config.json"))]
    return next((f for f in reversed(found) if f.is_file()), None)


def read_config(path: Path) -> tuple[Architecture, str]:
    """The architecture and the weight precision that a `config.json` states.

    Raises:
        InputError: no such file, an architecture or a key that is not read, or a key that is missing.
    """
    data, line = read_document(path)
    wrong = Mistakes()
    kind = data.get("model_type")
    if kind not in _KINDS:
        wrong.add("model_type", kind, f"one of {', '.join(sorted(_KINDS))}: the shape of others is not read")
        _raise(wrong, path, line)
    for key, value in data.items():
        if key not in _SHAPE | _OTHER and value not in (None, False, 0, [], {}):
            wrong.add(key, value, "no such key: it may change the shape, and is not read")
    needed = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings",
              "intermediate_size"]  # fmt: skip
    for key in needed:
        if not isinstance(data.get(key), int):
            wrong.add(key, data.get(key), "a whole number")
    weights = _precision(data, path, wrong)
    _raise(wrong, path, line)
    layers, heads = data["num_hidden_layers"], data["num_attention_heads"]
    moe, mla = _experts(data, layers, wrong), _latent(data)
    made = {
        "title": _title(data, path), "layers": layers, "hidden": data["hidden_size"], "heads": heads,
        "kv_heads": heads if mla else data.get("num_key_value_heads") or heads,
        "head_dim": (mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]) if mla
        else data.get("head_dim") or data["hidden_size"] // heads,
        "ffn": data["intermediate_size"], "ffn_matrices": 3, "vocab": data["vocab_size"],
        "tied_embeddings": bool(data.get("tie_word_embeddings", False)),
        "max_positions": data["max_position_embeddings"], "moe": moe, "mla": mla,
        "window": _window(data, layers, wrong), "source": f"{path.name} of {_title(data, path)}",
    }  # fmt: skip
    if data.get("hidden_act", "silu") != "silu":
        wrong.add("hidden_act", data["hidden_act"], "silu, whose feed-forward is gated")
    _raise(wrong, path, line)
    return validate(Architecture, made, str(path)), weights


def _raise(wrong: Mistakes, path: Path, line: Any) -> None:
    if wrong:
        raise InputError(replace(m, file=str(path), line=line((m.path,))) for m in wrong)


def _title(data: dict[str, Any], path: Path) -> str:
    """A name for people: that of the checkpoint's folder."""
    folder = path.resolve().parent
    for part in (folder.name, *(p.name for p in folder.parents)):
        if part.startswith("models--"):
            return part.removeprefix("models--").rpartition("--")[2]
    return path.stem if path.stem != "config" else folder.name or str(data["model_type"])


def _experts(data: dict[str, Any], layers: int, wrong: Mistakes) -> dict[str, Any] | None:
    experts = next((data[k] for k in ("n_routed_experts", "num_experts", "num_local_experts") if data.get(k)), None)
    if experts is None:
        return None
    for key, usual in (("decoder_sparse_step", 1), ("moe_layer_freq", 1), ("mlp_only_layers", [])):
        if data.get(key, usual) not in (usual, None):
            wrong.add(key, data[key], f"{usual}: experts in every layer but the leading ones")
    active = data.get("num_experts_per_tok") or data.get("experts_per_token")
    width = data.get("moe_intermediate_size") or data["intermediate_size"]
    shared = data.get("n_shared_experts") or 0
    found = {
        "experts": experts, "active": active, "expert_ffn": width, "shared_experts": shared,
        "shared_ffn": shared * width or data.get("shared_intermediate_size") or 0,
        "dense_layers": data.get("first_k_dense_replace") or 0,
    }  # fmt: skip
    if (data.get("quantization_config") or {}).get("quant_method") == "mxfp4":
        found["expert_precision"] = "mxfp4"
    return found


def _latent(data: dict[str, Any]) -> dict[str, Any] | None:
    if not data.get("kv_lora_rank"):
        return None
    found = {k: data[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    found["q_lora_rank"] = data.get("q_lora_rank") or 0
    if data.get("index_topk"):
        found |= {
            "index_heads": data["index_n_heads"], "index_head_dim": data["index_head_dim"],
            "index_topk": data["index_topk"],
        }  # fmt: skip
    return found


def _window(data: dict[str, Any], layers: int, wrong: Mistakes) -> dict[str, int] | None:
    kinds = data.get("layer_types")
    if kinds is not None:
        for other in sorted({*kinds} - {"full_attention", "sliding_attention"}):
            wrong.add("layer_types", other, "full_attention or sliding_attention: other layers are not read")
        if len(kinds) != layers:
            wrong.add("layer_types", len(kinds), f"{layers} entries, as num_hidden_layers says")
    attention = data.get("attn_type_list")
    if attention is not None and set(attention) != {1}:
        wrong.add("attn_type_list", attention, "1 in every layer: linear attention is not read")
    tokens = data.get("sliding_window")
    if not tokens or data.get("use_sliding_window") is False:
        return None
    if kinds is None and data["model_type"] != "mistral":
        wrong.add("sliding_window", tokens, "layer_types beside it, which say the layers that have the window")
        return None
    windowed = layers if kinds is None else list(kinds).count("sliding_attention")
    return {"tokens": tokens, "layers": windowed} if windowed else None


def _precision(data: dict[str, Any], path: Path, wrong: Mistakes) -> str:
    """Weight precision of `quantization_config`, or of `hf_quant_config.json` beside; 16 bits without either.

    A checkpoint whose name states another precision is refused where neither says so.
    """
    q, beside = data.get("quantization_config"), path.with_name("hf_quant_config.json")
    if not q and beside.is_file():
        q = {"quant_method": "modelopt"} | (read_document(beside)[0].get("quantization") or {})
    if not q:
        stated = precision_of(_title(data, path))
        if stated not in (None, "fp16"):
            expected = f"the section, or hf_quant_config.json beside: the checkpoint's name says {stated}"
            wrong.add("quantization_config", None, expected)
        return "fp16"
    method, algorithm = str(q.get("quant_method") or ""), str(q.get("quant_algo") or "")
    bits = q.get("bits") or q.get("w_bit")
    match method, algorithm.upper():
        case "fp8", "":
            return "fp8_block" if q.get("weight_block_size") else "fp8"
        case _, "FP8":
            return "fp8"
        case _, "NVFP4":
            return "fp4"
        case "mxfp4", "":
            return "mxfp4"
        case (("awq" | "gptq"), "") if bits == 4:
            return "int4"
    wrong.add("quantization_config", q, "fp8, NVFP4, mxfp4, or AWQ or GPTQ of 4 bits")
    return "fp16"
