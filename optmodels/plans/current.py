"""What a user runs today, as every formulation evaluates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optmodels.problem import Problem


@dataclass(frozen=True)
class Evaluated:
    """What runs today, beside the instance whose best plan it is compared with.

    Attributes:
        problem: the instance; at a trace's rates where there is a trace.
        report: JSON-ready; ``usd_per_hour``, ``keeps_every_slo`` and ``attainment`` by how it was found
            (``predicted``, ``replayed``, …), and lists of records.
        objective: of what runs, in the sense and unit of the instance's objective.
        keeps: whether it is predicted to keep everything that a plan has to.
    """

    problem: Problem
    report: dict[str, Any]
    objective: float
    keeps: bool
