"""The return value of a method, and the result document (the JSON contract)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from optmodels.errors import printable
from optmodels.limits import figure
from optmodels.solver.highs import PROVED, Event, Limit, Status, relative_gap

P = TypeVar("P")


class Document(BaseModel):
    """Base of everything written to files: unknown keys refused, so that a reader notices a newer schema."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="null")


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """One method's answer. `bound` is in the reported objective's sense and unit; None: the method proves nothing.

    Attributes:
        status: status of the contract; a heuristic's plan is ``feasible``, its failure ``no_solution_found``.
        plan: the plan, or None.
        bound: no plan is better than this.
        limit: limit that stopped the method early.
        seconds: seconds by phase.
        size: size of the model solved, if any.
        log: free-form facts worth keeping (what pruning cut, …).
        events: incumbents and bounds over time.
    """

    status: Status
    plan: P | None
    bound: float | None = None
    limit: Limit | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()


class Violation(Document):
    """One requirement a plan breaks."""

    requirement: str
    value: float | str
    limit: float | str
    unit: str = ""


class CheckReport(Document):
    """Verdict of the independent checker."""

    ok: bool
    violations: list[Violation] = []


class Trusted(Document):
    """A part of a document that its check does not recompute."""

    path: str = Field(description="path of the part, all below it included; [] for every entry of a list")
    why: str


class Attempt(Document):
    """One derivation."""

    form: str = Field(description="statement of the problem, or method")
    solver: str
    status: Status
    bound: float | None = Field(default=None, description="no plan is better, says this run")
    objective: float | None = Field(default=None, description="objective of its plan, if that passes the check")
    of: str = Field(default="", description="linear model of the bound, if not the problem's own")
    seconds: float
    said: str = Field(default="", description="why it says nothing, or what speaks against it")


Verdict = Literal["confirmed", "not refuted", "refuted", "nothing claimed"]


class Proof(Document):
    """The verdict on the bound that a document claims, or on its claim that there is no plan."""

    verdict: Verdict
    claimed: float | None = Field(default=None, description="the document's bound")
    of: list[str] = Field(default=[], description="linear models that the bound is of, if not the problem's own")
    bound: float | None = Field(default=None, description="the tightest derived again; of several models the loosest")
    gap: float | None = Field(default=None, description="between that and the document's plan")
    attempts: list[Attempt] = []


class DocumentReport(CheckReport):
    """Verdict on a whole solve document and the tables next to it."""

    rebuilt: list[str] = Field(
        default=[], description="parts and files found as the program that writes them makes them again"
    )
    trusted: list[Trusted] = Field(default=[], description="everything else that is neither recomputed nor rebuilt")
    proof: Proof | None = Field(default=None, description="the bound derived again (`check --prove`)")


def fault(objective: float | None, bound: float | None, sense: str, check: CheckReport | None) -> str | None:
    """Why an answer is wrong whatever its method states: the plan fails its check, or is better than the bound.

    Returns:
        The reason in words; None: nothing speaks against it.
    """
    if check is not None and not check.ok:
        return f"the plan fails its check: {check.violations[0].requirement}"
    if objective is not None and bound is not None and math.isfinite(bound):
        better = objective - bound if sense == "max" else bound - objective
        if better > PROVED * max(abs(objective), abs(bound)):
            return f"the plan is better than the bound: {objective:.9g} against {bound:.9g}"
    return None


def judged(
    outcome: Outcome[P], objective: float | None, sense: str, check: CheckReport | None, missed: str | None = None
) -> Outcome[P]:
    """The outcome with the status that check, bound and replay leave it, whatever its method states.

    One with a `fault` is an ``error``: the log has the reason, and the claim. An ``optimal`` plan that is worse
    than the bound is ``feasible``, and a ``feasible`` one that is no worse is ``optimal``. One where a replay of its
    own requests `missed` a promise (in words) is ``feasible``, whatever the bound.
    """
    wrong, gap = fault(objective, outcome.bound, sense, check), relative_gap(objective, outcome.bound)
    if wrong is not None:
        return replace(outcome, status="error", log=outcome.log | {"reason": wrong, "claimed": outcome.status})
    if missed is not None and outcome.status in ("optimal", "feasible"):
        return replace(outcome, status="feasible", log=outcome.log | {"missed": missed})
    if outcome.status == "optimal" and gap is not None and gap > PROVED:
        return replace(outcome, status="feasible", limit="gap")
    if outcome.status == "feasible" and gap is not None and gap <= PROVED:
        return replace(outcome, status="optimal", limit=None)
    return outcome


