"""What a method returns, and the result document made of it (the JSON contract)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from optmodels.solver.highs import Event, Limit, Status

P = TypeVar("P")


class Document(BaseModel):
    """Base of everything written to files: unknown keys refused, so that a reader notices a newer schema."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="null")


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """One method's answer. `bound` is in the reported objective's sense and unit; None: the method proves nothing.

    Attributes:
        status: as in the contract; a heuristic's plan is ``feasible``, its failure ``no_solution_found``.
        plan: the plan, or None.
        bound: no plan is better than this.
        limit: what stopped the method early.
        seconds: by phase.
        size: of the model solved, if any.
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


class Result(Document):
    """A solve document: at least the contract's keys; `report` holds what the formulation adds."""

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
    certifies: str = Field(default="", description="what the bound, or the proof of infeasibility, holds for")
    seconds: dict[str, float] = {}
    size: dict[str, int] = {}
    plan: dict[str, Any] | None = None
    check: CheckReport | None = None
    report: dict[str, Any] = {}
    log: dict[str, Any] = {}
    events: list[dict[str, float | int | None]] = []
    problem: dict[str, Any] = {}
    optmodels_version: str = ""

    _frames: Callable[[], dict[str, Any]] | None = PrivateAttr(default=None)

    def frames(self) -> dict[str, Any]:
        """The result's tables as pandas data frames by name (those written as CSV).

        Raises:
            ValueError: the result was read from a file; its CSV files lie beside it.
        """
        if self._frames is None:
            raise ValueError("only a result of solve() has frames; read the CSV files beside plan.json instead")
        return self._frames()

    def to_json(self) -> str:
        """The document as JSON text."""
        return self.model_dump_json(by_alias=True, indent=2)

    @property
    def exit_status(self) -> int:
        """0 a checked plan, 1 a fault, 3 proved infeasible, 4 nothing found (see the command-line contract)."""
        if self.plan is not None:
            return 0 if self.check is not None and self.check.ok else 1
        return {"infeasible": 3, "no_solution_found": 4}.get(self.status, 1)
