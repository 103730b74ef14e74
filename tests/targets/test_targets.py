"""Exports say what the plan says, are accepted by their tools, and stay harmless with hostile names."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import optmodels
from optmodels import formulation, targets
from optmodels.catalog import llms, machines
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.plans.deployment import Deployment, Deployments, Purchase, purchase
from optmodels.plans.lines import MachineLine
from optmodels.targets import UNKNOWN_LONGEST, about, vllm

INSTANCES = Path(__file__).parents[2] / "instances"
# Engine arguments of vLLM 0.33 by its documentation; one that is renamed there fails here when VERSION is raised.
VLLM_ARGUMENTS = {
    "model", "dtype", "quantization", "kv-cache-dtype", "tensor-parallel-size", "pipeline-parallel-size",
    "max-num-seqs", "max-model-len", "gpu-memory-utilization", "kv-offloading-size", "kv-offloading-backend",
}  # fmt: skip
HOSTILE = (
    "$(touch harmed)`touch harmed`; touch harmed\n- evil: true\n# \"'<script> ../../x ${path.module} \x1b[31m\u2028"
)


def of(result) -> Deployments:
    """The neutral form of a result."""
    form = formulation.get(result.formulation)
    return form.deployments(load(result.problem), result.plan)


@pytest.fixture(scope="module")
def chat():
    """Two machines in static batches, whatever the engines' coefficients become."""
    document = yaml.safe_load((INSTANCES / "cost_efficiency/present_day/llama-3.1-70b-chat-aws.yaml").read_text())
    slo = {"kind": "real_time", "tps": 800, "ttft_s": 5.0, "tpot_s": 0.08}
    kept = {k: v for k, v in document.items() if k not in ("latency", "strategies")}
    return optmodels.solve(kept | {"slo": slo, "serving": "static"})


@pytest.fixture(scope="module")
def fleet():
    return optmodels.solve(INSTANCES / "fleet/day-and-night.yaml")


@pytest.fixture(scope="module")
def reserved():
    return optmodels.solve(INSTANCES / "reserved_capacity/week-32-aws.yaml")


def documents(text):
    return [d for d in yaml.safe_load_all(text) if d is not None]


def test_every_model_of_the_catalogue_names_its_weights():
    for name, model in llms().items():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.checkpoint), name
        assert model.checkpoint in model.source, name


def test_deployment_of_a_cost_efficiency_plan(chat):
    (d,) = of(chat).deployments
    plan = chat.plan
    assert (d.machines, d.machine, d.region, d.market) == (2, "g6e.12xlarge", "us-east-1", "spot")
    assert (d.checkpoint, d.provider) == ("meta-llama/Llama-3.1-70B", "aws")
    assert (d.tensor_parallel, d.gpus_per_machine, d.replicas) == (plan["tensor_parallel"], 4, 2)
    assert d.max_num_seqs == max(plan["batch_split"])
    assert d.max_model_len is None  # the workload has a length, and says nothing of the longest request
    (bought,) = of(chat).purchases
    assert bought.count * bought.usd_per_hour_each == pytest.approx(plan["usd_per_hour"])


def test_purchases_of_a_fleet_pay_for_its_most_expensive_period(fleet):
    found = of(fleet)
    peak = max(fleet.plan["periods"], key=lambda q: q["usd_per_hour"])
    counts = [d["count"] * d["machines"][0]["count"] for d in peak["deployments"]]
    assert [d.machines for d in found.deployments] == counts
    assert sum(p.count * p.usd_per_hour_each for p in found.purchases) >= peak["usd_per_hour"] - 1e-9
    assert any(peak["name"] in n and "night" in n for n in found.notes)  # the other periods are not lost


def test_offloading_of_a_fleet_is_exported_with_what_the_engine_cannot_do():
    static = INSTANCES.parent / "tests/fleet/static/day-and-night.yaml"
    day_and_night = yaml.safe_load(static.read_text(encoding="utf-8"))
    fleet = optmodels.solve(day_and_night | {
        "strategies": day_and_night["strategies"] | {"families": ["high_end", "kvo_ram"]},
    })  # fmt: skip
    peak = max(fleet.plan["periods"], key=lambda q: q["usd_per_hour"])
    offloaded = [
        d for d, line in zip(of(fleet).deployments, peak["deployments"], strict=True) if line["family"] == "kvo_ram"
    ]
    assert offloaded
    assert all(d.kv_offload_gib > 0 and any("host memory" in n for n in d.notes) for d in offloaded)


