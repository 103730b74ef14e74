"""Methods for fleets next to the MILP; each `(problem, tables, options) -> Outcome`.

They plan every period by itself and claim no bound. A plan that breaks a limit is not returned: the reason names it.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from formulations.fleet.making import FleetChoice, make_plan, without_noise
from formulations.fleet.methods.columns import relaxation
from formulations.fleet.plan import FleetPlan, objective_value
from formulations.fleet.points import DECODE, MOST_DEPLOYMENTS, PREFILL, FleetTables, prune
from formulations.fleet.problem import Fleet
from formulations.fleet.reserve import MOST_SPARES, spares
from optmodels.arrays import Array, Index, Mask
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome

Share = tuple[int, int, int, float]  # period, demand, point, share
EDGE = 1e-9  # deployments: no more than exact models take for rounding, or a plan could be better than their bound


# ------------------------------------------------------------------------------------------------------- shared


def complete(problem: Fleet, tables: FleetTables, shares: Iterable[Share]) -> FleetChoice:
    """Counts for given shares: loads rounded up, then those for the reserve and the minimum replicas."""
    listed = list(shares)
    t, w, p = (np.array([s[k] for s in listed], dtype=np.intp) for k in range(3))
    value = np.array([s[3] for s in listed], dtype=float)
    T, P = len(tables.case.periods), len(tables.points)
    choice = without_noise(tables, FleetChoice(np.ones((T, P), dtype=np.intp), t, w, p, value))
    t, w, p, value = choice.t, choice.w, choice.p, choice.value
    n = np.ceil(choice.used(tables) - EDGE).astype(np.intp)
    n[t, p] = np.maximum(n[t, p], 1)  # however small the load
    points, alone = tables.points, choice.used_alone(tables)
    for i in range(T):
        for mine in _protected(problem, tables, n[i]):
            at = mine[n[i, mine] > 0][0]
            n[i, at] += _more(problem, tables, n[i], alone[i], mine)
    for i in range(T):
        for work in tables.case.workloads:
            rows = [k for k, d in enumerate(tables.demands) if d.workload == work.name]
            can = np.flatnonzero(np.isfinite(tables.load[rows]).any(axis=0))
            for other in (PREFILL, DECODE) if work.min_replicas else ():
                able = can[points.stage[can] != other]
                if len(able):
                    missing = work.min_replicas - int(n[i, able].sum())
                    n[i, able[points.usd_per_hour[able].argmin()]] += max(missing, 0)
    return FleetChoice(n, t, w, p, value)


def _protected(problem: Fleet, tables: FleetTables, n: Index) -> list[Index]:
    """Points of every pool in use under the reserve."""
    points, r = tables.points, problem.reserve
    if r is None:
        return []
    pools = [np.flatnonzero(points.pool == pool) for pool in np.unique(points.pool[n > 0])]
    return [mine for mine in pools if r.machines == "all" or points.spot[mine[0]]]


def _short(problem: Fleet, tables: FleetTables, n: Index, used: Array, mine: Index) -> int:
    """Deployments that a pool lacks to keep its load, however small, after the losses of the reserve."""
    points, r = tables.points, problem.reserve
    assert r is not None
    load, size = float((used[mine] * points.rho[mine]).sum()) / r.load_after_loss, int(n[mine].sum())
    if not load:
        return 0  # the whole may be lost
    needed = max(math.ceil(load - EDGE), 1)
    if r.lost is not None:
        return needed - size + r.lost
    assert r.survive_probability is not None
    return needed - size + spares(size, float(points.unavailable[mine].max()), (1 - r.survive_probability) / r.pools)


def _more(problem: Fleet, tables: FleetTables, n: Index, used: Array, mine: Index) -> int:
    """Fewest deployments that a pool needs next to its own to be short of none; 0 where no reserve is large enough.

    A deployment more needs one more spare at most, so that the pool lacks no more with it than without.
    """

    def short(more: int) -> int:
        row = n.copy()
        row[mine[0]] += more
        return _short(problem, tables, row, used, mine)

    lacks = max(short(0), 0)
    if not lacks or short(lacks + MOST_SPARES) > 0:
        return 0
    return lacks + bisect_left(range(lacks, lacks + MOST_SPARES), True, key=lambda more: short(more) <= 0)


def broken(problem: Fleet, tables: FleetTables, choice: FleetChoice, plan: FleetPlan) -> list[str]:
    """Limits of the instance that a choice breaks, in words."""
    found = []
    for q in plan.periods:
        for line in q.limits:
            over = line.value - line.limit if line.sense == "<=" else line.limit - line.value  # type: ignore[operator]
            if over > 1e-6 * max(1.0, abs(line.limit or 0.0)):
                sign = ">" if line.sense == "<=" else "<"
                found.append(f"{line.name} {line.value:.5g} {sign} {line.limit:.5g} {line.unit}".strip())
        for u in q.unserved:
            w = tables.case.workload(u.demand.split("/")[0])
            if tables.case.serve_at_least(w) > 1 - u.share + 1e-7:
                found.append(f"{u.demand}: {u.share:.1%} not served")
    r, used = problem.reserve, choice.used_alone(tables)
    for t, row in enumerate(choice.n):
        lacks = [_short(problem, tables, row, used[t], mine) for mine in _protected(problem, tables, row)]
        found += [f"reserve: a pool lacks {short} of the deployments that it needs" for short in lacks if short > 0]
    if r is not None and r.survive_probability is not None:
        spots = [len({int(x) for x in tables.points.pool[(row > 0) & tables.points.spot]}) for row in choice.n]
        if max(spots, default=0) > r.pools:
            found.append(f"spot pools {max(spots)} > {r.pools}")
    return found


def finish(
    problem: Fleet, tables: FleetTables, choice: FleetChoice | None, clock: float, why: str = "no feasible fleet found"
) -> Outcome[FleetPlan]:
    """A heuristic's answer: a plan that breaks no limit, or nothing with the reason."""
    seconds = {"solve": time.perf_counter() - clock}
    if choice is None:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": why})
    if problem.objective == "max_ce" and not choice.n.any():
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": "nothing served"})
    if choice.n.max(initial=0) > MOST_DEPLOYMENTS:
        why = f"takes more than {MOST_DEPLOYMENTS:,} deployments of a point"
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": why})
    plan = make_plan(tables, choice)
    faults = broken(problem, tables, choice, plan)
    if faults:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": "breaks " + "; ".join(faults[:4])})
    return Outcome("feasible", plan, seconds=seconds)


