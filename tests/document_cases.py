"""Solve documents of every formulation that together fill every field of its plan's schema."""

from __future__ import annotations

import yaml
from conftest import tiny_problem

from optmodels import formulation


def template(name):
    return yaml.safe_load(formulation.get(name).template)


def _cost(family, **changes):
    document = tiny_problem(
        workload={"batch": 8, "input_tokens": 512, "output_tokens": 64}, budget_usd_per_hour=20.0,
        strategies={"families": [family], "replicas": [1, 2], "multi_pass": [2], "parallel": [2], "shared": [2]},
        slo={"kind": "real_time", "tps": 50.0, "ttft_s": 5.0, "tbt_s": 0.5},
    )  # fmt: skip
    for machine in document["pool"]["machines"]:
        machine["net_gbps"] = 100
    return document | changes


POINTS = {"operating_points": [
    {"name": "one", "family": "high_end", "main": "big", "tps": 120.0},
    {"name": "two", "family": "ao", "main": "mid", "ao": "small", "alpha": 0.7, "tps": 110.0},
]}  # fmt: skip

# By formulation and name: the instance, and the method.
CASES = {
    "cost_efficiency": {
        "template": (template("cost_efficiency"), "exact"),
        "a shared machine for attention": (_cost("ao_shared"), "exact"),
        "passes": (_cost("multi_pass", slo={"kind": "batch", "tps": 50.0}), "enumerate"),
        "measured": (tiny_problem(latency=POINTS), "greedy"),
    },
    "fleet": {"template": (template("fleet"), "exact")},
    "orchestration": {"template": (template("orchestration"), "greedy_dp")},
    "reserved_capacity": {"template": (template("reserved_capacity"), "exact")},
}
