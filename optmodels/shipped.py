"""The instances that come with optmodels: found in the repository and in an installed wheel alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.io.read import read_document
from optmodels.io.write import refuse_existing, write_bytes, write_text


def root() -> Path:
    """The folder of shipped instances: inside the package in a wheel, next to it in the repository."""
    package = Path(__file__).parent
    return next(f for f in (package / "instances", package.parent / "instances") if f.is_dir())


def instances(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files in a folder and below that hold instances (YAML or JSON that names a formulation), with their contents."""
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml", ".json")):
        try:
            data, _ = read_document(path)
        except InputError:
            continue
        if "formulation" in data and not data.keys() & {"instance", "plan"}:  # results are none
            yield path, data


def named(formulation: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Name (``infeasible/deadline``), file and content of the shipped instances of a formulation."""
    folder = root() / formulation
    for path, data in instances(folder):
        yield path.relative_to(folder).with_suffix("").as_posix(), path, data


def copy(formulation: str, name: str, file: Path | None = None, *, overwrite: bool = False) -> str:
    """Write a shipped instance to a file, and its tables and traces next to it; returns its text.

    Args:
        formulation: the instance's.
        name: name that `named` takes.
        file: target file; None: nothing is written.
        overwrite: replace existing files. Without it a file next to that is the same already stays.

    Raises:
        InputError: no instance of that name, or a file that exists; then nothing is written.
    """
    found = {n: (path, data) for n, path, data in named(formulation)}
    if name not in found:
        near = difflib.get_close_matches(name, found) or [n for n in found if name and name in n][:3]
        raise InputError(Mistake(None, "from", name, f"a name that `optmodels list problems` has for {formulation}",
                                 hint=f"did you mean {' or '.join(near)}?" if near else None))  # fmt: skip
    path, data = found[name]
    text = path.read_text(encoding="utf-8")
    if file is None:
        return text
    beside = {file.parent / other: (path.parent / other).read_bytes() for other in sorted(_files(path.parent, data))}
    changed = {target: content for target, content in beside.items() if not _holds(target, content)}
    if not overwrite:  # all or none
        refuse_existing(file, *changed)
    for target, content in changed.items():
        write_bytes(target, content, overwrite=overwrite)
    write_text(file, text, overwrite=overwrite)
    return text


def _files(folder: Path, data: Any) -> set[str]:
    """Every text in a document that names a file in that folder."""
    if isinstance(data, str):
        return {data} if (folder / data).is_file() else set()
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return set().union(*(_files(folder, part) for part in parts))


def _holds(file: Path, content: bytes) -> bool:
    return file.is_file() and file.read_bytes() == content
