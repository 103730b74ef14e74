"""`fewest-gpus`: the fewest GPUs that attain a share of the requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels.api.solve import save, solve
from optmodels.api.sources import File, Source, problem_of, renamed, shown_name
from optmodels.errors import InputError, Mistake
from optmodels.formulation import checked_options
from optmodels.io.write import check_folder, keeping, path_text
from optmodels.plans.replayed import missed
from optmodels.verification import version


@renamed({"instance": "problem"})
def fewest_gpus(
    problem: Source, attainment: float = 1.0, *, time_limit: float | None = None, seed: int = 0,
    out: File | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The fewest GPUs that attain a share of the requests within their SLOs, with a bound.

    Args:
        problem: file, mapping or `Problem`; its own objective does not count, its limits do.
        attainment: required share within the SLO, over all requests (orchestration) or in every bucket (fleet).
        time_limit: seconds of each solve.
        seed: random seed of the solver.
        out: folder for the plan's files.

    Returns:
        ``gpus`` of the plan found, ``bound`` below which none attains it (None: none does with any number),
        ``attained`` at least, ``tried``, and the ``plan``. Of fleets cut from traces also ``over_time`` (peak, mean and
        GPU-hours) and ``missed``, the SLO that the trace's own requests miss (None: none).

    Raises:
        InputError: the problem or an argument is wrong, or the formulation does not count GPUs.
    """
    check_folder(None if out is None else Path(out))
    options = checked_options(seed, time_limit)
    if not 0 <= attainment <= 1:
        raise InputError(Mistake(None, "attainment", attainment, "a share from 0 to 1"))
    mine = problem_of(problem)
    form = registry.get(mine.formulation)
    if form.fewest is None:
        able = [n for n in registry.names() if registry.get(n).fewest is not None]
        raise InputError(
            Mistake(None, "formulation", form.name, f"a problem file of {', '.join(able)}: GPUs are counted")
        )
    began = time.perf_counter()
    found = form.fewest(mine, attainment, lambda p: solve(p, time_limit=options.time_limit, seed=options.seed))
    plan = None
    if found.result is not None and form.plan is not None:
        plan = form.plan.model_validate(found.result.plan)
    document: dict[str, Any] = {
        "instance": shown_name(problem, mine), "formulation": form.name, "attainment": attainment,
        "gpus": found.gpus, "bound": found.bound, "attained": found.attained, "certifies": form.certifies,
        "tried": found.tried, "plan": None if found.result is None else found.result.plan,
        "headline": plan.headline() if plan is not None else None,
        "missed": None if found.result is None else missed(found.result.report),
        "over_time": None if found.result is None else found.result.report.get("over_time"),
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if out is not None and found.result is not None:
        with keeping(document):
            document["folder"] = path_text(save(found.result, form, found.result._tables, plan, Path(out)))
    return document
