"""JSON Schema of the documents: instances by formulation, today's fleet, results with plans, documents of verbs."""

from __future__ import annotations

from typing import Any, Union

from optmodels import formulation
from optmodels.errors import one_of
from optmodels.io.read import validate
from optmodels.plans.outcome import Result

PLAN = "plan"
CURRENT = "current"
WRITTEN = (PLAN, "explanation", "compare", "sweep", "replay")
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def names() -> list[str]:
    """Documents with a schema: every formulation's instances, the input of `evaluate`, and written documents."""
    return [*formulation.names(), CURRENT, *WRITTEN]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of instance files of a formulation, or of another document that is read or written.

    ``current`` is today's fleet, as `evaluate` reads it, of every formulation that can be evaluated; ``plan`` is the
    plan.json of results, the others are documents of verbs: ``explanation``, ``compare``, ``sweep``, ``replay``.

    A schema states the form of a document; its references (catalogue names, files next to it) and whether its
    parts fit together is for `optmodels.load` to state.

    Raises:
        InputError: unknown name.
    """
    if name in WRITTEN:
        return _written(name)
    if name == CURRENT:
        return _current()
    one_of("schema", name, names())
    form = formulation.get(name)
    body = form.problem.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT} | body | {"title": f"optmodels problem: {form.title}"}


def _current() -> dict[str, Any]:
    """Today's fleet."""
    from pydantic import TypeAdapter

    known = [form.current for n in formulation.names() if (form := formulation.get(n)).current is not None]
    whole: Any = Union[tuple(known)]  # noqa: UP007 - of a list
    body = TypeAdapter(whole).json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT} | body | {"title": "optmodels current: what runs today"}


def refuse_damaged(item: Any, name: str | None) -> None:
    """Refuse a document that cannot be shown and is not as its schema states, with the places.

    Only such a one is asked this: documents of earlier versions may lack new parts.

    Raises:
        InputError: with the file's `name`.
    """
    from optmodels.study import documents
    from optmodels.study.explanation.document import Explanation

    if isinstance(item, list):
        for i, row in enumerate(item):
            validate(documents.Comparison, row, name, prefix=f"[{i}]")
    elif item.get("kind") == "explanation":
        validate(Explanation, item, name)
    elif "keys" in item:
        validate(documents.SweepDocument, item, name)
    elif item.get("plan") is not None and item.get("formulation") in formulation.names():
        plan = formulation.get(item["formulation"]).plan
        if plan is not None:
            validate(plan, item["plan"], name, prefix="plan")


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
    """A document whose parts (plan, instance) follow the schemas of its formulation."""
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
