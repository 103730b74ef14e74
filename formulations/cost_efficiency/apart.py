"""Prefill and decode apart in a closed loop: the fewest machines of either stage that keep its requests in flight.

README.md has the mathematics ("Prefill and decode apart").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.errors import InputError, Mistake
from optmodels.serving.continuous import Classes, LatencyLimit
from optmodels.serving.engine import EngineCosts
from optmodels.serving.levels import Levels, levels
from optmodels.serving.points import MOST_CONFIGURATIONS, Array, Index, stand_together
from optmodels.serving.static import Case

Kind = tuple[str, int, float, int]  # of engines: GPU, TP, GiB of VRAM of each GPU, attention ranks
ROUNDING = 1e-9  # relative, of requests in flight


@dataclass(frozen=True)
class End:
    """Machines that do one stage, at a level; shapes broadcast.

    Attributes:
        rate: requests/s that one machine takes, its network included.
        alone_s: steps·a₀ of a request on it.
        work_s: W over the replicas of a machine.
    """

    rate: Array
    alone_s: Array
    work_s: Array

    def residence_s(self, rate: Array, machines: Array) -> Array:
        """Steps of a request where so many machines share the rate, by (S1): no shorter with steps of that a₀."""
        return self.alone_s / (1.0 - np.minimum(rate / machines * self.work_s, 1.0 - 1e-12))


def in_flight(prefill: End, decode: End, transfer_s: Array, first: Array, second: Array) -> Array:
    """Requests of a closed loop through `first` prefill and `second` decode machines, at the most that they take."""
    rate = np.minimum(first * prefill.rate, second * decode.rate)
    held: Array = rate * (transfer_s + prefill.residence_s(rate, first) + decode.residence_s(rate, second))
    return held


def loop_rate(prefill: End, decode: End, transfer_s: float, machines: tuple[int, int], requests: float) -> float:
    """Requests/s of a closed loop of so many that these machines hold, by their levels' a₀: bisection."""
    first, second = (np.array(float(n)) for n in machines)
    low, high = 0.0, float(min(first * prefill.rate, second * decode.rate))
    for _ in range(80):
        rate = np.array((low + high) / 2.0)
        held = rate * (transfer_s + prefill.residence_s(rate, first) + decode.residence_s(rate, second))
        low, high = (float(rate), high) if held < requests else (low, float(rate))
    return high


def fewest(prefill: End, decode: End, transfer_s: Array, requests: float, counts: Index) -> tuple[Index, Index]:
    """The fewest prefill and decode machines that hold a closed loop, of allowed counts; 0 where none do, (m,).

    Both at once: README.md has the proof that the fewest of one stage come with the fewest of the other.

    Args:
        prefill: (m,).
        decode: (m,).
        transfer_s: that a cache is on its way, at least, (m,).
        requests: in flight.
        counts: allowed, ascending.
    """
    held = decode.alone_s / (1.0 - decode.rate * decode.work_s)
    most = transfer_s + prefill.alone_s / (1.0 - prefill.rate * prefill.work_s) + held
    at = np.searchsorted(counts, requests / most / prefill.rate * (1 - ROUNDING))
    empty = requests / (transfer_s + prefill.alone_s + decode.alone_s)  # the rate if steps lasted a₀
    last = np.minimum(np.searchsorted(counts, empty / prefill.rate * (1 + ROUNDING)), len(counts) - 1)
    found = np.zeros((2, len(at)), dtype=np.intp)
    todo = np.flatnonzero(at < len(counts))
    while len(todo):
        p = End(*(getattr(prefill, f.name)[todo] for f in fields(End)))
        d = End(*(getattr(decode, f.name)[todo] for f in fields(End)))
        first, each, w = counts[at[todo]].astype(float), (transfer_s + held)[todo], p.work_s / counts[at[todo]]
        b = each + p.alone_s + requests * w  # the rate at which decode machines that are full hold the loop
        root = 2.0 * requests / (b + np.sqrt(np.maximum(b * b - 4.0 * each * w * requests, 0.0)))
        second = np.searchsorted(counts, root / d.rate * (1 - ROUNDING))
        known = second < len(counts)
        n = np.where(known, counts[np.minimum(second, len(counts) - 1)], 0)
        some = np.maximum(n, 1).astype(float)
        fits = known & (in_flight(p, d, transfer_s[todo], first, some) >= requests * (1 - ROUNDING))
        found[:, todo[fits]] = first[fits].astype(np.intp), n[fits]
        at[todo] += 1
        # Where decode machines are too few they are for more that prefill, too; and what takes the rate of empty
        # engines holds the loop if anything does.
        todo = todo[~fits & known & (at[todo] <= last[todo])]
    return found[0], found[1]


