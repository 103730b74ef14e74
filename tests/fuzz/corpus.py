"""Small right input files of every kind that a verb reads, to be mutated: each with the command lines that read it."""

from __future__ import annotations

import copy
import gzip
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SECOND = 20_000  # from this number on, also the files of `_second`
FIRST_ITEMS = 40  # files that numbers below it stand for
SECOND_ITEMS = 81  # likewise below THIRD
THIRD = 800_000  # from this number on, also the files of `_third`
LIMIT_S = 2  # of every solve
INSTANCES = (
    "cost_efficiency/textbook/hand-checkable.yaml", "cost_efficiency/table_ix/batch-budget-2.0.yaml",
    "fleet/infeasible/quota-of-gpus.yaml", "fleet/infeasible/spare-machines.yaml", "fleet/melange-example.yaml",
    "reserved_capacity/textbook-two-regions.yaml", "reserved_capacity/textbook-growth-and-scenarios.yaml",
    "orchestration/textbook-two-servers.yaml", "orchestration/infeasible-too-many-instances.yaml",
)  # fmt: skip
PLANS = (
    "cost_efficiency/textbook/hand-checkable.yaml", "fleet/melange-example.yaml",
    "reserved_capacity/textbook-two-regions.yaml", "orchestration/textbook-two-servers.yaml",
)  # fmt: skip
STEPS = "prefill_tokens,prefill_context_tokens,decode_requests,decode_context_tokens,latency_s\n" + "".join(
    f"{p},0,{n},{n * c},{5e-3 + p * 2e-5 + n * 1e-4 + n * c * 1e-8:.8f}\n"
    for p in (0, 128, 512) for n in (1, 4, 16) for c in (200, 1000)
)  # fmt: skip
SERVED = "concurrency,input_tokens,output_tokens,ttft_s,tpot_s\n" + "".join(
    f"{c},{i},256,{0.01 + i * 5e-5 * c:.5f},{0.008 + c * 2e-4:.6f}\n" for c in (1, 4, 16) for i in (128, 512, 2048)
)
LOOPS = "concurrency,input_tokens,output_tokens,tp\n" + "".join(
    f"{c},{i},256,{tp}\n" for c in (1, 16) for i in (128, 2048) for tp in (1, 2)
)
STATIC = "batch,input_tokens,output_tokens,latency_s\n" + "".join(
    f"{b},{i},{o},{o * (0.01 + b * 1e-4) + i * b * 1e-5:.5f}\n"
    for b in (1, 4, 16)
    for i in (128, 512)
    for o in (64, 256)
)
PAIRS = "gpu,family,phase,predicted_s,latency_s\n" + "".join(
    f"l4,high_end,{phase},{x},{x * 1.2 + 0.001:.5f}\n"
    for phase in ("prefill", "decode")
    for x in (0.01, 0.02, 0.05, 0.1)
)
OURS = "arrival_s,prompt_tokens,output_tokens,model,slo_factor\n" + "".join(
    f"{i * 0.7:.3f},{100 + 37 * i},{20 + 11 * i % 300},mistral-7b,1.2\n" for i in range(15)
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{46 + i // 4}.{(i % 4) * 2}805900,{210 + i},{4 + i}\n" for i in range(12)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 500 * i, "input_length": 600 + i, "output_length": 30 + i, "hash_ids": [i, i + 1]}) + "\n"
    for i in range(12)
)
BATCH = {
    "schema": 1, "admit": {"id": "c", "tokens": 1, "context_tokens": 900},
    "requests": [{"id": "a", "tenant": "x", "tokens": 1, "context_tokens": 2000},
                 {"id": "b", "tenant": "y", "tokens": 256, "context_tokens": 100}],
}  # fmt: skip
HOURLY = "region,hour_start_utc,requests_per_hour\n" + "".join(
    f"{r},2026-03-02T0{h}:00:00Z,{100 * (h + 1)}\n" for r in ("west", "east") for h in range(4)
)
PRICES = "machine,region,on_demand_usd_per_hour,reserved_1y_usd_per_month\nbox,west,3,1400\nbox,east,3.5,1500\n"
MATRIX = "from,west,east\nwest,5,100\neast,100,5\n"
POINTS = (
    "name,family,main,ao,count,alpha,tps\n"
    "one,high_end,Sim-G,,1,0.0,150.0\ntwo,kvo_ram,Sim-E,,1,1.0,35.06\nthree,ao,Sim-D,Sim-A,1,1.0,110.0\n"
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{3 * i},textbook,{100 + i},{i % 5},{100 + i + i % 5},API log\n" for i in range(9)
)
BENCH = {
    "start_times": [0.5, 0.25, 2.0], "input_lens": [10, 20, 30], "output_lens": [3, 2, 5], "errors": ["", "", "late"],
}  # fmt: skip
INFERENCEX = (
    "Model,ISL,OSL,Hardware,Framework,Precision,TP,Concurrency,Mean TTFT (s),Mean TPOT (s),Disaggregated\n"
    "m,1024,128,h100,vllm,fp8,2,16,0.3,0.006,false\nm,1024,128,h100,vllm,fp8,2,64,,0.016,true\n"
)
GUIDELLM = {"args": {"model": "m"}, "benchmarks": [{
    "config": {"strategy": {"type_": "concurrent", "streams": 8}},
    "metrics": {name: {"successful": {"mean": value, "percentiles": {"p99": 2 * value}}} for name, value in (
        ("prompt_token_count", 1000.0), ("output_token_count", 200.0), ("time_to_first_token_ms", 150.0),
        ("inter_token_latency_ms", 20.0), ("request_concurrency", 7.5), ("requests_per_second", 2.0),
    )},
}]}  # fmt: skip
QWEN = "".join(
    json.dumps({"chat_id": i, "timestamp": i / 2, "input_length": 20 + i, "output_length": 3 + i, "type": "text",
                "hash_ids": [i, i + 1]}) + "\n"
    for i in range(8)
)  # fmt: skip
SERVEGEN = "request_id,timestamp,input_tokens,output_tokens\n" + "".join(
    f"{i},{i / 4},{90 + i},{9 + i}\n" for i in range(8)
)
SGLANG_LOG = "".join(
    json.dumps({"request_received_ts": 1.7e9 + i, "prompt_tokens": 70 + i, "completion_tokens": 5 + i}) + "\n"
    for i in range(8)
)
VLLM_TIMES = "queued_s,input_tokens,output_tokens\n" + "".join(f"{i * 0.3:.1f},{80 + i},{4 + i}\n" for i in range(8))
RATES = "model,gpu,tp,pp,batch,tokens_per_s\n" + "".join(
    f"mistral-7b,v100-16g-pcie,{tp},1,{b},{40 * tp * b**0.5:.2f}\n" for tp in (1, 2) for b in (1, 2, 4)
)


@dataclass(frozen=True)
class Item:
    """A right file and what reads it.

    Attributes:
        name: of the file to be mutated.
        content: a document (mapping or list), or text or bytes as they are.
        verbs: command lines; ``{}`` stands for the mutated file or, with `beside`, for the instance that names it.
        beside: name and text of an instance that names the file.
    """

    name: str
    content: Any
    verbs: tuple[tuple[str, ...], ...]
    beside: tuple[str, str] | None = None


def items(folder: Path) -> list[Item]:
    """The corpus; plans and models are made in `folder` once and taken from there ever after."""
    solve = ("solve", "{}", "--json", "--time-limit", str(LIMIT_S))
    found = []
    for name in INSTANCES:
        document = _plain(yaml.safe_load((ROOT / "instances" / name).read_text(encoding="utf-8")))
        heuristics = ("compare", "{}", "--json", "--time-limit", "1")
        explain = ("explain", "{}", "--json", "--time-limit", str(LIMIT_S))
        sweep = ("sweep", "{}", "--vary", "name=a,b", "--json", "--workers", "1", "--time-limit", "1", "--out", "{out}")
        found.append(Item(Path(name).name, document, (solve, solve, solve, solve, heuristics, explain, sweep)))
    made = _made(folder)
    for name, document in made.items():
        if name.endswith("plan.json"):
            readers = [("check", "{}"), ("report", "{}", "--out", "{out}.html"), ("replay", "{}", "--json")]
            readers += [("export", "{}", "--to", to) for to in ("vllm", "kubernetes", "terraform", "mps", "lp")]
            found.append(Item(name, document, tuple(readers)))
        elif name.endswith("model.yaml"):
            evaluate = ("tables", "{}", "--x", "decode_requests=1:16", "--y", "latency_s", "--max-error", "0.05",
                        "--set", "decode_context_tokens=1000", "--set", "prefill_tokens=0", "--json")  # fmt: skip
            found.append(
                Item(name, document, (evaluate, ("attribute", str(folder / "batch.json"), "--latencies", "{}")))
            )
        else:
            found.append(Item(name, document, (("report", "{}", "--out", "{out}.html"),)))
    plan = str(folder / "textbook-two-servers.plan.json")
    regions = str(folder / "textbook-two-regions.plan.json")
    replays = tuple(("replay", p, "--trace", "{}", "--json") for p in (plan, plan, regions))
    limits = ("batch-limits", "--capacity-tokens", "100000", "--trace", "{}")
    ours = (*limits, "--input-column", "prompt_tokens", "--output-column", "output_tokens")
    found += [
        Item("ours.csv", OURS, (*replays, ours)),
        Item("azure.csv", AZURE, (*replays, limits)),
        Item("mooncake.jsonl", MOONCAKE, replays),
        Item("burst.csv", BURST, replays),
        Item("bench.json", BENCH, replays),
        Item("export.csv", INFERENCEX, (("measure", "--from", "{}", "--json"),)),
        Item("benchmarks.json", GUIDELLM, (("measure", "--from", "{}", "--json"),)),
        Item("trace.csv.gz", gzip.compress(OURS.encode(), mtime=0), replays),
        Item("trace.parquet", _parquet(OURS), (*replays, ours)),
        Item("batch.json", BATCH, (("attribute", "{}", "--latencies", str(folder / "step.model.yaml"), "--json"),)),
    ]
    calibrate = ("calibrate", "{}", "--json")
    found += [Item(f"{n}.csv", text, (calibrate,)) for n, text in
              (("steps", STEPS), ("served", SERVED), ("static", STATIC), ("pairs", PAIRS))]  # fmt: skip
    found.append(Item("steps.parquet", _parquet(STEPS), (calibrate,)))
    curve = ("tables", "{}", "--x", "decode_requests", "--y", "latency_s", "--max-error", "0.1", "--json")
    found.append(Item("curve.csv", "decode_requests,latency_s\n1,0.1\n2,0.12\n4,0.2\n8,0.5\n9,0.6\n", (curve,)))
    found += [Item(*beside[:2], (solve,), beside[2:]) for beside in _beside()]
    assert len(found) == FIRST_ITEMS, "cases below SECOND would stand for other files"
    found += _second(folder)
    assert len(found) == SECOND_ITEMS, "cases below THIRD would stand for other files"
    return found + _third()


def _second(folder: Path) -> list[Item]:
    """Files of what came later: engines that batch continuously, simulators, importers, models of engines."""
    from tests.measure.tool_files import GOOD

    solve = ("solve", "{}", "--json", "--time-limit", str(LIMIT_S))
    on = ("--model", "llama-3.1-8b", "--gpu", "h100")
    simulate = ("simulate", *on, "--first", "60", "--json", "--trace")
    workload = ("--machine", "m", "--batch", "16", "--input-tokens", "512", "--output-tokens", "256", "--json")
    rows = tuple(("operating-points", "{}", *workload, *more) for more in (
        (), ("--replicas", "1,2", "--passes", "1,2", "--safety", "0.5"),
        ("--as", "points_table", "--demand", "chat/short", "--ttft-s", "1"),
        ("--as", "measured", "--gpu", "h100", "--model", "llama-3.1-8b"), ("--as", "serves", "--service", "chat"),
    ))  # fmt: skip
    own = ("calibrate", "{}", "--form", "default", "--engine", "vllm", *on, "--json")
    fits = tuple(
        ("calibrate", "{}", "--model", m, "--json") for m in ("steps", "two_segment", "additive", "linear_batch")
    )
    found = [Item("steps.csv", STEPS, fits), Item("served.csv", SERVED, (own, *rows)),
             Item("static.csv", STATIC, (("calibrate", "{}", "--form", "decay", "--json"), *rows[:2]))]  # fmt: skip
    poisson = ("poisson:2:100-300:9:20",)
    for name, document in _models(folder).items():
        readers = [*rows, (*simulate, *poisson, "--model", "{}")]
        found.append(Item(name, document, tuple(readers)))
        instance = _continuous()["fleet"] | {"latency": {"model": name, "engine": "vllm"}}
        found.append(Item(name, document, (solve,), ("fleet.yaml", yaml.safe_dump(instance, sort_keys=False))))
    traces = {"ours.csv": OURS, "qwen.jsonl": QWEN, "servegen.csv": SERVEGEN, "sglang.jsonl": SGLANG_LOG,
              "vllm.csv": VLLM_TIMES, "azure.csv": AZURE, "mooncake.jsonl": MOONCAKE}  # fmt: skip
    for name, text in traces.items():
        found.append(Item(name, text, ((*simulate, "{}", "--model", "roofline"),)))
    for name, text, fixed, columns, _ in GOOD.values():
        told = [a for k, v in fixed.items() for a in ("--set", f"{k}={v}")]
        told += [a for k, v in columns.items() for a in ("--column", f"{k}={v}")]
        content = json.loads(text) if name.endswith(".json") else text
        found.append(Item(name, content, (("measure", "--from", "{}", *told, "--json"),)))
    today = {"schema": 1, "dispatcher": "least_kv", "deployments": [
        {"workloads": ["chat"], "machine": "g6e.xlarge", "replicas": 3, "max_num_seqs": 32},
        {"workloads": ["chat"], "gpu": "h100", "machines": 1, "usd_per_hour": 5.0},
    ]}  # fmt: skip
    evaluate = (
        "evaluate",
        "{}",
        "--problem",
        str(folder / "fleet.yaml"),
        "--first",
        "20",
        "--time-limit",
        "2",
        "--json",
    )
    found.append(Item("today.yaml", today, (evaluate,)))
    explain = ("explain", "{}", "--json", "--time-limit", str(LIMIT_S))
    found += [Item(f"{name}.yaml", document, (solve, solve, explain)) for name, document in _continuous().items()]
    for name, document in _plans(folder).items():
        readers = [("check", "{}"), ("report", "{}", "--out", "{out}.html"), ("replay", "{}", "--json")]
        readers += [("export", "{}", "--to", to) for to in ("vllm", "kubernetes")]
        found.append(Item(name, document, tuple(readers)))
    return found


def _third() -> list[Item]:
    """Files of `rows-to-measure`: what may be measured, what was, and an instance."""
    few = ("--rows", "2", "--json", "--concurrency", "1,16", "--input-tokens", "512", "--output-tokens", "256")
    on = ("rows-to-measure", "--engine", "vllm", "--gpu", "h100", "--model", "llama-3.1-8b", "--tp", "1", *few)
    default = _continuous()["fleet"] | {"latency": {"model": "default", "engine": "vllm"}}
    return [
        Item("loops.csv", LOOPS, ((*on, "--candidates", "{}"),)), Item("had.csv", SERVED, ((*on, "--measured", "{}"),)),
        Item("which.yaml", default, (("rows-to-measure", "{}", "--gpu", "h100", *few),)),
    ]  # fmt: skip


def _continuous() -> dict[str, Any]:
    """Instances of engines that batch continuously; latencies of the roofline, as `default` would be slow to load."""
    engine = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    fleet = {
        "formulation": "fleet", "schema": 1, "name": "continuous", "serving": "continuous", "engine": engine,
        "workloads": [{
            "name": "chat", "model": "llama-3.1-8b", "requests_per_s": 4.0, "prefix_hit_share": 0.1,
            "buckets": [{"input_tokens": 512, "output_tokens": 64, "share": 0.7},
                        {"input_tokens": 2048, "output_tokens": 32, "share": 0.3, "longest_tokens": 4000}],
            "slo": {"ttft_s": {"at_most": 2.0, "percentile": 0.9}, "tpot_s": 0.1},
        }],
        "pool": {"catalog": "aws", "include": ["g6e.xlarge", "p5.4xlarge"]}, "markets": {"main": ["on_demand"]},
        "latency": {"model": "roofline", "engine": "vllm"},
    }  # fmt: skip
    orchestration = {
        "formulation": "orchestration", "schema": 1, "name": "continuous", "serving": "continuous",
        "engine": engine | {"chunk_tokens": 512}, "latency": {"model": "roofline"},
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]}, "models": [{"model": "llama-3.2-3b"}],
        "candidates": {"tp": [1, 2], "batch": [4]}, "bins": {"seconds": 1.0},
        "requests": {"rows": {"arrival_s": [0.0, 0.2], "prompt_tokens": [700, 90], "output_tokens": [40, 90],
                              "slo_factor": [2.0, 3.0]}},
    }  # fmt: skip
    staged = fleet | {"name": "stages", "deployment": {"stages": ["both", "prefill", "decode"]}}
    cost = {
        "formulation": "cost_efficiency", "schema": 1, "name": "loop", "model": "llama-3.1-8b",
        "serving": "continuous", "latency": {"model": "roofline"}, "strategies": {"families": ["high_end"]},
        "workload": {"batch": 60, "input_tokens": 500, "output_tokens": 120},
        "slo": {"kind": "real_time", "tps": 200, "ttft_s": {"at_most": 3.0, "percentile": 0.9}, "tpot_s": 0.12},
        "pool": {"machines": [{"machine": "box", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48,
                               "prices": {"on_demand": 1.9}}]},
        "markets": {"main": ["on_demand"]},
    }  # fmt: skip
    return {
        "fleet": fleet, "orchestration": orchestration, "staged": staged, "cost": cost,
        "certified": fleet | {"name": "certified", "certify": "replay"},
    }  # fmt: skip


