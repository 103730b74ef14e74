"""`explain`: why a problem file has no plan, or what limits its plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from optmodels import formulation as registry
from optmodels.api.sources import File, Source, document_of, inlined, renamed, shown_name
from optmodels.errors import InputError, Mistake
from optmodels.formulation import checked_options
from optmodels.io.write import bare_name, check_folder, keeping, new_folder, safe_name, write_text
from optmodels.loading import load
from optmodels.plans.outcome import Result
from optmodels.problem import Problem
from optmodels.verification import version

if TYPE_CHECKING:
    from optmodels.study.explanation.document import Explanation


@renamed({"instance": "problem"})
def explain(
    problem: Source | Result, *, time_limit: float | None = None, max_solves: int | None = None, next: int = 3,
    all: bool = False, on_step: Callable[[str], None] | None = None, out: File | None = None,
) -> Explanation:  # fmt: skip
    """Why a problem file has no plan and what would give it one; or what its plan hangs on.

    Args:
        problem: file, mapping, `Problem` or a result, whose problem it is; nothing may meet its limits.
        time_limit: seconds for all solves together; default 60, or 10 to examine a plan. Solves that it cut off are
            listed as skipped.
        all: no default time limit: every limit and price is examined.
        max_solves: number of solves (default 1,000).
        next: number of next best plans.
        on_step: called before every solve with its purpose.
        out: folder for ``explanation.json`` and its page; a new folder is made in it, nothing is overwritten.

    Raises:
        InputError: the problem or an argument is wrong.
    """
    from optmodels.reporting.page import write_page
    from optmodels.study.explanation import run

    check_folder(None if out is None else Path(out))
    if isinstance(problem, Result):
        problem = dict(document_of(problem)[0]["problem"])
    mine = problem if isinstance(problem, Problem) else load(problem, limits_may_fail=True)
    form = registry.get(mine.formulation)
    seconds = checked_options(time_limit=time_limit).time_limit
    for name, value, least in (("max_solves", max_solves, 1), ("next", next, 0)):
        if value is not None and value < least:
            raise InputError(Mistake(None, name, value, f"a whole number ≥ {least}"))
    document = run.explain(
        form, mine, instance=shown_name(problem, mine), time_limit=seconds,
        max_solves=max_solves or run.MAX_SOLVES, next_plans=next, everything=all, on_step=on_step,
    )  # fmt: skip
    document.optmodels_version, document.problem = version(), inlined(mine)
    if out is not None:
        with keeping(document):
            folder = new_folder(Path(out), safe_name(f"{bare_name(document.instance)}-explanation"))
            write_text(folder / "explanation.json", document.to_json())
            write_page(document.model_dump(mode="json", by_alias=True), folder)
    return document
