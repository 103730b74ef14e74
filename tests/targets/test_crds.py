"""Exports of custom resources fit what the published API types take."""

from __future__ import annotations

import copy
from pathlib import Path

import crds
import jsonschema
import pytest
import yaml

import optmodels
from optmodels import targets
from optmodels.plans.deployment import Deployment, Deployments

INSTANCES = Path(__file__).parents[2] / "instances"


@pytest.fixture(scope="module")
def fleet():
    return optmodels.solve(INSTANCES / "fleet/day-and-night.yaml")


def fits(schema, text, kind):
    """Every object of a kind is as its schema says; returns them."""
    check = jsonschema.Draft202012Validator(schema)
    found = [d for d in yaml.safe_load_all(text) if d is not None and d["kind"] == kind]
    for document in found:
        check.validate(document)
    assert found
    return check, found


def refused(check, document, *path, value):
    """A document with another value at a place is refused: the schema has teeth."""
    changed = copy.deepcopy(document)
    node = changed
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    assert not check.is_valid(changed)


def test_scaled_objects(fleet):
    check, found = fits(crds.SCALED_OBJECT, optmodels.export(fleet, "keda").files["scaledobjects.yaml"], "ScaledObject")
    for document in found:
        (trigger,) = document["spec"]["triggers"]
        assert trigger["type"] == "prometheus"
        jsonschema.validate(trigger["metadata"], crds.PROMETHEUS)
    refused(check, found[0], "spec", "minReplicas", value=1)
    refused(check, found[0], "spec", "triggers", 0, "metadata", "threshold", value=16)
    refused(check, found[0], "spec", "triggers", 0, "metricType", value="Average")


def test_inference_services(fleet):
    text = optmodels.export(fleet, "kserve").files["inferenceservices.yaml"]
    check, found = fits(crds.INFERENCE_SERVICE, text, "InferenceService")
    scaled = next(d for d in found if "autoScaling" in d["spec"]["predictor"])
    metric = ("spec", "predictor", "autoScaling", "metrics", 0)
    refused(check, scaled, *metric, "external", "metric", "backend", value="promql")
    refused(check, scaled, *metric, "external", "target", "averageValue", value="sixteen")
    refused(check, scaled, "spec", "predictor", "minReplicaCount", value=1)


def test_leader_worker_sets():
    wide = Deployment(
        name="d", model="M", checkpoint="a/b", machine="box", market="on_demand", machines=2, nodes=2, hosts=["a", "b"],
        gpus_per_machine=8, tensor_parallel=8, pipeline_parallel=2,
    )  # fmt: skip
    text = targets.of_plan(Deployments(name="x", deployments=[wide]), "lws").files["leaderworkersets.yaml"]
    check, (made,) = fits(crds.LEADER_WORKER_SET, text, "LeaderWorkerSet")
    refused(check, made, "spec", "startupPolicy", value="Leader")
    refused(check, made, "spec", "leaderWorkerTemplate", "size", value=0)
    refused(check, made, "spec", "size", value=2)
