"""Places in an instance document by name: ``workloads[chat].slo.ttft_s``, ``pool.machines[0].prices.spot``.

A key is one that the file states or could state (the schema knows keys that the file leaves to their default); a list
entry goes by index, by its name, or ``[*]`` for all; a mapping's key with dots in it goes in brackets.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from optmodels.errors import InputError, Mistake
from optmodels.limits import SPELLED, spellings

Location = tuple[int | str, ...]
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")
_ABSENT: Any = object()
SUGGESTIONS = 3
_ENTRIES = 50  # of a list, looked at for suggestions
_DEPTH = 5  # of sections the file does not have, looked at for suggestions


@dataclass(frozen=True)
class Place:
    """One place a path names.

    Attributes:
        location: keys and indices from the top of the document.
        whole: the schema takes whole numbers there, and no others.
    """

    location: Location
    whole: bool


def find(document: Mapping[str, Any], schema: type[BaseModel], path: str, file: str | None = None) -> list[Place]:
    """The places a path names, several where it has ``[*]``.

    Args:
        document: an instance as read from its file.
        schema: schema of the instance.
        path: see the module's docstring.
        file: how to name the instance in messages.

    Raises:
        InputError: no such place; near ones are named.
    """
    steps = _steps(path)
    if steps is None:
        raise InputError(Mistake(file, path, "a path that cannot be read", "a path such as workloads[chat].slo.ttft_s"))
    try:
        return [
            Place(location, bool(kinds) and int in kinds and float not in kinds)
            for location, kinds in _walk(document, [schema], steps, (), "")
        ]
    except _NoWayError as stop:
        near = _near(path, list(_known(document, [schema], "", "", 0)))
        hint = f"did you mean {' or '.join(near)}?" if near else None
        raise InputError(Mistake(file, path, stop.got, stop.expected, hint=hint)) from None


def put(document: Mapping[str, Any], location: Location, value: Any) -> dict[str, Any]:
    """The document with a value at a place; sections are made where it has none, the original stays as it is."""

    def rebuilt(node: Any, rest: Location) -> Any:
        if not rest:
            return value
        head = rest[0]
        if isinstance(head, int):
            return [rebuilt(v, rest[1:]) if i == head else v for i, v in enumerate(node)]
        section = dict(node) if isinstance(node, Mapping) else {}
        section[head] = rebuilt(section.get(head), rest[1:])
        return section

    changed: dict[str, Any] = rebuilt(document, location)
    return changed


def value_at(document: Any, location: Location) -> Any:
    """The value at a place; None where the document has none."""
    for part in location:
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, Sequence) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


class _NoWayError(Exception):
    def __init__(self, got: object, expected: str) -> None:
        self.got, self.expected = got, expected
        super().__init__(expected)


def _steps(path: str) -> list[tuple[str, bool]] | None:
    """Keys and bracketed parts (True) of a path; None where it is no path."""
    found, at = [], 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or (match[1] is not None and at > 0 and path[at] != "."):
            return None
        found.append((match[1], False) if match[1] is not None else (match[2].strip("'\" "), True))
        at = match.end()
    return found or None


def _walk(
    data: Any, kinds: list[Any], steps: Sequence[tuple[str, bool]], done: Location, list_key: str
) -> Iterator[tuple[Location, list[Any]]]:
    """Every (location, types the schema takes there) the steps lead to."""
    if not steps:
        yield done, kinds
        return
    (step, bracket), rest = steps[0], steps[1:]
    if isinstance(data, list | tuple):
        if not bracket:
            raise _NoWayError(step, f"an entry in brackets, one of {_listed(_labels(data, list_key))}")
        for i in _entries(data, step, list_key):
            yield from _walk(data[i], _items(kinds), rest, (*done, i), "")
        return
    if data is not _ABSENT and data is not None and not isinstance(data, Mapping):
        raise _NoWayError(data, f"a section at {_dotted(done)}: the file has a single value there")
    fields = _fields(kinds, data)
    there = data if isinstance(data, Mapping) else {}
    if step == "*" and bracket:
        if not there:
            raise _NoWayError(step, f"entries at {_dotted(done)}")
        for key in there:
            yield from _walk(there[key], fields.get(key, _values(kinds)), rest, (*done, key), key)
        return
    spelled = [step, *spellings(step)]
    step = next((s for s in spelled if s in there), next((s for s in spelled if s in fields), step))
    if step not in there and step not in fields and not _values(kinds):
        known = _listed([*there, *(k for k in fields if k not in there)])
        raise _NoWayError(step, f"one of the keys {known}" if known else "no key: nothing can be set there")
    inner = fields.get(step, fields.get(SPELLED.get(step, ""), _values(kinds)))
    yield from _walk(there.get(step, _ABSENT), inner, rest, (*done, step), step)


def _entries(data: Sequence[Any], step: str, list_key: str) -> list[int]:
    """Indices that a bracketed step names in a list."""
    if step == "*" and len(data):
        return list(range(len(data)))
    if step.isdigit() and int(step) < len(data):
        return [int(step)]
    named = [i for i, label in enumerate(_labels(data, list_key)) if label == step]
    loosely = [
        i for i, v in enumerate(data) if v == step or (isinstance(v, Mapping) and step in _texts(v.values()))
    ]  # fmt: skip
    found = named or loosely
    if len(found) == 1:
        return found
    if found:
        raise _NoWayError(step, f"an index: entries {', '.join(map(str, found))} all go by that name")
    raise _NoWayError(
        step, f"one of {_listed(_labels(data, list_key))}" if len(data) else "an entry: the list is empty"
    )


def _texts(values: Any) -> list[str]:
    return [v for v in values if isinstance(v, str)]


def _labels(data: Sequence[Any], list_key: str) -> list[str]:
    """Names of the entries of a list: ``name``, the singular of the list's key (regions: region), or the index."""
    one = f"{list_key[:-3]}y" if list_key.endswith("ies") else list_key.removesuffix("s")
    keys = ("name", one)
    return [
        next((v[k] for k in keys if isinstance(v.get(k), str) and v[k]), str(i)) if isinstance(v, Mapping) else str(i)
        for i, v in enumerate(data)
    ]


