"""Times and gaps of fleet planning: ``python benchmarks/fleet.py [PART …]``, by default grid, scaling and artefact.

grid      10 × 10 buckets × 8 machine types: gap ≤ 0.01 % in ≤ 1 s, build included (imports not)
stages    10 × 10 buckets × 4 and 8 machine types, prefill and decode apart, and × 3 precisions: gap ≤ 0.01 % in 2 s
          (not held)
measured  the same with 8 types × 3 precisions as measured points, 20 to 1,200 requests/s: CPU seconds, check included
scaling   up to 1,000 bucket-workloads × 10,000 points: gap ≤ 0.5 % in ≤ 30 s; × 30,000 points in ≤ 60 s
artefact  Mélange's cost by slice factor against any split
confirm   promised waiting against simulated Poisson arrivals, 1,000,000 requests a deployment line
cbc       Mélange's own model (a binary for every slice and type) by CBC, 100 s; needs ``pip install pulp<4``
apart     aws-stages.yaml under other limits, networks and rates: together, and together or apart (README.md of fleets)
ranks     MoE models on nodes of 8 GPUs: one attention rank, and up to eight with the experts spread over all of them
drafts    drafts.yaml of docs/drafts-and-prefixes.md under other limits and rates, without drafts, with a model, a head
"""

from __future__ import annotations

import copy
import math
import re
import sys
import time
from pathlib import Path

import numpy as np
import yaml

import optmodels
from formulations.fleet.check import check
from formulations.fleet.methods.exact import exact
from formulations.fleet.methods.melange import MelangeModel
from formulations.fleet.points import STAGES, build_tables
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.solver import Settings, solve_compiled

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from references.fleet_queues import confirm

from instances.generate.fleet import grid_problem, scaling


def report(name, problem, options):
    """Solve by `exact`; print gap, time, CPU time (what counts on a busy machine) and size."""
    problem.resolve()
    clock, used = time.perf_counter(), time.process_time()
    tables = build_tables(problem)
    outcome = exact(problem, tables, options)
    seconds, cpu = time.perf_counter() - clock, time.process_time() - used
    plan = outcome.plan
    verdict = "-" if plan is None else check(problem, plan.model_dump(mode="json")).ok
    cost = math.nan if plan is None else plan.total_usd_per_hour
    gap = math.nan if plan is None or outcome.bound is None else (cost - outcome.bound) / cost
    deployments = 0 if plan is None else sum(d.count for q in plan.periods for d in q.deployments)
    print(
        f"{name:28s} {outcome.status:9s} cost {cost:10.4f} gap {gap:8.4%} total {seconds:6.2f} s (CPU {cpu:.2f}) "
        f"deployments {deployments:5d} check {verdict} " + " ".join(f"{k} {v:.2f}" for k, v in outcome.seconds.items())
    )
    return outcome, seconds


def run_grid():
    """Must hold: ≤ 0.01 % in ≤ 1 s."""
    for seed in range(5):
        for rate in (20.0, 60.0, 200.0):
            report(f"grid 10x10x8 {rate:g}/s seed {seed}", grid_problem(10, 10, 8, rate, seed), Options(gap=1e-4))


STAGE_MACHINES = (
    "g5.xlarge", "p4d.24xlarge", "p5.4xlarge", "g6e.xlarge", "g6.xlarge", "g6e.12xlarge", "p4de.24xlarge",
    "p5en.48xlarge",
)  # fmt: skip


PRECISIONS = (
    {"name": "16 bits", "model": "llama-3.1-8b", "quality": 1.0},
    {"name": "fp8 weights", "model": "llama-3.1-8b", "precision": {"weights": "fp8"}, "quality": 0.99},
    {"name": "fp8", "model": "llama-3.1-8b", "precision": {"weights": "fp8", "kv": "fp8"}, "quality": 0.98},
)