def better(problem: Fleet, a: FleetPlan, b: FleetPlan | None) -> bool:
    """Whether plan a has the better objective; anything is better than none."""
    if b is None:
        return True
    va, vb = objective_value(a), objective_value(b)
    return va < vb if problem.objective == "min_cost" else va > vb


class _Room:
    """Stock, quotas, budget and open deployments left in one period."""

    def __init__(self, problem: Fleet, tables: FleetTables, t: int) -> None:
        self.tables, self.rates = tables, tables.rates[t]
        self.consumption, self.left = tables.consumption, tables.limits.astype(float).copy()
        self.money = np.inf if problem.budget_usd_per_hour is None else problem.budget_usd_per_hour
        self.spare = np.zeros(len(tables.points))

    def deployments(self) -> Array:
        """How many more of each point can be bought, (P,)."""
        most = np.floor(self.money / self.tables.points.usd_per_hour + EDGE)
        for r in np.flatnonzero(np.isfinite(self.left)):
            takes = self.consumption[:, r]
            some = takes > 0
            most[some] = np.minimum(most[some], np.floor(self.left[r] / takes[some] + EDGE))
        return np.maximum(most, 0.0)

    def take(self, p: int, load: float) -> None:
        """Put load on p, buying the machines for it."""
        bought = max(0.0, np.ceil(load - self.spare[p] - EDGE))
        self.spare[p] += bought - load
        self.left -= self.consumption[p] * bought
        self.money -= self.tables.points.usd_per_hour[p] * bought


