"""Promised latencies of engines, tested on the step simulator until each is kept or broken beyond its interval.

Independent copies of the engines are simulated, each with Poisson streams of its own at the same rates. The statement
of a copy about a promise is one number: for "a share q of the requests sees at most L", the requests within L
less q times all; for "the mean is at most L", the sum of their distances below L. Its expectation is at least 0 exactly
if the promise holds, whatever the correlation of the requests of a copy, so that Student's t over the copies gives the
interval.

*Engines.* Poisson streams split at random stay Poisson and independent: of engines that are equal and do all of their
requests, one stands for all. Where some prefill for others, what reaches these is not Poisson, and all that exchange
caches are simulated together: a request goes to any engine of its station, and from there to any of the next.

*Several tests.* Let a plan have m promises, tested at most `LOOKS` times each, in at most R rounds. A single look then
has an error of α/(m·LOOKS·R), so that by the union bound all that is called kept is kept with probability 1 − α
together, however rounds and looks came about. Copies accumulate from look to look; those near their limit get more.

*Times between tokens.* Of ITL the shares are of the times between tokens of the streams' requests, not of requests:
a copy's number is the times within L less q times all.

*Warm up.* A copy begins empty and ends with fewer and fewer requests: those that arrive before and after the seconds
observed load the engine and are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from optmodels.arrays import Array, Index, Ints
from optmodels.simulation.continuous import Arrivals, Engine, Gaps
from optmodels.simulation.stages import simulate_stages

Metric = Literal["ttft_s", "tpot_s", "itl_s", "deadline_s"]
COARSE_S: Array = np.array(1e-4 * 1.05 ** np.arange(283), dtype=np.float64)  # up to 94 s: what ITL is seen to be

COPIES = 32  # of an engine in the first look; twice as many altogether in every further one
LOOKS = 4
LONG = 8.0  # longest latencies planned that a copy is observed for, at least
BEFORE, AFTER = 4.0, 1.0  # the same before and after it is
WARM_UP = 0.5  # of the seconds observed, before them besides: queues near their limit take long to fill
TAIL = 50.0  # requests expected beyond a quantile of a stream in the first look, all copies together
LEAST_REQUESTS = 4000  # of a stream, in the same way
MOST_REQUESTS = 200_000  # of a first look
AT_ONCE = 2_000_000  # requests that are simulated together, about: copies by turns where they have more
RARE = 0.005  # of a station's time and of any other capacity: streams are drawn so often, together


@dataclass(frozen=True)
class Station:
    """Engines that are equal; requests go to any of them.

    Attributes:
        slower: TTFT of measured engines is this multiple of the TTFT of their steps.
    """

    engine: Engine
    count: int = 1
    slower: float = 1.0


@dataclass(frozen=True)
class Onward:
    """Where requests are decoded that another station prefills, and the seconds that sends and receives their cache."""

    station: int
    sends_s: float
    receives_s: float


@dataclass(frozen=True)
class RequestStream:
    """Requests of one kind.

    Attributes:
        requests_per_s: at all engines of its station.
        input_tokens, output_tokens, received_tokens: of each request; the last are in the prefix cache.
        lengths: prompt and answer of recorded requests, each with the lengths of any, with the same share of its
            prompt in the cache; without any all are equal.
        load: share of the scarcest capacity of a station that one request/s takes, largest over stations.
        longest_s: a latency that is about the longest of requests of `output_tokens`.
        station: station at which it begins.
        onward: station at which it goes on; None: nowhere.
    """

    requests_per_s: float
    input_tokens: int
    output_tokens: int
    received_tokens: int
    load: float
    longest_s: float
    station: int = 0
    onward: Onward | None = None
    lengths: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Promise:
    """At most this many seconds: the mean (quantile None), or a share `quantile` of the streams' requests.

    Of ITL a share of the times between their tokens.
    """

    streams: tuple[int, ...]
    metric: Metric
    at_most_s: float
    quantile: float | None


@dataclass(frozen=True)
class Verdict:
    """Result of the simulation for one SLO.

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
    stations: Sequence[Station], streams: Sequence[RequestStream], promises: Sequence[Promise], error: float,
    seed: Sequence[int], over: Callable[[], bool] = lambda: False, looks: int = LOOKS, hopeful: bool = False,
) -> list[Verdict]:  # fmt: skip
    """Test the promises of engines that are simulated together.

    Streams that are too rare to be seen are drawn more often, until they make `RARE` of a station's load together: its
    other requests see a little more load than planned, never less. Next to other streams of a promise they count as
    often as they come.

    Args:
        stations: the engines.
        streams: arriving streams.
        promises: SLOs of the streams.
        error: probability with which one look may be wrong about one promise.
        seed: random seed of the draws, with the number of the look.
        over: whether there is no time for another look.
        looks: at most this many.
        hopeful: after the second one only at promises that seem kept, where more copies may show it. That fewer are
            looked at makes no wrong "kept" more likely.
    """
    from scipy.stats import t as student

    drawn = [
        replace(s, requests_per_s=max(s.requests_per_s, RARE / len(streams) / s.load if s.load > 0 else 0.0))
        for s in streams
    ]  # fmt: skip
    counts = np.array([s.requests_per_s / x.requests_per_s for s, x in zip(streams, drawn, strict=True)])
    longest = max(_longest_s(s) for s in streams)
    seconds = _seconds(drawn, promises, longest)
    span = (BEFORE * longest + WARM_UP * seconds, seconds, AFTER * longest)
    each = max(1, int(AT_ONCE / (sum(s.requests_per_s for s in drawn) * sum(span))))
    limits = [p.at_most_s * (1 + 1e-9) for p in promises if p.metric == "itl_s"]
    edges = np.unique(np.concatenate([limits, COARSE_S])) if limits else None
    scores: list[list[Array]] = [[] for _ in promises]
    seen: list[list[tuple[Array, Array]]] = [[] for _ in promises]
    requests = [0 for _ in promises]
    open_, verdicts, means = set(range(len(promises))), {}, dict[int, float]()
    for look in range(looks):
        left = COPIES * 2 ** max(look - 1, 0)
        if look and over():
            break
        rng = np.random.default_rng([*seed, look])
        while left:
            copies, left = min(each, left), max(left - each, 0)
            values = _values(stations, drawn, copies, span, rng, edges)
            for k in open_:
                p = promises[k]
                copy, latency, many = (
                    np.concatenate(x) for x in zip(*(values[i, p.metric] for i in p.streams), strict=True)
                )
                weight = many * np.repeat(counts[[*p.streams]], [len(values[i, p.metric][0]) for i in p.streams])
                within = latency <= p.at_most_s * (1 + 1e-9)
                gain = p.at_most_s - latency if p.quantile is None else within - p.quantile
                scores[k].append(np.asarray(np.bincount(copy, weight * gain, copies), dtype=float))
                seen[k].append((latency, weight))
                requests[k] += sum(len(values[i, "tpot_s" if p.metric == "itl_s" else p.metric][0]) for i in p.streams)
        for k in sorted(open_):
            z, p = np.concatenate(scores[k]), promises[k]
            means[k] = mean = float(z.mean())
            spread = float(z.std(ddof=1)) / math.sqrt(len(z))
            at = student.isf(error, len(z) - 1) * spread
            latency, weight = (np.concatenate(x) for x in zip(*seen[k], strict=True))
            found: Literal["kept", "broken", "undecided"] = (
                "kept" if len(latency) and mean >= at else "broken" if mean < -at else "undecided"
            )
            verdicts[k] = Verdict(p, found, _seen_s(latency, weight, p.quantile), requests[k])
        open_ = {k for k in open_ if verdicts[k].found == "undecided" and not (hopeful and look and means[k] < 0.0)}
        if not open_:
            break
    return [verdicts[k] for k in range(len(promises))]