def stages_problem(types, rate, seed=0, precisions=1, deadline_s=60.0, points=None):
    """10 × 10 buckets of one model on machines of AWS, prefill and decode together or apart; `rate` requests/s.

    With three `precisions` the plan chooses among them, at a mean quality that the cheapest alone does not have.
    `points`: measured, in place of machines.
    """
    rng = np.random.default_rng(seed)
    inputs, outputs = np.meshgrid(np.geomspace(64, 8192, 10), np.geomspace(16, 768, 10), indexing="ij")
    far = (np.log(inputs / 700) / 1.3) ** 2 / 2 + (np.log(outputs / 150) / 1.1) ** 2 / 2
    weight = np.exp(-far) * rng.uniform(0.6, 1.4, far.shape)
    sizes = zip(inputs.ravel(), outputs.ravel(), (rate * weight / weight.sum()).ravel(), strict=True)
    served = {"model": "llama-3.1-8b"} if precisions == 1 else {"models": PRECISIONS, "quality_at_least": 0.985}
    slo = {"ttft_s": {"at_most": 2.0, "percentile": 0.95}, "tpot_s": {"at_most": 0.06, "percentile": 0.95}}
    made = {
        "pool": {"catalog": "aws", "include": list(STAGE_MACHINES[:types])},
        "markets": {"main": ["on_demand"], "ao": ["on_demand"]}, "serving": "continuous",
    }  # fmt: skip
    return load({
        "formulation": "fleet", "schema": 1, "name": "stages",
        "workloads": [{
            "name": "w", "slo": slo | ({} if deadline_s is None else {"deadline_s": deadline_s}),
            "buckets": [
                {"input_tokens": int(i), "output_tokens": int(o), "requests_per_s": float(r)} for i, o, r in sizes
            ],
        } | served],
        "deployment": {"stages": ["both", "prefill", "decode"]},
    } | (made if points is None else {"points": points}))  # fmt: skip


def run_stages():
    """Target of prefill and decode apart: ≤ 0.01 % in 2 s."""
    for types, precisions in ((4, 1), (8, 1), (8, 3)):
        for rate in (120.0, 1200.0):
            name = f"stages 10x10x{types} {rate:g}/s" + (f" x{precisions}" if precisions > 1 else "")
            problem = stages_problem(types, rate, precisions=precisions)
            report(name, problem, Options(gap=1e-4, time_limit=60.0, answer_only=True))


def measured_points(buckets, one_tp):
    """Points of machine type × TP × stage × precision, each at the rates of its best level for every bucket.

    `one_tp`: one for each type, stage and precision, of the TP with the most requests/s of all buckets together.
    """
    problem = stages_problem(8, 1.0, precisions=3, deadline_s=None)
    tables = build_tables(problem)
    x, found = tables.points, {}
    for p in range(len(x)):
        (machine, _, _), _ = next(tables.machines_of(p))
        tp = int(tables.blocks[x.block[p]].configurations.tp[x.configuration[p]])
        key = machine, tp, STAGES[x.stage[p]], PRECISIONS[x.model[p]]["name"]
        rates = np.where(np.isfinite(tables.load[:, p]), 1.0 / tables.load[:, p], 0.0)
        usd, best = found.get(key, (float(x.usd_per_hour[p]), 0.0))
        found[key] = usd, np.maximum(best, rates)
    kept = found
    if one_tp:
        order = sorted(found, key=lambda key: -float(np.sum(found[key][1])))
        kept = {(k[0], *k[2:]): k for k in reversed(order)}.values()
    return [
        {
            "name": f"{machine} TP{tp} {stage} {model}", "machine": machine, "tp": tp, "stage": stage, "model": model,
            "usd_per_hour": found[machine, tp, stage, model][0],
            "requests_per_s": {
                f"w/{b}": float(r) for b, r in zip(buckets, found[machine, tp, stage, model][1], strict=True) if r
            },
        }
        for machine, tp, stage, model in kept
    ]  # fmt: skip


