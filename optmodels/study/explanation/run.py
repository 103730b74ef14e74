"""`explain`: the two kinds of explanation put together within one budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from optmodels.errors import InputError, SolverError
from optmodels.formulation import Formulation
from optmodels.limits import Offer, Restriction, quantity
from optmodels.study.explanation import conflicts as why
from optmodels.study.explanation import margins
from optmodels.study.explanation.document import Explanation, LimitEffect
from optmodels.study.explanation.named import listed
from optmodels.study.explanation.oracle import DROPPED, Answer, Budget, InstanceOracle, Oracle, OutOfBudgetError
from optmodels.study.explanation.rows import RowOracle
from optmodels.study.explanation.thresholds import TOLERANCE, relative_change

TIME_LIMIT = 60.0
EXAMINED = 8.0  # seconds in which a plan is examined, where no time limit is given: the whole command takes 10
MAX_SOLVES = 1000
NEXT_PLANS = 3
# Of the time that is left when it is their turn, at most:
OF_LIMITS = 0.5  # whether limits bind
OF_STEPS = 0.3  # the value of a little more of one
OF_NEXT_PLANS = 0.5  # the next best plans
OF_RANGES = 0.5  # how far binding limits may move; prices have the rest
SOLVES = 3.0  # times as long as the unchanged instance took that one with a limit dropped may take

DEFINITIONS = {
    "conflict": "limits that have no plan together, all further limits of the file dropped; each can be left out",
    "needed": f"found by solving again, to a relative {TOLERANCE:g}; counts exactly",
    "joint cost": f"sum of relative changes, a widened list counts 1; bounds proved to {why.CLOSE:.0%}",
    "binds": "dropping the limit changes the optimum",
    "step": "one unit of a count, 1 % of any other number, in the loosening direction, solved again",
    "range": f"found by solving again, to a relative {margins.RANGE_TOLERANCE:g}, all else as it is",
    "distinct": "a plan that does without a kind of machine (type, region, market) of every better plan",
}

IN_ROWS = {
    "row": "an inequality of the model; its number is the right-hand side",
    "price": "the objective's coefficient of a variable",
    "distinct": "a plan in which a variable is 0 that is used in every better plan",
}
CONTRADICTED = (
    "proofs: a plan was found at limits that are tighter than some without one, so that one of the answers is wrong;"
    " please report this instance"
)


def explain(
    form: Formulation, problem: Any, *, instance: str, time_limit: float | None = None, max_solves: int = MAX_SOLVES,
    next_plans: int = NEXT_PLANS, everything: bool = False, on_step: Callable[[str], None] | None = None,
) -> Explanation:  # fmt: skip
    """Why a problem has no plan, or what its plan hangs on.

    Args:
        form: the problem's formulation; its exact method answers every question.
        problem: well-formed; nothing may meet its limits.
        instance: how to name it.
        time_limit: seconds for everything; None: `TIME_LIMIT`, with `EXAMINED` for the examination of a plan.
        max_solves: solves for everything.
        next_plans: how many.
        everything: without a time limit of its own.
        on_step: called before every solve with its purpose.
    """
    budget = Budget(time_limit or (math.inf if everything else TIME_LIMIT), max_solves, on_step)
    oracle: Oracle = InstanceOracle(form, problem, budget)
    sense, unit = form.goal_of(problem)
    document = Explanation(
        instance=instance, formulation=form.name, title=problem.title, status="no_solution_found", words="",
        unit=unit, sense=sense, definitions=DEFINITIONS,
    )  # fmt: skip
    try:
        budget.what = "the problem itself"
        base = oracle.best({})
        if base.feasible is not None and not oracle.limits():
            oracle, base = _by_rows(form, problem, budget, base, document)
        if base.feasible and time_limit is None and not everything:
            budget.time_limit = max(EXAMINED, SOLVES * budget.seconds)
        if base.feasible:
            _feasible(oracle, base, document, next_plans)
        elif base.feasible is False:
            _infeasible(oracle, document)
        else:
            document.words = f"Neither a plan nor a proof that there is none: {base.reason or 'stopped at a limit'}."
    except OutOfBudgetError:
        document.skipped.append(f"everything else: {budget.why_over} was reached")
        document.words = document.words or f"Nothing found out within {budget.why_over}."
    if oracle.contradicted:
        _withdrawn(document)
    if document.skipped and budget.left <= 0:
        document.skipped.append("optmodels explain --all examines everything, however long it takes")
    document.solves, document.reused, document.seconds = budget.solves, budget.reused, budget.seconds
    return document


def _withdrawn(document: Explanation) -> None:
    """A plan was found at tighter limits than an answer "infeasible": nothing here stays proved."""
    document.conflicts = [c.model_copy(update={"irreducible": False}) for c in document.conflicts]
    if document.jointly is not None:
        document.jointly = document.jointly.model_copy(update={
            "at_least": 0.0, "words": document.jointly.words.partition(", proved")[0],
        })  # fmt: skip
    document.skipped.insert(0, CONTRADICTED)


def _by_rows(
    form: Formulation, problem: Any, budget: Budget, base: Answer, document: Explanation
) -> tuple[Oracle, Answer]:
    """The same questions about the rows and columns of the model, where the instance marks nothing."""
    budget.what = "the rows of the model"
    try:
        oracle = RowOracle(form, problem, budget)
        found = oracle.best({})
    except (InputError, SolverError) as error:
        document.skipped.append(f"rows of the model: {error}")
        return InstanceOracle(form, problem, budget), Answer(None, reason=str(error))
    if found.feasible != base.feasible:
        document.skipped.append("rows of the model: the model and the exact method disagree")
        return oracle, Answer(None)
    document.words = "Stated in rows and columns of the model, because the problem marks no limits. "
    if found.objective is not None and not (
        base.objective is not None and oracle.same(base.objective, found.objective)
    ):
        document.unit = "of the model's objective"
        document.sense = "min" if oracle.sense == "min" else "max"
    document.definitions = document.definitions | IN_ROWS
    return oracle, found


def _infeasible(oracle: Oracle, document: Explanation) -> None:
    document.status, budget = "infeasible", oracle.budget
    document.words += "Infeasible, proved: no plan meets every limit."
    limits = oracle.limits()
    budget.what = "whether limits are the reason"
    among = why.candidates(oracle, limits)
    if isinstance(oracle, InstanceOracle) and (among is None or any(r.marker.scope for r in among)):
        reason = oracle.reason()
        document.words += f" {_sentence(reason)}" if reason else ""
    if among is None and isinstance(oracle, InstanceOracle):
        document.words += " No limit that can be loosened is the reason: without all of them there is no plan either."
        return
    if among is None:
        document.words += " Its rows are not the reason either: no value of its variables is within their bounds."
        return
    budget.what = "which limits cannot hold together"
    found = why.conflicts(oracle, among)
    everyone = [r for kept, _ in found for r in kept]
    budget.what = "that removing them restores a plan"
    answer, checked = oracle.checked(dict.fromkeys(everyone, DROPPED))
    document.restored = None if answer.feasible is None else answer.feasible and checked
    if len(found) == why.MOST_CONFLICTS and not answer.feasible:
        document.skipped.append(f"conflicts beyond the first {len(found)}")
    if answer.feasible:
        limits_off = " and ".join(f"“{r.words(detail=False)}”" for r in everyone)
        document.restored_words = f"Without {limits_off} there is a plan: {answer.headline}"
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
    best = min(known, key=lambda s: relative_change(*s), default=None)
    over = list(dict.fromkeys([*everyone, *(r for r, _ in known)]))
    budget.what = "the cheapest joint loosening"
    document.jointly = why.together(oracle, over, best, document.skipped)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _weight(line: LimitEffect) -> float:
    """How much a limit matters: the gain without it."""
    return line.gain_without or 0.0


def _in_turn(
    document: Explanation, budget: Budget, what: str, questions: Sequence[tuple[str, Callable[[], object]]]
) -> None:
    """Ask one question after the other, each with its subject in words, until the budget is spent."""
    for i, (words, ask) in enumerate(questions):
        budget.what = f"{what} of {words}"
        try:
            ask()
        except OutOfBudgetError:
            names = listed([left for left, _ in questions[i:]])
            document.skipped.append(f"{what}s of {names}: {budget.why_over} was reached")
            return


def _feasible(oracle: Oracle, base: Answer, document: Explanation, wanted: int) -> None:
    document.status, budget = "feasible", oracle.budget
    document.objective, document.headline = base.objective, base.headline
    cost = "" if base.objective is None else f"; {quantity(float(f'{base.objective:.6g}'), document.unit)}"
    document.words += f"Feasible{', optimal' if base.optimal else ', not proved optimal'}: {base.headline}{cost}."
    if not base.optimal:
        document.skipped.append("everything: only proved optima can be compared, and this one is not")
        return

    def by_limit(what: str, ask: Callable[..., None], found: Effects) -> None:
        asks = [(r.words(), partial(ask, oracle, r, base, line, document.unit)) for r, line in found]
        _in_turn(document, budget, what, asks)

    limits, rest = oracle.examined()
    if rest:
        document.skipped.append(rest)
    limits = sorted(limits, key=importance)
    stated = [r for r in limits if r.written and not r.marker.scope]
    others = [r for r in limits if r not in stated] if stated else []
    with budget.part(OF_LIMITS):
        binding, loose = _effects(oracle, stated or limits, base, document)
    priced, every = oracle.priced()
    if not every:
        document.skipped.append("prices and next best plans: the problem marks no prices")
    with budget.part(OF_STEPS if every else 1.0):
        by_limit("shadow price", margins.step, binding)
    following: list[Answer] = []
    with budget.part(OF_NEXT_PLANS):
        budget.what = "the next best plans"
        try:
            for line, answer in margins.next_plans(priced, every, base, wanted, document.unit) if every else ():
                document.next_plans.append(line)
                following.append(answer)
        except OutOfBudgetError:
            document.skipped.append(f"next best plans after {len(following)}: {budget.why_over} was reached")
    with budget.part(OF_RANGES if every else 1.0):
        by_limit("range", margins.ranges, binding)

    def price(offer: Offer, is_bought: bool) -> None:
        document.prices.append(margins.price_range(priced, offer, base, is_bought))

    asked = margins.worth_asking(base, following, every)
    _in_turn(document, budget, "price range", [(o.words, partial(price, o, is_bought)) for o, is_bought in asked])
    binding, others_loose = _effects(oracle, others, base, document)  # of defaults and lists, once the rest is known
    by_limit("shadow price", margins.step, binding)
    by_limit("range", margins.ranges, [*binding, *loose, *others_loose])


def importance(limit: Restriction) -> tuple[bool, ...]:
    """Order: the file's limits before defaults, numbers before lists, the problem's scope last."""
    return bool(limit.marker.scope), not limit.written, not limit.number


Effects = list[tuple[Restriction, LimitEffect]]


def _effects(
    oracle: Oracle, limits: Sequence[Restriction], base: Answer, document: Explanation
) -> tuple[Effects, Effects]:
    """Whether limits bind, the most important first; those not found out again with what time is left.

    Returns the numbers that bind and those that do not, with most to gain first.

    None may take the others' time, unless that is less than a solve of the instance takes: then as many as there is
    time for are examined, in place of none.
    """
    budget, once = oracle.budget, oracle.budget.seconds
    lines: list[LimitEffect] = []
    try:
        for i, limit in enumerate(limits):
            budget.what = f"limit {i + 1} of {len(limits)}: {limit.words()}"
            budget.share = max(budget.left / (len(limits) - i), SOLVES * once)
            lines.append(margins.effect(oracle, limit, base, document.unit))
        open_ = [i for i, line in enumerate(lines) if line.binds is None]
        for k, i in enumerate(open_):
            budget.what = f"limit {i + 1} of {len(limits)} again: {limits[i].words()}"
            budget.share = budget.left / (len(open_) - k)
            lines[i] = margins.effect(oracle, limits[i], base, document.unit)
    except OutOfBudgetError:
        left = len(limits) - len(lines)
        if left:  # a limit that was examined names its own gaps
            names = listed([r.words() for r in limits[len(lines) :]])
            document.skipped.append(f"{left} of {len(limits)} limits: {names}: {budget.why_over} was reached")
    document.limits += lines
    movable = [found for found in zip(limits, lines, strict=False) if found[0].number]
    by_gain = sorted(movable, key=lambda found: -_weight(found[1]))
    return [found for found in by_gain if found[1].binds], [found for found in by_gain if found[1].binds is False]