def _models(folder: Path) -> dict[str, Any]:
    """Model files of other kinds than `_made` has."""
    kept = folder / "models.json"
    if not kept.exists():
        from optmodels.latency.engines.own import served_rows, with_own_rows
        from optmodels.latency.fit import calibrate_measurements, read_measurements

        made: dict[str, Any] = {}
        for name, text in (("steps", STEPS), ("served", SERVED), ("static", STATIC)):
            (folder / f"{name}.csv").write_text(text, encoding="utf-8")
        rows = {name: read_measurements(folder / f"{name}.csv") for name in ("steps", "served", "static")}
        for name, model in (("steps", "steps"), ("served", "additive"), ("static", "decay")):
            fitted = calibrate_measurements(rows[name], model).model
            made[f"{name}.{model}.yaml"] = json.loads(fitted.model_dump_json(by_alias=True, exclude_none=True))
        pulled = with_own_rows(served_rows(rows["served"], "vllm", "h100", "llama-3.1-8b"), source="fuzz", date=None)
        made["engines.yaml"] = json.loads(pulled.model_dump_json(by_alias=True))
        kept.write_text(json.dumps(made), encoding="utf-8")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def _plans(folder: Path) -> dict[str, Any]:
    """Results of `_continuous`."""
    kept = folder / "continuous.json"
    if not kept.exists():
        import optmodels

        made = {}
        for name, document in _continuous().items():
            instance = folder / f"{name}.yaml"
            instance.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
            made[f"{name}.plan.json"] = json.loads(optmodels.solve(instance, time_limit=30).to_json())
        kept.write_text(json.dumps(made), encoding="utf-8")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def _beside() -> list[tuple[Any, ...]]:
    """Files that instances name: (file, content, the instance's name, the instance)."""
    two = yaml.safe_load((ROOT / "instances/reserved_capacity/textbook-two-regions.yaml").read_text(encoding="utf-8"))

    def regions(file: str, content: str, change: Any) -> tuple[Any, ...]:
        document = copy.deepcopy(two)
        change(document)
        return file, content, "two.yaml", yaml.safe_dump(document, sort_keys=False)

    def demand(d: Any) -> None:
        d["services"][0]["demand"] = {"kind": "file", "file": "hourly.csv"}

    def prices(d: Any) -> None:
        d["machines"][0] |= {"prices": {}, "prices_file": "prices.csv"}
        d["terms"] = ["reserved_1y", "on_demand"]

    def network(d: Any) -> None:
        d["network"] = {"file": "rtt.csv"}

    cost = yaml.safe_load((ROOT / "instances" / INSTANCES[1]).read_text(encoding="utf-8"))
    cost["latency"] = {"operating_points": "points.csv"}
    servers = yaml.safe_load((ROOT / "instances/orchestration/textbook-two-servers.yaml").read_text(encoding="utf-8"))
    rates = servers | {"latency": {"measured": "rates.csv"}}
    trace = servers | {"requests": {"trace": {"file": "trace.csv"}}}
    fleet = yaml.safe_load((ROOT / "instances/fleet/infeasible/quota-of-gpus.yaml").read_text(encoding="utf-8"))
    del fleet["workloads"][0]["requests_per_s"], fleet["workloads"][0]["buckets"]
    fleet["workloads"][0]["trace"] = {"file": "azure.csv"}
    return [
        regions("hourly.csv", HOURLY, demand), regions("prices.csv", PRICES, prices),
        regions("rtt.csv", MATRIX, network),
        ("points.csv", POINTS, "cost.yaml", yaml.safe_dump(cost, sort_keys=False)),
        ("rates.csv", RATES, "servers.yaml", yaml.safe_dump(rates, sort_keys=False)),
        ("trace.csv", OURS, "servers.yaml", yaml.safe_dump(trace, sort_keys=False)),
        ("azure.csv", AZURE, "fleet.yaml", yaml.safe_dump(fleet, sort_keys=False)),
    ]  # fmt: skip


