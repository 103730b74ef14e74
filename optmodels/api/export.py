"""`export`: a plan as what engines, schedulers, clouds and solvers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels import formulation as registry
from optmodels.api.check import check
from optmodels.api.sources import File, PlanSource, document_of, embedded
from optmodels.errors import InputError, Mistake, one_of
from optmodels.io.write import refuse_existing, safe_name, write_text
from optmodels.plans.outcome import Violation
from optmodels.verification import place

if TYPE_CHECKING:
    from optmodels.targets import Export


def export(
    plan: PlanSource, to: str, *, out: File | None = None, force: bool = False,
) -> Export:  # fmt: skip
    """What people run next, out of a plan: vLLM commands, manifests, a purchase list, or the model itself.

    Args:
        plan: plan file, document or result.
        to: ``vllm``, ``kubernetes``, ``lws``, ``kserve``, ``keda``, ``llm-d``, ``dynamo``, ``skypilot``,
            ``terraform``, ``mps`` or ``lp``.
        out: folder to write the files to.
        force: replace existing files.

    Returns:
        The files by name, and notes: parts of the plan that the target cannot express.

    Raises:
        InputError: no plan document, one that fails its `check`, an unknown target, nothing in the plan for the
            target, a file that exists.
    """
    from optmodels import targets

    one_of("to", to, targets.NAMES)
    document, name = document_of(plan)
    problem = embedded(document, name)
    form = registry.get(problem.formulation)
    if to in targets.MODELS:
        made = targets.of_model(form.compiled(problem, form.tables(problem))[0], to, problem.name or form.name)
    else:
        found = document.get("plan")
        if not isinstance(found, Mapping):
            raise InputError(Mistake(name, "plan", found, "a plan: this document has none"))
        if form.deployments is None:
            raise InputError(Mistake(name, "formulation", form.name, f"one whose plans can be exported to {to}"))
        verdict = check(plan)
        if not verdict.ok:
            raise InputError(_as_mistake(name, document, v) for v in verdict.violations)
        made = targets.of_plan(form.deployments(problem, found), to)
    if out is not None:
        paths = {Path(out) / safe_name(file): text for file, text in made.files.items()}
        if not force:  # all or none
            refuse_existing(*paths)
        for path, text in paths.items():
            write_text(path, text, overwrite=force)
    return made


def _as_mistake(name: str | None, document: Mapping[str, Any], broken: Violation) -> Mistake:
    """A finding of a check as a mistake in its document."""
    expected = f"{broken.limit} {broken.unit}".strip()
    path = place(document, broken.requirement)
    return Mistake(name, path, broken.value, expected, hint=f"optmodels check: {broken.requirement}")
