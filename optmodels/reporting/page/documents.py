"""Documents given to a report: results, comparisons, files or folders of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optmodels.errors import InputError, Mistake, printable
from optmodels.plan.outcome import Result
from optmodels.reporting.page.articles import Article, of_result
from optmodels.reporting.page.comparison import of_comparison
from optmodels.reporting.page.explanation import of_explanation
from optmodels.reporting.page.sweep import of_sweep

FILES = ("plan.json", "compare.json", "sweep.json", "explanation.json")  # what a folder of results may hold
EXPECTED = "a result (plan.json), a comparison (compare.json), a sweep (sweep.json) or an explanation"


def articles(given: Iterable[Any]) -> list[Article]:
    """An article for every document; the rows of one comparison are one document.

    Raises:
        InputError: no document, unreadable, or not one of ours.
    """
    items = list(given)
    found = [of_comparison(items)] if _is_comparison(items) else [_article(item) for item in items]
    if not found:
        raise InputError(Mistake(None, "results", [], EXPECTED))
    return found


def _article(item: Any) -> Article:
    name: str | None = None
    if isinstance(item, Result):
        return of_result(item.model_dump(mode="json", by_alias=True))
    if isinstance(item, str | PathLike):
        path = _file(Path(item))
        name, item = str(path), _read(path)
    if _is_comparison(item):
        return of_comparison(item)
    if isinstance(item, Mapping) and item.get("kind") == "explanation":
        return of_explanation(item)
    if isinstance(item, Mapping) and "keys" in item and isinstance(item.get("rows"), list):
        return of_sweep(item)
    if not isinstance(item, Mapping) or "formulation" not in item or "status" not in item:
        raise InputError(Mistake(name, "", item, EXPECTED))
    try:
        return of_result(Result.model_validate(item).model_dump(mode="json", by_alias=True))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(Mistake(name, where, first["input"], printable(first["msg"], 200))) from None


def _is_comparison(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(r, Mapping) and "gap_to_bound" in r for r in item)


def _file(path: Path) -> Path:
    """The document in a folder of results, or the file itself."""
    if path.is_dir():
        for name in FILES:
            if (path / name).is_file():
                return path / name
        raise InputError(Mistake(str(path), "", "a folder without results", f"a folder with {' or '.join(FILES)}"))
    return path


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(Mistake(str(path), "", error.strerror or "unreadable", EXPECTED)) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(Mistake(str(path), "", str(error)[:100], f"JSON: {EXPECTED}")) from None
