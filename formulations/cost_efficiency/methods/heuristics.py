"""Methods for the cost-efficiency problem next to the MILP; each `(problem, tables, options) -> Outcome`.

``enumerate`` and ``config_tree`` prove their answer; the others only claim it. The fixed baselines follow LLM-Pilot
§V-A4: the instance file may name their machines (``baselines:``); otherwise the rule in each docstring chooses.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from formulations.cost_efficiency.making import best_row, make_plan
from formulations.cost_efficiency.methods.config_tree import config_tree
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, candidate_order
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.arrays import Array, Index, Mask
from optmodels.batch.points import NONE, in_memory, optimise
from optmodels.formulation import Method, Options
from optmodels.latency.strategies import FAMILIES, Family
from optmodels.plans.outcome import Outcome

Rows = Index
STRETCH = 4096  # price-list rows evaluated at a time
LEVELS = 400  # budgets that `greedy_dp` tries for each topology


def enumerate_all(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """Evaluate every configuration at its best α and every market combination: the optimum, by exhaustion."""
    clock = time.perf_counter()
    tables = replace(tables)  # a fresh cache: the evaluation is what this method does, so it is timed here
    row = best_row(tables)
    seconds = {"solve": time.perf_counter() - clock}
    if row is None:
        return Outcome("infeasible", None, seconds=seconds)
    plan = make_plan(tables, row, float(tables.optimum.alpha[tables.candidates.configuration[row]]))
    return Outcome("optimal", plan, 1e6 / plan.usd_per_million_tokens, seconds=seconds)


def _outcome(
    tables: CostTables, row: int | None, alpha: float, clock: float, why: str = "no feasible candidate"
) -> Outcome[CostPlan]:
    """A heuristic's answer: a plan without a bound, or nothing with the reason."""
    seconds = {"solve": time.perf_counter() - clock}
    if row is None:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": why})
    return Outcome("feasible", make_plan(tables, row, alpha), seconds=seconds)


def _evaluate(tables: CostTables, rows: Rows) -> tuple[int | None, float]:
    """The best feasible of some candidates, each at its best α, and that α."""
    of = np.unique(tables.candidates.configuration[rows])
    o = optimise(tables.curves.take(of), tables.limits)
    alpha, e2e = np.full(len(tables.curves), np.nan), np.full(len(tables.curves), np.inf)
    ok = np.zeros(len(tables.curves), dtype=bool)
    alpha[of], e2e[of], ok[of] = o.alpha, o.e2e_s, o.feasible
    s = tables.candidates
    good = rows[ok[s.configuration[rows]] & (s.usd_per_hour[rows] <= tables.limits.usd_per_hour)]
    if not len(good):
        return None, np.nan
    best = int(good[next(candidate_order(tables.restricted(good), e2e))])
    return best, float(alpha[s.configuration[best]])


