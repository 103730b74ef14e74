"""The independent check of a plan's certification, as far as it is the same for every formulation.

The verdicts of the simulation are taken on trust (`optmodels replay` shows them with any seed). Which promises the plan
makes, and that a certified plan has none that is not kept, are recomputed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from optmodels.plans.findings import Findings

SAME = 1e-9


@dataclass(frozen=True)
class KnownPlan:
    """A plan as a formulation's check reads it, without its certification.

    Attributes:
        promises: names of the promises that the plan makes.
        objective: its value; `scale` of its rounding, as of `Findings.close`.
        relaxed: whether a round's model is another than the instance's own.
        model_of: facts that distinguish the models of two rounds.
        is_better: whether a round's plan, were it certified, should have been taken in place of this one.
    """

    promises: Collection[Hashable]
    objective: float
    relaxed: Callable[[Any], bool]
    model_of: Callable[[Any], Hashable]
    is_better: Callable[[int, Any], bool]
    scale: float = 0.0


def is_expected(found: Findings, line: Any, asked: str) -> bool:
    """Whether there is a certification to check; a finding where there is one unasked, or none."""
    wanted = asked == "replay"
    found.require("certification exactly where it is asked for", (line is not None) == wanted, line is not None, wanted)
    return line is not None


def same_settings(found: Findings, stated: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Require confidence, seed and whatever else a formulation has to be the instance's."""
    found.require(f"certification: {', '.join(right)} are the problem's", dict(stated) == dict(right), stated, right)


def check_rounds(
    found: Findings, line: Any, true: KnownPlan, stated: Collection[Hashable], passes: int, rounds: int
) -> bool:
    """Require rounds, promises and status to fit one another and the plan.

    Args:
        found: collects what does not.
        line: the `certification` of the plan.
        true: recomputed.
        stated: names of the promises that the line lists.
        passes, rounds: of the instance's certification, at most.

    Returns:
        Whether all promises of a simulated plan are found kept.
    """
    planned = line.planned
    found.at_most("certification: rounds", len(line.rounds), passes * rounds)
    found.at_most("certification: the plan is of one of the rounds", line.of_round, len(line.rounds))
    expected, listed = set(true.promises if planned is not None else ()), set(stated)
    found.require("certification: the promises of the plan", listed == expected, len(listed), len(expected))
    held = planned is not None and all(x.found == "kept" for x in line.promises)
    found.require("certified exactly if all promises hold", (line.status == "certified") == held, line.status, held)
    models = [true.model_of(r) for r in line.rounds]
    changes = sum(a != b for a, b in itertools.pairwise(models))
    found.require("certification: passes one after another", changes < max(len(set(models)), 1), models, set(models))
    for number, r in enumerate(line.rounds, 1):
        found.at_most(f"round {number}: promises not kept", r.unkept, r.promises)
        unused = r.unkept == 0 and (not held or true.is_better(number, r))
        found.require(f"round {number}: no better plan was certified", not unused, r.objective, true.objective)
    if planned is None:
        found.require("no cuts on a plan that was not simulated", not line.cuts, len(line.cuts), 0)
        return held
    found.require("a relaxed model only where certified", held or not true.relaxed(planned), "relaxed", "not certified")
    found.close("certification: objective of the plan's round", planned.objective, true.objective, scale=true.scale)
    verdicts = Counter(x.found for x in line.promises)
    for what, right in (("promises", len(line.promises)), *((w, verdicts[w]) for w in ("broken", "undecided"))):
        found.require(f"certification: {what} of the plan's round", getattr(planned, what) == right,
                      getattr(planned, what), right)  # fmt: skip
    first = line.of_round == 1 or models[line.of_round - 2] != models[line.of_round - 1]
    found.require("certification: no cuts before the first simulation", not first or not line.cuts, len(line.cuts), 0)
    return held
