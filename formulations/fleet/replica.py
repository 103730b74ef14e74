"""The deployment that autoscaling of one workload adds and removes."""

from __future__ import annotations

import numpy as np

from formulations.fleet.points import BOTH, build_tables
from formulations.fleet.problem import Fleet
from optmodels.errors import InputError, Mistake
from optmodels.plans.replica import ReplicaOffer


def replica(problem: Fleet, workload: str | None) -> ReplicaOffer:
    """The deployment that serves a workload's mixture at the least price a request.

    A deployment p carries λ_p = min_q 1/Σ_w f_w·l_qwp requests/s of the mixture f of the workload's buckets, where
    l_qwp is the load of a request/s of bucket w on capacity q. The choice minimises price_p/λ_p.

    Raises:
        InputError: several workloads and none chosen, or no single deployment serves all its buckets.
    """
    names = [w.name for w in problem.resolve().workloads]
    if workload is None and len(names) > 1:
        raise InputError(Mistake(None, "--workload", None, f"one of {', '.join(names)}"))
    if workload is not None and workload not in names:
        raise InputError(Mistake(None, "--workload", workload, f"one of {', '.join(names)}"))
    name = workload or names[0]
    tables = build_tables(problem).good_enough()  # each deployment by itself keeps the quality
    rows = np.array([i for i, d in enumerate(tables.demands) if d.workload == name])
    rates = tables.rates[:, rows].sum(axis=0)
    if not rates.sum() > 0:
        raise InputError(Mistake(None, f"workloads[{names.index(name)}]", "0 requests/s", "a mixture with requests"))
    busy = rates > 0
    load = np.einsum("w,qwp->qp", rates[busy] / rates.sum(), tables.each_load[:, rows[busy]]).max(axis=0)
    load = np.where(tables.points.stage == BOTH, load, np.inf)
    price = tables.points.usd_per_hour * load
    if not np.isfinite(price).any():
        why = next((tables.blocked[d.name] for d in tables.demands if d.name in tables.blocked), "a deployment alone")
        raise InputError(
            Mistake(None, f"workloads[{names.index(name)}]", name, f"one deployment that serves it: {why}")
        )
    best = int(np.nanargmin(np.where(np.isfinite(price), price, np.inf)))
    machines = " + ".join(f"{n} × {m} ({market}, {region})" for (m, region, market), n in tables.machines_of(best))
    return ReplicaOffer(name, machines, float(1.0 / load[best]), float(tables.points.usd_per_hour[best]))
