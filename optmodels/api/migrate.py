"""`migrate`: the ordered steps from the running fleet to a plan."""

from __future__ import annotations

import time
from typing import Any

from optmodels.api.sources import renamed
from optmodels.study.planned import Source, planned
from optmodels.verification import version


@renamed({"instance": "problem"})
def migrate(now: Source, plan: Source, *, problem: Source | None = None) -> dict[str, Any]:
    """Find the steps from one plan's fleet to another's that keep the capacity at every step.

    Args:
        now: the plan that runs: plan.json, its folder, or a result.
        plan: the plan to reach.
        problem: problem in place of the one that `plan` holds.

    Returns:
        ``steps`` (``do``, ``deployment``, ``count``, ``attained``, ``usd_per_hour``, ``reason``), ``attained`` (before,
        after, least over the steps), ``kept``.

    Raises:
        InputError: a plan that cannot be read, or engines that the problem has no operating point of.
    """
    began = time.perf_counter()
    runs, wanted = (planned(x, problem, needs_plan=True) for x in (now, plan))
    form, part = wanted.part("migrate")
    found: dict[str, Any] = part(wanted.problem, runs.plan, wanted.plan)
    return {**found, "formulation": form.name, "seconds": time.perf_counter() - began,
            "optmodels_version": version()}  # fmt: skip