class Solved(dict[str, Any]):
    """A solve document as JSON data that may know the tables it was made from: charts need not build them again."""

    tables: Any = None


class Result(Document):
    """A solve document: at least the contract's keys; `report` holds the formulation's additions."""

    schema_version: Literal[1, 2] = Field(default=2, alias="schema", description="1: names of 0.1, still read")
    instance: str
    formulation: str
    method: str
    options: dict[str, float | int | None] = {}
    status: Status
    limit: Limit | None = None
    objective: float | None = None
    sense: Literal["min", "max"]
    unit: str
    bound: float | None = None
    gap: float | None = None
    certifies: str = Field(default="", description="scope of the bound, or of the proof of infeasibility")
    seconds: dict[str, float] = {}
    size: dict[str, int] = {}
    plan: dict[str, Any] | None = None
    check: CheckReport | None = None
    summary: dict[str, Any] = Field(
        default={}, description="the decision: machines, cost, SLO and how sure, in figures and in words"
    )
    report: dict[str, Any] = {}
    log: dict[str, Any] = {}
    events: list[dict[str, float | int | None]] = []
    problem: dict[str, Any] = {}
    problem_sha256: str = Field(default="", description="digest of `problem` (`claims.digest`), which detects changes")
    optmodels_version: str = ""

    _frames: Callable[[], dict[str, Any]] | None = PrivateAttr(default=None)
    _tables: Any = PrivateAttr(default=None)
    _problem: Any = PrivateAttr(default=None)
    _said: Callable[[], str] | None = PrivateAttr(default=None)

    def frames(self) -> dict[str, Any]:
        """The result's tables as pandas data frames by name (those written as CSV).

        Raises:
            ValueError: the result was read from a file; its CSV files lie next to it.
        """
        if self._frames is None:
            raise ValueError("only a result of solve() has frames; read the CSV files beside plan.json instead")
        from optmodels.io.write import data_frame

        return {name: data_frame(table) for name, table in self._frames().items()}

    def __getstate__(self) -> dict[Any, Any]:
        """Without the tables, which are this process' own."""
        state = super().__getstate__()
        private = dict(state["__pydantic_private__"] or {})
        private |= dict.fromkeys(("_frames", "_tables", "_problem", "_said"))
        return state | {"__pydantic_private__": private}

    def _facts(self) -> dict[str, str]:
        """The first facts of a result, by name."""
        numbers = {"objective": self.objective, "bound": self.bound, "gap": self.gap}
        found = {k: figure(v) + (f" {self.unit}" if k != "gap" else "") for k, v in numbers.items() if v is not None}
        check = {} if self.check is None else {"check": "passed" if self.check.ok else "FAILED"}
        return {"instance": printable(self.instance, 200), "method": self.method, "status": self.status} | found | check

    def __dir__(self) -> list[str]:
        """Its own names; pydantic's are left out."""
        return [*type(self).model_fields, *vars(type(self))]

    def __repr__(self) -> str:
        return f"<Result {', '.join(f'{k}: {v}' for k, v in self._facts().items())}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """The same in a notebook, and the plan's lines where this is a result of solve()."""
        said = "" if self._said is None else self._said()
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._facts().items())
        return f"<table>{rows}</table>{said}"

    def document(self) -> Solved:
        """The document as JSON data."""
        found = Solved(self.model_dump(mode="json", by_alias=True))
        found.tables = self._tables
        return found

    def to_json(self) -> str:
        """The document as JSON text."""
        return self.model_dump_json(by_alias=True, indent=2)

    @property
    def exit_status(self) -> int:
        """0 a checked plan, 1 a fault, 3 proved infeasible, 4 nothing found (see the command-line contract)."""
        if self.plan is not None and self.status != "error":
            return 0 if self.check is not None and self.check.ok else 1
        return {"infeasible": 3, "no_solution_found": 4}.get(self.status, 1)
