"""The step time that is best for one kind of requests, beside those of loads, by a root of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.optimize import brentq

from optmodels.engine.continuous import EngineLimits, Stage
from optmodels.engine.costs import EngineCosts
from optmodels.plans.engines import Request, at_level, capacities, latencies


def with_best(
    steps: Sequence[float], limits: EngineLimits, e: EngineCosts, asked: Request, at_most_s: float,
    quantile: float | None, stage: Stage = "both", moved_s: float = 0.0,
) -> list[float]:  # fmt: skip
    """The steps, and the longest one that keeps TPOT below `at_most_s` and time the scarcest, if it is not the longest.

    It may be shorter than all of these: a step is as long as `fixed_s` at least.
    """

    def beyond(t: float) -> float:
        level = at_level(limits, e.costs, e.kv_tokens, {"": asked}, t, stage, e.ranks)
        if level is None:
            return -1.0
        request, each = level.requests[""], 0.0
        if stage != "prefill":
            wanted, slots = (None, quantile, None), limits.max_num_seqs
            each = latencies(level, request, t, 0.0, None, slots, e.slower, e.costs.request_s, wanted)[1]
        if stage == "decode":
            each += (t + moved_s + e.costs.request_s) / (request.output - 1)
        takes = capacities(level, t, 1.0, None, limits.max_num_seqs, {"": moved_s})[""]
        return max(each / at_most_s, *(takes[row] / takes["time"] for row in ("running", "memory", "tokens"))) - 1

    kept = max(t for t in (e.costs.fixed_s, *steps) if beyond(t) <= 0)
    after = min((t for t in steps if t > kept), default=None)
    if after is None or (beyond(kept) == -1.0 and math.isinf(beyond(after))):
        return [*steps]
    return [*steps, brentq(beyond, kept, after) * (1 - 1e-9)]
