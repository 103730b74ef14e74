"""Orchestration: size, time, gap, memory, predicted against replayed; the curve of time against GPUs and requests.

    python benchmarks/orchestration.py            everything
    python benchmarks/orchestration.py traces     the six traces, sizes and burstiness of MaaSO §V
    python benchmarks/orchestration.py scale      1,000 to 100,000 GPUs, a million to 200 million requests, as classes; busy and overloaded
    python benchmarks/orchestration.py replay     predicted against replayed attainment, by policy and load
    python benchmarks/orchestration.py named      predicted, by name and replayed attainment of the shipped traces
    python benchmarks/orchestration.py shared     MaaSO's six traces on engines that batch continuously: exact and heuristics,
                                                  predicted and replayed with the dispatcher that each plan names
    python benchmarks/orchestration.py engines FILE THETA FACTOR SECONDS GPUS…
                                                  a trace file on engines that batch continuously: the first SECONDS of it,
                                                  FACTOR times as fast; planned, certified, and greedy_dp beside them

Times are wall-clock on whatever runs this; the rival in the same run is HiGHS on the pooled form of all
models at once, without decomposition, relaxation, rounding and warm start (column `plain HiGHS`).
"""

# ruff: noqa: E501 - tables

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np
import yaml

import optmodels
from formulations.orchestration.model import FlowModel
from formulations.orchestration.points import build_tables
from optmodels.loading import load
from optmodels.solver.highs import Settings, solve_compiled

FOLDER = Path(__file__).parents[1] / "instances" / "orchestration"
GAP, LIMIT = 1e-3, 60.0
NAMES = [
    *(f"maaso-trace-{i}" for i in range(1, 7)),
    *(f"maaso-trace-4-gpus-{g}" for g in (8, 16, 32, 64)),
    *(f"maaso-trace-4-cv-{cv}" for cv in (1, 4, 8)),
    *(f"maaso-trace-4-requests-{n}" for n in (2000, 20000, 40000)),
]


def megabytes() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def traces() -> None:
    """The paper's sizes: exact to 0.1 %, or to the time limit."""
    print(
        f"{'instance':30s} {'columns':>8s} {'score':>8s} {'gap %':>7s} {'seconds':>8s} {'CPU s':>6s} {'plain HiGHS':>12s}  predicted, replayed %"
    )
    for name in NAMES:
        began, busy = time.perf_counter(), time.process_time()
        r = optmodels.solve(FOLDER / f"{name}.yaml", gap=GAP, time_limit=LIMIT)
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
        model = FlowModel(build_tables(load(FOLDER / f"{name}.yaml"))).compiled()
        plain = solve_compiled(model, Settings(LIMIT, GAP))
        shown = f"{plain.seconds:.1f}" + (f" ({100 * plain.gap:.1f} %)" if plain.gap and plain.gap > GAP else "")
        seen = r.report["replay"]["policies"]
        replayed = ", ".join(f"{k} {100 * v['attainment']:.1f}" for k, v in seen.items())
        print(f"{name:30s} {r.size['variables']:8,} {r.objective:8.4f} {100 * (r.gap or 0):7.3f} {seconds:8.1f} {cpu:6.1f} {shown:>12s}"
              f"  {100 * r.plan['prediction']['attainment']:.1f}; {replayed}", flush=True)  # fmt: skip


