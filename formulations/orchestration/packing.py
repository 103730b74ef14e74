"""Units of instances into servers: the inequalities that say whether they fit, and a packing of those that do.

Servers with equally many working GPUs are interchangeable, so packing needs no variable per server:

* Where the sizes of the units divide one another (1, 2, 4, 8), a packing exists if and only if for every size s
      Σ_{units of at least s GPUs} GPUs ≤ s·Σ_servers ⌊working GPUs / s⌋.
  Necessary: a server holds such units in multiples of s. Sufficient: largest first; when a unit of s GPUs finds no
  room, every server's multiples of s are taken, and the sum is over the limit. It holds for unlike servers too.
* Otherwise servers choose among *patterns* (maximal multisets of sizes that fit): Σ_p a_ps·y_p ≥ units of size s,
  Σ_{p of a server kind} y_p ≤ its servers (Gilmore and Gomory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array

from formulations.orchestration.problem import OrchestrationCase, ServerLine
from optmodels.solver.session import Session

Placement = dict[str, list[int]]


@dataclass(frozen=True)
class Room:
    """The servers of one GPU type and the unit sizes that may have to fit.

    Attributes:
        sizes: ascending.
        servers: free GPUs → how many servers have that many.
        stock: most GPUs that may be used; None: all.
    """

    sizes: tuple[int, ...]
    servers: Mapping[int, int]
    stock: int | None

    @property
    def divisible(self) -> bool:
        """Every size divides the next."""
        return all(b % a == 0 for a, b in pairwise(self.sizes))

    @cached_property
    def capacity(self) -> dict[int, int]:
        """GPUs that units of at least s may take together, by s."""
        return {s: s * sum(n * (free // s) for free, n in self.servers.items()) for s in self.sizes}

    @cached_property
    def gpus(self) -> int:
        """GPUs that may be used."""
        total = sum(free * n for free, n in self.servers.items())
        return total if self.stock is None else min(total, self.stock)

    @cached_property
    def patterns(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(free GPUs of the server, units of each size), maximal ones only."""
        return tuple((free, p) for free in sorted(self.servers) for p in _maximal(free, self.sizes))


def _maximal(free: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Multisets of sizes that fit `free` GPUs and to which nothing can be added."""

    def extend(i: int, left: int) -> Iterator[tuple[int, ...]]:
        if i < 0:
            if left < sizes[0]:
                yield ()
            return
        for n in range(left // sizes[i], -1, -1):
            yield from ((*rest, n) for rest in extend(i - 1, left - n * sizes[i]))

    yield from (p for p in extend(len(sizes) - 1, free) if any(p))


def rooms(case: OrchestrationCase, units: Sequence[Sequence[int]]) -> tuple[Room, ...]:
    """One room for each GPU type; `units` holds the unit sizes met on each."""
    made = []
    for g, kind in enumerate(case.gpu_types):
        free = Counter(len(s.free) for s in case.servers if s.gpu == g and s.free)
        made.append(Room(tuple(sorted(set(units[g]))), dict(free), case.problem.cluster.stock.get(kind)))
    return tuple(made)


def pack(
    case: OrchestrationCase, gpu: int, units: Sequence[int], kept: Sequence[Placement] = ()
) -> list[Placement] | None:
    """GPUs for each unit of one GPU type, in the order given; None if they do not fit.

    Args:
        case: the problem.
        gpu: GPU type.
        units: GPUs of each unit.
        kept: what is taken already.
    """
    taken: dict[str, set[int]] = {}
    for placement in kept:
        for server, used in placement.items():
            taken.setdefault(server, set()).update(used)
    servers = [ServerLine(s.name, s.gpu, tuple(g for g in s.free if g not in taken.get(s.name, ())))
               for s in case.servers if s.gpu == gpu]  # fmt: skip
    sizes = tuple(sorted(set(units)))
    free = [list(s.free) for s in servers]
    if all(b % a == 0 for a, b in pairwise(sizes)):
        order = sorted(range(len(units)), key=lambda i: -units[i])
        return _first_fit(servers, free, units, order)
    return _by_patterns(servers, free, units, sizes)


def _first_fit(
    servers: list[ServerLine], free: list[list[int]], units: Sequence[int], order: list[int]
) -> list[Placement] | None:
    placed: list[Placement] = [{} for _ in units]
    at, size = 0, -1
    for i in order:
        if units[i] != size:
            at, size = 0, units[i]
        while at < len(free) and len(free[at]) < size:
            at += 1
        if at == len(free):
            return None
        placed[i] = {servers[at].name: free[at][:size]}
        del free[at][:size]
    return placed


def _by_patterns(
    servers: list[ServerLine], free: list[list[int]], units: Sequence[int], sizes: tuple[int, ...]
) -> list[Placement] | None:
    room = Room(sizes, Counter(len(f) for f in free if f), None)
    need = Counter(units)
    entries: list[tuple[int, int, float]] = []
    kinds = sorted(room.servers)
    for j, (kind, pattern) in enumerate(room.patterns):
        for i, n in enumerate(pattern):
            if n:
                entries.append((i, j, float(n)))
        entries.append((len(sizes) + kinds.index(kind), j, 1.0))
    n = len(room.patterns)
    if not n:
        return None if units else []
    rows, columns, values = (list(x) for x in zip(*entries, strict=True))
    A = coo_array((values, (rows, columns)), shape=(len(sizes) + len(kinds), n)).tocsc()
    low = [float(need[s]) for s in sizes] + [0.0] * len(kinds)
    high = [np.inf] * len(sizes) + [float(room.servers[k]) for k in kinds]
    session = Session()
    session.load(np.zeros(n), A, low, high, np.zeros(n), np.full(n, np.inf), np.ones(n, dtype=bool))
    session.run()
    found = session.point()
    if found is None:
        return None
    todo = {s: [i for i, u in enumerate(units) if u == s] for s in sizes}
    placed: list[Placement] = [{} for _ in units]
    by_kind = {k: [i for i, f in enumerate(free) if len(f) == k] for k in kinds}
    for (kind, pattern), times in zip(room.patterns, np.round(found).astype(int), strict=True):
        for _ in range(times):
            at = by_kind[kind].pop()
            for s, count in zip(sizes, pattern, strict=True):
                for _ in range(count):
                    if todo[s]:
                        placed[todo[s].pop()] = {servers[at].name: free[at][:s]}
                        del free[at][:s]
    return placed
