"""The plan of a fleet made from its tables and a method's choice of counts and shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np

from formulations.fleet.choice import FleetChoice as FleetChoice
from formulations.fleet.engines import EngineKind, costs_of, transfer_bytes
from formulations.fleet.labels import deployment_name
from formulations.fleet.plan import (
    DeploymentLine,
    FleetPlan,
    PeriodLine,
    ShareLine,
    TransferLine,
    UnservedLine,
)
from formulations.fleet.points import BOTH, CAPACITIES, DECODE, PREFILL, STAGES, FleetTables, changes_matter
from formulations.fleet.problem import FleetCase, FleetWorkload
from optmodels.arrays import Array, Index
from optmodels.batch.points import NONE
from optmodels.batch.queueing import variability, waiting
from optmodels.engine.continuous import Percentile
from optmodels.latency.strategies import FAMILIES
from optmodels.plans.lines import EngineLine, LimitLine, MachineLine, latency_source

TINY = 1e-9  # shares below it are rounding noise
ROUNDING = 1e-6  # of loads and of served shares: the tolerance of solvers


def resource_name(resource: tuple[str, str, str]) -> str:
    """``g5.xlarge in us-east-1 (spot)``."""
    machine, region, market = resource
    return machine + (f" in {region}" if region else "") + f" ({market})"


def changes(tables: FleetTables, n: Index) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Machines started and stopped before every period, by resource."""
    problem = tables.case.problem
    names = [resource_name(r) for r in tables.resources]
    counts = [
        {k: round(v) for k, v in zip(names, row, strict=True)} for row in np.asarray(tables.use.T @ n.T).T
    ]  # fmt: skip
    before: dict[str, int] | None = None
    if problem.running is not None:
        before = {}
        for r in problem.running:
            key = resource_name((r.machine, r.region, r.market))
            before[key] = before.get(key, 0) + r.count
    elif len(n) > 1 and changes_matter(problem):
        before = counts[-1]
    starts: list[dict[str, int]] = []
    stops: list[dict[str, int]] = []
    for now in counts:
        up: dict[str, int] = {}
        down: dict[str, int] = {}
        if before is not None:
            for key in {**before, **now}:
                difference = now.get(key, 0) - before.get(key, 0)
                if difference > 0:
                    up[key] = difference
                elif difference < 0:
                    down[key] = -difference
        starts.append(up)
        stops.append(down)
        before = now if before is not None else None
    return starts, stops


def make_plan(tables: FleetTables, choice: FleetChoice) -> FleetPlan:
    """The plan of counts and shares; every figure is computed here, none is taken from a solver."""
    case, points, rates = tables.case, tables.points, tables.rates
    problem = case.problem
    choice = _evened(tables, _at_one_level(tables, without_noise(tables, choice)))
    used = choice.used_of_each(tables)
    served = np.minimum(choice.served(tables), 1.0)
    starts, stops = changes(tables, choice.n)
    hours = np.array([q.hours for q in case.periods])
    share = hours / hours.sum()
    weights = np.array([case.workload(d.workload).weight for d in tables.demands])
    price = np.array([case.workload(d.workload).unserved_usd_per_1000_requests * 3.6 for d in tables.demands])
    machine_usd = choice.n @ points.usd_per_hour
    soft = np.zeros(len(hours))
    if tables.penalty is not None:
        np.add.at(
            soft, choice.t, tables.penalty[choice.w, choice.p] * rates[choice.t, choice.w] * choice.value * 3600.0
        )
    unserved_usd = ((1 - served) * rates) @ price
    c = problem.change
    span = float(hours.sum()) if len(hours) > 1 else c.horizon_hours
    change_usd = sum(
        c.start_usd * sum(a.values()) + c.stop_usd * sum(b.values()) for a, b in zip(starts, stops, strict=True)
    ) / span  # fmt: skip
    machine_total, penalty_total = float(share @ machine_usd), float(share @ (soft + unserved_usd))
    total = machine_total + penalty_total + change_usd
    scenarios = None
    if case.draws is not None:
        from formulations.fleet.recourse import scenarios_line

        scenarios = scenarios_line(tables, choice.n[0])
        total += scenarios.usd_per_hour
    tokens = np.array([d.tokens for d in tables.demands])
    served_rate = served * rates
    weighted_tokens = float(share @ (served_rate @ (tokens * weights))) * 3600.0
    plain_tokens = float(share @ (served_rate @ tokens)) * 3600.0
    first = min((case.workload(d.workload).priority for d in tables.demands if d.has_requests), default=0)
    top = np.array([case.workload(d.workload).priority == first for d in tables.demands])
    bought = points.usd_per_hour[(choice.n > 0).any(axis=0)]
    cheapest = float(bought.min(initial=np.inf))
    lines = [_period(tables, choice, t, used[:, t], served[t], machine_usd[t], starts[t], stops[t], cheapest)
             for t in range(len(hours))]  # fmt: skip
    demanded = float(share @ rates.sum(axis=1))
    return FleetPlan(
        name=problem.name, objective=problem.objective, periods=lines, usd_per_hour=machine_total,
        penalty_usd_per_hour=penalty_total, change_usd_per_hour=change_usd, total_usd_per_hour=total,
        served_share=float(share @ served_rate.sum(axis=1)) / demanded if demanded > 0 else 1.0,  # a silent piece
        usd_per_million_tokens=total / plain_tokens * 1e6 if plain_tokens > 0 else None,
        tokens_per_usd=weighted_tokens / total if total > 0 else 0.0,
        first_priority_served_per_s=float(share @ (served_rate @ (weights * top))),
        pools_on_spot=len(set(points.pool[(choice.n > 0).any(axis=0) & points.spot].tolist())),
        survival_probability=_survival(tables, choice, choice.used_alone(tables)), routing=case.routing,
        scenarios=scenarios,
    )  # fmt: skip


