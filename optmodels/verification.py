"""The check of a whole solve document: its plan by the formulation's own check, everything else that can be made again.

Three kinds of part, of falling strength, which the verdict keeps apart: the plan is checked independently of the
program that made it; the report and the tables next to the document are rebuilt from instance and plan by the program
that writes them, and compared value by value; the rest is listed as taken on trust.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optmodels.errors import printable
from optmodels.formulation import Formulation
from optmodels.io.write import csv_text, safe_name
from optmodels.plans.claims import (
    ON_TRUST,
    check_log,
    check_result,
    check_verdict,
    compare,
    digest,
    on_trust,
    plain,
    same,
)
from optmodels.plans.findings import Findings
from optmodels.plans.outcome import CheckReport, DocumentReport, Result, Trusted
from optmodels.solver.deadline import deadline

PLAN_ONLY = {"plan", "problem"}  # a mapping with no other key claims nothing but the plan
MOST_SHOWN = 20
VERSION = re.compile(r"\d+(\.\d+)+([-.+]?\w+)*")


def place(document: Mapping[str, Any], requirement: str) -> str:
    """The path inside a document of the claim that breaks a requirement; ``plan`` for a requirement of the plan."""
    if requirement == "document is well-formed":
        return ""
    path, named, _ = requirement.partition(": ")
    known = path.partition(".")[0].partition("[")[0] in document or (named and path.endswith(".csv"))
    return path if known else "plan"


@functools.cache
def version() -> str:
    """The installed version."""
    from importlib.metadata import version as installed

    return installed("optmodels")


def csv_files(form: Formulation, tables: Any, plan: Any) -> dict[str, str]:
    """The tables written next to a plan: text by file name."""
    return {f"{safe_name(name)}.csv": csv_text(frame) for name, frame in form.frames(tables, plan).items()}


def verify(
    form: Formulation, problem: Any, document: Mapping[str, Any], folder: Path | None = None, *, own: bool = True
) -> DocumentReport:  # fmt: skip
    """The verdict on a document that has a plan.

    Args:
        form: the formulation of the problem.
        problem: the instance to judge by.
        document: a solve document as JSON data, or a mapping of its plan alone.
        folder: folder of the tables; None: no tables.
        own: the instance is the document's own; another one states nothing about report, tables and verdict.
    """
    verdict = form.check(problem, document["plan"])
    trusted = dict(on_trust(document, form.trusted))
    found = Findings()
    if PLAN_ONLY.issuperset(document):
        return _report(verdict, found, [], trusted)
    result = found.read(Result, document, "a solve document", "document")
    if result is None:
        return _report(verdict, found, [], trusted)
    plan = form.plan.model_validate(document["plan"]) if form.plan is not None and verdict.ok else None
    check_result(found, result, None if plan is None else form.objective(plan), form.goal_of(problem))
    said = form.name, problem.formulation
    found.require("formulation", (result.formulation, result.formulation) == said, result.formulation, form.name)
    trusted |= on_trust(document, ON_TRUST)
    if form.plan is None:
        trusted["objective"] = "this formulation states no schema of its plans"
    if not own:
        parts = ("problem", "check", "report", "summary", "certifies", "*.csv")
        trusted |= dict.fromkeys(parts, "of the document's own problem, not of this one")
        return _report(verdict, found, [], trusted)
    rebuilt: list[str] = []
    check_verdict(found, result.check, verdict)
    _about_problem(found, problem, document, trusted)
    old = result.optmodels_version.startswith("0.1.")
    found.require("schema: of its version", (result.schema_version == 1) == old, result.schema_version, 1 if old else 2)
    known = VERSION.fullmatch(result.optmodels_version) is not None
    found.require("optmodels_version: a version", known, result.optmodels_version, "such as 0.2.0")
    check_log(found, result)
    if plan is not None:
        again, mine = (found, trusted) if result.optmodels_version == version() else (Findings(), {})
        rebuilt = _made_again(again, form, problem, plan, result, folder, mine)
        if again is not found and not again.violations:
            trusted |= mine
        elif again is not found:
            differs = place(document, again.violations[0].requirement)
            why = f"written by optmodels {result.optmodels_version}; this one makes {differs or 'them'} otherwise"
            rebuilt, trusted = [], trusted | dict.fromkeys(("report", "summary", "certifies", "*.csv"), why)
            trusted |= on_trust(document, dict.fromkeys(("plan.certification", "log.certification"), why))
            trusted |= {} if form.labels is None else {"plan: labels": why}
    if folder is not None and verdict.ok and form.check_files is not None:
        found.violations += form.check_files(problem, document["plan"], folder).violations
    return _report(verdict, found, rebuilt, trusted)


def _report(
    verdict: CheckReport, found: Findings, rebuilt: list[str], trusted: Mapping[str, str]
) -> DocumentReport:  # fmt: skip
    violations = verdict.violations + found.violations[:MOST_SHOWN]
    lines = [Trusted(path=path, why=why) for path, why in trusted.items()]
    return DocumentReport(ok=not violations, violations=violations, rebuilt=rebuilt, trusted=lines)


def _about_problem(
    found: Findings, problem: Any, document: Mapping[str, Any], trusted: dict[str, str]
) -> None:  # fmt: skip
    """The instance is the one the document was written with."""
    name = document["plan"].get("name", problem.name)
    found.require("plan.name: its problem's", name == problem.name, name, problem.name)
    stated = document.get("problem_sha256")
    if stated or document.get("schema") != 1:
        true = digest(document["problem"])
        found.require("problem: as it was written", stated == true, stated, true)
    else:
        trusted["problem"] = "the plan is judged by it; documents of 0.1 have no digest of it"


def _made_again(
    found: Findings, form: Formulation, problem: Any, plan: Any, result: Result, folder: Path | None,
    trusted: dict[str, str],
) -> list[str]:  # fmt: skip
    """Compare all that the program makes of a plan with the same made again; the names of the parts compared."""
    found.require("certifies", result.certifies == form.certifies, result.certifies, form.certifies)
    tables = form.tables(problem)
    for path, stated, true in () if form.labels is None else form.labels(tables, plan):
        found.require(f"{path}: of its facts", stated == true, printable(stated, 200), true)
    rebuilt = _rebuild(found, form, tables, plan, result, folder, trusted)
    return rebuilt + _simulated_again(found, form, problem, tables, plan, result)


def _rebuild(
    found: Findings, form: Formulation, tables: Any, plan: Any, result: Result, folder: Path | None,
    trusted: dict[str, str],
) -> list[str]:  # fmt: skip
    """Compare report and tables with recomputed ones; the names of existing parts.

    Parts that the log names as left out are left out again, so that a document states nothing in their place.
    """
    left_out = [str(what).partition(" (")[0] for what in result.log.get("left_out") or ()]
    cut = {path: why for words, of in form.cut_short.items() if words in left_out for path, why in of.items()}
    with deadline(None, left_out) as stopped:
        report = form.report(tables, plan)
    for words, (path, _) in form.solves.items():
        parts = (data.get(path.removeprefix("report.")) for data in (result.report, plain(report)))
        is_open = form.is_open is not None and any(form.is_open(path, part) for part in parts)
        if is_open or (words in stopped and words not in left_out):
            cut[path] = "the clock stopped its solve, here or when it was repeated"
    trusted |= cut
    by = {path.removeprefix("report."): share for path, share in form.solves.values()}
    skip = [path.removeprefix("report.") for path in (*form.trusted, *cut)]
    stated, true = ({k: v for k, v in plain(data).items() if k not in skip} for data in (result.report, report))
    for key, share in by.items():
        solved = ({key: part.pop(key)} if key in part else {} for part in (stated, true))
        scale = abs(result.objective or 0.0) if share < 0 else 0.0
        compare(found, "report", next(solved), next(solved), abs(share), scale)
    compare(found, "report", stated, true)
    rebuilt = ["report"]
    if form.decision is not None:
        try:
            true_summary = form.decision(result.problem, plan.model_dump(mode="json"), plain(result.report))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            found.add("summary: recomputed from problem, plan and report", repr(error)[:80], "whole ones")
        else:
            compare(found, "summary", plain(result.summary), plain(true_summary))
            rebuilt.append("summary")
    if folder is not None:
        for name, text in csv_files(form, tables, plan).items():
            if name not in cut and (folder / name).is_file():
                _table(found, folder / name, text)
                rebuilt.append(name)
    return rebuilt


def _simulated_again(
    found: Findings, form: Formulation, problem: Any, tables: Any, plan: Any, result: Result
) -> list[str]:  # fmt: skip
    """Compare the results of the plan's certification with the same simulation run again; its name if compared.

    The round of the plan was simulated to its end, whatever the clock stopped later.
    """
    part = "plan.certification"
    seen = None if form.simulated_again is None else form.simulated_again(problem, tables, plan)
    if seen is None:
        return []
    stated = plain(plan.model_dump(mode="json"))["certification"]
    words = seen["words"]
    said = [str(result.log.get(name)) for name in ("certification", "reason")]
    right = all(x.startswith(words[0]) and words[-1] in x for x in said) and said[0] == said[1]
    found.require("log.certification: of the plan's certification", right, printable(said[0], 200), " … ".join(words))
    for path, true in seen.items():
        if path == "words":
            continue
        name, _, index = path.removesuffix("]").partition("[")
        compare(found, f"{part}.{path}", stated[name][int(index)] if index else stated[name], plain(true))
    return [part]


def _table(found: Findings, path: Path, text: str) -> None:
    """A CSV file equals the rebuilt text, cell by cell."""
    if path.stat().st_size > 4 * len(text.encode()) + 10**6:
        found.add(f"{path.name}: bytes, rebuilt", path.stat().st_size, len(text))
        return
    try:
        stated = path.read_bytes().decode("utf-8")
        if stated == text:
            return
        mine, true = (list(csv.reader(io.StringIO(x, newline=""))) for x in (stated, text))
    except (ValueError, csv.Error) as error:
        found.add(f"{path.name}: a table", printable(str(error), 200), "CSV in UTF-8")
        return
    if len(mine) != len(true):
        found.add(f"{path.name}: rows, rebuilt", len(mine), len(true))
    for number, (row, other) in enumerate(zip(mine, true, strict=False)):
        if len(row) != len(other):
            found.add(f"{path.name}: cells of row {number}, rebuilt", len(row), len(other))
            continue
        for column, cell, right in zip(true[0], row, other, strict=False):
            if cell != right and not _same_cell(cell, right):
                found.add(f"{path.name}: {column} in row {number}, rebuilt", printable(cell, 200), right)


def _same_cell(stated: str, true: str) -> bool:
    try:
        return same(float(stated), float(true))
    except ValueError:
        return False
