"""What one more machine, 10 ms of reach or a guarantee is worth: the exact optimum with and without.

python -m papers.reserved_capacity INSTANCE [GAP]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from formulations.reserved_capacity.problem import ReservedCapacity, Resilience, Uncertainty
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load

REACH_S = 0.010


def worth(problem: ReservedCapacity, *, gap: float = 1e-4, time_limit: float = 60.0) -> dict[str, Any]:
    """Re-solve with one thing changed at a time.

    Args:
        problem: the instance.
        gap: relative gap of every solve; differences below it are noise.
        time_limit: seconds of every solve.

    Returns:
        ``usd_per_month`` of the optimum, and ``changes``: what, USD/month saved (negative: costs more; None: no plan),
        sorted by value. Tried: TTFT 10 ms longer or shorter for each service; one more reservable machine where the cap
        is reached; without the resilience or worst case asked for; without forwarding; at twice the utilisation gap.

    Raises:
        InputError: the problem itself has no plan.
    """
    base = _cost(problem, gap, time_limit)
    if base is None:
        return {"usd_per_month": None, "changes": []}
    value, plan = base
    changes: list[dict[str, Any]] = []

    def tried(what: str, **update: Any) -> None:
        try:
            changed = problem.model_copy(update=update)
            found = _cost(changed, gap, time_limit)
        except InputError:
            found = None
        changes.append({"what": what, "usd_per_month": None if found is None else value - found[0]})

    for k, s in enumerate(problem.services):
        for step, word in ((REACH_S, "longer"), (-REACH_S, "shorter")):
            if s.slo.ttft_limit_s + step <= 0:
                continue
            slo = s.slo.model_copy(update={"ttft_s": s.slo.ttft_limit_s + step})
            services = (*problem.services[:k], s.model_copy(update={"slo": slo}), *problem.services[k + 1 :])
            tried(f"10 ms {word} TTFT of {s.service}", services=services)
    names = [r.region for r in problem.regions]
    for i, m in enumerate(problem.machines):
        caps = m.reservable
        if caps is None:
            continue
        for name in names:
            cap = caps.get(name) if isinstance(caps, dict) else caps
            held = sum(x.count for x in plan.reservations if x.region == name and x.machine == m.machine)
            if cap is None or held < cap:
                continue
            every = {n: (caps.get(n) if isinstance(caps, dict) else caps) for n in names}
            more = {n: v + (n == name) for n, v in every.items() if v is not None}
            machines = (*problem.machines[:i], m.model_copy(update={"reservable": more}), *problem.machines[i + 1 :])
            tried(f"one more reservable {m.machine} in {name}", machines=machines)
    if problem.resilience != Resilience():
        tried("no loss to survive", resilience=Resilience())
    if problem.uncertainty.worst_case is not None:
        tried("no worst case to cover", uncertainty=Uncertainty(scenarios=problem.uncertainty.scenarios))
    if len(names) > 1:
        alone = tuple(s.model_copy(update={"residency": {n: (n,) for n in names}}) for s in problem.services)
        tried("no forwarding at all", services=alone)
    changes.sort(key=lambda c: -np.inf if c["usd_per_month"] is None else -abs(c["usd_per_month"]))
    return {"usd_per_month": value, "changes": changes}


def _cost(problem: ReservedCapacity, gap: float, time_limit: float) -> tuple[float, Any] | None:
    form = formulation.get("reserved_capacity")
    found = form.method("exact")(problem, form.tables(problem), Options(gap=gap, time_limit=time_limit))
    return None if found.plan is None else (found.plan.cost.total_usd_per_month, found.plan)


def main(arguments: list[str]) -> int:
    """Print what changes are worth."""
    from optmodels.cli.console import report_mistakes, show

    try:
        problem = load(arguments[0])
        assert isinstance(problem, ReservedCapacity)
        found = worth(problem, gap=float(arguments[1]) if len(arguments) > 1 else 1e-4)
    except InputError as error:
        report_mistakes(error)
        return 2
    show([f"optimum: {found['usd_per_month']:,.0f} USD/month" if found["usd_per_month"] is not None else "no plan"])
    for c in found["changes"]:
        value = c["usd_per_month"]
        text = "no plan then" if value is None else f"{'saves' if value >= 0 else 'costs'} {abs(value):,.0f} USD/month"
        show([f"  {c['what']}: {text}"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