def scale() -> None:
    """The same classes on ever more GPUs, up to several times what they can serve: the model stays as it is."""
    document = yaml.safe_load((FOLDER / "scale-1000-gpus.yaml").read_text(encoding="utf-8"))
    print(
        f"{'GPUs':>8s} {'requests':>12s} {'tokens':>6s} {'in time %':>9s} {'columns':>8s} {'gap %':>7s} {'seconds':>8s} {'CPU s':>6s} {'solve s':>8s} {'MiB':>6s}"
    )
    for gpus in (1_000, 10_000, 100_000):
        # Requests, and tokens of each: busy; at capacity; at the peak, most of the time and always more than can be served
        for factor, tokens in ((1.0, 1), (1.4, 1), (2.0, 1), (1.4, 2), (2.0, 2), (2.0, 4)):
            case = yaml.safe_load(yaml.safe_dump(document))
            case["cluster"]["servers"][0]["count"] = gpus // 8
            for c in case["requests"]["classes"]:
                c["requests_per_s"] = [v * factor * gpus / 1000 for v in c["requests_per_s"]]
                c["output_tokens"] *= tokens
            began, busy = time.perf_counter(), time.process_time()
            r = optmodels.solve(case, gap=GAP, time_limit=LIMIT)
            seconds, cpu = time.perf_counter() - began, time.process_time() - busy
            x = r.plan["prediction"]
            print(f"{gpus:8,} {x['requests']:12,.0f} {tokens:5d}x {100 * x['attainment']:9.2f} {r.size['variables']:8,} {100 * (r.gap or 0):7.3f}"
                  f" {seconds:8.1f} {cpu:6.1f} {r.seconds['solve']:8.1f} {megabytes():6.0f}", flush=True)  # fmt: skip


def replay() -> None:
    """Predicted against replayed from light load to overload: how much of the clairvoyant part a dispatcher recovers."""
    print(
        f"{'trace':>5s} {'requests/s':>10s} {'predicted %':>11s} {'shortest queue':>15s} {'maaso':>7s} {'planned':>8s} {'recovered':>10s}"
    )
    for trace in range(1, 7):
        document = yaml.safe_load((FOLDER / f"maaso-trace-{trace}.yaml").read_text(encoding="utf-8"))
        generated = document["requests"]["trace"]["generated"]
        rate = generated["requests_per_s"]
        for load_ in (0.6, 1.0, 1.5):
            generated["requests_per_s"] = rate * load_
            r = optmodels.solve(document, gap=GAP, time_limit=LIMIT / 2)
            seen = {k: v["attainment"] for k, v in r.report["replay"]["policies"].items()}
            predicted = r.plan["prediction"]["attainment"]
            lost = predicted - seen["shortest_queue"]
            recovered = (seen["planned_shares"] - seen["shortest_queue"]) / lost if lost > 1e-3 else np.nan
            print(f"{trace:5d} {rate * load_:10.1f} {100 * predicted:11.2f} {100 * seen['shortest_queue']:15.2f}"
                  f" {100 * seen['maaso']:7.2f} {100 * seen['planned_shares']:8.2f} {recovered:10.2f}", flush=True)  # fmt: skip


def named() -> None:
    """The shipped traces: classes, requests by name, and dispatchers that do not know them beforehand."""
    columns = (
        "instance",
        "predicted",
        "bound",
        "by name",
        "best online",
        "",
        "planned sh.",
        "maaso",
        "shortest q.",
        "recovered",
    )
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for name in NAMES:
        r = optmodels.solve(FOLDER / f"{name}.yaml", gap=GAP, time_limit=LIMIT)
        found = r.report["replay"]
        seen = {k: v["attainment"] for k, v in found["policies"].items()}
        online = max((k for k in seen if k != "planned"), key=lambda k: seen[k])
        predicted, bound = found["predicted"]["attainment"], found["named"]["attainment_bound"]
        lost = predicted - seen["shortest_queue"]
        back = [
            f"{(v - seen['shortest_queue']) / lost:.0%}" if lost > 2e-3 else "" for v in (seen["planned"], seen[online])
        ]
        figures = (predicted, bound, seen["planned"], seen[online])
        rest = (seen["planned_shares"], seen["maaso"], seen["shortest_queue"])
        print(f"| {name} | " + " | ".join(f"{100 * v:.2f}" for v in figures) + f" | {online.replace('_', ' ')} | "
              + " | ".join(f"{100 * v:.2f}" for v in rest) + f" | {' / '.join(back)} |", flush=True)  # fmt: skip