def run_measured():
    """10 × 10 buckets × 8 types × 3 stages × 3 precisions as measured points: ≤ 0.01 % in ≤ 2 CPU s, all included."""
    for one_tp in (True, False):
        points = measured_points([d.bucket for d in stages_problem(1, 1.0).resolve().demands], one_tp)
        for rate in (20.0, 120.0, 1200.0):
            for seed in range(5):
                used = time.process_time()
                problem = stages_problem(8, rate, seed, 3, deadline_s=None, points=points)
                outcome = exact(problem, build_tables(problem), Options(gap=1e-4, time_limit=60.0, answer_only=True))
                ok = check(problem, outcome.plan.model_dump(mode="json")).ok
                used, cost = time.process_time() - used, outcome.plan.total_usd_per_hour
                print(
                    f"measured {len(points)} points {rate:g}/s seed {seed} {outcome.status} {cost:.4f} "
                    f"gap {(cost - outcome.bound) / cost:.4%} CPU {used:.2f} s with tables and check, check {ok}"
                )


def run_scaling():
    """Must hold: 1,000 × 10,000 ≤ 0.5 % in ≤ 30 s, 1,000 × 30,000 in ≤ 60 s."""
    for workloads, points in ((50, 500), (100, 1000), (300, 3000), (1000, 10000), (1000, 30000)):
        options = Options(gap=1e-4, time_limit=20.0 if points <= 10000 else 40.0)
        report(f"scaling {workloads} x {points}", scaling(workloads, points), options)


def run_artefact():
    """Mélange's slices against any split, on its own example and on coarse grids."""
    example = load(Path(__file__).parents[1] / "instances/fleet/melange-example.yaml")
    cases = {"Mélange's example": example}
    for rows, columns, types, rate in ((2, 2, 4, 30.0), (2, 3, 4, 100.0)):
        cases[f"grid {rows}x{columns}x{types} {rate:g}/s"] = grid_problem(rows, columns, types, rate, 0)
    for name, problem in cases.items():
        tables = build_tables(problem)
        whole = exact(problem, tables, Options()).plan.total_usd_per_hour
        line = []
        for slices in (1, 2, 3, 4, 6, 8):
            solved = solve_compiled(MelangeModel(tables, slices).compiled(), Settings(30.0, 1e-6))
            line.append(f"{slices}: {solved.objective:.2f}" + ("" if solved.status == "optimal" else "*"))
        print(f"{name}: any split {whole:.2f}; slices " + "  ".join(line))


def run_confirm(requests=1_000_000):
    """Must hold: every promise, to within 3 standard errors, with each deployment filled to its load level."""
    problem = load(Path(__file__).parents[1] / "instances/fleet/spot-heavy.yaml")
    plan = exact(problem, build_tables(problem), Options()).plan.model_dump(mode="json")
    found = list(confirm(problem, plan, requests, full=True))
    for c in found:
        promise = "mean" if c.percentile is None else f"{c.percentile:.0%}"
        print(
            f"{c.deployment.partition(':')[0]:24s} {c.demand:16s} {promise} {c.limit} ≤ {c.seconds:g} s at load "
            f"{c.utilisation:.2f}: within {c.within:.2%} ± {c.error:.2%}, mean {c.mean_s:.2f} s, "
            f"waiting planned {c.planned_wait_s:.3f} s, simulated {c.wait_s:.3f} s: {'holds' if c.holds() else 'FAILS'}"
        )
    print(f"promises that hold: {sum(c.holds() for c in found)} of {len(found)}")


