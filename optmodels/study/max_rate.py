"""The verb `max-rate`: the largest request rate within the SLOs, by the model and by simulation."""

from __future__ import annotations

import time
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.formulation import checked_options
from optmodels.study.planned import Source, planned
from optmodels.traces.readers import read_trace


def max_rate(
    source: Source, *, instance: Source | None = None, trace: str | PathLike[str] | None = None, simulate: bool = True,
    seed: int = 0, time_limit: float = 20.0,
) -> dict[str, Any]:  # fmt: skip
    """The largest rate of an instance's mixture that a plan's engines serve within every SLO.

    Args:
        source: plan.json, its folder, a result document, or an instance. Of an instance without a plan: the largest
            rate of any fleet within its stock, quota and budget.
        instance: in place of the one that the plan document holds.
        trace: requests for the simulation; None: the instance's own, or Poisson arrivals at its rates.
        simulate: also bisect the rate by replays of the plan.
        seed: random seed of the simulation.
        time_limit: seconds of the solve.

    Returns:
        ``requests_per_s`` of the instance, ``headroom`` (a share of that rate; None: no plan), and ``planned_shares``,
        ``best_shares`` (with ``bound``) and ``simulated``, each with ``factor`` and ``requests_per_s``.

    Raises:
        InputError: the plan, the instance, the trace or an argument is wrong, or nothing limits the engines.
    """
    options = checked_options(seed, time_limit)
    began = time.perf_counter()
    given = planned(source, instance)
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
        "seconds": time.perf_counter() - began, "optmodels_version": version("optmodels"),
    }  # fmt: skip
