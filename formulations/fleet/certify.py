"""Plans whose promised latencies hold in simulation: solve, simulate what was chosen, cut what fails, solve again.

Every line of a plan is one engine at a level with its share of the buckets. It is simulated with Poisson streams of the
buckets' mean lengths (`optmodels.simulation.promises`); its promises are the limits of the SLO. Where one breaks, the
point of the line, in whatever market, is planned less full from then on, and where that was not enough the bucket is
kept off it. Every round's tables are the first ones less these cuts: the bound of the first solve holds for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps

from formulations.fleet.engines import engine_of
from formulations.fleet.plan import (
    CertificationLine,
    CutLine,
    DeploymentLine,
    FleetPlan,
    PromiseLine,
    RoundLine,
    objective_value,
)
from formulations.fleet.points import FleetTables, by_model, cut
from formulations.fleet.problem import Fleet, FleetCase, LatencyLimit, Percentile
from optmodels.formulation import Method, Options
from optmodels.plan.outcome import Outcome
from optmodels.simulation.continuous import Engine
from optmodels.simulation.promises import LOOKS, Promise, Stream, Verdict, judge

LEAST_KEPT, MOST_KEPT = 0.85, 0.98  # of its load that one cut leaves a point
GIVEN_UP = 0.8  # of its load: a point that breaks a promise with so little left does not serve the bucket
LEAST_S = 0.05  # for a solve
FAR = 1.25  # times the limit: then at once
_Key = tuple[str, str, float, int, float, float, float | None]


@dataclass(frozen=True)
class _Judged:
    """A promise of a plan with what the simulation found."""

    period: str
    line: DeploymentLine
    demand: str
    verdict: Verdict

    def document(self) -> PromiseLine:
        p = self.verdict.promise
        assert self.verdict.found != "kept"
        return PromiseLine(
            period=self.period, deployment=self.line.name, demand=self.demand, latency=p.metric, percentile=p.quantile,
            at_most_s=p.at_most_s, seen_s=self.verdict.seen_s, found=self.verdict.found,
        )  # fmt: skip


def certified(method: Method) -> Method:
    """The method, whose plans are certified where the instance asks for it and more than the bare answer is wanted."""

    @wraps(method)
    def run(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
        if problem.certify == "none":
            return method(problem, tables, options)
        if options.answer_only:
            outcome = method(problem, tables, options)
            if outcome.plan is not None:
                outcome.plan.certification = _line(problem, "incomplete", 0, [], [], [])
            return outcome
        return _rounds(method, problem, tables, options)

    return run


def _line(
    problem: Fleet, status: str, of_round: int, rounds: list[RoundLine], cuts: list[CutLine], unkept: list[_Judged]
) -> CertificationLine:  # fmt: skip
    rules = problem.certification
    return CertificationLine(
        status=status, confidence=rules.confidence, seed=rules.seed, of_round=of_round, rounds=rounds, cuts=cuts,
        unkept=[x.document() for x in unkept],
    )  # fmt: skip


def _rounds(method: Method, problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Solve, simulate, cut until all promises hold or something stops the rounds.

    The plan is that of the round with the fewest promises not found kept, of equals the last.
    """
    began, simulated = time.perf_counter(), 0.0
    case, rules = tables.case, problem.certification
    cuts: dict[_Key, CutLine] = {}
    known: dict[object, list[Verdict]] = {}
    rounds: list[RoundLine] = []
    first: Outcome[FleetPlan] | None = None
    best: tuple[Outcome[FleetPlan], int, list[CutLine], list[_Judged]] | None = None
    status, why, seconds = "incomplete", f"stopped after {rules.rounds} rounds", dict[str, float]()

    def left() -> float:
        return math.inf if options.time_limit is None else options.time_limit - (time.perf_counter() - began)

    for number in range(1, rules.rounds + 1):
        if number > 1 and left() <= 0:
            why = "stopped at the time limit"
            break
        limit = None if options.time_limit is None else max(left() / 2, LEAST_S)  # the rest is for simulations
        outcome = method(problem, cut(tables, list(cuts.values())), replace(options, time_limit=limit))
        seconds = {k: seconds.get(k, 0.0) + outcome.seconds.get(k, 0.0) for k in {**seconds, **outcome.seconds}}
        first = first or outcome
        if outcome.plan is None:
            if number == 1:
                return outcome
            none = outcome.status == "infeasible"
            status = "not kept" if none else "incomplete"
            why = "no plan is left after the cuts" if none else "no further plan was found"
            break
        clock = time.perf_counter()
        judged, complete = _judge(problem, case, outcome.plan, number, known, lambda: left() <= 0)
        simulated += time.perf_counter() - clock
        if not complete:
            best = best or (outcome, 0, [], [])
            why = "stopped at the time limit"
            break
        bad = [x for x in judged if x.verdict.found != "kept"]
        rounds.append(_round(outcome.plan, judged))
        if best is None or len(bad) <= len(best[3]):
            best = outcome, number, [x.model_copy(deep=True) for x in cuts.values()], bad
        if not bad:
            status = "certified"
            break
        _cut(case, cuts, bad)
    assert first is not None
    assert best is not None
    outcome, of_round, taken, bad = best
    plan = outcome.plan
    assert plan is not None
    plan.certification = _line(problem, status, of_round, rounds, taken, bad)
    words = (
        f"certified in round {of_round}: {rounds[-1].promises} promises hold in simulation,"
        f" with {rules.confidence:.4g} confidence together"
        if status == "certified" else f"NOT certified, {why}"
    )  # fmt: skip
    log = outcome.log | {"certification": words} | ({"reason": words} if of_round != 1 or status != "certified" else {})
    solved = of_round == 1 or first is outcome
    return replace(
        outcome, status=outcome.status if solved else "feasible", bound=first.bound,
        limit="time" if why == "stopped at the time limit" and status == "incomplete" else outcome.limit if solved
        else first.limit, seconds=seconds | {"certify": simulated}, size=first.size, log=log, events=first.events,
    )  # fmt: skip


