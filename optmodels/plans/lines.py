"""Lines that the plans of several formulations have in common."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from optmodels.catalog.types import Market
from optmodels.engine.continuous import ROWS, EngineLimits
from optmodels.engine.costs import EngineCosts
from optmodels.engine.levels import Levels
from optmodels.latency.steps import Provenance, never_measured
from optmodels.plans.outcome import Document

Count = Annotated[int, Field(ge=1, le=10**6)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Money = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SeveralRanks = Annotated[
    Annotated[int, Field(ge=2, le=10**6)] | None,
    Field(description="attention ranks of an engine, each of tensor_parallel GPUs; None: one, or static batches"),
]


class RankedDocument(Document):
    """One with `attention_ranks: SeveralRanks`, a key that is left out of one rank, as before there were several.

    Attributes:
        left_out: keys that are left out where they are None.
    """

    left_out: ClassVar[tuple[str, ...]] = ("attention_ranks",)

    @model_serializer(mode="wrap")
    def _ranks_where_several(self, made: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {k: v for k, v in made(self).items() if k not in self.left_out or v is not None}


class MachineLine(Document):
    """Some machines of one type bought for one role."""

    role: Literal["main", "ao"] = Field(description="ao: attention is offloaded to it")
    machine: str
    region: str
    gpu: str | None
    gpus_per_machine: Count
    market: Market
    count: Count
    usd_per_hour_each: Money


class LimitLine(Document):
    """One requirement with its value in the plan."""

    name: str
    value: float
    limit: float | None
    unit: str
    sense: Literal["<=", ">="]
    binding: bool


class EngineLine(Document):
    """How the engines of a deployment batch, and what of each of their capacities is in use."""

    step_s: Money = Field(
        description="mean step planned for, at most: of a full deployment, idle time counted as steps without requests"
    )
    wait_s: Amount = Field(description="mean wait before prefill planned for, at most")
    place_wait_s: Amount = Field(
        default=0.0,
        description="mean wait for a slot or KV cache planned for, at most; 0: requests seldom wait for these",
    )
    most_of_wait: Amount | None = Field(description="longest prefill of a request in such waits; None: any")
    max_num_seqs: Count
    max_num_batched_tokens: Count
    chunk_tokens: Count | None = None
    kv_tokens: Amount
    capacities: dict[str, Amount] = Field(
        description="share of each capacity of all counted deployments in use, by name"
    )
    latency: str = Field(description="source of the step's seconds")


def latency_source(p: Provenance) -> str:
    """Where the seconds of an engine's steps come from, in one line."""
    return "; ".join(filter(None, (p.source, never_measured(p.transfer), *p.notes)))


def engine_line(at: Levels, row: int, engine: EngineCosts, limits: EngineLimits, share: float = 1.0) -> EngineLine:
    """One level of an engine at a share of the rate that it carries."""
    most = float(at.most_of_wait[row])
    return EngineLine(
        step_s=float(at.step_s[row]), wait_s=float(at.wait_s[row]), most_of_wait=most if math.isfinite(most) else None,
        place_wait_s=float(at.place_wait_s[row]), max_num_seqs=int(at.max_num_seqs[row]),
        max_num_batched_tokens=limits.max_num_batched_tokens, chunk_tokens=limits.chunk_tokens,
        kv_tokens=engine.with_slots(limits.choosing(int(at.max_num_seqs[row])).slots).kv_tokens,
        latency=latency_source(engine.provenance),
        capacities=dict(zip(ROWS, (share * at.capacities[:, row]).tolist(), strict=True)),
    )  # fmt: skip
