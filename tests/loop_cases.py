"""A small closed loop of users for cost efficiency with continuous batching."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mixture_levels import Mixture

from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.costs import engine_costs
from optmodels.engine.loop import loop

TTFT, TPOT = {"at_most": 3.0, "percentile": 0.9}, {"at_most": 0.12, "percentile": 0.9}


def instance(**changes: Any) -> CostEfficiency:
    data: dict[str, Any] = {
        "formulation": "cost_efficiency", "schema": 1, "name": "loop", "model": "llama-3.1-8b",
        "workload": {"batch": 60, "input_tokens": 500, "output_tokens": 120},
        "slo": {"kind": "real_time", "tps": 200, "ttft_s": TTFT, "tpot_s": TPOT},
        "pool": {"machines": [
            {"machine": "small", "gpu": "l4", "gpu_count": 1, "vram_gib": 24, "prices": {"on_demand": 0.8}},
            {"machine": "large", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "prices": {"on_demand": 1.9}},
            {"machine": "pair", "gpu": "l4", "gpu_count": 2, "vram_gib": 48, "prices": {"on_demand": 1.5}},
        ]},
        "markets": {"main": ["on_demand"]}, "serving": "continuous", "latency": {"model": "roofline"},
        "strategies": {"families": ["high_end"], "tensor_parallel": [1, 2]},
    }  # fmt: skip
    return CostEfficiency.model_validate(data | changes)


def cheapest(problem: CostEfficiency) -> tuple[float, float]:
    """USD/h and mean E2E of the best deployment, count by count in plain numbers: the first beats the second."""
    case, limits, best = problem.resolve(), problem.engine, (math.inf, math.inf)
    within = [seconds_and_quantile(limit) for limit in problem.slo.latencies]
    lengths, batch = [(x.input_tokens, x.output_tokens, x.share) for x in case.lengths], problem.workload.batch
    splits = [(tp, ranks) for tp in problem.strategies.tensor_parallel for ranks in problem.ranks(case)]
    for m, (tp, ranks) in ((m, split) for m in case.machines for split in splits):
        if m.gpu_count % (tp * ranks):
            continue
        gpu, dp, tried = m.gpu or "", m.gpu_count // (tp * ranks), set[int]()
        e = engine_costs(problem.engines(case), limits, case.gpus[gpu], gpu, tp, m.vram_gib / m.gpu_count, ranks)
        for count in range(1, batch // dp + 1):
            users = -(-batch // (count * dp))
            told = Mixture(e, limits, lengths).told(limits.choosing(-(-users // ranks)).slots)
            if users in tried or users > ranks * told.limits.slots:
                continue
            tried.add(users)
            for row in told.loop(users, *within):
                prompt, output = (
                    float(np.average([x[i] for x in lengths], weights=[x[2] for x in lengths])) for i in (0, 1)
                )
                least = loop(e.costs, e.slower, told.limits, prompt, output, users, ranks)
                ttft, tpot = max(row.ttft_s, float(least.ttft_s)), max(row.tpot_s, float(least.tpot_s))
                e2e = max(row.e2e_s, float(least.e2e_s))
                whole = max(row.deadline_s, e2e) if e2e > row.e2e_s else row.deadline_s
                seen = zip((ttft, tpot, whole), within, strict=True)
                if all(x <= limit for x, (limit, _) in seen) and case.tokens / e2e >= problem.slo.tps:
                    best = min(best, (count * (m.prices.on_demand or math.inf), e2e))
    return best
