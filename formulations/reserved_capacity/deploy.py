"""A reserved-capacity plan as what to buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.catalog import geography
from optmodels.plan.deployment import Deployments, Purchase


def deployments(problem: ReservedCapacity, plan: Mapping[str, Any]) -> Deployments:
    """The reservations; what is bought by the hour and where requests go is said in words."""
    p, places = ReservedPlan.model_validate(plan), geography.places()
    purchases = [
        Purchase(
            machine=r.machine, region=r.region, market=r.term, count=r.count, usd_per_hour_each=r.usd_per_hour_each,
            provider=places[r.region].provider if r.region in places else "",
            purpose="from now" if r.first_quarter == 0 else f"from quarter {r.first_quarter + 1}",
        ) for r in p.reservations if r.count > 0
    ]  # fmt: skip
    notes = []
    if p.cost.committed_usd:
        notes.append(f"The reservations commit to {p.cost.committed_usd:,.0f} USD until the last of their terms ends.")
    if p.purchases.hour:
        bought = p.purchases
        hours = len(set(zip(bought.scenario, bought.quarter, bought.hour, strict=True)))
        hourly = p.cost.on_demand_usd_per_month + p.cost.spot_usd_per_month
        notes.append(
            f"By the hour, as demand comes: {sum(bought.machines):,.0f} machine-hours in {hours} hours of the horizon,"
            f" {hourly:,.0f} USD/month. They are no standing purchase."
        )
    if p.forwarded_share > 0:
        notes.append(f"Forwarding: {p.forwarded_share:.1%} of requests are served in another region; the flows are in"
                     " the plan and belong into the load balancer.")  # fmt: skip
    return Deployments(name=p.name or "plan", purchases=purchases, notes=notes)
