"""Documents given to a report: results, comparisons, files or folders of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optmodels.errors import InputError, Mistake, printable
from optmodels.io.read import parsed_json, read_text, refuse_strange, validate
from optmodels.plans.outcome import Result
from optmodels.reporting.page.articles import Article, of_result
from optmodels.reporting.page.backtest import of_backtest
from optmodels.reporting.page.comparison import of_comparison
from optmodels.reporting.page.explanation import of_explanation
from optmodels.reporting.page.sweep import of_sweep

FILES = ("plan.json", "compare.json", "sweep.json", "explanation.json")  # files that a folder of results may hold
EXPECTED = "a result (plan.json), a comparison (compare.json), a sweep (sweep.json), a backtest or an explanation"
Refuse = Callable[[Any, str | None], None]
AS_WRITTEN = f"{EXPECTED}, as optmodels wrote it"


def articles(given: Iterable[Any], refuse: Refuse | None = None) -> list[Article]:
    """An article for every document; the rows of one comparison are one document.

    Args:
        given: documents, files or folders of them.
        refuse: states the mistakes of a document that cannot be shown, by its schema.

    Raises:
        InputError: no document, unreadable, or not one of ours.
    """
    items = list(given)
    found = [of_comparison(items)] if _is_comparison(items) else [_article(item, refuse) for item in items]
    if not found:
        raise InputError(Mistake(None, "results", [], EXPECTED))
    return found


def _article(item: Any, refuse: Refuse | None) -> Article:
    if isinstance(item, Result):
        return of_result(item.document())
    if isinstance(item, str | PathLike):
        path = _file(Path(item))
        with as_written(str(path), refuse):
            return _shown(_read(path), str(path), refuse)
    return _shown(item, None, refuse)


def _shown(item: Any, name: str | None, refuse: Refuse | None) -> Article:
    """The article of a document that was read."""
    if _is_comparison(item):
        return of_comparison(item)
    if isinstance(item, Mapping) and item.get("kind") == "explanation":
        return of_explanation(item)
    if isinstance(item, Mapping) and "hindsight_usd" in item:
        return of_backtest(item)
    if isinstance(item, Mapping) and "keys" in item and isinstance(item.get("rows"), list):
        return of_sweep(item)
    if not isinstance(item, Mapping) or "formulation" not in item or "status" not in item:
        raise InputError(Mistake(name, "", item, EXPECTED))
    result = validate(Result, item, name)
    try:
        return of_result(result.model_dump(mode="json", by_alias=True))
    except ValidationError as error:  # of the plan, or of one in the formulation's report
        if refuse is not None:
            refuse(item, name)
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
    refuse_strange(data, str(path), computed=True)
    return data


@contextmanager
def as_written(name: str, refuse: Refuse | None = None) -> Iterator[None]:
    """State of a file that lacks something, or has something else in its place, that it is not as it was written.

    Raises:
        InputError: with the places inside the file where they are known.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if refuse is not None:
            refuse(_read(_file(Path(name))), name)
        # A formulation's report has no schema: mistakes appear when it is shown.
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
            raise InputError(Mistake(name, error.args[0], None, AS_WRITTEN)) from error
        said = printable(str(error).partition("\n")[0], 200)
        raise InputError(Mistake(name, "", f"a part that cannot be shown: {said}", AS_WRITTEN)) from error
