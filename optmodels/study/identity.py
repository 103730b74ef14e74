"""Digest of a problem: its values, the files it names, the catalogue entries it refers to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optmodels.problem import Problem


def as_document(problem: Problem) -> dict[str, Any]:
    """The instance document of a problem, references as they are."""
    return problem.model_dump(mode="json", by_alias=True, exclude_none=True)


def written_out(problem: Problem) -> dict[str, Any]:
    """The instance document with everything it refers to."""
    return as_document(problem.inline())


def canonical(data: Any) -> bytes:
    """JSON data as bytes that are equal where the data are."""
    return json.dumps(data, sort_keys=True, default=str, ensure_ascii=False).encode("utf-8", "surrogatepass")


def digest(document: Mapping[str, Any], folder: Path | None) -> str:
    """Identity of an instance's contents: its values, whatever their layout, and the files it names.

    Args:
        document: document, as in its file.
        folder: folder of the files that it names.
    """
    known = hashlib.sha256(canonical(document))
    for path in sorted({p for text in _texts(document) if (p := named_file(text, folder)) is not None}):
        known.update(path.read_bytes())
    return known.hexdigest()


def resolved_digest(document: Mapping[str, Any], problem: Problem, folder: Path | None) -> str:
    """`digest`, and the digest of its entries in the catalogue, as this version of the program writes it out."""
    inline = problem.inline().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return hashlib.sha256(digest(document, folder).encode() + canonical(inline)).hexdigest()


def named_file(text: str, folder: Path | None) -> Path | None:
    """The file next to an instance that one of its texts names, if any."""
    try:
        path = folder / text if folder is not None and 0 < len(text) < 200 else None
        return path if path is not None and path.is_file() else None
    except (OSError, ValueError):
        return None


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping | list | tuple):
        for value in data.values() if isinstance(data, Mapping) else data:
            yield from _texts(value)
