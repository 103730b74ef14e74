"""Mélange's sliced assignment: every bucket is cut into F equal slices, each served by one GPU type whole.

Mélange writes a binary for every slice and GPU type; slices of one bucket are equal, so here they are counted: the
same optimum without F! symmetric copies. No stock, no budget, no queueing. With F → ∞ it becomes the fleet problem,
whose optimum costs at most as much for every F.
"""

from __future__ import annotations

import time

import numpy as np

from formulations.fleet.making import FleetChoice
from formulations.fleet.methods.heuristics import alone, finish
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import FleetTables, prune
from formulations.fleet.problem import Fleet
from optmodels.formulation import Options
from optmodels.model import Model, Rows, at_most, equal
from optmodels.plans.outcome import Outcome
from optmodels.solver import Settings, solve_compiled


class MelangeModel(Model):
    """The sliced assignment of one period, objective USD/h."""

    def __init__(self, tables: FleetTables, slices: int, t: int = 0) -> None:
        super().__init__("melange")
        self.rates, self.load, self.slices = tables.rates[t], tables.load, slices
        self.asked = np.flatnonzero(self.rates > 0)
        pairs = np.nonzero(np.isfinite(self.load) & (self.rates > 0)[:, None])
        self.n = self.variable("n", ("p",), len(tables.points), integer=True)
        self.k = self.variable("k", ("w", "p"), pairs, upper=slices, integer=True)
        self.state((every_slice, capacity))
        self.minimise("cost", self.n * tables.points.usd_per_hour)


def every_slice(m: MelangeModel) -> Rows:
    """Σ_p k_wp = F."""
    return equal(m.slices, m.k.by("w"), over=(m.asked,))


def capacity(m: MelangeModel) -> Rows:
    """Σ_w λ_w·l_wp·k_wp/F ≤ n_p."""
    w, p = m.k.labels
    used = (m.k * (m.rates[w] * m.load[w, p] / m.slices)).by("p")
    return at_most(0.0, used - m.n.among(used))


@alone
def melange(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Mélange's sliced assignment at the instance's slice factor, by HiGHS; a plan that breaks a limit is refused."""
    clock = time.perf_counter()
    if problem.objective != "min_cost" or len(tables.case.periods) > 1:
        return finish(problem, tables, None, clock, "only for objective: min_cost in one period")
    if tables.blocked:
        return finish(problem, tables, None, clock, "some bucket has no operating point")
    pruned, _ = prune(tables)
    slices = tables.case.slice_factor
    model = MelangeModel(pruned, slices)
    compiled = model.compiled()
    built = time.perf_counter()
    settings = Settings(options.time_limit or 60.0, options.gap, options.seed)
    solved = solve_compiled(compiled, settings)
    if solved.x is None:
        return finish(problem, pruned, None, clock, f"no solution within {settings.time_limit} s")
    slice_count = np.round(model.k.of(solved.x))
    used = slice_count > 0
    w, p = (label[used] for label in model.k.labels)
    n = np.round(model.n.of(solved.x)).astype(np.intp)[None, :]
    n[0, p] = np.maximum(n[0, p], 1)  # however small the load
    choice = FleetChoice(n, np.zeros(len(w), dtype=np.intp), w, p, slice_count[used] / slices)
    outcome = finish(problem, pruned, choice, clock)
    # Its bound is one of the sliced problem, not of the fleet, so it is kept out of the certificate.
    log = outcome.log | {"slice_factor": slices, "sliced_status": solved.status, "sliced_bound": solved.bound}
    seconds = {"build": built - clock, "solve": time.perf_counter() - built}
    return Outcome(outcome.status, outcome.plan, None, solved.limit, seconds, compiled.size, log)