def run_cbc(seconds=100):
    """Mélange's own model by CBC."""
    import pulp

    problem = grid_problem(10, 10, 8, 60.0, 0)
    tables = build_tables(problem)
    rates, slices = tables.rates[0], 4
    model = pulp.LpProblem("melange", pulp.LpMinimize)
    W, P = tables.load.shape
    rows = [(w, s) for w in range(W) for s in range(slices)]
    x = {
        (w, s, p): pulp.LpVariable(f"x_{w}_{s}_{p}", cat="Integer", lowBound=0, upBound=1)
        for w, s in rows
        for p in range(P)
        if np.isfinite(tables.load[w, p])
    }
    n = [pulp.LpVariable(f"n_{p}", cat="Integer", lowBound=0) for p in range(P)]
    model += pulp.lpSum(float(c) * v for c, v in zip(tables.points.usd_per_hour, n, strict=True))
    for w, s in rows:
        model += pulp.lpSum(x[w, s, p] for p in range(P) if (w, s, p) in x) == 1
    for p in range(P):
        model += (
            pulp.lpSum(float(rates[w] * tables.load[w, p] / slices) * x[w, s, p] for w, s in rows if (w, s, p) in x)
            <= n[p]
        )
    clock = time.perf_counter()
    model.solve(pulp.PULP_CBC_CMD(msg=0, timeLimit=seconds))
    print(
        f"CBC on Mélange's model, 10x10x8, slice factor {slices}: {pulp.LpStatus[model.status]} "
        f"(sol_status {model.sol_status}) objective {pulp.value(model.objective)}"
        f" after {time.perf_counter() - clock:.0f} s"
    )
    report("exact on the same buckets", problem, Options(gap=1e-4))


def _cost(instance, method="exact"):
    """USD/h of the best fleet, in words."""
    found = optmodels.solve(instance, method, time_limit=120.0)
    if found.objective is None:
        return {"infeasible": "impossible"}.get(found.status, "no plan")
    open_part = "" if method != "exact" or found.status == "optimal" else f" ({100 * found.gap:.2g} % open)"
    return f"{found.objective:.2f}{open_part}"


def run_apart():
    """The table of README.md: USD/h of the best fleet."""
    shipped = yaml.safe_load((Path(__file__).parents[1] / "instances/fleet/aws-stages.yaml").read_text())
    for method in ("exact", "xpyd", "distserve"):
        print(f"{method}: {_cost(shipped, method)}")

    def case(ttft_s=1.5, tpot_s=0.08, gbit_per_s=None, times=1.0):
        made = copy.deepcopy(shipped)
        chat, summaries = made["workloads"]
        chat["slo"]["ttft_s"]["at_most"], chat["slo"]["tpot_s"]["at_most"] = ttft_s, tpot_s
        chat["requests_per_s"] *= times
        summaries["buckets"][0]["requests_per_s"] *= times
        if gbit_per_s is not None:
            made["deployment"]["link"] = {"net_gbps": gbit_per_s}
        return made

    cases = {
        "as it is": case(), "TTFT 1 s": case(1.0), "TTFT 3 s": case(3.0), "TPOT 100 ms": case(tpot_s=0.1),
        "TPOT 100 ms, TTFT 1 s": case(1.0, 0.1), "TPOT 100 ms, TTFT 3 s": case(3.0, 0.1),
        "TPOT 100 ms, 100 Gbit/s": case(tpot_s=0.1, gbit_per_s=100), "TPOT 100 ms, 50 Gbit/s": case(1.5, 0.1, 50),
        "TPOT 100 ms, four times the requests": case(tpot_s=0.1, times=4.0), "TPOT 150 ms": case(tpot_s=0.15),
    }  # fmt: skip
    for name, made in cases.items():
        print(f"| {name} | {_cost(made | {'deployment': {'stages': ['both']}})} | {_cost(made)} |", flush=True)


