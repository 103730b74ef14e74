"""Names of deployments for people, from the facts in their lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from formulations.fleet.plan import DeploymentLine, FleetPlan
from optmodels.latency.strategies import FAMILY_TITLES


def deployment_name(d: DeploymentLine) -> str:
    """Machines, model, strategy, batch or iteration time, and the workloads served; of a measured point its name."""
    if d.point is not None or d.family is None:
        return d.point or ""
    machines = " + ".join(f"{m.count}× {m.machine} ({m.market})" if m.count > 1 else f"{m.machine} ({m.market})"
                          for m in d.machines)  # fmt: skip
    degree = d.tensor_parallel or 1
    how = FAMILY_TITLES[d.family] + (f", TP={degree}" if degree > 1 else "")
    if d.attention_ranks is not None:
        how = f"{FAMILY_TITLES['high_end']} in each of TP{degree} × DP{d.attention_ranks}"
    batch = f"batch {d.batch}"
    if d.engine is not None:
        how = how.replace(FAMILY_TITLES["high_end"], f"up to {d.batch} requests at a time")
        batch = f"iterations of {d.engine.step_s * 1e3:.3g} ms"
        how = how if d.stage == "both" else f"{d.stage} only, {how}"
    loaded = "" if d.model is None else f"{d.model}, "
    workloads = sorted({s.demand.split("/")[0] for s in d.serves})
    return f"{machines}: {loaded}{how}, {batch}" + (f", for {', '.join(workloads)}" if workloads else "")


def labels(_tables: Any, plan: FleetPlan) -> Iterator[tuple[str, str, str]]:
    """Path, stated name and name of every deployment."""
    for i, q in enumerate(plan.periods):
        for j, d in enumerate(q.deployments):
            yield f"plan.periods[{i}].deployments[{j}].name", d.name, deployment_name(d)
