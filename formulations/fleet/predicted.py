"""What requests see of a plan's engines at the rates planned, beside what their levels bound.

A level bounds latencies of the fullest engine that keeps to it. At the rates that a plan gives an engine they are those
of `optmodels.serving.running`, as for engines that run already.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from formulations.fleet.engines import classes_of, engine_of
from formulations.fleet.plan import DeploymentLine, FleetPlan
from formulations.fleet.problem import FleetCase
from optmodels.serving.continuous import EngineLimits, seconds_and_quantile
from optmodels.serving.running import running

LATENCIES = {"ttft_s": "ttft_s", "tbt_s": "tpot_s", "deadline_s": "e2e_s"}  # of an SLO → of `Running`


def predicted(case: FleetCase, plan: FleetPlan) -> list[dict[str, Any]]:
    """Of every demand TTFT, TPOT and E2E, at the percentile of its limits (none: the mean), where they are longest.

    None where a share is prefilled and decoded apart or on several attention ranks, which is not predicted, or asks
    more of an engine than that can serve in the long run.
    """
    found: dict[str, dict[str, float]] = {}
    for d in (d for q in plan.periods for d in q.deployments):
        for s, seen in zip(d.serves, predicted_of(case, d) or [dict.fromkeys(LATENCIES, math.inf)] * len(d.serves),
                           strict=True):  # fmt: skip
            row = found.setdefault(s.demand, dict.fromkeys(LATENCIES, 0.0))
            row |= {name: max(row[name], value) for name, value in seen.items()}
    return [
        {"demand": demand} | {name: value if math.isfinite(value) else None for name, value in row.items()}
        for demand, row in found.items()
    ]


def predicted_of(
    case: FleetCase, d: DeploymentLine, slower: tuple[float, float] = (1.0, 1.0)
) -> list[dict[str, float]] | None:
    """The same of each share of a line, infinite where it asks too much; None of what is not predicted.

    Args:
        case: the instance.
        d: the line.
        slower: what every step takes longer than planned, and the first token: times.
    """
    e = d.engine
    if e is None or d.stage != "both" or d.attention_ranks is not None or not d.serves:
        return None
    costs, later = engine_of(case, d)
    case = case.loading(d.loads, d.model)
    named = {x.name: k for k, x in enumerate(case.demands)}
    engines = d.count * (d.replicas_per_machine or 1)
    workloads = [s.demand.partition("/")[0] for s in d.serves]
    limits = EngineLimits(
        max_num_seqs=e.max_num_seqs, max_num_batched_tokens=e.max_num_batched_tokens, chunk_tokens=e.chunk_tokens
    )
    seen = running(
        costs.scaled(slower[0]), later * max(slower[1] / slower[0], 1.0),
        classes_of(case, [named[s.demand] for s in d.serves], e.kv_tokens),
        np.array([s.requests_per_s for s in d.serves]) / engines, case.running_kv_tokens(workloads, e.kv_tokens),
        limits,
    )  # fmt: skip
    return [
        {
            name: seen.at(what, k, seconds_and_quantile(getattr(case.workload(w).slo, name))[1])
            for name, what in LATENCIES.items()
        }
        for k, w in enumerate(workloads)
    ]
