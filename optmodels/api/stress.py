"""`stress`: a plan under more demand, slower engines and losses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels.api.sources import PlanSource, Source, able_part, planned
from optmodels.errors import InputError, Mistake, one_of
from optmodels.formulation import checked_options
from optmodels.io.write import json_text, refuse_existing, write_text
from optmodels.verification import version

INFLATED = ("demand", "latency")
LOSSES = ("region", "machine", "spot")


def stress(
    plan: PlanSource, *, inflate: Mapping[str, tuple[float, float]] | None = None, lose: Sequence[str] = (),
    steps: int = 3, draws: int = 0, instance: Source | None = None, seed: int = 0, time_limit: float = 10.0,
    picture: str | PathLike[str] | None = None, out: str | PathLike[str] | None = None, force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Judge a plan: the share of the requests that it serves within the SLOs, and the cost of a plan for the scenario.

    Args:
        plan: plan.json, its folder, or a result.
        inflate: ``demand`` and ``latency`` → smallest and largest factor.
        lose: ``region``, ``machine``, ``spot``.
        steps: factors of each range.
        draws: random scenarios for the frontier of margins; 0: none.
        instance: in place of the one that the plan document holds.
        seed: random seed of the draws.
        time_limit: seconds of each solve.
        picture: file for the chart: .png, .svg or .pdf.
        out: file for the document (JSON).
        force: replace existing files.

    Returns:
        ``usd_per_hour``, ``scenarios`` and ``frontier`` (see `formulations.fleet.stress`).

    Raises:
        InputError: the plan or an argument is wrong.
    """
    files = [None if file is None else Path(file) for file in (picture, out)]
    if not force:
        refuse_existing(*files)
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
    problem, data, _ = planned(plan, instance)
    part = able_part(problem, "stress")

    def factors(name: str) -> list[float]:
        low, high = ranges.get(name, (1.0, 1.0))
        count = steps if low < high else 1
        return [round(low + (high - low) * i / max(count - 1, 1), 6) for i in range(count)]

    found = part(
        problem, data, factors("demand"), factors("latency"), tuple(lose), draws=draws, seed=options.seed,
        time_limit=options.time_limit,
    )  # fmt: skip
    document = {
        "source": str(plan) if isinstance(plan, str | PathLike) else "", "formulation": problem.formulation, **found,
        "draws": draws, "seed": seed, "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if files[0] is not None:
        from optmodels.reporting.charts import save_chart
        from optmodels.reporting.stress import stress_chart

        save_chart(stress_chart(document), files[0], document["source"], overwrite=force)
    if files[1] is not None:
        write_text(files[1], json_text(document) + "\n", overwrite=force)
    return document
