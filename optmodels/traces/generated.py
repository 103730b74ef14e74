"""Requests as MaaSO §V-A draws them: gamma arrivals, decode lengths and SLO factors from ranges, mixed by shares.

Table I of the paper lists six traces. Its Proportion column is lost but for traces 4 to 6, and so are some ranges'
partners: each row that states a range pairs with the row before it where a cell is empty, and shares that are lost are
equal. So trace 2 is 300–500 tokens with factors 0.8–1.0 and 1.2–1.5 in halves, trace 3 is 300–500 and 600–1000 tokens
in halves, both with factors 0.8–1.2.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.errors import InputError, Mistake
from optmodels.traces.spec import MAX_REQUESTS, Generated, Mix
from optmodels.traces.types import Label, Trace

TABLE_I: dict[int, tuple[Mix, ...]] = {
    1: (Mix(output_tokens=(300, 1000), slo_factor=(0.8, 1.5)),),
    2: (Mix(output_tokens=(300, 500), slo_factor=(0.8, 1.0)), Mix(output_tokens=(300, 500), slo_factor=(1.2, 1.5))),
    3: (Mix(output_tokens=(300, 500), slo_factor=(0.8, 1.2)), Mix(output_tokens=(600, 1000), slo_factor=(0.8, 1.2))),
    4: (
        Mix(output_tokens=(300, 500), slo_factor=(0.8, 1.0), share=0.50),
        Mix(output_tokens=(600, 1000), slo_factor=(1.2, 1.5), share=0.50),
    ),
    5: (
        Mix(output_tokens=(300, 500), slo_factor=(0.8, 1.0), share=0.34),
        Mix(output_tokens=(300, 500), slo_factor=(1.2, 1.5), share=0.66),
    ),
    6: (
        Mix(output_tokens=(300, 500), slo_factor=(0.8, 1.0), share=0.66),
        Mix(output_tokens=(300, 500), slo_factor=(1.2, 1.5), share=0.34),
    ),
}


def mix_of(spec: Generated) -> tuple[Mix, ...]:
    """The kinds of request of a generated trace, from Table I, with the prompts given."""
    if spec.maaso is None:
        return spec.mix
    return tuple(m.model_copy(update={"prompt_tokens": spec.prompt_tokens}) for m in TABLE_I[spec.maaso])


def label_of(kind: Mix) -> str:
    """``300-500 tokens, 0.8-1.0``, or the name it was given."""
    if kind.name is not None:
        return kind.name
    factors = "" if kind.slo_factor is None else ", {}-{}".format(*kind.slo_factor)
    return "{}-{} tokens".format(*kind.output_tokens) + factors


def generate(spec: Generated) -> Trace:
    """Draw a trace; the same section gives the same trace.

    Labels are ``class`` (the kind of request) and, where models are given, ``model``.

    Raises:
        InputError: no request falls into the duration, or some kinds have SLO factors or models and some have not.
    """
    rng = np.random.default_rng(spec.seed)
    mix = mix_of(spec)
    arrival = _arrivals(spec, rng)
    n = len(arrival)
    kind = rng.choice(len(mix), n, p=_shares([m.share for m in mix]))
    prompt = _between(rng, kind, [m.prompt_tokens for m in mix])
    output = _between(rng, kind, [m.output_tokens for m in mix])
    factors = [m.slo_factor for m in mix]
    slo_factor: Array | None = None
    if all(f is not None for f in factors):
        low, high = np.array(factors, dtype=float).T
        slo_factor = rng.uniform(low[kind], high[kind])
    elif any(f is not None for f in factors):
        raise InputError(Mistake(None, "mix", None, "slo_factor of every kind of request, or of none"))
    names = [label_of(m) for m in mix]
    distinct = tuple(dict.fromkeys(names))
    labels = {"class": Label(distinct, np.array([distinct.index(x) for x in names], np.int64)[kind])}
    models = _models(spec, mix, kind, rng)
    if models is not None:
        labels["model"] = models
    name = f"MaaSO trace {spec.maaso}" if spec.maaso is not None else "generated"
    return Trace(name, arrival, prompt, output, labels, slo_factor)


def _arrivals(spec: Generated, rng: np.random.Generator) -> Array:
    """Sums of gamma gaps with mean 1/rate and the coefficient of variation given."""

    def gaps(count: int) -> Array:
        mean = 1.0 / spec.requests_per_s
        if spec.cv == 0:
            return np.full(count, mean)
        shape = spec.cv**-2
        return rng.gamma(shape, mean / shape, count)

    if spec.requests is not None:
        return np.cumsum(gaps(spec.requests))
    assert spec.duration_s is not None
    block = int(spec.duration_s * spec.requests_per_s * 1.2) + 100
    times = np.cumsum(gaps(block))
    while times[-1] < spec.duration_s and len(times) <= MAX_REQUESTS:
        times = np.concatenate((times, times[-1] + np.cumsum(gaps(block))))
    times = times[times < spec.duration_s]
    if not len(times):
        raise InputError(Mistake(None, "generated.duration_s", spec.duration_s, "long enough for one request to come"))
    return times


def _shares(values: list[float]) -> Array:
    weights = np.array(values, dtype=float)
    return weights / weights.sum()


def _between(rng: np.random.Generator, kind: Ints, ranges: list[tuple[int, int]]) -> Ints:
    low, high = np.array(ranges, dtype=np.int64).T
    return rng.integers(low[kind], high[kind], endpoint=True)


def _models(spec: Generated, mix: tuple[Mix, ...], kind: Ints, rng: np.random.Generator) -> Label | None:
    """The model of every request: its kind's, or drawn from `models`."""
    own = [m.model for m in mix]
    if not spec.models and not any(own):
        return None
    if not spec.models and not all(own):
        raise InputError(Mistake(None, "mix", None, "model of every kind of request, or models to draw from"))
    names = tuple(dict.fromkeys([*spec.models, *(m for m in own if m is not None)]))
    codes = np.zeros(len(kind), np.int64)
    if spec.models:
        codes = rng.choice(len(spec.models), len(kind), p=_shares(list(spec.models.values()))).astype(np.int64)
    fixed = np.array([-1 if m is None else names.index(m) for m in own], np.int64)[kind]
    return Label(names, np.where(fixed >= 0, fixed, codes))


def poisson(text: str, seed: int) -> Trace:
    """``poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS``; lengths are N, or LOW-HIGH and then drawn evenly.

    Raises:
        InputError: it is not so.
    """
    expected = "poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS, lengths as N or LOW-HIGH, as poisson:4:500-1500:200:600"
    parts = text.split(":")
    try:
        rate, seconds = float(parts[1]), float(parts[4])
        prompt, output = ([int(x) for x in part.split("-")] for part in parts[2:4])
        spec = Generated(
            requests_per_s=rate, duration_s=seconds, seed=seed,
            mix=(Mix(prompt_tokens=(prompt[0], prompt[-1]), output_tokens=(output[0], output[-1])),),
        )  # fmt: skip
    except (ValueError, IndexError):
        raise InputError(Mistake(None, "trace", text, expected)) from None
    if len(parts) != 5 or len(prompt) > 2 or len(output) > 2:
        raise InputError(Mistake(None, "trace", text, expected))
    return replace(generate(spec), name=text)
