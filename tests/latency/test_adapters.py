"""LoRA adapters: memory by hand, their place in plans, and vLLM's flags."""

from typing import Any

import pytest

from optmodels import catalog
from optmodels.api.export import export
from optmodels.errors import InputError
from optmodels.latency.adapters import Lora, adapter_bytes, is_known
from optmodels.loading import load
from optmodels.units import GIB

LLAMA = catalog.llms()["llama-3.1-8b"]


def test_memory_by_hand():
    # 32 layers: queries and output 4096 x 4096, keys and values 4096 x 1024, three matrices of 4096 x 14336.
    each = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)) * 16
    assert each == 41_943_040  # what PEFT counts for all linear layers at rank 16
    assert adapter_bytes(Lora(max_loras=4), LLAMA, 1) == 4 * 2 * each
    # Of two GPUs A of queries, keys, values, gate and up is whole, and so is B of output and down.
    half = 32 * (4 * 4096 + (4096 + 2 * 1024 + 4096) / 2 + 3 * (4096 + 14336 / 2)) * 16
    assert adapter_bytes(Lora(max_loras=1), LLAMA, 2) == 2 * half
    assert adapter_bytes(Lora(max_loras=3, gib_each=0.5), LLAMA, 2) == 0.75 * GIB
    assert adapter_bytes(None, LLAMA, 1) == adapter_bytes(Lora(max_loras=0), LLAMA, 1) == 0.0


def test_only_dense_layers_count_next_to_experts():
    mixed = catalog.llms()["qwen3-235b-a22b"]
    assert is_known(mixed) and mixed.moe is not None
    without = mixed.model_copy(update={"moe": None, "ffn_layers": 0})
    assert adapter_bytes(Lora(max_loras=1), mixed, 1) == adapter_bytes(Lora(max_loras=1), without, 1)


def instance(lora: dict[str, Any] | None, model: str = "llama-3.1-8b", **changes: Any) -> dict[str, Any]:
    return {
        "formulation": "fleet", "schema": 1, "name": "adapters", "serving": "continuous",
        "latency": {"model": "default", "engine": "vllm"}, **({} if lora is None else {"engine": {"lora": lora}}),
        "workloads": [{
            "name": "chat", "model": model, "slo": {"tpot_s": 0.05},
            "buckets": [{"input_tokens": 500, "output_tokens": 200, "requests_per_s": 2.0}],
        }],
        "pool": {"machines": [
            {"machine": "a", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "prices": {"on_demand": 1.0}}
        ]},
        "markets": {"main": ["on_demand"]}, **changes,
    }  # fmt: skip


def solved(lora: dict[str, Any] | None) -> Any:
    from optmodels import solve

    return solve(load(instance(lora)))


def test_adapters_take_kv_cache_and_slow_iterations_down():
    plain, some = solved(None), solved({"max_loras": 8, "max_lora_rank": 64, "slower": 1.3})
    assert plain.check.ok and some.check.ok
    one, two = (r.plan["periods"][0]["deployments"][0]["engine"] for r in (plain, some))
    lost = adapter_bytes(Lora(max_loras=8, max_lora_rank=64), LLAMA, 1)
    per_token = 2 * 32 * 8 * 128 * 2
    assert one["kv_tokens"] - two["kv_tokens"] == pytest.approx(lost / per_token, rel=1e-6)
    assert "1.3 times as long with LoRA adapters" in two["latency"]
    found = export(some, to="vllm")
    text = "\n".join(found.files.values())
    assert "--enable-lora --max-loras=8 --max-lora-rank=64" in text and "lora" not in str(
        export(plain, to="vllm").files
    )


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (instance({"max_loras": 1}, "deepseek-r1"), "engine.lora.gib_each"),
        (instance({"max_loras": 1, "max_lora_rank": 24}), "engine.lora.max_lora_rank"),
        (instance({"max_loras": 1, "slower": 0.5}), "engine.lora.slower"),
        (instance({"max_loras": -1}), "engine.lora.max_loras"),
    ],
)
def test_what_is_refused(data: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as refused:
        load(data).resolve()
    assert any(m.path == path for m in refused.value.mistakes)