def ranks_instance(model, weights, machine, lengths, ranks=(1,), slots=256, stages=("both",)):
    """20 requests/s of one length on machines of AWS, TTFT ≤ 10 s and TPOT ≤ 100 ms at p95."""
    slo = {"ttft_s": {"at_most": 10.0, "percentile": 0.95}, "tpot_s": {"at_most": 0.1, "percentile": 0.95}}
    bucket = {"input_tokens": lengths[0], "output_tokens": lengths[1], "requests_per_s": 20.0}
    return {
        "formulation": "fleet", "schema": 1, "name": "ranks", "serving": "continuous",
        "workloads": [{
            "name": "w", "model": model, "precision": {"weights": weights}, "buckets": [bucket], "slo": slo,
        }],
        "pool": {"catalog": "aws", "include": [machine]}, "markets": {"main": ["on_demand"]},
        "strategies": {"attention_ranks": list(ranks)}, "deployment": {"stages": list(stages)},
        "engine": {"max_num_seqs": slots, "max_num_batched_tokens": slots + 7936},
    }  # fmt: skip


def _split(instance):
    """USD/h of the best fleet and its engines, in words."""
    found = optmodels.solve(instance, time_limit=120.0)
    if found.plan is None:
        return found.status
    assert found.check.ok
    engines = {}
    for d in found.plan["periods"][0]["deployments"]:
        stage = "" if d["stage"] == "both" else f", {d['stage']}"
        name = f"TP{d['tensor_parallel']} × DP{d.get('attention_ranks', 1)}{stage}"
        engines[name] = engines.get(name, 0) + d["count"] * d["replicas_per_machine"]
    open_part = "" if found.status == "optimal" else f" ({100 * found.gap:.2g} % open)"
    return f"{found.objective:.2f}{open_part}: " + "; ".join(f"{n} {name}" for name, n in engines.items())


def run_ranks():
    """The table of README.md: USD/h of the best fleet and its engines."""
    r1, qwen = ("deepseek-r1", "fp8_block", "p5en.48xlarge"), ("qwen3-235b-a22b", "fp8", "p5.48xlarge")
    kimi, every, apart = ("kimi-k2", "fp8_block", "p5en.48xlarge"), (1, 2, 4, 8), ("both", "prefill", "decode")
    for served in (
        (*r1, (1000, 1000)), (*r1, (2000, 8000)), (*r1, (8000, 1000)), (*r1, (32000, 1000)), (*r1, (32000, 4000)),
        (*kimi, (1000, 1000)), (*qwen, (1000, 1000)), (*qwen, (8000, 1000)), (*qwen, (32000, 1000)),
    ):  # fmt: skip
        line = [
            _split(ranks_instance(*served)), _split(ranks_instance(*served, slots=2048)),
            _split(ranks_instance(*served, every)), _split(ranks_instance(*served, every, stages=apart)),
        ]  # fmt: skip
        print(f"| {served[0]}, {served[3][0]:,} + {served[3][1]:,} | {' | '.join(line)} |", flush=True)


def run_drafts():
    """The table of docs/drafts-and-prefixes.md: USD/h of the best fleet."""
    page = (Path(__file__).parents[1] / "docs/drafts-and-prefixes.md").read_text(encoding="utf-8")
    shown = yaml.safe_load(re.search(r'title="drafts.yaml"\n(.*?)```', page, re.DOTALL)[1])
    ways = ([], shown["engine"]["speculation"], [{"drafts": 3, "acceptance": 0.7, "head": 0.03}])
    for tpot_ms, rate in (
        (10, 8),
        (15, 8),
        (20, 8),
        (30, 8),
        (50, 8),
        (15, 40),
        (20, 40),
        (30, 40),
        (50, 40),
        (80, 40),
    ):
        line = []
        for speculation in ways:
            made = copy.deepcopy(shown)
            made["workloads"][0]["slo"]["tpot_s"] = tpot_ms / 1e3
            made["workloads"][0]["buckets"][0]["requests_per_s"] = rate
            made["engine"]["speculation"] = speculation
            line.append(_cost(made))
        print(f"| {tpot_ms} ms, {rate} | {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["grid", "scaling", "artefact"]
    for part in chosen:
        globals()[f"run_{part}"]()
