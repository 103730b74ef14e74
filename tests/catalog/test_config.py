"""Architectures read from config.json: as the catalogue has them; what is not read is refused by its name."""

import json

import pytest

from optmodels import catalog
from optmodels.catalog.config import config_file, read_config
from optmodels.catalog.files import gpu_file
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
    ({"model_type": "rwkv7"}, "model_type"), ({"vision_config": {"depth": 27}}, "vision_config"),
    ({"linear_num_key_heads": 16}, "linear_num_key_heads"), ({"attention_chunk_size": 8192}, "attention_chunk_size"),
    ({"model_type": ["qwen3"]}, "model_type"), ({"model_type": "mimo_v2_flash"}, "hybrid_layer_pattern"),
    ({"model_type": "qwen3_vl", "text_config": {"model_type": {}}}, "text_config.model_type"),
    ({"layer_types": 5}, "layer_types"), ({"quantization_config": ["fp8"]}, "quantization_config"),
    ({"hidden_size": None}, "hidden_size"), ({"hidden_act": "gelu"}, "hidden_act"),
    ({"model_type": "llama", "sliding_window": 4096, "use_sliding_window": True}, "sliding_window"),
    ({"model_type": "qwen3_5"}, "text_config"), ({"model_type": "nemotron_h"}, "hybrid_override_pattern"),
    ({"audio_config": {"hidden_size": 8}}, "audio_config"), ({"num_kv_shared_layers": 20}, "num_kv_shared_layers"),
    ({"layer_types": ["linear_attention"] * 64}, "layer_types"),
    ({"layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "quantization_config"),
    ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": 3}, "moe_layer_freq"),
    ({"model_type": "mamba2"}, "model_type"), ({"model_type": "lfm2", "conv_L_cache": 3}, "layer_types"),
    ({"model_type": "gpt2", "n_embd": None, "hidden_size": None}, "n_embd"), ({"model_type": "dbrx"}, "kv_n_heads"),
    ({"model_type": "bamba", "layer_types": ["rwkv"] * 64}, "layer_types"),
    ({"model_type": "internvl_chat", "llm_config": {"model_type": "rwkv7"}}, "llm_config.model_type"),
    ({"model_type": "hunyuan_v1_moe", "cla_share_factor": 2, "use_cla": True}, "use_cla"),
])  # fmt: skip
def test_what_is_not_read_is_refused_by_its_name(tmp_path, changes, path):
    with pytest.raises(InputError) as error:
        read(tmp_path, QWEN | changes)
    assert path in {m.path for m in error.value.mistakes} and error.value.mistakes[0].file.endswith("config.json")


def test_without_a_section_the_file_of_modelopt_or_the_name_says_the_precision(tmp_path):
    assert read(tmp_path, QWEN, "Mine-32B-NVFP4")[1] == "fp4"
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "Mine-32B-NVFP4" / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_config(tmp_path / "Mine-32B-NVFP4" / "config.json")[1] == "fp8"


def test_a_folder_of_the_local_cache_is_found(tmp_path):
    snapshot = tmp_path / "models--me--Mine-32B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN))
    found, _ = read_config(config_file(str(tmp_path / "models--me--Mine-32B")))
    assert found.title == "Mine-32B" and config_file(str(tmp_path)) is None and config_file("qwen3-32b") is None
    (snapshot.parent / "def").mkdir()  # a later revision, which the cache's default does not name
    (snapshot.parent / "def" / "config.json").write_text(json.dumps(QWEN | {"num_hidden_layers": 60}))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    assert config_file(str(snapshot.parents[1])) == snapshot / "config.json"


def test_a_file_or_folder_without_a_config_is_named(cli, folder):
    ask = ("--input", "1k", "--output", "300", "--rate", "20")
    (folder / "empty").mkdir()
    for name, expected in (("gone.json", "a checkpoint's config.json"), ("empty", "which this one has not")):
        said = cli("plan", "--model", name, *ask)
        assert said.status == 2 and name in said.err and expected in said.err


def test_a_plan_of_a_config(cli, folder):
    (folder / "config.json").write_text(json.dumps(QWEN))
    said = cli("plan", "--model", "config.json", "--input", "1k", "--output", "300", "--rate", "20", "--tpot", "50ms",
               "--write", "mine.yaml")  # fmt: skip
    assert said.status == 0 and "optimal, proved" in said.out, said.err
    assert cli("solve", "mine.yaml").status == 0


