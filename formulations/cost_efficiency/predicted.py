"""Predicted latencies of the users of a plan's closed-loop run, next to the bounds of their levels.

A level bounds latencies of the fullest engine that keeps to it. At the users that a plan gives an engine they are those
of `optmodels.engine.loop`, in the mean, with users who begin one after another.
"""

from __future__ import annotations

import numpy as np

from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.catalog.types import Machine
from optmodels.engine.continuous import EngineLimits
from optmodels.engine.costs import EngineCosts, engine_costs
from optmodels.engine.lengths import mean_tokens
from optmodels.engine.loop import loop
from optmodels.errors import InputError, Mistake


def predicted(problem: CostEfficiency, p: CostPlan) -> dict[str, float] | None:
    """TTFT, time per output token and E2E of the fullest engine's requests, means in s; requests and tokens a second.

    None of a static batch, whose prediction is the plan's, and of requests of several lengths.
    """
    kind = () if p.engine is None else problem.resolve().lengths
    return None if len(kind) != 1 else of_mean_request(problem, p)


def of_mean_request(problem: CostEfficiency, p: CostPlan) -> dict[str, float]:
    """`predicted`, of requests that all have the mean lengths."""
    users, e = p.batch_split, p.engine
    assert e is not None
    lengths = mean_tokens(problem.resolve().lengths)
    engine = engine_of(problem, machine_of(problem, p), p)
    limits = EngineLimits(
        max_num_seqs=e.max_num_seqs, max_num_batched_tokens=e.max_num_batched_tokens, chunk_tokens=e.chunk_tokens
    )
    seen, full = loop(engine.costs, engine.slower, limits, *lengths, users, engine.ranks), int(np.argmax(users))
    rate = float(seen.requests_per_s.sum())
    fullest = {name: float(getattr(seen, name)[full]) for name in ("ttft_s", "tpot_s", "e2e_s")}
    return {**fullest, "requests_per_s": rate, "tokens_per_s": rate * sum(lengths)}


def machine_of(problem: CostEfficiency, p: CostPlan) -> Machine:
    """The pool's machine that engines run on.

    Raises:
        InputError: a machine that the pool does not have.
    """
    at = p.machines[0]
    m = next((m for m in problem.resolve().machines if (m.machine, m.region) == (at.machine, at.region)), None)
    if m is None:
        expected = "a machine of the problem's pool"
        raise InputError(Mistake(None, "plan.machines[0].machine", at.machine, expected))
    return m


def engine_of(problem: CostEfficiency, m: Machine, p: CostPlan) -> EngineCosts:
    """Every replica of a plan on a machine."""
    case, gpu = problem.resolve(), m.gpu or ""
    return engine_costs(
        problem.engines(case), problem.engine, case.gpus[gpu], gpu, p.tensor_parallel, m.vram_gib / m.gpu_count,
        p.attention_ranks or 1,
    )  # fmt: skip
