"""A plan on demand that it was not made for: days of its own hours drawn again, region by region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.reserved_capacity.dispatch import Dispatch, dispatch, kept_dispatch
from formulations.reserved_capacity.making import counts_of, make_plan
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import HOURS_PER_MONTH
from formulations.reserved_capacity.replay import SHORTEST_S, WINDOW_S, RegionReplayOptions, replay
from optmodels.arrays import Index
from optmodels.engine.continuous import seconds_and_quantile

OTHER_DAYS = 1  # seed of the days drawn, and of the requests of their busiest hour
DAY_H, WEEK_D, NEAR_D = 24, 7, 14
LEAST_HOURS = 2 * DAY_H
DRAWS = 10
MOST_ROWS = 10_000  # of demand, all draws together: some seconds where each takes a linear program
MOST_REQUESTS = 10_000  # of a simulated hour


def why_not(t: ReservedTables, plan: ReservedPlan) -> str | None:
    """Why a plan is not judged by other demand; None: it is."""
    kinds = {s.demand.kind for s in t.case.problem.services}
    if "diurnal" in kinds:
        return "demand by a formula, of which there is no other sample"
    if not plan.pooled:
        return "made for a comparison, not to be bought"
    if len(t.case.demand_rps) < LEAST_HOURS:
        return f"fewer than {LEAST_HOURS} hours of demand"
    if len(t.demand) > MOST_ROWS:
        return f"more than {MOST_ROWS:,} hours of demand, scenarios and quarters counted"
    return None


def drawn_hours(hours: int, regions: int, seed: int) -> Index:
    """Which hour's demand each region has in each hour of another sample, (hours, regions).

    Every region draws each of its days by itself, with replacement, so that their peaks meet otherwise than they did;
    the hour of the day stays, and what services ask for together. From two weeks on the day of the week stays, too,
    and the season: days come from at most `NEAR_D` days before or after (a moving-block bootstrap with the blocks
    bound to the calendar; Künsch 1989).

    Args:
        hours: at least `LEAST_HOURS`; the last, incomplete day draws from complete ones and is cut.
        regions: how many.
        seed: random seed of the draws.
    """
    rng, whole = np.random.default_rng(seed), hours // DAY_H
    days = np.arange(whole)
    out = np.empty((hours, regions), dtype=np.intp)
    for day in range(-(-hours // DAY_H)):
        off = np.abs(days - day)
        alike = days[(off % WEEK_D == 0) & (off <= NEAR_D)] if whole >= 2 * WEEK_D else days
        own = np.arange(DAY_H * day, min(DAY_H * (day + 1), hours))
        out[own] = DAY_H * rng.choice(alike, regions) + (own % DAY_H)[:, None]
    return out


def other_tables(t: ReservedTables, seed: int) -> ReservedTables:
    """The same with demand of `drawn_hours`, growth and scenarios as they are."""
    hours = drawn_hours(len(t.case.demand_rps), len(t.case.regions), seed)[:, t.source_region]
    blocks = t.demand.reshape(-1, *hours.shape)
    return replace(t, demand=blocks[:, hours, np.arange(hours.shape[1])].reshape(t.demand.shape))


def out_of_sample(t: ReservedTables, plan: ReservedPlan) -> dict[str, Any]:
    """Results of a plan's reservations on resampled days, next to its own.

    Machines by the hour are bought as each hour needs them, as in the plan, within the instance's offers. The
    busiest hour (first quarter, first scenario) of the plan's own demand and of the first draw is simulated request by
    request (`replay`), so that what reach and throughput promise in the mean is seen with queues.

    Returns:
        ``seed`` of the first draw (the next ones follow), ``draws``, ``hours``; by figure ``predicted`` and
        ``out_of_sample``, the mean over draws: ``served_share`` of the requests and ``usd_per_month`` (with the price
        of unserved requests, where they have one), and ``least_served_share`` of any hour, the least over draws; and
        ``services``: TTFT limit, ``promised`` share within it (None: the mean is bounded), and the shares ``replayed``
        and ``out_of_sample`` of first tokens within it and of throughput over demand (None: no requests or machines).
    """
    counts = counts_of(t, plan)
    held = t.reserved(counts)
    draws = min(DRAWS, max(1, MOST_ROWS // len(t.demand)))
    others = [other_tables(t, OTHER_DAYS + x) for x in range(draws)]
    found = [dispatch(x, held) for x in others]
    own = _figures(t, kept_dispatch(t, held), plan)
    new = [_figures(x, f, plan) for x, f in zip(others, found, strict=True)]
    figures = {
        name: {"predicted": own[name], "out_of_sample": float(over([x[name] for x in new]))}
        for name, over in (("served_share", np.mean), ("least_served_share", np.min), ("usd_per_month", np.mean))
    }
    data = plan.model_dump(mode="json")
    theirs = data | {"purchases": make_plan(others[0], counts, found[0]).purchases.model_dump(mode="json")}
    mine, those = _busiest_hour(t, data, 0), _busiest_hour(others[0], theirs, OTHER_DAYS)
    services = []
    for s in t.case.problem.services:
        limit_s, percentile = seconds_and_quantile(s.slo.ttft_s)
        services.append({"service": s.service, "ttft_limit_s": limit_s, "promised": percentile} | {
            name: {"replayed": mine.get(s.service, {}).get(name), "out_of_sample": those.get(s.service, {}).get(name)}
            for name in ("within_ttft_slo", "throughput_over_demand")
        })  # fmt: skip
    return {"seed": OTHER_DAYS, "draws": draws, "hours": len(t.case.demand_rps), **figures, "services": services}


def _busiest_hour(t: ReservedTables, plan: Mapping[str, Any], seed: int) -> dict[str, dict[str, Any]]:
    """Replay of a plan's busiest hour, by service."""
    first = (t.quarter == 0) & (t.scenario == 0)
    rate = t.unit * float(t.demand[first].sum(axis=1).max(initial=0.0))
    seconds = float(np.clip(MOST_REQUESTS / max(rate, 1e-9), SHORTEST_S, WINDOW_S))
    options = RegionReplayOptions(seed=seed, seconds=seconds, lose="none")
    return {s["service"]: s for s in replay(t.case.problem, plan, None, options, t)["services"]}


def _figures(t: ReservedTables, found: Dispatch, plan: ReservedPlan) -> dict[str, float]:
    """Shares served, and the plan's cost with these hours bought; unserved demand without a price is not charged."""
    asked, left = t.demand.sum(axis=1), found.unserved.sum(axis=1)
    whole = float(t.weight @ asked)
    priced = np.where(np.isfinite(t.penalty), t.penalty, 0.0)
    hourly = float(found.usd_per_month(t)[0].sum() + found.egress_usd_per_month(t).sum())
    hourly += float((t.weight @ found.unserved) @ priced) * HOURS_PER_MONTH
    return {
        "served_share": 1.0 - float(t.weight @ left) / whole if whole else 1.0,
        "least_served_share": float((1.0 - left / np.where(asked > 0, asked, 1.0)).min()),
        "usd_per_month": plan.cost.reserved_usd_per_month + plan.cost.beyond_horizon_usd_per_month + hourly,
    }