def _seen_s(latency: Array, weight: Array, quantile: float | None) -> float:
    """The mean or quantile of the observations; 0 without any."""
    if not len(latency):
        return 0.0
    if quantile is None:
        return float(np.average(latency, weights=weight))
    if np.ptp(weight) == 0:
        return float(np.quantile(latency, quantile))
    return float(np.quantile(latency, quantile, weights=weight, method="inverted_cdf"))


def _longest_s(s: RequestStream) -> float:
    """About the longest of its requests: of recorded answers all but one in a hundred."""
    outputs = [output for _, output in s.lengths] or [s.output_tokens]
    return s.longest_s * max(1.0, float(np.quantile(outputs, 0.99)) / s.output_tokens)


def _seconds(streams: Sequence[RequestStream], promises: Sequence[Promise], longest: float) -> float:
    """How long a copy is observed."""
    needed = LONG * longest
    for p in promises:
        tail = 1.0 - (0.5 if p.quantile is None else p.quantile)
        rate = sum(streams[i].requests_per_s for i in p.streams)
        needed = max(needed, max(TAIL / tail, LEAST_REQUESTS) / rate / COPIES)
    affordable = MOST_REQUESTS / COPIES / sum(s.requests_per_s for s in streams)
    return max(LONG * longest, min(needed, affordable))


