"""The decision of a tick: rule, rounded relaxation and MILP within a time limit; the reasons of each order and stop.

The rule needs no solver and is the fallback. Where every workload has one machine type and none is shared or scarce,
it is exact. Else the relaxation is rounded by marginal value, and HiGHS improves it from there. The bound is the
relaxation's, in our own arithmetic, or the tree's. It holds for the forecast as given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from formulations.fleet.tick.data import Tick
from formulations.fleet.tick.judge import can_judge, paths, rollout
from formulations.fleet.tick.model import TickModel
from formulations.fleet.tick.rule import counts
from optmodels.arrays import Array, Ints
from optmodels.errors import SolverError
from optmodels.solver import Compiled, Settings, solve_compiled
from optmodels.solver.highs import relative_gap
from optmodels.solver.safe import least_value
from optmodels.solver.session import Session

GAP = 0.01  # of the MILP
NOISE = 1e-7
DIVE = 0.3  # of the time left
UP = 0.9  # added before rounding down: most fractions are rounded up, as a shortage costs more than a machine
USELESS = 0.2  # gap of a plan beyond which the rule's is returned
MINUTES = 60.0


@dataclass
class Decision:
    """The tick's answer.

    Attributes:
        source: exact (MILP), rounded (relaxation), rule, or last (the plan of an earlier tick).
        why: reason for this source.
        orders, stops: machines of each type, (G,).
        machines: machines in each tick, (H, G).
        serving: deployments in each tick, (H, P).
        objective: USD over the horizon, unavoidable shortage left out; None: not computed.
        bound: no plan of the model costs less; None: not computed.
        seconds: seconds of each step.
    """

    source: str
    why: str
    orders: Ints
    stops: Ints
    machines: Array
    serving: Array
    objective: float | None = None
    bound: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """Relative gap of objective and bound."""
        return relative_gap(self.objective, self.bound)


def decide(
    tick: Tick, time_limit: float = 5.0, last: Mapping[str, Any] | None = None, method: str = "auto", judged: int = 0
) -> Decision:  # fmt: skip
    """Decide within the time limit.

    Args:
        tick: parameters.
        time_limit: seconds; 0: the rule.
        last: orders and stops that an earlier plan had for now, by type; for where even the rule fails.
        method: auto, rule, or exact.
        judged: sampled paths of the forecast on which program, rule and no change are compared; 0: the program's own
            objective decides.
    """
    began = time.perf_counter()
    try:
        by_rule = rule(tick)
    except (ArithmeticError, ValueError, IndexError) as error:
        if last is None:
            raise
        return _last(tick, last, str(error))
    by_rule.seconds["rule"] = time.perf_counter() - began
    if method == "rule" or time_limit <= 0:
        by_rule.why = "asked for" if method == "rule" else "no time for a solver"
        return by_rule
    if method == "auto" and is_rule_exact(tick):
        by_rule.why = "one machine type for each workload: the rule is exact for any path of rates"
        return by_rule
    try:
        found = _solved(tick, by_rule, began, time_limit)
        return found if not judged or not can_judge(tick) else _judged(tick, found, rule(tick), judged)
    except SolverError as error:
        by_rule.why = f"the solver failed: {error}"
        return by_rule


def _judged(tick: Tick, found: Decision, by_rule: Decision, count: int) -> Decision:
    """The candidate of least mean cost on sampled paths: the program's changes, the rule's, or none."""
    none = replace(by_rule, orders=np.zeros_like(by_rule.orders), stops=np.zeros_like(by_rule.stops))
    none = replace(none, source="none", machines=tick.ready + np.cumsum(tick.arriving, axis=0).astype(float))
    drawn = paths(tick, count)
    candidates = [found, by_rule, none]
    usd = [rollout(tick, x.orders, x.stops, drawn) for x in candidates]
    best = candidates[int(np.argmin(usd))]
    listed = ", ".join(f"{x.source} {c:.4g}" for x, c in zip(candidates, usd, strict=True))
    return replace(
        best, why=f"least cost on {count} sampled paths of the forecast, USD: {listed}", seconds=found.seconds
    )


def is_rule_exact(tick: Tick) -> bool:
    """Whether workloads are independent, with one machine type each and no limit that may bind."""
    types = [set(np.flatnonzero(row).tolist()) for row in tick.use]
    of_workload: dict[int, set[int]] = {}
    for w, mine in zip(tick.of.tolist(), types, strict=True):
        of_workload.setdefault(w, set()).update(mine)
    every = [g for mine in of_workload.values() for g in mine]
    single = all(len(mine) == 1 for mine in of_workload.values()) and len(every) == len(set(every))
    plain = single and not len(tick.limits) and math.isinf(tick.max_changes) and tick.min_up == 0
    return bool(plain and not tick.committed.any() and not tick.blocked.any() and (tick.use.sum(axis=1) == 1).all())


def rule(tick: Tick) -> Decision:
    """Base stock at the lead time with bridging, workload by workload on its cheapest types that can be had."""
    H = tick.H
    order_rate = tick.at(tick.order)
    keep_rate = np.maximum(tick.at(tick.keep), order_rate)
    price = tick.use @ np.maximum(tick.usd, 1e-12) / tick.rate
    pools = [mine[np.argsort(price[mine], kind="stable")]
             for mine in (np.flatnonzero(tick.of == w) for w in range(len(tick.workloads)))]  # fmt: skip
    main = tick.use.argmax(axis=1)
    most = np.maximum.accumulate(keep_rate, axis=0)
    window = [_window(tick, g) - 1 for g in range(len(tick.machines))]
    # Running machines stay that the keep quantile needs before an order could bring them back.
    free = tick.ready.astype(float)
    for w, mine in enumerate(pools):
        carried = 0.0
        for p in mine:
            count = _deployments(float(most[window[main[p]], w]) - carried, tick.rate[p])
            if not count:
                continue
            count = min(count, _fits(free, tick.use[p]))
            free -= count * tick.use[p]
            carried += count * tick.rate[p]
    may = tick.ready - np.maximum(tick.young[0], tick.committed)
    stays = np.array([x.tail >= H - 1 for x in tick.lead])
    stops = np.where(stays, 0, np.clip(np.floor(free + 1e-9), 0, np.maximum(may, 0))).astype(np.int64)
    # Machines ready at the lead time serve the order quantile; the rest is ordered.
    there = [tick.arriving[: x.start + 1, g].sum() for g, x in enumerate(tick.lead)]
    free = (tick.ready - stops + there).astype(float)
    orders = np.zeros(len(tick.machines), dtype=np.int64)
    taken = tick.limit_rows @ (tick.ready - stops + tick.arriving.sum(axis=0))
    serving = np.zeros((H, len(tick.of)))
    for w, mine in enumerate(pools):
        carried = 0.0
        for new in (False, True):
            for p in mine:
                use, start = tick.use[p], min(tick.lead[main[p]].start, H - 1)
                count = _deployments(float(order_rate[start, w]) - carried, tick.rate[p])
                if not count:
                    continue
                if not new:
                    count = min(count, _fits(free, use))
                    free -= count * use
                elif (tick.blocked[use > 0] > 0).any():
                    continue
                else:
                    each = tick.limit_rows @ use
                    rows = each > 0
                    room = np.floor((tick.limits[rows] - taken[rows]) / each[rows] + 1e-9).min(initial=np.inf)
                    count = int(max(min(count, room), 0))
                    orders += (count * use).astype(np.int64)
                    taken = taken + count * each
                carried += count * tick.rate[p]
                serving[start if new else 0 :, p] += count
    if is_rule_exact(tick):  # the same by levels, which also exchange machines that run for those that arrive
        for p, g in enumerate(tick.use.argmax(axis=1)):
            for rates, what in ((order_rate, orders), (keep_rate, stops)):
                need = np.ceil(rates[:, tick.of[p]] / tick.rate[p] - 1e-9).astype(np.int64)
                path, ordered = counts(need, int(tick.ready[g]), tick.arriving[:, g], tick.lead[g])
                gone = int(tick.ready[g] + tick.arriving[0, g] - path[0])
                what[g] = ordered[0] if what is orders else np.clip(gone, 0, tick.ready[g])
    orders, stops = _within_changes(tick, orders, stops)
    machines = tick.ready - stops + np.cumsum(tick.arriving, axis=0).astype(float)
    for g, x in enumerate(tick.lead):
        machines[x.start :, g] += orders[g]
    return Decision("rule", "fallback", orders, stops, machines, serving)


def _deployments(rate: float, each: float) -> int:
    return math.ceil(max(rate, 0.0) / each - 1e-9)


def _window(tick: Tick, g: int) -> int:
    """Ticks within which a need makes it cheaper to keep a machine than to order it again."""
    bridge = tick.lead[g].bridge
    return tick.H if not math.isfinite(bridge) else min(math.floor(bridge) + 1, tick.H)


def _fits(free: Array, use: Array) -> int:
    """Deployments that free machines suffice for."""
    mine = use > 0
    return int(max(np.floor((free[mine] / use[mine]).min() + 1e-9), 0))


def _within_changes(tick: Tick, orders: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """At most the changes that a tick may have: orders first, then the most expensive stops."""
    if math.isinf(tick.max_changes):
        return orders, stops
    left = int(tick.max_changes)
    for what in (orders, stops):
        for g in np.argsort(-tick.usd, kind="stable"):
            what[g] = min(int(what[g]), left)
            left -= int(what[g])
    return orders, stops


def _last(tick: Tick, last: Mapping[str, Any], why: str) -> Decision:
    """The changes that an earlier plan had for now."""
    orders = np.array([int(last.get("orders", {}).get("|".join(m), 0)) for m in tick.machines], dtype=np.int64)
    stops = np.array([int(last.get("stops", {}).get("|".join(m), 0)) for m in tick.machines], dtype=np.int64)
    stops = np.minimum(stops, np.maximum(tick.ready - np.maximum(tick.young[0], tick.committed), 0))
    machines = tick.ready - stops + np.cumsum(tick.arriving, axis=0).astype(float)
    return Decision("last", f"the rule failed: {why}", orders, stops, machines, np.zeros((tick.H, len(tick.of))))


# -------------------------------------------------------------------------------------------------------- the MILP


def _solved(tick: Tick, by_rule: Decision, began: float, time_limit: float) -> Decision:
    """The best of rounding and MILP; the rule where neither has a plan in time."""
    clock = time.perf_counter()
    whole = max(x.start for x in tick.lead) + 1
    model = TickModel(tick, whole)
    compiled = model.compiled()
    seconds = by_rule.seconds | {"build": time.perf_counter() - clock}
    clock = time.perf_counter()
    plain = replace(compiled, integer=np.zeros_like(compiled.integer))
    session = Session(plain, Settings(max(time_limit - (clock - began), 0.01), options={"solver": "simplex"}))
    ended = session.run()
    seconds["relaxation"] = time.perf_counter() - clock
    if ended != "optimal":
        by_rule.why, by_rule.seconds = "the relaxation was not solved in time", seconds
        return by_rule
    bound = least_value(plain, plain.costs[0], session.row_duals()) + float(compiled.offsets[0])
    lost = unavoidable(tick)
    found: Decision | None = None
    clock = time.perf_counter()
    relaxed, x = session.values(), None
    counts = np.concatenate([model.variables[k].columns for k in ("M", "n")])

    def tried(values: Array | None, why: str) -> None:
        """The best plan of these whole counts, if it is better than the one known."""
        nonlocal found, x
        if values is None:
            return
        session.set_column_bounds(counts, values, values)
        if session.run() != "optimal":
            return
        now = np.clip(session.values(), plain.lower, plain.upper)
        now[np.abs(now) < NOISE] = 0.0  # a basis leaves 1e-9 where 0 is meant
        now[counts] = values
        value = float(compiled.costs[0] @ now + compiled.offsets[0])
        better = found is None or found.objective is None or value < found.objective - 1e-9
        if better and compiled.violation(now) is None:
            found, x = _decision("rounded", why, model, now, value), now

    tried(rounded(model, relaxed, whole), "the relaxation, rounded by marginal value")
    seconds["rounding"] = time.perf_counter() - clock
    if found is None or _gap(found.objective, bound, lost) > GAP:
        clock = time.perf_counter()
        session.set_column_bounds(counts, plain.lower[counts], plain.upper[counts])
        until = clock + DIVE * max(time_limit - (clock - began), 0.0)
        tried(dived(model, plain, session, until), "the relaxation, rounded step by step")
        seconds["diving"] = time.perf_counter() - clock
    clock = time.perf_counter()
    left = time_limit - (clock - began)
    close = found is not None and _gap(found.objective, bound, lost) <= GAP
    if left > 0.05 and not close:
        start = None if x is None else dict(enumerate(x.tolist()))
        avoidable = max(1.0 - lost / bound, 0.0) if bound > 0 else 1.0  # the solver's gap counts the whole shortage
        report = solve_compiled(compiled, Settings(left, GAP * avoidable), start)
        if report.bound is not None:
            bound = max(bound, report.bound)
        better = found is None or (report.objective is not None and report.objective < found.objective - 1e-9)  # type: ignore[operator]
        if report.x is not None and better:
            how = "to the gap asked for" if report.status == "optimal" or report.limit == "gap" else "at the time limit"
            found = _decision("exact", f"branch and bound ended {how}", model, report.x, report.objective)
        seconds["branch_and_bound"] = time.perf_counter() - clock
    if found is None or _gap(found.objective, bound, lost) > USELESS:
        by_rule.why, by_rule.seconds = "no good plan of the MILP in time", seconds
        return by_rule
    assert found.objective is not None
    found.objective -= lost
    found.bound = bound - lost
    found.seconds = seconds
    return found


def _gap(objective: float | None, bound: float, lost: float) -> float:
    gap = relative_gap(None if objective is None else objective - lost, bound - lost)
    return math.inf if gap is None else gap


def _decision(source: str, why: str, model: TickModel, x: Array, objective: float | None) -> Decision:
    tick = model.tick
    shape = (tick.H, len(tick.machines))
    orders, stops = (np.round(v.of(x)).astype(np.int64).reshape(shape)[0] for v in (model.o, model.d))
    return Decision(source, why, orders, stops, model.values("M", x), model.values("n", x), objective)


def unavoidable(tick: Tick) -> float:
    """USD of shortage that no decision can avoid: each workload alone with every machine that can be there in time."""
    total = 0.0
    there = tick.ready + np.cumsum(tick.arriving, axis=0)
    early = np.arange(tick.H)[:, None] < np.array([x.start for x in tick.lead])[None, :]
    count = np.where(early, there, np.inf)  # (H, G)
    for w in range(len(tick.workloads)):
        capacity = np.zeros(tick.H)
        for p in np.flatnonzero(tick.of == w):
            mine = tick.use[p] > 0
            fits = np.where(np.isinf(count[:, mine]), np.inf, np.floor(count[:, mine] / tick.use[p][mine])).min(axis=1)
            capacity = capacity + fits * tick.rate[p]
        short = np.maximum(tick.rates[:, :, w] - capacity[:, None], 0.0)
        total += float((short @ tick.mass).sum()) * float(tick.late_usd[w])
    return total


def dived(model: TickModel, plain: Compiled, session: Session, until: float) -> Array | None:
    """Whole values of M and n in the first ticks: the relaxation is solved again after each quarter is rounded.

    Deployments come first, those closest to `UP` below a whole number; None: infeasible or no time.
    """
    n, machines = (model.variables[k].columns for k in ("n", "M"))
    if session.run() != "optimal":
        return None
    for columns in (n, machines):
        while True:
            x = session.values()[columns]
            fractional = np.flatnonzero(np.abs(x - np.round(x)) > 1e-6)
            if not len(fractional):
                break
            target = np.floor(x[fractional] + UP)
            order = np.argsort(np.abs(x[fractional] - target), kind="stable")[: len(fractional) // 4 + 1]
            pick, values = columns[fractional[order]], target[order]
            session.set_column_bounds(pick, values, values)
            if session.run() != "optimal":  # only the first of them, up, else down
                session.set_column_bounds(pick, plain.lower[pick], plain.upper[pick])
                one, at = pick[:1], x[fractional[order[:1]]]
                for value in (np.ceil(at), np.floor(at)):
                    session.set_column_bounds(one, value, value)
                    if session.run() == "optimal":
                        break
                else:
                    return None
            if time.perf_counter() > until:
                return None
    x = session.values()
    return np.round(np.concatenate([x[machines], x[n]]))


def rounded(model: TickModel, x: Array, whole: int) -> Array:
    """Whole values of M and n in the first ticks, from a relaxed point.

    Deployments are rounded down, then up where one more is worth more than it costs. Machines are those that they
    need, or the relaxed number rounded up.
    """
    tick = model.tick
    relaxed, machines = model.values("n", x)[:whole], model.values("M", x)[:whole]
    n = np.floor(relaxed + 1e-6)
    there = (tick.ready + np.cumsum(tick.arriving, axis=0))[:whole]
    starts = np.maximum([v.start for v in tick.lead], tick.blocked)
    late = np.arange(whole)[:, None] >= starts[None, :]
    most = np.where(late, np.inf, there)
    cost = tick.use @ tick.usd
    weights = tick.use @ tick.limit_rows.T  # (P, R)
    for t in range(whole):
        used = n[t] @ tick.use
        gone = np.array(
            [(relaxed[t] - n[t])[tick.of == w] @ tick.rate[tick.of == w] for w in range(len(tick.workloads))]
        )
        for w in np.argsort(-gone * tick.late_usd, kind="stable").tolist():
            mine = np.flatnonzero(tick.of == w)
            capacity = float(n[t, mine] @ tick.rate[mine])
            while True:
                short = np.maximum(tick.rates[t, :, w] - capacity, 0.0)
                saved = np.minimum(short[None, :], tick.rate[mine][:, None]) @ tick.mass * tick.late_usd[w]
                after = used[None, :] + tick.use[mine]
                fits = (after <= most[t] + 1e-9).all(axis=1)
                if len(tick.limits):
                    fits &= (tick.limit_rows @ used + weights[mine] <= tick.limits + 1e-9).all(axis=1)
                idle = (after <= np.ceil(machines[t] - 1e-6)).all(axis=1)  # they run anyway
                value = np.where(fits, saved - np.where(idle, 0.0, cost[mine]), -np.inf)
                best = int(value.argmax())
                if value[best] <= 1e-12:
                    break
                n[t, mine[best]] += 1
                used = used + tick.use[mine[best]]
                capacity += tick.rate[mine[best]]
    needed = np.ceil(n @ tick.use - 1e-9)
    up = np.maximum(needed, np.minimum(np.ceil(machines - 1e-6), most))
    if len(tick.limits):  # rounding up must leave room for ordered machines
        coming = np.cumsum(tick.arriving[::-1], axis=0)[::-1][:whole] - tick.arriving[:whole]
        over = ((up + coming) @ tick.limit_rows.T > tick.limits + 1e-9) @ (tick.limit_rows > 0)
        up = np.where(over, np.maximum(needed, np.floor(machines + 1e-6)), up)
    machines = up
    for t in range(whole - 1, 0, -1):  # before an order can arrive, machines of a tick run in the one before
        machines[t - 1] = np.maximum(machines[t - 1], np.where(late[t], 0.0, machines[t] - tick.arriving[t]))
    return np.concatenate([machines.ravel(), n.ravel()])