def test_an_instance_has_a_model_by_its_configuration(cli, folder):
    fp8 = QWEN | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (folder / "config.json").write_text(json.dumps(fp8))
    written = """
        formulation: fleet
        schema: 1
        workloads:
        - {name: chat, model: %s, buckets: [{input_tokens: 1000, output_tokens: 300, requests_per_s: 20}], slo: {tpot_s: 50 ms}}
        pool: {catalog: aws}
        markets: {main: [on_demand]}
        strategies: {families: [high_end]}
        serving: continuous
        latency: {engine: vllm}
    """  # noqa: E501 - one line of YAML
    plans = []
    for name, model in (("a", "{config: config.json}"), ("b", "./config.json")):
        (folder / f"{name}.yaml").write_text(written % model)
        said = cli("solve", f"{name}.yaml", "--json")
        assert said.status == 0, said.err
        plans.append(json.loads(said.out)["plan"] | {"name": ""})
    assert plans[0] == plans[1] and plans[0]["usd_per_hour"] > 0
    (folder / "d.yaml").write_text(written % "{config: gone.json}")
    said = cli("solve", "d.yaml")
    assert said.status == 2 and "gone.json" in said.err


GPU = """
title: mine
fp16_flops: 9.9e14
fp8_flops: 1.98e15
mem_bytes_per_s: 4.0e12
vram_gib: 100
link_bytes_per_s: 4.5e11
"""


def test_a_gpu_by_its_file_in_plan_and_simulate(cli, folder):
    (folder / "config.json").write_text(json.dumps(QWEN))
    (folder / "mine.yaml").write_text(GPU)
    ask = ("plan", "--model", "config.json", "--gpu", "mine.yaml", "--input", "1k", "--output", "300", "--rate", "20",
           "--tpot", "50ms")  # fmt: skip
    said = cli(*ask)
    assert said.status == 2 and "usd_per_hour" in said.err
    (folder / "mine.yaml").write_text(GPU + "usd_per_hour: 3.0\n")
    said = cli(*ask, "--write", "plan.yaml")
    assert said.status == 0 and "MINE" in said.out, said.err
    assert cli("solve", "plan.yaml").status == 0
    said = cli("simulate", "--trace", "poisson:1:1000:100:20", "--gpu", "mine.yaml", "--model", "config.json", "--json")
    found = json.loads(said.out)
    assert found["deployment"]["gpu"] == "mine" and found["deployment"]["llm"] == "qwen3-32b"
    assert cli("simulate", "--trace", "poisson:1:1000:100:20", "--gpu", "mine", "--model", "qwen3-32b").status == 2


def test_a_file_may_price_a_gpu_of_the_catalogue(tmp_path):
    path = tmp_path / "rented.yaml"
    path.write_text("gpu: AMD Instinct MI300X\nusd_per_hour: 2.0\n")
    key, gpu = gpu_file(str(path))
    assert (key, gpu.usd_per_hour, gpu.fp16_flops) == ("mi300x", 2.0, catalog.gpus()["mi300x"].fp16_flops)
    path.write_text("gpu: mi300x\nusd_per_hour: 2.0\nvram_gib: 128\ndriver_gib: 127.5\n")
    key, gpu = gpu_file(str(path))
    assert (key, gpu.usable_gib) == ("rented", 127.5)
    path.write_text("gpu: mi999\nusd_per_hour: 2.0\n")
    with pytest.raises(InputError, match="mi999"):
        gpu_file(str(path))


def test_an_amd_gpu_is_planned_on_a_cloud_that_has_it_or_at_a_price(cli, folder):
    ask = ("plan", "--model", "llama-3.1-70b", "--input", "1k", "--output", "300", "--rate", "2", "--tpot", "80ms")
    said = cli(*ask, "--gpu", "mi300x", "--cloud", "azure", "--region", "eastus2")
    assert said.status == 0 and "Standard_ND96isr_MI300X_v5" in said.out, said.err
    (folder / "rented.yaml").write_text("gpu: mi355x\nusd_per_hour: 4.0\n")
    said = cli(*ask, "--gpu", "rented.yaml")
    assert said.status == 0 and "MI355X" in said.out and "4.00 USD/h" in said.out, said.err
    said = cli(*ask, "--gpu", "mi355x")
    assert said.status == 2 and "usd_per_hour and gpu: NAME" in said.err
