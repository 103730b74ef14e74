"""Predicted latencies on a plan's engines at the planned rates, next to the bounds of their levels.

A level bounds latencies of the fullest engine that keeps to it. At the rates that a plan gives an engine they are the
latencies of `optmodels.engine.running`, as for engines that run already.

Disaggregated prefill and decode are two such engines in a row, and requests are assumed to come to both at random
(Poisson): the first makes first tokens only, the second has requests that come with their KV cache. TTFT belongs to the
first, with sending the cache; receiving it, joining a step and the steps of S_out − 1 tokens are time per output token,
of the second; E2E at a quantile is the sum of both at theirs. Sent in turn, requests come more evenly, and TTFT is
shorter than predicted. ``python benchmarks/apart_predicted.py`` has the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from formulations.fleet.engines import classes_of, engine_of, transfer_s
from formulations.fleet.plan import DeploymentLine, FleetPlan
from formulations.fleet.problem import FleetCase
from formulations.fleet.replay import paired
from optmodels.engine.between import after_first
from optmodels.engine.continuous import EngineLimits, seconds_and_quantile
from optmodels.engine.running import Running, decoding, prefilling, running

LATENCIES = {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "itl_s": "itl_s", "deadline_s": "e2e_s"}  # SLO → `Running`


def predicted(case: FleetCase, plan: FleetPlan) -> list[dict[str, Any]]:
    """Of every demand TTFT, TPOT, E2E, and ITL where limited, at its limits' percentiles (none: means), at the longest.

    None where a share asks more of an engine than that can serve in the long run. An estimate beyond the plan's
    bounds is wrong: the bound holds for every mixture within the engine's capacities, the one planned among them. Then
    it takes the estimate's place, and `at_bound` names the latency.
    """
    found: dict[str, dict[str, float]] = {}
    at_bound: dict[str, set[str]] = {}
    for q in plan.periods:
        parts: dict[tuple[str, int], float] = {}  # of E2E, by demand and line of one stage
        for j, d in enumerate(q.deployments):
            rows = predicted_of(case, d) or [dict.fromkeys(LATENCIES, math.inf)] * len(d.serves)
            for s, seen in zip(d.serves, rows, strict=True):
                bounds = {"ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "itl_s": s.itl_s, "deadline_s": s.e2e_s}
                holds = d.engine is not None and max(d.engine.capacities.values(), default=0.0) <= 1.0 + 1e-6
                known = {name: bound for name, bound in bounds.items() if holds and bound is not None}
                over = {name: bound for name, bound in known.items() if bound < seen[name] < math.inf}
                at_bound.setdefault(s.demand, set()).update(over)
                seen = seen | over
                if d.stage != "both":
                    parts[s.demand, j] = seen["deadline_s"]
                    seen = seen | {"deadline_s": 0.0}
                if case.workload(s.demand.partition("/")[0]).slo.itl_s is None:
                    seen = {name: value for name, value in seen.items() if name != "itl_s"}
                row = found.setdefault(s.demand, dict.fromkeys(seen, 0.0))
                row |= {name: max(row[name], value) for name, value in seen.items()}
        for demand in {name for name, _ in parts}:
            ways = [parts[demand, i] + parts[demand, j] for i, j in paired(case, q, demand, plan.stretch)]
            found[demand]["deadline_s"] = max([found[demand]["deadline_s"], *ways])
    return [
        {"demand": demand}
        | {name: value if math.isfinite(value) else None for name, value in row.items()}
        | ({"at_bound": sorted(at_bound[demand])} if at_bound.get(demand) else {})
        for demand, row in found.items()
    ]


def _at(pieces: Sequence[Running], what: str, demand: int, quantile: float | None) -> float:
    """A latency in the piece of a trace in which it is longest."""
    return max(seen.at(what, demand, quantile) for seen in pieces)


def predicted_of(
    case: FleetCase, d: DeploymentLine, slower: tuple[float, float] = (1.0, 1.0)
) -> list[dict[str, float]] | None:
    """The same of each share of a line, infinite where it asks too much; None without such an engine or a request.

    For a line of one stage its part of E2E, and 0 for the other stage's part.

    Args:
        case: the instance.
        d: the line.
        slower: factors on the planned time of every step and of the first token.
    """
    e = d.engine
    if e is None or not d.serves:
        return None
    costs, later = engine_of(case, d)
    case = case.loading(d.loads, d.model)
    costs, later = costs.scaled(slower[0]), later * max(slower[1] / slower[0], 1.0)
    named = {x.name: k for k, x in enumerate(case.demands)}
    mine = [named[s.demand] for s in d.serves]
    workloads = [s.demand.partition("/")[0] for s in d.serves]
    classes, kv = classes_of(case, mine, e.kv_tokens), case.running_kv_tokens(workloads, e.kv_tokens)
    output = classes.output_tokens.mean(axis=1)
    if d.stage == "prefill":
        classes = prefilling(classes)
    elif d.stage == "decode":
        (costs, classes), later, kv = decoding(costs, classes), 1.0, e.kv_tokens
    limits = EngineLimits(
        max_num_seqs=e.max_num_seqs, max_num_batched_tokens=e.max_num_batched_tokens, chunk_tokens=e.chunk_tokens
    )
    engines = d.count * (d.replicas_per_machine or 1)
    rates = np.array([s.requests_per_s for s in d.serves]) / engines
    pieces = [running(costs, later, classes, f * rates, kv, limits, d.attention_ranks or 1)
              for f in case.peaks[:, mine]]  # fmt: skip
    moved = transfer_s(case, d)[mine] if d.stage != "both" else np.zeros(len(mine))
    found: list[dict[str, float]] = []
    for k, w in enumerate(workloads):
        slo = case.workload(w).slo
        at = {name: seconds_and_quantile(getattr(slo, name))[1] for name in LATENCIES}
        if d.stage == "both":
            found.append({
                name: _at(pieces, what, k, at[name])
                for name, what in LATENCIES.items() if what != "itl_s" or slo.itl_s is not None
            })  # fmt: skip
        elif d.stage == "prefill":
            sends = float(moved[k]) + case.problem.deployment.link.latency_s
            ttft, whole = (sends + _at(pieces, "ttft_s", k, at[name]) for name in ("ttft_s", "deadline_s"))
            found.append({"ttft_s": ttft, "tpot_s": 0.0, "itl_s": 0.0, "deadline_s": whole})
        else:
            first, more = float(moved[k]) + _at(pieces, "ttft_s", k, None), max(float(output[k]) - 2.0, 0.0)
            rest = {
                name: first + (more and more * _at(pieces, "tpot_s", k, at[name])) for name in ("tpot_s", "deadline_s")
            }
            each = rest["tpot_s"] / max(float(output[k]) - 1.0, 1.0)
            pause = 0.0
            if slo.itl_s is not None:
                n = max(float(output[k]) - 1.0, 1.0) / costs.tokens  # its first time between tokens is until it joins
                q = None if at["itl_s"] is None else after_first(at["itl_s"], max(n, 1.0))
                pause = _at(pieces, "itl_s", k, at["itl_s"] if q is None else q)
                pause = pause + first / n if at["itl_s"] is None else pause if q is not None else max(first, pause)
            found.append({"ttft_s": 0.0, "tpot_s": each, "itl_s": pause, "deadline_s": rest["deadline_s"]})
    return found