def test_purchases_of_reserved_capacity_are_its_reservations(reserved):
    found = of(reserved)
    hours = 730
    paid = sum(p.count * p.usd_per_hour_each for p in found.purchases) * hours
    assert paid == pytest.approx(reserved.plan["cost"]["reserved_usd_per_month"], rel=1e-9)
    assert not found.deployments
    assert any("by the hour" in n.lower() for n in found.notes)
    with pytest.raises(InputError, match="terraform"):
        optmodels.export(reserved, "vllm")


def test_vllm_commands(chat):
    made = optmodels.export(chat, "vllm")
    (script,) = [text for name, text in made.files.items() if name.endswith(".sh")]
    command = next(line for line in script.splitlines() if "vllm serve" in line)
    words = shlex.split(command)
    assert words[:4] == ["CUDA_VISIBLE_DEVICES=0,1,2,3", "vllm", "serve", "meta-llama/Llama-3.1-70B"]
    assert {"--tensor-parallel-size=4", "--max-num-seqs=16", "--max-model-len=auto", "--dtype=auto"} <= set(words)
    (config,) = [yaml.safe_load(text) for name, text in made.files.items() if name.endswith(".yaml")]
    assert [f"--{k}={v}" for k, v in config.items() if k != "model"] == words[4:-1]
    bought, router = made.notes
    assert bought.startswith("g6e.12xlarge: spot price of ") and router == vllm.ROUTER  # two machines


def test_replicas_of_a_machine_have_gpus_and_ports_of_their_own():
    d = deployment(tensor_parallel=2, replicas_per_machine=4, gpus_per_machine=8)
    script = targets.of_plan(Deployments(name="x", deployments=[d]), "vllm").files["m-box.sh"]
    lines = [shlex.split(line) for line in script.splitlines() if "vllm serve" in line]
    assert [w[0] for w in lines] == [f"CUDA_VISIBLE_DEVICES={i},{i + 1}" for i in (0, 2, 4, 6)]
    assert len({next(x for x in w if x.startswith("--port")) for w in lines}) == 4
    assert script.rstrip().endswith("wait")


def deployment(**changes):
    base = {"name": "d", "model": "M", "checkpoint": "a/b", "machine": "box", "market": "on_demand", "machines": 1,
            "gpus_per_machine": 1}  # fmt: skip
    return Deployment.model_validate(base | changes)


def test_vllm_argument_names_are_documented():
    everything = deployment(weights="fp8", kv="fp8", pipeline_parallel=2, max_num_seqs=3, max_model_len=9,
                            kv_offload_gib=1.5)  # fmt: skip
    assert set(vllm.arguments(everything)) == VLLM_ARGUMENTS


@pytest.mark.parametrize("target", ["vllm", "kubernetes", "skypilot"])
def test_what_a_target_cannot_express_is_said_twice(target, tiny, cli, folder):
    """Attention offloading has no setting anywhere: it is a comment in the file and a note on stderr."""
    problem = tiny(strategies={"families": ["ao"]})
    result = optmodels.solve(problem)
    assert result.plan["family"] == "ao"
    (folder / "plan.json").write_text(result.to_json(), encoding="utf-8")
    run = cli("export", "plan.json", "--to", target)
    assert run.status == 0
    assert "note: " in run.err
    for text in (run.err, run.out):
        assert "Attention offload" in text
        assert result.plan["machines"][1]["machine"] in text
    terraform = optmodels.export(result, "terraform")
    bought = json.loads(terraform.files["purchases.auto.tfvars.json"])["purchases"]
    assert {p["purpose"] for p in bought} == {"serving", "attention offload"}


def test_kubernetes_manifests_say_the_plan(chat):
    text = optmodels.export(chat, "kubernetes").files["manifests.yaml"]
    deployed, service = documents(text)
    pod = deployed["spec"]["template"]["spec"]
    assert deployed["spec"]["replicas"] == 2
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == "g6e.12xlarge"
    assert pod["nodeSelector"]["eks.amazonaws.com/capacityType"] == "SPOT"
    assert service["spec"]["selector"] == deployed["spec"]["selector"]["matchLabels"]
    labels = deployed["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", deployed["metadata"]["name"])


def test_kubernetes_manifests_have_its_schema(chat, fleet):
    validate = pytest.importorskip("kubernetes_validate")
    for result in (chat, fleet):
        for d in documents(optmodels.export(result, "kubernetes").files["manifests.yaml"]):
            validate.validate(d, "1.32", strict=True)


