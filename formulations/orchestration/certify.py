"""Plans whose dispatcher attains their promise: solve, replay step by step, lower the load where it fails, solve again.

A plan promises of each model the share of its requests that the linear model has in time. The dispatcher that the plan
names is replayed: on the trace itself, where nothing is left to chance, or on draws of the requests (blocks of the
trace, Poisson arrivals at rates), each summarised by one number, the requests in time less the promised share of
all, whether the promise holds in the mean: Student's t over the draws. Every promise of every round gets an equal part
of the error, so that by the union bound all that is called kept is kept together.

A limit on the time between tokens promises of each model the share of these times that it bounds.

Where a promise is not kept, engines of the model are planned less full from then on, at whatever level and degree, so
that the linear model promises less or takes more of them; where that has not been enough, no more of a class counts as
able to be in time than was seen.

The model leaves room for bursts, and often far too much. So the rounds are gone through twice: with the engine's
margins as they are, and with the looser ones of `certification`, where replays alone keep promises. Of the plans that
keep as many promises the one that serves most in time in its replays is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from formulations.orchestration.clock import Clock
from formulations.orchestration.making import counts_of, make_plan
from formulations.orchestration.plan import (
    AttainmentPromise,
    ModelCut,
    OrchestrationPlan,
    ReplayCertification,
    ReplayRound,
)
from formulations.orchestration.points import Configuration, OrchestrationTables, build_tables, served, with_routes
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.replay import (
    cluster_of,
    dispatched,
    pauses_within,
    requests_of,
    sent,
    shares_of,
)
from formulations.orchestration.rounding import scheduled
from formulations.orchestration.served import itl_edges
from optmodels.arrays import Array
from optmodels.certification import rounds
from optmodels.certification.document import Verdict, round_counts
from optmodels.certification.rounds import Round
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.formulation import Bounded, Options
from optmodels.plans.outcome import Outcome
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.shape import resampled

COPIES = 32  # of requests that come as rates
LEAST_KEPT, MOST_KEPT = 0.8, 0.98  # of its capacities that one cut leaves a model's engines
BELOW, BELOW_DRAWN = 0.999, 0.99  # of the observed value: a promise equal to it would depend on rounding or draws
CLOSE = 0.01  # of its objective that a plan may promise less than the best, if it attains more
SAME = 1e-9
Metric = Literal["in_time", "itl_s"]
METRICS: tuple[Metric, ...] = get_args(Metric)
LOOSER = 2.0  # a pass's name


@dataclass(frozen=True)
class _Judged:
    """A promise of a plan with what its replays found; `least` is the share that they confirm."""

    line: AttainmentPromise
    least: float

    @property
    def found(self) -> Verdict:
        """Beyond the interval, or within it."""
        return self.line.found

    @property
    def name(self) -> str:
        """The model, and what of it."""
        return self.line.model + ("" if self.line.metric == "in_time" else ", ITL")


def planned(t: OrchestrationTables, p: OrchestrationPlan) -> OrchestrationTables:
    """The tables that a plan was made with."""
    c = p.certification
    if c is None or c.planned is None:
        return t
    return cut(loosened(t) if c.planned.looser else t, c.cuts)


def loosened(t: OrchestrationTables) -> OrchestrationTables:
    """The tables of the same classes and time bins with the engines of the second pass."""
    other = t.case.problem.looser()

    def key(x: Configuration) -> tuple[object, ...]:
        return x.model, x.gpu, x.degrees, x.batch, x.stage

    made = {key(x): x for x in reversed(build_tables(other).configurations)}  # the first level of each batch
    lines = tuple(made[k] for k in dict.fromkeys(map(key, t.configurations)) if k in made)  # once, of any wait
    service, first, share, wait, taken = served(t.case, lines, t.classes, t.class_of, t.deadline_s, t.most_tokens)
    alone = replace(
        t, configurations=lines, service_s=service, first_s=first, share=share, wait_s=wait, taken=taken,
        apart=t.apart[:0],
    )  # fmt: skip
    return with_routes(alone) if t.case.problem.deployment.apart else alone


def cut(t: OrchestrationTables, cuts: Sequence[ModelCut]) -> OrchestrationTables:
    """The tables under what certification found."""
    of = {c.model: c for c in cuts}
    if not of:
        return t
    lines = []
    for x in t.configurations:
        line = of.get(t.case.models[x.model])
        if line is not None and x.engine is not None:
            x = replace(x, engine=replace(x.engine, keep=line.keep))
        lines.append(x)
    able = np.array([of[name].in_time if name in of else 1.0 for name in t.case.models])
    return replace(t, configurations=tuple(lines), share=t.share * able[t.model_of[t.legs[:, 0]]])


@dataclass
class AttainmentRounds(rounds.Certifier[OrchestrationPlan]):
    """The rounds of an orchestration problem."""

    problem: Orchestration
    first: OrchestrationTables

    @property
    def comparable(self) -> bool:
        """Other margins promise other shares of the same plan."""
        return False

    @property
    def passes(self) -> tuple[float, ...]:
        """The engine's margins, and the looser ones where these are others."""
        return (1.0,) if self.problem.looser().engine == self.problem.continuous else (1.0, LOOSER)

    def looser(self, loose: float) -> str:
        """In words."""
        rules = self.problem.certification
        return f"quantile {rules.quantile:g} and waits {rules.waits:g}"

    @property
    def copies(self) -> int:
        """Draws of the requests; 0: the trace itself."""
        asked = self.problem.certification.copies
        return asked if asked is not None else 0 if self.first.case.trace is not None else COPIES

    @property
    def held(self) -> str:
        """In words."""
        if not self.copies:
            return "hold in the replay of the trace"
        return f"hold over {self.copies} draws, with {self.problem.certification.confidence:.4g} confidence together"

    def tables(self, loose: float) -> OrchestrationTables:
        """The instance's, or of engines with looser margins."""
        return self.first if loose == 1 else loosened(self.first)

    def cut(self, tables: OrchestrationTables, cuts: list[ModelCut]) -> OrchestrationTables:
        """Engines less full, classes less able."""
        return cut(tables, cuts)

    def again(
        self, outcome: Outcome[OrchestrationPlan], before: Sequence[Round[OrchestrationPlan]],
        tables: OrchestrationTables, seconds: float | None,
    ) -> Outcome[OrchestrationPlan]:  # fmt: skip
        """Or the instances that did best in replays so far, with the promise that the cuts allow.

        A solve that time cut short may have less; of plans that promise about as much the one is taken that does best
        in a replay of its own.
        """
        best = min(before, key=lambda x: self._missed(x))
        clock = Clock.of(Options(time_limit=seconds))
        assert best.outcome.plan is not None
        found = scheduled(tables, counts_of(tables, best.outcome.plan), clock)
        made = None if found is None else make_plan(tables, found.assignment)
        if made is None:
            return outcome
        if outcome.plan is None:
            return replace(outcome, status="feasible", plan=dispatched(tables, [made], clock=clock))
        if made.score.total < outcome.plan.score.total - CLOSE * abs(outcome.plan.score.total):
            return outcome
        return replace(outcome, plan=dispatched(tables, [outcome.plan, made], clock=clock))

    def _missed(self, x: Round[OrchestrationPlan]) -> float:
        assert x.outcome.plan is not None
        return self.rank(x.outcome.plan, [j for j in x.judged if isinstance(j, _Judged)])

    def judge(self, plan: OrchestrationPlan, number: int, over: Callable[[], bool]) -> tuple[list[_Judged], bool]:
        """The promises to every model that has requests: those in time, and the limit on times between tokens."""
        names = self.first.case.models
        limit = self.problem.slo.itl_s
        share = 1.0 if (of := seconds_and_quantile(limit)[1]) is None else of
        promised = plan.attainment_by_model
        kinds: dict[tuple[str, Metric], float] = {(m, "in_time"): min(x, 1.0) for m, x in promised.items()}
        kinds |= {} if limit is None else {(m, "itl_s"): share for m in promised}
        good, came = [], []
        for copy in range(max(self.copies, 1)):
            if copy and over():
                return [], False
            met, n = self._replayed(plan, [self.problem.certification.seed, number, copy])
            good.append(met)
            came.append(n)
        error = (1 - self.problem.certification.confidence) / (2 * max(len(kinds), 1) * self.rounds)
        columns = {
            (name, metric): (np.array(good)[:, i, m], np.array(came)[:, i, m])
            for m, name in enumerate(names) for i, metric in enumerate(METRICS)
        }  # fmt: skip
        return [_judged(*key, share, *columns[key], error) for key, share in kinds.items()], True

    def _replayed(self, p: OrchestrationPlan, seed: list[int]) -> tuple[Array, Array]:
        """Requests in time and times between tokens within their limit, and how many there are, (2, models) of a
        draw.
        """
        t, trace = self.first, None
        drawn = int(np.random.default_rng(seed).integers(2**31))
        if self.copies and t.case.trace is not None:
            trace = resampled(t.case.trace, drawn)
        requests = requests_of(t, trace, drawn)
        shares = shares_of(t, p, None if trace is None else requests)
        way = p.online if p.online is not None and p.dispatcher.policy == "planned" else p.dispatcher
        models = len(t.case.models)
        every = np.bincount(requests.model, minlength=models).astype(float)
        if not p.instances or not len(requests):
            return np.zeros((2, models)), np.array([every, np.zeros(models)])
        seen = sent(t, p, requests, cluster_of(t, p), shares, way, ReplayOptions())
        met = seen.met(requests)
        within, times, edges = np.zeros(models), np.zeros(models), itl_edges(t)
        if seen.gaps is not None and edges is not None:
            times = seen.gaps.sum(axis=1).astype(float)
            for m in np.flatnonzero(times):
                within[m] = times[m] * pauses_within(edges, seen.gaps[m], self.problem.slo.itl_s)
        return np.array([np.bincount(requests.model[met], minlength=models), within]), np.array([every, times])

    def line(self, plan: OrchestrationPlan, judged: Sequence[_Judged], loose: float) -> ReplayRound:
        """Predicted next to replayed."""
        lines = [x.line for x in judged]
        some = [x for x in lines if x.metric == "in_time"]
        requests = sum(x.requests for x in some)
        return ReplayRound(
            **round_counts(lines), looser=loose != 1, objective=plan.score.total, attainment=plan.prediction.attainment,
            replayed=sum(x.seen * x.requests for x in some) / requests if requests > 0 else 0.0,
            requests=requests,
        )  # fmt: skip

    def add_cuts(self, cuts: dict[str, ModelCut], bad: Sequence[_Judged]) -> None:
        """By model: less full by the missed share; from the second time on also no more in time than was seen."""
        below = BELOW_DRAWN if self.copies else BELOW
        for x in bad:
            model = x.line.model
            old = cuts.get(model)
            ratio = x.least / x.line.promised
            keep, able = (1.0, 1.0) if old is None else (old.keep, old.in_time)
            if x.line.metric == "in_time" and old is not None:
                able *= max(ratio * below, 1e-6)
            less = min(MOST_KEPT, max(LEAST_KEPT, ratio))
            cuts[model] = ModelCut(model=model, keep=round(keep * less, 6), in_time=min(able, 1.0))

    def rank(self, plan: OrchestrationPlan, judged: Sequence[_Judged]) -> float:
        """Most requests in time in the replays."""
        weight = {m.model: m.weight for m in self.problem.models}
        some = [x.line for x in judged if x.line.metric == "in_time"]
        return -sum(weight[x.model] * x.seen * x.requests for x in some)

    def certification(self, common: dict[str, Any], bounded: float) -> ReplayCertification:
        """The draws, and whether the bound is of the looser margins."""
        return ReplayCertification.model_validate(common | {"copies": self.copies, "bound_looser": bounded != 1})


