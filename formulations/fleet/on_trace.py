"""A plan on the trace that it was made for, request by request: which promises the trace's own requests see kept.

The requests are sent to engines in turn and at random by the planned shares, as a replay sends them, and simulated step
by step. Nothing is drawn but who gets a request at random, `certification.draws` times, since one draw may be lucky. A
promise to a share q of a bucket is kept if this many of its requests are within the limit, one on the mean if their
mean is, whichever way they are sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from formulations.fleet.plan import FleetPlan, PeriodLine
from formulations.fleet.problem import FleetCase
from formulations.fleet.replay import (
    POLICIES,
    ReplayedRequests,
    figures,
    planned_of,
    replay,
    simulate_engines,
)
from optmodels.arrays import Mask
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.simulation.continuous import at_quantile
from optmodels.simulation.options import ReplayOptions
from optmodels.solver.deadline import seconds_for
from optmodels.traces.shape import resampled
from optmodels.traces.types import Trace

ROUNDING = 1e-9  # relative, of a latency
OTHER_REQUESTS = 1  # seed of the blocks that requests out of sample are drawn in
SEED = 0  # of who gets a request at random, as a replay has it where it is not told
MOST_TIMES = 64  # as many deployments of a line are tried at most
CALLED = {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "itl_s": "itl_s", "deadline_s": "e2e_s"}  # SLO → observed


class OnTrace:
    """One period of a plan on the trace's own requests.

    Args:
        case: the instance, all of whose workloads were cut from traces.
        t: the period.
        line: the deployment that runs in it.
        stretch: how many times as long the limits were that the plan's model kept.
        trace: other requests, labelled by demand; None: those that the instance keeps.
    """

    def __init__(self, case: FleetCase, t: int, line: PeriodLine, stretch: float, trace: Trace | None = None) -> None:
        trace = case.trace_in(t) if trace is None else trace
        assert trace is not None
        self.case, self.line, self.stretch, self.trace = case, line, stretch, trace
        self.code = trace.labels["class"].codes
        self.names = [d.name for d in case.demands]
        self.planned = planned_of(case, line)

    @cached_property
    def seen(self) -> list[tuple[str, ReplayedRequests]]:
        """Policies and latencies of requests: the draws of a replay of every policy, then more of those at random."""
        rng = np.random.default_rng(SEED)
        more = ("random",) * (self.case.problem.certification.draws - 1)
        return [
            (policy, simulate_engines(
                self.case, self.line, self.trace, self.code, self.planned, policy, rng, self.stretch
            ))
            for policy in (*POLICIES, *more)
        ]  # fmt: skip

    def worst(self, demand: str, metric: str, quantile: float | None) -> tuple[float, int]:
        """The mean or quantile of a demand where it is longest of all ways to send, and its requests; 0 of none."""
        k = self.names.index(demand)
        mine = self.code == k
        return max(_at(seen, mine & (seen.line >= 0), metric, quantile, k) for _, seen in self.seen)

    def least_within(self, demand: str, metric: str, limit_s: float) -> float:
        """The share of a demand's requests within a limit, by the way to send them where it is least."""
        mine = self.code == self.names.index(demand)
        if metric == "itl_s":
            pauses = [seen.pauses(self.names.index(demand)) for _, seen in self.seen]
            return min(float(many[x <= limit_s * (1 + ROUNDING)].sum() / max(many.sum(), 1.0)) for x, many in pauses)
        each = (getattr(seen, CALLED[metric])[mine & (seen.line >= 0)] for _, seen in self.seen)
        return min(float((x[~np.isnan(x)] <= limit_s * (1 + ROUNDING)).mean()) for x in each)

    def of_line(self, j: int, demand: str, metric: str, quantile: float | None) -> float:
        """The same of the requests that one line began to serve; for lines that decode for others, of every request."""
        mine = self.code == self.names.index(demand)
        decodes = self.line.deployments[j].stage == "decode"
        k, one = self.names.index(demand), None if decodes else j
        return max(_at(seen, mine & (decodes | (seen.line == j)), metric, quantile, k, one)[0] for _, seen in self.seen)

    def load_that_holds(self, j: int, limits: Mapping[tuple[str, str], tuple[float, float | None]]) -> float:
        """The share of its load at which a line that does whole requests meets its limits, with more deployments; or 0.

        Args:
            j: the line.
            limits: limits of its demands by (demand, metric): seconds, and for which share of the requests (None: the
                mean).
        """
        count = self.line.deployments[j].count
        low, high = count, count + 1
        while not self._holds(j, high, limits):
            if high >= MOST_TIMES * count:
                return 0.0
            low, high = high, count + 2 * (high - count)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds(j, middle, limits) else (middle, high)
        return count / (high - 0.5)  # this many deployments are needed, and rounding lets no fewer do

    def _holds(self, j: int, count: int, limits: Mapping[tuple[str, str], tuple[float, float | None]]) -> bool:
        """Whether the requests sent to a line are in time on this many deployments of it."""
        d = self.line.deployments[j]
        whole = [s.model_copy(update={"share": 1.0}) for s in d.serves]
        alone = d.model_copy(update={"count": count, "serves": whole})
        line = self.line.model_copy(update={"deployments": [alone]})
        rng = np.random.default_rng(SEED)
        for policy, seen in self.seen:
            rows = np.flatnonzero(seen.line == j)
            code = self.code[rows]
            found = simulate_engines(
                self.case, line, self.trace.take(rows), code, planned_of(self.case, line), policy, rng, self.stretch
            )
            for (demand, metric), (seconds, quantile) in limits.items():
                k = self.names.index(demand)
                if _at(found, code == k, metric, quantile, k)[0] > seconds * (1 + ROUNDING):
                    return False
        return True


