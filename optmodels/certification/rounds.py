"""Rounds of certification: solve, simulate the chosen plan, cut failing points, solve again.

Simulation, cuts and a plan's statements about them are the formulation's (`Certifier`); here are the
rounds, how they share a time limit, which of their plans is returned, and which plans the bound covers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Generic, Protocol, TypeVar

from optmodels.certification.document import CertificationDocument, PromiseDocument, Status, Verdict
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Document, Outcome
from optmodels.solver.highs import Status as SolveStatus

P = TypeVar("P", bound=Document)
TIME_OVER, ROUNDS_OVER, NONE_LEFT = "stopped at the time limit", "after as many rounds as allowed", "no plan is left"
NOTHING_NEW = "the last round brought no new cut"
LEAST_S = 0.05  # for a solve
BOUND_OF = "bound_of"  # in the log: how loose the model is that the bound is of


class JudgedPromise(Protocol):
    """A promise of a plan that was simulated."""

    @property
    def name(self) -> str:
        """Its owner and subject."""

    @property
    def found(self) -> Verdict:
        """The verdict of the simulation."""

    @property
    def line(self) -> PromiseDocument:
        """The promise in the plan's document."""


@dataclass(frozen=True)
class Round(Generic[P]):
    """A plan that was simulated.

    Attributes:
        outcome: outcome of the solve.
        number: counted from 1.
        loose: how loose a model it is of; 1: the instance's own.
        cuts: cuts that it was made under.
        judged: its promises.
    """

    outcome: Outcome[P]
    number: int
    loose: float
    cuts: list[Any]
    judged: Sequence[JudgedPromise]

    @property
    def unkept(self) -> list[Any]:
        """The promises that are not found kept."""
        return [x for x in self.judged if x.found != "kept"]


class Certifier(Protocol[P]):
    """A formulation's part in one problem's rounds."""

    problem: Any

    @property
    def passes(self) -> Sequence[float]:
        """How loose the model of each is, the instance's own first (1)."""

    @property
    def comparable(self) -> bool:
        """Whether a looser model has the plans of the others at the same value: then its bound holds for all."""

    @property
    def rounds(self) -> int:
        """Of a pass, at most."""
        return int(self.problem.certification.rounds)

    @property
    def held(self) -> str:
        """The claim of a certified plan, in words."""

    def looser(self, loose: float) -> str:
        """Property of a relaxed model, in words that follow "the linear model with"."""

    def tables(self, loose: float) -> Any:
        """Tables of a model so loose."""

    def cut(self, tables: Any, cuts: list[Any]) -> Any:
        """The tables under cuts."""

    def again(self, outcome: Outcome[P], before: Sequence[Round[P]], tables: Any, seconds: float | None) -> Outcome[P]:
        """The outcome under cuts, or with an earlier plan of the pass made again under them if that is as good."""
        return outcome

    def judge(self, plan: P, number: int, over: Callable[[], bool]) -> tuple[Sequence[Any], bool]:
        """The promises of a round's plan; False where time ran out before all were simulated."""

    def line(self, plan: P, judged: Sequence[Any], loose: float) -> Document:
        """The round in the plan's document."""

    def add_cuts(self, cuts: dict[Any, Any], bad: Sequence[Any]) -> None:
        """Cuts for violated SLOs, by key; deeper where it was cut before."""

    def rank(self, plan: P, judged: Sequence[Any]) -> float:
        """Of plans that keep as many promises, the one with the least is returned."""

    def certification(self, common: dict[str, Any], bounded: float) -> CertificationDocument:
        """The plan's certification: what all have in common, and of how loose a model its bound is."""


def certified(method: Method, certifier: Callable[[Any, Any], Certifier[Any]]) -> Method:
    """The method, whose plans are certified where the instance asks for it and more than the bare answer is wanted.

    Args:
        method: method of a formulation whose problems have a field ``certify``.
        certifier: (problem, tables) → its rounds.
    """

    @wraps(method)
    def run(problem: Any, tables: Any, options: Options) -> Outcome[Any]:
        if problem.certify == "none":
            return method(problem, tables, options)
        rounds = _Rounds(certifier(problem, tables), method, problem, options)
        if options.answer_only:
            outcome = method(problem, tables, options)
            if outcome.plan is not None:
                rounds.state(outcome.plan, "incomplete", None, 1.0)
            return outcome
        return rounds.run()

    return run


