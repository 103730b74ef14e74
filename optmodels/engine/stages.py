"""Disaggregated prefill and decode: which stages deployments may do, and how KV caches go from one to the other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from optmodels.catalog.types import Entry
from optmodels.engine.continuous import Stage
from optmodels.latency.memory import Drafts, kv_bytes
from optmodels.latency.work import LayerWork
from optmodels.units import Gbps, NonNegativeSeconds, PositiveFraction


class Link(Entry):
    """How KV caches go from prefill to decode engines: through the network of the machines of either."""

    net_gbps: Gbps | None = Field(default=None, description="network of each machine; default: the pool's figure")
    latency_s: NonNegativeSeconds = Field(default=0.005, description="latency of a transfer, besides its bytes")
    most_used: Annotated[PositiveFraction, Field(lt=1)] = Field(
        default=0.5, description="planned share of a network; a transfer takes 1/(1 − most_used) times as long"
    )
    tensor_parallel: Literal["any", "equal"] = Field(
        default="any", description="tensor parallelism of prefill and decode engines that exchange caches"
    )

    def rate(self, network: float) -> float:
        """A transfer's rate on a network of this many bits or bytes a second: others use the planned share."""
        return network * (1.0 - self.most_used)


class DeploymentStages(Entry):
    """Stages of a request that deployments serve, with serving: continuous."""

    stages: tuple[Stage, ...] = Field(
        default=("both",),
        min_length=1,
        description="stages that deployments may serve: both, or prefill and decode disaggregated",
    )
    link: Link = Field(default=Link(), description="link between prefill and decode deployments")

    @field_validator("stages")
    @classmethod
    def _whole(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        if len(set(stages)) != len(stages):
            raise ValueError("each stage once")
        if ("prefill" in stages) != ("decode" in stages):
            raise ValueError("prefill and decode together: neither serves a request alone")
        return stages

    @property
    def apart(self) -> bool:
        """Whether some deployments only prefill, others only decode."""
        return "prefill" in self.stages


def cache_bytes(work: LayerWork, prompt_tokens: Any, drafts: Drafts | None = None) -> Any:
    """Of the KV cache of prompts: what goes from their prefill to their decode engine.

    Where engines speculate, a draft model's or head's cache of the prompt goes with it: both sides run it.
    """
    found = kv_bytes(work, 1, 1.0, prompt_tokens)
    if drafts is not None:
        found = (1.0 + drafts.head) * found
        found = found if drafts.work is None else found + kv_bytes(drafts.work, 1, 1.0, prompt_tokens)
    return found
