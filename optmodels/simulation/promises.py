"""Promised latencies of one engine, tested on the step simulator until each is kept or broken beyond its interval.

Independent copies of the engine are simulated, each with Poisson streams of its own at the same rates. What a copy says
about a promise is one number: for "a share q of the requests sees at most L", the requests within L less q times all;
for "the mean is at most L", the sum of what they stay below L. Its expectation is at least 0 exactly if the promise
holds, whatever the correlation of the requests of a copy, so that Student's t over the copies gives the interval.

*Several tests.* Let a plan have m promises, tested at most `LOOKS` times each, in at most R rounds. A single look then
has an error of α/(m·LOOKS·R), so that by the union bound all that is called kept is kept with probability 1 − α
together, however rounds and looks came about. Copies accumulate from look to look; those near their limit get more.

*Warm up.* A copy begins empty and ends with fewer and fewer requests: those that arrive before and after the seconds
observed load the engine and are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from optmodels.simulation.continuous import Arrivals, Engine, Served, simulate

Array = npt.NDArray[np.float64]
Metric = Literal["ttft_s", "tbt_s", "deadline_s"]

COPIES = 32  # of an engine in the first look; twice as many altogether in every further one
LOOKS = 4
LONG = 8.0  # longest latencies planned that a copy is observed for, at least
BEFORE, AFTER = 3.0, 1.0  # the same before and after it is
WARM_UP = 0.1  # of the seconds observed, before them besides
TAIL = 50.0  # requests expected beyond a quantile of a stream in the first look, all copies together
MOST_REQUESTS = 200_000  # of a first look
RARE = 0.005  # of an engine's time and of any other capacity: streams are drawn so often, together


@dataclass(frozen=True)
class Stream:
    """Requests of one kind.

    Attributes:
        requests_per_s: at one engine.
        input_tokens, output_tokens, received_tokens: of each request; the last are in the prefix cache.
        load: share of the scarcest capacity of an engine that one request/s takes.
        longest_s: a latency that is about the longest of its requests.
    """

    requests_per_s: float
    input_tokens: int
    output_tokens: int
    received_tokens: int
    load: float
    longest_s: float


@dataclass(frozen=True)
class Promise:
    """At most so many seconds: the mean (quantile None), or a share `quantile` of the stream's requests."""

    stream: int
    metric: Metric
    at_most_s: float
    quantile: float | None


@dataclass(frozen=True)
class Verdict:
    """What the simulation says of a promise.

    Attributes:
        found: ``kept`` or ``broken`` beyond the interval; ``undecided``: neither after the last look, or no time.
        seen_s: the mean or quantile seen.
        requests: seen.
    """

    promise: Promise
    found: Literal["kept", "broken", "undecided"]
    seen_s: float
    requests: int

    @property
    def excess(self) -> float:
        """Seen over promised."""
        return self.seen_s / self.promise.at_most_s


