"""The independent check: from the instance and the plan alone, without tables, model or methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.plans.findings import Findings
from optmodels.plans.outcome import CheckReport

from .plan import Plan
from .problem import Instance


def check(problem: Instance, data: Mapping[str, Any]) -> CheckReport:
    """Every service served, no stock and no budget exceeded, every figure reproduced."""
    findings = Findings()
    plan = findings.read(Plan, data, "a machine_counts plan")
    if plan is None:
        return findings.report()
    instance = problem.resolve()
    offers = {(m.machine, m.market): m for m in instance.machines}
    served = {s.service: 0.0 for s in instance.services}
    used = dict.fromkeys(offers, 0)
    cost = 0.0
    findings.require("name is the instance's", plan.name == instance.name, plan.name, instance.name)
    for line in plan.lines:
        what = f"{line.machine} ({line.market}) for {line.service}"
        offer = offers.get((line.machine, line.market))
        if offer is None or offer.usd_per_hour is None or line.service not in offer.tokens_per_s:
            findings.add("the instance offers what is bought", what, "its machines, by market and service")
            continue
        tokens_per_s = line.count * offer.tokens_per_s[line.service]
        findings.equal(f"price of {what}", line.usd_per_hour_each, offer.usd_per_hour, "USD/h")
        findings.equal(f"throughput of {what}", line.tokens_per_s, tokens_per_s, "tokens/s")
        used[line.machine, line.market] += line.count
        served[line.service] += tokens_per_s
        cost += line.count * offer.usd_per_hour
    for service in instance.services:
        got = served[service.service]
        findings.at_most(f"demand of {service.service}", service.tokens_per_s, got, "tokens/s")
    for (machine, market), offer in offers.items():
        if offer.stock is not None:
            findings.at_most(f"stock of {machine} ({market})", used[machine, market], offer.stock, "machines")
    if instance.budget_usd_per_hour is not None:
        findings.at_most("budget", cost, instance.budget_usd_per_hour, "USD/h")
    findings.equal("cost", plan.usd_per_hour, cost, "USD/h")
    return findings.report()
