"""Where no limit is the reason: which rows of the model cannot hold together, in the words of their docstrings."""

from __future__ import annotations

from typing import Any

from optmodels.study.explanation.document import Conflict, Explanation, LimitRef, Member
from optmodels.study.explanation.oracle import Answer, Oracle


def explain_rows(oracle: Oracle, document: Explanation, has_limits: bool) -> None:
    """An irreducible set of the model's rows, named by constraint and index."""
    from optmodels.errors import InputError
    from optmodels.solver import InfeasibleModelError, compile_model
    from optmodels.solver.conflict import irreducible

    document.words += (
        " No limit that can be loosened is the reason: without all of them there is no plan either."
        if has_limits else " The formulation marks no limits, so the reason is given in rows of its model."
    )  # fmt: skip
    if base.reason:
        document.words += f" {base.reason[0].upper()}{base.reason[1:]}."
    oracle.budget.what = "which rows of the model cannot hold together"
    seconds = oracle.budget.take()
    try:
        tables = oracle.form.tables(oracle.problem)
        model = oracle.form.build(oracle.problem, tables)
        compiled = compile_model(model)
    except InfeasibleModelError as error:
        document.words += f" {error}."
        return
    except InputError as error:
        document.words += f" {error.mistakes[0]}."
        return
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(compiled.row_names):
        groups.setdefault(name, []).append(i)
    kept, proved = irreducible(compiled, groups, time_limit=seconds)
    if not kept:
        document.skipped.append("rows of the model: no irreducible set found in time")
        return
    said = _docstrings(model)
    members = []
    for name in kept:
        said_here = said.get(name.partition("[")[0].rpartition(".")[2], "")
        words = f"{name}: {said_here}" if said_here else name
        ref = LimitRef(words=words, name=name, path="", value=None, unit="", side="row", written=True)
        members.append(Member(limit=ref, words=words))
    text = f"these rows cannot hold together: {', '.join(kept)}"
    document.conflicts.append(Conflict(members=members, irreducible=proved, words=text))


def _docstrings(model: Any) -> dict[str, str]:
    """First line of the docstring of every constraint's rule, by the constraint's name."""
    import pyomo.environ as pyo

    found = {}
    for constraint in model.component_objects(pyo.Constraint, active=True):
        rule = getattr(constraint.rule, "_fcn", None)
        text = constraint.doc or getattr(rule, "__doc__", None) or ""
        found[constraint.local_name] = text.strip().split("\n")[0]
    return found