def judge(
    engine: Engine, streams: Sequence[Stream], promises: Sequence[Promise], error: float, seed: Sequence[int],
    slower: float = 1.0, over: Callable[[], bool] = lambda: False,
) -> list[Verdict]:  # fmt: skip
    """Test the promises of one engine.

    Streams that are too rare to be seen are drawn more often, until they make `RARE` of the engine's load together: its
    other requests see a little more load than planned, never less.

    Args:
        engine: the engine.
        streams: what arrives.
        promises: what is promised to them.
        error: probability with which one look may be wrong about one promise.
        seed: of all that is drawn, with the number of the look.
        slower: TTFT of measured engines is so many times that of their steps.
        over: whether there is no time for another look.
    """
    from scipy.stats import t as student

    drawn = [
        replace(s, requests_per_s=max(s.requests_per_s, RARE / len(streams) / s.load if s.load > 0 else 0.0))
        for s in streams
    ]  # fmt: skip
    longest = max(s.longest_s for s in streams)
    seconds = _seconds(drawn, promises, longest)
    span = (BEFORE * longest + WARM_UP * seconds, seconds, AFTER * longest)
    scores: list[list[Array]] = [[] for _ in promises]
    seen: list[list[Array]] = [[] for _ in promises]
    open_, verdicts = set(range(len(promises))), {}
    for look in range(LOOKS):
        copies = COPIES * 2 ** max(look - 1, 0)
        if look and over():
            break
        values = _values(engine, drawn, copies, span, np.random.default_rng([*seed, look]), slower)
        for k in open_:
            p = promises[k]
            copy, latency = values[p.stream, p.metric]
            gain = p.at_most_s - latency if p.quantile is None else (latency <= p.at_most_s * (1 + 1e-9)) - p.quantile
            scores[k].append(np.asarray(np.bincount(copy, gain, copies), dtype=float))
            seen[k].append(latency)
        for k in sorted(open_):
            z, latency, p = np.concatenate(scores[k]), np.concatenate(seen[k]), promises[k]
            mean, spread = float(z.mean()), float(z.std(ddof=1)) / math.sqrt(len(z))
            at = student.isf(error, len(z) - 1) * spread
            found: Literal["kept", "broken", "undecided"] = (
                "kept" if len(latency) and mean >= at else "broken" if mean < -at else "undecided"
            )
            value = (
                0.0 if not len(latency) else latency.mean() if p.quantile is None else np.quantile(latency, p.quantile)
            )
            verdicts[k] = Verdict(p, found, float(value), len(latency))
        open_ = {k for k in open_ if verdicts[k].found == "undecided"}
        if not open_:
            break
    return [verdicts[k] for k in range(len(promises))]


def _seconds(streams: Sequence[Stream], promises: Sequence[Promise], longest: float) -> float:
    """How long a copy is observed."""
    needed = LONG * longest
    for p in promises:
        tail = 1.0 - (0.5 if p.quantile is None else p.quantile)
        needed = max(needed, TAIL / tail / streams[p.stream].requests_per_s / COPIES)
    affordable = MOST_REQUESTS / COPIES / sum(s.requests_per_s for s in streams)
    return max(LONG * longest, min(needed, affordable))


def _values(
    engine: Engine,
    streams: Sequence[Stream],
    copies: int,
    span: tuple[float, float, float],
    rng: np.random.Generator,
    slower: float,
) -> dict[tuple[int, Metric], tuple[npt.NDArray[np.intp], Array]]:
    """Latencies by stream and metric, each with the copy that it was seen on; of answers of one token no TPOT.

    `span` is the seconds before those observed, observed, and after them.
    """
    rates = np.array([s.requests_per_s for s in streams])
    total = rates.sum()
    counts = rng.poisson(total * sum(span), copies)
    copy = np.repeat(np.arange(copies), counts)
    arrival = rng.uniform(0.0, sum(span), len(copy))
    kind = rng.choice(len(streams), len(copy), p=rates / total)
    order = np.argsort(arrival, kind="stable")
    copy, arrival, kind = copy[order], arrival[order], kind[order]

    def column(name: str) -> npt.NDArray[np.int64]:
        return np.array([getattr(s, name) for s in streams], np.int64)[kind]

    seen: Served = simulate(
        Arrivals.of(
            arrival, column("input_tokens"), column("output_tokens"), received_tokens=column("received_tokens")
        ),
        [engine] * copies, assigned=copy,
    )  # fmt: skip
    extra = (slower - 1.0) * seen.ttft_s
    latency: dict[Metric, Array] = {
        "ttft_s": seen.ttft_s + extra,
        "tbt_s": seen.tpot_s,
        "deadline_s": seen.e2e_s + extra,
    }
    inside = (arrival >= span[0]) & (arrival < span[0] + span[1])
    found: dict[tuple[int, Metric], tuple[npt.NDArray[np.intp], Array]] = {}
    for s in range(len(streams)):
        for metric, values in latency.items():
            rows = np.flatnonzero(inside & (kind == s) & ~np.isnan(values))
            found[s, metric] = copy[rows], values[rows]
    return found