def _listed(names: Sequence[str], most: int = 40) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the top"


# ------------------------------------------------------------------------------------------------- the schema's side


def _unpacked(annotation: Any) -> list[Any]:
    """The members of a union, without ``Annotated`` and ``None``."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _unpacked(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [u for a in typing.get_args(annotation) for u in _unpacked(a)]
    return [] if annotation is type(None) else [annotation]


def _fields(kinds: list[Any], data: Any) -> dict[str, list[Any]]:
    """Keys of the sections the schema takes here, and the values of each; those of another ``kind`` do not count."""
    found: dict[str, list[Any]] = {}
    for model in kinds:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        if isinstance(data, Mapping) and _other_kind(model, data):
            continue
        for name, field in model.model_fields.items():
            known = found.setdefault(field.alias or name, [])
            known += [u for u in _unpacked(field.annotation) if u not in known]
    return found


def _other_kind(model: type[BaseModel], data: Mapping[str, Any]) -> bool:
    return any(
        name in data and typing.get_origin(f.annotation) is typing.Literal
        and data[name] not in typing.get_args(f.annotation)
        for name, f in model.model_fields.items() if name == "kind"
    )  # fmt: skip


def _items(kinds: list[Any]) -> list[Any]:
    """Types of the entries of a list."""
    return [
        u for k in kinds if typing.get_origin(k) in (tuple, list)
        for a in typing.get_args(k) if a is not Ellipsis for u in _unpacked(a)
    ]  # fmt: skip


def _values(kinds: list[Any]) -> list[Any]:
    """Types of the values of a mapping."""
    return [u for k in kinds if typing.get_origin(k) is dict for u in _unpacked(typing.get_args(k)[1])]


def _known(data: Any, kinds: list[Any], path: str, list_key: str, absent: int) -> Iterator[str]:
    """Paths of single values and lists in the document or in sections it could have."""
    if isinstance(data, list | tuple):
        yield path
        for label, value in list(zip(_labels(data, list_key), data, strict=True))[:_ENTRIES]:
            if isinstance(value, Mapping | list | tuple):
                yield from _known(value, _items(kinds), f"{path}[{label}]", "", absent)
        return
    fields = _fields(kinds, data)
    if isinstance(data, Mapping):
        keys = [*data, *(k for k in fields if k not in data)]
    elif data is _ABSENT and fields and absent < _DEPTH:
        keys = list(fields)
    else:
        yield path
        return
    for key in keys:
        shown = f"[{key}]" if "." in str(key) else f".{key}" if path else str(key)
        value = data.get(key, _ABSENT) if isinstance(data, Mapping) else _ABSENT
        yield from _known(value, fields.get(key, _values(kinds)), path + shown, str(key), absent + (value is _ABSENT))


def _near(path: str, known: list[str]) -> list[str]:
    """The known paths most like one that leads nowhere: spelled alike, or with the same ending."""
    ending = re.split(r"[.\[]", path)[-1]
    same = [k for k in known if re.split(r"[.\[]", k)[-1] == ending]
    alike = difflib.get_close_matches(path, same, n=SUGGESTIONS, cutoff=0.0) if same else []
    return alike or difflib.get_close_matches(path, known, n=SUGGESTIONS, cutoff=0.4)
