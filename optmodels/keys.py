"""The key reference of instance files, made from their schemas: every key with type, unit, default and meaning."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from optmodels import formulation
from optmodels.errors import one_of
from optmodels.limits import Limit, Price
from optmodels.units import Unit

_OWN_DOCUMENT = "schema_version"  # a section with this field is a file of its own, which some verb writes
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}
_SIDES = {"most": "upper limit", "least": "lower limit", "among": "choice", "flag": "switch"}
# Units by the end of a key, longest first; a marked unit comes before.
_ENDS = {
    "usd_per_1000_requests": "USD/1,000", "tokens_per_s": "tokens/s",
    "requests_per_s": "requests/s", "usd_per_request": "USD", "usd_per_hour": "USD/h", "usd_per_gb": "USD/GB",
    "_per_s": "1/s", "per_hour": "1/h", "_tokens": "tokens", "_gib": "GiB", "_gbps": "Gbps", "_usd": "USD",
    "_kb": "kB", "_ms": "ms", "_deg": "°", "_hour": "h", "_hours": "h", "_s": "s", "_h": "h",
}  # fmt: skip


@dataclass
class _Section:
    """One model of the schema, the places that hold it, and keys that tell it from others there, without a kind."""

    model: type[BaseModel]
    places: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> tuple[str, ...]:
        kind = self.model.model_fields.get("kind")
        return get_args(kind.annotation) if kind is not None and kind.is_required() else ()

    @property
    def title(self) -> str:
        place = f"`{self.places[0]}`" if self.places[0] else "The file"
        told = [f"kind: {k}" for k in self.kinds] + [f"with {' and '.join(self.own)}"] * bool(self.own)
        return ", ".join([place, *told])


def reference(name: str) -> str:
    """Markdown of every key that instance files of a formulation may have, section by section.

    Raises:
        InputError: unknown formulation.
    """
    one_of("formulation", name, formulation.names())
    form = formulation.get(name)
    sections = _sections(form.problem)
    lines = [
        f"# {form.title}: keys of problem files",
        "",
        f"Made from the schema by `optmodels schema {name} --keys`; `optmodels new {name}` writes a template with",
        "comments. A number is in the unit of its row; with † it may carry a unit of its own, as a string",
        '(`"200 ms"`). `explain` examines what restricts plans, and prices: column *limit*. `[]` is an element of a',
        "list, `*` an entry whose name is yours. A key that is not here is a mistake.",
    ]
    for section in sections.values():
        lines += ["", f"## {section.title}", "", _first(section.model)]
        if len(section.places) > 1:
            lines += ["", "Also: " + ", ".join(f"`{p}`" for p in section.places[1:]) + "."]
        lines += ["", "| key | type | unit | default | limit | meaning |", "|---|---|---|---|---|---|"]
        lines += [_row(key, info, sections) for key, info in section.model.model_fields.items()]
    return "\n".join(lines) + "\n"


def keys(name: str) -> Iterator[tuple[str, str]]:
    """(place of the section and key, meaning) of every key of a formulation's instance files."""
    for section in _sections(formulation.get(name).problem).values():
        for key, info in section.model.model_fields.items():
            yield f"{section.places[0]}.{info.alias or key}".lstrip("."), _meaning(info)


def _sections(root: type[BaseModel]) -> dict[type[BaseModel], _Section]:
    """Every section in the order in which a file has them, each once, with every place that holds it."""
    found: dict[type[BaseModel], _Section] = {}

    def visit(model: type[BaseModel], place: str) -> None:
        if model in found:
            found[model].places += [place] * (place not in found[model].places)
            return
        found[model] = _Section(model, [place])
        for key, info in model.model_fields.items():
            for inner, where in _inner(info.annotation, f"{place}.{info.alias or key}".lstrip(".")):
                visit(inner, where)

    visit(root, "")
    for s in found.values():
        others = [o.model.model_fields for o in found.values() if o is not s and _anchor(o) == _anchor(s)]
        fields = s.model.model_fields.items()
        s.own = [k for k, info in fields if info.is_required() and any(k not in o for o in others)] * (not s.kinds)
    return found


def _anchor(section: _Section) -> str:
    return section.places[0].replace("[]", "")


def _inner(annotation: Any, place: str) -> Iterator[tuple[type[BaseModel], str]]:
    """The sections that a field's type names, with their places; documents of their own are not opened."""
    origin, args = get_origin(annotation), get_args(annotation)
    if _is_section(annotation):
        yield annotation, place
    elif origin is Annotated:
        yield from _inner(args[0], place)
    elif origin is tuple:
        for arg in args:
            yield from _inner(arg, f"{place}[]")
    elif origin in (dict, Mapping):
        yield from _inner(args[1], f"{place}.*")
    elif origin in (Union, types.UnionType):
        for arg in args:
            yield from _inner(arg, place)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_section(annotation: Any) -> bool:
    return _is_model(annotation) and _OWN_DOCUMENT not in annotation.model_fields


