"""Waiting in a fleet plan by simulation: every deployment as slots that serve in order of arrival."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from formulations.fleet.problem import Fleet
from formulations.fleet.replay import waits
from optmodels.engine.continuous import Percentile

Array = npt.NDArray[np.float64]
BATCHES = 20  # of consecutive requests, for the standard error of a share
WARM_UP = 0.1  # of the requests, which find the deployment too empty


@dataclass(frozen=True)
class Confirmation:
    """A latency promise of one demand on one deployment, and the requests that met it in simulation."""

    period: str
    deployment: str
    demand: str
    limit: str  # "TTFT" or "deadline"
    seconds: float
    percentile: float | None  # None: the mean is limited
    within: float  # share of its simulated requests within the limit
    error: float  # standard error of that share, by batch means
    mean_s: float  # simulated, waiting included
    mean_error_s: float
    utilisation: float  # of the slots
    planned_wait_s: float  # at the percentile, or the mean
    wait_s: float  # the same, simulated
    requests: int

    def holds(self, errors: float = 3.0) -> bool:
        """Whether the promise is met to within so many standard errors."""
        if self.percentile is None:
            return self.mean_s <= self.seconds + errors * self.mean_error_s
        return self.within >= self.percentile - errors * self.error


def confirm(
    problem: Fleet, plan: Mapping[str, Any], requests: int = 100_000, seed: int = 0, full: bool = False
) -> Iterator[Confirmation]:
    """Simulate every deployment of a plan (as JSON data) and compare with its TTFT and deadline limits.

    Arrivals are Poisson; the deployments of one line split their requests at random, so one of them is simulated.
    Service times are exponential around the bucket's E2E for ``mmc`` and equal to it for ``mdc``; for ``ggc`` gamma
    with the instance's coefficients (arrivals too, where more variable than Poisson).

    Args:
        problem: the instance.
        plan: its plan.
        requests: per deployment line.
        seed: of the draws.
        full: with arrivals scaled up to the load level the deployment is planned for, not those of the plan.
    """
    case, q = problem.resolve(), problem.queueing
    rng = np.random.default_rng(seed)
    for period in plan["periods"]:
        for d in period["deployments"]:
            lines = [s for s in d["serves"] if s["requests_per_s"] > 0]
            if not lines or q.model == "none":
                continue
            rates = np.array([s["requests_per_s"] for s in lines]) / d["count"]
            points = {p.name: p for p in case.points or ()}
            e2e = np.array([
                s["e2e_s"] if d["point"] is None else d["batch"] / points[d["point"]].requests_per_s[s["demand"]]
                for s in lines
            ])  # fmt: skip
            if full:
                rates *= d["load_level"] * d["batch"] / float(rates @ e2e)
            rate = float(rates.sum())
            bucket = rng.choice(len(lines), requests, p=rates / rate)
            arrivals = np.cumsum(_draw(rng, max(q.arrival_scv, 1.0) if q.model == "ggc" else 1.0, requests) / rate)
            scv = {"mmc": 1.0, "mdc": 0.0}.get(q.model, q.service_scv)
            waited = waits(arrivals, e2e[bucket] * _draw(rng, scv, requests), d["batch"])
            kept = np.arange(requests) >= WARM_UP * requests
            for k, s in enumerate(lines):
                seen = waited[kept & (bucket == k)]
                slo = case.workload(s["demand"].rpartition("/")[0]).slo
                soft = case.workload(s["demand"].rpartition("/")[0]).soft
                for name, limit, own in (
                    ("TTFT", slo.ttft_s, s["ttft_s"] or 0.0), ("deadline", slo.deadline_s, float(e2e[k])),
                ):  # fmt: skip
                    if limit is None or len(seen) < 10 * BATCHES:
                        continue
                    share = limit.percentile if isinstance(limit, Percentile) else None
                    seconds = limit.at_most if isinstance(limit, Percentile) else limit
                    seconds *= soft.up_to if soft is not None and s["misses_slo"] else 1.0
                    within = seen + own <= seconds * (1 + 1e-9)
                    yield Confirmation(
                        period["name"], d["name"], s["demand"], name, seconds, share, float(within.mean()),
                        _error(within.astype(float)), float(seen.mean()) + own, _error(seen),
                        float(rates @ e2e) / d["batch"], s["wait_s"],
                        float(seen.mean() if share is None else np.quantile(seen, share)), len(seen),
                    )  # fmt: skip


def _draw(rng: np.random.Generator, scv: float, n: int) -> Array:
    """Gamma draws of mean 1 with a squared coefficient of variation; 1: exponential, 0: constant."""
    return np.ones(n) if scv <= 0 else rng.gamma(1.0 / scv, scv, n)


def _error(values: Array) -> float:
    """Standard error of the mean of a correlated series, by batch means."""
    means = np.array([part.mean() for part in np.array_split(values, BATCHES)])
    return float(means.std(ddof=1)) / math.sqrt(BATCHES)
