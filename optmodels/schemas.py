"""JSON Schema of the documents: instances by formulation, results with their plans, and what the other verbs write."""

from __future__ import annotations

from typing import Any

from optmodels import formulation
from optmodels.errors import one_of
from optmodels.plan.outcome import Result

PLAN = "plan"
WRITTEN = (PLAN, "explanation", "compare", "sweep", "replay")
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def names() -> list[str]:
    """What there is a schema of: every formulation's instances, and every document that is written."""
    return [*formulation.names(), *WRITTEN]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of instance files of a formulation, or of a document that is written.

    ``plan`` is the plan.json of results, the others are what the verbs write: ``explanation``, ``compare``, ``sweep``,
    ``replay``.

    A schema says what a document looks like; what it refers to (catalogue names, files beside it) and whether its parts
    fit together is for `optmodels.load` to say.

    Raises:
        InputError: unknown name.
    """
    if name in WRITTEN:
        return _written(name)
    one_of("schema", name, names(), hint=True)
    form = formulation.get(name)
    body = form.problem.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT} | body | {"title": f"optmodels instance: {form.title}"}


def _written(name: str) -> dict[str, Any]:
    """A document that is written, as a verb writes it."""
    from pydantic import TypeAdapter

    from optmodels.study import documents
    from optmodels.study.explanation.document import Explanation

    if name == PLAN:
        return _with_parts(Result.model_json_schema(by_alias=True, mode="validation"), "result", ("plan", "problem"))
    if name == "explanation":
        return _with_parts(Explanation.model_json_schema(by_alias=True, mode="serialization"), name, ("problem",))
    whole: dict[str, Any] = {
        "compare": list[documents.Comparison], "sweep": documents.SweepDocument, "replay": documents.ReplayDocument,
    }  # fmt: skip
    body = TypeAdapter(whole[name]).json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT} | body | {"title": f"optmodels {name}"}


def _with_parts(body: dict[str, Any], title: str, parts: tuple[str, ...]) -> dict[str, Any]:
    """A document whose parts (plan, instance) are those of its formulation."""
    definitions = body.pop("$defs", {})
    cases = []
    for name in formulation.names():
        form = formulation.get(name)
        then: dict[str, Any] = {}
        for key, model in (("plan", form.plan), ("problem", form.problem)):
            if model is None or key not in parts:
                continue
            inner = model.model_json_schema(by_alias=True, mode="validation", ref_template=f"#/$defs/{name}.{{model}}")
            definitions |= {f"{name}.{k}": v for k, v in inner.pop("$defs", {}).items()}
            definitions[f"{name}.{key}"] = inner
            found = {"$ref": f"#/$defs/{name}.{key}"}
            then[key] = {"anyOf": [found, {"type": "null"}]} if key == "plan" else found
        cases.append({"if": {"properties": {"formulation": {"const": name}}}, "then": {"properties": then}})
    return {"$schema": DIALECT} | body | {"title": f"optmodels {title}", "allOf": cases, "$defs": definitions}
