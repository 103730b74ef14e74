"""Independent check of prefill and decode apart: engines of either stage, and the closed loop through them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from formulations.cost_efficiency.plan import CostPlan, DecodeLine
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.catalog.types import Machine
from optmodels.errors import InputError
from optmodels.latency.memory import kv_bytes
from optmodels.latency.work import layer_work
from optmodels.plan.engines import Request, at_level, capacities, check_stated, latencies
from optmodels.plan.findings import Findings
from optmodels.plan.lines import EngineLine
from optmodels.serving.continuous import Stage, seconds_and_quantile
from optmodels.serving.engine import drafts_of, engine_costs
from optmodels.serving.static import Case


@dataclass(frozen=True)
class Side:
    """One stage's machines: what a request/s takes of each of their capacities together, its steps, what it sees."""

    line: EngineLine
    takes: dict[str, float]
    alone_s: float
    work_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    deadline_s: float


def check_stages(
    found: Findings, problem: CostEfficiency, case: Case, p: CostPlan, main: Machine, decode: Machine
) -> tuple[float, float, float, float, int] | None:  # fmt: skip
    """TTFT, TPOT and E2E of a request that one machine prefills and another decodes, and how many the plan holds.

    E2E in the mean, then at the quantile of the deadline, both stages at it. None where that is not known.
    """
    d, w, link = p.decode, problem.alike, problem.deployment.link
    assert d is not None
    found.require("continuous batching keeps the KV cache on the GPUs", p.family == "high_end", p.family, "high_end")
    ranks, allowed_ranks = d.attention_ranks or 1, problem.strategies.attention_ranks
    allowed_ranks = allowed_ranks if case.architecture.routed else (1,)
    found.require("attention ranks of what decodes are allowed", ranks in allowed_ranks, ranks, allowed_ranks)
    gpus = d.tensor_parallel * ranks * d.replicas_per_machine
    found.require("TP × attention ranks × replicas = GPUs of what decodes", gpus == decode.gpu_count, gpus,
                  decode.gpu_count)  # fmt: skip
    allowed, heads = problem.strategies.tensor_parallel, case.architecture.heads
    fits = d.tensor_parallel in allowed and heads % d.tensor_parallel == 0
    found.require("TP of what decodes is allowed and divides the heads", fits, d.tensor_parallel, allowed)
    same = link.tensor_parallel == "any" or d.tensor_parallel == p.tensor_parallel
    found.require("TP of both stages, as the link asks", same, d.tensor_parallel, p.tensor_parallel)
    found.require("both stages in one region", decode.region == main.region, decode.region, main.region)
    clouds = {decode.provider, main.provider} - {""}
    found.require("both stages in one cloud", len(clouds) <= 1, decode.provider, main.provider)
    count = {line.role: line.count for line in p.machines}
    counts = problem.strategies.allowed("high_end")
    found.require("the number of machines that decode is allowed", count["decode"] in counts, count["decode"], counts)
    work = layer_work(case.architecture, problem.precision.weights, problem.precision.kv)
    sent = float(kv_bytes(work, 1, 1.0, float(w.input_tokens)))
    drafts = drafts_of(problem.engine, case.architecture, problem.precision.weights, problem.precision.kv)
    if drafts is not None:  # of which the cache goes with the model's
        of_model = 0.0 if drafts.work is None else float(kv_bytes(drafts.work, 1, 1.0, float(w.input_tokens)))
        sent = sent + drafts.head * sent + of_model
    first = _side(found, problem, case, "prefill", main, p, count["main"], sent)
    second = _side(found, problem, case, "decode", decode, d, count["decode"], sent)
    if first is None or second is None:
        return None
    least = link.latency_s + sum(sent / (_net(problem, m)) for m in (main, decode))

    def held(rate: float) -> float:
        """Requests of a closed loop of so many a second, at least: steps as (S1) has them, and transfers alone."""
        return rate * (least + sum(x.alone_s / (1 - rate * x.work_s) for x in (first, second)))

    most = 1 / max(*first.takes.values(), *second.takes.values())
    low, high = 0.0, most
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < w.batch else (low, middle)
    rate = high
    found.equal("requests/s of the loop", d.requests_per_s, rate, "1/s")
    found.equal("KV caches between the stages", d.gb_per_s, rate * sent / 1e9, "GB/s")
    for stage, side in (("prefill", first), ("decode", second)):
        stated = side.line.capacities
        found.require(
            f"{stage}: capacities by name", set(stated) == set(side.takes), sorted(stated), sorted(side.takes)
        )
        for name, value in side.takes.items():
            found.close(f"{stage}: {name} in use", stated.get(name, math.nan), value * rate, scale=1.0)
            found.at_most(f"{stage}: {name} ≤ what there is", value * rate, 1.0)
    whole = first.deadline_s + second.deadline_s
    return first.ttft_s, second.tpot_s, first.e2e_s + second.e2e_s, whole, math.floor(held(most) * (1 + 1e-9))


