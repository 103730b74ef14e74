"""A plan of engines that batch continuously in the simulator: its closed-loop run of users, step by step.

N = `workload.batch` users ask again as soon as they are answered. Each stays with one engine, as `batch_split` has
them, so that engines do not see each other: of each size one is simulated, and stands for all that hold as many.
Of several attention ranks of an engine a request goes to the one with the fewest waiting and running.

Policies state how the users begin: ``spread`` over the time of one request (how a loop that has run for long looks
like where all requests are equal), or ``at_once``, so that requests which are all equal stay in step with one another
and their prompts come together for ever. Requests have the lengths of the workload, drawn by their shares where there
are several, or lengths drawn from a trace, whose times of arrival state nothing in a closed-loop run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.predicted import engine_of, machine_of, predicted
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.arrays import Array
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.errors import InputError, Mistake, one_of
from optmodels.simulation.continuous import (
    EDGES_S,
    Arrivals,
    Engine,
    Gaps,
    ServedRequests,
    at_quantile,
    gap_quantiles,
    of_edges,
)
from optmodels.simulation.continuous_controlled import simulate_controlled
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.summary import QUANTILES, quantiles
from optmodels.traces.types import Trace

POLICIES = ("spread", "at_once")
WARM_UP, OBSERVED = 2, 4  # requests of every user, at least
LEAST_REQUESTS = 2000  # observed at an engine
TOLERANCE = 1e-9
FIXED = "none: every user of the closed loop stays with one engine, which serves in order of arrival"


def replay(
    problem: CostEfficiency, plan: Mapping[str, Any], trace: Trace | None = None, options: ReplayOptions | None = None
) -> dict[str, Any]:
    """Replay the closed-loop run of a plan.

    Args:
        problem: the instance.
        plan: its plan as JSON data.
        trace: source of the lengths; None: the workload's own lengths.
        options: policy and seed; steps last as long as on the plan's engines, so ``speed`` changes nothing.

    Returns:
        ``predicted`` (means, users who begin one after another; of several lengths the plan's own bounds) and
        ``policies`` with the same metrics: latencies (of several sizes of engines, of the fullest), requests and tokens
        a second and their cost, over the engines; ``promises``: each with its SLO's ``limit``, the plan's
        ``planned_bound`` and the ``replayed`` value.

    Raises:
        InputError: a plan of static batches, unknown policy, or a request larger than a cache.
    """
    o = options or ReplayOptions()
    if o.policy is not None:
        one_of("policy", o.policy, POLICIES)
    for name, given in (
        ("overflow_protection", o.overflow_protection), ("queue", o.queue == "deadline"), ("controller", o.controller)
    ):  # fmt: skip
        if given:
            raise InputError(Mistake(None, name, getattr(o, name), FIXED))
    p = CostPlan.model_validate(plan)
    if p.engine is None:
        expected = "continuous: a static batch starts and ends together, as predicted, so that there is no replay of it"
        raise InputError(Mistake(None, "serving", problem.serving, expected))
    rows, promises = {}, []
    for policy in (o.policy,) if o.policy else POLICIES:
        rng = np.random.default_rng(o.seed)
        sizes = [_loop(problem, p, users, trace, policy, rng) for users in sorted({*p.batch_split})]
        rows[policy], kept = _figures(problem, p, sizes)
        promises += [{"promise": f"{name}, users begin {policy.replace('_', ' ')}", **row} for name, row in kept]
        if o.keep is not None:
            o.keep(policy, {k: np.concatenate([x.columns[k] for x in sizes]) for k in sizes[0].columns})
    w = problem.workload
    bounds = {
        "e2e_s": p.prediction.e2e_s, "requests_per_s": w.batch / p.prediction.e2e_s, "tokens_per_s": p.prediction.tps
    }  # fmt: skip
    seen = predicted(problem, p) or bounds
    expected_s = {ours: {"mean": seen[theirs]} for ours, theirs in
                  (("ttft_s", "ttft_s"), ("tpot_s", "tpot_s"), ("e2e_s", "e2e_s")) if theirs in seen}  # fmt: skip
    rates = {name: seen[name] for name in ("requests_per_s", "tokens_per_s")}
    usd = p.usd_per_hour / (3600 * seen["tokens_per_s"]) * 1e6
    return {
        "users": w.batch, "engines": len(p.batch_split),
        "requests": sum(len(x.ttft_s) for x in sizes), "policy": o.policy or POLICIES[0],
        "predicted": expected_s | rates | {"usd_per_million_tokens": usd}, "policies": rows, "promises": promises,
    }  # fmt: skip


class _Loop:
    """Latencies of one engine's users after the warm-up, and the rates meanwhile."""

    def __init__(self, seen: ServedRequests, users: int, slower: float, edges_s: Array) -> None:
        """`slower`: factor of measured engines' TTFT over the TTFT of their steps."""
        a, extra = seen.arrivals, (slower - 1.0) * seen.ttft_s
        look = _observed(users, len(a))
        begin, end = float(a.arrival_s[look.start]), float(a.arrival_s[-1])
        finish_s = a.arrival_s + seen.e2e_s
        done = (finish_s > begin) & (finish_s <= end)
        self.users, self.seconds = users, end - begin
        self.ttft_s, self.tpot_s, self.e2e_s = (
            x[look] for x in (seen.ttft_s + extra, seen.tpot_s, seen.e2e_s + extra)
        )  # fmt: skip
        self.tpot_s = self.tpot_s[np.isfinite(self.tpot_s)]
        self.requests_per_s = float(done.sum()) / self.seconds
        self.tokens_per_s = float((a.input_tokens + a.output_tokens)[done].sum()) / self.seconds
        self.pauses = of_edges(edges_s, seen.gaps[0]) if seen.gaps is not None else (np.zeros(0), np.zeros(0))
        self.preemptions = int(seen.preemptions[look].sum())
        self.columns = {
            "users_of_engine": np.full(len(self.ttft_s), users), "arrival_s": a.arrival_s[look],
            "input_tokens": a.input_tokens[look], "output_tokens": a.output_tokens[look],
            "queue_s": seen.queue_s[look], "ttft_s": self.ttft_s, "tpot_s": seen.tpot_s[look], "e2e_s": self.e2e_s,
        }  # fmt: skip


def _loop(
    problem: CostEfficiency, p: CostPlan, users: int, trace: Trace | None, policy: str, rng: np.random.Generator
) -> _Loop:  # fmt: skip
    """One engine with this many users."""
    lengths = problem.lengths()
    total = users * (WARM_UP + 1) + max(OBSERVED * users, LEAST_REQUESTS)
    kind = rng.choice(len(lengths), total, p=[x.share for x in lengths]) if len(lengths) > 1 else np.zeros(total, int)
    prompts, outputs = (
        np.array([getattr(x, name) for x in lengths])[kind] for name in ("input_tokens", "output_tokens")
    )
    if trace is not None:
        drawn = rng.integers(0, len(trace), total)
        prompts, outputs = trace.prompt_tokens[drawn], trace.output_tokens[drawn].copy()
    if policy == "spread":  # the first answers are cut short, each at another place
        outputs[:users] = np.maximum(1, outputs[:users] * np.arange(1, users + 1) // users)
    e, of = p.engine, engine_of(problem, machine_of(problem, p), p)
    assert e is not None
    limits = e.max_num_seqs, e.max_num_batched_tokens, e.chunk_tokens
    engine = Engine(of.costs, int(e.kv_tokens / of.ranks), *limits, ranks=of.ranks)
    itl = problem.slo.itl
    edges = np.unique(np.append(EDGES_S, [] if itl is None else [seconds_and_quantile(itl)[0] * (1 + 1e-9)]))
    group = np.full(total, -1)
    group[_observed(users, total)] = 0
    arrivals = Arrivals.of(np.zeros(total), prompts, outputs)
    served = simulate_controlled(arrivals, engine, users=users, gaps=Gaps(edges, group)).served
    return _Loop(served, users, of.slower, edges)


def _observed(users: int, total: int) -> slice:
    """Requests that are looked at: the last users' last ones see an engine that empties."""
    return slice(WARM_UP * users, total - users)


def _figures(
    problem: CostEfficiency, p: CostPlan, sizes: list[_Loop]
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Metrics of a run, and every promise with its observed value."""
    fullest, engines = sizes[-1], [p.batch_split.count(x.users) for x in sizes]
    tokens = sum(n * x.tokens_per_s for n, x in zip(engines, sizes, strict=True))
    first, each, whole = _promised(problem)
    levels = sorted({*QUANTILES, *(float(q[1:]) / 100 for q in (first, each, whole) if q != "mean")})
    row: dict[str, Any] = {
        name: quantiles(values, levels)
        for name, values in (("ttft_s", fullest.ttft_s), ("tpot_s", fullest.tpot_s), ("e2e_s", fullest.e2e_s))
    }
    if problem.slo.itl is not None:
        row["itl_s"] = gap_quantiles(*fullest.pauses, QUANTILES)
    row |= {
        "requests_per_s": sum(n * x.requests_per_s for n, x in zip(engines, sizes, strict=True)),
        "tokens_per_s": tokens, "usd_per_million_tokens": p.usd_per_hour / (3600 * tokens) * 1e6,
        "preemptions": sum(n * x.preemptions for n, x in zip(engines, sizes, strict=True)),
    }  # fmt: skip
    kept: list[tuple[str, dict[str, Any]]] = []

    def promise(name: str, limit: float, bound: float | None, seen: float | None, sense: Literal[1, -1]) -> None:
        ok = None if seen is None else bool(sense * seen <= sense * limit + TOLERANCE * limit)
        kept.append((name, {"limit": limit, "planned_bound": bound, "replayed": seen, "kept": ok}))

    slo, f = problem.slo, p.prediction
    if slo.kind == "real_time":
        promise(f"TTFT {first}, s", seconds_and_quantile(slo.ttft_s)[0], f.ttft_s, row["ttft_s"][first], 1)
        promise(f"TPOT {each}, s", seconds_and_quantile(slo.tpot_s)[0], f.tpot_s, row["tpot_s"].get(each), 1)
        if slo.deadline_s is not None:
            bound = next(line.value for line in p.limits if line.name == "E2E")
            promise(f"E2E {whole}, s", seconds_and_quantile(slo.deadline_s)[0], bound, row["e2e_s"][whole], 1)
    if slo.itl is not None:
        limit, q = seconds_and_quantile(slo.itl)
        bound, pauses = next(line.value for line in p.limits if line.name == "ITL"), fullest.pauses
        name = f"ITL {'mean' if q is None else f'p{100 * q:g}'}, s"
        promise(name, limit, bound, at_quantile(*pauses, q) if len(pauses[0]) else None, 1)
    promise("tokens/s", slo.tps, f.tps, tokens, -1)
    return row, kept


def _promised(problem: CostEfficiency) -> tuple[str, str, str]:
    """The plan's bounds on TTFT, time per output token and E2E: the mean, or a quantile by its name."""
    levels = (seconds_and_quantile(x)[1] for x in problem.slo.latencies)
    first, each, whole = ("mean" if q is None else f"p{100 * q:g}" for q in levels)
    return first, each, whole
