"""One file of measurements plans several formulations, and what none of its deployments measured is named in each."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from reserved import machine, service, two_regions

LATENCY = {"model": "mine.yaml", "engine": "vllm", "safety": 0.9}
LLM = "llama-3.1-8b"


def measured(gpu: str, fixed_s: float) -> dict[str, Any]:
    """Steps of one deployment, as `calibrate` writes them."""
    terms = {"fixed": fixed_s, "tokens": 3e-5, "decode_kv": 9e-8, "prefill_attention": 2e-9}
    return {
        "model": "additive", "measured": "step", "title": f"steps on {gpu}", "gpu": gpu, "llm": LLM, "engine": "vllm",
        "targets": {"latency_s": {
            "segments": [{"terms": [{"name": n, "value": v} for n, v in terms.items()]}],
            "in_sample": {"rows": 9, "r2": 1.0, "mape": 0, "p50": 0, "p90": 0, "p99": 0, "bias": 0},
            "residual_quantiles": {"0.5": 1.0, "0.9": 1.1},
        }},
        "domain": {"prefill_tokens": [0, 8192], "prefill_context_tokens": [0, 8192], "decode_requests": [0, 128],
                   "decode_context_tokens": [0, 8192], "tp": [1, 1]},
    }  # fmt: skip


def box(gpu: str, usd: float, vram: float) -> dict[str, Any]:
    return {"machine": gpu, "gpu": gpu, "vram_gib": vram, "ram_gib": 64, "prices": {"on_demand": usd}}


POOL = {"machines": [box("l40s", 1.0, 48), box("h100", 3.0, 80), box("l4", 0.6, 24)]}
INSTANCES: dict[str, dict[str, Any]] = {
    "cost_efficiency": {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "one", "model": LLM,
        "workload": {"batch": 8, "input_tokens": 512, "output_tokens": 128},
        "slo": {"kind": "real_time", "tps": 100, "ttft_s": 3.0, "tpot_s": 0.2}, "objective": "uncapped", "pool": POOL,
        "strategies": {"families": ["high_end", "multi_pass"]}, "latency": LATENCY,
    },
    "fleet": {
        "formulation": "fleet", "schema": 1, "name": "one", "pool": POOL, "serving": "continuous", "latency": LATENCY,
        "workloads": [{
            "name": "chat", "model": LLM, "slo": {"ttft_s": 3.0, "tpot_s": 0.2},
            "buckets": [{"input_tokens": 512, "output_tokens": 128, "requests_per_s": 2.0}],
        }],
    },
    "orchestration": {
        "formulation": "orchestration", "schema": 1, "name": "one", "serving": "continuous", "latency": LATENCY,
        "cluster": {"servers": [{"server": "box", "gpu": "l40s", "gpus": 2}]}, "models": [{"model": LLM}],
        "candidates": {"tp": [1], "batch": [2, 8]},
        "requests": {"rows": {
            "arrival_s": [0.5 * k for k in range(8)], "prompt_tokens": [512] * 8, "output_tokens": [128] * 8,
        }},
        "slo": {"factor": 2.0},
    },
    "reserved_capacity": two_regions(
        services=service(slo={"ttft_s": 2.0, "tpot_s": 0.1}, workload={"model": LLM, "input_tokens": 512,
                                                                        "output_tokens": 128}),
        machines=machine(serves={}, gpu="l40s"), latency=LATENCY,
    ),
}  # fmt: skip


def files(folder: Path, name: str, fixed_s: float) -> str:
    (folder / "mine.yaml").write_text(
        yaml.safe_dump({"models": [measured("l40s", fixed_s), measured("h100", fixed_s)]})
    )
    file = f"{name}-{fixed_s:g}.yaml"
    (folder / file).write_text(yaml.safe_dump(copy.deepcopy(INSTANCES[name])))
    return file


@pytest.mark.parametrize("name", INSTANCES)
def test_one_model_file_plans_them(name: str, cli: Any, folder: Path) -> None:
    objectives = []
    for fixed_s in (0.02, 0.06):
        run = cli("solve", files(folder, name, fixed_s), "--out", f"out-{fixed_s:g}", "--json")
        assert run.status == 0, run.err
        document = json.loads(run.out)
        objectives.append(document["objective"])
        assert document["check"]["ok"]
        assert [m["gpu"] for m in document["problem"]["latency"]["model"][:2]] == ["l40s", "h100"]  # written out
        where = next(Path(f"out-{fixed_s:g}").glob("*/plan.json"), Path(f"out-{fixed_s:g}/plan.json"))
        (folder / "mine.yaml").unlink()  # the plan stands alone
        assert cli("check", str(where)).status == 0
    assert objectives[0] != objectives[1]


def test_summaries_name_source_transfer_and_pessimistic_end(cli: Any, folder: Path) -> None:
    out = cli("solve", files(folder, "cost_efficiency", 0.02), "--out", "out").out
    said = " ".join(out.split())
    assert "Latencies of the plan's l40s: steps on l40s" in said
    assert "compared with l4; no measurement of this GPU" in said
    assert "Pessimistic case: throughput" in said
    out = cli("solve", files(folder, "reserved_capacity", 0.02), "--out", "out").out
    said = " ".join(out.split())
    assert "Latencies of chat on box: steps on l40s" in said
    assert "Pessimistic case: machines serve" in said
    out = cli("solve", files(folder, "fleet", 0.02), "--out", "out").out
    said = " ".join(out.split())
    assert "Latencies of llama-3.1-8b on 1 × l4: " in said
    assert said.count(": steps on") == 1  # the source; a note says how far sums over requests miss it
    assert "no measurement of this GPU" in said
    assert "Predictions include a margin of" in said
    out = cli("solve", files(folder, "orchestration", 0.02), "--out", "out").out
    said = " ".join(out.split())
    assert "Latencies of llama-3.1-8b on 1 × l40s: steps on l40s" in said
    assert "In the pessimistic case" in said
