"""Today's deployments, as every formulation evaluates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from optmodels.problem import Problem


@dataclass(frozen=True)
class Evaluated:
    """Today's deployments, next to the problem whose best plan they are compared with.

    Attributes:
        problem: the instance; at a trace's rates where there is a trace.
        report: JSON-ready; ``usd_per_hour``, ``keeps_every_slo`` and ``attainment`` by how it was found
            (``predicted``, ``replayed``, …), and lists of records.
        objective: objective of today's fleet, in the sense and unit of the instance's objective.
        keeps: whether it is predicted to keep everything that a plan has to.
    """

    problem: Problem
    report: dict[str, Any]
    objective: float
    keeps: bool


def start_text(instance: str, deployments: Iterable[Mapping[str, Any]]) -> str:
    """A file of today's fleet, to be changed by its reader.

    Args:
        instance: the instance file as the text names it.
        deployments: entries of the formulation's `current`.
    """

    def flow(value: object) -> str:
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip().removesuffix("\n...")

    return "\n".join([
        "# What runs today: write your deployments, then `optmodels evaluate` this file.",
        "# Every key: optmodels schema current", "schema: 1", f"instance: {flow(instance)}", "deployments:",
        *(f"- {flow(dict(d))}" for d in deployments), "",
    ])  # fmt: skip
