"""Terraform: the machines of a plan as resources of AWS, Google Cloud and Azure, and the purchase list as a variable.

Resources and arguments as in the providers hashicorp/aws 6, hashicorp/google 7 and hashicorp/azurerm 4. Machine images,
networks and keys are variables without a default: they are the user's own.
"""

from __future__ import annotations

import json
from typing import Any

from optmodels.errors import printable
from optmodels.plans.deployment import Deployments, Purchase
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
    note              = optional(string, "")
    create            = optional(bool, true)
  }))

  validation {
    condition = alltrue([
      for p in var.purchases : p.count >= 1 && floor(p.count) == p.count &&
      contains(["on_demand", "spot", "reserved_1y", "reserved_3y"], p.market)
    ])
    error_message = "Every purchase has a known market and a whole count of at least 1."
  }
}

# One entry per machine: "LINE-NUMBER".
locals {
  machines = merge([
    for i, p in var.purchases : {
      for n in range(p.create ? p.count : 0) : format("%03d-%04d", i, n) => p
    }
  ]...)
}
"""

CLOUDS = {
    "aws": ("hashicorp/aws", "~> 6.0", """
provider "aws" {}

variable "aws_ami" {
  description = "Machine image by region, with NVIDIA driver and container runtime"
  type        = map(string)
}

variable "aws_subnet" {
  description = "Subnet by region; empty: the default subnet"
  type        = map(string)
  default     = {}
}

resource "aws_instance" "machine" {
  for_each      = { for k, p in local.machines : k => p if p.provider == "aws" }
  region        = each.value.region
  ami           = var.aws_ami[each.value.region]
  instance_type = each.value.machine
  subnet_id     = lookup(var.aws_subnet, each.value.region, null)
  tags          = { Name = "optmodels-${each.key}", purpose = each.value.purpose }

  dynamic "instance_market_options" {
    for_each = each.value.market == "spot" ? [1] : []
    content {
      market_type = "spot"
    }
  }
}
"""),
    "gcp": ("hashicorp/google", "~> 7.0", """
provider "google" {
  project = var.google_project
}

variable "google_project" {
  type = string
}

variable "google_zone" {
  description = "Zone by region, one that offers the machine type"
  type        = map(string)
}

variable "google_image" {
  description = "Boot image with NVIDIA driver and container runtime"
  type        = string
}

variable "google_network" {
  type    = string
  default = "default"
}

resource "google_compute_instance" "machine" {
  for_each     = { for k, p in local.machines : k => p if p.provider == "gcp" }
  name         = "optmodels-${each.key}"
  machine_type = each.value.machine
  zone         = var.google_zone[each.value.region]

  boot_disk {
    initialize_params {
      image = var.google_image
      size  = 500
    }
  }

  network_interface {
    network = var.google_network
  }

  scheduling {
    provisioning_model  = each.value.market == "spot" ? "SPOT" : "STANDARD"
    preemptible         = each.value.market == "spot"
    automatic_restart   = each.value.market != "spot"
    on_host_maintenance = "TERMINATE"
  }
}
"""),
    "azure": ("hashicorp/azurerm", "~> 4.0", """
provider "azurerm" {
  features {}
}

variable "azure_resource_group" {
  type = string
}

variable "azure_subnet_id" {
  description = "Subnet by region"
  type        = map(string)
}

variable "azure_image_id" {
  description = "Machine image by region, with NVIDIA driver and container runtime"
  type        = map(string)
}

variable "azure_ssh_public_key" {
  type = string
}

resource "azurerm_network_interface" "machine" {
  for_each            = { for k, p in local.machines : k => p if p.provider == "azure" }
  name                = "optmodels-${each.key}"
  location            = each.value.region
  resource_group_name = var.azure_resource_group

  ip_configuration {
    name                          = "internal"
    subnet_id                     = var.azure_subnet_id[each.value.region]
    private_ip_address_allocation = "Dynamic"
  }
}

resource "azurerm_linux_virtual_machine" "machine" {
  for_each              = { for k, p in local.machines : k => p if p.provider == "azure" }
  name                  = "optmodels-${each.key}"
  location              = each.value.region
  resource_group_name   = var.azure_resource_group
  size                  = each.value.machine
  priority              = each.value.market == "spot" ? "Spot" : "Regular"
  eviction_policy       = each.value.market == "spot" ? "Deallocate" : null
  admin_username        = "optmodels"
  network_interface_ids = [azurerm_network_interface.machine[each.key].id]
  source_image_id       = var.azure_image_id[each.value.region]

  admin_ssh_key {
    username   = "optmodels"
    public_key = var.azure_ssh_public_key
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "Premium_LRS"
    disk_size_gb         = 500
  }
}
"""),
}  # fmt: skip
LOCAL_NAMES = {"aws": "aws", "gcp": "google", "azure": "azurerm"}
COMMITMENT = {
    "aws": "Terraform's AWS provider buys no Reserved Instances: buy them in EC2 for the same machine type and region.",
    "gcp": "Make the committed use discount with Google for the same machine type and region.",
    "azure": "Make the Azure reservation for the same size and region.",
}
COMMITTED = "{n} reserved machines are created as ordinary ones; the reservation's price applies to them. {how}"


def main(clouds: list[str]) -> str:
    """``main.tf``: providers and machines of some clouds."""
    required = "\n".join(
        f'    {LOCAL_NAMES[c]} = {{ source = "{CLOUDS[c][0]}", version = "{CLOUDS[c][1]}" }}' for c in clouds
    )
    return f"terraform {{\n  required_providers {{\n{required}\n  }}\n}}\n" + "".join(CLOUDS[c][2] for c in clouds)


def export(plan: Deployments) -> Export:
    """``variables.tf``, ``purchases.auto.tfvars.json`` and, with machines of the three clouds, ``main.tf``."""
    clouds = [c for c in CLOUDS if any(p.provider == c for p in plan.purchases)]
    notes = list(plan.notes)
    notes += [f"{d.name}: {n}" for d in plan.deployments for n in d.notes if "attention" in n]
    notes += [
        f"{p.count} × {p.machine}: no resource is written, the provider is {p.provider or 'not known'}."
        for p in plan.purchases if p.provider not in CLOUDS
    ]  # fmt: skip
    notes += [
        f"{p.count} × {p.machine} in {p.region} ({p.purpose}): listed with create = false, as it starts later."
        for p in plan.purchases if _is_later(p)
    ]  # fmt: skip
    for cloud in clouds:
        reserved = [p for p in plan.purchases if p.provider == cloud and p.market.startswith("reserved")]
        if reserved:
            notes.append(COMMITTED.format(n=sum(p.count for p in reserved), how=COMMITMENT[cloud]))
    text = json.dumps({"purchases": [_values(p) for p in plan.purchases]}, indent=2, ensure_ascii=False)
    comments = "\n".join(head(plan.model_copy(update={"notes": notes}))) + "\n"
    created = {"main.tf": comments + "\n" + main(clouds)} if clouds else {}
    listed = {"variables.tf": comments + VARIABLES, "purchases.auto.tfvars.json": text + "\n"}
    return Export(created | listed, notes)


def _values(p: Purchase) -> dict[str, Any]:
    found = p.model_dump(mode="json") | {"create": not _is_later(p)}
    return {k: printable(v) if isinstance(v, str) else v for k, v in found.items()}


def _is_later(p: Purchase) -> bool:
    return p.purpose.startswith("from quarter")