def greedy_shares(problem: Fleet, tables: FleetTables, fill: bool, begun: Sequence[Share] = ()) -> list[Share]:
    """Every demand, by priority and then size, on the point with the cheapest tokens that still has room.

    Args:
        problem, tables: as everywhere.
        fill: use open deployments first, and for less than a full deployment the least cost of whole ones.
        begun: shares of a relaxation, within all limits; those of its full deployments are kept.
    """
    case, points = tables.case, tables.points
    shares: dict[tuple[int, int, int], float] = {}
    for t in range(len(case.periods)):
        room = _Room(problem, tables, t)
        possible = np.isfinite(tables.load)
        late = np.where(possible, tables.usd_per_share(t), np.inf)  # (W, P), USD/h for all of a demand
        load = np.where(possible, tables.load, 0.0) * room.rates[:, None]
        unit = load * points.usd_per_hour + late
        work = [case.workload(d.workload) for d in tables.demands]
        cheapest = unit.min(axis=1) if len(points) else np.zeros(0)
        order = sorted(
            (w for w in range(len(work)) if room.rates[w] > 0 and len(points)),
            key=lambda w: (work[w].priority, -cheapest[w] if np.isfinite(cheapest[w]) else 0.0, w),
        )
        used = np.zeros(len(points))
        mine = [(w, p, v) for at, w, p, v in begun if at == t]
        for w, p, v in mine:
            used[p] += v * load[w, p]
        full = np.floor(used + EDGE)
        for p in np.flatnonzero(full).tolist():
            room.take(p, full[p])
        kept = {(w, p): v * min(full[p] / used[p], 1.0) for w, p, v in mine if full[p] > 0}
        shares |= {(t, w, p): v for (w, p), v in kept.items()}
        for w in order:
            rest = 1.0 - sum(v for (w_, _), v in kept.items() if w_ == w)
            spot_left = work[w].spot_share_max - sum(v for (w_, p), v in kept.items() if w_ == w and points.spot[p])
            worth = np.inf
            if case.serve_at_least(work[w]) < 1 and problem.objective == "min_cost":
                worth = work[w].unserved_usd_per_1000_requests * 3.6 * room.rates[w]
            while rest > EDGE:
                most = np.where(points.spot, min(rest, spot_left), rest)
                p, share = _next_share(room, load[w], late[w], most, worth, fill)
                if share <= EDGE:
                    break
                room.take(p, share * load[w, p])
                shares[t, w, p] = shares.get((t, w, p), 0.0) + share
                rest -= share
                spot_left -= share * float(points.spot[p])
    return [(*key, share) for key, share in shares.items()]


def _next_share(room: _Room, load: Array, late: Array, most: Array, worth: float, fill: bool) -> tuple[int, float]:
    """Point and share that serve more of a demand; a share of 0 where no point can or should.

    Args:
        room: deployments that are open, and those that can be bought.
        load, late: deployments and USD/h for all of the demand, (P,); late is infinite where it cannot be served.
        most: share that a point may take, (P,).
        worth: USD/h above which all of the demand is not served.
        fill: as in `greedy_shares`.
    """
    usd = room.tables.points.usd_per_hour
    with np.errstate(divide="ignore", invalid="ignore"):
        free = np.where(load > 0, np.minimum(most, room.spare / load), 0.0)
        fits = np.where(load > 0, np.minimum(most, (room.spare + room.deployments()) / load), most)
        each = np.ceil(fits * load - room.spare - EDGE) * usd / fits + late  # USD/h for all of it
    unit = load * usd + late
    p, found = _least(unit, (fits > EDGE) & (unit <= worth))
    if not fill:
        return p, float(fits[p]) if found else 0.0
    open_, any_open = _least(unit, (free > EDGE) & (late <= worth))
    if any_open:
        return open_, float(free[open_])
    if found and (full := math.floor(fits[p] * load[p] + EDGE)) >= 1:
        return p, min(full / float(load[p]), float(fits[p]))
    p, found = _least(each, (fits > EDGE) & (each <= worth))
    return p, float(fits[p]) if found else 0.0