def simulated_again(
    problem: Orchestration, tables: OrchestrationTables, plan: OrchestrationPlan
) -> dict[str, Any] | None:
    """See `rounds.simulated_again`."""
    c = plan.certification
    looser = c is not None and c.planned is not None and c.planned.looser
    bounded = LOOSER if c is not None and c.bound_looser else 1.0
    return rounds.simulated_again(AttainmentRounds(problem, tables), plan, LOOSER if looser else 1.0, bounded)


def bounded(problem: Orchestration, tables: OrchestrationTables, document: Mapping[str, Any]) -> list[Bounded]:
    """The model that a document's bound belongs to; infeasibility is proved for every pass's model."""
    if problem.certify == "none":
        return [Bounded("", problem, tables)]
    found = ((document.get("plan") or {}).get("certification") or {}).get("bound_looser")
    of_problem = AttainmentRounds(problem, tables)
    own = "with the engine's own margins, without cuts"
    made = []
    for loose in dict.fromkeys(of_problem.passes) if found is None else [LOOSER if found else 1.0]:
        of = problem if loose == 1 else problem.looser()
        words = own if loose == 1 else f"with {of_problem.looser(loose)}, without cuts"
        made.append(Bounded(words, of.model_copy(update={"certify": "none"}), of_problem.tables(loose)))
    return made


def _judged(model: str, metric: Metric, promised: float, good: Array, came: Array, error: float) -> _Judged:
    """The draws' evidence on a promise: each is a number of requests in time, of this many."""
    total = float(came.sum())
    seen = float(good.sum()) / total if total > 0 else 1.0
    found: Verdict = "kept" if seen >= promised - SAME else "broken"
    least = seen
    if len(came) > 1:
        from scipy.stats import t as student

        gain = good - promised * came
        at = student.isf(error, len(came) - 1) * float(gain.std(ddof=1)) / np.sqrt(len(came))
        mean = float(gain.mean())
        found = "kept" if mean >= at - SAME * total else "broken" if mean < -at else "undecided"
        least = max(seen - at * len(came) / total, 0.0) if total > 0 else 1.0
    line = AttainmentPromise(model=model, metric=metric, promised=promised, seen=seen, requests=total, found=found)
    return _Judged(line, least)