def _made(folder: Path) -> dict[str, Any]:
    """Documents that optmodels itself writes: made once, then read."""
    kept = folder / "made.json"
    if not kept.exists():
        import optmodels
        from optmodels.io.write import finite
        from optmodels.latency.fit import calibrate_measurements, read_measurements
        from optmodels.latency.output import yaml_text

        folder.mkdir(parents=True, exist_ok=True)
        made: dict[str, Any] = {}
        for name in PLANS:
            result = optmodels.solve(ROOT / "instances" / name, time_limit=30)
            made[f"{Path(name).stem}.plan.json"] = json.loads(result.to_json())
        textbook = ROOT / "instances" / PLANS[0]
        made["compare.json"] = finite(optmodels.compare([textbook]))
        made["sweep.json"] = finite(optmodels.sweep(textbook, {"slo.tps": [1000, 10**9]}).document())
        made["explanation.json"] = json.loads(optmodels.explain(textbook, time_limit=20).to_json())
        (folder / "steps.csv").write_text(STEPS, encoding="utf-8")
        (folder / "batch.json").write_text(json.dumps(BATCH), encoding="utf-8")
        fitted = calibrate_measurements(read_measurements(folder / "steps.csv"), "auto").model
        made["step.model.yaml"] = json.loads(fitted.model_dump_json(by_alias=True, exclude_none=True))
        (folder / "step.model.yaml").write_text(yaml_text(made["step.model.yaml"]), encoding="utf-8")
        for name in made:
            if name.endswith("plan.json"):
                (folder / name).write_text(json.dumps(made[name]), encoding="utf-8")
        kept.write_text(json.dumps(made), encoding="utf-8")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def copy_beside(item: Item, folder: Path) -> None:
    """What an instance of the corpus refers to beside the mutated file."""
    if item.name == "melange-example.yaml":
        shutil.copy(ROOT / "instances/fleet/melange-example.json", folder / "melange-example.json")
    if item.name == "batch-budget-2.0.yaml":
        shutil.copy(ROOT / "instances/cost_efficiency/table_ix/measured.csv", folder / "measured.csv")


def _plain(document: Any) -> Any:
    """A document of JSON's types: dates as they are written."""
    return json.loads(json.dumps(document, default=lambda v: v.isoformat()))


def _parquet(text: str) -> bytes:
    import pandas as pd

    data = io.BytesIO()
    pd.read_csv(io.StringIO(text)).to_parquet(data, index=False)
    return data.getvalue()
