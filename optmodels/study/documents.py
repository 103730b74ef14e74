"""The JSON documents of compare, sweep and replay, key by key (explain's is `study.explanation.document`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from optmodels.plans.outcome import CheckReport, Document
from optmodels.simulation.cluster import Queue, Speed
from optmodels.solver.highs import Limit, Status

Number = float | int | bool | str | None


class _Solved(Document):
    """One method on one instance."""

    status: Status | Literal["error"] = Field(description="error: a fault of the method, in `headline`")
    limit: Limit | None = Field(description="limit that stopped the method early")
    objective: float | None
    bound: float | None = Field(description="proved: no plan is better")
    gap: float | None = Field(description="relative, of objective and bound")
    proved: bool = Field(description="optimal, or without any plan")
    seconds: dict[str, float | None] = Field(
        description="seconds by phase; to_first solution, to_proof: null for never"
    )
    size: dict[str, int] = Field(description="size of the model solved")
    check: CheckReport | None
    headline: str = Field(description="the plan in words, or why there is none")


class EventRow(Document):
    """Progress of a solve."""

    seconds: float
    objective: float | None
    bound: float | None
    nodes: int | None


class Comparison(_Solved):
    """A row of a comparison."""

    model_config = ConfigDict(
        json_schema_extra={
            "patternProperties": {
                r"^replay\.": {"description": "of a replay on the problem's trace; replay.none: why there is none"}
            }
        }
    )

    instance: str
    seed: int
    formulation: str
    method: str
    sense: Literal["min", "max"]
    unit: str
    events: list[EventRow]
    gap_to_bound: float | None = Field(description="relative, to the best bound of all methods")


class Swept(_Solved):
    """A point of a sweep."""

    varied: dict[str, Any] = Field(description="field → value")
    plan: dict[str, Number] | None = Field(description="figures of the plan by dotted name")
    frontier: bool | None = Field(description="whether it is on the Pareto frontier; null: none was asked for")


class AimRow(Document):
    """A column of the frontier."""

    column: str
    direction: Literal["min", "max"]


class SweepDocument(Document):
    """Many solves with some fields varied."""

    schema_version: Literal[1] = Field(alias="schema")
    instance: str
    formulation: str
    method: str
    sense: Literal["min", "max"]
    unit: str
    keys: list[str] = Field(description="the fields varied")
    pareto: list[AimRow]
    folder: str | None
    reused: int = Field(description="rows of an earlier run")
    rows: list[Swept]
    vary: list[str] | None = Field(
        default=None, description="varied fields as given; this and the following keys are in sweep.json only"
    )
    seed: int | None = None
    time_limit: float | None = None
    problem: dict[str, Any] | None = Field(default=None, description="the problem that was varied, as written")


class ReplayDocument(Document):
    """A plan simulated on a trace."""

    instance: str | None
    formulation: str
    method: str | None
    trace: str | None = Field(description="null: the problem's own requests")
    requests: int | None
    policy: str | None
    speed: Speed
    overflow_protection: bool | None
    queue: Queue | None
    controller: str | None = Field(description="controller of batch limits, as given")
    rate_factor: float
    first_s: float | None
    part: Literal["first", "rest"] | None = Field(default=None, description="part of the trace's time")
    share: float | None = Field(default=None, description="share of that time in the first part")
    resample: int | None = Field(default=None, description="seed of a trace drawn from this one in blocks")
    predicted_error: float | None = Field(
        default=None, description="error of the output lengths that dispatchers know, as standard deviation of a log"
    )
    trace_notes: list[str] = Field(default=[], description="changes made to the trace file's rows")
    seed: int
    report: dict[str, Any] = Field(description="the formulation's: predicted beside policies, and more")
    seconds: dict[str, float]
    optmodels_version: str
    folder: str | None = Field(default=None, description="folder of its files, if any")