def _net(problem: CostEfficiency, machine: Machine) -> float:
    """Bytes/s through a machine's network."""
    return (problem.deployment.link.net_gbps or machine.net_gbps or 0.0) * 1e9 / 8


def _side(
    found: Findings, problem: CostEfficiency, case: Case, stage: Stage, machine: Machine, line: CostPlan | DecodeLine,
    count: int, sent: float,
) -> Side | None:  # fmt: skip
    """Every figure of the engines of one stage but what is in use."""
    e, replicas, ranks = line.engine, line.replicas_per_machine, line.attention_ranks or 1
    gpu, net, limits, link = machine.gpu or "", _net(problem, machine), problem.engine, problem.deployment.link
    if e is None or gpu not in case.gpus or net <= 0:
        found.add(f"{stage}: engines, and a network between them", "none", "an engine on a machine of known network")
        return None
    try:
        engine = engine_costs(
            problem.engines(case), limits, case.gpus[gpu], gpu, line.tensor_parallel,
            machine.vram_gib / machine.gpu_count, ranks,
        )  # fmt: skip
    except InputError as error:
        found.add(f"{stage}: engines", str(error), "steps of known latency")
        return None
    limits = limits.choosing(e.max_num_seqs)
    check_stated(found, stage, e, engine, limits)
    w = problem.alike
    asked = Request(float(w.input_tokens), 0.0 if stage == "decode" else float(w.input_tokens),
                    1.0 if stage == "prefill" else float(w.output_tokens), 1.0)  # fmt: skip
    waits = e.wait_s == 0 and e.most_of_wait is None if stage == "decode" else e.wait_s > 0
    level = None
    if engine.kv_tokens > 0 and waits and (stage == "prefill" or w.output_tokens > 1):
        level = at_level(limits, engine.costs, engine.kv_tokens, {"": asked}, e.step_s, stage, ranks)
    if level is None:
        found.add(f"{stage}: step and wait of a level", e.step_s, "a step above its fixed part", "s")
        return None
    moved = sent / (net * (1 - link.most_used)) + (link.latency_s if stage == "prefill" else 0.0)
    each = capacities(level, e.step_s, e.wait_s, e.most_of_wait, e.max_num_seqs, {"": moved})[""]
    takes = {k: v / (count * replicas) for k, v in each.items()} | {"transfer": sent / (link.most_used * net * count)}
    r = level.requests[""]
    at_ttft, at_tpot, at_e2e = (seconds_and_quantile(x)[1] for x in problem.slo.latencies)

    def seen(both: float | None) -> tuple[float, float, float]:
        """TTFT and E2E at the one quantile, TPOT at its own."""
        return latencies(level, r, e.step_s, e.wait_s, e.most_of_wait, e.max_num_seqs, engine.slower,
                         engine.costs.request_s, (both, at_tpot, both))  # fmt: skip

    (first, _, _), (mean, tpot, e2e), (late, _, whole) = seen(at_ttft), seen(None), seen(at_e2e)
    steps = r.steps * level.fixed, r.work / (count * replicas)
    if stage == "prefill":
        return Side(e, takes, *steps, first + moved, 0.0, e2e + moved, whole + moved)
    joins = e.step_s + moved + engine.costs.request_s
    return Side(e, takes, *steps, 0.0, tpot + joins / (r.output - 1), e2e - mean + joins, whole - late + joins)
