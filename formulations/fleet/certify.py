"""Plans whose promised latencies hold in simulation: solve, simulate what was chosen, cut what fails, solve again.

Every line of a plan is one engine at a level with its share of the buckets. It is simulated with Poisson streams of the
buckets' mean lengths (`optmodels.simulation.promises`); its promises are the limits of the SLO. Where one breaks, the
point of the line, in whatever market, is planned less full from then on, and where that was not enough the bucket is
kept off it.

The model's own latencies are bounds, and often far from what requests see. So the rounds are gone through twice: with
the limits as they are, and with limits `stretch` times as long, where only the simulation keeps plans to the true ones.
Tables of a round are the first ones less the cuts, and those with stretched limits have all points of the others: the
bound of the first solve with stretched limits holds for every plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import get_args

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
from formulations.fleet.points import FleetTables, build_case, by_model, cut
from formulations.fleet.problem import Fleet, FleetCase
from optmodels.formulation import Method, Options
from optmodels.plan.outcome import Outcome
from optmodels.serving.continuous import LatencyLimit, Percentile, seconds_and_quantile
from optmodels.simulation.continuous import Engine
from optmodels.simulation.promises import LOOKS, Metric, Promise, Stream, Verdict, judge

LEAST_KEPT, MOST_KEPT = 0.85, 0.98  # of its load that one cut leaves a point
GIVEN_UP = 0.8  # of its load: a point that breaks a promise with so little left does not serve the bucket
METRICS: tuple[Metric, ...] = get_args(Metric)
TIME_OVER, ROUNDS_OVER, NONE_LEFT = "stopped at the time limit", "after as many rounds as allowed", "no plan is left"
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
                outcome.plan.certification = _line(problem, "incomplete", None, [])
            return outcome
        return _rounds(method, problem, tables, options)

    return run


def _line(
    problem: Fleet, status: str, best: _Round | None, rounds: list[RoundLine]
) -> CertificationLine:  # fmt: skip
    rules = problem.certification
    return CertificationLine.model_validate({
        "status": status, "confidence": rules.confidence, "seed": rules.seed, "rounds": rounds,
        "of_round": 0 if best is None else best.number, "cuts": [] if best is None else best.cuts,
        "promises": [] if best is None else [x.document() for x in best.judged],
    })  # fmt: skip


@dataclass(frozen=True)
class _Round:
    """A plan that was simulated."""

    outcome: Outcome[FleetPlan]
    number: int
    stretch: float
    cuts: list[CutLine]
    judged: list[_Judged]

    @property
    def unkept(self) -> list[_Judged]:
        return [x for x in self.judged if x.verdict.found != "kept"]


def _rounds(method: Method, problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Solve, simulate, cut until all promises hold, first with the limits as they are, then with stretched ones.

    The plan is the best certified one, or that with the fewest promises not found kept.
    """
    began, rules = time.perf_counter(), problem.certification
    rounds: list[RoundLine] = []
    found: list[_Round] = []
    firsts: dict[float, Outcome[FleetPlan]] = {}
    known: dict[object, list[Verdict]] = {}
    unsimulated: Outcome[FleetPlan] | None = None
    stops: list[str] = []
    seconds: dict[str, float] = {}

    def left() -> float:
        return math.inf if options.time_limit is None else options.time_limit - (time.perf_counter() - began)

    for stretch in dict.fromkeys((1.0, rules.stretch)):
        if stops and left() <= 0:
            break
        clock = time.perf_counter()
        table, cuts = tables if stretch == 1 else _stretched(problem, tables, stretch), dict[_Key, CutLine]()
        seconds["build"] = seconds.get("build", 0.0) + time.perf_counter() - clock
        stop = ROUNDS_OVER
        for _ in range(rules.rounds):
            if found and left() <= 0:
                stop = TIME_OVER
                break
            limit = None if options.time_limit is None else max(left() / 2, LEAST_S)  # the rest is for simulations
            taken = [x.model_copy(deep=True) for x in cuts.values()]
            outcome = method(problem, cut(table, taken), replace(options, time_limit=limit))
            seconds = {k: seconds.get(k, 0.0) + outcome.seconds.get(k, 0.0) for k in {**seconds, **outcome.seconds}}
            firsts.setdefault(stretch, outcome)
            if outcome.plan is None:
                stop = NONE_LEFT if outcome.status == "infeasible" else "no plan was found"
                break
            clock = time.perf_counter()
            judged, complete = _judge(problem, tables.case, outcome.plan, len(rounds) + 1, known, lambda: left() <= 0)
            seconds["certify"] = seconds.get("certify", 0.0) + time.perf_counter() - clock
            if not complete:
                unsimulated, stop = (unsimulated or outcome) if stretch == 1 else unsimulated, TIME_OVER
                break
            rounds.append(_round(outcome.plan, judged, stretch))
            found.append(_Round(outcome, len(rounds), stretch, taken, judged))
            if not found[-1].unkept:
                stop = ""
                break
            _cut(tables.case, cuts, found[-1].unkept)
        stops.append(stop)
    return _answer(problem, firsts, found, rounds, unsimulated, stops, seconds)