def without_noise(tables: FleetTables, choice: FleetChoice) -> FleetChoice:
    """The choice without shares that a tolerance left, and with all of a demand that is served but for one."""
    keep = (choice.value > TINY) & (choice.n[choice.t, choice.p] > 0)
    choice = FleetChoice(choice.n, choice.t[keep], choice.w[keep], choice.p[keep], choice.value[keep])
    served = choice.served(tables)
    whole = np.where(np.abs(served - 1) < ROUNDING, served, 1.0)
    choice = replace(choice, value=choice.value / whole[choice.t, choice.w])
    stage, k = tables.points.stage[choice.p], tables.points.exchange[choice.p]
    if not stage.any():
        return choice
    sums = np.zeros((len(STAGES), *served.shape, int(k.max()) + 1))
    np.add.at(sums, (stage, choice.t, choice.w, k), choice.value)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = sums[PREFILL] / sums[DECODE]
    ratio = np.where(np.abs(ratio - 1) < ROUNDING, ratio, 1.0)[choice.t, choice.w, k]
    return replace(choice, value=np.where(stage == DECODE, choice.value * ratio, choice.value))


def _at_one_level(tables: FleetTables, choice: FleetChoice) -> FleetChoice:
    """The choice of a plan to be simulated, with equal machines at one level where that has room for all they serve.

    As feasible as before: points of one configuration and markets differ in loads and latencies alone. An engine does
    the same at any level, and that with most to do decides whether promises hold. Of levels with room the fastest.
    """
    x = tables.points
    if tables.case.problem.certify == "none" or tables.capacities is None or tables.penalty is not None:
        return choice
    if len(choice.n) > 1:  # running deployments are counted by point
        return choice
    same = np.stack([x.block, x.configuration, x.main_market, x.ao_market, x.pool], axis=1)
    kinds = np.unique(same[(choice.n[0] > 0) & (x.stage == BOTH)], axis=0)
    for kind in kinds:
        group = np.flatnonzero((same == kind).all(axis=1) & (x.stage == BOTH))
        mine = np.isin(choice.p, group)
        count = choice.n[0, group].sum()
        w = np.unique(choice.w[mine])
        if (choice.n[0, group] > 0).sum() < 2 or not len(w):
            continue
        total = np.array([choice.value[mine & (choice.w == k)].sum() for k in w])
        each = tables.capacities[:, w][:, :, group]
        can = np.isfinite(each).all(axis=(0, 1))
        load = np.einsum("w,kwp->kp", total * tables.rates[0, w] / count, np.where(can, each, 0.0)).max(axis=0)
        fits = group[can & (load <= 1.0)]
        if not len(fits):
            continue
        step, wait = x.level[:2, fits]
        n, p = choice.n.copy(), fits[np.lexsort((wait, step))[0]]
        n[0, group] = 0
        n[0, p] = count
        choice = FleetChoice(
            n, np.append(choice.t[~mine], np.zeros_like(w)), np.append(choice.w[~mine], w),
            np.append(choice.p[~mine], np.full_like(w, p)), np.append(choice.value[~mine], total),
        )  # fmt: skip
    return choice


