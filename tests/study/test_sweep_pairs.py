"""Every row of a sweep is a plain solve of the instance with those values in it, whatever is varied together."""

from __future__ import annotations

import copy
import itertools

import pytest

import optmodels
from optmodels import catalog
from optmodels.errors import InputError

FLEET = {
    "formulation": "fleet", "schema": 1, "name": "two-workloads", "serving": "static",
    "workloads": [
        {"name": "chat", "model": "llama-3.1-8b", "requests_per_s": 10, "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
         "buckets": [{"input_tokens": 128, "output_tokens": 64, "share": 0.6},
                     {"input_tokens": 512, "output_tokens": 64, "share": 0.4}]},
        {"name": "batch", "model": "llama-3.1-8b", "slo": {"deadline_s": 60},
         "buckets": [{"input_tokens": 256, "output_tokens": 64, "requests_per_s": 1.0}]},
    ],
    "pool": {"catalog": "aws", "include": ["g5.xlarge", "g6.xlarge"]},
    "markets": {"main": ["on_demand"], "ao": ["on_demand"]},
    "strategies": {"families": ["high_end"], "batches": [1, 8]},
}  # fmt: skip
COST = {
    "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "one-batch", "model": "llama-3.1-8b",
    "workload": {"batch": 8, "input_tokens": 256, "output_tokens": 64},
    "slo": {"kind": "real_time", "tps": 50, "ttft_s": 2.0, "tpot_s": 0.2},
    "pool": {"catalog": "aws", "include": ["g5.xlarge", "g6.xlarge"]},
    "markets": {"main": ["on_demand"], "ao": ["on_demand"]}, "strategies": {"families": ["high_end", "kvo_ram"]},
}  # fmt: skip
RESERVED = {
    "formulation": "reserved_capacity", "schema": 1, "name": "two-regions",
    "regions": [{"region": "us-east-1"}, {"region": "eu-central-1"}], "network": {"catalog": "aws"},
    "services": [{
        "service": "chat", "slo": {"ttft_s": 1.0, "tpot_s": 0.2},
        "demand": {"kind": "inline", "unit": "requests_per_s",
                   "by_region": {"us-east-1": [10.0, 2.0], "eu-central-1": [2.0, 10.0]}},
        "workload": {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 128},
    }],
    "machines": [{"machine": "g6.xlarge", "gpu": "l4",
                  "prices": {"on_demand": 0.8048, "reserved_1y": 0.5230, "reserved_3y": 0.3455}}],
    "terms": ["reserved_1y", "on_demand"],
}  # fmt: skip
ORCHESTRATION = {
    "formulation": "orchestration", "schema": 1, "name": "two-servers",
    "cluster": {"servers": [{"server": "box", "count": 2, "gpu": "v100-16g-pcie", "gpus": 2}]},
    "models": [{"model": "mistral-7b"}], "candidates": {"tp": [1, 2], "batch": [2, 4]},
    "latency": {"decay": [
        {"model": "mistral-7b", "tp": 1, "base_tokens_per_s": 43.0, "delta": 0.1},
        {"model": "mistral-7b", "tp": 2, "base_tokens_per_s": 75.25, "delta": 0.12}]},
    "requests": {"rows": {"arrival_s": [0, 0.5, 1, 1.2, 2], "output_tokens": [400, 300, 500, 450, 350],
                          "slo_factor": [1.2, 0.8, 1.4, 1.0, 1.5]}},
    "bins": {"lengths": 5, "slo": 5, "seconds": 2},
}  # fmt: skip


def own_machines(document):
    """The catalogue's machines written into the instance by hand."""
    pool = document["pool"]
    found = [m for m in catalog.machines(pool["catalog"]) if m.machine in pool["include"]]
    document["pool"] = {"machines": [m.model_dump(mode="json", by_alias=True, exclude_none=True) for m in found]}


def price(name, market="on_demand"):
    """A key and how a hand puts a value there."""

    def by_hand(document, value):
        if "machines" not in document["pool"]:
            own_machines(document)
        for machine in document["pool"]["machines"]:
            if machine["machine"] == name:
                machine["prices"][market] = value

    return by_hand


def at(*location):
    def by_hand(document, value):
        for part in location[:-1]:
            document = document.setdefault(part, {}) if isinstance(document, dict) else document[part]
        document[location[-1]] = value

    return by_hand


def llm_field(field, *location):
    """A field of a model of the catalogue."""

    def by_hand(document, value):
        for part in location[:-1]:
            document = document[part]
        if isinstance(document[location[-1]], str):
            found = catalog.llms()[document[location[-1]]]
            document[location[-1]] = found.model_dump(mode="json", by_alias=True, exclude_none=True)
        document[location[-1]][field] = value

    return by_hand


