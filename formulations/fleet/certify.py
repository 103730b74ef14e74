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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from formulations.fleet.points import FleetTables, build_case, cut
from formulations.fleet.problem import Fleet, FleetCase
from optmodels.plan.outcome import Outcome
from optmodels.serving.continuous import LatencyLimit, Percentile, seconds_and_quantile
from optmodels.simulation.certification import Kept, Round
from optmodels.simulation.continuous import Engine
from optmodels.simulation.promises import LOOKS, Metric, Promise, Stream, Verdict, judge

LEAST_KEPT, MOST_KEPT = 0.85, 0.98  # of its load that one cut leaves a point
GIVEN_UP = 0.8  # of its load: a point that breaks a promise with so little left does not serve the bucket
METRICS: tuple[Metric, ...] = get_args(Metric)
FAR = 1.25  # times the limit: then at once
_Key = tuple[str, str | None, str, float, int, float, float, float | None]


@dataclass(frozen=True)
class _Judged:
    """A promise of a plan with what the simulation found."""

    period: str
    line: DeploymentLine
    demand: str
    verdict: Verdict

    @property
    def kept(self) -> bool:
        """Beyond the interval."""
        return self.verdict.found == "kept"

    @property
    def name(self) -> str:
        """The demand and its latency."""
        return f"{self.demand} {self.verdict.promise.metric}"

    def document(self) -> PromiseLine:
        p = self.verdict.promise
        return PromiseLine(
            period=self.period, deployment=self.line.name, demand=self.demand, latency=p.metric, percentile=p.quantile,
            at_most_s=p.at_most_s, seen_s=self.verdict.seen_s, found=self.verdict.found,
        )  # fmt: skip


@dataclass
class FleetRounds:
    """The rounds of a fleet."""

    problem: Fleet
    first: FleetTables
    known: dict[object, list[Verdict]] = field(default_factory=dict)

    @property
    def passes(self) -> tuple[float, ...]:
        """Limits as they are, then so many times as long as the file has it."""
        return self.problem.certification.stretches

    @property
    def comparable(self) -> bool:
        """Longer limits change no plan's cost."""
        return True

    def looser(self, loose: float) -> str:
        """In words."""
        return f"limits {loose:g} times as long"

    @property
    def rounds(self) -> int:
        """Of a pass."""
        return self.problem.certification.rounds

    @property
    def held(self) -> str:
        """In words."""
        return f"hold in simulation, with {self.problem.certification.confidence:.4g} confidence together"

    def tables(self, loose: float) -> FleetTables:
        """Of the same case, with longer limits."""
        return self.first if loose == 1 else _stretched(self.problem, self.first, loose)

    def cut(self, tables: FleetTables, cuts: list[CutLine]) -> FleetTables:
        """Points less full, pairs taken out."""
        return cut(tables, cuts)

    def again(
        self, outcome: Outcome[FleetPlan], before: Sequence[Round[FleetPlan]], tables: FleetTables,
        seconds: float | None,
    ) -> Outcome[FleetPlan]:  # fmt: skip
        """As it is: what an earlier fleet costs stays, and that is why it was cut."""
        return outcome

    def judge(self, plan: FleetPlan, number: int, over: Callable[[], bool]) -> tuple[list[_Judged], bool]:
        """Every promise of every line."""
        return _judge(self.problem, self.first.case, plan, number, self.known, over)

    def line(self, plan: FleetPlan, judged: Sequence[_Judged], loose: float) -> RoundLine:
        """With the worst of what was seen."""
        return _round(plan, judged, loose)

    def add_cuts(self, cuts: dict[_Key, CutLine], bad: Sequence[_Judged]) -> None:
        """By point."""
        _cut(self.first.case, cuts, bad)

    def rank(self, plan: FleetPlan, judged: Sequence[_Judged]) -> float:
        """By the objective."""
        return objective_value(plan) * (1.0 if self.problem.objective == "min_cost" else -1.0)

    def state(self, plan: FleetPlan, status: Kept, best: Round[FleetPlan] | None, rounds: list[RoundLine]) -> None:
        """The certification line."""
        rules = self.problem.certification
        plan.certification = CertificationLine.model_validate({
            "status": status, "confidence": rules.confidence, "seed": rules.seed, "rounds": rounds,
            "of_round": 0 if best is None else best.number, "cuts": [] if best is None else best.cuts,
            "promises": [] if best is None else [x.document() for x in best.judged if isinstance(x, _Judged)],
        })  # fmt: skip


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
    return replace(build_case(replace(tables.case, workloads=workloads)), case=tables.case, models=tables.models)


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
    error = (1 - rules.confidence) / (max(total, 1) * LOOKS * len(rules.stretches) * rules.rounds)
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


def _round(plan: FleetPlan, judged: Sequence[_Judged], stretch: float) -> RoundLine:
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
    first = case.loading(d.loads, d.model).workloads[0]  # one name, whichever serves
    return (
        first.name, None if first.models is None else first.models[0].label, machine.gpu or "",
        machine.vram_gib / machine.gpu_count, d.tensor_parallel or 1, e.step_s,
        e.wait_s, e.most_of_wait,
    )  # fmt: skip


def _cut(case: FleetCase, cuts: dict[_Key, CutLine], bad: Sequence[_Judged]) -> None:
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
        names = ("loads", "model", "gpu", "gpu_gib", "tensor_parallel", "step_s", "wait_s", "most_of_wait")
        cuts[key] = CutLine(
            **dict(zip(names, key, strict=True)), keep=round(kept * less, 4), forbidden=sorted(forbidden)
        )  # fmt: skip