def _evened(tables: FleetTables, choice: FleetChoice) -> FleetChoice:
    """The choice with deployments of a period that are equal but for region, market or price equally full.

    As feasible as before: such points have the same coefficients in every row but the one of their own count, which has
    room for its part. Those on spot are equal only within a pool, whose reserve is its own; disaggregated stages stay
    as they are paired.
    """
    x, moved = tables.points, choice
    columns = [tables.load, *([] if tables.capacities is None else tables.capacities)]
    columns += [] if tables.penalty is None else [tables.penalty]
    if tables.latencies is not None:
        columns += [getattr(tables.latencies, f.name) for f in fields(tables.latencies)]
    for t in range(len(choice.n)):
        alike: dict[tuple[object, ...], list[int]] = {}
        for p in np.flatnonzero((choice.n[t] > 0) & (x.stage == BOTH)):
            own = x.model[p], x.slots[p], x.rho[p], x.service_cap_s[p], x.pool[p] if x.spot[p] else None
            key = (*own, x.level[:, p].tobytes(), *(c[:, p].tobytes() for c in columns))
            alike.setdefault(key, []).append(int(p))
        for group in (np.array(g) for g in alike.values() if len(g) > 1):
            mine = (moved.t == t) & np.isin(moved.p, group)
            w = np.unique(moved.w[mine])
            total = np.array([moved.value[mine & (moved.w == k)].sum() for k in w])
            part = choice.n[t, group] / choice.n[t, group].sum()
            moved = FleetChoice(
                choice.n, np.append(moved.t[~mine], np.full(len(w) * len(group), t)),
                np.append(moved.w[~mine], np.repeat(w, len(group))), np.append(moved.p[~mine], np.tile(group, len(w))),
                np.append(moved.value[~mine], np.outer(total, part).ravel()),
            )  # fmt: skip
    return moved


def _survival(tables: FleetTables, choice: FleetChoice, used: Array) -> float | None:
    """Lowest over periods of the product over spot pools of P(enough deployments remain), by the binomial.

    A pool that loses nothing carries its load, even where shares counted each at its scarcest capacity need more.
    """
    if not tables.case.problem.interruptions:
        return None
    from optmodels.special import bdtr

    full = tables.case.problem.reserve.load_after_loss if tables.case.problem.reserve is not None else 1.0
    points, worst = tables.points, 1.0
    for t in range(len(choice.n)):
        joint = 1.0
        for pool in sorted(set(points.pool[points.spot & (choice.n[t] > 0)].tolist())):
            mine = points.pool == pool
            count = int(choice.n[t, mine].sum())
            needed = float((used[t, mine] * points.rho[mine]).sum()) / full
            lost = max(int(np.floor(count - needed + ROUNDING * max(1.0, needed))), 0)
            q = float(points.unavailable[mine].max())
            joint *= 1.0 if lost >= count else float(bdtr(lost, count, q))
        worst = min(worst, joint)
    return worst


def _period(
    tables: FleetTables, choice: FleetChoice, t: int, used: Array, served: Array, usd: float,
    starts: dict[str, int], stops: dict[str, int], cheapest: float,
) -> PeriodLine:  # fmt: skip
    case, rates = tables.case, tables.rates[t]
    period = case.periods[t]
    mine = np.flatnonzero(choice.t == t)
    by_point: dict[int, list[int]] = {}
    for k in mine:
        by_point.setdefault(int(choice.p[k]), []).append(int(k))
    lines = [
        _deployment(tables, choice, t, int(p), by_point.get(int(p), []), used[:, p])
        for p in np.flatnonzero(choice.n[t])
    ]
    unserved = []
    for w, d in enumerate(tables.demands):
        if served[w] < 1 - 1e-7 and rates[w] > 0:
            price = case.workload(d.workload).unserved_usd_per_1000_requests * 3.6
            rest = (1 - served[w]) * rates[w]
            unserved.append(UnservedLine(
                demand=d.name, share=1 - served[w], requests_per_s=rest, usd_per_hour=rest * price
            ))  # fmt: skip
    return PeriodLine(
        name=period.name, hours=period.hours, usd_per_hour=float(usd), requests_per_s=float(rates.sum()),
        served_requests_per_s=float(served @ rates), deployments=lines, unserved=unserved,
        transfers=_transfers(tables, choice, t),
        limits=_limits(tables, choice, t, served, float(usd), starts, stops, cheapest), starts=starts, stops=stops,
    )  # fmt: skip


