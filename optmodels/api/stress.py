"""`stress`: a plan under more demand, slower engines and losses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake, one_of
from optmodels.formulation import checked_options
from optmodels.io.write import json_text, refuse_existing, write_text
from optmodels.study.planned import PlanSource, Source, planned
from optmodels.verification import version

INFLATED = ("demand", "latency")
LOSSES = ("region", "machine", "spot")
MOST_SCENARIOS = 400


@renamed({"instance": "problem"})
def stress(
    plan: PlanSource, *, inflate: Mapping[str, tuple[float, float]] | None = None, lose: Sequence[str] = (),
    steps: int = 3, draws: int = 0, problem: Source | None = None, seed: int = 0, time_limit: float = 10.0,
    picture: File | None = None,
    out: File | None = None, force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The share of the requests that a plan serves within the SLOs in each scenario, and the cost of a plan for it.

    Args:
        plan: plan.json, its folder, or a result document.
        inflate: ``demand`` and ``latency`` → smallest and largest factor.
        lose: ``region`` (each), ``machine`` (one of each deployment) or ``spot`` (all).
        steps: factors of each range.
        draws: draws of demand and slow machines for the frontier of plans with slack; 0: no frontier.
        problem: problem in place of the one that the plan document holds.
        seed: random seed of the draws.
        time_limit: seconds of each solve.
        picture: file for the chart: .png, .svg or .pdf; a frontier is drawn next to it, as NAME-frontier.
        out: file for the document (JSON).
        force: replace existing files.

    Returns:
        ``usd_per_hour``, ``scenarios`` and ``frontier`` (see `formulations.fleet.stress`).

    Raises:
        InputError: the plan or an argument is wrong.
    """
    target, chart = (None if file is None else Path(file) for file in (out, picture))
    more = None if chart is None or not draws else chart.with_name(f"{chart.stem}-frontier{chart.suffix}")
    if not force:
        refuse_existing(target, chart, more)
    ranges = dict(inflate or {})
    for name, ends in ranges.items():
        one_of("inflate", name, INFLATED)
        if not 0 < ends[0] <= ends[1] < float("inf"):
            raise InputError(Mistake(None, f"inflate.{name}", list(ends), "two factors > 0, the smaller first"))
    for name in lose:
        one_of("lose", name, LOSSES)
    if not 1 <= steps <= 20:
        raise InputError(Mistake(None, "steps", steps, "1 to 20 factors of each range"))
    if not 0 <= draws <= 10_000:
        raise InputError(Mistake(None, "draws", draws, "0 to 10,000 scenarios"))
    options = checked_options(seed, time_limit)
    began = time.perf_counter()
    given = planned(plan, problem, needs_plan=True)
    form, part = given.part("stress")
    if draws and not ranges and getattr(given.problem, "scenarios", None) is None:
        raise InputError(Mistake(None, "draws", draws, "--inflate, or a problem with scenarios to draw from"))

    def factors(name: str) -> list[float]:
        low, high = ranges.get(name, (1.0, 1.0))
        return [float(round(v, 6)) for v in (np.linspace(low, high, steps) if low < high else [low])]

    found = part(
        given.problem, given.plan, factors("demand"), factors("latency"), tuple(lose), draws=draws, seed=options.seed,
        time_limit=options.time_limit,
    )  # fmt: skip
    document = {
        "source": given.name, "formulation": form.name, **found, "draws": draws, "seed": seed,
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if target is not None:
        write_text(target, json_text(document), overwrite=force)
    if chart is not None:
        from optmodels.reporting.charts import save_chart
        from optmodels.reporting.stress import frontier_chart, stress_chart

        save_chart(stress_chart(document), chart, given.name, overwrite=force)
        if more is not None and document["frontier"]:
            save_chart(frontier_chart(document), more, given.name, overwrite=force)
    return document