@dataclass(frozen=True)
class Pairs:
    """Prefill and decode machines with their levels, the fewest that hold the loop; shape (n,) but the levels.

    Attributes:
        prefill, decode: levels of the engines of either stage.
        within: seconds that E2E may take, and the quantile that they bound (None: the mean).
        prefill_row, decode_row: which of them.
        first, second: machines of the pool that prefill and that decode.
        first_tp, second_tp, first_ranks, second_ranks, first_dp, second_dp, first_count, second_count: of them.
    """

    prefill: Levels
    decode: Levels
    within: tuple[float, float | None]
    prefill_row: Index
    decode_row: Index
    first: Index
    second: Index
    first_tp: Index
    second_tp: Index
    first_ranks: Index
    second_ranks: Index
    first_dp: Index
    second_dp: Index
    first_count: Index
    second_count: Index

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Index) -> Self:
        """Some of them."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)[3:]})

    @property
    def latencies_s(self) -> Array:
        """TTFT, time per output token and mean E2E, (n, 3)."""
        p, d, i, j = self.prefill, self.decode, self.prefill_row, self.decode_row
        e2e_s = self.deadline_s if self.within[1] is None else p.e2e_s[i] + d.e2e_s[j]
        return np.stack([p.ttft_s[i], d.tpot_s[j], e2e_s], axis=1)

    @property
    def deadline_s(self) -> Array:
        """E2E at the quantile of the deadline, both parts at it, (n,): by rounding no more than it."""
        both = self.prefill.deadline_s[self.prefill_row] + self.decode.deadline_s[self.decode_row]
        return np.minimum(both, self.within[0])

    def ends(self, problem: CostEfficiency, case: Case, row: int) -> tuple[End, End, float]:
        """What one pair's machines take, and how long a cache is on its way between them at least."""
        ends = []
        for at, level, machine, dp in (
            (self.prefill, self.prefill_row[row], self.first[row], self.first_dp[row]),
            (self.decode, self.decode_row[row], self.second[row], self.second_dp[row]),
        ):
            net = problem.network(case.machines[machine])
            ends.append(_end(problem, at, level, int(dp), net, problem.transfer_bytes(case)))
        nets = [problem.network(case.machines[i]) for i in (self.first[row], self.second[row])]
        return ends[0], ends[1], _least_transfer(problem, problem.transfer_bytes(case), *nets)


def _end(problem: CostEfficiency, at: Levels, rows: Index, dp: int, net: float, sent: float) -> End:
    through = problem.deployment.link.most_used * net / sent
    return End(np.asarray(np.minimum(dp * at.requests_per_s[rows], through)), at.alone_s[rows], at.work_s[rows] / dp)


def _least_transfer(problem: CostEfficiency, sent: float, first: float, second: float) -> float:
    """Seconds of a transfer through networks that nobody else uses."""
    return problem.deployment.link.latency_s + sent / first + sent / second


def _best_waits(at: Levels, rows: Index) -> Index:
    """Levels less those of the same step that carry no more than another and are no faster, at the deadline too."""
    order = rows[np.lexsort((at.deadline_s[rows], at.e2e_s[rows], -at.requests_per_s[rows], at.step_s[rows]))]
    kept: list[int] = []
    same: list[int] = []  # of what is kept, those of the row's step
    for row in order.tolist():  # by falling rate within a step time
        same = [k for k in same if at.step_s[k] == at.step_s[row]]
        if all(at.e2e_s[row] < at.e2e_s[k] * (1 - 1e-12) or at.deadline_s[row] < at.deadline_s[k] * (1 - 1e-12)
               for k in same):  # fmt: skip
            kept.append(row)
            same.append(row)
    return np.array(kept, dtype=np.intp)


def _undominated(first: Index, second: Index, e2e_s: Array) -> Index:
    """Rows that no other beats in machines of both stages and E2E."""
    order = np.lexsort((e2e_s, second, first))
    _, once = np.unique(np.stack([first, second])[:, order], axis=1, return_index=True)
    rows = order[once]  # the fastest of each pair of counts
    a, b, e = first[rows], second[rows], e2e_s[rows]
    beats = (a[:, None] <= a) & (b[:, None] <= b) & (e[:, None] <= e)
    np.fill_diagonal(beats, False)
    keep: Index = rows[~beats.any(axis=0)]
    return keep


