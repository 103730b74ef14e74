"""Orchestration plans as commands on named GPUs."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

import optmodels
from optmodels import formulation
from optmodels.loading import load


@pytest.fixture(scope="module")
def plan():
    result = optmodels.solve(ROOT / "instances/orchestration/textbook-two-servers.yaml", "greedy_dp")
    assert result.check.ok
    return result


def test_every_instance_runs_on_its_gpus_and_on_a_port_of_its_own(plan):
    files = optmodels.export(plan, "vllm").files
    found = set()
    for name, text in files.items():
        if name.endswith(".sh"):
            hosts = re.search(r"^# On (.*)\.$", text, flags=re.M)[1].split(", ")
            for gpus, port in re.findall(r"^CUDA_VISIBLE_DEVICES=([\d,]+) .*--port=(\d+)", text, flags=re.M):
                for host in hosts:
                    assert (host, port) not in found
                    found |= {(host, port)} | {(host, f"gpu {g}") for g in gpus.split(",")}
    planned = {(s, f"gpu {g}") for i in plan.plan["instances"] for s, gpus in i["placement"].items() for g in gpus}
    assert {x for x in found if x[1].startswith("gpu")} == planned


def test_a_cluster_of_ones_own_is_nothing_to_buy(plan):
    with pytest.raises(optmodels.errors.InputError, match="buys something"):
        optmodels.export(plan, "terraform")


def test_manifests_name_the_servers(plan):
    text = optmodels.export(plan, "kubernetes").files["manifests.yaml"]
    servers = {s for i in plan.plan["instances"] for s in i["placement"]}
    assert "kubernetes.io/hostname" in text and all(s in text for s in servers)


def test_an_instance_on_equal_parts_of_two_servers_is_one_server_of_the_engine(plan):
    """On unequal parts no target can start it."""
    document = plan.plan | {"instances": plan.plan["instances"][:1], "configurations": [
        dict(c) for c in plan.plan["configurations"]
    ]}  # fmt: skip
    first = document["instances"][0] = dict(document["instances"][0])
    document["configurations"][first["configuration"]] |= {"tp": 2, "pp": 2}
    deployments = formulation.get("orchestration").deployments
    problem = load(plan.problem)
    servers = [s.name for s in problem.resolve().servers][:2]
    first["placement"] = dict(zip(servers, ([0, 1], [2, 3]), strict=True))
    (d,) = deployments(problem, document).deployments
    assert (d.nodes, d.machines, d.hosts, d.replicas, d.groups) == (2, 2, servers, 1, [[0, 1]])
    first["placement"] = dict(zip(servers, ([0], [1, 2, 3]), strict=True))
    found = deployments(problem, document)
    assert not found.deployments and any("spans servers" in n for n in found.notes)
