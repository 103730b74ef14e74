"""Claims of a solve document next to its plan: those that must agree with it, and those that stay claims."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic_core import from_json, to_json

from optmodels.plans.findings import TOLERANCE, Findings
from optmodels.plans.outcome import CheckReport, Result, fault
from optmodels.plans.replayed import PLACES, is_consistent, missed
from optmodels.solver.highs import PROVED, relative_gap

# Paths of a result whose truth the document cannot show.
ON_TRUST = {
    "bound": "claimed by the method; `optmodels check --prove` derives it again",
    "limit": "what stopped the method, where one did",
    "instance": "a file name",
    "method": "solving again shows what it finds",
    "options": "as the method was run",
    "seconds": "as measured",
    "size": "of the model that the method solved, as it counted it",
    "log": "notes of the method",
    "events": "progress as the method recorded it",
    "optmodels_version": "of the program that wrote the document",
}
HISTORY = [path for path in ON_TRUST if path != "bound"]  # how the document came about


def plain(data: Any) -> Any:
    """Data as they come back from a JSON file: infinities and NaN null, tuples lists."""
    return from_json(to_json(data, inf_nan_mode="null"))


def digest(problem: Mapping[str, Any]) -> str:
    """SHA-256 of an instance as JSON with sorted keys, which shows that it is as written (a slip, not a forgery)."""
    text = json.dumps(plain(problem), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def on_trust(document: Mapping[str, Any], paths: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The entries of `paths` (path → why) at which the document states something."""
    for path, why in paths.items():
        if any(value not in (None, "", [], {}) for value in _at(document, path.split("."))):
            yield path, why


def _at(data: Any, parts: Sequence[str]) -> Iterator[Any]:
    """The values at a path; ``name[]`` for every entry of a list."""
    if not parts:
        yield data
    elif isinstance(data, Mapping) and (inner := data.get(parts[0].removesuffix("[]"))) is not None:
        for value in inner if parts[0].endswith("[]") and isinstance(inner, list) else [inner]:
            yield from _at(value, parts[1:])


def check_result(
    found: Findings, r: Result, objective: float | None, goal: tuple[Literal["min", "max"], str]
) -> None:  # fmt: skip
    """Objective, sense, unit, bound, gap, status and limit agree with the plan and with each other.

    Args:
        found: takes the violations.
        r: the document, which has a plan.
        objective: objective of the plan; None: not known.
        goal: sense and unit of the instance's objective.
    """
    sense, unit = goal
    found.require("sense", r.sense == sense, r.sense, sense)
    found.require("unit", r.unit == unit, r.unit, unit)
    if objective is not None:
        found.equal("objective: of the plan", r.objective, objective, unit)
    true = relative_gap(r.objective, r.bound)
    gap = math.inf if true is not None and r.gap is None else r.gap  # infinity is null in JSON
    if true is None or gap is None:
        found.require("gap: exactly where there are objective and bound", true is gap, gap, true)
    elif gap != true:
        found.close("gap: between objective and bound", gap, true, scale=1e-6)
    right = fault(r.objective, r.bound, sense, None) is None
    found.require("objective: no better than the bound", right, r.objective, r.bound)
    if r.status == "optimal":
        proved = true is not None and true <= PROVED * (1 + TOLERANCE)
        found.require("gap: proves that it is optimal", proved, true, f"at most {PROVED:g}")
        found.require(
            "replay: refutes nothing that is optimal", not missed(r.report), missed(r.report), "every promise"
        )
        found.require("limit: none stopped an optimal method", r.limit is None, r.limit, None)
    else:
        found.require("status: of a plan", r.status == "feasible", r.status, "optimal or feasible")
        proved = true is not None and true <= PROVED * (1 - TOLERANCE) and not missed(r.report)
        found.require("gap: left by what is only feasible", not proved, true, f"over {PROVED:g}")


def check_log(found: Findings, r: Result) -> None:
    """The log's words about SLOs that a replay refutes are those of the report, and it names what was left out."""
    found.require("log.missed: of the report", r.log.get("missed") == missed(r.report), r.log.get("missed"),
                  missed(r.report))  # fmt: skip
    for place in PLACES:
        right = place not in r.report or is_consistent(r.report[place])
        found.require(
            f"report.{place}: its verdict is that of its SLOs", right, "other", "kept exactly if none is missed"
        )
    left_out = r.log.get("left_out", [])
    named = isinstance(left_out, list) and all(isinstance(x, str) for x in left_out)
    found.require("log.left_out: names", named, left_out, "a list of parts in words")


def check_verdict(found: Findings, stated: CheckReport | None, true: CheckReport) -> None:
    """The verdict that the document carries is the true one."""
    if stated is None or (stated.ok, stated.violations) != (true.ok, true.violations):
        found.add("check: the verdict on the plan", "none" if stated is None else f"ok {stated.ok}", f"ok {true.ok}")


def compare(
    found: Findings, path: str, stated: Any, true: Any, tolerance: float = TOLERANCE, scale: float = 0.0
) -> None:  # fmt: skip
    """JSON data equal a rebuilt original: every name and entry, numbers to the tolerance (of `scale` at least)."""
    if isinstance(true, dict) and isinstance(stated, dict):
        for key in [*true, *(k for k in stated if k not in true)]:
            where = f"{path}.{key}"
            if key not in stated or key not in true:
                found.add(
                    f"{where}: rebuilt", "missing" if key not in stated else "there", "there" if key in true else "none"
                )
            else:
                compare(found, where, stated[key], true[key], tolerance, scale)
    elif isinstance(true, list) and isinstance(stated, list):
        if len(true) != len(stated):
            found.add(f"{path}: entries, rebuilt", len(stated), len(true))
        for i, (a, b) in enumerate(zip(stated, true, strict=False)):
            compare(found, f"{path}[{i}]", a, b, tolerance, scale)
    elif not same(stated, true, tolerance, scale):
        found.add(f"{path}: rebuilt", _shown(stated), _shown(true))


def same(stated: Any, true: Any, tolerance: float = TOLERANCE, scale: float = 0.0) -> bool:
    """Whether two scalars are equal, numbers to the tolerance; true and false are no numbers."""
    if isinstance(stated, bool) or isinstance(true, bool):
        return stated is true
    if isinstance(stated, int | float) and isinstance(true, int | float):
        return stated == true or abs(stated - true) <= tolerance * max(abs(true), scale if true else 0.0, 1e-9)
    return type(stated) is type(true) and bool(stated == true)


def _shown(value: Any) -> float | str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else json.dumps(value)[:200]