def _answer(
    problem: Fleet, firsts: dict[float, Outcome[FleetPlan]], found: list[_Round], rounds: list[RoundLine],
    unsimulated: Outcome[FleetPlan] | None, stops: list[str], seconds: dict[str, float],
) -> Outcome[FleetPlan]:  # fmt: skip
    """The outcome of all rounds; bound, size and events are those of the loosest model's first solve."""
    worse = 1.0 if problem.objective == "min_cost" else -1.0

    def rank(x: _Round) -> tuple[int, float, int]:
        assert x.outcome.plan is not None
        value = float(f"{worse * objective_value(x.outcome.plan):.9g}")  # of equals the first
        return len(x.unkept), value, x.number

    stretch, first = list(firsts.items())[-1]
    # Longer limits than the true ones are for plans that simulation vouches for.
    best = min((x for x in found if x.stretch == 1 or not x.unkept), key=rank, default=None)
    outcome = unsimulated if best is None else best.outcome
    limit = "time" if TIME_OVER in stops else first.limit
    if outcome is None or outcome.plan is None:
        if first.plan is None:
            return replace(first, limit=first.limit or limit, seconds=seconds)
        words = "the model finds no plan with the limits as they are, and simulation finds none with longer ones kept"
        broken = dict.fromkeys(f"{x.demand} {x.verdict.promise.metric}" for x in found[-1].unkept) if found else ()
        words += f"; not kept in the last round: {', '.join(broken)}" if broken else ""
        return Outcome(
            "no_solution_found", None, first.bound, limit, seconds, first.size, first.log | {"reason": words}
        )
    certified = best is not None and not best.unkept
    status = "certified" if certified else "not kept" if set(stops) == {NONE_LEFT} else "incomplete"
    outcome.plan.certification = _line(problem, status, best, rounds)
    of = "" if stretch == 1 else f"; bound of the linear model with limits {stretch:g} times as long"
    if certified:
        assert best is not None
        words = f"certified in round {best.number} of {len(rounds)}: all {rounds[best.number - 1].promises} promises"
        words += f" hold in simulation, with {problem.certification.confidence:.4g} confidence together{of}"
    else:
        words = f"NOT certified, {'; '.join(x for x in dict.fromkeys(stops) if x)}{of}"
    # What is proved, is of a model without cuts: a plan as good as the bound is optimal whatever it was made under.
    log = outcome.log | {"certification": words, "reason": words}
    return replace(
        outcome, status="feasible", bound=first.bound, limit=limit, seconds=seconds, size=first.size, log=log,
        events=first.events,
    )  # fmt: skip


def _stretched(problem: Fleet, tables: FleetTables, stretch: float) -> FleetTables:
    """Tables in which buckets keep limits so many times as long, of the same case otherwise."""

    def longer(limit: LatencyLimit | None) -> LatencyLimit | None:
        if limit is None:
            return None
        if isinstance(limit, Percentile):
            return limit.model_copy(update={"at_most": limit.at_most * stretch})
        return limit * stretch

    workloads = tuple(
        w.model_copy(update={"slo": w.slo.model_copy(update={m: longer(getattr(w.slo, m)) for m in METRICS})})
        for w in tables.case.workloads
    )
    return replace(build_case(replace(tables.case, workloads=workloads)), case=tables.case)


def promises_of(case: FleetCase, d: DeploymentLine) -> Iterator[tuple[int, Promise]]:
    """What a line promises: its limits, soft ones where they are missed; by row of its shares."""
    for k, s in enumerate(d.serves):
        w = case.workload(s.demand.split("/")[0])
        up_to = w.soft.up_to if w.soft is not None and s.misses_slo else 1.0
        for metric in METRICS:
            limit: LatencyLimit | None = getattr(w.slo, metric)
            output = next(x.output_tokens for x in case.demands if x.name == s.demand)
            if limit is None or s.requests_per_s <= 0 or (metric == "tbt_s" and output == 1):
                continue
            seconds, q = seconds_and_quantile(limit)
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
    error = (1 - rules.confidence) / (max(total, 1) * LOOKS * 2 * rules.rounds)
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
        hit = min(int(case.hit_share(demand.workload, e.kv_tokens) * prompt), prompt - 1)
        each = s.load / s.requests_per_s * (d.replicas_per_machine or 1) * d.load_level if s.requests_per_s > 0 else 0.0
        streams.append(Stream(
            s.requests_per_s / engines, prompt, demand.output_tokens or 1, hit, each,
            max(s.e2e_s or 0.0, s.ttft_s or 0.0, e.step_s),
        ))  # fmt: skip
    return Engine(
        costs, int(e.kv_tokens), e.max_num_seqs, e.max_num_batched_tokens, e.chunk_tokens
    ), streams, slower  # fmt: skip


def _round(plan: FleetPlan, judged: list[_Judged], stretch: float) -> RoundLine:
    worst = max(judged, key=lambda x: x.verdict.excess, default=None)
    found = [x.verdict.found for x in judged]
    return RoundLine(
        stretch=stretch, objective=objective_value(plan), promises=len(judged), broken=found.count("broken"),
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
