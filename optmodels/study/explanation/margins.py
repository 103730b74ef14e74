"""Sensitivity of a plan: binding limits and their cost, how far they and prices move, the next best plans."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optmodels.limits import Offer, Restriction, bought, quantity
from optmodels.study.explanation.conflicts import reference
from optmodels.study.explanation.document import LimitEffect, NextPlan, PriceRange
from optmodels.study.explanation.oracle import DROPPED, Answer, Oracle, OutOfBudgetError
from optmodels.study.explanation.purchases import Key
from optmodels.study.explanation.thresholds import direction, least_change, rounded, tidy

RANGE_TOLERANCE = 5e-3  # relative, of where a plan changes
MOST_TIMES = 64.0  # how many times more expensive or cheaper a price is tried


# -------------------------------------------------------------------------------------------------------- limits


def effect(oracle: Oracle, limit: Restriction, base: Answer, unit: str) -> LimitEffect:
    """Whether one limit binds and the gain without it: one solve.

    One that ends before its proof tells, too: by a plan that is better, or by a bound that states that none is.
    """
    assert base.objective is not None
    line = LimitEffect(limit=reference(limit), binds=None, words=limit.words())
    free = oracle.best({limit: DROPPED})
    rated = limit.marker.rated
    if free.optimal and free.objective is not None:
        line.binds = not base.same_as(free) if rated else not oracle.same(free.objective, base.objective)
    elif not rated:
        line.binds = _binds_so_far(oracle, base.objective, free)
        line.at_least = bool(line.binds)
    if line.binds is None:
        line.words += ": not found out whether it binds"
        return line
    if not rated:
        line.objective_without = free.objective if line.binds else base.objective
        gain = 0.0 if free.objective is None else oracle.better(free.objective, base.objective)
        line.gain_without = max(0.0, gain) if line.binds else 0.0
    line.words = _effect_words(limit, line, unit)
    return line


def _binds_so_far(oracle: Oracle, objective: float, free: Answer) -> bool | None:
    """Whether there is more than an optimum without a limit, by earlier answers; None: it states nothing."""

    def more(value: float | None) -> bool:
        return value is not None and oracle.better(value, objective) > 0 and not oracle.same(value, objective)

    if more(free.objective):
        return True
    return None if free.bound is None or more(free.bound) else False


def step(oracle: Oracle, limit: Restriction, base: Answer, line: LimitEffect, unit: str) -> None:
    """Fill in the value of a step of a binding limit: one solve."""
    one = 1 if limit.whole else 0.01 * (abs(limit.value) or 1.0)
    step = limit.value + direction(limit) * one
    end = limit.loosest
    if end is not None:
        step = min(step, end) if direction(limit) > 0 else max(step, end)
    step = int(step) if limit.whole else float(f"{step:.12g}")
    answer = oracle.best({limit: step})
    line.step = step
    if answer.optimal and answer.objective is not None and base.objective is not None and not limit.marker.rated:
        line.objective_at_step = answer.objective
        gain = oracle.better(answer.objective, base.objective)
        line.gain_of_step = 0.0 if oracle.same(answer.objective, base.objective) else gain
    line.words = _effect_words(limit, line, unit)


def ranges(oracle: Oracle, limit: Restriction, base: Answer, line: LimitEffect, unit: str) -> None:
    """Fill in how far a limit may move: two questions, each a bisection."""

    def changes(value: Any) -> bool | None:
        """Whether the optimum is not as good at another value, or of a rated limit whether the plan buys other."""
        answer = oracle.best({limit: value})
        if answer.feasible is None or (answer.feasible and not answer.optimal):
            return None
        if not answer.feasible or answer.objective is None or base.objective is None:
            return True
        return not (base.same_as(answer) if limit.marker.rated else oracle.same(answer.objective, base.objective))

    try:
        if line.binds and limit.number and (found := least_change(limit, changes, tolerance=RANGE_TOLERANCE)):
            line.better_at, line.loosest = tidy(limit, found[0]), tidy(limit, found[1], looser=False)
        asked = limit.number and (line.binds or limit.written)
        if asked and (found := least_change(limit, changes, looser=False, tolerance=RANGE_TOLERANCE)):
            line.too_tight, line.tightest = tidy(limit, found[0], looser=False), tidy(limit, found[1])
    finally:  # results before the budget's end count
        line.words = _effect_words(limit, line, unit)


def _effect_words(limit: Restriction, line: LimitEffect, unit: str) -> str:
    text = limit.words()
    if line.binds is False:
        text += ": does not bind"
    elif line.gain_without is not None:
        text += f": binds; without it {_gain(line.gain_without, unit, line.at_least)}"
        if line.gain_of_step is not None:
            step = quantity(line.step, limit.unit)
            text += f", at {step} {_gain(line.gain_of_step, unit)}"
    else:
        text += ": binds: without it another plan is best"
    looser, tighter = ("up to", "down to") if direction(limit) > 0 else ("down to", "up to")
    stays = [f"{way} {quantity(value, limit.unit)}" for way, value in ((tighter, line.tightest), (looser, line.loosest))
             if value is not None and value != limit.value]  # fmt: skip
    if line.too_tight is not None and line.tightest == limit.value:
        text += f"; at {quantity(line.too_tight, limit.unit)} the plan is no longer best"
    text += f"; the plan stays best {' and '.join(stays)}" if stays else ""
    if line.better_at is not None:
        text += f"; at {quantity(line.better_at, limit.unit)} another is better"
    if line.binds and limit.marker.advice:
        text += f"; {limit.marker.advice}"
    return text


def _gain(value: float, unit: str, at_least: bool = False) -> str:
    by = "by at least" if at_least else "by"
    return f"the optimum improves {by} {quantity(_short(value), unit)}" if value > 0 else "nothing changes"


def _short(value: float) -> float:
    """A difference of two objectives in four digits."""
    return float(f"{value:.4g}")


# -------------------------------------------------------------------------------------------------- next best plans


def next_plans(
    oracle: Oracle, every: Sequence[Offer], base: Answer, wanted: int, unit: str
) -> Iterable[tuple[NextPlan, Answer]]:
    """The best plans, each without a kind of machine (type, region, market) of every better one.

    Every plan that does not buy all that an earlier plan buys lies in a branch that excludes one of its kinds; the
    branches are solved and taken in the order of their optima, so the order is proved.
    """
    by_key: dict[Key, list[Offer]] = {}
    for offer in every:
        by_key.setdefault(offer.key, []).append(offer)
    sign = 1.0 if oracle.sense == "min" else -1.0
    seen: set[frozenset[Key]] = set()
    listed: list[tuple[frozenset[Key], Answer]] = [(frozenset(base.buys), base)]
    heap: list[tuple[float, int, frozenset[Key], Answer]] = []

    def branch(without: frozenset[Key], avoid: Iterable[Key]) -> None:
        for key in sorted(avoid):
            excluded = without | {key}
            if key not in by_key or excluded in seen:
                continue
            seen.add(excluded)
            settings = {offer: DROPPED for k in excluded for offer in by_key[k]}
            answer = oracle.best(settings)
            if answer.optimal and answer.objective is not None and not excluded & set(answer.buys):
                heapq.heappush(heap, (sign * answer.objective, len(seen), excluded, answer))

    branch(frozenset(), listed[0][0])
    while heap and len(listed) <= wanted:
        _, _, without, answer = heapq.heappop(heap)
        mine = frozenset(answer.buys)
        inside = next((k for k, _ in listed if k <= mine), None)
        if inside is None:
            listed.append((mine, answer))
            yield _next_line(oracle, base, answer, without, unit), answer
        if len(listed) <= wanted:
            branch(without, mine if inside is None else inside)


def _next_line(oracle: Oracle, base: Answer, answer: Answer, without: frozenset[Key], unit: str) -> NextPlan:
    assert answer.objective is not None and base.objective is not None
    behind = -oracle.better(answer.objective, base.objective)
    relative = behind / abs(base.objective) if base.objective else 0.0
    names = sorted(bought(k) for k in without)
    worse = f"worse by {quantity(_short(behind), unit)} ({100 * relative:.3g} %)"
    equal = oracle.same(answer.objective, base.objective)
    text = f"{answer.headline}: {'as good' if equal else worse}, without {' and '.join(names)}"
    return NextPlan(
        objective=answer.objective, headline=answer.headline, without=names, words=text,
        buys={bought(k): v for k, v in sorted(answer.buys.items())},
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- prices


def price_range(oracle: Oracle, offer: Offer, base: Answer, is_bought: bool) -> PriceRange:
    """How far a price can fall and (where it is paid) rise before the plan buys something else."""

    def changes(value: float) -> bool | None:
        answer = oracle.best({offer: value})
        if not answer.optimal:
            return None if answer.feasible is not False else True
        return not base.same_as(answer)

    low = _reach(offer.value, 1 / MOST_TIMES, changes)
    high = _reach(offer.value, MOST_TIMES, changes) if is_bought else None
    text = f"{offer.words} at {quantity(offer.value, offer.unit)}"
    if not is_bought:
        text += " (not bought)" + (": not bought at any price" if low is None
                                   else f": not bought down to {quantity(low, offer.unit)}")  # fmt: skip
    elif low == high == offer.value:
        text += ": at any other price another plan may be best"
    else:
        down = "at any lower price" if low is None else f"down to {quantity(low, offer.unit)}"
        up = f"{MOST_TIMES:g} times the price" if high is None else f"{quantity(high, offer.unit)}"
        text += f": the same machines are bought {down} and up to {up}"
    return PriceRange(
        name=offer.words, path=offer.where, value=offer.value, unit=offer.unit, bought=is_bought, low=low, high=high,
        searched_to=offer.value * MOST_TIMES if is_bought else offer.value / MOST_TIMES, words=text,
    )  # fmt: skip


def _reach(value: float, farthest: float, changes: Any) -> float | None:
    """The last value, on the way to farthest times the value, at which nothing changes; None: nothing does."""
    low, high = value, value * farthest
    if not changes(high):
        return None
    while abs(high - low) > RANGE_TOLERANCE * max(low, high):
        middle = (low * high) ** 0.5
        verdict = changes(middle)
        if verdict is None:
            return None
        low, high = (low, middle) if verdict else (middle, high)
    inwards = rounded(low, up=farthest < 1)  # there, too, nothing changes
    return min(inwards, value) if farthest < 1 else max(inwards, value)


def worth_asking(base: Answer, following: Sequence[Answer], every: Sequence[Offer]) -> list[tuple[Offer, bool]]:
    """Prices that can change the plan soonest: of its purchases, and of the next best plans' purchases."""
    mine: Mapping[Key, float] = base.buys
    others = {k for a in following for k in a.buys} - set(mine)
    chosen = [(o, True) for o in every if o.key in mine]
    return chosen + [(o, False) for o in every if o.key in others]


__all__ = ["OutOfBudgetError", "effect", "next_plans", "price_range", "worth_asking"]
