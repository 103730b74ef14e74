"""Plans whose promised latencies hold in simulation: solve, simulate the chosen plan, cut failing points, solve again.

Every line of a plan is one engine at a level with its share of the buckets. It is simulated with Poisson streams of
requests as long as in the trace that a bucket was cut from, or of its mean lengths
(`optmodels.simulation.promises`); its promises are the limits of the SLO. The behaviour of one engine does
not depend on the level that it was planned at. So where a promise breaks, the share of these rates at which it holds is
looked for, and each level of the engine that has room for more of them, in whatever market, is planned less full from
then on, or does without the bucket where that would leave most of the engine empty.

Where every workload was cut from a trace, nothing is drawn: the trace's own requests are sent as the plan states, in
turn and at random, and a promise is kept if its share of them is within the limit (`formulations.fleet.on_trace`).
Where only some were, the others' Poisson streams are simulated at the rates of every piece.

Lines that prefill and those that decode for them are simulated together, as one network. TTFT is the promise of a line
that prefills, TPOT and E2E are those of one that decodes; where E2E breaks, the lines that prefill for it are cut, too.

The model's own latencies are bounds, and often far from what requests see. So the rounds are gone through twice: with
the limits as they are, and with limits `stretch` times as long, where only the simulation keeps plans to the true ones.
Tables of a round are the first ones less the cuts, and those with stretched limits have all points of the others: the
bound of the first solve with stretched limits holds for every plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from hashlib import blake2b
from typing import Any, get_args

import numpy as np

from formulations.fleet.engines import exchange, simulated, transfer_s
from formulations.fleet.on_trace import ROUNDING, OnTrace
from formulations.fleet.plan import (
    CertificationLine,
    CutLine,
    DeploymentLine,
    FleetPlan,
    PeriodLine,
    PromiseLine,
    RoundLine,
    ShareLine,
    objective_value,
)
from formulations.fleet.points import SAME_LEVEL, STAGES, FleetTables, build_case, build_tables, cut, engines
from formulations.fleet.problem import Fleet, FleetCase, FleetWorkload
from formulations.fleet.replay import paired
from optmodels.certification import rounds
from optmodels.certification.document import Verdict as Found
from optmodels.certification.document import round_counts
from optmodels.certification.rounds import BOUND_OF, LEAST_S
from optmodels.engine.continuous import LatencyLimit, Percentile, Stage, seconds_and_quantile
from optmodels.formulation import Bounded, Method, Options
from optmodels.plans.outcome import Outcome
from optmodels.simulation.compiling import time_to_replay
from optmodels.simulation.promises import LOOKS, Metric, Onward, Promise, RequestStream, Station, Verdict, judge
from optmodels.solver.highs import PROVED

LEAST_KEPT, MOST_KEPT = 0.85, 0.98  # of its load that one cut leaves an engine, where it is not simulated for it
GIVEN_UP = 0.3  # of its load: a level that has so little load left does not serve the bucket
GIVEN_UP_ON_TRACE = 0.005  # the same on a trace: bursts may need engines that idle between
METRICS: tuple[Metric, ...] = get_args(Metric)
NEAR = 1.05  # times the limit: half of that less load is enough as a rule
LEAST_SOUGHT, HALVINGS = 0.4, 3  # of the rates of an engine further off, at which its promises are looked for to hold
FOR_STAGES = 0.6  # of a time limit, where the best fleet without is looked for in the rest
_Key = tuple[str, str | None, Stage, str, float, int, int | None, float, float, float | None, float]


@dataclass(frozen=True)
class Promised:
    """A promise to a demand, with the lines that have to keep it: that which states it first."""

    promise: Promise
    demand: str
    lines: tuple[DeploymentLine, ...]


@dataclass(frozen=True)
class Together:
    """Stations that are simulated together, with their streams and SLOs."""

    stations: tuple[Station, ...]
    streams: tuple[RequestStream, ...]
    promised: tuple[Promised, ...]

    @property
    def promises(self) -> list[Promise]:
        """All of them."""
        return [x.promise for x in self.promised]


@dataclass(frozen=True)
class _JudgedPromise:
    """A promise of a plan with its result in the simulation."""

    period: str
    of: Promised
    verdict: Verdict
    beside: Together | None = None
    fewer: Callable[[], float] | None = None  # on a trace: what share of its load the first line can have, if so
    blamed: bool = True  # whether its lines are what broke it

    @property
    def found(self) -> Found:
        """Beyond the interval, or within it."""
        return self.verdict.found

    @property
    def name(self) -> str:
        """The demand and its latency."""
        return f"{self.of.demand} {self.verdict.promise.metric}"

    @property
    def line(self) -> PromiseLine:
        """The promise in the plan's document."""
        p = self.verdict.promise
        return PromiseLine(
            period=self.period, deployment=self.of.lines[0].name, demand=self.of.demand, latency=p.metric,
            percentile=p.quantile, at_most_s=p.at_most_s, seen_s=self.verdict.seen_s, found=self.found,
        )  # fmt: skip


