"""Solving changed copies of an instance again and again, within a budget, never the same question twice."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from optmodels.errors import InputError, UnattainableError
from optmodels.formulation import Formulation, Options
from optmodels.limits import Offer, Restriction, changed, offers, restrictions, without
from optmodels.study.explanation.purchases import Key, purchases, same_purchases

Settings = Mapping[Any, Any]  # limit or offer → a new value, or DROPPED


class _Dropped:
    def __repr__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()
ANY_PLAN = 0.99  # relative gap at which the first plan found is good enough


class OutOfBudgetError(Exception):
    """No time or no solve is left."""


@dataclass
class Budget:
    """Seconds and solves that one explanation may take, and the receiver of its progress."""

    time_limit: float
    max_solves: int
    on_step: Callable[[str], None] | None = None
    began: float = field(default_factory=time.perf_counter)
    solves: int = 0
    reused: int = 0
    what: str = ""
    share: float = math.inf  # seconds that one solve may take now
    until: float = math.inf  # seconds from the beginning at which the current examination has had its part

    @property
    def left(self) -> float:
        """Seconds left, of the part that is under way."""
        return min(self.time_limit, self.until) - self.seconds

    @contextmanager
    def part(self, of_what_is_left: float) -> Iterator[None]:
        """Inside, a part of the time that is left is all there is."""
        before = self.until
        self.until = self.seconds + of_what_is_left * max(self.left, 0.0)
        try:
            yield
        finally:
            self.until, self.share = before, math.inf

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.began

    def take(self) -> float:
        """One solve; returns the seconds it may take.

        Raises:
            OutOfBudgetError: none is left.
        """
        if self.left <= 0 or self.solves >= self.max_solves:
            raise OutOfBudgetError
        self.solves += 1
        if self.on_step is not None:
            self.on_step(f"{self.what} · solve {self.solves}, {self.seconds:.1f} of {self.time_limit:g} s")
        return min(self.left, self.share)

    @property
    def why_over(self) -> str:
        """The limit that ran out."""
        if self.left > 0:
            return f"the limit of {self.max_solves} solves"
        whole = f"the time limit of {self.time_limit:g} s"
        return f"their part of {whole}" if self.until < self.time_limit else whole


@dataclass(frozen=True)
class Answer:
    """Result of one solve."""

    feasible: bool | None
    objective: float | None = None
    plan: Any = None
    optimal: bool = False
    reason: str = ""
    bound: float | None = None  # proved: nothing is better

    @property
    def headline(self) -> str:
        """The plan in a line."""
        return str(self.plan.headline())

    @cached_property
    def buys(self) -> dict[Key, float]:
        """Purchases of the plan."""
        return purchases(self.plan.model_dump(mode="json"))

    def same_as(self, other: Answer) -> bool:
        """Whether two plans buy the same; plans that name no machines are compared by their headline."""
        if self.buys or other.buys:
            return same_purchases(self.buys, other.buys)
        return self.headline == other.headline


class Oracle(ABC):
    """Answers for one problem with some of its limits and prices changed; it remembers its questions."""

    def __init__(self, budget: Budget, sense: str) -> None:
        self.budget = budget
        self.sense = sense
        self._known: list[tuple[dict[Any, Any], bool]] = []
        self.contradicted = 0  # answers "no plan" that a plan at tighter limits proved wrong
        self._best: dict[frozenset[Any], tuple[Answer, float]] = {}  # and the seconds it might take

    @abstractmethod
    def limits(self) -> list[Restriction]:
        """Limits that may be relaxed, tightened and dropped."""

    def examined(self) -> tuple[list[Restriction], str]:
        """The limits whose effect on the optimum is examined, and the limits left out, in words."""
        return self.limits(), ""

    @abstractmethod
    def priced(self) -> tuple[Oracle, list[Offer]]:
        """An oracle for changed prices, and the prices."""

    @abstractmethod
    def solve(self, settings: Settings, gap: float) -> Answer:
        """One solve with these settings, up to a relative gap."""

    @abstractmethod
    def checked(self, settings: Settings) -> tuple[Answer, bool]:
        """Some plan, and whether a check that shares nothing with the solver accepts it."""

    def feasible(self, settings: Settings) -> bool | None:
        """Whether there is a plan; None: not found out.

        A feasible problem stays so when limits are relaxed, an infeasible one when they are tightened: such questions
        are answered from memory.

        Raises:
            OutOfBudgetError: nothing is left to solve with.
        """
        for known, answer in self._known:
            if _looser(settings, known) if answer else _looser(known, settings):
                self.budget.reused += 1
                return answer
        return self._remembered(settings, self.solve(settings, ANY_PLAN).feasible)

    def _remembered(self, settings: Settings, found: bool | None) -> bool | None:
        """Keep an answer. A plan keeps relaxed limits, too: an infeasibility that one contradicts is forgotten."""
        if found:
            wrong = [k for k, answer in self._known if not answer and _looser(k, settings)]
            self._known = [(k, answer) for k, answer in self._known if not any(k is w for w in wrong)]
            self.contradicted += len(wrong)
        elif found is False and any(answer and _looser(settings, k) for k, answer in self._known):
            self.contradicted += 1
            return True
        if found is not None:
            self._known.append((dict(settings), found))
        return found

    def best(self, settings: Settings) -> Answer:
        """The optimum, or its known bounds; asked again where there is more time than before.

        Raises:
            OutOfBudgetError: nothing is left to solve with.
        """
        key = frozenset((id(r), repr(v)) for r, v in settings.items())
        seconds = min(self.budget.left, self.budget.share)
        known, tried = self._best.get(key, (None, 0.0))
        if known is not None and (known.optimal or known.feasible is False or seconds <= 2 * tried):
            self.budget.reused += 1
            return known
        answer = self.solve(settings, 0.0)
        self._best[key] = answer, seconds
        if answer.feasible is not None and all(isinstance(r, Restriction) for r in settings):
            self._remembered(settings, answer.feasible)
        return answer

    def better(self, a: float, b: float) -> float:
        """How much better a is than b, in the objective's unit."""
        return b - a if self.sense == "min" else a - b

    def same(self, a: float, b: float) -> bool:
        """Whether two objectives are equal up to the solver's tolerance."""
        return abs(a - b) <= 2e-6 * max(abs(a), abs(b), 1e-9)


