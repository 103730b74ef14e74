"""`check`: a result verified against its problem file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from optmodels import formulation as registry
from optmodels.api.sources import PlanSource, Source, document_of, embedded, planned, problem_of, renamed
from optmodels.formulation import checked_options
from optmodels.plans.outcome import DocumentReport
from optmodels.verification import verify


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
    return proved(report, form, mine, document, seconds) if prove and report.ok else report