def _row(key: str, info: FieldInfo, sections: Mapping[type[BaseModel], _Section]) -> str:
    marked, bounds = _marks(info)
    kind = _words(info.annotation, bounds, sections)
    unit = f"{marked} †" if marked else next((u for end, u in _ENDS.items() if key.endswith(end)), "")
    marks = (*info.metadata, *(m for m in _metadata(info) if isinstance(m, Price)))
    limits = dict.fromkeys(
        "price" if isinstance(m, Price) else _SIDES[m.side] for m in marks if isinstance(m, Price | Limit)
    )
    cells = [f"`{info.alias or key}`", kind, unit, _default(info), ", ".join(limits), _meaning(info)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(info: FieldInfo) -> str:
    """Meaning of a key: its description, its limit, or the section it holds; empty: nobody has stated."""
    own = [f.description for a in _alternatives(info.annotation) for f in get_args(a)[1:] if isinstance(f, FieldInfo)]
    if said := next(filter(None, [info.description, *own]), None):
        return said
    for marker in info.metadata:
        if isinstance(marker, Limit):
            return re.sub(r"\s+", " ", re.sub(r"( (of|for))? ?\{\w+\}", "", marker.name)).strip()
    inner = [m for m, _ in _inner(info.annotation, "")]
    return _first(inner[0]) if inner else ""


def _first(model: type[BaseModel]) -> str:
    """The first line of its docstring, ``x`` as `x`."""
    return (model.__doc__ or "").strip().split("\n")[0].replace("``", "`")


def _marks(info: FieldInfo | Any) -> tuple[str, list[Any]]:
    """The unit that a number is marked with, and the bounds on it."""
    unit, bounds = "", []
    for mark in _metadata(info):
        if isinstance(mark, Unit):
            unit = mark.symbol
        elif any(hasattr(mark, b) for b in _BOUNDS):
            bounds.append(mark)
    return unit, bounds


def _metadata(info: Any) -> Iterator[Any]:
    """Of a field and of the first alternative of its type that has any."""
    yield from info.metadata
    for arg in _alternatives(info.annotation):
        if get_origin(arg) is Annotated:
            for mark in get_args(arg)[1:]:
                yield from mark.metadata if isinstance(mark, FieldInfo) else (mark,)
            return


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(a for a in get_args(annotation) if a is not type(None))
    return (annotation,)


def _words(annotation: Any, bounds: list[Any], sections: Mapping[type[BaseModel], _Section]) -> str:
    """A type in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for mark in args[1:] for m in (mark.metadata if isinstance(mark, FieldInfo) else (mark,))]
        return _words(args[0], [m for m in inner if any(hasattr(m, b) for b in _BOUNDS)] or bounds, sections)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(a, bounds, sections) for a in _alternatives(annotation)))
    if origin is Literal:
        return ", ".join(f"`{json.dumps(a) if not isinstance(a, str) else a}`" for a in args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"list of {_words(args[0], [], sections)}"
        return "[" + ", ".join(_words(a, [], sections) for a in args) + "]"
    if origin in (dict, Mapping):
        return f"name → {_words(args[1], [], sections)}"
    if _is_section(annotation):
        anchor = re.sub(r"[^a-z0-9_ -]", "", sections[annotation].title.lower()).replace(" ", "-")
        return f"[section](#{anchor})"
    if _is_model(annotation):
        return "document"
    name = _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return " ".join([name, _range(bounds)]).strip() if annotation in (int, float) else name


def _range(bounds: list[Any]) -> str:
    """``≥ 0, ≤ 1``; the tightest of each side, and none that nobody meets."""
    said: dict[str, float] = {}
    for mark in bounds:
        for name in _BOUNDS:
            value = getattr(mark, name, None)
            if value is not None and abs(value) < 2**31 - 1:
                side = name[0]
                for other in [o for o in said if o[0] == side]:
                    if (value > said[other]) != (side == "g"):
                        break
                    del said[other]
                else:
                    said[name] = value
    return ", ".join(
        f"{_BOUNDS[name]} {f'{value:,.0f}' if value == int(value) else f'{value:g}'}" for name, value in said.items()
    )


def _default(info: FieldInfo) -> str:
    """As a file would write it; nothing for a section's own defaults."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or value in ("", (), {}):
        return "none"
    if isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value, default=str)}`"
