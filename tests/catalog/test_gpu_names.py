"""GPUs, clouds, markets, precisions, engines and regions by the names that tools and people give them."""

import pytest

import optmodels
from optmodels import catalog
from optmodels.catalog import spelling
from optmodels.errors import InputError
from optmodels.loading import load

GPUS = {
    "h100": ["H100", "NVIDIA H100 80GB HBM3", "H100 SXM5", "h100_sxm", "nvidia-h100-80gb", "H100-80GB-HBM3",
             "nvidia-h100-mega-80gb", "NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB",
             "h100sxm", "HGX H100", "DGX H100"],
    "h100-pcie": ["H100 PCIe", "NVIDIA H100 PCIe", "h100-pcie-80gb"],
    "h100-nvl": ["NVIDIA H100 NVL", "H100_NVL", "H100 NVL 94GB"],
    "h200": ["H200", "NVIDIA H200", "nvidia-h200-141gb", "H200 SXM"],
    "b200": ["B200", "NVIDIA B200", "NVIDIA B200 192GB", "b200_sxm"],
    "gb200": ["GB200", "GB200 NVL72", "NVIDIA GB200"],
    "a100-80g": ["A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100 80GB", "nvidia-a100-80gb", "a100-80gb-sxm"],
    "a100-80g-pcie": ["NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"],
    "a100-40g": ["NVIDIA A100-SXM4-40GB", "A100-40GB"],
    "a100-40g-pcie": ["NVIDIA-A100-PCIE-40GB"],
    "t4": ["Tesla T4", "nvidia-tesla-t4", "NVIDIA T4"], "l4": ["NVIDIA L4", "nvidia-l4", "L4 24GB"],
    "l40s": ["NVIDIA L40S", "L40S"], "a10g": ["NVIDIA A10G", "A10G"], "a10": ["NVIDIA A10"],
    "gh200-96g": ["NVIDIA GH200 480GB", "GH200-96GB"], "gh200-144g": ["NVIDIA GH200 144G HBM3e"],
    "rtx-pro-6000": ["NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX_PRO_6000", "RTXPRO6000"],
    "mi300x": ["AMD Instinct MI300X", "MI300X OAM"], "gaudi3": ["Gaudi 3", "Intel Gaudi3"], "trainium2": ["trn2"],
    "tpu-v5e": ["TPU v5e", "v5e", "tpu-v5-lite-podslice"], "b300": ["NVIDIA B300 SXM6 AC"],
}  # fmt: skip
UNKNOWN = [
    "A100", "A100_SXM", "GH200", "RTX 6000 Ada", "H20", "H800", "L40", "H200 NVL", "NVIDIA A100-SXM-64GB", "H10",
    "Tesla V100-SXM2-16GB", "RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX 4090", "A800", "MI300A", "",
]  # fmt: skip


def test_gpus_by_their_names():
    assert {n: spelling.gpu(n) for names in GPUS.values() for n in names} == {
        n: key for key, names in GPUS.items() for n in names
    }
    for key in catalog.gpus():
        assert {spelling.gpu(n) for n in (key, key.upper(), key.replace("-", "_"), key.replace("-", " "))} == {key}


@pytest.mark.parametrize("name", UNKNOWN)
def test_ambiguous_and_other_gpus_are_asked_about(name):
    assert spelling.gpu(name) == name
    hint = spelling.unknown_gpu("--gpu", name).hint
    if name == "A100":
        assert hint == "several are called so: a100-40g, a100-40g-pcie, a100-80g, a100-80g-pcie"
    assert (hint or "").count(",") <= 3