def beside_whole(method: Method) -> Method:
    """The certified method where stages may be apart: the better of its plan and its plan without, which the log names.

    Rounds among more points may end at a worse fleet; one without stages is among those allowed. The bound is the worse
    of the two: where time let one go through looser models than the other, it holds for either's fleets.
    """

    @wraps(method)
    def run(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
        alone = tables.alone()
        if problem.certify == "none" or options.answer_only or alone is tables or not len(alone.points):
            return method(problem, tables, options)
        began, limit = time.perf_counter(), options.time_limit
        any_ = method(problem, tables, replace(options, time_limit=None if limit is None else limit * FOR_STAGES))
        left = None if limit is None else max(limit - (time.perf_counter() - began), LEAST_S)
        whole = method(problem, alone, replace(options, time_limit=left, on_event=None))
        sign = 1.0 if problem.objective == "min_cost" else -1.0

        def rank(x: Outcome[FleetPlan]) -> tuple[bool, bool, float]:
            value = math.inf if x.plan is None else sign * objective_value(x.plan)
            return x.plan is None, not _holds(x.plan), float(f"{value:.9g}")

        best = min(whole, any_, key=rank)  # of equals the simpler one
        if best.plan is None:
            return any_
        value = None if whole.plan is None else objective_value(whole.plan)
        stages: dict[str, Any] = {"used": any(q.transfers for q in best.plan.periods), "certified": True}
        if stages["used"]:
            stages["without"] = {"status": whole.status, "objective": value, "bound": whole.bound,
                                 "certified": _holds(whole.plan)}  # fmt: skip
        else:
            gap = math.inf if any_.bound is None else abs(objective_value(best.plan) - any_.bound)
            stages["none_is_better"] = gap <= PROVED * objective_value(best.plan) and any_.limit != "time"
        bounds = [x.bound for x in (any_, whole) if x.bound is not None]
        bound = min(bounds, key=lambda value: sign * value) if any_.bound is not None else None
        if best.plan.certification is not None:
            of, of_whole = (x.log.get(BOUND_OF, 1.0) for x in (any_, whole))
            stated = {"bound_stretch": of, "bound_stretch_alone": of_whole if of_whole > of else None}
            best.plan.certification = best.plan.certification.model_copy(update=stated)
        return replace(best, bound=bound, log=best.log | {"stages": stages})

    return run


def _holds(plan: FleetPlan | None) -> bool:
    """Whether a plan is certified."""
    return plan is not None and plan.certification is not None and plan.certification.status == "certified"


@dataclass
class FleetRounds(rounds.Certifier[FleetPlan]):
    """The rounds of a fleet; cuts do not make an earlier one cost less, so it is never planned again."""

    problem: Fleet
    first: FleetTables
    known: dict[object, list[Verdict]] = field(default_factory=dict)
    loose: float = 1.0  # of the pass under way, and `under_way` its tables without cuts
    under_way: FleetTables | None = None

    @property
    def passes(self) -> tuple[float, ...]:
        """Limits as they are, then this many times as long as the file has it."""
        return passes(self.problem)

    @property
    def comparable(self) -> bool:
        """Longer limits change no plan's cost."""
        return True

    def looser(self, loose: float) -> str:
        """In words."""
        return f"limits {loose:g} times as long"

    @property
    def held(self) -> str:
        """In words."""
        if self.first.case.trace is not None:
            return f"hold when {self.first.case.requests_in_words} are replayed"
        return f"hold in simulation, with {self.problem.certification.confidence:.4g} confidence together"

    def tables(self, loose: float) -> FleetTables:
        """Of the same case, with longer limits."""
        self.loose = loose
        self.under_way = self.first if loose == 1 else stretched(self.first, loose)
        return self.under_way

    def cut(self, tables: FleetTables, cuts: list[CutLine]) -> FleetTables:
        """Points less full, pairs taken out."""
        return cut(tables, cuts)

    def judge(self, plan: FleetPlan, number: int, over: Callable[[], bool]) -> tuple[list[_JudgedPromise], bool]:
        """Every promise of every line; none where no time is left to compile the simulator first."""
        if not time_to_replay("the certification"):
            return [], False
        return _judge(self.problem, self.first.case, plan, number, self.known, over, self.loose)

    def line(self, plan: FleetPlan, judged: Sequence[_JudgedPromise], loose: float) -> RoundLine:
        """With the worst observed value."""
        return _round(plan, judged, loose)

    def add_cuts(self, cuts: dict[_Key, CutLine], bad: Sequence[_JudgedPromise]) -> None:
        """By level."""
        _cut(self.under_way or self.first, cuts, bad, self.problem.certification.seed)

    def rank(self, plan: FleetPlan, judged: Sequence[_JudgedPromise]) -> float:
        """By the objective."""
        return objective_value(plan) * (1.0 if self.problem.objective == "min_cost" else -1.0)

    def certification(self, common: dict[str, Any], bounded: float) -> CertificationLine:
        """Kind of the requests, and the stretch of the bound's limits."""
        arrivals = "poisson" if self.first.case.trace is None else "trace"
        return CertificationLine.model_validate(common | {"arrivals": arrivals, "bound_stretch": bounded})


def bounded(problem: Fleet, tables: FleetTables, document: Mapping[str, Any]) -> list[Bounded]:
    """The models that a document's bound belongs to, as problems of their own.

    Infeasibility is proved for the most relaxed one.
    """
    if problem.certify == "none":
        return [Bounded("", problem, tables)]
    found = (document.get("plan") or {}).get("certification") or {}
    made = []
    for stretch, alone in ((found.get("bound_stretch", max(passes(problem))), False),
                           (found.get("bound_stretch_alone"), True)):  # fmt: skip
        if stretch is None:
            continue
        longer = tuple(longer_limits(w, stretch) for w in problem.workloads)
        of = problem.model_copy(update={"workloads": longer, "certify": "none"})
        there = build_tables(of)
        words = "without cuts" if stretch == 1 else f"with limits {stretch:g} times as long, without cuts"
        if alone:
            words, there = f"without stages apart, {words}", there.alone()
        made.append(Bounded(words, of, there))
    return made


def passes(problem: Fleet) -> tuple[float, ...]:
    """Factors on the limits in the model of each pass; with scenarios none: no draw is simulated."""
    return (1.0,) if problem.scenarios is not None else problem.certification.stretches


def longer_limits(workload: FleetWorkload, stretch: float) -> FleetWorkload:
    """The workload with limits of latency this many times as long."""

    def longer(limit: LatencyLimit | None) -> LatencyLimit | None:
        if limit is None:
            return None
        if isinstance(limit, Percentile):
            return limit.model_copy(update={"at_most": limit.at_most * stretch})
        return limit * stretch

    limits: dict[str, Any] = {m: longer(getattr(workload.slo, m)) for m in METRICS}
    return workload.model_copy(update={"slo": workload.slo.model_copy(update=limits)})


def stretched(tables: FleetTables, stretch: float) -> FleetTables:
    """Tables in which buckets keep limits this many times as long, of the same case otherwise."""
    workloads = tuple(longer_limits(w, stretch) for w in tables.case.workloads)
    made = build_case(replace(tables.case, workloads=workloads))
    made = replace(made, case=tables.case, models=tables.models, stretch=stretch)
    return made.alone() if tables.part_s is None else made


def _limits(case: FleetCase, d: DeploymentLine, s: ShareLine) -> Iterator[tuple[Metric, float, float | None]]:
    """Limits that a line promises a demand, soft ones where they are missed, for the line's stage."""
    w = case.workload(s.demand.split("/")[0])
    up_to = w.soft.up_to if w.soft is not None and s.misses_slo else 1.0
    output = next(x.output_tokens for x in case.demands if x.name == s.demand)
    for metric in METRICS:
        limit: LatencyLimit | None = getattr(w.slo, metric)
        elsewhere = d.stage != "both" and (metric == "ttft_s") != (d.stage == "prefill")
        if limit is None or s.requests_per_s <= 0 or (metric in ("tpot_s", "itl_s") and output == 1) or elsewhere:
            continue
        seconds, q = seconds_and_quantile(limit)
        yield metric, seconds * up_to, q


def simulations(case: FleetCase, period: PeriodLine, stretch: float) -> Iterator[Together]:
    """All that a period's plan promises: by engines that do all of their requests, and by those that exchange caches.

    Args:
        case: the instance.
        period: period of a plan.
        stretch: how many times as long the limits were that the plan's model kept.
    """
    for d in period.deployments:
        if d.stage == "both" and (found := _alone(case, d)).promised:
            yield found
    exchanges: dict[object, list[int]] = {}
    for j, d in enumerate(period.deployments):
        if d.stage != "both" and d.serves:
            exchanges.setdefault(exchange(case, d), []).append(j)
    for lines in exchanges.values():
        if (found := _network(case, period, lines, stretch)).promised:
            yield found


def _alone(case: FleetCase, d: DeploymentLine) -> Together:
    """One engine of a line, its arrivals and its promises."""
    engines = d.count * (d.replicas_per_machine or 1)
    streams = []
    for s in d.serves:
        rate = s.requests_per_s / engines
        load = s.load / s.requests_per_s * (d.replicas_per_machine or 1) * d.load_level if s.requests_per_s > 0 else 0.0
        streams.append(_stream(case, [d], s, rate, load))
    promised = [
        Promised(Promise((k,), metric, seconds, q), s.demand, (d,))
        for k, s in enumerate(d.serves) for metric, seconds, q in _limits(case, d, s)
    ]  # fmt: skip
    return Together((replace(_station(case, d), count=1),), tuple(streams), tuple(promised))


def _network(case: FleetCase, period: PeriodLine, lines: Sequence[int], stretch: float) -> Together:
    """Lines that prefill and those that decode for them: a stream for every bucket and pair of lines."""
    at, of = {j: k for k, j in enumerate(lines)}, period.deployments
    shares = {(j, s.demand): s for j in lines for s in of[j].serves}
    streams: list[RequestStream] = []
    here: dict[tuple[int, str], list[tuple[int, int, int]]] = {}  # of a line and demand: its streams, from and to where
    names, link = [d.name for d in case.demands], case.problem.deployment.link
    for name in dict.fromkeys(name for _, name in shares):
        for (a, b), share in paired(case, period, name, stretch).items():
            if a not in at:
                continue
            s, w = shares[a, name], names.index(name)
            rate = share / s.share * s.requests_per_s
            load = max(x.load / (x.requests_per_s * of[j].count) * of[j].load_level
                       for j in (a, b) for x in [shares[j, name]])  # fmt: skip
            sends, receives = (float(transfer_s(case, of[j])[w]) for j in (a, b))
            onward = Onward(at[b], sends + link.latency_s, receives)
            streams.append(replace(
                _stream(case, [of[a], of[b]], s, rate, load),
                station=at[a], onward=onward,
                longest_s=sum(max(x.e2e_s or 0.0, x.ttft_s or 0.0) for x in (s, shares[b, name])),
            ))  # fmt: skip
            for j in (a, b):
                here.setdefault((j, name), []).append((len(streams) - 1, a, b))
    promised = [
        Promised(
            Promise(tuple(i for i, _, _ in here[j, name]), metric, seconds, q), name,
            (of[j], *(of[a] for _, a, _ in here[j, name] if metric == "deadline_s")),
        )
        for (j, name), s in shares.items() if (j, name) in here for metric, seconds, q in _limits(case, of[j], s)
    ]  # fmt: skip
    return Together(tuple(_station(case, of[j]) for j in lines), tuple(streams), tuple(promised))


def _station(case: FleetCase, d: DeploymentLine) -> Station:
    engine, slower = simulated(case, d)
    return Station(engine, d.count * (d.replicas_per_machine or 1), slower)


def _stream(case: FleetCase, on: Sequence[DeploymentLine], s: ShareLine, rate: float, load: float) -> RequestStream:
    """Requests of a bucket, some of them in the cache of the first line's engines.

    They are as long as in the trace that it was cut from, or have its mean lengths.
    """
    demand, e = next(x for x in case.demands if x.name == s.demand), on[0].engine
    assert e is not None
    prompt = demand.input_tokens or 1
    hit = min(int(case.hit_share(demand.workload, e.kv_tokens) * prompt), prompt - 1)
    longest = max(s.e2e_s or 0.0, s.ttft_s or 0.0, e.step_s)
    return RequestStream(
        rate, prompt, demand.output_tokens or 1, hit, load, longest, lengths=case.lengths.get(demand.name, ())
    )


def _judge(
    problem: Fleet,
    case: FleetCase,
    plan: FleetPlan,
    number: int,
    known: dict[object, list[Verdict]],
    over: Callable[[], bool],
    stretch: float,
) -> tuple[list[_JudgedPromise], bool]:
    """Every promise of a plan; False where time ran out before all were simulated."""
    rules = problem.certification
    if case.trace is not None:
        return _judge_on_trace(case, plan, over, stretch)
    pieces = [(q, at_piece(case, q, factors)) for q in plan.periods for factors in case.peaks]
    parts = [(q, piece, x) for q, piece in pieces for x in simulations(case, piece, stretch)]
    total = sum(len(x.promised) for *_, x in parts)
    error = (1 - rules.confidence) / (max(total, 1) * LOOKS * len(rules.stretches) * rules.rounds)
    judged: list[_JudgedPromise] = []
    for q, piece, x in parts:
        if over():
            return judged, False
        what = x.stations, x.streams, tuple(x.promises)
        if what not in known:
            seed = _seed(rules.seed, what)
            known[what] = judge(x.stations, x.streams, x.promises, error, seed, over, hopeful=True)
        # A cut is of the lines at their planned rates: the tables' capacities are of the busiest piece already.
        own = {id(there): d for d, there in zip(q.deployments, piece.deployments, strict=True)}
        judged += [
            _JudgedPromise(q.name, replace(of, lines=tuple(own.get(id(d), d) for d in of.lines)), v, x)
            for of, v in zip(x.promised, known[what], strict=True)
        ]
    return _worst_of_each(judged), True


def at_piece(case: FleetCase, period: PeriodLine, factors: Sequence[float]) -> PeriodLine:
    """A period's plan at the rates of a piece of a trace; the same for the plan at the mean rates."""
    named = {d.name: float(f) for d, f in zip(case.demands, factors, strict=True)}

    def there(s: ShareLine) -> ShareLine:
        factor, most = named[s.demand], max(case.most_over_mean[s.demand], 1e-300)
        return s.model_copy(update={"requests_per_s": s.requests_per_s * factor, "load": s.load * factor / most})

    lines = [d.model_copy(update={"serves": [there(s) for s in d.serves]}) for d in period.deployments]
    return period.model_copy(update={"deployments": lines})


def _worst_of_each(judged: list[_JudgedPromise]) -> list[_JudgedPromise]:
    """Of promises that were simulated in several pieces of a trace the verdict of the worst piece."""
    rank = ("kept", "undecided", "broken")
    found: dict[tuple[str, str, str, str], _JudgedPromise] = {}
    for x in judged:
        key = x.period, x.of.lines[0].name, x.of.demand, x.verdict.promise.metric
        if key not in found or (rank.index(x.verdict.found), x.verdict.excess) > (
            rank.index(found[key].verdict.found), found[key].verdict.excess
        ):  # fmt: skip
            found[key] = x
    return list(found.values())


def _judge_on_trace(
    case: FleetCase, plan: FleetPlan, over: Callable[[], bool], stretch: float
) -> tuple[list[_JudgedPromise], bool]:
    """The same by the trace's own requests."""
    judged: list[_JudgedPromise] = []
    for t, q in enumerate(plan.periods):
        if over():
            return judged, False
        seen = OnTrace(case, t, q, stretch)
        for j, d in enumerate(q.deployments):
            for s in d.serves:
                for metric, seconds, quantile in _limits(case, d, s):
                    seen_s, count = seen.worst(s.demand, metric, quantile)
                    kept = seen_s <= seconds * (1 + ROUNDING)
                    promise = Promise((), metric, seconds, quantile)
                    verdict = Verdict(
                        promise, "kept" if kept else "broken", seen_s if not kept else min(seen_s, seconds), count
                    )
                    late = not kept and seen.of_line(j, s.demand, metric, quantile) > seconds * (1 + ROUNDING)
                    others = [] if metric != "deadline_s" or d.stage == "both" else [
                        x for x in q.deployments if x.stage == "prefill" and any(y.demand == s.demand for y in x.serves)
                    ]  # fmt: skip
                    limits: dict[tuple[str, str], tuple[float, float | None]] = {
                        (x.demand, m): (most, at) for x in d.serves for m, most, at in _limits(case, d, x)
                    }
                    judged.append(_JudgedPromise(
                        q.name, Promised(promise, s.demand, (d, *others)), verdict,
                        fewer=partial(seen.load_that_holds, j, limits) if d.stage == "both" else None, blamed=late,
                    ))  # fmt: skip
    return _with_blame(judged), True


def _with_blame(judged: list[_JudgedPromise]) -> list[_JudgedPromise]:
    """Where no line of a broken promise breaks it by itself, all are to blame."""
    blamed = {(x.period, x.of.demand, x.verdict.promise.metric) for x in judged if x.blamed}
    return [
        x if (x.period, x.of.demand, x.verdict.promise.metric) in blamed else replace(x, blamed=True) for x in judged
    ]


def _seed(seed: int, what: object) -> list[int]:
    """A seed of the simulation: the same in every round, so that a check can draw it again; another for others."""
    return [seed, int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest())]


