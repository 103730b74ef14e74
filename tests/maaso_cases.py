"""Small orchestration problems with rates by hand."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from formulations.orchestration.points import OrchestrationTables, build_tables
from formulations.orchestration.problem import Orchestration

MODELS = ("llama-3.2-3b", "llama-2-7b")


def problem(
    rates: dict[tuple[str, int, int], tuple[float, ...]], requests: dict[str, Any], gpus: tuple[int, ...] = (8,),
    **extra: Any,
) -> Orchestration:  # fmt: skip
    """Servers of H100 with so many GPUs; `rates` holds tokens/s at loads 1, 2, … by (model, tp, pp)."""
    rows = [
        {"model": m, "gpu": "h100", "tp": tp, "pp": pp, "load": load + 1, "tokens_per_s": rate}
        for (m, tp, pp), values in rates.items() for load, rate in enumerate(values)
    ]  # fmt: skip
    models = list(dict.fromkeys(m for m, _, _ in rates))
    tp, pp = (sorted({key[i] for key in rates}) for i in (1, 2))
    batch = list(range(1, 1 + max(len(v) for v in rates.values())))
    data: dict[str, Any] = {
        "formulation": "orchestration", "schema": 1, "name": "small",
        "cluster": {"servers": [{"server": f"s{i}", "gpu": "h100", "gpus": n} for i, n in enumerate(gpus)]},
        "models": [{"model": m} for m in models], "candidates": {"tp": tp, "pp": pp, "batch": batch},
        "latency": {"measured_rows": rows}, "requests": requests,
    }  # fmt: skip
    return Orchestration.model_validate(data | extra)


def rows(seed: int, n: int, models: tuple[str, ...], rate: float = 1.0, low: float = 0.5, high: float = 2.0) -> Any:
    """Requests drawn with Poisson arrivals, 20 to 200 tokens, θ from a range."""
    rng = np.random.default_rng(seed)
    return {"rows": {
        "arrival_s": np.cumsum(rng.exponential(1 / rate, n)).tolist(),
        "output_tokens": rng.integers(20, 200, n).tolist(), "prompt_tokens": rng.integers(1, 50, n).tolist(),
        "model": [models[i] for i in rng.integers(0, len(models), n)],
        "slo_factor": rng.uniform(low, high, n).tolist(),
    }}  # fmt: skip


def whole(p: Orchestration) -> OrchestrationTables:
    """Its tables with every usable candidate, also those that others do the work of."""
    with mock.patch("formulations.orchestration.points.dominated", lambda *_: {}):
        return build_tables(p)


def tables(p: Orchestration) -> OrchestrationTables:
    """Its tables."""
    return build_tables(p)
