"""Figures of a simulation: attainment, latencies, throughput, use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optmodels.arrays import Array, Ints, Mask
from optmodels.simulation.cluster import Cluster, Outcomes, Requests

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Summary:
    """Shares count every request, latencies served ones; rates from the first arrival to the last completion.

    Attributes:
        requests: n.
        attainment: served in time: within their deadline and their limit on the first token.
        refused: sent nowhere.
        late: served, but not in time.
        cascaded: done after their deadline although in time at their start: later requests slowed them
            (MaaSO §III-B).
        waiting_s: arrival to start. ttft_s: arrival to first token, MaaSO's response latency. e2e_s: arrival to finish.
        tpot_s: first token to finish for each output token after the first; answers of one token have none. Each with
            mean and quantiles.
        throughput_tokens_per_s: output tokens of served requests.
        goodput_tokens_per_s, goodput_requests_per_s: of requests in time.
        decode_tokens_per_s: mean over requests of their decode speed, MaaSO's T.
        slot_use, gpu_use: share of slots taken; share of GPUs whose instance served anybody.
        by_class, by_model: attainment by name.
    """

    requests: int
    attainment: float
    refused: float
    late: float
    cascaded: float
    waiting_s: Mapping[str, float]
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    e2e_s: Mapping[str, float]
    throughput_tokens_per_s: float
    goodput_tokens_per_s: float
    goodput_requests_per_s: float
    decode_tokens_per_s: float
    slot_use: float
    gpu_use: float
    by_class: Mapping[str, float] = field(default_factory=dict)
    by_model: Mapping[str, float] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in vars(self).items()}


def summary(
    outcomes: Outcomes, requests: Requests, cluster: Cluster,
    classes: Sequence[str] | None = None, models: Sequence[str] | None = None,
) -> Summary:  # fmt: skip
    """Figures of a simulation.

    Args:
        outcomes: outcomes of `cluster.simulate`.
        requests, cluster: the simulation's input.
        classes, models: names of the codes; None: the codes.
    """
    n, served, met = len(requests), outcomes.served, outcomes.met(requests)
    of = requests.take(served)
    start, first, finish = (a[served] for a in (outcomes.start_s, outcomes.first_token_s, outcomes.finish_s))
    decode = finish - first
    begin = float(requests.arrival_s[0]) if n else 0.0
    span = max(float(finish.max(initial=begin)), float(requests.arrival_s[-1]) if n else begin) - begin
    occupied = float((finish - start).sum())
    tokens, overdue = requests.output_tokens.astype(float), served & (outcomes.finish_s > requests.due_s)

    def share(mask: Mask) -> float:
        return float(mask.sum()) / n if n else 0.0

    def rate(amount: float) -> float:
        return amount / span if span > 0 else 0.0

    positive, longer = decode > 0, of.output_tokens > 1
    return Summary(
        n, share(met), share(~served), share(served & ~met), share(outcomes.promised & overdue),
        quantiles(start - of.arrival_s), quantiles(first - of.arrival_s),
        quantiles(decode[longer] / (of.output_tokens[longer] - 1)), quantiles(finish - of.arrival_s),
        rate(float(tokens[served].sum())), rate(float(tokens[met].sum())), rate(float(met.sum())),
        float((of.output_tokens[positive] / decode[positive]).mean()) if positive.any() else 0.0,
        rate(occupied / float(cluster.slots.sum())) if len(cluster) else 0.0,
        rate(float(outcomes.busy_s @ cluster.gpus) / float(cluster.gpus.sum())) if cluster.gpus.any() else 0.0,
        _by(met, requests.klass, classes), _by(met, requests.model, models),
    )  # fmt: skip


def quantiles(values: Array, levels: Sequence[float] = QUANTILES) -> dict[str, float]:
    """Mean and quantiles by name; nothing of nothing."""
    if not len(values):
        return {}
    names = [f"p{100 * q:g}" for q in levels]
    found = np.quantile(values, levels)
    return {"mean": float(values.mean()), **{k: float(v) for k, v in zip(names, found, strict=True)}}


def _by(met: Mask, codes: Ints, names: Sequence[str] | None) -> dict[str, float]:
    """Attainment by code, but for −1, which is none."""
    name: Callable[[int], str] = str if names is None else lambda k: names[k]
    known = codes >= 0
    count = np.bincount(codes[known])
    good = np.bincount(codes[known], met[known], minlength=len(count))
    return {name(int(k)): float(good[k] / count[k]) for k in np.flatnonzero(count)}


def columns(outcomes: Outcomes, requests: Requests, cluster: Cluster) -> dict[str, Any]:
    """One row a request, for a table: its input and its outcome; empty cells where refused."""
    names = np.array([*cluster.names, ""], dtype=object)

    def seconds(values: Array) -> Array:
        return np.where(outcomes.served, values, np.nan)

    return {
        "arrival_s": requests.arrival_s, "input_tokens": requests.prompt_tokens,
        "output_tokens": requests.output_tokens, "model": requests.model, "class": requests.klass,
        "deadline_s": np.where(np.isfinite(requests.deadline_s), requests.deadline_s, np.nan),
        "instance": names[outcomes.instance], "start_s": seconds(outcomes.start_s),
        "first_token_s": seconds(outcomes.first_token_s), "finish_s": seconds(outcomes.finish_s),
        "met": outcomes.met(requests), "promised": outcomes.promised,
    }  # fmt: skip