def simulated_again(problem: Fleet, tables: FleetTables, plan: FleetPlan) -> dict[str, Any] | None:
    """See `rounds.simulated_again`."""
    several = plan.certification is None or problem.deployment.apart  # the log has the bound of fleets without stages
    bounded = 1.0 if several or plan.certification is None else plan.certification.bound_stretch
    return rounds.simulated_again(FleetRounds(problem, tables, loose=plan.stretch), plan, plan.stretch, bounded)


def _round(plan: FleetPlan, judged: Sequence[_JudgedPromise], stretch: float) -> RoundLine:
    worst = max(judged, key=lambda x: x.verdict.excess, default=None)
    return RoundLine(
        **round_counts([x.line for x in judged]), stretch=stretch, objective=objective_value(plan),
        worst=0.0 if worst is None else worst.verdict.excess,
        worst_of="" if worst is None else f"{worst.of.demand}: {worst.verdict.promise.metric}",
        requests=sum(x.verdict.requests for x in judged),
    )  # fmt: skip


def point_of(case: FleetCase, d: DeploymentLine) -> _Key:
    """Key by which a cut names a line's point."""
    e, main = d.engine, d.machines[0]
    assert e is not None
    machine = next(m for m in case.machines if (m.machine, m.region) == (main.machine, main.region))
    first = case.loading(d.loads, d.model).workloads[0]  # one name, whichever serves
    return (
        first.name, None if first.models is None else first.models[0].label, d.stage, machine.gpu or "",
        machine.vram_gib / machine.gpu_count, d.tensor_parallel or 1, d.attention_ranks,
        e.step_s, e.wait_s, e.most_of_wait, e.place_wait_s,
    )  # fmt: skip


