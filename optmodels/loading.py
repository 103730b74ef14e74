"""Instance file → validated problem."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optmodels.catalog.files import with_models_read
from optmodels.errors import InputError, Mistake, UnattainableError
from optmodels.io.read import as_written, read_document, refuse_strange, validate
from optmodels.io.write import path_text
from optmodels.limits import SECONDS_USUAL, SPELLED, restrictions, spellings
from optmodels.problem import Problem
from optmodels.units import bare_number


def load(
    source: str | PathLike[str] | Mapping[str, Any], *, folder: Path | None = None, limits_may_fail: bool = False,
    computed: bool | None = None,
) -> Problem:  # fmt: skip
    """Load and validate an instance, everything it refers to included.

    Args:
        source: a YAML or JSON file, or the same as a mapping.
        folder: folder of a mapping's files; None: it names none.
        computed: a program wrote it, so that every bare number is in the unit of its key; default: of a mapping.
        limits_may_fail: return a well-formed instance even if nothing can meet its limits.

    Raises:
        InputError: every mistake found, with file, path, value and the expected one.
    """
    from optmodels import formulation

    file, data = None, source
    line: Any = lambda _: None  # noqa: E731
    if not isinstance(source, Mapping):
        path = Path(source)
        try:
            data, line = read_document(path)
        except InputError as error:
            raise InputError(
                replace(m, hint=_shipped(path)) if m.value == "no such file" else m for m in error.mistakes
            ) from None
        file, folder = str(path), path.parent
    else:
        refuse_strange(source)
    assert isinstance(data, Mapping)
    name = data.get("formulation")
    if not isinstance(name, str):
        known = f"one of {', '.join(formulation.names())}"
        raise InputError(Mistake(file, "formulation", name, known, line(("formulation",))))
    try:
        schema = formulation.get(name).problem
    except InputError as error:
        raise InputError(replace(m, file=file, line=line(("formulation",))) for m in error.mistakes) from None
    data = with_models_read(data, folder)
    problem: Problem = validate(schema, data, file, line)
    problem._file, problem._folder = file, folder
    computed = file is None if computed is None else computed
    if not computed and (bare := _without_unit(problem, data)):
        raise InputError(replace(m, file=file, line=line(_location(m.path))) for m in bare)
    if file is not None:
        for old, key in sorted(set(_older(problem, data))):
            warnings.warn(f"{file}: {old} is called {key} now", FutureWarning, stacklevel=2)
    if not problem.name and file is not None:
        problem = problem.model_copy(update={"name": Path(path_text(file)).stem})
    try:
        problem.resolve()
    except InputError as error:
        if isinstance(error, UnattainableError) and limits_may_fail:
            return problem
        raise type(error)(
            m if m.file else replace(m, file=file, line=line(_location(m.path))) for m in error.mistakes
        ) from None
    return problem


def _older(section: Any, data: Any) -> Iterator[tuple[str, str]]:
    """Older spellings of keys that a file uses, with the keys.

    Args:
        section: a validated section, or a list or mapping with sections.
        data: the same as its author wrote it.
    """
    if isinstance(section, BaseModel) and isinstance(data, Mapping):
        for name, field in type(section).model_fields.items():
            key = field.alias or name
            older = [name] if name != key else [n for n in spellings(name) if n not in type(section).model_fields]
            used = next((n for n in (key, *older) if n in data), key)
            if used != key and used in SPELLED:
                yield used, key
            yield from _older(getattr(section, name), data.get(used))
    elif isinstance(section, Mapping) and isinstance(data, Mapping):
        for name, part in section.items():
            yield from _older(part, data.get(name))
    elif isinstance(section, list | tuple) and isinstance(data, list) and section and isinstance(section[0], BaseModel):
        for part, there in zip(section, data, strict=False):
            yield from _older(part, there)


def _without_unit(problem: Problem, data: Any) -> list[Mistake]:
    """Latency limits that a file writes as bare numbers and that are longer than users wait: seconds or milliseconds?

    Args:
        problem: the validated instance.
        data: the same as its author wrote it.
    """
    return [
        Mistake(
            None, _written(r.where, as_written(r.at, data)), int(bare) if bare.is_integer() else bare,
            f"a {r.marker.name} with its unit: '{bare:g} ms' or '{bare:g} s'",
        )
        for r in restrictions(problem)
        if r.marker.name in SECONDS_USUAL and r.value > SECONDS_USUAL[r.marker.name]
        and (bare := bare_number(_at(data, as_written(r.at, data)))) is not None
    ]  # fmt: skip


def _written(where: str, at: tuple[str | int, ...]) -> str:
    """A path in words with the last key as the file has it."""
    return f"{where.rpartition('.')[0]}.{at[-1]}" if isinstance(at[-1], str) and where.endswith("_s") else where


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    """The value at a path of a document; None: not there."""
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _shipped(path: Path) -> str | None:
    """How to get the instance that comes with optmodels under the name of a file that is not there."""
    from optmodels import formulation, shipped

    of = [shipped.root() / form for form in formulation.names()]
    for folder, file in ((f, p) for f in of for p in f.rglob("*.yaml") if p.name in (path.name, f"{path.name}.yaml")):
        name = file.relative_to(folder).with_suffix("").as_posix()
        return f"one comes with optmodels: optmodels new {folder.name} --from {name}, then solve {file.name}"
    return None


def _location(path: str) -> tuple[int | str, ...]:
    """``pool.machines[2].gpu`` back to ``('pool', 'machines', 2, 'gpu')``."""
    parts: list[int | str] = []
    for piece in path.split("."):
        key, *indices = piece.replace("]", "").split("[")
        if key:
            parts.append(key)
        parts += [int(i) for i in indices if i.isdigit()]
    return tuple(parts)
