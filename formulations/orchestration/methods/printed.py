"""MaaSO's Algorithms 1 and 2 as printed: one configuration for all models of a sub-cluster (§IV-E).

`orchestration_search` gives every model of a sub-cluster a configuration of its own, which is more than the paper's
pseudocode does. This is the pseudocode: for each configuration that pruning leaves, an instance of the model with most
requests unserved is added as long as the serving score rises; a model whose instance adds nothing is saturated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from formulations.orchestration.methods.search import SearchGroup
from formulations.orchestration.methods.trials import BOTH, RELAXED, STRICT, Goal, Trials
from formulations.orchestration.pruning import dominated, paper_rules

Found = tuple[float, tuple[SearchGroup, ...]]  # score, instances
NOTHING: Found = (0.0, ())


class Printed:
    """The deployment of one GPU type to the requests of `trials`; `Search` in its place knows of limits and prices."""

    def __init__(
        self, trials: Trials, usable: Sequence[int], gpus: int, goal: Goal, sides: Sequence[int],
        placed: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.trials, self.gpus, self.goal, self.sides = trials, gpus, goal, sides
        t = trials.t
        kept = dominated(t).keep & paper_rules(t).keep
        shapes: dict[tuple[float | None, ...], dict[int, int]] = {}
        for c in usable:
            x = t.configurations[c]
            shapes.setdefault((*x.degrees, x.batch, x.waits), {})[x.model] = c
        self.shapes = [of for of in shapes.values() if any(kept[c] for c in of.values())]

    def solve(self) -> list[SearchGroup]:
        """Algorithm 2: the split of the GPUs with the highest sum of scores, or no split."""
        best, chosen = self.grown(BOTH)[-1] if BOTH in self.sides else NOTHING
        if STRICT in self.sides:
            strict, relaxed = self.grown(STRICT), self.grown(RELAXED)
            for (one, first), (two, second) in zip(strict, reversed(relaxed), strict=True):
                if one + two > best:
                    best, chosen = one + two, first + second
        return list(chosen)

    def grown(self, side: int) -> list[Found]:
        """Algorithm 1: the best on at most 0, 1, … GPUs."""
        best = [NOTHING] * (self.gpus + 1)
        for of in self.shapes:
            for used, found in self._shape(of, side):
                best[used] = _better(best[used], found)
        return list(accumulate(best, _better))

    def _shape(self, of: dict[int, int], side: int) -> list[tuple[int, Found]]:
        """Every deployment on the way, with the GPUs that it takes; `of` names each model's configuration."""
        trials, steps = self.trials, []
        each = trials.t.configurations[next(iter(of.values()))].gpus
        count, score = dict.fromkeys(of, 0), dict.fromkeys(of, 0.0)
        left = {m: len(trials.members(m, side)) for m in of}  # 0: served, or saturated
        for used in range(each, self.gpus + 1, each):
            while any(left.values()) and not trials.clock.over:
                m = max(left, key=lambda m: left[m])
                gains = trials.gains(of[m], count[m] + 1, side)
                if gains.score(self.goal) > score[m]:
                    count[m], score[m], left[m] = count[m] + 1, gains.score(self.goal), gains.missed
                    break
                left[m] = 0
            else:
                break
            groups = tuple(SearchGroup(of[m], side, n) for m, n in count.items() if n)
            steps.append((used, (sum(score.values()), groups)))
        return steps


def _better(a: Found, b: Found) -> Found:
    return b if b[0] > a[0] else a
