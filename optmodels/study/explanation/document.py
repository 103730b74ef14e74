"""The explanation document: every figure with its words, path and unit, so that a reader needs nothing else."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optmodels.plans.outcome import Document

Value = float | int | bool | str | list[str] | None


class LimitRef(Document):
    """A limit as the instance states it."""

    words: str
    name: str
    path: str
    value: Value
    unit: str
    side: Literal["most", "least", "among", "flag", "row"]
    written: bool = Field(description="false: a default that the file does not mention")


class LimitRelaxation(Document):
    """One limit loosened."""

    limit: LimitRef
    needed: Value = Field(description="loosened this far there is a plan; null: only without the limit")
    not_enough: Value = Field(default=None, description="proved too little; the two differ by the tolerance")
    change: float | None = Field(description="relative: |needed − value|/|value|; 1 for lists and switches")
    words: str


class Member(Document):
    """A limit in a conflict, and the range that the other members leave it."""

    limit: LimitRef
    needed: Value = Field(default=None, description="loosened this far it goes with the other members alone")
    words: str


class Conflict(Document):
    """Limits that cannot hold together although any of them can be left out."""

    members: list[Member]
    irreducible: bool = Field(description="proved by solving without each member")
    words: str


class Joint(Document):
    """The cheapest way to loosen several limits together; the cost is the sum of relative changes."""

    relaxations: list[LimitRelaxation]
    cost: float
    at_least: float = Field(description="proved: loosening these limits costs no less")
    over: list[str] = Field(description="paths of the limits that might be loosened")
    words: str


class LimitEffect(Document):
    """Effect of one limit on the optimum."""

    limit: LimitRef
    binds: bool | None = Field(description="dropping it changes the optimum; null: not found out")
    objective_without: float | None = None
    gain_without: float | None = Field(default=None, description="better objective without the limit, in its unit")
    at_least: bool = Field(default=False, description="`gain_without` is of the best plan found, not of the optimum")
    step: Value = Field(default=None, description="the limit one unit or 1 % looser")
    objective_at_step: float | None = None
    gain_of_step: float | None = Field(default=None, description="better objective at `step`")
    tightest: Value = Field(default=None, description="the optimum stays down (or up) to this value")
    too_tight: Value = Field(default=None, description="here the optimum is worse, or there is no plan")
    loosest: Value = Field(default=None, description="the optimum stays up to this value; null: for ever")
    better_at: Value = Field(default=None, description="here a better plan exists")
    words: str


class PriceRange(Document):
    """How far one price can move, all else as it is, before another plan is best."""

    name: str
    path: str
    value: float
    unit: str
    bought: bool
    low: float | None = Field(description="lowest price at which the same is bought; null: any lower price")
    high: float | None = Field(description="highest such price; null: above `searched_to`")
    searched_to: float | None = None
    words: str


class NextPlan(Document):
    """The best plan distinct from all better ones."""

    objective: float
    headline: str
    buys: dict[str, float]
    without: list[str] = Field(description="it is the best plan that does without these")
    words: str


class Explanation(Document):
    """Why there is no plan, or the limits that the plan depends on. Every statement was found by solving."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["explanation"] = "explanation"
    instance: str
    formulation: str
    title: str = ""
    status: Literal["feasible", "infeasible", "no_solution_found"]
    words: str
    objective: float | None = None
    unit: str = ""
    sense: Literal["min", "max"] = "min"
    headline: str | None = None
    conflicts: list[Conflict] = []
    restored: bool | None = Field(default=None, description="without every member of the conflicts there is a plan")
    restored_words: str = ""
    alone: list[LimitRelaxation] = []
    jointly: Joint | None = None
    limits: list[LimitEffect] = []
    prices: list[PriceRange] = []
    next_plans: list[NextPlan] = []
    definitions: dict[str, str] = {}
    skipped: list[str] = Field(default=[], description="questions not examined, with the reason")
    solves: int = 0
    reused: int = Field(default=0, description="questions that earlier answers settled")
    seconds: float = 0.0
    problem: dict[str, Any] = {}
    optmodels_version: str = ""

    def to_json(self) -> str:
        """The document as JSON text."""
        return self.model_dump_json(by_alias=True, indent=2)

    @property
    def exit_status(self) -> int:
        """0 there is a plan, 3 proved that there is none, 4 neither found out."""
        return {"feasible": 0, "infeasible": 3}.get(self.status, 4)
