"""From trials to a deployment: the best instances of every cell for every number of GPUs, and the split of the GPUs.

MaaSO Algorithm 1 within a cell: instances of one configuration are added until one more gains nothing; the best found
is kept for every number of GPUs. Algorithm 2 over the cells: dynamic programming over the split of the GPUs, first
between the strict and the relaxed requests of a model, against the model's undivided requests as the homogeneous
baseline, then between the models. (The paper's Algorithm 1 shares one configuration among the models of a sub-cluster;
with a cell for each model, which its Algorithm 2 allows, every model has its own.)

Trials are estimated as pools of slots first. The programme's choice is then simulated and its gain corrected, and
the programme runs again, until everything that it chooses has been simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from formulations.orchestration.methods.trials import BOTH, RELAXED, STRICT, Gains, Goal, Trials, numbers
from formulations.orchestration.place import running_counts
from optmodels.arrays import Array, Ints

Cell = tuple[int, int]  # model, side
Chosen = tuple[Cell, int]  # index into the cell's choices
MISSING = 10.0  # score lost for every instance below a model's minimum, for all requests missed below its attainment
MOST_ROUNDS = 40


@dataclass(frozen=True)
class SearchGroup:
    """Like instances of a deployment."""

    configuration: int
    side: int
    count: int


@dataclass
class Choices:
    """Choices for a cell: instances of one configuration, by GPUs.

    Attributes:
        configuration, count, gpus: of each choice; the first is nothing.
        gains: gains, estimated or simulated.
        simulated: whether the gains of a choice were simulated.
    """

    side: int
    configuration: list[int]
    count: list[int]
    gpus: list[int]
    gains: list[Gains]
    simulated: list[bool]


class Search:
    """The best deployment of one GPU type to the requests of `trials`; `placed` instances are there by model."""

    def __init__(
        self, trials: Trials, usable: Sequence[int], gpus: int, goal: Goal, sides: Sequence[int],
        placed: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.trials, self.gpus, self.goal = trials, gpus, goal
        self.t = trials.t
        p = self.t.case.problem
        scale = trials.drawn.scale
        there = placed or [0] * len(p.models)
        self.least = [max(0, -(-(m.minimum_instances - n) // scale)) for m, n in zip(p.models, there, strict=True)]
        self.most = [gpus if m.maximum_instances is None else max(0, (m.maximum_instances - n) // scale)
                     for m, n in zip(p.models, there, strict=True)]  # fmt: skip
        self.wanted = [m.attainment_at_least or 0.0 for m in p.models]
        self.hold = MISSING if p.slo.shortfall_penalty is None else p.slo.shortfall_penalty
        running = running_counts(self.t)
        self.running = running // scale
        change = p.change
        self.start = change.score_per_start * scale if change.running else 0.0
        self.stop = change.score_per_stop * scale if change.running else 0.0
        self.cells = {
            (m, side): self._choices(m, side, [c for c in usable if self.t.configurations[c].model == m])
            for m in range(len(p.models)) for side in sides
        }  # fmt: skip
        self.sides = sides

    def _choices(self, model: int, side: int, usable: Iterable[int]) -> Choices:
        none = Gains(0.0, 0.0, 0.0, len(self.trials.members(model, side)))
        made = Choices(side, [-1], [0], [0], [none], [True])
        for c in usable:
            if self.trials.clock.over:
                break
            most = min(self.gpus // self.t.configurations[c].gpus, self.most[model])
            counts = numbers(most)
            if most >= self.least[model] > 0:
                counts = np.unique(np.append(counts, self.least[model]))
            found = self.trials.estimates(c, counts, side)
            needed = int(np.searchsorted(counts, self.least[model], "right"))  # also where more gain nothing
            found += [found[-1] if found else none] * (needed - len(found))
            for count, gains in zip(counts.tolist(), found, strict=False):
                made.configuration.append(c)
                made.count.append(count)
                made.gpus.append(count * self.t.configurations[c].gpus)
                made.gains.append(gains)
                made.simulated.append(False)
        return made

    def solve(self) -> list[SearchGroup]:
        """Estimate, choose, simulate the choice, choose again."""
        for _ in range(MOST_ROUNDS):
            chosen = self.choose(self.sides)
            if self.trials.clock.over or not self._simulate(chosen):
                break
        if STRICT in self.sides and BOTH in self.sides:  # the homogeneous baseline, judged by simulation too
            for _ in range(MOST_ROUNDS):
                baseline = self.choose((BOTH,))
                if self.trials.clock.over or not self._simulate(baseline):
                    break
            chosen = max(chosen, baseline, key=self.value)
        return [
            SearchGroup(self.cells[key].configuration[i], key[1], self.cells[key].count[i]) for key, i in chosen if i
        ]

    def value(self, chosen: Sequence[Chosen]) -> float:
        """Serving score of the choice."""
        return sum(self._score(key, i) for key, i in chosen)

    def _score(self, key: Cell, i: int) -> float:
        cell = self.cells[key]
        score = cell.gains[i].score(self.goal)
        c = cell.configuration[i]
        if c >= 0:
            kept = min(int(self.running[c]), cell.count[i])
            score += self.stop * kept - self.start * (cell.count[i] - kept)
        return score

    def _simulate(self, chosen: Sequence[Chosen]) -> bool:
        """Simulate candidates that were only estimated; whether there was any."""
        any_new = False
        for key, i in chosen:
            cell = self.cells[key]
            if not cell.simulated[i] and not self.trials.clock.over:
                cell.gains[i] = self.trials.gains(cell.configuration[i], cell.count[i], key[1])
                cell.simulated[i] = any_new = True
        return any_new

    def _bonus(self, m: int, count: Any, share: Any) -> Any:
        """Score for the instances and the attainment that the model must have."""
        bonus = MISSING * np.minimum(count, self.least[m])
        return bonus + self.hold * np.minimum(share, self.wanted[m]) if self.wanted[m] else bonus

    def _best(self, key: Cell) -> tuple[Array, Ints, Ints, Array]:
        """The best choice with at most n GPUs, n = 0 … GPUs: score, index, instances, share of the model in time."""
        cell = self.cells[key]
        every = len(self.trials.members(key[0], BOTH)) or 1
        here = len(self.trials.members(*key))
        count = np.array(cell.count, dtype=np.int64)
        share = np.array([(here - g.missed) / every for g in cell.gains])
        score = np.array([self._score(key, i) for i in range(len(count))])
        value = score + self._bonus(key[0], count, share)
        best, choice = np.full(self.gpus + 1, -np.inf), np.zeros(self.gpus + 1, dtype=np.int64)
        for i, n in enumerate(cell.gpus):
            if value[i] > best[n]:
                best[n], choice[n] = value[i], i
        for n in range(1, self.gpus + 1):
            if best[n] <= best[n - 1]:
                best[n], choice[n] = best[n - 1], choice[n - 1]
        return score[choice], choice, count[choice], share[choice]

    def _model(self, m: int, sides: Sequence[int]) -> tuple[Array, list[list[Chosen]]]:
        """Best value of a model with n GPUs, and the choices it takes."""
        N = self.gpus
        best = np.full(N + 1, -np.inf)
        chosen: list[list[Chosen]] = [[] for _ in range(N + 1)]
        if BOTH in sides:
            score, choice, count, share = self._best((m, BOTH))
            best = score + self._bonus(m, count, share)
            chosen = [[((m, BOTH), int(i))] for i in choice]
        if STRICT in sides:
            (s, i, a, u), (r, j, b, v) = self._best((m, STRICT)), self._best((m, RELAXED))
            n = np.arange(N + 1)
            count = a[:, None] + b[None, :]
            total = s[:, None] + r[None, :] + self._bonus(m, count, u[:, None] + v[None, :])
            total[count > self.most[m]] = -np.inf
            for k in range(N + 1):
                ways = total[n[: k + 1], k - n[: k + 1]]
                at = int(ways.argmax())
                if ways[at] > best[k] + 1e-12:
                    best[k], chosen[k] = ways[at], [((m, STRICT), int(i[at])), ((m, RELAXED), int(j[k - at]))]
        return best, chosen

    def choose(self, sides: Sequence[int]) -> list[Chosen]:
        """Algorithm 2: the split of the GPUs among models and sides with the highest sum of scores."""
        N = self.gpus
        total, split = np.zeros(N + 1), []
        models = [self._model(m, sides) for m in range(len(self.wanted))]
        for best, _ in models:
            ways = np.full((N + 1, N + 1), -np.inf)
            for n in range(N + 1):
                ways[n, : n + 1] = total[n::-1] + best[: n + 1]  # best[k] with k GPUs, total with the other n − k
            split.append(ways.argmax(axis=1))
            total = ways.max(axis=1)
        left, chosen = N, []
        for (_, ways_of), taken in zip(reversed(models), reversed(split), strict=True):
            k = int(taken[left])
            chosen += ways_of[k]
            left -= k
        return chosen