def pairs(
    problem: CostEfficiency, case: Case, kinds: dict[Kind, EngineCosts], where: dict[Kind, list[int]], kind: Classes,
    limits: tuple[LatencyLimit | None, ...], within: tuple[float, float | None], shares: Sequence[float],
) -> Pairs:  # fmt: skip
    """Every pair of prefill and decode machines and of their levels with the fewest of both that hold the loop.

    Of equal counts of equal machines only the fastest levels: what costs as much and keeps the same limits.

    Args:
        problem: the instance.
        case: it, resolved.
        kinds: engines.
        where: machines that can have them.
        kind: the requests, one class.
        limits: on TTFT and time per output token.
        within: of E2E, as `Pairs` has it.
        shares: of the longest waits.
    """
    link, sent = problem.deployment.link, problem.transfer_bytes(case)
    units: dict[tuple[Kind, float], dict[int, list[int]]] = {}  # machines by engine and network, by replicas on each
    for key in kinds:
        for i in where[key]:
            net = problem.network(case.machines[i])
            if net > 0:
                replicas = case.machines[i].gpu_count // (key[1] * key[3])
                units.setdefault((key, net), {}).setdefault(replicas, []).append(i)
    engines = [kinds[key] for key, _ in units]
    moves = np.array([sent / (net * (1.0 - link.most_used)) for _, net in units])
    decode = levels(engines, problem.engine, kind, None, limits[1], stage="decode", moved_s=moves,
                    deadline=(math.inf, within[1]))  # fmt: skip
    sold = np.array([
        any(case.machines[i].prices.get(m) is not None for i in chain(*of.values()) for m in problem.markets.main)
        for of in units.values()
    ], dtype=bool)  # fmt: skip
    rest = decode.deadline_s[sold[decode.engine]]
    left = within[0] - (float(rest.min()) if len(rest) else 0.0)
    at = {
        "prefill": levels(engines, problem.engine, kind, limits[0], None, shares=shares, stage="prefill",
                          moved_s=moves + link.latency_s, deadline=(left, within[1])),
        "decode": decode,
    }  # fmt: skip
    ends: dict[str, list[tuple[Index, float, int, int, int, list[int]]]] = {stage: [] for stage in at}
    for stage, found in at.items():
        for e, (((_, tp, _, ranks), net), by_replicas) in enumerate(units.items()):
            rows = _best_waits(found, np.flatnonzero(found.engine == e))
            ends[stage] += [(rows, net, tp, ranks, dp, machines) for dp, machines in by_replicas.items() if len(rows)]
    stand, counts = stand_together(case), np.array(sorted(set(problem.strategies.allowed("high_end"))), dtype=np.intp)
    parts: list[npt.NDArray[np.intp]] = []
    total = 0
    for rows, net, tp, ranks, dp, machines in ends["prefill"]:
        for rows2, net2, tp2, ranks2, dp2, machines2 in ends["decode"]:
            near = [(i, j) for i in machines for j in machines2 if stand[i, j]]
            if not near or (link.tensor_parallel == "equal" and tp != tp2):
                continue
            level, level2 = (x.ravel() for x in np.meshgrid(rows, rows2, indexing="ij"))
            e2e_s = at["prefill"].deadline_s[level] + at["decode"].deadline_s[level2]
            level, level2 = (x[e2e_s <= within[0] * (1 + 1e-12)] for x in (level, level2))
            p = _end(problem, at["prefill"], level, dp, net, sent)
            d = _end(problem, at["decode"], level2, dp2, net2, sent)
            least = np.full(len(level), _least_transfer(problem, sent, net, net2))
            n, n2 = fewest(p, d, least, float(problem.workload.batch), counts)
            some = np.flatnonzero(n)
            if not len(some):
                continue
            e2e_s = at["prefill"].e2e_s[level[some]] + at["decode"].e2e_s[level2[some]]
            keep = some[_undominated(n[some], n2[some], e2e_s)]
            total += len(keep) * len(near)
            if total > MOST_CONFIGURATIONS:
                expected = f"at most {MOST_CONFIGURATIONS:,} pairs of prefill and decode machines"
                raise InputError(Mistake(None, "pool", f"more than {total:,}", expected, hint="list fewer machines"))
            equal = [np.full(len(keep), x) for x in (tp, tp2, ranks, ranks2, dp, dp2)]
            for a, b in near:
                machine = np.full(len(keep), a), np.full(len(keep), b)
                parts.append(np.stack([level[keep], level2[keep], *machine, *equal, n[keep], n2[keep]]))
    columns = np.concatenate([np.zeros((12, 0), dtype=np.intp), *parts], axis=1)
    return Pairs(at["prefill"], at["decode"], within, *columns)
