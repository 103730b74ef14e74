"""Counts of instances → instances on named GPUs of named servers; running instances stay where it is if it can."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.orchestration.packing import Placement, Room, pack, rooms
from formulations.orchestration.plan import ConfigurationLine
from formulations.orchestration.points import Configuration, OrchestrationTables, level_name
from optmodels.arrays import Ints


@dataclass(frozen=True)
class Placed:
    """One instance on its GPUs."""

    name: str
    configuration: int
    placement: Placement
    kept: bool


@dataclass(frozen=True)
class Placements:
    """All instances; `moved` of them ran already but had to leave their GPUs."""

    instances: tuple[Placed, ...]
    moved: int


def rooms_of(t: OrchestrationTables) -> tuple[Room, ...]:
    """By GPU type, the servers for units of the sizes that configurations have."""
    units: list[list[int]] = [[] for _ in t.case.gpu_types]
    for x in t.configurations:
        units[x.gpu].append(x.unit)
    return rooms(t.case, units)


def running_counts(t: OrchestrationTables) -> Ints:
    """(C,) instances of each configuration that run already (instances of no usable configuration are not counted)."""
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    for c, count, _ in _running(t):
        if c is not None:
            counts[c] += count
    return counts


def _running(t: OrchestrationTables) -> list[tuple[int | None, int, Placement | None]]:
    """Configuration (None: not usable), count and placement of every line of change.running."""
    key = {(t.case.models[x.model], t.case.gpu_types[x.gpu], x.degrees, x.batch, x.stage): c
           for c, x in enumerate(t.configurations)}  # fmt: skip
    found = []
    for r in t.case.problem.change.running:
        gpu = r.gpu or t.case.gpu_types[0]
        placement = None if r.placement is None else {s: list(g) for s, g in r.placement.items()}
        degrees = r.tp, r.pp, r.attention_ranks, r.dp
        found.append((key.get((r.model, gpu, degrees, r.batch, r.stage)), r.count, placement))
    return found


def place(t: OrchestrationTables, counts: Ints) -> Placements | None:
    """Instances on GPUs, or None if they do not fit."""
    counts = np.asarray(counts, dtype=np.int64)
    left = counts.copy()
    stay: list[tuple[int, Placement]] = []
    stays = {s for _, _, placement in _running(t) for s in placement or ()}
    working = {s.name: set(s.free) for s in t.case.servers if s.name in stays}
    for c, _, placement in _running(t):
        if c is not None and placement is not None and left[c] > 0 and all(
            set(g) <= working.get(s, set()) and len(g) % t.configurations[c].unit == 0 for s, g in placement.items()
        ):  # fmt: skip
            stay.append((c, placement))
            left[c] -= 1
    placed = _place_rest(t, left, stay)
    moved = 0
    if placed is None and stay:
        moved, stay = len(stay), []
        placed = _place_rest(t, counts, stay)
    if placed is None:
        return None
    of: dict[int, list[tuple[Placement, bool]]] = {}
    for c, placement in stay:
        of.setdefault(c, []).append((placement, True))
    for c, placement in placed:
        of.setdefault(c, []).append((placement, False))
    instances = []
    for c in sorted(of):
        x = t.configurations[c]
        name = instance_name(t, t.case.models[x.model], t.case.gpu_types[x.gpu], x)
        instances += [Placed(f"{name}-{n}", c, placement, kept) for n, (placement, kept) in enumerate(of[c], 1)]
    return Placements(tuple(instances), moved)


def instance_name(t: OrchestrationTables, model: str, gpu: str, x: Configuration | ConfigurationLine) -> str:
    """Name of a configuration's instances, to which each adds its number."""
    name = f"{model}-{gpu}" if len(t.case.gpu_types) > 1 else model
    name += f"-{x.parallelism.replace(' ', '-').replace('-', '')}-b{x.batch}"
    name += level_name(x.level, t.case.problem).replace(" waits ", "-w").replace(" ", "-").replace(".", "-")
    return name + ("" if x.stage == "both" else f"-{x.stage}")


def _place_rest(
    t: OrchestrationTables, left: Ints, stay: list[tuple[int, Placement]]
) -> list[tuple[int, Placement]] | None:
    placed: list[tuple[int, Placement]] = []
    for g in range(len(t.case.gpu_types)):
        owner, units = [], []
        for c in map(int, np.flatnonzero((left > 0) & (t.gpu_of == g))):
            x = t.configurations[c]
            owner += [c] * int(left[c])
            units += [x.unit] * (x.units * int(left[c]))
        kept = [p for c, p in stay if t.configurations[c].gpu == g]
        where = pack(t.case, g, units, kept)
        if where is None:
            return None
        if len(where) == len(owner):  # a unit each
            placed += zip(owner, where, strict=True)
            continue
        at = 0
        for c in owner:
            joined: Placement = {}
            for part in where[at : at + t.configurations[c].units]:
                for server, used in part.items():
                    joined.setdefault(server, []).extend(used)
            at += t.configurations[c].units
            placed.append((c, {s: sorted(u) for s, u in joined.items()}))
    return placed