def engines(file: str, theta: str, factor: str, seconds: str, *gpus: str) -> None:
    """Predicted and replayed attainment on engines, of plans as they are, certified ones, and greedy_dp's, certified too."""
    path = Path(file).resolve()
    print(
        "| GPUs | predicted | replayed | certified: promised | replayed | rounds | greedy_dp: promised | replayed |\n"
        + "|---" * 8
        + "|"
    )
    for number in map(int, gpus):
        document = {
            "formulation": "orchestration", "schema": 1, "name": f"{path.stem}-{number}", "serving": "continuous",
            "latency": {"model": "default"}, "models": [{"model": "llama-3-8b"}], "objective": {"alpha": 1.0},
            "cluster": {"servers": [{"server": "s", "count": max(number // 8, 1), "gpu": "h100", "gpus": min(number, 8)}]},
            "candidates": {"tp": [1, 2, 4], "batch": [1, 2, 4, 8, 16, 32, 64, 128]}, "slo": {"factor": float(theta)},
            "requests": {"model": "llama-3-8b", "trace": {
                "file": path.name, "rate_factor": float(factor), "first_s": float(seconds)}},
        }  # fmt: skip
        beside = path.parent / f".{path.stem}-{number}.yaml"  # an instance reads files beside it
        try:
            beside.write_text(yaml.safe_dump(document), encoding="utf-8")
            problem = load(beside)
            plain = optmodels.solve(problem, gap=GAP, time_limit=LIMIT / 3, out_of_sample=False)
            cells = [plain.plan["prediction"]["attainment"], _named_policy(plain)]
            for method in ("exact", "greedy_dp"):
                r = optmodels.solve(
                    problem, method, gap=GAP, time_limit=LIMIT * 1.5, certify_replay=True, out_of_sample=False
                )
                c = r.plan["certification"]
                promise = c["promises"][0] if c["promises"] else {"promised": np.nan, "seen": np.nan}
                kept = "" if c["status"] == "certified" else f" ({c['status']})"
                cells += [promise["promised"], promise["seen"], f"{len(c['rounds'])}{kept}"]
        finally:
            beside.unlink(missing_ok=True)
        shown = [x if isinstance(x, str) else f"{100 * x:.1f}" for x in cells]
        print(f"| {number} | " + " | ".join(shown[:-1]) + " |", flush=True)


def shared() -> None:
    """MaaSO's six traces on shared engines: predicted, and replayed with the dispatcher that the plan names."""
    methods = ("exact", "greedy_dp", "selective_replication")
    print(
        "| trace | GPUs | predicted | replayed | predicted − replayed | "
        + " | ".join(f"{m} replayed" for m in methods[1:])
        + " | exact − best heuristic |\n"
        + "|---" * (6 + len(methods))
        + "|"
    )
    for trace in range(1, 7):
        document = yaml.safe_load((FOLDER / f"maaso-trace-{trace}.yaml").read_text(encoding="utf-8"))
        document |= {"serving": "continuous", "latency": {"model": "default"}, "objective": {"alpha": 1.0}}
        document["candidates"] = {"tp": [1, 2, 4], "batch": [1, 2, 4, 8, 16, 32, 64, 128]}
        document["requests"]["trace"]["generated"] |= {"requests": 5000, "requests_per_s": 26}
        for gpus in (6, 8, 12):
            document["cluster"] = {"servers": [{"server": "s", "count": 1, "gpu": "h100", "gpus": gpus}]}
            seen = []
            for method in methods:
                r = optmodels.solve(document, method, gap=GAP, time_limit=LIMIT / 2, out_of_sample=False)
                seen.append((r.plan["prediction"]["attainment"], _named_policy(r)))
            (predicted, replayed), *others = seen
            best = max(x for _, x in others)
            figures = (predicted, replayed, predicted - replayed, *(x for _, x in others), replayed - best)
            print(f"| {trace} | {gpus} | " + " | ".join(f"{100 * x:.1f}" for x in figures) + " |", flush=True)


def _named_policy(result: optmodels.Result) -> float:
    """Replayed attainment with the dispatcher that the plan names."""
    found = optmodels.replay(result, policy=result.plan["dispatcher"]["policy"])["report"]
    return float(found["policies"][found["policy"]]["attainment"])


SECTIONS = {"traces": traces, "scale": scale, "replay": replay, "named": named, "shared": shared}

if __name__ == "__main__":
    if sys.argv[1:2] == ["engines"]:
        engines(*sys.argv[2:])
        raise SystemExit
    for section in sys.argv[1:] or SECTIONS:
        print(f"\n== {section}: {SECTIONS[section].__doc__.splitlines()[0]}")
        SECTIONS[section]()
