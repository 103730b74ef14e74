"""A plan on the trace that it was made for, request by request: which promises the trace's own requests see kept.

The requests are sent to engines in turn and at random by the planned shares, as a replay sends them, and simulated step
by step. Nothing is drawn but who gets a request at random. A promise to a share q of a bucket is kept if so many of its
requests are within the limit, one on the mean if their mean is, whichever way they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from formulations.fleet.plan import PeriodLine
from formulations.fleet.problem import FleetCase
from formulations.fleet.replay import POLICIES, Seen, planned_of, simulate_engines
from optmodels.traces.types import Trace

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ROUNDING = 1e-9  # relative, of a latency
SEED = 0  # of who gets a request at random, as a replay has it where it is not told
MOST_TIMES = 16  # as many deployments of a line are tried at most
CALLED = {"ttft_s": "ttft_s", "tbt_s": "tpot_s", "deadline_s": "e2e_s"}  # of an SLO → of what was seen


class OnTrace:
    """One period of a plan on the trace's own requests.

    Args:
        case: the instance, all of whose workloads were cut from traces.
        t: the period.
        line: what runs in it.
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
    def seen(self) -> dict[str, Seen]:
        """What requests saw, by policy; the same draws as of a replay of all policies."""
        rng = np.random.default_rng(SEED)
        return {
            policy: simulate_engines(self.case, self.line, self.trace, self.code, self.planned, policy, rng, self.stretch)
            for policy in POLICIES
        }

    def worst(self, demand: str, metric: str, quantile: float | None) -> tuple[float, int]:
        """The mean or quantile of a demand under the policy where it is longest, and its requests; 0 of none."""
        mine = self.code == self.names.index(demand)
        return max(_at(seen, mine & (seen.line >= 0), metric, quantile) for seen in self.seen.values())

    def of_line(self, j: int, demand: str, metric: str, quantile: float | None) -> float:
        """The same of the requests that one line began to serve; of lines that decode for others, of all."""
        mine = self.code == self.names.index(demand)
        decodes = self.line.deployments[j].stage == "decode"
        return max(_at(seen, mine & (decodes | (seen.line == j)), metric, quantile)[0] for seen in self.seen.values())

    def load_that_holds(self, j: int, limits: Mapping[tuple[str, str], tuple[float, float | None]]) -> float:
        """The share of its load at which a line that does whole requests keeps its limits, with more deployments.

        Args:
            j: the line.
            limits: of its demands by (demand, metric): seconds, and for which share of the requests (None: the mean).
        """
        count = self.line.deployments[j].count
        low, high = count, count + 1
        while not self._holds(j, high, limits):
            if high >= MOST_TIMES * count:
                break
            low, high = high, count + 2 * (high - count)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds(j, middle, limits) else (middle, high)
        return count / (high - 0.5)  # so many deployments are needed, and rounding lets no fewer do

    def _holds(self, j: int, count: int, limits: Mapping[tuple[str, str], tuple[float, float | None]]) -> bool:
        """Whether the requests sent to a line are in time on so many deployments of it."""
        d = self.line.deployments[j]
        whole = [s.model_copy(update={"share": 1.0}) for s in d.serves]
        alone = d.model_copy(update={"count": count, "serves": whole})
        line = self.line.model_copy(update={"deployments": [alone]})
        rng = np.random.default_rng(SEED)
        for policy, seen in self.seen.items():
            rows = np.flatnonzero(seen.line == j)
            code = self.code[rows]
            found = simulate_engines(
                self.case, line, self.trace.take(rows), code, planned_of(self.case, line), policy, rng, self.stretch
            )
            for (demand, metric), (seconds, quantile) in limits.items():
                if _at(found, code == self.names.index(demand), metric, quantile)[0] > seconds * (1 + ROUNDING):
                    return False
        return True


def _at(seen: Seen, rows: npt.NDArray[np.bool_], metric: str, quantile: float | None) -> tuple[float, int]:
    """Mean or quantile of a latency, and of how many requests; a share of them at least is within the latter."""
    values = getattr(seen, CALLED[metric])[rows]
    values = values[~np.isnan(values)]
    if not len(values):
        return 0.0, 0
    at = values.mean() if quantile is None else np.quantile(values, quantile, method="inverted_cdf")
    return float(at), len(values)