def _transfers(tables: FleetTables, choice: FleetChoice, t: int) -> list[TransferLine]:
    """Requests from prefill to decode deployments in a period, by group that exchanges caches."""
    x, case = tables.points, tables.case
    mine = (choice.t == t) & (x.stage[choice.p] == PREFILL)
    lines = []
    for k in np.unique(x.exchange[choice.p[mine]]):
        here = mine & (x.exchange[choice.p] == k)
        shares = np.bincount(choice.w[here], choice.value[here], minlength=len(tables.demands))
        sent = shares * tables.rates[t]
        demands, p = np.flatnonzero(shares), int(choice.p[here][0])
        equal = case.problem.deployment.link.tensor_parallel == "equal"
        model = tables.models[x.model[p]]
        loads = tables.demands[demands[0]].workload
        measured = x.block[p] == NONE
        moved = None if measured else sent[demands] @ transfer_bytes(model, [tables.demands[w] for w in demands])
        lines.append(TransferLine(
            loads=None if measured else loads, model=_model_name(model, loads),
            region=next(tables.machines_of(p))[0][1], tensor_parallel=_tensor_parallel(tables, p) if equal else None,
            requests_per_s=float(sent.sum()), gb_per_s=None if moved is None else float(moved) / 1e9,
            demands={tables.demands[w].name: float(shares[w]) for w in demands},
        ))  # fmt: skip
    return lines


def _tensor_parallel(tables: FleetTables, p: int) -> int | None:
    """GPUs of a replica; None of a measured point that does not state."""
    x = tables.points
    if x.block[p] != NONE:
        return int(tables.blocks[x.block[p]].configurations.tp[x.configuration[p]])
    assert tables.case.points is not None
    return tables.case.points[x.configuration[p]].tp


