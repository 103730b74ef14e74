"""Statements of a plan's document about its certification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from optmodels.plans.outcome import Document

Verdict = Literal["kept", "broken", "undecided"]
Status = Literal["certified", "incomplete", "not kept"]
Whole = Annotated[int, Field(strict=True, ge=0, le=10**12)]


class PromiseDocument(Document):
    """A promise of a plan and the verdict of simulation."""

    found: Verdict = Field(description="beyond the interval, or within it")


class RoundDocument(Document):
    """One round of certification: a plan, and the verdicts on its promises."""

    objective: float = Field(allow_inf_nan=False)
    promises: Whole
    broken: Whole
    undecided: Whole
    requests: float = Field(ge=0, allow_inf_nan=False, description="simulated, all draws together")

    @property
    def unkept(self) -> int:
        """Promises that are not found kept."""
        return self.broken + self.undecided


class CertificationDocument(Document):
    """How far simulation confirmed a plan's promises, and the cuts that this took."""

    status: Status = Field(
        description="certified: all promises hold; incomplete: something stopped the rounds; not kept: no plan is left"
    )
    confidence: float = Field(gt=0, lt=1, description="probability that all SLOs of a certified plan hold")
    seed: int = Field(ge=0, lt=2**31)
    of_round: Whole = Field(description="the plan is that of this round, counted from 1; 0: none was simulated")
    rounds: Sequence[Any] = []
    cuts: Sequence[Any] = Field(default=[], description="cuts that the plan was made under")
    promises: Sequence[Any] = Field(default=[], description="SLOs of the plan")

    @property
    def planned(self) -> Any:
        """The round whose plan this is; None: it was not simulated."""
        return self.rounds[self.of_round - 1] if 0 < self.of_round <= len(self.rounds) else None


def round_counts(promises: Sequence[PromiseDocument]) -> dict[str, int]:
    """The counts of a round's line."""
    found = [p.found for p in promises]
    return {"promises": len(found), "broken": found.count("broken"), "undecided": found.count("undecided")}
