"""A plan document with its instance, or an instance alone, from a user's file or document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels.errors import InputError, Mistake
from optmodels.formulation import Formulation
from optmodels.io.read import read_document
from optmodels.loading import load
from optmodels.plans.outcome import Result
from optmodels.problem import Problem

Source = str | PathLike[str] | Mapping[str, Any] | Problem
PlanSource = Source | Result


@dataclass(frozen=True)
class ReadPlan:
    """An instance and its plan.

    Attributes:
        problem: the instance.
        plan: JSON data; None: only the instance was named.
        name: file that the plan or the instance was read from.
    """

    problem: Problem
    plan: Mapping[str, Any] | None
    name: str

    def part(self, what: str) -> tuple[Formulation, Any]:
        """The formulation, and its optional part of this name.

        Raises:
            InputError: the formulation has no such part.
        """
        form = registry.get(self.problem.formulation)
        found = getattr(form, what)
        if found is None:
            able = ", ".join(n for n in registry.names() if getattr(registry.get(n), what) is not None)
            raise InputError(Mistake(None, "formulation", form.name, f"a plan of {able}"))
        return form, found


def planned(source: PlanSource, instance: Source | None = None, *, needs_plan: bool = False) -> ReadPlan:
    """Read a plan or an instance.

    Args:
        source: plan.json of a result, its folder, a result or its document, or an instance (file, mapping or problem).
        instance: replaces the one that the plan document holds.
        needs_plan: refuse an instance.

    Raises:
        InputError: no such file, a document without a plan or without its instance, or an instance where a plan is
            needed.
    """
    name = ""
    document: Source = source.model_dump(mode="json", by_alias=True) if isinstance(source, Result) else source
    if isinstance(source, str | PathLike):
        path = Path(source)
        name, path = str(source), path / "plan.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError(Mistake(name, "", "no such file", "plan.json of a result, its folder, or a problem file"))
        document = load(path) if path.suffix != ".json" else read_document(path)[0]
    if isinstance(document, Mapping) and "plan" not in document:
        document = load(document if not name else path)
    assert not isinstance(document, str | PathLike)
    if isinstance(document, Problem):
        if needs_plan:
            raise InputError(Mistake(name or None, "", "a problem file", "a plan: optmodels solve makes one"))
        return ReadPlan(document, None, name)
    plan, embedded = document["plan"], document.get("problem")
    if not isinstance(plan, Mapping):
        raise InputError(Mistake(name or None, "plan", plan, "a plan: this document has none"))
    if instance is not None:
        problem = instance if isinstance(instance, Problem) else load(instance)
    elif isinstance(embedded, Mapping):
        try:
            problem = load(dict(embedded))
        except InputError as error:
            named = (replace(m, file=name, path=f"problem.{m.path}") if m.file is None else m for m in error.mistakes)
            raise InputError(named) from None
    else:
        raise InputError(Mistake(name or None, "problem", embedded, "the problem that the plan was made for"))
    return ReadPlan(problem, plan, name)
