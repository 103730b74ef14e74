"""A small closed loop of users for cost efficiency with continuous batching."""

from __future__ import annotations

from typing import Any

from formulations.cost_efficiency.problem import CostEfficiency

TTFT, TPOT = {"at_most": 3.0, "percentile": 0.9}, {"at_most": 0.12, "percentile": 0.9}


def instance(**changes: Any) -> CostEfficiency:
    data: dict[str, Any] = {
        "formulation": "cost_efficiency", "schema": 1, "name": "loop", "model": "llama-3.1-8b",
        "workload": {"batch": 60, "input_tokens": 500, "output_tokens": 120},
        "slo": {"kind": "real_time", "tps": 200, "ttft_s": TTFT, "tbt_s": TPOT},
        "pool": {"machines": [
            {"machine": "small", "gpu": "l4", "gpu_count": 1, "vram_gib": 24, "prices": {"on_demand": 0.8}},
            {"machine": "large", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "prices": {"on_demand": 1.9}},
            {"machine": "pair", "gpu": "l4", "gpu_count": 2, "vram_gib": 48, "prices": {"on_demand": 1.5}},
        ]},
        "markets": {"main": ["on_demand"]}, "serving": "continuous", "latency": {"model": "roofline"},
        "strategies": {"families": ["high_end"], "tensor_parallel": [1, 2]},
    }  # fmt: skip
    return CostEfficiency.model_validate(data | changes)