def _cut(tables: FleetTables, cuts: dict[_Key, CutLine], bad: Sequence[_JudgedPromise], seed: int) -> None:
    """Derate the levels that have room for what broke promises, or forbid the buckets there.

    Args:
        tables: tables of the pass, without cuts.
        cuts: so far, made deeper.
        bad: promises that are not kept, of a plan under these cuts.
        seed: random seed of its simulation.
    """
    blamed: dict[int, tuple[DeploymentLine, list[_JudgedPromise]]] = {}
    for x in bad:
        for d in x.of.lines if x.blamed else ():
            blamed.setdefault(id(d), (d, []))[1].append(x)
    of, names = engines(tables), [x.name for x in tables.demands]
    sought: dict[int, float] = {}
    for d, mine in blamed.values():
        broken = [x for x in mine if x.verdict.found == "broken"]
        less, given_up = MOST_KEPT, GIVEN_UP
        if broken:
            excess = max(x.verdict.excess for x in broken)
            less = min(MOST_KEPT, max(LEAST_KEPT, 1.0 - (excess - 1.0) / 2))
            beside = broken[0].beside
            if broken[0].fewer is not None:
                less, given_up = broken[0].fewer(), GIVEN_UP_ON_TRACE
            elif excess > NEAR and beside is not None and len(beside.stations) == 1:
                if id(beside) not in sought:
                    sought[id(beside)] = _holds_at(beside, seed)
                less = sought[id(beside)]
        for key, load in _room(tables, of, names, d):
            old = cuts.get(key)
            kept = 1.0 if old is None else old.keep
            left = less * load
            if left >= kept:
                continue
            forbidden = set() if old is None else set(old.forbidden)
            if {s.demand for s in d.serves if s.requests_per_s > 0} & forbidden:
                continue  # that is no room for them
            if left <= given_up:
                forbidden |= {x.of.demand for x in broken or mine}
            else:
                kept = round(left, 6 if given_up < GIVEN_UP else 4)
            cuts[key] = CutLine(**dict(zip(CutLine.POINT, key, strict=True)), keep=kept, forbidden=sorted(forbidden))


