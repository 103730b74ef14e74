"""Configuration-tree pruning for the cost-efficiency problem: best-first search whose cuts are proofs.

The tree decides (family, k/K/N) and the main machine with its parallelism and market first, the AO machine and its
market last. A node is bounded from below in money by its main machines plus the cheapest AO machines, and in time by
the work of the main machine itself: prefill, and decode without any attention or transfer. A node is cut

* when its time bound misses an SLO: whatever AO machine is added, that work remains;
* when its objective bound is no better than a plan in hand: its leaves cost at least that much;
* when its weights and activations exceed VRAM: no α and no AO machine changes that.

Nodes are opened in order of their bound, so the search stops at the first node no better than the incumbent, and the
incumbent is then optimal. Nothing optimal is cut: each rule drops only leaves that are infeasible or no better.
"""

from __future__ import annotations

import time

import numpy as np

from formulations.cost_efficiency.making import make_plan
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, candidate_order
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.batch.points import optimise
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome


def config_tree(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """Best-first search over the configuration tree, cutting only nodes proved useless."""
    clock = time.perf_counter()
    s, c, curves, limits = tables.candidates, tables.configurations, tables.curves, tables.limits
    of = s.configuration
    if not len(s):
        return Outcome("infeasible", None, seconds={"solve": time.perf_counter() - clock})
    key = np.stack([c.family[of], c.count[of], c.main[of], c.tp[of], c.dp[of], s.main_market], axis=1)
    _, node = np.unique(key, axis=0, return_inverse=True)
    nodes = int(node.max()) + 1

    def lowest(values: np.ndarray) -> np.ndarray:
        out = np.full(nodes, np.inf)
        np.minimum.at(out, node, values)
        return out

    money = lowest(s.usd_per_hour)
    first = curves.prefill_slope * curves.layers * curves.prefill + curves.prefill_intercept
    own = curves.base + curves.base_per_token * curves.mean_context
    tbt = curves.decode_slope * curves.layers * own + curves.decode_intercept if curves.steps else np.zeros(len(curves))
    e2e = curves.passes * (first + curves.steps * tbt) if curves.measured_e2e is None else curves.measured_e2e
    too_slow = (first > limits.ttft_s) | (tbt > limits.tpot_s) | (e2e > limits.e2e_s)
    too_big = curves.vram_fixed > curves.vram
    node_e2e = lowest(e2e[of])
    bound = tables.objective(node_e2e, money)
    dead_slow = lowest(np.where(too_slow[of], 1.0, 0.0)) > 0
    dead_big = lowest(np.where(too_big[of], 1.0, 0.0)) > 0
    dead_cost = money > limits.usd_per_hour
    log = {
        "nodes": nodes, "cut_memory": int(dead_big.sum()), "cut_slo": int((dead_slow & ~dead_big).sum()),
        "cut_budget": int((dead_cost & ~dead_slow & ~dead_big).sum()), "opened": 0, "cut_bound": 0,
    }  # fmt: skip
    alive = np.flatnonzero(~(dead_slow | dead_big | dead_cost))
    members = np.argsort(node, kind="stable")
    starts = np.searchsorted(node[members], np.arange(nodes + 1))
    best: tuple[float, int, float, int, float] | None = None  # objective, family, E2E, row, α
    proved = -np.inf
    limit = None
    for count, i in enumerate(alive[np.argsort(bound[alive], kind="stable")]):
        if best is not None and bound[i] > best[0] * (1 + 1e-9):
            log["cut_bound"] = len(alive) - count
            break
        if options.time_limit is not None and time.perf_counter() - clock > options.time_limit:
            limit, proved = "time", float(bound[i])
            break
        log["opened"] += 1
        rows = members[starts[i] : starts[i + 1]]
        rows = rows[s.usd_per_hour[rows] <= limits.usd_per_hour]
        leaves, index = np.unique(of[rows], return_inverse=True)
        o = optimise(curves.take(leaves), limits)
        rows = rows[o.feasible[index]]
        if not len(rows):
            continue
        full = np.full(len(curves), np.inf)
        full[leaves] = o.e2e_s
        row = int(rows[next(candidate_order(tables.restricted(rows), full))])
        leaf = int(np.flatnonzero(leaves == of[row])[0])
        value = float(tables.objective(o.e2e_s[leaf], s.usd_per_hour[row]))
        found = (value, int(c.family[of[row]]), float(o.e2e_s[leaf]), row, float(o.alpha[leaf]))
        tied = best is not None and abs(value - best[0]) <= 1e-12 * best[0]
        if best is None or (found[1:4] < best[1:4] if tied else value < best[0]):
            best = found
    seconds = {"solve": time.perf_counter() - clock}
    if best is None:
        status = "no_solution_found" if limit else "infeasible"
        return Outcome(status, None, limit=limit, seconds=seconds, log=log)  # type: ignore[arg-type]
    plan = make_plan(tables, best[3], best[4])
    reported = 1e6 / (min(proved, best[0]) if limit else best[0])
    return Outcome("feasible" if limit else "optimal", plan, reported, limit, seconds, log=log)  # type: ignore[arg-type]
