"""Waiting before the slots of one deployment: Erlang C, and the Allen–Cunneen approximation of G/G/c.

A deployment that runs batches of c requests is c servers with the end-to-end time S of a request as service time.

    C(c, ρ)                                  probability of waiting (Erlang C), exact for M/M/c
    W = C(c, ρ)·S/(c(1−ρ)) · (Ca² + Cs²)/2    mean waiting (Allen–Cunneen; exact for M/M/c and M/G/1)
    P(W > t) ≈ C·exp(−C·t/W)                 exponential tail; exact for M/M/c

Ca², Cs² are squared coefficients of variation: M/M/c has 1 and 1, M/D/c 1 and 0. For M/D/c with several servers ½ is
too little; Cosmetatos' correction is used: ½·(1 + (1−ρ)(c−1)(√(4+5c) − 2)/(16ρc)), at most 1 (M/M/c).

Buckets that share a deployment have different service times. Every bucket with service time at most S may use a
deployment planned for S: with m the mean of a mixture of such buckets and s² ≤ (1 + Cs²)·S·m its second moment, the
formula's (Ca² + Cs²)·m is at most (max(Ca², 1) + Cs²)·S. So `waiting` at S, with max(Ca², 1), bounds the mixture's.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

Discipline = Literal["none", "mdc", "mmc", "ggc"]
RECURSION = 10_000  # servers up to which Erlang's recursion is quicker than to import SciPy's special functions


@lru_cache(maxsize=4096)
def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c.

    Args:
        servers: c ≥ 1.
        load: ρ = λS/c, 0 ≤ ρ < 1.
    """
    if not 0 <= load < 1:
        raise ValueError(f"load {load} outside [0, 1)")
    if load == 0:
        return 0.0
    offered = servers * load
    if servers <= RECURSION:  # 1/B(c) = 1 + c/a · 1/B(c − 1), all terms positive
        inverse = 1.0
        for c in range(1, servers + 1):
            inverse = 1.0 + c / offered * inverse
        blocked = 1.0 / inverse
    else:
        from optmodels.special import gammaincc, gammaln

        # Erlang B from the incomplete gamma function: 1/B = e^a Γ(c+1, a)/a^c, evaluated in logs.
        log_inverse = offered + math.log(float(gammaincc(servers + 1, offered))) + float(gammaln(servers + 1))
        log_inverse -= servers * math.log(offered)
        blocked = math.exp(-log_inverse)
    return blocked / (1.0 - load * (1.0 - blocked))


def variability(
    model: Discipline, arrival_scv: float, service_scv: float, servers: int = 1, load: float = 1.0
) -> float:
    """(max(Ca², 1) + Cs²)/2 of a queueing model; for M/D/c corrected for c servers at load ρ."""
    if model == "mdc":
        correction = (1 - load) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * load * servers)
        return min(0.5 * (1 + correction), 1.0)
    if model == "mmc":
        return 1.0
    return (max(arrival_scv, 1.0) + service_scv) / 2.0


def waiting(servers: int, load: float, factor: float, percentile: float | None) -> float:
    """Waiting time in units of the service time S.

    Args:
        servers: slots c.
        load: ρ < 1.
        factor: `variability`.
        percentile: share of requests that wait no longer; None: the mean.
    """
    probability = erlang_c(servers, load)
    if probability <= 0 or factor <= 0:
        return 0.0
    mean = probability / (servers * (1.0 - load)) * factor
    if percentile is None:
        return mean
    if probability <= 1.0 - percentile:
        return 0.0
    return mean / probability * math.log(probability / (1.0 - percentile))
