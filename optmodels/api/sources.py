"""What verbs are given: problems, plan documents, request traces."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from optmodels.errors import InputError, Mistake, UnattainableError
from optmodels.io.write import path_text
from optmodels.loading import load
from optmodels.plans.outcome import Result
from optmodels.problem import Problem

if TYPE_CHECKING:
    from optmodels.traces.types import Trace

File = str | PathLike[str]
Source = File | Mapping[str, Any] | Problem
PlanSource = File | Mapping[str, Any] | Result
Verb = TypeVar("Verb", bound=Callable[..., Any])


def renamed(
    older: Mapping[str, str], marks: Callable[[Mapping[str, Any]], bool] | None = None
) -> Callable[[Verb], Verb]:
    """Let a verb accept older names of its arguments, with a `DeprecationWarning`.

    Args:
        older: older name → name.
        marks: whether the arguments of a call, by name, are the older ones; None: an older name tells.
    """

    def accepting(verb: Verb) -> Verb:
        @functools.wraps(verb)
        def called(*args: Any, **given: Any) -> Any:
            all_given = dict(zip(inspect.signature(verb).parameters, args, strict=False)) | given
            if marks is None or marks(all_given):
                for name in older.keys() & given.keys():
                    warnings.warn(
                        f"{verb.__name__}: {name} is called {older[name]} now", DeprecationWarning, stacklevel=2
                    )
                given = {older.get(name, name): value for name, value in given.items()}
            return verb(*args, **given)

        return called  # type: ignore[return-value]

    return accepting


def problem_of(source: Source) -> Problem:
    """The problem of a file, a mapping or a `Problem`.

    Raises:
        InputError: no file, or a problem file that is wrong.
    """
    return source if isinstance(source, Problem) else load(source)


def shown_name(source: Source, problem: Problem) -> str:
    """How documents name a problem file: its path, or its own name."""
    return path_text(source) if isinstance(source, str | PathLike) else problem.name


def inlined(problem: Problem) -> dict[str, Any]:
    """The problem with every file next to it, as JSON data; unmodified where nothing can meet its limits."""
    with contextlib.suppress(UnattainableError):
        problem = problem.inline()
    return problem.model_dump(mode="json", by_alias=True, exclude_none=True)


def planned(source: PlanSource, instance: Source | None) -> tuple[Problem, Mapping[str, Any], Mapping[str, Any]]:
    """The problem, the plan and the document of a plan file.

    Raises:
        InputError: no plan document, or it holds no plan.
    """
    document, name = document_of(source)
    plan = document.get("plan")
    if not isinstance(plan, Mapping):
        raise InputError(Mistake(name, "plan", plan, "a plan: this document has none"))
    return embedded(document, name) if instance is None else problem_of(instance), plan, document


def document_of(source: PlanSource) -> tuple[Mapping[str, Any], str | None]:
    """A result document and the file it comes from."""
    from optmodels.io.read import read_document

    if isinstance(source, Result):
        return source.model_dump(mode="json", by_alias=True), None
    if isinstance(source, Mapping):
        return source, None
    path = Path(source) / "plan.json" if Path(source).is_dir() else Path(source)
    if not path.is_file():
        wrong = f"no plan.json in {path.parent.name}" if Path(source).is_dir() else "no such file"
        raise InputError(Mistake(str(source), "", wrong, "plan.json of a result, or the folder it is in"))
    return read_document(path)[0], str(path)


def embedded(document: Mapping[str, Any], name: str | None) -> Problem:
    """The problem that a result document carries."""
    embedded = document.get("problem")
    if not isinstance(embedded, Mapping):
        raise InputError(Mistake(name, "problem", embedded, "the problem the plan was made for"))
    try:
        return problem_of(dict(embedded))
    except InputError as error:
        raise InputError(
            replace(m, file=name, path=f"problem.{m.path}") if m.file is None else m for m in error.mistakes
        ) from None


def written(trace: Any) -> Any:
    """A data frame of requests as a Parquet file that is removed at the end of the process; all else unchanged."""
    if not hasattr(trace, "to_parquet"):
        return trace
    import atexit
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="optmodels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    trace.to_parquet(folder / "frame.parquet")
    return folder / "frame.parquet"


def read_requests(
    trace: str | PathLike[str] | Trace | None, column: Mapping[str, str] | None,
    where: Mapping[str, str | Sequence[str]] | None, skip_bad: bool, first: float | None = None,
    rate_factor: float = 1.0,
) -> Trace | None:  # fmt: skip
    """The requests that the options of a verb name.

    Args:
        trace: requests, a data frame or a file of them; None: the problem's own, which have no options.
        column: columns of a trace file: our name → the file's (`traces.readers.read_trace`).
        where: keep the rows of the file whose columns have these values.
        skip_bad: skip rows that cannot be read, and count them.
        first: seconds of the trace to keep; None: all.
        rate_factor: multiply the trace's arrival rate by this factor.

    Raises:
        InputError: an option without its subject, or a trace that cannot be read.
    """
    from optmodels.traces import shape
    from optmodels.traces.readers import read_trace

    trace = written(trace)
    if first is not None and not first > 0:
        raise InputError(Mistake(None, "first", first, "seconds > 0"))
    if trace is None and (rate_factor != 1 or first is not None):
        raise InputError(Mistake(None, "trace", None, "a trace: first and rate_factor are about one"))
    for name, value in (("column", column), ("where", where), ("skip_bad", skip_bad)):
        if value and not isinstance(trace, str | PathLike):
            raise InputError(Mistake(None, name, value, "a trace file: this option is about its rows"))
    requests = read_trace(Path(trace), column, where, skip_bad) if isinstance(trace, str | PathLike) else trace
    if requests is None:
        return None
    return shape.sped_up(requests if first is None else shape.part(requests, 0.0, first), rate_factor)
