"""Batch controllers of instances, as one names them on the command line: ``static:16``, ``sla:0.03,memory:60000``."""

from __future__ import annotations

import math

import numpy as np

from optmodels.errors import InputError, Mistake
from optmodels.latency.batch_limits import from_sample
from optmodels.latency.controllers import (
    CombinedController,
    Controller,
    MemoryController,
    SlaController,
    StaticController,
)
from optmodels.simulation.cluster import Cluster, Requests

WAYS = "static:BATCH, sla:SECONDS_PER_TOKEN, memory:KV_TOKENS, or several of them joined by commas"
EPSILON = 0.05  # ε_M of the memory controller
MOST_REQUESTS = 20_000  # event by event in Python


def controllers(text: str, requests: Requests, cluster: Cluster) -> list[Controller]:
    """One controller for each instance; of several named, the least limit counts (§III-B).

    `memory` divides what KV tokens an instance holds by the mean lengths of its requests (Algorithm 1), `sla` searches
    for the batch whose decode step lasts this long (Algorithm 2), `static` is a fixed limit; none exceeds the slots.

    Args:
        text: names and values.
        requests: whose lengths the memory controller starts from, by model.
        cluster: the instances.

    Raises:
        InputError: an unknown name, a value that is no number > 0, or too many requests for the event-by-event engine.
    """
    named = [_named(part) for part in text.split(",")]
    if len(requests) > MOST_REQUESTS:
        expected = f"at most {MOST_REQUESTS:,} with a controller, which is called event by event"
        raise InputError(Mistake(None, "requests", len(requests), expected, hint="a shorter trace, or --first SECONDS"))
    made = []
    for slots, model in zip(cluster.slots.tolist(), cluster.model.tolist(), strict=True):
        own = requests.model == model
        mine = requests.take(own) if own.any() else requests
        each = [_made(name, value, slots, mine) for name, value in named]
        one = each[0]
        for other in each[1:]:
            one = CombinedController(one, other)
        made.append(one)
    return made


def _named(part: str) -> tuple[str, float]:
    name, _, value = part.strip().partition(":")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    whole = name != "static" or number == round(number) if math.isfinite(number) else False
    if name not in ("static", "sla", "memory") or not number > 0 or not whole:
        raise InputError(Mistake(None, "controller", part, WAYS))
    return name, number


def _made(name: str, value: float, slots: int, requests: Requests) -> Controller:
    if name == "static":
        return StaticController(min(int(value), slots))
    if name == "sla":
        return SlaController(value, tolerance_s=0.05 * value, b_max=slots)
    lengths = from_sample(requests.prompt_tokens.astype(np.float64), requests.output_tokens.astype(np.float64))
    return MemoryController(value, EPSILON, lengths, b_max=slots)