class InstanceOracle(Oracle):
    """Changes fields of the instance and asks the formulation's exact method."""

    def __init__(self, form: Formulation, problem: Any, budget: Budget) -> None:
        super().__init__(budget, form.goal_of(problem)[0])
        self.form = form
        self.problem = problem
        self._method = form.methods["exact"] if "exact" in form.methods else next(iter(form.methods.values()))
        self._tables: Any = None

    def changed(self, settings: Settings) -> Any:
        """The problem with these settings."""
        paths = dict(r.drop if v is DROPPED else (r.at if isinstance(r, Restriction) else r.path, v)
                     for r, v in settings.items())  # fmt: skip
        paths |= without(r for r, v in settings.items() if v is DROPPED and isinstance(r, Offer))
        return changed(self.problem, paths) if paths else self.problem

    def limits(self) -> list[Restriction]:
        """The marked fields; lists are widened by what makes an instance, such as markets that have prices."""
        found = []
        for limit in restrictions(self.problem):
            full = limit.drop[1]
            if limit.marker.side == "among" and isinstance(full, tuple) and not self._makes_sense(limit, full):
                extra = [v for v in full if v not in limit.value and self._makes_sense(limit, (*limit.value, v))]
                if extra:
                    found.append(replace(limit, drop=(limit.path, (*limit.value, *extra))))
            else:
                found.append(limit)
        return found

    def _makes_sense(self, limit: Restriction, value: tuple[Any, ...]) -> bool:
        try:
            changed(self.problem, {limit.path: value}).resolve()
        except UnattainableError:
            return True
        except InputError:
            return False
        return True

    def priced(self) -> tuple[Oracle, list[Offer]]:
        """The instance written out, catalogue prices included."""
        inline = self.problem.inline()
        return InstanceOracle(self.form, inline, self.budget), offers(inline)

    def checked(self, settings: Settings) -> tuple[Answer, bool]:
        """Some plan, and whether the independent checker accepts it for the changed problem."""
        answer = self.solve(settings, ANY_PLAN)
        if not answer.feasible:
            return answer, False
        plan = answer.plan.model_dump(mode="json")
        return answer, any(self.form.check(self.changed(s), plan).ok for s in (settings, _kept(settings)))

    def reason(self) -> str:
        """Why the unchanged problem has no plan, in the formulation's own words; empty if it gives none."""
        seconds = self.budget.take()
        try:
            outcome = self._method(self.problem, self.form.tables(self.problem), Options(time_limit=min(seconds, 20.0)))
        except InputError as error:
            return "; ".join(f"{m.path}: {m.expected}" for m in error.mistakes)
        return str(outcome.log.get("reason", ""))

    def solve(self, settings: Settings, gap: float) -> Answer:
        """Tables and the exact method on the changed problem; the better of both where a dropped limit allows either.

        So a plan that meets a limit stays one when the limit is dropped.
        """
        found, kept = self._solved(settings, gap), _kept(settings)
        if len(kept) == len(settings) or (found.feasible and gap == ANY_PLAN):
            return found
        other = self._solved(kept, gap)
        if not (found.feasible and other.feasible):
            best = found if found.feasible else other
            return replace(best, optimal=best.optimal and found.feasible is not None and other.feasible is not None,
                           feasible=best.feasible or (None if None in (found.feasible, other.feasible) else False),
                           bound=best.bound if False in (found.feasible, other.feasible) else None)  # fmt: skip
        assert found.objective is not None and other.objective is not None
        best, worse = (found, other) if self.better(found.objective, other.objective) >= 0 else (other, found)
        proved = worse.bound is not None and self.better(worse.bound, best.objective or 0.0) <= 0
        bounds = [b for b in (best.bound, worse.bound) if b is not None]
        loosest = (min if self.sense == "min" else max)(bounds) if len(bounds) == 2 else None
        return replace(best, optimal=best.optimal and (worse.optimal or proved), bound=loosest)

    def _solved(self, settings: Settings, gap: float) -> Answer:
        seconds = self.budget.take()
        problem = self.changed(settings)
        try:
            tables = self._tables_of(problem)
            options = Options(time_limit=max(seconds, 0.1), gap=gap, answer_only=True)
            outcome = self._method(problem, tables, options)
        except UnattainableError as error:
            return Answer(False, reason=error.mistakes[0].expected)
        except InputError as error:  # the rest makes no instance, such as one without machines
            return Answer(False, reason=str(error))
        reason = str(outcome.log.get("reason", ""))
        if outcome.plan is None:
            return Answer(False if outcome.status == "infeasible" else None, reason=reason)
        objective = float(self.form.objective(outcome.plan))
        return Answer(True, objective, outcome.plan, outcome.status == "optimal", reason, outcome.bound)

    def _tables_of(self, problem: Any) -> Any:
        """Tables; the last ones again where the formulation states that they serve."""
        if self._tables is not None and self.form.rebind is not None:
            again = self.form.rebind(self._tables, problem)
            if again is not None:
                return again
        self._tables = self.form.tables(problem)
        return self._tables


def _kept(settings: Settings) -> Settings:
    """The settings without dropped limits of which a plan may have either value."""
    return {r: v for r, v in settings.items() if v is not DROPPED or not isinstance(r, Restriction)
            or not r.marker.either}  # fmt: skip


def _looser(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    """Whether settings a allow everything that settings b allow."""
    for r in {*a, *b}:
        x, y = a.get(r, r.value), b.get(r, r.value)
        if x is DROPPED:
            continue
        if y is DROPPED or not isinstance(r, Restriction) or not r.looser(x, y):
            return False
    return True
