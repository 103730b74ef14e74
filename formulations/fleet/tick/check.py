"""Whether a tick's changes can be carried out, and the cost of a plan of counts: machine by machine.

Nothing of the model or the rule is used.
"""

from __future__ import annotations

import numpy as np

from formulations.fleet.tick.data import Tick
from optmodels.arrays import Array, Ints


def check(tick: Tick, orders: Ints, stops: Ints) -> list[str]:
    """Faults in the orders and stops of this tick, (G,) each; empty: none."""
    wrong = []
    for g, (machine, region, market) in enumerate(tick.machines):
        name = f"{machine} {region} {market}".strip()
        may = tick.ready[g] + tick.arriving[0, g] - max(tick.young[0, g], min(tick.committed[g], tick.ready[g]))
        if orders[g] < 0 or stops[g] < 0:
            wrong.append(f"{name}: a negative change")
        if stops[g] > max(may, 0):
            wrong.append(f"{name}: {stops[g]} stops, {max(may, 0)} machines may stop")
        if orders[g] and tick.blocked[g] > 0:
            wrong.append(f"{name}: {orders[g]} orders of a type that cannot be had")
    runs = tick.ready - stops + tick.arriving.sum(axis=0)
    for r, name in enumerate(tick.limit_names):
        ordered = tick.limit_rows[r] @ orders
        if ordered > 0 and tick.limit_rows[r] @ (runs + orders) > tick.limits[r] + 1e-6:
            wrong.append(
                f"{name}: {tick.limit_rows[r] @ (runs + orders):g} with what is on its way, limit {tick.limits[r]:g}"
            )
    if orders.sum() + stops.sum() > tick.max_changes:
        wrong.append(f"{orders.sum() + stops.sum()} changes, at most {tick.max_changes:g}")
    return wrong


def cost(tick: Tick, machines: Ints, orders: Ints, serving: Array) -> tuple[float, list[str]]:
    """USD of a plan over the horizon and its violations, by following every machine.

    Args:
        tick: parameters.
        machines: machines in each tick, (H, G), whole.
        orders: machines ordered in each tick, (H, G), whole.
        serving: deployments in each tick, (H, P).
    """
    wrong: list[str] = []
    usd = 0.0
    for g in range(len(tick.machines)):
        running = [-10_000] * int(tick.ready[g] - tick.young[0, g]) + [0] * int(
            tick.young[0, g]
        )  # tick it became ready
        coming = [(t, int(n)) for t, n in enumerate(tick.arriving[:, g]) if n]
        coming += [(t + tick.lead[g].start, int(n)) for t, n in enumerate(orders[:, g]) if n]
        usd += float(orders[:, g].sum()) * (tick.start_usd[g] + tick.usd[g] * tick.lead[g].start)
        for t in range(tick.H):
            for at, n in coming:
                running += [at] * n if at == t else []
            while len(running) > machines[t, g]:  # the oldest stop
                oldest = running.pop(0)
                if t - oldest < tick.min_up:
                    wrong.append(f"tick {t}: {tick.machines[g][0]} stops after {t - oldest} ticks")
                usd += tick.stop_usd[g] + tick.usd[g] * tick.drain[g]
            if len(running) < machines[t, g]:
                wrong.append(f"tick {t}: {machines[t, g]} of {tick.machines[g][0]}, {len(running)} can be there")
            usd += tick.usd[g] * (machines[t, g] - min(tick.committed[g], machines[t, g]))
    taken = serving @ tick.use
    for t, g in zip(*np.nonzero(taken > machines + 1e-6), strict=True):
        wrong.append(f"tick {t}: deployments take {taken[t, g]:g} of {tick.machines[g][0]}, {machines[t, g]} run")
    for w in range(len(tick.workloads)):
        capacity = serving[:, tick.of == w] @ tick.rate[tick.of == w]
        short = np.maximum(tick.rates[:, :, w] - capacity[:, None], 0.0)
        usd += float((short @ tick.mass).sum() * tick.late_usd[w])
    return usd, wrong
