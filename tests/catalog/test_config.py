"""Architectures read from config.json: as the catalogue has them; what is not read is refused by its name."""

import json

import pytest

from optmodels import catalog
from optmodels.catalog.config import config_file, read_config
from optmodels.errors import InputError
from optmodels.latency.resolve import llm_name
from optmodels.latency.work import layer_work

# The keys of published config.json that say a shape, and a few that do not.
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 5120,
    "head_dim": 128, "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 64, "vocab_size": 151936, "max_position_embeddings": 40960, "max_window_layers": 64,
    "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False, "rope_theta": 1000000,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384, "num_attention_heads": 48,
    "num_key_value_heads": 8, "num_hidden_layers": 56, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "max_position_embeddings": 65536, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4,
    "experts_per_token": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip


def read(folder, config, name="some-model"):
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config))
    return read_config(config_file(str(folder / name)))


@pytest.mark.parametrize(("config", "key", "weights", "kv_bytes"), [
    (QWEN, "qwen3-32b", "fp16", 64 * 2 * 8 * 128 * 2), (MIXTRAL, "mixtral-8x22b", "fp16", 56 * 2 * 8 * 128 * 2),
    (DEEPSEEK, "deepseek-v3.2", "fp8_block", 61 * (512 + 64) * 2),
    (GPT_OSS, "gpt-oss-20b", "mxfp4", 24 * 2 * 8 * 64 * 2),
])  # fmt: skip
def test_a_config_has_the_shape_that_the_catalogue_has(tmp_path, config, key, weights, kv_bytes):
    found, precision = read(tmp_path, config)
    assert catalog.llms()[key].same_shape(found) and llm_name(found) == key and precision == weights
    work = layer_work(found, "fp16", "fp16")
    assert found.layers * (work.kv_bytes_per_token - work.index_bytes_per_token) == kv_bytes  # by hand


def test_a_fine_tune_with_other_layers_is_another_model(tmp_path):
    found, _ = read(tmp_path, QWEN | {"num_hidden_layers": 60})
    assert found.layers == 60 and llm_name(found) == "some-model"


@pytest.mark.parametrize(("changes", "path"), [
    ({"model_type": "nemotron_h"}, "model_type"), ({"vision_config": {"depth": 27}}, "vision_config"),
    ({"linear_num_key_heads": 16}, "linear_num_key_heads"), ({"attention_chunk_size": 8192}, "attention_chunk_size"),
    ({"hidden_size": None}, "hidden_size"), ({"hidden_act": "gelu"}, "hidden_act"),
    ({"sliding_window": 4096, "use_sliding_window": True}, "sliding_window"),
    ({"layer_types": ["linear_attention"] * 64}, "layer_types"),
    ({"layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "quantization_config"),
    ({"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2}, "decoder_sparse_step"),
])  # fmt: skip
def test_what_is_not_read_is_refused_by_its_name(tmp_path, changes, path):
    with pytest.raises(InputError) as error:
        read(tmp_path, QWEN | changes)
    assert path in {m.path for m in error.value.mistakes} and error.value.mistakes[0].file.endswith("config.json")


def test_a_quantised_folder_without_its_section_is_refused_and_modelopt_s_file_is_read(tmp_path):
    with pytest.raises(InputError, match="name says fp4"):
        read(tmp_path, QWEN, "Mine-32B-NVFP4")
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "Mine-32B-NVFP4" / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_config(tmp_path / "Mine-32B-NVFP4" / "config.json")[1] == "fp4"


def test_a_folder_of_the_local_cache_is_found(tmp_path):
    snapshot = tmp_path / "models--me--Mine-32B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN))
    found, _ = read_config(config_file(str(tmp_path / "models--me--Mine-32B")))
    assert found.title == "Mine-32B" and config_file(str(tmp_path)) is None and config_file("qwen3-32b") is None


def test_a_plan_of_a_config(cli, folder):
    (folder / "config.json").write_text(json.dumps(QWEN))
    said = cli("plan", "--model", "config.json", "--input", "1k", "--output", "300", "--rate", "20", "--tpot", "50ms",
               "--write", "mine.yaml")  # fmt: skip
    assert said.status == 0 and "optimal, proved" in said.out, said.err
    assert cli("solve", "mine.yaml").status == 0