@dataclass
class _Rounds(Generic[P]):
    """The rounds of one problem."""

    of: Certifier[P]
    method: Method
    problem: Any
    options: Options
    began: float = field(default_factory=time.perf_counter)
    lines: list[Document] = field(default_factory=list)
    found: list[Round[P]] = field(default_factory=list)
    firsts: dict[float, Outcome[P]] = field(default_factory=dict)
    unsimulated: Outcome[P] | None = None
    stops: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float:
        limit = self.options.time_limit
        return math.inf if limit is None else limit - (time.perf_counter() - self.began)

    def run(self) -> Outcome[P]:
        """All passes, until all promises of a plan hold in each.

        The plan is the best certified one, or that with the fewest promises not found kept.
        """
        for loose in dict.fromkeys(self.of.passes):
            if self.stops and self.left <= 0:
                self.stops.append(TIME_OVER)
                break
            clock = time.perf_counter()
            tables, cuts = self.of.tables(loose), dict[Any, Any]()
            self._count("build", clock)
            stop = ROUNDS_OVER
            for _ in range(self.of.rounds):
                if self.found and self.left <= 0:
                    stop = TIME_OVER
                    break
                reason = self._round(tables, cuts, loose)
                if reason is not None:
                    stop = reason
                    break
            self.stops.append(stop)
        return self._answer()

    def _round(self, tables: Any, cuts: dict[Any, Any], loose: float) -> str | None:
        """One round; why there is no further one, "" where all promises hold."""
        limit = self.options.time_limit
        limit = None if limit is None else max(self.left / 2, LEAST_S)  # the rest is for simulations
        taken = [x.model_copy(deep=True) for x in cuts.values()]
        tables = self.of.cut(tables, taken)
        outcome = self.method(self.problem, tables, replace(self.options, time_limit=limit))
        before = [x for x in self.found if x.loose == loose]
        if before and outcome.status != "infeasible":
            outcome = self.of.again(outcome, before, tables, None if limit is None else max(self.left / 2, LEAST_S))
        for phase, seconds in outcome.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.firsts.setdefault(loose, outcome)
        if outcome.plan is None:
            return NONE_LEFT if outcome.status == "infeasible" else "no plan was found"
        if self._hopeless(outcome):
            return "no better plan is left"
        clock = time.perf_counter()
        judged, complete = self.of.judge(outcome.plan, len(self.lines) + 1, lambda: self.left <= 0)
        self._count("certify", clock)
        if not complete:
            self.unsimulated = (self.unsimulated or outcome) if loose == 1 else self.unsimulated
            return TIME_OVER
        self.lines.append(self.of.line(outcome.plan, judged, loose))
        self.found.append(Round(outcome, len(self.lines), loose, taken, judged))
        if not self.found[-1].unkept:
            return ""
        self.of.add_cuts(cuts, self.found[-1].unkept)
        return NOTHING_NEW if list(cuts.values()) == taken else None

    def _none(self, loosest: float) -> bool:
        """Whether there is no plan in any model: where values compare, the loosest has every plan."""
        return self.of.comparable or all(x.status == "infeasible" for x in self.firsts.values())

    def _hopeless(self, outcome: Outcome[P]) -> bool:
        """Whether a certified plan is as good: further cuts of this pass only make plans worse."""
        if not self.of.comparable or outcome.plan is None:
            return False
        mine = self._value(outcome, ())
        return any(self._value(x.outcome, x.judged) <= mine for x in self.found if not x.unkept)

    def _value(self, outcome: Outcome[P], judged: Sequence[Any]) -> float:
        """Key whose least value is best; equal for values equal but for rounding."""
        assert outcome.plan is not None
        return float(f"{self.of.rank(outcome.plan, judged):.9g}")

    def _count(self, phase: str, since: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since

    def state(self, plan: Any, status: Status, best: Round[P] | None, bounded: float) -> None:
        """Write into the plan how far it was certified, and of how loose a model its bound is."""
        rules = self.problem.certification
        common = {
            "status": status, "confidence": rules.confidence, "seed": rules.seed, "rounds": self.lines,
            "of_round": 0 if best is None else best.number, "cuts": [] if best is None else best.cuts,
            "promises": [] if best is None else [x.line for x in best.judged],
        }  # fmt: skip
        plan.certification = self.of.certification(common, bounded)

    def _answer(self) -> Outcome[P]:
        """The outcome of the rounds; size and events come from the loosest model's first solve.

        The bound too, or the bound of the first solve of the plan's own pass where objectives of two do not compare.
        """

        def rank(x: Round[P]) -> tuple[int, float, int]:
            return len(x.unkept), self._value(x.outcome, x.judged), x.number  # of equals the first

        loose, first = list(self.firsts.items())[-1]
        # A looser model is for plans that simulation vouches for.
        best = min((x for x in self.found if x.loose == 1 or not x.unkept), key=rank, default=None)
        if best is not None and not self.of.comparable:
            loose = best.loose
        bound = self.firsts[loose].bound
        said = {BOUND_OF: loose}
        outcome = self.unsimulated if best is None else best.outcome
        limit = "time" if TIME_OVER in self.stops else first.limit
        if outcome is None or outcome.plan is None:
            if first.plan is None:
                status: SolveStatus = first.status
                if status == "infeasible" and (TIME_OVER in self.stops or not self._none(loose)):
                    status = "no_solution_found"  # a looser model may have one
                log, limit = first.log | said, first.limit or limit
                return replace(first, status=status, limit=limit, seconds=self.seconds, log=log)
            words = "the model has no plan for these SLOs, and no plan of a relaxed model passes the simulation"
            broken = dict.fromkeys(x.name for x in self.found[-1].unkept) if self.found else ()
            words += f"; not kept in the last round: {', '.join(broken)}" if broken else ""
            log = first.log | said | {"reason": words}
            return Outcome("no_solution_found", None, bound, limit, self.seconds, first.size, log)
        kept = best is not None and not best.unkept
        state: Status = "certified" if kept else "not kept" if set(self.stops) == {NONE_LEFT} else "incomplete"
        self.state(outcome.plan, state, best, loose)
        begins, ends = in_words(self.of, outcome.plan, loose)
        if kept:
            words = f"{begins}{ends}"
            untried = [self.of.looser(x) for x in self.of.passes if x not in self.firsts]
            words += f"; no time was left for models with {', '.join(untried)}" if untried else ""
        else:
            words = f"{begins}{'; '.join(x for x in dict.fromkeys(self.stops) if x)}{ends}"
        # The proof is for a model without cuts: a plan as good as the bound is optimal whatever it was made under.
        log = outcome.log | said | {"certification": words, "reason": words}
        return replace(
            outcome, status="feasible", bound=bound, limit=limit, seconds=self.seconds, size=first.size, log=log,
            events=first.events,
        )  # fmt: skip


def in_words(of: Certifier[P], plan: Any, bounded: float) -> tuple[str, str]:
    """How far a plan is certified, and of which model its bound is where not of the instance's own.

    Words about why it is no further stand between the two, or behind them.
    """
    c = plan.certification
    ends = "" if bounded == 1 else f"; bound of the linear model with {of.looser(bounded)}"
    if c.status != "certified":
        return "NOT certified, ", ends
    return f"certified: all {len(c.promises)} SLOs {of.held} (round {c.of_round} of {len(c.rounds)})", ends


def simulated_again(of: Certifier[P], plan: Any, loose: float, bounded: float) -> dict[str, Any] | None:
    """The promises of a certified plan and the line of its round, from the same simulation run again.

    Args:
        of: the rounds of its problem.
        plan: the plan; None is returned for one that no round simulated.
        loose: how loose the model of its round was.
        bounded: how loose the model is that the bound is of.

    Returns:
        ``promises`` and ``rounds[…]`` of the certification, and the ``words`` of the log about it.
    """
    c = plan.certification
    if c is None or c.planned is None:
        return None
    judged, _ = of.judge(plan, c.of_round, lambda: False)
    return {
        "words": in_words(of, plan, bounded),
        "promises": [x.line.model_dump(mode="json") for x in judged],
        f"rounds[{c.of_round - 1}]": of.line(plan, judged, loose).model_dump(mode="json"),
    }