def verdict(on: OnTrace, requests: str) -> dict[str, Any]:
    """Results of the replay for the SLOs of a plan (`optmodels.plans.replayed`).

    Demands that the plan knowingly serves late are not promised anything.

    Args:
        on: its busiest period.
        requests: the requests, in words.

    Returns:
        ``requests`` in words, whether all are ``kept``, and those ``missed``, the worst first: ``demand``, ``latency``,
        ``percentile`` (None: the mean), ``limit_s``, ``seen_s`` and the share ``within`` the limit, sent in the way in
        which it is longest.
    """
    late = {s.demand for d in on.line.deployments for s in d.serves if s.misses_slo}
    found: list[tuple[float, dict[str, Any]]] = []
    for name, mine in zip(on.names, on.planned, strict=True):
        slo = on.case.workload(name.rpartition("/")[0]).slo
        for metric in CALLED if mine and name not in late else ():
            if getattr(slo, metric) is None:
                continue
            limit_s, quantile = seconds_and_quantile(getattr(slo, metric))
            seen_s, count = on.worst(name, metric, quantile)
            if count and seen_s > limit_s * (1 + ROUNDING):
                within = on.least_within(name, metric, limit_s)
                how_far = within - quantile if quantile is not None else limit_s / seen_s - 1.0
                found.append((how_far, {
                    "demand": name, "latency": metric, "percentile": quantile, "limit_s": limit_s, "seen_s": seen_s,
                    "within": within,
                }))  # fmt: skip
    found.sort(key=lambda x: x[0])
    return {"requests": requests, "kept": not found, "missed": [row for _, row in found]}


def of_whole_trace(case: FleetCase, plan: FleetPlan, seconds: float) -> dict[str, Any] | None:
    """The verdict on every request of a long trace, if the time limit leaves time for it.

    Args:
        case: the instance.
        plan: its plan.
        seconds: seconds that the replay of the requests it keeps took.
    """
    whole, line = case.whole_trace, plan.periods[case.busiest]
    if whole is None or case.trace is None:
        return None
    needed = seconds * len(whole) / len(case.trace)
    if seconds_for("the replay of the whole trace", needed, needed) < needed:
        return None
    return verdict(OnTrace(case, case.busiest, line, plan.stretch, whole), f"all its {len(whole):,} requests")


def replays(case: FleetCase, plan: FleetPlan, out_of_sample: bool) -> dict[str, Any]:
    """Results of a plan made for a trace on that trace, and on other requests: blocks of it drawn again.

    Args:
        case: the instance, all of whose workloads were cut from traces.
        plan: its plan.
        out_of_sample: whether other requests are replayed, too.

    Returns:
        For a report. With engines: ``replayed``, the `verdict`, and ``replayed_whole`` for a trace where the instance
        keeps a stretch. ``out_of_sample``: ``trace``, ``requests`` and ``policy``; ``promises``: of every limit of
        every bucket the ``promised`` share of its requests within it (None: the limit is of their mean), the one
        ``replayed`` on the plan's own and that ``out_of_sample`` (None: no such request).
    """
    assert case.trace is not None
    found: dict[str, Any] = {}
    line, began = plan.periods[case.busiest], time.perf_counter()
    if case.problem.continuous:
        on = OnTrace(case, case.busiest, line, plan.stretch)
        found["replayed"] = verdict(on, case.requests_in_words)
        if (whole := of_whole_trace(case, plan, time.perf_counter() - began)) is not None:
            found["replayed_whole"] = whole
        seen = on.seen[0][1]
        rows = figures(case, line, on.trace, on.code, on.planned, seen, plan.stretch)[1]
    if not out_of_sample or len(case.trace) < 2 or not case.trace.duration_s > 0:
        return found
    data, options = plan.model_dump(mode="json"), ReplayOptions(policy=POLICIES[0])
    if not case.problem.continuous:
        rows = replay(case.problem, data, None, options)["demands"]
    other = resampled(case.trace, OTHER_REQUESTS)
    new = {r["demand"]: r for r in replay(case.problem, data, other, options)["demands"]}
    promises = [
        {
            "demand": row["demand"], "latency": name, "limit_s": row[f"{name}_limit_s"],
            "promised": row[f"{name}_percentile"], "replayed": row[f"{name}_within"],
            "out_of_sample": new.get(row["demand"], {}).get(f"{name}_within"),
        }
        for row in rows for name in ("ttft", "tpot", "itl", "deadline") if f"{name}_within" in row
    ]  # fmt: skip
    found["out_of_sample"] = {
        "trace": other.name, "requests": len(other), "policy": POLICIES[0], "promises": promises
    }  # fmt: skip
    return found


def _at(
    seen: ReplayedRequests, rows: Mask, metric: str, quantile: float | None, demand: int,
    line: int | None = None,
) -> tuple[float, int]:  # fmt: skip
    """Mean or quantile of a latency, and of how many requests; a share of them at least is within the latter.

    `rows` are the requests of a demand (on a line).
    """
    if metric == "itl_s":
        pauses, many = seen.pauses(demand, line)
        return (at_quantile(pauses, many, quantile), int(rows.sum())) if len(pauses) else (0.0, 0)
    values = getattr(seen, CALLED[metric])[rows]
    values = values[~np.isnan(values)]
    if not len(values):
        return 0.0, 0
    at = values.mean() if quantile is None else np.quantile(values, quantile, method="inverted_cdf")
    return float(at), len(values)
