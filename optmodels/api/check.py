"""`check`: a result verified against its problem file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels.api.sources import PlanSource, Source, document_of, embedded, planned, problem_of, renamed
from optmodels.formulation import checked_options
from optmodels.plans.claims import compare, plain
from optmodels.plans.findings import Findings
from optmodels.plans.outcome import DocumentReport, Result
from optmodels.problem import Problem
from optmodels.verification import verify

OTHER = ("safer", "next_measurement")  # of a log: the plan at the other end of the latencies' interval


@renamed({"instance": "problem"})
def check(
    plan: PlanSource, problem: Source | None = None, *, prove: bool = False, time_limit: float | None = None
) -> DocumentReport:
    """Verify a result file (or document) and the tables next to it against its own problem, or another one.

    Args:
        plan: plan.json, the folder it is in, a document or a result; a mapping of ``plan`` alone, or with
            ``problem``, claims nothing else. With `prove` also a document that states infeasibility.
        problem: problem to check against, in place of the one in the file.
        prove: derive the bound a second time, by another form and another solver, if all else is right.
        time_limit: seconds for `prove` (default 60).

    Raises:
        InputError: no plan document, or it holds no plan.
    """
    from optmodels.study.prove import TIME_LIMIT, proved

    seconds = checked_options(time_limit=time_limit).time_limit or TIME_LIMIT
    document, name = document_of(plan)
    if prove and document.get("plan") is None and document.get("status") == "infeasible":
        mine = embedded(document, name) if problem is None else problem_of(problem)
        return proved(DocumentReport(ok=True), registry.get(mine.formulation), mine, document, seconds)
    mine, _, document = planned(plan, problem)
    path = Path(plan) if isinstance(plan, str | PathLike) else None
    folder = path if path is None or path.is_dir() else path.parent
    form = registry.get(mine.formulation)
    report = verify(form, mine, document, folder, own=problem is None)
    if problem is None and report.ok:
        report = _other_end(report, mine, document)
    return proved(report, form, mine, document, seconds) if prove and report.ok else report


def _other_end(report: DocumentReport, problem: Problem, document: Mapping[str, Any]) -> DocumentReport:
    """The report, with the plan at the other end of the latencies' interval solved again where the log states one."""
    from optmodels.api.next_measurement import OTHER_END_S
    from optmodels.api.solve import at_the_other_end

    stated = {name: document["log"][name] for name in OTHER if name in document.get("log", {})}
    if not stated or "report" not in report.rebuilt:
        return report
    found, again = Findings(), Result.model_validate(document)
    again.log = {}
    at_the_other_end(again, problem, OTHER_END_S)
    for name, value in stated.items():
        true = plain(again.log.get(name))
        if isinstance(true, dict) and isinstance(value, dict) and "command" not in true:  # of a file of the user's
            value = {k: v for k, v in value.items() if k != "command"}
        compare(found, f"log.{name}", value, true)
    rebuilt = [*report.rebuilt, *(f"log.{name}" for name in stated)]
    return report.model_copy(update={"ok": not found.violations, "violations": found.violations, "rebuilt": rebuilt})
