"""The method ``exact``: the MILP by HiGHS."""

from __future__ import annotations

import time

from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Settings, solve_compiled

from ..making import make_plan
from ..model import CountsModel
from ..plan import Plan
from ..points import Tables
from ..problem import Instance


def exact(problem: Instance, tables: Tables, options: Options) -> Outcome[Plan]:
    """State, compile, solve; with what HiGHS proved."""
    clock = time.perf_counter()
    model = CountsModel(problem, tables)
    compiled = model.compiled()
    seconds = {"build": time.perf_counter() - clock}
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    found = solve_compiled(compiled, settings)
    plan = None if found.x is None else make_plan(tables, model.counts(found.x))
    return Outcome(
        found.status, plan, found.bound, found.limit, seconds | {"solve": found.seconds}, compiled.size,
        {"solver": found.message, "nodes": found.nodes}, found.events,
    )  # fmt: skip
