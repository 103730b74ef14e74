"""`max-rate`: the largest request rate within the SLOs, by the model and by simulation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optmodels import question
from optmodels.api.plan import one_limit
from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake
from optmodels.formulation import checked_options
from optmodels.question import Duration
from optmodels.study.planned import PlanSource, Source, planned
from optmodels.traces.readers import read_trace
from optmodels.verification import version


@renamed({"instance": "problem"})
def max_rate(
    plan: PlanSource | None = None, *, model: str | None = None, input: int | str | None = None,
    output: int | str | None = None, quota: Mapping[str, int] | Sequence[str | tuple[str, int]] = (),
    budget: float | None = None, ttft: Duration | None = None, ttft_p95: Duration | None = None,
    tpot: Duration | None = None, tpot_p95: Duration | None = None, e2e: Duration | None = None,
    e2e_p95: Duration | None = None, itl_p95: Duration | None = None, problem: Source | None = None,
    trace: File | None = None, simulate: bool = True, seed: int = 0, time_limit: float = 20.0,
) -> dict[str, Any]:  # fmt: skip
    """The largest rate of a problem's mixture that a plan's engines serve within every SLO.

    Args:
        plan: plan.json, its folder, a result document, or a problem file. Of a problem file without a plan: the largest
            rate of any fleet within its stock, quota and budget.
        model: an LLM in place of `plan`; then `input`, `output`, `quota`.
        input: tokens of a prompt: 8000, or ``8k``.
        output: tokens of an answer.
        quota: GPU type → most GPUs.
        budget: largest cost, USD/h.
        ttft: limit on the mean time to the first token: 0.8 (seconds) or ``800ms``.
        ttft_p95: limit on its 95th percentile.
        tpot: limit on the mean time per output token after the first.
        tpot_p95: limit on its 95th percentile.
        e2e: limit on the mean time of a whole request.
        e2e_p95: limit on its 95th percentile.
        itl_p95: limit on the 95th percentile of the time between two tokens.
        problem: problem in place of the one that the plan document holds.
        trace: requests for the simulation; None: the problem's own, or Poisson arrivals at its rates.
        simulate: also bisect the rate by replays of the plan.
        seed: random seed of the simulation.
        time_limit: seconds of the solve.

    Returns:
        ``requests_per_s`` of the problem, ``headroom`` (a share of that rate; None: no plan), and ``planned_shares``,
        ``best_shares`` (with ``bound``) and ``simulated``, each with ``factor`` and ``requests_per_s``.

    Raises:
        InputError: the plan, the problem, the trace or an argument is wrong, or nothing limits the engines.
    """
    options = checked_options(seed, time_limit)
    began = time.perf_counter()
    if (plan is None) == (model is None):
        raise InputError(Mistake(None, "PLAN, --model", None, "one of the two"))
    if model is not None:
        if not quota and budget is None:
            raise InputError(Mistake(None, "--quota, --budget", None, "GPUs or USD/h that limit the fleet"))
        asked = question.Question(
            model=model, input_tokens=input, output_tokens=output, rate=1.0,
            ttft=one_limit("ttft", ttft, ttft_p95, None), tpot=one_limit("tpot", tpot, tpot_p95, None),
            e2e=one_limit("e2e", e2e, e2e_p95, None), itl=one_limit("itl", None, itl_p95, None),
            quota=question.quotas(quota), budget=budget,
        )  # fmt: skip
        try:
            plan = question.instance(asked)
        except InputError as error:
            raise question.as_options(error) from None
    assert plan is not None
    given = planned(plan, problem)
    form, part = given.part("max_rate")
    if trace is not None and given.plan is None:
        raise InputError(Mistake(None, "trace", str(trace), "a plan, whose engines the trace is sent to"))
    requests = None if trace is None else read_trace(Path(trace))
    found = part(
        given.problem, given.plan, requests, simulate=simulate, seed=options.seed, time_limit=options.time_limit
    )
    least = min(found[k]["factor"] for k in ("planned_shares", "simulated", "best_shares") if k in found)
    return {
        "source": given.name, "formulation": form.name, **found,
        "headroom": None if given.plan is None else least - 1.0,
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
