"""Requests whose prompt one engine prefills and another, to which the KV cache goes, decodes.

Nothing comes back from decoding to prefill: the engines that prefill, with those that do all of a request, are
simulated first, and those that decode then, whose requests arrive when their cache does. A request has its first token
where it is prefilled, once its cache is sent. What prefill engines hold for caches on the way is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.simulation.continuous import Arrivals, Engine, Gaps, simulate


@dataclass(frozen=True)
class Staged:
    """Latencies of n requests, NaN where they are refused.

    Attributes:
        queue_s, ttft_s, tpot_s, e2e_s: (n,) until first scheduled, until the first token, for each token after it
            (NaN for answers of one), until the last.
        busy_s: busy seconds of the engines together.
        gaps: (groups, B + 1) counted times between tokens (`Gaps`); None where not asked for.
    """

    queue_s: Array
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    busy_s: float
    gaps: Ints | None = None


def simulate_stages(
    arrivals: Arrivals, engines: Sequence[Engine], first: Ints, slower: Array, then: Ints, sends_s: Array,
    receives_s: Array, gaps: Gaps | None = None,
) -> Staged:  # fmt: skip
    """Serve all requests.

    Args:
        arrivals: requests.
        engines: instances.
        first: (n,) of them, where each request begins; −1: refused.
        slower: (n,) what steps state of the time to its first token is multiplied by (`EngineCosts.slower`).
        then: (n,) where it is decoded; −1: where it began.
        sends_s, receives_s: (n,) from the end of its prefill until it has its first token, and from then on until its
            cache has arrived; of requests that go on elsewhere.
        gaps: times between tokens to count; where another engine decodes, the first lasts until it has joined there.

    Raises:
        InputError: a value that the requests and engines do not allow.
    """
    apart, output = then >= 0, arrivals.output_tokens
    seen = simulate(
        Arrivals.of(
            arrivals.arrival_s, arrivals.input_tokens, np.where(apart, 1, output),
            received_tokens=arrivals.received_tokens, prefixes=arrivals.prefixes,
        ),
        engines, assigned=first, gaps=gaps,
    )  # fmt: skip
    counts = seen.gaps
    more = (slower - 1.0) * seen.ttft_s  # of measured engines beyond their steps
    ttft, e2e, tpot, busy = seen.ttft_s + more, seen.e2e_s + more, seen.tpot_s, float(seen.busy_s.sum())
    if apart.any():
        ttft = np.where(apart, ttft + sends_s, ttft)
        arrival = arrivals.arrival_s + ttft + receives_s
        on = np.flatnonzero(apart & (output > 1))
        on = on[np.argsort(arrival[on], kind="stable")]
        prompt = arrivals.input_tokens[on]
        rest = simulate(
            Arrivals.of(arrival[on], prompt, output[on], received_tokens=prompt), engines, assigned=then[on],
            gaps=None if gaps is None else Gaps(gaps.edges_s, gaps.group[on], receives_s[on]),
        )  # fmt: skip
        if counts is not None and rest.gaps is not None:
            counts[: len(rest.gaps)] += rest.gaps
        e2e = np.where(apart, ttft, e2e)
        e2e[on] = arrival[on] - arrivals.arrival_s[on] + rest.e2e_s
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            tpot = np.where(apart, (e2e - ttft) / (output - 1), tpot)
        busy += float(rest.busy_s.sum())
    return Staged(seen.queue_s, ttft, tpot, e2e, busy, counts)
