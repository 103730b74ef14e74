"""Candidates of a tick judged on sampled paths of the forecast, each re-planned by a rule from the next tick on.

The tick's own objective takes the forecast as given and sees no later decision, so it may prefer a plan that needs
luck. Here every candidate makes its changes now, on the same paths, and the rule follows the path. This needs one
workload whose deployments have machines of their own.
"""

from __future__ import annotations

import numpy as np

from formulations.fleet.tick.data import Tick
from optmodels.arrays import Array, Ints

CORRELATION = 0.9  # of the normal scores of a path from tick to tick
PATHS = 50


def can_judge(tick: Tick) -> bool:
    """Whether there is one workload whose pools have one machine type each, of their own."""
    own = (tick.use > 0).sum(axis=1).max(initial=0) == 1 and (tick.use > 0).sum(axis=0).max(initial=0) == 1
    return len(tick.workloads) == 1 and bool(own) and tick.serving is None


def paths(tick: Tick, count: int = PATHS, seed: int = 0) -> Array:
    """Rates of the workload on sampled paths, (count, H): a Gaussian copula on the quantiles of each tick.

    Scores follow an autoregression with `CORRELATION`. Beyond the outermost quantiles a rate stays at them.
    """
    from optmodels.special import ndtr

    noise = np.random.default_rng(seed).standard_normal((count, tick.H))
    score = noise.copy()
    for t in range(1, tick.H):
        score[:, t] = CORRELATION * score[:, t - 1] + np.sqrt(1 - CORRELATION**2) * noise[:, t]
    level = ndtr(score)
    return np.stack([np.interp(level[:, t], tick.levels, tick.rates[t, :, 0]) for t in range(tick.H)], axis=1)


def rollout(tick: Tick, orders: Ints, stops: Ints, rates: Array) -> float:
    """Mean USD over the horizon on the paths `rates` (N, H), late requests included, if these changes are made now.

    From the next tick on the rule orders the type of least price a request up to the `order` quantile at the lead time,
    and stops the most expensive machines that the `keep` quantile does not need. Both move with the path's last rate.
    """
    N, H = rates.shape
    type_of = tick.use.argmax(axis=1)  # one for each pool
    G = len(tick.machines)
    each = np.zeros(G)  # requests/s of a machine
    each[type_of] = tick.rate / tick.use[np.arange(len(type_of)), type_of]
    able = each > 0
    price = np.where(able, tick.usd / np.where(able, each, 1.0), np.inf)
    by_price = np.argsort(price, kind="stable")[: int(able.sum())]
    lead = np.array([x.start for x in tick.lead])
    bridge = np.array([min(x.bridge, H) for x in tick.lead])
    middle, order, keep = (np.maximum(tick.at(q)[:, 0], 1e-9) for q in (0.5, tick.order, max(tick.keep, tick.order)))
    coming = np.zeros((H + int(lead.max(initial=0)) + 1, N, G))
    coming[:H] = tick.arriving[:, None, :]
    ready = np.repeat(tick.ready[None].astype(float), N, axis=0)
    total = 0.0
    least = np.minimum(tick.committed, tick.ready)
    for t in range(H):
        ready = ready + coming[t]
        coming[t] = 0.0
        if t == 0:
            add, remove = (
                np.repeat(orders[None].astype(float), N, axis=0),
                np.repeat(stops[None].astype(float), N, axis=0),
            )
        else:
            add, remove = np.zeros((N, G)), np.zeros((N, G))
            moved = rates[:, t - 1] / middle[t - 1]
            g = by_price[0]
            at, window = min(t + int(lead[g]), H - 1), min(t + int(bridge[g]), H - 1)
            ahead, soon = min(int(lead[g]), H - 1), min(int(bridge[g]), H - 1)
            wanted = moved * middle[at] * order[ahead] / middle[ahead]
            kept = np.maximum(
                moved * middle[t : window + 1].max() * (keep[: soon + 1] / middle[: soon + 1]).max(), wanted
            )
            there = ready + coming.sum(axis=0)
            short = np.maximum(wanted - there @ each, 0.0)
            room = np.full((N, G), np.inf)
            for row, limit in zip(tick.limit_rows, tick.limits, strict=True):
                mine = row > 0
                room[:, mine] = np.minimum(room[:, mine], np.maximum(limit - there @ row, 0.0)[:, None] / row[mine])
            for g in by_price:
                if tick.blocked[g] > t:
                    continue
                add[:, g] = np.minimum(np.ceil(short / each[g] - 1e-9), np.floor(room[:, g] + 1e-9))
                short = np.maximum(short - add[:, g] * each[g], 0.0)
            spare = np.maximum(there @ each - kept, 0.0)
            for g in by_price[::-1]:
                remove[:, g] = np.minimum(np.floor(spare / each[g] + 1e-9), np.maximum(ready[:, g] - least[g], 0.0))
                spare = spare - remove[:, g] * each[g]
        ready = ready - remove
        for g in range(G):
            coming[t + lead[g], :, g] += add[:, g]
        if (lead == 0).any():
            ready = ready + coming[t]
            coming[t] = 0.0
        total += float(
            ((ready + coming.sum(axis=0) - least) @ tick.usd).mean()
            + (add @ tick.start_usd + remove @ (tick.stop_usd + tick.usd * tick.drain)).mean()
            + tick.late_usd[0] * np.maximum(rates[:, t] - ready @ each, 0.0).mean()
        )
    return total
