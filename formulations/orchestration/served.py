"""A plan with continuous serving on engines that share their steps among prompts and decoding requests."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from formulations.orchestration.making import rows_of
from formulations.orchestration.plan import Dispatcher, OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from optmodels.errors import InputError, Mistake
from optmodels.simulation.cluster import TOLERANCE, Outcomes, Requests, Shares
from optmodels.simulation.continuous import Arrivals, Engine, simulate
from optmodels.simulation.continuous import Dispatcher as EnginePolicy
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.types import Prefixes

Ints = npt.NDArray[np.int64]


def engines_of(t: OrchestrationTables, p: OrchestrationPlan, caution: float) -> tuple[list[Engine], Ints]:
    """The engines of a plan's instances, one for every data-parallel replica, and whose each is.

    Dispatchers expect `caution` times the level's step at least: whom they admit decodes beside prompts yet to come.
    """
    rows, made, whose = rows_of(t, p), [], []
    for i, instance in enumerate(p.instances):
        x = t.configurations[rows[instance.configuration]]
        assert x.engine is not None
        e, line = x.engine, p.configurations[instance.configuration].engine
        if line is None:
            raise InputError(Mistake(None, "plan.configurations[].engine", None, "an engine, with continuous serving"))
        one = Engine(
            e.costs, int(e.kv_tokens), line.max_num_seqs, line.max_num_batched_tokens, line.chunk_tokens, pool=x.model,
            kind=instance.configuration, step_s=caution * e.step_s,
        )  # fmt: skip
        made += [one] * x.dp
        whose += [i] * x.dp
    return made, np.array(whose, dtype=np.int64)


def _shareable(prefixes: Prefixes | None, engines: list[Engine]) -> Prefixes | None:
    """Content blocks that are whole blocks of the engines' caches; others say nothing of what these share."""
    if prefixes is None or any(prefixes.block_tokens % e.block_tokens for e in engines):
        return None
    return prefixes


def serve(
    t: OrchestrationTables, p: OrchestrationPlan, requests: Requests, shares: Shares, way: Dispatcher,
    options: ReplayOptions,
) -> Outcomes:  # fmt: skip
    """One simulation of a plan.

    Raises:
        InputError: what engines do not have is asked for.
    """
    if options.controller is not None:
        raise InputError(Mistake(None, "controller", options.controller, "none: continuous serving has max_num_seqs"))
    if options.speed != "load":
        raise InputError(Mistake(None, "speed", options.speed, "load: a step takes what is in it"))
    engines, whose = engines_of(t, p, way.caution)
    n = len(requests)
    able = np.isin(requests.model, [e.pool for e in engines])
    index = np.full(n, -1, dtype=np.int64)
    start, first, finish = (np.full(n, np.inf) for _ in range(3))
    busy = np.zeros(len(p.instances))
    if able.any():
        r = requests.take(able)
        limit = t.case.problem.slo.ttft_s
        arrivals = Arrivals.of(
            r.arrival_s, np.maximum(r.prompt_tokens, 1), np.maximum(r.output_tokens, 1), pool=r.model,
            deadline_s=r.deadline_s * (1 + TOLERANCE), klass=np.maximum(r.klass, 0),
            ttft_limit_s=np.inf if limit is None else limit * (1 + TOLERANCE),
            priority=r.due_s if way.queue == "deadline" else 0.0,
            expected_output_tokens=np.maximum(r.expected_output_tokens, 1), prefixes=_shareable(r.prefixes, engines),
        )  # fmt: skip
        rest = np.maximum(0.0, 1.0 - shares.weight.sum(axis=2, keepdims=True)) * shares.refuse_rest * way.refuse_rest
        seen = simulate(
            arrivals, engines, cast(EnginePolicy, way.policy), planned=np.concatenate((shares.weight, rest), axis=2),
            planned_bin_s=shares.bin_s, within="earliest_finish", refuse=way.overflow_protection,
        )  # fmt: skip
        got = seen.served
        at = np.flatnonzero(able)[got]
        index[at] = whose[seen.instance[got]]
        start[at], first[at], finish[at] = seen.start_s[got], seen.first_s[got], seen.finish_s[got]
        np.maximum.at(busy, whose, seen.busy_s)
    return Outcomes(index, start, first, finish, (index >= 0) & way.overflow_protection, busy)
