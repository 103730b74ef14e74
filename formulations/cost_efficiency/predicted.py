"""What the users of a plan's closed loop see of its engines, beside what their levels bound.

A level bounds latencies of the fullest engine that keeps to it. At the users that a plan gives an engine they are those
of `optmodels.serving.loop`, in the mean, with users who begin one after another.
"""

from __future__ import annotations

from formulations.cost_efficiency.plan import CostPlan, DecodeLine
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.catalog.types import Machine
from optmodels.errors import InputError, Mistake
from optmodels.plan.lines import EngineLine
from optmodels.serving.continuous import EngineLimits
from optmodels.serving.engine import EngineCosts, engine_costs
from optmodels.serving.loop import StageOfLoop, first_at_once_s, loop, loop_apart
from optmodels.serving.static import Workload


def predicted(problem: CostEfficiency, p: CostPlan) -> dict[str, float] | None:
    """TTFT, time per output token and E2E of the fullest engine's requests, means in s; requests and tokens a second.

    Of prefill and decode apart also TTFT of the first requests where all users begin at once.

    None of a static batch, whose prediction is the plan's, and of requests of several lengths.
    """
    if p.engine is None or not isinstance(problem.workload, Workload):
        return None
    w, users = problem.workload, p.batch_split
    lengths, more = (float(w.input_tokens), float(w.output_tokens)), {}
    engine = engine_of(problem, machine_of(problem, p, "main"), p)
    if p.decode is None:
        one = engine.costs, engine.slower, _limits(p.engine), *lengths
        loops = {n: loop(*one, float(n), engine.ranks) for n in {*users}}
        seen, rate = loops[max(users)], sum(loops[n].requests_per_s for n in users)
    else:
        second = engine_of(problem, machine_of(problem, p, "decode"), p.decode)
        count = {m.role: m.count for m in p.machines}
        first = StageOfLoop(engine.costs, count["main"] * p.replicas_per_machine, _limits(p.engine), engine.ranks)
        moved = moved_s(problem, p)
        more["first_ttft_s"] = first_at_once_s(first, engine.slower, lengths[0], float(sum(users)), moved[0])
        seen = loop_apart(
            first,
            StageOfLoop(
                second.costs, count["decode"] * p.decode.replicas_per_machine, _limits(p.decode.engine), second.ranks
            ),
            engine.slower, *lengths, float(sum(users)), *moved,
        )  # fmt: skip
        rate = seen.requests_per_s
    return {
        "ttft_s": seen.ttft_s, "tbt_s": seen.tpot_s, "e2e_s": seen.e2e_s, "requests_per_s": rate,
        "tokens_per_s": rate * sum(lengths), **more,
    }  # fmt: skip


def machine_of(problem: CostEfficiency, p: CostPlan, role: str) -> Machine:
    """The pool's machine of a role.

    Raises:
        InputError: a machine that the pool does not have.
    """
    k, at = next((k, m) for k, m in enumerate(p.machines) if m.role == role)
    m = next((m for m in problem.resolve().machines if (m.machine, m.region) == (at.machine, at.region)), None)
    if m is None:
        expected = "a machine of the instance's pool"
        raise InputError(Mistake(None, f"plan.machines[{k}].machine", at.machine, expected))
    return m


def engine_of(problem: CostEfficiency, m: Machine, line: CostPlan | DecodeLine) -> EngineCosts:
    """Every replica that a line has on a machine."""
    case, gpu = problem.resolve(), m.gpu or ""
    return engine_costs(
        problem.engines(case), problem.engine, case.gpus[gpu], gpu, line.tensor_parallel, m.vram_gib / m.gpu_count,
        line.attention_ranks or 1,
    )  # fmt: skip


def moved_s(problem: CostEfficiency, p: CostPlan) -> tuple[float, float]:
    """Seconds that a cache is on its way: to the network of what decodes, and through it, at its planned use."""
    link, sent = problem.deployment.link, problem.transfer_bytes(problem.resolve())
    sends, receives = (
        sent / (problem.network(machine_of(problem, p, role)) * (1.0 - link.most_used)) for role in ("main", "decode")
    )
    return sends + link.latency_s, receives


def _limits(e: EngineLine) -> EngineLimits:
    return EngineLimits(
        max_num_seqs=e.max_num_seqs, max_num_batched_tokens=e.max_num_batched_tokens, chunk_tokens=e.chunk_tokens
    )
