"""Documents given to a report: results, comparisons, files or folders of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optmodels.errors import InputError, Mistake, printable
from optmodels.io.read import parsed_json, read_text, refuse_strange, validate
from optmodels.plan.outcome import Result
from optmodels.reporting.page.articles import Article, of_result
from optmodels.reporting.page.comparison import of_comparison
from optmodels.reporting.page.explanation import of_explanation
from optmodels.reporting.page.sweep import of_sweep

FILES = ("plan.json", "compare.json", "sweep.json", "explanation.json")  # what a folder of results may hold
EXPECTED = "a result (plan.json), a comparison (compare.json), a sweep (sweep.json) or an explanation"
AS_WRITTEN = f"{EXPECTED}, as optmodels wrote it"


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
    if isinstance(item, Result):
        return of_result(item.document())
    if isinstance(item, str | PathLike):
        path = _file(Path(item))
        with as_written(str(path)):
            return _shown(_read(path), str(path))
    return _shown(item, None)


def _shown(item: Any, name: str | None) -> Article:
    """The article of a document that was read."""
    if _is_comparison(item):
        return of_comparison(item)
    if isinstance(item, Mapping) and item.get("kind") == "explanation":
        return of_explanation(item)
    if isinstance(item, Mapping) and "keys" in item and isinstance(item.get("rows"), list):
        return of_sweep(item)
    if not isinstance(item, Mapping) or "formulation" not in item or "status" not in item:
        raise InputError(Mistake(name, "", item, EXPECTED))
    result = validate(Result, item, name)
    try:
        return of_result(result.model_dump(mode="json", by_alias=True))
    except ValidationError as error:  # of the plan, or of one in what the formulation reports
        _refuse_by_schema(item, name)
        first = error.errors()[0]
        where = "report … " + ".".join(map(str, first["loc"]))
        value = None if first["type"] == "missing" else first["input"]
        raise InputError(Mistake(name, where, value, AS_WRITTEN)) from None


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
    data = parsed_json(read_text(path, EXPECTED), str(path))
    refuse_strange(data, str(path))
    return data


@contextmanager
def as_written(name: str) -> Iterator[None]:
    """Say of a file that lacks something, or has something else in its place, that it is not as it was written.

    Raises:
        InputError: with the places inside the file where they are known.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        _refuse_by_schema(_read(_file(Path(name))), name)
        # What a formulation reports has no schema: whoever shows it finds out.
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
            raise InputError(Mistake(name, error.args[0], None, AS_WRITTEN)) from error
        said = printable(str(error).partition("\n")[0], 200)
        raise InputError(Mistake(name, "", f"a part that cannot be shown: {said}", AS_WRITTEN)) from error


def _refuse_by_schema(item: Any, name: str | None) -> None:
    """Refuse a document that is not as its schema says, with the places.

    Only one that cannot be shown is asked this: those of earlier versions may lack what is new.
    """
    from optmodels import formulation as registry
    from optmodels.study import documents
    from optmodels.study.explanation.document import Explanation

    if isinstance(item, list):
        for i, row in enumerate(item):
            validate(documents.Comparison, row, name, prefix=f"[{i}]")
    elif item.get("kind") == "explanation":
        validate(Explanation, item, name)
    elif "keys" in item:
        validate(documents.SweepDocument, item, name)
    elif item.get("plan") is not None and item.get("formulation") in registry.names():
        schema = registry.get(item["formulation"]).plan
        if schema is not None:
            validate(schema, item["plan"], name, prefix="plan")
