"""Terraform: the purchase list as a variable, declared with its type and filled with the plan's values."""

from __future__ import annotations

import json

from optmodels.errors import printable
from optmodels.plan.deployment import Deployments
from optmodels.targets import Export, head

VARIABLES = """
variable "purchases" {
  description = "Machines to buy: machine type, provider, region, market (on_demand, spot, reserved_1y, reserved_3y)"
  type = list(object({
    machine           = string
    provider          = string
    region            = string
    market            = string
    count             = number
    usd_per_hour_each = optional(number)
    purpose           = string
  }))

  validation {
    condition = alltrue([
      for p in var.purchases : p.count >= 1 && floor(p.count) == p.count &&
      contains(["on_demand", "spot", "reserved_1y", "reserved_3y"], p.market)
    ])
    error_message = "Every purchase has a known market and a whole count of at least 1."
  }
}

# By region, market, machine and purpose, for for_each over resources of your provider.
locals {
  purchase_by_key = {
    for i, p in var.purchases : format("%03d %s %s %s %s", i, p.region, p.market, p.machine, p.purpose) => p
  }
}
"""


def export(plan: Deployments) -> Export:
    """``variables.tf`` and ``purchases.auto.tfvars.json``."""
    values = [
        {k: printable(v) if isinstance(v, str) else v for k, v in p.model_dump(mode="json").items()}
        for p in plan.purchases
    ]
    text = json.dumps({"purchases": values}, indent=2, ensure_ascii=False)
    notes = list(plan.notes)
    notes += [f"{d.name}: {n}" for d in plan.deployments for n in d.notes if "attention" in n]
    files = {"variables.tf": "\n".join(head(plan)) + "\n" + VARIABLES, "purchases.auto.tfvars.json": text + "\n"}
    return Export(files, notes)
