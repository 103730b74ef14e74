"""One deployment on a trace: what its users see, and how full it is over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from optmodels import catalog
from optmodels.errors import InputError, Mistake, one_of
from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.engines.terms import Deployment
from optmodels.latency.fit.document import read_latency_model
from optmodels.latency.fit.steps import step_costs
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import Engine as EngineName
from optmodels.latency.resolve import Source, resolve
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.work import KV_BYTES, layer_work
from optmodels.simulation.continuous import Arrivals, Dispatcher, Engine, Floats, Served, simulate
from optmodels.simulation.summary import quantiles
from optmodels.traces.types import Trace

LEVELS = (0.5, 0.9, 0.95, 0.99)
BINS = 200


@dataclass(frozen=True)
class Limits:
    """What counts as good: seconds to the first token, per output token after it, to the last; None: anything."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


def named(llm: str, gpu: str, tp: int, precision: str, kv_precision: str, engine: str) -> Deployment:
    """A deployment by names of the catalogue.

    Raises:
        InputError: one is not there.
    """
    one_of("llm", llm, catalog.llms(), hint=True)
    one_of("gpu", gpu, catalog.gpus(), hint=True)
    one_of("engine", engine, get_args(EngineName))
    one_of("kv_precision", kv_precision, KV_BYTES)
    return Deployment(
        catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, engine, precision, kv_precision, tp  # type: ignore[arg-type]
    )  # fmt: skip


def costs_of(model: str, d: Deployment, prompt_tokens: float) -> tuple[StepCosts, Provenance]:
    """Step costs of a deployment by ``default``, ``roofline`` or a model file fitted to its measured steps.

    Raises:
        InputError: no such file, or not such a model.
    """
    if model in ("default", "roofline"):
        coefficients = read_engine_model() if model == "default" else None
        return resolve(Source(d.engine, coefficients), d, prompt_tokens)  # type: ignore[arg-type]
    fitted = read_latency_model(Path(model))
    notes = (f"read as measured on this deployment: {fitted.title or model}",)
    return step_costs(fitted), Provenance(model, fitted.source, notes=notes)


def kv_room(d: Deployment, max_num_seqs: int, max_num_batched_tokens: int) -> float:
    """Tokens of KV cache that weights and a pass leave on the GPUs.

    Raises:
        InputError: not even one request's.
    """
    work = layer_work(d.llm, d.precision, d.kv_precision)
    vram = float(d.gpu.vram_gib) * 2**30
    room = kv_tokens(work, vram, d.gpus, chunk_tokens=max_num_batched_tokens, max_requests=max_num_seqs)
    if room < 1:
        raise InputError(Mistake(None, "tp", d.gpus, f"GPUs enough for the weights of {d.llm_name} ({d.precision})"))
    return room


def serve(
    trace: Trace, engine: Engine, instances: int = 1, dispatcher: Dispatcher = "earliest_finish", refuse: bool = False,
    limits: Limits | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Serve a trace on instances that are alike.

    Args:
        trace: the requests.
        engine: one instance.
        instances: how many.
        dispatcher: who sends a request where.
        refuse: requests whose first or last token is predicted to be later than the limits are refused.
        limits: of goodput and refusals.

    Returns:
        The report, JSON-ready, and a table of the requests, a column an entry.
    """
    limits = limits or Limits()
    arrivals = Arrivals.of(
        trace.arrival_s, trace.prompt_tokens, trace.output_tokens, prefixes=trace.prefixes,
        ttft_limit_s=np.inf if limits.ttft_s is None else limits.ttft_s,
        deadline_s=np.inf if limits.e2e_s is None else limits.e2e_s,
    )  # fmt: skip
    bin_s = max(trace.duration_s, 1e-9) / BINS
    seen = simulate(
        arrivals, [engine] * instances, dispatcher, refuse=refuse, bin_s=bin_s, bins=2 * BINS
    )  # fmt: skip
    good = _good(seen, limits)
    return _report(seen, engine, instances, good, limits), {
        "arrival_s": arrivals.arrival_s, "prompt_tokens": arrivals.input_tokens,
        "output_tokens": arrivals.output_tokens, "instance": seen.instance, "queue_s": seen.queue_s,
        "ttft_s": seen.ttft_s, "tpot_s": seen.tpot_s, "e2e_s": seen.e2e_s, "cached_tokens": seen.hit_tokens,
        "preemptions": seen.preemptions, "good": good,
    }  # fmt: skip


def _good(seen: Served, limits: Limits) -> Any:
    """(n,) served, and within every limit; answers of one token have no time per output token."""
    good = seen.served.copy()
    for limit, values in ((limits.ttft_s, seen.ttft_s), (limits.tpot_s, seen.tpot_s), (limits.e2e_s, seen.e2e_s)):
        if limit is not None:
            good &= ~(values > limit * (1 + 1e-9))
    return good


def _report(seen: Served, engine: Engine, instances: int, good: Any, limits: Limits) -> dict[str, Any]:
    a, served = seen.arrivals, seen.served
    n = len(a)
    begin = float(a.arrival_s[0]) if n else 0.0
    span = float(np.nanmax(seen.finish_s, initial=begin)) - begin
    busy, steps = float(seen.busy_s.sum()), int(seen.steps.sum())

    def rate(amount: Any) -> float:
        return float(amount) / span if span > 0 else 0.0

    tpot = seen.tpot_s[served]
    found: dict[str, Any] = {
        "requests": n, "refused": int(n - served.sum()), "seconds": span,
        "ttft_s": quantiles(seen.ttft_s[served], LEVELS),
        "tpot_s": quantiles(tpot[np.isfinite(tpot)], LEVELS),
        "e2e_s": quantiles(seen.e2e_s[served], LEVELS),
        "queue_s": quantiles(seen.queue_s[served], LEVELS),
        "requests_per_s": rate(served.sum()), "output_tokens_per_s": rate(a.output_tokens[served].sum()),
        "good_share": float(good.mean()) if n else 1.0,
        "goodput_requests_per_s": rate(good.sum()), "goodput_tokens_per_s": rate(a.output_tokens[good].sum()),
        "preemptions": int(seen.preemptions.sum()),
        "cached_prompt_share": float(seen.hit_tokens.sum() / max(1, a.input_tokens[served].sum())),
        "steps": steps, "mean_step_s": busy / steps if steps else 0.0,
        "busy_share": rate(busy / instances), "most_running": int(seen.most_running.max(initial=0)),
    }  # fmt: skip
    s = seen.series
    assert s is not None
    over = {
        "time_s": np.arange(s.busy.shape[1]) * s.bin_s, "busy_share": s.busy.mean(axis=0),
        "running": s.running.mean(axis=0), "waiting": s.waiting.mean(axis=0),
        "kv_use": s.kv_blocks.mean(axis=0) / engine.blocks, "tokens_per_s": s.tokens_per_s.sum(axis=0),
    }  # fmt: skip
    found["running"] = _mean_and_most(over["running"])
    found["kv_use"] = _mean_and_most(over["kv_use"])
    found["over_time"] = {k: [float(f"{v:.6g}") for v in values] for k, values in over.items()}
    return found


def _mean_and_most(values: Floats) -> dict[str, float]:
    """Of means over bins, an instance's."""
    return {"mean": float(values.mean()), "max": float(values.max())} if len(values) else {}