def _values(
    stations: Sequence[Station], streams: Sequence[RequestStream], copies: int, span: tuple[float, float, float],
    rng: np.random.Generator, edges: Array | None = None,
) -> dict[tuple[int, Metric], tuple[Index, Array, Array]]:  # fmt: skip
    """Latencies by stream and metric, each with its copy, and how many there are; of answers of one token no TPOT.

    `span` is the seconds before those observed, observed, and after them. With `edges` times between tokens, too, each
    as the edge that it is not above.
    """
    rates = np.array([s.requests_per_s for s in streams])
    total = rates.sum()
    counts = rng.poisson(total * sum(span), copies)
    copy = np.repeat(np.arange(copies), counts)
    arrival = rng.uniform(0.0, sum(span), len(copy))
    kind = rng.choice(len(streams), len(copy), p=rates / total)
    order = np.argsort(arrival, kind="stable")
    copy, arrival, kind = copy[order], arrival[order], kind[order]
    engines = np.array([s.count for s in stations], np.int64)
    begins = np.cumsum(engines) - engines

    def column(name: str) -> Ints:
        return np.array([getattr(s, name) for s in streams], np.int64)[kind]

    def member(station: Ints) -> Ints:
        """Any engine of a request's station, in its copy; −1 without one."""
        of = np.maximum(station, 0)
        any_ = begins[of] + rng.integers(engines[of])
        return np.where(station < 0, -1, copy * int(engines.sum()) + any_)

    prompts, outputs, received = column("input_tokens"), column("output_tokens"), column("received_tokens")
    for k, s in enumerate(streams):
        if s.lengths:
            mine, recorded = np.flatnonzero(kind == k), np.array(s.lengths, np.int64)
            prompts[mine], outputs[mine] = recorded[rng.integers(len(recorded), size=len(mine))].T
            received[mine] = np.minimum(prompts[mine] * s.received_tokens // s.input_tokens, prompts[mine] - 1)
    inside = (arrival >= span[0]) & (arrival < span[0] + span[1])
    onward = [s.onward or Onward(-1, 0.0, 0.0) for s in streams]
    first = column("station")
    seen = simulate_stages(
        Arrivals.of(arrival, prompts, outputs, received_tokens=received),
        [s.engine for s in stations for _ in range(s.count)] * copies,
        member(first), np.array([s.slower for s in stations])[first],
        member(np.array([o.station for o in onward], np.int64)[kind]),
        np.array([o.sends_s for o in onward])[kind], np.array([o.receives_s for o in onward])[kind],
        None if edges is None else Gaps(edges, np.where(inside, copy * len(streams) + kind, -1)),
    )  # fmt: skip
    latency: dict[Metric, Array] = {"ttft_s": seen.ttft_s, "tpot_s": seen.tpot_s, "deadline_s": seen.e2e_s}
    found: dict[tuple[int, Metric], tuple[Index, Array, Array]] = {}
    for k in range(len(streams)):
        for metric, values in latency.items():
            rows = np.flatnonzero(inside & (kind == k) & ~np.isnan(values))
            found[k, metric] = copy[rows], values[rows], np.ones(len(rows))
    if seen.gaps is not None and edges is not None:
        gaps = np.zeros((copies * len(streams), len(edges) + 1))
        gaps[: len(seen.gaps)] = seen.gaps
        longest = np.append(edges, 2.0 * edges[-1]) * (1 - 2e-9)  # distance of a limit's edge above it
        for k in range(len(streams)):
            of, at = np.nonzero(gaps[k :: len(streams)])
            found[k, "itl_s"] = of, longest[at], gaps[k :: len(streams)][of, at]
    return found
