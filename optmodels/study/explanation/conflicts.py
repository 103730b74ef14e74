"""Why there is no plan: irreducible conflicts, the need of each member, and the smallest ways out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optmodels.limits import Restriction, quantity
from optmodels.study.explanation.document import Conflict, Joint, LimitRef, LimitRelaxation, Member
from optmodels.study.explanation.irreducible import deletion_filter
from optmodels.study.explanation.oracle import DROPPED, Oracle, OutOfBudgetError, Settings
from optmodels.study.explanation.thresholds import (
    TOLERANCE,
    least_change,
    loosened,
    relative_change,
    rounded,
    roundest,
    tidy,
)

MOST_CONFLICTS = 4
MOST_TOGETHER = 6  # limits loosened together
CLOSE = 0.02  # relative gap at which the joint search stops
JOINT_QUESTIONS = 120


def reference(limit: Restriction) -> LimitRef:
    """A limit for the document."""
    value = list(map(str, limit.value)) if isinstance(limit.value, tuple) else limit.value
    return LimitRef(
        words=limit.words(), name=limit.name, path=limit.where, value=value, unit=limit.unit,
        side=limit.marker.side, written=limit.written,
    )  # fmt: skip


def candidates(oracle: Oracle, limits: Sequence[Restriction]) -> list[Restriction] | None:
    """Limits that together have no plan: the file's limits, with defaults, with its scope; None: none are the reason.

    Numbers come last: the deletion filter prefers later ones, and a number can be loosened by degrees.
    """
    plain = [r for r in limits if not r.marker.scope]
    for chosen in ([r for r in plain if r.written], plain, list(limits)):
        if chosen and oracle.feasible(dict.fromkeys(chosen, DROPPED)):
            return sorted(chosen, key=lambda r: (r.number, r.written))
    return None


def conflicts(oracle: Oracle, among: Sequence[Restriction]) -> list[tuple[list[Restriction], bool]]:
    """Irreducible conflicts that share no limit, until the instance without all their members has a plan.

    At most `MOST_CONFLICTS`.
    """
    found: list[tuple[list[Restriction], bool]] = []
    gone: list[Restriction] = []
    while not oracle.feasible(dict.fromkeys(gone, DROPPED)):
        rest = [r for r in among if r not in gone]

        def infeasible_without(off: list[Restriction], gone: list[Restriction] = gone) -> bool | None:
            verdict = oracle.feasible(dict.fromkeys([*gone, *off], DROPPED))
            return None if verdict is None else not verdict

        kept, proved = deletion_filter(rest, infeasible_without)
        found.append((kept, proved))
        if not kept or len(found) == MOST_CONFLICTS:
            break
        gone = [*gone, *kept]
    return found


def needed(oracle: Oracle, limit: Restriction, others: Settings) -> tuple[Any, Any] | None:
    """(enough, not enough) of one limit next to other settings; None: no number is enough."""
    if not limit.number:
        return _fewest(oracle, limit, others), None
    found = least_change(limit, lambda v: oracle.feasible({**others, limit: v}))
    if found is None:
        return None
    if limit.gone(found[0]):
        return None
    round_one = None if limit.whole else roundest(*found)
    for enough in (round_one, tidy(limit, found[0])):  # what people write in files is a round number
        if enough is not None and oracle.feasible({**others, limit: enough}):
            return enough, found[1]
    return found


def _fewest(oracle: Oracle, limit: Restriction, others: Settings) -> Any:
    """A list widened by no more than it needs; True for switches."""
    full = limit.drop[1]
    if limit.marker.side != "among" or not isinstance(full, tuple) or limit.marker.full is None:
        return True
    extra = [v for v in full if v not in limit.value]
    kept, _ = deletion_filter(
        extra, lambda off: oracle.feasible({**others, limit: (*limit.value, *(v for v in extra if v not in off))})
    )
    return (*limit.value, *kept)


def relaxation(limit: Restriction, value: Any, not_enough: Any = None) -> LimitRelaxation:
    """One loosened limit for the document; None: only without it."""
    if limit.number:
        change = None if value is None else relative_change(limit, value)
        to = "without it" if value is None else quantity(value, limit.unit)
        text = f"{limit.name}: {quantity(limit.value, limit.unit)} → {to}"
        if change is not None and limit.value:
            text += f" ({100 * change * (1 if value > limit.value else -1):+.3g} %)"
    elif limit.marker.side == "among" and isinstance(value, tuple) and limit.marker.full is not None:
        change, text = 1.0, f"{limit.name}: also {', '.join(str(v) for v in value if v not in limit.value)}"
    else:
        change, text = 1.0, f"without “{limit.words()}”"
    shown: Any = list(map(str, value)) if isinstance(value, tuple) else value
    return LimitRelaxation(limit=reference(limit), needed=shown, not_enough=not_enough, change=change, words=text)


def member(oracle: Oracle, limit: Restriction, others: Sequence[Restriction], off: Settings) -> Member:
    """A limit of a conflict with the value that the other members leave it (all further limits off)."""
    found = needed(oracle, limit, off) if limit.number else (None, None)
    if not limit.number or found is None:
        return Member(limit=reference(limit), words=limit.words())
    best = quantity(found[0], limit.unit)
    which = "lowest" if limit.marker.side == "most" else "highest"
    beside = "even without all others" if not others else "with " + " and ".join(o.words(detail=False) for o in others)
    text = f"{limit.words()}; {beside}, the {which} possible value is {best}"
    return Member(limit=reference(limit), needed=found[0], words=text)


def alone(oracle: Oracle, limits: Sequence[Restriction]) -> list[tuple[Restriction, Any, Any]]:
    """Every limit whose loosening alone restores a plan, with the value needed and one that is not enough."""
    found = []
    for limit in limits:
        if oracle.feasible({limit: DROPPED}):
            enough = needed(oracle, limit, {})
            found.append((limit, *(enough or (None, None))))
    return found


class JointConflicts:
    """The cheapest joint loosening of some limits: cost Σ |new − value|/|value|, lists and switches 1 each.

    Feasibility is monotone in the relaxed limits, so a point without a plan rules out the whole box below it, and one
    with a plan bounds the optimum. The rest is covered by boxes that start at `corners`: the cheapest corner is a
    proved lower bound, the best point found an upper bound.
    """

    def __init__(self, oracle: Oracle, over: Sequence[Restriction], start: tuple[float, ...] | None) -> None:
        self.oracle = oracle
        self.over = list(over)[:MOST_TOGETHER]
        self.best = start
        self.corners: list[tuple[float, ...]] = [(0.0,) * len(self.over)]
        self.closed = False

    def settings(self, point: Sequence[float]) -> dict[Restriction, Any]:
        """The settings of a point of relative changes."""
        chosen: dict[Restriction, Any] = {}
        for limit, x in zip(self.over, point, strict=True):
            if not limit.number:
                if x >= 1:
                    chosen[limit] = DROPPED
            elif x > 0:
                value = x if math.isinf(x) else loosened(limit, x)
                chosen[limit] = DROPPED if math.isinf(x) or limit.gone(value) else value
        return chosen

    def _snapped(self, point: Sequence[float]) -> tuple[float, ...]:
        """The same settings at their own cost: whole counts and ends of scales take no fractions."""
        chosen = self.settings(point)
        return tuple(
            (relative_change(limit, loosened(limit, x)) if limit.number else 1.0) if limit in chosen else 0.0
            for limit, x in zip(self.over, point, strict=True)
        )

    def search(self) -> None:
        """Close the gap between the bounds as far as questions and budget go."""
        if self.best is None:
            self._outwards()
        if self.best is None:
            return
        self.best = self._tightened(self.best)
        for _ in range(JOINT_QUESTIONS):
            goal = sum(self.best) * (1 - CLOSE)
            self.corners = [c for c in self.corners if sum(c) < goal]
            if not self.corners:
                self.closed = True
                return
            corner = min(self.corners, key=sum)
            room = (sum(self.best) * (1 - CLOSE / 2) - sum(corner)) / len(corner)
            trial = tuple(c + room for c in corner)
            if self.oracle.feasible(self.settings(trial)):
                self.best = min(self._tightened(self._snapped(trial)), self.best, key=sum)
            else:
                self._rule_out(self._grown(trial))

    def _outwards(self) -> None:
        step = 0.05
        while step < 1e6:
            if self.oracle.feasible(self.settings((step,) * len(self.over))):
                self.best = self._snapped((step,) * len(self.over))
                return
            step *= 2

    def _tightened(self, point: tuple[float, ...]) -> tuple[float, ...]:
        """Every coordinate in turn as small as it can be next to the others."""
        now = list(point)
        for i in sorted(range(len(now)), key=lambda k: -now[k]):
            low, high = 0.0, now[i]
            if high == 0:
                continue
            if self.oracle.feasible(self.settings([*now[:i], 0.0, *now[i + 1 :]])):
                now[i] = 0.0
                continue
            while self.over[i].number and high - low > CLOSE / 4 * max(sum(now), 1e-9):
                middle = (low + high) / 2
                trial = [*now[:i], middle, *now[i + 1 :]]
                if self.oracle.feasible(self.settings(trial)):
                    high = self._snapped(trial)[i]
                    if high <= low:
                        break
                else:
                    low = middle
            now[i] = high
        return tuple(now)

    def _grown(self, box: tuple[float, ...]) -> tuple[float, ...]:
        """A larger box without a plan: every side in turn dropped, or else as long as it can be."""
        assert self.best is not None
        now = list(box)
        most = sum(self.best)
        for i in range(len(now)):
            if not self.oracle.feasible(self.settings([*now[:i], math.inf, *now[i + 1 :]])):
                now[i] = math.inf
                continue
            low, high = now[i], most
            while self.over[i].number and high - low > CLOSE / 2 * most:
                middle = (low + high) / 2
                if self.oracle.feasible(self.settings([*now[:i], middle, *now[i + 1 :]])):
                    high = middle
                else:
                    low = middle
            now[i] = low
        return tuple(now)

    def _rule_out(self, box: tuple[float, ...]) -> None:
        """Cover the rest after no point at or below `box` has a plan."""
        assert self.best is not None
        goal = sum(self.best) * (1 - CLOSE)
        fresh: set[tuple[float, ...]] = set()
        for corner in self.corners:
            if any(c > b for c, b in zip(corner, box, strict=True)):
                fresh.add(corner)
                continue
            for i in range(len(corner)):
                raised = [*corner]
                raised[i] = self._beyond(i, box[i])
                if sum(raised) < goal:
                    fresh.add(tuple(raised))
        self.corners = [
            c for c in fresh if not any(o != c and all(x <= y for x, y in zip(o, c, strict=True)) for o in fresh)
        ]

    def _beyond(self, i: int, x: float) -> float:
        """The next change of limit i that is looser than x."""
        limit = self.over[i]
        if not limit.number or math.isinf(x):
            return 1.0 if x < 1 else math.inf
        now = loosened(limit, x) if x > 0 else limit.value
        end = limit.loosest
        if end is not None and now == end:
            return float("inf")
        if limit.whole:
            return relative_change(limit, now) + 1.0 / (abs(limit.value) or 1.0)
        return x

    @property
    def at_least(self) -> float:
        """Proved lower bound of the cost."""
        assert self.best is not None
        if self.closed:
            return sum(self.best) * (1 - CLOSE)
        return min(map(sum, self.corners), default=sum(self.best))


def together(
    oracle: Oracle, over: Sequence[Restriction], single: tuple[Restriction, Any] | None, skipped: list[str]
) -> Joint | None:
    """The cheapest joint relaxation for the document; `single`: the cheapest one found alone."""
    over = sorted(over, key=lambda r: single is None or r is not single[0])[:MOST_TOGETHER]
    start = None
    if single is not None:
        start = (relative_change(*single), *(0.0 for _ in over[1:]))
    search = JointConflicts(oracle, over, start)
    try:
        search.search()
    except OutOfBudgetError:
        skipped.append(f"the cheapest joint relaxation is not closed: {oracle.budget.why_over} was reached")
    if search.best is None:
        return None
    chosen = search.settings(search.best)
    for limit in chosen:
        if not limit.number:
            chosen[limit] = _fewest_or_dropped(oracle, limit, {k: v for k, v in chosen.items() if k is not limit})
    lines = [relaxation(k, _shown(k, v)) for k, v in chosen.items()]
    cost = sum(search.best)
    what = " and ".join(line.words for line in lines)
    most, least = rounded(100 * cost, up=True), rounded(100 * search.at_least, up=False)
    text = f"{what} (relative changes: {most:.4g} % in sum; every way needs at least {least:.4g} %, proved)"
    if len(lines) == 1 and len(over) > 1:
        text = f"one limit alone, {text}"
    return Joint(
        relaxations=lines, cost=cost, at_least=search.at_least, over=[r.where for r in over], words=text,
    )  # fmt: skip


def _shown(limit: Restriction, value: Any) -> Any:
    if not limit.number:
        return value if isinstance(value, tuple) else True
    return None if value is DROPPED or limit.gone(tidy(limit, value)) else tidy(limit, value)


def _fewest_or_dropped(oracle: Oracle, limit: Restriction, others: Settings) -> Any:
    try:
        found = _fewest(oracle, limit, others)
    except OutOfBudgetError:
        return DROPPED
    return found if isinstance(found, tuple) else DROPPED


def conflict(oracle: Oracle, kept: Sequence[Restriction], proved: bool, among: Sequence[Restriction]) -> Conflict:
    """One conflict for the document."""
    off = {r: DROPPED for r in among if r not in kept}
    lines = []
    for r in kept:
        others = [o for o in kept if o is not r]
        try:
            lines.append(member(oracle, r, others, off))
        except OutOfBudgetError:
            lines.append(Member(limit=reference(r), words=r.words()))
    which = "; ".join(r.words(detail=False) for r in kept)
    text = f"these cannot hold together: {which}" if len(kept) > 1 else f"nothing meets this: {which}"
    return Conflict(members=lines, irreducible=proved, words=text)


__all__ = ["TOLERANCE", "JointConflicts", "alone", "candidates", "conflict", "conflicts", "reference", "together"]
