"""`explain`: the two kinds of explanation put together within one budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from optmodels.errors import InputError, UnattainableError
from optmodels.formulation import Formulation
from optmodels.limits import Restriction, changed, offers, restrictions
from optmodels.study.explanation import conflicts as why
from optmodels.study.explanation import margins
from optmodels.study.explanation.document import Explanation
from optmodels.study.explanation.oracle import DROPPED, Answer, Budget, Oracle, OutOfBudgetError
from optmodels.study.explanation.rows import explain_rows
from optmodels.study.explanation.thresholds import TOLERANCE

TIME_LIMIT = 120.0
MAX_SOLVES = 1000
NEXT_PLANS = 3

DEFINITIONS = {
    "conflict": "limits that have no plan together, all further limits of the file dropped; each can be left out",
    "needed": f"found by solving again, to a relative {TOLERANCE:g}; counts exactly",
    "joint cost": f"sum of relative changes, a widened list counts 1; bounds proved to {why.CLOSE:.0%}",
    "binds": "dropping the limit changes the optimum",
    "step": "one unit of a count, 1 % of any other number, in the loosening direction, solved again",
    "range": f"found by solving again, to a relative {margins.RANGE_TOLERANCE:g}, all else as it is",
    "distinct": "a plan that does without a kind of machine (type, region, market) of every better plan",
}


def explain(
    form: Formulation, problem: Any, *, instance: str, time_limit: float = TIME_LIMIT, max_solves: int = MAX_SOLVES,
    next_plans: int = NEXT_PLANS, on_step: Callable[[str], None] | None = None,
) -> Explanation:  # fmt: skip
    """Why a problem has no plan, or what its plan hangs on.

    Args:
        form: the problem's formulation; its exact method answers every question.
        problem: well-formed; nothing may meet its limits.
        instance: how to name it.
        time_limit: seconds for everything.
        max_solves: solves for everything.
        next_plans: how many.
        on_step: called before every solve with what it is for.
    """
    budget = Budget(time_limit, max_solves, on_step)
    oracle = Oracle(form, problem, budget)
    sense, unit = form.goal_of(problem)
    document = Explanation(
        instance=instance, formulation=form.name, title=problem.title, status="no_solution_found", words="",
        unit=unit, sense=sense, definitions=DEFINITIONS,
    )  # fmt: skip
    try:
        budget.what = "the instance as it is"
        base = oracle.best({})
        if base.feasible:
            _feasible(oracle, base, document, next_plans)
        elif base.feasible is False:
            _infeasible(oracle, document)
        else:
            document.words = f"Neither a plan nor a proof that there is none: {base.reason or 'stopped at a limit'}."
    except OutOfBudgetError:
        document.skipped.append(f"everything else: {budget.why_over} was reached")
        document.words = document.words or f"Nothing found out within {budget.why_over}."
    document.solves, document.reused, document.seconds = budget.solves, budget.reused, budget.seconds
    return document


def usable(problem: Any) -> list[Restriction]:
    """The limits of a problem; lists are widened by what makes an instance, such as markets that have prices."""
    found = []
    for limit in restrictions(problem):
        full = limit.drop[1]
        if limit.marker.side == "among" and isinstance(full, tuple) and not _makes_sense(problem, limit, full):
            extra = [v for v in full if v not in limit.value and _makes_sense(problem, limit, (*limit.value, v))]
            if not extra:
                continue
            limit = replace(limit, drop=(limit.path, (*limit.value, *extra)))
        found.append(limit)
    return found


def _makes_sense(problem: Any, limit: Restriction, value: tuple[Any, ...]) -> bool:
    try:
        changed(problem, {limit.path: value}).resolve()
    except UnattainableError:
        return True
    except InputError:
        return False
    return True


def _infeasible(oracle: Oracle, document: Explanation) -> None:
    document.status, budget = "infeasible", oracle.budget
    document.words = "Infeasible, proved: no plan meets every limit."
    limits = usable(oracle.problem)
    budget.what = "whether limits are the reason"
    among = why.candidates(oracle, limits)
    if among is None or any(r.marker.scope for r in among):
        reason = oracle.reason()
        document.words += f" {_sentence(reason)}" if reason else ""
    if among is None:
        explain_rows(oracle, document, bool(limits))
        return
    budget.what = "which limits cannot hold together"
    found = why.conflicts(oracle, among)
    everyone = [r for kept, _ in found for r in kept]
    budget.what = "that removing them restores a plan"
    answer, checked = oracle.checked(dict.fromkeys(everyone, DROPPED))
    document.restored = bool(answer.feasible) and checked
    if answer.feasible:
        document.restored_words = f"Without {_these(everyone)} there is a plan: {answer.plan.headline()}"
    budget.what = "what each of them needs"
    for kept, proved in found:
        document.conflicts.append(why.conflict(oracle, kept, proved, among))
    document.words += " " + " ".join(f"{_sentence(c.words)}" for c in document.conflicts)
    singles: list[tuple[Restriction, Any, Any]] = []
    budget.what = "loosening one limit alone"
    ask = [*(found[0][0] if len(found) == 1 else []), *(r for r in limits if r not in among and not r.marker.scope)]
    try:
        for limit in ask:
            singles += why.alone(oracle, [limit])
    finally:
        lines = [why.relaxation(*s) for s in singles]
        document.alone = sorted(lines, key=lambda a: (a.change is None, a.change or 0.0))
    known = [(r, v) for r, v, _ in singles if r in among and (v is not None or not r.number)]
    best = min(known, key=lambda s: why.relative_change(*s), default=None)
    over = list(dict.fromkeys([*everyone, *(r for r, _ in known)]))
    budget.what = "the cheapest joint loosening"
    document.jointly = why.together(oracle, over, best, document.skipped)


def _these(limits: list[Restriction]) -> str:
    return " and ".join(f"“{r.words()}”" for r in limits)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _feasible(oracle: Oracle, base: Answer, document: Explanation, wanted: int) -> None:
    document.status, budget = "feasible", oracle.budget
    document.objective, document.headline = base.objective, base.plan.headline()
    document.words = f"Feasible{', optimal' if base.optimal else ', not proved optimal'}: {base.plan.headline()}."
    if not base.optimal:
        document.skipped.append("everything: only proved optima can be compared, and this one is not")
        return
    limits = usable(oracle.problem)
    for i, limit in enumerate(limits):
        budget.what = f"limit {i + 1} of {len(limits)}: {limit.words()}"
        try:
            document.limits.append(margins.effect(oracle, limit, base, document.unit))
        except OutOfBudgetError:
            document.skipped.append(f"{limit.words()}: {budget.why_over} was reached")
    inline = Oracle(oracle.form, oracle.problem.inline(), budget)
    every = offers(inline.problem)
    if not every:
        document.skipped.append("prices and next best plans: the instance marks no prices")
        return
    following: list[Answer] = []
    budget.what = "the next best plans"
    try:
        for line, answer in margins.next_plans(inline, base, wanted, document.unit):
            document.next_plans.append(line)
            following.append(answer)
    except OutOfBudgetError:
        document.skipped.append(f"next best plans after {len(following)}: {budget.why_over} was reached")
    asked = margins.worth_asking(base, following, every)
    for offer, is_bought in asked:
        budget.what = f"price of {offer.words}"
        try:
            document.prices.append(margins.price_range(inline, offer, base, is_bought))
        except OutOfBudgetError:
            document.skipped.append(f"price of {offer.words}: {budget.why_over} was reached")