def _least(value: Array, allowed: Mask) -> tuple[int, bool]:
    """Position of the least finite value among the allowed ones, the first of equal ones; whether there is one."""
    at = int(np.where(allowed, value, np.inf).argmin())
    return at, bool(allowed[at] and np.isfinite(value[at]))


def alone(method: Method) -> Method:
    """The method on the points that each serve requests alone, and well enough: it knows no other ones."""

    @wraps(method)
    def on_these(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
        return method(problem, tables.alone().good_enough(), options)

    return on_these


@alone
def greedy(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Cheapest per token: every demand on the point with the cheapest tokens that still has room; counts rounded up.

    The better of two plans: of each bucket by itself, and with open deployments filled first (`greedy_shares`).
    """
    clock = time.perf_counter()
    if problem.objective == "max_ce" and not any(tables.case.serve_at_least(w) for w in tables.case.workloads):
        return finish(problem, tables, _best_single(problem, tables), clock)
    tried = [complete(problem, tables, greedy_shares(problem, tables, fill)) for fill in (False, True)]
    return _best(problem, [finish(problem, tables, choice, clock) for choice in tried])


def _best(problem: Fleet, outcomes: list[Outcome[FleetPlan]]) -> Outcome[FleetPlan]:
    """The outcome with the best plan, the first of equal ones; without any plan the first."""
    best = outcomes[0]
    for outcome in outcomes[1:]:
        if outcome.plan is not None and better(problem, outcome.plan, best.plan):
            best = outcome
    return best


def _best_single(problem: Fleet, tables: FleetTables) -> FleetChoice | None:
    """The one deployment with the most tokens per dollar, filled with the demands that give most per load."""
    if not len(tables.points):
        return None
    best: tuple[float, list[Share]] = (0.0, [])
    tokens = np.array([d.tokens * tables.case.workload(d.workload).weight for d in tables.demands])
    t = 0
    for p in range(len(tables.points)):
        good = np.flatnonzero(np.isfinite(tables.load[:, p]) & (tables.load[:, p] > 0) & (tables.rates[t] > 0))
        if not len(good):
            continue
        load = np.where(np.isfinite(tables.load[:, p]), tables.load[:, p], 0.0) * tables.rates[t]
        value = tokens[good] * tables.rates[t][good]
        order = good[np.argsort(-value / load[good], kind="stable")]
        shares, free, total = [], 1.0, 0.0
        for w in order:
            share = min(1.0, free / load[w])
            shares.append((t, int(w), p, share))
            total += share * tokens[w] * tables.rates[t][w]
            free -= share * load[w]
            if free <= EDGE:
                break
        ratio = total / float(tables.points.usd_per_hour[p])
        if ratio > best[0]:
            best = ratio, shares
    return complete(problem, tables, best[1]) if best[1] else None


# ---------------------------------------------------------------------------------------------------- greedy + DP


def _path(
    problem: Fleet, tables: FleetTables, t: int, rows: Index, columns: Index, until: float
) -> list[tuple[float, float, dict[tuple[int, int], float]]]:
    """Deployments bought one after the other by value per dollar: (USD/h, value, shares) after each purchase.

    It ends at a time `until` of `time.perf_counter`, whatever is served by then.
    """
    case = tables.case
    rates = tables.rates[t][rows]
    load = tables.load[np.ix_(rows, columns)]
    load = np.where(np.isfinite(load), load, 0.0) * rates[:, None] + np.where(np.isfinite(load), 0.0, np.inf)
    cost = tables.points.usd_per_hour[columns]
    last = max(w.priority for w in case.workloads)
    work = [case.workload(tables.demands[w].workload) for w in rows]
    if problem.objective == "min_cost":
        value = (load * cost).min(axis=1)  # what serving it is worth: its cheapest cost
        value = np.where(np.isfinite(value), value, 0.0)
    else:
        value = np.array([w.weight * 1e3 ** (last - w.priority) for w in work]) * rates
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        density = np.where(np.isfinite(load) & (load > 0), value[:, None] / load, 0.0)
    order = np.argsort(-density, axis=0, kind="stable")
    sorted_load = np.take_along_axis(np.where(np.isfinite(load), load, np.inf), order, axis=0)
    sorted_density = np.take_along_axis(density, order, axis=0)
    rest = np.where(np.isfinite(load).any(axis=1), 1.0, 0.0)
    room = _Room(problem, tables, t)
    path: list[tuple[float, float, dict[tuple[int, int], float]]] = [(0.0, 0.0, {})]
    shares: dict[tuple[int, int], float] = {}
    spent = gained = 0.0
    while rest.max(initial=0.0) > EDGE and len(path) < 5000 and time.perf_counter() < until:
        left = np.where(np.isfinite(sorted_load), sorted_load, 0.0) * rest[order]
        before = np.cumsum(left, axis=0) - left
        filled = np.clip(1.0 - before, 0.0, left)
        gain = (filled * sorted_density).sum(axis=0) / cost
        chosen, deployable = None, room.deployments()
        for k in np.argsort(-gain, kind="stable")[:20]:
            if gain[k] > 0 and deployable[columns[k]] >= 1:
                chosen = int(k)
                break
        if chosen is None:
            break
        room.take(int(columns[chosen]), 1.0)
        for row, amount in zip(order[:, chosen], filled[:, chosen], strict=True):
            if amount > 1e-12:
                share = amount / load[row, chosen]
                key = (int(rows[row]), int(columns[chosen]))
                shares[key] = shares.get(key, 0.0) + share
                rest[row] = max(rest[row] - share, 0.0)
        spent += float(cost[chosen])
        gained += float(gain[chosen] * cost[chosen])
        path.append((spent, gained, dict(shares)))
    return path


@alone
def greedy_dp(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Greedy purchases per model, and dynamic programming over the split of the budget between models.

    For every group of demands that share points, deployments are bought one by one by value per dollar, which gives
    value against money; a DP over a budget grid picks how much of the money each group gets.
    """
    from formulations.fleet.methods.columns import components

    clock = time.perf_counter()
    until = math.inf if options.time_limit is None else clock + options.time_limit
    tables = tables.restricted(best_columns(tables, 12))
    shares: list[Share] = []
    for t in range(len(tables.case.periods)):
        active = np.isfinite(tables.load) & (tables.rates[t] > 0)[:, None]
        paths = [_path(problem, tables, t, rows, columns, until) for rows, columns in components(active)]
        for k, step in enumerate(_split(problem, paths)):
            shares += [(t, w, p, min(v, 1.0)) for (w, p), v in paths[k][step][2].items()]
    return finish(problem, tables, complete(problem, tables, shares), clock)


def _split(problem: Fleet, paths: list[list[tuple[float, float, Any]]], grid: int = 400) -> list[int]:
    """How far to go on every path: all the way without a budget, else by DP over budget levels."""
    whole = [len(path) - 1 for path in paths]
    budget = problem.budget_usd_per_hour
    if budget is None or sum(path[-1][0] for path in paths) <= budget:
        return whole
    step = budget / grid if budget > 0 else 1.0
    value = np.zeros(grid + 1)
    taken = np.zeros((len(paths), grid + 1), dtype=np.intp)
    for k, path in enumerate(paths):
        levels = np.array([int(np.ceil(q[0] / step - 1e-9)) for q in path])
        gains = np.array([q[1] for q in path])
        new = np.full(grid + 1, -np.inf)
        for b in range(grid + 1):
            fits = np.flatnonzero(levels <= b)
            options = gains[fits] + value[b - levels[fits]]
            j = int(options.argmax())
            new[b], taken[k, b] = options[j], fits[j]
        value = new
    chosen, b = [0] * len(paths), grid
    for k in range(len(paths) - 1, -1, -1):
        chosen[k] = int(taken[k, b])
        b -= int(np.ceil(paths[k][chosen[k]][0] / step - 1e-9))
    return chosen


def best_columns(tables: FleetTables, most: int, each: int = 3) -> Index:
    """Points with the cheapest tokens for some demand; of each model where quality counts.

    Args:
        tables: as everywhere.
        most: configurations of one demand, those with the cheapest point.
        each: points of one configuration: levels of its engine differ in little, and would crowd out other machines.
    """
    unit, points = tables.load * tables.points.usd_per_hour, tables.points
    if tables.quality is not None and len(models := np.unique(points.model)) > 1:
        mine = [np.flatnonzero(points.model == k) for k in models]
        return np.concatenate([rows[best_columns(tables.restricted(rows), most, each)] for rows in mine])
    keys = np.column_stack([points.block, points.configuration, points.main_market, points.ao_market, points.stage])
    kinds, kind = np.unique(keys, axis=0, return_inverse=True)
    kept = np.zeros(len(points), dtype=bool)
    for usd in unit:
        order = np.argsort(usd, kind="stable")
        order = order[np.isfinite(usd[order])]
        first = np.full(len(kinds), len(order))
        np.minimum.at(first, kind[order], np.arange(len(order)))
        for k in np.argsort(first, kind="stable")[:most]:
            kept[order[kind[order] == k][:each]] = True
    return np.flatnonzero(kept)


# --------------------------------------------------------------------------------------------------- LP rounding


def lp_rounding_choice(problem: Fleet, tables: FleetTables, seconds: float | None = None) -> FleetChoice | None:
    """The choice of `rounded_relaxation`."""
    return rounded_relaxation(problem, tables, seconds)[0]


def rounded_relaxation(
    problem: Fleet, tables: FleetTables, seconds: float | None = None
) -> tuple[FleetChoice | None, float]:
    """The linear relaxation's shares with counts rounded up, then deployments closed while others have room.

    Args:
        problem, tables: as everywhere.
        seconds: time limit of the relaxation; None: no limit.

    Returns:
        The choice, None where the relaxation has no solution; and a lower bound on all costs of every fleet, USD/h.
    """
    shares, bound = _relaxed(problem, tables, seconds)
    return None if shares is None else complete(problem, tables, _consolidate(tables, shares)), bound


def _relaxed(problem: Fleet, tables: FleetTables, seconds: float | None) -> tuple[list[Share] | None, float]:
    """The linear relaxation's shares and bound, as `rounded_relaxation`."""
    shares: list[Share] = []
    hours = np.array([q.hours for q in tables.case.periods])
    bound = 0.0
    until = math.inf if seconds is None else time.perf_counter() + seconds
    for t, part in enumerate(hours / hours.sum()):
        left = None if seconds is None else max(until - time.perf_counter(), 0.01)
        relaxed = relaxation(problem, tables, t, seconds=left)
        if not relaxed.feasible:
            return None, -math.inf
        bound += float(part * relaxed.bound)  # omitted terms, changes among them, cost at least nothing
        shares += [(t, int(w), int(p), float(v)) for w, p, v in zip(relaxed.w, relaxed.p, relaxed.value, strict=True)]
    return shares, bound


def _consolidate(tables: FleetTables, shares: list[Share]) -> list[Share]:
    """Move the load of emptiest last deployments into free room elsewhere, while that closes a deployment."""
    points = tables.points
    kept: list[Share] = []
    for t in range(len(tables.case.periods)):
        rates = tables.rates[t]
        by: dict[tuple[int, int], float] = {}
        for i, demand, point, v in shares:
            if i == t:
                by[demand, point] = by.get((demand, point), 0.0) + v
        used = np.zeros(len(points))
        for (w, p), v in by.items():
            used[p] += rates[w] * tables.load[w, p] * v
        for p in sorted(np.flatnonzero(used > EDGE).tolist(), key=lambda p: (used[p] % 1.0) / points.usd_per_hour[p]):
            over = used[p] - np.floor(used[p] + 1e-9)
            if over <= 1e-9:
                continue
            free = np.ceil(used - 1e-9) - used
            free[p] = 0.0
            moves: list[tuple[int, int, float]] = []
            left = over
            for w in sorted((w for w, q in by if q == p), key=lambda w: (tables.load[w, p], w)):
                for q in np.argsort(tables.load[w], kind="stable"):
                    if left <= 1e-12 or not np.isfinite(tables.load[w, q]):
                        break
                    if tables.quality is not None and tables.quality[w, q] < tables.quality[w, p]:
                        continue
                    if free[q] <= 1e-12 or (points.spot[q] and not points.spot[p]):
                        continue
                    own, there = rates[w] * tables.load[w, p], rates[w] * tables.load[w, q]
                    already = sum(v for a, _, v in moves if a == w)
                    share = min(by[w, p] - already, left / own, free[q] / there)
                    if share > 1e-12:
                        moves.append((w, int(q), share))
                        free[q] -= share * there
                        left -= share * own
            if left <= 1e-9:
                for w, q, share in moves:
                    by[w, p] -= share
                    by[w, q] = by.get((w, q), 0.0) + share
                    used[p] -= share * rates[w] * tables.load[w, p]
                    used[q] += share * rates[w] * tables.load[w, q]
        kept += [(t, w, p, v) for (w, p), v in by.items() if v > EDGE]
    return kept


def lp_rounding(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The linear relaxation, the better of two roundings.

    Counts rounded up, and deployments closed while others have room for their load; or full deployments kept, and the
    remainder placed as `greedy` does.
    """
    clock, tables = time.perf_counter(), tables.alone()
    if problem.objective != "min_cost":
        return finish(problem, tables, None, clock, "only for objective: min_cost")
    pruned, _ = prune(tables)
    shares, _ = _relaxed(problem, pruned, options.time_limit) if len(pruned.points) else ([], 0.0)
    if shares is None:
        return finish(problem, pruned, None, clock, "the linear relaxation has no solution")
    tried = (_consolidate(pruned, shares), greedy_shares(problem, pruned, True, shares))
    return _best(problem, [finish(problem, pruned, complete(problem, pruned, found), clock) for found in tried])


@alone
def single_type(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The best fleet of one machine type in one market: `greedy` and `greedy_dp` on its points, for every type."""
    clock = time.perf_counter()
    use = tables.use
    found: list[Outcome[FleetPlan]] = []
    why = "no machine type serves every bucket within the limits"
    alone = np.asarray((use > 0).sum(axis=1)).ravel() == 1
    for g in range(len(tables.resources)):
        columns = np.flatnonzero(alone & (np.asarray(use[:, [g]].todense()).ravel() > 0))
        if len(columns):
            part = tables.restricted(columns)
            found += [method(problem, part, options) for method in (greedy, greedy_dp)]
    best = _best(problem, found) if found else finish(problem, tables, None, clock, why)
    seconds = {"solve": time.perf_counter() - clock}
    if best.plan is None:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": why})
    return Outcome("feasible", best.plan, seconds=seconds)


METHODS: dict[str, Method] = {
    "greedy": greedy,
    "greedy_dp": greedy_dp,
    "lp_rounding": lp_rounding,
    "single_type": single_type,
}
TITLES = {
    "greedy": "cheapest tokens first, open deployments filled, counts rounded up",
    "greedy_dp": "deployment by deployment by value per dollar, DP over the budget between models",
    "lp_rounding": "linear relaxation rounded: up and consolidated, or its remainder by greedy",
    "single_type": "best fleet of one machine type, by greedy and greedy_dp",
    "column_pruning": "MILP on the points with the cheapest tokens of each bucket",
    "melange": "Mélange's sliced assignment: whole slices of a bucket, no limits, no queueing",
}