@pytest.mark.parametrize(("read", "names"), [
    (spelling.cloud, {"AWS": "aws", "Google Cloud": "gcp", "GCP": "gcp", "Azure": "azure", "oracle": "oracle"}),
    (spelling.market, {"on-demand": "on_demand", "1-year": "reserved_1y", "Spot": "spot",
    "Reserved 1y": "reserved_1y", "later": "later"}),
    (spelling.engine, {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trtllm", "TGI": "TGI"}),
    (spelling.region, {"US-East-1": "us-east-1", "us_central1": "us-central1", "EastUS": "eastus", "Mars": "Mars"}),
    (spelling.precision, {
        "bf16": "fp16", "bfloat16": "fp16", "float16": "fp16", "FP8": "fp8", "fp8_e4m3": "fp8", "w4a16": "int4",
        "AWQ": "int4", "gptq": "int4", "NVFP4": "fp4", "int8": "int8", "w8a8": "w8a8", "fp9": "fp9",
        "torch.bfloat16": "fp16",
        "awq_marlin": "int4", "modelopt_fp4": "fp4",
    }),
    (spelling.kv_precision, {"auto": "fp16", "bf16": "fp16", "fp8_e5m2": "fp8", "FP8": "fp8", "int2": "int2"}),
])  # fmt: skip
def test_other_names(read, names):
    assert {n: read(n) for n in names} == names


def _fleet(**of_workload):
    return {
        "formulation": "fleet", "schema": 1, "name": "mine",
        "workloads": [{
            "name": "w", "model": "Llama 3.3 70B", "slo": {"ttft_s": "800 ms"},
            "buckets": [{"input_tokens": "1k", "output_tokens": 300, "requests_per_s": "60/min"}], **of_workload,
        }],
        "pool": {"catalog": "AWS", "include": ["p5.48xlarge"]}, "markets": {"main": ["on-demand"]},
        "quota": [{"gpu": "NVIDIA H100 80GB HBM3", "unit": "gpus", "at_most": 24}], "serving": "continuous",
        "latency": {"engine": "vLLM"},
    }  # fmt: skip


def test_a_file_says_the_same_in_either_spelling():
    theirs = load(_fleet(model="RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"))
    ours = _fleet(model="llama-3.3-70b", precision={"weights": "fp8"})
    ours["workloads"][0]["slo"] = {"ttft_s": 0.8}
    ours["workloads"][0]["buckets"][0] |= {"input_tokens": 1000, "requests_per_s": 1.0}
    ours |= {"pool": {"catalog": "aws", "include": ["p5.48xlarge"]}, "markets": {"main": ["on_demand"]}}
    ours |= {"quota": [{"gpu": "h100", "unit": "gpus", "at_most": 24}], "latency": {"engine": "vllm"}}
    ours = load(ours)
    (w,) = theirs.workloads
    assert w.model.checkpoint == "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"  # which exports start
    assert w.model_copy(update={"model": "llama-3.3-70b"}) == ours.workloads[0]
    assert theirs.model_dump(exclude={"workloads"}) == ours.model_dump(exclude={"workloads"})


def test_a_file_that_contradicts_the_name_is_refused():
    with pytest.raises(InputError, match="states, fp8"):
        load(_fleet(model="Qwen/Qwen3-32B-FP8", precision={"weights": "int4"}))


def test_a_gpu_of_the_file_s_own_keeps_its_name():
    mine = _fleet()
    mine["gpus"] = {"H100": catalog.gpus()["h100"].model_dump()}
    machine = {"machine": "box", "gpu": "H100", "gpu_count": 8, "vram_gib": 640, "prices": {"on_demand": 50}}
    mine["pool"] = {"machines": [machine]}
    mine["quota"] = [{"gpu": "H100", "unit": "gpus", "at_most": 24}]
    assert set(load(mine).resolve().gpus) == {"H100"}
    mine.pop("gpus")
    assert set(load(mine).resolve().gpus) == {"h100"}


def test_a_deployment_is_simulated_by_any_name():
    found = optmodels.simulate(
        "Qwen/Qwen3-32B-FP8", "NVIDIA H100 80GB HBM3", "poisson:1:100:20:20", engine="vLLM", tp=2
    )["deployment"]
    assert (found["llm"], found["gpu"], found["precision"], found["engine"]) == ("qwen3-32b", "h100", "fp8", "vllm")
