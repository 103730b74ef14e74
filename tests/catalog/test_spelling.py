"""Names that others give to LLMs of the catalogue."""

import pytest

from optmodels import catalog
from optmodels.catalog.spelling import llm_of, precision_of, unknown_gpu
from optmodels.errors import InputError
from optmodels.latency.engines.document import deployment


@pytest.mark.parametrize(
    ("name", "key", "precision"),
    [
        ("QWEN3_32B", "qwen3-32b", None), ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8"),
        ("qwen3:32b", "qwen3-32b", None), ("/models/Qwen3 32B/", "qwen3-32b", None),
        ("DeepSeek-R1-0528", "deepseek-r1", None), ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-r1", "fp4"),
        ("deepseek_ai/deepseek_v3_0324", "deepseek-v3", None), ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3", None),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b", "fp8"),
        ("Llama3.1-8B", "llama-3.1-8b", None), ("LLAMA_3_1_8B", "llama-3.1-8b", None),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "llama-3.1-405b", "fp8"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "int4"), ("gpt_oss_120b", "gpt-oss-120b", None),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b", None), ("Qwen3 32B (FP8)", "qwen3-32b", "fp8"),
        ("~/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9216db5781bf21249d", "qwen3-32b", None),
        ("https://huggingface.co/Qwen/Qwen3-32B-FP8/tree/main", "qwen3-32b", "fp8"),
        # other models, or weights of no precision that is known here
        ("DeepSeek-R1-Distill-Llama-70B", None, None), ("DeepSeek-R1-0101", None, None), ("Llama-3-18B", None, None),
        ("Qwen3-32B-Instruct-2507", None, None), ("Qwen3-VL-33B", None, None), ("qwen3-3b", None, None),
        ("moonshotai/Kimi-K2-Thinking", None, None), ("Qwen/Qwen3-8B-Base", None, None),
        ("Qwen2.5-7B-GPTQ-Int8", None, None), ("DeepSeek-R1-0528-Qwen3-8B", None, None), ("", None, None),
    ],
)  # fmt: skip
def test_who_is_meant(name, key, precision):
    assert llm_of(name) == key
    assert key is None or precision_of(name) == precision


def test_every_model_is_known_by_key_and_weights_and_no_two_are_one():
    for key, llm in catalog.llms().items():
        assert {llm_of(n) for n in (key, key.upper(), key.replace("-", "_"), llm.checkpoint)} == {key}
    assert set(catalog.same_shape()) <= set(catalog.llms())


def test_an_unknown_name_is_refused_with_the_nearest():
    assert deployment("vllm", "h100", "QWEN3_32B").llm_name == "qwen3-32b"
    with pytest.raises(InputError) as error:
        deployment("vllm", "h100", "Qwen/Qwen3-33B")
    (mistake,) = error.value.mistakes
    assert mistake.path == "--model" and mistake.hint.startswith("did you mean qwen3-32b or ")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("p5.48xlarge", "p5.48xlarge is a machine with 8 h100"), ("A3-HighGPU-8g", "a machine with 8 h100"),
        ("8xH100", "a type without a number: h100"), ("8 x NVIDIA L4", "a type without a number: l4"),
        ("H200:8", "a type without a number: h200"), ("2x A100", None),
    ],
)  # fmt: skip
def test_machines_and_numbers_of_gpus_are_no_gpu(name, hint):
    found = unknown_gpu("--gpu", name).hint
    assert hint in found if hint else "without a number" not in (found or "")