def _deployment(
    tables: FleetTables, choice: FleetChoice, t: int, p: int, shares: list[int], used_of_each: Array
) -> DeploymentLine:  # fmt: skip
    """One line of a plan; `used_of_each` (Q,) is the load of its deployments on each capacity."""
    used = float(used_of_each.max())
    case, x, rates = tables.case, tables.points, tables.rates[t]
    count = int(choice.n[t, p])
    q = case.problem.queueing
    factor = variability(q.model, q.arrival_scv, q.service_scv, int(x.slots[p]), float(x.rho[p]))
    cap = float(x.service_cap_s[p])
    serves = []
    for k in sorted(shares, key=lambda k: choice.w[k]):
        w = int(choice.w[k])
        d, value = tables.demands[w], float(choice.value[k])
        slo = case.workload(d.workload).slo
        limit = slo.ttft_s if slo.ttft_s is not None else slo.deadline_s
        percentile = limit.percentile if isinstance(limit, Percentile) else None
        wait = 0.0 if q.model == "none" else waiting(int(x.slots[p]), float(x.rho[p]), factor, percentile) * cap
        seen = {}
        if tables.latencies is not None:
            figures = {
                f: float(getattr(tables.latencies, f)[w, p]) for f in ("alpha", "ttft_s", "tpot_s", "itl_s", "e2e_s")
            }
            seen = {f: v for f, v in figures.items() if not np.isnan(v)}
        serves.append(ShareLine(
            demand=d.name, share=value, requests_per_s=value * rates[w],
            load=float(value * rates[w] * tables.load[w, p]), wait_s=wait,
            misses_slo=tables.penalty is not None and bool(tables.penalty[w, p] > 0), **seen,
        ))  # fmt: skip
    details: dict[str, Any] = {}
    machines: list[MachineLine] = []
    prices = {(m.machine, m.region): m for m in case.machines}
    if x.block[p] == NONE:
        assert case.points is not None
        point = case.points[x.configuration[p]]
        details = {
            "point": point.name, "model": point.model,
            "tensor_parallel": point.tp, "replicas_per_machine": point.replicas_per_machine,
        }  # fmt: skip
    else:
        block, c = tables.blocks[x.block[p]], int(x.configuration[p])
        conf = block.configurations
        family = FAMILIES[conf.family[c]]
        # Nothing is offloaded: the same deployment by its simpler name, but where a calibration tells the two apart.
        same = case.problem.latency.calibration is None and all(s.alpha is not None and s.alpha <= 0 for s in serves)
        if family.startswith("kvo") and same and "high_end" in case.problem.strategies.families:
            family = "high_end"
        able = np.flatnonzero(np.isfinite(tables.load[:, p]))
        loads = tables.demands[able[0]].workload if len(able) else None
        details = {
            "loads": loads, "model": _model_name(tables.models[x.model[p]], loads),
            "family": family, "tensor_parallel": int(conf.tp[c]), "replicas_per_machine": int(conf.dp[c]),
            "attention_ranks": int(conf.ranks[c]) if conf.ranks[c] > 1 else None,
            "passes": int(conf.count[c]) if family == "multi_pass" else 1,
        }  # fmt: skip
    for role, ((machine, region, market), number) in zip(("main", "ao"), tables.machines_of(p), strict=False):
        m = prices.get((machine, region))
        each = m.prices.get(market) if m is not None else None
        machines.append(MachineLine(
            role=role, machine=machine, region=region, gpu=m.gpu if m is not None else None,
            gpus_per_machine=m.gpu_count if m is not None else 1, market=market, count=number,
            usd_per_hour_each=each if each is not None else float(x.usd_per_hour[p]) / number,
        ))  # fmt: skip
    if case.problem.continuous:
        details["engine"] = _engine(tables, p, machines[0], details, used_of_each / count)
    rho = float(x.rho[p])
    line = DeploymentLine(
        name="", count=count, stage=STAGES[x.stage[p]], usd_per_hour_each=float(x.usd_per_hour[p]), machines=machines,
        batch=int(x.slots[p]),
        load_level=rho, service_cap_s=cap if np.isfinite(cap) else None, serves=serves,
        utilisation=float(used) * rho / count, headroom=1.0 - float(used) / count, **details,
    )  # fmt: skip
    return line.model_copy(update={"name": deployment_name(line)})


def _in_each_piece(tables: FleetTables, used: Array) -> Array:
    """Loads on every capacity (KQ,) as the pieces of a trace have them, (K, Q)."""
    pieces = len(tables.case.peaks) if (tables.case.peaks != 1.0).any() else 1
    return used.reshape(pieces, -1)


def _model_name(case: FleetCase, workload: str | None) -> str | None:
    """Which of the models that a workload accepts is the case's; None where it has no list."""
    w = None if workload is None else case.workload(workload)
    return None if w is None or w.models is None else w.models[0].label


def _engine(tables: FleetTables, p: int, machine: MachineLine, details: Mapping[str, Any], used: Array) -> EngineLine:
    """How the engines of a point batch; `used` (Q,) of each capacity."""
    case, limits = tables.models[tables.points.model[p]], tables.case.problem.engine
    step_s, wait_s, most_of_wait, place_wait_s, kv_tokens = tables.points.level[:, p].tolist()
    mine = np.flatnonzero(np.isfinite(tables.load[:, p]))
    first = case.workload(tables.demands[mine[0]].workload)
    listed = next(m for m in case.machines if (m.machine, m.region) == (machine.machine, machine.region))
    kind = EngineKind(machine.gpu or "", details["tensor_parallel"], listed.vram_gib / listed.gpu_count,
                      attention_ranks=details["attention_ranks"] or 1)  # fmt: skip
    return EngineLine(
        step_s=step_s, wait_s=wait_s, most_of_wait=most_of_wait if np.isfinite(most_of_wait) else None,
        place_wait_s=place_wait_s, max_num_seqs=int(tables.points.slots[p]),
        max_num_batched_tokens=limits.max_num_batched_tokens, chunk_tokens=limits.chunk_tokens,
        kv_tokens=kv_tokens, latency=latency_source(costs_of(case, first, kind).provenance),
        capacities={
            name: max(float(v), 0.0)
            for name, v in zip(CAPACITIES, _in_each_piece(tables, used).max(axis=0), strict=False)
            if name != "transfer" or tables.points.stage[p]
        },
    )  # fmt: skip


