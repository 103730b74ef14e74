"""How a plan is replayed."""

from __future__ import annotations

from dataclasses import dataclass

from optmodels.simulation.cluster import Speed


@dataclass(frozen=True)
class ReplayOptions:
    """What the verb `replay` passes to a formulation's hook.

    Attributes:
        policy: who gets a request; None: what the formulation replays by default.
        speed: of decoding: ``load`` as the batch is, ``worst_case`` as if it were always full.
        overflow_protection: refuse a request where a timeout is predicted; None: as the policy is by default.
        seed: of everything drawn.
    """

    policy: str | None = None
    speed: Speed = "load"
    overflow_protection: bool | None = None
    seed: int = 0