# Fields of the documented objects, beyond those of a pod: lws.sigs.k8s.io (LeaderWorkerSet API v1), keda.sh
# (ScaledObject specification, Prometheus scaler), kserve.github.io (InferenceService v1beta1, autoscaling with KEDA).
LWS_SPEC = {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
LWS_GROUP = {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy"}
KEDA_SPEC = {"scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount", "triggers"}
POD = {"affinity", "nodeSelector", "tolerations", "containers", "volumes"}


def pods(spec, schema=True):
    """A pod's specification is one of Kubernetes."""
    assert set(spec) <= POD
    if schema:
        validate = pytest.importorskip("kubernetes_validate")
        validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}, "1.32",
                          strict=True)  # fmt: skip


def test_keda_scales_between_the_periods_of_the_plan(fleet):
    scaled = documents(optmodels.export(fleet, "keda").files["scaledobjects.yaml"])
    deployed = [d for d in documents(optmodels.export(fleet, "kubernetes").files["manifests.yaml"])
                if d["kind"] == "Deployment"]  # fmt: skip
    counts = {}  # of replicas, by deployment and period
    for i, period in enumerate(fleet.plan["periods"]):
        for d in period["deployments"]:
            counts.setdefault(d["name"], [0] * len(fleet.plan["periods"]))[i] += (
                d["count"] * d["machines"][0]["count"] * d["replicas_per_machine"]
            )
    assert [s["spec"]["scaleTargetRef"]["name"] for s in scaled] == [d["metadata"]["name"] for d in deployed]
    for s, d in zip(scaled, deployed, strict=True):
        of_plan = counts[s["metadata"]["annotations"]["optmodels/plans"]]
        spec = s["spec"]
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (max(1, min(of_plan)), max(of_plan))
        assert (s["apiVersion"], s["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
        assert set(spec) <= KEDA_SPEC
        (trigger,) = spec["triggers"]
        assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
        assert all(isinstance(v, str) for v in trigger["metadata"].values())  # a string map
        slots = next(a for a in d["spec"]["template"]["spec"]["containers"][0]["args"] if "max-num-seqs" in a)
        assert slots == f"--max-num-seqs={trigger['metadata']['threshold']}"
    assert any(s["spec"]["minReplicaCount"] < s["spec"]["maxReplicaCount"] for s in scaled)


def test_kserve_has_the_same_pods_and_bounds(fleet):
    made = optmodels.export(fleet, "kserve")
    deployed = [d for d in documents(optmodels.export(fleet, "kubernetes").files["manifests.yaml"])
                if d["kind"] == "Deployment"]  # fmt: skip
    services = documents(made.files["inferenceservices.yaml"])
    assert any("autoScaling" in s["spec"]["predictor"] for s in services)
    for s, d in zip(services, deployed, strict=True):
        assert (s["apiVersion"], s["kind"], set(s["spec"])) == (
            "serving.kserve.io/v1beta1", "InferenceService", {"predictor"},
        )  # fmt: skip
        predictor = dict(s["spec"]["predictor"])
        scaling = predictor.pop("autoScaling", None)
        least, most = predictor.pop("minReplicas"), predictor.pop("maxReplicas")
        assert (scaling is not None, most) == (least < most, d["spec"]["replicas"] if least == most else most)
        assert s["metadata"]["annotations"].get("serving.kserve.io/autoscalerClass") == (scaling and "keda")
        (engine,) = predictor["containers"]
        assert engine["name"] == "kserve-container"
        (other,) = d["spec"]["template"]["spec"]["containers"]
        assert engine | {"name": other["name"]} == other
        pods(predictor, schema=s is services[-1])


def test_a_server_that_spans_machines_is_a_leader_worker_set():
    wide = deployment(machines=2, nodes=2, hosts=["a", "b"], tensor_parallel=8, pipeline_parallel=2, gpus_per_machine=8)
    plan = Deployments(name="x", deployments=[wide])
    assert (wide.replicas, wide.groups) == (1, [list(range(8))])
    made, service = documents(targets.of_plan(plan, "lws").files["leaderworkersets.yaml"])
    assert (made["apiVersion"], made["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    assert set(made["spec"]) <= LWS_SPEC
    group = made["spec"]["leaderWorkerTemplate"]
    assert set(group) <= LWS_GROUP
    assert (made["spec"]["replicas"], group["size"]) == (1, 2)
    leader, worker = (group[k]["spec"]["containers"][0] for k in ("leaderTemplate", "workerTemplate"))
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": 8}
    *_, command = leader["command"]
    assert {"--tensor-parallel-size=8", "--pipeline-parallel-size=2", "leader"} <= set(shlex.split(command))
    assert "readinessProbe" not in worker and "worker --ray_address=$(LWS_LEADER_ADDRESS)" in worker["command"][-1]
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    with pytest.raises(InputError, match="lws"):  # nobody else can
        targets.of_plan(plan, "vllm")
    both = Deployments(name="x", deployments=[wide, deployment()])
    found = targets.of_plan(both, "kubernetes")
    assert len(documents(found.files["manifests.yaml"])) == 2
    assert any("export --to lws" in n for n in found.notes)
    assert len(documents(targets.of_plan(both, "lws").files["leaderworkersets.yaml"])) == 4
    for template in ("leaderTemplate", "workerTemplate"):
        pods(group[template]["spec"])


def test_skypilot_tasks_have_its_schema(chat, fleet):
    for result in (chat, fleet):
        for text in optmodels.export(result, "skypilot").files.values():
            (task,) = documents(text)
            assert set(task) - {"secrets"} == {"name", "resources", "service", "setup", "run"}
            assert ("secrets" in task) is ("meta-llama/" in task["run"])
            assert shlex.split(task["run"])[:2] == ["vllm", "serve"]
            schemas = pytest.importorskip("sky.utils.schemas")
            import jsonschema

            jsonschema.validate(task, schemas.get_task_schema())


@pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform")
def test_terraform_accepts_the_variables(chat, tmp_path):
    hostile = [Purchase(machine=HOSTILE, provider="aws", region=HOSTILE, market="spot", count=3, purpose=HOSTILE)]
    for i, plan in enumerate((of(chat), Deployments(name=HOSTILE, purchases=hostile, notes=[HOSTILE]))):
        folder = tmp_path / str(i)
        folder.mkdir()
        for name, text in targets.of_plan(plan, "terraform").files.items():
            (folder / name).write_text(text, encoding="utf-8")

        def terraform(*words, stdin="", folder=folder):
            done = subprocess.run(["terraform", *words], cwd=folder, input=stdin, capture_output=True, text=True,
                                  env={"PATH": "/usr/local/bin:/usr/bin:/bin", "CHECKPOINT_DISABLE": "1",
                                       "HOME": str(folder)})  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        terraform("fmt", "-check", "-diff", "-no-color")  # parses every file
        (folder / "main.tf").unlink()  # its providers are not here; the list and the machines need none
        terraform("init", "-backend=false", "-no-color")
        terraform("validate", "-no-color")
        keys = json.loads(json.loads(terraform("console", stdin="jsonencode(keys(local.machines))\n")))
        assert len(keys) == sum(p.count for p in plan.purchases)
        read = terraform("console", stdin="jsonencode(var.purchases[0])\n")
        value = json.loads(json.loads(read))
        first = plan.purchases[0]
        assert (value["count"], value["market"]) == (first.count, first.market)
        assert value["machine"] == re.sub("[\x1b\u2028]", "?", first.machine)
        terraform("plan", "-no-color", "-input=false", "-refresh=false")


def bought(**changes):
    base = {"machine": "box", "provider": "aws", "region": "r", "market": "on_demand", "count": 2}
    return Purchase.model_validate(base | changes)


@pytest.mark.parametrize(("provider", "resource"), [
    ("aws", "aws_instance"), ("gcp", "google_compute_instance"), ("azure", "azurerm_linux_virtual_machine"),
])  # fmt: skip
def test_terraform_creates_the_machines_of_each_cloud(provider, resource):
    made = targets.of_plan(Deployments(name="x", purchases=[bought(provider=provider)]), "terraform")
    main = made.files["main.tf"]
    assert f'resource "{resource}" "machine"' in main and f'p.provider == "{provider}"' in main
    assert main.count('source = "hashicorp/') == 1 and made.notes == []
    (line,) = json.loads(made.files["purchases.auto.tfvars.json"])["purchases"]
    assert (line["count"], line["create"]) == (2, True)


def test_terraform_says_what_it_cannot_buy():
    plan = Deployments(name="x", purchases=[
        bought(market="reserved_1y"), bought(provider="", machine="own"), bought(purpose="from quarter 3"),
        bought(note="sold on Sundays"),
    ])  # fmt: skip
    made = targets.of_plan(plan, "terraform")
    for words in ("2 reserved machines", "2 × own: no resource", "create = false", "box: sold on Sundays"):
        assert any(words in n for n in made.notes) and words in made.files["main.tf"]
    lines = json.loads(made.files["purchases.auto.tfvars.json"])["purchases"]
    assert [x["create"] for x in lines] == [True, True, False, True]
    assert "main.tf" not in targets.of_plan(Deployments(name="x", purchases=[bought(provider="")]), "terraform").files


def test_a_note_on_spot_prices_concerns_machines_on_spot_alone():
    listed = next(m for m in machines("aws") if m.machine == "p5.48xlarge")
    assert listed.note.startswith("spot price")
    pool = {("p5.48xlarge", listed.region): listed}
    noted = {
        market: purchase(MachineLine(
            role="main", machine="p5.48xlarge", region=listed.region, gpu="h100", gpus_per_machine=8, market=market,
            count=1, usd_per_hour_each=1.0,
        ), pool).note for market in ("on_demand", "spot")
    }  # fmt: skip
    assert noted == {"on_demand": "", "spot": listed.note}


def test_weights_of_16_bits_keep_their_own_format():
    """vLLM refuses float16 for Gemma 3 and rounds bf16 checkpoints with it."""
    assert vllm.arguments(deployment(checkpoint="google/gemma-3-27b-it"))["dtype"] == "auto"


def test_hostile_names_stay_data(tmp_path):
    plan = Deployments(
        name=HOSTILE, notes=[HOSTILE],
        deployments=[deployment(name=HOSTILE, model=HOSTILE, checkpoint=HOSTILE, machine=HOSTILE, region=HOSTILE,
                                notes=[HOSTILE], replicas_per_machine=2)] * 2,
    )  # fmt: skip
    for target in ("vllm", "kubernetes", "skypilot"):
        made = targets.of_plan(plan, target)
        assert len(made.files) == {"vllm": 4, "kubernetes": 1, "skypilot": 2}[target]
        for name, text in made.files.items():
            assert re.fullmatch(r"[a-z][a-z0-9.-]*", name)
            if name.endswith(".sh"):
                stub = tmp_path / "vllm"
                stub.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
                stub.chmod(0o755)
                done = subprocess.run(["/bin/sh"], input=text.encode(), cwd=tmp_path, capture_output=True,
                                      env={"PATH": f"{tmp_path}:/usr/bin:/bin"})  # fmt: skip
                assert done.returncode == 0, done.stderr
                assert done.stdout.split(b"\0").count(HOSTILE.encode()) == 2  # the model, once a replica, as it is
            else:
                for d in documents(text):
                    assert "evil" not in d
                    assert d.get("kind") == "Service" or HOSTILE in _strings(d)
    assert not (tmp_path / "harmed").exists()


def _strings(node):
    """Every string in a document, and the words of those that are commands."""
    if isinstance(node, str):
        try:
            return [node, *shlex.split(node)]
        except ValueError:
            return [node]
    if isinstance(node, dict):
        return [s for v in node.values() for s in _strings(v)]
    return [s for v in node for s in _strings(v)] if isinstance(node, list) else []


def test_export_writes_files_and_never_over_others(chat, folder, cli):
    (folder / "plan.json").write_text(chat.to_json(), encoding="utf-8")
    run = cli("export", "plan.json", "--to", "vllm", "--out", "serve")
    assert run.status == 0, run.err
    assert sorted(run.out.split()) == sorted(str(p.relative_to(folder)) for p in (folder / "serve").iterdir())
    assert cli("export", "plan.json", "--to", "vllm", "--out", "serve").status == 2
    assert cli("export", "plan.json", "--to", "vllm", "--out", "serve", "--force").status == 0
    run = cli("export", "plan.json", "--to", "nomad")
    assert (run.status, "one of vllm, kubernetes" in run.err) == (2, True)


def test_refuted_plans_are_not_exported(chat):
    document = chat.model_dump(mode="json", by_alias=True)
    document["plan"]["usd_per_hour"] *= 0.5
    with pytest.raises(InputError, match="optmodels check"):
        optmodels.export(document, "terraform")


def test_export_writes_all_files_or_none(chat, folder):
    made = optmodels.export(chat, "vllm", out=folder / "all")
    *_, last = made.files
    (folder / "some").mkdir()
    (folder / "some" / last).write_text("mine")
    with pytest.raises(InputError, match="existing file"):
        optmodels.export(chat, "vllm", out=folder / "some")
    assert [f.name for f in (folder / "some").iterdir()] == [last] and (folder / "some" / last).read_text() == "mine"


def test_names_are_distinct_whatever_machines_are_called():
    machines = ["g6-3", "g6", "g6", "g6", "g6-4"]
    assert len(set(targets.names([deployment(machine=m) for m in machines]))) == len(machines)


@pytest.mark.parametrize("kind", ["mps", "lp"])
def test_model_is_written_for_other_solvers(kind, tiny, tmp_path):
    import highspy

    result = optmodels.solve(tiny())
    made = optmodels.export(result, kind, out=tmp_path)
    (name,) = made.files
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / name))
    solver.run()
    assert 1e6 / solver.getObjectiveValue() == pytest.approx(result.objective, rel=1e-6)


# ------------------------------------------------------------------------------------------------- a fleet's replicas


def _two_replicas(**changes):
    machine = {"machine": "box", "gpu": "a10g", "gpu_count": 2, "vram_gib": 48, "ram_gib": 64, "disk_gbps": 4,
               "net_gbps": 10, "prices": {"on_demand": 1.0}}  # fmt: skip
    workload = {"name": "w", "model": "llama-3.2-3b", "slo": {"deadline_s": 600},
                "buckets": [{"input_tokens": 512, "output_tokens": 128, "requests_per_s": 0.5}]}  # fmt: skip
    return {
        "formulation": "fleet", "schema": 1, "name": "two", "serving": "static", "workloads": [workload | changes],
        "pool": {"machines": [machine]}, "markets": {"main": ["on_demand"]},
        "strategies": {"families": ["high_end"], "batches": [16], "replicas": [1], "tensor_parallel": [1]},
    }  # fmt: skip


def test_a_replica_of_a_fleet_admits_its_part_of_the_batch():
    result = optmodels.solve(_two_replicas())
    line = result.plan["periods"][0]["deployments"][0]
    (d,) = of(result).deployments
    assert (line["batch"], line["replicas_per_machine"]) == (16, 2)
    assert (d.max_num_seqs, d.replicas_per_machine) == (8, 2)
    script = targets.of_plan(of(result), "vllm").files["llama-3-2-3b-box.sh"]
    assert script.count("--max-num-seqs=8 --max-model-len=auto ") == 2


def test_an_engine_admits_the_longest_request_of_a_trace_not_the_mean(tmp_path):
    rows = "".join(f"2023-11-16 18:15:{s:02d},{a},{b}\n" for s, a, b in ((1, 100, 20), (11, 120, 30), (41, 250, 60)))
    (tmp_path / "trace.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(_two_replicas(buckets=None, trace={"file": "trace.csv"})))
    result = optmodels.solve(tmp_path / "mine.yaml")
    (d,) = of(result).deployments  # of the document alone, which no longer has the trace
    (bucket,) = result.problem["workloads"][0]["buckets"]
    assert (bucket["input_tokens"], bucket["output_tokens"], bucket["longest_tokens"]) == (157, 37, 310)
    assert d.max_model_len == 310


@pytest.mark.parametrize(("longest", "expected"), [(None, None), (4096, 4096)])
def test_an_engine_admits_what_fits_where_nobody_says_how_long_requests_are(longest, expected):
    """A bucket's lengths are means: a limit of their sum would refuse every other request."""
    bucket = {"input_tokens": 512, "output_tokens": 128, "requests_per_s": 0.5, "longest_tokens": longest}
    (d,) = of(optmodels.solve(_two_replicas(buckets=[bucket]))).deployments
    assert d.max_model_len == expected
    assert f"--max-model-len={expected or 'auto'}" in vllm.flags(d)
    assert (f"# {UNKNOWN_LONGEST}" in about(d, [])) == (expected is None)


def test_yaml_is_written_without_anchors():
    shared = {"app": "x"}
    text = targets.as_yaml({"labels": shared, "selector": shared, "text": targets.Lines("a\nb\n")})
    assert text == "labels:\n  app: x\nselector:\n  app: x\ntext: |\n  a\n  b\n"


def test_a_note_on_several_deployments_is_said_once():
    two = [deployment(name="one", checkpoint=""), deployment(name="two", checkpoint="")]
    notes = targets.of_plan(Deployments(name="x", deployments=two), "kubernetes").notes
    assert [n for n in notes if "names no checkpoint" in n] == [
        "one and 1 more: The plan names no checkpoint for M: replace SET-THE-MODEL."
    ]
