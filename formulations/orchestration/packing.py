"""Units of instances into servers: the inequalities that state whether they fit, and a packing of the units that do.

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
from optmodels.arrays import Ints
from optmodels.errors import InputError, Mistake
from optmodels.solver.session import Session

Placement = dict[str, list[int]]
MOST_PATTERNS = 10_000  # of a GPU type


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

    @property
    def ways(self) -> float:
        """How many `patterns` there are, without listing them."""
        most = max(self.servers, default=0)
        ways = np.zeros(most + 1)  # multisets of the sizes so far that fill this many GPUs
        ways[0] = 1.0
        for s in self.sizes:
            for first in range(min(s, most + 1)):
                ways[first::s] = np.cumsum(ways[first::s])
        maximal = [ways[max(0, free - min(self.sizes) + 1) : free + 1].sum() for free in self.servers if self.sizes]
        return float(sum(maximal))

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
    """One room for each GPU type; `units` holds the unit sizes met on each.

    Raises:
        InputError: servers can be filled in too many ways to list.
    """
    made = []
    for g, kind in enumerate(case.gpu_types):
        working = dict(Counter(len(s.free) for s in case.servers_of[g] if s.free))
        made.append(Room(tuple(sorted(set(units[g]))), working, case.problem.cluster.stock.get(kind)))
        if not made[-1].divisible and (ways := made[-1].ways) > MOST_PATTERNS:
            given = f"{ways:,.4g} ways to fill a server with units of {', '.join(map(str, made[-1].sizes))} GPUs"
            expected = f"at most {MOST_PATTERNS:,}: sizes that divide one another, fewer of them, or smaller servers"
            raise InputError(Mistake(None, "candidates.tp", given, expected))
    return tuple(made)


def pack(
    case: OrchestrationCase, gpu: int, units: Sequence[int], kept: Sequence[Placement] = ()
) -> list[Placement] | None:
    """GPUs for each unit of one GPU type, in the order given; None if they do not fit.

    Args:
        case: the problem.
        gpu: GPU type.
        units: GPUs of each unit.
        kept: GPUs that are taken already.
    """
    taken: dict[str, set[int]] = {}
    for placement in kept:
        for server, used in placement.items():
            taken.setdefault(server, set()).update(used)
    servers = _Servers(case.servers_of[gpu], taken)
    sizes = tuple(sorted(set(units)))
    if all(b % a == 0 for a, b in pairwise(sizes)):
        return _first_fit(servers, units)
    return _by_patterns(servers, units, sizes)


class _Servers:
    """Servers of one type and their free GPUs, listed on demand: few instances fill few servers."""

    def __init__(self, lines: Sequence[ServerLine], taken: Mapping[str, set[int]]) -> None:
        self.lines, self.taken = lines, taken
        self.lists: dict[int, list[int]] = {}

    def free(self, at: int) -> list[int]:
        """GPUs that are free, to be taken from the list."""
        if at not in self.lists:
            line = self.lines[at]
            used = self.taken.get(line.name, ())
            self.lists[at] = sorted(g for g in line.free if g not in used)
        return self.lists[at]

    def take(self, at: int, size: int) -> Placement:
        """The first GPUs that are free."""
        free = self.free(at)
        placed = {self.lines[at].name: free[:size]}
        del free[:size]
        return placed


def _first_fit(servers: _Servers, units: Sequence[int]) -> list[Placement] | None:
    """The largest first."""
    placed: list[Placement] = [{} for _ in units]
    for size in sorted(set(units), reverse=True):
        at = 0
        for i in np.flatnonzero(np.asarray(units) == size).tolist():
            while at < len(servers.lines) and len(servers.free(at)) < size:
                at += 1
            if at == len(servers.lines):
                return None
            placed[i] = servers.take(at, size)
    return placed


def _by_patterns(servers: _Servers, units: Sequence[int], sizes: tuple[int, ...]) -> list[Placement] | None:
    by_kind: dict[int, list[int]] = {}
    for at in range(len(servers.lines)):
        by_kind.setdefault(len(servers.free(at)), []).append(at)
    room = Room(sizes, {kind: len(members) for kind, members in by_kind.items() if kind}, None)
    times = _times(room, Counter(units))
    if times is None:
        return None
    todo = {s: [i for i, u in enumerate(units) if u == s] for s in sizes}
    placed: list[Placement] = [{} for _ in units]
    for (kind, pattern), often in zip(room.patterns, times.tolist(), strict=True):
        for _ in range(often):
            at = by_kind[kind].pop()
            for s, count in zip(sizes, pattern, strict=True):
                for _ in range(min(count, len(todo[s]))):
                    placed[todo[s].pop()] = servers.take(at, s)
    return placed


def fits_by_patterns(room: Room, units: Mapping[int, int]) -> bool:
    """Whether this many units of each size fit the servers, whatever the sizes."""
    return _times(room, units) is not None


def _times(room: Room, need: Mapping[int, int]) -> Ints | None:
    """How many servers follow each pattern so that every unit fits; None: they do not."""
    if not any(need.values()):
        return np.zeros(len(room.patterns), dtype=np.int64)
    entries: list[tuple[int, int, float]] = []
    sizes, kinds = room.sizes, sorted(room.servers)
    for j, (kind, pattern) in enumerate(room.patterns):
        for i, n in enumerate(pattern):
            if n:
                entries.append((i, j, float(n)))
        entries.append((len(sizes) + kinds.index(kind), j, 1.0))
    n = len(room.patterns)
    if not n:
        return None
    rows, columns, values = (list(x) for x in zip(*entries, strict=True))
    A = coo_array((values, (rows, columns)), shape=(len(sizes) + len(kinds), n)).tocsc()
    low = [float(need.get(s, 0)) for s in sizes] + [0.0] * len(kinds)
    high = [np.inf] * len(sizes) + [float(room.servers[k]) for k in kinds]
    session = Session()
    session.load(np.zeros(n), A, low, high, np.zeros(n), np.full(n, np.inf), np.ones(n, dtype=bool))
    session.run()
    found = session.point()
    return None if found is None else np.round(found).astype(np.int64)
