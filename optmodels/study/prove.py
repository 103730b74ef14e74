"""The bound of a document derived again: by another form of the problem, another solver, another way through it.

A bound is confirmed if a run that shares as little as possible with the one that claimed it comes to one that is as
tight; it is refuted by a plan that passes the check and is better. That there is no plan is confirmed by a run that
finds none either, and refuted by a plan. Running out of time is neither.

A formulation states about which models a document's bound is where it is not the instance's own
(`Formulation.bounded`): a certified plan's bound is the bound of the loosest linear model that its rounds went through.
Each is derived, and the loosest one counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from optmodels.errors import InputError, SolverError
from optmodels.formulation import Bounded, Formulation, Method, Options
from optmodels.plans.outcome import Attempt, DocumentReport, Proof, Verdict, Violation
from optmodels.solver.highs import PROVED, relative_gap
from optmodels.solver.otherwise import Way, otherwise
from optmodels.solver.scip import installed

TIME_LIMIT = 60.0  # seconds
OTHER_WAY = Way(seed=1, options={"presolve": "off"})


def proved(
    report: DocumentReport, form: Formulation, problem: Any, document: Mapping[str, Any], time_limit: float
) -> DocumentReport:
    """The report of a document that is right otherwise with the proof of its bound; not ok where that is refuted."""
    proof = prove(form, problem, document, time_limit)
    trusted = [line for line in report.trusted if line.path != "bound" or proof.verdict != "confirmed"]
    violations = list(report.violations)
    if proof.verdict == "refuted":
        better = next(a.objective for a in reversed(proof.attempts) if a.objective is not None)
        what = "no plan meets the limits" if proof.claimed is None else "no plan is better than the bound"
        violations.append(Violation(requirement=what, value=better, limit=proof.claimed or "none",
                                    unit=form.goal_of(problem)[1]))  # fmt: skip
    return report.model_copy(
        update={"proof": proof, "ok": not violations, "violations": violations, "trusted": trusted}
    )


def prove(form: Formulation, problem: Any, document: Mapping[str, Any], time_limit: float = TIME_LIMIT) -> Proof:
    """Derive the bound of a document again.

    Args:
        form: the formulation of the problem.
        problem: the instance.
        document: a solve document whose plan has passed the check, or one that states there is none.
        time_limit: seconds for everything.
    """
    began = time.perf_counter()
    tables = form.tables(problem)
    models = [Bounded("", problem, tables)]
    if form.bounded is not None:
        models = list(form.bounded(problem, tables, document))
    parts: list[Proof] = []
    for k, model in enumerate(models):
        left = time_limit - (time.perf_counter() - began)
        parts.append(_of_one(form, model, document, left / (len(models) - k)))
        if parts[-1].verdict == "refuted":
            break
    verdicts = {x.verdict for x in parts}
    order: tuple[Verdict, ...] = ("refuted", "not refuted", "nothing claimed", "confirmed")
    bounds = [x.bound for x in parts if x.bound is not None]
    loosest = max if form.goal_of(problem)[0] == "max" else min
    bound = loosest(bounds) if len(bounds) == len(models) else None
    return Proof(
        verdict=next(x for x in order if x in verdicts), claimed=document.get("bound"),
        of=[x.words for x in models if x.words], bound=bound, gap=relative_gap(document.get("objective"), bound),
        attempts=[a for x in parts for a in x.attempts],
    )  # fmt: skip


def _of_one(form: Formulation, model: Bounded, document: Mapping[str, Any], time_limit: float) -> Proof:
    """The bound derived again for one of the models that it is of."""
    began, problem = time.perf_counter(), model.problem
    proof = Proof(verdict="not refuted", claimed=document.get("bound"))
    infeasible = document.get("status") == "infeasible"
    if proof.claimed is None and not infeasible:
        proof.verdict = "nothing claimed"
    worse = 1.0 if form.goal_of(problem)[0] == "max" else -1.0  # larger bounds are looser, or smaller ones
    plan = document.get("objective")
    ways = list(_ways(form, document))
    for k, (words, method, way) in enumerate(ways):
        left = time_limit - (time.perf_counter() - began)
        if left <= 0:
            break
        seconds = left / (len(ways) - k)
        attempt, none = _attempt(form, model, words, method, way, seconds)
        proof.attempts.append(attempt)
        if none and plan is not None:
            attempt.said = "finds no plan at all, though the document's passes the check"
        if attempt.bound is not None and plan is not None and worse * (plan - attempt.bound) > _slack(plan):
            attempt.said, attempt.bound = f"its bound {attempt.bound:.9g} is refuted by the document's plan", None
        found, bound = attempt.objective, attempt.bound
        if bound is not None and (proof.bound is None or worse * (proof.bound - bound) > 0):
            proof.bound = bound
        if infeasible:
            proof.verdict = "refuted" if found is not None else "confirmed" if none else "not refuted"
        elif proof.claimed is not None:
            if found is not None and worse * (found - proof.claimed) > _slack(proof.claimed):
                proof.verdict = "refuted"
            elif bound is not None and worse * (bound - proof.claimed) <= _slack(proof.claimed):
                proof.verdict = "confirmed"
        if proof.verdict in ("refuted", "confirmed") or (plan is not None and _closed(plan, proof.bound)):
            break
    return proof


def _slack(value: float) -> float:
    """Rounding error allowed at a value."""
    return PROVED * abs(value)


def _closed(plan: float, bound: float | None) -> bool:
    gap = relative_gap(plan, bound)
    return gap is not None and gap <= PROVED


def _ways(form: Formulation, document: Mapping[str, Any]) -> Iterator[tuple[str, Method, Way]]:
    """Attempts, those that share least with the claim first: words, method, and how its runs are made."""
    by = form.methods.get(str(document.get("method")))
    forms = [("the method exact", form.methods["exact"])]
    if form.other is not None and form.other is not by:
        forms.insert(0, ("another form", form.other))
    for words, method in forms:
        if installed():
            yield words, method, Way("SCIP")
        yield words, method, OTHER_WAY


def _attempt(
    form: Formulation, model: Bounded, words: str, method: Method, way: Way, seconds: float
) -> tuple[Attempt, bool]:
    """One derivation, and whether it states that there is no plan."""
    began = time.perf_counter()
    solver = way.solver if way.solver == "SCIP" else "HiGHS, without presolve, another seed"
    attempt = Attempt(form=words, solver=solver, status="error", of=model.words, seconds=0.0)
    try:
        with otherwise(way):
            outcome = method(model.problem, model.tables, Options(time_limit=seconds, answer_only=True))
        attempt.status, attempt.bound, attempt.said = outcome.status, outcome.bound, outcome.log.get("reason", "")
        if outcome.plan is not None:
            verdict = form.check(model.problem, outcome.plan.model_dump(mode="json"))
            if verdict.ok:
                attempt.objective = form.objective(outcome.plan)
            else:
                attempt.said = f"its plan fails the check: {verdict.violations[0].requirement}"
    except (InputError, SolverError) as error:
        attempt.said = str(error)
    attempt.seconds = time.perf_counter() - began
    return attempt, attempt.status == "infeasible"
