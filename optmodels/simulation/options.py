"""How a plan is replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optmodels.simulation.cluster import Queue, Speed


@dataclass(frozen=True)
class ReplayOptions:
    """Options that the verb `replay` passes to a formulation's hook.

    A hook returns JSON-ready data, and the command line shows ``predicted`` (metric → value) next to ``policies``
    (policy → metrics of the same names), and whatever else it holds: numbers, texts, and lists of records as tables.

    Attributes:
        policy: who gets a request; None: the formulation's default policy.
        speed: speed of decoding: ``load`` as the batch is, ``worst_case`` as if it were always full.
        overflow_protection: refuse a request where a timeout is predicted; None: as the policy is by default.
        queue: order in which an instance serves, ``fifo`` or ``deadline``; None: as the policy is by default.
        controller: controller of every instance's batch, as `simulation.controlled` reads it; None: the limit is the
            slots.
        seed: random seed of everything drawn.
        keep: called with the name of a run and its columns, one row a request, where they are to be written.
    """

    policy: str | None = None
    speed: Speed = "load"
    overflow_protection: bool | None = None
    queue: Queue | None = None
    seed: int = 0
    controller: str | None = None
    keep: Callable[[str, Mapping[str, Any]], None] | None = None
