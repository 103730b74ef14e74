"""Gap and CPU seconds of one tick by size: random machine types, workloads and forecasts, stock on every type.

python benchmarks/ticks.py
"""

from __future__ import annotations

import time

import numpy as np

from formulations.fleet.tick.data import Tick, masses
from formulations.fleet.tick.rule import lead_of
from formulations.fleet.tick.solve import decide, rule

LEVELS = np.array([0.5, 0.8, 0.9, 0.95, 0.98])
NORMAL = np.array([0.0, 0.84, 1.28, 1.64, 2.05])  # of these quantiles


def instance(types: int, workloads: int, ticks: int, requests_per_s: float, seed: int = 0) -> Tick:
    """A fleet that serves the first tick on the cheapest types, with rates that vary over the horizon."""
    rng = np.random.default_rng(seed)
    price, start = rng.uniform(1, 60, types), rng.integers(1, 3, types)
    usd = price * 5 / 60
    rate = price[None] / rng.uniform(0.7, 1.6, (workloads, types)) / 5
    t = np.arange(ticks)
    wave = 1 + 0.4 * np.sin(2 * np.pi * (t[:, None] / ticks + rng.random(workloads)[None]))
    median = requests_per_s * rng.uniform(0.3, 2, workloads)[None] * wave * np.exp(
        0.1 * rng.standard_normal((ticks, workloads))
    )  # fmt: skip
    spread = np.clip(0.04 * np.sqrt(1 + t), 0.05, 0.4)
    rates = median[:, None, :] * np.exp(spread[:, None, None] * NORMAL[None, :, None])
    cheapest = np.argmin(usd[None] / rate, axis=1)
    ready = np.zeros(types, dtype=np.int64)
    for w, g in enumerate(cheapest):
        ready[g] += int(np.ceil(rates[0, 3, w] / rate[w, g]))
    start_usd = 0.1 * price
    pools = workloads * types
    return Tick(
        tick_min=5.0, workloads=tuple(map(str, range(workloads))),
        machines=tuple((f"type {g}", "", "on_demand") for g in range(types)), usd=usd,
        lead=tuple(lead_of(int(start[g]), 0.2, float(start_usd[g]), 0.0, float(usd[g])) for g in range(types)),
        drain=np.full(types, 0.2), start_usd=start_usd, stop_usd=np.zeros(types), ready=ready,
        arriving=np.zeros((ticks, types), dtype=np.int64), young=np.zeros((ticks, types), dtype=np.int64), min_up=0,
        committed=np.zeros(types, dtype=np.int64), blocked=np.zeros(types, dtype=np.int64), limit_rows=np.eye(types),
        limits=np.maximum(ready * 1.2, 20.0), limit_names=tuple(f"stock of type {g}" for g in range(types)),
        of=np.repeat(np.arange(workloads), types), use=np.tile(np.eye(types), (workloads, 1)), rate=rate.ravel(),
        names=tuple(map(str, range(pools))), load=np.zeros(pools, dtype=np.int64), serving=None,
        loading=np.zeros((ticks, pools), dtype=np.int64), rates=rates, levels=LEVELS, mass=masses(LEVELS),
        late_usd=np.array([(usd / rate[w]).min() for w in range(workloads)]) / (1 - 0.98),
    )  # fmt: skip


def main() -> None:
    """One line for each size and seed."""
    for types, workloads, ticks in ((1, 1, 24), (5, 3, 24), (10, 5, 24), (20, 10, 24)):
        for requests_per_s in (30.0, 300.0):
            for seed in range(3):
                tick = instance(types, workloads, ticks, requests_per_s, seed)
                began = time.process_time()
                rule(tick)
                middle = time.process_time()
                found = decide(tick, 5.0, method="exact")
                taken = time.process_time() - middle
                print(
                    f"{types:>3} × {workloads:>2} × {ticks}, {requests_per_s:>4g}/s, seed {seed}: {found.source:<8}"
                    f" gap {found.gap:.3%}, {taken:.2f} s; rule {(middle - began) * 1e3:.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