def _quality(tables: FleetTables, choice: FleetChoice, t: int, w: FleetWorkload) -> float | None:
    """Mean score of a workload's answered requests in a period; None where there are none."""
    assert tables.quality is not None and w.quality_at_least is not None
    own = np.array([d.workload == w.name for d in tables.demands])
    mine = (choice.t == t) & own[choice.w] & (tables.points.stage[choice.p] != DECODE)
    demand, point = choice.w[mine], choice.p[mine]
    requests = choice.value[mine] * tables.rates[t, demand]
    if not requests.sum() > 0:
        return None
    return w.quality_at_least * (1.0 + float(requests @ tables.quality[demand, point] / requests.sum()))


def _limits(
    tables: FleetTables, choice: FleetChoice, t: int, served: Array, usd: float, starts: dict[str, int],
    stops: dict[str, int], cheapest: float,
) -> list[LimitLine]:  # fmt: skip
    """Every limit of the instance with its value in the plan.

    The budget binds if the rest buys no further deployment of the `cheapest` kind in the plan.
    """
    case, problem, stage = tables.case, tables.case.problem, tables.points.stage
    lines: list[LimitLine] = []

    def add(
        name: str, value: float, limit: float, unit: str, sense: Literal["<=", ">="] = "<=", whole: bool = False
    ) -> None:
        slack = limit - value if sense == "<=" else value - limit
        tight = slack < 1 - 1e-9 if whole else slack <= 1e-6 * max(1.0, abs(limit))
        lines.append(LimitLine(name=name, value=value, limit=limit, unit=unit, sense=sense, binding=bool(tight)))

    if problem.budget_usd_per_hour is not None:
        add("budget", usd, problem.budget_usd_per_hour, "USD/h")
        lines[-1] = lines[-1].model_copy(update={"binding": problem.budget_usd_per_hour - usd < cheapest - 1e-9})
    taken = choice.n[t] @ tables.consumption
    for name, value, limit in zip(tables.limit_names, taken, tables.limits, strict=True):
        unit = next((u for u in ("gpus", "vcpus", "engines") if name.endswith(f", {u}")), "machines")
        add(name, float(value), float(limit), unit, whole=True)
    for w in case.workloads:
        rows = [i for i, d in enumerate(tables.demands) if d.workload == w.name]
        if w.min_replicas:
            can = np.isfinite(tables.load[rows]).any(axis=0)
            able = min(int(choice.n[t, can & (stage != other)].sum()) for other in (PREFILL, DECODE))
            add(f"replicas for {w.name}", float(able), w.min_replicas, "deployments", ">=", True)
        if w.spot_share_max < 1:
            on_spot = (choice.t == t) & tables.points.spot[choice.p]
            most = 0.0
            for other in (PREFILL, DECODE):
                mine = on_spot & (stage[choice.p] != other)
                by_demand = np.bincount(choice.w[mine], choice.value[mine], minlength=len(tables.demands))
                most = max(most, float(by_demand[rows].max(initial=0.0)))
            add(f"spot share of {w.name}", most, w.spot_share_max, "")
        mean = None if w.quality_at_least is None else _quality(tables, choice, t, w)
        if w.quality_at_least is not None and mean is not None:
            add(f"quality of {w.name}", mean, w.quality_at_least, "", ">=")
        least = case.serve_at_least(w)
        rows = [i for i in rows if tables.rates[t, i] > 0]
        if rows and least < 1:
            add(f"served share of {w.name}", float(served[rows].min()), least, "", ">=")
    if problem.change.max_starts is not None:
        add("machines started", sum(starts.values()), problem.change.max_starts, "machines", whole=True)
    if problem.change.max_stops is not None:
        add("machines stopped", sum(stops.values()), problem.change.max_stops, "machines", whole=True)
    return lines