def greedy(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """Cheapest feasible: walk up the price list, offload only what memory forces, take the first that meets the SLO."""
    clock = time.perf_counter()
    s, limits = tables.candidates, tables.limits
    order = np.lexsort((np.arange(len(s)), s.usd_per_hour))
    order = order[s.usd_per_hour[order] <= limits.usd_per_hour]
    for start in range(0, len(order), STRETCH):
        rows = order[start : start + STRETCH]
        part = tables.curves.take(s.configuration[rows])
        fits = in_memory(part)
        ttft, tbt, e2e = part.metrics(np.where(fits, part.alpha_lo, 0.0))
        ok = np.flatnonzero(fits & (ttft <= limits.ttft_s) & (tbt <= limits.tpot_s) & (e2e <= limits.e2e_s))
        if len(ok):
            return _outcome(tables, int(rows[ok[0]]), float(part.alpha_lo[ok[0]]), clock)
    return _outcome(tables, None, np.nan, clock)


# ---------------------------------------------------------------------------------------------------- greedy + DP


def greedy_dp(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """Dynamic programming over roles and budget on a separable surrogate, then greedy exchange of one role at a time.

    Per topology (family, k/K/N) the surrogate splits E2E into the work of the main machine and that of the AO machine
    does at α = ½. DP over the two roles finds the fastest pair that each of `LEVELS` of its prices buys; those
    candidates are evaluated exactly, and the best is improved by exchanging one machine while that helps.
    """
    clock = time.perf_counter()
    s, c = tables.candidates, tables.configurations
    if not len(s):
        return _outcome(tables, None, np.nan, clock)
    main_s, ao_s = _surrogate(tables)
    candidates: set[int] = set()
    of = s.configuration
    usable = in_memory(tables.curves)[of] & (s.usd_per_hour <= tables.limits.usd_per_hour)
    topology = np.stack([c.family[of], c.count[of]], axis=1)
    for group in np.unique(topology, axis=0):
        rows = np.flatnonzero((topology == group).all(axis=1) & usable)
        if len(rows):
            candidates |= _dp_over_budget(tables, rows, main_s, ao_s)
    if not candidates:
        return _outcome(tables, None, np.nan, clock)
    best, alpha = _evaluate(tables, np.array(sorted(candidates), dtype=np.intp))
    while best is not None:
        i = of[best]
        near = (c.main[of] == c.main[i]) & (s.main_market == s.main_market[best])
        if c.ao[i] != NONE:
            near |= (c.ao[of] == c.ao[i]) & (s.ao_market == s.ao_market[best])
        row, at = _evaluate(tables, np.flatnonzero(near))
        assert row is not None
        if not _better(tables, row, at, best, alpha):
            break
        best, alpha = row, at
    return _outcome(tables, best, alpha, clock)


def _better(tables: CostTables, row: int, alpha: float, than: int, than_alpha: float) -> bool:
    value = []
    for r, a in ((row, alpha), (than, than_alpha)):
        e2e = tables.curves.take(np.array([tables.candidates.configuration[r]])).e2e(np.array([a]))
        value.append((float(tables.objective(e2e, tables.candidates.usd_per_hour[[r]])[0]), float(e2e[0])))
    return value[0][0] < value[1][0] * (1 - 1e-9)


def _surrogate(tables: CostTables) -> tuple[Array, Array]:
    """Seconds of E2E per configuration that the main machine and the AO machine (or the link) each account for."""
    curves = tables.curves
    half = np.clip(np.full(len(curves), 0.5), curves.alpha_lo, np.maximum(curves.alpha_lo, curves.alpha_hi))
    lines = curves.lines_at_mean(half)
    decode = curves.steps * curves.layers * curves.passes
    own = curves.base + curves.base_per_token * curves.mean_context + np.maximum(lines[:, 0], lines[:, 2])
    main = curves.passes * curves.layers * curves.prefill + decode * own
    return main, decode * lines[:, 1]


def _levels(usd_per_hour: Array) -> Array:
    """At most `LEVELS` of the prices, ascending, at even ratios, so that a dear candidate makes none coarser."""
    listed = np.unique(usd_per_hour)
    targets = np.geomspace(listed[0], listed[-1], LEVELS)
    return listed[np.unique(np.minimum(np.searchsorted(listed, targets), len(listed) - 1))]


def _dp_over_budget(tables: CostTables, rows: Rows, main_s: Array, ao_s: Array) -> set[int]:
    """Rows of the fastest surrogate pair at every budget level, for one topology."""
    s, c = tables.candidates, tables.configurations
    of = s.configuration[rows]
    main_key = np.stack([c.main[of], c.tp[of], c.dp[of], s.main_market[rows]], axis=1)
    ao_key = np.stack([c.ao[of], s.ao_market[rows]], axis=1)
    mains, main_id = np.unique(main_key, axis=0, return_inverse=True)
    aos, ao_id = np.unique(ao_key, axis=0, return_inverse=True)
    main_time, ao_time = np.full(len(mains), np.inf), np.full(len(aos), np.inf)
    np.minimum.at(main_time, main_id, main_s[of])
    np.minimum.at(ao_time, ao_id, ao_s[of])
    # Cost splits over roles: main part = the cheapest row with this main less the AO part, from the price lists.
    prices = np.array([[m.prices.get(k) or np.nan for k in ("on_demand", "spot", "reserved_1y", "reserved_3y")]
                       for m in tables.machines])  # fmt: skip
    pairs = FAMILIES[c.family[of[0]]] == "ao_parallel"
    ao_cost = np.array([
        0.0 if a == NONE else prices[a, market] * (c.count[of[0]] if pairs else 1) for a, market in aos
    ])  # fmt: skip
    main_cost = np.full(len(mains), np.inf)
    np.minimum.at(main_cost, main_id, s.usd_per_hour[rows] - ao_cost[ao_id])
    by_cost = np.lexsort((main_time, main_cost))
    before = np.minimum.accumulate(np.concatenate([[np.inf], main_time[by_cost][:-1]]))
    last = np.maximum.accumulate(np.where(main_time[by_cost] < before, np.arange(len(by_cost)), 0))
    fastest = by_cost[last]  # of the mains up to each cost
    left = _levels(s.usd_per_hour[rows])[:, None] - ao_cost
    at = np.searchsorted(main_cost[by_cost], left * (1 + 1e-9), side="right") - 1
    main = fastest[at]
    total = np.where(at >= 0, main_time[main] + ao_time, np.inf)
    ao = total.argmin(axis=1)
    found = set(zip(main[np.arange(len(ao)), ao].tolist(), ao.tolist(), strict=True))
    where = {(int(i), int(j)): int(r) for i, j, r in zip(main_id, ao_id, rows, strict=True)}
    return {where[pair] for pair in found if pair in where}


# ------------------------------------------------------------------------------------------------ fixed baselines


def _machine_index(tables: CostTables, name: str) -> int:
    return next(i for i, m in enumerate(tables.machines) if m.machine == name)


def _flops(tables: CostTables, machine: int) -> float:
    m = tables.machines[machine]
    gpu = tables.case.gpus.get(m.gpu or "")
    return (gpu.fp16_flops or 0.0) if gpu is not None else 0.0


def _cheapest_price(tables: CostTables, machine: int) -> float:
    allowed = tables.case.problem.markets.main
    prices = [p for k in allowed if (p := tables.machines[machine].prices.get(k)) is not None]
    return min(prices, default=np.inf)


def _rows_of(tables: CostTables, families: tuple[Family, ...], main: int, ao: int = NONE) -> Rows:
    c, of = tables.configurations, tables.candidates.configuration
    wanted = [FAMILIES.index(f) for f in families]
    mask: Mask = np.isin(c.family[of], wanted) & (c.main[of] == main) & (c.ao[of] == ao)
    return np.flatnonzero(mask)


def _fits_some(tables: CostTables, family: Family) -> list[int]:
    """Machines on which some configuration of the family fits memory, cheapest first."""
    c = tables.configurations
    rows = (c.family == FAMILIES.index(family)) & in_memory(tables.curves)
    return sorted(set(c.main[rows].tolist()), key=lambda i: (_cheapest_price(tables, i), i))


def high_end(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """One machine without offloading; if the batch does not fit, the fewest passes that do (High-End, High-End(MP)).

    Rule without ``baselines.high_end``: the machine with the fastest GPU, the cheapest if several have it.
    """
    clock = time.perf_counter()
    named = problem.baselines.high_end
    if named is not None:
        main = _machine_index(tables, named)
    else:
        used = sorted(set(tables.configurations.main.tolist()))
        if not used:
            return _outcome(tables, None, np.nan, clock, "no machine can be modelled")
        main = min(used, key=lambda i: (-_flops(tables, i), _cheapest_price(tables, i), i))
    rows = _rows_of(tables, ("high_end", "multi_pass"), main)
    rows = rows[in_memory(tables.curves)[tables.candidates.configuration[rows]]]
    if not len(rows):
        return _outcome(tables, None, np.nan, clock, f"{tables.machines[main].machine}: does not fit in any passes")
    count = tables.configurations.count[tables.candidates.configuration[rows]]
    row, alpha = _evaluate(tables, rows[count == count.min()])
    return _outcome(tables, row, alpha, clock, f"{tables.machines[main].machine}: misses the SLO or the budget")


def _fixed(tables: CostTables, clock: float, family: Family, main: int | None, ao: int = NONE) -> Outcome[CostPlan]:
    if main is None:
        return _outcome(tables, None, np.nan, clock, "no machine fits")
    rows = _rows_of(tables, (family,), main, ao)
    row, alpha = _evaluate(tables, rows) if len(rows) else (None, np.nan)
    return _outcome(tables, row, alpha, clock, f"{tables.machines[main].machine}: misses memory, the SLO or the budget")


def kvo_disk(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """KV offload to disk on one machine. Rule without ``baselines.kvo_disk``: the cheapest machine it fits on."""
    clock = time.perf_counter()
    named = problem.baselines.kvo_disk
    fit = _fits_some(tables, "kvo_disk")
    main = _machine_index(tables, named) if named is not None else (fit[0] if fit else None)
    return _fixed(tables, clock, "kvo_disk", main)


def infersave(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """KV offload to host RAM on one base machine. Rule without ``baselines.infersave``: the cheapest it fits on."""
    clock = time.perf_counter()
    named = problem.baselines.infersave
    fit = _fits_some(tables, "kvo_ram")
    main = _machine_index(tables, named.base) if named is not None else (fit[0] if fit else None)
    return _fixed(tables, clock, "kvo_ram", main)


def infersave_plus(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """InferSave, scaled up when memory or the SLO defeats the base machine (InferSave+).

    Rule without ``baselines.infersave.plus``: the cheapest machine with the base's GPU and more host RAM.
    """
    clock = time.perf_counter()
    first = infersave(problem, tables, options)
    if first.plan is not None:
        return first
    named = problem.baselines.infersave
    if named is not None and named.plus is not None:
        return _fixed(tables, clock, "kvo_ram", _machine_index(tables, named.plus))
    fit = _fits_some(tables, "kvo_ram")
    if not fit:
        return _outcome(tables, None, np.nan, clock, "no machine fits")
    base = tables.machines[_machine_index(tables, named.base) if named is not None else fit[0]]
    larger = [
        i for i in fit
        if tables.machines[i].gpu == base.gpu and (tables.machines[i].ram_gib or 0) > (base.ram_gib or 0)
    ]  # fmt: skip
    for main in larger:
        found = _fixed(tables, clock, "kvo_ram", main)
        if found.plan is not None:
            return found
    return _outcome(tables, None, np.nan, clock, f"no machine with {base.gpu} and more RAM meets the SLO")


def ao_cluster(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """One fixed 1:1 attention-offload pair.

    Rule without ``baselines.ao_cluster``: the cheapest pair that fits memory.
    """
    clock = time.perf_counter()
    named = problem.baselines.ao_cluster
    if named is not None:
        return _fixed(tables, clock, "ao", _machine_index(tables, named.main), _machine_index(tables, named.ao))
    c, s = tables.configurations, tables.candidates
    rows = np.flatnonzero(
        (c.family == FAMILIES.index("ao"))[s.configuration] & in_memory(tables.curves)[s.configuration]
    )
    if not len(rows):
        return _outcome(tables, None, np.nan, clock, "no pair fits memory")
    cheapest = s.configuration[rows[s.usd_per_hour[rows].argmin()]]
    return _fixed(tables, clock, "ao", int(c.main[cheapest]), int(c.ao[cheapest]))


METHODS: dict[str, Method] = {
    "enumerate": enumerate_all,
    "config_tree": config_tree,
    "greedy": greedy,
    "greedy_dp": greedy_dp,
    "high_end": high_end,
    "kvo_disk": kvo_disk,
    "infersave": infersave,
    "infersave_plus": infersave_plus,
    "ao_cluster": ao_cluster,
}


def _first_line(method: object) -> str:
    return (method.__doc__ or "").strip().split("\n")[0]


TITLES = {name: _first_line(method) for name, method in METHODS.items()}
