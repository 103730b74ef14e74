"""SkyLB's provisioning figures (§2.2, Fig. 3; §5.2, Fig. 10) recomputed on stated demand, beside the paper's.

python -m papers.skylb [FOLDER OF INSTANCES]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from formulations.reserved_capacity.show import comparisons
from optmodels import formulation
from optmodels.formulation import Options
from optmodels.loading import load

FIG3 = ("paper-five-regions", "paper-five-regions-azure-code")
CLIENTS, BUSY = (
    (120, 40, 40),
    16,
)  # §5.2: clients by region; clients that keep one L4 replica busy (stated, not the paper's)


def provisioning(folder: Path) -> list[dict[str, Any]]:
    """Fig. 3b: cost against region-local peaks, for each stated demand.

    Returns:
        Rows with the ratios of the paper and ours: aggregated over local reservations, on demand over aggregated, and
        the exact plan (which respects reach) over local.
    """
    form = formulation.get("reserved_capacity")
    rows = []
    for name in FIG3:
        problem = load(folder / f"{name}.yaml")
        tables = form.tables(problem)
        ways = comparisons(tables)
        plan = form.method("exact")(problem, tables, Options()).plan
        local, pooled, autoscaled = ways["region_local"], ways["global_peak"], ways["on_demand"]
        assert local and pooled and autoscaled and plan is not None
        demand = tables.demand
        swing = demand.max(axis=0) / demand.min(axis=0)
        total = demand.sum(axis=1)
        rows.append({
            "demand": name, "global_over_local": pooled / local - 1, "on_demand_over_global": autoscaled / pooled,
            "exact_over_local": plan.cost.total_usd_per_month / local - 1,
            "swing_by_region": (float(swing.min()), float(swing.max())),
            "swing_total": float(total.max() / total.min()),
        })  # fmt: skip
    paper = {
        "demand": "paper (WildChat subset)", "global_over_local": -0.405, "on_demand_over_global": 2.2,
        "exact_over_local": None, "swing_by_region": (2.88, 32.64), "swing_total": 1.29,
    }  # fmt: skip
    return [paper, *rows]


def served_clients(replicas: int, pooled: bool, busy: int = BUSY) -> int:
    """§5.2's skewed load: clients kept busy by replicas spread evenly over three regions."""
    if pooled:
        return min(sum(CLIENTS), replicas * busy)
    return sum(min(c, replicas // 3 * busy) for c in CLIENTS)


def replicas_saved(busy: int = BUSY, local: int = 12) -> tuple[int, float]:
    """Fewest pooled replicas that serve as many clients as `local` region-local ones, and the saving."""
    wanted = served_clients(local, False, busy)
    pooled = next(n for n in range(1, 10 * local) if served_clients(n, True, busy) >= wanted)
    return pooled, pooled / local - 1


def main(arguments: list[str]) -> int:
    """Print both comparisons."""
    from optmodels.cli.console import show

    folder = Path(arguments[0]) if arguments else Path("instances/reserved_capacity")
    for row in provisioning(folder):
        low, high = row["swing_by_region"]
        exact = "" if row["exact_over_local"] is None else f", exact plan {row['exact_over_local']:+.1%}"
        show([f"{row['demand']}: global peak {row['global_over_local']:+.1%} against region-local{exact};"
              f" on demand {row['on_demand_over_global']:.2f} times the global peak;"
              f" max/min {low:.1f} to {high:.1f} by region, {row['swing_total']:.2f} together"])  # fmt: skip
    for busy in (10, 13, 16, 20, 24, 30):
        pooled, saved = replicas_saved(busy)
        show([f"{busy} clients a replica: {pooled} pooled replicas for 12 local ones ({saved:+.0%}; paper 9, -25%)"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
