"""JSON Schema of the documents: instances by formulation, and results with their plans (plan.json)."""

from __future__ import annotations

import difflib
from typing import Any

from optmodels import formulation
from optmodels.errors import InputError, Mistake
from optmodels.plan.outcome import Result

PLAN = "plan"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def names() -> list[str]:
    """What there is a schema of: every formulation's instances, and ``plan``."""
    return [*formulation.names(), PLAN]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of instance files of a formulation or, ``plan``, of the plan.json of results.

    A schema says what a document looks like; what it refers to (catalogue names, files beside it) and whether its parts
    fit together is for `optmodels.load` to say.

    Raises:
        InputError: unknown name.
    """
    if name == PLAN:
        return _of_results()
    if name not in formulation.names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}?" if near else None
        raise InputError(Mistake(None, "schema", name, f"one of {', '.join(names())}", hint=hint))
    form = formulation.get(name)
    body = form.problem.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT} | body | {"title": f"optmodels instance: {form.title}"}


def _of_results() -> dict[str, Any]:
    """A result, whose plan and instance are those of its formulation."""
    body = Result.model_json_schema(by_alias=True, mode="validation")
    definitions = body.pop("$defs", {})
    cases = []
    for name in formulation.names():
        form = formulation.get(name)
        then: dict[str, Any] = {}
        for key, model in (("plan", form.plan), ("problem", form.problem)):
            if model is None:
                continue
            inner = model.model_json_schema(by_alias=True, mode="validation", ref_template=f"#/$defs/{name}.{{model}}")
            definitions |= {f"{name}.{k}": v for k, v in inner.pop("$defs", {}).items()}
            definitions[f"{name}.{key}"] = inner
            found = {"$ref": f"#/$defs/{name}.{key}"}
            then[key] = {"anyOf": [found, {"type": "null"}]} if key == "plan" else found
        cases.append({"if": {"properties": {"formulation": {"const": name}}}, "then": {"properties": then}})
    return {"$schema": DIALECT} | body | {"title": "optmodels result", "allOf": cases, "$defs": definitions}