def _room(
    tables: FleetTables, of: tuple[Any, ...], names: Sequence[str], d: DeploymentLine
) -> Iterator[tuple[_Key, float]]:  # fmt: skip
    """Levels of a line's engine that its requests can be on, and the load that they would put on each."""
    assert tables.capacities is not None
    x, key, (gpu, gib, tp, ranks, replicas) = tables.points, point_of(tables.case, d), of
    mine = (x.model == tables.case.which(d.loads, d.model)) & (gpu == key[3]) & (tp == key[5])
    mine &= ranks == (key[6] or 1)
    mine &= (x.stage == STAGES.index(d.stage)) & np.isclose(gib, key[4], rtol=SAME_LEVEL)
    rows = np.flatnonzero(mine)
    served = [s for s in d.serves if s.requests_per_s > 0]
    rates = np.array([s.requests_per_s for s in served]) / (d.count * (d.replicas_per_machine or 1))  # of an engine
    each = tables.capacities[:, [names.index(s.demand) for s in served]][:, :, rows] * replicas[rows]
    load = np.einsum("w,kwp->kp", rates, each).max(axis=0)
    levels, at = np.unique(x.level[:4, rows].T, axis=0, return_inverse=True)
    least = np.full(len(levels), np.inf)
    np.minimum.at(least, at.ravel(), load)
    for (step, wait, most, place_wait), taken in zip(levels.tolist(), least.tolist(), strict=True):
        if math.isfinite(taken):
            yield (*key[:7], step, wait, None if math.isinf(most) else most, place_wait), taken


def _holds_at(x: Together, seed: int) -> float:
    """The share of an engine's rates at which its promises seem to hold, to a step of the search; the least if at none.

    Nothing is known of rates below the least: they stay allowed until they have been planned and simulated, too.
    """
    low, high = LEAST_SOUGHT, 1.0
    for k in range(HALVINGS):
        middle = (low + high) / 2
        slower = [replace(s, requests_per_s=s.requests_per_s * middle) for s in x.streams]
        seen = judge(x.stations, slower, x.promises, 0.05, [seed, k], looks=1)
        low, high = (middle, high) if all(v.excess <= 1.0 for v in seen) else (low, middle)
    return low