def promises_of(case: FleetCase, d: DeploymentLine) -> Iterator[tuple[int, Promise]]:
    """What a line promises: its limits, soft ones where they are missed; by row of its shares."""
    for k, s in enumerate(d.serves):
        w = case.workload(s.demand.split("/")[0])
        up_to = w.soft.up_to if w.soft is not None and s.misses_slo else 1.0
        for metric in ("ttft_s", "tbt_s", "deadline_s"):
            limit: LatencyLimit | None = getattr(w.slo, metric)
            output = next(x.output_tokens for x in case.demands if x.name == s.demand)
            if limit is None or s.requests_per_s <= 0 or (metric == "tbt_s" and output == 1):
                continue
            seconds, q = (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)
            yield k, Promise(k, metric, seconds * up_to, q)


def _judge(
    problem: Fleet,
    case: FleetCase,
    plan: FleetPlan,
    number: int,
    known: dict[object, list[Verdict]],
    over: Callable[[], bool],
) -> tuple[list[_Judged], bool]:
    """Every promise of a plan; False where time ran out before all were simulated."""
    rules = problem.certification
    lines = [(q, d, list(promises_of(case, d))) for q in plan.periods for d in q.deployments]
    total = sum(len(promises) for _, _, promises in lines)
    error = (1 - rules.confidence) / (max(total, 1) * LOOKS * rules.rounds)
    judged: list[_Judged] = []
    for index, (q, d, promises) in enumerate(lines):
        if not promises:
            continue
        if over():
            return judged, False
        engine, streams, slower = simulated(case, d)
        what = engine, tuple(streams), tuple(p for _, p in promises)
        if what not in known:
            seed = [rules.seed, number, index]
            known[what] = judge(engine, streams, [p for _, p in promises], error, seed, slower, over)
        judged += [_Judged(q.name, d, d.serves[k].demand, v) for (k, _), v in zip(promises, known[what], strict=True)]
    return judged, True


def simulated(case: FleetCase, d: DeploymentLine) -> tuple[Engine, list[Stream], float]:
    """One engine of a line, what arrives there, and what its TTFT is multiplied by."""
    e = d.engine
    assert e is not None
    costs, slower = engine_of(case, d)
    engines = d.count * (d.replicas_per_machine or 1)
    demands = {x.name: x for x in case.demands}
    streams = []
    for s in d.serves:
        demand = demands[s.demand]
        prompt = demand.input_tokens or 1
        hit = min(int(case.workload(demand.workload).prefix_hit_share * prompt), prompt - 1)
        each = s.load / s.requests_per_s * (d.replicas_per_machine or 1) * d.load_level if s.requests_per_s > 0 else 0.0
        streams.append(Stream(
            s.requests_per_s / engines, prompt, demand.output_tokens or 1, hit, each,
            max(s.e2e_s or 0.0, s.ttft_s or 0.0, e.step_s),
        ))  # fmt: skip
    return Engine(
        costs, int(e.kv_tokens), e.max_num_seqs, e.max_num_batched_tokens, e.chunk_tokens
    ), streams, slower  # fmt: skip


def _round(plan: FleetPlan, judged: list[_Judged]) -> RoundLine:
    worst = max(judged, key=lambda x: x.verdict.excess, default=None)
    found = [x.verdict.found for x in judged]
    return RoundLine(
        objective=objective_value(plan), promises=len(judged), broken=found.count("broken"),
        undecided=found.count("undecided"), worst=0.0 if worst is None else worst.verdict.excess,
        worst_of="" if worst is None else f"{worst.demand}: {worst.verdict.promise.metric}",
        requests=sum(x.verdict.requests for x in judged),
    )  # fmt: skip


def point_of(case: FleetCase, d: DeploymentLine) -> _Key:
    """What a cut names a line's point by."""
    e, main = d.engine, d.machines[0]
    assert e is not None
    machine = next(m for m in case.machines if (m.machine, m.region) == (main.machine, main.region))
    loads = next(names[0] for names in by_model(case).values() if d.loads in names)  # one name, whichever serves
    return (
        loads, machine.gpu or "", machine.vram_gib / machine.gpu_count, d.tensor_parallel or 1, e.step_s,
        e.wait_s, e.most_of_wait,
    )  # fmt: skip


def _cut(case: FleetCase, cuts: dict[_Key, CutLine], bad: list[_Judged]) -> None:
    """Derate the points of broken promises, and forbid the pairs for which that was not enough."""
    worst: dict[_Key, float] = {}
    for x in bad:
        key = point_of(case, x.line)
        worst[key] = max(worst.get(key, 1.0), x.verdict.excess if x.verdict.found == "broken" else 1.0)
    for key, excess in worst.items():
        old = cuts.get(key)
        kept = 1.0 if old is None else old.keep
        less = min(MOST_KEPT, max(LEAST_KEPT, 1.0 - (excess - 1.0) / 2))
        forbidden = set() if old is None else set(old.forbidden)
        forbidden |= {
            x.demand for x in bad
            if point_of(case, x.line) == key and (kept <= GIVEN_UP or x.verdict.excess > FAR)
        }  # fmt: skip
        names = ("loads", "gpu", "gpu_gib", "tensor_parallel", "step_s", "wait_s", "most_of_wait")
        cuts[key] = CutLine(
            **dict(zip(names, key, strict=True)), keep=round(kept * less, 4), forbidden=sorted(forbidden)
        )  # fmt: skip