CASES = {
    "fleet": (FLEET, {
        "workloads[chat].requests_per_s": ([5, 40], at("workloads", 0, "requests_per_s")),
        "workloads[batch].buckets[0].requests_per_s": (
            [1.0, 9.0], at("workloads", 1, "buckets", 0, "requests_per_s")),
        "workloads[chat].model.layers": ([16, 32], llm_field("layers", "workloads", 0, "model")),
        "workloads[chat].serve_at_least": ([0.5, 1.0], at("workloads", 0, "serve_at_least")),
        "pool.machines[g5.xlarge].prices.on_demand": ([0.5, 5.0], price("g5.xlarge")),
        "pool.machines[g6.xlarge].prices.on_demand": ([0.4, 4.0], price("g6.xlarge")),
        "max_load": ([0.5, 1.0], at("max_load")),
        "budget_usd_per_hour": ([3.0, 100.0], at("budget_usd_per_hour")),
    }),
    "cost_efficiency": (COST, {
        "slo.tpot_s": ([0.04, 0.2], at("slo", "tpot_s")),
        "slo.tps": ([50, 300], at("slo", "tps")),
        "workload.batch": ([4, 16], at("workload", "batch")),
        "model.layers": ([16, 32], llm_field("layers", "model")),
        "pool.machines[g5.xlarge].prices.on_demand": ([0.5, 5.0], price("g5.xlarge")),
        "pool.machines[g6.xlarge].prices.on_demand": ([0.4, 4.0], price("g6.xlarge")),
        "budget_usd_per_hour": ([0.9, 100.0], at("budget_usd_per_hour")),
    }),
    "reserved_capacity": (RESERVED, {
        "services[chat].demand.by_region[us-east-1]": (
            [[1.0, 20.0], [30.0, 1.0]], at("services", 0, "demand", "by_region", "us-east-1")),
        "services[chat].workload.model.layers": ([16, 32], llm_field("layers", "services", 0, "workload", "model")),
        "services[chat].workload.input_tokens": ([256, 1024], at("services", 0, "workload", "input_tokens")),
        "services[chat].slo.tpot_s": ([0.08, 0.2], at("services", 0, "slo", "tpot_s")),
        "machines[g6.xlarge].prices.reserved_1y": ([0.3, 0.9], at("machines", 0, "prices", "reserved_1y")),
    }),
    "orchestration": (ORCHESTRATION, {
        "cluster.servers[box].count": ([1, 2], at("cluster", "servers", 0, "count")),
        "requests.rows.slo_factor": (
            [[1.0] * 5, [0.5, 0.8, 1.4, 1.0, 1.5]], at("requests", "rows", "slo_factor")),
        "latency.decay[0].base_tokens_per_s": ([30.0, 60.0], at("latency", "decay", 0, "base_tokens_per_s")),
        "objective.alpha": ([0.5, 1.0], at("objective", "alpha")),
        "candidates.batch": ([[2], [2, 4]], at("candidates", "batch")),
    }),
}  # fmt: skip
PAIRS = [(form, *pair) for form, (_, keys) in CASES.items() for pair in itertools.combinations(keys, 2)]


def plainly(document, point, keys):
    """Status, objective and bound of the instance with the values put in by hand."""
    changed = copy.deepcopy(document)
    for key, value in point.items():
        keys[key][1](changed, copy.deepcopy(value))
    try:
        alone = optmodels.solve(changed)
    except InputError:
        return "no_solution_found", None, None
    return alone.status, alone.objective, alone.bound


@pytest.mark.parametrize(("form", "first", "second"), PAIRS)
def test_a_row_is_a_plain_solve_whatever_two_fields_are_varied(form, first, second):
    document, keys = CASES[form]
    found = optmodels.sweep(document, {first: keys[first][0], second: keys[second][0]})
    rows = [(r["status"], r["objective"], r["bound"]) for r in found.rows]
    assert rows == [
        (status, *(v if v is None else pytest.approx(v, rel=1e-9) for v in values))
        for status, *values in (plainly(document, point, keys) for point in found.points)
    ]


def test_demand_counts_beside_a_price_of_the_catalogue():
    price_key, rate = "pool.machines[g6.xlarge].prices.on_demand", "workloads[chat].requests_per_s"
    found = optmodels.sweep(FLEET, {price_key: [0.8], rate: [5, 40, 400]}).frame["objective"]
    assert found.is_monotonic_increasing
    assert found.iloc[2] > 2 * found.iloc[0]


def test_a_loaded_problem_is_varied_as_it_is_written():
    rates = [5, 400]
    ours = optmodels.sweep(optmodels.load(FLEET), {"workloads[chat].requests_per_s": rates}).frame["objective"]
    assert (
        ours.tolist() == optmodels.sweep(FLEET, {"workloads[chat].requests_per_s": rates}).frame["objective"].tolist()
    )


def test_what_a_written_out_pool_replaces_is_not_varied_beside_it():
    with pytest.raises(InputError, match=r"pool\.include"):
        optmodels.sweep(FLEET, {
            "pool.machines[g6.xlarge].prices.on_demand": [0.5], "pool.include": [["g6.xlarge"], ["g5.xlarge"]],
        })  # fmt: skip


def test_a_rate_that_no_bucket_has_a_share_of_is_refused():
    with pytest.raises(InputError, match="requests_per_s only where buckets have shares"):
        optmodels.sweep(FLEET, {"workloads[batch].requests_per_s": [1, 2]})


def test_machines_added_to_a_list_are_in_the_tables():
    two = copy.deepcopy(COST)
    own_machines(two)
    machines = two["pool"]["machines"]
    cheap = [*machines, machines[0] | {"machine": "bargain", "prices": {"on_demand": 0.01}}]
    found = optmodels.sweep(two, {"pool.machines": [machines, cheap]}).frame["objective"]
    assert found[1] > 10 * found[0]
