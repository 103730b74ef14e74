"""Prefill and decode apart as llm-d and Dynamo take them: by their schemas, and by what the plan says."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from optmodels import targets
from optmodels.errors import InputError
from optmodels.plans.deployment import Deployment, Deployments

SCHEMAS = Path(__file__).parent / "schemas"


def deployment(**changes):
    base = {"name": "d", "model": "M 70B", "checkpoint": "a/b", "machine": "box", "market": "on_demand", "machines": 1,
            "gpus_per_machine": 8, "tensor_parallel": 4, "replicas_per_machine": 2, "max_num_seqs": 64}  # fmt: skip
    return Deployment.model_validate(base | changes)


PLAN = Deployments(
    name="apart", notes=["Not served: 1% of x."],
    deployments=[
        deployment(name="prefill", stage="prefill", machines=3, region="r1", market="spot", provider="aws"),
        deployment(name="decode", stage="decode", machine="big", tensor_parallel=8, replicas_per_machine=1, region="r1",
                   notes=["Routing: 40.0% of x goes here."]),
        deployment(name="slow", stage="decode", machine="old", region="r1"),
        deployment(name="whole", region="r1"),
        deployment(name="other", model="N", checkpoint="c/d", region="r1"),
    ],
)  # fmt: skip


def schema(name):
    return json.loads((SCHEMAS / name).read_text(encoding="utf-8"))


def documents(text):
    return [d for d in yaml.safe_load_all(text) if d is not None]


def pod_of_kubernetes(spec):
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}, "1.32", strict=True)


@pytest.fixture(scope="module")
def graphs():
    return {name: documents(text) for name, text in targets.of_plan(PLAN, "dynamo").files.items()}


def test_a_graph_for_each_model_and_way_of_serving(graphs):
    assert sorted(graphs) == ["m-70b-apart-pool.dynamo.yaml", "m-70b-pool.dynamo.yaml", "n-pool.dynamo.yaml"]
    (apart,) = graphs["m-70b-apart-pool.dynamo.yaml"]
    front, *workers = apart["spec"]["components"]
    assert (front["type"], front["replicas"]) == ("frontend", 1)
    assert {(w["type"], w["replicas"]) for w in workers} == {("prefill", 6), ("decode", 1), ("decode", 2)}
    for w in workers:
        spec = w["podTemplate"]["spec"]
        (main,) = spec["containers"]
        words = dict(a.removeprefix("--").split("=", 1) for a in main["args"])
        assert words["disaggregation-mode"] == w["type"]
        assert json.loads(words["kv-transfer-config"]) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        assert main["resources"]["limits"]["nvidia.com/gpu"] == int(words["tensor-parallel-size"])
        assert words["max-num-seqs"] == "64"
        selector = spec["nodeSelector"]
        assert selector["node.kubernetes.io/instance-type"] == {"prefill": "box"}.get(
            w["type"], {8: "big", 4: "old"}[main["resources"]["limits"]["nvidia.com/gpu"]]
        )
        assert ("eks.amazonaws.com/capacityType" in selector) == (w["type"] == "prefill")
    (whole,) = graphs["m-70b-pool.dynamo.yaml"]
    (worker,) = whole["spec"]["components"][1:]
    assert worker["type"] == "worker"
    assert not any("disaggregation" in a for a in worker["podTemplate"]["spec"]["containers"][0]["args"])


def test_graphs_have_their_schema_and_a_wrong_one_has_not(graphs):
    written = schema("dynamo_graph_deployment.json")
    for (graph,) in graphs.values():
        jsonschema.validate(graph, written)
        names = [c["name"].lower() for c in graph["spec"]["components"]]
        assert len(set(names)) == len(names)
        wrong = copy.deepcopy(graph)
        wrong["spec"]["components"][1]["type"] = "decoder"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, written)


def test_pods_of_graphs_are_kubernetes_own(graphs):
    for (graph,) in graphs.values():
        for c in graph["spec"]["components"]:
            pod_of_kubernetes(c["podTemplate"]["spec"])


def test_a_graph_takes_so_many_components_and_no_more():
    many = Deployments(name="x", deployments=[deployment(name=f"d{i}", machine=f"m{i}") for i in range(25)])
    with pytest.raises(InputError, match="at most 24 deployments"):
        targets.of_plan(many, "dynamo")
    made = targets.of_plan(many.model_copy(update={"deployments": many.deployments[:24]}), "dynamo")
    ((graph,),) = [documents(t) for t in made.files.values()]
    assert len(graph["spec"]["components"]) == 25


def test_model_servers_of_llm_d_have_roles_and_decode_ones_the_sidecar():
    made = targets.of_plan(PLAN, "llm-d")
    assert len(made.files) == 6
    servers = documents(made.files["m-70b-apart-pool.llm-d.yaml"])
    (values,) = documents(made.files["m-70b-apart-pool.router.values.yaml"])
    wanted = values["router"]["modelServers"]["matchLabels"]
    assert [(s["metadata"]["labels"]["llm-d.ai/role"], s["spec"]["replicas"]) for s in servers] == [
        ("prefill", 6), ("decode", 1), ("decode", 2),
    ]  # fmt: skip
    for s in servers:
        template = s["spec"]["template"]
        labels, spec = template["metadata"]["labels"], template["spec"]
        assert wanted.items() <= labels.items()
        assert s["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (engine,) = spec["containers"]
        assert {e["name"] for e in engine["env"]} >= {"VLLM_NIXL_SIDE_CHANNEL_HOST"}
        (config,) = [a for a in engine["args"] if a.startswith("--kv-transfer-config=")]
        role = json.loads(config.partition("=")[2])["kv_role"]
        if labels["llm-d.ai/role"] == "decode":
            (sidecar,) = spec["initContainers"]
            assert sidecar["restartPolicy"] == "Always"  # a sidecar: it goes on beside the engine
            assert sidecar["ports"][0]["containerPort"] == 8000
            assert {"--model-server-port=8200", "--kv-connector=nixlv2"} <= set(sidecar["args"])
            assert (engine["ports"][0]["containerPort"], engine["args"][-1]) == (8200, "--port=8200")
            assert role == "kv_consumer"
        else:
            assert "initContainers" not in spec
            assert (engine["ports"][0]["containerPort"], role) == (8000, "kv_producer")
    whole = documents(made.files["m-70b-pool.llm-d.yaml"])
    assert [s["metadata"]["labels"]["llm-d.ai/role"] for s in whole] == ["both"]
    assert "initContainers" not in whole[0]["spec"]["template"]["spec"]


def test_values_of_llm_ds_router_have_their_schema():
    written = schema("llmd_router_values.json")
    config = {"$ref": "#/$defs/config", "$defs": written["$defs"]}
    made = targets.of_plan(PLAN, "llm-d")
    for name, text in made.files.items():
        if not name.endswith(".router.values.yaml"):
            continue
        (values,) = documents(text)
        jsonschema.validate(values, written)
        chosen = values["router"].get("epp", {})
        assert bool(chosen) == ("apart" in name)
        if chosen:
            (read,) = documents(chosen["pluginsCustomConfig"][chosen["pluginsConfigFile"]])
            jsonschema.validate(read, config)
            known = {p["type"] for p in read["plugins"]}
            used = {x["pluginRef"] for p in read["schedulingProfiles"] for x in p["plugins"]}
            assert used <= known
            assert {p["name"] for p in read["schedulingProfiles"]} == {"prefill", "decode"}
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(read | {"kind": "Config"}, config)


def test_prompts_that_begin_alike_meet_where_the_plan_counts_on_it():
    counted = [d.model_copy(update={"prefix_hits": 0.6 * (d.stage == "prefill")}) for d in PLAN.deployments]
    hits = PLAN.model_copy(update={"deployments": counted})
    (values,) = documents(targets.of_plan(hits, "llm-d").files["m-70b-apart-pool.router.values.yaml"])
    jsonschema.validate(values, schema("llmd_router_values.json"))
    (text,) = values["router"]["epp"]["pluginsCustomConfig"].values()
    chosen = yaml.safe_load(text)
    jsonschema.validate(chosen, schema("llmd_router_values.json")["$defs"]["config"])
    profiles = {p["name"]: p["plugins"] for p in chosen["schedulingProfiles"]}
    assert {"pluginRef": "prefix-cache-scorer", "weight": 3} in profiles["prefill"]
    assert not any(p["pluginRef"] == "prefix-cache-scorer" for p in profiles["decode"])
    (graph,) = documents(targets.of_plan(hits, "dynamo").files["m-70b-apart-pool.dynamo.yaml"])
    (front,) = (c for c in graph["spec"]["components"] if c["type"] == "frontend")
    (router,) = front["podTemplate"]["spec"]["containers"]
    assert "--router-mode=kv" in router["args"]


def test_model_servers_are_kubernetes_own():
    validate = pytest.importorskip("kubernetes_validate")
    for name, text in targets.of_plan(PLAN, "llm-d").files.items():
        if name.endswith(".llm-d.yaml"):
            for d in documents(text):
                validate.validate(d, "1.32", strict=True)


@pytest.mark.parametrize("target", ["llm-d", "dynamo"])
def test_what_a_router_has_no_setting_for_is_said(target):
    made = targets.of_plan(PLAN, target)
    for said in ("shares of workloads", "TTFT", "without RDMA", "Routing: 40.0% of x", "Not served"):
        assert any(said in n for n in made.notes), said
    text = "\n".join(made.files.values())
    assert "shares of workloads" in text
    assert "Routing: 40.0% of x goes here." in text
    both = PLAN.model_copy(update={"deployments": PLAN.deployments[3:]})
    assert not any("RDMA" in n for n in targets.of_plan(both, target).notes)


def test_skypilot_takes_whole_requests_only():
    made = targets.of_plan(PLAN, "skypilot")
    assert len(made.files) == 2
    assert any("one stage are not in these files" in n for n in made.notes)
    alone = PLAN.model_copy(update={"deployments": PLAN.deployments[:3]})
    with pytest.raises(InputError, match="llm-d or dynamo"):
        targets.of_plan(alone, "skypilot")


@pytest.mark.parametrize("target", ["llm-d", "dynamo"])
def test_hostile_names_stay_data(target):
    evil = "\n- evil: true\n# \"'{{ .Values }} ${x} \u2028"
    bad = deployment(name=evil, model=evil, checkpoint=evil, machine=evil, region=evil, notes=[evil], stage="decode")
    made = targets.of_plan(Deployments(name=evil, deployments=[bad], notes=[evil]), target)
    for name, text in made.files.items():
        assert shlex.quote(name) == name
        for d in documents(text):
            assert isinstance(d, dict)
            assert "evil" not in d
